/** Lies over the network to a client that writes, pairs, claims or renews its token. */
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { newId } from '../../support/client.js';
import type { ChallengeLie } from '../lies/challenge.js';
import { LOW_ORDER, OTHER_CLAIM, OTHER_TENANT, PAIR_LIES, type PairLie } from '../lies/pairing.js';
import { SLIPS, spy } from '../lies/slips.js';
import type { Json } from '../proxy.js';
import type { Desk } from './desk.js';
import { numberOf, told, type NetworkLie } from './script.js';

// Writing.

export async function writes(desk: Desk): Promise<string | undefined> {
  const text = 'not for spies';
  const lines = await desk.client.do({ do: 'put', text });
  const stored = lines.find((line) => 'stored' in line)?.['stored'] as Json | undefined;
  if (stored !== undefined) desk.note(String(stored['id']), text);
  return stored === undefined ? undefined : String(stored['id']);
}

export const WRITES: readonly NetworkLie[] = [
  told(55, 'devices', {
    play: async (desk) => {
      const error = { code: 'validation', message: 'keys', details: { path: 'keys', missingDevices: [newId()] } };
      desk.liar.raw = ({ method, path }) =>
        method === 'POST' && path.startsWith('/items') ? { status: 400, body: JSON.stringify({ error }) } : undefined;
      await writes(desk);
    },
  }),
  ...SLIPS.map(({ id, change }) =>
    told(numberOf(id), 'devices', {
      play: async (desk) => {
        desk.liar.answer = ({ path }, truth) =>
          path === '/devices' ? { ...truth, devices: change(desk.clientId)(truth['devices'] as Json[]) } : undefined;
        await writes(desk);
        if (sealedForSpy(desk)) desk.believed.push('it sealed a key for another key than that of the device');
      },
    }),
  ),
  told(62, 'devices', {
    play: async (desk) => {
      const { offer, joined } = await desk.letIn();
      await desk.third(offer.words);
      const third = await joined;
      await writes(desk);
      await desk.owner.revoke(third);
      await writes(desk);
      await desk.arm();
      desk.liar.answer = ({ path }, truth) =>
        path === '/devices'
          ? {
              ...truth,
              devices: (truth['devices'] as Json[]).map((one) =>
                one['id'] === third ? { ...one, revokedAt: null } : one,
              ),
            }
          : undefined;
      await writes(desk);
    },
  }),
  told(61, 'devices', {
    silence: 'right',
    play: async (desk) => {
      const pubkey = Buffer.from(spy.publicKey).toString('base64url');
      desk.liar.answer = ({ path }, truth) =>
        path === '/devices'
          ? {
              ...truth,
              devices: (truth['devices'] as Json[]).map((one) =>
                one['id'] === desk.clientId ? { ...one, pubkey } : one,
              ),
            }
          : undefined;
      await writes(desk);
      if (sealedForSpy(desk)) desk.believed.push('it took its own key from the list');
    },
  }),
];

/** True where the spy can open a key of an item that the client wrote. */
const sealedForSpy = (desk: Desk): boolean =>
  desk.liar.calls
    .flatMap(({ body }) => Object.values(((body['payloadEnc'] ?? {}) as Json)['keys'] ?? {}) as string[])
    .some((key) => nodeSodium.sealOpen(Buffer.from(key, 'base64url'), spy) !== undefined);

// Pairing.

/** The client shows words, and another device joins with them. Returns whether the client released the master key. */
export async function offers(desk: Desk, host?: string): Promise<boolean> {
  await desk.client.do({ do: 'offer' }, ({ words }) => {
    // The join is not awaited: all that counts is whether the key was released.
    if (typeof words === 'string') void desk.third(words, host);
  });
  return desk.liar.calls.some(({ path, body }) => path === '/devices/pair-wrap' && 'wrappedMasterKey' in body);
}

const ofExisting = ({ id, hooks }: PairLie): NetworkLie =>
  told(numberOf(id), 'pairing', {
    play: async (desk) => {
      const old = await desk.oldPairing();
      Object.assign(desk.liar, hooks(old));
      if (await offers(desk)) desk.believed.push('it released the master key');
    },
  });

/** The client joins by the owner's words. */
async function joins(desk: Desk): Promise<void> {
  const { offer } = await desk.letIn();
  await desk.client.do({ do: 'join', url: desk.liar.url, words: offer.words });
  offer.cancel();
}

const ofNew = ({ id, hooks }: Pick<PairLie, 'id' | 'hooks'>): NetworkLie =>
  told(numberOf(id), 'pairing', {
    joined: false,
    play: async (desk) => {
      const old = await desk.oldPairing();
      Object.assign(desk.liar, hooks(old));
      await joins(desk);
    },
  });

export const PAIRING: readonly NetworkLie[] = [
  ...PAIR_LIES.map((lie) => (lie.side === 'existing' ? ofExisting(lie) : ofNew(lie))),
  ofNew(LOW_ORDER),
  told(83, 'renewal', {
    joined: false,
    play: async (desk) => {
      Object.assign(desk.liar, OTHER_TENANT.hooks());
      await desk.joinClient();
      desk.liar.honest();
      await desk.client.do({ do: 'renew' });
    },
  }),
  told(84, 'claim', {
    joined: false,
    play: async (desk) => {
      desk.liar.raw = ({ path, body }) => {
        if (path === '/me') return { body: JSON.stringify({ device: {}, tenantId: newId(), server: {} }) };
        if (path === '/service/status') return { body: JSON.stringify({ mode: 'single', claimed: false }) };
        if (path !== '/devices/bootstrap') return undefined;
        const { deviceId, name, glyph, pubkey } = body;
        return { body: JSON.stringify({ device: { id: deviceId, name, glyph, pubkey, pairedAt: 1 }, token: 'x' }) };
      };
      const { raw } = desk.liar;
      desk.liar.raw = (call) => {
        const reply = raw(call);
        if (reply?.body === undefined || call.path !== '/devices/bootstrap') return reply;
        const lie = OTHER_CLAIM.hooks().answer?.(call, JSON.parse(String(reply.body)) as Json);
        return { body: JSON.stringify(lie) };
      };
      await desk.client.do({ do: 'claim', url: desk.liar.url });
    },
  }),
  told(118, 'pairing', {
    play: async (desk) => {
      if (await offers(desk, 'localhost')) desk.believed.push('it released the master key');
    },
  }),
];

export const ofChallenge = ({ id, forms }: ChallengeLie): NetworkLie =>
  told(numberOf(id), 'renewal', {
    play: async (desk) => {
      for (const form of forms) {
        const asked = { ...desk.tenant, deviceId: desk.clientId };
        const key = await desk.clientKey();
        desk.liar.answer = ({ path }, truth) =>
          path === '/devices/reauth/challenge'
            ? {
                ...truth,
                challenge: Buffer.from(nodeSodium.seal(form(asked, String(truth['challengeId'])), key)).toString(
                  'base64url',
                ),
              }
            : undefined;
        await desk.client.do({ do: 'renew' });
      }
      if (desk.liar.calls.some(({ path }) => path === '/devices/reauth'))
        desk.believed.push('it answered what is no challenge');
    },
  });
