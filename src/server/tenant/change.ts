/**
 * Changes of items, and the arena that holds their bytes.
 *
 * The arena holds the bytes of changes from their request until they are answered: in a few large, reused segments
 * instead of buffers for every write. External memory of buffers triggers garbage collections, and a batch whose
 * changes are adjacent is sent to PostgreSQL without a copy (bench S2).
 *
 * A write's body is decoded straight into the arena: in its usual form here, in any other form by `decode.ts`.
 */
import { hash } from 'node:crypto';
import { CONTENT_TYPES, type Summary } from '../../protocol/item.js';
import { ServiceError, unavailable } from '../../protocol/errors.js';
import {
  AEAD_TAG_BYTES,
  INLINE_CIPHERTEXT_MAX,
  SEALED_KEY_MAX,
  SEALED_KEY_MIN,
  SEALED_KEYS_PER_ITEM,
} from '../../protocol/limits.js';
import {
  ENTRY_HEAD,
  FIXED_BYTES,
  type FixedPart,
  HAS,
  ItemRow,
  LETTERS,
  MASTER_CT,
  MASTER_NONCE,
  NONCE,
  NONCE_AT,
  putAscii,
  SIG,
  sortKeys,
  ULID_CHARS,
} from './codec.js';
import type { RequireSig } from '../../protocol/request-fields.js';

/** Why a tenant in this state may not be read, or written; undefined: it may (reference, HTTP, States of a tenant). */
export function stateRefusal(
  state: string,
  use: 'read' | 'write',
): 'payment_required' | 'tenant_suspended' | undefined {
  if (state === 'active' || state === 'past_due') return undefined;
  if (state !== 'suspended') return 'payment_required';
  return use === 'write' ? 'tenant_suspended' : undefined;
}

/** More than the longest possible change: 64 KiB of ciphertext, and twice 1,000 keys of 256 bytes. */
const SEGMENT_BYTES = 1024 * 1024;
/** Empty segments that are kept: as many as batches under way need. */
const SPARES_MAX = 4;

/** One segment of the arena. Changes are appended; it is reused as a whole. */
class Segment {
  used = 0;
  /** Its unanswered changes. Their bytes must not be overwritten: the socket to PostgreSQL may be reading them. */
  pins = 0;

  constructor(readonly bytes: Buffer) {}
}

/** Changes in order of arrival. One writer at a time: `reserve`, write, `pin`, without an await in between. */
export class Arena {
  private newest = new Segment(Buffer.allocUnsafeSlow(SEGMENT_BYTES));
  private readonly spares: Segment[] = [];
  /** Number of segments in use, including the newest. */
  private size = 1;

  /** `bytesMax`: of all segments in use. */
  constructor(private readonly bytesMax: number) {}

  /**
   * A segment with room for `bytes` after `used`. Bytes that are not pinned are overwritten by the next change. Throws
   * `unavailable` if the changes under way use up the arena.
   */
  reserve(bytes: number): Segment {
    if (bytes > SEGMENT_BYTES) throw new RangeError(`${bytes} bytes fit no segment`);
    if (this.newest.used + bytes <= SEGMENT_BYTES) return this.newest;
    if (this.newest.pins === 0) {
      this.newest.used = 0;
      return this.newest;
    }
    if ((this.size + 1) * SEGMENT_BYTES > this.bytesMax) throw unavailable('too many writes wait');
    this.size++;
    this.newest = this.spares.pop() ?? new Segment(Buffer.allocUnsafeSlow(SEGMENT_BYTES));
    return this.newest;
  }

  /** Keeps the bytes up to `end` until `unpin`. */
  pin(segment: Segment, end: number): void {
    segment.used = end;
    segment.pins++;
  }

  /** Releases a change's bytes; called once for each `pin`. */
  unpin(segment: Segment): void {
    if (--segment.pins > 0 || segment === this.newest) return;
    segment.used = 0;
    this.size--;
    if (this.spares.length < SPARES_MAX) this.spares.push(segment);
  }
}

/** Room for the text that `Change.hash` appends to the bytes: ids, names of 64 characters and numbers. */
const HASHED_TEXT_MAX = 512;

export type ChangeKind = 'write' | 'delete' | 'move';

