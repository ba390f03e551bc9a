/** The account password and recovery. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { ShiftedClock, TestClock } from './support/clock.js';
import {
  claim,
  join,
  lp,
  mustWrite,
  newCode,
  newId,
  newItem,
  npkBody,
  waitForRequest,
  wrapBody,
} from './support/devices.js';
import { BASE, hosted, signUp } from './support/hosted.js';
import { Scene } from './support/scene.js';
import { runServer, type Running } from './support/server.js';
import type { Json, Reply } from './support/wire.js';

const verify = async (server: Running, password: string, more: Json = {}): Promise<Reply> =>
  server.wire.post('/password/verify', { password, ...more }, { shape: 'a' });

t.test('PASS-15: the current password removes the password, and its tickets become void', async (t) => {
  const scene = await Scene.start(t);
  const { wire, first, server } = scene;
  const remove = async (body: Json): Promise<Reply> => wire.delete('/password', { ...scene.as('a'), body });
  t.equal((await remove({ currentPassword: 'one' })).outcome, '403 password_invalid', 'none is set');
  await wire.post('/password/set', { password: 'one' }, scene.as('a'));
  t.equal((await wire.delete('/password', { body: { currentPassword: 'one' } })).status, 401, 'a token is required');
  for (const body of [{}, { currentPassword: null }, { currentPassword: '' }, { currentPassword: 7 }])
    t.equal((await remove(body)).outcome, '400 validation', JSON.stringify(body));
  t.equal((await remove({ currentPassword: 'two' })).outcome, '403 password_invalid');
  t.equal((await wire.get('/password/exists')).at('exists'), true);
  const ticket = String((await verify(server, 'one')).at('ticket'));
  const removed = await remove({ currentPassword: 'one' });
  t.same([removed.status, removed.body], [200, { ok: true }]);
  t.equal((await wire.get('/password/exists')).at('exists'), false);
  t.equal((await verify(server, 'one')).outcome, '403 password_invalid');
  // Pairing needs no password now.
  t.ok((await join(wire, first)).id);
  // A password that is set again, even with the same text, does not make earlier tickets valid.
  await wire.post('/password/set', { password: 'one' }, scene.as('a'));
  const code = newCode();
  await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, scene.as('a'));
  const late = await wire.post('/devices/pair-fetch-npk', npkBody(code, { passwordTicket: ticket }), { shape: 'a' });
  t.equal(late.outcome, '403 password_required');
});

t.test('PASS-06 PASS-07 PASS-08 PASS-09 PASS-10: a ticket pairs once, within ten minutes', async (t) => {
  const clock = new ShiftedClock();
  const scene = await Scene.start(t, { clock });
  const { wire, first, server } = scene;
  await wire.post('/password/set', { password: 'pw' }, scene.as('a'));
  const pubkey = Buffer.from(nodeSodium.boxKeyPair().publicKey);
  const newTicket = async (key?: Buffer): Promise<string> =>
    (await verify(server, 'pw', key ? { pubkey: key } : {})).text('ticket');
  const attempt = async (code: string, passwordTicket: string | undefined): Promise<Reply> =>
    wire.post('/devices/pair-fetch-npk', npkBody(code, { pubkey, passwordTicket }), { shape: 'a' });
  const code = newCode();
  await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, scene.as('a'));
  for (const ticket of [undefined, '', 'nonsense', first.token, await newTicket(randomBytes(32))]) {
    t.equal((await attempt(code, ticket)).outcome, '403 password_required', 'no ticket, or one for another key');
  }
  const old = await newTicket(pubkey);
  clock.advance(601_000);
  await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, scene.as('a'));
  t.equal((await attempt(code, old)).outcome, '403 password_required', 'after ten minutes');
  const ticket = await newTicket(pubkey);
  const held = attempt(code, ticket);
  await waitForRequest(wire, first);
  await wire.post('/devices/pair-wrap', wrapBody(code), scene.as('a'));
  t.equal((await held).outcome, '200', 'the refusals did not use up the session');
  const another = newCode();
  await wire.post('/devices/pair-init', { code: another, epk: randomBytes(32) }, scene.as('a'));
  t.equal((await attempt(another, ticket)).outcome, '403 password_required', 'a second use');
  const elsewhere = await Scene.start(t);
  await elsewhere.wire.post('/password/set', { password: 'pw' }, elsewhere.as('a'));
  const foreign = (await verify(elsewhere.server, 'pw', { pubkey })).text('ticket');
  t.equal((await attempt(another, foreign)).outcome, '403 password_required', 'a ticket of another tenant');
  const joined = await join(wire, first, { passwordTicket: await newTicket() });
  t.equal((await wire.get('/me', { token: joined.token })).status, 200, 'a ticket without a key');
});

t.test('PASS-12 RATE-11: failures from one address lock out no caller at another', async (t) => {
  const server = await runServer(t, { env: { RATE_PAIR_PER_MIN: '5' } });
  const device = await claim(server.wire);
  await server.wire.post('/password/set', { password: 'pw' }, { token: device.token });
  const from = async (address: string, password: string): Promise<Reply> =>
    server.wire.post('/password/verify', { password }, { headers: { 'x-forwarded-for': address } });
  const outcomes: string[] = [];
  for (let index = 0; index < 7; index++) outcomes.push((await from('203.0.113.9', 'guess')).outcome);
  t.same(outcomes, [...Array<string>(5).fill('403 password_invalid'), ...Array<string>(2).fill('429 rate_limited')]);
  t.equal((await from('203.0.113.9', 'pw')).outcome, '429 rate_limited');
  t.equal((await from('203.0.113.10', 'pw')).status, 200);
});

t.test('RATE-11: the addresses of one network together have ten times as many guesses as one of them', async (t) => {
  const env = { RATE_PAIR_PER_MIN: '1' };
  const { wire } = await runServer(t, { env, clock: new TestClock() });
  const { token } = await claim(wire);
  await wire.post('/password/set', { password: 'pw' }, { token });
  const from = async (address: string, password: string): Promise<string> =>
    (await wire.post('/password/verify', { password }, { headers: { 'x-forwarded-for': address } })).outcome;
  for (const network of ['2001:db8:1:', '203.0.113.']) {
    const address = (host: number): string => (network.includes(':') ? `${network}${host}::1` : `${network}${host}`);
    for (let host = 1; host <= 10; host++)
      t.equal(await from(address(host), 'guess'), '403 password_invalid', address(host));
    t.equal(await from(address(11), 'pw'), '429 rate_limited', address(11));
  }
  t.equal(await from('2001:db8:2:1::1', 'pw'), '200', 'another network');
});

t.test('PASS-13 PASS-14 ERR-15: password checks do not block other calls, and their queue is bounded', async (t) => {
  const scene = await Scene.start(t);
  await scene.wire.post('/password/set', { password: 'pw' }, scene.as('a'));
  let answered = 0;
  const checks = Array.from({ length: 48 }, async (_, index) => {
    const reply = await verify(scene.server, index % 2 === 0 ? 'pw' : 'guess');
    answered++;
    return reply;
  });
  for (let index = 0; index < 10; index++) t.equal((await scene.me()).status, 200);
  t.ok(answered < 48, `10 other calls were answered while ${48 - answered} checks were under way`);
  const replies = await Promise.all(checks);
  const shed = replies.filter((reply) => reply.status === 503);
  t.ok(shed.length > 0, `${shed.length} were refused at once`);
  for (const reply of shed) {
    t.equal(reply.outcome, '503 unavailable');
    t.ok(Number(reply.headers['retry-after']) >= 1);
    t.ok(reply.headers['x-request-id']);
  }
  t.ok(replies.every((reply) => [200, 403, 503].includes(reply.status)));
  t.equal((await verify(scene.server, 'pw')).status, 200, 'checks are accepted again');
});

const HOST = '127.0.0.1';

interface Recovery {
  readonly body: Record<string, unknown>;
  readonly sign: (changes?: Readonly<Record<string, string | Buffer>>) => Record<string, unknown>;
}

/** A challenge, and a body that answers it; the signature of `sign` covers other values than the body has. */
async function recovery(server: Running, secretKey: Uint8Array, more: Json = {}): Promise<Recovery> {
  const reply = await server.wire.post('/devices/recover/challenge', {}, { shape: 'a' });
  if (reply.at('tenantId') !== server.tenantId) throw new Error(`no challenge of this tenant: ${reply.raw}`);
  const [challengeId, challenge] = [reply.text('challengeId'), Buffer.from(reply.text('challenge'), 'base64url')];
  const device = { deviceId: newId(), pubkey: randomBytes(32), deviceCert: randomBytes(32) };
  const body = { challengeId, host: HOST, ...device, name: 'back', glyph: 'laptop', ...more };
  const signed = (of: Readonly<Record<string, string | Buffer>>): Buffer => {
    const all = { ...body, challenge, tenantId: server.tenantId, ...of } as Record<string, string | Buffer>;
    const parts = ['host', 'tenantId', 'challengeId', 'challenge', 'deviceId', 'pubkey', 'deviceCert'].map(
      (name) => all[name] ?? '',
    );
    return Buffer.from(nodeSodium.sign(lp('service-recover-v1', ...parts), secretKey));
  };
  return {
    body: { ...body, signature: signed({}) },
    sign: (changes = {}) => ({ ...body, signature: signed(changes) }),
  };
}

