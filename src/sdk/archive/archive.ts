/**
 * The encrypted archive of a vault (layout: the reference, Archive). Its key is derived from the twelve words and a
 * random salt: a broken archive key does not reveal the master key, and no two archives share a key.
 *
 * Invariant: a part of an archive is never accepted as the whole. The header has a tag, the nonce of each chunk
 * contains its number, which binds it to its position, and the last chunk is marked.
 */
import { b32, erasing, SALT_BYTES, type Sodium, ARGON2_MEMORY_BYTES, ARGON2_OPS } from '../../crypto/sodium.js';
import { concat, lengthPrefixed, text } from '../../protocol/bytes.js';
import { AEAD_TAG_BYTES, KEY_BYTES, NONCE_BYTES, SERVICE_NAME, SIG_BYTES } from '../../protocol/limits.js';
import { ClientError } from '../errors.js';
import { ArchiveError, type ArchiveRecord, decodeRecord, encodeRecord, RecordOrder } from './records.js';

/** Writes a part of an archive. Calls do not overlap. */
export type ByteSink = (bytes: Uint8Array) => Promise<void>;

/** Reads an archive: the next bytes, fewer than requested only at the end. */
export interface ByteSource {
  read(length: number): Promise<Uint8Array>;
}

/** Not text, and altered by every transfer that treats it as text. */
const ARCHIVE_MAGIC = Uint8Array.of(0x89, 0x56, 0x4c, 0x54, 0x0d, 0x0a, 0x1a, 0x0a);
const FORMAT_VERSION = 1;
const KDF_ARGON2ID = 1;
const CIPHER_XCHACHA = 1;
const PREFIX_BYTES = 16;
const HEADER_BYTES = 56;
const CHUNK_HEAD_BYTES = 5;
const CHUNK_BYTES = 64 * 1024;
/**
 * Bounds of the header's fields. Its tag can only be checked with the key whose cost the header states, so only
 * these bounds protect memory and time against a malicious archive. The upper bounds of the KDF cost are twice that of
 * an export.
 */
const CHUNK_MAX = 1024 * 1024;
const OPS_MAX = 2 * ARGON2_OPS;
const MEMORY_KIB_MIN = 8 * 1024;
const MEMORY_KIB_MAX = (2 * ARGON2_MEMORY_BYTES) / 1024;

/** The fields of the header. */
interface Header {
  readonly bytes: Uint8Array;
  readonly ops: number;
  readonly memoryKib: number;
  readonly chunkBytes: number;
  readonly salt: Uint8Array;
  readonly prefix: Uint8Array;
}

function newHeader(sodium: Sodium): Header {
  const fixed = new Uint8Array(HEADER_BYTES - SALT_BYTES - PREFIX_BYTES);
  fixed.set(ARCHIVE_MAGIC);
  fixed.set([FORMAT_VERSION, KDF_ARGON2ID, CIPHER_XCHACHA, 0], 8);
  const view = new DataView(fixed.buffer);
  view.setUint32(12, ARGON2_OPS);
  view.setUint32(16, ARGON2_MEMORY_BYTES / 1024);
  view.setUint32(20, CHUNK_BYTES);
  return readHeader(concat([fixed, sodium.random(SALT_BYTES), sodium.random(PREFIX_BYTES)]));
}

/** True where the first bytes (at least 8) are those of an archive. */
export const isArchive = (start: Uint8Array): boolean => ARCHIVE_MAGIC.every((byte, at) => start[at] === byte);

function readHeader(bytes: Uint8Array): Header {
  if (!isArchive(bytes)) throw new ArchiveError('not_archive', 'this is not an archive of a vault');
  if (bytes.length < HEADER_BYTES) throw truncated();
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const [version, kdf, cipher, reserved] = bytes.subarray(8, 12);
  const known = version === FORMAT_VERSION && kdf === KDF_ARGON2ID && cipher === CIPHER_XCHACHA && reserved === 0;
  const ops = view.getUint32(12);
  const memoryKib = view.getUint32(16);
  const chunkBytes = view.getUint32(20);
  const within = (value: number, least: number, most: number): boolean => value >= least && value <= most;
  const bounded =
    within(ops, 1, OPS_MAX) && within(memoryKib, MEMORY_KIB_MIN, MEMORY_KIB_MAX) && within(chunkBytes, 1, CHUNK_MAX);
  if (!known || !bounded)
    throw new ArchiveError('unsupported', 'this archive is of a form that this version does not know, or is damaged');
  const salt = bytes.slice(24, 24 + SALT_BYTES);
  return { bytes, ops, memoryKib, chunkBytes, salt, prefix: bytes.slice(24 + SALT_BYTES) };
}

