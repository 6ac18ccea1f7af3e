// Runs a job only while no other runs, by the rule `jobs*` with `1 in flight`.

import { Client } from "tidegate";

const tidegate = new Client();

{
  await using first = await tidegate.hold("jobs", { holdMs: 60_000 });
  console.log("first job:", first.allowed ? "runs" : "turned away");

  await using second = await tidegate.hold("jobs", { holdMs: 60_000 });
  console.log("second job:", second.allowed ? "runs" : "turned away");
}

// Without `await using`: the use is held for as long as the function takes.
await tidegate.hold("jobs", { holdMs: 60_000 }, async (third) => {
  console.log("third job:", third.allowed ? "runs" : "turned away");
});
