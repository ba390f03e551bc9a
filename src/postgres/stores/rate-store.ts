/** Limits that hold across instances, in PostgreSQL. */
import type { RateStore as RateStorePort } from '../../account/ports.js';
import { Store } from '../ask.js';

/** Counts uses under the row's lock, so rivals on all instances are counted one after the other. */
export class RateStore extends Store implements RateStorePort {
  async take({ key, now, windowMs, limit }: Parameters<RateStorePort['take']>[0]): Promise<number> {
    return this.value<number>('SELECT rate_take($1, $2, $3, $4) AS wait', [key, now, windowMs, limit]);
  }
}
