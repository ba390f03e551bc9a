/**
 * The bytes of an item's write in one piece: as they travel to the database, and as they stay in memory afterwards.
 * One buffer instead of a dozen objects: what is kept of every write is what the garbage collector has to carry.
 */
import { nodeSodium } from '../crypto/sodium-node.js';
import type {
  Blob,
  ContentType,
  Inline,
  ItemWrite,
  LiveItem,
  MasterWrap,
  Payload,
  SealedKeys,
} from '../protocol/item.js';
import { MASTER_WRAP_BYTES, NONCE_BYTES, SIG_BYTES } from '../protocol/limits.js';

const ULID_CHARS = 26;
const ENTRY_HEAD = ULID_CHARS + 2;

/** Bytes that `writeKeys` needs. */
export function packedLength(keys: SealedKeys): number {
  let length = 0;
  for (const key of keys.values()) length += ENTRY_HEAD + key.length;
  return length;
}

/** Writes keys at an offset: per entry 26 bytes of device id, a 2-byte big-endian length, the sealed key. Returns the end. */
export function writeKeys(into: Buffer, offset: number, keys: SealedKeys): number {
  let at = offset;
  for (const [device, key] of keys) {
    into.write(device, at, ULID_CHARS, 'latin1');
    into.writeUInt16BE(key.length, at + ULID_CHARS);
    into.set(key, at + ENTRY_HEAD);
    at += ENTRY_HEAD + key.length;
  }
  return at;
}

/** Reads keys that `writeKeys` wrote. The sealed keys are views, not copies. */
export function readKeys(packed: Buffer): SealedKeys {
  const keys = new Map<string, Uint8Array>();
  let at = 0;
  while (at < packed.length) {
    const end = at + ENTRY_HEAD + packed.readUInt16BE(at + ULID_CHARS);
    keys.set(packed.toString('latin1', at, at + ULID_CHARS), packed.subarray(at + ENTRY_HEAD, end));
    at = end;
  }
  return keys;
}

// Where the parts lie. The fixed ones come first, absent ones as zeros: in the SQL functions every offset is a constant.
const HASH_BYTES = 32;
const MASTER_BYTES = NONCE_BYTES + MASTER_WRAP_BYTES;
const NONCE_AT = HASH_BYTES;
const SIG_AT = NONCE_AT + NONCE_BYTES;
const MASTER_AT = SIG_AT + SIG_BYTES;
const BLOB_NONCE_AT = MASTER_AT + MASTER_BYTES;
/** Bytes before the ciphertext. */
export const FIXED_BYTES = BLOB_NONCE_AT + NONCE_BYTES;

/** Which parts are there, as bits (sql/0002_commit.sql, `p_has`). */
const HAS = { nonce: 1, sig: 2, master: 4, blobNonce: 8, inline: 16 } as const;

/** Where the input of a hash is put together; used within one call. */
const scratch = Buffer.allocUnsafeSlow(64 * 1024);

/** What the bytes hold, and how long the parts of no fixed length are. */
export interface Parts {
  readonly has: number;
  readonly ctBytes: number;
  readonly keysBytes: number;
  readonly blobKeysBytes: number;
  readonly blobRef: string | null;
}

/** The bytes of a write or, with nothing but a tag, of a delete or a move. */
export class Packed {
  readonly has: number;
  readonly ctBytes: number;
  readonly keysBytes: number;
  readonly blobKeysBytes: number;
  readonly blobRef: string | null;

  private constructor(
    /** Hash 32, nonce 24, sig 32, master 72, blob nonce 24, ct, keys, blob keys. */
    readonly bytes: Buffer,
    parts: Parts,
  ) {
    this.has = parts.has;
    this.ctBytes = parts.ctBytes;
    this.keysBytes = parts.keysBytes;
    this.blobKeysBytes = parts.blobKeysBytes;
    this.blobRef = parts.blobRef;
  }

