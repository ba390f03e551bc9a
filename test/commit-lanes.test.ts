/** Group commit: what waits together, what fails, and what is repeated (src/server/storage/commit/lanes.ts). */
import t, { type Test } from 'tap';
import type pg from 'pg';
import { callBinary, INSERT, Parameters as CallParameters, putInsert } from '../src/server/storage/commit/batch.js';
import type { PostgresCommitLanes } from '../src/server/storage/commit/lanes.js';
import type { Change } from '../src/server/tenant/change.js';
import type { CommitLanes } from '../src/server/tenant/ports.js';
import {
  blob,
  blobRef,
  deleteChange,
  deviceId,
  inline,
  itemId,
  moveChange,
  OTHER_BIN,
  sig,
  TS,
  writeChange,
  refusal,
  writeOf,
} from './support/changes.js';
import { until } from './support/events.js';
import { allRows, commit, memoryLogs, openLane, postgresLogs, sums, type LogUnderTest } from './support/logs.js';

type Write = Parameters<typeof writeOf>[0];
const write = (tenantId: string, given: Write = {}): Change => writeChange(writeOf(given), { tenantId });
const numbered = (tenantId: string, n: number, given: Write = {}): Change =>
  write(tenantId, { id: itemId(n), text: `${n}`, ...given });
/** Verdicts and versions of changes that are submitted in one turn and so wait together. */
const together = async (
  lanes: CommitLanes,
  changes: readonly Change[],
): Promise<(readonly [string, number | null])[]> =>
  (await Promise.all(changes.map(async (change) => commit(lanes, change)))).map(
    ({ outcome }) => [outcome.verdict, outcome.version === 0 ? null : outcome.version] as const,
  );

/** How long a batch waits for a lock, however slow the machine is. */
const lockTimeout = (pool: pg.Pool, time: string): Promise<unknown> =>
  pool.query(
    ['insert_changes', 'commit_changes'].map((name) => `ALTER FUNCTION ${name} SET lock_timeout = '${time}'`).join(';'),
  );

const BOTH = [
  ['the log in memory', (_t: Test, cap?: number): Promise<LogUnderTest> => Promise.resolve(memoryLogs(cap))],
  ['PostgreSQL', (t: Test, cap?: number): Promise<LogUnderTest> => postgresLogs(t, cap)],
] as const;

