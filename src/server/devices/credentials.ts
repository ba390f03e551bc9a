/** Credentials of a device other than its token: one-use tickets, the account password, re-authentication by key. */
import { randomBytes, timingSafeEqual } from 'node:crypto';
import { ulid } from 'ulid';
import { makeReauthChallenge } from '../../crypto/reauth.js';
import type { PasswordHasher, Sodium } from '../../crypto/sodium.js';
import type { Clock } from '../../protocol/clock.js';
import type { ChangeNotifier } from '../../protocol/change-notifier.js';
import { Counts } from '../../protocol/counts.js';
import { bytesField, publicKeyField } from '../../protocol/request-fields.js';
import { ServiceError, unavailable } from '../../protocol/errors.js';
import { CHALLENGE_MS, PASSWORD_TICKET_MS, SIG_BYTES, WS_TICKET_MS } from '../../protocol/limits.js';
import type * as replies from '../../protocol/replies.js';
import type * as requests from '../../protocol/requests.js';
import {
  KIND,
  openFields,
  sealFields,
  sha256,
  type SocketTicket,
  type TokenClaims,
  type TokenIssuer,
} from '../http/tokens.js';
import type { PasswordProof } from '../storage/query.js';
import { TurnQueue } from '../tenant/turn-queue.js';
import type { AccountStore, DeviceRecord, StoredPassword } from './store.js';

/** What the services of accounts are made of; each takes a part. */
export interface AccountParts extends ChangeNotifier {
  readonly store: AccountStore;
  /** For calls without a token, of a service with both kinds: their statements wait in a line of their own (FAIR-50). */
  readonly unauthenticatedStore: AccountStore;
  readonly clock: Clock;
  readonly sodium: Sodium;
  readonly hasher: PasswordHasher;
  readonly tickets: Tickets;
  readonly issueToken: TokenIssuer;
  readonly maxDevices: number;
}

const ID_BYTES = 16;
const NO_KEY = new Uint8Array(0);

/**
 * Signed one-use tickets. Issuing costs no statement; a use is stored where every instance sees it. A socket ticket is
 * spent when it is redeemed, a password ticket by the statement that it authorizes.
 */
export class Tickets {
  /** @param options.secret key of the MAC: TOKEN_SECRET's bytes. */
  constructor(private readonly options: Pick<AccountParts, 'store' | 'clock'> & { readonly secret: Uint8Array }) {}

  /** A ticket for `/ws?ticket=`: 60 seconds, one use. Its socket ends when the token of these claims expires. */
  issueSocket({ tenantId, deviceId, epoch, expiresAt: end }: TokenClaims): replies.TicketReply {
    return this.issue(KIND.socketTicket, tenantId, WS_TICKET_MS, [deviceId, epoch, end]);
  }

  /** The device that may open a socket once the ticket is spent, on any instance; undefined for an invalid ticket. */
  readSocket(ticket: string, tenantId: string): SocketTicket | undefined {
    const opened = this.open(KIND.socketTicket, ticket, tenantId);
    if (opened === undefined) return undefined;
    const { id, expiresAt, fields } = opened;
    const right = { deviceId: fields.text(), epoch: fields.number(), expiresAt: fields.number() };
    return { ...right, spend: () => this.options.store.spendTicket(id, expiresAt, this.options.clock.now()) };
  }

  /**
   * A ticket which proves that the password was given: 10 minutes, one use, bound to `pubkey` unless that is null.
   * `setAt`: when that password was set.
   */
  issuePassword(tenantId: string, pubkey: Uint8Array | null, setAt: number): replies.TicketReply {
    const bound = pubkey === null ? NO_KEY : sha256(pubkey);
    return this.issue(KIND.passwordTicket, tenantId, PASSWORD_TICKET_MS, [bound, setAt]);
  }

  /** The proof in a ticket for this tenant and key; undefined if it is absent, altered, expired or another's. */
  passwordProof(ticket: string | null | undefined, tenantId: string, pubkey: Uint8Array): PasswordProof | undefined {
    const opened = this.open(KIND.passwordTicket, ticket ?? '', tenantId);
    if (opened === undefined) return undefined;
    const { id, expiresAt, fields } = opened;
    const bound = fields.bytes();
    if (bound.length > 0 && !timingSafeEqual(bound, sha256(pubkey))) return undefined;
    return { ticketId: id, expiresAt, setAt: fields.number() };
  }

