/**
 * An item's row, and a change of one, as a view of bytes in one piece elsewhere: a change's in the arena, a stored
 * row's in the page that the database sent. Parts are read in place; nothing is decoded twice or copied.
 *
 * The arena holds the bytes of changes from their request until they are answered: a few large, reused segments instead
 * of buffers for every write. External memory of buffers triggers collections, and a batch whose changes are adjacent
 * is sent to PostgreSQL without a copy (bench S2).
 *
 * A write's body is decoded straight into the arena, in either shape (SHAPE-14 to 24).
 */
import { hash } from 'node:crypto';
import { CONTENT_TYPES, type ContentType, type Summary } from '../../protocol/item.js';
import { invalid, ServiceError, unavailable } from '../../protocol/errors.js';
import {
  MASTER_WRAP_BYTES,
  NONCE_BYTES,
  SIG_BYTES,
  AEAD_TAG_BYTES,
  INLINE_CIPHERTEXT_MAX,
  SEALED_KEY_MAX,
  SEALED_KEY_MIN,
  SEALED_KEYS_PER_ITEM,
} from '../../protocol/limits.js';
import { ULID } from '../../protocol/ids.js';
import type { RequireSig } from '../../protocol/item-codec.js';
import type { EnvelopeBody, ItemBodyA, ItemBodyB, MasterBody, WrappedKeyBody } from '../../protocol/requests.js';

/** Above the longest change there can be: 64 KiB of ciphertext, and twice 1,000 keys of 256 bytes. */
export const SEGMENT_BYTES = 1024 * 1024;
/** Empty segments that are kept: as many as batches under way need. */
const SPARES_MAX = 4;

/** One segment of the arena. Changes are appended; it is reused as a whole. */
export class Segment {
  used = 0;
  /** Changes in it that are not answered. PostgreSQL, or the socket to it, may be reading their bytes. */
  pins = 0;

  constructor(readonly bytes: Buffer) {}
}

/** Changes in order of arrival. One writer at a time: `reserve`, write, `pin`, without an await in between. */
export class Arena {
  private newest = new Segment(Buffer.allocUnsafeSlow(SEGMENT_BYTES));
  private readonly spares: Segment[] = [];
  /** Segments in use, the newest among them. */
  private size = 1;

  /** Holds at most `bytesMax`. */
  constructor(private readonly bytesMax: number) {}

  /** Bytes of memory that it takes. */
  get bytes(): number {
    return (this.size + this.spares.length) * SEGMENT_BYTES;
  }

  /**
   * A segment with room for `bytes` behind `used`. Bytes that are not pinned are overwritten by the next change. Throws
   * `unavailable` where the changes under way use up the arena.
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

  /** Keeps what was written up to `end` until `unpin`. */
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

export const ULID_CHARS = 26;
/** An entry of a key list: 26 characters of device id, a 2-byte big-endian length, the sealed key. */
export const ENTRY_HEAD = ULID_CHARS + 2;

// Where the parts lie, from the row's `at`. The fixed ones come first, absent ones as zeros: in the SQL functions every
// offset is a constant (sql/0002_commit.sql). Behind them: ciphertext, keys, blob keys.
export const HASH_BYTES = 32;
export const MASTER_BYTES = NONCE_BYTES + MASTER_WRAP_BYTES;
export const NONCE_AT = HASH_BYTES;
export const SIG_AT = NONCE_AT + NONCE_BYTES;
export const MASTER_AT = SIG_AT + SIG_BYTES;
export const BLOB_NONCE_AT = MASTER_AT + MASTER_BYTES;
/** Bytes before the ciphertext. */
export const FIXED_BYTES = BLOB_NONCE_AT + NONCE_BYTES;

/** More than the text that `Change.hash` writes behind the bytes: ids, names of 64 characters and numbers. */
export const HASHED_TEXT_MAX = 512;

/** Which parts are there, as bits (sql/0002_commit.sql, `p_has`). */
export const HAS = { nonce: 1, sig: 2, master: 4, blobNonce: 8, inline: 16 } as const;

/** A part of fixed length: where it lies from the row's `at`, how long it is, and the bit that says it is there. */
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

/** An item as it is stored, or a tombstone. */
export class ItemRow {
  id = '';
  binId = '';
  /** Null in a tombstone that was emptied. */
  type: ContentType | null = null;
  /** The writer's clock, ms; null as `type`. */
  ts: number | null = null;
  version = 0;
  /** Who wrote the content; null as `type`. */
  senderDevice: string | null = null;
  /** Whose change the version is: that device's sockets get no push. */
  changedBy: string | null = null;
  /** When it was deleted, ms; null of a live item. */
  deletedAt: number | null = null;
  blobRef: string | null = null;

