// Sends mail as fast as the rule `mail` lets it, and gives up after a quarter of a second.

import { Client } from "tidegate";

const tidegate = new Client();

for (let number = 1; number <= 2; number += 1) {
  const result = await tidegate.wait("mail", { maxWaitMs: 250 });
  console.log(`mail ${number}: ${result.allowed ? "sent" : "not now"}`);
}
