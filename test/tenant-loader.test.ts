/** Tenants as the actors read them, on a real database. */
import { once } from 'node:events';
import t from 'tap';
import { ulid } from 'ulid';
import { AccountStore } from '../src/server/devices/store.js';
import { Authenticator } from '../src/server/http/authenticate.js';
import { PostgresTenantLoader } from '../src/server/storage/tenant-loader.js';
import { nextTurn } from '../src/protocol/batcher.js';
import { ServiceError } from '../src/protocol/errors.js';
import { binsOf, devicesOf } from '../src/server/tenant/state.js';
import { openClient, valueOf } from '../src/server/storage/database.js';
import { takeTurns } from '../src/server/storage/query.js';
import { claimedWorld, Instance, newWorld, quickHasher, random, refusal } from './support/accounts.js';
import { deviceId } from './support/changes.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { FrameRecorder, EPOCH, instances, tenantWith } from './support/instances.js';
import { postgresLogs, type PostgresLogs } from './support/logs.js';

const loaderOf = (
  { pool, faults }: Pick<PostgresLogs, 'pool' | 'faults'>,
  clock = new TestClock(7),
): PostgresTenantLoader => new PostgresTenantLoader(pool, clock, (error) => faults.push(error));

t.test('the tenant loader reads many tenants in few statements', async (t) => {
  const world = await newWorld(t);
  const { a, tenantId } = world;
  await claimedWorld(world);
  await a.bins.create(tenantId, { id: 'meta', meta: random(4_096) });
  const others = Array.from({ length: 700 }, () => ulid());
  await a.pool.query('INSERT INTO tenants (id, created_at, head) SELECT id, 1, 3 FROM unnest($1::text[]) AS u(id)', [
    others,
  ]);
  let statements = 0;
  const query = a.pool.query.bind(a.pool) as (...args: unknown[]) => unknown;
  Object.assign(a.pool, { query: (...args: unknown[]) => (statements++, query(...args)) });
  const ids = [tenantId, ...others, ulid(), tenantId];
  const loaded = await Promise.all(ids.map((id) => a.loader.load(id)));
  t.equal(statements, 2);
  t.same(
    loaded.map((snapshot) => snapshot?.tenantId),
    [...ids.slice(0, -2), undefined, tenantId],
  );
  const reading = Promise.all(others.map((id) => a.loader.head(id)));
  world.clock.advance(79);
  await nextTurn();
  await nextTurn();
  t.equal(statements, 2, 'while many requests come in, the next read waits for more of them');
  world.clock.advance(1);
  const heads = await reading;
  t.equal(statements, 3);
  t.ok(heads.every(({ version }) => version === 3));
  const straggler = a.loader.head(ulid());
  world.clock.advance(80);
  t.equal(await refusal(straggler), 'tenant_not_found', 'after many requests the next read waits 80 ms for more');
  const [[first, second], one, other] = await Promise.all([
    Promise.all([a.loader.load(others[0] ?? ''), a.loader.load(others[1] ?? '')]),
    a.loader.head(others[0] ?? ''),
    a.loader.head(others[2] ?? ''),
  ]);
  t.equal(statements, 5, 'heads are read along with tenants');
  t.same([first?.summary.version, second?.summary.version, one.version, other.version], [3, 3, 3, 3]);
  const [snapshot] = loaded;
  t.match(snapshot, { state: 'active', pairRequests: [] });
  t.same(
    snapshot?.bins.map(({ id, open }) => [id, open]),
    [
      ['inbox', true],
      ['meta', true],
    ],
  );
  const again = await a.loader.reload(tenantId, 0);
  t.equal((again?.bins[1]?.view?.['meta'] as Uint8Array).length, 4_096);
});

t.test('ADMIT-10: in a reconnect storm a device’s request is read at once, a socket waits for others', async (t) => {
  const logs = await postgresLogs(t);
  const clock = new TestClock(7);
  const [instance] = instances(logs, { count: 1, clock, post: () => undefined });
  if (instance === undefined) throw new Error('no instance');
  const ids = await Promise.all(Array.from({ length: 22 }, () => tenantWith(logs, 1)));
  const [device = '', socket = '', ...crowd] = ids;
  const callers = new Authenticator({
    tenants: instance.registry,
    clock,
    verifyToken: () => 'bad_token',
    resolveTenant: device,
    hosting: undefined,
  });
  await Promise.all(crowd.map(async (id) => callers.actorOf(id, 'together')));
  let opened = false;
  const opening = Promise.resolve(callers.actorOf(socket, 'together')).then(() => (opened = true));
  for (let n = 0; n < 5; n++) await logs.pool.query('SELECT 1');
  t.notOk(opened, 'a read would have been answered meanwhile: the socket waits');
  t.equal((await callers.actorOf(device)).tenantId, device, 'the request does not wait');
  await opening;
  t.same(logs.faults, []);
});

