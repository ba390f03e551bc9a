/**
 * Changes in a notification, so that its receiver need not read the log. PostgreSQL accepts only text, so a block is
 * sent as base64, preceded by its MAC (NoticeMac); over a link (links.ts) it is sent as is:
 *
 *      1  format number
 *      1  length of the sender's id, and the id
 *      1  length of the epoch that the changes belong to, and the epoch
 *     then for each tenant's rows of one transaction, or as many of them as fit:
 *      1  length of the tenant's id, and the id
 *     32  generation, head, item count and version sum, 8 bytes each; -1 for unknown sums
 *      2  length of the rows, and the rows, packed as by `packed_item` (sql/0002_commit.sql), which packing.ts reads
 */
import type { Summary } from '../../protocol/item.js';
import { HASH_BYTES, int8At, putAscii, putInt8, ULID_CHARS, type ItemRow } from '../tenant/codec.js';
import { NOTICE_CHARS } from './notice.js';
import { ID_AT, readRows } from './packing.js';

const FORMAT = 2;
/** Including the MAC. Base64 turns three bytes into four characters. */
export const NOTIFICATION_BYTES = Math.floor(NOTICE_CHARS / 4) * 3;
const NUMBERS_BYTES = 32;
/** Bytes between a tenant's id and its rows. */
const PREFIX_BYTES = NUMBERS_BYTES + 2;
/** Offset of the head within that prefix. */
const HEAD_OFFSET = 8;

/** Rows without a gap in their versions; `summary` is the tenant's at the last one. */
export interface NotifiedRows {
  readonly rows: readonly ItemRow[];
  readonly summary: Summary | null;
}

/** A tenant's rows as received. */
interface NotifiedChange {
  readonly tenantId: string;
  readonly head: number;
  readonly generation: number;
  /** Undefined if they cannot be read. */
  readonly carried: NotifiedRows | undefined;
}

/** Writes an id preceded by its length. */
function idTo(bytes: Buffer, id: string, at: number): number {
  bytes[at] = id.length;
  return putAscii(bytes, at + 1, id);
}

function textTo(bytes: Buffer, text: string | null, at: number): number {
  if (text === null) return bytes.writeInt32BE(-1, at);
  return putAscii(bytes, bytes.writeInt32BE(text.length, at), text);
}

/** Bytes of a text with its length prefix. */
const sizeOf = (text: string | null): number => 4 + (text?.length ?? 0);

/** Writes a row; returns its end, or -1 if it does not fit. */
function rowTo(bytes: Buffer, row: ItemRow, from: number): number {
  const { ctBytes, keysBytes, blobKeysBytes, binId, type, senderDevice, changedBy, blobRef } = row;
  const texts = sizeOf(binId) + sizeOf(type) + sizeOf(senderDevice) + sizeOf(changedBy) + sizeOf(blobRef);
  if (from + ID_AT + ULID_CHARS + texts + row.end - row.at - HASH_BYTES > bytes.length) return -1;
  let at = putInt8(bytes, from, row.version);
  at = putInt8(bytes, at, row.ts ?? -1);
  at = putInt8(bytes, at, row.deletedAt ?? -1);
  at = bytes.writeInt32BE(row.has, at);
  at = bytes.writeInt32BE(ctBytes, at);
  at = bytes.writeInt32BE(keysBytes, at);
  at = bytes.writeInt32BE(blobKeysBytes, at);
  at = putAscii(bytes, at, row.id);
  at = textTo(bytes, binId, at);
  at = textTo(bytes, type, at);
  at = textTo(bytes, senderDevice, at);
  at = textTo(bytes, changedBy, at);
  at = textTo(bytes, blobRef, at);
  return at + row.bytes.copy(bytes, at, row.at + HASH_BYTES, row.end);
}

/** The instance that sends changes, and the history that they belong to. */
export interface Publisher {
  readonly instanceId: string;
  /** The epoch of the database as currently known. */
  readonly epoch: () => string;
}

/** Writes changes for one instance into as few blocks as possible; `links.ts` also uses it, with larger blocks. */
export class ChangesWriter {
  private headBytes = 0;
  private used = 0;
  changeCount = 0;
  bytesWritten = 0;

  /**
   * @param bytes Memory for one block, owned by the writer.
   * @param out Takes the block in that memory, which ends at `end`. Returns the memory for the next one.
   */
  constructor(
    private readonly publisher: Publisher,
    private bytes: Buffer,
    private readonly out: (end: number) => Buffer,
  ) {}

  private head(): number {
    this.bytes[0] = FORMAT;
    const { instanceId, epoch } = this.publisher;
    return idTo(this.bytes, epoch(), idTo(this.bytes, instanceId, 1));
  }

