/** Two instances on one database, racing (contract 13). Every kind of race is run hundreds of times, in every order. */
import t from 'tap';
import type pg from 'pg';
import type { ServiceError } from '../src/protocol/errors.js';
import type { Change } from '../src/tenant/ports.js';
import type { Acknowledged } from '../src/tenant/messages.js';
import { systemClock } from '../src/protocol/clock.js';
import { deleteChange, deviceId, inline, itemId, TS, writeChange, writeOf } from './support/changes.js';
import { addDevice, Ears, instances, listen, tenantWith, type Post } from './support/instances.js';
import { allRows, commit, openLane, postgresLogs, sums, type PostgresLogs } from './support/logs.js';
import { TestClock } from './support/clock.js';

const TENANTS = 24;
const ROUNDS = 40;

const turns = async (count: number): Promise<void> => {
  for (let n = 0; n < count; n++) await new Promise((resolve) => setImmediate(resolve));
};
/** A little while, another each time, so that rivals meet in every order. */
const aLittle = async (): Promise<void> => turns(Math.floor(Math.random() * 6));

interface Rivals {
  readonly first: readonly [verdict: string, version: number | null];
  readonly second: readonly [verdict: string, version: number | null];
}

/** Lets two changes of each round race on two instances, in many tenants at once. */
async function race(
  logs: PostgresLogs,
  rival: (context: { tenantId: string; n: number }) => { before?: Change; first: Change; second: Change },
): Promise<{ tenantId: string; n: number; rivals: Rivals }[]> {
  const [one, two] = [logs.moreLanes(), logs.moreLanes()];
  const tenants = await Promise.all(Array.from({ length: TENANTS }, async () => logs.newTenant()));
  const submit = async (lanes: typeof one, change: Change): Promise<readonly [string, number | null]> => {
    await aLittle();
    const { outcome } = await commit(lanes, change);
    return [outcome.verdict, outcome.version];
  };
  const raced = await Promise.all(
    tenants.map(async (tenantId) => {
      const found: { tenantId: string; n: number; rivals: Rivals }[] = [];
      for (let n = 0; n < ROUNDS; n++) {
        const { before, first, second } = rival({ tenantId, n });
        if (before !== undefined) await commit(one, before);
        const [a, b] = await Promise.all([submit(one, first), submit(two, second)]);
        found.push({ tenantId, n, rivals: { first: a, second: b } });
      }
      return found;
    }),
  );
  for (const tenantId of tenants) {
    const { told, counted } = await sums(logs.pool, tenantId);
    if (JSON.stringify(told) !== JSON.stringify(counted))
      throw new Error(`${JSON.stringify(told)} and not ${JSON.stringify(counted)}`);
  }
  return raced.flat();
}

const wins = (found: readonly { rivals: Rivals }[], verdict: string): string =>
  `${found.filter(({ rivals }) => rivals.first[0] === verdict).length} of ${found.length} won by the first instance`;

t.test('INST-05: the same write on two instances at once gets one version, and both answers name it', async (t) => {
  const logs = await postgresLogs(t);
  const found = await race(logs, ({ tenantId, n }) => {
    const change = writeChange(writeOf({ id: itemId(n), ifVersion: 0 }), { tenantId });
    return { first: change, second: change };
  });
  const wrong = found.filter(({ rivals: { first, second }, n }) => {
    const verdicts = [first[0], second[0]].sort().join();
    return verdicts !== 'insert,same' || first[1] !== n + 1 || second[1] !== n + 1;
  });
  t.strictSame(wrong, []);
  t.comment(wins(found, 'insert'));
  t.strictSame(logs.faults, []);
});

t.test('INST-06: of two writes of one id with the same ts one wins, the other is a conflict', async (t) => {
  const logs = await postgresLogs(t);
  const found = await race(logs, ({ tenantId, n }) => {
    // New items and, every other time, a replace.
    const before = n % 2 === 0 ? undefined : writeChange(writeOf({ id: itemId(n), ts: TS - 1 }), { tenantId });
    const first = writeChange(writeOf({ id: itemId(n), text: 'first' }), { tenantId });
    const second = writeChange(writeOf({ id: itemId(n), text: 'second' }), { tenantId });
    return { ...(before ? { before } : {}), first, second };
  });
  const wrong = found.filter(({ rivals: { first, second }, n }) => {
    const [won, lost] = first[0] === 'conflict' ? [second, first] : [first, second];
    return won[0] !== (n % 2 === 0 ? 'insert' : 'replace') || lost[0] !== 'conflict' || won[1] !== lost[1];
  });
  t.strictSame(wrong, []);
  t.comment(wins(found, 'insert'));
});

