/** Instances that stand still, fail, and get in each other's way: what they judge by, and what stays correct. */
import t from 'tap';
import { ServiceError } from '../src/protocol/errors.js';
import type { Actor } from '../src/server/tenant/actor.js';
import { TenantRegistry, type RegistryOptions } from '../src/server/tenant/registry.js';
import type { StoredPosition, TenantUpdate } from '../src/server/tenant/ports.js';
import { openClient } from '../src/server/storage/database.js';
import { errorCode } from '../src/protocol/error-code.js';
import { HEAD_COMPARE_MS } from '../src/protocol/limits.js';
import { refusal } from './support/accounts.js';
import { BIN, deviceId, inline, writeChange, writeOf } from './support/changes.js';
import { TestClock } from './support/clock.js';
import { claim, join, mustWrite, newItem, claimBody, edited, newId, write, writeBody } from './support/devices.js';
import { until } from './support/events.js';
import { listen, NOTHING_HEARD } from './support/instances.js';
import { KeepAlive } from './support/keep-alive.js';
import { MemoryLog } from './support/memory-log.js';
import { testDatabase } from './support/postgres.js';
import { POOLED, runServer, spawnServer, type Running } from './support/server.js';
import { versionsOf, difference, listAll, range, startWriters, untilVersion } from './support/stream.js';
import { openBin } from './support/world.js';
import type { Reply } from './support/wire.js';

t.setTimeout(600_000);

const STALE_MS = 5_001;

/** A registry over a database in memory; comparisons are counted, reads are noted. */
function stage() {
  const log = new MemoryLog();
  const clock = new TestClock();
  const revoked = new Set<string>();
  const heard = { ...NOTHING_HEARD };
  const state = { asked: 0, reads: [] as string[], away: false, broken: false, gone: '' };
  const snapshotOf = (tenantId: string): TenantUpdate => ({
    tenantId,
    state: 'active',
    generation: log.tenant(tenantId).generation,
    summary: log.summary(tenantId),
    devices: [1, 2].map((n) => ({
      id: deviceId(n),
      tokenEpoch: 1,
      revoked: revoked.has(`${tenantId} ${n}`),
      keysPurged: true,
      view: {
        id: deviceId(n),
        name: 'device',
        glyph: 'phone' as const,
        pubkey: new Uint8Array(32),
        pairedAt: 1,
        cert: null,
      },
    })),
    bins: [openBin(BIN)],
    pairRequests: [],
  });
  const unavailable = (): Promise<never> => Promise.reject(new ServiceError('unavailable'));
  const load = (tenantId: string): Promise<TenantUpdate | undefined> => {
    state.reads.push('load');
    if (state.broken) return Promise.reject(new Error('cannot be read'));
    if (state.away) return unavailable();
    return Promise.resolve(tenantId === state.gone ? undefined : snapshotOf(tenantId));
  };
  const options: RegistryOptions = {
    lanes: log,
    log: {
      page: (request) => {
        state.reads.push('page');
        return state.away ? unavailable() : log.page(request);
      },
    },
    loader: {
      load,
      hurry: () => undefined,
      reload: load,
      head: (tenantId) => Promise.resolve(log.summary(tenantId)),
      positions: (known) => {
        state.asked++;
        if (state.away) return unavailable();
        const standingOf = (tenantId: string): StoredPosition =>
          tenantId === state.gone ? { tenantId, head: null, generation: 0 } : { tenantId, ...log.tenant(tenantId) };
        return Promise.resolve(known.map(({ tenantId }) => standingOf(tenantId)));
      },
    },
    announcer: { heard, announce: () => undefined, publish: () => undefined, subscribe: () => undefined },
    purger: { purge: () => true },
    onFault: () => undefined,
    clock,
    history: { epoch: 'epoch' },
  };
  const registry = new TenantRegistry(options);
  /** Revokes on another instance, without a notification. */
  const revoke = (tenantId: string, n: number): void => {
    revoked.add(`${tenantId} ${n}`);
    log.tenant(tenantId).generation++;
  };
  /** The tenant's actor, where it is current enough to judge requests. */
  const peek = (tenantId: string): Actor | undefined => {
    const actor = registry.actors.get(tenantId);
    return actor?.isCurrent(clock.now()) === true ? actor : undefined;
  };
  return { log, clock, heard, state, registry, revoke, peek };
}

