/** The client, against the real server and against servers that misbehave. */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { promisify } from "node:util";

import {
  Client,
  InvalidKey,
  InvalidRequest,
  ServerError,
  TimedOut,
  Unavailable,
  Unreachable,
  clientAddress,
  makeKey,
} from "tidegate";
import { networks } from "../src/keys.js";
import {
  ALLOWED,
  BROKEN,
  GONE,
  GONE_BACK,
  HELD,
  PATIENCE_MS,
  USELESS,
  stub,
  until,
  untilWaiting,
} from "./stub.js";

const client = new Client({ timeoutMs: PATIENCE_MS });
const HOUR_MS = 3_600_000;

test("a key is allowed until its limit is reached", async () => {
  for (const remaining of [2, 1, 0]) {
    const { limits, ...result } = await client.check("login check");
    const rest = { delayMs: 0, refusedBy: null, degraded: false, error: null, use: null };
    assert.deepEqual({ ...result, headers: {} }, { allowed: true, ...rest, headers: {} });
    const [limit] = limits;
    assert.deepEqual(
      { ...limit, rate: 0, resetMs: 0 },
      {
        key: "login check",
        rule: "logins",
        limit: "3 per hour",
        amount: 3,
        periodMs: HOUR_MS,
        remaining,
        rate: 0,
        retryAfterMs: 0,
        resetMs: 0,
        degraded: false,
      },
    );
  }
  const result = await client.check("login check");
  assert.equal(result.allowed, false);
  assert.equal(result.refusedBy, "logins");
  assert.ok(result.delayMs !== null && result.delayMs > 0 && result.delayMs <= HOUR_MS / 3);
  assert.match(result.headers["Retry-After"] ?? "", /^\d+$/);
});

test("a peek takes nothing and a cost takes several", async () => {
  for (let number = 0; number < 5; number += 1) {
    assert.ok((await client.check("login peek", { cost: 3, peek: true })).allowed);
  }
  assert.ok((await client.check("login peek", { cost: 3 })).allowed);
  assert.equal((await client.check("login peek", { peek: true })).allowed, false);
});

test("several keys are all or nothing", async () => {
  await client.check("login all-a", { cost: 3 });
  const both = await client.check(["login all-b", "login all-a"]);
  assert.deepEqual([both.allowed, both.limits.length], [false, 2]);
  assert.equal((await client.check("login all-b", { peek: true })).limits[0]?.remaining, 3);
});

test("a key without rule has no limit, and a closed one no delay", async () => {
  const unknown = await client.check("nobody knows it");
  assert.deepEqual([unknown.allowed, unknown.limits], [true, []]);
  const closed = await client.check("closed");
  assert.deepEqual([closed.allowed, closed.delayMs], [false, null]);
  assert.equal(closed.headers["Retry-After"], undefined);
});

test("odd keys arrive as they are", async () => {
  for (const key of ['login \0\n"\\\x7f', "login é\u2028\u{1f980}", "login " + "é".repeat(509)]) {
    assert.equal((await client.check(key)).limits[0]?.key, key);
  }
});

test("keys that no server takes are told", async () => {
  for (const odd of [null, undefined, 5, {}]) {
    await assert.rejects(client.check(odd as unknown as string), InvalidKey);
    await assert.rejects(client.hold(odd as unknown as string, { holdMs: 1 }), InvalidKey);
  }
  for (const key of ["x".repeat(1025), "é".repeat(513), "\ud800", 5 as unknown as string]) {
    await assert.rejects(client.check(["login fine", key]), InvalidKey);
    await assert.rejects(client.wait(key, { maxWaitMs: 0 }), InvalidKey);
  }
});

test("wrong requests are told", async () => {
  const told = (reason: string) => (error: unknown) => {
    assert.ok(error instanceof InvalidRequest);
    assert.deepEqual([error.status, error.reason, error.name], [400, reason, "InvalidRequest"]);
    return true;
  };
  await assert.rejects(client.check("jobs wrong"), told("in_flight_key"));
  await assert.rejects(client.check("login wrong", { cost: 0 }), told("cost_zero"));
  await assert.rejects(client.check("login wrong", { cost: 4 }), told("cost_above_limit"));
  await assert.rejects(client.check([]), told("field"));
  await assert.rejects(client.check(Array<string>(33).fill("many")), told("too_many_keys"));
  await assert.rejects(client.wait("login wrong", { maxWaitMs: -1 }), RangeError);
  await assert.rejects(client.check("login wrong", { cost: NaN }), RangeError);
});

