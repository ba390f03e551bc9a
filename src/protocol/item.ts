/**
 * The one internal model of an item. Shapes A and B are spellings of it (reference, HTTP, The two shapes); nothing past
 * the codecs knows them.
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

/** What an item is; the server only keeps it. */
export type ContentType = (typeof CONTENT_TYPES)[number];

const known: ReadonlySet<string> = new Set(CONTENT_TYPES);
/** True for one of the ten. */
export const isContentType = (value: string): value is ContentType => known.has(value);

/** Device id to the item key sealed to that device. */
export type SealedKeys = ReadonlyMap<string, Uint8Array>;

/** The item key under the master key: nonce 24 bytes, ct 48 bytes. */
export interface MasterWrap {
  readonly nonce: Uint8Array;
  readonly ct: Uint8Array;
}

/** The encrypted payload as it lies in the row: ciphertext with its tag, nonce 24 bytes, a sealed key per device. */
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

/** What an item carries: inline, blob, or a blob with small metadata inline. At least one of the two is set. */
export interface Payload {
  readonly inline: Inline | null;
  readonly blob: Blob | null;
  readonly master: MasterWrap | null;
  /** 32 bytes, made by the client; the server can only check that it is there. */
  readonly sig: Uint8Array | null;
}

/** A write as a client asks for it. */
export interface ItemWrite extends Payload {
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType;
  /** Client clock, ms. */
  readonly ts: number;
  /**
   * The version this write was made against; 0 means the item must not exist; null means not asked (reference, HTTP,
   * Writing an item).
   */
  readonly ifVersion: number | null;
}

/** A live item as it is stored and handed out. */
export interface LiveItem extends Payload {
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType;
  /** Who wrote the content; a re-wrap or a move does not change it. */
  readonly senderDevice: string;
  readonly ts: number;
  readonly version: number;
  readonly deletedAt: null;
}

/**
 * A deleted item: payload gone. After the hard delete `type`, `ts` and `senderDevice` are gone too (reference, HTTP,
 * Writing an item).
 */
export interface DeletedItem {
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType | null;
  readonly senderDevice: string | null;
  readonly ts: number | null;
  readonly version: number;
  readonly deletedAt: number;
  /** The delete's tag, where the deleting client gave one. */
  readonly sig: Uint8Array | null;
}

/** An item as it is stored: there is no other state. */
export type Item = LiveItem | DeletedItem;

/** Where a tenant's history stands: its head, and the count and version sum of its live items at exactly that head. */
export interface Summary {
  readonly version: number;
  readonly itemCount: number;
  readonly versionSum: number;
}
