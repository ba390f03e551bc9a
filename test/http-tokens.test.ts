/** Authentication: tokens, tickets, revocation, admin, tenants. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { TOKEN_ENDPOINTS } from './conformance/cases/tokens.js';
import { CODES } from './conformance/stage.js';
import { ShiftedClock } from './support/clock.js';
import { claim, join, newId, newItem, write, type TestDevice } from './support/devices.js';
import { Scene } from './support/scene.js';
import { ADMIN_TOKEN, runServer } from './support/server.js';
import {
  SHAPES,
  UpgradeRefused,
  type ConnectOptions,
  type Json,
  type Reply,
  type Shape,
  type Wire,
} from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first, second } = scene;

const BAD_TOKEN = CODES.badToken;

/** How an upgrade was refused, or 'open'. */
async function upgrade(options: ConnectOptions, of: Wire = wire): Promise<string> {
  try {
    const socket = await of.connect(options);
    await socket.close();
    return 'open';
  } catch (error) {
    if (error instanceof UpgradeRefused) return error.reply.outcome;
    throw error;
  }
}

t.test('TOKEN-03 TOKEN-04 TOKEN-08: tokens of another tenant, secret or wiped device are invalid', async (t) => {
  const elsewhere = await runServer(t);
  const stranger = await claim(elsewhere.wire);
  const rekeyed = await runServer(t, {
    database: { url: scene.server.databaseUrl },
    env: { TOKEN_SECRET: 'quite-another-secret-0123456789' },
  });
  for (const shape of SHAPES) {
    t.equal((await elsewhere.wire.get('/me', { token: stranger.token, shape })).status, 200);
    t.equal(
      (await wire.get('/me', { token: stranger.token, shape })).outcome,
      BAD_TOKEN[shape],
      'of another tenant, signed with the same secret',
    );
    t.equal(
      (await rekeyed.wire.get('/me', { token: first.token, shape })).outcome,
      BAD_TOKEN[shape],
      'signed with another secret',
    );
    t.equal(await upgrade({ token: stranger.token, shape }), BAD_TOKEN[shape]);
  }
  await elsewhere.wire.post('/devices/bootstrap/restart', {}, { token: ADMIN_TOKEN });
  for (const shape of SHAPES)
    t.equal(
      (await elsewhere.wire.get('/me', { token: stranger.token, shape })).outcome,
      BAD_TOKEN[shape],
      'of a device that was wiped',
    );
});

t.test('TOKEN-05 TOKEN-06 TOKEN-10: a token lives TOKEN_TTL_DAYS', async (t) => {
  const clock = new ShiftedClock();
  const aging = await runServer(t, { clock, env: { TOKEN_TTL_DAYS: '2' } });
  const device = await claim(aging.wire);
  const tampered = `${device.token.slice(0, -2)}${device.token.endsWith('A') ? 'BB' : 'AA'}`;
  clock.advance(2 * 86_400_000 - 60_000);
  t.equal((await aging.wire.get('/me', { token: device.token })).status, 200, 'a minute before');
  clock.advance(61_000);
  for (const shape of SHAPES) {
    t.equal((await aging.wire.get('/me', { token: device.token, shape })).outcome, '401 expired_token');
    t.equal(
      (await aging.wire.get('/me', { token: tampered, shape })).outcome,
      BAD_TOKEN[shape],
      'expired and wrongly signed',
    );
    t.equal(await upgrade({ token: device.token, shape }, aging.wire), '401 expired_token');
  }
});

