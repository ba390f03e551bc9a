/** Items as both wire shapes spell them, as plain objects: what the server's own texts, written byte by byte, are held against. */
import { toBase64, toBase64Url } from '../../src/protocol/base64.js';
import type { ItemFieldsA, ItemFrameB, ItemRowA, ItemRowB } from '../../src/protocol/frames.js';
import type { Item, LiveItem, SealedKeys } from '../../src/protocol/item.js';
import type { Shape } from '../../src/protocol/shape.js';

type Spelling = (bytes: Uint8Array) => string;

/** The `keys` map of shape A. */
export const keysA = (keys: SealedKeys): Record<string, string> =>
  Object.fromEntries([...keys].map(([device, key]) => [device, toBase64Url(key)]));

const keysB = (keys: SealedKeys): { device_id: string; key: string }[] =>
  [...keys].map(([device, key]) => ({ device_id: device, key: toBase64(key) }));

const wrap = ({ master }: LiveItem, out: Spelling): { nonce: string; ct: string } | undefined =>
  master === null ? undefined : { nonce: out(master.nonce), ct: out(master.ct) };

const sig = ({ sig }: Item, out: Spelling): string | undefined => (sig === null ? undefined : out(sig));

// JSON.stringify leaves out what is undefined.
function bodyA(item: Item): Pick<ItemFieldsA, 'payloadEnc' | 'blobRef' | 'blobNonce' | 'blobKeys' | 'master' | 'sig'> {
  const { inline, blob } = item.deletedAt === null ? item : { inline: null, blob: null };
  const seal = {
    master: item.deletedAt === null ? wrap(item, toBase64Url) : undefined,
    sig: sig(item, toBase64Url),
  } as Pick<ItemFieldsA, 'master' | 'sig'>;
  return {
    payloadEnc: inline && {
      ct: toBase64Url(inline.ct),
      nonce: toBase64Url(inline.nonce),
      keys: keysA(inline.keys),
      ...seal,
    },
    blobRef: blob && blob.ref,
    blobNonce: blob && toBase64Url(blob.nonce),
    blobKeys: blob && keysA(blob.keys),
    ...(inline === null ? seal : {}),
  };
}

function rowB(item: Item): ItemRowB {
  const { id, version, binId, type, senderDevice, ts, deletedAt } = item;
  const head = { id, version, bin_id: binId, type, sender_device: senderDevice, ts, deleted_at: deletedAt };
  const tag = sig(item, toBase64) ?? null;
  if (item.deletedAt !== null) {
    const gone = { ct: null, nonce: null, wrapped: null, master: null };
    return { ...head, ...gone, sig: tag, blob_ref: null, blob_nonce: null, blob_keys: null };
  }
  const { inline, blob } = item;
  // A blob without metadata: its nonce and keys stand in the item's place.
  const own = inline ?? {
    ct: new Uint8Array(0),
    nonce: blob?.nonce ?? new Uint8Array(0),
    keys: blob?.keys ?? new Map(),
  };
  return {
    ...head,
    ct: toBase64(own.ct),
    nonce: toBase64(own.nonce),
    wrapped: keysB(own.keys),
    master: wrap(item, toBase64) ?? null,
    sig: tag,
    blob_ref: blob && blob.ref,
    blob_nonce: blob && toBase64(blob.nonce),
    blob_keys: blob && keysB(blob.keys),
  };
}

const tailA = ({ senderDevice, ts, version, deletedAt }: Item) => ({ senderDevice, ts, version, deletedAt });

/** An item as a row of `GET /items`, as JSON text. */
export function rowText(shape: Shape, item: Item): string {
  const { id, binId, type } = item;
  const row: ItemRowA | ItemRowB = shape === 'b' ? rowB(item) : { id, binId, type, ...tailA(item), ...bodyA(item) };
  return JSON.stringify(row);
}

/** The frame that brings an item's latest state to a socket. */
export function frameText(shape: Shape, item: Item): string {
  const { id, version, binId, type } = item;
  if (item.deletedAt !== null) {
    const frame = { type: 'delete', id, version, sig: sig(item, shape === 'a' ? toBase64Url : toBase64) };
    return JSON.stringify(frame);
  }
  if (shape === 'b') return JSON.stringify({ type: 'item', item: rowB(item) } satisfies ItemFrameB);
  const frame = { type: 'item', id, binId, itemType: type, ...tailA(item), ...bodyA(item) };
  return JSON.stringify(frame);
}
