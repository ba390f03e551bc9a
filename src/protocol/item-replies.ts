/** Items in replies, in both shapes (reference, HTTP). For keys and bytes see replies.ts. */
import type { Bytes, ErrorFields } from './replies.js';
import type { BinId, Count, Millis, Ulid } from './requests.js';

/** An item and the version that the change gave it. */
export interface Changed {
  readonly id: Ulid;
  readonly version: Count;
}

/** A write in shape B. */
export interface ChangedB extends Changed {
  /** When it became durable, milliseconds since 1970. */
  readonly serverTs: Millis;
}

/** A refused write of a batch. */
interface BatchRefusal {
  /** The id that was sent; null if none could be read. */
  readonly id: string | null;
  readonly error: ErrorFields;
}

/** One result for each write, in the order they were sent. */
export interface BatchReply {
  readonly results: readonly (Changed | BatchRefusal)[];
}

/** The item key under the master key: a secret box. */
export interface MasterReply<B = Bytes> {
  /** 24 bytes. */
  readonly nonce: B;
  /** 48 bytes. */
  readonly ct: B;
}

/** Device id to the item key sealed to that device. */
interface KeysReply<B = Bytes> {
  readonly [deviceId: string]: B;
}

/** The encrypted payload of an item in shape A. */
export interface EnvelopeReply<B = Bytes> {
  /** Ciphertext with its tag, 16 to 65,536 bytes. */
  readonly ct: B;
  /** 24 bytes. */
  readonly nonce: B;
  readonly keys: KeysReply<B>;
  readonly master?: MasterReply<B>;
  /** 32 bytes. */
  readonly sig?: B;
}

/** The ten content types. */
export type ContentTypeName =
  | 'password'
  | 'link'
  | 'text'
  | 'code'
  | 'image'
  | 'file'
  | 'audio'
  | 'video'
  | 'contact'
  | 'location';

/** A live item in shape A. */
export interface LiveRowA<B = Bytes> {
  readonly id: Ulid;
  readonly binId: BinId;
  readonly type: ContentTypeName;
  /** The device that wrote the content. */
  readonly senderDevice: Ulid;
  /** The writer's clock, milliseconds since 1970. */
  readonly ts: Millis;
  readonly version: Count;
  readonly deletedAt: null;
  /** Null for a blob without metadata. */
  readonly payloadEnc: EnvelopeReply<B> | null;
  readonly blobRef: string | null;
  readonly blobNonce: B | null;
  readonly blobKeys: KeysReply<B> | null;
  /** Only of a blob without metadata; else it is in `payloadEnc`. */
  readonly master?: MasterReply<B>;
  /** Only of a blob without metadata; else it is in `payloadEnc`. */
  readonly sig?: B;
}

/** A deleted item in shape A. After the purge `type`, `senderDevice` and `ts` are null. */
export interface DeletedRowA<B = Bytes> {
  readonly id: Ulid;
  readonly binId: BinId;
  readonly type: ContentTypeName | null;
  readonly senderDevice: Ulid | null;
  readonly ts: Millis | null;
  readonly version: Count;
  readonly deletedAt: Millis;
  readonly payloadEnc: null;
  readonly blobRef: null;
  readonly blobNonce: null;
  readonly blobKeys: null;
  /** The delete's tag, if the deleting client gave one. */
  readonly sig?: B;
}

/** A page of items in shape A. */
export interface PageA<B = Bytes> {
  /** In version order. */
  readonly items: readonly (LiveRowA<B> | DeletedRowA<B>)[];
  /** The last row's version while there are more rows, else the head of the history. */
  readonly nextSince: Count;
  readonly hasMore: boolean;
  readonly epoch: string;
  /** The cursor belonged to another history: the rows begin at 0, and all versions known so far are void. */
  readonly reset?: true;
}

/** A device and the item key sealed to it, in shape B. */
export interface WrappedKeyReply<B = Bytes> {
  readonly deviceId: Ulid;
  readonly key: B;
}

/** A live item in shape B. Of a blob without metadata `ct` is empty, and `nonce` and `wrapped` are the blob's. */
export interface LiveRowB<B = Bytes> {
  readonly id: Ulid;
  readonly version: Count;
  readonly binId: BinId;
  readonly type: ContentTypeName;
  /** The device that wrote the content. */
  readonly senderDevice: Ulid;
  /** The writer's clock, milliseconds since 1970. */
  readonly ts: Millis;
  readonly deletedAt: null;
  readonly ct: B;
  /** 24 bytes. */
  readonly nonce: B;
  readonly wrapped: readonly WrappedKeyReply<B>[];
  readonly master: MasterReply<B> | null;
  /** 32 bytes. */
  readonly sig: B | null;
  readonly blobRef: string | null;
  readonly blobNonce: B | null;
  readonly blobKeys: readonly WrappedKeyReply<B>[] | null;
}

/** A deleted item in shape B. After the purge `type`, `sender_device` and `ts` are null. */
export interface DeletedRowB<B = Bytes> {
  readonly id: Ulid;
  readonly version: Count;
  readonly binId: BinId;
  readonly type: ContentTypeName | null;
  readonly senderDevice: Ulid | null;
  readonly ts: Millis | null;
  readonly deletedAt: Millis;
  readonly ct: null;
  readonly nonce: null;
  readonly wrapped: null;
  readonly master: null;
  /** The delete's tag, if the deleting client gave one. */
  readonly sig: B | null;
  readonly blobRef: null;
  readonly blobNonce: null;
  readonly blobKeys: null;
}

/** A page of items in shape B. */
export interface PageB<B = Bytes> {
  /** In version order. */
  readonly items: readonly (LiveRowB<B> | DeletedRowB<B>)[];
  /** The last row's version while there are more rows, else the head of the history. */
  readonly headVersion: Count;
  readonly hasMore: boolean;
  readonly epoch: string;
  /** The cursor belonged to another history: the rows begin at 0, and all versions known so far are void. */
  readonly reset?: true;
}