/** Verdicts of changes that are stored and therefore have a version. */
export const STORED = ['same', 'insert', 'replace', 'rewrap', 'delete', 'move'] as const;
/** Verdicts of the others. */
export const NOT_STORED = ['stale', 'conflict', 'missing', 'refused', 'no_blob', 'cap'] as const;

/** The commit function's decision on a change (sql/0002_commit.sql). */
export type Verdict = (typeof STORED)[number] | NotStored;
export type NotStored = (typeof NOT_STORED)[number];

/** Receives the answer to a change: exactly one call, exactly once. */
export interface ChangeReply {
  /** Stored, now or by an earlier call; see `change.version` and `change.decidedAt`. */
  stored(change: Change): void;
  refused(error: Error): void;
}

/** A tenant's position after a transaction. */
export interface Position {
  readonly summary: Summary;
  readonly generation: number;
}

/** Receives the outcome of every change that a lane took, once; again through `failed` if `committed` threw. */
export interface CommitSink {
  /** Changes of one transaction in version order, each with its verdict, and the tenant's position after it. */
  committed(changes: readonly Change[], position: Position): void;
  /** Not known to be stored: the client may try again. */
  failed(changes: readonly Change[], error: Error): void;
  /** Sends the replies: all sinks of the batch have their outcomes, all pushes were sent. May be called repeatedly. */
  settled(): void;
}

/**
 * A change, from its request to the frames that are pushed: the one object that is passed on. A write is its own row:
 * once committed as an insert or a replace, the sockets are sent its contents.
 */
export class Change extends ItemRow {
  tenantId = '';
  /** Expected version; 0 for a write: the item must not exist; null: any. */
  ifVersion: number | null = null;
  reply: ChangeReply = NO_REPLY;
  answered = false;
  /** Bytes that count for its tenant until it is answered. */
  heldBytes = 0;

  // Set by the actor's check (tenant/step).
  /** The generation it was checked against: if the tenant has another one, the commit function returns the change. */
  generation = 0;
  /** Why it is not applied. It is committed nevertheless: a retry of a stored change must still succeed. */
  refusal: ServiceError | null = null;
  /**
   * What the refusal is about. A re-wrap is not refused for the `content`, which stays, nor for the `bin` that it names
   * if its item is in another one (RETRY-14).
   */
  refusedFor: 'all' | 'bin' | 'content' = 'all';
  /** How often it was checked again because the tenant had changed meanwhile. */
  rechecks = 0;

  // Set by the commit queue (storage/commit/lanes).
  sink: CommitSink | null = null;
  /** The epoch in which it was accepted. */
  epoch = '';
  /** Increases from change to change. */
  order = 0;
  /** Decided without others of its tenant, because together they would exceed the storage cap. */
  alone = false;

  // Decided by the commit function.
  verdict: Verdict = 'stale';
  /** The stored item's `ts` if the change was refused. */
  storedTs: number | null = null;
  /** When it became durable, ms. */
  decidedAt = 0;
  /** After a re-wrap or a move, the item as now stored: most of it came with an earlier write. */
  stored: ItemRow | null = null;

  constructor(
    readonly kind: ChangeKind,
    /** Contains its bytes, pinned until it is answered. */
    readonly segment: Segment,
    at: number,
  ) {
    super(segment.bytes, at);
  }

  get deviceId(): string {
    return this.changedBy ?? '';
  }

  /**
   * The hash that recognises a repeated write (RETRY-01): SHA-256 over the write as it was received, with its keys by
   * device id, so that shape, encoding and the order of keys do not matter. `ifVersion` is a condition, not content.
   * Room for the text after the bytes must be reserved: `HASHED_TEXT_MAX`.
   */
  hash(): void {
    const { bytes, end } = this;
    const type = CONTENT_TYPES.indexOf(this.type ?? 'text');
    let stop = end;
    // Read from the end, each part has a known length or its own line: no two writes hash the same bytes.
    for (const line of [this.blobRef ?? '', this.binId, this.ctBytes, this.keysBytes, this.has, type, this.ts]) {
      stop = putAscii(bytes, stop, String(line));
      bytes[stop++] = NEW_LINE;
    }
    stop = putAscii(bytes, stop, this.id);
    bytes.write(hash('sha256', bytes.subarray(this.at + NONCE_AT, stop), 'binary'), this.at, 'latin1');
  }
}

