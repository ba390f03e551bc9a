/** The sums of `/me`, and what an empty tenant answers. */
import t from 'tap';
import { edited, mustWrite, newItem } from './support/devices.js';
import { Scene } from './support/scene.js';
import { camel, SHAPES, type Json } from './support/wire.js';

t.test('STAT-06 STAT-07 STAT-08 STAT-09 STAT-11 STAT-12 EPOCH-01: /me has device, server and sums', async (t) => {
  const fresh = await Scene.start(t, { env: { REGION: 'test-region', STORAGE_CAP_BYTES: '1000000' } });
  const server = async (): Promise<Json> => camel((await fresh.wire.get('/me', fresh.as('a'))).at('server'));
  t.match(await server(), {
    itemCount: 0,
    deviceCount: 2,
    devicesOnline: 0,
    storageUsedBytes: 0,
    headVersion: 0,
    versionSum: 0,
  });
  const [one, two] = [await fresh.written(), await fresh.written()];
  const used = Number((await server())['storageUsedBytes']);
  t.ok(used >= 2 * (48 + 2 * 80), `ciphertext and keys count: ${used}`);
  await mustWrite(fresh.wire, fresh.first, edited(one));
  t.match(await server(), { itemCount: 2, headVersion: 3, versionSum: 5, storageUsedBytes: used });
  await fresh.wire.delete(`/items/${two.id}`, fresh.as('a'));
  t.match(await server(), { itemCount: 1, headVersion: 4, versionSum: 3, storageUsedBytes: used / 2 });
  const status = await fresh.wire.get('/service/status');
  for (const shape of SHAPES) {
    const me = await fresh.wire.get('/me', fresh.as(shape));
    const { device, server: about } = camel(me.body) as { device: Json; server: Json };
    t.match(device, { id: fresh.first.id, name: 'first', glyph: 'laptop' });
    t.ok(Number.isInteger(device['pairedAt']));
    t.match(about, {
      region: 'test-region',
      storageCapBytes: 1_000_000,
      tenantId: fresh.server.tenantId,
      epoch: status.at('epoch'),
    });
    t.match(about['version'], /^\d+\.\d+\.\d+/);
  }
  t.equal((await fresh.wire.get('/health')).at('version'), (await server())['version']);
  const listed = await fresh.wire.get('/items?since=0', fresh.as('b'));
  t.equal(listed.at('epoch'), status.at('epoch'));
  t.equal((await fresh.wire.post(`/devices/${fresh.second.id}/revoke`, {}, fresh.as('a'))).status, 200);
  t.equal((await server())['deviceCount'], 1, 'a revoked device does not count');
});

t.test('LIST-01: a fresh server has an empty list', async (t) => {
  const fresh = await Scene.start(t);
  const reply = await fresh.wire.get('/items', fresh.as('a'));
  t.match(reply.body, { items: [], nextSince: 0, hasMore: false });
  t.equal(reply.at('reset'), undefined);
  const item = newItem(fresh.ids);
  t.equal(await mustWrite(fresh.wire, fresh.first, item), 1);
});
