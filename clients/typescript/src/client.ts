/**
 * The client, on `node:http`. It tells whether a connection is new, which `fetch` does not; and
 * `fetch` gives a wait up after five minutes, and may ask a proxy of the environment.
 */

import http from "node:http";
import https from "node:https";

import {
  InvalidRequest,
  ServerError,
  TidegateError,
  TimedOut,
  Unavailable,
  Unreachable,
  examine,
  readAnswer,
  withoutAnswer,
} from "./answers.js";
import type { Result } from "./answers.js";

const ANSWER_BYTES_MAX = 1 << 20;

/** A use that is not given back stays taken until it lapses, so this is worth a second. */
const RELEASE_MS_MIN = 1000;

/** The longest time that a timer of Node's can be set to. */
const TIMER_MS_MAX = 2 ** 31 - 1;

export interface ClientOptions {
  /** The URL of the HTTP door; else `TIDEGATE_SERVER`, else http://127.0.0.1:8080. */
  server?: string | undefined;
  /**
   * How long an answer may take; else `TIDEGATE_TIMEOUT_MS`, else 100. The time that the event
   * loop computes does not count. A request that waits has its `maxWaitMs` besides.
   */
  timeoutMs?: number | undefined;
  /** What is decided without an answer: `"allow"` unless set. */
  onError?: "allow" | "deny" | undefined;
  /** How many checks are asked at once: 64 unless set. */
  maxConnections?: number | undefined;
  /** How many requests wait at once: 1024 unless set. */
  maxWaiting?: number | undefined;
  /** For https: other authorities (`ca`), or a client certificate (`cert` and `key`). */
  tls?: https.AgentOptions | undefined;
}

export interface Asked {
  /** How many uses; 1 unless set. */
  cost?: number;
  /** Takes the request back: the connection is closed, and the call rejects. */
  signal?: AbortSignal;
}

export interface CheckOptions extends Asked {
  /** Only looks, and takes nothing. */
  peek?: boolean;
}

export interface WaitOptions extends Asked {
  maxWaitMs: number;
}

export interface HoldOptions extends Asked {
  /** After this time a use lapses that was not released. */
  holdMs: number;
  /** Waits until the use is allowed; only with a single key. */
  maxWaitMs?: number;
}

export class Client {
  readonly #base: string;
  readonly #timeoutMs: number;
  readonly #allows: boolean;
  readonly #agent: http.Agent;
  readonly #places: Places;
  // Requests that wait have places of their own, so that they leave some for the others.
  readonly #waitingPlaces: Places;