t.test('INST-07: a write and a delete: deleted in the end, never live after its delete', async (t) => {
  const logs = await postgresLogs(t);
  const found = await race(logs, ({ tenantId, n }) => ({
    before: writeChange(writeOf({ id: itemId(n) }), { tenantId }),
    first: writeChange(writeOf({ id: itemId(n), text: 'two', ts: TS + 1 }), { tenantId }),
    second: deleteChange(itemId(n), null, { tenantId }),
  }));
  const wrong = found.filter(({ rivals: { first, second } }) => {
    if (second[0] !== 'delete') return true;
    return first[0] === 'replace' ? Number(first[1]) > Number(second[1]) : first[0] !== 'conflict';
  });
  t.strictSame(wrong, []);
  for (const tenantId of new Set(found.map((one) => one.tenantId))) {
    const rows = await allRows(logs.log, tenantId);
    t.strictSame([rows.length, rows.every(({ item }) => item.deletedAt !== null)], [ROUNDS, true]);
  }
  t.comment(wins(found, 'replace'));
});

t.test(
  'INST-09 INST-10 INST-12 INST-13: writers of many tenants on two instances, and readers beside them',
  async (t) => {
    const logs = await postgresLogs(t);
    const lanes = [logs.moreLanes({ lanes: 3 }), logs.moreLanes({ lanes: 2 })];
    const tenants = await Promise.all(Array.from({ length: TENANTS }, async () => logs.newTenant()));
    const each = 40;
    let writing = true;
    const read = async (): Promise<number> => {
      let reads = 0;
      for (; writing; reads++) {
        const tenantId = tenants[reads % tenants.length] ?? '';
        const { rows, summary } = await logs.log.page({ tenantId, since: 0, limit: 1_000 });
        const seen = rows.map(({ item }) => item.version);
        // Nothing is replaced here: whoever sees N sees every version up to N.
        if (seen.length !== summary.version || seen.some((version, n) => version !== n + 1))
          throw new Error(`${seen.join()} of ${summary.version}`);
      }
      return reads;
    };
    const reading = Promise.all([read(), read()]);
    const write = async (tenantId: string, n: number): Promise<number | null> => {
      await aLittle();
      const change = writeChange(writeOf({ id: itemId(n), text: `${n}` }), { tenantId });
      const { outcome } = await commit(lanes[n % 2] ?? logs.lanes, change);
      return outcome.version;
    };
    const all = await Promise.all(
      tenants.map(async (tenantId) => Promise.all(Array.from({ length: each }, async (_, n) => write(tenantId, n)))),
    );
    writing = false;
    const reads = await reading;
    const gapless = Array.from({ length: each }, (_, n) => n + 1);
    for (const versions of all)
      t.strictSame(
        versions.sort((a, b) => Number(a) - Number(b)),
        gapless,
      );
    t.comment(`${reads.join(' and ')} pages were read meanwhile`);
    t.strictSame(logs.faults, [], 'no deadlock, no failure');
  },
);

t.test('INST-08 INST-11: no item committed after a join lacks the new device key', async (t) => {
  const logs = await postgresLogs(t);
  const pair = instances(logs, { count: 2, clock: systemClock, post: (deliver) => void setImmediate(deliver) });
  const joins = 12;
  const raced = await Promise.all(
    Array.from({ length: 8 }, async () => {
      const tenantId = await tenantWith(logs, 1);
      const actors = await Promise.all(pair.map(async ({ actor }) => actor(tenantId)));
      const joinedAt = new Map([[deviceId(1), 0]]);
      let known = 1;
      let refused = 0;
      const write = async (n: number): Promise<void> => {
        for (;;) {
          // As many keys as this client knows of: now and then one too few, or one that its server has not heard of.
          const devices = Array.from({ length: known }, (_, at) => deviceId(at + 1));
          const asked = actors[n % 2]?.write(writeOf({ id: itemId(n), inline: inline(`${n}`, devices) }), deviceId(1));
          const error = await asked?.then(
            () => undefined,
            (reason: unknown) => reason as ServiceError,
          );
          if (error === undefined) return;
          if (error.error !== 'validation' && error.error !== 'unavailable') throw error;
          refused++;
          await aLittle();
        }
      };
      const writing = async (from: number): Promise<void> => {
        for (let n = from; known <= joins; n += 2) await write(n);
      };
      const joining = async (): Promise<void> => {
        for (let n = 2; n <= joins + 1; n++) {
          await aLittle();
          joinedAt.set(deviceId(n), await addDevice(logs, tenantId, n));
          const changed = pair[n % 2]?.registry.changed(tenantId);
          await aLittle();
          known = n;
          await changed;
        }
      };
      await Promise.all([writing(1), writing(2), joining()]);
      return { rows: await allRows(logs.log, tenantId), joinedAt, refused };
    }),
  );
  let [late, refusals] = [0, 0];
  for (const { rows, joinedAt, refused } of raced) {
    refusals += refused;
    for (const { item } of rows) {
      if (item.deletedAt !== null) continue;
      const missing = [...joinedAt].filter(
        ([device, head]) => item.version > head && item.inline?.keys.has(device) !== true,
      );
      t.strictSame(missing, []);
      late += [...joinedAt.values()].filter((head) => item.version > head).length;
    }
  }
  t.ok(late > 0 && refusals > 0, `${refusals} writes were refused until they had the key`);
  t.strictSame(logs.faults, []);
});

