/**
 * Sealing and opening of items by clients (reference, Cryptography). The server never runs this.
 *
 * Two invariants. The tag of an item is verified before anything else: a client that moved or re-wrapped an unverified
 * item would sign a forgery. And no key is sealed to a device whose certificate does not verify.
 */
import { text } from '../protocol/bytes.js';
import type { Inline, ItemHead, MasterWrap, Payload, SealedKeys } from '../protocol/item.js';
import { INLINE_CIPHERTEXT_MAX, KEY_BYTES, NONCE_BYTES, AEAD_TAG_BYTES } from '../protocol/limits.js';
import { BlobDecryptor, sealChunks, streamNonce } from './blob-stream.js';
import { expectCertified, type ListedDevice, type OwnDevice } from './device.js';
import { checkItemTag, makeItemTag, type SealedItem } from './item-tag.js';
import { payloadBytes, payloadObject, type JsonObject } from './payload.js';
import { CryptoRefusal } from './refusal.js';
import { erasing, expectLength, type Sodium } from './sodium.js';

/** The recipients of an item: every non-revoked device with its certificate, and holders of the master key. */
export interface Recipients {
  readonly masterKey: Uint8Array;
  readonly devices: readonly ListedDevice[];
}

/** The keys of the party that opens an item. `device` may be null if the master wrap is enough. */
export interface Reader {
  readonly masterKey: Uint8Array;
  readonly device: OwnDevice | null;
}

/** A payload: an object, or its JSON text as UTF-8 bytes. */
export type PlainPayload = JsonObject | Uint8Array;

/**
 * A blob that is being uploaded: encrypt its bytes by `sealDraft`, upload them, then `sealBlobItem`. Erase `key` once
 * the item is written, and never encrypt other bytes under the same draft.
 */
export interface BlobDraft extends Pick<ItemHead, 'type' | 'ts'> {
  readonly key: Uint8Array;
  readonly nonce: Uint8Array;
}

/** AAD: UTF-8 `type|ts`. Without the bin, so that a move needs only a new tag. */
export const itemAad = (item: Pick<ItemHead, 'type' | 'ts'>): Uint8Array => text(`${item.type}|${item.ts}`);

function encryptInline(
  sodium: Sodium,
  head: ItemHead,
  { key, payload, keys }: { key: Uint8Array; payload: PlainPayload; keys: SealedKeys },
): Inline {
  const message = payloadBytes(payload);
  if (message.length + AEAD_TAG_BYTES > INLINE_CIPHERTEXT_MAX)
    throw new CryptoRefusal('too_large', `the payload passes ${INLINE_CIPHERTEXT_MAX} bytes: make it a blob`);
  if (!Number.isSafeInteger(head.ts)) throw new RangeError(`ts must be an integer, got ${head.ts}`);
  const nonce = sodium.random(NONCE_BYTES);
  return { ct: sodium.aeadEncrypt({ message, aad: itemAad(head), nonce, key }), nonce, keys };
}

/** The key sealed to each device, in their order; the keys that are there already are kept. */
const sealKeys = (
  sodium: Sodium,
  key: Uint8Array,
  devices: readonly ListedDevice[],
  existing?: SealedKeys,
): SealedKeys => new Map(devices.map(({ id, publicKey }) => [id, existing?.get(id) ?? sodium.seal(key, publicKey)]));

/** `master`: secretbox of the item key under the master key (CRYPTO-08). */
function wrapForMaster(sodium: Sodium, key: Uint8Array, masterKey: Uint8Array): MasterWrap {
  const nonce = sodium.random(NONCE_BYTES);
  return { nonce, ct: sodium.secretbox(key, nonce, masterKey) };
}

function withTag(sodium: Sodium, masterKey: Uint8Array, item: ItemHead & Omit<Payload, 'sig'>): Payload {
  const { inline, blob, master } = item;
  return { inline, blob, master, sig: makeItemTag(sodium, masterKey, item) };
}

/**
 * Seals an inline item under a fresh key and nonce.
 * Throws `uncertified_device`, and `too_large` over 64 KB of ciphertext (then it must be a blob).
 */
export function sealItem(sodium: Sodium, item: ItemHead & { readonly payload: PlainPayload }, to: Recipients): Payload {
  expectCertified(sodium, to.masterKey, to.devices);
  return erasing(sodium, sodium.random(KEY_BYTES), (key) => {
    const keys = sealKeys(sodium, key, to.devices);
    const inline = encryptInline(sodium, item, { key, payload: item.payload, keys });
    const master = wrapForMaster(sodium, key, to.masterKey);
    return withTag(sodium, to.masterKey, { ...item, inline, blob: null, master });
  });
}