for (const [name, open] of BOTH) {
  t.test(`INST-14: changes of one item that wait together are decided one after the other: ${name}`, async (t) => {
    const { lanes, log, newTenant }: LogUnderTest = await open(t);
    const tenantId = await newTenant();
    const changes = [
      write(tenantId),
      write(tenantId, { text: 'two' }),
      write(tenantId),
      numbered(tenantId, 2),
      write(tenantId, { text: 'three', ts: TS + 1 }),
      deleteChange(itemId(1), null, { tenantId }),
      deleteChange(itemId(2), null, { tenantId }),
      write(tenantId, { text: 'four', ts: TS + 2 }),
    ];
    const verdicts = (await together(lanes, changes)).map(([verdict]) => verdict);
    t.strictSame(verdicts, ['insert', 'conflict', 'same', 'insert', 'replace', 'delete', 'delete', 'conflict']);
    t.strictSame(
      (await allRows(log, tenantId)).map(({ deletedAt }) => deletedAt !== null),
      [true, true],
    );
  });

  t.test(`ITEM-19: of two items that name one new blob at once only one gets it: ${name}`, async (t) => {
    const { lanes, newTenant, putBlob, blob: blobOf }: LogUnderTest = await open(t);
    const tenantId = await newTenant();
    await putBlob(tenantId, blobRef(1), { state: 'ready', itemId: null });
    const named = { inline: null, blob: blob(blobRef(1)) };
    t.strictSame(await together(lanes, [numbered(tenantId, 1, named), numbered(tenantId, 2, named)]), [
      ['insert', 1],
      ['no_blob', null],
    ]);
    t.strictSame(await blobOf(tenantId, blobRef(1)), { state: 'ready', itemId: itemId(1) });
  });

  t.test(
    `INST-14: a change that waits for another item's blob is not overtaken by the next of its item: ${name}`,
    async (t) => {
      const { lanes, log, newTenant, putBlob }: LogUnderTest = await open(t);
      const tenantId = await newTenant();
      await putBlob(tenantId, blobRef(1), { state: 'ready', itemId: null });
      const named = { inline: null, blob: blob(blobRef(1)) };
      await commit(lanes, numbered(tenantId, 2, named));
      const verdicts = await together(lanes, [
        numbered(tenantId, 1, named),
        numbered(tenantId, 2, { ...named, ts: TS + 1 }),
        numbered(tenantId, 2, { ts: TS + 2 }),
      ]);
      t.strictSame(verdicts, [
        ['no_blob', null],
        ['replace', 2],
        ['replace', 3],
      ]);
      t.strictSame(
        (await allRows(log, tenantId)).map(({ version, ts }) => [version, ts]),
        [[3, TS + 2]],
      );
    },
  );

  t.test(`ITEM-39 ITEM-40: a write beyond the cap is refused, and a delete frees its bytes: ${name}`, async (t) => {
    // A write of 100 bytes of ciphertext and one key of 28 + 80.
    const size = 208;
    const { lanes, newTenant, storageBytes }: LogUnderTest = await open(t, 3 * size);
    const tenantId = await newTenant();
    const of = (n: number, more: Write = {}): Change =>
      numbered(tenantId, n, { inline: inline(`${n}`, [deviceId(1)], 100), ...more });
    t.strictSame(
      await together(lanes, [of(1), of(2), of(3)]),
      [
        ['insert', 1],
        ['insert', 2],
        ['insert', 3],
      ],
      'exactly full',
    );
    t.equal(await storageBytes(tenantId), 3 * size);
    t.strictSame(await together(lanes, [of(4)]), [['cap', null]]);
    t.strictSame(await together(lanes, [of(1)]), [['same', 1]], 'RETRY-11: the same write again');
    t.strictSame(
      await together(lanes, [of(1, { inline: inline('less', [deviceId(1)], 99), ts: TS + 1 })]),
      [['replace', 4]],
      'a replace that shrinks the item is accepted',
    );
    t.strictSame(await together(lanes, [of(1, { inline: inline('more', [deviceId(1)], 102), ts: TS + 2 })]), [
      ['cap', 4],
    ]);
    t.strictSame(await together(lanes, [deleteChange(itemId(2), null, { tenantId })]), [['delete', 5]]);
    t.equal(await storageBytes(tenantId), 2 * size - 1, 'freed at once');
    t.strictSame(await together(lanes, [of(4)]), [['insert', 6]]);
  });

  t.test(`ITEM-39: of writes that only together exceed the cap, as many as fit are stored: ${name}`, async (t) => {
    const { lanes, newTenant, storageBytes }: LogUnderTest = await open(t, 3 * 208);
    const [tenantId, other] = [await newTenant(), await newTenant()];
    const of = (n: number): Change => numbered(tenantId, n, { inline: inline(`${n}`, [deviceId(1)], 100) });
    const gone = deleteChange(itemId(1), null, { tenantId });
    const verdicts = await together(lanes, [of(1), of(2), gone, of(3), of(4), numbered(other, 1), of(5)]);
    const inserted = verdicts.filter(([verdict]) => verdict === 'insert');
    t.strictSame(verdicts[2]?.[0], 'delete', 'the delete is decided after the insert before it');
    t.equal(inserted.length, 5, "one is freed again, so four of five are stored, and the other tenant's");
    t.strictSame(verdicts.map(([verdict]) => verdict).filter((verdict) => verdict === 'cap').length, 1);
    t.equal(await storageBytes(tenantId), 3 * 208);
  });
}

