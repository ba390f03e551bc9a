/**
 * Pairing of a new device N by an existing device E, by a code of six words. Sessions live in the
 * database, so any instance serves any step. Nothing of a session counts until E has approved it: the device comes to
 * be with E's wrap, and its token when N fetches that.
 */
import { ulid } from 'ulid';
import type { Clock } from '../../protocol/clock.js';
import { deviceReply, nameField, publicKeyField, type DeviceReply } from '../../protocol/device-fields.js';
import { ServiceError } from '../../protocol/errors.js';
import { bytesField } from '../../protocol/item-codec.js';
import { PAIR_HOLD_MS, PAIR_SESSION_MS, SIG_BYTES } from '../../protocol/limits.js';
import type { PairFetchEpkBody, PairFetchNpkBody, PairInitBody, PairWrapBody } from '../../protocol/requests.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import type { OpenPair, PairRelease, PairStore, PasswordTickets, WaitingRequest } from './ports.js';
import { judge, pairCode, pairHost, wrapOf } from './rules.js';
import { Waiters, type Waiter } from './waiting.js';

/** What the service is made of. */
export interface PairingOptions extends ChangeNotifier {
  readonly store: PairStore;
  readonly clock: Clock;
  /** A token for a device of the tenant at this token epoch. */
  readonly issueToken: (device: { tenantId: string; deviceId: string; epoch: number }) => { readonly token: string };
  readonly tickets: PasswordTickets;
  /** MAX_DEVICES. */
  readonly maxDevices: number;
}

/** What N gets in the end. Binary fields are raw. */
export interface Paired {
  readonly device: DeviceReply;
  readonly token: string;
  readonly wrappedMasterKey: Uint8Array;
  readonly deviceCert: Uint8Array | null;
  readonly confirmation: Uint8Array | null;
}

/** A held call looks again this often, in case that a notification was lost. */
const LOOK_AGAIN_MS = 2_000;

/** The pairings of all tenants. Held calls are this instance's own; sessions are everybody's. */
export class Pairing {
  private readonly waiters = new Waiters();

  constructor(private readonly options: PairingOptions) {}