export const draftBlob = (sodium: Sodium, { type, ts }: Pick<BlobDraft, 'type' | 'ts'>): BlobDraft => ({
  type,
  ts,
  key: sodium.random(KEY_BYTES),
  nonce: streamNonce(sodium),
});

/** Encrypts chunks of a draft: see `sealChunks`. */
export const sealDraft = (sodium: Sodium, draft: BlobDraft, at: Parameters<typeof sealChunks>[2]): Uint8Array =>
  sealChunks(sodium, { ...draft, aad: itemAad(draft) }, at);

/**
 * Seals the item of an uploaded blob, with small metadata inline or none (null): one item key opens both. Type and ts
 * are the draft's, which the blob's AAD contains. Throws as `sealItem`.
 */
export function sealBlobItem(
  sodium: Sodium,
  item: Pick<ItemHead, 'id' | 'binId'> & {
    readonly draft: BlobDraft;
    readonly ref: string;
    readonly metadata: PlainPayload | null;
  },
  to: Recipients,
): Payload {
  expectCertified(sodium, to.masterKey, to.devices);
  const { draft, metadata } = item;
  const head: ItemHead = { id: item.id, binId: item.binId, type: draft.type, ts: draft.ts };
  const keys = sealKeys(sodium, draft.key, to.devices);
  const inline = metadata === null ? null : encryptInline(sodium, head, { key: draft.key, payload: metadata, keys });
  const master = wrapForMaster(sodium, draft.key, to.masterKey);
  return withTag(sodium, to.masterKey, { ...head, inline, blob: { ref: item.ref, nonce: draft.nonce, keys }, master });
}

/** The key sealed to this device; undefined: absent, for another key pair, or not a key. */
function ownKey(sodium: Sodium, keys: SealedKeys | undefined, device: OwnDevice | null): Uint8Array | undefined {
  const sealed = device === null ? undefined : keys?.get(device.id);
  const key = sealed === undefined || device === null ? undefined : sodium.sealOpen(sealed, device.keys);
  return key?.length === KEY_BYTES ? key : undefined;
}

function masterWrapped(sodium: Sodium, item: SealedItem, masterKey: Uint8Array): Uint8Array | undefined {
  if (item.master === null || item.master.nonce.length !== NONCE_BYTES) return undefined;
  const key = sodium.secretboxOpen(item.master.ct, item.master.nonce, masterKey);
  return key?.length === KEY_BYTES ? key : undefined;
}

/**
 * The keys that an item offers its reader. The tag covers blob keys, but neither the master wrap nor inline keys: the
 * server may have taken those from another item. So a blob's own key comes first, and a key is trusted only once it has
 * decrypted something.
 */
function* offeredKeys(sodium: Sodium, item: SealedItem, reader: Reader): Generator<Uint8Array> {
  const offers = [
    () => ownKey(sodium, item.blob?.keys, reader.device),
    () => masterWrapped(sodium, item, reader.masterKey),
    () => ownKey(sodium, item.inline?.keys, reader.device),
  ];
  for (const offer of offers) {
    const key = offer();
    if (key === undefined) continue;
    try {
      yield key;
    } finally {
      sodium.memzero(key);
    }
  }
}

/**
 * Decrypts with the first offered key that fits, and calls `use` with plaintext and key; the key is erased afterwards.
 * Throws `no_key` if none is offered to this reader and `bad_ct` if none fits.
 */
function decryptWith<T>(
  sodium: Sodium,
  input: { item: SealedItem; reader: Reader; part: { ct: Uint8Array; nonce: Uint8Array } },
  use: (plaintext: Uint8Array, key: Uint8Array) => T,
): T {
  const { item, reader, part } = input;
  if (part.nonce.length !== NONCE_BYTES) throw new CryptoRefusal('bad_ct', `item ${item.id} has a malformed nonce`);
  let offered = false;
  for (const key of offeredKeys(sodium, item, reader)) {
    offered = true;
    const plaintext = sodium.aeadDecrypt({ message: part.ct, aad: itemAad(item), nonce: part.nonce, key });
    if (plaintext !== undefined) return use(plaintext, key);
  }
  if (!offered) throw new CryptoRefusal('no_key', `item ${item.id} has no key for this device`);
  throw new CryptoRefusal('bad_ct', `item ${item.id} does not decrypt`);
}

/**
 * Verifies and opens an item's inline payload: a whole item, or a blob's metadata; null for a blob without.
 * Throws `no_sig`, `bad_sig`, then `no_key`, `bad_ct`, `bad_payload`.
 */
export function openItem(sodium: Sodium, item: SealedItem, reader: Reader): JsonObject | null {
  checkItemTag(sodium, reader.masterKey, item);
  if (item.inline === null) return null;
  return decryptWith(sodium, { item, reader, part: item.inline }, payloadObject);
}

