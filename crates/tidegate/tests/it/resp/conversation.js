// Commands through a client of Node: reads one from each line of standard input and prints its
// reply, in the notation of `by_rule.rs`.

const { createInterface } = require("node:readline");

function shown(reply) {
  if (reply === null) {
    return "nil";
  }
  if (Array.isArray(reply)) {
    return `[${reply.map(shown).join(" ")}]`;
  }
  if (typeof reply === "object") {
    return `{${Object.entries(reply).flat().map(shown).join(" ")}}`;
  }
  return String(reply);
}

exports.converse = async (send) => {
  for await (const line of createInterface({ input: process.stdin })) {
    const reply = send(line.split(" ")).then(shown, (error) => `error ${error.message}`);
    console.log(await reply);
  }
};
