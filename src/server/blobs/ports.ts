/** The object stores that blobs are kept in. Implementations: objects/. */
import type { BlobName } from '../../protocol/ids.js';
import { UPLOAD_PART_BYTES, UPLOAD_PARTS_MAX } from '../../protocol/limits.js';

/** A request that a client may send to the store directly. */
export interface SignedRequest {
  /** Absolute. */
  readonly url: string;
  /** Headers that the client must send, which the signature covers; lower-case names. */
  readonly headers: Readonly<Record<string, string>>;
}

/** A signed download. It may have been signed before, and then expires earlier than requested. */
export interface SignedDownload extends SignedRequest {
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
}

/** Validity of a download URL, milliseconds since 1970. */
export interface DownloadGrant {
  readonly now: number;
  readonly expiresAt: number;
}

/** What an upload URL admits: one upload of exactly this size and type, before it expires. */
export interface UploadGrant extends DownloadGrant {
  readonly size: number;
  readonly contentType: string;
}

/** An upload that has not ended. */
export interface OpenUpload extends BlobName {
  readonly size: number;
  readonly contentType: string;
  /** The store's identifier of an upload in parts; at Google a URL that itself grants access. Null: a single PUT. */
  readonly session: string | null;
  /** Bytes from the beginning that the store keeps durably, according to the row. */
  readonly kept: number;
}

/** Parameters of a new upload in parts. */
export interface UploadStart {
  readonly size: number;
  readonly contentType: string;
  /** The `Origin` of the page that will send the parts; undefined: the client is no page. */
  readonly page?: string | undefined;
}

/** A part of an upload. Each but the last ends at a multiple of `partSizeOf`. */
export interface PartGrant extends DownloadGrant {
  readonly from: number;
  readonly size: number;
}

const MIB = 1024 * 1024;

/** Part size of an upload of this size, bytes: 5 MiB, or as many MiB as limit the parts to 10,000. */
export const partSizeOf = (size: number): number =>
  Math.max(UPLOAD_PART_BYTES, Math.ceil(size / UPLOAD_PARTS_MAX / MIB) * MIB);

/** An object as the store lists it. */
export interface StoredObject extends BlobName {
  readonly size: number;
  /** Milliseconds since 1970, by the store's clock. */
  readonly modifiedAt: number;
  /**
   * The store's own checksums of the bytes, by the store's names: `etag` (S3; MD5 in hex for an object uploaded in one
   * PUT without a KMS key), `crc32c` and `md5` (Google; base64). Left out if the store reports none.
   */
  readonly checksum?: Readonly<Record<string, string>>;
}

/**
 * A store of objects. Any failed call throws `storage_unavailable`; its cause is logged, without signatures. Signing
 * makes no network call if the server has a key.
 */
export interface ObjectStore {
  readonly kind: 'local' | 'gcs' | 's3';
  /** `origin`: scheme and host at which the client reached this server; used only in the local store's URLs. */
  signUpload(name: BlobName, grant: UploadGrant, origin: string): Promise<SignedRequest>;
  signDownload(name: BlobName, grant: DownloadGrant, origin: string): Promise<SignedDownload>;
  /** Begins an upload in parts; returns its session. Undefined: one PUT (`signUpload`), since it fits into one part. */
  begin(name: BlobName, start: UploadStart): Promise<string | undefined>;
  /** One PUT of an upload in parts. */
  signPart(upload: OpenUpload, part: PartGrant, origin: string): Promise<SignedRequest>;
  /**
   * Bytes from the beginning of an upload in parts that are kept durably; if these are all, the upload is complete, and
   * the object exists under its name. Undefined: the store does not know the upload (any more).
   */
  offsetOf(upload: OpenUpload): Promise<number | undefined>;
  /** Removes the parts of an upload; the store accepts no more of them. Also resolves if there are none. */
  abort(upload: OpenUpload): Promise<void>;
  /** Undefined: there is no such object, or its upload has not ended. */
  head(name: BlobName): Promise<StoredObject | undefined>;
  /** Also resolves if there is no such object. */
  remove(name: BlobName): Promise<void>;
  /** Every object under the prefix, in pages, in the store's order. Keys that are no names of blobs are left out. */
  list(): AsyncIterable<readonly StoredObject[]>;
  /** The origin of its URLs, found without a call; undefined: this server's. Rejects if it cannot be determined. */
  origin(): Promise<string | undefined>;
  /** Closes the connections that it keeps. Calls under way may fail. */
  close?(): void;
}
