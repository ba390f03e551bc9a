/** Limits that hold across instances, in PostgreSQL. */
import { Store } from './query.js';

/** A use of `key` (32 bytes), at most `limit` in any `windowMs`. */
interface RateUse {
  readonly key: Uint8Array;
  readonly now: number;
  readonly windowMs: number;
  readonly limit: number;
}

/** Counts uses under a row lock, so that concurrent uses on all instances are counted one after the other. */
export class RateStore extends Store {
  /** Counts one use; 0 when admitted, else the milliseconds to wait. */
  take({ key, now, windowMs, limit }: RateUse): Promise<number> {
    return this.value<number>('rate_take', key, now, windowMs, limit);
  }

  /** What `take` would return; counts none. */
  async wait({ key, now, windowMs, limit }: RateUse): Promise<number> {
    const { wait } = await this.one<{ wait: number }>(
      `SELECT coalesce((
          SELECT u + $3::bigint - $2::bigint FROM rate_limits r, unnest(r.used_at) u
          WHERE r.key = $1 AND u > $2 - $3 AND u < $2 + $3
          ORDER BY u DESC OFFSET $4::integer - 1 LIMIT 1
        ), 0) AS wait`,
      [key, now, windowMs, limit],
    );
    return wait;
  }
}
