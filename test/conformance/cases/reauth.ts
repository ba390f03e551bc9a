/** Re-authentication. */
import { createHmac, randomBytes } from 'node:crypto';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { lp, newCode, newId, waitForRequest, wrapBody, type TestDevice } from '../../support/devices.js';
import { at, type Json, type Reply } from '../../support/wire.js';
import { type Case, type Stage, fields } from '../stage.js';

interface Challenge {
  readonly reply: Reply;
  readonly id: string;
  readonly opened: Buffer;
  readonly secret: Buffer;
}

async function challengeFor(stage: Stage, device: Pick<TestDevice, 'id' | 'keys'>): Promise<Challenge> {
  const reply = await stage.wire.post('/devices/reauth/challenge', { deviceId: device.id }, { shape: stage.shape });
  if (reply.status !== 200) throw new Error(`POST /api/devices/reauth/challenge answers ${reply.status} ${reply.raw}`);
  const body = fields(reply.body);
  const opened = nodeSodium.sealOpen(Buffer.from(String(body['challenge']), 'base64'), device.keys);
  if (opened === undefined) throw new Error("the challenge does not open with the device's key");
  const bytes = Buffer.from(opened);
  return { reply, id: String(body['challengeId']), opened: bytes, secret: bytes.subarray(-32) };
}

const answerFor = (tenantId: string, deviceId: string, { id, secret }: Challenge): Buffer =>
  createHmac('sha256', secret)
    .update(lp('service-reauth-answer-v1', tenantId, deviceId, id))
    .digest();

async function answer(stage: Stage, deviceId: string, challenge: Challenge): Promise<Reply> {
  const mac = answerFor(stage.world.tenantId, deviceId, challenge);
  return stage.wire.post(
    '/devices/reauth',
    { deviceId, challengeId: challenge.id, answer: mac },
    { shape: stage.shape },
  );
}

const noToken = (reply: Reply): boolean => reply.status >= 400 && reply.status < 500 && reply.at('token') === undefined;

const right: Case = {
  ids: ['REAUTH-01', 'REAUTH-02', 'REAUTH-03', 'REAUTH-05'],
  async run(stage, check) {
    const { first, world } = stage;
    const challenge = await challengeFor(stage, first);
    const { challengeId, expiresAt } = fields(challenge.reply.body);
    check.of(
      'REAUTH-01',
      challenge.reply,
      typeof challengeId === 'string' && Number(expiresAt) > Date.now(),
      '{challengeId, challenge, expiresAt}',
    );
    const want = lp('service-reauth-v1', world.tenantId, first.id, challenge.id, challenge.secret);
    check.same('REAUTH-02', challenge.opened.toString('hex'), want.toString('hex'), 'bytes in the sealed box');
    const reply = await answer(stage, first.id, challenge);
    check.outcome('REAUTH-03', reply, '200');
    check.of('REAUTH-03', reply, Number(fields(reply.body)['expiresAt']) > Date.now(), 'expiresAt ahead');
    const token = reply.text('token');
    const written = await stage.write(stage.item(), { ...first, token });
    check.outcome('REAUTH-03', written, '200', 'a write with the new token');
    const me = await stage.wire.get('/me', { token: reply.text('token') });
    check.of('REAUTH-03', me, at(me.body, 'device.id') === first.id, `/me of ${first.id} with the new token`);
    const again = await answer(stage, first.id, challenge);
    check.of('REAUTH-05', again, noToken(again), 'no token from a second use');
  },
};

const wrong: Case = {
  ids: ['REAUTH-04', 'REAUTH-07'],
  async run(stage, check) {
    const { first, second, wire, world, shape } = stage;
    const [mine, other, theirs] = [
      await challengeFor(stage, first),
      await challengeFor(stage, first),
      await challengeFor(stage, second),
    ];
    const post = async (body: Json): Promise<Reply> => wire.post('/devices/reauth', body, { shape });
    const ofMine = answerFor(world.tenantId, first.id, mine);
    const cases: readonly (readonly ['REAUTH-04' | 'REAUTH-07', string, Json])[] = [
      [
        'REAUTH-07',
        'an answer made for another challenge',
        { deviceId: first.id, challengeId: other.id, answer: ofMine },
      ],
      [
        'REAUTH-07',
        "another device's challenge",
        { deviceId: first.id, challengeId: theirs.id, answer: answerFor(world.tenantId, second.id, theirs) },
      ],
      ['REAUTH-04', 'a wrong answer', { deviceId: first.id, challengeId: mine.id, answer: randomBytes(32) }],
      ['REAUTH-04', 'an unknown challenge', { deviceId: first.id, challengeId: newId(), answer: ofMine }],
      ['REAUTH-04', 'no answer', { deviceId: first.id, challengeId: mine.id, answer: '' }],
      [
        'REAUTH-07',
        "another device's challenge, and a wrong answer",
        { deviceId: second.id, challengeId: (await challengeFor(stage, first)).id, answer: randomBytes(32) },
      ],
    ];
    for (const [id, what, body] of cases) {
      const reply = await post(body);
      check.of(id, reply, noToken(reply), `no token for ${what}`);
    }
    const unknown = await wire.post('/devices/reauth/challenge', { deviceId: newId() }, { shape });
    check.outcome('REAUTH-04', unknown, '404 device_not_found', 'a challenge for an unknown device');
  },
};

const late: Case = {
  ids: ['REAUTH-06'],
  needs: 'slow',
  async run(stage, check) {
    const challenge = await challengeFor(stage, stage.first);
    await stage.world.pause(121_000);
    const reply = await answer(stage, stage.first.id, challenge);
    check.of('REAUTH-06', reply, noToken(reply), 'no token after 121 s');
  },
};

const revoked: Case = {
  ids: ['REAUTH-08'],
  async run(stage, check) {
    const lost = await stage.join();
    const before = await challengeFor(stage, lost);
    await stage.world.revoke(lost);
    const reply = await answer(stage, lost.id, before);
    check.of('REAUTH-08', reply, noToken(reply), 'no token for a challenge from before the revocation');
    const asked = await stage.wire.post('/devices/reauth/challenge', { deviceId: lost.id }, { shape: stage.shape });
    check.outcome('REAUTH-08', asked, '403 device_revoked', 'a challenge for a revoked device');
  },
};

const lostReply: Case = {
  ids: ['REAUTH-09'],
  async run(stage, check) {
    const { wire, world, first } = stage;
    const keys = nodeSodium.boxKeyPair();
    const code = newCode();
    await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, stage.as('a'));
    const body = await world.npkBody(code, { pubkey: Buffer.from(keys.publicKey) });
    const gone = new AbortController();
    const held = wire.post('/devices/pair-fetch-npk', body, { signal: gone.signal }).catch(() => undefined);
    await waitForRequest(wire, first);
    gone.abort();
    await held;
    await wire.post('/devices/pair-wrap', wrapBody(code), stage.as('a'));
    const device = stage.adopt({ id: String(body['deviceId']), keys, token: '', name: 'lost' });
    const reply = await answer(stage, device.id, await challengeFor(stage, device));
    check.outcome('REAUTH-09', reply, '200', 're-authentication after the reply to the pairing was lost');
    const me = await wire.get('/me', { token: reply.text('token') });
    check.of('REAUTH-09', me, at(me.body, 'device.id') === device.id, `/me of ${device.id} with the token`);
  },
};

export const reauth: readonly Case[] = [right, wrong, late, revoked, lostReply];
