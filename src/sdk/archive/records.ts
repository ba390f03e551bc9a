/** The records of an export: in an archive one line of JSON each, in a plain export one JSON document. */
import { fingerprintOfMaster } from '../../crypto/fingerprint.js';
import { type JsonObject, nestedDeeper, PAYLOAD_DEPTH_MAX } from '../../crypto/payload.js';
import type { Sodium } from '../../crypto/sodium.js';
import { toBase64Url } from '../../protocol/base64.js';
import { parsedJson, text, utf8Text } from '../../protocol/bytes.js';
import { type ContentType, isContentType } from '../../protocol/item.js';
import { BINS_MAX, SERVICE_NAME, TS_MIN } from '../../protocol/limits.js';
import { CodedError, ProtocolError } from '../errors.js';
import type { BinLabel } from '../events.js';
import type { Identity } from '../identity.js';
import { PAYLOAD_MAX, PAYLOAD_INLINE_MAX } from '../payloads/shapes.js';
import {
  array,
  binIdText,
  boolean,
  bytes,
  count,
  malformed,
  nonEmpty,
  nullable,
  object,
  type Reader,
  record,
  short,
  string,
  ulidText,
} from '../reader.js';

/** Why an archive is refused. */
export type ArchiveFault =
  /** Neither an archive nor a plain export. */
  | 'not_archive'
  /** An unknown version. */
  | 'unsupported'
  /** Other words, or a damaged header: the two cannot be distinguished. */
  | 'wrong_words'
  /** A chunk does not decrypt, or data follows the end. */
  | 'damaged'
  /** The end is missing. */
  | 'truncated'
  /** An invalid record, or records out of order. */
  | 'bad_record';

/** An archive that is refused as a whole. The message quotes nothing of its content. */
export class ArchiveError extends CodedError<ArchiveFault> {
  override readonly name = 'ArchiveError';
}

/** The vault, and the time of the export. The first record. */
export interface ArchiveManifest {
  readonly record: 'manifest';
  readonly format: 1;
  /** ms. */
  readonly createdAt: number;
  readonly tenantId: string;
  /** See `fingerprintOfMaster`: identifies the vault of an archive. */
  readonly masterFingerprint: string;
}

/** The manifest of an export of this device's vault. */
export const manifestOf = (
  sodium: Sodium,
  { tenantId, masterKey }: Pick<Identity, 'tenantId' | 'masterKey'>,
  createdAt: number,
): ArchiveManifest => ({
  ...{ record: 'manifest', format: 1, createdAt, tenantId },
  masterFingerprint: fingerprintOfMaster(sodium, masterKey),
});

/** A bin. `label` null: it has none, or it was not available. */
export interface ArchivedBin {
  readonly record: 'bin';
  readonly id: string;
  readonly slug: string;
  readonly label: BinLabel | null;
}

/**
 * An item. `blob` true: its content is in the object store, and `payload` describes it, or is null. `content`: size of
 * the content, which follows as parts; null: there is none, or it is not in the export.
 */
export interface ArchivedItem {
  readonly record: 'item';
  readonly id: string;
  readonly bin: string;
  readonly type: ContentType;
  /** ms, by the writer's clock. */
  readonly ts: number;
  readonly payload: JsonObject | null;
  readonly blob: boolean;
  readonly content: number | null;
}

/** Part of the content of the preceding item: 1 to `PART_BYTES` bytes. */
export interface ArchivedPart {
  readonly record: 'part';
  readonly data: Uint8Array;
}

/** The number of records. The last record. */
interface ArchiveEnd {
  readonly record: 'end';
  readonly bins: number;
  readonly items: number;
}

/** One record. */
export type ArchiveRecord = ArchiveManifest | ArchivedBin | ArchivedItem | ArchivedPart | ArchiveEnd;

/** Largest part: as base64 it fits into a record. */
export const PART_BYTES = 128 * 1024;

const FINGERPRINT = /^[0-9a-f]{4}( [0-9a-f]{4}){7}$/;
/**
 * Largest payload as JSON, in bytes. Larger than in an item, because numbers may be written longer: `1e20` takes 4
 * bytes in the item and 21 here. Every exported payload must be importable.
 */
const ARCHIVED_PAYLOAD_MAX = 5 * PAYLOAD_INLINE_MAX;
/** Levels around a payload: the record, and in a plain export the document and its list. */
const LEVELS_AROUND = 3;
/** Characters of a bin's slug in an export. */
const SLUG_MAX = 63;

/** A bin whose slug an import accepts. */
export const binRecord = (id: string, slug: string, label: ArchivedBin['label']): ArchivedBin => ({
  ...{ record: 'bin', id, label },
  slug: (slug === '' ? id.toLowerCase() : slug).slice(0, SLUG_MAX),
});

const readLabel: Reader<BinLabel> = (value, path) => {
  const { name, emoji } = object({ name: nonEmpty, emoji: nullable(string) })(value, path);
  return emoji === null ? { name } : { name, emoji };
};

const readManifest: Reader<ArchiveManifest> = (value, path) => {
  const read = object({ createdAt: count, tenantId: nonEmpty, masterFingerprint: string })(value, path);
  if (!FINGERPRINT.test(read.masterFingerprint)) throw malformed('masterFingerprint', 'must be eight groups of four');
  return { record: 'manifest', format: 1, ...read };
};

