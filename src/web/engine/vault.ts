/**
 * The identity of this browser's device, sealed. A random data key encrypts the identity and the other sealed records;
 * the data key is wrapped by a key that depends on the lock:
 *
 * - `none`: a WebCrypto key that scripts can use but not read. It protects against a text copy of the database, not
 *   against programs that run as this user;
 * - `passphrase`: Argon2id of the passphrase;
 * - `passkey`: 32 bytes that the authenticator gives only after the user's consent (WebAuthn, extension `prf`).
 */
import { ARGON2_MEMORY_BYTES, ARGON2_OPS, SALT_BYTES, type Sodium } from '../../crypto/sodium.js';
import { text } from '../../protocol/bytes.js';
import { KEY_BYTES } from '../../protocol/limits.js';
import { ClientError } from '../../sdk/errors.js';
import { SavableIdentity } from '../../sdk/identity.js';
import { storeError } from '../../sdk/store/error.js';
import type { LockKind, NewLock, Opener, PasskeyRef } from '../link/messages.js';
import { randomBytes } from '../random.js';
import type { KeyValue } from './key-value.js';

/** A ciphertext of AES-GCM. */
export interface Sealed {
  readonly iv: Uint8Array<ArrayBuffer>;
  readonly ct: Uint8Array<ArrayBuffer>;
}

/** How a passphrase becomes a key. */
interface Argon2Params {
  readonly salt: Uint8Array;
  readonly ops: number;
  readonly memoryBytes: number;
}

/** The record `lock`: how the data key is wrapped. */
type Lock = { readonly wrapped: Sealed } & (
  | { readonly kind: 'none'; readonly key: CryptoKey }
  | ({ readonly kind: 'passphrase' } & Argon2Params)
  | { readonly kind: 'passkey'; readonly passkey: PasskeyRef }
);

const AES = 'AES-GCM';
const IV_BYTES = 12;
const LOCK = 'lock';
const IDENTITY = 'identity';
const REMEMBERED = 'remembered';
const LOCK_AFTER = 'lock-after';

const keyOf = (raw: Uint8Array): Promise<CryptoKey> =>
  crypto.subtle.importKey('raw', new Uint8Array(raw), AES, false, ['encrypt', 'decrypt']);

async function seal(key: CryptoKey, plain: Uint8Array): Promise<Sealed> {
  const iv = randomBytes(IV_BYTES);
  return { iv, ct: new Uint8Array(await crypto.subtle.encrypt({ name: AES, iv }, key, new Uint8Array(plain))) };
}

const unseal = async (key: CryptoKey, { iv, ct }: Sealed): Promise<Uint8Array> =>
  new Uint8Array(await crypto.subtle.decrypt({ name: AES, iv }, key, ct));

/** The vault is locked, or the opener does not fit. */
const wrong = (): ClientError => new ClientError('bad_identity', 'that does not open this browser');

