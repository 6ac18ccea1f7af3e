// A gatekeeper made of libzmq, driven by a test through its standard streams: `gatekeeper` of
// peer.py, in JavaScript, without floods.
//
//     node peer.js ACCOUNTING CONTROL DOMAIN...

const zmq = require("zeromq");
const readline = require("node:readline");

const [accounting, control, ...domains] = process.argv.slice(2);
const options = { linger: 0, reconnectInterval: 20, reconnectMaxInterval: 100 };
const publisher = new zmq.Publisher(options);
const subscriber = new zmq.Subscriber(options);

function frame(text) {
  return text === "now" ? String(Date.now()) : text.replaceAll("\\0", "\0");
}

async function listen() {
  for await (const frames of subscriber) {
    console.log(frames.map((part) => part.toString("latin1").replaceAll("\0", "\\0")).join("|"));
  }
}

async function obey() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line.startsWith("send ")) {
      await publisher.send(line.slice(5).split("|").map(frame));
    }
  }
  process.exit(0);
}

publisher.connect(accounting);
subscriber.connect(control);
subscriber.subscribe(...domains.map((domain) => `${domain}\0`));
console.log("started");
listen();
obey();
