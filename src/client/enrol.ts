/** The ways to become a device without another one at hand: claiming an empty server, and recovery by the phrase. */
import { certifyDevice } from '../crypto/device.js';
import { drawPhrase, keysOfPhrase, wrapMasterKey } from '../crypto/master-key.js';
import { hostOf } from '../crypto/pairing.js';
import { stretchPassword } from '../crypto/password.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { signRecovery } from '../crypto/recovery.js';
import type { KeyPair } from '../crypto/sodium.js';
import { equalBytes } from '../protocol/bytes.js';
import type { Glyph } from '../protocol/requests.js';
import { PublicApi, wireBytes } from './api.js';
import { ApiError, NetworkError, PairingError } from './errors.js';
import { Http } from './http.js';
import type { Identity, Token } from './identity.js';
import type { Platform } from './platform.js';
import { reauthenticate } from './session.js';
import { ulid } from './ulid.js';

/** What every way of becoming a device needs. */
export interface NewDevice {
  readonly platform: Platform;
  /** Address of the server. */
  readonly serverUrl: string;
  /** 1 to 64 characters. */
  readonly name: string;
  readonly glyph: Glyph;
}

/** A device that is about to be: its id, its keys, and a way to ask the server. */
export interface Candidate {
  readonly http: Http;
  readonly api: PublicApi;
  readonly id: string;
  readonly keys: KeyPair;
  /** The host as it was dialled. */
  readonly host: string;
}

/** Draws id and keys. Nothing is sent. */
export function candidate({ platform, serverUrl }: Pick<NewDevice, 'platform' | 'serverUrl'>): Candidate {
  const http = new Http({ ...platform, baseUrl: serverUrl });
  const { sodium, clock } = platform;
  return {
    http,
    api: new PublicApi((request) => http.send(request)),
    id: ulid(clock.now(), (length) => sodium.random(length)),
    keys: sodium.boxKeyPair(),
    host: hostOf(http.baseUrl),
  };
}

/** The reply must register this device and no other: a key of the server's would be certified otherwise. */
function expectOwn(own: Candidate, device: { readonly id: string; readonly pubkey: Uint8Array }): void {
  if (device.id !== own.id || !equalBytes(device.pubkey, own.keys.publicKey)) {
    throw new CryptoRefusal('wrong_device', 'the server registered another device than this one');
  }
}

/**
 * Claims an empty server. Gives the device's identity and the twelve words, which are shown once and kept nowhere:
 * they are the only way back when all devices are lost. `claimToken`: what the operator set or signup gave.
 * Throws `ApiError` `bootstrap_already_done` where somebody was faster.
 */
export async function claim(
  device: NewDevice & { readonly claimToken?: string },
): Promise<{ readonly identity: Identity; readonly phrase: string }> {
  const { sodium } = device.platform;
  const own = candidate(device);
  const { tenantId, claimed } = await own.api.status();
  if (claimed) {
    throw new ApiError({ code: 'bootstrap_already_done', status: 410, message: 'this server is claimed already' });
  }
  const phrase = drawPhrase(sodium);
  const { masterKey, recovery } = await keysOfPhrase(sodium, phrase);
  sodium.memzero(recovery.secretKey);
  const register = (): Promise<Registered> =>
    own.api.bootstrap({
      name: device.name,
      glyph: device.glyph,
      pubkey: wireBytes(own.keys.publicKey),
      deviceId: own.id,
      deviceCert: wireBytes(certifyDevice(sodium, masterKey, { id: own.id, publicKey: own.keys.publicKey })),
      recoveryPubkey: wireBytes(recovery.publicKey),
      wrappedMasterKey: wireBytes(wrapMasterKey(sodium, masterKey, own.keys.publicKey)),
      claimToken: device.claimToken ?? null,
    });
  const token = await registered(device, { own, tenantId, register });
  return { identity: identityOf(device, { own, tenantId, masterKey, token }), phrase };
}

/**
 * Joins with the twelve words, when no device is left to pair with. `password`: asked for where an account password is
 * set. Every item then opens through its master wrap.
 */
export async function recover(
  device: NewDevice & { readonly phrase: string; readonly password?: AskPassword },
): Promise<Identity> {
  const { sodium } = device.platform;
  const { masterKey, recovery } = await keysOfPhrase(sodium, device.phrase);
  const own = candidate(device);
  const { challengeId, challenge, tenantId } = await own.api.recoverChallenge();
  const deviceCert = certifyDevice(sodium, masterKey, { id: own.id, publicKey: own.keys.publicKey });
  const { host, id: deviceId } = own;
  const claimed = { host, tenantId, challengeId, challenge, deviceId, publicKey: own.keys.publicKey, deviceCert };
  const signature = signRecovery(sodium, recovery, claimed);
  sodium.memzero(recovery.secretKey);
  const passwordTicket = await ticketFor(device, { own, tenantId });
  const register = (): Promise<Registered> =>
    own.api.recover({
      challengeId,
      signature: wireBytes(signature),
      deviceId,
      host,
      pubkey: wireBytes(own.keys.publicKey),
      deviceCert: wireBytes(deviceCert),
      name: device.name,
      glyph: device.glyph,
      passwordTicket,
    });
  const token = await registered(device, { own, tenantId, register });
  return identityOf(device, { own, tenantId, masterKey, token });
}

type Registered = Awaited<ReturnType<PublicApi['bootstrap']>>;

/** Registers, and where the reply is lost finds out by re-authentication whether it went through (contract 4). */
async function registered(
  { platform }: NewDevice,
  at: { readonly own: Candidate; readonly tenantId: string; readonly register: () => Promise<Registered> },
): Promise<Token> {
  const { own, tenantId } = at;
  try {
    const reply = await at.register();
    expectOwn(own, reply.device);
    return { text: reply.token, expiresAt: null };
  } catch (error) {
    if (!(error instanceof NetworkError)) throw error;
    try {
      return await reauthenticate(own.api, platform.sodium, { tenantId, deviceId: own.id, keys: own.keys });
    } catch (second) {
      // The server does not know the device: the request never arrived, and that is what the caller should hear.
      throw second instanceof ApiError ? error : second;
    }
  }
}

/** Asks the user for the account password; null: none given. */
export type AskPassword = () => Promise<string | null>;

/** A ticket where an account password is set, else null. Throws `PairingError` `password_required`. */
export async function ticketFor(
  device: { readonly platform: Platform; readonly password?: AskPassword },
  { own, tenantId }: { readonly own: Candidate; readonly tenantId: string },
): Promise<string | null> {
  if (!(await own.api.passwordExists())) return null;
  const typed = (await device.password?.()) ?? null;
  if (typed === null) throw new PairingError('password_required', 'an account password is set, and none was given');
  const sent = await stretchPassword(device.platform.sodium, { password: typed, tenantId });
  return own.api.passwordTicket(sent, own.keys.publicKey);
}

/** Everything a new device must keep. */
export const identityOf = (
  device: Pick<NewDevice, 'name' | 'glyph'>,
  made: { readonly own: Candidate; readonly tenantId: string; readonly masterKey: Uint8Array; readonly token: Token },
): Identity => ({
  serverUrl: made.own.http.baseUrl,
  tenantId: made.tenantId,
  deviceId: made.own.id,
  name: device.name,
  glyph: device.glyph,
  keys: made.own.keys,
  masterKey: made.masterKey,
  token: made.token,
});