  has = 0;
  ctBytes = 0;
  keysBytes = 0;
  blobKeysBytes = 0;
  /** The ciphertext as its request spelled it, where that is how a frame in shape A does; null: from the bytes. */
  ctText: string | null = null;
  /** When its request came to this instance, ms of `performance.now()`; Infinity where it was made elsewhere. */
  since = Infinity;

  constructor(
    /**
     * Hash 32, nonce 24, sig 32, master 72, blob nonce 24, ciphertext, keys, blob keys: from `at`. A stored row has no
     * hash.
     */
    public bytes: Buffer,
    public at: number,
  ) {}

  /** What counts towards the storage cap (ITEM-39), bytes. */
  get counted(): number {
    return this.ctBytes + this.keysBytes + this.blobKeysBytes;
  }

  get keysAt(): number {
    return this.at + FIXED_BYTES + this.ctBytes;
  }

  get blobKeysAt(): number {
    return this.keysAt + this.keysBytes;
  }

  /** Behind the last part. */
  get end(): number {
    return this.blobKeysAt + this.blobKeysBytes;
  }

  /** The same row over bytes of its own. */
  copy(): ItemRow {
    const row = new ItemRow(Buffer.from(this.bytes.subarray(this.at, this.end)), 0);
    row.id = this.id;
    row.binId = this.binId;
    row.type = this.type;
    row.ts = this.ts;
    row.version = this.version;
    row.senderDevice = this.senderDevice;
    row.changedBy = this.changedBy;
    row.deletedAt = this.deletedAt;
    row.blobRef = this.blobRef;
    row.has = this.has;
    row.ctBytes = this.ctBytes;
    row.keysBytes = this.keysBytes;
    row.blobKeysBytes = this.blobKeysBytes;
    row.since = this.since;
    return row;
  }

  /** 32 bytes; null where there is none. */
  get sig(): Buffer | null {
    if ((this.has & HAS.sig) === 0) return null;
    return this.bytes.subarray(this.at + SIG_AT, this.at + MASTER_AT);
  }
}

export type ChangeKind = 'write' | 'delete' | 'move';

/** What the commit function said of a change (sql/0002_commit.sql). */
export type Verdict =
  | 'same'
  | 'insert'
  | 'replace'
  | 'rewrap'
  | 'delete'
  | 'move'
  | 'stale'
  | 'conflict'
  | 'missing'
  | 'refused'
  | 'no_blob'
  | 'cap';

/** Where the answer to a change goes: exactly one call, exactly once. */
export interface ChangeReply {
  /** Stored, now or by an earlier call: `change.version`, `change.decidedAt`. */
  stored(change: Change): void;
  refused(error: Error): void;
}

/** Where a tenant stood after a transaction. */
export interface Position {
  readonly summary: Summary;
  readonly generation: number;
}

/** Receives the outcome of every change that a lane took: exactly once, or again by `failed` where it threw. */
export interface CommitSink {
  /** Changes of one transaction in version order, each with its verdict, and the tenant's position after it. */
  committed(changes: readonly Change[], position: Position): void;
  /** Not known to be stored: the client may try again. */
  failed(changes: readonly Change[], error: Error): void;
  /** Every sink of the batch has its outcomes, and all pushes were sent: replies are sent now. Maybe more than once. */
  settled(): void;
}

/**
 * A change, from its request to the frames that are pushed: the one object that is passed on. A write is its
 * own row: once it is committed as an insert or a replace, it is what the sockets are sent.
 */
export class Change extends ItemRow {
  tenantId = '';
  /** Expected version; 0 for a write: the item must not exist; null: any. */
  ifVersion: number | null = null;
  reply: ChangeReply = NOBODY;
  /** Its reply was called. */
  answered = false;

