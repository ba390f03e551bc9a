/** What has to be said beside the items of an answer: what is lacking, what happened, what was not looked at. */
import type { ItemOutput } from './schemas.js';
import type { Fresh, Vault } from './vault.js';

const WITHHELD =
  'Compare with another device. Everything is read again after some minutes, or when this program restarts.';

/** Sentences, in the order of their weight. */
export function notesOn(
  vault: Vault,
  { complete, bins }: Fresh,
  shown: { readonly items: readonly ItemOutput[]; readonly total: number },
): string[] {
  const notes: string[] = [];
  if (complete === false) notes.push(lackOf(vault));
  if (complete === null) notes.push('Whether items are missing could not be compared with the server.');
  notes.push(...vault.takeNews());
  if (bins.unknown.length > 0)
    notes.push(`The server lists no bin, or several, for ${bins.unknown.join(', ')} of the allowed bins.`);
  const { unproven } = vault.store;
  if (unproven > 0)
    notes.push(`${unproven} items were deleted by somebody who did not prove to be one of the user's devices.`);
  if (shown.items.some(({ onServer }) => onServer === false))
    notes.push("Items that say onServer false are not in the server's history any more: it lost or withholds them.");
  if (shown.items.some(({ cut }) => cut !== undefined))
    notes.push('Long texts are cut, since the answer would be too long: ask for fewer items to see them whole.');
  if (shown.total > shown.items.length)
    notes.push(`${shown.total - shown.items.length} more items fit: ask with a narrower search, bin, since or limit.`);
  return notes;
}

function lackOf({ missing }: Vault): string {
  if (missing === null) return `What is here is not what the server counts. ${WITHHELD}`;
  const { lacking, unlisted } = missing;
  const count = lacking.itemCount;
  const gone = unlisted.length === 0 ? '' : ` ${unlisted.length} items that were here are not handed out any more.`;
  if (count > 0) return `The server counts ${count} items that it does not hand out.${gone} ${WITHHELD}`;
  if (count < 0) return `The server hands out ${-count} items that it does not count.${gone} ${WITHHELD}`;
  return `The server counts other versions of items than it hands out.${gone} ${WITHHELD}`;
}
