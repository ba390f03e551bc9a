/** What blobs are kept in, as the rest of the server sees it. Bindings: objects/. */
import type { Readable } from 'node:stream';
import type { BlobName } from '../../protocol/ids.js';

/** Names one object. Objects lie under `<tenantId>/<ref>`, after the prefix that the operator chose, in every store. */
export type ObjectName = BlobName;

/** A request that a client may make of the store by itself. */
export interface SignedRequest {
  /** Absolute. */
  readonly url: string;
  /** What the client has to send with it, lower-case names; part of what was signed. */
  readonly headers: Readonly<Record<string, string>>;
}

/** What an upload URL admits: exactly this many bytes, of this type, until then, once. */
export interface UploadGrant {
  readonly size: number;
  readonly contentType: string;
  /** Milliseconds since 1970, both. */
  readonly now: number;
  readonly expiresAt: number;
}

/** How long a download URL is good, milliseconds since 1970. */
export interface DownloadGrant {
  readonly now: number;
  readonly expiresAt: number;
}

/** An object as the store lists it. */
export interface StoredObject extends ObjectName {
  readonly size: number;
  /** Milliseconds since 1970, by the store's clock. */
  readonly modifiedAt: number;
  /**
   * The store's own checksums of the bytes, by their names there: `etag` (S3; MD5 in hex of an object that came in one
   * PUT without a key of KMS), `crc32c` and `md5` (Google; base64). Left out where the store tells none.
   */
  readonly checksum?: Readonly<Record<string, string>>;
}

/**
 * A store of objects. Whatever goes wrong in reaching it is `storage_unavailable`; its cause goes to the log, without
 * signatures. Signing makes no network call.
 */
export interface ObjectStore {
  readonly kind: 'local' | 'gcs' | 's3';
  /** `origin`: scheme and host that the client reached this server by; only the local store's URLs have it. */
  signUpload(name: ObjectName, grant: UploadGrant, origin: string): Promise<SignedRequest>;
  signDownload(name: ObjectName, grant: DownloadGrant, origin: string): Promise<SignedRequest>;
  /** Undefined: there is no such object, or not all of it yet. */
  head(name: ObjectName): Promise<StoredObject | undefined>;
  /** Resolves also where there is none. */
  remove(name: ObjectName): Promise<void>;
  /** Every object under the prefix, in pages, in an order of the store's. Names that are not ours are left out. */
  list(): AsyncIterable<readonly StoredObject[]>;
  /** Rejects with `blob_not_found` where there is none. */
  read(name: ObjectName): Promise<Readable>;
  /** Ends what it holds open. Calls under way may fail. */
  close(): Promise<void>;
}
