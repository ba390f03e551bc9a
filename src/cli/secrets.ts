/**
 * A device's secrets at rest: its token, its X25519 secret key and the master key, encrypted in one file.
 *
 * The key is 32 random bytes, in the system's keychain where one works, else in a 0600 file beside it. Which of the two
 * is decided once, when the profile becomes a device; the encrypted file records it. Whatever is written later is
 * encrypted under the same key, or is not written: while the keychain is away a key in a file would hand the secrets to
 * whoever reads this folder. Only `SERVICE_KEYCHAIN=on` moves a key, from the file into the keychain.
 *
 * The phrase is never here: no device keeps it. A new key has a new name, and the file that names it is replaced last,
 * so that a crash at any point leaves a file whose key exists.
 */
import { existsSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Identity } from '../sdk/identity.js';
import { bytes, count, nonEmpty, object, string } from '../sdk/reader.js';
import type { Sodium } from '../crypto/sodium.js';
import { identityOf, secretsOf, SECRETS } from '../device/identity.js';
import { underLock } from '../terminal/lock.js';
import { sealed, unsealed } from '../device/sealed.js';
import { privateFolder, removePrivate, writePrivate, type Warn } from '../files/private.js';
import { decodeBase64, toBase64Url } from '../protocol/base64.js';
import { lengthPrefixed, text } from '../protocol/bytes.js';
import { KEY_BYTES, NONCE_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import { Serial } from '../protocol/serial.js';
import { KeychainError, type Keychain } from './keychain.js';
import { readPrivate } from './private-file.js';
import { CommandError, EXIT } from '../terminal/terminal.js';

/** Where the key of the secrets is kept. */
export type KeyPlace = 'keychain' | 'file';

/** `SERVICE_KEYCHAIN`: `on` insists, `off` never asks it, `auto` takes it where it works. */
export type KeychainSetting = 'on' | 'off' | 'auto';

/** What the secrets of one profile need. */
export interface SecretsOptions {
  readonly sodium: Sodium;
  /** The profile's folder; made where it is missing, 0700. */
  readonly folder: string;
  readonly keychain: Keychain;
  readonly setting: KeychainSetting;
  /** Told of what was too open and was closed, and of a keychain that does not work. */
  readonly warn: Warn;
}

/** What the file says of itself, in the clear. */
interface Header {
  readonly place: KeyPlace;
  /** The key's name: of the keychain's entry, or of the file `<name>.key`. */
  readonly keyName: string;
  readonly nonce: Uint8Array;
  readonly ct: Uint8Array;
}

/** A key, and where it is kept. */
interface KeptKey extends Pick<Header, 'place' | 'keyName'> {
  readonly key: Uint8Array;
}

/** What becomes of what is kept; undefined: nothing is to be written. */
type Next = (kept: Identity | undefined) => Identity | undefined;

const FILE = 'identity';
/** Held for the milliseconds in which the file is replaced; a keychain that hangs is never asked under it. */
const LOCK = `${FILE}.lock`;
/** Other processes that replace the key, again and again: one is a move into the keychain, more is a fault. */
const ROUNDS_MAX = 3;
const FORMAT = `${SERVICE_NAME}-device-identity`;
const VERSION = 1;
const FILE_MAX = 64 * 1024;
const KEY_FILE_MAX = 256;
const KEY_NAME = /^identity-[0-9a-f]{16}$/;
const KEY_FILE = /^identity-[0-9a-f]{16}\.key$/;

const BUSY = { code: 'busy' };

const readIdentity = object({ ...SECRETS, serverUrl: nonEmpty, deviceId: nonEmpty, name: string });
const readHeader = object({ format: string, version: count, place: string, key: string, nonce: bytes(), ct: bytes() });
const WAY_BACK =
  `Forget what is here (\`${SERVICE_NAME}-device forget\`) and become a device anew: \`${SERVICE_NAME}-device pair\` beside ` +
  `another device of yours, or \`${SERVICE_NAME}-device recover\` with your twelve words. Then revoke the old entry in the ` +
  'device list.';
/** A keychain gives its user's entries only: another one may be open than usual. */
const OTHER_KEYCHAIN = "Is it the keychain that you always use, and not another user's or an older copy? If so: ";

/** Reads `SERVICE_KEYCHAIN`. Throws `CommandError` `usage` for another value. */
export function keychainSetting(env: Readonly<Record<string, string | undefined>>): KeychainSetting {
  const name = `${SERVICE_NAME.toUpperCase()}_KEYCHAIN`;
  const value = env[name] ?? '';
  if (value === '' || value === 'auto') return 'auto';
  if (value === 'on' || value === 'off') return value;
  throw new CommandError(EXIT.usage, `${name} must be on, off or auto.`);
}

/** The secrets of one profile. Calls of `keep` take effect in the order in which they are made. */
export class Secrets {
  private readonly writing = new Serial();

  constructor(private readonly options: SecretsOptions) {}

  /** Path of the encrypted file. */
  get path(): string {
    return join(this.options.folder, FILE);
  }

  /** Where the key is kept, as the file records it; undefined where there is no file. Throws as `read` for a damaged one. */
  async place(): Promise<KeyPlace | undefined> {
    return (await this.header())?.place;
  }

  /** The identity; undefined where there is none yet. Throws `CommandError` where it cannot be decrypted. */
  async read(): Promise<Identity | undefined> {
    const header = await this.header();
    if (header === undefined) return undefined;
    const key = await this.keyOf(header);
    try {
      return this.opened(header, key);
    } finally {
      this.options.sodium.memzero(key);
    }
  }

  /**
   * Stores the identity: encrypted, atomically, durable when it resolves. Where there is one already its key is used.
   * Throws `CommandError` where that cannot be had, and leaves what is there; or the system's error.
   */
  async keep(identity: Identity): Promise<void> {
    await this.writing.run(() => this.store(() => identity));
  }

  /**
   * Stores the token of this identity with what else is kept of its device. False, and nothing is written, where the
   * profile was forgotten or is another device's meanwhile. Throws as `keep`.
   */
  renew({ deviceId, token }: Identity): Promise<boolean> {
    return this.writing.run(() => this.store((kept) => (kept?.deviceId === deviceId ? { ...kept, token } : undefined)));
  }

  /** Removes file and key. A keychain that cannot be asked is told of: an entry that opens nothing stays in it. */
  forget(): Promise<void> {
    return this.writing.run(async () => {
      if (!existsSync(this.options.folder)) return;
      const header = await this.locked(async () => {
        const found = await this.header().catch(() => undefined);
        await removePrivate(this.path);
        await this.dropKeyFiles(undefined);
        return found;
      });
      if (header?.place === 'keychain') await this.dropFromKeychain(header.keyName);
    });
  }

  /** Writes what `next` makes of what is kept; false where that is nothing. */
  private async store(next: Next): Promise<boolean> {
    const { folder, sodium, warn } = this.options;
    for (let round = 1; round <= ROUNDS_MAX; round++) {
      const header = await this.header();
      const before = header === undefined ? undefined : { ...header, key: await this.keyOf(header) };
      // Nothing of this profile is touched, and no key is made, for what is not going to be written.
      if (next(before === undefined ? undefined : this.opened(before, before.key)) === undefined) return false;
      await privateFolder(folder, warn);
      const now = await this.keyForWriting(before);
      const outcome = await this.locked(() => this.replaced(before, now, next));
      if (before !== undefined) sodium.memzero(before.key);
      sodium.memzero(now.key);
      if (outcome !== 'again') return outcome;
      if (now.place === 'keychain' && now.keyName !== before?.keyName) await this.dropFromKeychain(now.keyName);
    }
    throw new CommandError(EXIT.unavailable, `${this.path} is being changed by other commands`, 'Run it again.', BUSY);
  }

  /** Under the lock. `again`: another process has put the file under another key since it was looked at. */
  private async replaced(before: KeptKey | undefined, now: KeptKey, next: Next): Promise<boolean | 'again'> {
    const { sodium, folder } = this.options;
    const header = await this.header();
    if (header?.keyName !== before?.keyName || header?.place !== before?.place) return 'again';
    const identity = next(header === undefined || before === undefined ? undefined : this.opened(header, before.key));
    if (identity === undefined) return false;
    const { place, keyName, key } = now;
    const isNew = keyName !== header?.keyName;
    if (isNew && place === 'file') await writePrivate(join(folder, `${keyName}.key`), text(`${toBase64Url(key)}\n`));
    const { serverUrl, deviceId, name } = identity;
    const body = sealed({ sodium, key, aad: aadOf(now) }, { serverUrl, deviceId, name, ...secretsOf(identity) });
    const file = { format: FORMAT, version: VERSION, place, key: keyName, ...body };
    await writePrivate(this.path, text(`${JSON.stringify(file)}\n`));
    // Only now does nothing refer to the key before.
    await this.dropKeyFiles(place === 'file' ? keyName : undefined);
    return true;
  }

  /** Runs `work` while no other process replaces the file. The folder exists. */
  private locked<T>(work: () => Promise<T>): Promise<T> {
    const held = `${this.path} is held by another command`;
    const refusal = (): Error => new CommandError(EXIT.unavailable, held, 'Run it again later.', BUSY);
    return underLock(join(this.options.folder, LOCK), refusal, work);
  }

  /** The key in use; a new one where there is none, or where the keychain is insisted on and the key is in a file. */
  private async keyForWriting(before: KeptKey | undefined): Promise<KeptKey> {
    const { sodium, setting } = this.options;
    if (before !== undefined && !(before.place === 'file' && setting === 'on'))
      return { place: before.place, keyName: before.keyName, key: Uint8Array.from(before.key) };
    const key = sodium.random(KEY_BYTES);
    const keyName = `identity-${Array.from(sodium.random(8), (byte) => byte.toString(16).padStart(2, '0')).join('')}`;
    if (setting !== 'off' && (await this.intoKeychain(keyName, key))) return { place: 'keychain', keyName, key };
    return { place: 'file', keyName, key };
  }

  private opened(header: Header, key: Uint8Array): Identity {
    const { sodium } = this.options;
    const { place } = header;
    return unsealed({ sodium, key, aad: aadOf(header) }, header, {
      read: (value) => {
        const read = readIdentity(value, 'identity');
        return identityOf(read, read);
      },
      changed: () => this.damaged('does not open with its key: one of the two was changed or replaced', { place }),
      unreadable: () => this.damaged('has an unreadable content'),
    });
  }

  /** Tries the keychain with a value that does not matter, then trusts it with the key, and reads that back too. */
  private async intoKeychain(keyName: string, key: Uint8Array): Promise<boolean> {
    const { keychain, setting, warn, sodium } = this.options;
    const givesBack = async (name: string, secret: Uint8Array): Promise<boolean> => {
      await keychain.set(name, toBase64Url(secret));
      return (await keychain.get(name)) === toBase64Url(secret);
    };
    try {
      const probe = `probe-${keyName}`;
      const works = await givesBack(probe, sodium.random(KEY_BYTES));
      await keychain.delete(probe);
      if (works && (await givesBack(keyName, key))) return true;
      throw new KeychainError('absent', 'the keychain does not give back what it was given');
    } catch (error) {
      if (!(error instanceof KeychainError)) throw error;
      if (setting === 'on') throw keychainRefusal(error);
      // Absent is the usual case of a server or a container, and nothing to worry the user with.
      if (error.code === 'silent') warn('The keychain does not answer: the key goes into a file (mode 600) instead.');
      return false;
    }
  }

  private async keyOf({ place, keyName }: Header): Promise<Uint8Array> {
    const { folder, warn } = this.options;
    const path = join(folder, `${keyName}.key`);
    const kept =
      place === 'keychain'
        ? await this.fromKeychain(keyName)
        : (await readPrivate(path, KEY_FILE_MAX, warn))?.toString('utf8').trim();
    if (kept === undefined) {
      const where = place === 'keychain' ? "is not in this user's keychain" : `is not there (${path})`;
      throw this.damaged(`cannot be opened: its key ${where}. It was copied without it, or the key was removed`, {
        place,
      });
    }
    const key = decodeBase64(kept);
    if (key?.length !== KEY_BYTES) throw this.damaged('cannot be opened: its key is damaged', { place });
    return key;
  }

  private async fromKeychain(keyName: string): Promise<string | undefined> {
    if (this.options.setting === 'off') {
      throw new CommandError(
        EXIT.failure,
        `The key of ${this.path} is in the keychain, which ${SERVICE_NAME.toUpperCase()}_KEYCHAIN=off forbids to ask.`,
        'Run the command without it.',
      );
    }
    try {
      return await this.options.keychain.get(keyName);
    } catch (error) {
      throw error instanceof KeychainError ? keychainRefusal(error) : error;
    }
  }

  private async header(): Promise<Header | undefined> {
    const file = await readPrivate(this.path, FILE_MAX, this.options.warn);
    if (file === undefined) return undefined;
    let read: ReturnType<typeof readHeader>;
    try {
      read = readHeader(JSON.parse(file.toString('utf8')), FILE);
    } catch (cause) {
      throw this.damaged('is damaged', { cause });
    }
    const { format, version, place, key: keyName, nonce, ct } = read;
    if (format === FORMAT && version > VERSION) {
      throw new CommandError(EXIT.failure, `${this.path} was written by a newer version.`, 'Install that version.');
    }
    const known = format === FORMAT && version === VERSION && (place === 'keychain' || place === 'file');
    if (!known || !KEY_NAME.test(keyName) || nonce.length !== NONCE_BYTES) throw this.damaged('is damaged');
    return { place, keyName, nonce, ct };
  }

  private async dropKeyFiles(except: string | undefined): Promise<void> {
    for (const name of await readdir(this.options.folder).catch(() => [])) {
      if (KEY_FILE.test(name) && name !== `${except}.key`) await removePrivate(join(this.options.folder, name));
    }
  }

  private async dropFromKeychain(keyName: string): Promise<void> {
    if (this.options.setting === 'off') return;
    try {
      await this.options.keychain.delete(keyName);
    } catch (error) {
      if (!(error instanceof KeychainError)) throw error;
      this.options.warn(`The entry ${keyName} could not be removed from the keychain. It opens nothing any more.`);
    }
  }

  private damaged(
    what: string,
    { place, ...options }: ErrorOptions & { readonly place?: KeyPlace } = {},
  ): CommandError {
    const hint = place === 'keychain' ? `${OTHER_KEYCHAIN}${WAY_BACK}` : WAY_BACK;
    return new CommandError(EXIT.failure, `${this.path} ${what}.`, hint, options);
  }
}

const keychainRefusal = (cause: KeychainError): CommandError =>
  new CommandError(
    EXIT.unavailable,
    cause.code === 'silent'
      ? "The keychain, which holds the key of this device's secrets, does not answer."
      : "The keychain, which holds the key of this device's secrets, cannot be asked.",
    'Unlock it (a window may be waiting for its password) and run the command again.',
    { cause, code: 'keychain' },
  );

const aadOf = ({ place, keyName }: Pick<Header, 'place' | 'keyName'>): Uint8Array =>
  lengthPrefixed(`${FORMAT}-v${VERSION}`, place, keyName);
