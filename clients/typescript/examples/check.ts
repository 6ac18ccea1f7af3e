// Logins of one address: three an hour, by the rule `login *` of the server.

import { Client, makeKey } from "tidegate";

const tidegate = new Client();

for (let number = 1; number <= 4; number += 1) {
  const result = await tidegate.check(makeKey("login", { client: "192.0.2.7" }));
  if (result.allowed) {
    console.log(`login ${number}: allowed`);
  } else {
    console.log(`login ${number}: refused by the rule ${result.refusedBy}`);
  }
}
