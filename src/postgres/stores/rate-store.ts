/** Limits that hold across instances, in PostgreSQL (contract 9). */
import type pg from 'pg';
import type { RateStore as RateStorePort } from '../../account/ports.js';
import { askOne } from '../ask.js';

/** Counts uses under the row's lock, so rivals on all instances are counted one after the other. */
export class RateStore implements RateStorePort {
  constructor(private readonly pool: pg.Pool) {}

  async take({ key, now, windowMs, limit }: Parameters<RateStorePort['take']>[0]): Promise<number> {
    const row = await askOne<{ wait: number }>(this.pool, {
      text: 'SELECT rate_take($1, $2, $3, $4) AS wait',
      values: [key, now, windowMs, limit],
    });
    return row.wait;
  }
}
