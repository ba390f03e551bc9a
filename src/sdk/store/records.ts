/**
 * The records of a durable store: key, bytes, checksum. Formats 1 and 2. Pure.
 *
 * Keys: `m` the state of the store, `e<id>` an entry, `o<seq, 16 digits>` a pending change, `u<id>` an unfinished
 * upload. A record's checksum is seeded with owner and key: a record that was moved or belongs to another device does
 * not match.
 */
import { byteText, text, utf8Text } from '../../protocol/bytes.js';
import { CONTENT_TYPES, type ContentType, type LiveItem, type SealedKeys } from '../../protocol/item.js';
import { heldWith, NOTHING_HELD } from './store.js';
import type { Cursor, Entry, Held, KeptUpload, Pending, QuarantineReason } from './store.js';
import { storeError } from './error.js';

/**
 * Must be incremented with every change of the records; older formats must stay readable. Format 2 adds unfinished
 * uploads, and is written only while there are some, so that an older program can open the store otherwise.
 */
export const FORMAT = 2;

/** The owner of a store: the items of one tenant and the changes of one device. */
export interface StoreOwner {
  readonly tenantId: string;
  readonly deviceId: string;
}

/** The state of a store, in addition to its other records; rewritten in each batch. */
export interface StoreState extends StoreSums {
  readonly owner: StoreOwner;
  /** Batches applied since the store was created; never decreases. */
  readonly batches: number;
  /** Entries of an earlier generation have version 0, so that a reset need not rewrite them. */
  readonly generation: number;
  readonly cursor: Cursor;
}

/** The sums over all records. */
export interface StoreSums extends Held {
  readonly entries: Tally;
  readonly changes: Tally;
  readonly uploads: Tally;
}

/** Number of records, and the sum of their checksums modulo 2^32, which reveals a lost record. */
interface Tally {
  readonly count: number;
  readonly sum: number;
}

/** The owner of records, as seed of their checksums, and the generation whose versions are valid. */
interface RecordsOf {
  readonly owner: number;
  readonly generation: number;
}

/** The sums of an empty store. */
export const NO_SUMS: StoreSums = {
  ...NOTHING_HELD,
  entries: { count: 0, sum: 0 },
  changes: { count: 0, sum: 0 },
  uploads: { count: 0, sum: 0 },
};

/** Key of the state. */
export const STATE_KEY = 'm';
/** Keys of all entries. */
export const ENTRIES = { gte: 'e', lt: 'f' } as const;
/** Keys of all pending changes, in order of creation. */
export const CHANGES = { gte: 'o', lt: 'p' } as const;
/** Keys of all unfinished uploads. */
export const UPLOADS = { gte: 'u', lt: 'v' } as const;
/** Key of an item. */
export const entryKey = (id: string): string => `e${id}`;
/** Key of a pending change, zero-padded, so that keys sort by number. */
export const changeKey = (seq: number): string => `o${String(seq).padStart(16, '0')}`;

/** Key of an upload. */
export const uploadKey = (id: string): string => `u${id}`;

/** Seed of the checksums of an owner's records. */
export const ownerSeed = ({ tenantId, deviceId }: StoreOwner): number => crc32(text(`${tenantId} ${deviceId}`));

const STATES = ['live', 'quarantined', 'deleted'] as const;
const TAGGED = 4;
const HAS_ROW = 8;
const HAS_KEPT = 16;

/** Encodes an entry. */
export function encodeEntry(entry: Entry, generation: number, owner: number): Uint8Array {
  const row = entry.state === 'deleted' ? null : entry.row;
  const kept = entry.state === 'live' ? null : entry.kept;
  const tagged = entry.state === 'deleted' && entry.tagged;
  const flags = (tagged ? TAGGED : 0) | (row === null ? 0 : HAS_ROW) | (kept === null ? 0 : HAS_KEPT);
  const out = new RecordWriter().byte(STATES.indexOf(entry.state) | flags);
  out.int(generation).int(entry.version);
  if (entry.state === 'quarantined') out.text(entry.reason);
  if (row !== null) writeRow(out, row, entry.id);
  if (kept !== null) writeRow(out, kept, entry.id);
  return out.sealed(seedOf(entryKey(entry.id), owner));
}

