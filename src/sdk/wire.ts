/** Client-side conversion of items and frames of shape A. */
import { toBase64Url } from '../protocol/base64.js';
import { parsedJson } from '../protocol/bytes.js';
import type { CaughtUpFrame } from '../protocol/frames.js';
import { isContentType, type Item, type ItemWrite, type LiveItem } from '../protocol/item.js';
import type { MasterWrap, Payload, SealedKeys } from '../protocol/item.js';
import { AEAD_TAG_BYTES, INLINE_CIPHERTEXT_MAX, MASTER_WRAP_BYTES, NONCE_BYTES } from '../protocol/limits.js';
import { SEALED_KEY_MAX, SEALED_KEY_MIN, SEALED_KEYS_PER_ITEM, SIG_BYTES } from '../protocol/limits.js';
import type { ItemBodyA, MasterBody } from '../protocol/requests.js';
import { ProtocolError } from './errors.js';
import {
  binIdText,
  bytes,
  count,
  malformed,
  matching,
  matchingText,
  nullable,
  object,
  record,
  short,
  string,
  ulidText,
  type Reader,
} from './reader.js';

const keysText = (keys: SealedKeys): Record<string, string> =>
  Object.fromEntries([...keys].map(([device, key]) => [device, toBase64Url(key)]));

const masterText = (wrap: MasterWrap): MasterBody => ({ nonce: toBase64Url(wrap.nonce), ct: toBase64Url(wrap.ct) });

/** The body of an item write. The same write always gives the same text, so that a retry is recognised (RETRY-01). */
export function writeBody(write: ItemWrite): ItemBodyA {
  const { id, binId, type, ts, inline, blob, master, sig, ifVersion } = write;
  // In the envelope if there is one, else at top level (ITEM-18).
  const seal = { ...(master && { master: masterText(master) }), ...(sig && { sig: toBase64Url(sig) }) };
  const sealed = inline && {
    ct: toBase64Url(inline.ct),
    nonce: toBase64Url(inline.nonce),
    keys: keysText(inline.keys),
  };
  return {
    ...{ id, binId, type, ts },
    ...(sealed === null ? seal : { payloadEnc: { ...sealed, ...seal } }),
    ...(blob && { blobRef: blob.ref, blobNonce: toBase64Url(blob.nonce), blobKeys: keysText(blob.keys) }),
    ...(ifVersion === null ? {} : { ifVersion }),
  };
}

/** Far above any history, and low enough for the sum of thousands of them to be exact (completeness check). */
const VERSION_MAX = 2 ** 40;

const version: Reader<number> = (value, path) => {
  const number = count(value, path);
  if (number > VERSION_MAX) throw malformed(path, 'must be at most 2^40');
  return number;
};

/** Characters of the writer's id: it is stored with the item, also where no tag of the user backs it. */
const SENDER_MAX = 64;
const itemHead = object({
  id: ulidText,
  binId: binIdText,
  version,
  deletedAt: nullable(count),
  senderDevice: nullable(string),
  ts: nullable(count),
});

const contentType = matching('must be one of the ten content types', isContentType);

const nonce = bytes(NONCE_BYTES);
const ciphertext = bytes(AEAD_TAG_BYTES, INLINE_CIPHERTEXT_MAX);
const sealedKey = bytes(SEALED_KEY_MIN, SEALED_KEY_MAX);
const sealedKeys: Reader<SealedKeys> = (value, path) => {
  const entries = Object.entries(record(value, path));
  if (entries.length > SEALED_KEYS_PER_ITEM) throw malformed(path, `at most ${SEALED_KEYS_PER_ITEM} keys`);
  return new Map(entries.map(([device, key]) => [ulidText(device, path), sealedKey(key, `${path}.${device}`)]));
};
/** An unsigned item passes here and is refused later. */
const seal = object({
  master: nullable(object({ nonce, ct: bytes(MASTER_WRAP_BYTES) })),
  sig: nullable(bytes(SIG_BYTES)),
});
const envelope = object({ ct: string, nonce, keys: sealedKeys });
const payloadFields = object({
  payloadEnc: nullable(record),
  blobRef: nullable(matchingText("must be a blob's name", (value) => /^[0-9A-Za-z._-]{1,64}$/.test(value))),
  blobNonce: nullable(nonce),
  blobKeys: nullable(sealedKeys),
});

/** The payload of a live row. The seal is in the envelope if there is one, else at top level (ITEM-18). */
function readPayload(value: unknown): Payload {
  const { payloadEnc, blobRef: ref, blobNonce, blobKeys: keys } = payloadFields(value, '');
  const blob = ref === null || blobNonce === null || keys === null ? null : { ref, nonce: blobNonce, keys };
  if (blob === null && (ref ?? blobNonce ?? keys) !== null)
    throw malformed('blobRef', 'goes with blobNonce and blobKeys');
  if (payloadEnc === null) {
    if (blob === null) throw malformed('payloadEnc', 'payloadEnc or blobRef is required');
    return { inline: null, blob, ...seal(value, '') };
  }
  const { ct, ...rest } = envelope(payloadEnc, 'payloadEnc');
  // Beside a blob an empty ct means no metadata; nonce and keys are then validated but dropped.
  const inline = blob !== null && ct === '' ? null : { ct: ciphertext(ct, 'payloadEnc.ct'), ...rest };
  return { inline, blob, ...seal(payloadEnc, 'payloadEnc') };
}