  // Judged by the actor (tenant/step).
  /** What it was judged by: the commit function sends it back where the tenant has another generation. */
  generation = 0;
  /** Why it is not applied. It is committed all the same: a retry of what is stored must still succeed. */
  refusal: ServiceError | null = null;
  /** The bin it names is all that is wrong with it: a re-wrap does not apply that (RETRY-14). */
  refusedForBin = false;
  /** How often it was judged anew because the tenant had changed meanwhile. */
  rechecks = 0;

  // Of its lane (postgres/commit/lanes).
  sink: CommitSink | null = null;
  /** Rises from change to change of a lane. */
  order = 0;
  /** Judged without others of its tenant, because together they would pass the storage cap. */
  alone = false;

  // Decided by the commit function.
  verdict: Verdict = 'stale';
  /** The stored item's `ts` where it was refused. */
  storedTs: number | null = null;
  /** When it became durable, ms. */
  decidedAt = 0;
  /** After a re-wrap or a move the item as it is stored now: most of it came with an earlier write. */
  stored: ItemRow | null = null;

  constructor(
    readonly kind: ChangeKind,
    /** Where its bytes lie, pinned until it is answered. */
    readonly segment: Segment,
    at: number,
  ) {
    super(segment.bytes, at);
  }

  get deviceId(): string {
    return this.changedBy ?? '';
  }

  /**
   * The hash by which the same write sent again is recognised (RETRY-01): SHA-256 over the write as it was received,
   * with its keys by device id, so that shape, encoding and the order of keys do not matter. `ifVersion` is a
   * condition, not content. Room for the text behind the bytes must be reserved: `HASHED_TEXT_MAX`.
   */
  hash(): void {
    const { bytes, end } = this;
    const type = CONTENT_TYPES.indexOf(this.type ?? 'text');
    let stop = end;
    // Read from its end every part has a known length or its line: no two writes give the same bytes.
    for (const line of [this.blobRef ?? '', this.binId, this.ctBytes, this.keysBytes, this.has, type, this.ts]) {
      stop = putAscii(bytes, stop, String(line));
      bytes[stop++] = NEW_LINE;
    }
    stop = putAscii(bytes, stop, this.id);
    bytes.write(hash('sha256', bytes.subarray(this.at + NONCE_AT, stop), 'binary'), this.at, 'latin1');
  }
}

/** Writes a short text, faster than a native call; returns where it ends. */
export function putAscii(bytes: Buffer, at: number, text: string): number {
  for (let i = 0; i < text.length; i++) bytes[at + i] = text.charCodeAt(i);
  return at + text.length;
}

const NOBODY: ChangeReply = { stored: () => undefined, refused: () => undefined };

const notBase64 = (path: string): ServiceError => invalid(path, 'must be base64 or base64url without white space');
const EQUALS_SIGN = 61;
const NEW_LINE = 10;
/** No byte string is so long as a base64 text, or it is padded by half. */
const NO_LENGTH = -1;

/** The number of bytes that a base64 text of either alphabet stands for, padded or not (SHAPE-21), or `NO_LENGTH`. */
function base64Length(text: string): number {
  const { length } = text;
  let chars = length;
  while (chars > 0 && length - chars < 2 && text.charCodeAt(chars - 1) === EQUALS_SIGN) chars--;
  if (chars === length ? length % 4 === 1 : length % 4 !== 0) return NO_LENGTH;
  return Math.floor((chars * 3) / 4);
}

/** Decodes a text of that length to its place. False: it has none, or white space or other characters. */
function putBase64(bytes: Buffer, at: number, text: string, length: number): boolean {
  if (length === NO_LENGTH) return false;
  // Node takes either alphabet under either name, but the one that is named it decodes four times as fast.
  const alphabet = text.includes('+') || text.includes('/') ? 'base64' : 'base64url';
  // It skips what it does not know, so a wrong character shows as a missing byte; only characters past ASCII could be
  // folded into the alphabet, and those are longer as UTF-8 than as text.
  return bytes.write(text, at, length, alphabet) === length && Buffer.byteLength(text) === text.length;
}

/** Decodes a part to its place, or says which field is wrong. */
function putFixed(change: Change, part: FixedPart, path: string, text: string): void {
  const length = base64Length(text);
  if (length !== part.bytes && length !== NO_LENGTH) throw invalid(path, `must be ${part.bytes} bytes, got ${length}`);
  if (!putBase64(change.bytes, change.at + part.at, text, length)) throw notBase64(path);
  change.has |= part.bit;
}

/** Longer texts are not kept until the commit: what waits for it is bounded by the arena. */
const KEPT_TEXT_MAX = 4_096;
/** The last characters of base64url, by how many there are in the last group: other bits of theirs would be lost. */
const LAST_CHARACTERS = ['', '', 'AQgw', 'AEIMQUYcgkosw048'];

/** Whether base64url of the bytes is the very text that stands for them (RFC 4648, 3.5). */
function isBase64Url(text: string): boolean {
  const [rest, last] = [text.length % 4, text.charAt(text.length - 1)];
  if (rest === 0 ? last === '=' : LAST_CHARACTERS[rest]?.includes(last) !== true) return false;
  return !text.includes('+') && !text.includes('/');
}

function putCiphertext(change: Change, path: string, text: string): void {
  const length = base64Length(text);
  if (length > INLINE_CIPHERTEXT_MAX) throw new ServiceError('item_too_large', undefined, { path });
  if (length < AEAD_TAG_BYTES && length !== NO_LENGTH)
    throw invalid(path, `must be at least ${AEAD_TAG_BYTES} bytes, got ${length}`);
  if (!putBase64(change.bytes, change.at + FIXED_BYTES, text, length)) throw notBase64(path);
  change.has |= HAS.inline;
  change.ctBytes = length;
  if (text.length <= KEPT_TEXT_MAX && isBase64Url(text)) change.ctText = text;
}

/** Puts lists of keys behind one another: `begin`, then `add` for each, then `end`. One list at a time. */
class KeyList {
  private bytes: Buffer = Buffer.alloc(0);
  private path = '';
  private from = 0;
  private at = 0;
  private last = '';
  private sorted = true;

