/** The epoch: the name of the history that versions belong to (src/server/storage/epoch-guard.ts). */
import { once } from 'node:events';
import type pg from 'pg';
import t from 'tap';
import { createPool, isConnectionLoss, openClient } from '../src/server/storage/database.js';
import { EpochGuard } from '../src/server/storage/epoch-guard.js';
import { Events, until } from './support/events.js';
import { testDatabase } from './support/postgres.js';

const epochOf = async (url: string): Promise<string> => {
  const history = new EpochGuard(() => undefined);
  const client = await openClient({ url, name: 'history test', onLost: () => undefined });
  try {
    await history.check(client);
    return history.epoch;
  } finally {
    await client.end();
  }
};

t.test('EPOCH-06 EPOCH-07: a history keeps its epoch, and another history has another', async (t) => {
  const { url } = await testDatabase(t);
  // All of them find no epoch yet, and then each wants to store one.
  const gate = await openClient({ url, name: 'history test', onLost: () => undefined });
  await gate.query('BEGIN; LOCK TABLE installation IN SHARE MODE');
  const claiming = Array.from({ length: 5 }, async () => epochOf(url));
  const waiting = "SELECT count(*) AS count FROM pg_locks WHERE NOT granted AND relation = 'installation'::regclass";
  const queue = async (): Promise<unknown> => (await gate.query<{ count: number }>(waiting)).rows[0]?.count;
  await until('all of them in the queue', async () => (await queue()) === claiming.length);
  await gate.query('COMMIT');
  const claims = await Promise.all(claiming);
  await gate.end();
  const [epoch] = claims;
  t.match(epoch, /^[0-9A-Z]{26}$/);
  t.equal(new Set(claims).size, 1, 'all take the epoch that is stored first');
  t.equal(await epochOf(url), epoch);

  const name = new URL(url).pathname.slice(1);
  const copyUrl = new URL(url);
  copyUrl.pathname = `/${name}_copy`;
  const adminUrl = new URL(url);
  adminUrl.pathname = '/postgres';
  const admin = await openClient({ url: adminUrl.href, name: 'history test', onLost: () => undefined });
  t.teardown(async () => {
    await admin.query(`DROP DATABASE IF EXISTS ${name}_copy`);
    await admin.end();
  });
  await admin.query(`CREATE DATABASE ${name}_copy TEMPLATE ${name}`);
  t.not(await epochOf(copyUrl.href), epoch, 'a copy under another name has another epoch');
  t.equal(await epochOf(url), epoch);

  const client = await openClient({ url, name: 'history test', onLost: () => undefined });
  t.teardown(async () => client.end());
  const seen = new Set([epoch]);
  for (const column of ['system_identifier', 'timeline']) {
    await client.query(`UPDATE installation SET ${column} = 'another'`);
    const found = await epochOf(url);
    t.notOk(seen.has(found), `another ${column}`);
    seen.add(found);
    t.equal(await epochOf(url), found);
  }
});

t.test('EPOCH-08: every new connection compares the epoch', async (t) => {
  const { url } = await testDatabase(t);
  const changes = new Events<string>();
  const history = new EpochGuard(changes.add);
  t.equal(history.epoch, '', 'not known before the first connection');
  const pool = createPool({
    url,
    name: 'history test',
    size: 2,
    onIdleError: () => undefined,
    onConnect: async (client) => history.check(client),
  });
  t.teardown(async () => pool.end());
  await pool.query('UPDATE installation SET timeline = timeline');
  const first = history.epoch;
  // A failover, seen from here: the open connection dies, the next one finds another timeline.
  const client = await pool.connect();
  await client.query("UPDATE installation SET timeline = 'before'");
  client.release();
  t.strictSame(changes.all, []);
  const removed = once(pool, 'remove');
  await client.query('SELECT pg_terminate_backend(pg_backend_pid())').catch(() => undefined);
  await removed;
  await pool.query('SELECT 1');
  t.equal(changes.all.length, 1);
  t.not(history.epoch, first);
  t.strictSame(changes.all, [history.epoch]);
});

t.test('FAIL-07: a database whose history lacks the epoch that was seen is not used', async (t) => {
  const [here, elsewhere] = [await testDatabase(t), await testDatabase(t)];
  const changes = new Events<string>();
  const history = new EpochGuard(changes.add);
  const connect = async (url: string): Promise<pg.Client> => {
    const client = await openClient({ url, name: 'history test', onLost: () => undefined });
    t.teardown(async () => client.end());
    return client;
  };
  const [one, other] = [await connect(here.url), await connect(elsewhere.url)];
  await history.check(one);
  const first = history.epoch;
  const refused = history.check(other).catch((error: unknown) => error);
  t.ok(isConnectionLoss(await refused), 'it counts as a lost connection, as another may succeed');
  t.match(await refused, /does not follow the history/);
  t.equal(history.epoch, first);
  await one.query("UPDATE installation SET timeline = 'before'");
  await history.check(one);
  const second = history.epoch;
  t.not(second, first);
  // As it was before it was promoted: a copy that has the first epoch only.
  await one.query('DELETE FROM epochs WHERE epoch = $1', [second]);
  await one.query('UPDATE installation SET epoch = $1', [first]);
  t.match(await history.check(one).catch(String), /does not follow/, 'a former primary is refused');
  t.strictSame([history.epoch, changes.all], [second, [second]]);
});
