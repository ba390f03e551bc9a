/** The ways to become a device without another one at hand: claiming an empty server, and recovery by the phrase. */
import { certifyDevice } from '../crypto/device.js';
import { drawPhrase, keysOfPhrase, wrapMasterKey } from '../crypto/master-key.js';
import { hostOf } from '../crypto/pairing.js';
import { stretchPassword } from '../crypto/password.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { signRecovery } from '../crypto/recovery.js';
import type { KeyPair } from '../crypto/sodium.js';
import { equalBytes } from '../protocol/bytes.js';
import type { BootstrapBody, Glyph } from '../protocol/requests.js';
import { PublicApi, wireBytes } from './api.js';
import { ApiError, isUndecided, PairingError } from './errors.js';
import { Http } from './http.js';
import { SavableIdentity, type Token } from './identity.js';
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

/** Who joins which tenant. */
interface Joining {
  readonly own: Candidate;
  readonly tenantId: string;
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

/** A claim with its keys drawn. Keep it until `register` has resolved: the server may know these keys already. */
export interface Claim {
  /** The twelve words, to be shown once and kept nowhere: the only way back when all devices are lost. */
  readonly phrase: string;
  /**
   * Claims the server for this device. While it rejects with an error of `isUndecided`, call it again, for as long as
   * you like: an earlier call may have gone through, and is then finished by re-authentication. Any other
   * error is the end: `ApiError` `bootstrap_already_done` where somebody was faster, `forbidden` for a wrong claim
   * token, `CryptoRefusal` where the server registered another device.
   */
  register(): Promise<SavableIdentity>;
}

/**
 * Gets ready to claim an empty server: asks whether it is empty, draws the phrase and the device's keys, registers
 * nothing. `claimToken`: what the operator set or signup gave. Throws `ApiError` `bootstrap_already_done`.
 */
export async function prepareClaim(device: NewDevice & { readonly claimToken?: string }): Promise<Claim> {
  const { sodium } = device.platform;
  const own = candidate(device);
  const { tenantId, claimed } = await own.api.status();
  if (claimed) {
    throw new ApiError({ code: 'bootstrap_already_done', status: 410, message: 'this server is claimed already' });
  }
  const phrase = drawPhrase(sodium);
  const { masterKey, recovery } = await keysOfPhrase(sodium, phrase);
  sodium.memzero(recovery.secretKey);
  const body: BootstrapBody = {
    name: device.name,
    glyph: device.glyph,
    pubkey: wireBytes(own.keys.publicKey),
    deviceId: own.id,
    deviceCert: wireBytes(certifyDevice(sodium, masterKey, { id: own.id, publicKey: own.keys.publicKey })),
    recoveryPubkey: wireBytes(recovery.publicKey),
    wrappedMasterKey: wireBytes(wrapMasterKey(sodium, masterKey, own.keys.publicKey)),
    claimToken: device.claimToken ?? null,
  };
  const token = registering(device.platform, { own, tenantId }, () => own.api.bootstrap(body));
  return { phrase, register: async () => identityOf(device, { own, tenantId, masterKey, token: await token() }) };
}

/** A recovery with its keys drawn. */
export interface Recovery {
  /**
   * Joins. May be called again as `Claim.register` may; each call asks for the account password where one is set.
   * Throws `ApiError` `forbidden` for a phrase that is not this tenant's, `PairingError` `password_required`.
   */
  register(): Promise<SavableIdentity>;
  /** Forgets what the phrase gave. Call it when `register` has resolved, or is not called again. */
  forget(): void;
}

/** What recovery needs; `password` is asked for where an account password is set. */
export type RecoverRequest = NewDevice & { readonly phrase: string; readonly password?: AskPassword };

/** Gets ready to join with the twelve words, when no device is left to pair with. Registers nothing. */
export async function prepareRecovery(device: RecoverRequest): Promise<Recovery> {
  const { sodium } = device.platform;
  const own = candidate(device);
  const { tenantId } = await own.api.status();
  const { masterKey, recovery } = await keysOfPhrase(sodium, device.phrase);
  const { host, id: deviceId } = own;
  const deviceCert = certifyDevice(sodium, masterKey, { id: deviceId, publicKey: own.keys.publicKey });
  const send = async (): Promise<Registered> => {
    const { challengeId, challenge } = await own.api.recoverChallenge();
    const claimed = { host, tenantId, challengeId, challenge, deviceId, publicKey: own.keys.publicKey, deviceCert };
    const signature = wireBytes(signRecovery(sodium, recovery, claimed));
    const passwordTicket = await ticketFor(device, { own, tenantId });
    const { name, glyph } = device;
    const body = { challengeId, signature, deviceId, host, name, glyph, passwordTicket };
    const keys = { pubkey: wireBytes(own.keys.publicKey), deviceCert: wireBytes(deviceCert) };
    return own.api.recover({ ...body, ...keys });
  };
  const token = registering(device.platform, { own, tenantId }, send);
  return {
    register: async () => identityOf(device, { own, tenantId, masterKey, token: await token() }),
    forget: () => sodium.memzero(recovery.secretKey),
  };
}

/**
 * Joins with the twelve words, in one call of `Recovery.register`. Every item then opens through its master wrap.
 * Where it rejects with an error of `isUndecided` it may be begun anew: a device that nobody holds may then stand in
 * the list, and can be revoked. Who wants to avoid that uses `prepareRecovery`.
 */
export async function recover(device: RecoverRequest): Promise<SavableIdentity> {
  const recovery = await prepareRecovery(device);
  try {
    return await recovery.register();
  } finally {
    recovery.forget();
  }
}

type Registered = Awaited<ReturnType<PublicApi['bootstrap']>>;

/**
 * Registers one candidate, as often as its caller likes. After an attempt whose outcome is unknown, what the server
 * refuses may be our own second attempt: then re-authentication tells whether it knows this device by now.
 */
function registering(
  platform: Platform,
  { own, tenantId }: Joining,
  send: () => Promise<Registered>,
): () => Promise<Token> {
  let doubtful = false;
  return async () => {
    try {
      const reply = await send();
      expectOwn(own, reply.device);
      return { text: reply.token, expiresAt: null };
    } catch (failure) {
      if (isUndecided(failure)) doubtful = true;
      else if (!doubtful || !(failure instanceof ApiError)) throw failure;
      try {
        return await reauthenticate(own.api, platform, { tenantId, deviceId: own.id, keys: own.keys });
      } catch (error) {
        // Not known here, at least not yet: then what the registration met with is what the caller should hear.
        throw error instanceof ApiError && error.code === 'device_not_found' ? failure : error;
      }
    }
  };
}

/** Asks the user for the account password; null: none given. */
export type AskPassword = () => Promise<string | null>;

/** A ticket where an account password is set, else null. Throws `PairingError` `password_required`. */
export async function ticketFor(
  device: { readonly platform: Platform; readonly password?: AskPassword },
  { own, tenantId }: Joining,
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
  { own, tenantId, masterKey, token }: Joining & { readonly masterKey: Uint8Array; readonly token: Token },
): SavableIdentity => {
  const { name, glyph } = device;
  const at = { serverUrl: own.http.baseUrl, tenantId, deviceId: own.id };
  return SavableIdentity.of({ ...at, name, glyph, keys: own.keys, masterKey, token });
};
