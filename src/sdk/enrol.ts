/** Enrolment without another device: claiming an unclaimed server, and recovery by the phrase. */
import { certifyDevice } from '../crypto/device.js';
import { drawPhrase, keysOfPhrase, wrapMasterKey } from '../crypto/master-key.js';
import { hostOf } from '../crypto/pairing.js';
import { stretchPassword } from '../crypto/password.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { signRecovery } from '../crypto/recovery.js';
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import { equalBytes } from '../protocol/bytes.js';
import type { BootstrapBody, Glyph } from '../protocol/requests.js';
import { PublicApi } from './api.js';
import { ApiError, isUndecided, PairingError } from './errors.js';
import { Http } from './http.js';
import { SavableIdentity, type Identity, type Token } from './identity.js';
import type { Platform } from './platform.js';
import { reauthenticate } from './session.js';
import { ulid } from './ulid.js';

/** The parameters of every enrolment. */
export interface NewDevice {
  readonly platform: Platform;
  /** Address of the server. */
  readonly serverUrl: string;
  /** 1 to 64 characters. */
  readonly name: string;
  readonly glyph: Glyph;
}

/** A device before its registration: id, keys and the calls without a token. Sends nothing. */
export function candidate({ platform, serverUrl, name, glyph }: NewDevice) {
  const http = new Http({ ...platform, baseUrl: serverUrl });
  const { sodium, clock } = platform;
  const id = ulid(clock.now(), (length) => sodium.random(length));
  const keys = sodium.boxKeyPair();
  return {
    ...{ id, keys, http },
    api: new PublicApi((request) => http.send(request)),
    /** The host of the address that the user entered. */
    host: hostOf(http.baseUrl),
    /** The fields that every registration has. */
    fields: { deviceId: id, name, glyph, pubkey: toBase64Url(keys.publicKey) },
  };
}

type Candidate = ReturnType<typeof candidate>;

/** The device and the tenant that it joins. */
interface Joining {
  readonly own: Candidate;
  readonly tenantId: string;
}

/** The reply must name this device: otherwise a key of the server would be certified. Throws `CryptoRefusal`. */
function expectThisDevice(own: Candidate, device: { readonly id: string; readonly pubkey: Uint8Array }): void {
  if (device.id !== own.id || !equalBytes(device.pubkey, own.keys.publicKey))
    throw new CryptoRefusal('wrong_device', 'the server registered another device than this one');
}

/** A claim with its keys drawn. Keep it until `register` has resolved: the server may already know these keys. */
export interface Claim {
  /** The twelve words, to be shown once and never stored: the only means of recovery when all devices are lost. */
  readonly phrase: string;
  /**
   * Claims the server for this device. While it rejects with an error for which `isUndecided` is true, it may be
   * called again any number of times: an earlier call may have succeeded, and is then completed by re-authentication.
   * Any other error is final: `ApiError` `bootstrap_already_done` where the server was claimed by another device,
   * `forbidden` for a wrong claim token, `CryptoRefusal` where the server registered another device.
   */
  register(): Promise<SavableIdentity>;
}

/**
 * Prepares the claim of a server: checks that it is unclaimed, draws the phrase and the device's keys, registers
 * nothing. `claimToken`: set by the operator or given by signup. Throws `ApiError` `bootstrap_already_done`.
 */
export async function prepareClaim(device: NewDevice & { readonly claimToken?: string }): Promise<Claim> {
  const { sodium } = device.platform;
  const own = candidate(device);
  const { tenantId, claimed } = await own.api.status();
  if (claimed)
    throw new ApiError({ code: 'bootstrap_already_done', status: 410, message: 'this server is claimed already' });
  const phrase = drawPhrase(sodium);
  const { masterKey, recovery } = await keysOfPhrase(sodium, phrase);
  sodium.memzero(recovery.secretKey);
  const body: BootstrapBody = {
    ...own.fields,
    deviceCert: toBase64Url(certifyDevice(sodium, masterKey, { id: own.id, publicKey: own.keys.publicKey })),
    recoveryPubkey: toBase64Url(recovery.publicKey),
    wrappedMasterKey: toBase64Url(wrapMasterKey(sodium, masterKey, own.keys.publicKey)),
    claimToken: device.claimToken ?? null,
  };
  return { phrase, register: registration(sodium, { own, tenantId, masterKey }, () => own.api.bootstrap(body)) };
}

