/**
 * The raw limit of writes: PostgreSQL alone, inserting the same rows in batches.
 * One statement per batch: the payloads as one concatenated bytea, the small columns as arrays; each connection sends
 * its next batch when the previous one is durable. The table has our items' columns and unique indexes, but no locks,
 * lookups, decisions or counts.
 *
 *   raw-writes url=... connections=1|2 seconds=S warmup=S devices=N tenants=N
 */
import { randomFillSync } from 'node:crypto';
import pg from 'pg';
import { monotonicFactory } from 'ulid';
import { option, say } from './say.js';

const url = option('url');
const connections = Number(option('connections'));
const seconds = Number(option('seconds'));
const warmup = Number(option('warmup'));
const tenantCount = Number(option('tenants'));
const BATCH = 256;

/** A row's bytes in the order of the table's columns: hash, ct, nonce, sig, master, packed keys. */
const SIZES = [32, 768, 24, 32, 72, Number(option('devices')) * 108] as const;
const ROW = SIZES.reduce((sum, size) => sum + size, 0);
const PIECES = SIZES.map((size, i) => {
  const before = SIZES.slice(0, i).reduce((sum, each) => sum + each, 0);
  return `substr($1::bytea, u.at + ${before + 1}, ${size})`;
});

const INSERT = {
  name: 'raw',
  text: `INSERT INTO raw_items (tenant_id, version, id, bin_id, type, ts, sender_device, changed_by, bytes,
      write_hash, ct, nonce, sig, master, keys)
    SELECT u.tenant, u.version, u.id, u.bin, u.type, u.ts, u.device, u.device, ${ROW}, ${PIECES.join(', ')}
    FROM unnest($2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::int[])
      AS u(tenant, version, id, bin, type, ts, device, at)`,
};

const TABLE = `DROP TABLE IF EXISTS raw_items;
  CREATE TABLE raw_items (
    tenant_id text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, version bigint NOT NULL,
    bin_id text COLLATE "C" NOT NULL, type text, ts bigint, sender_device text COLLATE "C",
    changed_by text COLLATE "C", write_hash bytea, ct bytea, nonce bytea, sig bytea, master bytea, keys bytea,
    bytes integer NOT NULL, PRIMARY KEY (tenant_id, id));
  CREATE UNIQUE INDEX ON raw_items (tenant_id, version);
  ALTER TABLE raw_items ALTER COLUMN ct SET STORAGE EXTERNAL;
  ALTER TABLE raw_items ALTER COLUMN keys SET STORAGE EXTERNAL;
  CHECKPOINT`;

const POOL_BYTES = 32 * 1024 * 1024;
const pool = randomFillSync(Buffer.allocUnsafe(POOL_BYTES));
const ulid = monotonicFactory();
const tenants = Array.from({ length: tenantCount }, () => ({ id: ulid(), device: ulid(), version: 0 }));
let inserted = 0;

/** Inserts one batch: rows of the lane's own tenants in turn, payloads from a random offset in a random pool. */
async function insert(client: pg.Client, lane: Generator<(typeof tenants)[number]>): Promise<void> {
  const columns: [string[], number[], string[], string[], string[], number[], string[], number[]] = [
    [],
    [],
    [],
    [],
    [],
    [],
    [],
    [],
  ];
  const now = Date.now();
  for (let i = 0; i < BATCH; i++) {
    const tenant = lane.next().value as (typeof tenants)[number];
    columns[0].push(tenant.id);
    columns[1].push(++tenant.version);
    columns[2].push(ulid(now));
    columns[3].push('inbox');
    columns[4].push('text');
    columns[5].push(now);
    columns[6].push(tenant.device);
    columns[7].push(i * ROW);
  }
  const from = Math.floor(Math.random() * (POOL_BYTES - BATCH * ROW));
  await client.query({ ...INSERT, values: [pool.subarray(from, from + BATCH * ROW), ...columns] });
  inserted += BATCH;
}

/** The tenants of one connection, repeating. Connections never share a tenant, like the server's lanes. */
function* lane(number: number): Generator<(typeof tenants)[number]> {
  for (let i = number; ; i = i + connections < tenants.length ? i + connections : number) {
    const tenant = tenants[i];
    if (tenant) yield tenant;
  }
}

const clients = await Promise.all(
  Array.from({ length: connections }, async () => {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    await client.query('SET plan_cache_mode = force_generic_plan');
    return client;
  }),
);
await clients[0]?.query(TABLE);

const to = performance.now() + (warmup + seconds) * 1000;
let before = 0;
let after = 0;
setTimeout(() => {
  before = inserted;
  say({ event: 'window' });
}, warmup * 1000);
setTimeout(
  () => {
    after = inserted;
    say({ event: 'end' });
  },
  (warmup + seconds) * 1000,
);
await Promise.all(
  clients.map(async (client, number) => {
    const own = lane(number);
    while (performance.now() < to) await insert(client, own);
  }),
);
const stored = await clients[0]?.query<{ n: number }>('SELECT count(*)::int AS n FROM raw_items');
if (stored?.rows[0]?.n !== inserted) throw new Error(`${inserted} rows answered, ${stored?.rows[0]?.n} stored`);
await clients[0]?.query('DROP TABLE raw_items');
await Promise.all(clients.map(async (client) => client.end()));
say({ event: 'result', perSecond: (after - before) / seconds, inWindow: after - before });
