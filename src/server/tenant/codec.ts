/**
 * An item's row as a view of bytes held elsewhere: a change's in the arena, a stored row's in the page that the
 * database sent. Parts are read in place; nothing is decoded twice or copied.
 *
 * Also items as text: a row's bytes are encoded straight into a frame or a row of a listing, in either shape
 * (SHAPE-14 to 24). They are written into the bytes that are sent: strings would be most of a replay's garbage.
 */
import type {
  DeleteFrame,
  ItemFieldsA,
  ItemFrameA,
  ItemFrameB,
  ItemRowA,
  ItemRowB,
  Piece,
  Wire,
} from '../../protocol/frames.js';
import type { EnvelopeReply, MasterReply, WrappedKeyReply } from '../../protocol/item-replies.js';
import type { Shape } from '../../protocol/shape.js';
import type { ContentType } from '../../protocol/item.js';
import { MASTER_WRAP_BYTES, NONCE_BYTES, SIG_BYTES } from '../../protocol/limits.js';

export const ULID_CHARS = 26;
/** An entry of a key list: 26 characters of device id, a 2-byte big-endian length, the sealed key. */
export const ENTRY_HEAD = ULID_CHARS + 2;

// Offsets of the parts from the row's `at`. Fixed parts come first, absent ones as zeros, so that every offset is a
// constant in the SQL functions (sql/0002_commit.sql). After them: ciphertext, keys, blob keys.
export const HASH_BYTES = 32;
export const MASTER_BYTES = NONCE_BYTES + MASTER_WRAP_BYTES;
export const NONCE_AT = HASH_BYTES;
export const SIG_AT = NONCE_AT + NONCE_BYTES;
export const MASTER_AT = SIG_AT + SIG_BYTES;
export const BLOB_NONCE_AT = MASTER_AT + MASTER_BYTES;
/** Bytes before the ciphertext. */
export const FIXED_BYTES = BLOB_NONCE_AT + NONCE_BYTES;

/** Bits of the parts that are present (sql/0002_commit.sql, `p_has`). */
export const HAS = { nonce: 1, sig: 2, master: 4, blobNonce: 8, inline: 16 } as const;

/** A part of fixed length: its offset from the row's `at`, its length, and the bit that marks it as present. */
export interface FixedPart {
  readonly at: number;
  readonly bytes: number;
  readonly bit: number;
}

export const NONCE: FixedPart = { at: NONCE_AT, bytes: NONCE_BYTES, bit: HAS.nonce };
export const SIG: FixedPart = { at: SIG_AT, bytes: SIG_BYTES, bit: HAS.sig };
export const MASTER_NONCE: FixedPart = { at: MASTER_AT, bytes: NONCE_BYTES, bit: HAS.master };
export const MASTER_CT: FixedPart = { at: MASTER_AT + NONCE_BYTES, bytes: MASTER_WRAP_BYTES, bit: HAS.master };
export const BLOB_NONCE: FixedPart = { at: BLOB_NONCE_AT, bytes: NONCE_BYTES, bit: HAS.blobNonce };

/** A stored item, or a tombstone. */
export class ItemRow {
  id = '';
  binId = '';
  /** Null in a tombstone that was emptied. */
  type: ContentType | null = null;
  /** The writer's clock, ms; null like `type`. */
  ts: number | null = null;
  version = 0;
  /** The device that wrote the content; null like `type`. */
  senderDevice: string | null = null;
  /** The device whose change made this version: its sockets get no push. */
  changedBy: string | null = null;
  /** When it was deleted, ms; null for a live item. */
  deletedAt: number | null = null;
  blobRef: string | null = null;

  has = 0;
  ctBytes = 0;
  keysBytes = 0;
  blobKeysBytes = 0;
  /** The ciphertext as received, if a frame in shape A encodes it the same; null: encode it from the bytes. */
  ctText: string | null = null;
  /** Arrival time of its request, ms of `performance.now()`; Infinity if the change was made elsewhere. */
  since = Infinity;

  constructor(
    /**
     * From `at`: hash 32, nonce 24, sig 32, master 72, blob nonce 24, ciphertext, keys, blob keys. No hash if stored.
     */
    public bytes: Buffer,
    public at: number,
  ) {}

  /** Bytes that count towards the storage cap (ITEM-39). */
  get counted(): number {
    return this.ctBytes + this.keysBytes + this.blobKeysBytes;
  }

