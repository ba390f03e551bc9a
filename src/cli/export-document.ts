/** An export as one readable JSON document: bins in a list, items in a second one. */
import type { JsonObject } from '../crypto/payload.js';
import { text } from '../protocol/bytes.js';
import type { ArchivedBin, ArchivedItem, ArchivedPart } from '../sdk/archive/records.js';
import { NewFile } from '../terminal/new-file.js';
import type { Terminal } from '../terminal/terminal.js';

/** The destination of an export's records; ended by exactly one of `finish` and `abandon`. */
export interface Output {
  /**
   * Blobs that `add` receives as parts: all, those of files only, or none. A payload whose blob is not received as parts
   * is inline in its item.
   */
  readonly content: 'all' | 'files' | 'none';
  add(record: ArchivedBin | ArchivedItem | ArchivedPart): Promise<void>;
  finish(): Promise<void>;
  abandon(): Promise<void>;
  /** Notes for the user at the end. */
  readonly notes?: () => readonly string[];
}

export interface DocumentForm {
  /** Its first fields. */
  readonly head: JsonObject;
  /** The name of the list of bins. */
  readonly bins: string;
  /** A record's entry in its list; undefined: the record is left out. */
  readonly entry: (record: ArchivedBin | ArchivedItem) => JsonObject | undefined;
  /** See `Output`. */
  readonly notes?: () => readonly string[];
}

const BUFFER_BYTES = 64 * 1024;

/** Writes a document to a file, or to standard output (`-`). */
export async function documentOutput(
  terminal: Terminal,
  target: { readonly file: string; readonly force?: boolean },
  { head, bins, entry, notes = () => [] }: DocumentForm,
): Promise<Output> {
  const file = target.file === '-' ? undefined : await NewFile.create(target.file, target.force === true);
  let buffer = `${JSON.stringify(head).slice(0, -1)},\n"${bins}":[\n`;
  let inItems = false;
  let separator = '';
  const beginItems = (): void => {
    if (inItems) return;
    inItems = true;
    separator = '';
    buffer += '],"items":[\n';
  };
  const flush = async (): Promise<void> => {
    if (file === undefined) await terminal.write(text(buffer));
    else await file.write(text(buffer));
    buffer = '';
  };
  return {
    content: 'none',
    notes,
    add: async (record) => {
      const value = record.record === 'part' ? undefined : entry(record);
      if (value === undefined) return;
      if (record.record === 'item') beginItems();
      buffer += `${separator}${JSON.stringify(value)}\n`;
      separator = ',';
      if (buffer.length > BUFFER_BYTES) await flush();
    },
    finish: async () => {
      beginItems();
      buffer += ']}\n';
      await flush();
      await file?.finish();
    },
    abandon: async () => file?.abandon(),
  };
}
