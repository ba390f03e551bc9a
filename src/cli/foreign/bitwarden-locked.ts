/**
 * The password-protected export of Bitwarden: PBKDF2-SHA-256 or Argon2id, HKDF-Expand, then AES-256-CBC under
 * HMAC-SHA-256 (Bitwarden, Encrypted exports and KDF algorithms). The MAC is verified before anything is decrypted.
 */
import { createDecipheriv, createHash, createHmac, pbkdf2, timingSafeEqual } from 'node:crypto';
import { promisify } from 'node:util';
import { count, field, nullable, type Reader, string } from '../../sdk/reader.js';
import { ForeignError, WrongPassword } from './entries.js';

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
  const key = await keyOf(locked, password);
  const keys = { cipher: expand(key, 'enc'), mac: expand(key, 'mac') };
  // Verifies the password before the data is decrypted.
  decrypted(read(locked, 'encKeyValidation_DO_NOT_EDIT', string), keys);
  return decrypted(read(locked, 'data', string), keys).toString('utf8');
}

const read = <T>(locked: Locked, name: string, reader: Reader<T>): T => field(name, reader)(locked, '');

async function keyOf(locked: Locked, password: string): Promise<Buffer> {
  const salt = read(locked, 'salt', string);
  const iterations = read(locked, 'kdfIterations', count);
  const type = read(locked, 'kdfType', nullable(count)) ?? PBKDF2;
  if (type === PBKDF2) {
    expectWithin('passes', iterations, MOST.pbkdf2);
    return promisify(pbkdf2)(password, salt, iterations, KEY_BYTES, 'sha256');
  }
  if (type !== ARGON2ID) throw new ForeignError('kdfType', 'its key derivation is not known');
  const memory = read(locked, 'kdfMemory', count);
  const parallelism = read(locked, 'kdfParallelism', count);
  expectWithin('passes', iterations, MOST.passes);
  expectWithin('memory', memory, MOST.memoryMib);
  expectWithin('lanes', parallelism, MOST.lanes);
  const { argon2id } = await import('hash-wasm');
  const cost = { iterations, parallelism, memorySize: memory * 1024, hashLength: KEY_BYTES };
  const saltHash = createHash('sha256').update(salt).digest();
  return Buffer.from(await argon2id({ password, salt: saltHash, ...cost, outputType: 'binary' }));
}

function expectWithin(what: string, value: number, most: number): void {
  if (value < 1 || value > most)
    throw new ForeignError('its key', `it asks for ${value} ${what}, and at most ${most} are allowed`);
}

/** HKDF-Expand for one block (RFC 5869, 2.3). Bitwarden leaves out the extract step. */
const expand = (key: Buffer, info: string): Buffer => createHmac('sha256', key).update(`${info}\u0001`).digest();

/** An "EncString" of type 2: `2.iv|ciphertext|mac`, each base64. */
function decrypted(text: string, keys: { readonly cipher: Buffer; readonly mac: Buffer }): Buffer {
  const [, iv64 = '', ct64 = '', mac64 = ''] = /^2\.([\w+/=]+)\|([\w+/=]+)\|([\w+/=]+)$/.exec(text) ?? [];
  const [iv, ct, mac] = [Buffer.from(iv64, 'base64'), Buffer.from(ct64, 'base64'), Buffer.from(mac64, 'base64')];
  if (iv.length !== IV_BYTES || mac.length !== KEY_BYTES) throw new ForeignError('its data', 'its format is not known');
  const expected = createHmac('sha256', keys.mac).update(iv).update(ct).digest();
  if (!timingSafeEqual(expected, mac)) throw new WrongPassword();
  const decipher = createDecipheriv('aes-256-cbc', keys.cipher, iv);
  try {
    return Buffer.concat([decipher.update(ct), decipher.final()]);
  } catch (error) {
    throw new ForeignError('its data', 'it is damaged', undefined, { cause: error });
  }
}