t.test('a first load has the fields of devices and bins that actors keep', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await tenantWith(logs, 4);
  const loader = loaderOf(logs);
  await logs.pool.query('UPDATE devices SET token_epoch = 7');
  await logs.pool.query('UPDATE devices SET token_epoch = 3, revoked_at = 5, keys_purged = false WHERE id = $1', [
    deviceId(2),
  ]);
  await logs.pool.query('UPDATE devices SET revoked_at = 5 WHERE id = $1', [deviceId(3)]);
  for (const id of ['open', 'closed', 'gone'])
    await logs.pool.query('SELECT create_bin($1, $2, $3, $2, NULL, 1000, 7)', [tenantId, id, deviceId(1)]);
  await logs.pool.query("UPDATE bins SET closed_at = 9 WHERE id = 'closed'");
  await logs.pool.query("UPDATE bins SET closed_at = 9, deleted_at = 9 WHERE id = 'gone'");
  const first = await loader.load(tenantId);
  const known = await loader.reload(tenantId, 0);
  if (first === undefined || known === undefined) throw new Error('no such tenant');
  t.same(first.devices, [
    { id: deviceId(1), tokenEpoch: 7, revoked: false, keysPurged: true },
    { id: deviceId(2), tokenEpoch: 3, revoked: true, keysPurged: false },
    { id: deviceId(3), tokenEpoch: 7, revoked: true, keysPurged: true },
    { id: deviceId(4), tokenEpoch: 7, revoked: false, keysPurged: true },
  ]);
  t.same(devicesOf(first), devicesOf(known), 'a reload gives the same devices');
  t.same([...binsOf(first)].sort(), [...binsOf(known)].sort());
  t.same({ ...first, devices: [], bins: [] }, { ...known, devices: [], bins: [] });
});

t.test('reads in quick succession share statements, and a single one does not wait', async (t) => {
  const { a, clock } = await newWorld(t);
  const id = ulid();
  await a.pool.query('INSERT INTO tenants (id, created_at, head) VALUES ($1, 1, 3)', [id]);
  let statements = 0;
  const query = a.pool.query.bind(a.pool) as (...args: unknown[]) => unknown;
  Object.assign(a.pool, { query: (...args: unknown[]) => (statements++, query(...args)) });
  for (let n = 0; n < 40; n++) await a.loader.head(id);
  t.equal(statements, 40, 'forty reads, none of which waits');
  await a.loader.head(id);
  await nextTurn();
  const late = Promise.all([a.loader.head(id), nextTurn().then(async () => a.loader.head(id))]);
  await nextTurn();
  await nextTurn();
  t.equal(statements, 41);
  clock.advance(25);
  await late;
  t.equal(statements, 42, 'the reads of 25 ms share one statement');
  await nextTurn();
  clock.advance(1_000);
  clock.advance(-3_600_000);
  await a.loader.head(id);
  await nextTurn();
  const next = a.loader.head(id);
  clock.advance(25);
  await next;
  t.equal(statements, 44, 'a clock that was set back makes no read wait longer');
});

t.test('FAIR-45: counting the items of one tenant delays no change of another', async (t) => {
  const logs = await postgresLogs(t);
  const [busy, other] = [await tenantWith(logs, 1), await tenantWith(logs, 1)];
  const loader = loaderOf(logs);
  await logs.pool.query('SELECT create_bin($1, $2, $3, $2, NULL, 1000, 7)', [busy, 'one', deviceId(1)]);
  const { generation = 0 } = (await loader.load(other)) ?? {};
  const holder = await logs.pool.connect();
  try {
    await holder.query('BEGIN');
    // No count ends before this does.
    await holder.query('LOCK TABLE items');
    const counted = loader.reload(busy, 0);
    t.equal((await loader.reload(other, generation))?.tenantId, other);
    await holder.query('ROLLBACK');
    t.match((await counted)?.bins.find(({ id }) => id === 'one')?.view, { itemCount: 0 });
  } finally {
    holder.release(true);
  }
});

