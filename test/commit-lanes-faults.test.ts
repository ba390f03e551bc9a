/**
 * A database that answers falsely, sinks that throw, and failures after a change is stored: the commit lanes answer every
 * change all the same, and one that is stored as done.
 */
import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import type pg from 'pg';
import t from 'tap';
import { PostgresCommitLanes } from '../src/server/storage/commit/lanes.js';
import type { Change, CommitSink } from '../src/server/tenant/change.js';
import { signRecovery } from '../src/crypto/recovery.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { parametersOf } from './support/bind.js';
import { deleteChange, itemId, writeChange, writeOf } from './support/changes.js';
import { claim, edited, mustWrite, newItem, write } from './support/devices.js';
import { soon, until } from './support/events.js';
import { inLongRun } from './support/long.js';
import { runServer } from './support/server.js';
import {
  base64,
  bootstrapBody,
  joinBody,
  newCode,
  newDevice,
  newWorld,
  outcomes,
  valueOf,
  wrapBody,
  type World,
} from './support/accounts.js';
import { stays } from './support/pairing.js';

type Row = unknown[];
type Rows = Row[];
const LIES: Readonly<Record<string, (rows: Rows) => unknown>> = {
  short: (rows) => rows.slice(1),
  long: (rows) => [...rows, ...rows],
  none: () => [],
  null: () => null,
  undefined: () => undefined,
  text: () => 'rows',
  doubled: (rows) => rows.map(() => rows[0]),
  'of another batch': (rows) => rows.map(([n, ...row]) => [Number(n) + 1, ...row]),
  nulls: (rows) => rows.map((row) => row.map(() => null)),
  empty: (rows) => rows.map(() => []),
  holes: (rows) => rows.map((row, at) => (at === 0 ? null : row)),
  strings: (rows) => rows.map((row) => row.map(String)),
  fractions: (rows) => rows.map(([n, verdict, ...row]) => [n, verdict, ...row.map(() => 0.5)]),
  verdict: (rows) => rows.map(([n, , ...row]) => [n, 'perhaps', ...row]),
  'no version': (rows) => rows.map(([n, verdict, , ...row]) => [n, verdict, null, ...row]),
  alone: (rows) => rows.map(([n, , ...row]) => [n, 'alone', ...row]),
  garbage: (rows) => rows.map((row) => [...row.slice(0, 8), Buffer.from([0, 0, 0])]),
};
const FAILURES: Readonly<Record<string, () => Error>> = {
  lost: () => new Error('Connection terminated unexpectedly'),
  deadlock: () => Object.assign(new Error('deadlock'), { code: '40P01' }),
  refused: () => Object.assign(new Error('constraint'), { code: '23514' }),
  'fails over': () => new Error('Connection terminated unexpectedly'),
};
const ANSWERS = ['honest', 'honest', 'throws', ...Object.keys(LIES), ...Object.keys(FAILURES)] as const;

const listOf = (given: unknown): string[] => (given as unknown[]).map(String);

/** Stores what it is given, and answers as `plan` says. */
class LyingDatabase {
  private readonly items = new Map<string, number>();
  private readonly heads = new Map<string, number>();
  /** The next answers; honest when the list is empty. */
  plan: string[] = [];
  epoch = 'first';
  /** The items of each call, and the epoch in which it came. */
  readonly called: { readonly epoch: string; readonly ids: readonly string[] }[] = [];

  readonly client = {
    end: () => Promise.resolve(),
    connection: { stream: { destroy: () => undefined } },
    query: (given: pg.Query | string) => this.query(given),
  } as unknown as pg.Client;