for (const [name, open] of BOTH) {
  t.test(`ITEM-39 INST-11: each tenant of a batch is judged by itself: ${name}`, async (t) => {
    const { lanes, log, newTenant, bump }: LogUnderTest = await open(t, 10 * 208);
    const [fresh, mixed, stale, full, last] = await Promise.all(Array.from({ length: 5 }, async () => newTenant()));
    if (!fresh || !mixed || !stale || !full || !last) throw new Error('no tenants');
    await together(lanes, [numbered(mixed, 1)]);
    await bump(stale);
    const big = { inline: inline('big', [deviceId(1)], 3_000) };
    const verdicts = await together(lanes, [
      numbered(last, 1),
      numbered(fresh, 1),
      numbered(full, 1),
      numbered(mixed, 2),
      numbered(stale, 1),
      numbered(full, 2, big),
      numbered(fresh, 2),
      numbered(mixed, 1),
    ]);
    t.strictSame(
      verdicts.map(([verdict]) => verdict),
      ['insert', 'insert', 'insert', 'insert', 'stale', 'cap', 'insert', 'same'],
    );
    for (const [tenantId, versions] of [
      [fresh, [1, 2]],
      [mixed, [1, 2]],
      [stale, []],
      [full, [1]],
      [last, [1]],
    ] as const) {
      t.strictSame(
        (await allRows(log, tenantId)).map(({ version }) => version),
        versions,
      );
    }
  });
}