  /**
   * Adds the rows of one transaction, whose versions are consecutive up to the summary's; their bytes are copied. False
   * if a row does not fit: a hint must be sent, even if earlier rows were added.
   */
  add(tenantId: string, generation: number, rows: readonly ItemRow[], summary: Summary): boolean {
    let from = this.begin(tenantId, generation);
    let at = from;
    for (const row of rows) {
      let next = rowTo(this.bytes, row, at);
      if (next < 0) {
        if (at > from) this.finish(from, at, { version: row.version - 1, itemCount: -1, versionSum: -1 });
        if (!this.seal()) return false;
        from = this.begin(tenantId, generation);
        next = rowTo(this.bytes, row, from);
        if (next < 0) return false;
      }
      at = next;
    }
    this.finish(from, at, summary);
    return true;
  }

  /** Writes a tenant's prefix; returns where its rows begin. It takes effect only with `finish`. */
  private begin(tenantId: string, generation: number): number {
    // Rewritten for each block: a queued block keeps the epoch of its changes.
    if (this.used === this.headBytes) this.headBytes = this.used = this.head();
    const room = 1 + tenantId.length + PREFIX_BYTES;
    if (this.used + room > this.bytes.length && this.seal()) return this.begin(tenantId, generation);
    const at = putInt8(this.bytes, idTo(this.bytes, tenantId, this.used), generation);
    return at - HEAD_OFFSET + PREFIX_BYTES;
  }

  private finish(from: number, end: number, { version, itemCount, versionSum }: Summary): void {
    let at = putInt8(this.bytes, from - PREFIX_BYTES + HEAD_OFFSET, version);
    at = putInt8(this.bytes, at, itemCount);
    at = putInt8(this.bytes, at, versionSum);
    this.bytes.writeUInt16BE(end - from, at);
    this.bytesWritten += end - this.used;
    this.used = end;
    this.changeCount++;
  }

  /** Ends the current block. False if it is empty. */
  seal(): boolean {
    if (this.used === this.headBytes) return false;
    this.bytes = this.out(this.used);
    this.used = this.headBytes;
    return true;
  }
}

/** Whether a payload contains changes: a notice is JSON and begins with a brace, which base64 never does. */
export const isChangesPayload = (payload: string): boolean => !payload.startsWith('{');

const received = Buffer.alloc(NOTIFICATION_BYTES);

/**
 * A payload's bytes, whose MAC must be checked before anything else. They, and the rows read from them, are valid until
 * the next call: one buffer is reused, since a new one each time would be most of a notification's garbage (bench S2).
 */
export const decodePayload = (payload: string): Buffer => received.subarray(0, received.write(payload, 'base64'));

/** Parses a block; undefined if it has another format, or is malformed. */
export function readChanges(bytes: Buffer): ReturnType<typeof changesOf> | undefined {
  try {
    return bytes[0] === FORMAT ? changesOf(bytes) : undefined;
  } catch {
    return undefined;
  }
}

/** The changes with their sender and epoch. Throws if a length in it is wrong. */
function changesOf(bytes: Buffer) {
  let at = 1;
  const id = (): string => {
    const from = at + 1;
    at = from + bytes.readUInt8(at);
    return bytes.toString('latin1', from, at);
  };
  const [from, epoch] = [id(), id()];
  const changes: NotifiedChange[] = [];
  while (at < bytes.length) {
    const tenantId = id();
    const [generation, head] = [int8At(bytes, at), int8At(bytes, at + 8)];
    const [itemCount, versionSum] = [int8At(bytes, at + 16), int8At(bytes, at + 24)];
    const begin = at + PREFIX_BYTES;
    const end = begin + bytes.readUInt16BE(begin - 2);
    if (end > bytes.length) throw new Error('a notification ends within its changes');
    const rows = rowsOf(bytes.subarray(begin, end), head);
    const summary = itemCount < 0 || versionSum < 0 ? null : { version: head, itemCount, versionSum };
    changes.push({ tenantId, head, generation, carried: rows === undefined ? undefined : { rows, summary } });
    at = end;
  }
  return { from, epoch, changes };
}

/** The rows, with consecutive versions up to `head`; undefined if they are not, or cannot be read. */
function rowsOf(bytes: Buffer, head: number): readonly ItemRow[] | undefined {
  try {
    const rows = readRows(bytes);
    const first = head - rows.length + 1;
    return rows.length > 0 && first > 0 && rows.every(({ version }, n) => version === first + n) ? rows : undefined;
  } catch {
    // The head is known nevertheless, and the log has the rows.
    return undefined;
  }
}
