/**
 * A device's secrets at rest: its token, its X25519 secret key and the master key, encrypted in one file.
 *
 * The key is 32 random bytes, in the system's keychain where one works, else in a 0600 file beside it. The phrase is
 * never here: no device keeps it (contract 9). A new key has a new name, and the file that names it is replaced last,
 * so that a crash at any point leaves a file whose key exists.
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { isGlyph } from '../../client/api.js';
import { baseOf } from '../../client/http.js';
import type { Identity } from '../../client/identity.js';
import { bytes, count, nonEmpty, nullable, object, string } from '../../client/reader.js';
import type { Sodium } from '../../crypto/sodium.js';
import { privateFolder, removePrivate, writePrivate, type Warn } from '../../files/private.js';
import { decodeBase64, toBase64Url } from '../../protocol/base64.js';
import { lengthPrefixed, text } from '../../protocol/bytes.js';
import { KEY_BYTES, NONCE_BYTES, SERVICE_NAME } from '../../protocol/limits.js';
import { Serial } from '../../protocol/serial.js';
import { KeychainError, type Keychain } from './keychain.js';
import { readPrivate } from './private-file.js';
import { CommandError, EXIT } from './terminal.js';

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

const FILE = 'identity';
const FORMAT = `${SERVICE_NAME}-device-identity`;
const VERSION = 1;
const FILE_MAX = 64 * 1024;
const KEY_FILE_MAX = 256;
const KEY_NAME = /^identity-[0-9a-f]{16}$/;
const KEY_FILE = /^identity-[0-9a-f]{16}\.key$/;

const readHeader = object({ format: string, version: count, place: string, key: string, nonce: bytes(), ct: bytes() });
const readToken = object({ text: nonEmpty, expiresAt: nullable(count), issuedAt: nullable(count) });
const readIdentity = object({
  serverUrl: nonEmpty,
  tenantId: nonEmpty,
  deviceId: nonEmpty,
  name: string,
  glyph: string,
  publicKey: bytes(KEY_BYTES),
  secretKey: bytes(KEY_BYTES),
  masterKey: bytes(KEY_BYTES),
  token: readToken,
});

const WAY_BACK =
  `Become a device anew: \`${SERVICE_NAME}-device pair\` beside another device of yours, or ` +
  `\`${SERVICE_NAME}-device recover\` with your twelve words. Then revoke the old entry in the device list.`;

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
    const { sodium } = this.options;
    const { nonce, ct } = header;
    const opened = sodium.aeadDecrypt({ message: ct, aad: aadOf(header), nonce, key });
    sodium.memzero(key);
    if (opened === undefined) throw this.damaged('does not open with its key: one of the two was changed or replaced');
    try {
      return decoded(opened);
    } catch {
      // No cause: the parser's message would quote the plaintext.
      throw this.damaged('has an unreadable content');
    } finally {
      sodium.memzero(opened);
    }
  }

  /** Stores the identity: encrypted, atomically, durable when it resolves. Throws `CommandError`, or the system's error. */
  keep(identity: Identity): Promise<void> {
    return this.writing.run(() => this.store(identity));
  }

  /** Removes file and key. A keychain that cannot be asked is told of: an entry that opens nothing stays in it. */
  async forget(): Promise<void> {
    const header = await this.header().catch(() => undefined);
    await removePrivate(this.path);
    if (header?.place === 'keychain') await this.dropFromKeychain(header.keyName);
    await this.dropKeyFiles(undefined);
  }

  private async store(identity: Identity): Promise<void> {
    const { sodium, folder, warn } = this.options;
    await privateFolder(folder, warn);
    const { place, keyName, key, old } = await this.keyForWriting();
    const message = encoded(identity);
    const nonce = sodium.random(NONCE_BYTES);
    const ct = sodium.aeadEncrypt({ message, aad: aadOf({ place, keyName }), nonce, key });
    sodium.memzero(message);
    sodium.memzero(key);
    const file = { format: FORMAT, version: VERSION, place, key: keyName };
    const body = { ...file, nonce: toBase64Url(nonce), ct: toBase64Url(ct) };
    await writePrivate(this.path, text(`${JSON.stringify(body)}\n`));
    // Only now does nothing refer to the key before.
    await this.dropKeyFiles(place === 'file' ? keyName : undefined);
    if (old !== undefined) await this.dropFromKeychain(old);
  }

  /** The key in use, where it is where it should be; else a new one. `old`: the keychain's entry that it replaces. */
  private async keyForWriting(): Promise<{ place: KeyPlace; keyName: string; key: Uint8Array; old?: string }> {
    const { setting } = this.options;
    // A damaged file is about to be replaced: what it says does not matter.
    const header = await this.header().catch(() => undefined);
    const moves = (header?.place === 'keychain' && setting === 'off') || (header?.place === 'file' && setting === 'on');
    if (header !== undefined && !moves) {
      const key = await this.keyOf(header).catch(() => undefined);
      if (key !== undefined) return { place: header.place, keyName: header.keyName, key };
    }
    const old = header?.place === 'keychain' ? header.keyName : undefined;
    return { ...(await this.newKey()), ...(old === undefined ? {} : { old }) };
  }

  private async newKey(): Promise<{ place: KeyPlace; keyName: string; key: Uint8Array }> {
    const { sodium, setting, folder } = this.options;
    const key = sodium.random(KEY_BYTES);
    const keyName = `identity-${Array.from(sodium.random(8), (byte) => byte.toString(16).padStart(2, '0')).join('')}`;
    if (setting !== 'off' && (await this.intoKeychain(keyName, key))) return { place: 'keychain', keyName, key };
    await writePrivate(join(folder, `${keyName}.key`), text(`${toBase64Url(key)}\n`));
    return { place: 'file', keyName, key };
  }

  /** Tries the keychain with a value that does not matter, then trusts it with the key, and reads that back too. */
  private async intoKeychain(keyName: string, key: Uint8Array): Promise<boolean> {
    const { keychain, setting, warn, sodium } = this.options;
    try {
      const probe = `probe-${keyName}`;
      const value = toBase64Url(sodium.random(KEY_BYTES));
      await keychain.set(probe, value);
      const found = await keychain.get(probe);
      await keychain.delete(probe);
      if (found !== value) throw new KeychainError('absent', 'the keychain does not give back what it was given');
      await keychain.set(keyName, toBase64Url(key));
      if ((await keychain.get(keyName)) === toBase64Url(key)) return true;
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
      throw this.damaged(`cannot be opened: its key ${where}. It was copied without it, or the key was removed`);
    }
    const key = decodeBase64(kept);
    if (key?.length !== KEY_BYTES) throw this.damaged('cannot be opened: its key is damaged');
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
      throw this.damaged('is damaged', cause);
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

  private damaged(what: string, cause?: unknown): CommandError {
    return new CommandError(EXIT.failure, `${this.path} ${what}.`, WAY_BACK, { cause });
  }
}

