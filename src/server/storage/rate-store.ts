/** Limits that hold across instances, in PostgreSQL. */
import { Store } from './query.js';

/** Counts uses under a row lock, so that concurrent uses on all instances are counted one after the other. */
export class RateStore extends Store {
  /** Counts one use of `key` (32 bytes) in the window; 0 when admitted, else the milliseconds to wait. */
  async take(use: {
    readonly key: Uint8Array;
    readonly now: number;
    readonly windowMs: number;
    readonly limit: number;
  }): Promise<number> {
    const { key, now, windowMs, limit } = use;
    return this.value<number>('SELECT rate_take($1, $2, $3, $4) AS wait', [key, now, windowMs, limit]);
  }
}
