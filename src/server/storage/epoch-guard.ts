/**
 * The epoch: the name of the history that versions belong to. A restored, rewound or failed-over database may assign
 * the same versions again, so a version alone is ambiguous. Queried on every new connection.
 */
import { ulid } from 'ulid';
import type { History } from '../tenant/ports.js';
import { valueOf, type Client } from './database.js';

/** The epoch as found by the newest connection. One in each process. */
export class EpochGuard implements History {
  /** Empty until the first connection was checked. A plain field, since every write reads it several times. */
  epoch = '';

  /** `onChange` is called when a connection finds a history other than that of the connections before it. */
  constructor(private readonly onChange: (epoch: string) => void) {}

  /**
   * Compares the database behind a fresh connection with the known epoch, before anything else uses it. Rejects (08004)
   * if its history does not continue the one this process has seen: a former primary, or a restored older state.
   */
  async check(client: Client): Promise<void> {
    let [before, found]: [string, string | null] = ['', null];
    do {
      // Another connection may find a new history during this query. Null: `before` is not part of the history here.
      before = this.epoch;
      found = await valueOf<string | null>(client, 'SELECT claim_epoch($1, $2)', [ulid(), before]);
    } while (before !== this.epoch);
    if (found === null) throw Object.assign(new Error(STRANGE), { code: '08004' });
    this.epoch = found;
    if (before !== '' && before !== found) this.onChange(found);
  }
}

const STRANGE =
  'this database does not follow the history that this server has seen: a former primary, or another database. It is ' +
  'not used. Where it is meant, restart the server';
