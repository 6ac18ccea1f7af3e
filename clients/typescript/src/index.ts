/** Asks a Tidegate server whether a request is within its limits. */

export {
  InvalidKey,
  InvalidRequest,
  ServerError,
  TidegateError,
  TimedOut,
  Unavailable,
  Unreachable,
} from "./answers.js";
export type { Limit, Result } from "./answers.js";
export { Client, Use } from "./client.js";
export type { Asked, CheckOptions, ClientOptions, HoldOptions, WaitOptions } from "./client.js";
export { clientAddress, makeKey } from "./keys.js";
