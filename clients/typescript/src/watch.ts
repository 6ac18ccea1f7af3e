/** What middleware logs of answers that fail. Knows no framework. */

import type { Result } from "./answers.js";

/** How long none may have failed until answers are back. */
const BACK_AFTER_MS = 10_000;

/**
 * Warns when answers begin to fail, and when none has failed for ten seconds. So answers that fail
 * now and then, among others that come, do not fill the log.
 */
export class Watch {
  readonly #now: () => number;
  #failedAt: number | null = null;

  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  note({ error, allowed }: Pick<Result, "error" | "allowed">): void {
    const before = this.#failedAt;
    if (error !== null) {
      this.#failedAt = this.#now();
      if (before === null) {
        const done = allowed ? "allowed" : "refused";
        console.warn(`requests are ${done} without Tidegate: ${error.message}`);
      }
    } else if (before !== null && this.#now() - before >= BACK_AFTER_MS) {
      this.#failedAt = null;
      console.warn("Tidegate answers again");
    }
  }
}
