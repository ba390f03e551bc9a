/** An instance that stood still: what it knows is compared before it judges anybody by it. */
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

/** A registry whose database is in memory, and counts what it is asked. */
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
  /** On another instance; nobody tells of it here. */
  const revoke = (tenantId: string, n: number): void => {
    revoked.add(`${tenantId} ${n}`);
    log.tenant(tenantId).generation++;
  };
  /** The tenant's actor, where requests may be judged by it as it is. */
  const peek = (tenantId: string): Actor | undefined => {
    const actor = registry.actors.get(tenantId);
    return actor?.isCurrent(clock.now()) === true ? actor : undefined;
  };
  return { log, clock, heard, state, registry, revoke, peek };
}

t.test('INST-29: who comes to an instance that stood still is judged by what is true now', async (t) => {
  const { log, clock, state, registry, revoke, peek } = stage();
  log.addTenant('one');
  await registry.get('one');
  t.equal(peek('one')?.device(deviceId(1))?.revoked, false, 'at once while it is fresh');
  clock.advance(5_000);
  t.ok(peek('one'), 'to the last moment');
  revoke('one', 1);
  clock.advance(1);
  t.equal(peek('one'), undefined);
  const crowd = await Promise.all(Array.from({ length: 10_000 }, async () => registry.get('one')));
  t.ok(
    crowd.every((actor) => actor?.device(deviceId(1))?.revoked === true),
    'nobody is judged before',
  );
  t.equal(state.asked, 1, 'and a crowd shares one comparison');
  t.ok(peek('one'), 'then at once again');
  clock.advance(-60_000);
  t.equal(peek('one'), undefined, 'nor is a clock that was set back believed');
  t.ok(await registry.get('one'));
  t.ok(peek('one'));
});

t.test('INST-29 INST-45: what notifications would have told of is judged without a comparison', async (t) => {
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
  t.ok(peek('one'), 'nothing was notified');
  t.equal(peek('early'), undefined, 'it was read before anything was heard');
  await registry.get('early');
  t.equal(state.asked, 1);
  passes(60_000);
  t.ok(peek('early'));
  clock.advance(STALE_MS);
  t.equal(peek('one'), undefined, 'nothing is heard any more');
  passes(0);
  t.ok(peek('one'));

  // A generation that is told and cannot be read: what is heard later says nothing of it.
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

  // One that nobody ever had, as anybody who may connect to the database could tell.
  registry.headHint('one', 0, 99);
  passes(STALE_MS);
  t.equal(peek('one'), undefined);
  t.ok(await registry.get('one'));
  passes(60_000);
  t.ok(peek('one'), 'once the database has not heard of it');
});

t.test(
  'INST-29: what cannot be compared is not judged: the database away, one tenant that cannot be read',
  async (t) => {
    const { log, clock, state, registry, revoke } = stage();
    for (const name of ['one', 'two', 'gone']) {
      log.addTenant(name);
      await registry.get(name);
    }
    clock.advance(STALE_MS);
    state.away = true;
    t.equal(await refusal(registry.get('one')), 'unavailable');
    state.away = false;
    t.equal((await registry.get('one'))?.device(deviceId(1))?.revoked, false, 'and it goes on when it is back');
    clock.advance(STALE_MS);
    revoke('one', 1);
    state.broken = true;
    const [one, two] = await Promise.allSettled([registry.get('one'), registry.get('two')]);
    t.match(one, { status: 'rejected', reason: { error: 'unavailable' } });
    t.equal(two.status, 'fulfilled', 'the neighbour is served');
    state.broken = false;
    t.equal((await registry.get('one'))?.device(deviceId(1))?.revoked, true);
    clock.advance(STALE_MS);
    state.gone = 'gone';
    t.equal(await registry.get('gone'), undefined, 'a tenant that is gone is not served');
    t.equal(registry.actors.get('gone'), undefined);
  },
);

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
    // What another instance says of the head comes before the timers do.
    actor.headHint(1, 1);
    await revokedOne.until(() => revokedOne.closedWith !== undefined);
    t.equal(revokedOne.closedWith, 4403);
    await other.until(() => other.versions.length > 0 || other.closedWith !== undefined);
    t.same(revokedOne.versions, []);
    t.equal(state.reads[0], 'load', 'devices first');
  },
);

t.test(
  'INST-29: a revoked device finds no instance that serves it, also not one that was stopped meanwhile',
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
    // As long as it takes for a comparison to be old: by the clock of the machine, which is the child's.
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