t.test(
  'TOKEN-11 TOKEN-12 TOKEN-13 TOKEN-14 TOKEN-21 DEV-05 DEV-13 INST-18: a revocation holds on two instances',
  async (t) => {
    const beside = await runServer(t, { database: { url: scene.server.databaseUrl } });
    for (const [here, there] of [
      [wire, beside.wire],
      [beside.wire, wire],
    ] as const) {
      const lost = await join(wire, first);
      const ticket = (await wire.post('/ws-ticket', {}, { token: lost.token })).text('ticket');
      const sockets = [
        await here.connect({ token: lost.token }),
        await there.connect({ token: lost.token, shape: 'b' }),
      ];
      const kept = await there.connect({ token: second.token });
      await kept.hello();
      const reply = await here.post(`/devices/${lost.id}/revoke`, {}, { token: first.token });
      t.equal(reply.outcome, '200');
      t.ok(Number.isInteger(reply.at('device.revokedAt')));
      t.equal((await here.get('/me', { token: lost.token })).outcome, '403 device_revoked', 'from the reply on');
      for (const socket of sockets) t.equal((await socket.closed).code, 4403);
      t.equal((await there.get('/me', { token: lost.token })).outcome, '403 device_revoked', 'on the other instance');
      for (const shape of SHAPES) {
        for (const instance of [here, there])
          t.equal(await upgrade({ token: lost.token, shape }, instance), '403 device_revoked');
      }
      t.match(await upgrade({ ticket }, there), /^40[13] /, 'nor with a ticket from before');
      t.match(await kept.next('device_revoked'), { id: lost.id });
      for (const instance of [here, there])
        t.equal((await instance.get('/me', { token: second.token })).status, 200, 'others stay valid');
      t.equal((await write(here, lost, newItem(scene.ids))).outcome, '403 device_revoked');
      await kept.close();
    }
  },
);

t.test('TOKEN-18 TOKEN-19 TOKEN-20: a ticket opens one socket, within a minute', async (t) => {
  const clock = new ShiftedClock();
  const server = await runServer(t, { clock });
  const beside = await runServer(t, { clock, database: { url: server.databaseUrl } });
  const device = await claim(server.wire);
  const newTicket = async (shape: Shape = 'a'): Promise<string> => {
    const before = clock.now();
    const reply = await server.wire.post('/ws-ticket', {}, { token: device.token, shape });
    const expiresAt = Number(reply.at(shape === 'a' ? 'expiresAt' : 'expires_at'));
    t.ok(expiresAt >= before + 60_000 && expiresAt <= clock.now() + 60_000, 'expires in a minute');
    return reply.text('ticket');
  };
  for (const shape of SHAPES) {
    const ticket = await newTicket(shape);
    t.match(ticket, /^[A-Za-z0-9._~-]+$/);
    const socket = await server.wire.connect({ ticket, shape });
    await socket.hello();
    t.match(
      (await server.wire.get('/devices', { token: device.token })).list('devices')[0],
      { id: device.id, online: true },
      'the socket is of that device',
    );
    t.equal(await upgrade({ ticket, shape }, server.wire), BAD_TOKEN[shape], 'a second use');
    t.equal(await upgrade({ ticket, shape }, beside.wire), BAD_TOKEN[shape], 'also on another instance');
    await socket.close();
  }
  const raced = await newTicket();
  const uses = await Promise.all(
    [server.wire, beside.wire, server.wire, beside.wire].map(async (wire) => upgrade({ ticket: raced }, wire)),
  );
  t.same(uses.toSorted(), [BAD_TOKEN.a, BAD_TOKEN.a, BAD_TOKEN.a, 'open'], 'of concurrent uses one wins');
  const late = await newTicket();
  clock.advance(61_000);
  for (const shape of SHAPES)
    t.equal(await upgrade({ ticket: late, shape }, server.wire), BAD_TOKEN[shape], 'after a minute');
  t.equal(await upgrade({ ticket: device.token }, server.wire), BAD_TOKEN.a, 'a token is no ticket');
  const ticket = await newTicket();
  t.equal((await server.wire.get('/me', { token: ticket })).outcome, BAD_TOKEN.a, 'and a ticket no token');
});

t.test('TOKEN-24 TOKEN-25: a wrong admin token is forbidden, and where it is unset every token is', async (t) => {
  for (const token of ['wrong', `${ADMIN_TOKEN}x`, ADMIN_TOKEN.slice(1), first.token]) {
    t.equal((await wire.post('/devices/bootstrap/restart', {}, { token })).outcome, '403 forbidden');
  }
  t.match((await wire.post('/devices/bootstrap/restart', {})).outcome, /^40[13] /, 'without any');
  const unset = await runServer(t, { env: { ADMIN_TOKEN: '' } });
  for (const ask of [{}, { token: '' }, { token: 'null' }, { token: 'undefined' }, { token: ADMIN_TOKEN }]) {
    t.equal(
      (await unset.wire.post('/devices/bootstrap/restart', {}, ask)).outcome,
      '403 forbidden',
      JSON.stringify(ask),
    );
  }
  t.equal((await wire.get('/me', { token: first.token })).status, 200, 'nothing was wiped');
});