t.test('FAIR-45: where the items cannot be counted, a revocation is told all the same', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await tenantWith(logs, 2);
  await logs.pool.query('SELECT create_bin($1, $2, $3, $2, NULL, 1000, 7)', [tenantId, 'one', deviceId(1)]);
  await logs.pool.query('SELECT revoke_device($1, $2, $3, 7)', [tenantId, deviceId(2), deviceId(1)]);
  await logs.pool.query('ALTER TABLE items RENAME COLUMN bin_id TO another');
  const update = await loaderOf(logs).reload(tenantId, 0);
  t.match(update?.devices, [{ revoked: false }, { revoked: true }]);
  const views = update?.bins.map(({ view }) => view) ?? [];
  t.equal(views.length, 3);
  t.ok(
    views.every((view) => view !== null && !('itemCount' in view)),
    'the bins are told of without counts',
  );
  t.match(logs.faults, [/bin_id/], 'which is reported, once');
});

t.test('FAIR-45: a revocation does not wait for a count for more than two seconds', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await tenantWith(logs, 2);
  await logs.pool.query('SELECT create_bin($1, $2, $3, $2, NULL, 1000, 7)', [tenantId, 'one', deviceId(1)]);
  await logs.pool.query('SELECT revoke_device($1, $2, $3, 7)', [tenantId, deviceId(2), deviceId(1)]);
  const clock = new TestClock(7);
  const holder = await openClient({ url: logs.url, name: 'holder', onLost: () => undefined });
  t.teardown(async () => holder.end());
  await holder.query('BEGIN');
  await holder.query('LOCK TABLE items');
  const loader = loaderOf(logs, clock);
  const reloaded = loader.reload(tenantId, 0);
  await until('the count at the lock', () => clock.hasTimer(2_000));
  clock.advance(2_000);
  const update = await reloaded;
  t.match(update?.devices, [{ revoked: false }, { revoked: true }]);
  t.notHas(update?.bins.find(({ id }) => id === 'one')?.view, { itemCount: 0 });
  const next = await loader.reload(tenantId, 0);
  t.match(next?.devices, [{ revoked: false }, { revoked: true }], 'nor does the next reload wait again');
  await holder.query('ROLLBACK');
});

t.test('FAIR-45: a count waits for a bounded part of the calls of its tenant', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await tenantWith(logs, 1);
  takeTurns(logs.pool);
  const holder = await openClient({ url: logs.url, name: 'holder', onLost: () => undefined });
  t.teardown(async () => holder.end());
  await holder.query('BEGIN');
  await holder.query('SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE', [tenantId]);
  let answered = 0;
  const store = new AccountStore(logs.pool);
  const calls = Array.from({ length: 100 }, async () => store.restart(tenantId).then(() => answered++));
  // The first of the calls keep their connections: this is the one that has read the tenant.
  const read = once(logs.pool, 'release');
  const counted = loaderOf(logs)
    .reload(tenantId, 0)
    .then((update) => [update, answered] as const);
  await read;
  await holder.query('COMMIT');
  const [update, before] = await counted;
  t.match(update?.bins[0]?.view, { itemCount: 0 });
  t.ok(before <= 50, `${before} of a hundred that came earlier were answered before`);
  await Promise.all(calls);
});

t.test('FAIR-45: bins that a tenant has deleted are not read when tenants are read', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await tenantWith(logs, 1);
  await logs.pool.query(
    `INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation, closed_at, deleted_at)
     SELECT $1, 'old' || n, 'old', 1, 1, n, 1, 1 FROM generate_series(1, 5000) n`,
    [tenantId],
  );
  await logs.pool.query('ANALYZE bins');
  const client = await logs.pool.connect();
  try {
    const loader = loaderOf({ ...logs, pool: client as unknown as typeof logs.pool });
    await client.query('BEGIN');
    const read = async (): Promise<number> =>
      valueOf(
        client,
        `SELECT (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::integer AS value
         FROM pg_stat_xact_user_tables WHERE relname = 'bins'`,
      );
    const before = await read();
    t.equal((await loader.load(tenantId))?.bins.length, 2);
    t.ok((await read()) - before <= 10, `${await read()} rows are read of a tenant`);
    await client.query("UPDATE bins SET meta = '\\x07' WHERE deleted_at IS NULL");
    const again = await loader.reload(tenantId, 10_000);
    const metas = again?.bins.flatMap(({ view }) => (view === null ? [] : [view.meta]));
    t.same(metas, [null, null], 'what the reader knows is not read again');
    t.equal(again?.bins.filter(({ deletedAt }) => deletedAt !== null).length, 100, 'the latest are told');
    t.equal(again?.bins.find(({ deletedAt }) => deletedAt !== null)?.changedAtGeneration, 4_901);
    t.ok((await read()) - before <= 300, `${await read()} rows are read of one that has changed`);
  } finally {
    client.release(true);
  }
});

