/** Blobs as a device's owner has them: the bytes of an item's file, and payloads too large for an item. */
import { blobDecryptor, type BlobDraft } from '../../crypto/item.js';
import { payloadObject, type JsonObject } from '../../crypto/payload.js';
import { CryptoRefusal } from '../../crypto/refusal.js';
import { concat } from '../../protocol/bytes.js';
import type { Blob, LiveItem } from '../../protocol/item.js';
import type { Core } from '../core.js';
import { ClientError } from '../errors.js';
import { PAYLOAD_MAX } from '../payloads/large.js';
import { holdsFile } from '../payloads/shapes.js';
import type { DownloadUrl } from '../replies.js';
import { downloadBlob, type DownloadPorts } from './download.js';
import { blobAddress } from './exchange.js';
import type { BlobSource, TransferOptions } from './source.js';
import { uploadBlob, type UploadedBlob, type UploadPorts } from './upload.js';

/** Uploads and downloads. */
export class Blobs {
  constructor(private readonly options: UploadPorts & DownloadPorts & Pick<Core, 'reader'>) {}

  /** See `uploadBlob`. */
  upload(head: Pick<BlobDraft, 'type' | 'ts'>, source: BlobSource, options?: TransferOptions): Promise<UploadedBlob> {
    return uploadBlob(this.options, { head, source }, options);
  }

  /**
   * The plaintext of an item's blob, chunk by chunk. Throws `CryptoRefusal` of the item, `ClientError` `no_blob` for an
   * inline one, and then as `downloadBlob`.
   */
  async *read(row: LiveItem, options?: TransferOptions): AsyncGenerator<Uint8Array, void, undefined> {
    const { ref } = blobOf(row);
    const decryptor = blobDecryptor(this.options.sodium, row, this.options.reader);
    yield* downloadBlob(this.options, { ref, decryptor }, options);
  }

  /**
   * The whole payload of an item that holds it in its blob. Throws as `read`, `CryptoRefusal` `too_large` over 16 MiB
   * and `bad_payload`, and `ClientError` `no_blob` where the blob is a file.
   */
  async payload(row: LiveItem, options?: TransferOptions): Promise<JsonObject> {
    if (holdsFile(row.type)) throw new ClientError('no_blob', `the blob of ${row.id} is a file, not its payload`);
    const parts: Uint8Array[] = [];
    let length = 0;
    for await (const part of this.read(row, options)) {
      length += part.length;
      if (length > PAYLOAD_MAX) throw new CryptoRefusal('too_large', `the payload of ${row.id} is too large`);
      parts.push(part);
    }
    return payloadObject(concat(parts));
  }

  /** Where the ciphertext is to be had by whoever has the address, without this device's token, for a few minutes. */
  async url(row: LiveItem): Promise<DownloadUrl> {
    const grant = await this.options.api.downloadUrl(blobOf(row).ref);
    return { ...grant, url: blobAddress(grant.url, this.options.baseUrl).href };
  }
}

function blobOf(row: LiveItem): Blob {
  if (row.blob === null) throw new ClientError('no_blob', `item ${row.id} has no blob`);
  return row.blob;
}
