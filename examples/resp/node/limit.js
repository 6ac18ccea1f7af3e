// Limits for each user, with node-redis (`npm install redis`): one that the application sets, and
// one that the operator sets by a rule in the server's file. Without the rule all logins are
// allowed.
//
//     [[rule]]
//     match = "login:*"
//     limit = "1 per hour"
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

// The same by the operator's rule.
async function loginWaitSeconds(client, user) {
  const reply = await client.sendCommand(["TG.CHECK", `login:${user}`]);
  return reply.allowed ? undefined : reply.retry_ms / 1000;
}

function say(what, seconds) {
  if (seconds === undefined) {
    console.log(`${what}: allowed`);
  } else {
    console.log(`${what}: refused, try again in ${Math.ceil(seconds / 60)} minutes`);
  }
}

async function main() {
  // In protocol 3 the reply of TG.CHECK is an object.
  const client = createClient({ url: process.argv[2] ?? "redis://127.0.0.1:6380", RESP: 3 });
  await client.connect();
  for (let number = 1; number <= 4; number += 1) {
    say(`request ${number}`, await waitSeconds(client, "ada"));
  }
  for (let number = 1; number <= 2; number += 1) {
    say(`login ${number}`, await loginWaitSeconds(client, "ada"));
  }
  await client.close();
}

main();
