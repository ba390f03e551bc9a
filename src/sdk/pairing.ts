/**
 * Pairing over a server that may be malicious (the reference, Pairing). E, the existing device, shows six words, which
 * the user enters on N, the new device. The server relays, learns neither the words nor the key, and has one guess.
 */
import { toBase64Url } from '../protocol/base64.js';
import { asError } from '../protocol/error-code.js';
import {
  acceptRelease,
  drawPairCode,
  hostOf,
  judgeJoin,
  readPairCode,
  releaseMasterKey,
  requestJoin,
  type PairLink,
} from '../crypto/pairing.js';
import { delay, monotonic, within } from '../protocol/clock.js';
import { isDisplayName, isUlid } from '../protocol/ids.js';
import { PAIR_SESSION_MS } from '../protocol/limits.js';
import { isGlyph } from './api.js';
import type { Core } from './core.js';
import { abortable, backoffMs, RETRY } from './platform.js';
import { candidate, registeredIdentity, ticketFor, type AskPassword, type NewDevice } from './enrol.js';
import { ApiError, isConflict, isTransient, isUndecided, NetworkError, PairingError, ProtocolError } from './errors.js';
import type { SavableIdentity } from './identity.js';
import type { PairRequest } from './replies.js';
import type { DeviceList } from './device-list.js';

/**
 * The request that the user of the existing device approves, after checking that it is the new device and that its
 * screen shows the same digits.
 */
export interface JoinApproval {
  readonly deviceId: string;
  readonly name: string;
  readonly glyph: string;
  /** Six decimal digits, equal on both screens unless there is a man in the middle. */
  readonly digits: string;
}

/** A pairing in progress on the existing device. */
export interface PairingOffer {
  /** The six words to show. They are never sent. */
  readonly words: string;
  /** By this device's clock, ms. */
  readonly expiresAt: number;
  /** The new device's id, once the key was released to it. Rejects with `PairingError`. */
  readonly joined: Promise<string>;
  cancel(): void;
}

/** The dependencies of E's side. */
interface OfferHost extends Pick<Core, 'api' | 'sodium' | 'clock' | 'identity' | 'onProblem'> {
  readonly deviceList: DeviceList;
  /** Subscribes to `pair_request` frames; the result ends that. */
  readonly onRequest: (listener: (request: PairRequest) => void) => () => void;
}

type Approve = (request: JoinApproval) => boolean | Promise<boolean>;

/**
 * Interval at which E polls for requests in addition to listening, because its socket may be down; and then for whether
 * the request is still there.
 */
const POLL_MS = 2_000;
/** How long N waits until the server knows that it has withdrawn. */
const WITHDRAW_MS = 2_000;
/** Attempts to draw an unused code. */
const DRAWS_MAX = 5;

type Session = Awaited<ReturnType<typeof openSession>>;

/**
 * E: draws a code, registers it, and waits for one new device. `approve` is called once, after all automatic checks
 * have passed. One request ends the session regardless of its outcome: a second one would be a second guess.
 */
export async function offerPairing(host: OfferHost, approve: Approve): Promise<PairingOffer> {
  const session = await openSession(host);
  const stop = new AbortController();
  const joined = decide(host, session, { approve, cancelled: stop.signal }).finally(() => {
    stop.abort();
    host.sodium.memzero(session.code.codeKey);
    host.sodium.memzero(session.keys.secretKey);
  });
  // The caller may await the result late, or never.
  joined.catch(() => undefined);
  return {
    words: session.code.visibleCode,
    expiresAt: session.expiresAt,
    joined,
    cancel: () => stop.abort(new PairingError('cancelled')),
  };
}

async function openSession({ api, sodium, clock }: OfferHost) {
  for (let draw = 1; ; draw++) {
    const code = await drawPairCode(sodium);
    const keys = sodium.boxKeyPair();
    const now = monotonic(clock);
    const expiresAt = now() + PAIR_SESSION_MS;
    try {
      await api.pairInit(code.wireCode, keys.publicKey);
      return { code, keys, now, expiresAt };
    } catch (error) {
      if (!isConflict(error)) throw error;
      if (draw >= DRAWS_MAX) throw new PairingError('no_code', { cause: error });
    }
  }
}

