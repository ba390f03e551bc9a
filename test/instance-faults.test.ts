/** Instances that fail, stall and get in each other's way. */
import t from 'tap';
import { openClient } from '../src/server/storage/database.js';
import { STATEMENTS_MAX } from '../src/server/storage/query.js';
import { errorCode } from '../src/protocol/error-code.js';
import { TestClock } from './support/clock.js';
import { claim, claimBody, edited, join, mustWrite, newId, newItem, write, writeBody } from './support/devices.js';
import { until } from './support/events.js';
import { testDatabase } from './support/postgres.js';
import { runServer, spawnServer, type Running } from './support/server.js';
import { difference, listAll, range, startWriters, untilVersion, versionsOf } from './support/stream.js';
import type { Reply } from './support/wire.js';

t.setTimeout(300_000);

/** SQLSTATE deadlock_detected. */
const DEADLOCK = '40P01';

/** Tenants that a server finds by its host names, and a device of each, which names its host. */
function manyTenants(count: number) {
  const tenants = range(1, count).map(() => newId());
  const resolveTenant = (host: string): string | undefined => tenants.find((id) => host.startsWith(id.toLowerCase()));
  const claimAll = async ({ sql, wire }: Pick<Running, 'sql' | 'wire'>) => {
    await sql('INSERT INTO tenants (id, slug, created_at) SELECT id, lower(id), 1 FROM unnest($1::text[]) AS u(id)', [
      tenants,
    ]);
    await sql(
      `INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
       SELECT id, 'inbox', 'inbox', 1, 1, 1 FROM unnest($1::text[]) AS u(id)`,
      [tenants],
    );
    return Promise.all(
      tenants.map(async (tenant) => {
        const host = { host: `${tenant.toLowerCase()}.test` };
        const reply = await wire.post('/devices/bootstrap', claimBody(), { headers: host });
        return { host, id: reply.text('device.id'), token: reply.text('token') };
      }),
    );
  };
  return { tenants, resolveTenant, claimAll };
}

t.test('INST-12: a deadlock is retried, and no client sees it', async (t) => {
  const { wire, sql, databaseUrl } = await runServer(t);
  const device = await claim(wire);
  const item = newItem([device.id]);
  await mustWrite(wire, device, item);
  const rival = await openClient({ url: databaseUrl, name: 'rival', onLost: () => undefined });
  t.teardown(async () => rival.end());
  const blocked = async (): Promise<boolean> =>
    (await sql("SELECT 1 FROM pg_stat_activity WHERE application_name = 'service-commit' AND wait_event_type = 'Lock'"))
      .length > 0;
  /** True where PostgreSQL ended the service's statement: it looks for a deadlock after 1 s, the rival after 2 s. */
  const gaveWay = async (): Promise<boolean> => {
    try {
      await rival.query('SELECT 1 FROM tenants FOR UPDATE');
      return true;
    } catch (error) {
      if (errorCode(error) !== DEADLOCK) throw error;
      return false;
    }
  };
  await rival.query("SET deadlock_timeout = '2s'");
  // Where the machine paused, the service may have looked before the rival waited; then the round is repeated.
  for (let version = 2, done = false; !done; version++) {
    await rival.query('BEGIN');
    await rival.query('SELECT 1 FROM items WHERE id = $1 FOR UPDATE', [item.id]);
    const writing = write(wire, device, edited(item, { ts: item.ts + version }));
    await until('the service at the lock', blocked);
    done = await gaveWay();
    await rival.query(done ? 'COMMIT' : 'ROLLBACK');
    const reply = await writing;
    t.equal(reply.outcome, '200');
    t.equal(reply.at('version'), version);
  }
});

t.test('INST-60: an instance gives its sign of life while requests hold the connections of the pool', async (t) => {
  const { resolveTenant, claimAll } = manyTenants(3);
  const server = await runServer(t, { resolveTenant });
  const { wire, sql, databaseUrl } = server;
  const devices = await claimAll(server);
  const rival = await openClient({ url: databaseUrl, name: 'rival', onLost: () => undefined });
  t.teardown(async () => rival.end());
  const count = async (text: string): Promise<number> => Number((await sql(text))[0]?.['n']);
  const waiting = (): Promise<number> =>
    count("SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'service' AND wait_event_type = 'Lock'");
  const seenAt = (): Promise<number> => count('SELECT max(seen_at) AS n FROM instances');
  await rival.query('BEGIN');
  await rival.query('LOCK TABLE blobs');
  const room = JSON.stringify({ contentLength: 5, contentType: 'a/b' });
  const held = devices.flatMap(({ token, host }) =>
    range(1, 7).map(() => wire.post('/blobs/upload-url', room, { token, headers: host })),
  );
  await until('all that calls may hold', async () => (await waiting()) === STATEMENTS_MAX);
  const before = await seenAt();
  await until('a heartbeat', async () => (await seenAt()) > before);
  t.equal(await waiting(), STATEMENTS_MAX, 'they are still held');
  await rival.query('ROLLBACK');
  t.same(new Set((await Promise.all(held)).map(({ status }) => status)), new Set([200]));
});

