/** The registry of actors with very many tenants (src/server/tenant/registry.ts), with ports in memory. */
import t from 'tap';
import { nextTurn } from '../src/protocol/batcher.js';
import { TenantRegistry } from '../src/server/tenant/registry.js';
import type { TenantUpdate } from '../src/server/tenant/ports.js';
import { BIN, deviceId, inline, writeChange, writeOf } from './support/changes.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { listen, NOTHING_HEARD } from './support/instances.js';
import { MemoryLog } from './support/memory-log.js';
import { openBin } from './support/world.js';

const TENANTS = 12_000;
const DEVICES = [deviceId(1), deviceId(2)];

function snapshotOf(log: MemoryLog, tenantId: string): TenantUpdate {
  const view = { name: 'device', glyph: 'phone' as const, pubkey: new Uint8Array(32), pairedAt: 1, cert: null };
  return {
    tenantId,
    state: 'active',
    generation: log.tenant(tenantId).generation,
    summary: log.summary(tenantId),
    devices: DEVICES.map((id) => ({ id, tokenEpoch: 1, revoked: false, keysPurged: true, view: { ...view, id } })),
    bins: [openBin(BIN)],
    pairRequests: [],
  };
}

interface World {
  readonly log: MemoryLog;
  readonly registry: TenantRegistry;
  /** The number of tenants of each comparison. */
  readonly asked: number[];
  readonly faults: unknown[];
}

const nothing = (): void => undefined;

/**
 * A registry on a log in memory. `meanwhile` is called during each comparison, which lasts until it resolves and fails
 * where it throws; `afterRead` when a tenant was read, before the registry has the result; `beforeReload` before a tenant
 * is read again, which fails where it throws.
 */
function registryOf(
  clock: TestClock,
  meanwhile: () => void | Promise<void> = nothing,
  afterRead: () => void = nothing,
  beforeReload: () => void = nothing,
): World {
  const log = new MemoryLog();
  const asked: number[] = [];
  const faults: unknown[] = [];
  const registry = new TenantRegistry({
    lanes: log,
    log,
    loader: {
      load: (tenantId) => {
        const read = snapshotOf(log, tenantId);
        afterRead();
        return Promise.resolve(read);
      },
      hurry: () => undefined,
      reload: async (tenantId) => {
        await nextTurn();
        beforeReload();
        return snapshotOf(log, tenantId);
      },
      head: (tenantId) => Promise.resolve(log.summary(tenantId)),
      positions: async (known) => {
        asked.push(known.length);
        await meanwhile();
        const stored = known.map(({ tenantId }) => ({ tenantId, ...log.tenant(tenantId) }));
        return stored.filter(({ head, generation }, at) => {
          const here = known[at];
          return here !== undefined && (head > here.delivered || generation > here.generation);
        });
      },
    },
    announcer: {
      heard: NOTHING_HEARD,
      announce: () => undefined,
      publish: () => undefined,
      subscribe: () => undefined,
    },
    purger: { purge: () => true },
    onFault: (error) => faults.push(error),
    clock,
    history: { epoch: 'epoch' },
  });
  return { log, asked, registry, faults };
}

t.test('INST-02: the heads of all tenants are compared, however many are loaded', async (t) => {
  const { log, asked, registry, faults } = registryOf(new TestClock());
  const names = Array.from({ length: TENANTS }, (_, n) => `tenant ${n}`);
  const recorders = [];
  for (const name of names) {
    log.addTenant(name);
    const actor = await registry.get(name);
    if (actor === undefined) throw new Error('no such tenant');
    if (recorders.length < 2 || name === names.at(-1)) recorders.push(await listen(actor, 1));
  }
  // These writes are not announced here: the notification was lost.
  for (const tenantId of [names[0], names[1], names.at(-1)]) {
    const write = writeOf({ inline: inline('one', DEVICES) });
    log.apply([writeChange(write, { tenantId: tenantId ?? '', deviceId: deviceId(2) })]);
  }
  await registry.compareHeads();
  for (const recorder of recorders) {
    await recorder.until(() => recorder.versions.length > 0);
    t.strictSame(recorder.versions, [1]);
  }
  t.equal(
    asked.reduce((sum, count) => sum + count, 0),
    TENANTS,
  );
  t.ok(Math.max(...asked) < TENANTS, 'each statement compares a bounded number of tenants');
  t.same(faults, []);
});