t.test('INST-29: an instance that stood still judges requests by the current state of the database', async (t) => {
  const { log, clock, state, registry, revoke, peek } = stage();
  log.addTenant('one');
  await registry.get('one');
  t.equal(peek('one')?.device(deviceId(1))?.revoked, false, 'a fresh actor judges without a comparison');
  clock.advance(5_000);
  t.ok(peek('one'), 'the actor is still fresh after 5,000 ms');
  revoke('one', 1);
  clock.advance(1);
  t.equal(peek('one'), undefined);
  const crowd = await Promise.all(Array.from({ length: 10_000 }, async () => registry.get('one')));
  t.ok(
    crowd.every((actor) => actor?.device(deviceId(1))?.revoked === true),
    'no caller is judged before the comparison',
  );
  t.equal(state.asked, 1, 'concurrent callers share one comparison');
  t.ok(peek('one'), 'after the comparison the actor is fresh again');
  clock.advance(-60_000);
  t.equal(peek('one'), undefined, 'a clock that was set back makes the actor stale');
  t.ok(await registry.get('one'));
  t.ok(peek('one'));
});

t.test('INST-29 INST-45: while notifications are received, requests are judged without a comparison', async (t) => {
  const { log, clock, heard, state, registry, revoke, peek } = stage();
  for (const name of ['early', 'one']) log.addTenant(name);
  await registry.get('early');
  clock.advance(1);
  heard.since = clock.now();
  await registry.get('one');
  const passes = (ms: number): void => {
    clock.advance(ms);
    heard.until = clock.now();
  };
  passes(60_000);
  t.ok(peek('one'), 'no change was notified, so the actor is current');
  t.equal(peek('early'), undefined, 'this actor was loaded before notifications were received');
  await registry.get('early');
  t.equal(state.asked, 1);
  passes(60_000);
  t.ok(peek('early'));
  clock.advance(STALE_MS);
  t.equal(peek('one'), undefined, 'notifications are no longer received');
  passes(0);
  t.ok(peek('one'));

  // A notified generation that cannot be read: notifications received later say nothing about it.
  revoke('one', 1);
  state.broken = true;
  registry.headHint('one', 0, 2);
  passes(5_000);
  t.equal(peek('one')?.device(deviceId(1))?.revoked, false);
  passes(1);
  t.equal(peek('one'), undefined);
  t.equal(await refusal(registry.get('one')), 'unavailable');
  state.broken = false;
  t.equal((await registry.get('one'))?.device(deviceId(1))?.revoked, true);
  passes(60_000);
  t.ok(peek('one'));

  // A generation that never existed, as anyone who can connect to the database could notify.
  registry.headHint('one', 0, 99);
  passes(STALE_MS);
  t.equal(peek('one'), undefined);
  t.ok(await registry.get('one'));
  passes(60_000);
  t.ok(peek('one'), 'current again once the database is found not to have that generation');
});

t.test('INST-29: a tenant that cannot be compared, or cannot be read, is refused until it can', async (t) => {
  const { log, clock, state, registry, revoke } = stage();
  for (const name of ['one', 'two', 'gone']) {
    log.addTenant(name);
    await registry.get(name);
  }
  clock.advance(STALE_MS);
  state.away = true;
  t.equal(await refusal(registry.get('one')), 'unavailable');
  state.away = false;
  t.equal(
    (await registry.get('one'))?.device(deviceId(1))?.revoked,
    false,
    'requests are served when the database is back',
  );
  clock.advance(STALE_MS);
  revoke('one', 1);
  state.broken = true;
  const [one, two] = await Promise.allSettled([registry.get('one'), registry.get('two')]);
  t.match(one, { status: 'rejected', reason: { error: 'unavailable' } });
  t.equal(two.status, 'fulfilled', 'the other tenant is served');
  state.broken = false;
  t.equal((await registry.get('one'))?.device(deviceId(1))?.revoked, true);
  clock.advance(STALE_MS);
  state.gone = 'gone';
  t.equal(await registry.get('gone'), undefined, 'a tenant that is gone is not served');
  t.equal(registry.actors.get('gone'), undefined);
});

t.test(
  'INST-29: a socket of a device that was revoked meanwhile is closed before anything is read for it',
  async (t) => {
    const { log, clock, state, registry, revoke } = stage();
    log.addTenant('one');
    const actor = await registry.get('one');
    if (actor === undefined) throw new Error('no tenant');
    const [revokedOne, other] = [await listen(actor, 1), await listen(actor, 2)];
    clock.advance(STALE_MS);
    revoke('one', 1);
    const write = writeOf({ inline: inline('one', [deviceId(2)]) });
    log.apply([writeChange(write, { tenantId: 'one', deviceId: deviceId(3), generation: 2 })]);
    state.reads = [];
    // The head hint of another instance arrives before the timers fire.
    actor.headHint(1, 1);
    await revokedOne.until(() => revokedOne.closedWith !== undefined);
    t.equal(revokedOne.closedWith, 4403);
    await other.until(() => other.versions.length > 0 || other.closedWith !== undefined);
    t.same(revokedOne.versions, []);
    t.equal(state.reads[0], 'load', 'the devices are loaded first');
  },
);