t.test('TOKEN-26 TOKEN-04: tokens, tickets and ids of one tenant reach nothing of another', async (t) => {
  const tenants = new Map<string, string>();
  const both = await runServer(t, { resolveTenant: (host) => tenants.get(host) });
  const other = newId();
  await both.sql(`INSERT INTO tenants (id, created_at) VALUES ($1, 2)`, [other]);
  await both.sql(
    `INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation) VALUES ($1, 'inbox', 'inbox', 1, 1, 1)`,
    [other],
  );
  tenants.set('one.test', both.tenantId);
  tenants.set('two.test', other);
  const at = (host: string, device?: TestDevice): { headers: Record<string, string>; token?: string } => ({
    headers: { host },
    ...(device ? { token: device.token } : {}),
  });
  const claimAt = async (host: string): Promise<TestDevice> => {
    const keys = nodeSodium.boxKeyPair();
    const reply = await both.wire.post(
      '/devices/bootstrap',
      { name: host, glyph: 'globe', pubkey: Buffer.from(keys.publicKey) },
      at(host),
    );
    return { id: reply.text('device.id'), token: reply.text('token'), keys, name: host };
  };
  const [one, two] = [await claimAt('one.test'), await claimAt('TWO.test:8080')];
  for (const [host, device] of [
    ['one.test', two],
    ['two.test', one],
  ] as const) {
    for (const [method, path] of TOKEN_ENDPOINTS)
      t.equal((await both.wire.ask(method, path, at(host, device))).outcome, BAD_TOKEN.a, `${method} ${path}`);
    t.equal(await upgrade({ token: device.token, headers: { host } }, both.wire), BAD_TOKEN.a);
    const ticketHost = host === 'one.test' ? 'two.test' : 'one.test';
    const ticket = (await both.wire.post('/ws-ticket', {}, at(ticketHost, device))).text('ticket');
    t.equal(await upgrade({ ticket, headers: { host } }, both.wire), BAD_TOKEN.a, 'nor with a ticket');
    t.equal(
      (await both.wire.post('/devices/reauth/challenge', { deviceId: device.id }, at(host))).outcome,
      '404 device_not_found',
    );
  }
  const watching = await both.wire.connect({ token: two.token, headers: { host: 'two.test' } });
  await watching.hello();
  const item = newItem([one.id]);
  const write = async (host: string, device: TestDevice, body: Json): Promise<Reply> =>
    both.wire.post('/items', body, at(host, device));
  const bodyFor = (device: TestDevice): Json => ({
    ...item,
    payloadEnc: { ct: item.ct, nonce: item.nonce, sig: item.sig, keys: { [device.id]: randomBytes(80) } },
    ct: undefined,
    nonce: undefined,
    keys: undefined,
    sig: undefined,
    master: undefined,
  });
  t.equal((await write('one.test', one, bodyFor(one))).number('version'), 1);
  t.equal((await write('two.test', two, bodyFor(one))).status, 400, "the other tenant's device is unknown here");
  t.equal((await both.wire.delete(`/items/${item.id}`, at('two.test', two))).outcome, '404 item_not_found');
  t.same((await both.wire.get('/items', at('two.test', two))).list('items'), []);
  t.equal(
    (await write('two.test', two, bodyFor(two))).number('version'),
    1,
    'the same id is another item, the versions another sequence',
  );
  const probe = { ...bodyFor(two), id: newId() };
  t.equal((await write('two.test', two, probe)).number('version'), 2);
  const third = await both.wire.post('/bins', { id: 'mark' }, at('two.test', two));
  t.equal(third.status, 200);
  await watching.next('bin');
  t.same(watching.of('item', 'delete'), [], 'neither foreign writes nor those of its own device are pushed');
  t.equal((await both.wire.get('/devices', at('two.test', two))).list('devices').length, 1);
  t.equal((await both.wire.get('/me', at('nobody.test', two))).outcome, '404 tenant_not_found');
  await watching.close();
});
