/** The middleware, in Express, over real sockets. */

import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import express from "express";
import { Client, TimedOut } from "tidegate";
import type { ClientOptions } from "tidegate";
import { clientKey, limit } from "tidegate/express";
import type { LimitOptions } from "tidegate/express";
import { Watch } from "../src/watch.js";
import { GONE, PATIENCE_MS, answer, stub } from "./stub.js";

const warned: string[] = [];
console.warn = (line: string) => warned.push(line);

interface App extends AsyncDisposable {
  visit(user: string): Promise<Response>;
}

async function app(key: LimitOptions["key"], options: ClientOptions = {}): Promise<App> {
  const client = new Client({ timeoutMs: PATIENCE_MS, ...options });
  const app = express();
  app.use(limit({ key, client }));
  app.get("/a", (_request, response) => {
    response.send("served");
  });
  const server = app.listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/a`;
  return {
    visit: (user) => fetch(url, { headers: { "X-User": user } }),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

const byUser = (test: string): LimitOptions["key"] => {
  return (request) => {
    const user = request.get("X-User");
    return user === "operator" ? null : `login ${test} ${user}`;
  };
};

test("the fourth visit is refused", async () => {
  await using served = await app(byUser("fourth"));
  for (let number = 1; number <= 3; number += 1) {
    assert.equal((await served.visit("ann")).status, 200);
  }
  const refused = await served.visit("ann");
  assert.equal(refused.status, 429);
  assert.equal(refused.headers.get("content-type"), "application/problem+json");
  assert.match(refused.headers.get("retry-after") ?? "", /^\d+$/);
  assert.deepEqual(await refused.json(), {
    type: "about:blank",
    title: "Too Many Requests",
    status: 429,
    detail: "the limit of this resource is reached",
    reason: "over_limit",
    refused_by: "logins",
  });
  assert.equal((await served.visit("ben")).status, 200);
  for (let number = 1; number <= 5; number += 1) {
    assert.equal((await served.visit("operator")).status, 200);
  }
});

test("a request without keys has no limit", async () => {
  for (const none of [null, [], undefined as unknown as null]) {
    await using served = await app(() => none, { server: GONE, onError: "deny" });
    assert.equal((await served.visit("ann")).status, 200);
  }
});

test("what the server says of its limits is handed on", async () => {
  const says = 'RateLimit-Policy: "a";q=5;w=60\r\nRateLimit: "a";r=4;t=30\r\n';
  for (const [allowed, line] of [
    [true, "200 OK"],
    [false, "429 Too Many Requests"],
  ] as const) {
    const body = `{"allowed":${allowed},"delay_ms":1,"refused_by":null,"limits":[]}`;
    await using server = await stub(answer(body, line, says));
    await using served = await app(byUser("headers"), { server: server.url });
    const { status, headers } = await served.visit("ann");
    assert.equal(status, allowed ? 200 : 429);
    assert.equal(headers.get("ratelimit-policy"), '"a";q=5;w=60');
    assert.equal(headers.get("ratelimit"), '"a";r=4;t=30');
  }
});

test("a key that cannot be sent is no way around the limit", async () => {
  await using served = await app(byUser("long"));
  const refused = await served.visit("x".repeat(1024));
  assert.equal(refused.status, 400);
});

test("without a server requests pass or are told to come back", async () => {
  for (const [onError, status] of [
    ["allow", 200],
    ["deny", 503],
  ] as const) {
    await using served = await app(byUser("gone"), { server: GONE, onError });
    for (let number = 1; number <= 4; number += 1) {
      assert.equal((await served.visit("ann")).status, status);
    }
    // What the server calls wrong is decided in the same way.
    await using wrong = await app(() => "jobs cannot end", { onError });
    assert.equal((await wrong.visit("ann")).status, status);
  }
});

test("answers that fail now and then do not fill the log", () => {
  warned.length = 0;
  let now = 0;
  const watch = new Watch(() => now);
  const fine = { allowed: true, error: null };
  const late = { allowed: true, error: new TimedOut("late") };
  for (let second = 0; second < 100; second += 1) {
    now = second * 1000;
    watch.note(second % 9 === 0 ? late : fine);
  }
  assert.equal(warned.length, 1);
  // The last failure was at 99 s.
  for (const [second, lines] of [
    [108, 1],
    [109, 2],
    [110, 2],
    [200, 2],
  ] as const) {
    now = second * 1000;
    watch.note(fine);
    assert.equal(warned.length, lines);
  }
  watch.note({ ...late, allowed: false });
  const failing = (done: string) => `requests are ${done} without Tidegate: late`;
  assert.deepEqual(warned, [failing("allowed"), "Tidegate answers again", failing("refused")]);
});

test("a client's key may be that of its IPv6 network", () => {
  const socket = { remoteAddress: "2001:db8:1:2:3:4:5:6" };
  const request = { headers: {}, socket } as express.Request;
  assert.equal(clientKey("web")(request), "web client=2001:db8:1:2:3:4:5:6");
  assert.equal(clientKey("web", [], { ipv6Prefix: 64 })(request), "web client=2001:db8:1:2::/64");
  assert.throws(() => clientKey("web", [], { ipv6Prefix: 0 }), RangeError);
});