const readBin: Reader<ArchivedBin> = (value, path) => {
  const read = object({ id: binIdText, slug: short(SLUG_MAX), label: nullable(readLabel) })(value, path);
  return { record: 'bin', ...read };
};

const itemFields = object({
  id: ulidText,
  bin: binIdText,
  type: string,
  ts: count,
  payload: nullable(record),
  blob: nullable(boolean),
  content: nullable(count),
});

/** `most`: bytes of a payload. In an archive a large payload is content; in a plain export it is in the record. */
const itemWithin =
  (most: number): Reader<ArchivedItem> =>
  (value, path) => {
    const { id, bin, type, ts, payload, blob, content } = itemFields(value, path);
    if (!isContentType(type)) throw malformed(`${path}.type`, 'must be one of the ten types');
    if (ts < TS_MIN) throw malformed(`${path}.ts`, 'must be milliseconds');
    if (payload === null && blob !== true) throw malformed(`${path}.payload`, 'must be an object');
    if (payload !== null && text(JSON.stringify(payload)).length > most)
      throw malformed(`${path}.payload`, `must have at most ${most} bytes`);
    if (content !== null && blob !== true) throw malformed(`${path}.content`, 'belongs to a blob');
    return { record: 'item', id, bin, type, ts, payload, blob: blob === true, content };
  };

const readPart: Reader<ArchivedPart> = (value, path) => {
  const { data } = object({ data: bytes() })(value, path);
  if (data.length === 0 || data.length > PART_BYTES)
    throw malformed(`${path}.data`, `must have 1 to ${PART_BYTES} bytes`);
  return { record: 'part', data };
};

/** A record as one line of JSON in UTF-8. */
export const encodeRecord = (one: ArchiveRecord): Uint8Array =>
  text(`${JSON.stringify(one.record === 'part' ? { ...one, data: toBase64Url(one.data) } : one)}\n`);

/**
 * Parses JSON without the parser's message, which would quote the content. Deeper nesting than a payload's is refused,
 * because later code is recursive.
 */
function parsed(json: string): unknown {
  if (nestedDeeper(PAYLOAD_DEPTH_MAX + LEVELS_AROUND, json.length, (at) => json.charCodeAt(at)))
    throw new ArchiveError('bad_record', `a part of it has more than ${PAYLOAD_DEPTH_MAX} levels`);
  return parsedJson(json, () => new ArchiveError('bad_record', 'a part of it is not JSON'));
}

/** Turns errors of the client's readers into `ArchiveError`. */
function reading<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof ProtocolError) throw new ArchiveError('bad_record', error.message);
    throw error;
  }
}

/** Parses a line without its newline. Throws `ArchiveError` `bad_record`. */
export function decodeRecord(line: Uint8Array): ArchiveRecord {
  const json = utf8Text(line);
  if (json === undefined) throw new ArchiveError('bad_record', 'a record is not UTF-8');
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
        throw malformed('record', 'is of no known kind');
    }
  });
}

const RANK: Readonly<Record<ArchiveRecord['record'], number>> = { manifest: 0, bin: 1, item: 2, part: 2, end: 3 };

/** Checks the order of the records: manifest, bins, items, each with its content, end with the right counts. */
export class RecordOrder {
  private rank = -1;
  private bins = 0;
  private items = 0;
  /** Bytes of the last item's content that must still follow. */
  private due = 0;

  /** Checks the next record. Throws `ArchiveError` where it is out of order. */
  next(one: ArchiveRecord): void {
    const rank = RANK[one.record];
    const fits = this.rank === -1 ? rank === 0 : rank >= this.rank && rank > 0 && this.rank < 3;
    const part = one.record === 'part' ? one.data.length : 0;
    // A part belongs to an item, and all parts of an item come before anything else.
    if (!fits || part > this.due || (part === 0 && this.due > 0))
      throw new ArchiveError('bad_record', 'its records are out of order');
    this.due = one.record === 'item' ? (one.content ?? 0) : this.due - part;
    this.rank = rank;
    if (one.record === 'bin' && ++this.bins > BINS_MAX) throw new ArchiveError('bad_record', 'it has too many bins');
    if (one.record === 'item') this.items++;
    if (one.record === 'end' && (one.bins !== this.bins || one.items !== this.items))
      throw new ArchiveError('bad_record', 'its end counts other records than there are');
  }

  /** The end record for the records so far. */
  end(): ArchiveEnd {
    return { record: 'end', bins: this.bins, items: this.items };
  }

  /** Throws where the end record is missing. */
  expectEnded(): void {
    if (this.rank !== 3) throw new ArchiveError('truncated', 'the archive is cut short: its end is missing');
  }
}

/** Identifies a plain export, in place of a magic number. */
export const PLAIN_FORMAT = `${SERVICE_NAME}-vault`;

/** A record as it is in a plain export. */
export const plainRecord = (one: ArchivedBin | ArchivedItem): JsonObject =>
  one.record === 'bin'
    ? { id: one.id, slug: one.slug, label: one.label }
    : { id: one.id, bin: one.bin, type: one.type, ts: one.ts, payload: one.payload, blob: one.blob };

/** Reads a whole plain export. Throws `ArchiveError`. */
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