  /**
   * Step 1, by E: opens a session of five minutes and ends E's older one. Throws `conflict` for a code in use: E draws
   * another; `pair_invalid` for one that is not six words.
   */
  async init(
    tenantId: string,
    deviceId: string,
    body: PairInitBody,
  ): Promise<{ lookupId: string; code: string; expiresAt: number }> {
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
  async fetchEpk(
    tenantId: string,
    body: PairFetchEpkBody,
  ): Promise<{ epk: Uint8Array; expiresAt: number; tenantId: string }> {
    const found = await this.found(tenantId, pairCode(body.code));
    if (found.expiresAt <= this.options.clock.now()) throw new ServiceError('pair_expired');
    return { epk: found.epk, expiresAt: found.expiresAt, tenantId };
  }

  /**
   * Step 3, by N: asks to join and waits up to 25 s for E. The same call again, by the same key, goes on waiting, and
   * gets the result again until the session is cleared away. `gone` aborts when the caller has left.
   * Throws `pair_invalid`, `pair_expired`, `password_required`, `device_exists`, `device_limit`; none but the first
   * successful request binds the session.
   */
  async fetchNpk(tenantId: string, body: PairFetchNpkBody, gone: AbortSignal): Promise<Paired | 'pending'> {
    const { store, clock, tickets, maxDevices } = this.options;
    const arrival = this.waiters.arrive();
    const npk = publicKeyField('pubkey', body.pubkey);
    const ticket = body.passwordTicket ?? null;
    const now = clock.now();
    const asked = {
      tenantId,
      code: pairCode(body.code),
      deviceId: body.deviceId ?? ulid(now),
      host: pairHost(body.host),
      npk,
      name: nameField('name', body.name),
      glyph: body.glyph,
      attestation: bytesField('attestation', body.attestation, SIG_BYTES),
      proof: ticket === null ? undefined : tickets.passwordProof(ticket, { tenantId, pubkey: npk }),
    };
    // A stranger's guess is refused before it takes the tenant's lock.
    const found = await this.found(tenantId, asked.code);
    if (found.state !== 'wrapped' && found.expiresAt <= now) throw new ServiceError('pair_expired');
    const joined = await store.join({ ...asked, maxDevices, now });
    if (joined.verdict !== 'ok') throw new ServiceError(joined.verdict);
    if (joined.fresh) await this.announce(tenantId);
    const release = await this.hold({ tenantId, lookupId: joined.lookupId, arrival }, gone);
    return release === 'pending' ? 'pending' : this.paired(tenantId, release);
  }

  /** What waits for this device's approval. The same as the frames `pair_request`. */
  async requests(tenantId: string, deviceId: string): Promise<{ requests: WaitingRequest[] }> {
    return { requests: await this.options.store.requests(tenantId, deviceId, this.options.clock.now()) };
  }

  /**
   * Step 4, by E: hands over the wrapped master key, or rejects, which ends the session. The same again is `ok`, as
   * after a lost reply. Throws `pair_invalid` (also for another device's session, or before anybody asked),
   * `pair_expired`, `conflict` (answered otherwise already), `password_required` (a password was set meanwhile; N has
   * to show it), `device_exists`, `device_limit`, `device_revoked`.
   */
  async wrap(tenantId: string, deviceId: string, body: PairWrapBody): Promise<{ ok: true }> {
    const { store, clock, maxDevices } = this.options;
    const code = pairCode(body.code);
    const wrap = wrapOf(body);
    const verdict = await store.answer({ tenantId, deviceId, code, wrap, maxDevices, now: clock.now() });
    if (verdict !== 'ok') throw new ServiceError(verdict);
    await this.announce(tenantId);
    return { ok: true };
  }

  /** Devices or pairings of the tenant changed, here or on another instance: held calls look again. */
  changed(tenantId: string): void {
    this.waiters.nudge(tenantId);
  }

  /** Held calls on this instance. */
  get held(): number {
    return this.waiters.size;
  }

  private async found(tenantId: string, code: string): Promise<OpenPair> {
    const found = await this.options.store.find(tenantId, code, this.options.clock.now());
    if (found === undefined || found.state === 'rejected') throw new ServiceError('pair_invalid');
    return found;
  }

  /** Held calls do not wait for the others to be told: they look first. */
  private async announce(tenantId: string): Promise<void> {
    this.waiters.nudge(tenantId);
    await notifyChange(this.options, tenantId);
  }

  private async hold(
    { tenantId, lookupId, arrival }: Pick<Waiter, 'tenantId' | 'lookupId' | 'arrival'>,
    gone: AbortSignal,
  ): Promise<PairRelease | 'pending'> {
    const { store, clock } = this.options;
    const until = clock.now() + PAIR_HOLD_MS;
    const waiter = this.waiters.add(tenantId, lookupId, arrival);
    const leave = (): void => waiter.end();
    gone.addEventListener('abort', leave, { once: true });
    if (gone.aborted) leave();
    try {
      for (;;) {
        // A nudge that comes while this reads is kept, so no answer falls between looking and waiting.
        const release = judge(await store.standing(tenantId, lookupId), clock.now());
        if (release !== null) return release;
        const left = until - clock.now();
        if (left <= 0 || (await waiter.next(clock, Math.min(left, LOOK_AGAIN_MS))) === 'end') return 'pending';
      }
    } finally {
      gone.removeEventListener('abort', leave);
      this.waiters.remove(waiter);
    }
  }

  private paired(tenantId: string, release: PairRelease): Paired {
    const { device, epoch, wrappedMasterKey, deviceCert, confirmation } = release;
    const { token } = this.options.issueToken({ tenantId, deviceId: device.id, epoch });
    return { device: deviceReply(device), token, wrappedMasterKey, deviceCert, confirmation };
  }
}
