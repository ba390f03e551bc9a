/**
 * Changes in the text of a notification, so that another instance need not read them: as base64, since PostgreSQL takes
 * text alone. What it stands for:
 *
 *     16  a MAC of all that follows (NoticeMac)
 *      1  the number of this format
 *      1  the length of the sender's id, and the id
 *     then for each tenant's rows of one transaction, or as many of them as fit:
 *      1  the length of its id, and the id
 *     32  generation, head, item count and version sum, 8 bytes each; -1 for sums that are not known
 *      2  the length of its rows, and the rows, packed as by `packed_item` (sql/0002_commit.sql), which packing.ts reads
 */
import type { Summary } from '../../protocol/item.js';
import { HASH_BYTES, putAscii, ULID_CHARS, type ItemRow } from '../tenant/codec.js';
import { MAC_BYTES, type NoticeMac } from './notice-mac.js';
import { ID_AT, int8, readRows } from './packing.js';

const FORMAT = 1;
/** PostgreSQL takes payloads under 8,000 bytes. */
export const CARRIED_BYTES = Math.floor(7_999 / 4) * 3;
const NUMBERS_BYTES = 32;

/** Rows without a gap in their versions; `summary` is that at the last one. */
export interface NotifiedRows {
  readonly rows: readonly ItemRow[];
  readonly summary: Summary | null;
}

/** Rows of a tenant as they were told. */
export interface NotifiedChange {
  readonly tenantId: string;
  readonly head: number;
  readonly generation: number;
  /** Undefined where they cannot be read. */
  readonly carried: NotifiedRows | undefined;
}

function int8To(bytes: Buffer, value: number, at: number): number {
  const high = Math.floor(value / 4_294_967_296);
  return bytes.writeUInt32BE(value - high * 4_294_967_296, bytes.writeInt32BE(high, at));
}

/** An id behind its length. */
function idTo(bytes: Buffer, id: string, at: number): number {
  bytes[at] = id.length;
  return putAscii(bytes, at + 1, id);
}

function textTo(bytes: Buffer, text: string | null, at: number): number {
  if (text === null) return bytes.writeInt32BE(-1, at);
  return putAscii(bytes, bytes.writeInt32BE(text.length, at), text);
}

/** Bytes of a text behind its length. */
const sizeOf = (text: string | null): number => 4 + (text?.length ?? 0);