  private issue(
    kind: number,
    tenantId: string,
    ms: number,
    fields: Parameters<typeof sealFields>[2],
  ): replies.TicketReply {
    const expiresAt = this.options.clock.now() + ms;
    const ticket = sealFields(this.options.secret, kind, [randomBytes(ID_BYTES), expiresAt, tenantId, ...fields]);
    return { ticket, expiresAt };
  }

  /** A ticket whose MAC and tenant are valid and that has not expired; `fields` are those of its kind. */
  private open(kind: number, ticket: string, tenantId: string) {
    const fields = openFields(this.options.secret, kind, ticket);
    if (fields === undefined) return undefined;
    const id = fields.bytes().toString('hex');
    const expiresAt = fields.number();
    return fields.text() === tenantId && expiresAt > this.options.clock.now() ? { id, expiresAt, fields } : undefined;
  }
}

/** Hashes computed at once. Each takes a core for a tenth of a second and 64 MiB. */
const HASHES_MAX = 2;
/**
 * Most callers of one side, and of one side of one tenant, that wait for a hash or have one computed; the next is
 * refused. As many again may wait of tenants that have none there: else a few tenants could keep all others out.
 */
const HASHES_WAITING_MAX = 64;
const HASHES_OF_TENANT_MAX = 16;
const RETRY_AFTER_S = 5;

/**
 * The caller: a device, or a client without a token, of which there may be any number, at any number of addresses. Each
 * side has its own places and takes turns with the other: else unauthenticated clients could keep a tenant's devices from
 * its password.
 */
type Side = 'devices' | 'unauthenticated';

/** A bounded queue for password hashing, one for the whole process: tenants in turn, each with one hash at a time. */
export class PasswordQueue {
  private readonly turns = new TurnQueue(HASHES_MAX);
  /** Callers of each side, and of each side of each tenant. */
  private readonly counts = new Counts();

  /** Runs `work` in the tenant's turn. Throws `unavailable` with Retry-After when too many wait already. */
  async run<T>(tenantId: string, side: Side, work: () => Promise<T>): Promise<T> {
    const name = `${tenantId}/${side}`;
    const own = this.counts.of(name);
    if (own >= HASHES_OF_TENANT_MAX || this.counts.of(side) >= HASHES_WAITING_MAX * (own === 0 ? 2 : 1))
      throw unavailable('too many passwords are being checked', RETRY_AFTER_S);
    for (const key of [side, name]) this.counts.add(key, 1);
    try {
      return await this.turns.take({ tenantId, deviceId: side }, work);
    } finally {
      for (const key of [side, name]) this.counts.add(key, -1);
    }
  }
}

/**
 * The account passwords of all tenants: a second factor. The client derives a value from the password; that value is
 * hashed once more here, off the event loop. Wrong passwords never lock the account, since an unauthenticated client
 * could keep it locked; attempts are limited by address instead.
 */
export class Passwords {
  private readonly queue = new PasswordQueue();

  constructor(
    private readonly options: Pick<AccountParts, 'store' | 'unauthenticatedStore' | 'clock' | 'hasher' | 'tickets'>,
  ) {}

  async exists(tenantId: string): Promise<replies.PasswordExists> {
    return { exists: (await this.options.unauthenticatedStore.password(tenantId)) !== undefined };
  }

  /**
   * Sets or changes the password. Throws `password_invalid` when one is set and `currentPassword` is missing, wrong, or
   * was changed by another call in the meantime; `device_revoked` when `by`, the calling device, was revoked meanwhile.
   */
  async set(tenantId: string, body: requests.PasswordSetBody, by: string): Promise<replies.Ok> {
    const { store, hasher } = this.options;
    const stored = await store.password(tenantId);
    // Both in one turn, so that the second is not refused because the queue is full.
    const hash = await this.queue.run(tenantId, 'devices', async () => {
      if (stored !== undefined) await this.expect(stored, body.currentPassword ?? '');
      return hasher.hash(body.password);
    });
    return this.store({ tenantId, hash, knownSetAt: stored?.setAt ?? null, by });
  }

  /** Removes the password. Throws as `set`, and `password_invalid` where none is set, since none would be right. */
  async remove(tenantId: string, body: requests.PasswordRemoveBody, by: string): Promise<replies.Ok> {
    const { setAt } = await this.require('devices', tenantId, body.currentPassword);
    return this.store({ tenantId, hash: null, knownSetAt: setAt, by });
  }

