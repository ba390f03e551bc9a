/** Devices without a token: pairing over HTTP, and one whose token has expired or never arrived, which proves its key. */
import { createHmac } from 'node:crypto';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Timer } from '../src/protocol/clock.js';
import { ShiftedClock, TestClock } from './support/clock.js';
import {
  claim,
  join,
  newCode,
  newItem,
  npkBody,
  waitForRequest,
  wrapBody,
  write,
  type TestDevice,
  lp,
} from './support/devices.js';
import { until } from './support/events.js';
import { Scene } from './support/scene.js';
import { runServer } from './support/server.js';
import { SHAPES, type Json, type Reply, type Shape, type Wire } from './support/wire.js';

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

t.test('PAIR-06 PAIR-28 PAIR-01: a code older than five minutes is pair_expired', async (t) => {
  const clock = new ShiftedClock();
  const server = await runServer(t, { clock });
  const device = await claim(server.wire);
  const code = await start(server.wire, device);
  clock.advance(299_000);
  t.equal((await fetchEpk(code, server.wire)).status, 200);
  clock.advance(2_000);
  t.equal((await fetchEpk(code, server.wire)).outcome, '400 pair_expired');
  t.equal((await fetchNpk(npkBody(code), server.wire)).outcome, '400 pair_expired');
  t.equal((await fetchNpk({ ...npkBody(code), withdraw: true }, server.wire)).outcome, '400 pair_expired');
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

interface Challenge {
  readonly id: string;
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
    secret: Buffer.from(opened.subarray(-32)),
  };
}

const answerFor = (tenantId: string, deviceId: string, { id, secret }: Challenge): Buffer =>
  createHmac('sha256', secret)
    .update(lp('service-reauth-answer-v1', tenantId, deviceId, id))
    .digest();

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
    const body = { deviceId: device.id, challengeId: challenge.id, answer };
    const reply = await server.wire.post('/devices/reauth', body);
    t.equal(reply.status, status, `after ${ms} ms`);
    if (status === 200) t.ok(reply.number('expiresAt') > clock.now() + 29 * 86_400_000, 'the token lives a month');
  }
});