/** Until the caller sets its own. */
const NO_REPLY: ChangeReply = { stored: () => undefined, refused: () => undefined };

const EQUALS_SIGN = 61;
const NEW_LINE = 10;
/** The length of a text that is not base64: no bytes encode to so many characters, or the padding is incomplete. */
export const NO_LENGTH = -1;

/** The number of bytes that a base64 text of either alphabet encodes, padded or not (SHAPE-21), or `NO_LENGTH`. */
export function base64Length(text: string): number {
  const { length } = text;
  let chars = length;
  while (chars > 0 && length - chars < 2 && text.charCodeAt(chars - 1) === EQUALS_SIGN) chars--;
  if (chars === length ? length % 4 === 1 : length % 4 !== 0) return NO_LENGTH;
  return Math.floor((chars * 3) / 4);
}

/** Decodes a text of that length into `bytes` at `at`. False if it has no length, white space or invalid characters. */
export function putBase64(bytes: Buffer, at: number, text: string, length: number): boolean {
  if (length === NO_LENGTH) return false;
  // Node accepts both alphabets under either name, but decodes the one that is named four times as fast.
  const alphabet = text.includes('+') || text.includes('/') ? 'base64' : 'base64url';
  // Node skips invalid characters, so one shows as a missing byte; only non-ASCII characters could be folded into the
  // alphabet, and those make the UTF-8 length exceed the text's.
  return bytes.write(text, at, length, alphabet) === length && Buffer.byteLength(text) === text.length;
}

/** Longer ciphertexts are not kept as text: the arena limits the waiting changes, and does not count texts. */
const KEPT_TEXT_MAX = 4_096;
/** Valid last characters, by the length of the last group: those whose unused bits are zero (RFC 4648, 3.5). */
const LAST_CHARACTERS = ['', '', 'AQgw', 'AEIMQUYcgkosw048'];

/** Whether encoding the decoded bytes yields exactly this text. */
function isCanonicalBase64Url(text: string): boolean {
  const [rest, last] = [text.length % 4, text.charAt(text.length - 1)];
  if (rest === 0 ? last === '=' : LAST_CHARACTERS[rest]?.includes(last) !== true) return false;
  return !text.includes('+') && !text.includes('/');
}

/** Decodes a ciphertext after the fixed parts; returns the error. Keeps a text that a frame would encode the same. */
export function takeCiphertext(change: Change, text: string): 'long' | 'short' | 'malformed' | undefined {
  const length = base64Length(text);
  if (length > INLINE_CIPHERTEXT_MAX) return 'long';
  if (length < AEAD_TAG_BYTES && length !== NO_LENGTH) return 'short';
  if (!putBase64(change.bytes, change.at + FIXED_BYTES, text, length)) return 'malformed';
  change.has |= HAS.inline;
  change.ctBytes = length;
  if (text.length <= KEPT_TEXT_MAX && isCanonicalBase64Url(text)) change.ctText = text;
  return undefined;
}

/**
 * Begins a change in the arena, with the fixed parts zeroed. Nothing is pinned yet. `room`: maximum of bytes after the
 * fixed parts. Throws `item_too_large`, `unavailable`.
 */
export function beginChange(arena: Arena, kind: ChangeKind, room: number): Change {
  if (FIXED_BYTES + room + HASHED_TEXT_MAX > SEGMENT_BYTES) throw new ServiceError('item_too_large');
  const segment = arena.reserve(FIXED_BYTES + room + HASHED_TEXT_MAX);
  const change = new Change(kind, segment, segment.used);
  change.bytes.fill(0, change.at, change.at + FIXED_BYTES);
  return change;
}

/** Hashes a complete write, and pins its bytes until it is answered. */
export function finishWrite(arena: Arena, change: Change): Change {
  change.hash();
  arena.pin(change.segment, change.end);
  return change;
}

// Reading a write from the bytes of its body, in the form that JSON serializers produce, without the objects and texts
// of JSON.parse: they take a third of a write's time, since the names in each tenant's key map are new to its caches
// (bench S2). Any other form, and anything invalid, is left to the parser, the validator and `decode.ts`; a test
// compares both.