test("who waits goes when the use before ends", async () => {
  const first = await client.hold("jobs wait", { holdMs: HOUR_MS });
  assert.ok(first.allowed);
  const options = { holdMs: HOUR_MS, maxWaitMs: PATIENCE_MS };
  const second = client.hold("jobs wait", options, (use) => use.allowed);
  await untilWaiting(1);
  assert.equal(await first.release(), true);
  assert.equal(await second, true);
  assert.equal((await client.wait("closed", { maxWaitMs: 0 })).allowed, false);
});

test("a wait that is given up leaves the line", async () => {
  await client.check("login left", { cost: 3 });
  const stop = new AbortController();
  const waits = client.wait("login left", { maxWaitMs: HOUR_MS, signal: stop.signal });
  await untilWaiting(1);
  stop.abort();
  await assert.rejects(waits, { name: "AbortError" });
  await untilWaiting(0);
  await assert.rejects(client.check("login left", { signal: stop.signal }), { name: "AbortError" });
  const late = await client.wait("login left", { maxWaitMs: 50 });
  assert.deepEqual([late.allowed, late.refusedBy], [false, "logins"]);
});

test("a use is released once and after an exception", async () => {
  const hold = () => client.hold("jobs held", { holdMs: HOUR_MS });
  const thrown = client.hold("jobs held", { holdMs: HOUR_MS }, async (use) => {
    assert.ok(use.allowed);
    assert.equal((await hold()).allowed, false);
    throw new RangeError("thrown");
  });
  await assert.rejects(thrown, RangeError);
  {
    await using use = await hold();
    assert.ok(use.allowed);
  }
  await using use = await hold();
  assert.ok(use.allowed);
  assert.deepEqual([await use.release(), await use.release()], [true, false]);
  assert.equal(await client.release(use.result.use ?? ""), false);
  assert.equal((await client.hold("login held", { holdMs: 1 })).result.use, null);
});

test("what the server decides without its store is degraded", async () => {
  const without = new Client({ server: process.env.TIDEGATE_DEGRADED, timeoutMs: PATIENCE_MS });
  const result = await without.check("login degraded");
  assert.deepEqual([result.allowed, result.degraded, result.error], [true, true, null]);
  assert.deepEqual([result.limits[0]?.degraded, result.limits[0]?.remaining], [true, null]);
});

test("a server with an authority of its own is asked with a certificate", async () => {
  const read = (name: string) => readFile(`${process.env.TIDEGATE_PAPERS}/${name}`);
  const [ca, cert, key] = await Promise.all(["ca.pem", "caller.pem", "caller.key"].map(read));
  const options = { server: process.env.TIDEGATE_TLS, timeoutMs: PATIENCE_MS };
  const trusting = new Client({ ...options, tls: { ca, cert, key } });
  assert.equal((await trusting.check("login tls")).error, null);
  assert.ok((await new Client(options).check("login tls")).error instanceof Unreachable);
});

type Kind = new (...all: never[]) => Error;

async function decides(server: string, kind: Kind, timeoutMs?: number): Promise<void> {
  for (const onError of ["allow", "deny"] as const) {
    const client = new Client({ server, onError, timeoutMs });
    const results = [
      await client.check("x"),
      await client.wait("x", { maxWaitMs: 0 }),
      (await client.hold("x", { holdMs: 1 })).result,
    ];
    for (const result of results) {
      assert.deepEqual([result.allowed, result.degraded], [onError === "allow", true]);
      assert.ok(result.error instanceof kind, `${result.error}`);
    }
    await assert.rejects(client.release("0"), kind);
  }
}

test("no server", () => decides(GONE, Unreachable, PATIENCE_MS));

test("a server that never answers", async () => {
  await using silent = await stub(null);
  await decides(silent.url, TimedOut);
});

test("answers that decide nothing", async () => {
  for (const useless of USELESS) {
    await using server = await stub(useless);
    await decides(server.url, ServerError, PATIENCE_MS);
  }
});

test("answers that break off", async () => {
  for (const broken of BROKEN) {
    await using server = await stub(broken);
    await decides(server.url, Unavailable, PATIENCE_MS);
  }
});