/** Decodes an entry; one of an earlier generation has version 0. Throws `StoreError` `damaged`. */
export function decodeEntry(key: string, record: Uint8Array, { owner, generation }: RecordsOf): Entry {
  const read = new RecordReader(record, seedOf(key, owner));
  const id = key.slice(1);
  const flags = read.byte();
  const state = STATES[flags & 3];
  const current = read.int() === generation;
  const stored = read.int();
  const version = current ? stored : 0;
  // Only known reasons are written; a program with more reasons must use a newer format.
  const reason = state === 'quarantined' ? (read.text() as QuarantineReason) : null;
  const row = flags & HAS_ROW ? readRow(read, id) : null;
  const kept = flags & HAS_KEPT ? readRow(read, id) : null;
  read.done();
  if (state === 'live' && row !== null) return { id, version, state, row };
  if (state === 'quarantined' && reason !== null) return { id, version, state, reason, row, kept };
  if (state === 'deleted') return { id, version, state, tagged: (flags & TAGGED) !== 0, kept };
  throw storeError('damaged', 'an entry is none of the three kinds');
}

/** Returns the shared string of a type, so that entries do not hold copies. */
export const contentType = (text: string): ContentType | undefined => CONTENT_TYPES.find((type) => type === text);

const INLINE = 1;
const BLOB = 2;
const MASTER = 4;
const SIG = 8;

function writeKeys(out: RecordWriter, keys: SealedKeys): void {
  out.int(keys.size);
  for (const [device, key] of keys) out.text(device).blob(key);
}

function readKeys(read: RecordReader): SealedKeys {
  const keys = new Map<string, Uint8Array>();
  for (let left = read.int(); left > 0; left--) keys.set(read.text(), read.blob());
  return keys;
}

/** Writes a row; an id equal to the entry's is stored as an empty text. */
function writeRow(out: RecordWriter, row: LiveItem, id: string): void {
  const { inline, blob, master, sig } = row;
  out.byte((inline ? INLINE : 0) | (blob ? BLOB : 0) | (master ? MASTER : 0) | (sig ? SIG : 0));
  out.text(row.id === id ? '' : row.id);
  out.text(row.binId).text(row.type).text(row.senderDevice).int(row.ts).int(row.version);
  if (inline) writeKeys(out.blob(inline.ct).blob(inline.nonce), inline.keys);
  if (blob) writeKeys(out.text(blob.ref).blob(blob.nonce), blob.keys);
  if (master) out.blob(master.nonce).blob(master.ct);
  if (sig) out.blob(sig);
}

function readRow(read: RecordReader, ownId: string): LiveItem {
  const flags = read.byte();
  const id = read.text() || ownId;
  const binId = read.text();
  const type = contentType(read.text());
  if (type === undefined) throw storeError('damaged', 'a row has an unknown type');
  const senderDevice = read.text();
  const ts = read.int();
  const version = read.int();
  const inline = flags & INLINE ? { ct: read.blob(), nonce: read.blob(), keys: readKeys(read) } : null;
  const blob = flags & BLOB ? { ref: read.text(), nonce: read.blob(), keys: readKeys(read) } : null;
  const master = flags & MASTER ? { nonce: read.blob(), ct: read.blob() } : null;
  const sig = flags & SIG ? read.blob() : null;
  return { id, binId, type, ts, inline, blob, master, sig, senderDevice, version, deletedAt: null };
}

const KINDS = ['write', 'move', 'delete'] as const;
const HAS_BASE = 4;
const HAS_VERSION = 8;
const REWRAP = 16;

/** Encodes a pending change. */
export function encodeChange(change: Pending, owner: number): Uint8Array {
  const { base, version } = change;
  const rewrap = change.kind === 'write' && change.rewrap;
  const flags = (base === null ? 0 : HAS_BASE) | (version === null ? 0 : HAS_VERSION) | (rewrap ? REWRAP : 0);
  const out = new RecordWriter().byte(KINDS.indexOf(change.kind) | flags).text(change.id);
  if (base !== null) out.int(base);
  if (version !== null) out.int(version);
  if (change.kind === 'delete') out.blob(change.sig);
  else writeRow(out, change.row, change.id);
  return out.sealed(seedOf(changeKey(change.seq), owner));
}

/** Decodes a pending change. Throws `StoreError` `damaged`. */
export function decodeChange(key: string, record: Uint8Array, owner: number): Pending {
  const read = new RecordReader(record, seedOf(key, owner));
  const head = read.byte();
  const id = read.text();
  const base = head & HAS_BASE ? read.int() : null;
  const version = head & HAS_VERSION ? read.int() : null;
  const kind = KINDS[head & 3];
  const of = { seq: Number(key.slice(1)), id, base, version };
  if (kind === undefined) throw storeError('damaged', 'a change is none of the three kinds');
  const change: Pending =
    kind === 'delete'
      ? { ...of, kind, sig: read.blob() }
      : kind === 'move'
        ? { ...of, kind, row: readRow(read, id) }
        : { ...of, kind, row: readRow(read, id), rewrap: (head & REWRAP) !== 0 };
  read.done();
  return change;
}

