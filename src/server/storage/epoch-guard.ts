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

  /**
   * Compares the database behind a fresh connection with the stored epoch, before anything else uses it. Rejects (08004)
   * where it does not follow from what this process has seen: a former primary, or what was put back beneath it.
   */
  async check(client: pg.ClientBase): Promise<void> {
    let [before, found]: [string | undefined, string | null] = [undefined, null];
    do {
      // Another connection may find a new history while this one is asked.
      before = this.current;
      found = await claim(client, before ?? '');
    } while (before !== this.current);
    if (found === null) throw Object.assign(new Error(STRANGE), { code: '08004' });
    this.current = found;
    if (before !== undefined && before !== found) this.onChange(found);
  }
}

const STRANGE =
  'this database does not follow the history that this server has seen: a former primary, or another database. It is ' +
  'not used. Where it is meant, restart the server';

/** The epoch of the database; null where the epoch `seen` is no part of its history. */
async function claim(client: pg.ClientBase, seen: string): Promise<string | null> {
  const { rows } = await client.query<{ epoch: string | null }>('SELECT claim_epoch($1, $2) AS epoch', [ulid(), seen]);
  const [found] = rows;
  if (found === undefined) throw new Error('the database did not tell its epoch');
  return found.epoch;
}
