/** The content of an item as records of an export, which follow the item, and back. */
import { CryptoRefusal } from '../../crypto/refusal.js';
import { portionsOf, type BlobSource } from '../blobs/source.js';
import { ApiError, ClientError } from '../errors.js';
import { ArchiveError, type ArchivedPart, type ArchiveRecord, PART_BYTES } from './records.js';

/**
 * True where the content of a file is left out of an export and the export goes on: the server does not have it, not as it
 * was written, or does not give it to a device that was revoked. Any other error ends the export.
 */
export const isLacking = (error: unknown): boolean =>
  error instanceof CryptoRefusal ||
  (error instanceof ApiError && error.code === 'blob_not_found') ||
  (error instanceof ClientError && error.code === 'revoked');

/** The bytes of a source as records. Throws `ClientError` `source_changed` where there are more or fewer than it says. */
export async function* partsOf(content: BlobSource): AsyncGenerator<ArchivedPart> {
  let left = content.size;
  for await (const piece of portionsOf(content))
    for (let at = 0; at < piece.length; at += PART_BYTES) {
      const data = piece.subarray(at, at + PART_BYTES);
      left -= data.length;
      yield { record: 'part', data };
    }
  if (left !== 0) throw new ClientError('source_changed', 'a file was changed while it was read');
}

/** The content of the item just read: a survey has verified that parts of `length` bytes follow it. */
export async function* contentOf(records: AsyncGenerator<ArchiveRecord>, length: number): AsyncGenerator<Uint8Array> {
  for (let left = length; left > 0;) {
    const next = await records.next();
    if (next.done === true || next.value.record !== 'part')
      throw new ArchiveError('bad_record', 'the content of an item is not whole');
    left -= next.value.data.length;
    yield next.value.data;
  }
}
