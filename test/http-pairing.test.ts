/** Devices without a token: pairing over HTTP, and one whose token has expired or never arrived, which proves its key. */
import { randomBytes, createHmac } from 'node:crypto';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Timer } from '../src/protocol/clock.js';
import { ShiftedClock, TestClock } from './support/clock.js';
import {
  claim,
  join,
  newCode,
  newId,
  newItem,
  npkBody,
  waitForRequest,
  wrapBody,
  write,
  type TestDevice,
  lp,
  mustWrite,
} from './support/devices.js';
import { until } from './support/events.js';
import { Scene } from './support/scene.js';
import { runServer } from './support/server.js';
import { camel, SHAPES, spelled, type Json, type Reply, type Shape, type Wire, at } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first, second } = scene;

const epk = (): Buffer => Buffer.from(nodeSodium.boxKeyPair().publicKey);

async function start(of: Wire, device: TestDevice, code = newCode()): Promise<string> {
  const reply = await of.post('/devices/pair-init', { code, epk: epk() }, { token: device.token, shape: 'a' });
  if (reply.status !== 200) throw new Error(reply.raw);
  return code;
}

const fetchEpk = async (code: string, of = wire, shape: Shape = 'a'): Promise<Reply> =>
  of.post('/devices/pair-fetch-epk', { code }, { shape });
const fetchNpk = async (body: Json, of = wire, shape: Shape = 'a'): Promise<Reply> =>
  of.post('/devices/pair-fetch-npk', body, { shape });
const wrap = async (body: Json, device = first, of = wire): Promise<Reply> =>
  of.post('/devices/pair-wrap', body, { token: device.token, shape: 'a' });
const refused = (reply: Reply): boolean => reply.status >= 400 && reply.status < 500;

for (const shape of SHAPES) {
  t.test(
    `PAIR-01 PAIR-04 PAIR-08 PAIR-11 PAIR-12 PAIR-14 PAIR-15 PAIR-17 DEV-12: four steps pair (${shape})`,
    async (t) => {
      const [mine, theirs] = [await scene.watch(first, shape), await scene.watch(second, shape)];
      const [code, ephemeral] = [newCode(), epk()];
      const before = Date.now();
      const reply = await wire.post('/devices/pair-init', { code, epk: ephemeral }, scene.as(shape));
      const [earliest, latest] = [before + 300_000, Date.now() + 300_000];
      const started = camel(reply.body);
      t.equal(started['code'], code);
      t.type(started['lookupId'], 'string');
      const { expiresAt } = started;
      t.ok(Number(expiresAt) >= earliest && Number(expiresAt) <= latest, 'five minutes');
      const spell = (bytes: unknown): unknown => spelled(shape, bytes);
      t.same(camel((await fetchEpk(code, wire, shape)).body), {
        epk: spell(ephemeral),
        expiresAt,
        tenantId: scene.server.tenantId,
      });
      const body = npkBody(code, { name: 'Phone', glyph: 'tablet', host: 'sync.example.org' });
      const held = fetchNpk(body, wire, shape);
      const request = {
        lookupId: started['lookupId'],
        ...body,
        pubkey: spell(body['pubkey']),
        attestation: spell(body['attestation']),
        expiresAt,
      };
      t.match(camel(await mine.next('pair_request')), { type: 'pair_request', ...request });
      t.same((await wire.get('/devices/pair-requests', scene.as(shape))).list('requests').map(camel), [request]);
      t.same((await wire.get('/devices/pair-requests', scene.as(shape, second))).list('requests'), []);
      const devices = (await wire.get('/devices', scene.as('a'))).list('devices');
      t.notOk(
        devices.some((device) => device['id'] === body['deviceId']),
        'not a device yet',
      );
      const release = wrapBody(code);
      t.same((await wire.post('/devices/pair-wrap', release, scene.as(shape))).body, { ok: true });
      const paired = await held;
      t.equal(paired.outcome, '200');
      const { device, token, ...rest } = camel(paired.body);
      t.match(device, { id: body['deviceId'], name: 'Phone', glyph: 'tablet', pubkey: spell(body['pubkey']) });
      t.same(
        rest,
        spelled('a', {
          ...Object.fromEntries(
            Object.entries(release)
              .filter(([key]) => key !== 'code')
              .map(([key, value]) => [key, spell(value)]),
          ),
        }),
      );
      t.equal((await wire.get('/me', { token: String(token) })).at('device.id'), body['deviceId']);
      for (const socket of [mine, theirs])
        t.match((await socket.next('device_joined'))['device'], { id: body['deviceId'] });
      t.same(theirs.of('pair_request'), [], 'no other device gets the request');
      t.same(
        (await wire.get('/devices/pair-requests', scene.as(shape))).list('requests'),
        [],
        'no request is pending any more',
      );
      await wire.post(`/devices/${String(body['deviceId'])}/revoke`, {}, scene.as(shape));
      for (const socket of [mine, theirs]) await socket.close();
    },
  );
}