const SPACE = 32;
const QUOTE = 34;
const COMMA = 44;
const DIGIT_0 = 48;
const DIGIT_9 = 57;
const COLON = 58;
const OPEN = 123;
const CLOSE = 125;
/** Numbers with at most this many digits are safe integers. */
const DIGITS_MAX = 15;
/** Longer bodies are left to the parser. */
const READ_MAX = 256 * 1024;
/** The end of longer texts is found by a native call, which costs as much as a loop over this many bytes. */
const SCAN_LOOP_MAX = 160;

/** The form of a member; any member may also be null, which is the same as absent. */
type Form = 'text' | 'number' | 'keys' | 'null' | readonly Member[];

interface Member {
  readonly name: string;
  /** Index in `WriteReader.from` and `to`. */
  readonly field: number;
  readonly form: Form;
}

/** Stored instead of a member's offset; both are negative. */
const [ABSENT, NULL] = [-1, -2];

let fieldCount = 0;
const member = (name: string, form: Form): Member => ({ name, form, field: fieldCount++ });
const ID = member('id', 'text');
const BIN = member('binId', 'text');
const TYPE = member('type', 'text');
const TIME = member('ts', 'number');
const EXPECTED = member('ifVersion', 'number');
const TEXT = member('ct', 'text');
const TEXT_NONCE = member('nonce', 'text');
const KEYS = member('keys', 'keys');
const TAG = member('sig', 'text');
const WRAP = member('ct', 'text');
const WRAP_NONCE = member('nonce', 'text');
const MASTER = member('master', [WRAP, WRAP_NONCE]);
const ENVELOPE = member('payloadEnc', [TEXT, TEXT_NONCE, KEYS, TAG, MASTER]);
const NULL_ONLY = ['blobRef', 'blobNonce', 'blobKeys', 'master', 'sig'].map((name) => member(name, 'null'));
const WRITE: readonly Member[] = [ID, BIN, TYPE, TIME, ENVELOPE, EXPECTED, ...NULL_ONLY];

/** The value of each character of either base64 alphabet; 64 for others, a bit that shows in the OR of all values. */
const SEXTETS = new Uint8Array(256).fill(64);
for (const letters of [`${LETTERS}+/`, `${LETTERS}-_`])
  for (let value = 0; value < letters.length; value++) SEXTETS[letters.charCodeAt(value)] = value;

/** The characters of a ULID after its first (protocol/ids.ts). */
const CROCKFORD = new Uint8Array(256);
for (const character of '0123456789ABCDEFGHJKMNPQRSTVWXYZ') CROCKFORD[character.charCodeAt(0)] = 1;

/** Parses the body of a write into a change. One instance serves all writes: `read` is synchronous. */
class WriteReader {
  private bytes: Buffer = Buffer.alloc(0);
  private at = 0;
  /** By `Member.field`: `from` has the start of its text, or its number, or `ABSENT` or `NULL`; `to` the text's end. */
  private readonly from = new Float64Array(fieldCount);
  private readonly to = new Int32Array(fieldCount);
  /** For each key the offsets of its device, of its text and of the text's end. */
  private readonly keys = new Int32Array(3 * SEALED_KEYS_PER_ITEM);
  private keyCount = 0;

  /** See `readWriteA`. */
  read(arena: Arena, bytes: Buffer, requireSig: RequireSig): Change | undefined {
    this.bytes = bytes;
    this.at = 0;
    this.keyCount = 0;
    this.from.fill(ABSENT);
    this.skipWhitespace();
    if (!this.object(WRITE)) return undefined;
    this.skipWhitespace();
    if (this.at < bytes.length) return undefined;
    if (this.startOf(TAG) < 0 && requireSig !== 'never') return undefined;
    const change = beginChange(arena, 'write', bytes.length);
    return this.takeMetadata(change) && this.takeParts(change) && this.takeKeys(change)
      ? finishWrite(arena, change)
      : undefined;
  }

  private skipWhitespace(): void {
    let byte = this.bytes[this.at];
    while (byte === SPACE || byte === 9 || byte === NEW_LINE || byte === 13) byte = this.bytes[++this.at];
  }

  /** Consumes this byte and the white space after it; false, consuming nothing, if another byte is next. */
  private accept(byte: number): boolean {
    if (this.bytes[this.at] !== byte) return false;
    this.at++;
    this.skipWhitespace();
    return true;
  }

