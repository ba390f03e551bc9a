/** Limits that hold across instances, in PostgreSQL. */
import { Store } from './query.js';

/** At most `limit` uses in any period of `ms`. */
interface Window {
  readonly limit: number;
  readonly ms: number;
}

/** Counts uses under a row lock, so that concurrent uses on all instances are counted one after the other. */
export class RateStore extends Store {
  /** Counts one use of `key` (32 bytes); 0 when admitted, else the milliseconds to wait. */
  take(key: Uint8Array, now: number, { limit, ms }: Window): Promise<number> {
    return this.value<number>('rate_take', key, now, ms, limit);
  }

  /** As `take`, unless `once` (32 bytes) was counted within its time on any instance: then it returns -1 and counts none. */
  takeOnce(
    once: { key: Uint8Array; ms: number },
    key: Uint8Array,
    now: number,
    { limit, ms }: Window,
  ): Promise<number> {
    return this.value<number>('rate_take_once', once.key, once.ms, key, now, ms, limit);
  }

  /** What `take` would return; counts none. */
  async wait(key: Uint8Array, now: number, { limit, ms }: Window): Promise<number> {
    const { wait } = await this.one<{ wait: number }>(
      `SELECT coalesce((
          SELECT u + $3::bigint - $2::bigint FROM rate_limits r, unnest(r.used_at) u
          WHERE r.key = $1 AND u > $2 - $3 AND u < $2 + $3
          ORDER BY u DESC OFFSET $4::integer - 1 LIMIT 1
        ), 0) AS wait`,
      [key, now, ms, limit],
    );
    return wait;
  }
}
