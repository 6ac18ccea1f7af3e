// ioredis: every call of an application, with the URL and the protocol that are given; a path is a
// Unix socket. Prints what it saw, one line for each call; then sends what standard input says.

const Redis = require("ioredis");
const { readFileSync } = require("node:fs");
const { converse } = require("./conversation.js");

const [address, protocol, password, authority] = process.argv.slice(2);

function say(...seen) {
  console.log(seen.map((one) => (typeof one === "string" ? one : JSON.stringify(one))).join(" "));
}

async function main() {
  const client = new Redis(address, {
    protocol: Number(protocol),
    // Without it maps are flat and booleans are numbers in RESP3, too.
    replyMapping: protocol === "3" ? "resp3" : "legacy",
    connectionName: "a-test",
    password: password || undefined,
    tls: authority ? { ca: readFileSync(authority) } : undefined,
  });
  client.on("error", (error) => say("error", error.message));
  say("ping", await client.ping());
  say("throttle", await client.call("CL.THROTTLE", "u", 15, 30, 60, 1));
  say("incr", await client.incr("one"), await client.incrby("one", 4), await client.decr("one"));
  say("multi", await client.multi().incr("c").expire("c", 5).exec());
  say("pipeline", await client.pipeline().incr("c").persist("c").ttl("c").exec());
  say("set", await client.set("s", "text", "EX", 3600), await client.get("s"));
  say("nx", await client.set("s", "other", "NX"), await client.exists("s"));
  say("missing", await client.get("nobody"), await client.ttl("nobody"));
  const many = Array.from({ length: 1000 }, (_, number) => client.echo(String(number)));
  say("many", (await Promise.all(many)).every((reply, number) => reply === String(number)));
  say("name", await client.client("GETNAME"));
  say("delete", await client.del("s", "c", "one", "u"));
  await client.eval("return 1", 0).catch((error) => say("eval", error.message));
  await converse(([name, ...words]) => client.call(name, ...words));
  await client.quit();
}

main();
