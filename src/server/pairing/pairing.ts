/**
 * Pairing of a new device N by an existing device E, by a code of six words. Sessions live in the database, so any
 * instance serves any step. A session grants nothing until E has approved it: the device is created together with E's
 * wrap, and gets its token when it fetches that wrap.
 */
import { ulid } from 'ulid';
import { normalizeWords } from '../../crypto/words.js';
import { delay, monotonic, type Clock } from '../../protocol/clock.js';
import {
  bytesField,
  deviceReply,
  macField,
  nameField,
  publicKeyField,
  wrappedMasterKeyField,
} from '../../protocol/request-fields.js';
import { invalid, ServiceError } from '../../protocol/errors.js';
import { PAIR_HOLD_MS, PAIR_SESSION_MS, SIG_BYTES } from '../../protocol/limits.js';
import type * as replies from '../../protocol/replies.js';
import type * as requests from '../../protocol/requests.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import type { TokenIssuer } from '../http/tokens.js';
import type { PasswordProof } from '../storage/query.js';
import type { OpenPair, PairingStore, PairRelease, PairStatus, PairWrap } from './store.js';

interface PairingOptions extends ChangeNotifier {
  /** For the calls of E, which has a token. */
  readonly store: Pick<PairingStore, 'open' | 'requests' | 'answer'>;
  /** For those of N: their statements wait in a line of their own (FAIR-50). */
  readonly unauthenticatedStore: Pick<PairingStore, 'find' | 'join' | 'status' | 'withdraw'>;
  readonly clock: Clock;
  readonly issueToken: TokenIssuer;
  /** Reads the tickets of `POST /password/verify`. */
  readonly tickets: {
    passwordProof(ticket: string | null | undefined, tenantId: string, pubkey: Uint8Array): PasswordProof | undefined;
  };
  /** MAX_DEVICES. */
  readonly maxDevices: number;
}

/** A held call reads its session again this often, in case a notification was lost. */
const LOOK_AGAIN_MS = 2_000;
/** Six words in the form of BIP39's English list. Clients verify their checksum. */
const CODE = /^[a-z]{3,8}(?: [a-z]{3,8}){5}$/;
/** A host name on the wire is printable ASCII, since others are written in punycode. */
const HOST = /^[!-~]+$/;

/**
 * A code as it is stored and compared: NFKD, lower case, hyphens and white space as one space.
 * Throws `pair_invalid` for anything that is not six words.
 */
export function pairCode(value: string): string {
  const code = normalizeWords(value);
  if (!CODE.test(code)) throw new ServiceError('pair_invalid');
  return code;
}

/** The host that the new device dialled, kept as it is. Throws `validation`. */
function hostField(value: string | null | undefined): string | null {
  if (value === null || value === undefined) return null;
  if (!HOST.test(value)) throw invalid('host', 'must be a host name in printable ASCII');
  return value;
}

/** The existing device's answer: its wrap, or null for a rejection. Throws `validation`. */
function wrapOf({ wrappedMasterKey: wrapped = null, ...body }: requests.PairWrapBody): PairWrap | null {
  if (body.reject === true) {
    if (wrapped !== null) throw invalid('reject', 'excludes a wrapped master key');
    return null;
  }
  if (wrapped === null) throw invalid('wrappedMasterKey', 'required, unless reject is true');
  return {
    wrappedMasterKey: wrappedMasterKeyField(wrapped),
    deviceCert: macField('deviceCert', body.deviceCert),
    confirmation: macField('confirmation', body.confirmation),
  };
}

/**
 * The release of a session for its new device, or null while the existing device has not answered.
 * Throws `pair_invalid` for a session that was rejected, ended or revoked, `pair_expired` for one that expired
 * unanswered. A session that was answered in time never expires: its device exists by then, and could get its wrapped
 * key nowhere else.
 */
function releaseOf(status: PairStatus | undefined, now: number): PairRelease | null {
  if (status === undefined || status.state === 'rejected') throw new ServiceError('pair_invalid');
  if (status.state === 'wrapped') {
    if (status.id === null) throw new ServiceError('pair_invalid');
    return status;
  }
  if (status.expiresAt <= now) throw new ServiceError('pair_expired');
  return null;
}

// Held calls of new devices: each waits for its session to change, one per session (Pairing, step 3).

/** One held call. */
export class Waiter {
  private over = false;
  /** Replaced after each wait: a change that arrives while the call reads its session ends its next wait at once. */
  private changed = new AbortController();