  private query(given: pg.Query | string): unknown {
    if (typeof given === 'string') return Promise.resolve({ rows: [] });
    const answer = this.plan.shift() ?? 'honest';
    const { name, values } = parametersOf(given);
    this.called.push({ epoch: this.epoch, ids: listOf(values[name === 'insert' ? 7 : 6]) });
    if (answer === 'fails over') this.epoch = 'second';
    const rows = name === 'insert' ? this.insert(values) : this.commit(values);
    if (answer === 'throws') throw new Error('at once');
    const failure = FAILURES[answer]?.() ?? null;
    const result = failure === null ? { rows: answer === 'honest' ? rows : LIES[answer]?.(rows) } : undefined;
    const { callback } = given as unknown as { callback: (error: Error | null, result: unknown) => void };
    setImmediate(() => callback(failure, result));
    return undefined;
  }

  private store(tenant: string, id: string): readonly ['insert' | 'same', number] {
    const key = `${tenant} ${id}`;
    const known = this.items.get(key);
    if (known !== undefined) return ['same', known];
    const version = (this.heads.get(tenant) ?? 0) + 1;
    this.heads.set(tenant, version);
    this.items.set(key, version);
    return ['insert', version];
  }

  private insert(values: readonly unknown[]): Rows {
    const tenants = listOf(values[1]);
    const ids = listOf(values[7]);
    const owners = listOf(values[5]).map((n) => tenants[Number(n) - 1] ?? '');
    const known = new Set(owners.filter((tenant, at) => this.items.has(`${tenant} ${ids[at]}`)));
    for (const [at, tenant] of owners.entries()) if (!known.has(tenant)) this.store(tenant, ids[at] ?? '');
    const heads = tenants.map((tenant) => (known.has(tenant) ? null : (this.heads.get(tenant) ?? 0)));
    return [[heads, heads, heads]];
  }

  private commit(values: readonly unknown[]): Rows {
    const tenants = listOf(values[0]);
    const ids = listOf(values[6]);
    return listOf(values[3]).map((n, at) => {
      const tenant = tenants[Number(n) - 1] ?? '';
      const [verdict, version] = this.store(tenant, ids[at] ?? '');
      return [at + 1, verdict, version, null, this.heads.get(tenant), 1, 1, 1, null];
    });
  }

  versionOf({ tenantId, id }: Change): number | undefined {
    return this.items.get(`${tenantId} ${id}`);
  }
}

function lanesOn(database: LyingDatabase): PostgresCommitLanes {
  let now = 0;
  return new PostgresCommitLanes({
    connect: () => Promise.resolve(database.client),
    prepares: true,
    lanes: 2,
    spareCores: true,
    storageCap: 0,
    history: database,
    // Each reading of the clock is a minute after the last: no change is refused because of an earlier outage.
    clock: { now: () => (now += 60_000) },
    wait: () => Promise.resolve(),
    onFault: () => undefined,
  });
}

/** Counts the answers to each change, and may throw after them. */
class Sink implements CommitSink {
  readonly answers = new Map<Change, number>();
  readonly outcomes = new Map<Change, number>();

  constructor(private readonly throws: 'never' | 'committed' | 'always') {}

  committed(changes: readonly Change[]): void {
    for (const change of changes) this.outcomes.set(change, change.version);
    this.told(changes);
    if (this.throws !== 'never') throw new Error('broken sink');
  }

  failed(changes: readonly Change[]): void {
    this.told(changes);
    if (this.throws === 'always') throw new Error('broken sink');
  }

  settled(): void {
    // Answers are counted in `told`.
  }

  private told(changes: readonly Change[]): void {
    for (const change of changes) this.answers.set(change, (this.answers.get(change) ?? 0) + 1);
  }
}

const TENANTS = [1, 2, 3].map((n) => `A${n}`.padStart(26, '0'));
const CHANGE = fc.record({
  tenant: fc.integer({ min: 0, max: 2 }),
  item: fc.integer({ min: 1, max: 5 }),
  deletes: fc.boolean(),
  turn: fc.boolean(),
});