  /**
   * A write's bytes, with the hash by which the same write sent again is recognised (contract 5, decision 1): 32 bytes
   * of BLAKE2b over the decoded write as received, so shape, encoding and the order of keys do not matter. `ifVersion` is a
   * condition, not content. `received`: where the write is not stored as received, what its hash was then.
   */
  static write(write: ItemWrite, received?: Packed): Packed {
    const packed = Packed.stored(write);
    packed.bytes.set(received?.hash ?? sorted(write)?.hash ?? packed.hashOf(write), 0);
    return packed;
  }

  /** The bytes of a payload whose hash is not known here: zeros stand in its place. */
  static stored({ inline, blob, master, sig }: Payload): Packed {
    const ctBytes = inline?.ct.length ?? 0;
    const keysBytes = inline === null ? 0 : packedLength(inline.keys);
    const blobKeysBytes = blob === null ? 0 : packedLength(blob.keys);
    const bytes = Buffer.allocUnsafe(FIXED_BYTES + ctBytes + keysBytes + blobKeysBytes);
    bytes.fill(0, 0, FIXED_BYTES);
    const has =
      put(bytes, NONCE_AT, inline?.nonce, HAS.nonce) |
      put(bytes, SIG_AT, sig, HAS.sig) |
      put(bytes, MASTER_AT, master?.nonce, HAS.master) |
      put(bytes, MASTER_AT + NONCE_BYTES, master?.ct, HAS.master) |
      put(bytes, BLOB_NONCE_AT, blob?.nonce, HAS.blobNonce) |
      put(bytes, FIXED_BYTES, inline?.ct, HAS.inline);
    let end = FIXED_BYTES + ctBytes;
    if (inline !== null) end = writeKeys(bytes, end, inline.keys);
    if (blob !== null) writeKeys(bytes, end, blob.keys);
    return new Packed(bytes, { has, ctBytes, keysBytes, blobKeysBytes, blobRef: blob?.ref ?? null });
  }

  /** A view of bytes that were copied to another place. */
  static over(bytes: Buffer, at: number, parts: Parts): Packed {
    const end = at + FIXED_BYTES + parts.ctBytes + parts.keysBytes + parts.blobKeysBytes;
    return new Packed(bytes.subarray(at, end), parts);
  }

  /** The bytes of a delete or a move: its tag, or none. */
  static tag(sig: Uint8Array | null): Packed {
    const bytes = Buffer.alloc(FIXED_BYTES);
    const has = put(bytes, SIG_AT, sig, HAS.sig);
    return new Packed(bytes, { has, ctBytes: 0, keysBytes: 0, blobKeysBytes: 0, blobRef: null });
  }

  /** 32 bytes; see `write`. */
  get hash(): Uint8Array {
    return this.bytes.subarray(0, HASH_BYTES);
  }

  /** What counts towards the storage cap (contract 5, Storage), bytes. */
  get counted(): number {
    return this.ctBytes + this.keysBytes + this.blobKeysBytes;
  }

  get inline(): Inline | null {
    const { bytes, has, ctBytes, keysBytes } = this;
    if ((has & HAS.inline) === 0) return null;
    const end = FIXED_BYTES + ctBytes;
    const nonce = bytes.subarray(NONCE_AT, NONCE_AT + NONCE_BYTES);
    return { ct: bytes.subarray(FIXED_BYTES, end), nonce, keys: readKeys(bytes.subarray(end, end + keysBytes)) };
  }

  get blob(): Blob | null {
    const { bytes, blobRef: ref, ctBytes, keysBytes } = this;
    if (ref === null) return null;
    const nonce = bytes.subarray(BLOB_NONCE_AT, BLOB_NONCE_AT + NONCE_BYTES);
    return { ref, nonce, keys: readKeys(bytes.subarray(FIXED_BYTES + ctBytes + keysBytes)) };
  }

