/**
 * A device's secrets at rest: its token, its X25519 secret key and the master key, encrypted in one file.
 *
 * The key is 32 random bytes, in the system's keychain where one works, otherwise in a 0600 file beside it. The choice is
 * made once, when the profile becomes a device, and recorded in the encrypted file. Later writes use the same key or
 * fail: falling back to a key file while the keychain is locked would expose the secrets to every reader of the folder.
 * Only `SERVICE_KEYCHAIN=on` moves a key, from its file into the keychain.
 *
 * The recovery phrase is never stored. A new key gets a new name, and the file that refers to it is replaced last: after
 * a crash at any point the file refers to a key that exists.
 */
import { existsSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { erasing, type Sodium } from '../crypto/sodium.js';
import { sealed, unsealed } from '../device/sealed.js';
import * as files from '../files/private.js';
import { decodeBase64, toBase64Url } from '../protocol/base64.js';
import { lengthPrefixed, text } from '../protocol/bytes.js';
import { KEY_BYTES, NONCE_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import { Serial } from '../protocol/serial.js';
import { identityOf, secretsOf, SECRETS, type Identity } from '../sdk/identity.js';
import { bytes, count, nonEmpty, object, string } from '../sdk/reader.js';
import { withFileLock } from '../terminal/lock.js';
import { CommandError, EXIT, usageError } from '../terminal/terminal.js';
import { PROGRAM_NAME } from './context.js';
import { KeychainError, type Keychain } from './keychain.js';

type KeyPlace = 'keychain' | 'file';

/** `SERVICE_KEYCHAIN`: `on` requires the keychain, `off` never uses it, `auto` uses it where it works. */
export type KeychainSetting = 'on' | 'off' | 'auto';

/** The file, with its secrets still encrypted. */
interface Header {
  readonly place: KeyPlace;
  /** Name of the keychain entry, or of the file `<name>.key`. */
  readonly keyName: string;
  readonly nonce: Uint8Array;
  readonly ct: Uint8Array;
}

type StoredKey = Pick<Header, 'place' | 'keyName'> & { readonly key: Uint8Array };

/** Derives the identity to store from the stored one; undefined: nothing is written. */
type Next = (stored: Identity | undefined) => Identity | undefined;

/** The encrypted file, in the profile's folder. */
export const IDENTITY_FILE = 'identity';
/** Held only while the file is replaced, never during a call to the keychain, which may hang. */
const LOCK = `${IDENTITY_FILE}.lock`;
/** Retries after another process has replaced the key. A move into the keychain replaces it once. */
const ROUNDS_MAX = 3;
const FORMAT = `${SERVICE_NAME}-device-identity`;
const VERSION = 1;
const FILE_MAX = 64 * 1024;
const KEY_FILE_MAX = 256;
const KEY_NAME = /^identity-[0-9a-f]{16}$/;
/** A key file beside it. */
export const KEY_FILE = /^identity-[0-9a-f]{16}\.key$/;

const BUSY = { code: 'busy' };

const readIdentity = object({ ...SECRETS, serverUrl: nonEmpty, deviceId: nonEmpty, name: string });
const readHeader = object({ format: string, version: count, place: string, key: string, nonce: bytes(), ct: bytes() });
const WAY_BACK =
  `Forget what is here (\`${PROGRAM_NAME} forget\`) and become a device again: \`${PROGRAM_NAME} join\` with the words that ` +
  `\`pair\` shows on another device of yours, or \`${PROGRAM_NAME} recover\` with your twelve words. Then revoke the old entry in the ` +
  'device list.';
/** A keychain shows only the entries of its user: the open one may not be the usual one. */
const OTHER_KEYCHAIN = "Is it the keychain that you always use, and not another user's or an older copy? If so: ";

/** Reads `SERVICE_KEYCHAIN`. Throws `CommandError` `usage` for another value. */
export function keychainSetting(env: Readonly<Record<string, string | undefined>>): KeychainSetting {
  const name = `${SERVICE_NAME.toUpperCase()}_KEYCHAIN`;
  const value = env[name] ?? '';
  if (value === '' || value === 'auto') return 'auto';
  if (value === 'on' || value === 'off') return value;
  throw usageError(`${name} must be on, off or auto.`);
}

/** `readPrivate` of `src/files`, with its refusals as `CommandError`. */
export async function readPrivate(path: string, max: number, warn: files.Warn): Promise<Buffer | undefined> {
  try {
    return await files.readPrivate(path, max, warn);
  } catch (error) {
    if (!(error instanceof files.PrivateFileError)) throw error;
    throw new CommandError(EXIT.failure, error.message, `Fix it with: chmod 600 ${path}`, { cause: error });
  }
}

/** The secrets of one profile. Writes take effect in the order of the calls. */
export class Secrets {
  private readonly writing = new Serial();

  constructor(
    private readonly options: {
      readonly sodium: Sodium;
      /** The profile's folder; created with mode 0700 where it is missing. */
      readonly folder: string;
      readonly keychain: Keychain;
      readonly setting: KeychainSetting;
      /** Called for permissions that were too open and were corrected, and for a keychain that does not work. */
      readonly warn: files.Warn;
    },
  ) {}

  get path(): string {
    return join(this.options.folder, IDENTITY_FILE);
  }

  /** The stored identity, undefined where there is none yet. Throws `CommandError` where it cannot be decrypted. */
  async read(): Promise<Identity | undefined> {
    const stored = await this.stored();
    return stored && erasing(this.options.sodium, stored.key, (key) => this.opened(stored, key));
  }

  /** What is stored, with its key. Both are read again where another process has replaced or removed them in between. */
  private async stored(): Promise<(Header & StoredKey) | undefined> {
    for (let round = 1; ; round++) {
      const header = await this.header();
      if (header === undefined) return undefined;
      try {
        return { ...header, key: await this.keyOf(header) };
      } catch (error) {
        const now = await this.header();
        if (round >= ROUNDS_MAX || now?.keyName === header.keyName) throw error;
      }
    }
  }

  /**
   * Stores the identity: encrypted, atomically, durable when it resolves; under the stored key where there is one. Throws
   * `CommandError` where that key cannot be read, or the system's error; the file is unchanged then.
   */
  async keep(identity: Identity): Promise<void> {
    await this.writing.run(() => this.store(() => identity));
  }

  /**
   * Replaces the token of the stored identity. False, and nothing is written, where the profile was removed or belongs to
   * another device by now. Throws as `keep`.
   */
  renew({ deviceId, token }: Identity): Promise<boolean> {
    return this.writing.run(() =>
      this.store((stored) => (stored?.deviceId === deviceId ? { ...stored, token } : undefined)),
    );
  }

  /** Removes file and key. Where the keychain fails, its entry stays and is reported; it no longer opens anything. */
  forget(): Promise<void> {
    return this.writing.run(async () => {
      if (!existsSync(this.options.folder)) return;
      const header = await this.locked(async () => {
        const found = await this.header().catch(() => undefined);
        await files.removePrivate(this.path);
        await this.dropKeyFiles(undefined);
        return found;
      });
      if (header?.place === 'keychain') await this.dropFromKeychain(header.keyName);
    });
  }

  /** Writes the identity that `next` returns for the stored one; false where it returns none. */
  private async store(next: Next): Promise<boolean> {
    for (let round = 1; round <= ROUNDS_MAX; round++) {
      const before = await this.stored();
      const outcome = await this.storeOver(before, next).finally(() => {
        if (before !== undefined) this.options.sodium.memzero(before.key);
      });
      if (outcome !== 'again') return outcome;
    }
    throw new CommandError(EXIT.unavailable, `${this.path} is being changed by other commands`, 'Run it again.', BUSY);
  }

  /** One round of `store`: `before` is what was there, with its key. `again`: another process has changed its key. */
  private async storeOver(before: (Header & StoredKey) | undefined, next: Next): Promise<boolean | 'again'> {
    const { folder, sodium, warn } = this.options;
    // Checked before a key is created or the folder is touched.
    if (next(before === undefined ? undefined : this.opened(before, before.key)) === undefined) return false;
    await files.privateFolder(folder, warn);
    const now = await this.keyForWriting(before);
    const outcome = await this.locked(() => this.replaced(before, now, next)).finally(() => sodium.memzero(now.key));
    // Nothing refers to a new key that the file was not written with.
    const isUnused = outcome !== true && now.keyName !== before?.keyName;
    if (isUnused && now.place === 'keychain') await this.dropFromKeychain(now.keyName);
    return outcome;
  }

  /** Replaces the file, under the lock; see `storeOver`. */
  private async replaced(before: StoredKey | undefined, now: StoredKey, next: Next): Promise<boolean | 'again'> {
    const { sodium, folder } = this.options;
    const header = await this.header();
    if (header?.keyName !== before?.keyName) return 'again';
    const identity = next(header === undefined || before === undefined ? undefined : this.opened(header, before.key));
    if (identity === undefined) return false;
    const { place, keyName, key } = now;
    const isNew = keyName !== header?.keyName;
    if (isNew && place === 'file')
      await files.writePrivate(join(folder, `${keyName}.key`), text(`${toBase64Url(key)}\n`));
    const { serverUrl, deviceId, name } = identity;
    const body = sealed({ sodium, key, aad: aadOf(now) }, { serverUrl, deviceId, name, ...secretsOf(identity) });
    const file = { format: FORMAT, version: VERSION, place, key: keyName, ...body };
    await files.writePrivate(this.path, text(`${JSON.stringify(file)}\n`));
    // Last: until now the file referred to the previous key.
    await this.dropKeyFiles(place === 'file' ? keyName : undefined);
    return true;
  }

  /** Runs `work` while no other process replaces the file. */
  private locked<T>(work: () => Promise<T>): Promise<T> {
    const held = `${this.path} is held by another command`;
    const refusal = (): Error => new CommandError(EXIT.unavailable, held, 'Run it again later.', BUSY);
    return withFileLock(join(this.options.folder, LOCK), { refusal }, work);
  }

  /** The stored key; a new one where there is none, or where `on` moves it from its file into the keychain. */
  private async keyForWriting(before: StoredKey | undefined): Promise<StoredKey> {
    const { sodium, setting } = this.options;
    if (before !== undefined && !(before.place === 'file' && setting === 'on')) return before;
    const key = sodium.random(KEY_BYTES);
    const keyName = `identity-${Buffer.from(sodium.random(8)).toString('hex')}`;
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
      unreadable: () => this.damaged('has unreadable content'),
    });
  }

  /** Stores the key in the keychain. It is tried with another value first, and both are read back. */
  private async intoKeychain(keyName: string, key: Uint8Array): Promise<boolean> {
    const { keychain, setting, warn, sodium } = this.options;
    const taken: string[] = [];
    const givesBack = async (name: string, secret: Uint8Array): Promise<boolean> => {
      await keychain.set(name, toBase64Url(secret));
      taken.push(name);
      return (await keychain.get(name)) === toBase64Url(secret);
    };
    try {
      const probe = `probe-${keyName}`;
      const works = await givesBack(probe, sodium.random(KEY_BYTES));
      await keychain.delete(probe);
      if (works && (await givesBack(keyName, key))) return true;
      throw new KeychainError('absent', 'the keychain does not return what was stored');
    } catch (error) {
      if (!(error instanceof KeychainError)) throw error;
      // Nothing would remove the key from there later. One that is silent is not asked for another minute.
      if (error.code === 'absent') for (const name of taken) await keychain.delete(name).catch(() => undefined);
      if (setting === 'on') throw keychainRefusal(error);
      // `absent` is normal on servers and in containers: no warning.
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
      const what = `cannot be opened: its key ${where}. It was copied without it, or the key was removed`;
      throw this.damaged(what, { place });
    }
    const key = decodeBase64(kept);
    if (key?.length !== KEY_BYTES) throw this.damaged('cannot be opened: its key is damaged', { place });
    return key;
  }

  private async fromKeychain(keyName: string): Promise<string | undefined> {
    if (this.options.setting === 'off') {
      const forbidden = `The key of ${this.path} is in the keychain, which ${SERVICE_NAME.toUpperCase()}_KEYCHAIN=off disables.`;
      throw new CommandError(EXIT.failure, forbidden, 'Run the command without it.');
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
      read = readHeader(JSON.parse(file.toString('utf8')), IDENTITY_FILE);
    } catch (cause) {
      throw this.damaged('is damaged', { cause });
    }
    const { format, version, place, key: keyName, nonce, ct } = read;
    if (format === FORMAT && version > VERSION)
      throw new CommandError(EXIT.failure, `${this.path} was written by a newer version.`, 'Install that version.');
    const known = format === FORMAT && version === VERSION && (place === 'keychain' || place === 'file');
    if (!known || !KEY_NAME.test(keyName) || nonce.length !== NONCE_BYTES) throw this.damaged('is damaged');
    return { place, keyName, nonce, ct };
  }

  private async dropKeyFiles(except: string | undefined): Promise<void> {
    for (const name of await readdir(this.options.folder).catch(() => []))
      if (KEY_FILE.test(name) && name !== `${except}.key`) await files.removePrivate(join(this.options.folder, name));
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

  private damaged(what: string, { place, ...options }: ErrorOptions & { place?: KeyPlace } = {}): CommandError {
    const hint = place === 'keychain' ? `${OTHER_KEYCHAIN}${WAY_BACK}` : WAY_BACK;
    return new CommandError(EXIT.failure, `${this.path} ${what}.`, hint, options);
  }
}

function keychainRefusal(cause: KeychainError): CommandError {
  const how = cause.code === 'silent' ? 'does not answer' : 'is not available';
  const what = `The keychain, which holds the key of this device's secrets, ${how}.`;
  const hint = 'Unlock it (a window may be waiting for its password) and run the command again.';
  return new CommandError(EXIT.unavailable, what, hint, { cause, code: 'keychain' });
}

const aadOf = ({ place, keyName }: Pick<Header, 'place' | 'keyName'>): Uint8Array =>
  lengthPrefixed(`${FORMAT}-v${VERSION}`, place, keyName);
