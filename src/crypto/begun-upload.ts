/**
 * The record that a device keeps of an unfinished upload until the item is written: key and nonce of the blob, and a
 * hash of each block of plaintext that was encrypted under them (reference, Cryptography, "An upload that goes on").
 */
import { text } from '../protocol/bytes.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import { b32, erasing, type MasterSecret, openWithNonce, sealWithNonce, type Sodium } from './sodium.js';

const RECORD_CONTEXT = text(`${SERVICE_NAME}-begun-upload-v1`);
const HASH_CONTEXT = text(`${SERVICE_NAME}-upload-block-v1`);

/** `id`: of the future item. */
type RecordKeys = Omit<MasterSecret, 'context'>;

/** Encrypts a record, by `sealWithNonce` under B32("service-begun-upload-v1", key = master). */
export const sealBegun = (sodium: Sodium, record: Uint8Array, keys: RecordKeys): Uint8Array =>
  sealWithNonce(sodium, record, { ...keys, context: RECORD_CONTEXT });

/** The record; undefined if it was changed or belongs to another item. */
export const openBegun = (sodium: Sodium, sealed: Uint8Array, keys: RecordKeys): Uint8Array | undefined =>
  openWithNonce(sodium, sealed, { ...keys, context: RECORD_CONTEXT });

/** BLAKE2b-256 of a block, keyed per blob, so that equal blocks of two uploads have different hashes. */
export const blockHash = (sodium: Sodium, block: Uint8Array, blobKey: Uint8Array): Uint8Array =>
  erasing(sodium, b32(sodium, HASH_CONTEXT, blobKey), (key) => b32(sodium, block, key));
