/** Decodes bodies of changes, already checked by schema, straight into the arena, in either shape (SHAPE-14 to 24). */
import { CONTENT_TYPES } from '../../protocol/item.js';
import { invalid, ServiceError } from '../../protocol/errors.js';
import { ULID } from '../../protocol/ids.js';
import type { RequireSig } from '../../protocol/request-fields.js';
import {
  AEAD_TAG_BYTES,
  SEALED_KEY_MAX,
  SEALED_KEY_MIN,
  SEALED_KEYS_PER_ITEM,
  SIG_BYTES,
} from '../../protocol/limits.js';
import type { EnvelopeBody, ItemBodyA, ItemBodyB, MasterBody, WrappedKeyBody } from '../../protocol/requests.js';
import {
  type Arena,
  base64Length,
  beginChange,
  type Change,
  type ChangeKind,
  finishWrite,
  NO_LENGTH,
  putBase64,
  takeCiphertext,
} from './change.js';
import {
  BLOB_NONCE,
  ENTRY_HEAD,
  type FixedPart,
  HAS,
  MASTER_CT,
  MASTER_NONCE,
  NONCE,
  NONCE_AT,
  SIG,
  SIG_AT,
  sortKeys,
  ULID_CHARS,
} from './codec.js';

const notBase64 = (path: string): ServiceError => invalid(path, 'must be base64 or base64url without white space');
/** Decodes a part to its place. Throws `validation` with the field's path. */
function putFixed(change: Change, part: FixedPart, path: string, text: string): void {
  const length = base64Length(text);
  if (length !== part.bytes && length !== NO_LENGTH) throw invalid(path, `must be ${part.bytes} bytes, got ${length}`);
  if (!putBase64(change.bytes, change.at + part.at, text, length)) throw notBase64(path);
  change.has |= part.bit;
}

function putCiphertext(change: Change, path: string, text: string): void {
  const wrong = takeCiphertext(change, text);
  if (wrong === 'long') throw new ServiceError('item_too_large', undefined, { path });
  if (wrong === 'short') throw invalid(path, `must be at least ${AEAD_TAG_BYTES} bytes, got ${base64Length(text)}`);
  if (wrong === 'malformed') throw notBase64(path);
}

/** Keys as shape B has them: devices, and the keys sealed to them as text. */
type KeyTexts = readonly WrappedKeyBody[];

/** Keys of shape A, which has a map. */
function ofMap(map: Record<string, string> | null | undefined): KeyTexts {
  const keys: WrappedKeyBody[] = [];
  for (const deviceId in map) keys.push({ deviceId, key: map[deviceId] ?? '' });
  return keys;
}

/** Upper bound of the bytes of a list of keys. */
const roomFor = (keys: KeyTexts): number => keys.reduce((room, { key }) => room + ENTRY_HEAD + key.length, 0);

/** Writes a list of keys and returns its length in bytes. Sorts it, since the same write may arrive in another order. */
function putKeys({ bytes }: Change, from: number, path: string, keys: KeyTexts): number {
  if (keys.length > SEALED_KEYS_PER_ITEM) throw invalid(path, `at most ${SEALED_KEYS_PER_ITEM} keys`);
  let at = from;
  for (const { deviceId: device, key: text } of keys) {
    if (!ULID.test(device)) throw invalid(path, `a device id must match ${ULID.source}`);
    const length = base64Length(text);
    if ((length < SEALED_KEY_MIN && length !== NO_LENGTH) || length > SEALED_KEY_MAX)
      throw invalid(`${path}.${device}`, `must be ${SEALED_KEY_MIN} to ${SEALED_KEY_MAX} bytes, got ${length}`);
    if (!putBase64(bytes, at + ENTRY_HEAD, text, length)) throw notBase64(`${path}.${device}`);
    bytes.write(device, at, 'latin1');
    bytes.writeUInt16BE(length, at + ULID_CHARS);
    at += ENTRY_HEAD + length;
  }
  const twice = sortKeys(bytes, from, at);
  if (twice !== '') throw invalid(`${path}.${twice}`, 'given twice');
  return at - from;
}

function putMaster(change: Change, path: string, master: MasterBody | null | undefined): void {
  if (master === null || master === undefined) return;
  putFixed(change, MASTER_NONCE, `${path}.nonce`, master.nonce);
  putFixed(change, MASTER_CT, `${path}.ct`, master.ct);
}

function putBlobRef(change: Change, ref: string): void {
  // The name is opaque to clients; one that could never have been issued is reported as not found.
  if (!/^[0-9A-Za-z._-]{1,64}$/.test(ref)) throw new ServiceError('blob_not_found', undefined, { path: 'blobRef' });
  change.blobRef = ref;
}

function takeHead(change: Change, body: ItemBodyA | ItemBodyB): void {
  const { id, binId, type, ts, ifVersion } = body;
  const known = CONTENT_TYPES.find((one) => one === type);
  if (known === undefined) throw new ServiceError('unknown_type', undefined, { path: 'type' });
  change.id = id;
  change.binId = binId;
  change.type = known;
  change.ts = ts;
  change.ifVersion = ifVersion ?? null;
}

function putSig(change: Change, path: string, sig: string | null | undefined, required: boolean): void {
  if (sig !== null && sig !== undefined) putFixed(change, SIG, path, sig);
  else if (required) throw invalid(path, `required, ${SIG_BYTES} bytes`);
}