  get keysAt(): number {
    return this.at + FIXED_BYTES + this.ctBytes;
  }

  get blobKeysAt(): number {
    return this.keysAt + this.keysBytes;
  }

  get end(): number {
    return this.blobKeysAt + this.blobKeysBytes;
  }

  /** The same row with its own copy of the bytes. */
  copy(): ItemRow {
    const { id, binId, type, ts, version, senderDevice, changedBy, deletedAt, blobRef } = this;
    const { has, ctBytes, keysBytes, blobKeysBytes, since } = this;
    return Object.assign(new ItemRow(Buffer.from(this.bytes.subarray(this.at, this.end)), 0), {
      ...{ id, binId, type, ts, version, senderDevice, changedBy, deletedAt, blobRef },
      ...{ has, ctBytes, keysBytes, blobKeysBytes, since },
    });
  }
}

/** Writes a short text, faster than a native call; returns its end. */
export function putAscii(bytes: Buffer, at: number, text: string): number {
  for (let i = 0; i < text.length; i++) bytes[at + i] = text.charCodeAt(i);
  return at + text.length;
}

/** Writes a safe integer as PostgreSQL's int8, without a BigInt; returns its end. */
export function putInt8(bytes: Buffer, at: number, value: number): number {
  const high = Math.floor(value / 4_294_967_296);
  return bytes.writeUInt32BE(value - high * 4_294_967_296, bytes.writeInt32BE(high, at));
}

/** Reads an int8 that is a safe integer. */
export const int8At = (bytes: Buffer, at: number): number =>
  bytes.readInt32BE(at) * 4_294_967_296 + bytes.readUInt32BE(at + 4);

/**
 * Sorts the entries of a key list by device, since the same write may arrive with them in another order. Returns a
 * device that is listed twice, or ''.
 */
export function sortKeys(bytes: Buffer, from: number, to: number): string {
  const entries: Buffer[] = [];
  let sorted = true;
  for (let at = from, last = -1; at < to;) {
    if (last >= 0 && !follows(bytes, last, at)) sorted = false;
    last = at;
    at += ENTRY_HEAD + bytes.readUInt16BE(at + ULID_CHARS);
  }
  if (sorted) return '';
  for (let at = from; at < to;) {
    const next = at + ENTRY_HEAD + bytes.readUInt16BE(at + ULID_CHARS);
    entries.push(Buffer.from(bytes.subarray(at, next)));
    at = next;
  }
  let at = from;
  let before = '';
  for (const entry of entries.sort((one, other) => one.compare(other))) {
    const device = entry.toString('latin1', 0, ULID_CHARS);
    if (device === before) return device;
    before = device;
    at += entry.copy(bytes, at);
  }
  return '';
}

/** Whether the device id at `other` is greater than that at `one`. */
function follows(bytes: Buffer, one: number, other: number): boolean {
  for (let i = 0; i < ULID_CHARS; i++) {
    const difference = (bytes[other + i] ?? 0) - (bytes[one + i] ?? 0);
    if (difference !== 0) return difference > 0;
  }
  return false;
}

/** Size of the memory pieces for texts; a larger text gets its own piece. */
const PIECE_BYTES = 64 * 1024;
/** Up to this many bytes a table is faster than the native encoder, whose string must be written once more. */
const TABLE_MAX = 96;
/** Texts up to this many characters are faster written one by one than by a native call. */
const LOOP_MAX = 48;

/** The values 0 to 61 of base64 (RFC 4648). */
export const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';

/** The two characters of each 12 bits, the first in the lower byte. */
function pairsOf(letters: string): Uint16Array {
  const pairs = new Uint16Array(4_096);
  for (let n = 0; n < pairs.length; n++) pairs[n] = letters.charCodeAt(n >> 6) | (letters.charCodeAt(n & 63) << 8);
  return pairs;
}

const PAIRS = { base64: pairsOf(`${LETTERS}+/`), base64url: pairsOf(`${LETTERS}-_`) } as const;
const PADDING = '='.charCodeAt(0);

type Alphabet = keyof typeof PAIRS;

/** Writes ASCII texts one after the other. `begin` reserves room for them. */
export class JsonWriter {
  private bytes: Buffer;
  private at = 0;

  /** `size`: bytes of each piece of memory. */
  constructor(private readonly size = PIECE_BYTES) {
    this.bytes = Buffer.allocUnsafeSlow(size);
  }

