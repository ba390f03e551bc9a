/**
 * The raw limit of replay: PostgreSQL and its driver reading the same columns of the same rows in pages by version,
 * without processing them.
 *
 *   raw-read url=... tenants=FILE connections=N
 *
 * tenants: one tenant id per line.
 */
import { readFileSync } from 'node:fs';
import pg from 'pg';
import { option, say } from './say.js';

/** The columns of a frame. The version is second: the next page needs it. */
const COLUMNS =
  'id, version, bin_id, type, ts, sender_device, changed_by, deleted_at, ct, nonce, sig, master, keys, ' +
  'blob_ref, blob_nonce, blob_keys';

const tenants = readFileSync(option('tenants'), 'utf8').trim().split('\n');
const connections = Number(option('connections'));
const PAGE = 500;
let rows = 0;
let next = 0;

async function read(client: pg.Client, tenant: string): Promise<void> {
  let since = 0;
  for (;;) {
    const query = {
      name: 'raw-read',
      text: `SELECT ${COLUMNS} FROM items WHERE tenant_id = $1 AND version > $2 ORDER BY version LIMIT ${PAGE}`,
      values: [tenant, since],
      rowMode: 'array' as const,
    };
    const found = await client.query<unknown[]>(query);
    rows += found.rows.length;
    if (found.rows.length < PAGE) return;
    since = Number(found.rows.at(-1)?.[1]);
  }
}

async function lane(client: pg.Client): Promise<void> {
  for (;;) {
    const tenant = tenants[next++];
    if (tenant === undefined) return;
    await read(client, tenant);
  }
}

const clients = await Promise.all(
  Array.from({ length: connections }, async () => {
    const client = new pg.Client({ connectionString: option('url') });
    await client.connect();
    await client.query('SELECT 1');
    return client;
  }),
);
const begin = performance.now();
await Promise.all(clients.map(lane));
const seconds = (performance.now() - begin) / 1000;
await Promise.all(clients.map(async (client) => client.end()));
say({ event: 'result', seconds, rows, perSecond: rows / seconds });
