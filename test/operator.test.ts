/** The actions of an operator. */
import { createHash } from 'node:crypto';
import t from 'tap';
import { OperatorStore } from '../src/server/admin/store.js';
import { HostingStore } from '../src/server/hosting/store.js';
import { claim, edited, mustWrite, newCode, newItem, write } from './support/devices.js';
import { untilIs } from './support/events.js';
import { hosted, signUp } from './support/hosted.js';
import { poolOf, type WithTeardown } from './support/postgres.js';
import { Scene } from './support/scene.js';

const operator = (t: WithTeardown, url: string): OperatorStore => new OperatorStore(poolOf(t, url));

t.test('OPER-01 OPER-02: a suspended tenant can read, an inactive one is 402, an active one is served', async (t) => {
  const scene = await Scene.start(t);
  const { wire, server } = scene;
  const store = operator(t, server.databaseUrl);
  const item = await scene.written();
  const writing = async (): Promise<string> => (await write(wire, scene.first, scene.item())).outcome;
  const reading = async (): Promise<string> => (await wire.get('/items?since=0', scene.as('a'))).outcome;
  t.equal(await store.setState(server.tenantId, 'suspended'), 'ok');
  await untilIs(writing, '403 tenant_suspended');
  t.equal(await reading(), '200', 'reads are served');
  t.equal((await wire.delete(`/items/${item.id}`, scene.as('a'))).outcome, '403 tenant_suspended');
  t.equal((await wire.post('/bins', { id: 'new' }, scene.as('a'))).outcome, '403 tenant_suspended');
  t.equal((await wire.get('/devices', scene.as('a'))).status, 200);
  t.equal(await store.setState(server.tenantId, 'inactive'), 'ok');
  await untilIs(reading, '402 payment_required');
  t.equal((await wire.get('/me', scene.as('a'))).status, 200);
  t.equal((await wire.get('/service/status')).status, 200);
  t.equal(await store.setState(server.tenantId, 'active'), 'ok');
  await untilIs(writing, '200');
  t.equal(await store.setState('nobody', 'active'), 'tenant_not_found');
});

t.test(
  'OPER-03 OPER-04 OPER-07: tenants are listed, given another claim token, and deleted with all their rows',
  async (t) => {
    const server = await hosted(t);
    const { at } = server;
    const store = operator(t, server.databaseUrl);
    const lost = (await signUp(server.apex, 'anna')).text('claimToken');
    await signUp(server.apex, 'berta');
    const anna = await store.tenantOf('anna');
    if (anna === undefined) throw new Error('no tenant');
    t.equal(await store.renewClaimToken(anna, createHash('sha256').update('another-token-of-anna').digest()), 'ok');
    const knock = { name: 'x', glyph: 'globe', pubkey: Buffer.alloc(32, 9), claimToken: lost };
    t.equal((await at('anna').post('/devices/bootstrap', knock)).outcome, '403 forbidden');
    const device = await claim(at('anna'), { claimToken: 'another-token-of-anna' });
    t.equal(await store.renewClaimToken(anna, Buffer.alloc(32)), 'bootstrap_already_done');
    await mustWrite(at('anna'), device, newItem([device.id]));
    const tenants = await store.tenants('', 10);
    t.match(tenants, [
      { slug: 'anna', email: 'anna@example.com', state: 'active', devices: 1, items: 1 },
      { slug: 'berta', claimedAt: null, devices: 0, items: 0, storageBytes: 0 },
    ]);
    const [used] = await server.sql('SELECT sum(bytes)::int AS bytes FROM items');
    t.ok(Number(used?.['bytes']) > 0);
    t.equal(tenants[0]?.storageBytes, used?.['bytes']);
    t.match(await store.tenants('', 1), [{ slug: 'anna' }]);
    t.match(await store.tenants('anna', 10), [{ slug: 'berta' }]);
    const as = { token: device.token };
    const wish = { contentLength: 5, contentType: 'image/png' };
    for (const [path, body] of [
      ['/blobs/upload-url', wish],
      ['/devices/pair-init', { code: newCode(), epk: Buffer.alloc(32, 9) }],
      ['/devices/reauth/challenge', { deviceId: device.id }],
    ] as const)
      t.equal((await at('anna').post(path, body, as)).outcome, '200', path);
    const socket = await at('anna').connect(as);
    const hosting = new HostingStore(poolOf(t, server.databaseUrl));
    const remove = async (): Promise<string> => hosting.removeSome(anna, 2_000, Date.now());
    t.equal(await remove(), 'more', 'its items first');
    t.equal(await remove(), 'gone');
    t.equal(await remove(), 'tenant_not_found');
    await socket.closed;
    await untilIs(async () => (await at('anna').get('/service/status')).outcome, '404 tenant_not_found');
    // The names' history, and the tenants whose blobs are still to be removed.
    const journals = ['host_changes', 'gone_tenants'];
    const tables = await server.sql(
      `SELECT c.relname AS name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relkind = 'r' AND a.attname = 'tenant_id' AND c.relname <> ALL ($1)`,
      [journals],
    );
    t.ok(tables.length >= 8, `${tables.length} tables`);
    for (const { name } of tables)
      t.equal(
        Number((await server.sql(`SELECT count(*) AS n FROM ${String(name)} WHERE tenant_id = $1`, [anna]))[0]?.['n']),
        0,
        String(name),
      );
    t.equal((await signUp(server.apex, 'anna')).status, 200, 'the name is free');
  },
);

