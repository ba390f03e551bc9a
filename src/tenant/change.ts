/**
 * An item's row, and a change of one, over bytes that lie in one piece elsewhere: a change's in the arena, a stored row's in
 * the page that the database sent. The parts are read where they lie; nothing is decoded twice, and nothing is copied.
 *
 * The arena is the memory in which the bytes of changes lie from the request that brings them until they are answered. A few
 * large pieces that are used again, instead of buffers for every write: what a buffer holds outside of the heap makes the
 * collector run, and a batch whose changes lie one behind the other goes to PostgreSQL as it lies (bench S2).
 */
import { hash } from 'node:crypto';
import { CONTENT_TYPES, type ContentType } from '../protocol/item.js';
import { unavailable, type ServiceError } from '../protocol/errors.js';
import { MASTER_WRAP_BYTES, NONCE_BYTES, SIG_BYTES } from '../protocol/limits.js';
import type { CommitSink } from './ports.js';

/** Above the longest change there can be: 64 KiB of ciphertext, and twice 1,000 keys of 256 bytes. */
export const SEGMENT_BYTES = 1024 * 1024;
/** Segments that are kept though nothing lies in them: as many as batches under way take. */
const SPARES_MAX = 4;

/** One piece of the arena. Changes are put into it one behind the other, and it is used again as a whole. */
export class Segment {
  used = 0;
  /** Changes in it that are not answered. PostgreSQL, or the socket to it, may be reading their bytes. */
  pins = 0;

  constructor(readonly bytes: Buffer) {}
}

/** Changes in the order in which they came. One writer at a time: `reserve`, write, `pin`, without a wait in between. */
export class Arena {
  private newest = new Segment(Buffer.allocUnsafeSlow(SEGMENT_BYTES));
  private readonly spares: Segment[] = [];
  /** Segments in use, the newest among them. */
  private size = 1;

  /** Holds at most so many bytes. */
  constructor(private readonly bytesMax: number) {}

  /** Bytes of memory that it takes. */
  get bytes(): number {
    return (this.size + this.spares.length) * SEGMENT_BYTES;
  }

  /**
   * A segment with room for so many bytes behind `used`. What is written there and not pinned is overwritten by the next.
   * Throws `unavailable` where the changes under way hold all that they may.
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

  /** Takes what was written up to `end`. It stays until `unpin`. */
  pin(segment: Segment, end: number): void {
    segment.used = end;
    segment.pins++;
  }

  /** A change is answered. To be called once for each `pin`. */
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
  /** When its request came to this instance, ms of `performance.now()`; Infinity where it was made elsewhere. */
  since = Infinity;

  constructor(
    /** Hash 32, nonce 24, sig 32, master 72, blob nonce 24, ciphertext, keys, blob keys: from `at`. A stored row has no hash. */
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

/**
 * A change from the request that asks for it to the frames that tell of it: the one object that is passed on. A write is its
 * own row: once it is committed as an insert or a replace, it is what the sockets are sent.
 */
export class Change extends ItemRow {
  tenantId = '';
  /** The version that it was made against; of a write 0: the item must not exist; null: not asked. */
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
   * The hash by which the same write sent again is recognised (RETRY-01): SHA-256 over the write as it was received, with its
   * keys by device id, so that shape, encoding and the order of keys do not matter. `ifVersion` is a condition, not
   * content. Room for the text behind the bytes must be reserved: `HASHED_TEXT_MAX`.
   */
  hash(): void {
    const { bytes, end } = this;
    const type = CONTENT_TYPES.indexOf(this.type ?? 'text');
    const head = `${this.blobRef ?? ''}\n${this.binId}\n${this.ctBytes}\n${this.keysBytes}\n${this.has}\n${type}\n${this.ts}\n${this.id}`;
    // Read from its end every part has a known length or its line: no two writes give the same bytes.
    const stop = end + bytes.write(head, end, 'latin1');
    bytes.write(hash('sha256', bytes.subarray(this.at + NONCE_AT, stop), 'binary'), this.at, 'latin1');
  }
}

const NOBODY: ChangeReply = {
  stored: () => undefined,
  refused: () => undefined,
};
