/** Items between the two wire shapes and the internal model (specification, Item; contract 2 and 5). */
import { decodeBase64, toBase64, toBase64Url } from './base64.js';
import { invalid, ServiceError } from './errors.js';
import type { Shape } from './shape.js';
import {
  asIs,
  type DeleteFrame,
  type EnvelopeA,
  type ItemFieldsA,
  type ItemFrameA,
  type ItemFrameB,
  type ItemRowA,
  type ItemRowB,
  type MasterText,
  type Piece,
  type WrappedKeyB,
} from './frames.js';
import { isUlid, ULID } from './ids.js';
import {
  isContentType,
  type Blob,
  type ContentType,
  type Inline,
  type Item,
  type ItemWrite,
  type LiveItem,
  type MasterWrap,
  type SealedKeys,
} from './item.js';
import {
  AEAD_TAG_BYTES,
  INLINE_CIPHERTEXT_MAX,
  MASTER_WRAP_BYTES,
  NONCE_BYTES,
  SEALED_KEY_MAX,
  SEALED_KEY_MIN,
  SEALED_KEYS_PER_ITEM,
  SIG_BYTES,
} from './limits.js';
import type { EnvelopeBody, ItemBodyA, ItemBodyB, MasterBody, WrappedKeyBody } from './requests.js';

/** `always`: every write carries a sig. `a`: every shape A payloadEnc does. `never`: nobody has to (contract 2). */
export type RequireSig = 'always' | 'a' | 'never';

/** Decodes base64 of exactly `length` bytes, or says which field is wrong. */
export function bytesField(path: string, value: string, length: number): Uint8Array {
  const bytes = decodeBase64(value);
  if (bytes === undefined) throw invalid(path, 'must be base64 or base64url without white space');
  if (bytes.length !== length) throw invalid(path, `must be ${length} bytes, got ${bytes.length}`);
  return bytes;
}

/** Decodes base64 of `min` to `max` bytes, or says which field is wrong. */
export function bytesWithin(path: string, value: string, min: number, max: number): Uint8Array {
  const bytes = decodeBase64(value);
  if (bytes === undefined) throw invalid(path, 'must be base64 or base64url without white space');
  if (bytes.length < min || bytes.length > max)
    throw invalid(path, `must be ${min} to ${max} bytes, got ${bytes.length}`);
  return bytes;
}

function contentType(type: string): ContentType {
  if (!isContentType(type)) throw new ServiceError('unknown_type', undefined, { path: 'type' });
  return type;
}

function ciphertext(path: string, value: string): Uint8Array {
  const ct = decodeBase64(value);
  if (ct === undefined) throw invalid(path, 'must be base64 or base64url without white space');
  if (ct.length > INLINE_CIPHERTEXT_MAX) throw new ServiceError('item_too_large', undefined, { path });
  if (ct.length < AEAD_TAG_BYTES) throw invalid(path, `must be at least ${AEAD_TAG_BYTES} bytes, got ${ct.length}`);
  return ct;
}

function master(path: string, body: MasterBody | null | undefined): MasterWrap | null {
  if (body === null || body === undefined) return null;
  return {
    nonce: bytesField(`${path}.nonce`, body.nonce, NONCE_BYTES),
    ct: bytesField(`${path}.ct`, body.ct, MASTER_WRAP_BYTES),
  };
}

function tag(path: string, value: string | null | undefined): Uint8Array | null {
  return value === null || value === undefined ? null : bytesField(path, value, SIG_BYTES);
}

function sealedKeys(path: string, entries: Iterable<readonly [string, string]>, count: number): SealedKeys {
  if (count > SEALED_KEYS_PER_ITEM) throw invalid(path, `at most ${SEALED_KEYS_PER_ITEM} keys`);
  const keys = new Map<string, Uint8Array>();
  for (const [device, key] of entries) {
    if (!isUlid(device)) throw invalid(path, `a device id must match ${ULID.source}`);
    if (keys.has(device)) throw invalid(`${path}.${device}`, 'given twice');
    keys.set(device, bytesWithin(`${path}.${device}`, key, SEALED_KEY_MIN, SEALED_KEY_MAX));
  }
  return keys;
}

