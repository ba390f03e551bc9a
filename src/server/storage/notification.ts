/**
 * Stored rows in the text of a notification, so that another instance need not read them: the packed format of
 * `packed_item` (sql/0002_commit.sql), which packing.ts reads, as base64 behind the number of the format.
 */
import type { Summary } from '../../protocol/item.js';
import { FIXED_BYTES, HASH_BYTES, type ItemRow } from '../tenant/change.js';
import { ID_AT, int8, readRows } from './packing.js';

/** The first character. An instance that knows another format reads the log. */
const FORMAT = '1';
/** Item count and version sum, -1 where they are not known. */
const SUMS_BYTES = 16;
/** Five texts with their lengths: bin, type, two devices and a blob's name, none longer than this. */
const TEXTS_MAX = 5 * (4 + 128);
/** Without its texts: the numbers, the id and the parts of fixed length. */
const ROW_FIXED_BYTES = ID_AT + 26 + FIXED_BYTES - HASH_BYTES;

/** Most characters of carried rows: what is left of a notification's 8,000 bytes beside ids and numbers. */
const CARRIED_MAX = 7_800;
const BYTES_MAX = Math.floor(((CARRIED_MAX - 1) / 4) * 3) - 3;
const scratch = Buffer.alloc(BYTES_MAX + TEXTS_MAX);

/** Rows without a gap in their versions; `summary` is that at the last one. */
export interface NotifiedRows {
  readonly rows: readonly ItemRow[];
  readonly summary: Summary | null;
}

const int8To = (value: number, at: number): number => {
  const high = Math.floor(value / 4_294_967_296);
  return scratch.writeUInt32BE(value - high * 4_294_967_296, scratch.writeInt32BE(high, at));
};

function textTo(text: string | null, at: number): number {
  if (text === null) return scratch.writeInt32BE(-1, at);
  const from = scratch.writeInt32BE(text.length, at);
  return from + scratch.write(text, from, 'latin1');
}

/** Bytes of a row without its texts. */
const sizeOf = ({ ctBytes, keysBytes, blobKeysBytes }: ItemRow): number =>
  ROW_FIXED_BYTES + ctBytes + keysBytes + blobKeysBytes;

/** Writes a row; returns its end, or -1 where it does not fit. */
function rowTo(row: ItemRow, from: number): number {
  if (from + sizeOf(row) > BYTES_MAX) return -1;
  let at = int8To(row.version, from);
  at = int8To(row.ts ?? -1, at);
  at = int8To(row.deletedAt ?? -1, at);
  for (const number of [row.has, row.ctBytes, row.keysBytes, row.blobKeysBytes]) at = scratch.writeInt32BE(number, at);
  at += scratch.write(row.id, at, 'latin1');
  for (const text of [row.binId, row.type, row.senderDevice, row.changedBy, row.blobRef]) {
    if (text !== null && text.length > 128) return -1;
    at = textTo(text, at);
  }
  if (at + row.end - row.at - HASH_BYTES > BYTES_MAX) return -1;
  return at + row.bytes.copy(scratch, at, row.at + HASH_BYTES, row.end);
}

/** Some rows of one transaction, encoded, and the version of the last of them. */
export interface NotificationPart {
  readonly head: number;
  readonly text: string;
}

/**
 * The rows of one transaction in as many parts as they need, with the summary in the last. Undefined where one row does
 * not fit or is not here: the receiver then reads the log, which has the others too. Their bytes are copied.
 */
export function encodeRows(rows: readonly ItemRow[], summary: Summary): readonly NotificationPart[] | undefined {
  if (!rows.every(({ version }, n) => version === summary.version - rows.length + 1 + n)) return undefined;
  const pieces: NotificationPart[] = [];
  let [at, head] = [SUMS_BYTES, 0];
  const end = (sums: Summary | null): void => {
    int8To(sums?.versionSum ?? -1, int8To(sums?.itemCount ?? -1, 0));
    pieces.push({ head, text: FORMAT + scratch.toString('base64', 0, at) });
    at = SUMS_BYTES;
  };
  for (const row of rows) {
    let next = rowTo(row, at);
    if (next < 0 && at > SUMS_BYTES) {
      end(null);
      next = rowTo(row, at);
    }
    if (next < 0) return undefined;
    at = next;
    head = row.version;
  }
  end(summary);
  return pieces;
}

/**
 * Decodes a part that ends at version `head`. Throws where it is malformed, with none of its content in the message.
 */
export function decodeRows(text: string, head: number): NotifiedRows {
  if (!text.startsWith(FORMAT)) throw new Error('a change came in a format that is not known');
  const bytes = Buffer.from(text.slice(1), 'base64');
  const rows = bytes.length > SUMS_BYTES ? wholeRows(bytes.subarray(SUMS_BYTES)) : [];
  const first = head - rows.length + 1;
  if (rows.length === 0 || first < 1 || !rows.every(({ version }, n) => version === first + n))
    throw new Error('changes came that do not follow one another');
  const [itemCount, versionSum] = [int8(bytes, 0), int8(bytes, 8)];
  return { rows, summary: itemCount < 0 || versionSum < 0 ? null : { version: head, itemCount, versionSum } };
}

function wholeRows(bytes: Buffer): ItemRow[] {
  try {
    return readRows(bytes);
  } catch {
    throw new Error('a change came that cannot be read');
  }
}
