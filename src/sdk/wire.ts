/** Client-side conversion of items and frames of shape A. */
import { toBase64Url } from '../protocol/base64.js';
import { ServiceError } from '../protocol/errors.js';
import type { CaughtUpFrame } from '../protocol/frames.js';
import { decodeWriteA } from '../protocol/item-codec.js';
import type { Item, ItemWrite, LiveItem, MasterWrap, SealedKeys } from '../protocol/item.js';
import type { ItemBodyA, MasterBody } from '../protocol/requests.js';
import { ProtocolError } from './errors.js';
import {
  binIdText,
  bytes,
  count,
  malformed,
  nonEmpty,
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

const keyMap: Reader<Record<string, string>> = (value, path) =>
  Object.fromEntries(Object.entries(record(value, path)).map(([id, key]) => [id, string(key, `${path}.${id}`)]));

const masterBody = object({ nonce: string, ct: string });

const envelopeBody = object({
  ct: string,
  nonce: string,
  keys: keyMap,
  master: nullable(masterBody),
  sig: nullable(string),
});

/** Far above any history, and low enough for the sum of thousands of them to be exact (completeness check). */
const VERSION_MAX = 2 ** 40;

const version: Reader<number> = (value, path) => {
  const number = count(value, path);
  if (number > VERSION_MAX) throw malformed(path, 'must be at most 2^40');
  return number;
};

const itemHead = object({
  id: ulidText,
  binId: binIdText,
  version,
  deletedAt: nullable(count),
  senderDevice: nullable(string),
  ts: nullable(count),
});

const payloadFields = object({
  payloadEnc: nullable(envelopeBody),
  blobRef: nullable(string),
  blobNonce: nullable(string),
  blobKeys: nullable(keyMap),
  master: nullable(masterBody),
  sig: nullable(string),
});

/** Reads a row of `GET /items`, or an `item` frame, whose type is in `itemType`. Throws `ProtocolError`. */
export function readItem(value: unknown, typeKey: 'type' | 'itemType'): Item {
  const head = itemHead(value, '');
  const type = record(value, '')[typeKey];
  if (head.deletedAt !== null) {
    const sig = nullable(bytes())(record(value, '')['sig'], 'sig');
    // The purge removes type, time and writer of a tombstone; they are not used before the purge either.
    return { ...head, deletedAt: head.deletedAt, type: null, senderDevice: null, ts: null, sig };
  }
  const ts = count(head.ts, 'ts');
  const row = { ...payloadFields(value, ''), id: head.id, binId: head.binId, type: nonEmpty(type, typeKey), ts };
  const { inline, blob, master, sig, type: known } = decoded(row);
  const senderDevice = nonEmpty(head.senderDevice, 'senderDevice');
  const { id, binId, version } = head;
  return { id, binId, type: known, ts, inline, blob, master, sig, senderDevice, version, deletedAt: null };
}

/** Rows have the fields of a write, so its codec reads them. An unsigned row passes here and is refused later. */
function decoded(row: ItemBodyA): ItemWrite {
  try {
    return decodeWriteA(row, 'never');
  } catch (error) {
    if (error instanceof ServiceError) throw new ProtocolError(error.message, { cause: error });
    throw error;
  }
}

/** A change of the ordered stream, from a frame or a listing. */
export type Change =
  | { readonly kind: 'item'; readonly version: number; readonly id: string; readonly item: LiveItem }
  | { readonly kind: 'delete'; readonly version: number; readonly id: string; readonly sig: Uint8Array | null }
  | { readonly kind: 'ack'; readonly version: number; readonly id: string }
  /** A row with id and version that is otherwise unreadable. */
  | { readonly kind: 'unreadable'; readonly version: number; readonly id: string; readonly problem: string };

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
    if (error instanceof ProtocolError) return { kind: 'unreadable', id, version, problem: error.message };
    throw error;
  }
}

/** Reads a text frame of the server. Throws `ProtocolError`. */
export function readFrame(text: string): Frame {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new ProtocolError('a frame that is not JSON', { cause });
  }
  const type = string(record(value, 'frame')['type'], 'frame.type');
  switch (type) {
    case 'item':
      return { kind: 'change', change: itemChange(value, 'itemType') };
    case 'delete':
      return { kind: 'change', change: { kind: 'delete', ...deleteFrame(value, '') } };
    case 'ack':
      return { kind: 'change', change: { kind: 'ack', ...named(value, '') } };
    case 'caught_up':
      return { kind: 'caught_up', at: completeness(value, '') };
    case 'reset':
      return { kind: 'reset', epoch: epochText(record(value, '')['epoch'], 'epoch') };
    case 'pair_request':
      return { kind: 'pair_request', body: value };
    case 'device_revoked':
      return { kind: 'device_revoked', id: string(record(value, '')['id'], 'id') };
    case 'error':
      return { kind: 'error', ...object({ code: string, message: string })(value, '') };
    case 'device_joined':
    case 'bin':
    case 'ping':
      return { kind: type };
    default:
      return { kind: 'other' };
  }
}