t.test('DUR-11: whatever the database answers, and whatever a sink throws, every change is answered', async (t) => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(CHANGE, { minLength: 1, maxLength: 20 }),
      fc.array(fc.constantFrom(...ANSWERS), { maxLength: 12 }),
      fc.array(fc.constantFrom('never' as const, 'never' as const, 'committed' as const, 'always' as const), {
        minLength: 3,
        maxLength: 3,
      }),
      async (given, plan, throwing) => {
        const database = new LyingDatabase();
        database.plan = [...plan];
        const lanes = lanesOn(database);
        const sinks = throwing.map((throws) => new Sink(throws));
        const all: { readonly change: Change; readonly sink: Sink; readonly exactly: boolean }[] = [];
        for (const { tenant, item, deletes, turn } of given) {
          const tenantId = TENANTS[tenant] ?? '';
          const sink = sinks[tenant] ?? new Sink('never');
          const change = deletes
            ? deleteChange(itemId(item), null, { tenantId })
            : writeChange(writeOf({ id: itemId(item) }), { tenantId });
          lanes.submit(change, sink);
          all.push({ change, sink, exactly: throwing[tenant] === 'never' });
          if (turn) await new Promise((resolve) => setImmediate(resolve));
        }
        await soon(lanes.close(), 'the end of all batches');
        const unanswered = all.filter(({ change, sink }) => !sink.answers.has(change));
        const twice = all.filter(({ change, sink, exactly }) => exactly && sink.answers.get(change) !== 1);
        const untrue = all.filter(({ change, sink }) => {
          const outcome = sink.outcomes.get(change);
          return outcome !== undefined && outcome !== database.versionOf(change);
        });
        return [unanswered.length, twice.length, untrue.length, lanes.waiting].every((count) => count === 0);
      },
    ),
    { numRuns: inLongRun(400, 1_500) },
  );
  t.pass('every change was answered, and with the version that is stored');
});

// `doubled` gives the right row where there is a single one.
for (const lie of [...Object.keys(LIES).filter((name) => name !== 'doubled'), 'throws']) {
  t.test(`DUR-11: a write whose outcome is unknown is found when it is sent again: ${lie}`, async (t) => {
    const database = new LyingDatabase();
    const lanes = lanesOn(database);
    const tenantId = TENANTS[0] ?? '';
    const changes = [1, 2, 3].map((n) => writeChange(writeOf({ id: itemId(n) }), { tenantId }));
    // Every answer is this lie: to inserts and to decisions, all together and one by one.
    database.plan = Array<string>(16).fill(lie);
    const sink = new Sink('never');
    for (const change of changes) lanes.submit(change, sink);
    await until('three answers', () => lanes.waiting === 0 && sink.answers.size === 3);
    t.same([sink.answers.size, sink.outcomes.size], [3, 0], 'the outcome of each is reported as unknown');
    database.plan = [];
    for (const change of changes) lanes.submit(change, sink);
    await lanes.close();
    t.same(
      changes.map((change) => sink.outcomes.get(change)),
      [1, 2, 3],
    );
  });
}

t.test('EPOCH-09: no change is committed in another history than that in which it was accepted', async (t) => {
  const [tenantId = '', another = ''] = TENANTS;
  // Two are inserted, and the delete is decided by a second call.
  const change = (n: number): Change =>
    n === 3
      ? deleteChange(itemId(n), null, { tenantId: another })
      : writeChange(writeOf({ id: itemId(n) }), { tenantId });
  // The history ends during the first call, during the second, or while the changes wait for the first.
  for (const plan of [['fails over'], ['honest', 'fails over'], []]) {
    const database = new LyingDatabase();
    const lanes = lanesOn(database);
    const sink = new Sink('never');
    const former = [1, 2, 3].map(change);
    database.plan = [...plan];
    for (const one of former) lanes.submit(one, sink);
    if (plan.length === 0) database.epoch = 'second';
    await until('the answers', () => sink.answers.size === 3);
    database.epoch = 'second';
    const later = change(4);
    lanes.submit(later, sink);
    await lanes.close();
    t.same([...sink.answers.values()], [1, 1, 1, 1]);
    t.equal(sink.outcomes.get(later), database.versionOf(later), 'those of the new one are');
    const second = database.called.filter(({ epoch }) => epoch === 'second');
    t.same(
      second.map(({ ids }) => ids),
      [[later.id]],
    );
  }
});

