/** Spent one-use tickets in PostgreSQL. Redemptions that come together go into one statement. */
import type pg from 'pg';
import type { TicketStore as TicketStorePort } from './ports.js';
import { Batcher } from '../../protocol/batcher.js';
import { ask } from '../storage/ask.js';

const BATCH_MAX = 500;

interface Spending {
  readonly id: string;
  readonly expiresAt: number;
}

/** Remembers which tickets were spent. */
export class TicketStore implements TicketStorePort {
  private readonly spending: Batcher<Spending, boolean>;

  /** @param now milliseconds since 1970, for clearing away what has long run out. */
  constructor(pool: pg.Pool, now: () => number = Date.now) {
    this.spending = new Batcher(BATCH_MAX, async (batch) => {
      const rows = await ask<{ id: string }>(pool, {
        text: 'SELECT id FROM spend_tickets($1, $2, $3) AS id',
        values: [batch.map(({ id }) => id), batch.map(({ expiresAt }) => expiresAt), now()],
      });
      const spent = new Set(rows.map(({ id }) => id));
      // Of two callers with one ticket in the same batch only the first gets it.
      return batch.map(({ id }) => spent.delete(id));
    });
  }

  spend(id: string, expiresAt: number): Promise<boolean> {
    return this.spending.ask({ id, expiresAt });
  }
}
