/** Servers that misbehave, each on a free port, and the real one's metrics. */

import { createServer } from "node:net";
import type { AddressInfo, Socket } from "node:net";

/** How long a test waits for what must happen before it gives up. Never a measure. */
export const PATIENCE_MS = 30_000;

/** The URL of a server that is not there: nothing listens on this port, which is for root alone. */
export const GONE = "http://127.0.0.1:2";

export interface Stub extends AsyncDisposable {
  url: string;
  /** How many requests were made. */
  asked(): number;
  /** How many connections were made. */
  connections(): number;
}

type Said = string | null;

/**
 * Answers each request with `answer`, or with the next of several, the last one again and again.
 * `null` never answers. Closes each connection, or none.
 */
export async function stub(answer: Said | readonly Said[], closes = true): Promise<Stub> {
  const open = new Set<Socket>();
  const left = Array.isArray(answer) ? [...(answer as readonly Said[])] : [answer as Said];
  let connections = 0;
  let requests = 0;
  const server = createServer((socket) => {
    connections += 1;
    open.add(socket);
    socket.on("close", () => open.delete(socket));
    socket.on("error", () => {});
    let asked = "";
    socket.on("data", (chunk) => {
      asked += chunk.toString("latin1");
      const [head = "", body] = asked.split("\r\n\r\n");
      if (body === undefined || (/content-length: [1-9]/i.test(head) && body === "")) return;
      asked = "";
      requests += 1;
      const answer = (left.length > 1 ? left.shift() : left[0]) ?? null;
      if (answer === null) return;
      if (closes) socket.end(answer);
      else socket.write(answer);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    connections: () => connections,
    asked: () => requests,
    async [Symbol.asyncDispose]() {
      for (const socket of open) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** The text of an answer. */
export function answer(body: string, status = "200 OK", headers = ""): string {
  return `HTTP/1.1 ${status}\r\nContent-Length: ${body.length}\r\n${headers}\r\n${body}`;
}

export const ALLOWED = answer('{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[]}');

/** The answer to a hold, which ends its connection. */
export const HELD = answer(
  '{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[],"use":"7"}',
  "200 OK",
  "Connection: close\r\n",
);

/** The answer to a release. */
export const GONE_BACK = answer("", "204 No Content");

/** Answers that decide nothing. */
export const USELESS = [
  answer('{"status":503,"reason":"draining"}', "503 Service Unavailable"),
  answer("", "500 Internal Server Error"),
  answer("<html>", "429 Too Many Requests"),
  answer("<html>", "403 Forbidden"),
  answer("", "404 Not Found"),
  answer('{"status":"Failure","reason":"NotFound","code":404}', "404 Not Found"),
  answer('{"status":404,"detail":"nothing here"}', "404 Not Found"),
  answer("{}"),
  answer("[]"),
  answer('{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[null]}'),
  answer("[".repeat(100_000)),
  answer(" ".repeat(2 << 20)),
  answer("", "302 Found", "Location: http://127.0.0.1:2/\r\n"),
];

/** Answers that are no HTTP, or break off. */
export const BROKEN = ["\0\x01\x02\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", ""];

/** How many requests wait at the real server's HTTP door. */
async function waiting(): Promise<number> {
  const page = await (await fetch(`${process.env.TIDEGATE_SERVER}/metrics`)).text();
  return Number(/^tidegate_waiting\{door="http"\} (\d+)$/m.exec(page)?.[1] ?? 0);
}

/** Asks again and again until so many wait. */
export async function untilWaiting(count: number): Promise<void> {
  const signal = AbortSignal.timeout(PATIENCE_MS);
  while ((await waiting()) !== count) signal.throwIfAborted();
}

/** Asks again and again until it is so. */
export async function until(so: () => boolean): Promise<void> {
  const signal = AbortSignal.timeout(PATIENCE_MS);
  while (!so()) {
    signal.throwIfAborted();
    await new Promise((resolve) => setImmediate(resolve));
  }
}