t.test('INST-61: a sweep looks at many tenants over several turns of the event loop', async (t) => {
  const clock = new TestClock();
  const { log, asked, registry, faults } = registryOf(clock);
  const names = Array.from({ length: TENANTS }, (_, n) => `tenant ${n}`);
  for (const name of names) {
    log.addTenant(name);
    const actor = await registry.get(name);
    if (actor === undefined) throw new Error('no such tenant');
    if (name === names.at(-1)) await listen(actor, 1);
  }
  clock.advance(300_000);
  registry.start();
  const sizes: number[] = [];
  let watching = true;
  t.teardown(() => (watching = false));
  const watch = (): void => {
    sizes.push(registry.actors.size);
    if (watching && registry.actors.size > 1) setImmediate(watch);
  };
  clock.advance(60_000);
  watch();
  await until('the one with a socket is left', () => registry.actors.size === 1);
  const steps = sizes.map((size, at) => (sizes[at - 1] ?? TENANTS) - size);
  t.ok(Math.max(...steps) < TENANTS / 4, `evicted in a turn: ${steps.join()}`);
  await nextTurn();
  clock.advance(4_000);
  await until('it is compared', () => asked.length > 0);
  t.same(asked, [1]);
  t.same(faults, []);
  await registry.close();
});

t.test('INST-02: each head is compared within five minutes, also of tenants that come during a sweep', async (t) => {
  const clock = new TestClock();
  const { log, asked, registry } = registryOf(clock);
  const load = async (name: string): Promise<void> => {
    log.addTenant(name);
    const actor = await registry.get(name);
    if (actor !== undefined) await listen(actor, 1);
  };
  registry.start();
  await load('first');
  let compared = 0;
  for (let at = 0; at < 300; at += 4) {
    clock.advance(4_000);
    await nextTurn();
    if (at < 40) for (let n = 0; n < 50; n++) await load(`${at}, ${n}`);
    compared = asked.reduce((sum, count) => sum + count, 0);
    if (at < 220) t.equal(compared, 0);
  }
  t.ok(compared >= 1);
  for (let at = 0; at < 40; at += 4) {
    clock.advance(4_000);
    await nextTurn();
  }
  t.ok(asked.reduce((sum, count) => sum + count, 0) >= 501, asked.join());
  await registry.close();
});

t.test('INST-02: tenants that become overdue during a slow comparison are compared after it', async (t) => {
  const clock = new TestClock();
  let end = nothing;
  const { log, asked, registry } = registryOf(clock, () => new Promise<void>((resolve) => (end = resolve)));
  const tick = async (): Promise<void> => {
    clock.advance(4_000);
    await nextTurn();
  };
  registry.start();
  for (const name of ['first', 'second']) {
    log.addTenant(name);
    await registry.get(name);
    for (let ticks = 0; ticks < 15; ticks++) await tick();
  }
  for (let ticks = 0; asked.length === 0 && ticks < 60; ticks++) await tick();
  t.strictSame(asked, [1]);
  for (let ticks = 0; ticks < 16; ticks++) await tick();
  t.strictSame(asked, [1], 'one at a time');
  end();
  await nextTurn();
  await tick();
  t.strictSame(asked, [1, 1]);
  end();
  await registry.close();
});

t.test('INST-50: after a long comparison the next one waits nine times as long, and then runs', async (t) => {
  const clock = new TestClock();
  const { log, asked, registry } = registryOf(clock, () => clock.advance(2_000));
  log.addTenant('tenant');
  await registry.get('tenant');
  await registry.compareHeads();
  t.equal(asked.length, 1);
  for (let times = 0; times < 3; times++) await registry.compareHeads();
  t.equal(asked.length, 1, 'no comparison begins during the wait');
  clock.advance(17_999);
  t.equal(asked.length, 1);
  clock.advance(1);
  await until('the one that was put off', () => asked.length === 2);
  clock.setBy(-3_600_000);
  await registry.compareHeads();
  clock.advance(30_000);
  await until('the one that was put off, where the clock was set back', () => asked.length === 3);
  await registry.close();
  clock.advance(60_000);
  await registry.compareHeads();
  t.equal(asked.length, 3, 'a closed registry does not compare');
});

