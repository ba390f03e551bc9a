/** Converts the content of an item to the records of an export that follow the item, and back. */
import { CryptoRefusal } from '../../crypto/refusal.js';
import { portionsOf, type BlobSource } from '../blobs/source.js';
import { ApiError, ClientError } from '../errors.js';
import { ArchiveError, type ArchivedPart, type ArchiveRecord, PART_BYTES } from './records.js';

/**
 * True for errors after which an export continues without the content of the file: the server does not have it, has
 * other bytes than were written, or refuses it because this device was revoked. Any other error ends the export.
 */
export const isLacking = (error: unknown): boolean =>
  error instanceof CryptoRefusal ||
  (error instanceof ApiError && error.code === 'blob_not_found') ||
  (error instanceof ClientError && error.code === 'revoked');

/** The bytes of a source as records. Throws `ClientError` `source_changed` where their number differs from its size. */
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