t.test('PAIR-02 PAIR-03 PAIR-05: a code in use, a replaced and an unknown code are refused', async (t) => {
  const code = await start(wire, first);
  const taken = await wire.post('/devices/pair-init', { code, epk: epk() }, scene.as('b', second));
  t.equal(taken.outcome, '409 conflict');
  t.equal(
    (await wire.post('/devices/pair-init', { code: code.toUpperCase(), epk: epk() }, scene.as('a', second))).outcome,
    '409 conflict',
    'in upper case',
  );
  const next = await start(wire, first);
  t.equal((await fetchEpk(code)).outcome, '400 pair_invalid', 'a new session ends the old');
  t.equal((await fetchEpk(next)).status, 200);
  t.equal((await fetchEpk(` ${next.toUpperCase().replaceAll(' ', '-')}  `)).status, 200, 'in any spelling');
  for (const unknown of [newCode(), 'one two three', 'x']) {
    t.equal((await fetchEpk(unknown)).outcome, '400 pair_invalid', unknown);
    t.equal((await fetchNpk(npkBody(unknown))).outcome, '400 pair_invalid');
    t.equal((await wrap(wrapBody(unknown))).outcome, '400 pair_invalid');
  }
  for (const bad of [{}, { code: 7 }, { code: '' }, { code: null }, { code: 'x'.repeat(5_000) }])
    t.equal((await wire.post('/devices/pair-fetch-epk', bad)).outcome, '400 validation');
});

t.test('PAIR-06 PAIR-01: a code older than five minutes is pair_expired', async (t) => {
  const clock = new ShiftedClock();
  const server = await runServer(t, { clock });
  const device = await claim(server.wire);
  const code = await start(server.wire, device);
  clock.advance(299_000);
  t.equal((await fetchEpk(code, server.wire)).status, 200);
  clock.advance(2_000);
  t.equal((await fetchEpk(code, server.wire)).outcome, '400 pair_expired');
  t.equal((await fetchNpk(npkBody(code), server.wire)).outcome, '400 pair_expired');
  t.equal((await wrap(wrapBody(code), device, server.wire)).outcome, '400 pair_expired');
  await start(server.wire, device, code);
  t.equal((await fetchEpk(code, server.wire)).status, 200, 'the code may be used again');
});

/** Counts timers of 1 or 2 s: in one instance without sockets only a held call that has looked sets one. */
class HoldClock extends TestClock {
  looks = 0;

  override setTimer(ms: number, fn: () => void): Timer {
    if (ms !== 1_000 && ms !== 2_000) return super.setTimer(ms, fn);
    this.looks++;
    let over = (): void => {
      this.looks--;
      over = () => undefined;
    };
    const timer = super.setTimer(ms, () => {
      over();
      fn();
    });
    return {
      cancel: () => {
        over();
        timer.cancel();
      },
    };
  }
}

