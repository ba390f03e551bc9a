/** The entries of another program as records of an export, which the importer handles like those of an archive. */
import { b32 } from '../crypto/sodium.js';
import { lengthPrefixed, text } from '../protocol/bytes.js';
import { isDisplayName } from '../protocol/ids.js';
import { DEFAULT_BIN, NAME_MAX, SERVICE_NAME, TS_MIN } from '../protocol/limits.js';
import { partsOf } from '../sdk/archive/content-parts.js';
import { type ArchivedBin, type ArchiveRecord, binRecord } from '../sdk/archive/records.js';
import type { Platform } from '../sdk/platform.js';
import { ulid } from '../sdk/ulid.js';
import type { ForeignSource } from './entries.js';

/** Input of an import, whatever its form. */
export interface Incoming {
  /** By id; undefined for bins without a record, which only items refer to. */
  readonly bins: ReadonlyMap<string, ArchivedBin | undefined>;
  readonly items: number;
  /** Starts at the first record at each call. `onRead` receives the share that was read, from 0 to 1. */
  readonly records: (onRead: (share: number) => void) => AsyncGenerator<ArchiveRecord>;
}

/** The last ms of the year 9999: later dates have no four-digit year. */
export const TIME_MAX = 253_402_300_799_999;
/** A time limited to `TS_MIN` and `most`, in whole ms; an invalid one counts as `TS_MIN`. */
const clampedTime = (time: number, most: number): number =>
  Number.isFinite(time) ? Math.floor(Math.min(Math.max(time, TS_MIN), most)) : TS_MIN;

/**
 * Bins and items of a source. Their ids are derived from the vault's key and the source's own names, so that the same
 * entry has the same id at each import, and the id reveals none of those names to the server (IMPORT-03). `ids`: those
 * of the items.
 */
export function incomingOf(
  source: ForeignSource,
  { sodium, clock }: Pick<Platform, 'sodium' | 'clock'>,
  masterKey: Uint8Array,
): Incoming & { readonly ids: () => Iterable<string> } {
  const now = clock.now();
  const key = b32(sodium, text(`${SERVICE_NAME}-import-id-v1`), masterKey);
  const idOf = (time: number, ...names: readonly string[]): string =>
    ulid(clampedTime(time, TIME_MAX), (length) => sodium.blake2b(length, lengthPrefixed(...names), key));
  const made = source.entries.filter((entry) => entry.made.length > 0);
  const folders = [...new Set(made.map(({ folder }) => folder))].filter((folder) => folder !== '');
  const bins = new Map(folders.map((folder) => [folder, binOf(idOf(TS_MIN, 'bin', folder), folder)] as const));
  const all = made.flatMap((entry) => entry.made.map((item) => ({ ...item, entry })));
  // Files last: each is a transfer of its own, while the others go out in batches.
  const ordered = [...all.filter(({ content }) => content === undefined), ...all.filter(({ content }) => content)];
  const itemId = ({ part, entry }: (typeof all)[number]): string =>
    idOf(entry.created ?? TS_MIN, 'item', source.program, entry.key, part);
  const records = async function* (onRead: (share: number) => void): AsyncGenerator<ArchiveRecord> {
    for (const [at, item] of ordered.entries()) {
      const { type, payload, content, entry } = item;
      const id = itemId(item);
      const bin = bins.get(entry.folder)?.id ?? DEFAULT_BIN;
      const ts = clampedTime(entry.changed ?? source.time, now);
      yield { record: 'item', id, bin, type, ts, payload, blob: content !== undefined, content: content?.size ?? null };
      if (content !== undefined) yield* partsOf(content);
      onRead((at + 1) / ordered.length);
    }
  };
  const known = new Map<string, ArchivedBin | undefined>([...bins.values()].map((bin) => [bin.id, bin]));
  if (made.some(({ folder }) => folder === '')) known.set(DEFAULT_BIN, undefined);
  const ids = function* (): Generator<string> {
    for (const item of ordered) yield itemId(item);
  };
  return { bins: known, items: ordered.length, records, ids };
}

const ELLIPSIS = '…';

/** A bin with the folder's name, without the characters that a name must not have; of a long one the end is kept. */
function binOf(id: string, folder: string): ArchivedBin {
  // Bounds the work on a path of any length; some characters are dropped below.
  const end = folder.slice(-4 * NAME_MAX);
  const fit = Array.from(end.replace(/\s+/g, ' ').trim()).filter((character) => isDisplayName(`a${character}`));
  const cut = fit.length <= NAME_MAX && folder.length <= 4 * NAME_MAX ? fit : [ELLIPSIS, ...fit.slice(1 - NAME_MAX)];
  const name = cut.join('');
  return binRecord(id, '', { name: isDisplayName(name) ? name : id });
}