const keysOfMap = (path: string, map: Record<string, string>): SealedKeys => {
  const entries = Object.entries(map);
  return sealedKeys(path, entries, entries.length);
};

const keysOfArray = (path: string, array: readonly WrappedKeyBody[]): SealedKeys =>
  sealedKeys(
    path,
    array.map((entry) => [entry.deviceId, entry.key] as const),
    array.length,
  );

function blobRef(value: string): string {
  // The name is opaque to clients; a name that could never have been handed out is simply not there.
  if (!/^[0-9A-Za-z._-]{1,64}$/.test(value)) throw new ServiceError('blob_not_found', undefined, { path: 'blobRef' });
  return value;
}

/**
 * An envelope. Beside a blob (`mayBeEmpty`) an empty ct is allowed and means: no metadata (contract 5); its nonce and
 * keys are not kept then, but have to fit all the same.
 */
function inlineA(body: EnvelopeBody, mayBeEmpty: boolean): Inline | null {
  const nonce = bytesField('payloadEnc.nonce', body.nonce, NONCE_BYTES);
  const keys = keysOfMap('payloadEnc.keys', body.keys);
  return mayBeEmpty && body.ct === '' ? null : { ct: ciphertext('payloadEnc.ct', body.ct), nonce, keys };
}

/** As `inlineA`, of shape B. */
function inlineB(body: ItemBodyB, mayBeEmpty: boolean): Inline | null {
  const nonce = bytesField('nonce', body.nonce, NONCE_BYTES);
  const keys = keysOfArray('wrapped', body.wrapped);
  return mayBeEmpty && body.ct === '' ? null : { ct: ciphertext('ct', body.ct), nonce, keys };
}

/** A shape A body that fits its schema as an internal write. Throws `validation`, `item_too_large`, `unknown_type`. */
export function decodeWriteA(body: ItemBodyA, requireSig: RequireSig): ItemWrite {
  const type = contentType(body.type);
  const envelope = body.payloadEnc ?? null;
  const ref = body.blobRef ?? null;
  if (envelope === null && ref === null) throw invalid('payloadEnc', 'payloadEnc or blobRef is required');
  let blob: Blob | null = null;
  if (ref !== null) {
    if (typeof body.blobNonce !== 'string') throw invalid('blobNonce', 'required beside blobRef');
    if (!body.blobKeys) throw invalid('blobKeys', 'required beside blobRef');
    blob = {
      ref: blobRef(ref),
      nonce: bytesField('blobNonce', body.blobNonce, NONCE_BYTES),
      keys: keysOfMap('blobKeys', body.blobKeys),
    };
  } else if ((body.blobNonce ?? null) !== null || (body.blobKeys ?? null) !== null) {
    throw invalid('blobRef', 'required beside blobNonce or blobKeys');
  }
  const path = envelope === null ? '' : 'payloadEnc.';
  const source = envelope ?? body;
  const sig = tag(`${path}sig`, source.sig);
  if (sig === null && (requireSig === 'always' || (requireSig === 'a' && envelope !== null))) {
    throw invalid(`${path}sig`, `required, ${SIG_BYTES} bytes`);
  }
  return {
    id: body.id,
    binId: body.binId,
    type,
    ts: body.ts,
    ifVersion: body.ifVersion ?? null,
    inline: envelope === null ? null : inlineA(envelope, blob !== null),
    blob,
    master: master(`${path}master`, source.master),
    sig,
  };
}

/** A shape B body that fits its schema (keys camelCase) as an internal write. Throws as `decodeWriteA`. */
export function decodeWriteB(body: ItemBodyB, requireSig: RequireSig): ItemWrite {
  const type = contentType(body.type);
  const ref = body.blobRef ?? null;
  if (ref === null && ((body.blobNonce ?? null) !== null || (body.blobKeys ?? null) !== null)) {
    throw invalid('blob_ref', 'required beside blob_nonce or blob_keys');
  }
  const inline = inlineB(body, ref !== null);
  const sig = tag('sig', body.sig);
  if (sig === null && requireSig === 'always') throw invalid('sig', `required, ${SIG_BYTES} bytes`);
  return {
    id: body.id,
    binId: body.binId,
    type,
    ts: body.ts,
    ifVersion: body.ifVersion ?? null,
    inline,
    blob: ref === null ? null : blobOfB(ref, body, inline === null),
    master: master('master', body.master),
    sig,
  };
}

