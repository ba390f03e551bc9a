/** The item tag `sig` and the delete tag: the bytes they cover, and their verification (reference, Cryptography). */
import { compareBytes, lengthPrefixed, text } from '../protocol/bytes.js';
import type { Blob, ItemHead, Payload } from '../protocol/item.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import { itemMacKey } from './master-key.js';
import { CryptoRefusal } from './refusal.js';
import { erasing, type Sodium } from './sodium.js';

const ITEM_CONTEXT = `${SERVICE_NAME}-item-sig-v1`;
const DELETE_CONTEXT = `${SERVICE_NAME}-item-delete-v1`;
const NOTHING = new Uint8Array(0);

/** An item with its encrypted payload, from a write or a row. */
export type SealedItem = ItemHead & Payload;

/** A blob's part of the tag: reference, nonce, number of keys, then device ids and keys by the id's bytes. */
function blobParts(blob: Blob): (string | Uint8Array)[] {
  const entries = [...blob.keys].map(([id, key]) => ({ id: text(id), key }));
  entries.sort((one, other) => compareBytes(one.id, other.id));
  return [blob.ref, blob.nonce, String(entries.length), ...entries.flatMap(({ id, key }) => [id, key])];
}

/**
 * The bytes under an item's tag: LP("service-item-sig-v1", id, binId, type, decimal ts, ct, nonce), and for a blob item
 * the blob's part. A blob without metadata has empty ct and nonce. Inline keys and the master wrap are not covered, so
 * that any holder of the key can add a device.
 */
export function itemTagInput(item: ItemHead & Pick<Payload, 'inline' | 'blob'>): Uint8Array {
  return lengthPrefixed(
    ITEM_CONTEXT,
    item.id,
    item.binId,
    item.type,
    String(item.ts),
    item.inline?.ct ?? NOTHING,
    item.inline?.nonce ?? NOTHING,
    ...(item.blob === null ? [] : blobParts(item.blob)),
  );
}

const deleteTagInput = (id: string): Uint8Array => lengthPrefixed(DELETE_CONTEXT, id);

const withMacKey = <T>(sodium: Sodium, masterKey: Uint8Array, use: (key: Uint8Array) => T): T =>
  erasing(sodium, itemMacKey(sodium, masterKey), use);

/** The tag of an item, 32 bytes. */
export const makeItemTag = (
  sodium: Sodium,
  masterKey: Uint8Array,
  item: ItemHead & Pick<Payload, 'inline' | 'blob'>,
): Uint8Array => withMacKey(sodium, masterKey, (key) => sodium.auth(itemTagInput(item), key));

/** `what`: names the tagged object. Throws `no_sig` if it has no tag, `bad_sig` if the tag does not verify. */
function expectTag(
  sodium: Sodium,
  masterKey: Uint8Array,
  { what, sig, input }: { readonly what: string; readonly sig: Uint8Array | null; readonly input: Uint8Array },
): void {
  if (sig === null) throw new CryptoRefusal('no_sig', `${what} is not signed`);
  if (!withMacKey(sodium, masterKey, (key) => sodium.authVerify(sig, input, key)))
    throw new CryptoRefusal('bad_sig', `the sig of ${what} does not hold`);
}

/** Throws `no_sig` for an item without a tag and `bad_sig` for one whose tag does not verify. */
export const checkItemTag = (sodium: Sodium, masterKey: Uint8Array, item: SealedItem): void =>
  expectTag(sodium, masterKey, { what: `item ${item.id}`, sig: item.sig, input: itemTagInput(item) });

/** The tag of a delete, 32 bytes: crypto_auth(LP("service-item-delete-v1", id), MAC key). */
export const makeDeleteTag = (sodium: Sodium, masterKey: Uint8Array, id: string): Uint8Array =>
  withMacKey(sodium, masterKey, (key) => sodium.auth(deleteTagInput(id), key));

/** Throws `no_sig` for a delete without a tag and `bad_sig` for one whose tag does not verify. */
export const checkDeleteTag = (
  sodium: Sodium,
  masterKey: Uint8Array,
  { id, sig }: { readonly id: string; readonly sig: Uint8Array | null },
): void => expectTag(sodium, masterKey, { what: `the delete of item ${id}`, sig, input: deleteTagInput(id) });