  constructor(options: ClientOptions = {}) {
    const { env } = process;
    const server = options.server || env.TIDEGATE_SERVER || "http://127.0.0.1:8080";
    this.#base = baseUrl(server);
    this.#timeoutMs = options.timeoutMs ?? Number(env.TIDEGATE_TIMEOUT_MS || 100);
    if (!(this.#timeoutMs > 0 && this.#timeoutMs <= TIMER_MS_MAX)) {
      const isGiven = options.timeoutMs !== undefined;
      const name = isGiven ? "timeoutMs" : `TIDEGATE_TIMEOUT_MS: "${env.TIDEGATE_TIMEOUT_MS}"`;
      throw new RangeError(`${name}: it must be above 0 milliseconds`);
    }
    const onError = options.onError ?? "allow";
    if (onError !== "allow" && onError !== "deny") {
      throw new TypeError(`onError: "${String(onError)}" is neither "allow" nor "deny"`);
    }
    this.#allows = onError === "allow";
    const maxConnections = options.maxConnections ?? 64;
    const kept = { keepAlive: true, maxFreeSockets: maxConnections };
    const isTls = this.#base.startsWith("https:");
    this.#agent = isTls ? new https.Agent({ ...options.tls, ...kept }) : new http.Agent(kept);
    this.#places = new Places(maxConnections);
    this.#waitingPlaces = new Places(options.maxWaiting ?? 1024);
  }

  /** Takes a use of one key, or of several: all or nothing. `peek` only looks. */
  async check(key: string | readonly string[], options: CheckOptions = {}): Promise<Result> {
    const { cost = 1, peek = false, signal } = options;
    return this.#decide("/v1/check", { keys: listed(key), cost, peek }, 0, signal);
  }

  /** Waits for at most `maxWaitMs` until a use is allowed, and takes it. */
  async wait(key: string, options: WaitOptions): Promise<Result> {
    const { cost = 1, maxWaitMs, signal } = options;
    return this.#decide("/v1/wait", waiting(key, cost, maxWaitMs), maxWaitMs, signal);
  }

  /** Takes a use in flight, which `await using` releases; or for as long as `work` takes. */
  hold(key: string | readonly string[], options: HoldOptions): Promise<Use>;
  hold<T>(
    key: string | readonly string[],
    options: HoldOptions,
    work: (use: Use) => T | Promise<T>,
  ): Promise<T>;
  async hold<T>(
    key: string | readonly string[],
    options: HoldOptions,
    work?: (use: Use) => T | Promise<T>,
  ): Promise<Use | T> {
    const { cost = 1, maxWaitMs, signal } = options;
    const hold_ms = wholeMs(options.holdMs, "holdMs");
    const keys = listed(key);
    const isWaiting = maxWaitMs !== undefined;
    const body = isWaiting ? waiting(only(keys), cost, maxWaitMs) : { keys, cost };
    const path = isWaiting ? "/v1/wait" : "/v1/check";
    const result = await this.#decide(path, { ...body, hold_ms }, maxWaitMs ?? 0, signal);
    const use = new Use(this, result);
    if (work === undefined) return use;
    try {
      return await work(use);
    } finally {
      await use[Symbol.asyncDispose]();
    }
  }

  /**
   * Gives a held use back: `false` if it had ended or lapsed. Rejects with `Unavailable`. It waits
   * for no place, has a second at least, and is tried twice.
   */
  async release(use: string): Promise<boolean> {
    try {
      return await this.#release(use);
    } catch (error) {
      if (error instanceof Unavailable) return this.#release(use);
      throw error;
    }
  }

  async #release(use: string): Promise<boolean> {
    const path = `/v1/uses/${encodeURIComponent(use)}`;
    const withinMs = Math.max(this.#timeoutMs, RELEASE_MS_MIN);
    const answer = await this.#exchange("DELETE", path, null, withinMs, 0, null, undefined);
    if (answer.status === 204) return true;
    try {
      readAnswer(answer.status, answer.headers, answer.body);
    } catch (error) {
      if (error instanceof InvalidRequest && error.reason === "unknown_use") return false;
      throw error;
    }
    throw new ServerError("the server sent an unexpected answer");
  }

  /** What `onError` decides. */
  withoutAnswer(error: TidegateError): Result {
    return withoutAnswer(this.#allows, error);
  }

  async #decide(
    path: string,
    body: { key?: string; keys?: readonly string[]; [field: string]: unknown },
    maxWaitMs: number,
    signal: AbortSignal | undefined,
  ): Promise<Result> {
    for (const key of body.keys ?? [body.key as string]) examine(key);
    // JSON would make it null.
    if (!Number.isFinite(body.cost)) throw new RangeError("cost: a number");
    const places = maxWaitMs > 0 ? this.#waitingPlaces : this.#places;
    const timeoutMs = this.#timeoutMs;
    try {
      const text = JSON.stringify(body);
      const answer = await this.#exchange("POST", path, text, timeoutMs, maxWaitMs, places, signal);
      return readAnswer(answer.status, answer.headers, answer.body);
    } catch (error) {
      if (error instanceof Unavailable) return this.withoutAnswer(error);
      throw error;
    }
  }

  async #exchange(
    method: string,
    path: string,
    body: string | null,
    timeoutMs: number,
    maxWaitMs: number,
    places: Places | null,
    caller: AbortSignal | undefined,
  ): Promise<Answer> {
    caller?.throwIfAborted();
    const stop = new AbortController();
    const stopForCaller = () => stop.abort();
    caller?.addEventListener("abort", stopForCaller);
    const left = new FreeTime(timeoutMs, stopForCaller);
    try {
      await places?.take(stop.signal);
      left.add(maxWaitMs);
      try {
        return await this.#send(method, path, body, stop.signal);
      } finally {
        places?.giveBack();
      }
    } catch (error) {
      caller?.throwIfAborted();
      if (error instanceof TidegateError) throw error;
      if (stop.signal.aborted) throw new TimedOut(`no answer in ${timeoutMs + maxWaitMs} ms`);
      const { message, code } = error as NodeJS.ErrnoException;
      throw new Unreachable(message || String(code));
    } finally {
      left.stop();
      caller?.removeEventListener("abort", stopForCaller);
    }
  }

