/** A bounded queue for password hashing: each takes a tenth of a second of a core and 64 MiB. */
import { unavailable } from '../../protocol/errors.js';

/** Numbers of hashes; each counts for a core and 64 MiB. */
export interface PasswordQueueLimits {
  /** Hashes at work at once. */
  readonly working: number;
  /** Callers that may wait; the next is refused. */
  readonly waiting: number;
}

const LIMITS: PasswordQueueLimits = { working: 2, waiting: 32 };
const RETRY_AFTER_S = 5;

/** One for the whole process, whatever the number of tenants. */
export class PasswordQueue {
  private working = 0;
  private readonly waiting: (() => void)[] = [];

  constructor(private readonly limits: PasswordQueueLimits = LIMITS) {}

  /** Runs `work` in turn. Throws `unavailable` with Retry-After when too many wait already. */
  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.working < this.limits.working) {
      this.working++;
    } else {
      if (this.waiting.length >= this.limits.waiting)
        throw unavailable('too many passwords are being checked', RETRY_AFTER_S);
      // Whoever leaves hands its place over, so the count stays as it is.
      await new Promise<void>((resolve) => this.waiting.push(resolve));
    }
    try {
      return await work();
    } finally {
      const next = this.waiting.shift();
      if (next === undefined) this.working--;
      else next();
    }
  }
}