async function decide(
  host: OfferHost,
  session: Session,
  { approve, cancelled }: { readonly approve: Approve; readonly cancelled: AbortSignal },
): Promise<string> {
  try {
    const request = await firstRequest(host, session, cancelled);
    const link = await verifiedLink(host, session, request);
    try {
      const { deviceId, name, glyph } = link.transcript;
      const answer = Promise.resolve(approve({ deviceId, name, glyph, digits: link.digits }));
      const answered = new AbortController();
      // A user who does not answer must not keep a cancelled pairing open.
      const approval = abortable(answer, [cancelled], () => cancelled.throwIfAborted());
      const withdrawn = withdrawal(host, session, AbortSignal.any([cancelled, answered.signal]));
      const approved = await Promise.race([approval, withdrawn]).finally(() => answered.abort());
      expectTime(session);
      if (!approved) throw new PairingError('rejected');
      await release(host, session, link);
      return deviceId;
    } finally {
      host.sodium.memzero(link.secret);
    }
  } catch (error) {
    // After any failure the code must not be used again.
    await reject(host, session);
    throw error instanceof PairingError ? error : new PairingError('bad_request', { cause: error });
  }
}

/** The first request for this code, from a frame or from a poll. */
async function firstRequest(host: OfferHost, session: Session, cancelled: AbortSignal): Promise<PairRequest> {
  const found = new AbortController();
  const ended = AbortSignal.any([cancelled, found.signal]);
  let request: PairRequest | undefined;
  const take = (candidates: readonly PairRequest[]): void => {
    request ??= candidates.find(({ code }) => code === session.code.wireCode);
    if (request !== undefined) found.abort();
  };
  const unsubscribe = host.onRequest((one) => take([one]));
  try {
    while (request === undefined) {
      take((await polled(host)) ?? []);
      cancelled.throwIfAborted();
      expectTime(session);
      // Ends early where a request arrives.
      if (request === undefined) await delay(host.clock, POLL_MS, ended).catch(() => undefined);
    }
    return request;
  } finally {
    unsubscribe();
  }
}

/** The requests that wait at the server; undefined: it gave no answer, or a proxy did in its place. */
async function polled({ api, onProblem }: OfferHost): Promise<readonly PairRequest[] | undefined> {
  try {
    return await api.once.pairRequests();
  } catch (error) {
    if (!isTransient(error) && !(error instanceof ProtocolError)) throw error;
    onProblem(error);
    return undefined;
  }
}

/**
 * Rejects once the server does not have the request any more: it was withdrawn, or this device began another pairing, in
 * another program perhaps, which replaces its session. Never settles after `until`.
 */
async function withdrawal(host: OfferHost, session: Session, until: AbortSignal): Promise<never> {
  for (;;) {
    await delay(host.clock, POLL_MS, until).catch(() => new Promise<never>(() => undefined));
    // A clock that is set back while the user compares takes away only the time since the last reading.
    session.now();
    const requests = await polled(host);
    if (requests !== undefined && !requests.some(({ code }) => code === session.code.wireCode)) {
      expectTime(session);
      throw new PairingError('withdrawn');
    }
  }
}

function expectTime({ now, expiresAt }: Session): void {
  if (now() >= expiresAt) throw new PairingError('expired');
}

/** The automatic checks before the user's approval. What it throws becomes the cause of `PairingError` `bad_request`. */
async function verifiedLink(host: OfferHost, session: Session, request: PairRequest): Promise<PairLink> {
  const { sodium, identity, deviceList } = host;
  const { deviceId, host: dialled, pubkey: npk, name, glyph, attestation } = request;
  if (!isUlid(deviceId) || dialled === null)
    throw new ProtocolError('the new device does not say which it is and where it dialled');
  if (!isDisplayName(name) || !isGlyph(glyph))
    throw new ProtocolError('the new device has a name or glyph that cannot be shown');
  const knownDevices = new Set([...(await deviceList.refresh()).map((device) => device.id), identity.deviceId]);
  const own = { code: session.code, keys: session.keys, host: hostOf(identity.serverUrl), knownDevices };
  return judgeJoin(sodium, { deviceId, host: dialled, npk, name, glyph, attestation }, own);
}

async function release(host: OfferHost, session: Session, link: PairLink): Promise<void> {
  const { api, sodium, identity, deviceList } = host;
  const released = releaseMasterKey(sodium, link, identity.masterKey);
  try {
    const { wrappedMasterKey, deviceCert, confirmation } = released;
    const keys = { wrappedMasterKey: toBase64Url(wrappedMasterKey), deviceCert: toBase64Url(deviceCert) };
    await api.pairWrap({ code: session.code.wireCode, ...keys, confirmation: toBase64Url(confirmation) });
  } catch (error) {
    // The first reply may have been lost after the device joined, and the repeat is then refused: check the list.
    const there = (await deviceList.refresh()).some(({ id }) => id === link.transcript.deviceId);
    if (there) return;
    // The session was this device's, and requested: it was withdrawn, or this device began another pairing.
    throw error instanceof ApiError && error.code === 'pair_invalid'
      ? new PairingError('withdrawn', { cause: error })
      : error;
  }
}