  get master(): MasterWrap | null {
    if ((this.has & HAS.master) === 0) return null;
    const middle = MASTER_AT + NONCE_BYTES;
    return { nonce: this.bytes.subarray(MASTER_AT, middle), ct: this.bytes.subarray(middle, BLOB_NONCE_AT) };
  }

  get sig(): Uint8Array | null {
    return (this.has & HAS.sig) === 0 ? null : this.bytes.subarray(SIG_AT, MASTER_AT);
  }

  private hashOf({ id, binId, type, ts }: ItemWrite): Uint8Array {
    const { bytes, has, ctBytes, keysBytes, blobRef } = this;
    const head = `${id}\n${binId}\n${type}\n${ts}\n${has}\n${ctBytes}\n${keysBytes}\n${blobRef ?? ''}\n`;
    const length = head.length + bytes.length - HASH_BYTES;
    const input = length <= scratch.length ? scratch : Buffer.allocUnsafe(length);
    // The lengths are all in the text before the bytes: no two writes give the same input.
    input.write(head, 0, 'latin1');
    bytes.copy(input, head.length, HASH_BYTES);
    return nodeSodium.blake2b(HASH_BYTES, input.subarray(0, length));
  }
}

/** Puts a part at its place and returns the bit that says it is there; 0 where it is not. */
function put(into: Buffer, at: number, part: Uint8Array | null | undefined, bit: number): number {
  if (part === null || part === undefined) return 0;
  into.set(part, at);
  return bit;
}

/** The write with its keys by device id, where they are not: the same write may come with them in another order. */
function sorted(write: ItemWrite): Packed | undefined {
  const { id, binId, type, ts, ifVersion, inline, blob, master, sig } = write;
  if (inOrder(inline?.keys) && inOrder(blob?.keys)) return undefined;
  return Packed.write({
    id,
    binId,
    type,
    ts,
    ifVersion,
    master,
    sig,
    inline: inline && { ...inline, keys: byDevice(inline.keys) },
    blob: blob && { ...blob, keys: byDevice(blob.keys) },
  });
}

function inOrder(keys: SealedKeys | undefined): boolean {
  let last = '';
  for (const device of keys?.keys() ?? []) {
    if (device < last) return false;
    last = device;
  }
  return true;
}

const byDevice = (keys: SealedKeys): SealedKeys => new Map([...keys].sort(([one], [other]) => (one < other ? -1 : 1)));

/**
 * A write whose parts are read from the packed bytes when they are asked for: what stays of it while it is under way. The
 * decoded parts are a dozen objects, and the collector carries everything that is under way (bench S1).
 */
export class PackedWrite implements ItemWrite {
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType;
  readonly ts: number;
  readonly ifVersion: number | null;

  constructor(
    { id, binId, type, ts, ifVersion }: ItemWrite,
    private readonly packed: Packed,
  ) {
    this.id = id;
    this.binId = binId;
    this.type = type;
    this.ts = ts;
    this.ifVersion = ifVersion;
  }

  get inline(): Inline | null {
    return this.packed.inline;
  }

  get blob(): Blob | null {
    return this.packed.blob;
  }

  get master(): MasterWrap | null {
    return this.packed.master;
  }

  get sig(): Uint8Array | null {
    return this.packed.sig;
  }
}

/** A live item whose parts are read from the packed bytes when they are asked for. */
export class PackedItem implements LiveItem {
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType;
  readonly ts: number;
  readonly deletedAt = null;

  constructor(
    { id, binId, type, ts }: Pick<ItemWrite, 'id' | 'binId' | 'type' | 'ts'>,
    readonly packed: Packed,
    readonly version: number,
    readonly senderDevice: string,
  ) {
    this.id = id;
    this.binId = binId;
    this.type = type;
    this.ts = ts;
  }

  get inline(): Inline | null {
    return this.packed.inline;
  }

  get blob(): Blob | null {
    return this.packed.blob;
  }

  get master(): MasterWrap | null {
    return this.packed.master;
  }

  get sig(): Uint8Array | null {
    return this.packed.sig;
  }
}
