/** A vault as an unencrypted JSON export that Bitwarden's importer accepts: folders, logins and secure notes. */
import { hash } from 'node:crypto';
import { bitwardenEntry } from '../../import/bitwarden-entry.js';
import { joined } from '../../import/entries.js';
import { TIME_MAX } from '../../import/records.js';
import { DEFAULT_BIN } from '../../protocol/limits.js';
import type { ArchivedBin, ArchivedItem } from '../../sdk/archive/records.js';
import { timeOfUlid } from '../../sdk/ulid.js';
import { counted } from '../../terminal/output.js';
import type { DocumentForm } from '../export-document.js';

/** Bitwarden identifies its entries by UUIDs, and accepts any. */
function uuidOf(id: string): string {
  const hex = hash('sha256', id, 'hex');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20, 32)].join('-');
}

/** Bitwarden's program has no later date than `TIME_MAX` either. */
const dateOf = (ms: number): string => new Date(Math.min(ms, TIME_MAX)).toISOString();

/**
 * Bytes that fit into Bitwarden's columns of 10,000 and 5,000 characters, in which it keeps ciphertext as base64: for
 * one longer value its importer refuses the whole file.
 */
const NOTES_MAX = 7_000;
const VALUE_MAX = 3_500;

export function bitwardenForm(): DocumentForm {
  let tooLong = 0;
  const folder = ({ id, slug, label }: ArchivedBin) => ({
    id: uuidOf(id),
    name: joined(' ', label?.emoji ?? '', label?.name ?? slug),
  });
  const item = ({ id, bin, type, ts, payload }: ArchivedItem) => {
    const entry = bitwardenEntry({ type, payload: payload ?? {} });
    if (isTooLong(entry)) tooLong++;
    return {
      ...{ id: uuidOf(id), organizationId: null, folderId: bin === DEFAULT_BIN ? null : uuidOf(bin), reprompt: 0 },
      ...{ favorite: false, collectionIds: null, passwordHistory: null, deletedDate: null, ...entry },
      ...{ creationDate: dateOf(timeOfUlid(id)), revisionDate: dateOf(ts) },
    };
  };
  return {
    head: { encrypted: false },
    bins: 'folders',
    entry: (record) => {
      if (record.record === 'item') return record.blob ? undefined : item(record);
      // The default bin is no folder: its items go to Bitwarden's own default.
      return record.id === DEFAULT_BIN ? undefined : folder(record);
    },
    notes: () =>
      tooLong === 0
        ? []
        : [`${counted(tooLong, 'item')} may be longer than Bitwarden accepts: it then refuses the whole file.`],
  };
}

function isTooLong(entry: Readonly<Record<string, unknown>>): boolean {
  const { notes, ...rest } = entry;
  const bytes = (value: unknown): number => (typeof value === 'string' ? Buffer.byteLength(value) : 0);
  const longest = (value: unknown): number =>
    typeof value === 'object' && value !== null ? Math.max(0, ...Object.values(value).map(longest)) : bytes(value);
  return bytes(notes) > NOTES_MAX || longest(rest) > VALUE_MAX;
}