/** As the specification writes a B blob, `nonce` and `wrapped` are the blob's own (contract 2). */
function blobOfB(ref: string, body: ItemBodyB, blobOnly: boolean): Blob {
  const named = typeof body.blobNonce === 'string';
  if (!named && !blobOnly) throw invalid('blob_nonce', 'required beside blob_ref and ct');
  if (named && !blobOnly && !body.blobKeys) throw invalid('blob_keys', 'required beside blob_nonce');
  return {
    ref: blobRef(ref),
    nonce: bytesField(named ? 'blob_nonce' : 'nonce', body.blobNonce ?? body.nonce, NONCE_BYTES),
    keys: body.blobKeys ? keysOfArray('blob_keys', body.blobKeys) : keysOfArray('wrapped', body.wrapped),
  };
}

/**
 * A path of a refused write as shape B names it. The inner rings name fields as shape A does; B keeps the item's own
 * keys in `wrapped`, and a blob's too where the write has no `blob_keys` (contract 2).
 */
export function pathInB(path: string, body: Pick<ItemBodyB, 'blobKeys'>): string {
  const own = body.blobKeys ? /^payloadEnc\.keys(?=$|\.)/ : /^(payloadEnc\.keys|blobKeys)(?=$|\.)/;
  return path.replace(own, 'wrapped');
}

// Encoding. Built by joining text: every value is a checked id, a number or base64, so nothing needs escaping,
// and a push to many devices costs one join instead of a walk by JSON.stringify. A `Piece` holds the keys to their types.

const masterPiece: Piece<MasterText> = asIs;
const sealPiece: Piece<Pick<EnvelopeA, 'master' | 'sig'> & Pick<ItemFieldsA, 'master' | 'sig'>> = asIs;
const envelopePiece: Piece<EnvelopeA> = asIs;
const fieldsPiece: Piece<ItemFieldsA> = asIs;
const wrappedPiece: Piece<WrappedKeyB> = asIs;
const rowPieceB: Piece<ItemRowB> = asIs;
const deletePiece: Piece<DeleteFrame> = asIs;
const typePieceA: Piece<Pick<ItemRowA, 'type'>> = asIs;
const framePieceA: Piece<Pick<ItemFrameA, 'type' | 'itemType'>> = asIs;
const framePieceB: Piece<ItemFrameB> = asIs;

function keysA(keys: SealedKeys): string {
  let out = '';
  for (const [device, key] of keys) out += `${out === '' ? '' : ','}"${device}":"${toBase64Url(key)}"`;
  return `{${out}}`;
}

function keysB(keys: SealedKeys): string {
  let out = '';
  for (const [device, key] of keys) {
    out += (out === '' ? '' : ',') + wrappedPiece(`{"device_id":"${device}","key":"${toBase64(key)}"}`);
  }
  return `[${out}]`;
}

const quoted = (value: string | null): string => (value === null ? 'null' : `"${value}"`);

function masterText(wrap: MasterWrap, out: (bytes: Uint8Array) => string): string {
  return masterPiece(`{"nonce":"${out(wrap.nonce)}","ct":"${out(wrap.ct)}"}`);
}

/** `master` and `sig` of a live item, each with a leading comma, where they are present. */
function sealA(item: LiveItem): string {
  return (
    (item.master === null ? '' : sealPiece(`,"master":${masterText(item.master, toBase64Url)}`)) +
    (item.sig === null ? '' : sealPiece(`,"sig":"${toBase64Url(item.sig)}"`))
  );
}

