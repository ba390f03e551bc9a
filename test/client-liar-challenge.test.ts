/** A client whose server lies about a challenge for re-authentication (contract 9.6). */
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { newId } from './support/client.js';
import { refusal, world } from './support/client-world.js';
import { Liar } from './support/liar.js';
import { victim } from './support/victim.js';

t.setTimeout(300_000);

/** Lies about a challenge for re-authentication: what was sealed to the device is no challenge for it. */
t.test('CLIENT-19: a sealed key, or anything else, presented as a challenge is not answered', async (t) => {
  const all = await world(t);
  const liar = await Liar.before(t, all.server.port);
  const identity = all.first.identity();
  const { tenantId, deviceId, masterKey, keys } = identity;
  const lp = (...parts: readonly (string | Uint8Array)[]): Uint8Array =>
    Buffer.concat(
      parts.flatMap((part) => {
        const bytes = Buffer.from(part);
        const length = Buffer.alloc(4);
        length.writeUInt32BE(bytes.length);
        return [length, bytes];
      }),
    );
  const secret = nodeSodium.random(32);
  const forms: readonly [title: string, opened: (challengeId: string) => Uint8Array][] = [
    ['the master key', () => masterKey],
    ['an item key', () => nodeSodium.random(32)],
    ['another name', (id) => lp('service-other-v1', tenantId, deviceId, id, secret)],
    ['another tenant', (id) => lp('service-reauth-v1', 'x', deviceId, id, secret)],
    ['another device', (id) => lp('service-reauth-v1', tenantId, newId(), id, secret)],
    ['another challenge', () => lp('service-reauth-v1', tenantId, deviceId, 'x', secret)],
    ['a short secret', (id) => lp('service-reauth-v1', tenantId, deviceId, id, secret.subarray(1))],
    ['a long secret', (id) => lp('service-reauth-v1', tenantId, deviceId, id, Buffer.concat([secret, secret]))],
    [
      'something behind it',
      (id) => Buffer.concat([lp('service-reauth-v1', tenantId, deviceId, id, secret), Buffer.from([0])]),
    ],
    ['nothing', () => Buffer.alloc(0)],
  ];
  for (const [title, opened] of forms) {
    const fooled = await victim(t, liar, { ...identity, token: { text: 'worthless', expiresAt: null } });
    liar.calls.length = 0;
    liar.answer = ({ path }, truth) =>
      path === '/devices/reauth/challenge'
        ? {
            ...truth,
            challenge: Buffer.from(nodeSodium.seal(opened(String(truth['challengeId'])), keys.publicKey)).toString(
              'base64url',
            ),
          }
        : undefined;
    t.match(await refusal(fooled.device.me()), { reason: 'bad_challenge' }, title);
    t.notOk(
      liar.calls.some(({ path }) => path === '/devices/reauth'),
      `${title}: nothing is answered`,
    );
    fooled.device.close();
  }
  t.notOk(liar.leaked(masterKey) || liar.leaked(secret), 'and nothing of it is told');
  liar.answer = () => undefined;
  const honest = await victim(t, liar, { ...identity, token: { text: 'worthless', expiresAt: null } });
  t.match(await honest.device.me(), { device: { id: deviceId } }, 'a true challenge is answered');
});