  begin(bytes: Buffer, from: number, path: string): void {
    this.bytes = bytes;
    this.path = path;
    this.from = from;
    this.at = from;
    this.last = '';
    this.sorted = true;
  }

  add(device: string, text: string): void {
    const { bytes, at } = this;
    if (!ULID.test(device)) throw invalid(this.path, `a device id must match ${ULID.source}`);
    const length = base64Length(text);
    if ((length < SEALED_KEY_MIN && length !== NO_LENGTH) || length > SEALED_KEY_MAX) {
      throw invalid(`${this.path}.${device}`, `must be ${SEALED_KEY_MIN} to ${SEALED_KEY_MAX} bytes, got ${length}`);
    }
    if (!putBase64(bytes, at + ENTRY_HEAD, text, length)) throw notBase64(`${this.path}.${device}`);
    if (device <= this.last) this.sorted = false;
    this.last = device;
    bytes.write(device, at, 'latin1');
    bytes.writeUInt16BE(length, at + ULID_CHARS);
    this.at = at + ENTRY_HEAD + length;
  }

  /** The list's bytes. Its entries lie by device id: the same write may come with them in another order. */
  end(): number {
    if (!this.sorted) this.sort();
    return this.at - this.from;
  }

  private sort(): void {
    const { bytes, from, at: to } = this;
    const entries: Buffer[] = [];
    for (let at = from; at < to;) {
      const next = at + ENTRY_HEAD + bytes.readUInt16BE(at + ULID_CHARS);
      entries.push(Buffer.from(bytes.subarray(at, next)));
      at = next;
    }
    let at = from;
    let before = '';
    for (const entry of entries.sort((one, other) => one.compare(other))) {
      const device = entry.toString('latin1', 0, ULID_CHARS);
      if (device === before) throw invalid(`${this.path}.${device}`, 'given twice');
      before = device;
      at += entry.copy(bytes, at);
    }
  }
}

const keyList = new KeyList();

function putKeyMap(change: Change, from: number, path: string, map: Record<string, string>): number {
  let count = 0;
  keyList.begin(change.bytes, from, path);
  for (const device in map) {
    if (++count > SEALED_KEYS_PER_ITEM) throw invalid(path, `at most ${SEALED_KEYS_PER_ITEM} keys`);
    keyList.add(device, map[device] ?? '');
  }
  return keyList.end();
}

function putKeyArray(change: Change, from: number, path: string, array: readonly WrappedKeyBody[]): number {
  if (array.length > SEALED_KEYS_PER_ITEM) throw invalid(path, `at most ${SEALED_KEYS_PER_ITEM} keys`);
  keyList.begin(change.bytes, from, path);
  for (const { deviceId, key } of array) keyList.add(deviceId, key);
  return keyList.end();
}

function putMaster(change: Change, path: string, master: MasterBody | null | undefined): void {
  if (master === null || master === undefined) return;
  putFixed(change, MASTER_NONCE, `${path}.nonce`, master.nonce);
  putFixed(change, MASTER_CT, `${path}.ct`, master.ct);
}

function putBlobRef(change: Change, ref: string): void {
  // The name is opaque to clients; a name that could never have been handed out is simply not there.
  if (!/^[0-9A-Za-z._-]{1,64}$/.test(ref)) throw new ServiceError('blob_not_found', undefined, { path: 'blobRef' });
  change.blobRef = ref;
}

/** Nonce and keys beside an empty ciphertext have to fit, and are not kept: the blob has its own. */
function forgetInline(change: Change): void {
  change.bytes.fill(0, change.at + NONCE_AT, change.at + SIG_AT);
  change.has &= ~HAS.nonce;
  change.keysBytes = 0;
}

function takeHead(change: Change, body: ItemBodyA | ItemBodyB): void {
  const { id, binId, type, ts, ifVersion } = body;
  const known = CONTENT_TYPES.find((one) => one === type);
  if (known === undefined) throw new ServiceError('unknown_type', undefined, { path: 'type' });
  change.id = id;
  change.binId = binId;
  change.type = known;
  change.ts = ts;
  change.ifVersion = ifVersion ?? null;
}

/** Bytes that a list of keys may take, by the length of its texts. */
function roomForMap(map: Record<string, string> | null | undefined): number {
  let room = 0;
  for (const device in map) room += ENTRY_HEAD + (map[device]?.length ?? 0);
  return room;
}

const roomForArray = (array: readonly WrappedKeyBody[] | null | undefined): number =>
  array?.reduce((room, { key }) => room + ENTRY_HEAD + key.length, 0) ?? 0;

/** A change whose bytes begin where the arena has room for them, the fixed ones all zero. Not taken yet. */
function begin(arena: Arena, kind: Change['kind'], room: number): Change {
  if (FIXED_BYTES + room + HASHED_TEXT_MAX > SEGMENT_BYTES) throw new ServiceError('item_too_large');
  const segment = arena.reserve(FIXED_BYTES + room + HASHED_TEXT_MAX);
  const change = new Change(kind, segment, segment.used);
  change.bytes.fill(0, change.at, change.at + FIXED_BYTES);
  return change;
}

/** The write is whole: its hash is made, and its bytes are taken until it is answered. */
function finish(arena: Arena, change: Change): Change {
  change.hash();
  arena.pin(change.segment, change.end);
  return change;
}

/**
 * A shape A body that fits its schema as a change. Its bytes are pinned in the arena: `arena.unpin` when it is
 * answered. Throws `validation`, `item_too_large`, `unknown_type`, `blob_not_found`, `unavailable`, and pins nothing then.
 */
export function decodeWriteA(arena: Arena, body: ItemBodyA, requireSig: RequireSig): Change {
  const envelope = body.payloadEnc ?? null;
  const ref = body.blobRef ?? null;
  const room = (envelope?.ct.length ?? 0) + roomForMap(envelope?.keys) + roomForMap(body.blobKeys);
  const change = begin(arena, 'write', room);
  takeHead(change, body);
  if (envelope === null && ref === null) throw invalid('payloadEnc', 'payloadEnc or blobRef is required');
  if (ref === null && ((body.blobNonce ?? null) !== null || (body.blobKeys ?? null) !== null)) {
    throw invalid('blobRef', 'required beside blobNonce or blobKeys');
  }
  const path = envelope === null ? '' : 'payloadEnc.';
  const { sig, master } = envelope ?? body;
  if (sig !== null && sig !== undefined) putFixed(change, SIG, `${path}sig`, sig);
  else if (requireSig === 'always' || (requireSig === 'a' && envelope !== null)) {
    throw invalid(`${path}sig`, `required, ${SIG_BYTES} bytes`);
  }
  if (envelope !== null) putEnvelope(change, envelope, ref !== null);
  if (ref !== null) putBlobA(change, ref, body);
  putMaster(change, `${path}master`, master);
  return finish(arena, change);
}

/** An envelope. Beside a blob (`mayBeEmpty`) an empty ct is allowed and means: no metadata. */
function putEnvelope(change: Change, { ct, nonce, keys }: EnvelopeBody, mayBeEmpty: boolean): void {
  const empty = mayBeEmpty && ct === '';
  putFixed(change, NONCE, 'payloadEnc.nonce', nonce);
  if (!empty) putCiphertext(change, 'payloadEnc.ct', ct);
  change.keysBytes = putKeyMap(change, change.keysAt, 'payloadEnc.keys', keys);
  if (empty) forgetInline(change);
}

function putBlobA(change: Change, ref: string, { blobNonce, blobKeys }: ItemBodyA): void {
  if (typeof blobNonce !== 'string') throw invalid('blobNonce', 'required beside blobRef');
  if (!blobKeys) throw invalid('blobKeys', 'required beside blobRef');
  putBlobRef(change, ref);
  putFixed(change, BLOB_NONCE, 'blobNonce', blobNonce);
  change.blobKeysBytes = putKeyMap(change, change.blobKeysAt, 'blobKeys', blobKeys);
}

/** A shape B body that fits its schema (keys camelCase) as a change; see `decodeWriteA`. */
export function decodeWriteB(arena: Arena, body: ItemBodyB, requireSig: RequireSig): Change {
  const ref = body.blobRef ?? null;
  const room = body.ct.length + roomForArray(body.wrapped) + roomForArray(body.blobKeys ?? body.wrapped);
  const change = begin(arena, 'write', room);
  takeHead(change, body);
  if (ref === null && ((body.blobNonce ?? null) !== null || (body.blobKeys ?? null) !== null)) {
    throw invalid('blob_ref', 'required beside blob_nonce or blob_keys');
  }
  const { sig } = body;
  if (sig !== null && sig !== undefined) putFixed(change, SIG, 'sig', sig);
  else if (requireSig === 'always') throw invalid('sig', `required, ${SIG_BYTES} bytes`);
  const empty = ref !== null && body.ct === '';
  putFixed(change, NONCE, 'nonce', body.nonce);
  if (!empty) putCiphertext(change, 'ct', body.ct);
  change.keysBytes = putKeyArray(change, change.keysAt, 'wrapped', body.wrapped);
  if (empty) forgetInline(change);
  if (ref !== null) putBlobB(change, ref, body);
  putMaster(change, 'master', body.master);
  return finish(arena, change);
}

/** Of a B blob without `blob_nonce`, `nonce` and `wrapped` are the blob's own (SHAPE-19). */
function putBlobB(change: Change, ref: string, body: ItemBodyB): void {
  const named = typeof body.blobNonce === 'string';
  const blobOnly = (change.has & HAS.inline) === 0;
  if (!named && !blobOnly) throw invalid('blob_nonce', 'required beside blob_ref and ct');
  if (named && !blobOnly && !body.blobKeys) throw invalid('blob_keys', 'required beside blob_nonce');
  putBlobRef(change, ref);
  putFixed(change, BLOB_NONCE, named ? 'blob_nonce' : 'nonce', body.blobNonce ?? body.nonce);
  const [path, keys] = body.blobKeys ? ['blob_keys', body.blobKeys] : ['wrapped', body.wrapped];
  change.blobKeysBytes = putKeyArray(change, change.blobKeysAt, path, keys);
}

/** A delete, or a move: nothing but its tag. `sig` has 32 bytes where it is given. Pinned as a write is. */
export function tagged(arena: Arena, kind: 'delete' | 'move', sig: string | null | undefined): Change {
  const change = begin(arena, kind, 0);
  if (sig !== null && sig !== undefined) putFixed(change, SIG, 'sig', sig);
  arena.pin(change.segment, change.end);
  return change;
}