/** Reads a row of `GET /items`, or an `item` frame, whose type is in `itemType`. Throws `ProtocolError`. */
export function readItem(value: unknown, typeKey: 'type' | 'itemType'): Item {
  const head = itemHead(value, '');
  if (head.deletedAt !== null) {
    const sig = nullable(bytes())(record(value, '')['sig'], 'sig');
    // The purge removes type, time and writer of a tombstone; they are not used before the purge either.
    return { ...head, deletedAt: head.deletedAt, type: null, senderDevice: null, ts: null, sig };
  }
  const ts = count(head.ts, 'ts');
  const type = contentType(record(value, '')[typeKey], typeKey);
  const senderDevice = short(SENDER_MAX)(head.senderDevice, 'senderDevice');
  const { id, binId, version } = head;
  return { id, binId, type, ts, ...readPayload(value), senderDevice, version, deletedAt: null };
}

/** A change of the ordered stream, from a frame or a listing. */
export type Change =
  | { readonly kind: 'item'; readonly version: number; readonly id: string; readonly item: LiveItem }
  | { readonly kind: 'delete'; readonly version: number; readonly id: string; readonly sig: Uint8Array | null }
  | { readonly kind: 'ack'; readonly version: number; readonly id: string }
  /** A row with id and version that is otherwise unreadable. */
  | { readonly kind: 'unreadable'; readonly version: number; readonly id: string };

/** The head at `caught_up`, with the count and version sum that a complete store has (the reference, Sockets). */
export type Completeness = Omit<CaughtUpFrame, 'type'>;

/** A frame of the server. `other`: not used by this client. */
export type Frame =
  | { readonly kind: 'change'; readonly change: Change }
  | { readonly kind: 'caught_up'; readonly at: Completeness }
  | { readonly kind: 'reset'; readonly epoch: string }
  | { readonly kind: 'pair_request'; readonly body: unknown }
  | { readonly kind: 'device_joined' }
  | { readonly kind: 'device_revoked'; readonly id: string }
  | { readonly kind: 'bin' }
  | { readonly kind: 'error'; readonly code: string; readonly message: string }
  | { readonly kind: 'ping' }
  | { readonly kind: 'other' };

const named = object({ id: ulidText, version });
const deleteFrame = object({ id: ulidText, version, sig: nullable(bytes()) });
/** An epoch is stored and sent in every `hello`, which must stay small. */
const EPOCH_MAX = 256;
/** The name of a history. */
export const epochText = short(EPOCH_MAX);
const completeness = object({ version: count, epoch: epochText, itemCount: count, versionSum: count });

/** An item or tombstone as a change; an unreadable one keeps its place in the order. */
export function itemChange(value: unknown, typeKey: 'type' | 'itemType'): Change {
  const { id, version } = named(value, '');
  try {
    const item = readItem(value, typeKey);
    return item.deletedAt === null
      ? { kind: 'item', id, version, item }
      : { kind: 'delete', id, version, sig: item.sig };
  } catch (error) {
    if (error instanceof ProtocolError) return { kind: 'unreadable', id, version };
    throw error;
  }
}

/** The frames that this client uses, by type. */
const FRAMES = new Map<string, (value: unknown) => Frame>([
  ['item', (value) => ({ kind: 'change', change: itemChange(value, 'itemType') })],
  ['delete', (value) => ({ kind: 'change', change: { kind: 'delete', ...deleteFrame(value, '') } })],
  ['ack', (value) => ({ kind: 'change', change: { kind: 'ack', ...named(value, '') } })],
  ['caught_up', (value) => ({ kind: 'caught_up', at: completeness(value, '') })],
  ['reset', (value) => ({ kind: 'reset', ...object({ epoch: epochText })(value, '') })],
  ['pair_request', (body) => ({ kind: 'pair_request', body })],
  ['device_revoked', (value) => ({ kind: 'device_revoked', ...object({ id: string })(value, '') })],
  ['error', (value) => ({ kind: 'error', ...object({ code: string, message: string })(value, '') })],
  ['device_joined', () => ({ kind: 'device_joined' })],
  ['bin', () => ({ kind: 'bin' })],
  ['ping', () => ({ kind: 'ping' })],
]);

/** Reads a text frame of the server. Throws `ProtocolError`. */
export function readFrame(text: string): Frame {
  const value = parsedJson(text, (cause) => new ProtocolError('a frame that is not JSON', { cause }));
  const type = string(record(value, 'frame')['type'], 'frame.type');
  return FRAMES.get(type)?.(value) ?? { kind: 'other' };
}