  /**
   * Consumes a text; returns the offset of its closing quote, or -1. Escapes are not interpreted: no member name,
   * base64 or id contains a backslash, so a text with one is left to the parser.
   */
  private text(): number {
    const { bytes } = this;
    if (bytes[this.at] !== QUOTE) return -1;
    let end = this.at + 1;
    const loopEnd = Math.min(end + SCAN_LOOP_MAX, bytes.length);
    while (end < loopEnd && bytes[end] !== QUOTE) end++;
    if (bytes[end] !== QUOTE) end = bytes.indexOf(QUOTE, end);
    this.at = end + 1;
    return end;
  }

  /** Reads an object that has each of these members at most once, and no others. */
  private object(members: readonly Member[]): boolean {
    if (!this.accept(OPEN)) return false;
    do {
      const start = this.at + 1;
      const end = this.text();
      if (end < 0) return false;
      this.skipWhitespace();
      const found = this.memberNamed(members, start, end);
      if (found === undefined || this.from[found.field] !== ABSENT || !this.accept(COLON) || !this.value(found))
        return false;
      this.skipWhitespace();
    } while (this.accept(COMMA));
    return this.accept(CLOSE);
  }

  private memberNamed(members: readonly Member[], start: number, end: number): Member | undefined {
    for (const one of members) if (this.equals(one.name, start, end)) return one;
    return undefined;
  }

  private equals(name: string, start: number, end: number): boolean {
    if (name.length !== end - start) return false;
    for (let i = 0; i < name.length; i++) if (this.bytes[start + i] !== name.charCodeAt(i)) return false;
    return true;
  }

  private startOf({ field }: Member): number {
    return this.from[field] ?? ABSENT;
  }

  private value({ field, form }: Member): boolean {
    const start = this.at;
    if (this.equals('null', start, start + 4)) {
      this.at += 4;
      this.from[field] = NULL;
      return true;
    }
    if (form === 'text') {
      this.to[field] = this.text();
      this.from[field] = start + 1;
      return (this.to[field] ?? -1) >= 0;
    }
    if (form === 'number') {
      const number = this.number();
      this.from[field] = number;
      return number >= 0;
    }
    this.from[field] = start;
    if (form === 'keys') return this.keyMap();
    return form !== 'null' && this.object(form);
  }

  /** A whole number as JSON writes it; -1 for anything else. */
  private number(): number {
    const { bytes, at: start } = this;
    let value = 0;
    let byte = bytes[this.at] ?? 0;
    while (byte >= DIGIT_0 && byte <= DIGIT_9 && this.at - start < DIGITS_MAX) {
      value = value * 10 + byte - DIGIT_0;
      byte = bytes[++this.at] ?? 0;
    }
    const digits = this.at - start;
    return digits === 0 || (digits > 1 && bytes[start] === DIGIT_0) ? -1 : value;
  }

  private keyMap(): boolean {
    if (!this.accept(OPEN)) return false;
    do {
      const device = this.at + 1;
      if (this.text() !== device + ULID_CHARS || !this.isUlidAt(device)) return false;
      this.skipWhitespace();
      if (!this.accept(COLON) || this.keyCount === SEALED_KEYS_PER_ITEM) return false;
      const start = this.at + 1;
      const end = this.text();
      if (end < 0) return false;
      const place = 3 * this.keyCount++;
      this.keys[place] = device;
      this.keys[place + 1] = start;
      this.keys[place + 2] = end;
      this.skipWhitespace();
    } while (this.accept(COMMA));
    return this.accept(CLOSE);
  }

  private isUlidAt(start: number): boolean {
    const { bytes } = this;
    let valid = (bytes[start] ?? 0) <= DIGIT_0 + 7;
    for (let i = start; i < start + ULID_CHARS; i++) if (CROCKFORD[bytes[i] ?? 0] === 0) valid = false;
    return valid;
  }

  private textOf(of: Member): string {
    const start = this.startOf(of);
    return start < 0 ? '' : this.bytes.toString('latin1', start, this.to[of.field]);
  }

  /** Id and bin are not checked yet, and may be long: they fit, since the room reserved is that of the whole body. */
  private takeMetadata(change: Change): boolean {
    const type = this.textOf(TYPE);
    const ts = this.startOf(TIME);
    const expected = this.startOf(EXPECTED);
    change.type = CONTENT_TYPES.find((known) => known === type) ?? null;
    change.id = this.textOf(ID);
    change.binId = this.textOf(BIN);
    change.ts = ts;
    change.ifVersion = expected < 0 ? null : expected;
    return change.type !== null;
  }