  constructor(
    readonly tenantId: string,
    readonly lookupId: string,
    /** Its position in the order in which calls arrived. */
    readonly arrival: number,
  ) {}

  notify(): void {
    this.changed.abort();
  }

  /** The call ends, now or at its next wait. */
  end(): void {
    this.over = true;
    this.notify();
  }

  /** Waits for `notify` or the end, at most `ms` milliseconds. `look`: the session may have changed. */
  async next(clock: Clock, ms: number): Promise<'look' | 'end'> {
    if (!this.over) await delay(clock, ms, this.changed.signal).catch(() => undefined);
    this.changed = new AbortController();
    return this.over ? 'end' : 'look';
  }
}

/** All held calls of this instance. */
export class Waiters {
  /** By tenant, then by session. */
  private readonly tenants = new Map<string, Map<string, Waiter>>();
  private arrivals = 0;

  /** Numbers a call on arrival, since its first statements may take longer than those of a later call. */
  arrive(): number {
    return ++this.arrivals;
  }

  /**
   * Adds a held call for the session. Two calls for one session are from the same device: the one that arrived later is
   * held, and the other ends.
   */
  add(tenantId: string, lookupId: string, arrival: number): Waiter {
    const waiter = new Waiter(tenantId, lookupId, arrival);
    const sessions = this.tenants.get(tenantId) ?? new Map<string, Waiter>();
    const before = sessions.get(lookupId);
    if (before !== undefined && before.arrival > arrival) {
      waiter.end();
      return waiter;
    }
    before?.end();
    sessions.set(lookupId, waiter);
    this.tenants.set(tenantId, sessions);
    return waiter;
  }

  remove(waiter: Waiter): void {
    const sessions = this.tenants.get(waiter.tenantId);
    if (sessions?.get(waiter.lookupId) === waiter) sessions.delete(waiter.lookupId);
    if (sessions?.size === 0) this.tenants.delete(waiter.tenantId);
  }

  /** Makes the held calls of a tenant read their sessions again. */
  notify(tenantId: string): void {
    for (const waiter of this.tenants.get(tenantId)?.values() ?? []) waiter.notify();
  }
}

/** The pairings of all tenants. Held calls belong to this instance; every instance sees the sessions. */
export class Pairing {
  private readonly waiters = new Waiters();

  constructor(private readonly options: PairingOptions) {}

  /**
   * Step 1, by E: opens a session of five minutes and ends E's older one. Throws `conflict` for a code in use: E draws
   * another; `pair_invalid` for one that is not six words.
   */
  async init(tenantId: string, deviceId: string, body: requests.PairInitBody): Promise<replies.PairStarted> {
    const code = pairCode(body.code);
    const epk = publicKeyField('epk', body.epk);
    const now = this.options.clock.now();
    const session = { lookupId: ulid(now), code, expiresAt: now + PAIR_SESSION_MS };
    const verdict = await this.options.store.open({ tenantId, deviceId, epk, now, ...session });
    if (verdict !== 'ok')
      throw new ServiceError(verdict, verdict === 'conflict' ? 'The code is in use: draw another.' : undefined);
    await this.announce(tenantId);
    return session;
  }

  /** Step 2, by N: E's ephemeral key. Throws `pair_invalid`, `pair_expired`. */
  async fetchEpk(tenantId: string, body: requests.PairFetchEpkBody): Promise<replies.PairEpk<Uint8Array>> {
    const { epk, expiresAt } = await this.found(tenantId, pairCode(body.code));
    if (expiresAt <= this.options.clock.now()) throw new ServiceError('pair_expired');
    return { epk, expiresAt, tenantId };
  }

