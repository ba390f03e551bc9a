/** The decisions of an import about one item: pure, and the same for every client. */
import { concat, lengthPrefixed } from '../../protocol/bytes.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import { CryptoRefusal } from '../../crypto/refusal.js';
import type { Sodium } from '../../crypto/sodium.js';
import { portionsOf, type BlobSource } from '../blobs/source.js';
import type { ItemView } from '../events.js';
import { PAYLOAD_MAX } from '../payloads/shapes.js';
import { randomPart, timePart } from '../ulid.js';
import type { ArchivedItem } from './records.js';

/** Refusals that concern one item only: the import continues. */
export const OF_ONE_ITEM: ReadonlySet<string> = new Set([
  'validation',
  'unknown_type',
  'item_too_large',
  'payload_too_large',
  'item_not_found',
  'blob_not_found',
  'blob_too_large',
  'bin_not_found',
  'conflict',
]);

/** Most ids tried for an item that was deleted, imported and deleted again. */
export const ID_TRIES = 50;

/** The new id of a deleted item: deterministic, and with the time part of the old one. */
export function renewedId(sodium: Sodium, id: string, round: number): string {
  const hash = sodium.blake2b(16, lengthPrefixed(`${SERVICE_NAME}-archive-id-v1`, id, String(round)));
  return timePart(id) + randomPart(hash);
}

/** JSON with sorted keys, so that equal content gives equal text. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null';
  const fields = Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
  return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${canonical(field)}`).join(',')}}`;
}

/** For a blob the time is compared too, because files of the same name and size may differ. */
const isSame = (item: ArchivedItem, here: ItemView): boolean =>
  item.bin === here.binId &&
  item.type === here.type &&
  item.blob === (here.blob !== null) &&
  (!item.blob || item.ts === here.ts) &&
  canonical(item.payload) === canonical(here.payload);

/** Why an item is not written; undefined: it is written. `overwrite`: newer items are replaced too. */
export function unwritten(
  item: ArchivedItem,
  here: ItemView | undefined,
  overwrite: boolean,
): 'same' | 'newer' | undefined {
  if (here === undefined) return undefined;
  if (isSame(item, here)) return 'same';
  return !overwrite && here.ts >= item.ts ? 'newer' : undefined;
}

/** The JSON of a payload that was stored as a blob. */
export async function payloadIn(content: BlobSource): Promise<Uint8Array> {
  if (content.size > PAYLOAD_MAX) throw new CryptoRefusal('too_large', `a payload may have ${PAYLOAD_MAX} bytes`);
  const parts: Uint8Array[] = [];
  for await (const part of portionsOf(content)) parts.push(part);
  return concat(parts);
}