t.test('PAIR-07 PAIR-09 PAIR-10 PAIR-24: a call is held for 25 s, and again when repeated with its key', async (t) => {
  const clock = new HoldClock();
  const server = await runServer(t, { clock });
  const device = await claim(server.wire);
  const code = await start(server.wire, device);
  const body = npkBody(code);
  /** Advances the clock while the call waits, until it is answered; returns the reply and the time taken, ms. */
  const turnUntil = async (call: Promise<Reply>): Promise<readonly [Reply, number]> => {
    const began = clock.now();
    let reply: Reply | undefined;
    const done = call.then((answer) => (reply = answer));
    await until('the answer', () => {
      if (clock.looks > 0) clock.advance(1_000);
      return reply !== undefined;
    });
    return [await done, clock.now() - began];
  };
  for (const shape of SHAPES) {
    const [reply, ms] = await turnUntil(fetchNpk(body, server.wire, shape));
    t.equal(reply.status, 202);
    t.same(reply.body, { status: 'pending' });
    t.equal(ms, 25_000);
  }
  t.equal((await fetchNpk({ ...body, pubkey: epk() }, server.wire)).outcome, '400 pair_invalid', 'another key');
  const older = fetchNpk(body, server.wire);
  await waitForRequest(server.wire, device);
  const newer = fetchNpk(body, server.wire);
  t.equal((await Promise.race([older, newer])).status, 202, 'a device has one held call');
  await wrap(wrapBody(code), device, server.wire);
  const replies = await Promise.all([older, newer]);
  t.same(replies.map((reply) => reply.status).toSorted(), [200, 202], 'the remaining call has the result');
  const again = await fetchNpk(body, server.wire);
  t.equal(again.at('device.id'), body['deviceId'], 'the same key gets the result again');
  t.equal((await fetchNpk({ ...body, pubkey: epk() }, server.wire)).outcome, '400 pair_invalid');
});

t.test('PAIR-13: a pending pair_request is sent again after caught_up', async (t) => {
  const code = await start(wire, first);
  const held = fetchNpk(npkBody(code));
  await waitForRequest(wire, first);
  for (const shape of SHAPES) {
    const socket = await scene.watch(first, shape);
    t.equal(camel(await socket.next('pair_request'))['code'], code);
    await socket.close();
  }
  await wrap({ code, reject: true });
  await held;
  const later = await scene.watch(first);
  const marker = await write(wire, second, scene.item());
  t.equal((await later.next())['version'], marker.at('version'), 'not after the decision');
  await later.close();
});

t.test('PAIR-16 PAIR-18 PAIR-19: only the device that started may answer; a reject ends the session', async (t) => {
  for (const shape of SHAPES) {
    const code = await start(wire, first);
    t.ok(refused(await wrap(wrapBody(code))), 'before a new device has called');
    const body = npkBody(code);
    const held = fetchNpk(body, wire, shape);
    await waitForRequest(wire, first);
    t.equal((await wrap(wrapBody(code), second)).outcome, '400 pair_invalid', 'a device that did not start it');
    t.ok(refused(await wrap({ code, reject: true }, second)));
    t.same((await wrap({ code, reject: true })).body, { ok: true });
    t.equal((await held).outcome, '400 pair_invalid');
    t.equal((await fetchNpk(body)).outcome, '400 pair_invalid');
    t.equal((await fetchEpk(code)).outcome, '400 pair_invalid');
    t.ok(refused(await wrap(wrapBody(code))), 'a reject ends the session');
    t.notOk(
      (await wire.get('/devices', scene.as('a'))).list('devices').some((device) => device['id'] === body['deviceId']),
    );
  }
  for (const bad of [
    {},
    { wrappedMasterKey: 'x' },
    { wrappedMasterKey: randomBytes(80), deviceCert: randomBytes(31) },
    { reject: 'yes' },
  ]) {
    t.equal((await wrap({ code: newCode(), ...bad })).status, 400);
  }
});

t.test('PAIR-20: a client that sends neither a device id nor a host can pair', async (t) => {
  const code = await start(wire, first);
  const held = fetchNpk(npkBody(code, { deviceId: undefined, host: undefined }));
  const request = await waitForRequest(wire, first);
  t.match(request['deviceId'], /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/, 'the server generated an id');
  t.equal((await wrap({ code, wrappedMasterKey: randomBytes(80) })).status, 200);
  const paired = await held;
  t.equal(paired.at('device.id'), request['deviceId']);
  t.equal((await wire.get('/me', { token: paired.text('token') })).status, 200);
  await wire.post(`/devices/${paired.text('device.id')}/revoke`, {}, scene.as('a'));
});

t.test('PAIR-21 PAIR-22: a known id and a device beyond MAX_DEVICES are refused', async (t) => {
  const code = await start(wire, first);
  t.equal((await fetchNpk(npkBody(code, { deviceId: second.id }))).outcome, '409 device_exists');
  const full = await Scene.start(t, { env: { MAX_DEVICES: '2' } });
  const fullCode = await start(full.wire, full.first);
  t.equal((await fetchNpk(npkBody(fullCode), full.wire)).outcome, '409 device_limit');
  await full.wire.post(`/devices/${full.second.id}/revoke`, {}, full.as('a'));
  t.ok((await join(full.wire, full.first)).token, 'a revoked device makes room');
});