function payloadA(item: LiveItem): string {
  const { inline, blob } = item;
  const envelope =
    inline === null
      ? 'null'
      : envelopePiece(
          `{"ct":"${toBase64Url(inline.ct)}","nonce":"${toBase64Url(inline.nonce)}","keys":${keysA(inline.keys)}${sealA(item)}}`,
        );
  const blobFields =
    blob === null
      ? fieldsPiece('"blobRef":null,"blobNonce":null,"blobKeys":null')
      : fieldsPiece(`"blobRef":"${blob.ref}","blobNonce":"${toBase64Url(blob.nonce)}","blobKeys":${keysA(blob.keys)}`);
  return fieldsPiece(`"payloadEnc":${envelope},${blobFields}${inline === null ? sealA(item) : ''}`);
}

/** `type` is the text that says the item's type: its key differs between row and frame, and it stands after the ids. */
function fieldsA(item: Item, type: string): string {
  const head =
    fieldsPiece(`"id":"${item.id}","binId":"${item.binId}",${type},"senderDevice":${quoted(item.senderDevice)},`) +
    fieldsPiece(`"ts":${item.ts},"version":${item.version},"deletedAt":${item.deletedAt}`);
  if (item.deletedAt === null) return `${head},${payloadA(item)}`;
  const sig = item.sig === null ? '' : fieldsPiece(`,"sig":"${toBase64Url(item.sig)}"`);
  return head + fieldsPiece(',"payloadEnc":null,"blobRef":null,"blobNonce":null,"blobKeys":null') + sig;
}

const tagB = (item: Item): string => quoted(item.sig === null ? null : toBase64(item.sig));

function payloadB(item: LiveItem): string {
  const { inline, blob } = item;
  // A blob without metadata reads back as the specification writes it: its nonce and keys stand in the item's place.
  const own = inline ?? {
    ct: new Uint8Array(0),
    nonce: blob?.nonce ?? new Uint8Array(0),
    keys: blob?.keys ?? new Map(),
  };
  return (
    rowPieceB(`"ct":"${toBase64(own.ct)}","nonce":"${toBase64(own.nonce)}","wrapped":${keysB(own.keys)},`) +
    rowPieceB(`"master":${item.master === null ? 'null' : masterText(item.master, toBase64)},"sig":${tagB(item)},`) +
    (blob === null
      ? rowPieceB('"blob_ref":null,"blob_nonce":null,"blob_keys":null')
      : rowPieceB(`"blob_ref":"${blob.ref}","blob_nonce":"${toBase64(blob.nonce)}","blob_keys":${keysB(blob.keys)}`))
  );
}

function fieldsB(item: Item): string {
  const head =
    rowPieceB(`"id":"${item.id}","version":${item.version},"bin_id":"${item.binId}","type":${quoted(item.type)},`) +
    rowPieceB(`"sender_device":${quoted(item.senderDevice)},"ts":${item.ts},"deleted_at":${item.deletedAt}`);
  if (item.deletedAt === null) return `${head},${payloadB(item)}`;
  const gone = rowPieceB(',"ct":null,"nonce":null,"wrapped":null,"master":null,');
  return head + gone + rowPieceB(`"sig":${tagB(item)},"blob_ref":null,"blob_nonce":null,"blob_keys":null`);
}

/** An item as a row of `GET /items`, as JSON text. */
export const rowText = (shape: Shape, item: Item): string =>
  shape === 'a' ? `{${fieldsA(item, typePieceA(`"type":${quoted(item.type)}`))}}` : `{${fieldsB(item)}}`;

/** The frame that brings an item's latest state to a socket: `item`, or `delete` for a deleted one (specification, Events). */
export function frameText(shape: Shape, item: Item): string {
  if (item.deletedAt !== null) {
    const out = shape === 'a' ? toBase64Url : toBase64;
    const sig = item.sig === null ? '' : deletePiece(`,"sig":"${out(item.sig)}"`);
    return deletePiece(`{"type":"delete","id":"${item.id}","version":${item.version}${sig}}`);
  }
  if (shape === 'b') return framePieceB(`{"type":"item","item":{${fieldsB(item)}}}`);
  return `${framePieceA('{"type":"item",')}${fieldsA(item, framePieceA(`"itemType":${quoted(item.type)}`))}}`;
}