const keychainRefusal = (cause: KeychainError): CommandError =>
  new CommandError(
    EXIT.unavailable,
    cause.code === 'silent' ? 'The keychain does not answer.' : 'The keychain cannot be asked.',
    'Unlock it (a window may be waiting for its password) and run the command again.',
    { cause },
  );

const aadOf = ({ place, keyName }: Pick<Header, 'place' | 'keyName'>): Uint8Array =>
  lengthPrefixed(`${FORMAT}-v${VERSION}`, place, keyName);

function encoded({ keys, masterKey, token, ...rest }: Identity): Uint8Array {
  const { serverUrl, tenantId, deviceId, name, glyph } = rest;
  const secret = {
    publicKey: toBase64Url(keys.publicKey),
    secretKey: toBase64Url(keys.secretKey),
    masterKey: toBase64Url(masterKey),
  };
  return text(JSON.stringify({ serverUrl, tenantId, deviceId, name, glyph, ...secret, token }));
}

/** Throws for anything that `encoded` did not write. */
function decoded(message: Uint8Array): Identity {
  const read = readIdentity(JSON.parse(new TextDecoder().decode(message)), FILE);
  const { publicKey, secretKey, glyph, token, ...rest } = read;
  if (!isGlyph(glyph)) throw new TypeError('unknown glyph');
  const { text: bearer, expiresAt, issuedAt } = token;
  return {
    ...rest,
    serverUrl: baseOf(rest.serverUrl),
    glyph,
    keys: { publicKey, secretKey },
    token: { text: bearer, expiresAt, ...(issuedAt === null ? {} : { issuedAt }) },
  };
}