  /** Allows everything written so far to be overwritten. */
  restart(): void {
    if (this.bytes.length > this.size) this.bytes = Buffer.allocUnsafeSlow(this.size);
    this.at = 0;
  }

  /** Begins a text of at most `room` bytes; pass the result to `since`. Earlier texts stay in place. */
  begin(room: number): number {
    if (this.bytes.length - this.at < room) {
      this.bytes = Buffer.allocUnsafeSlow(Math.max(this.size, room));
      this.at = 0;
    }
    return this.at;
  }

  /** The bytes of the text begun at `from`: a view, valid until `restart`. */
  since(from: number): Buffer {
    return this.bytes.subarray(from, this.at);
  }

  text(value: string): void {
    const { bytes } = this;
    if (value.length > LOOP_MAX) this.at += bytes.write(value, this.at, 'latin1');
    else this.at = putAscii(bytes, this.at, value);
  }

  /** Copies characters unchanged. */
  copy(from: Buffer, start: number, end: number): void {
    let { at } = this;
    for (let i = start; i < end; i++) this.bytes[at++] = from[i] ?? 0;
    this.at = at;
  }

  /** Padded if the alphabet is `base64`, as in Node. */
  encoded(alphabet: Alphabet, from: Buffer, start: number, end: number): void {
    if (end - start > TABLE_MAX) {
      this.at += this.bytes.write(from.toString(alphabet, start, end), this.at, 'latin1');
      return;
    }
    const { bytes } = this;
    const pairs = PAIRS[alphabet];
    let { at } = this;
    let i = start;
    for (; i + 2 < end; i += 3) {
      const bits = ((from[i] ?? 0) << 16) | ((from[i + 1] ?? 0) << 8) | (from[i + 2] ?? 0);
      const [one, other] = [pairs[bits >> 12] ?? 0, pairs[bits & 4_095] ?? 0];
      bytes[at] = one;
      bytes[at + 1] = one >> 8;
      bytes[at + 2] = other;
      bytes[at + 3] = other >> 8;
      at += 4;
    }
    this.at = at;
    if (i < end) this.lastOf(alphabet, from, i, end);
  }

  /** Encodes the last one or two bytes. */
  private lastOf(alphabet: Alphabet, from: Buffer, start: number, end: number): void {
    const { bytes } = this;
    const pairs = PAIRS[alphabet];
    const two = end - start === 2;
    const bits = ((from[start] ?? 0) << 16) | (two ? (from[start + 1] ?? 0) << 8 : 0);
    const one = pairs[bits >> 12] ?? 0;
    bytes[this.at++] = one;
    bytes[this.at++] = one >> 8;
    if (two) bytes[this.at++] = pairs[bits & 4_095] ?? 0;
    if (alphabet === 'base64url') return;
    bytes[this.at++] = PADDING;
    if (!two) bytes[this.at++] = PADDING;
  }
}

// Encoding. Written piece by piece: every value is a checked id, a number or base64, so nothing needs escaping, and a
// push to many devices costs one text instead of a run of JSON.stringify. A `Piece` checks the keys against their
// types.

/** Returns the text unchanged: a `Piece` checks its keys against a type, at compile time only. */
export const asIs = (text: string): string => text;
const masterPiece: Piece<MasterReply> = asIs;
const sealPiece: Piece<Pick<EnvelopeReply, 'master' | 'sig'> & Pick<ItemFieldsA, 'master' | 'sig'>> = asIs;
const envelopePiece: Piece<EnvelopeReply> = asIs;
const fieldsPiece: Piece<ItemFieldsA> = asIs;
const wrappedPiece: Piece<Wire<'b', WrappedKeyReply>> = asIs;
const rowPieceB: Piece<ItemRowB> = asIs;
const deletePiece: Piece<DeleteFrame> = asIs;
const typePieceA: Piece<Pick<ItemRowA, 'type'>> = asIs;
const framePieceA: Piece<Pick<ItemFrameA, 'type' | 'itemType'>> = asIs;
const framePieceB: Piece<ItemFrameB> = asIs;

function quoted(out: JsonWriter, value: string | null): void {
  if (value === null) return out.text('null');
  out.text('"');
  out.text(value);
  out.text('"');
}