/** Encodes an upload. */
export const encodeUpload = ({ id, sealed }: KeptUpload, owner: number): Uint8Array =>
  new RecordWriter().blob(sealed).sealed(seedOf(uploadKey(id), owner));

/** Decodes an upload. Throws `StoreError` `damaged`. */
export function decodeUpload(key: string, record: Uint8Array, owner: number): KeptUpload {
  const read = new RecordReader(record, seedOf(key, owner));
  const sealed = read.blob();
  read.done();
  return { id: key.slice(1), sealed };
}

/** Encodes the state. It starts with the format, and its checksum has no owner, so that any version can read both. */
export function encodeState(state: StoreState): Uint8Array {
  const { owner, cursor, entries, changes, uploads } = state;
  // Format 2 differs by the tally of uploads only: without any, format 1 is written, which older programs read.
  const format = uploads.count === 0 ? 1 : FORMAT;
  const tallies = format === 1 ? [entries, changes] : [entries, changes, uploads];
  const out = new RecordWriter();
  out.int(format).text(owner.tenantId).text(owner.deviceId).int(state.batches).int(state.generation);
  // 2: in the replay of a reset. Older programs take it for 1, and read the rest all the same.
  out.int(cursor.since).byte(cursor.epoch === null ? 0 : cursor.reset === true ? 2 : 1);
  if (cursor.epoch !== null) out.text(cursor.epoch);
  out.int(state.itemCount).int(state.versionSum);
  for (const { count, sum } of tallies) out.int(count).int(sum);
  return out.sealed(seedOf(STATE_KEY, 0));
}

/** Decodes the state. Throws `StoreError` `damaged`, `newer_format`. */
export function decodeState(record: Uint8Array): StoreState {
  const read = new RecordReader(record, seedOf(STATE_KEY, 0));
  const format = read.int();
  if (format > FORMAT) throw storeError('newer_format', `format ${format}, and this program knows up to ${FORMAT}`);
  const owner = { tenantId: read.text(), deviceId: read.text() };
  const batches = read.int();
  const generation = read.int();
  const since = read.int();
  const kind = read.byte();
  const epoch = kind === 0 ? null : read.text();
  const cursor = { since, epoch, ...(kind === 2 ? { reset: true } : {}) };
  const itemCount = read.int();
  const versionSum = read.int();
  const entries = { count: read.int(), sum: read.int() };
  const changes = { count: read.int(), sum: read.int() };
  const uploads = format < 2 ? NO_SUMS.uploads : { count: read.int(), sum: read.int() };
  read.done();
  return { owner, batches, generation, cursor, itemCount, versionSum, entries, changes, uploads };
}

/** The tally of a record, by the first letter of its key. */
const TALLY_OF: Readonly<Record<string, 'entries' | 'changes' | 'uploads'>> = {
  [ENTRIES.gte]: 'entries',
  [CHANGES.gte]: 'changes',
  [UPLOADS.gte]: 'uploads',
};

/**
 * The sums after replacing a record; `before` or `after` undefined: there is none. `found` receives the new entry, if it
 * is one. Throws `StoreError` `damaged`.
 */
export function summed(
  sums: StoreSums,
  { key, before, after }: { readonly key: string; readonly before?: Uint8Array; readonly after?: Uint8Array },
  at: RecordsOf,
  found?: (entry: Entry) => void,
): StoreSums {
  const tally = TALLY_OF[key.charAt(0)];
  if (tally === undefined) throw storeError('damaged', 'it holds something that no store of this service writes');
  // Decoded first: the checksum is read from a record that has one.
  const decoded = (record?: Uint8Array): Entry | undefined =>
    tally === 'entries' && record !== undefined ? decodeEntry(key, record, at) : undefined;
  const [was, is] = [decoded(before), decoded(after)];
  if (is !== undefined) found?.(is);
  const count = sums[tally].count + Number(after !== undefined) - Number(before !== undefined);
  const sum = (sums[tally].sum + (after ? checksumOf(after) : 0) - (before ? checksumOf(before) : 0)) >>> 0;
  return { ...sums, ...heldWith(sums, was, is), [tally]: { count, sum } };
}

const PLAIN_MAX = 64;

function isPlain(bytes: Uint8Array): boolean {
  if (bytes.length > PLAIN_MAX) return false;
  for (let at = 0; at < bytes.length; at++) if ((bytes[at] ?? 0) > 127) return false;
  return true;
}

/** Writes a record from front to back. */
export class RecordWriter {
  private bytes = new Uint8Array(512);
  private at = 0;

  byte(value: number): this {
    this.room(1);
    this.bytes[this.at++] = value;
    return this;
  }

