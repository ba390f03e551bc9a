/** Rows kept in a temporary table of PostgreSQL, since they may exceed the memory. */
import type pg from 'pg';
import { asUnavailable } from './database.js';
import { Store } from './query.js';

/** Holds a connection of the pool until it is closed. */
export abstract class TemporaryTable extends Store<pg.PoolClient> {
  /** A connection with a new table of these columns, keyed by tenant and ref. Throws `unavailable`. */
  protected static async create(pool: pg.Pool, name: string, columns: string): Promise<pg.PoolClient> {
    let client: pg.PoolClient | undefined;
    try {
      client = await pool.connect();
      await client.query(`CREATE TEMPORARY TABLE ${name} (
        tenant_id text COLLATE "C", ref text COLLATE "C", ${columns}, PRIMARY KEY (tenant_id, ref))`);
      return client;
    } catch (error) {
      client?.release(true);
      throw asUnavailable(error);
    }
  }

  /** Closes the connection, which drops the table. */
  close(): void {
    this.pool.release(true);
  }
}