t.test('PAIR-23 INST-08: each step may be served by another instance', async (t) => {
  const beside = await runServer(t, { database: { url: scene.server.databaseUrl } });
  const socket = await beside.wire.connect({ token: first.token });
  await socket.hello(await scene.head());
  for (const [initAt, epkAt, npkAt, wrapAt] of [
    [wire, beside.wire, wire, beside.wire],
    [beside.wire, wire, beside.wire, wire],
  ] as const) {
    const code = await start(initAt, first);
    t.equal((await fetchEpk(code, epkAt)).status, 200);
    const body = npkBody(code);
    const held = fetchNpk(body, npkAt);
    t.equal((await socket.next('pair_request'))['code'], code, 'the frame arrives where the device is connected');
    t.equal((await wrap(wrapBody(code), first, wrapAt)).status, 200);
    const paired = await held;
    t.equal(paired.status, 200);
    const device = { token: paired.text('token') };
    for (const instance of [wire, beside.wire]) {
      t.equal((await write(instance, device, newItem(scene.ids))).status, 400, 'a write without its key is refused');
      t.equal((await write(instance, device, newItem([...scene.ids, String(body['deviceId'])]))).status, 200);
    }
    await wire.post(`/devices/${String(body['deviceId'])}/revoke`, {}, scene.as('a'));
    await socket.next('device_revoked');
  }
  await socket.close();
});

t.test('PAIR-24 ERR-05: a held call whose client disconnects leaves nothing behind', async (t) => {
  const code = await start(wire, first);
  const body = npkBody(code, { deviceId: newId() });
  for (let round = 0; round < 5; round++) {
    const gone = new AbortController();
    const call = wire.post('/devices/pair-fetch-npk', body, { signal: gone.signal });
    await waitForRequest(wire, first);
    gone.abort();
    await t.rejects(call);
  }
  const held = fetchNpk(body);
  await wrap(wrapBody(code));
  t.equal((await held).at('device.id'), body['deviceId']);
  await wire.post(`/devices/${String(body['deviceId'])}/revoke`, {}, scene.as('a'));
});

interface Challenge {
  readonly id: string;
  readonly opened: Buffer;
  readonly secret: Buffer;
}

async function challengeFor(of: Wire, device: Pick<TestDevice, 'id' | 'keys'>, shape: Shape = 'a'): Promise<Challenge> {
  const reply = await of.post('/devices/reauth/challenge', { deviceId: device.id }, { shape });
  if (reply.status !== 200) throw new Error(reply.raw);
  const sealed = Buffer.from(reply.text('challenge'), 'base64');
  const opened = nodeSodium.sealOpen(sealed, device.keys);
  if (opened === undefined) throw new Error('the challenge does not open');
  return {
    id: reply.text(shape === 'a' ? 'challengeId' : 'challenge_id'),
    opened: Buffer.from(opened),
    secret: Buffer.from(opened.subarray(-32)),
  };
}

const answerFor = (tenantId: string, deviceId: string, { id, secret }: Challenge): Buffer =>
  createHmac('sha256', secret)
    .update(lp('service-reauth-answer-v1', tenantId, deviceId, id))
    .digest();