/** Derives the keys of the header's tag and of the chunks. The caller erases them. */
async function deriveKeys(sodium: Sodium, seed: Uint8Array, header: Header) {
  const stretched = await sodium.argon2id13({
    length: KEY_BYTES,
    password: seed,
    salt: sodium.blake2b(SALT_BYTES, lengthPrefixed(`${SERVICE_NAME}-archive-salt-v1`, header.salt)),
    ops: header.ops,
    memoryBytes: header.memoryKib * 1024,
  });
  return erasing(sodium, stretched, (key) => ({
    header: b32(sodium, text(`${SERVICE_NAME}-archive-header-v1`), key),
    chunk: b32(sodium, lengthPrefixed(`${SERVICE_NAME}-archive-chunk-v1`, header.bytes), key),
  }));
}

/** 24 bytes: the header's 16, then the chunk's number. */
function nonceOf({ prefix }: Header, chunk: number): Uint8Array {
  const nonce = new Uint8Array(NONCE_BYTES);
  nonce.set(prefix);
  new DataView(nonce.buffer).setBigUint64(PREFIX_BYTES, BigInt(chunk));
  return nonce;
}

/** The last-chunk flag and the length of the ciphertext; also the chunk's associated data. */
function chunkHead(last: boolean, length: number): Uint8Array {
  const head = new Uint8Array(CHUNK_HEAD_BYTES);
  head[0] = last ? 1 : 0;
  new DataView(head.buffer).setUint32(1, length);
  return head;
}

/**
 * Writes an archive: `create`, then `add` for manifest, bins and items in this order, then `finish`, or `end` to give it
 * up. Keeps one chunk and one record in memory. Without `finish` the output is no archive.
 */
export class ArchiveWriter {
  /** Plaintext that is not in a chunk yet, and its length. */
  private buffered: Uint8Array[] = [];
  private bufferedBytes = 0;
  private chunks = 0;
  private ended = false;
  private readonly order = new RecordOrder();

  private constructor(
    private readonly sodium: Sodium,
    private readonly sink: ByteSink,
    private readonly header: Header,
    private readonly key: Uint8Array,
  ) {}

  /** Writes the header. `seed`: of the twelve words (`phraseSeed`); the caller erases it. */
  static async create(sodium: Sodium, seed: Uint8Array, sink: ByteSink): Promise<ArchiveWriter> {
    const header = newHeader(sodium);
    const keys = await deriveKeys(sodium, seed, header);
    try {
      await sink(concat([header.bytes, sodium.auth(header.bytes, keys.header)]));
    } catch (error) {
      sodium.memzero(keys.chunk);
      throw error;
    } finally {
      sodium.memzero(keys.header);
    }
    return new ArchiveWriter(sodium, sink, header, keys.chunk);
  }

  /**
   * Adds a record. Rejects with what the sink rejects with; throws `ArchiveError` for a record out of order, and
   * `ClientError` `closed` after the end.
   */
  async add(record: ArchiveRecord): Promise<void> {
    if (this.ended) throw new ClientError('closed', 'the archive was ended');
    this.order.next(record);
    const line = encodeRecord(record);
    this.buffered.push(line);
    this.bufferedBytes += line.length;
    // Keeps at least one byte for the last chunk.
    while (this.bufferedBytes > this.header.chunkBytes) await this.writeChunk(false);
  }

  /** Writes the end record and the last chunk, and erases the key. */
  async finish(): Promise<void> {
    try {
      await this.add(this.order.end());
      await this.writeChunk(true);
    } finally {
      this.end();
    }
  }

  /** Erases the key, and the plaintext that is not in a chunk yet. May be called again. */
  end(): void {
    this.ended = true;
    this.sodium.memzero(this.key);
    for (const part of this.buffered.splice(0)) this.sodium.memzero(part);
  }

