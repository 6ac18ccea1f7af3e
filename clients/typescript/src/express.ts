/** Middleware for Express. */

import type { Request, RequestHandler, Response } from "express";

import { InvalidKey, InvalidRequest } from "./answers.js";
import type { Result } from "./answers.js";
import { Client } from "./client.js";
import { clientAddress, makeKey, networks } from "./keys.js";
import { Watch } from "./watch.js";

export interface LimitOptions {
  /** Makes a key of a request, or several; `null` or none for a request without limits. */
  key: (request: Request) => string | readonly string[] | null;
  client?: Client;
  /** How many uses a request takes; 1 unless set. */
  cost?: number;
}

/**
 * A key of the client's address: `<name> client=192.0.2.7`.
 *
 * It is the address that the request came from. Only if `trustedProxies` have that address is
 * X-Forwarded-For trusted. With an `ipv6Prefix` of 64 all IPv6 addresses of a network share the
 * key `<name> client=2001:db8:1:2::/64`.
 */
export function clientKey(
  name: string,
  trustedProxies: readonly string[] = [],
  { ipv6Prefix = 128 }: { ipv6Prefix?: number } = {},
): (request: Request) => string {
  if (!(Number.isInteger(ipv6Prefix) && ipv6Prefix >= 1 && ipv6Prefix <= 128)) {
    throw new RangeError("ipv6Prefix: a whole number from 1 to 128");
  }
  const trusted = networks(trustedProxies);
  return (request) => {
    // Node joins the lines of this header with commas.
    const forwardedFor = String(request.headers["x-forwarded-for"] ?? "");
    const peer = request.socket.remoteAddress;
    const client = clientAddress(peer, forwardedFor, trusted, ipv6Prefix);
    return makeKey(name, { client });
  };
}

/** Asks for a use of the key of each request, and answers 429 where it is refused. */
export function limit(options: LimitOptions): RequestHandler {
  const { key, cost = 1, client = new Client() } = options;
  const watch = new Watch();

  async function ask(keys: readonly string[], response: Response): Promise<boolean> {
    let result: Result;
    try {
      result = await client.check(keys, { cost });
    } catch (error) {
      if (error instanceof InvalidKey) {
        // Let through, it would have no limit at all.
        const detail = "the key of this request is too long or is not valid text";
        answer(response, 400, "Bad Request", { detail, reason: "key" });
        return false;
      }
      if (!(error instanceof InvalidRequest)) throw error;
      // What is wrong is how the middleware was set up: as though there were no server.
      result = client.withoutAnswer(error);
    }
    watch.note(result);
    for (const [name, value] of Object.entries(result.headers)) response.setHeader(name, value);
    if (result.allowed) return true;
    refuse(response, result);
    return false;
  }

  return (request, response, next) => {
    const made = key(request);
    // What is not typed may return undefined.
    const keys = typeof made === "string" ? [made] : (made ?? []);
    if (keys.length === 0) return next();
    ask(keys, response).then((goes) => {
      if (goes) next();
    }, next);
  };
}

function refuse(response: Response, result: Result): void {
  if (result.error !== null) {
    const detail = "the limits of this resource cannot be checked";
    response.setHeader("Retry-After", "1");
    answer(response, 503, "Service Unavailable", { detail, reason: "unavailable" });
    return;
  }
  const detail = "the limit of this resource is reached";
  const told = { detail, reason: "over_limit", refused_by: result.refusedBy };
  answer(response, 429, "Too Many Requests", told);
}

function answer(response: Response, status: number, title: string, told: object): void {
  response.statusCode = status;
  response.setHeader("Content-Type", "application/problem+json");
  response.end(JSON.stringify({ type: "about:blank", title, status, ...told }));
}