  async #send(
    method: string,
    path: string,
    body: string | null,
    signal: AbortSignal,
  ): Promise<Answer> {
    const headers = body === null ? {} : { "Content-Type": "application/json" };
    const { request } = this.#base.startsWith("https:") ? https : http;
    const options = { method, headers, signal, agent: this.#agent };
    const asked = request(this.#base + path, options);
    const answered = new Promise<http.IncomingMessage>((resolve, reject) => {
      asked.on("response", resolve).on("error", reject).end(body ?? undefined);
    });
    let response: http.IncomingMessage;
    try {
      response = await answered;
    } catch (error) {
      // The server may have closed the connection while it was idle: another will tell.
      const { code = "" } = error as NodeJS.ErrnoException;
      const isIdle = asked.reusedSocket && ["ECONNRESET", "EPIPE"].includes(code);
      if (isIdle) return this.#send(method, path, body, signal);
      throw error;
    }
    const text = await read(response);
    return { status: response.statusCode ?? 0, headers: response.headers, body: text };
  }
}

/** A use in flight, if `allowed`. */
export class Use {
  readonly allowed: boolean;
  readonly result: Result;
  readonly #client: Client;
  #id: string | null;

  constructor(client: Client, result: Result) {
    this.allowed = result.allowed;
    this.result = result;
    this.#client = client;
    this.#id = result.use;
  }

  /** Gives the use back now; `false` if there is none. If it rejects, it can be repeated. */
  async release(): Promise<boolean> {
    if (this.#id === null) return false;
    const isReleased = await this.#client.release(this.#id);
    this.#id = null;
    return isReleased;
  }

  /** Gives the use back at the end of a block. If it cannot, the use lapses by itself. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release();
    } catch (error) {
      if (!(error instanceof TidegateError)) throw error;
    }
  }
}

interface Answer {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: string;
}

/**
 * How much time is left in which the event loop is free to read an answer; then `over` is called.
 *
 * What the loop computes itself does not count. Otherwise hundreds of checks at once would time out
 * by the work for the others, while the answers are already there. The time ends in ten steps, each
 * begun after the one before, because Node runs a timer that is late before it reads what has come.
 * Each step counts for a tenth at least, so that it ends in a loop that is never free.
 */
class FreeTime {
  readonly #endMs: number;
  readonly #over: () => void;
  #leftMs: number;
  #timer: NodeJS.Timeout | undefined;

  constructor(ms: number, over: () => void) {
    this.#leftMs = this.#endMs = ms;
    this.#over = over;
    this.#step();
  }

  /** More time. It comes first, and the steps at the end. */
  add(ms: number): void {
    this.#leftMs += ms;
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  #step(): void {
    if (this.#leftMs <= 0) return this.#over();
    const ms = Math.max(this.#leftMs - this.#endMs, this.#endMs / 10);
    const stepMs = Math.min(ms, TIMER_MS_MAX);
    const before = freeMs();
    this.#timer = setTimeout(() => {
      this.#leftMs -= Math.min(stepMs, Math.max(freeMs() - before, stepMs / 10));
      this.#step();
    }, stepMs);
  }
}

/** For how long the event loop has waited for events until now. */
function freeMs(): number {
  return performance.eventLoopUtilization().idle;
}

/** Bounds how many requests are in progress, and with them the connections. */
class Places {
  readonly #line = new Set<() => void>();
  #free: number;

  constructor(count: number) {
    if (!(Number.isInteger(count) && count > 0)) {
      throw new RangeError("maxConnections and maxWaiting: whole numbers above 0");
    }
    this.#free = count;
  }

  async take(signal: AbortSignal): Promise<void> {
    if (this.#free > 0) {
      this.#free -= 1;
      return;
    }
    await new Promise<void>((resolve, reject) => {
      const leave = () => {
        end();
        this.#line.delete(go);
        reject(new TimedOut("all connections were in use"));
      };
      const go = () => {
        end();
        resolve();
      };
      const end = () => signal.removeEventListener("abort", leave);
      signal.addEventListener("abort", leave);
      this.#line.add(go);
    });
  }

  giveBack(): void {
    const [next] = this.#line;
    if (next === undefined) {
      this.#free += 1;
    } else {
      this.#line.delete(next);
      next();
    }
  }
}

function baseUrl(server: string): string {
  const url = URL.canParse(server) ? new URL(server) : null;
  const isHttp = url?.protocol === "http:" || url?.protocol === "https:";
  if (url === null || !isHttp || url.username !== "" || url.search !== "") {
    // It may have a password in it.
    const shown = server.includes("@") ? "a URL with a user" : `"${server}"`;
    throw new TypeError(`server: ${shown} is not a URL such as http://127.0.0.1:8080`);
  }
  return (url.origin + url.pathname).replace(/\/+$/, "");
}

function listed(key: string | readonly string[]): readonly string[] {
  // What is not typed may pass anything: `examine` says that it is no key.
  return Array.isArray(key) ? key : [key as string];
}

function only(keys: readonly string[]): string {
  const [key] = keys;
  if (key === undefined || keys.length > 1) throw new TypeError("only a single key can wait");
  return key;
}

function waiting(key: string, cost: number, maxWaitMs: number) {
  return { key, cost, max_wait_ms: wholeMs(maxWaitMs, "maxWaitMs") };
}

function wholeMs(ms: number, name: string): number {
  if (!(ms >= 0 && ms < Infinity)) throw new RangeError(`${name}: a number of milliseconds`);
  return Math.ceil(ms);
}

async function read(response: http.IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length > ANSWER_BYTES_MAX) throw new ServerError("the answer is too long");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}
