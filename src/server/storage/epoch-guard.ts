/**
 * The epoch: the name of the history that versions belong to. A restored, rewound or failed-over
 * database counts versions anew, so a number alone would lie. Asked at every new connection.
 */
import type pg from 'pg';
import { ulid } from 'ulid';

/** The epoch as the newest connection found it. One in each process. */
export class EpochGuard {
  private current: string | undefined;

  /** `onChange` is called when a connection finds another history than the ones before it. */
  constructor(private readonly onChange: (epoch: string) => void) {}

  /** The epoch; known once the first connection was checked. */
  get epoch(): string {
    if (this.current === undefined) throw new Error('no connection was checked yet');
    return this.current;
  }

  /** Compares the database behind a fresh connection with the stored epoch, before anything else uses it. */
  async check(client: pg.ClientBase): Promise<void> {
    const { rows } = await client.query<{ epoch: string }>('SELECT claim_epoch($1) AS epoch', [ulid()]);
    const found = rows[0]?.epoch;
    if (found === undefined) throw new Error('the database did not tell its epoch');
    const before = this.current;
    this.current = found;
    if (before !== undefined && before !== found) this.onChange(found);
  }
}