t.test(
  'DUR-11: over HTTP a write that the database does not answer is 503, and 200 when it is sent again',
  async (t) => {
    const { wire, sql } = await runServer(t);
    const device = await claim(wire);
    const [known, fresh] = [newItem([device.id]), newItem([device.id])];
    /** Replaces a function of the commit by one that does the same work and answers something else. */
    const replace = async (name: string, answer: string): Promise<void> => {
      const [found] = await sql(
        'SELECT pg_get_function_arguments($1::regproc) AS args, pg_get_function_result($1::regproc) AS result, pronargs AS count FROM pg_proc WHERE oid = $1::regproc',
        [name],
      );
      const args = Array.from({ length: Number(found?.['count']) }, (_, at) => `$${at + 1}`).join(', ');
      const names = String(found?.['args']);
      await sql(`ALTER FUNCTION ${name} RENAME TO honest_${name}`);
      const returns = names.includes('OUT ') ? '' : `RETURNS ${String(found?.['result'])}`;
      const body = answer.replace('HONEST', `honest_${name}(${args})`);
      await sql(`CREATE FUNCTION ${name}(${names}) ${returns} LANGUAGE sql AS $$ ${body} $$`);
    };
    await replace('insert_changes', "SELECT '{}'::bigint[], '{}'::bigint[], '{}'::bigint[] FROM HONEST");
    const first = await write(wire, device, known);
    t.equal(first.outcome, '200', 'an insert that returned nothing is decided, and found stored');
    t.equal(first.at('version'), 1);
    await replace('commit_changes', 'SELECT * FROM HONEST WHERE n > 1');
    // The lane's connection still has the previous function; a new connection finds the new one.
    await sql(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'service-commit' AND datname = current_database()",
    );
    const change = edited(known, { ts: known.ts + 1 });
    const replies = await Promise.all([write(wire, device, change), write(wire, device, fresh)]);
    for (const reply of replies) t.equal(reply.outcome, '503 unavailable');
    await sql('DROP FUNCTION commit_changes');
    await sql('ALTER FUNCTION honest_commit_changes RENAME TO commit_changes');
    await sql(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'service-commit' AND datname = current_database()",
    );
    const again = [await mustWrite(wire, device, change), await mustWrite(wire, device, fresh)];
    t.same(
      again.toSorted((one, other) => one - other),
      [2, 3],
    );
  },
);

/** A world whose first instance cannot read a tenant anew after a change. */
async function unreadable(t: Parameters<typeof newWorld>[0]): Promise<World> {
  const world = await newWorld(t);
  world.a.unreadable = new Error('the database went away after the commit');
  return world;
}

t.test('ERR-16 BOOT-01 BOOT-07: a claim and a restart are answered as done though the reload fails', async (t) => {
  const world = await unreadable(t);
  const { a, tenantId, clock } = world;
  const device = newDevice();
  const { token } = await a.bootstrap.claim(tenantId, bootstrapBody(device));
  t.ok(await a.admits(tenantId, token, clock.now()));
  t.same(a.faults, [a.unreadable]);
  t.same(await a.bootstrap.restart(tenantId), { ok: true });
  t.equal(a.faults.length, 2);
});