t.test(
  'INST-29: no instance serves a revoked device, not even one that was stopped during the revocation',
  async (t) => {
    const database = await testDatabase(t);
    const child = await spawnServer(t, { database });
    const other = await runServer(t, { database });
    const device = await claim(other.wire);
    const lost = await join(other.wire, device, { name: 'lost' });
    const kept = await Promise.all(Array.from({ length: 5 }, async () => KeepAlive.open(child.port)));
    t.teardown(() => {
      for (const connection of kept) connection.end();
    });
    const read = { token: lost.token, path: '/items?since=0' };
    for (const connection of kept) t.equal((await connection.ask(read))?.status, 200);
    const socket = await child.wire.connect({ token: lost.token });
    await socket.hello();
    t.teardown(() => child.process.kill('SIGCONT'));
    child.process.kill('SIGSTOP');
    const stopped = Date.now();
    const revoked = await other.wire.post(`/devices/${lost.id}/revoke`, {}, { token: device.token });
    t.equal(revoked.status, 200);
    await mustWrite(other.wire, device, newItem([device.id]));
    const answers = Promise.all(kept.map(async (connection) => connection.ask(read)));
    socket.send({ type: 'hello', since: 0 });
    // Until the last comparison is stale, by the clock of the machine, which is the child's.
    await until('the end of the stand', () => Date.now() - stopped > STALE_MS + 500);
    child.process.kill('SIGCONT');
    t.same(
      (await answers).map((answer) => answer?.status),
      [403, 403, 403, 403, 403],
    );
    t.equal((await socket.closed).code, 4403);
    t.same(versionsOf(socket.frames), [], 'no push and no replay');
    const opening = await child.wire.connect({ token: lost.token }).then(
      () => 'open',
      (error: unknown) => String(error),
    );
    t.match(opening, /403 device_revoked/);
  },
);

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

const sharesSessions = POOLED && 'behind a pooler no connection has a session of its own';

t.test(
  'INST-60: an instance gives its sign of life while requests hold its pool',
  { skip: sharesSessions },
  async (t) => {
    const clock = new TestClock();
    const { wire, sql, databaseUrl } = await runServer(t, { clock });
    const device = await claim(wire);
    const rival = await openClient({ url: databaseUrl, name: 'rival', onLost: () => undefined });
    t.teardown(async () => rival.end());
    const count = async (text: string): Promise<number> => Number((await sql(text))[0]?.['n']);
    const waiting = (): Promise<number> =>
      count(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'service' AND wait_event_type = 'Lock'",
      );
    const seenAt = (): Promise<number> => count('SELECT max(seen_at) AS n FROM instances');
    await rival.query('BEGIN');
    await rival.query('LOCK TABLE blobs');
    const room = JSON.stringify({ contentLength: 5, contentType: 'a/b' });
    const held = range(1, 20).map(() => wire.post('/blobs/upload-url', room, { token: device.token }));
    await until('a full pool', async () => (await waiting()) >= 11);
    const before = await seenAt();
    clock.advance(HEAD_COMPARE_MS);
    await until('a heartbeat', async () => (await seenAt()) > before);
    t.ok((await waiting()) >= 11, 'the pool is still full');
    await rival.query('ROLLBACK');
    t.same(new Set((await Promise.all(held)).map(({ status }) => status)), new Set([200]));
  },
);

t.test('INST-12: a serialization failure is retried, and no client sees it', async (t) => {
  const { wire, sql } = await runServer(t);
  const device = await claim(wire);
  // Only a sequence keeps what happened in a statement that was undone.
  await sql('CREATE SEQUENCE failures');
  await sql(`CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('failures') % 2 = 1 THEN RAISE 'again' USING ERRCODE = 'serialization_failure'; END IF;
    RETURN NEW;
  END $$`);
  // A device's `last_seen_at` changes by itself.
  for (const change of ['INSERT OR UPDATE ON items', 'INSERT ON bins', 'UPDATE OF name ON devices'])
    await sql(`CREATE TRIGGER fails BEFORE ${change} FOR EACH ROW EXECUTE FUNCTION fails()`);
  const item = newItem([device.id]);
  const as = { token: device.token };
  t.equal((await write(wire, device, item)).outcome, '200');
  t.equal((await wire.post('/bins', { id: 'work' }, as)).outcome, '200');
  t.equal((await wire.patch(`/devices/${device.id}`, { name: 'Desk' }, as)).outcome, '200');
  t.equal((await wire.delete(`/items/${item.id}`, as)).outcome, '200');
  t.match(await sql('SELECT last_value::int AS n FROM failures'), [{ n: 8 }], 'each of the four failed once');
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
  const poisonTs = 1_111_111_111_111;
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
