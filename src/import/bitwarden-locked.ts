/**
 * The password-protected export of Bitwarden: PBKDF2-SHA-256 or Argon2id, HKDF-Expand, then AES-256-CBC under
 * HMAC-SHA-256 (Bitwarden, Encrypted exports and KDF algorithms). The MAC is verified before anything is decrypted.
 */
import { decodeBase64 } from '../protocol/base64.js';
import { concat, text as utf8 } from '../protocol/bytes.js';
import { count, field, nullable, type Reader, string } from '../sdk/reader.js';
import { ForeignError, foreignText, WrongPassword } from './entries.js';

const { subtle } = crypto;
const SHA_256 = 'SHA-256';
type Bytes = Uint8Array<ArrayBuffer>;
const bytesOf = (value: string): Bytes => new Uint8Array(utf8(value));

const KEY_BYTES = 32;
const IV_BYTES = 16;
/** The most that Bitwarden itself lets its users set. */
const MOST = { pbkdf2: 2_000_000, passes: 10, memoryMib: 1_024, lanes: 16 } as const;
const PBKDF2 = 0;
const ARGON2ID = 1;

/** The fields of a locked export. */
type Locked = Readonly<Record<string, unknown>>;

/** The JSON of a locked export. Throws `WrongPassword`, and `ForeignError` for an unknown form or too high a cost. */
export async function openLocked(locked: Locked, password: string): Promise<string> {
  const key = await hmacKey(await keyOf(locked, password), 'sign');
  const keys = { cipher: await expand(key, 'enc'), mac: await expand(key, 'mac') };
  // Verifies the password before the data is decrypted.
  await decrypted(read(locked, 'encKeyValidation_DO_NOT_EDIT', string), keys);
  return foreignText(await decrypted(read(locked, 'data', string), keys));
}

const read = <T>(locked: Locked, name: string, reader: Reader<T>): T => field(name, reader)(locked, '');

async function keyOf(locked: Locked, password: string): Promise<Bytes> {
  const salt = read(locked, 'salt', string);
  const iterations = read(locked, 'kdfIterations', count);
  const type = read(locked, 'kdfType', nullable(count)) ?? PBKDF2;
  if (type === PBKDF2) {
    expectWithin('passes', iterations, MOST.pbkdf2);
    const typed = await subtle.importKey('raw', bytesOf(password), 'PBKDF2', false, ['deriveBits']);
    const how = { name: 'PBKDF2', hash: SHA_256, salt: bytesOf(salt), iterations };
    return new Uint8Array(await subtle.deriveBits(how, typed, 8 * KEY_BYTES));
  }
  if (type !== ARGON2ID) throw new ForeignError('kdfType', 'its key derivation is not known');
  const memory = read(locked, 'kdfMemory', count);
  const parallelism = read(locked, 'kdfParallelism', count);
  expectWithin('passes', iterations, MOST.passes);
  expectWithin('memory', memory, MOST.memoryMib);
  expectWithin('lanes', parallelism, MOST.lanes);
  const { argon2 } = await import('./argon2.js');
  const saltHash = new Uint8Array(await subtle.digest(SHA_256, bytesOf(salt)));
  const cost = { iterations, parallelism, memorySize: memory * 1024, hashLength: KEY_BYTES };
  return argon2('id', { password, salt: saltHash, ...cost });
}

function expectWithin(what: string, value: number, most: number): void {
  if (value < 1 || value > most)
    throw new ForeignError('its key', `it asks for ${value} ${what}, and at most ${most} are allowed`);
}

const hmacKey = (key: Bytes, use: 'sign' | 'verify'): Promise<CryptoKey> =>
  subtle.importKey('raw', key, { name: 'HMAC', hash: SHA_256 }, false, [use]);

/** HKDF-Expand for one block (RFC 5869, 2.3). Bitwarden leaves out the extract step. */
const expand = async (key: CryptoKey, info: string): Promise<Bytes> =>
  new Uint8Array(await subtle.sign('HMAC', key, bytesOf(`${info}\u0001`)));

/** An "EncString" of type 2: `2.iv|ciphertext|mac`, each base64. */
async function decrypted(text: string, keys: { readonly cipher: Bytes; readonly mac: Bytes }): Promise<Bytes> {
  const [, ...parts] = /^2\.([\w+/=]+)\|([\w+/=]+)\|([\w+/=]+)$/.exec(text) ?? [];
  const [iv, ct, mac] = parts.map((part) => new Uint8Array(decodeBase64(part) ?? []));
  if (ct === undefined || iv?.length !== IV_BYTES || mac?.length !== KEY_BYTES)
    throw new ForeignError('its data', 'its format is not known');
  const verifying = await hmacKey(keys.mac, 'verify');
  if (!(await subtle.verify('HMAC', verifying, mac, new Uint8Array(concat([iv, ct]))))) throw new WrongPassword();
  const key = await subtle.importKey('raw', keys.cipher, 'AES-CBC', false, ['decrypt']);
  try {
    return new Uint8Array(await subtle.decrypt({ name: 'AES-CBC', iv }, key, ct));
  } catch (error) {
    throw new ForeignError('its data', 'it is damaged', undefined, { cause: error });
  }
}
