/** Bootstrap, devices and bins over HTTP. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import {
  newId,
  write,
  writeBody,
  claim,
  claimBody,
  edited,
  join,
  mustWrite,
  newCode,
  newItem,
  npkBody,
  publicKeyOf,
  sealedFor,
  type TestDevice,
} from './support/devices.js';
import { Scene } from './support/scene.js';
import { runServer, ADMIN_TOKEN } from './support/server.js';
import { camel, SHAPES, type Json, type Reply, type Ask, type Wire } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first } = scene;

const VALIDATION = { a: '400 validation', b: '400 invalid_payload' } as const;
const create = async (body: Json): Promise<Reply> => wire.post('/bins', body, scene.as('a'));
const remove = async (id: string, body?: Json): Promise<Reply> =>
  wire.delete(`/bins/${id}`, { ...scene.as('a'), body });

t.test('BIN-14 LIST-16 INST-11: a bin refuses writes before its items are deleted', async (t) => {
  const beside = await runServer(t, { database: { url: scene.server.databaseUrl } });
  await create({ id: 'closing' });
  for (let round = 0; round < 12; round++) {
    const items = Array.from({ length: 100 }, () => writeBody('a', scene.item({ binId: 'closing' })));
    await wire.post('/items/batch', { items }, scene.as('a'));
  }
  // Each delete takes a millisecond longer, so that writes arrive while the bin is being emptied.
  await scene.server.sql(`CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END $$`);
  await scene.server.sql(`CREATE TRIGGER linger BEFORE UPDATE ON items FOR EACH ROW
    WHEN (NEW.deleted_at IS NOT NULL) EXECUTE FUNCTION linger()`);
  let gone = false;
  const deleting = remove('closing', { force: true }).then((reply) => {
    gone = true;
    return reply;
  });
  let closedBefore = 0;
  await Promise.all(
    [wire, beside.wire].map(async (instance) => {
      for (let closed = false; !gone;) {
        const reply = await write(instance, first, scene.item({ binId: 'closing' }));
        t.ok(reply.status === 200 ? !closed : reply.outcome === '404 bin_not_found', 'once closed it stays closed');
        if (reply.status === 404) closed = true;
        if (closed && !gone) closedBefore++;
      }
    }),
  );
  t.equal((await deleting).status, 200);
  t.ok(closedBefore > 0, `${closedBefore} writes were refused while items were still being deleted`);
  const live = (await scene.rows('a')).filter((row) => row['binId'] === 'closing' && row['deletedAt'] === null);
  t.same(live, [], 'no item of the bin is left');
});

const admin: Ask = { token: ADMIN_TOKEN };

t.test('BOOT-01 BOOT-02 BOOT-04 BOOT-06 STAT-03 STAT-04: the first call claims the server', async (t) => {
  for (const shape of SHAPES) {
    const server = await runServer(t);
    const status = async (): Promise<unknown> => (await server.wire.get('/service/status', { shape })).at('claimed');
    t.equal(await status(), false);
    const wrappedMasterKey = randomBytes(80);
    const reply = await server.wire.post('/devices/bootstrap', claimBody({ wrappedMasterKey, name: 'Ada’s laptop' }), {
      shape,
    });
    t.equal(reply.outcome, '200');
    const body = camel(reply.body);
    t.equal(body['wrappedMasterKey'], wrappedMasterKey.toString(shape === 'a' ? 'base64url' : 'base64'));
    const device = body['device'] as Json;
    t.match(device['id'], /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/, 'the server generated an id');
    t.match(device, { name: 'Ada’s laptop', glyph: 'laptop' });
    t.equal((await server.wire.get('/me', { token: reply.text('token') })).at('device.id'), device['id']);
    t.equal(await status(), true);
    const again = await server.wire.post('/devices/bootstrap', claimBody(), { shape });
    t.equal(again.outcome, shape === 'a' ? '410 bootstrap_already_done' : '409 bootstrap_already_done');
    await server.stop();
  }
});

t.test('BOOT-03: of many concurrent claims on two instances, exactly one wins', async (t) => {
  const server = await runServer(t);
  const beside = await runServer(t, { database: { url: server.databaseUrl } });
  const replies = await Promise.all(
    Array.from({ length: 24 }, async (_, index) =>
      (index % 2 === 0 ? server : beside).wire.post('/devices/bootstrap', claimBody()),
    ),
  );
  const winners = replies.filter((reply) => reply.status === 200);
  t.equal(winners.length, 1);
  t.equal(replies.filter((reply) => reply.outcome === '410 bootstrap_already_done').length, 23);
  const token = winners[0]?.text('token') ?? '';
  for (const instance of [server, beside])
    t.equal((await instance.wire.get('/devices', { token })).list('devices').length, 1);
});

t.test('BOOT-05: with BOOTSTRAP_TOKEN set, a missing or wrong claimToken is refused', async (t) => {
  const server = await runServer(t, { env: { BOOTSTRAP_TOKEN: 'open-sesame' } });
  for (const claimToken of [undefined, null, '', 'open-sesam', 'open-sesame ', 'OPEN-SESAME']) {
    const reply = await server.wire.post('/devices/bootstrap', claimBody({ claimToken }));
    t.ok(reply.status >= 400 && reply.status < 500, `${String(claimToken)}: ${reply.outcome}`);
  }
  t.equal((await server.wire.get('/service/status')).at('claimed'), false);
  t.equal((await server.wire.post('/devices/bootstrap', claimBody({ claimToken: 'open-sesame' }))).status, 200);
});

t.test('BOOT-07 BOOT-08 BOOT-09 BOOT-10 BOOT-11: a restart wipes all but the items', async (t) => {
  const recoveryPubkey = Buffer.from(nodeSodium.signKeyPair(randomBytes(32)).publicKey);
  const server = await runServer(t);
  const beside = await runServer(t, { database: { url: server.databaseUrl } });
  const { wire } = server;
  const first = await claim(wire, { recoveryPubkey });
  const second = await join(wire, first);
  const item = newItem([first.id, second.id]);
  await mustWrite(wire, first, item);
  await wire.post('/password/set', { password: 'secret' }, { token: first.token });
  const code = newCode();
  await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, { token: first.token });
  const sockets = [await wire.connect({ token: first.token }), await beside.wire.connect({ token: second.token })];
  const reply = await wire.post('/devices/bootstrap/restart', {}, admin);
  t.equal(reply.outcome, '200');
  t.same(reply.body, { ok: true });
  for (const socket of sockets) t.ok((await socket.closed).code >= 1000, 'a restart closes all sockets');
  for (const instance of [server, beside]) {
    t.equal((await instance.wire.get('/service/status')).at('claimed'), false);
    for (const device of [first, second])
      t.equal((await instance.wire.get('/me', { token: device.token })).status, 401, 'earlier tokens no longer work');
  }
  t.equal((await wire.get('/password/exists')).at('exists'), false);
  t.equal((await wire.post('/devices/pair-fetch-epk', { code })).outcome, '400 pair_invalid');
  const next = await claim(wire, { deviceId: first.id });
  t.match((await wire.get('/me', { token: first.token })).outcome, /^40[13] /, 'nor where the device id is used again');
  const rows = (await wire.get('/items', { token: next.token })).list('items');
  t.match(rows, [{ id: item.id }], 'the items are kept');
  t.equal((await write(wire, next, edited(item, { keys: sealedFor(next.id) }))).status, 200);
  t.equal((await beside.wire.get('/devices', { token: next.token })).list('devices').length, 1);
});

t.test('DEV-01 DEV-02 DEV-03 DEV-04 DEV-14 STAT-10: devices are listed, changed, and online', async (t) => {
  const scene = await Scene.start(t);
  const { wire, first, second } = scene;
  const beside = await runServer(t, { database: { url: scene.server.databaseUrl } });
  const listed = async (of: Wire, device: TestDevice): Promise<Map<unknown, Json>> =>
    new Map(
      (await of.get('/devices', { token: device.token, shape: 'b' }))
        .list('devices')
        .map((entry) => [entry['id'], camel(entry)]),
    );
  const mine = (await listed(wire, first)).get(first.id) ?? {};
  t.same(Object.keys(mine).toSorted(), [
    'cert',
    'current',
    'glyph',
    'id',
    'lastSeenAt',
    'name',
    'online',
    'pairedAt',
    'pubkey',
    'revokedAt',
  ]);
  t.match(mine, {
    name: 'first',
    glyph: 'laptop',
    pubkey: publicKeyOf(first).toString('base64'),
    cert: null,
    revokedAt: null,
    online: false,
    current: true,
  });
  t.equal((await listed(wire, first)).get(second.id)?.['current'], false);
  t.equal((await listed(wire, second)).get(second.id)?.['current'], true);
  const socket = await beside.wire.connect({ token: second.token });
  await socket.hello();
  for (const until = Date.now() + 30_000; (await listed(wire, first)).get(second.id)?.['online'] !== true;) {
    if (Date.now() > until) throw new Error('never shown as online');
  }
  for (const instance of [wire, beside.wire]) {
    t.equal((await instance.get('/me', { token: first.token })).at('server.devicesOnline'), 1);
    t.equal((await listed(instance, first)).get(first.id)?.['online'], false);
  }
  await socket.close();
  for (const until = Date.now() + 30_000; (await listed(wire, first)).get(second.id)?.['online'] !== false;) {
    if (Date.now() > until) throw new Error('never shown as gone');
  }
  const cert = randomBytes(32);
  for (const [change, expected] of [
    [{ name: 'new name' }, { name: 'new name' }],
    [{ glyph: 'globe' }, { glyph: 'globe' }],
    [{ cert }, { cert: cert.toString('base64url') }],
  ] as const) {
    const reply = await wire.patch(`/devices/${second.id}`, change, scene.as('a'));
    t.equal(reply.outcome, '200');
    t.match(reply.at('device'), { id: second.id, ...expected });
  }
  t.match((await listed(beside.wire, second)).get(second.id), {
    name: 'new name',
    glyph: 'globe',
    cert: cert.toString('base64'),
  });
});

t.test('DEV-08 DEV-09 DEV-10 DEV-11 ERR-05: bad names, glyphs, ids and keys are schema errors', async (t) => {
  const fresh = await runServer(t);
  const turning = Array.from(
    '\u061C\u200E\u200F\u202A\u202B\u202C\u202D\u202E\u2066\u2067\u2068\u2069',
    (mark) => `a${mark}b`,
  );
  const names = ['', 'x'.repeat(65), 'a\u0000b', 'a\nb', 'a\u007Fb', 'a\u0085b', ...turning, 7, null];
  const glyphs = ['', 'tv', 'Laptop', 7, null];
  const ids = ['x', newId().toLowerCase(), `8${newId().slice(1)}`, newId().slice(1), 7];
  const pubkeys = [randomBytes(31), randomBytes(33), '', 'white space', null];
  const table: readonly (readonly [string, readonly unknown[]])[] = [
    ['name', names],
    ['glyph', glyphs],
    ['deviceId', ids],
    ['pubkey', pubkeys],
  ];
  for (const shape of SHAPES) {
    for (const [field, values] of table) {
      for (const value of values) {
        const reply = await fresh.wire.post('/devices/bootstrap', claimBody({ [field]: value }), { shape });
        t.equal(reply.outcome, VALIDATION[shape], `bootstrap ${field} ${JSON.stringify(value)}`);
        t.equal(reply.at('error.details.path'), shape === 'b' && field === 'deviceId' ? 'device_id' : field);
      }
    }
  }
  const scene = await Scene.start(t);
  const code = newCode();
  await scene.wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, scene.as('a'));
  for (const shape of SHAPES) {
    for (const [field, values] of table) {
      for (const value of values) {
        if (field === 'deviceId' && value === null) continue;
        const reply = await scene.wire.post('/devices/pair-fetch-npk', npkBody(code, { [field]: value }), { shape });
        t.equal(reply.outcome, VALIDATION[shape], `pairing ${field} ${JSON.stringify(value)}`);
        if (field !== 'name' && field !== 'glyph') continue;
        const patched = await scene.wire.patch(`/devices/${scene.second.id}`, { [field]: value }, scene.as(shape));
        t.equal(patched.outcome, VALIDATION[shape], `PATCH ${field} ${JSON.stringify(value)}`);
      }
    }
    t.equal(
      (await scene.wire.patch(`/devices/${newId()}`, { name: 'x' }, scene.as(shape))).outcome,
      '404 device_not_found',
    );
    t.equal((await scene.wire.post(`/devices/${newId()}/revoke`, {}, scene.as(shape))).outcome, '404 device_not_found');
    for (const name of ['x', 'x'.repeat(64), 'Zoë 📱', '名前']) {
      t.equal(
        (await scene.wire.patch(`/devices/${scene.second.id}`, { name }, scene.as(shape))).at('device.name'),
        name,
      );
    }
  }
});

t.test('DEV-06 DEV-07 DEV-12: a device may revoke itself, but the last one cannot be revoked', async (t) => {
  const scene = await Scene.start(t);
  const { wire, first, second } = scene;
  const watching = await scene.watch(first);
  const third = await join(wire, second);
  // What a device has to know of it, to seal keys for it.
  const list = (await wire.get('/devices', { token: first.token })).list('devices');
  const { online: _, current: __, lastSeenAt: ___, ...joined } = list.find(({ id }) => id === third.id) ?? {};
  t.ok(joined['pubkey'] && joined['cert']);
  t.match(await watching.next('device_joined'), { device: { ...joined, name: 'joined', glyph: 'phone' } });
  const out = await wire.post(`/devices/${third.id}/revoke`, {}, { token: third.token });
  t.equal(out.at('device.id'), third.id, 'a device may revoke itself');
  t.equal(
    (await wire.post(`/devices/${third.id}/revoke`, {}, { token: first.token })).status,
    200,
    'a second time is 200',
  );
  for (let round = 0; round < 5; round++) {
    const rival = round === 0 ? second : await join(wire, first);
    const replies = await Promise.all([
      wire.post(`/devices/${rival.id}/revoke`, {}, { token: first.token }),
      wire.post(`/devices/${first.id}/revoke`, {}, { token: rival.token }),
    ]);
    const left = await wire.get('/devices', { token: first.token });
    if (left.status !== 200) {
      t.equal((await wire.get('/me', { token: rival.token })).status, 200, 'the other device is not revoked');
      t.ok(replies.some((reply) => reply.status >= 400));
      return;
    }
    t.equal(left.list('devices').filter((device) => device['revokedAt'] === null).length, 1);
    t.equal((await wire.post(`/devices/${first.id}/revoke`, {}, { token: first.token })).outcome, '409 last_device');
  }
  await watching.close();
});
