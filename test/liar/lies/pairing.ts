/** Lies to either side of a pairing, and to a device that claims a server. */
import { certifyDevice } from '../../../src/crypto/device.js';
import { wrapMasterKey } from '../../../src/crypto/master-key.js';
import type { RefusalReason } from '../../../src/crypto/refusal.js';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { newId } from '../../support/client.js';
import type { Told } from '../lie.js';
import { base64url, type Hooks, type Json } from '../proxy.js';

const spy = nodeSodium.boxKeyPair();
const spyMaster = nodeSodium.random(32);
/** Well-formed: a client may refuse an id of another form before it joins. */
const otherTenant = newId();

/** What the server kept from an earlier, honest pairing. */
export interface OldPairing {
  /** The existing device's id. */
  readonly known: string;
  /** The frame that the existing device got. */
  readonly request: Json;
  /** The answer that the new device got. */
  readonly release: Json;
}

/** A lie that needs nothing from an earlier pairing. */
interface SingleLie extends Told {
  readonly hooks: () => Partial<Hooks>;
}

export interface PairLie extends Told {
  /** The device that must refuse: the one that shows the words, or the new one. */
  readonly side: 'existing' | 'new';
  readonly hooks: (old: OldPairing) => Partial<Hooks>;
}

const EPK = '/devices/pair-fetch-epk';
const NPK = '/devices/pair-fetch-npk';

/** To the new device: another answer. */
const answered = (at: string, change: (truth: Json) => Json): Partial<Hooks> => ({
  answer: ({ path }, truth) => (path === at ? change(truth) : undefined),
});
/** To the server, and by it to the existing device: another request. */
const told = (change: (body: Json) => Json): Partial<Hooks> => ({
  tell: ({ path, body }) => (path === NPK ? change(body) : undefined),
});
/** The request on its way to the existing device, as a frame and in a listing. */
const onRequest = (change: (request: Json) => Json): Partial<Hooks> => ({
  frame: (frame) => [frame['type'] === 'pair_request' ? change(frame) : frame],
  answer: ({ path }, truth) =>
    path === '/devices/pair-requests' ? { ...truth, requests: (truth['requests'] as Json[]).map(change) } : undefined,
});
const onRelease = (change: (truth: Json) => Json): Partial<Hooks> =>
  answered(NPK, (truth) => ('token' in truth ? change(truth) : truth));

const deviceOf = (truth: Json): Json => truth['device'] as Json;
const ownKeyOf = (truth: Json): Uint8Array => Buffer.from(String(deviceOf(truth)['pubkey']), 'base64url');
const picked = (from: Json, ...fields: readonly string[]): Json =>
  Object.fromEntries(fields.map((field) => [field, from[field]]));

function toExisting(number: number, does: string, reason: RefusalReason, hooks: PairLie['hooks']): PairLie {
  return {
    id: `LIAR-${number}`,
    family: 'pairing',
    does,
    notices: 'The device that shows the words, before it prompts its user; nothing is released',
    named: [`throws PairingError bad_request: CryptoRefusal ${reason}`, 'throws PairingError rejected'],
    costs: 'The pairing ends; new words are needed',
    side: 'existing',
    hooks,
  };
}

function toNew(number: number, does: string, reason: RefusalReason, hooks: PairLie['hooks']): PairLie {
  return {
    id: `LIAR-${number}`,
    family: 'pairing',
    does,
    notices: 'The new device; it accepts no key',
    named: [`throws CryptoRefusal ${reason}`],
    costs: 'The pairing ends; revoke the device that was registered',
    side: 'new',
    hooks,
  };
}