t.test('ERR-16 DEV-04 DEV-05 BIN-04 BIN-05 BIN-12: changes are answered as done though the reload fails', async (t) => {
  const { a, tenantId } = await unreadable(t);
  const device = newDevice();
  await a.bootstrap.claim(tenantId, bootstrapBody(device));
  const other = newDevice();
  await a.pool.query("SELECT add_device($1, $2, 'Other', 'phone', $3, NULL, 100, 1)", [
    tenantId,
    other.id,
    other.publicKey,
  ]);
  a.faults.length = 0;
  t.equal((await a.devices.patch(tenantId, device.id, { name: 'Desk' })).device.name, 'Desk');
  t.type((await a.devices.revoke(tenantId, other.id)).device.revokedAt, 'number');
  t.match((await a.bins.create(tenantId, { id: 'work' })).bin, { id: 'work', itemCount: 0 });
  t.match((await a.bins.patch(tenantId, 'work', { slug: 'w' })).bin, { id: 'work', slug: 'w' });
  t.same(await a.bins.remove(tenantId, 'work', {}), { ok: true });
  t.equal(a.faults.length, 5, 'each failure is reported as a fault');
});

t.test('ERR-16: the answer shows what was stored, without another query', async (t) => {
  const { a, tenantId } = await newWorld(t);
  const device = newDevice();
  await a.bootstrap.claim(tenantId, bootstrapBody(device));
  let away = false;
  const query = a.pool.query.bind(a.pool) as (...args: unknown[]) => unknown;
  const gone = (): Promise<never> => Promise.reject(Object.assign(new Error('gone'), { code: 'ECONNRESET' }));
  Object.assign(a.pool, { query: (...args: unknown[]) => (away ? gone() : query(...args)) });
  a.onChanged = () => {
    away = true;
  };
  const back = async <T>(call: Promise<T>): Promise<T> => {
    const [answer] = await Promise.allSettled([call]);
    away = false;
    if (answer.status === 'rejected') throw answer.reason;
    return answer.value;
  };
  t.match((await back(a.bins.create(tenantId, { id: 'work' }))).bin, { id: 'work', slug: 'work', itemCount: 0 });
  t.match((await back(a.bins.patch(tenantId, 'work', { slug: 'w' }))).bin, { slug: 'w', itemCount: 0 });
  t.match((await back(a.devices.patch(tenantId, device.id, { name: 'Desk' }))).device, { name: 'Desk' });
});

t.test('ERR-16 PAIR-08: every call of a pairing is answered as done though the reload fails', async (t) => {
  const { a, tenantId } = await unreadable(t);
  const first = newDevice();
  await a.bootstrap.claim(tenantId, bootstrapBody(first));
  const code = newCode();
  await a.pairing.init(tenantId, first.id, { code, epk: base64(newDevice().publicKey) });
  const joining = a.pairing.fetchNpk(tenantId, joinBody(code, newDevice()), stays());
  await until('the request', async () => (await a.pairing.requests(tenantId, first.id)).requests.length > 0);
  t.same(await a.pairing.wrap(tenantId, first.id, wrapBody(code)), { ok: true });
  t.match(await joining, { token: String });
  t.equal(a.faults.length, 4, 'faults of the claim, pair-init, the request to join and pair-wrap');
});

t.test('ERR-16 RECOV-02: a recovery is answered as done though the reload fails', async (t) => {
  const { a, tenantId } = await unreadable(t);
  const keys = nodeSodium.signKeyPair(randomBytes(32));
  await a.bootstrap.claim(tenantId, bootstrapBody(newDevice(), { recoveryPubkey: base64(keys.publicKey) }));
  const { challengeId, challenge } = await a.recovery.challenge(tenantId);
  const device = newDevice();
  const deviceCert = randomBytes(32);
  const claim = {
    ...{ host: 'sync.example', tenantId, challengeId, challenge, deviceCert },
    ...{ deviceId: device.id, publicKey: device.publicKey },
  };
  const body = {
    ...{ challengeId, deviceId: device.id, host: claim.host, name: 'Back', glyph: 'globe' as const },
    pubkey: base64(device.publicKey),
    deviceCert: base64(deviceCert),
    signature: base64(signRecovery(nodeSodium, keys, claim)),
  };
  t.same(await outcomes([a.recovery.recover(tenantId, body)]), ['ok']);
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices'), 2);
});
