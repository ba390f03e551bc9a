/**
 * Opening a KeePass database (KDBX 3.1 and 4) within bounds on the cost of its key, its unpacked size and the content
 * of its XML: a database is not trusted, even where its password is known.
 */
import type * as KdbxWeb from 'kdbxweb';
import { concat, equalBytes } from '../protocol/bytes.js';
import { ForeignError, WrongPassword } from './entries.js';
import { expectPlainXml, UNPACKED_MAX } from './kdbx-xml.js';

/** The exports of kdbxweb: a CommonJS module, so all of them are in the default export. */
type Library = (typeof KdbxWeb)['default'];

/** Bounds on the cost of the key derivation, which only the header states. Programs choose about a second of work. */
const COST_MAX = { aesRounds: 500_000_000, passes: 1_000, memoryKib: 1024 * 1024, lanes: 64 } as const;
/** Maximum of passes times KiB: a few minutes of one core. */
const ARGON2_WORK_MAX = 64 * 1024 * 1024;

/** An attachment that the database refers to and does not have. */
export const MISSING = { hash: '', value: new ArrayBuffer(0) };

/** The library with Argon2, loaded only when a database is read. */
export async function kdbxLibrary(): Promise<Library> {
  const library = (await import('kdbxweb')).default;
  library.CryptoEngine.setArgon2Impl(async (...args) => {
    const [password, salt, memorySize, iterations, hashLength, parallelism, type] = args;
    const secret = { password: new Uint8Array(password), salt: new Uint8Array(salt) };
    const { argon2 } = await import('./argon2.js');
    const kind = type === library.CryptoEngine.Argon2TypeArgon2d ? 'd' : 'id';
    try {
      return (await argon2(kind, { ...secret, iterations, parallelism, memorySize, hashLength })).buffer;
    } catch (error) {
      throw new ForeignError('', 'its key cannot be made here: too little memory?', undefined, { cause: error });
    }
  });
  return library;
}

/** The database. Throws `WrongPassword`, and `ForeignError` if it is damaged, of unknown form or over a bound. */
export async function openKdbx(library: Library, bytes: Uint8Array, password: string, keyFile: Uint8Array | undefined) {
  const { Credentials, Kdbx, KdbxFormat, ProtectedValue } = library;
  const typed = password === '' && keyFile !== undefined ? null : ProtectedValue.fromString(password);
  try {
    const database = new Kdbx();
    database.credentials = new Credentials(typed, keyFile ?? null);
    // The library leaves out an attachment whose reference names nothing.
    const { binaries } = database;
    const find = binaries.getByRef.bind(binaries);
    binaries.getByRef = (ref) => find(ref) ?? MISSING;
    const format = new KdbxFormat(database);
    unpackWithin(library, database, format);
    return await format.load(bufferOf(bytes));
  } catch (error) {
    throw refusal(library, error);
  }
}

/** Refuses a database whose key would cost too much, before the password is asked for. Throws `ForeignError`. */
export function expectCheap(library: Library, bytes: Uint8Array): void {
  const { BinaryStream, Int64, Kdbx, KdbxContext, KdbxHeader } = library;
  try {
    const context = new KdbxContext({ kdbx: new Kdbx() });
    const header = KdbxHeader.read(new BinaryStream(bufferOf(bytes)), context);
    const number = (name: string): number => {
      const value = header.kdfParameters?.get(name);
      return value instanceof Int64 ? value.value : typeof value === 'number' ? value : 0;
    };
    expectWithin('rounds', Math.max(header.keyEncryptionRounds ?? 0, number('R')), COST_MAX.aesRounds);
    expectWithin('passes', number('I'), COST_MAX.passes);
    expectWithin('KiB of memory', number('M') / 1024, COST_MAX.memoryKib);
    expectWithin('lanes', number('P'), COST_MAX.lanes);
    expectWithin('passes times KiB', (number('I') * number('M')) / 1024, ARGON2_WORK_MAX);
    // `V`: the version of Argon2.
    if (number('M') > 0 && number('V') !== 0x13) throw new ForeignError('', 'its version of Argon2 is not known');
  } catch (error) {
    throw refusal(library, error);
  }
}

