/** Decodes items of shape A into the model (SHAPE-14 to 24), and binary fields. */
import { decodeBase64 } from './base64.js';
import { invalid, ServiceError } from './errors.js';
import { isUlid, ULID } from './ids.js';
import {
  isContentType,
  type Blob,
  type ContentType,
  type Inline,
  type ItemWrite,
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
import type { EnvelopeBody, ItemBodyA, MasterBody } from './requests.js';

/** Which writes need a sig: all, those with a payloadEnc of shape A, or none (reference, HTTP, The two shapes). */
export type RequireSig = 'always' | 'a' | 'never';

function decoded(path: string, value: string): Uint8Array {
  const bytes = decodeBase64(value);
  if (bytes === undefined) throw invalid(path, 'must be base64 or base64url without white space');
  return bytes;
}

/** Decodes base64 of exactly `length` bytes. Throws `validation`. */
export function bytesField(path: string, value: string, length: number): Uint8Array {
  const bytes = decoded(path, value);
  if (bytes.length !== length) throw invalid(path, `must be ${length} bytes, got ${bytes.length}`);
  return bytes;
}

/** Decodes base64 of `min` to `max` bytes. Throws `validation`. */
export function bytesWithin(path: string, value: string, min: number, max: number): Uint8Array {
  const bytes = decoded(path, value);
  if (bytes.length < min || bytes.length > max)
    throw invalid(path, `must be ${min} to ${max} bytes, got ${bytes.length}`);
  return bytes;
}

function contentType(type: string): ContentType {
  if (!isContentType(type)) throw new ServiceError('unknown_type', undefined, { path: 'type' });
  return type;
}

function ciphertext(path: string, value: string): Uint8Array {
  const ct = decoded(path, value);
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

/** A MAC of 32 bytes (an item tag, a device certificate, a confirmation), or null if absent. Throws `validation`. */
export function macField(path: string, value: string | null | undefined): Uint8Array | null {
  return value === null || value === undefined ? null : bytesField(path, value, SIG_BYTES);
}

function sealedKeys(path: string, map: Record<string, string>): SealedKeys {
  const entries = Object.entries(map);
  if (entries.length > SEALED_KEYS_PER_ITEM) throw invalid(path, `at most ${SEALED_KEYS_PER_ITEM} keys`);
  const keys = new Map<string, Uint8Array>();
  for (const [device, key] of entries) {
    if (!isUlid(device)) throw invalid(path, `a device id must match ${ULID.source}`);
    keys.set(device, bytesWithin(`${path}.${device}`, key, SEALED_KEY_MIN, SEALED_KEY_MAX));
  }
  return keys;
}

function blobRef(value: string): string {
  // The name is opaque to clients: a malformed one is reported as missing.
  if (!/^[0-9A-Za-z._-]{1,64}$/.test(value)) throw new ServiceError('blob_not_found', undefined, { path: 'blobRef' });
  return value;
}

/**
 * An envelope. Beside a blob (`mayBeEmpty`) an empty ct means no metadata (reference, HTTP, Writing an item). Nonce and
 * keys are then validated but dropped.
 */
function inlineA(body: EnvelopeBody, mayBeEmpty: boolean): Inline | null {
  const nonce = bytesField('payloadEnc.nonce', body.nonce, NONCE_BYTES);
  const keys = sealedKeys('payloadEnc.keys', body.keys);
  return mayBeEmpty && body.ct === '' ? null : { ct: ciphertext('payloadEnc.ct', body.ct), nonce, keys };
}

/** Decodes a shape A body that fits its schema. Throws `validation`, `item_too_large`, `unknown_type`. */
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
      keys: sealedKeys('blobKeys', body.blobKeys),
    };
  } else if ((body.blobNonce ?? null) !== null || (body.blobKeys ?? null) !== null) {
    throw invalid('blobRef', 'required beside blobNonce or blobKeys');
  }
  const path = envelope === null ? '' : 'payloadEnc.';
  const source = envelope ?? body;
  const sig = macField(`${path}sig`, source.sig);
  if (sig === null && (requireSig === 'always' || (requireSig === 'a' && envelope !== null)))
    throw invalid(`${path}sig`, `required, ${SIG_BYTES} bytes`);
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
