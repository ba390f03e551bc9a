/** Lies about a challenge for re-authentication: what is sealed to the device is not a challenge for it. */
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import type { Identity } from '../../../src/sdk/identity.js';
import { lp } from '../../support/devices.js';
import { newId } from '../../support/client.js';
import type { Lie } from '../lie.js';
import { base64url } from '../proxy.js';

/** The identity that a challenge is for. */
type Asked = Pick<Identity, 'masterKey' | 'tenantId' | 'deviceId'>;
type Opened = (asked: Asked, challengeId: string) => Uint8Array;

const secret = nodeSodium.random(32);

/** The device renews its token and gets each of these in place of the challenge; it must answer none. */
const asked =
  (forms: readonly Opened[]): Lie['play'] =>
  async (stage) => {
    const { keys } = stage.identity;
    for (const opened of forms) {
      const fooled = await stage.device({ ...stage.identity, token: { text: 'worthless', expiresAt: null } });
      stage.liar.calls.length = 0;
      stage.liar.answer = ({ path }, truth) => {
        if (path !== '/devices/reauth/challenge') return undefined;
        const challenge = nodeSodium.seal(opened(stage.identity, String(truth['challengeId'])), keys.publicKey);
        return { ...truth, challenge: base64url(challenge) };
      };
      await stage.fails(fooled.me());
      fooled.close();
      if (stage.liar.calls.some(({ path }) => path === '/devices/reauth')) throw new Error('it was answered');
    }
    if (stage.liar.leaked(secret)) throw new Error('the secret was told');
    const other = stage.told.find((name) => name !== NAMED);
    if (other !== undefined) throw new Error(`told otherwise: ${other}`);
  };

export interface ChallengeLie extends Lie {
  /** What is sealed to the device in place of a challenge. */
  readonly forms: readonly Opened[];
}

const NAMED = 'throws CryptoRefusal bad_challenge';

const lie = (number: number, does: string, forms: readonly Opened[]): ChallengeLie => ({
  forms,
  id: `LIAR-${number}`,
  family: 'challenge',
  does,
  notices: 'The device; it does not answer',
  named: [NAMED],
  costs: 'The token is not renewed',
  play: asked(forms),
});

const NAME = 'service-reauth-v1';

export const CHALLENGE_LIES: readonly ChallengeLie[] = [
  lie(85, 'presents the sealed master key as a challenge', [({ masterKey }) => masterKey]),
  lie(86, 'presents a sealed item key as a challenge', [() => nodeSodium.random(32)]),
  lie(87, 'presents a challenge for another name, tenant, device or challenge id', [
    ({ tenantId, deviceId }, id) => lp('service-other-v1', tenantId, deviceId, id, secret),
    ({ deviceId }, id) => lp(NAME, 'x', deviceId, id, secret),
    ({ tenantId }, id) => lp(NAME, tenantId, newId(), id, secret),
    ({ tenantId, deviceId }) => lp(NAME, tenantId, deviceId, 'x', secret),
  ]),
  lie(88, 'presents a challenge that is too short or too long', [
    ({ tenantId, deviceId }, id) => lp(NAME, tenantId, deviceId, id, secret.subarray(1)),
    ({ tenantId, deviceId }, id) => lp(NAME, tenantId, deviceId, id, Buffer.concat([secret, secret])),
    ({ tenantId, deviceId }, id) => Buffer.concat([lp(NAME, tenantId, deviceId, id, secret), Buffer.from([0])]),
    () => Buffer.alloc(0),
  ]),
];
