/**
 * The internal model of an item. Shapes A and B are spellings of it (reference, HTTP, The two shapes) that only the
 * codecs know.
 */

/** The ten content types (reference, Content types). */
export const CONTENT_TYPES = [
  'password',
  'link',
  'text',
  'code',
  'image',
  'file',
  'audio',
  'video',
  'contact',
  'location',
] as const;

/** The kind of an item's content, which the server does not interpret. */
export type ContentType = (typeof CONTENT_TYPES)[number];

const known: ReadonlySet<unknown> = new Set(CONTENT_TYPES);
export const isContentType = (value: unknown): value is ContentType => known.has(value);

/** Device id to the item key sealed to that device. */
export type SealedKeys = ReadonlyMap<string, Uint8Array>;

/** The item key under the master key: nonce 24 bytes, ct 48 bytes. */
export interface MasterWrap {
  readonly nonce: Uint8Array;
  readonly ct: Uint8Array;
}

/** An encrypted payload in the row: ciphertext with its tag, nonce 24 bytes, a sealed key per device. */
export interface Inline {
  readonly ct: Uint8Array;
  readonly nonce: Uint8Array;
  readonly keys: SealedKeys;
}

/** A payload in the object store: opaque name, nonce 24 bytes, the blob key sealed per device. */
export interface Blob {
  readonly ref: string;
  readonly nonce: Uint8Array;
  readonly keys: SealedKeys;
}

/** The content of an item: inline, a blob, or a blob with small metadata inline. At least one of the two is set. */
export interface Payload {
  readonly inline: Inline | null;
  readonly blob: Blob | null;
  readonly master: MasterWrap | null;
  /** 32 bytes, made by the client; the server can only check that it is present. */
  readonly sig: Uint8Array | null;
}

/** The fields of an item beside its payload. */
export interface ItemHead {
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType;
  /** The writer's clock, ms. */
  readonly ts: number;
}

/** A write as a client requests it. */
export interface ItemWrite extends ItemHead, Payload {
  /**
   * The version that this write is based on; 0: the item must not exist; null: any (reference, HTTP, Writing an
   * item).
   */
  readonly ifVersion: number | null;
}

/** A live item as it is stored and returned. */
export interface LiveItem extends ItemHead, Payload {
  /** The device that wrote the content; a re-wrap or a move does not change it. */
  readonly senderDevice: string;
  readonly version: number;
  readonly deletedAt: null;
}

/** A deleted item. After the purge `type`, `ts`, `senderDevice` are null (reference, HTTP, Writing an item). */
export interface DeletedItem {
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType | null;
  readonly senderDevice: string | null;
  readonly ts: number | null;
  readonly version: number;
  readonly deletedAt: number;
  /** The delete's tag, if the deleting client gave one. */
  readonly sig: Uint8Array | null;
}

/** An item as it is stored. */
export type Item = LiveItem | DeletedItem;

/** The head of a tenant's history, and the count and version sum of its live items at exactly that head. */
export interface Summary {
  readonly version: number;
  readonly itemCount: number;
  readonly versionSum: number;
}