t.test('INST-13: writers of many tenants on two instances do not deadlock', async (t) => {
  const database = await testDatabase(t);
  const { tenants, resolveTenant, claimAll } = manyTenants(24);
  const instances = [await runServer(t, { database, resolveTenant }), await runServer(t, { database, resolveTenant })];
  const [one] = instances;
  if (one === undefined) throw new Error('no instance');
  const members = await claimAll(one);
  const refusals: Reply[] = [];
  // Each batch of an instance holds many of these tenants, the other instance's batches the same ones.
  await Promise.all(
    members.flatMap((member) =>
      instances.map(async ({ wire }) => {
        for (const _ of range(1, 30)) {
          const body = writeBody('a', newItem([member.id]));
          const reply = await wire.post('/items', body, { token: member.token, headers: member.host });
          if (reply.status !== 200) refusals.push(reply);
        }
      }),
    ),
  );
  t.same(
    refusals.map(({ raw }) => raw),
    [],
  );
  // A cycle of waits would have been ended as a deadlock after a second, and counted.
  const waits = await one.sql('SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()');
  t.same(waits, [{ deadlocks: 0 }]);
  const heads = await one.sql(
    'SELECT head, (SELECT count(DISTINCT version) FROM items i WHERE i.tenant_id = t.id) AS versions FROM tenants t WHERE id = ANY ($1)',
    [tenants],
  );
  t.same(
    heads.filter((row) => Number(row['head']) !== 60 || Number(row['versions']) !== 60),
    [],
    'each tenant has versions 1 to 60 without a gap',
  );
});

t.test('INST-15: a write that the database refuses fails alone', async (t) => {
  const { wire, sql } = await runServer(t);
  const device = await claim(wire);
  const poisonTs = 1_999_999_999_999;
  await sql(
    `CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
       IF NEW.ts = ${poisonTs} THEN RAISE EXCEPTION 'poison'; END IF; RETURN NEW; END $$`,
  );
  await sql('CREATE TRIGGER poison BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION poison()');
  let good = 0;
  for (const round of range(1, 6)) {
    const items = range(1, 40).map((number) => newItem([device.id], number % 13 === round ? { ts: poisonTs } : {}));
    const replies = await Promise.all(items.map(async (item) => write(wire, device, item)));
    for (const [at, reply] of replies.entries()) {
      const poisoned = items[at]?.ts === poisonTs;
      if ((reply.status === 200) === poisoned || (poisoned && reply.outcome !== '500 internal'))
        t.fail(`${String(poisoned)} ${reply.raw}`);
      if (reply.status === 200) good++;
    }
  }
  const versions = (await listAll(wire, device.token)).changes.map(({ version }) => version);
  t.equal(difference(versions, range(1, good)), '', 'the other writes are stored, without a gap');
});

t.test('INST-16: a stalled instance does not block writes on another instance', async (t) => {
  const database = await testDatabase(t);
  const child = await spawnServer(t, { database });
  const other = await runServer(t, { database });
  const device = await claim(child.wire);
  const all = [device.id];
  const stalled = startWriters({ wires: [child.wire], devices: [device], writers: 8, sealFor: all });
  t.teardown(() => child.process.kill('SIGCONT'));
  let slowest = 0;
  for (const round of range(1, 15)) {
    await stalled.until(round * 20);
    child.process.kill('SIGSTOP');
    for (const _ of range(1, 5)) {
      const before = Date.now();
      await mustWrite(other.wire, device, newItem(all));
      slowest = Math.max(slowest, Date.now() - before);
    }
    child.process.kill('SIGCONT');
  }
  await stalled.stop();
  t.same([stalled.refusals, stalled.errors], [[], []]);
  // Behind a lock of the stalled instance a write would reach the statement timeout of 15 s, and be refused.
  t.ok(slowest < 10_000, `the slowest write while an instance was stalled took ${slowest} ms`);
});

t.test('INST-17: no change and no order is lost when an instance is killed', async (t) => {
  const database = await testDatabase(t);
  const other = await runServer(t, { database });
  const device = await claim(other.wire);
  const second = await join(other.wire, device, { name: 'second' });
  const all = [device.id, second.id];
  const socket = await other.wire.connect({ token: second.token });
  await socket.hello();
  const acked = [];
  let cursor = 0;
  for (const _ of range(1, 3)) {
    const child = await spawnServer(t, { database });
    const reader = await child.wire.connect({ token: second.token });
    const replay = await reader.hello(cursor);
    const wanted = range(cursor + 1, Number(replay.at(-1)?.['version']));
    t.equal(
      difference(versionsOf(replay), wanted),
      '',
      'a client of a killed instance resumes from its cursor at another',
    );
    const writing = startWriters({
      wires: [child.wire, other.wire],
      devices: [device],
      writers: 8,
      sealFor: all,
      insertsOnly: true,
    });
    await writing.until(150);
    await child.end('SIGKILL');
    await until('the writers that it served', () => writing.errors.length > 0);
    await writing.stop();
    acked.push(...writing.acked);
    cursor = Math.max(cursor, ...versionsOf(reader.frames));
  }
  const head = await mustWrite(other.wire, device, newItem(all));
  await untilVersion(socket, head);
  t.equal(
    difference(versionsOf(socket.frames), range(1, head)),
    '',
    'the socket on the other instance received every version, in order',
  );
  const stored = new Map((await listAll(other.wire, second.token)).changes.map(({ id, version }) => [id, version]));
  t.same(
    acked.filter(({ id, version }) => stored.get(id) !== version),
    [],
  );
});

t.test('INST-17: a tenant whose idle actor was dropped continues with its next version', async (t) => {
  const clock = new TestClock();
  const { wire } = await runServer(t, { clock, env: { WS_PING_INTERVAL_MS: '1000', WS_PONG_GRACE_MS: '3000' } });
  const device = await claim(wire);
  let head = 0;
  for (const round of range(1, 4)) {
    head = await mustWrite(wire, device, newItem([device.id]));
    t.equal(head, round);
    clock.advance(6 * 60_000);
    const socket = await wire.connect({ token: device.token });
    t.same(versionsOf(await socket.hello(round - 1)), [round]);
    await socket.close();
    clock.advance(6 * 60_000);
  }
});