/**
 * Verifies a blob item, and returns a decryptor for its bytes, which may be in chunks or in one piece.
 * Throws `no_sig`, `bad_sig`, `no_key`, and `bad_payload` for an inline item.
 */
export function blobDecryptor(sodium: Sodium, item: SealedItem, reader: Reader): BlobDecryptor {
  checkItemTag(sodium, reader.masterKey, item);
  if (item.blob === null) throw new CryptoRefusal('bad_payload', `item ${item.id} has no blob`);
  const { nonce } = item.blob;
  expectLength('blobNonce', nonce, NONCE_BYTES);
  const keys = Array.from(offeredKeys(sodium, item, reader), (key) => new Uint8Array(key));
  if (keys.length === 0) throw new CryptoRefusal('no_key', `item ${item.id} has no key for this device`);
  const decryptor = new BlobDecryptor(sodium, { keys, nonce, aad: itemAad(item) });
  for (const key of keys) sodium.memzero(key);
  return decryptor;
}

/** The tag of an item that moves to another bin. Throws `no_sig` and `bad_sig` if its current tag does not verify. */
export function moveTag(
  sodium: Sodium,
  item: SealedItem,
  to: { readonly binId: string; readonly masterKey: Uint8Array },
): Uint8Array {
  checkItemTag(sodium, to.masterKey, item);
  return makeItemTag(sodium, to.masterKey, { ...item, binId: to.binId });
}

/** True for a blob with a key of another device, for example of one that was revoked: the server refuses to store it. */
const namesOthers = ({ blob }: SealedItem, devices: readonly ListedDevice[]): boolean =>
  blob !== null && [...blob.keys.keys()].some((id) => !devices.some((device) => device.id === id));

const missingFrom = (keys: SealedKeys | undefined, devices: readonly ListedDevice[]): readonly ListedDevice[] =>
  keys === undefined ? [] : devices.filter((device) => !keys.has(device.id));

/**
 * The item with keys for the devices that lack one, without those of devices no longer listed, and with a master wrap
 * if it had none; null if nothing is missing, and no key of a blob is superfluous. Content, nonces and ts stay: the server
 * sees a re-wrap (RETRY-04). A key is sealed again only if it is proven to be this item's: it decrypts the inline part, or
 * the tag covers it. Throws as `openItem`, and `uncertified_device`.
 */
export function rewrapItem(sodium: Sodium, item: SealedItem, by: Reader & Recipients): Payload | null {
  checkItemTag(sodium, by.masterKey, item);
  const { inline, blob } = item;
  const lacking = [...missingFrom(inline?.keys, by.devices), ...missingFrom(blob?.keys, by.devices)];
  if (lacking.length === 0 && item.master !== null && !namesOthers(item, by.devices)) return null;
  expectCertified(sodium, by.masterKey, by.devices);
  const boundKey = ownKey(sodium, blob?.keys, by.device);
  try {
    if (inline !== null) {
      return decryptWith(sodium, { item, reader: by, part: inline }, (_, key) =>
        rewrapped(sodium, { item, by, inlineKey: key, blobKey: boundKey ?? key }),
      );
    }
    if (boundKey === undefined) throw new CryptoRefusal('no_key', `item ${item.id} has no proven key for this device`);
    return rewrapped(sodium, { item, by, inlineKey: boundKey, blobKey: boundKey });
  } finally {
    if (boundKey !== undefined) sodium.memzero(boundKey);
  }
}

/** An inline item at another time, for these devices; null for one with a blob. Throws as `openItem` and `sealItem`. */
export function retimeItem(
  sodium: Sodium,
  item: SealedItem & ItemHead,
  { ts, ...by }: Reader & Recipients & Pick<ItemHead, 'ts'>,
): (Payload & Pick<ItemHead, 'ts'>) | null {
  checkItemTag(sodium, by.masterKey, item);
  if (item.inline === null || item.blob !== null) return null;
  const seal = (payload: Uint8Array) => sealItem(sodium, { ...item, ts, payload }, by);
  return { ts, ...decryptWith(sodium, { item, reader: by, part: item.inline }, seal) };
}

/** Two keys, since other clients may use one for the blob and another for its metadata. */
function rewrapped(
  sodium: Sodium,
  input: { item: SealedItem; by: Recipients; inlineKey: Uint8Array; blobKey: Uint8Array },
): Payload {
  const { item, by, inlineKey, blobKey } = input;
  const inline = item.inline && { ...item.inline, keys: sealKeys(sodium, inlineKey, by.devices, item.inline.keys) };
  const blob = item.blob && { ...item.blob, keys: sealKeys(sodium, blobKey, by.devices, item.blob.keys) };
  const master = item.master ?? wrapForMaster(sodium, inlineKey, by.masterKey);
  return withTag(sodium, by.masterKey, { ...item, inline, blob, master });
}