/**
 * Ends the session on the server, so that no second guess is possible. Errors of this call are only reported, because
 * the user gets the reason of the failure.
 */
async function reject({ api, onProblem }: OfferHost, session: Session): Promise<void> {
  try {
    await api.pairWrap({ code: session.code.wireCode, reject: true });
  } catch (error) {
    // Status 400: the session has already expired or was replaced by another code.
    if (!(error instanceof ApiError && error.status === 400)) onProblem(asError(error));
  }
}

/** The parameters of `join`. */
export interface JoinRequest extends NewDevice {
  /** The six words as typed. */
  readonly words: string;
  /** Shows the digits, for the user to compare. */
  readonly onDigits: (digits: string) => void;
  readonly password?: AskPassword;
  /** Ends the attempt, and withdraws the request to join where the existing device may show it. */
  readonly signal?: AbortSignal;
}

/**
 * N: joins with the words that an existing device shows. Rejects with `CryptoRefusal` `bad_words` before anything is
 * sent, with `PairingError`, or with a `CryptoRefusal` that says which check of the reply failed.
 */
export async function join(request: JoinRequest): Promise<SavableIdentity> {
  const { sodium } = request.platform;
  const code = await readPairCode(sodium, request.words);
  const own = candidate(request);
  const { epk, tenantId } = await own.api.pairFetchEpk(code.wireCode).catch(inPairingTerms('unknown_code'));
  const device = { id: own.id, keys: own.keys, name: request.name, glyph: request.glyph };
  const { link, attestation } = requestJoin(sodium, { code, host: own.host, epk, device });
  try {
    request.onDigits(link.digits);
    const passwordTicket = await ticketFor(request, { own, tenantId });
    const sent = { code: code.wireCode, host: own.host, attestation: toBase64Url(attestation), passwordTicket };
    const body = { ...own.fields, ...sent };
    const reply = await pollRelease(request, () => own.api.pairFetchNpk(body, request.signal)).catch(
      async (error: unknown) => {
        // Else the other device would show the request until the code expires, and could admit a device that is gone.
        if (request.signal?.aborted === true)
          await within(request.platform.clock, WITHDRAW_MS, own.api.pairWithdraw(body), undefined).catch(
            () => undefined,
          );
        throw error;
      },
    );
    const { wrappedMasterKey, deviceCert, confirmation } = reply;
    const masterKey = acceptRelease(sodium, link, {
      device: { id: reply.device.id, publicKey: reply.device.pubkey },
      release: { wrappedMasterKey, deviceCert, confirmation },
      keys: own.keys,
    });
    return registeredIdentity({ own, tenantId, masterKey, token: { text: reply.token, expiresAt: null } });
  } finally {
    sodium.memzero(link.secret);
    sodium.memzero(code.codeKey);
  }
}

/**
 * Polls until the existing device has decided, at most for the lifetime of a code. Transient failures do not end it:
 * the server repeats its answer until the code expires, and only that answer contains the wrapped key.
 */
async function pollRelease<T>(request: JoinRequest, call: () => Promise<T | 'pending'>): Promise<T> {
  const { clock, random } = request.platform;
  const now = monotonic(clock);
  const giveUpAt = now() + PAIR_SESSION_MS;
  let failure: unknown;
  for (let failures = 0, last = false; !last;) {
    // One more poll at the end: a release made in time is delivered even after the deadline.
    last = now() >= giveUpAt;
    try {
      const reply = await call();
      if (reply !== 'pending') return reply;
      failures = 0;
    } catch (error) {
      if (!isUndecided(error) || request.signal?.aborted === true) return inPairingTerms('rejected')(error);
      failure = error;
      if (last) break;
      const wait = Math.min(backoffMs(failures++, RETRY, random), giveUpAt - now());
      await delay(clock, wait, request.signal).catch((cause: unknown) => {
        throw new NetworkError('aborted', 'the pairing was cancelled', { cause });
      });
    }
  }
  throw new PairingError('expired', { cause: failure });
}

/** Maps the server's refusals of a pairing to `PairingError`; `invalid`: the meaning of `pair_invalid` here. */
const inPairingTerms =
  (invalid: 'unknown_code' | 'rejected') =>
  (error: unknown): never => {
    if (!(error instanceof ApiError)) throw error;
    if (error.code === 'pair_expired') throw new PairingError('expired', { cause: error });
    if (error.code === 'pair_invalid') throw new PairingError(invalid, { cause: error });
    throw error;
  };