t.test(
  'RECOV-01 RECOV-02 RECOV-03 RECOV-04 RECOV-05 RECOV-06 RECOV-08 PASS-11 PASS-15: recovery by the signature of a fresh challenge',
  async (t) => {
    const clock = new ShiftedClock();
    const server = await runServer(t, { clock });
    const keys = nodeSodium.signKeyPair(randomBytes(32));
    const first = await claim(server.wire, { recoveryPubkey: Buffer.from(keys.publicKey) });
    const item = newItem([first.id]);
    await mustWrite(server.wire, first, item);
    const post = async (body: Json): Promise<Reply> =>
      server.wire.post('/devices/recover', body, { shape: 'a', headers: { host: `${HOST}:${server.port}` } });
    const refused = async (what: string, body: Json): Promise<void> => {
      const reply = await post(body);
      t.ok(reply.status >= 400 && reply.status < 500 && reply.at('token') === undefined, `${what}: ${reply.outcome}`);
    };
    const changes = {
      host: 'evil.test',
      tenantId: newId(),
      challengeId: newId(),
      challenge: randomBytes(32),
      deviceId: newId(),
      pubkey: randomBytes(32),
      deviceCert: randomBytes(32),
    };
    for (const [field, value] of Object.entries(changes))
      await refused(`signed with another ${field}`, (await recovery(server, keys.secretKey)).sign({ [field]: value }));
    const relayed = await recovery(server, keys.secretKey, { host: 'evil.test' });
    await refused('signed for another host, and passed on from there', relayed.body);
    await refused('another key', (await recovery(server, nodeSodium.signKeyPair(randomBytes(32)).secretKey)).body);
    const late = await recovery(server, keys.secretKey);
    clock.advance(121_000);
    await refused('after two minutes', late.body);
    await refused('an id that is taken', (await recovery(server, keys.secretKey, { deviceId: first.id })).body);

    const watching = await server.wire.connect({ token: first.token });
    await watching.hello();
    const right = await recovery(server, keys.secretKey);
    const reply = await post(right.body);
    t.equal(reply.outcome, '200');
    t.equal(reply.at('device.id'), right.body['deviceId']);
    t.match(await watching.next('device_joined'), { device: { id: right.body['deviceId'] } });
    await refused('the same challenge again', { ...right.body, deviceId: newId() });
    const token = reply.text('token');
    const row = (await server.wire.get('/items?since=0', { token, shape: 'b' })).list('items')[0];
    t.match(
      row?.['master'],
      { nonce: item.master?.nonce.toString('base64'), ct: item.master?.ct.toString('base64') },
      'the row has its master wrap',
    );

    await server.wire.post('/password/set', { password: 'pw' }, { token });
    const next = await recovery(server, keys.secretKey);
    t.equal((await post(next.body)).outcome, '403 password_required');
    const { ticket } = (await verify(server, 'pw', { pubkey: next.body['pubkey'] })).body as Json;
    t.equal(
      (await post({ ...next.body, passwordTicket: ticket })).outcome,
      '200',
      'with a ticket the same challenge is still valid',
    );
    await server.wire.delete('/password', { token, body: { currentPassword: 'pw' } });
    const free = await recovery(server, keys.secretKey);
    t.equal((await post(free.body)).outcome, '200', 'once the password is removed no ticket is needed');
    await watching.close();
  },
);