t.test(
  'REAUTH-01 REAUTH-02 REAUTH-03 REAUTH-04 REAUTH-05 REAUTH-07: a device proves that it holds its key',
  async (t) => {
    const { tenantId } = scene.server;
    const answer = async (body: Json, shape: Shape = 'a'): Promise<Reply> =>
      wire.post('/devices/reauth', body, { shape });
    for (const shape of SHAPES) {
      const challenge = await challengeFor(wire, first, shape);
      t.same(
        challenge.opened,
        lp('service-reauth-v1', tenantId, first.id, challenge.id, challenge.secret),
        'the challenge opens to exactly these bytes',
      );
      const right = { deviceId: first.id, challengeId: challenge.id, answer: answerFor(tenantId, first.id, challenge) };
      const reply = await answer(right, shape);
      t.equal(reply.outcome, '200');
      t.ok(Number(reply.at(shape === 'a' ? 'expiresAt' : 'expires_at')) > Date.now() + 29 * 86_400_000);
      t.equal((await wire.get('/me', { token: reply.text('token') })).at('device.id'), first.id);
      const again = await answer(right, shape);
      t.ok(again.status >= 400 && again.status < 500 && again.at('token') === undefined, 'a challenge works once');
    }
    const [mine, other] = [await challengeFor(wire, first), await challengeFor(wire, first)];
    const theirs = await challengeFor(wire, second);
    const wrong: readonly Json[] = [
      { deviceId: first.id, challengeId: mine.id, answer: randomBytes(32) },
      { deviceId: first.id, challengeId: other.id, answer: answerFor(tenantId, first.id, mine) },
      { deviceId: first.id, challengeId: theirs.id, answer: answerFor(tenantId, second.id, theirs) },
      { deviceId: second.id, challengeId: (await challengeFor(wire, first)).id, answer: randomBytes(32) },
      { deviceId: first.id, challengeId: newId(), answer: randomBytes(32) },
      { deviceId: first.id, challengeId: (await challengeFor(wire, first)).id, answer: Buffer.alloc(0) },
    ];
    for (const body of wrong) {
      const reply = await answer(body);
      t.ok(reply.status >= 400 && reply.status < 500, reply.outcome);
      t.equal(reply.at('token'), undefined);
    }
    t.equal((await wire.post('/devices/reauth/challenge', { deviceId: newId() })).outcome, '404 device_not_found');
  },
);

t.test('REAUTH-06: a challenge older than two minutes gives no token', async (t) => {
  const clock = new ShiftedClock();
  const server = await runServer(t, { clock });
  const device = await claim(server.wire);
  for (const [ms, status] of [
    [110_000, 200],
    [121_000, 403],
  ] as const) {
    const challenge = await challengeFor(server.wire, device);
    clock.advance(ms);
    const answer = answerFor(server.tenantId, device.id, challenge);
    t.equal(
      (await server.wire.post('/devices/reauth', { deviceId: device.id, challengeId: challenge.id, answer })).status,
      status,
      `after ${ms} ms`,
    );
  }
});

t.test('REAUTH-08 REAUTH-09: a revoked device gets no token, one that lost its reply does', async (t) => {
  const { tenantId } = scene.server;
  const lost = await join(wire, first);
  const before = await challengeFor(wire, lost);
  await wire.post(`/devices/${lost.id}/revoke`, {}, { token: first.token });
  const late = await wire.post('/devices/reauth', {
    deviceId: lost.id,
    challengeId: before.id,
    answer: answerFor(tenantId, lost.id, before),
  });
  t.ok(late.status >= 400 && late.at('token') === undefined, 'not even for a challenge from before the revocation');
  t.equal((await wire.post('/devices/reauth/challenge', { deviceId: lost.id })).outcome, '403 device_revoked');

  const keys = nodeSodium.boxKeyPair();
  const code = newCode();
  await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, { token: first.token });
  const body = npkBody(code, { pubkey: Buffer.from(keys.publicKey) });
  const gone = new AbortController();
  const held = wire.post('/devices/pair-fetch-npk', body, { signal: gone.signal }).catch((error: unknown) => error);
  await waitForRequest(wire, first);
  gone.abort();
  await held;
  await wire.post('/devices/pair-wrap', wrapBody(code), { token: first.token });
  const device = { id: String(body['deviceId']), keys };
  const challenge = await challengeFor(wire, device);
  const reply = await wire.post('/devices/reauth', {
    deviceId: device.id,
    challengeId: challenge.id,
    answer: answerFor(tenantId, device.id, challenge),
  });
  t.equal(at((await wire.get('/me', { token: reply.text('token') })).body, 'device.id'), device.id);
  const fresh = await runServer(t);
  const claimed = await claim(fresh.wire);
  const again = await challengeFor(fresh.wire, claimed);
  const token = await fresh.wire.post('/devices/reauth', {
    deviceId: claimed.id,
    challengeId: again.id,
    answer: answerFor(fresh.tenantId, claimed.id, again),
  });
  t.equal(await mustWrite(fresh.wire, { token: token.text('token') }, newItem([claimed.id])), 1);
});