  /**
   * A ticket for the right password: one use, ten minutes, bound to the tenant, to `pubkey` where it is given, and to
   * the password as it is now. Throws `password_invalid`, also where no password is set, since none would be right.
   */
  async verify(tenantId: string, body: requests.PasswordVerifyBody): Promise<replies.PasswordTicketReply> {
    const pubkey = typeof body.pubkey === 'string' ? publicKeyField('pubkey', body.pubkey) : null;
    const { setAt } = await this.require('unauthenticated', tenantId, body.password);
    return { ok: true, ...this.options.tickets.issuePassword(tenantId, pubkey, setAt) };
  }

  private async store(change: Omit<Parameters<AccountStore['setPassword']>[0], 'now'>): Promise<replies.Ok> {
    const { store, clock } = this.options;
    const verdict = await store.setPassword({ ...change, now: clock.now() });
    if (verdict !== 'ok') throw new ServiceError(verdict);
    return { ok: true };
  }

  private async require(side: Side, tenantId: string, password: string): Promise<StoredPassword> {
    const { store, unauthenticatedStore } = this.options;
    const stored = await (side === 'devices' ? store : unauthenticatedStore).password(tenantId);
    if (stored === undefined) throw new ServiceError('password_invalid', 'No account password is set.');
    await this.queue.run(tenantId, side, () => this.expect(stored, password));
    return stored;
  }

  private async expect({ hash }: StoredPassword, password: string): Promise<void> {
    if (password === '' || !(await this.options.hasher.verify(hash, password)))
      throw new ServiceError('password_invalid');
  }
}

/** One refusal for a challenge that is unknown, expired, used or wrongly answered: the caller does not learn which. */
const refused = (): ServiceError =>
  new ServiceError('forbidden', 'The challenge is unknown, expired, used or wrongly answered.');

/** New tokens for devices whose token has expired or was never received, and which prove that they hold their key. */
export class Reauthentication {
  constructor(private readonly options: Pick<AccountParts, 'store' | 'clock' | 'sodium' | 'issueToken'>) {}

  /**
   * A challenge that only the device can open: a sealed box to its key of LP("service-reauth-v1", tenantId, deviceId,
   * challengeId, 32 random bytes). Throws `device_not_found`, `device_revoked`.
   */
  async challenge(
    tenantId: string,
    { deviceId }: requests.ReauthChallengeBody,
  ): Promise<replies.ReauthChallengeReply<Uint8Array>> {
    const { store, clock, sodium } = this.options;
    const device = await store.device(tenantId, deviceId);
    if (device === undefined) throw new ServiceError('device_not_found');
    requireNotRevoked(device);
    const now = clock.now();
    const challengeId = ulid(now);
    const { challenge, answer } = makeReauthChallenge(sodium, { tenantId, deviceId, challengeId }, device.pubkey);
    const expiresAt = now + CHALLENGE_MS;
    await store.putChallenge({ id: challengeId, tenantId, kind: 'reauth', deviceId, secret: answer, expiresAt }, now);
    return { challengeId, challenge, expiresAt };
  }

  /**
   * A token for the right answer, which is 32 bytes. Any answer of that length uses the challenge up.
   * Throws `forbidden`, and `device_revoked` for a device that was revoked in between.
   */
  async answer(tenantId: string, body: requests.ReauthBody): Promise<replies.TokenReply> {
    const { store, clock, sodium, issueToken } = this.options;
    const answer = bytesField('answer', body.answer, SIG_BYTES);
    const challenge = await store.takeChallenge({ id: body.challengeId, tenantId, kind: 'reauth' });
    if (challenge === undefined || challenge.deviceId !== body.deviceId || challenge.expiresAt <= clock.now())
      throw refused();
    if (!sodium.equal(challenge.secret, answer)) throw refused();
    // The token carries the epoch read here, so a revocation that commits after this read invalidates it.
    const device = await store.device(tenantId, body.deviceId);
    if (device === undefined) throw refused();
    requireNotRevoked(device);
    return issueToken({ tenantId, deviceId: device.id, epoch: device.tokenEpoch });
  }
}

function requireNotRevoked(device: DeviceRecord): void {
  if (device.revokedAt !== null) throw new ServiceError('device_revoked');
}