/** A part of fixed length as a quoted text. */
function fixed(out: JsonWriter, { bytes, at }: ItemRow, part: FixedPart, alphabet: Alphabet): void {
  out.text('"');
  out.encoded(alphabet, bytes, at + part.at, at + part.at + part.bytes);
  out.text('"');
}

function ciphertext(out: JsonWriter, row: ItemRow, alphabet: Alphabet): void {
  out.text('"');
  if (row.ctText !== null && alphabet === 'base64url') out.text(row.ctText);
  else out.encoded(alphabet, row.bytes, row.at + FIXED_BYTES, row.keysAt);
  out.text('"');
}

function keysA(out: JsonWriter, bytes: Buffer, from: number, to: number): void {
  out.text('{');
  for (let at = from; at < to;) {
    const start = at + ENTRY_HEAD;
    const end = start + bytes.readUInt16BE(at + ULID_CHARS);
    out.text(at === from ? '"' : ',"');
    out.copy(bytes, at, at + ULID_CHARS);
    out.text('":"');
    out.encoded('base64url', bytes, start, end);
    out.text('"');
    at = end;
  }
  out.text('}');
}

function keysB(out: JsonWriter, bytes: Buffer, from: number, to: number): void {
  out.text('[');
  for (let at = from; at < to;) {
    const start = at + ENTRY_HEAD;
    const end = start + bytes.readUInt16BE(at + ULID_CHARS);
    if (at > from) out.text(',');
    out.text(wrappedPiece('{"device_id":"'));
    out.copy(bytes, at, at + ULID_CHARS);
    out.text(wrappedPiece('","key":"'));
    out.encoded('base64', bytes, start, end);
    out.text('"}');
    at = end;
  }
  out.text(']');
}

function masterText(out: JsonWriter, row: ItemRow, alphabet: Alphabet): void {
  out.text(masterPiece('{"nonce":'));
  fixed(out, row, MASTER_NONCE, alphabet);
  out.text(masterPiece(',"ct":'));
  fixed(out, row, MASTER_CT, alphabet);
  out.text('}');
}

/** `master` and `sig` of a live item, each with a leading comma, if present. */
function sealA(out: JsonWriter, row: ItemRow): void {
  if ((row.has & HAS.master) !== 0) {
    out.text(sealPiece(',"master":'));
    masterText(out, row, 'base64url');
  }
  if ((row.has & HAS.sig) === 0) return;
  out.text(sealPiece(',"sig":'));
  fixed(out, row, SIG, 'base64url');
}

function payloadA(out: JsonWriter, row: ItemRow): void {
  const inline = (row.has & HAS.inline) !== 0;
  if (inline) {
    out.text(fieldsPiece('"payloadEnc":'));
    out.text(envelopePiece('{"ct":'));
    ciphertext(out, row, 'base64url');
    out.text(envelopePiece(',"nonce":'));
    fixed(out, row, NONCE, 'base64url');
    out.text(envelopePiece(',"keys":'));
    keysA(out, row.bytes, row.keysAt, row.blobKeysAt);
    sealA(out, row);
    out.text('}');
  } else out.text(fieldsPiece('"payloadEnc":null'));
  if (row.blobRef === null) out.text(fieldsPiece(',"blobRef":null,"blobNonce":null,"blobKeys":null'));
  else {
    out.text(fieldsPiece(`,"blobRef":"${row.blobRef}","blobNonce":`));
    fixed(out, row, BLOB_NONCE, 'base64url');
    out.text(fieldsPiece(',"blobKeys":'));
    keysA(out, row.bytes, row.blobKeysAt, row.end);
  }
  if (!inline) sealA(out, row);
}

/** `type` is the key of the item's type: it differs between row and frame, and is written after the ids. */
function fieldsA(out: JsonWriter, row: ItemRow, type: string): void {
  out.text(fieldsPiece('"id":"'));
  out.text(row.id);
  out.text(fieldsPiece('","binId":"'));
  out.text(row.binId);
  out.text('",');
  out.text(type);
  quoted(out, row.type);
  out.text(fieldsPiece(',"senderDevice":'));
  quoted(out, row.senderDevice);
  out.text(fieldsPiece(',"ts":'));
  out.text(String(row.ts));
  out.text(fieldsPiece(',"version":'));
  out.text(String(row.version));
  out.text(fieldsPiece(',"deletedAt":'));
  out.text(String(row.deletedAt));
  out.text(',');
  if (row.deletedAt === null) return payloadA(out, row);
  out.text(fieldsPiece('"payloadEnc":null,"blobRef":null,"blobNonce":null,"blobKeys":null'));
  if ((row.has & HAS.sig) === 0) return;
  out.text(fieldsPiece(',"sig":'));
  fixed(out, row, SIG, 'base64url');
}

