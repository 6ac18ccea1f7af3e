/** What is answered, and what may go wrong. Knows no sockets. */

import type { IncomingHttpHeaders } from "node:http";

export const KEY_BYTES_MAX = 1024;

/** Headers of the server's answer that middleware passes on. */
const HANDED_ON = ["RateLimit-Policy", "RateLimit", "Retry-After"];

/** Anything of its own that this package throws. */
export class TidegateError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** The key is longer than 1024 bytes of UTF-8, or is not Unicode. It was not sent. */
export class InvalidKey extends TidegateError {}

/** The server rejected the request; `reason` and `detail` say why. */
export class InvalidRequest extends TidegateError {
  constructor(
    readonly status: number,
    readonly reason: string,
    readonly detail: string,
  ) {
    super(`${status} ${reason}: ${detail}`);
  }
}

/** No usable answer: `Unreachable`, `TimedOut` or `ServerError`. */
export class Unavailable extends TidegateError {}

/** No connection could be made, or it broke. */
export class Unreachable extends Unavailable {}

/** The server did not answer in time. */
export class TimedOut extends Unavailable {}

/** The server answered with an error, or with something that is not a Tidegate answer. */
export class ServerError extends Unavailable {}

/** One limit of one key. Times are milliseconds; `null` is "unknown". */
export interface Limit {
  readonly key: string;
  readonly rule: string;
  readonly limit: string;
  readonly amount: number;
  readonly periodMs: number | null;
  readonly remaining: number | null;
  readonly rate: number;
  readonly retryAfterMs: number | null;
  readonly resetMs: number | null;
  readonly degraded: boolean;
}

/** The answer to `check`, `wait` and `hold`. */
export interface Result {
  readonly allowed: boolean;
  /** Until the use could be taken: 0 if at once, `null` if unknown. */
  readonly delayMs: number | null;
  /** The rule that refused. */
  readonly refusedBy: string | null;
  readonly limits: readonly Limit[];
  /** Whether it was decided without the counts: by the server without its store, or here. */
  readonly degraded: boolean;
  /** Why it was decided here, by `onError`. */
  readonly error: TidegateError | null;
  /** What a held use is released by. */
  readonly use: string | null;
  /** RateLimit, RateLimit-Policy and Retry-After, as far as the server sent them. */
  readonly headers: Readonly<Record<string, string>>;
}

/** The result where there was no answer. */
export function withoutAnswer(allowed: boolean, error: TidegateError): Result {
  return {
    allowed,
    delayMs: allowed ? 0 : null,
    refusedBy: null,
    limits: [],
    degraded: true,
    error,
    use: null,
    headers: {},
  };
}

/** Throws `InvalidKey` for a key that no server takes. */
export function examine(key: string): void {
  // Half a surrogate pair would become U+FFFD, and other keys with it.
  if (typeof key !== "string" || /\p{Surrogate}/u.test(key)) {
    throw new InvalidKey("the key is not Unicode");
  }
  const length = Buffer.byteLength(key);
  if (length > KEY_BYTES_MAX) {
    throw new InvalidKey(`the key has ${length} bytes; at most ${KEY_BYTES_MAX} are allowed`);
  }
}

type Json = Record<string, unknown>;

/** The result that an answer tells; throws `InvalidRequest` and `ServerError`. */
export function readAnswer(status: number, headers: IncomingHttpHeaders, body: string): Result {
  const told = parse(body);
  if ((status === 200 || status === 429) && typeof told.allowed === "boolean") {
    return result(told, headers);
  }
  const reason = text(told.reason);
  if (reason === null || told.status !== status) {
    // A balancer answers like this while the server is replaced, which is no mistake of the
    // caller's.
    throw new ServerError(`${status} is not an answer of Tidegate: check the URL and any proxy`);
  }
  if (status === 404 && reason === "path") {
    // The server's other listeners, such as [admin], have not the paths of this one.
    throw new ServerError("404 path: check the URL: is this the [http] door?");
  }
  if (status >= 400 && status < 500 && status !== 408 && status !== 429) {
    throw new InvalidRequest(status, reason, text(told.detail) ?? "");
  }
  throw new ServerError(`the server answered ${status} ${reason}`);
}

function result(told: Json, headers: IncomingHttpHeaders): Result {
  const handedOn: Record<string, string> = {};
  for (const name of HANDED_ON) {
    const value = headers[name.toLowerCase()];
    if (typeof value === "string" && /^[ -~]+$/.test(value)) handedOn[name] = value;
  }
  return {
    allowed: told.allowed === true,
    delayMs: number(told.delay_ms),
    refusedBy: text(told.refused_by),
    limits: Array.isArray(told.limits) ? told.limits.map(limit) : [],
    degraded: told.degraded === true,
    error: null,
    use: text(told.use),
    headers: handedOn,
  };
}

function limit(told: Json | null): Limit {
  if (told === null) throw new ServerError("the answer lacks a required field");
  return {
    key: text(told.key) ?? "",
    rule: text(told.rule) ?? "",
    limit: text(told.limit) ?? "",
    amount: number(told.amount) ?? 0,
    periodMs: number(told.period_ms),
    remaining: number(told.remaining),
    rate: number(told.rate) ?? 0,
    retryAfterMs: number(told.retry_after_ms),
    resetMs: number(told.reset_ms),
    degraded: told.degraded === true,
  };
}

function parse(body: string): Json {
  try {
    const told: unknown = JSON.parse(body);
    return typeof told === "object" && told !== null ? (told as Json) : {};
  } catch {
    return {};
  }
}

function text(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

function number(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}