t.test('INST-02: a comparison returns the tenants with news and those that are gone', async (t) => {
  const { a } = await newWorld(t);
  const [behind = '', old = '', same = '', ahead = '', gone = ''] = Array.from({ length: 5 }, () => ulid());
  await a.pool.query(
    'INSERT INTO tenants (id, created_at, head, generation) SELECT id, 1, 3, 2 FROM unnest($1::text[]) AS u(id)',
    [[behind, old, same, ahead]],
  );
  const known = [
    { tenantId: behind, delivered: 2, generation: 2 },
    { tenantId: old, delivered: 3, generation: 1 },
    { tenantId: same, delivered: 3, generation: 2 },
    { tenantId: ahead, delivered: 4, generation: 3 },
    { tenantId: gone, delivered: 0, generation: 1 },
  ];
  const told = [...(await a.loader.positions(known))].sort((one, other) => one.tenantId.localeCompare(other.tenantId));
  t.same(
    told,
    [
      { tenantId: behind, head: 3, generation: 2 },
      { tenantId: old, head: 3, generation: 2 },
      { tenantId: gone, head: null, generation: 0 },
    ].sort((one, other) => one.tenantId.localeCompare(other.tenantId)),
  );
  t.same(await a.loader.positions([]), []);
});

t.test('ERR-14: an unreachable database is reported as unavailable, with the cause for the log', async (t) => {
  const instance = new Instance({
    url: 'postgres://nobody@127.0.0.1:1/none',
    clock: new TestClock(),
    hasher: quickHasher,
  });
  t.teardown(() => instance.close());
  const error = await instance.bins.list(ulid()).catch((thrown: unknown) => thrown);
  t.ok(error instanceof ServiceError);
  t.match(error, { error: 'unavailable', retryAfter: 2, cause: { code: 'ECONNREFUSED' } });
});

/** Collects the frames of bins. */
class BinRecorder extends FrameRecorder {
  readonly bins: unknown[] = [];

  override send(frames: readonly string[]): number {
    for (const text of frames) {
      const frame = JSON.parse(text) as { type: string; bin?: unknown };
      if (frame.type === 'bin') this.bins.push(frame.bin);
    }
    return super.send(frames);
  }
}

t.test('BIN-06 BIN-17: the frame of a new bin has its itemCount, also when more has changed since', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await tenantWith(logs, 1);
  const [instance] = instances(logs, { count: 1, clock: new TestClock(), post: () => undefined });
  const actor = await instance?.actor(tenantId);
  if (instance === undefined || actor === undefined) throw new Error('no actor');
  const recorder = new BinRecorder(deviceId(1), actor.device(deviceId(1))?.tokenEpoch ?? 0);
  const session = actor.open(recorder);
  if (typeof session === 'string') throw new Error(session);
  actor.hello(session, { since: 0, epoch: EPOCH, acks: false });
  await recorder.until(() => recorder.caughtUp !== undefined);
  for (const id of ['one', 'two'])
    await logs.pool.query('SELECT create_bin($1, $2, $3, $2, NULL, 1000, 7)', [tenantId, id, deviceId(1)]);
  await logs.pool.query("SELECT patch_device($1, $2, $2, 'renamed', NULL, false, NULL)", [tenantId, deviceId(1)]);
  await instance.registry.changed(tenantId);
  t.match(recorder.bins, [
    { id: 'one', itemCount: 0 },
    { id: 'two', itemCount: 0 },
  ]);
  const loader = loaderOf(logs);
  const known = await loader.reload(tenantId, actor.generation);
  t.ok(
    known?.bins.every(({ view }) => view !== null && !('itemCount' in view)),
    'the items of known bins are not counted',
  );
});