t.test('OPER-05: the account password is removed without knowing it', async (t) => {
  const scene = await Scene.start(t);
  const store = operator(t, scene.server.databaseUrl);
  await scene.wire.post('/password/set', { password: 'a-long-password' }, scene.as('a'));
  t.equal((await scene.wire.get('/password/exists')).at('exists'), true);
  t.equal(await store.removePassword(scene.server.tenantId), 'ok');
  t.equal((await scene.wire.get('/password/exists')).at('exists'), false);
  t.equal(await store.removePassword('nobody'), 'tenant_not_found');
});

t.test('OPER-06: a new epoch resets every device, on a running server', async (t) => {
  const scene = await Scene.start(t);
  await scene.written();
  const before = (await scene.wire.get('/service/status')).text('epoch');
  const open = await scene.watch();
  const epoch = await operator(t, scene.server.databaseUrl).newEpoch();
  t.not(epoch, before);
  await untilIs(async () => {
    const reply = await scene.wire.get('/items?since=1', scene.as('a'));
    return String(reply.at('epoch'));
  }, epoch);
  t.equal((await open.closed).code, 1012, 'open sockets have to come back');
  const socket = await scene.wire.connect({ token: scene.second.token });
  socket.ws.send(JSON.stringify({ type: 'hello', since: 1, epoch: before }));
  t.match(await socket.next(), { type: 'reset', epoch });
});

t.test('OPER-08: counts and sums that do not match the rows are detected, and so are orphaned rows', async (t) => {
  const scene = await Scene.start(t);
  const { server } = scene;
  const store = operator(t, server.databaseUrl);
  const item = await scene.written();
  await mustWrite(scene.wire, scene.first, edited(item));
  await scene.wire.delete(`/items/${(await scene.written()).id}`, scene.as('a'));
  await scene.written();
  t.same(await store.discrepancies(), []);
  const spoilt: readonly (readonly [string, string])[] = [
    ['UPDATE tenants SET item_count = item_count + 1', 'items'],
    ['UPDATE tenants SET version_sum = version_sum - 1', 'version sum'],
    ['UPDATE tenants SET storage_bytes = storage_bytes + 7', 'storage bytes'],
    ['UPDATE tenants SET head = head - 1', 'head below a version'],
    [`INSERT INTO items (tenant_id, id, version, bin_id) VALUES ('nobody', 'x', 1, 'inbox')`, 'items without a tenant'],
    [
      `UPDATE items SET bin_id = 'nowhere' WHERE deleted_at IS NULL AND tenant_id <> 'nobody'`,
      'items in a bin that never was',
    ],
  ];
  const found = new Set<string>();
  for (const [statement, what] of spoilt) {
    await server.sql(statement);
    const now = await store.discrepancies();
    t.ok(
      now.some((one) => one.what === what),
      what,
    );
    found.add(what);
  }
  t.equal(found.size, spoilt.length);
});
