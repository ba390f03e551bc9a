/**
 * What a device keeps of an upload that it began, until the item is written: key and nonce of the blob, and a hash of
 * each block of plaintext that was encrypted under them (reference, Cryptography, "An upload that goes on").
 */
import { concat, text } from '../protocol/bytes.js';
import { NONCE_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import { b32, erasing, type Sodium } from './sodium.js';

const KEEP_CONTEXT = text(`${SERVICE_NAME}-begun-upload-v1`);
const HASH_CONTEXT = text(`${SERVICE_NAME}-upload-block-v1`);

/** Whose record it is: a record that is put in the place of another item's does not open. */
interface Kept {
  readonly masterKey: Uint8Array;
  /** Of the item to be. */
  readonly id: string;
}

/** Encrypts a record: nonce (24 bytes), then XChaCha20-Poly1305 under B32("service-begun-upload-v1", key = master). */
export const sealBegun = (sodium: Sodium, record: Uint8Array, { masterKey, id }: Kept): Uint8Array =>
  erasing(sodium, b32(sodium, KEEP_CONTEXT, masterKey), (key) => {
    const nonce = sodium.random(NONCE_BYTES);
    return concat([nonce, sodium.aeadEncrypt({ message: record, aad: text(id), nonce, key })]);
  });

/** The record; undefined where it was changed, or is another item's. */
export const openBegun = (sodium: Sodium, sealed: Uint8Array, { masterKey, id }: Kept): Uint8Array | undefined =>
  erasing(sodium, b32(sodium, KEEP_CONTEXT, masterKey), (key) => {
    if (sealed.length < NONCE_BYTES) return undefined;
    const [nonce, message] = [sealed.subarray(0, NONCE_BYTES), sealed.subarray(NONCE_BYTES)];
    return sodium.aeadDecrypt({ message, aad: text(id), nonce, key });
  });

/** BLAKE2b-256 of a block, under a key of the blob's own: equal blocks of two uploads do not show as equal. */
export const blockHash = (sodium: Sodium, block: Uint8Array, blobKey: Uint8Array): Uint8Array =>
  erasing(sodium, b32(sodium, HASH_CONTEXT, blobKey), (key) => b32(sodium, block, key));
