/** A device whose token has expired, or never arrived, proves that it holds its key. */
import { createHmac, randomBytes } from 'node:crypto';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { ShiftedClock } from './support/clock.js';
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
  type TestDevice,
} from './support/devices.js';
import { Scene } from './support/scene.js';
import { runServer } from './support/server.js';
import { at, SHAPES, type Json, type Reply, type Shape, type Wire } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first, second } = scene;

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