/** One browser's vault. Its data key is in memory between `open` and `close`. */
export class Vault {
  private raw: Uint8Array | undefined;
  private key: CryptoKey | undefined;
  /** While it is open, so that locking needs nothing of a storage that may have failed. */
  private current: Lock | undefined;
  private written: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly records: Pick<KeyValue, 'get' | 'put'>,
    private readonly sodium: Sodium,
  ) {}

  /** How the vault is locked; undefined: it is empty. */
  async lockState(): Promise<{ readonly kind: LockKind; readonly passkey: PasskeyRef | null } | undefined> {
    const lock = this.raw === undefined ? await this.lock() : this.current;
    return lock === undefined ? undefined : { kind: lock.kind, passkey: lock.kind === 'passkey' ? lock.passkey : null };
  }

  /** Stores the identity of a new device, without a lock at first. */
  async create(identity: SavableIdentity): Promise<void> {
    await this.take(randomBytes(KEY_BYTES));
    try {
      await this.save(identity);
      await this.setLock({ kind: 'none' });
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /**
   * Reads the identity. `opener` absent: for no lock. Throws `ClientError` `bad_identity` if it does not fit, and
   * `StoreError` `damaged` where what it opens is no identity: then only forgetting this browser helps.
   */
  async open(opener?: Opener): Promise<SavableIdentity> {
    const lock = await this.lock();
    const key = lock === undefined ? undefined : await this.wrappingKey(lock, opener);
    if (lock === undefined || key === undefined) throw wrong();
    let raw: Uint8Array;
    try {
      raw = await unseal(key, lock.wrapped);
    } catch {
      // AES-GCM reports only that the key does not fit.
      throw wrong();
    }
    await this.take(raw);
    this.current = lock;
    try {
      const sealed = (await this.records.get(IDENTITY)) as Sealed;
      return await this.unsealed(sealed)
        .then((json) => SavableIdentity.parse(json))
        .catch((error: unknown) => {
          throw storeError('damaged', 'the identity', error);
        });
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Forgets the data key. */
  close(): void {
    if (this.raw !== undefined) this.sodium.memzero(this.raw);
    this.raw = undefined;
    this.key = undefined;
    this.current = undefined;
  }

  /** Stores the identity, e.g. with a renewed token. */
  save(identity: SavableIdentity): Promise<void> {
    return this.keep(IDENTITY, identity);
  }

  /** Keeps what a start without a server needs in addition to the store: JSON. */
  remember(value: unknown): Promise<void> {
    return this.keep(REMEMBERED, value);
  }

  /** What `remember` kept. Rejects if there is nothing. */
  async remembered(): Promise<unknown> {
    return this.unsealed((await this.records.get(REMEMBERED)) as Sealed);
  }

  /**
   * Stores a JSON value, encrypted with the data key. Rejects while the vault is locked. In the order of the calls:
   * encryptions run side by side, and one that began later may be done first. `isWanted` false: it is not stored after all.
   */
  keep(name: string, value: unknown, isWanted = (): boolean => true): Promise<void> {
    const before = this.written;
    const written = this.sealed(value).then(async (sealed) => {
      await before;
      if (isWanted()) await this.records.put(name, sealed);
    });
    this.written = written.catch(() => undefined);
    return written;
  }

  /** Resolves once nothing is being stored: what is removed before stays removed. */
  async idle(): Promise<void> {
    await this.written;
  }

  /** Decrypts what `keep` stored. Rejects while the vault is locked. */
  async unsealed(value: Sealed): Promise<unknown> {
    if (this.key === undefined) throw wrong();
    return JSON.parse(new TextDecoder().decode(await unseal(this.key, value))) as unknown;
  }

  async setLock(lock: NewLock): Promise<void> {
    if (this.raw === undefined) throw wrong();
    const wrapped = await this.wrapped(lock, this.raw);
    await this.records.put(LOCK, wrapped);
    this.current = wrapped;
  }

  async lockAfter(): Promise<number | null> {
    const minutes = await this.records.get(LOCK_AFTER);
    return typeof minutes === 'number' ? minutes : null;
  }

  async setLockAfter(minutes: number | null): Promise<void> {
    if (this.raw === undefined) throw wrong();
    await this.records.put(LOCK_AFTER, minutes);
  }

  private async sealed(value: unknown): Promise<Sealed> {
    if (this.key === undefined) throw wrong();
    return seal(this.key, text(JSON.stringify(value)));
  }

  private async lock(): Promise<Lock | undefined> {
    return (await this.records.get(LOCK)) as Lock | undefined;
  }

  private async take(raw: Uint8Array): Promise<void> {
    this.raw = raw;
    this.key = await keyOf(raw);
  }

  private async wrapped(lock: NewLock, raw: Uint8Array): Promise<Lock> {
    switch (lock.kind) {
      case 'none': {
        const key = await crypto.subtle.generateKey({ name: AES, length: 256 }, false, ['encrypt', 'decrypt']);
        return { kind: 'none', key, wrapped: await seal(key, raw) };
      }
      case 'passphrase': {
        const params = { salt: randomBytes(SALT_BYTES), ops: ARGON2_OPS, memoryBytes: ARGON2_MEMORY_BYTES };
        const key = await this.stretched(lock.passphrase, params);
        return { kind: 'passphrase', ...params, wrapped: await seal(key, raw) };
      }
      case 'passkey':
        return { kind: 'passkey', passkey: lock.passkey, wrapped: await seal(await keyOf(lock.secret), raw) };
    }
  }

  /** Undefined: the opener is of another kind than the lock. */
  private async wrappingKey(lock: Lock, opener: Opener | undefined): Promise<CryptoKey | undefined> {
    if (lock.kind === 'none') return lock.key;
    if (opener === undefined) return undefined;
    if (lock.kind === 'passphrase') return 'passphrase' in opener ? this.stretched(opener.passphrase, lock) : undefined;
    return 'secret' in opener ? keyOf(opener.secret) : undefined;
  }

  private async stretched(passphrase: string, { salt, ops, memoryBytes }: Argon2Params): Promise<CryptoKey> {
    // Keyboards may encode the same letter as different code points.
    const password = text(passphrase.normalize('NFKC'));
    if (password.length === 0) throw wrong();
    const raw = await this.sodium.argon2id13({ length: KEY_BYTES, password, salt, ops, memoryBytes });
    const key = await keyOf(raw);
    this.sodium.memzero(raw);
    return key;
  }
}