/** Whether a write has fields of a blob, and names none. */
const isStray = ({ blobRef, blobNonce, blobKeys }: Pick<ItemBodyA | ItemBodyB, 'blobRef' | 'blobNonce' | 'blobKeys'>) =>
  (blobRef ?? null) === null && (blobNonce ?? blobKeys ?? null) !== null;

/**
 * Decodes a shape A body that fits its schema into a change. Its bytes are pinned in the arena until `arena.unpin`,
 * when it is answered. Throws `validation`, `item_too_large`, `unknown_type`, `blob_not_found`, `unavailable`; then
 * nothing is pinned.
 */
export function decodeWriteA(arena: Arena, body: ItemBodyA, requireSig: RequireSig): Change {
  const envelope = body.payloadEnc ?? null;
  const ref = body.blobRef ?? null;
  const [keys, blobKeys] = [ofMap(envelope?.keys), ofMap(body.blobKeys)];
  const change = beginChange(arena, 'write', (envelope?.ct.length ?? 0) + roomFor(keys) + roomFor(blobKeys));
  takeHead(change, body);
  if (envelope === null && ref === null) throw invalid('payloadEnc', 'payloadEnc or blobRef is required');
  if (isStray(body)) throw invalid('blobRef', 'required beside blobNonce or blobKeys');
  const path = envelope === null ? '' : 'payloadEnc.';
  const { sig, master } = envelope ?? body;
  putSig(change, `${path}sig`, sig, requireSig === 'always' || (requireSig === 'a' && envelope !== null));
  if (envelope !== null) putInline(change, AT_A, { ct: envelope.ct, nonce: envelope.nonce, keys }, ref !== null);
  if (ref !== null) putBlobA(change, ref, body, blobKeys);
  putMaster(change, `${path}master`, master);
  return finishWrite(arena, change);
}

type Inline = Pick<EnvelopeBody, 'ct' | 'nonce'> & { readonly keys: KeyTexts };
const AT_A = { ct: 'payloadEnc.ct', nonce: 'payloadEnc.nonce', keys: 'payloadEnc.keys' };
const AT_B = { ct: 'ct', nonce: 'nonce', keys: 'wrapped' };

/**
 * The payload in the item itself. With a blob (`mayBeEmpty`) an empty ct is allowed and means: no metadata. Nonce and
 * keys are validated then but not kept: the blob has its own.
 */
function putInline(change: Change, at: typeof AT_A, { ct, nonce, keys }: Inline, mayBeEmpty: boolean): void {
  putFixed(change, NONCE, at.nonce, nonce);
  const empty = mayBeEmpty && ct === '';
  if (!empty) putCiphertext(change, at.ct, ct);
  change.keysBytes = putKeys(change, change.keysAt, at.keys, keys);
  if (!empty) return;
  change.bytes.fill(0, change.at + NONCE_AT, change.at + SIG_AT);
  change.has &= ~HAS.nonce;
  change.keysBytes = 0;
}

function putBlobA(change: Change, ref: string, { blobNonce, blobKeys }: ItemBodyA, keys: KeyTexts): void {
  if (typeof blobNonce !== 'string') throw invalid('blobNonce', 'required beside blobRef');
  if (!blobKeys) throw invalid('blobKeys', 'required beside blobRef');
  putBlobRef(change, ref);
  putFixed(change, BLOB_NONCE, 'blobNonce', blobNonce);
  change.blobKeysBytes = putKeys(change, change.blobKeysAt, 'blobKeys', keys);
}

/** Decodes a shape B body that fits its schema (keys camelCase) into a change; see `decodeWriteA`. */
export function decodeWriteB(arena: Arena, body: ItemBodyB, requireSig: RequireSig): Change {
  const ref = body.blobRef ?? null;
  const { ct, nonce, wrapped } = body;
  const change = beginChange(arena, 'write', ct.length + roomFor(wrapped) + roomFor(body.blobKeys ?? wrapped));
  takeHead(change, body);
  if (isStray(body)) throw invalid('blob_ref', 'required beside blob_nonce or blob_keys');
  putSig(change, 'sig', body.sig, requireSig === 'always');
  putInline(change, AT_B, { ct, nonce, keys: wrapped }, ref !== null);
  if (ref !== null) putBlobB(change, ref, body);
  putMaster(change, 'master', body.master);
  return finishWrite(arena, change);
}

/** For a shape B blob without `blob_nonce`, `nonce` and `wrapped` are the blob's own (SHAPE-19). */
function putBlobB(change: Change, ref: string, { nonce, wrapped, blobNonce, blobKeys }: ItemBodyB): void {
  const named = typeof blobNonce === 'string';
  const blobOnly = (change.has & HAS.inline) === 0;
  if (!named && !blobOnly) throw invalid('blob_nonce', 'required beside blob_ref and ct');
  if (named && !blobOnly && !blobKeys) throw invalid('blob_keys', 'required beside blob_nonce');
  putBlobRef(change, ref);
  putFixed(change, BLOB_NONCE, named ? 'blob_nonce' : 'nonce', blobNonce ?? nonce);
  const path = blobKeys ? 'blob_keys' : 'wrapped';
  change.blobKeysBytes = putKeys(change, change.blobKeysAt, path, blobKeys ?? wrapped);
}

/** A delete, or a move, which contains only its tag. `sig`, if given, has 32 bytes. Pinned like a write. */
export function tagged(arena: Arena, kind: Exclude<ChangeKind, 'write'>, sig: string | null | undefined): Change {
  const change = beginChange(arena, kind, 0);
  putSig(change, 'sig', sig, false);
  arena.pin(change.segment, change.end);
  return change;
}