t.test('INST-50: the next comparison waits 30 s at most, and not at all after a failed one', async (t) => {
  const clock = new TestClock();
  let away = false;
  const { log, asked, registry, faults } = registryOf(clock, () => {
    clock.advance(20_000);
    if (away) throw new Error('the database is away');
  });
  log.addTenant('tenant');
  await registry.get('tenant');
  await registry.compareHeads();
  await registry.compareHeads();
  t.equal(asked.length, 1);
  away = true;
  clock.advance(29_999);
  t.equal(asked.length, 1, 'it waits all of the 30 s');
  clock.advance(1);
  await until('the one that was put off', () => faults.length === 1);
  away = false;
  await registry.compareHeads();
  t.equal(asked.length, 3);
  clock.advance(30_000);
  away = true;
  await registry.compareHeads();
  t.equal(faults.length, 2);
  away = false;
  clock.advance(4_000);
  await until('the one that failed is repeated', () => asked.length === 5);
  await registry.close();
});

t.test(
  'INST-02: a tenant whose changed state cannot be read is compared again with each tick until it is read',
  async (t) => {
    const clock = new TestClock();
    let away = true;
    const { log, asked, registry, faults } = registryOf(clock, nothing, nothing, () => {
      if (away) throw new Error('the database is away');
    });
    log.addTenant('tenant');
    const actor = await registry.get('tenant');
    registry.start();
    // This revocation is not announced here: the notification was lost.
    log.tenant('tenant').generation = 2;
    await registry.compareHeads();
    for (const tick of [1, 2]) {
      t.same([asked.length, faults.length, actor?.generation], [tick, tick, 1]);
      if (tick === 2) away = false;
      clock.advance(4_000);
      await until('it is compared again', () => asked.length === tick + 1);
      await until('it is read, or that failed', () => faults.length === tick + 1 || actor?.generation === 2);
    }
    t.same([asked.length, faults.length, actor?.generation], [3, 2, 2]);
    clock.advance(4_000);
    await nextTurn();
    await until('the comparison that finds nothing new', () => asked.length === 4);
    for (let ticks = 0; ticks < 3; ticks++) {
      clock.advance(4_000);
      await nextTurn();
    }
    t.equal(asked.length, 4, 'nothing waits any more');
    await registry.close();
  },
);

t.test('INST-54: a change that is announced while the tenant is being read is not missed', async (t) => {
  const revoke = (): void => {
    if (log.tenant('tenant').generation > 1) return;
    log.tenant('tenant').generation = 2;
    registry.headHint('tenant', 0, 2);
  };
  const { log, asked, registry, faults } = registryOf(new TestClock(), nothing, revoke);
  log.addTenant('tenant');
  const actor = await registry.get('tenant');
  await until('it is read again', () => actor?.generation === 2);
  t.same([asked, faults], [[], []], 'no comparison was needed, and nothing failed');
  await registry.close();
});

t.test('FAIR-25: eight pages of replays are read at once, and one of each tenant', async (t) => {
  const { log, registry } = registryOf(new TestClock());
  const reading: string[] = [];
  const ends: (() => void)[] = [];
  log.page = async (request) => {
    reading.push(request.tenantId);
    await new Promise<void>((resolve) => ends.push(resolve));
    return log.read(request);
  };
  const tenants = Array.from({ length: 10 }, (_, n) => `tenant ${n}`);
  const replays: ReturnType<typeof listen>[] = [];
  for (const tenantId of tenants) {
    log.addTenant(tenantId);
    log.apply([writeChange(writeOf(), { tenantId })]);
    const actor = await registry.get(tenantId);
    if (actor === undefined) throw new Error('no actor');
    replays.push(listen(actor, 1), listen(actor, 2));
  }
  await new Promise(setImmediate);
  t.same(reading, tenants.slice(0, 8));
  for (let at = 0; at < 20; at++) {
    await until('the next page', () => ends[at] !== undefined);
    t.ok(ends.length - at <= 8, 'no more than eight');
    ends[at]?.();
  }
  for (const { versions } of await Promise.all(replays)) t.same(versions, [1]);
  await registry.close();
});