/** A network that loses a third of all hints, doubles a third and delivers them in any order. */
const spoiled: Post = (deliver) => {
  const copies = Math.floor(Math.random() * 3);
  for (let n = 0; n < copies; n++) void turns(Math.floor(Math.random() * 40)).then(deliver);
};

for (const [name, post] of [
  ['a network that spoils hints', spoiled],
  ['a network that loses all hints', () => undefined],
] as const) {
  t.test(`INST-01 INST-02 INST-04 INST-18: two instances and ${name}`, async (t) => {
    const logs = await postgresLogs(t);
    const clock = new TestClock();
    const pair = instances(logs, { count: 2, clock, post });
    const tenantId = await tenantWith(logs, 3);
    const actors = await Promise.all(pair.map(async ({ actor }) => actor(tenantId)));
    const ears = (
      await Promise.all(actors.map(async (actor) => Promise.all([1, 2, 3].map(async (n) => listen(actor, n)))))
    ).flat();
    const devices = [1, 2, 3].map((n) => deviceId(n));
    const writes = 300;
    const owner = new Map<number, string>();
    const write = async (n: number): Promise<void> => {
      await turns(n % 60);
      const by = deviceId(1 + (n % 2));
      const stored: Acknowledged | undefined = await actors[n % 2]?.write(
        writeOf({ id: itemId(n), inline: inline(`${n}`, devices) }),
        by,
      );
      owner.set(stored?.version ?? 0, by);
    };
    await Promise.all(Array.from({ length: writes }, async (_, n) => write(n)));
    for (const { registry } of pair) {
      registry.start();
      t.teardown(() => registry.stop());
    }
    clock.advance(5_000);
    for (const one of ears) {
      const owed = [...owner]
        .filter(([, by]) => by !== one.deviceId)
        .map(([version]) => version)
        .sort((a, b) => a - b);
      await one.until(() => one.versions.length >= owed.length);
      t.strictSame(one.versions, owed, 'each of the others once, in order');
    }
    t.strictSame(logs.faults, []);
  });
}

t.test('INST-16: an instance that stands still holds no lock', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await logs.newTenant();
  let client: pg.Client | undefined;
  const still = logs.moreLanes({ lanes: 1, connect: async (onLost) => (client = await openLane(logs.url, onLost)) });
  await commit(still, writeChange(writeOf({ id: itemId(1) }), { tenantId }));
  const { stream } = (client as unknown as { connection: { stream: { pause(): void; resume(): void } } }).connection;
  stream.pause();
  const stuck = commit(still, writeChange(writeOf({ id: itemId(2) }), { tenantId }));
  const versions = new Set<number | null>();
  for (let n = 3; n < 40; n++) {
    const { outcome } = await commit(logs.lanes, writeChange(writeOf({ id: itemId(n) }), { tenantId }));
    versions.add(outcome.version);
  }
  t.equal(versions.size, 37);
  stream.resume();
  const { outcome } = await stuck;
  t.equal(outcome.verdict, 'insert');
  t.notOk(versions.has(outcome.version));
});

t.test('INST-17: losing a tenant actor loses no change and no order', async (t) => {
  const logs = await postgresLogs(t);
  const [instance] = instances(logs, { count: 1, clock: systemClock, post: () => undefined });
  if (instance === undefined) throw new Error('no instance');
  const tenantId = await tenantWith(logs, 2);
  const devices = [deviceId(1), deviceId(2)];
  const heard: number[] = [];
  let ears: Ears = await listen(await instance.actor(tenantId), 2);
  let asked: Promise<Acknowledged>[] = [];
  for (let round = 0; round < 10; round++) {
    const actor = await instance.actor(tenantId);
    const writes = Array.from({ length: 8 }, async (_, n) =>
      actor.write(writeOf({ id: itemId(round * 8 + n), inline: inline(`${n}`, devices) }), deviceId(1)),
    );
    asked = [...asked, ...writes];
    await turns(round);
    // The history is said to be another: every actor is dropped, with its changes under way.
    instance.registry.restart();
    t.equal(ears.closedWith, 1012);
    heard.push(...ears.versions);
    ears = await listen(await instance.actor(tenantId), 2, heard.at(-1) ?? 0);
  }
  const versions = (await Promise.all(asked)).map(({ version }) => version);
  await instance.registry.compareHeads();
  await ears.until(() => heard.length + ears.versions.length >= 80);
  const all = Array.from({ length: 80 }, (_, n) => n + 1);
  t.strictSame([...heard, ...ears.versions], all, 'the socket of the device, over ten connections');
  t.strictSame(
    versions.sort((a, b) => a - b),
    all,
    'every write was answered',
  );
  t.strictSame(logs.faults, []);
});