  /** An integer from 0 to 2^53-1: seven bits per byte, lowest first; the highest bit marks that more follow. */
  int(value: number): this {
    if (!Number.isSafeInteger(value) || value < 0) throw new RangeError(`${value} cannot be stored as a whole number`);
    this.room(8);
    let rest = value;
    for (; rest >= 128; rest = Math.floor(rest / 128)) this.bytes[this.at++] = (rest % 128) + 128;
    this.bytes[this.at++] = rest;
    return this;
  }

  /** The length, then the bytes. */
  blob(value: Uint8Array): this {
    this.int(value.length);
    this.room(value.length);
    this.bytes.set(value, this.at);
    this.at += value.length;
    return this;
  }

  text(value: string): this {
    return this.blob(text(value));
  }

  /** The record followed by its checksum, which also covers `seed`. */
  sealed(seed: number): Uint8Array {
    const sum = crc32(this.bytes.subarray(0, this.at), seed);
    this.room(4);
    new DataView(this.bytes.buffer).setUint32(this.at, sum);
    return this.bytes.slice(0, this.at + 4);
  }

  private room(more: number): void {
    if (this.at + more <= this.bytes.length) return;
    const wider = new Uint8Array(Math.max(this.bytes.length * 2, this.at + more));
    wider.set(this.bytes);
    this.bytes.fill(0);
    this.bytes = wider;
  }

  /** Erases the written bytes, for records that contain a secret. */
  erase(): void {
    this.bytes.fill(0);
    this.at = 0;
  }
}

/** Reads a record from front to back. Throws `StoreError` `damaged` where it ends too early or has an invalid value. */
export class RecordReader {
  private at = 0;
  private readonly end: number;

  /** Checks the checksum first. */
  constructor(
    private readonly bytes: Uint8Array,
    seed: number,
  ) {
    this.end = bytes.length - 4;
    if (this.end < 0 || crc32(bytes.subarray(0, this.end), seed) !== checksumOf(bytes))
      throw storeError('damaged', 'a record does not fit its checksum');
  }

  byte(): number {
    if (this.at >= this.end) throw storeError('damaged', 'a record ends too early');
    return this.bytes[this.at++] ?? 0;
  }

  int(): number {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const next = this.byte();
      value += (next % 128) * factor;
      if (!Number.isSafeInteger(value)) throw storeError('damaged', 'a number is too large');
      if (next < 128) return value;
    }
  }

  blob(): Uint8Array {
    const length = this.int();
    if (length > this.end - this.at) throw storeError('damaged', 'a record ends too early');
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  text(): string {
    const bytes = this.blob();
    // Ids and names are short ASCII: calling a decoder would cost more than this loop.
    const value = isPlain(bytes) ? byteText(bytes) : utf8Text(bytes);
    if (value === undefined) throw storeError('damaged', 'a text is not UTF-8');
    return value;
  }

  /** Throws if anything is left. */
  done(): void {
    if (this.at !== this.end) throw storeError('damaged', 'a record goes on too long');
  }
}

/** The checksum of a record. */
const checksumOf = (record: Uint8Array): number =>
  new DataView(record.buffer, record.byteOffset, record.byteLength).getUint32(record.length - 4);

/** A CRC-32 with this polynomial, bits reversed; `seed`: the sum so far. */
export function crcWith(polynomial: number): (bytes: Uint8Array, seed?: number) => number {
  const table = Uint32Array.from({ length: 256 }, (_, byte) => {
    let sum = byte;
    for (let bit = 0; bit < 8; bit++) sum = sum & 1 ? (sum >>> 1) ^ polynomial : sum >>> 1;
    return sum;
  });
  return (bytes, seed = 0) => {
    let sum = ~seed;
    for (let at = 0; at < bytes.length; at++) sum = (table[(sum ^ (bytes[at] ?? 0)) & 255] ?? 0) ^ (sum >>> 8);
    return ~sum >>> 0;
  };
}

/** CRC-32 (ISO-HDLC, as in zip): detects accidents, not attacks. */
export const crc32 = crcWith(0xedb88320);

/** Seed of the checksum of an owner's record: the checksum of its key. */
function seedOf(key: string, owner: number): number {
  if (key.length > scratch.length) return crc32(text(key), owner);
  for (let at = 0; at < key.length; at++) {
    const code = key.charCodeAt(at);
    if (code > 127) return crc32(text(key), owner);
    scratch[at] = code;
  }
  return crc32(scratch.subarray(0, key.length), owner);
}

/** Buffer for keys, which are short ASCII: calling an encoder would cost more than the loop. */
const scratch = new Uint8Array(PLAIN_MAX);
