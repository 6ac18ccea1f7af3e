// rate-limiter-flexible on ioredis: the limiter without Lua works, the one with it fails. Prints
// what each of them said.

const Redis = require("ioredis");
const { RateLimiterRedis, RateLimiterRedisNonAtomic } = require("rate-limiter-flexible");

async function three(limiter) {
  const seen = [];
  for (let number = 0; number < 3; number += 1) {
    seen.push(
      await limiter.consume("user").then(
        (taken) => `taken, ${taken.remainingPoints} remain`,
        (refused) => refused.message ?? `refused, ${refused.remainingPoints} remain`,
      ),
    );
  }
  return seen;
}

async function main() {
  const client = new Redis(process.argv[2]);
  const options = { storeClient: client, points: 2, duration: 3600 };
  for (const Limiter of [RateLimiterRedisNonAtomic, RateLimiterRedis]) {
    console.log(Limiter.name, JSON.stringify(await three(new Limiter(options))));
  }
  await client.quit();
}

main();