  /**
   * Step 3, by N: requests to join and waits for E until 25 s have passed since the call. The same call again, by the
   * same key, continues the wait, and gets the result again until the session is deleted. `gone` aborts when the caller
   * disconnects.
   * Throws `pair_invalid` (also for a withdrawal, once it has ended the session), `pair_expired` (also for a later
   * one), `password_required`, `device_exists`, `device_limit`; only the first successful request binds the session.
   */
  async fetchNpk(
    tenantId: string,
    body: requests.PairFetchNpkBody,
    gone: AbortSignal,
  ): Promise<replies.Paired<Uint8Array> | 'pending'> {
    const { unauthenticatedStore, clock, tickets, maxDevices } = this.options;
    const arrival = this.waiters.arrive();
    const passing = monotonic(clock);
    const until = passing() + PAIR_HOLD_MS;
    const pubkey = publicKeyField('pubkey', body.pubkey);
    const now = clock.now();
    const request = {
      tenantId,
      code: pairCode(body.code),
      deviceId: body.deviceId ?? ulid(now),
      host: hostField(body.host),
      pubkey,
      name: nameField(body.name),
      glyph: body.glyph,
      attestation: bytesField('attestation', body.attestation, SIG_BYTES),
      proof: tickets.passwordProof(body.passwordTicket, tenantId, pubkey),
      maxDevices,
      now,
    };
    // A wrong code is refused before the tenant's lock is taken, so that guesses cannot hold up the tenant's own calls.
    const found = await this.found(tenantId, request.code);
    if (found.state !== 'wrapped' && found.expiresAt <= now) throw new ServiceError('pair_expired');
    if (body.withdraw === true) return this.withdraw(tenantId, request.code, pubkey);
    const joined = await unauthenticatedStore.join(request);
    if (joined.verdict !== 'ok') throw new ServiceError(joined.verdict);
    if (joined.fresh) await this.announce(tenantId);
    const waiter = this.waiters.add(tenantId, joined.lookup_id, arrival);
    const release = await this.hold(waiter, () => until - passing(), gone);
    return release === 'pending' ? 'pending' : this.paired(tenantId, release);
  }

  private async withdraw(tenantId: string, code: string, pubkey: Uint8Array): Promise<never> {
    const { unauthenticatedStore, clock } = this.options;
    if (await unauthenticatedStore.withdraw(tenantId, code, pubkey, clock.now())) await this.announce(tenantId);
    throw new ServiceError('pair_invalid');
  }

  /** The requests that wait for this device's approval. The same content as the frames `pair_request`. */
  async requests(tenantId: string, deviceId: string): Promise<replies.PairRequestList<Uint8Array>> {
    return { requests: await this.options.store.requests(tenantId, deviceId, this.options.clock.now()) };
  }

  /**
   * Step 4, by E: hands over the wrapped master key, or rejects, which ends the session. Repeating the same answer, as
   * after a lost reply, succeeds. Throws `pair_invalid` (also for another device's session, or before any device has
   * requested to join), `pair_expired`, `conflict` (answered differently before), `password_required` (a password was
   * set meanwhile; N has to prove it), `device_exists`, `device_limit`, `device_revoked`.
   */
  async wrap(tenantId: string, deviceId: string, body: requests.PairWrapBody): Promise<replies.Ok> {
    const { store, clock, maxDevices } = this.options;
    const code = pairCode(body.code);
    const wrap = wrapOf(body);
    const verdict = await store.answer({ tenantId, deviceId, code, wrap, maxDevices, now: clock.now() });
    if (verdict !== 'ok') throw new ServiceError(verdict);
    await this.announce(tenantId);
    return { ok: true };
  }

  /** Devices or pairings of the tenant changed, here or on another instance: held calls read their sessions again. */
  changed(tenantId: string): void {
    this.waiters.notify(tenantId);
  }

  private async found(tenantId: string, code: string): Promise<OpenPair> {
    const found = await this.options.unauthenticatedStore.find(tenantId, code, this.options.clock.now());
    if (found === undefined || found.state === 'rejected') throw new ServiceError('pair_invalid');
    return found;
  }

  /** Held calls here need not wait until the other instances are notified, so they are woken first. */
  private async announce(tenantId: string): Promise<void> {
    this.changed(tenantId);
    await notifyChange(this.options, tenantId);
  }

  /** Holds a call until its session is answered, or no time is left, ms. */
  private async hold(waiter: Waiter, left: () => number, gone: AbortSignal): Promise<PairRelease | 'pending'> {
    const { unauthenticatedStore, clock } = this.options;
    gone.addEventListener('abort', () => waiter.end(), { once: true });
    if (gone.aborted) waiter.end();
    try {
      for (;;) {
        // A notification that arrives during this read is kept, so no answer is missed between reading and waiting.
        const release = releaseOf(await unauthenticatedStore.status(waiter.tenantId, waiter.lookupId), clock.now());
        if (release !== null) return release;
        const ms = Math.min(left(), LOOK_AGAIN_MS);
        if (ms <= 0 || (await waiter.next(clock, ms)) === 'end') return 'pending';
      }
    } finally {
      this.waiters.remove(waiter);
    }
  }

  private paired(tenantId: string, release: PairRelease): replies.Paired<Uint8Array> {
    const { id, epoch, wrappedMasterKey, deviceCert, confirmation } = release;
    const { token } = this.options.issueToken({ tenantId, deviceId: id, epoch });
    return { device: deviceReply(release), token, wrappedMasterKey, deviceCert, confirmation };
  }
}