/** A recovery with its keys drawn. */
export interface Recovery {
  /**
   * Registers. May be called again as `Claim.register` may; each call requests the account password where one is set.
   * Throws `ApiError` `forbidden` for the phrase of another tenant, `PairingError` `password_required`.
   */
  register(): Promise<SavableIdentity>;
  /** Erases the keys of the phrase. Call it when `register` has resolved or will not be called again. */
  forget(): void;
}

/** The parameters of a recovery; `password` is called where an account password is set. */
export type RecoverRequest = NewDevice & { readonly phrase: string; readonly password?: AskPassword };

/** Prepares joining with the twelve words, when no device is left to pair with. Registers nothing. */
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
    const signature = toBase64Url(signRecovery(sodium, recovery, claimed));
    const passwordTicket = await ticketFor(device, { own, tenantId });
    const body = { ...own.fields, challengeId, signature, host, passwordTicket };
    return own.api.recover({ ...body, deviceCert: toBase64Url(deviceCert) });
  };
  const register = registration(sodium, { own, tenantId, masterKey }, send);
  return { register, forget: () => sodium.memzero(recovery.secretKey) };
}

/**
 * Joins with the twelve words by a single `Recovery.register`. Every item opens through its master wrap. Where it
 * rejects with an error for which `isUndecided` is true, it may be started again; an unused device may then be listed,
 * and can be revoked. `prepareRecovery` avoids that.
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
 * A function that registers one candidate and may be called again. After an attempt with unknown outcome, a refusal may
 * be caused by that attempt: re-authentication then determines whether the server knows this device.
 */
function registration(
  sodium: Sodium,
  joining: Joining & { readonly masterKey: Uint8Array },
  send: () => Promise<Registered>,
): () => Promise<SavableIdentity> {
  const { own, tenantId } = joining;
  let uncertain = false;
  const token = async (): Promise<Token> => {
    try {
      const reply = await send();
      expectThisDevice(own, reply.device);
      return { text: reply.token, expiresAt: null };
    } catch (failure) {
      if (isUndecided(failure)) uncertain = true;
      else if (!uncertain || !(failure instanceof ApiError)) throw failure;
      try {
        return await reauthenticate(own.api, sodium, { tenantId, deviceId: own.id, keys: own.keys });
      } catch (error) {
        // The server does not know the device, at least not yet: the caller gets the error of the registration.
        throw error instanceof ApiError && error.code === 'device_not_found' ? failure : error;
      }
    }
  };
  return async () => registeredIdentity({ ...joining, token: await token() });
}

/** Asks the user for the account password; null: none given. */
export type AskPassword = () => Promise<string | null>;

/** A password ticket where an account password is set, else null. Throws `PairingError` `password_required`. */
export async function ticketFor(
  device: { readonly platform: Platform; readonly password?: AskPassword },
  { own, tenantId }: Joining,
): Promise<string | null> {
  if (!(await own.api.passwordExists())) return null;
  const password = (await device.password?.()) ?? null;
  if (password === null) throw new PairingError('password_required');
  const stretched = await stretchPassword(device.platform.sodium, { password, tenantId });
  return own.api.passwordTicket(stretched, own.keys.publicKey);
}

/** The identity of a registered device. */
export const registeredIdentity = ({
  own: { http, keys, fields },
  ...joined
}: Joining & Pick<Identity, 'masterKey' | 'token'>): SavableIdentity =>
  SavableIdentity.of({ serverUrl: http.baseUrl, ...fields, keys, ...joined });