t.test('INST-05: an item that another instance is storing at the same moment is recognised', async (t) => {
  const { lanes, pool, newTenant } = await postgresLogs(t);
  const [tenantId, other] = [await newTenant(), await newTenant()];
  const same = numbered(tenantId, 1);
  await lockTimeout(pool, '1min');
  const rival = await pool.connect();
  await rival.query('BEGIN');
  const parameters = new CallParameters(true);
  putInsert(parameters, [{ tenantId, generation: 1, sink: null, changes: [same] }], 0);
  await callBinary(rival, INSERT.text, parameters);
  const ours = together(lanes, [same, numbered(other, 1)]);
  const waits = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`;
  await until('ours waits', async () => (await pool.query(waits)).rowCount !== 0);
  await rival.query('COMMIT');
  rival.release();
  t.strictSame(await ours, [
    ['same', 1],
    ['insert', 1],
  ]);
  const { told, counted } = await sums(pool, tenantId);
  t.strictSame(told, counted);
});

t.test('INST-15: a bad write fails alone, whatever the batch', async (t) => {
  const { lanes, log, pool, newTenant, faults } = await postgresLogs(t);
  const [tenantId, other] = [await newTenant(), await newTenant()];
  await pool.query("ALTER TABLE items ADD CONSTRAINT no_video CHECK (type <> 'video')");
  const changes = Array.from({ length: 50 }, (_, n) =>
    numbered(n % 3 === 0 ? other : tenantId, n, n === 17 || n === 40 ? { type: 'video' } : {}),
  );
  const results = await Promise.allSettled(changes.map(async (change) => commit(lanes, change)));
  const failed = results.flatMap((result, n) => (result.status === 'rejected' ? [n] : []));
  t.strictSame(failed, [17, 40]);
  const rows = [...(await allRows(log, tenantId)), ...(await allRows(log, other))];
  t.equal(rows.length, 48);
  for (const id of [tenantId, other]) {
    const { told, counted } = await sums(pool, id);
    t.strictSame(told, counted);
    t.equal(
      (told as { head: number }).head,
      (told as { item_count: number }).item_count,
      'no version was lost with the bad ones',
    );
  }
  t.strictSame(faults, [], 'no outage: no fault is reported to the operator');
});

t.test('a sink that throws does not keep other changes from being answered', async (t) => {
  const { moreLanes, newTenant } = await postgresLogs(t);
  const [tenantId, other] = [await newTenant(), await newTenant()];
  const faults: unknown[] = [];
  const lanes = moreLanes({ lanes: 1, onFault: (error) => faults.push(error) });
  const broken = {
    committed: () => {
      throw new Error('broken sink');
    },
    failed: () => undefined,
    settled: () => undefined,
  };
  lanes.submit(numbered(tenantId, 1), broken);
  t.strictSame(await together(lanes, [numbered(other, 1), numbered(other, 2)]), [
    ['insert', 1],
    ['insert', 2],
  ]);
  t.match(faults, [{ message: 'broken sink' }]);
});

/** Lanes whose connection executes a commit and then loses the answer, as often as `lose` says. */
function forgetful(logs: Awaited<ReturnType<typeof postgresLogs>>): {
  lanes: PostgresCommitLanes;
  lose: (times: number) => void;
} {
  let losses = 0;
  const connect = async (onLost: (error: Error) => void): Promise<pg.Client> => {
    const client = await openLane(logs.url, onLost);
    const query = client.query.bind(client) as (query: unknown) => unknown;
    // A call of a commit function is a query object with a callback; everything else that runs on the lane is text.
    const losing = (asked: string | { callback: (error: unknown, result?: unknown) => void }): unknown => {
      if (typeof asked === 'string') return query(asked);
      const { callback } = asked;
      asked.callback = (error, result) => {
        if (losses-- > 0) callback(new Error('Connection terminated unexpectedly'));
        else callback(error, result);
      };
      return query(asked);
    };
    return Object.assign(client, { query: losing as unknown as pg.Client['query'] });
  };
  return {
    lanes: logs.moreLanes({ lanes: 1, connect, wait: () => Promise.resolve() }),
    lose: (times) => (losses = times),
  };
}

t.test('DUR-03 RETRY-10: a commit whose answer is lost is repeated and found done', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await logs.newTenant();
  const { lanes, lose } = forgetful(logs);
  const devices = [deviceId(1), deviceId(2)];
  const steps: readonly (readonly [Change, number])[] = [
    [write(tenantId, { ifVersion: 0 }), 1],
    [write(tenantId, { inline: inline('one', devices), ifVersion: 1 }), 2],
    [write(tenantId, { text: 'two', ts: TS + 1, ifVersion: 2 }), 3],
    [moveChange({ id: itemId(1), binId: OTHER_BIN, version: 3, sig: sig('moved') }, { tenantId }), 4],
    [deleteChange(itemId(1), sig('gone'), { tenantId }), 5],
  ];
  for (const [change, version] of steps) {
    lose(1);
    t.strictSame(await together(lanes, [change]), [['same', version]], `${change.kind} ${version}`);
  }
  lose(3);
  t.equal(
    await refusal(together(lanes, [numbered(tenantId, 2)])),
    'unavailable',
    'after three lost answers the outcome is unknown',
  );
  t.strictSame(
    await together(logs.lanes, [numbered(tenantId, 2)]),
    [['same', 6]],
    'DUR-03: sent again, the write is found',
  );
});

t.test('DUR-01: plans are discarded as the tables grow: one for empty tables would scan them whole', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await logs.newTenant();
  const made: number[] = [];
  let calls = 0;
  const connect = async (onLost: (error: Error) => void): Promise<pg.Client> => {
    const client = await openLane(logs.url, onLost);
    const query = client.query.bind(client) as (input: unknown) => unknown;
    client.query = ((input: unknown) => {
      if (input === 'DISCARD PLANS') made.push(calls);
      else calls++;
      return query(input);
    }) as typeof client.query;
    return client;
  };
  const lanes = logs.moreLanes({ lanes: 1, connect });
  for (let n = 0; n < 70; n++) await commit(lanes, numbered(tenantId, n));
  t.strictSame(made, [3, 15, 63]);
});

t.test('ERR-15: without a database every waiting change is refused, and the lane recovers', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await logs.newTenant();
  let now = 1_000;
  let down = true;
  let attempts = 0;
  const connect = async (onLost: (error: Error) => void): Promise<pg.Client> => {
    attempts++;
    if (down) throw Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });
    return openLane(logs.url, onLost);
  };
  const lanes = logs.moreLanes({
    lanes: 1,
    connect,
    clock: { now: () => now },
    wait: () => Promise.resolve(),
    onFault: () => undefined,
  });
  const waiting = Array.from({ length: 600 }, async (_, n) => commit(lanes, numbered(tenantId, n)));
  const results = await Promise.allSettled(waiting);
  t.ok(
    results.every(
      (result) => result.status === 'rejected' && (result.reason as { error?: string }).error === 'unavailable',
    ),
  );
  t.equal(attempts, 3, 'no change waits for the attempts of earlier batches');
  t.equal(await refusal(commit(lanes, numbered(tenantId, 1))), 'unavailable', 'for a moment no change is admitted');
  now += 1_000;
  t.equal(await refusal(commit(lanes, numbered(tenantId, 1))), 'unavailable');
  t.equal(attempts, 6, 'after that it is tried again');
  down = false;
  now -= 3_600_000;
  t.strictSame(
    await together(lanes, [numbered(tenantId, 1)]),
    [['insert', 1]],
    'a clock that is set back refuses nothing longer',
  );
});

t.test('DUR-05: a lane whose backend is terminated recovers', async (t) => {
  const { lanes, log, pool, newTenant } = await postgresLogs(t);
  const tenantId = await newTenant();
  const kill = async (): Promise<unknown> =>
    pool.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test lane' AND datname = current_database()",
    );
  let outcomes: readonly Change[] = [];
  for (let round = 0; round < 8; round++) {
    const changes = Array.from({ length: 40 }, (_, n) => numbered(tenantId, round * 40 + n));
    const results = Promise.all(changes.map(async (change) => commit(lanes, change)));
    await kill();
    outcomes = [...outcomes, ...(await results).map(({ outcome }) => outcome)];
  }
  const versions = outcomes.map(({ version }) => version).sort((a, b) => a - b);
  t.strictSame(
    versions,
    Array.from({ length: 320 }, (_, n) => n + 1),
    'every write is stored once',
  );
  t.equal((await allRows(log, tenantId)).length, 320);
});

t.test('a large batch is half of what is under way: PostgreSQL decides one while the other is answered', async (t) => {
  const { moreLanes, newTenant } = await postgresLogs(t);
  const tenantId = await newTenant();
  const sizes: number[] = [];
  const none = (): void => undefined;
  const meter = { committed: (changes: number) => void sizes.push(changes) };
  const lanes = moreLanes({
    lanes: 1,
    meter: { ...meter, pushed: none, read: none, notified: none, refused: none, turnedAway: none },
  });
  const expected = [
    [32, [32]],
    [60, [32, 28]],
    [100, [50, 50]],
    [200, [100, 100]],
    // The second has half of 150 that wait and 150 that are not answered yet.
    [300, [150, 150]],
    [700, [256, 256, 188]],
  ] as const;
  let made = 0;
  for (const [count, batches] of expected) {
    sizes.length = 0;
    await together(
      lanes,
      Array.from({ length: count }, () => numbered(tenantId, made++)),
    );
    t.strictSame(sizes, batches);
  }
});

t.test('FAIR-43: a write waits for a part of a batch of another tenant, however many of its writes wait', async (t) => {
  const { moreLanes, log, newTenant } = await postgresLogs(t);
  const [busy, other] = [await newTenant(), await newTenant()];
  const lanes = moreLanes({ lanes: 1 });
  let done = 0;
  const many = Array.from({ length: 3_000 }, async (_, n) => {
    const { outcome } = await commit(lanes, numbered(busy, n));
    done++;
    return outcome;
  });
  await commit(lanes, numbered(other, 1));
  t.ok(done <= 512, `after ${done} of 3,000`);
  const outcomes = await Promise.all(many);
  t.strictSame(
    outcomes.map(({ version }) => version),
    outcomes.map((_, n) => n + 1),
    'those of one tenant are committed in the order in which they arrived',
  );
  t.equal((await allRows(log, other)).length, 1);
});

/** Locks a tenant as another transaction would; `reached` resolves when a batch waits for the lock. */
async function lockElsewhere(t: Test, pool: pg.Pool, tenantId: string) {
  const holder = await pool.connect();
  t.teardown(() => holder.release());
  await holder.query('BEGIN');
  await holder.query('SELECT FROM tenants WHERE id = $1 FOR UPDATE', [tenantId]);
  const waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
  const reached = (): Promise<void> =>
    until('a batch at the lock', async () => (await pool.query(waiting)).rowCount === 1);
  return { reached, release: () => holder.query('COMMIT') };
}

for (const spareCores of [true, false]) {
  const cores = spareCores ? 'cores to spare' : 'no core to spare';
  t.test(`FAIR-43 INST-14: a tenant that is locked elsewhere keeps nobody waiting but itself: ${cores}`, async (t) => {
    const { moreLanes, log, newTenant, pool } = await postgresLogs(t);
    const locked = await newTenant();
    const others = await Promise.all(Array.from({ length: 3 }, newTenant));
    const lanes = moreLanes({ spareCores });
    await lockTimeout(pool, '1min');
    const { reached, release } = await lockElsewhere(t, pool, locked);
    const held = [commit(lanes, numbered(locked, 1))];
    await reached();
    // More than a batch: those of the others wait behind all of them.
    for (let n = 2; n <= 300; n++) held.push(commit(lanes, numbered(locked, n)));
    for (let round = 1; round <= 3; round++) {
      const outcomes = await Promise.all(others.map((tenantId) => commit(lanes, numbered(tenantId, round))));
      t.ok(outcomes.every(({ outcome }) => outcome.version === round));
    }
    t.equal(lanes.waiting, 299);
    await release();
    t.strictSame(
      (await Promise.all(held)).map(({ outcome }) => outcome.version),
      held.map((_, n) => n + 1),
    );
    t.equal((await allRows(log, locked)).length, 300);
  });
}

t.test('FAIR-43 INST-14: tenants that stay locked elsewhere fail alone, though they share a batch', async (t) => {
  const { moreLanes, newTenant, pool } = await postgresLogs(t);
  const [locked, another, other, third] = [await newTenant(), await newTenant(), await newTenant(), await newTenant()];
  const faults: unknown[] = [];
  const lanes = moreLanes({ lanes: 1, onFault: (error) => faults.push(error) });
  await commit(lanes, numbered(third, 1));
  const { rows } = await pool.query<{ settings: string }>(
    "SELECT proconfig::text AS settings FROM pg_proc WHERE proname IN ('insert_changes', 'commit_changes')",
  );
  t.equal(rows.filter(({ settings }) => settings.includes('lock_timeout=3s')).length, 2);
  await lockTimeout(pool, '100ms');
  const { release } = await lockElsewhere(t, pool, locked);
  const { release: releaseAnother } = await lockElsewhere(t, pool, another);
  // Of one only inserts, which are a call of their own.
  const held = [numbered(another, 1), numbered(locked, 1), deleteChange(itemId(1), null, { tenantId: locked })];
  const refused = Promise.all(held.map(async (change) => refusal(commit(lanes, change))));
  const changes = [numbered(other, 1), deleteChange(itemId(1), null, { tenantId: third }), numbered(other, 2)];
  t.strictSame(await together(lanes, changes), [
    ['insert', 1],
    ['delete', 2],
    ['insert', 2],
  ]);
  t.strictSame(await refused, ['unavailable', 'unavailable', 'unavailable']);
  t.match(faults, [{ code: '55P03' }, { code: '55P03' }], 'the operator is told');
  await Promise.all([release(), releaseAnother()]);
  await lockTimeout(pool, '1min');
  t.strictSame(
    await together(lanes, [numbered(locked, 2), numbered(another, 2)]),
    [
      ['insert', 1],
      ['insert', 1],
    ],
    'no write was refused meanwhile',
  );
});

t.test('a queue that is full sheds load', async (t) => {
  const { moreLanes, newTenant } = await postgresLogs(t);
  const tenantId = await newTenant();
  const lanes = moreLanes({ lanes: 1 });
  let open: (() => void) | undefined;
  const opened = new Promise<void>((resolve) => (open = resolve));
  const never = { committed: () => undefined, failed: () => undefined, settled: () => undefined };
  let admitted = 0;
  const fill = (): Promise<void> => {
    for (; admitted < 30_000; admitted++) lanes.submit(deleteChange(itemId(admitted), null, { tenantId }), never);
    return Promise.resolve();
  };
  t.equal(await refusal(Promise.resolve().then(fill)), 'unavailable');
  t.equal(admitted, 20_000);
  lanes.submit(deleteChange(itemId(0), null, { tenantId: await newTenant() }), {
    committed: () => open?.(),
    failed: () => open?.(),
    settled: () => undefined,
  });
  await opened;
});
