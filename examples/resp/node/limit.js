// A limit for each user, with node-redis (`npm install redis`).
//
//     node limit.js [redis://127.0.0.1:6380]

const { createClient } = require("redis");

// Uses one of the user's three requests an hour: undefined, or in how many seconds there is one.
async function waitSeconds(client, user) {
  const [burst, count, period] = ["2", "3", "3600"];
  const request = ["CL.THROTTLE", `user:${user}`, burst, count, period];
  const [limited, , , retry] = await client.sendCommand(request);
  return limited ? retry : undefined;
}

async function main() {
  const client = createClient({ url: process.argv[2] ?? "redis://127.0.0.1:6380" });
  await client.connect();
  for (let number = 1; number <= 4; number += 1) {
    const seconds = await waitSeconds(client, "ada");
    if (seconds === undefined) {
      console.log(`request ${number}: allowed`);
    } else {
      console.log(`request ${number}: refused, try again in ${Math.ceil(seconds / 60)} minutes`);
    }
  }
  await client.close();
}

main();
