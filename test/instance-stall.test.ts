/** An instance that stood still compares what it knows with the database before it judges a request. */
import t from 'tap';
import { ServiceError } from '../src/protocol/errors.js';
import type { Actor } from '../src/server/tenant/actor.js';
import { TenantRegistry, type RegistryOptions } from '../src/server/tenant/registry.js';
import type { StoredPosition, TenantUpdate } from '../src/server/tenant/ports.js';
import { refusal } from './support/accounts.js';
import { BIN, deviceId, inline, writeChange, writeOf } from './support/changes.js';
import { TestClock } from './support/clock.js';
import { claim, join, mustWrite, newItem } from './support/devices.js';
import { until } from './support/events.js';
import { listen, NOTHING_HEARD } from './support/instances.js';
import { KeepAlive } from './support/keep-alive.js';
import { MemoryLog } from './support/memory-log.js';
import { testDatabase } from './support/postgres.js';
import { runServer, spawnServer } from './support/server.js';
import { versionsOf } from './support/stream.js';
import { openBin } from './support/world.js';

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
    purger: { purge: () => undefined },
    onFault: () => undefined,
    clock,
    epoch: () => 'epoch',
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
