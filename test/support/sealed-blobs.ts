/** Blobs held as a whole: what tests compare streams with. */
import { BlobEncryptor } from '../../src/crypto/blob-stream.js';
import type { SealedItem } from '../../src/crypto/item-tag.js';
import { blobDecryptor, draftBlob, itemAad, type BlobDraft, type Reader } from '../../src/crypto/item.js';
import type { Sodium } from '../../src/crypto/sodium.js';
import { concat } from '../../src/protocol/bytes.js';
import type { ContentType } from '../../src/protocol/item.js';
import { NONCE_BYTES } from '../../src/protocol/limits.js';

/** What is encrypted, and for what the item will be. */
interface WholeBlob {
  readonly type: ContentType;
  readonly ts: number;
  readonly bytes: Uint8Array;
}

/** A blob in chunks. */
export function sealBlob(sodium: Sodium, { bytes, ...head }: WholeBlob): BlobDraft & { readonly ct: Uint8Array } {
  const draft = draftBlob(sodium, head);
  const encryptor = new BlobEncryptor(sodium, { ...draft, aad: itemAad(draft) });
  return { ...draft, ct: concat([...encryptor.push(bytes), encryptor.finish()]) };
}

/** A blob in one piece, as a client that knows no chunks writes it. */
export function sealOnePiece(sodium: Sodium, blob: WholeBlob): BlobDraft & { readonly ct: Uint8Array } {
  const nonce = sodium.random(NONCE_BYTES);
  const draft = { ...draftBlob(sodium, blob), nonce };
  return { ...draft, ct: sodium.aeadEncrypt({ message: blob.bytes, aad: itemAad(blob), nonce, key: draft.key }) };
}

/** The plaintext of a downloaded blob of either form. */
export function openBlob(
  sodium: Sodium,
  { item, ct }: { readonly item: SealedItem; readonly ct: Uint8Array },
  reader: Reader,
): Uint8Array {
  const decryptor = blobDecryptor(sodium, item, reader);
  return concat([...decryptor.push(ct), decryptor.finish()]);
}

/** For devices of tests that upload nothing. */
export const noBlobs = { upload: (): Promise<never> => Promise.reject(new Error('this test uploads nothing')) };