t.test('RECOV-10: whatever Host says, a recovery is accepted for the public hosts only', async (t) => {
  const env = { PUBLIC_URL: 'https://sync.example:8443/base', DOMAIN: 'other.example' };
  const server = await runServer(t, { env });
  const keys = nodeSodium.signKeyPair(randomBytes(32));
  await claim(server.wire, { recoveryPubkey: Buffer.from(keys.publicKey) });
  const post = async (host: string, cameTo = 'service:8080'): Promise<Reply> => {
    const { body } = await recovery(server, keys.secretKey, { host });
    return server.wire.post('/devices/recover', body, { shape: 'a', headers: { host: cameTo } });
  };
  for (const host of ['sync.example', 'other.example']) t.equal((await post(host)).outcome, '200', host);
  for (const host of ['evil.test', 'sync.example:8443', 'a.sync.example'])
    t.equal((await post(host)).outcome, '403 forbidden', host);
  const told = server.logs.filter(({ msg }) => String(msg).startsWith('recovery refused'));
  t.match(told[0], { signedFor: 'evil.test', cameTo: 'service', tenantId: server.tenantId });
  t.equal(told.length, 3);
  t.equal((await post('evil.test', 'evil.test')).outcome, '403 forbidden', 'relayed with the name it was signed for');
  t.equal((await post('service')).outcome, '403 forbidden', 'nor for the name that the proxy uses');
});

t.test('RECOV-10: of a hosted service the own host of the tenant counts, and no other', async (t) => {
  const server = await hosted(t, { env: { PUBLIC_URL: `https://${BASE}` } });
  const keys = nodeSodium.signKeyPair(randomBytes(32));
  const claimToken = (await signUp(server.apex, 'anna')).text('claimToken');
  const wire = server.at('anna');
  await claim(wire, { claimToken, recoveryPubkey: Buffer.from(keys.publicKey) });
  const tenant = { ...server, wire, tenantId: (await wire.get('/service/status')).text('tenantId') };
  const post = async (host: string): Promise<string> =>
    (await wire.post('/devices/recover', (await recovery(tenant, keys.secretKey, { host })).body)).outcome;
  for (const host of [BASE, `berta.${BASE}`]) t.equal(await post(host), '403 forbidden', host);
  t.equal(await post(`anna.${BASE}`), '200');
});