function expectWithin(what: string, value: number, most: number): void {
  if (!(value <= most)) throw new ForeignError('', `its key takes ${value} ${what}, and at most ${most} are allowed`);
}

/**
 * Replaces the library's decompression, which has no bound: decrypted data is unpacked and checked here, and passed on
 * as uncompressed. (`decryptData` is not documented: Dependencies, kdbxweb.)
 */
function unpackWithin({ Consts, HashedBlockTransform }: Library, database: KdbxWeb.Kdbx, format: unknown): void {
  const inner = format as { decryptData: (data: ArrayBuffer, key: ArrayBuffer) => Promise<ArrayBuffer> };
  const decrypt = inner.decryptData.bind(inner);
  inner.decryptData = async (data, key) => {
    const plain = new Uint8Array(await decrypt(data, key));
    const { header } = database;
    const packed = header.compression === Consts.CompressionAlgorithm.GZip;
    if (header.versionMajor >= 4) {
      const content = packed ? await unpacked(plain) : plain;
      header.compression = Consts.CompressionAlgorithm.None;
      expectPlainXml(content.subarray(xmlStart(content)));
      return bufferOf(content);
    }
    const start = new Uint8Array(header.streamStartBytes ?? new ArrayBuffer(0));
    // Wrong password: the library reports it.
    if (!equalBytes(plain.subarray(0, start.length), start)) return bufferOf(plain);
    const blocks = new Uint8Array(await HashedBlockTransform.decrypt(bufferOf(plain.subarray(start.length))));
    const content = packed ? await unpacked(blocks) : blocks;
    header.compression = Consts.CompressionAlgorithm.None;
    expectPlainXml(content);
    return bufferOf(concat([start, new Uint8Array(await HashedBlockTransform.encrypt(bufferOf(content)))]));
  };
}

/** A copy: the `buffer` of a part is that of the whole. */
const bufferOf = (bytes: Uint8Array): ArrayBuffer => new Uint8Array(bytes).buffer;

/** Decompresses gzip. Throws `ForeignError` over `UNPACKED_MAX`, where it stops, and for damaged data. */
async function unpacked(bytes: Uint8Array): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  const reader = new Blob([bufferOf(bytes)]).stream().pipeThrough(new DecompressionStream('gzip')).getReader();
  let size = 0;
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      size += next.value.length;
      if (size > UNPACKED_MAX) break;
      parts.push(next.value);
    }
  } catch (error) {
    throw new ForeignError('', 'its compressed data is damaged', undefined, { cause: error });
  }
  if (size <= UNPACKED_MAX) return concat(parts);
  await reader.cancel();
  throw new ForeignError('', `it unpacks to more than ${UNPACKED_MAX / 1024 / 1024} MiB`);
}

/** Offset of the XML: after the inner header, whose fields begin with a byte for the kind and four for the length. */
function xmlStart(content: Uint8Array): number {
  const view = new DataView(content.buffer, content.byteOffset, content.length);
  for (let at = 0; at + 5 <= content.length;) {
    const kind = content[at];
    at += 5 + view.getUint32(at + 1, true);
    if (kind === 0) return at;
  }
  throw new ForeignError('', 'its inner header is damaged');
}

function refusal({ Consts, KdbxError }: Library, error: unknown): unknown {
  if (error instanceof ForeignError || error instanceof WrongPassword) return error;
  const { ErrorCodes } = Consts;
  if (!(error instanceof KdbxError))
    return new ForeignError('', 'the database is damaged', undefined, { cause: error });
  if (error.code === ErrorCodes.InvalidKey) return new WrongPassword({ cause: error });
  const known: Readonly<Record<string, string>> = {
    [ErrorCodes.BadSignature]: 'it is not a KeePass database',
    [ErrorCodes.InvalidVersion]: 'its version is not supported: 3.1 and 4 are',
    [ErrorCodes.Unsupported]: 'its cipher is not supported: AES and ChaCha20 are',
    [ErrorCodes.InvalidArg]: 'the key file is damaged',
  };
  return new ForeignError('', known[error.code] ?? 'the database is damaged', undefined, { cause: error });
}
