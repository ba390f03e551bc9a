/** What an export holds, as records: in an archive one line of JSON each, in a plain export one document of them. */
import { type JsonObject, nestedDeeper, PAYLOAD_DEPTH_MAX } from '../../crypto/payload.js';
import { toBase64Url } from '../../protocol/base64.js';
import { text } from '../../protocol/bytes.js';
import { isBinId } from '../../protocol/ids.js';
import { type ContentType, isContentType } from '../../protocol/item.js';
import { BINS_MAX, SERVICE_NAME, TS_MIN } from '../../protocol/limits.js';
import { CodedError, ProtocolError } from '../errors.js';
import type { BinLabel } from '../events.js';
import { PAYLOAD_MAX, PAYLOAD_INLINE_MAX } from '../payloads/shapes.js';
import {
  array,
  boolean,
  bytes,
  count,
  nonEmpty,
  nullable,
  object,
  type Reader,
  record,
  string,
  ulidText,
} from '../reader.js';

/** Why an archive is not read. */
export type ArchiveFault =
  /** Neither an archive nor a plain export. */
  | 'not_archive'
  /** A form that this version does not know. */
  | 'unsupported'
  /** Not under these twelve words, or the header is damaged: nobody can tell the two apart. */
  | 'wrong_words'
  /** A chunk does not open, or something follows the end. */
  | 'damaged'
  /** The end is missing. */
  | 'truncated'
  /** A record has a form that no export writes. */
  | 'bad_record';

/** An archive that is refused, whole. The message quotes nothing of its content. */
export class ArchiveError extends CodedError<ArchiveFault> {
  override readonly name = 'ArchiveError';
}

/** Which vault it is, and when it was written. The first record. */
export interface ArchiveManifest {
  readonly record: 'manifest';
  readonly format: 1;
  /** ms. */
  readonly createdAt: number;
  readonly tenantId: string;
  /** See `fingerprintOfMaster`: tells whether an archive is of this vault. */
  readonly masterFingerprint: string;
}

/** A bin. `label` null: nobody has named it, or its name was not at hand. */
export interface ArchivedBin {
  readonly record: 'bin';
  readonly id: string;
  readonly slug: string;
  readonly label: BinLabel | null;
}

/**
 * An item. `blob` true: its content is in the object store, and `payload` is what describes it, or null. `content`: so
 * many bytes of that content follow as parts; null: there is none, or it is not in the export.
 */
export interface ArchivedItem {
  readonly record: 'item';
  readonly id: string;
  readonly bin: string;
  readonly type: ContentType;
  /** ms, by the clock of who wrote it. */
  readonly ts: number;
  readonly payload: JsonObject | null;
  readonly blob: boolean;
  readonly content: number | null;
}

/** Bytes of the content of the item before: 1 to `PART_BYTES`. */
export interface ArchivedPart {
  readonly record: 'part';
  readonly data: Uint8Array;
}

/** How many of each there were. The last record. */
export interface ArchiveEnd {
  readonly record: 'end';
  readonly bins: number;
  readonly items: number;
}

/** One record. */
export type ArchiveRecord = ArchiveManifest | ArchivedBin | ArchivedItem | ArchivedPart | ArchiveEnd;

/** Most bytes of a part: as text they fit well into a record. */
export const PART_BYTES = 128 * 1024;

const FINGERPRINT = /^[0-9a-f]{4}( [0-9a-f]{4}){7}$/;
/**
 * Bytes of a payload's JSON in an archive. More than an item holds: what is written is the value, and a number that took
 * four bytes (`1e20`) takes 21 then. An export that no import takes would be none.
 */
export const ARCHIVED_PAYLOAD_MAX = 5 * PAYLOAD_INLINE_MAX;
/** Levels around a payload: the record, and in a plain export the document and its list. */
const LEVELS_AROUND = 3;
/** Characters of a bin's slug in an export. */
export const SLUG_MAX = 63;

const wrong = (path: string, rule: string): ProtocolError => new ProtocolError(`${path}: ${rule}`);

const readLabel: Reader<BinLabel> = (value, path) => {
  const { name, emoji } = object({ name: nonEmpty, emoji: nullable(string) })(value, path);
  return emoji === null ? { name } : { name, emoji };
};

const readManifest: Reader<ArchiveManifest> = (value, path) => {
  const read = object({ createdAt: count, tenantId: nonEmpty, masterFingerprint: string })(value, path);
  if (!FINGERPRINT.test(read.masterFingerprint)) throw wrong('masterFingerprint', 'must be eight groups of four');
  return { record: 'manifest', format: 1, ...read };
};

const readBin: Reader<ArchivedBin> = (value, path) => {
  const read = object({ id: string, slug: nonEmpty, label: nullable(readLabel) })(value, path);
  if (!isBinId(read.id)) throw wrong(`${path}.id`, 'must be a bin id');
  if (read.slug.length > SLUG_MAX) throw wrong(`${path}.slug`, `must have at most ${SLUG_MAX} characters`);
  return { record: 'bin', ...read };
};

const itemFields = object({
  id: ulidText,
  bin: string,
  type: string,
  ts: count,
  payload: nullable(record),
  blob: nullable(boolean),
  content: nullable(count),
});

/** `most`: bytes of a payload. In an archive a large one is content; in a plain export it stands where it is read. */
const itemWithin =
  (most: number): Reader<ArchivedItem> =>
  (value, path) => {
    const { id, bin, type, ts, payload, blob, content } = itemFields(value, path);
    if (!isBinId(bin)) throw wrong(`${path}.bin`, 'must be a bin id');
    if (!isContentType(type)) throw wrong(`${path}.type`, 'must be one of the ten types');
    if (ts < TS_MIN) throw wrong(`${path}.ts`, 'must be milliseconds');
    if (payload === null && blob !== true) throw wrong(`${path}.payload`, 'must be an object');
    if (payload !== null && text(JSON.stringify(payload)).length > most)
      throw wrong(`${path}.payload`, `must have at most ${most} bytes`);
    if (content !== null && blob !== true) throw wrong(`${path}.content`, 'belongs to a blob');
    return { record: 'item', id, bin, type, ts, payload, blob: blob === true, content };
  };