test("another server", async () => {
  await using server = await stub("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
  const client = new Client({ server: server.url, timeoutMs: PATIENCE_MS });
  const { error } = await client.check("x");
  assert.match(`${error}`, /404 is not an answer of Tidegate: check the URL/);
  const url = `${process.env.TIDEGATE_SERVER}/wrong`;
  const elsewhere = await new Client({ server: url, timeoutMs: PATIENCE_MS }).check("x");
  assert.match(`${elsewhere.error}`, /ServerError: .*is this the \[http\] door\?/);
});

test("a connection that was closed while idle is made again", async () => {
  await using server = await stub(ALLOWED);
  const client = new Client({ server: server.url, timeoutMs: PATIENCE_MS });
  for (let number = 0; number < 5; number += 1) {
    assert.equal((await client.check("x")).error, null);
  }
});

test("a request is sent once on a new connection", async () => {
  await using server = await stub("");
  const client = new Client({ server: server.url, timeoutMs: PATIENCE_MS });
  assert.ok((await client.check("x")).error instanceof Unreachable);
  assert.equal(server.connections(), 1);
});

test("a release is tried twice", async () => {
  await using server = await stub(["", GONE_BACK]);
  const client = new Client({ server: server.url, timeoutMs: PATIENCE_MS });
  assert.equal(await client.release("0"), true);
  assert.equal(server.asked(), 2);
  await using broken = await stub("");
  const other = new Client({ server: broken.url, timeoutMs: PATIENCE_MS });
  await assert.rejects(other.release("0"), Unreachable);
  assert.equal(broken.asked(), 2);
});

test("a use whose release failed can be released again", async () => {
  await using server = await stub([HELD, "", "", GONE_BACK]);
  const client = new Client({ server: server.url, timeoutMs: PATIENCE_MS });
  const use = await client.hold("x", { holdMs: 1 });
  await assert.rejects(use.release(), Unreachable);
  assert.equal(await use.release(), true);
  assert.equal(await use.release(), false);
  assert.equal(server.asked(), 4);
});

test("a release waits for no place and has a second", async () => {
  await using server = await stub([null, GONE_BACK]);
  const options = { timeoutMs: PATIENCE_MS, maxConnections: 1 };
  const client = new Client({ server: server.url, ...options });
  const stop = new AbortController();
  const first = client.check("x", { signal: stop.signal });
  await until(() => server.asked() === 1);
  assert.equal(await client.release("0"), true);
  stop.abort();
  await assert.rejects(first, { name: "AbortError" });
  await using silent = await stub(null);
  const late = new Client({ server: silent.url, timeoutMs: 1 }).release("0");
  await assert.rejects(late, { message: "no answer in 1000 ms" });
});

test("no proxy of the environment is asked", async () => {
  await using server = await stub(ALLOWED);
  const options = JSON.stringify({ server: server.url, timeoutMs: PATIENCE_MS });
  const script = `import("${import.meta.resolve("tidegate")}").then(async ({ Client }) => {
    const { error } = await new Client(${options}).check("x");
    if (error !== null) throw error;
  })`;
  const env = { ...process.env, NODE_USE_ENV_PROXY: "1", HTTP_PROXY: GONE, NO_PROXY: "" };
  await promisify(execFile)(process.execPath, ["-e", script], { env });
});

test("connections are few and stay open", async () => {
  await using server = await stub(ALLOWED, false);
  const client = new Client({ server: server.url, timeoutMs: PATIENCE_MS, maxConnections: 2 });
  const results = await Promise.all(Array.from({ length: 100 }, () => client.check("x")));
  assert.ok(results.every((result) => result.error === null));
  // The agent may open another while it puts the first one back.
  assert.ok(server.connections() < 10, `${server.connections()} connections`);
  await using silent = await stub(null);
  const narrow = new Client({ server: silent.url, maxConnections: 1 });
  for (const result of await Promise.all([narrow.check("x"), narrow.check("x")])) {
    assert.ok(result.error instanceof TimedOut);
  }
});

test("a wait has the time of an answer to find a place", async () => {
  await using silent = await stub(null);
  const narrow = new Client({ server: silent.url, maxWaiting: 1 });
  const stop = new AbortController();
  const first = narrow.wait("x", { maxWaitMs: HOUR_MS, signal: stop.signal });
  assert.match(`${(await narrow.wait("x", { maxWaitMs: HOUR_MS })).error}`, /in use/);
  stop.abort();
  await assert.rejects(first, { name: "AbortError" });
});

test("an answer that the loop had no time to read is read", async () => {
  // In another process, which answers while this one is busy.
  const script = `
    const { createServer } = require("node:net");
    const server = createServer((socket) => {
      let asked = "";
      socket.on("data", (chunk) => {
        asked += chunk;
        if (!asked.includes("}")) return;
        asked = "";
        socket.write(${JSON.stringify(ALLOWED)});
      });
      socket.on("error", () => {});
    });
    server.listen(0, "127.0.0.1", () => console.log(server.address().port));`;
  const child = spawn(process.execPath, ["-e", script], { stdio: ["ignore", "pipe", "inherit"] });
  try {
    const [line] = await once(child.stdout, "data");
    const client = new Client({ server: `http://127.0.0.1:${Number(line)}` });
    // Connects at its leisure.
    await client.check("x");
    const asked = [client.check("x"), client.wait("x", { maxWaitMs: 50 })];
    setImmediate(() => {
      const until = performance.now() + 1000;
      while (performance.now() < until);
    });
    for (const result of await Promise.all(asked)) assert.equal(result.error, null);
  } finally {
    child.kill();
  }
});

test("the time of an answer ends in a loop that is never free", async () => {
  await using silent = await stub(null);
  let isOver = false;
  const work = () => {
    if (!isOver) setImmediate(work);
  };
  work();
  const { error } = await new Client({ server: silent.url }).check("x");
  isOver = true;
  assert.ok(error instanceof TimedOut);
});

test("a wrong timeout of the environment is named", (context) => {
  context.after(() => delete process.env.TIDEGATE_TIMEOUT_MS);
  for (const wrong of ["soon", "0", "-1"]) {
    process.env.TIDEGATE_TIMEOUT_MS = wrong;
    assert.throws(() => new Client(), { message: new RegExp(`TIDEGATE_TIMEOUT_MS: "${wrong}"`) });
  }
});

test("a password is not printed", () => {
  const make = () => new Client({ server: "http://ann:secret@127.0.0.1" });
  assert.throws(make, (error: Error) => !error.message.includes("secret"));
});

test("a value that is missing is told", () => {
  for (const user of [null, undefined] as unknown[]) {
    assert.throws(() => makeKey("api", { user: user as string }), TypeError);
  }
});

test("settings are examined", () => {
  for (const server of ["127.0.0.1:8080", "ftp://127.0.0.1", "http://a:b@c"]) {
    assert.throws(() => new Client({ server }), TypeError);
  }
  assert.throws(() => new Client({ timeoutMs: 0 }), RangeError);
  assert.throws(() => new Client({ onError: "raise" as "deny" }), TypeError);
});

test("values do not run into one another", () => {
  assert.equal(makeKey("api", { user: "ann", n: 1 }), "api user=ann n=1");
  assert.equal(makeKey("a b", { "x=y": "1=2 3%\n\x7fé" }), "a%20b x%3Dy=1=2%203%25%0A%7Fé");
});

test("the client is the last hop that is not trusted", () => {
  const trusted = networks(["192.0.2.0/24", "10.0.0.0/8", "::1"]);
  const cases: [string, string, string][] = [
    ["203.0.113.1", "1.1.1.1", "203.0.113.1"],
    ["192.0.2.1", "", "192.0.2.1"],
    ["192.0.2.1", "6.6.6.6, 1.1.1.1", "1.1.1.1"],
    ["192.0.2.1", "6.6.6.6, 1.1.1.1, 10.1.1.1", "1.1.1.1"],
    ["192.0.2.1", "10.2.2.2, 10.1.1.1", "10.2.2.2"],
    ["192.0.2.1", "6.6.6.6, nonsense", "192.0.2.1"],
    ["192.0.2.1", "1.1.1.1:99", "1.1.1.1"],
    ["192.0.2.1", "[2001:db8::1]:99", "2001:db8::1"],
    ["::ffff:192.0.2.1", "2001:DB8:0::1", "2001:db8::1"],
    ["::1", "1.1.1.1", "1.1.1.1"],
    ["fe80::1%eth0", "", "fe80::1"],
    ["", "1.1.1.1", "-"],
  ];
  for (const [peer, forwardedFor, expected] of cases) {
    assert.equal(clientAddress(peer, forwardedFor, trusted), expected, `${peer} ${forwardedFor}`);
  }
  for (const wrong of [
    "nonsense",
    "10.0.0.0/",
    "10.0.0.0/33",
    "10.0.0.0/8/8",
    "10.0.0.5/8",
    "2001:db8::1/32",
    "",
    "/8",
  ]) {
    assert.throws(() => networks([wrong]), wrong);
  }
  for (const right of ["::/0", "0.0.0.0/0", "10.0.0.5", "2001:db8::/32", "2001:DB8:0::1/128"]) {
    networks([right]);
  }
});

test("the addresses of an IPv6 network may share a count", () => {
  const cases: [number, string, string][] = [
    [64, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"],
    [64, "2001:db8::6", "2001:db8::/64"],
    [50, "2001:db8:1:ffff:3:4:5:6", "2001:db8:1:c000::/50"],
    [128, "2001:db8::6", "2001:db8::6"],
    [64, "::ffff:192.0.2.1", "192.0.2.1"],
    [64, "", "-"],
  ];
  for (const [bits, peer, expected] of cases) {
    assert.equal(clientAddress(peer, "", networks([]), bits), expected, `${peer} ${bits}`);
  }
});