  private async writeChunk(last: boolean): Promise<void> {
    const all = concat(this.buffered);
    const message = all.subarray(0, this.header.chunkBytes);
    const aad = chunkHead(last, message.length + AEAD_TAG_BYTES);
    const nonce = nonceOf(this.header, this.chunks++);
    const ct = this.sodium.aeadEncrypt({ message, aad, nonce, key: this.key });
    this.buffered = [all.slice(this.header.chunkBytes)];
    this.bufferedBytes = all.length - message.length;
    this.sodium.memzero(all);
    await this.sink(concat([aad, ct]));
  }
}

const truncated = (): ArchiveError =>
  new ArchiveError('truncated', 'the archive is cut short: its end is missing, and nothing of it is used');

const damaged = (at: string): ArchiveError =>
  new ArchiveError('damaged', `the archive was changed or damaged (${at}), and nothing of it is used`);

/** Reads the header and verifies its tag. `key`: of the chunks. Throws `ArchiveError`; `wrong_words`: a wrong tag. */
async function readKey(sodium: Sodium, seed: Uint8Array, source: ByteSource): Promise<Header & { key: Uint8Array }> {
  const header = readHeader(await source.read(HEADER_BYTES));
  const tag = await source.read(SIG_BYTES);
  if (tag.length < SIG_BYTES) throw truncated();
  const keys = await deriveKeys(sodium, seed, header);
  const isValid = sodium.authVerify(tag, header.bytes, keys.header);
  sodium.memzero(keys.header);
  if (!isValid)
    throw new ArchiveError('wrong_words', 'the archive was made under other words than these, or its start is damaged');
  return { ...header, key: keys.chunk };
}

/** The plaintext, chunk by chunk; ends only after a last chunk that nothing follows. */
async function* plaintext(sodium: Sodium, seed: Uint8Array, source: ByteSource): AsyncGenerator<Uint8Array> {
  const header = await readKey(sodium, seed, source);
  try {
    for (let chunk = 0; ; chunk++) {
      const head = await source.read(CHUNK_HEAD_BYTES);
      if (head.length < CHUNK_HEAD_BYTES) throw truncated();
      const [flag = 0] = head;
      const last = flag === 1;
      const length = new DataView(head.buffer, head.byteOffset).getUint32(1);
      const full = header.chunkBytes + AEAD_TAG_BYTES;
      if (flag > 1 || length < AEAD_TAG_BYTES || length > full || (!last && length !== full))
        throw damaged(`chunk ${chunk}`);
      const ct = await source.read(length);
      if (ct.length < length) throw truncated();
      const nonce = nonceOf(header, chunk);
      const message = sodium.aeadDecrypt({ message: ct, aad: head, nonce, key: header.key });
      if (message === undefined) throw damaged(`chunk ${chunk}`);
      if (last && (await source.read(1)).length > 0) throw damaged('something follows its end');
      yield message;
      if (last) return;
    }
  } finally {
    sodium.memzero(header.key);
  }
}

const NEWLINE = 0x0a;

/** Longer than any record (`ARCHIVED_PAYLOAD_MAX`). */
const RECORD_MAX = 512 * 1024;

/**
 * The records of an archive in order, without the end record. If this throws, the records returned before must not be
 * used, unless the whole archive was read once before: only the end proves completeness. Throws `ArchiveError`.
 */
export async function* readArchive(
  sodium: Sodium,
  seed: Uint8Array,
  source: ByteSource,
): AsyncGenerator<ArchiveRecord> {
  const order = new RecordOrder();
  let rest: Uint8Array = new Uint8Array(0);
  for await (const chunk of plaintext(sodium, seed, source)) {
    let bytes = rest.length === 0 ? chunk : concat([rest, chunk]);
    for (let end = bytes.indexOf(NEWLINE); end >= 0; end = bytes.indexOf(NEWLINE)) {
      const record = decodeRecord(bytes.subarray(0, end));
      order.next(record);
      if (record.record !== 'end') yield record;
      bytes = bytes.subarray(end + 1);
    }
    if (bytes.length > RECORD_MAX) throw new ArchiveError('bad_record', 'a record of the archive is too long');
    rest = bytes;
  }
  if (rest.length > 0) throw new ArchiveError('bad_record', 'the last record of the archive is not whole');
  order.expectEnded();
}