/** Writes a row; returns its end, or -1 where it does not fit. */
function rowTo(bytes: Buffer, row: ItemRow, from: number): number {
  const { ctBytes, keysBytes, blobKeysBytes, binId, type, senderDevice, changedBy, blobRef } = row;
  const texts = sizeOf(binId) + sizeOf(type) + sizeOf(senderDevice) + sizeOf(changedBy) + sizeOf(blobRef);
  if (from + ID_AT + ULID_CHARS + texts + row.end - row.at - HASH_BYTES > CARRIED_BYTES) return -1;
  let at = int8To(bytes, row.version, from);
  at = int8To(bytes, row.ts ?? -1, at);
  at = int8To(bytes, row.deletedAt ?? -1, at);
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

/** Changes for one channel, in as few notifications as they fit into. */
export class ChangesWriter {
  private readonly texts: string[] = [];
  private readonly headBytes: number;
  private used: number;
  /** How many tenants' rows were added, and how many bytes were taken for them. */
  count = 0;
  total = 0;

  /** @param bytes `CARRIED_BYTES` of memory for it alone until `end`. */
  constructor(
    private readonly channel: string,
    private readonly mac: NoticeMac,
    instanceId: string,
    readonly bytes: Buffer,
  ) {
    bytes[MAC_BYTES] = FORMAT;
    this.headBytes = idTo(bytes, instanceId, MAC_BYTES + 1);
    this.used = this.headBytes;
  }

  /**
   * Adds the rows of one transaction, which follow one another up to the summary. Their bytes are copied. False where one
   * of them does not fit: the receiver then has to read the log, whatever it is told of the others.
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

  /** Writes what stands before the rows; returns where these begin. It counts only once it is finished. */
  private begin(tenantId: string, generation: number): number {
    const room = 1 + tenantId.length + NUMBERS_BYTES + 2;
    if (this.used + room > CARRIED_BYTES) this.seal();
    const at = int8To(this.bytes, generation, idTo(this.bytes, tenantId, this.used));
    return at + NUMBERS_BYTES - 8 + 2;
  }

  private finish(from: number, end: number, { version, itemCount, versionSum }: Summary): void {
    let at = int8To(this.bytes, version, from - NUMBERS_BYTES + 8 - 2);
    at = int8To(this.bytes, itemCount, at);
    at = int8To(this.bytes, versionSum, at);
    this.bytes.writeUInt16BE(end - from, at);
    this.total += end - this.used;
    this.used = end;
    this.count++;
  }

  /** Ends the current notification. False where there is nothing in it. */
  private seal(): boolean {
    if (this.used === this.headBytes) return false;
    this.mac.put(this.channel, this.bytes, this.used);
    this.texts.push(this.bytes.toString('base64', 0, this.used));
    this.used = this.headBytes;
    return true;
  }

  /** The payloads of the notifications. */
  end(): readonly string[] {
    this.seal();
    return this.texts;
  }
}

/** Whether a payload is one of these, if it is anything: a notice begins with a brace. */
export const carriesChanges = (payload: string): boolean => !payload.startsWith('{');

const received = Buffer.alloc(CARRIED_BYTES);

/**
 * A notification's bytes, with a MAC that is to be checked before anything else is done with them. Good until the next
 * call: memory of its own for each would be the larger part of what a notification leaves to the collector (bench S2).
 */
export const bytesOf = (payload: string): Buffer => received.subarray(0, received.write(payload, 'base64'));

/** Some changes, and who tells of them. */
export interface NotifiedChanges {
  readonly from: string;
  readonly changes: readonly NotifiedChange[];
}

/** What a notification says; undefined where it has another format, or is malformed. */
export function readChanges(bytes: Buffer): NotifiedChanges | undefined {
  try {
    return bytes[MAC_BYTES] === FORMAT ? changesOf(bytes) : undefined;
  } catch {
    return undefined;
  }
}

/** Throws where a length in it is wrong. */
function changesOf(bytes: Buffer): NotifiedChanges {
  let at = MAC_BYTES + 1;
  const id = (): string => {
    const from = at + 1;
    at = from + bytes.readUInt8(at);
    return bytes.toString('latin1', from, at);
  };
  const from = id();
  const changes: NotifiedChange[] = [];
  while (at < bytes.length) {
    const tenantId = id();
    const [generation, head] = [int8(bytes, at), int8(bytes, at + 8)];
    const [itemCount, versionSum] = [int8(bytes, at + 16), int8(bytes, at + 24)];
    const begin = at + NUMBERS_BYTES + 2;
    const end = begin + bytes.readUInt16BE(begin - 2);
    if (end > bytes.length) throw new Error('a notification ends within its changes');
    const rows = rowsOf(bytes.subarray(begin, end), head);
    const summary = itemCount < 0 || versionSum < 0 ? null : { version: head, itemCount, versionSum };
    changes.push({ tenantId, head, generation, carried: rows === undefined ? undefined : { rows, summary } });
    at = end;
  }
  return { from, changes };
}

/** The rows, which follow one another up to `head`; undefined where they do not, or cannot be read. */
function rowsOf(bytes: Buffer, head: number): readonly ItemRow[] | undefined {
  try {
    const rows = readRows(bytes);
    const first = head - rows.length + 1;
    return rows.length > 0 && first > 0 && rows.every(({ version }, n) => version === first + n) ? rows : undefined;
  } catch {
    // Its head is known all the same, and the log has it.
    return undefined;
  }
}
