// node-redis: every call of an application, with the URL and the protocol that are given; a path is
// a Unix socket. Prints what it saw, one line for each call; then sends what standard input says.

const { createClient } = require("redis");
const { readFileSync } = require("node:fs");
const { converse } = require("./conversation.js");

const [address, protocol, password, authority] = process.argv.slice(2);

function options() {
  const common = { RESP: Number(protocol), name: "a-test", password: password || undefined };
  if (address.startsWith("/")) {
    return { ...common, socket: { path: address } };
  }
  const socket = authority ? { tls: true, ca: readFileSync(authority) } : undefined;
  return { ...common, url: address, socket };
}

function say(...seen) {
  console.log(seen.map((one) => (typeof one === "string" ? one : JSON.stringify(one))).join(" "));
}

async function main() {
  const client = createClient(options());
  client.on("error", (error) => say("error", error.message));
  await client.connect();
  say("ping", await client.ping());
  say("throttle", await client.sendCommand(["CL.THROTTLE", "u", "15", "30", "60", "1"]));
  say("incr", await client.incr("one"), await client.incrBy("one", 4), await client.decr("one"));
  say("multi", await client.multi().incr("c").expire("c", 5).exec());
  say("pipeline", await client.multi().incr("c").persist("c").ttl("c").execAsPipeline());
  say("set", await client.set("s", "text", { EX: 3600 }), await client.get("s"));
  say("nx", await client.set("s", "other", { NX: true }), await client.exists("s"));
  say("missing", await client.get("nobody"), await client.ttl("nobody"));
  const many = Array.from({ length: 1000 }, (_, number) => client.echo(String(number)));
  say("many", (await Promise.all(many)).every((reply, number) => reply === String(number)));
  say("name", await client.clientGetName());
  say("delete", await client.del(["s", "c", "one", "u"]));
  await client.eval("return 1").catch((error) => say("eval", error.message));
  await converse((words) => client.sendCommand(words));
  await client.close();
}

main();
