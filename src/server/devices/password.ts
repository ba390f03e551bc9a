/**
 * The account password, a second factor. What arrives here is what the client made of it; it is hashed
 * once more, off the event loop. There is no lock-out: a stranger could hold it shut. Attempts are limited by address.
 */
import type { PasswordHasher } from '../../crypto/sodium.js';
import type { Clock } from '../../protocol/clock.js';
import { publicKeyField } from '../../protocol/device-fields.js';
import { ServiceError } from '../../protocol/errors.js';
import type { PasswordRemoveBody, PasswordSetBody, PasswordVerifyBody } from '../../protocol/requests.js';
import { PasswordQueue } from './password-queue.js';
import type { PasswordStore, StoredPassword } from './ports.js';
import type { Tickets } from './tickets.js';

/** What the service is made of. */
export interface PasswordsOptions {
  readonly store: PasswordStore;
  readonly clock: Clock;
  readonly hasher: PasswordHasher;
  readonly tickets: Pick<Tickets, 'issuePassword'>;
  /** One for the whole process. */
  readonly queue?: PasswordQueue;
}

/** The account passwords of all tenants. */
export class Passwords {
  private readonly queue: PasswordQueue;

  constructor(private readonly options: PasswordsOptions) {
    this.queue = options.queue ?? new PasswordQueue();
  }

  /** Is a password set? */
  async exists(tenantId: string): Promise<{ exists: boolean }> {
    return { exists: (await this.options.store.password(tenantId)) !== undefined };
  }

  /**
   * Sets or changes the password. Throws `password_invalid` when one is set and `currentPassword` is missing, wrong, or
   * right only until another change came first; `device_revoked` when `by`, the device that asks, was revoked meanwhile.
   */
  async set(tenantId: string, body: PasswordSetBody, by: string): Promise<{ ok: true }> {
    const { store, hasher } = this.options;
    const stored = await store.password(tenantId);
    if (stored !== undefined) await this.require(stored, body.currentPassword ?? '');
    const hash = await this.queue.run(() => hasher.hash(body.password));
    return this.store(tenantId, { hash, knownSetAt: stored?.setAt ?? null, by });
  }

  /** Takes the password away. Throws as `set`, and `password_invalid` where none is set: none would be right. */
  async remove(tenantId: string, body: PasswordRemoveBody, by: string): Promise<{ ok: true }> {
    const stored = await this.options.store.password(tenantId);
    if (stored === undefined) throw noneSet();
    await this.require(stored, body.currentPassword);
    return this.store(tenantId, { hash: null, knownSetAt: stored.setAt, by });
  }

  /**
   * A ticket for the right password: one use, ten minutes, bound to the tenant, to `pubkey` where it is given, and to
   * the password as it is now. Throws `password_invalid`, also where no password is set: none would be right.
   */
  async verify(tenantId: string, body: PasswordVerifyBody): Promise<{ ok: true; ticket: string; expiresAt: number }> {
    const pubkey = typeof body.pubkey === 'string' ? publicKeyField('pubkey', body.pubkey) : null;
    const stored = await this.options.store.password(tenantId);
    if (stored === undefined) throw noneSet();
    await this.require(stored, body.password);
    return { ok: true, ...this.options.tickets.issuePassword({ tenantId, pubkey, setAt: stored.setAt }) };
  }

  private async store(
    tenantId: string,
    change: { readonly hash: string | null; readonly knownSetAt: number | null; readonly by: string },
  ): Promise<{ ok: true }> {
    const { store, clock } = this.options;
    const verdict = await store.setPassword({ tenantId, ...change, now: clock.now() });
    if (verdict !== 'ok') throw new ServiceError(verdict);
    return { ok: true };
  }

  private async require(stored: StoredPassword, password: string): Promise<void> {
    const holds = password !== '' && (await this.queue.run(() => this.options.hasher.verify(stored.hash, password)));
    if (!holds) throw new ServiceError('password_invalid');
  }
}

const noneSet = (): ServiceError => new ServiceError('password_invalid', 'No account password is set.');