  /** Decodes base64 from bytes as `putBase64` does from texts; returns its length, or `NO_LENGTH` if it is invalid. */
  private decode(start: number, end: number, to: Buffer, at: number): number {
    const { bytes: from } = this;
    let stop = end;
    while (stop > start && end - stop < 2 && from[stop - 1] === EQUALS_SIGN) stop--;
    if (stop === end ? (end - start) % 4 === 1 : (end - start) % 4 !== 0) return NO_LENGTH;
    let seen = 0;
    let put = at;
    let i = start;
    for (; i + 3 < stop; i += 4) {
      const [a, b] = [SEXTETS[from[i] ?? 0] ?? 0, SEXTETS[from[i + 1] ?? 0] ?? 0];
      const [c, d] = [SEXTETS[from[i + 2] ?? 0] ?? 0, SEXTETS[from[i + 3] ?? 0] ?? 0];
      seen |= a | b | c | d;
      to[put] = (a << 2) | (b >> 4);
      to[put + 1] = (b << 4) | (c >> 2);
      to[put + 2] = (c << 6) | d;
      put += 3;
    }
    if (i < stop) {
      const [a, b] = [SEXTETS[from[i] ?? 0] ?? 0, SEXTETS[from[i + 1] ?? 0] ?? 0];
      const c = i + 2 < stop ? (SEXTETS[from[i + 2] ?? 0] ?? 0) : 0;
      seen |= a | b | c;
      to[put++] = (a << 2) | (b >> 4);
      if (i + 2 < stop) to[put++] = (b << 4) | (c >> 2);
    }
    return (seen & 64) === 0 ? put - at : NO_LENGTH;
  }

  /** Decodes a part of fixed length; true if it is absent and not needed. */
  private fixed(change: Change, of: Member, part: FixedPart, needed: boolean): boolean {
    const start = this.startOf(of);
    if (start < 0) return !needed;
    change.has |= part.bit;
    const end = this.to[of.field] ?? 0;
    // The maximum length with padding: a longer one would overwrite the next part.
    if (end - start > Math.ceil(part.bytes / 3) * 4) return false;
    return this.decode(start, end, change.bytes, change.at + part.at) === part.bytes;
  }

  private takeParts(change: Change): boolean {
    const wrapped = this.startOf(MASTER) >= 0;
    return (
      takeCiphertext(change, this.textOf(TEXT)) === undefined &&
      this.fixed(change, TEXT_NONCE, NONCE, true) &&
      this.fixed(change, TAG, SIG, false) &&
      this.fixed(change, WRAP_NONCE, MASTER_NONCE, wrapped) &&
      this.fixed(change, WRAP, MASTER_CT, wrapped)
    );
  }

  /** Writes the keys after the ciphertext, sorted by device. */
  private takeKeys(change: Change): boolean {
    const { bytes, keysAt } = change;
    let at = keysAt;
    for (let place = 0; place < 3 * this.keyCount; place += 3) {
      const [device = 0, start = 0, end = 0] = [this.keys[place], this.keys[place + 1], this.keys[place + 2]];
      for (let i = 0; i < ULID_CHARS; i++) bytes[at + i] = this.bytes[device + i] ?? 0;
      const length = this.decode(start, end, bytes, at + ENTRY_HEAD);
      if (length < SEALED_KEY_MIN || length > SEALED_KEY_MAX) return false;
      bytes.writeUInt16BE(length, at + ULID_CHARS);
      at += ENTRY_HEAD + length;
    }
    change.keysBytes = at - keysAt;
    return this.startOf(KEYS) >= 0 && sortKeys(bytes, keysAt, at) === '';
  }
}

const reader = new WriteReader();

/**
 * A shape A write from its body, in the form that JSON serializers produce: the same change that `decodeWriteA` makes
 * of the parsed body, pinned likewise. Undefined for any other form and for anything invalid; then nothing is pinned.
 * Not checked: id, binId, ts and ifVersion (`isWriteMetadata`). Throws `unavailable`.
 */
export function readWriteA(arena: Arena, body: Buffer, requireSig: RequireSig): Change | undefined {
  return body.length > READ_MAX ? undefined : reader.read(arena, body, requireSig);
}