const readPart: Reader<ArchivedPart> = (value, path) => {
  const { data } = object({ data: bytes() })(value, path);
  if (data.length === 0 || data.length > PART_BYTES) throw wrong(`${path}.data`, `must have 1 to ${PART_BYTES} bytes`);
  return { record: 'part', data };
};

/** A record as one line of JSON in UTF-8. */
export const encodeRecord = (one: ArchiveRecord): Uint8Array =>
  text(`${JSON.stringify(one.record === 'part' ? { ...one, data: toBase64Url(one.data) } : one)}\n`);

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * Parses JSON without handing on the parser's message, which would quote the content. Nothing that is nested deeper than
 * a payload may be goes on from here: what looks at it calls itself for each level.
 */
function parsed(json: string): unknown {
  if (nestedDeeper(PAYLOAD_DEPTH_MAX + LEVELS_AROUND, json.length, (at) => json.charCodeAt(at)))
    throw new ArchiveError('bad_record', `a part of it has more than ${PAYLOAD_DEPTH_MAX} levels`);
  try {
    return JSON.parse(json);
  } catch {
    throw new ArchiveError('bad_record', 'a part of it is not JSON');
  }
}

/** Reads with the client's readers; what they refuse is a fault of the archive. */
function reading<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof ProtocolError) throw new ArchiveError('bad_record', error.message);
    throw error;
  }
}

/** A line, without its end, as a record. Throws `ArchiveError` `bad_record`. */
export function decodeRecord(line: Uint8Array): ArchiveRecord {
  let json: string;
  try {
    json = utf8.decode(line);
  } catch {
    throw new ArchiveError('bad_record', 'a record is not UTF-8');
  }
  const value = parsed(json);
  return reading((): ArchiveRecord => {
    const { record: kind, format } = object({ record: string, format: nullable(count) })(value, '');
    switch (kind) {
      case 'manifest':
        if (format !== 1) throw new ArchiveError('unsupported', 'it was written by a newer version');
        return readManifest(value, '');
      case 'bin':
        return readBin(value, 'bin');
      case 'item':
        return itemWithin(ARCHIVED_PAYLOAD_MAX)(value, 'item');
      case 'part':
        return readPart(value, 'part');
      case 'end':
        return { record: 'end', ...object({ bins: count, items: count })(value, '') };
      default:
        throw wrong('record', 'is of no known kind');
    }
  });
}

const RANK: Readonly<Record<ArchiveRecord['record'], number>> = { manifest: 0, bin: 1, item: 2, part: 2, end: 3 };

/** Holds the records to their order: a manifest, bins, items, each with its content, the end with the right counts. */
export class RecordOrder {
  private rank = -1;
  private bins = 0;
  private items = 0;
  /** Bytes that are still to come of the last item's content. */
  private due = 0;

  /** Takes note of the next record. Throws `ArchiveError` where it does not belong here. */
  next(one: ArchiveRecord): void {
    const rank = RANK[one.record];
    const fits = this.rank === -1 ? rank === 0 : rank >= this.rank && rank > 0 && this.rank < 3;
    const part = one.record === 'part' ? one.data.length : 0;
    // A part belongs to an item, and an item's parts come before anything else.
    if (!fits || part > this.due || (part === 0 && this.due > 0))
      throw new ArchiveError('bad_record', 'its records are out of order');
    this.due = one.record === 'item' ? (one.content ?? 0) : this.due - part;
    this.rank = rank;
    if (one.record === 'bin' && ++this.bins > BINS_MAX) throw new ArchiveError('bad_record', 'it has too many bins');
    if (one.record === 'item') this.items++;
    if (one.record === 'end' && (one.bins !== this.bins || one.items !== this.items))
      throw new ArchiveError('bad_record', 'its end counts other records than there are');
  }

  /** The end record for what was noted. */
  end(): ArchiveEnd {
    return { record: 'end', bins: this.bins, items: this.items };
  }

  /** Throws where no end record came. */
  expectEnded(): void {
    if (this.rank !== 3) throw new ArchiveError('truncated', 'the archive is cut short: its end is missing');
  }
}

/** What a plain export is, in the place of a magic number. */
export const PLAIN_FORMAT = `${SERVICE_NAME}-vault`;

/** A record without what only an archive needs. */
export const plainRecord = (one: ArchivedBin | ArchivedItem): JsonObject =>
  one.record === 'bin'
    ? { id: one.id, slug: one.slug, label: one.label }
    : { id: one.id, bin: one.bin, type: one.type, ts: one.ts, payload: one.payload, blob: one.blob };

/** Reads a plain export, whole. Throws `ArchiveError`. */
export function readPlain(json: string): readonly ArchiveRecord[] {
  const value = parsed(json);
  return reading(() => {
    const { format, version } = object({ format: nullable(string), version: nullable(count) })(value, '');
    if (format !== PLAIN_FORMAT) throw new ArchiveError('not_archive', 'this is no export of a vault');
    if (version !== 1) throw new ArchiveError('unsupported', 'it was written by a newer version');
    const read = object({ bins: array(readBin), items: array(itemWithin(PAYLOAD_MAX)) })(value, '');
    const records = [readManifest(value, ''), ...read.bins, ...read.items];
    const order = new RecordOrder();
    for (const one of records) order.next(one);
    return records;
  });
}