function tagB(out: JsonWriter, row: ItemRow): void {
  if ((row.has & HAS.sig) === 0) out.text('null');
  else fixed(out, row, SIG, 'base64');
}

function payloadB(out: JsonWriter, row: ItemRow): void {
  // A blob without metadata is returned as it was written: its nonce and keys take the item's place.
  const inline = (row.has & HAS.inline) !== 0;
  out.text(rowPieceB('"ct":'));
  ciphertext(out, row, 'base64');
  out.text(rowPieceB(',"nonce":'));
  fixed(out, row, inline ? NONCE : BLOB_NONCE, 'base64');
  out.text(rowPieceB(',"wrapped":'));
  keysB(out, row.bytes, inline ? row.keysAt : row.blobKeysAt, inline ? row.blobKeysAt : row.end);
  out.text(rowPieceB(',"master":'));
  if ((row.has & HAS.master) === 0) out.text('null');
  else masterText(out, row, 'base64');
  out.text(rowPieceB(',"sig":'));
  tagB(out, row);
  if (row.blobRef === null) return out.text(rowPieceB(',"blob_ref":null,"blob_nonce":null,"blob_keys":null'));
  out.text(rowPieceB(`,"blob_ref":"${row.blobRef}","blob_nonce":`));
  fixed(out, row, BLOB_NONCE, 'base64');
  out.text(rowPieceB(',"blob_keys":'));
  keysB(out, row.bytes, row.blobKeysAt, row.end);
}

function fieldsB(out: JsonWriter, row: ItemRow): void {
  out.text(rowPieceB(`"id":"${row.id}","version":${row.version},"bin_id":"`));
  out.text(row.binId);
  out.text(rowPieceB('","type":'));
  quoted(out, row.type);
  out.text(rowPieceB(',"sender_device":'));
  quoted(out, row.senderDevice);
  out.text(rowPieceB(`,"ts":${row.ts},"deleted_at":${row.deletedAt},`));
  if (row.deletedAt === null) return payloadB(out, row);
  out.text(rowPieceB('"ct":null,"nonce":null,"wrapped":null,"master":null,"sig":'));
  tagB(out, row);
  out.text(rowPieceB(',"blob_ref":null,"blob_nonce":null,"blob_keys":null'));
}

/** More than the text around a row's encoded bytes. */
const AROUND_ROW = 1_024;
/** Upper bound of text per byte of a row: for a shape B blob without metadata, nonce and keys are written twice. */
const TIMES_AS_TEXT = 4;

/** Begins the text of a row; pass the result to `out.since`. */
const beginRow = (out: JsonWriter, { at, end }: ItemRow): number => out.begin(AROUND_ROW + TIMES_AS_TEXT * (end - at));

const listed = new JsonWriter();

/** An item as a row of `GET /items`, as JSON text. */
export function rowText(shape: Shape, row: ItemRow): string {
  listed.restart();
  const from = beginRow(listed, row);
  listed.text('{');
  if (shape === 'a') fieldsA(listed, row, typePieceA('"type":'));
  else fieldsB(listed, row);
  listed.text('}');
  return listed.since(from).toString('latin1');
}

/**
 * The frame with an item's latest state: `item`, or `delete` for a deleted one. A view of the memory of `out`, valid
 * until it restarts.
 */
export function frameBytes(out: JsonWriter, shape: Shape, row: ItemRow): Buffer {
  const from = beginRow(out, row);
  if (row.deletedAt !== null) {
    out.text(deletePiece(`{"type":"delete","id":"${row.id}","version":${row.version}`));
    if ((row.has & HAS.sig) !== 0) {
      out.text(deletePiece(',"sig":'));
      fixed(out, row, SIG, shape === 'a' ? 'base64url' : 'base64');
    }
    out.text('}');
  } else if (shape === 'b') {
    out.text(framePieceB('{"type":"item","item":{'));
    fieldsB(out, row);
    out.text('}}');
  } else {
    out.text(framePieceA('{"type":"item",'));
    fieldsA(out, row, framePieceA('"itemType":'));
    out.text('}');
  }
  return out.since(from);
}