export const PAIR_LIES: readonly PairLie[] = [
  toExisting(66, "swaps the existing device's key (epk)", 'bad_attestation', () =>
    answered(EPK, (truth) => ({ ...truth, epk: base64url(spy.publicKey) })),
  ),
  toExisting(67, "swaps the new device's key (npk)", 'bad_attestation', () =>
    told((body) => ({ ...body, pubkey: base64url(spy.publicKey) })),
  ),
  toExisting(68, 'changes the attestation', 'bad_attestation', () =>
    told((body) => ({ ...body, attestation: base64url(Buffer.alloc(32, 1)) })),
  ),
  toExisting(69, 'gives the new device another name', 'bad_attestation', () =>
    told((body) => ({ ...body, name: 'Trust me' })),
  ),
  toExisting(70, 'gives the new device another glyph', 'bad_attestation', () =>
    told((body) => ({ ...body, glyph: 'globe' })),
  ),
  toExisting(71, 'gives the new device another id', 'bad_attestation', () =>
    told((body) => ({ ...body, deviceId: newId() })),
  ),
  toExisting(72, 'lies about the host that the new device dialled', 'wrong_host', () =>
    told((body) => ({ ...body, host: 'evil.example' })),
  ),
  toExisting(73, 'gives the new device the id of a known device', 'known_device', ({ known }) =>
    onRequest((request) => ({ ...request, deviceId: known })),
  ),
  toExisting(74, 'replays the request of an old pairing', 'bad_attestation', ({ request: old }) =>
    onRequest((request) => ({ ...old, ...picked(request, 'type', 'code', 'lookupId'), deviceId: newId() })),
  ),
  toNew(75, 'injects a master key', 'bad_confirmation', () =>
    onRelease((truth) => ({
      ...truth,
      wrappedMasterKey: base64url(wrapMasterKey(nodeSodium, spyMaster, ownKeyOf(truth))),
    })),
  ),
  toNew(76, 'changes the confirmation', 'bad_confirmation', () =>
    onRelease((truth) => ({ ...truth, confirmation: base64url(Buffer.alloc(32, 1)) })),
  ),
  toNew(77, 'changes the certificate', 'bad_confirmation', () =>
    onRelease((truth) => ({ ...truth, deviceCert: base64url(Buffer.alloc(32, 1)) })),
  ),
  toNew(78, 'answers with a complete release of its own', 'bad_confirmation', () =>
    onRelease((truth) => {
      const device = { id: String(deviceOf(truth)['id']), publicKey: ownKeyOf(truth) };
      return {
        ...truth,
        wrappedMasterKey: base64url(wrapMasterKey(nodeSodium, spyMaster, device.publicKey)),
        deviceCert: base64url(certifyDevice(nodeSodium, spyMaster, device)),
      };
    }),
  ),
  toNew(79, 'replays the release of an old pairing', 'bad_confirmation', ({ release }) =>
    onRelease((truth) => ({ ...truth, ...picked(release, 'wrappedMasterKey', 'deviceCert', 'confirmation') })),
  ),
  toNew(80, 'registers the new device under another id', 'wrong_device', () =>
    onRelease((truth) => ({ ...truth, device: { ...deviceOf(truth), id: newId() } })),
  ),
  toNew(81, 'registers the new device with another key', 'wrong_device', () =>
    onRelease((truth) => ({ ...truth, device: { ...deviceOf(truth), pubkey: base64url(spy.publicKey) } })),
  ),
];

/** Played only to the new device, before there is anything to release. */
export const LOW_ORDER: SingleLie = {
  id: 'LIAR-82',
  family: 'pairing',
  does: 'hands out a low-order key, which makes every shared secret known',
  notices: 'The new device, before it sends anything that depends on the words',
  named: ['throws CryptoRefusal low_order'],
  costs: 'The pairing ends; new words are needed',
  hooks: () => answered(EPK, (truth) => ({ ...truth, epk: base64url(Buffer.alloc(32)) })),
};

export const OTHER_TENANT: SingleLie = {
  id: 'LIAR-83',
  family: 'pairing',
  does: 'sends a new device another tenant',
  notices: 'The device, when its token is renewed: no genuine challenge is for that tenant',
  named: ['throws CryptoRefusal bad_challenge'],
  costs: 'The device must be paired again',
  hooks: () => answered(EPK, (truth) => ({ ...truth, tenantId: otherTenant })),
};

export const OTHER_CLAIM: SingleLie = {
  id: 'LIAR-84',
  family: 'pairing',
  does: 'registers another key at a claim',
  notices: 'The device that claims',
  named: ['throws CryptoRefusal wrong_device'],
  costs: 'The server is not used',
  hooks: () =>
    answered('/devices/bootstrap', (truth) => ({
      ...truth,
      device: { ...deviceOf(truth), pubkey: base64url(spy.publicKey) },
    })),
};

/** The attestation is right: the new device made it for the host that it dialled. */
export const OTHER_HOST: Told = {
  id: 'LIAR-118',
  family: 'pairing',
  does: 'forwards the pairing of a device that dialled another host',
  notices: 'The device that shows the words, before it prompts its user; nothing is released',
  named: ['throws PairingError bad_request: CryptoRefusal wrong_host', 'throws PairingError rejected'],
  costs: 'The pairing ends; new words are needed, and both devices must use the same address',
};
