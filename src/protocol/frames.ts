/**
 * Every frame of the real-time channel, by its keys (reference, Sockets): as the server builds it,
 * and as each shape spells it. The encoders are held to these types, so a wrong key does not compile.
 */
import type { Shape } from './shape.js';
import type { ContentType } from './item.js';
import type { HelloFrame } from './requests.js';

// What clients send. Both shapes spell these frames alike.

/** Asks for a `pong`. Any frame proves life; this is the one for it. */
export interface PingFrame {
  readonly type: 'ping';
}

/** The answer to a `ping`. */
export interface PongFrame {
  readonly type: 'pong';
}

/** What a client may send. `hello` comes first; its keys are checked as a request's are. */
export type ClientFrame = HelloFrame | PingFrame | PongFrame;

// What the server sends beside items: built once with camelCase keys and raw bytes, then spelled by shape.

/** The backlog is sent: what a client must hold now (reference, Sockets). */
export interface CaughtUpFrame {
  readonly type: 'caught_up';
  /** The head that the replay reached. */
  readonly version: number;
  /** Names the history that the versions belong to; opaque. */
  readonly epoch: string;
  /** Live items of the tenant at exactly this version. */
  readonly itemCount: number;
  /** The sum of their versions. */
  readonly versionSum: number;
}

/** The history is another one: the client forgets every version and gets everything from 0. */
export interface ResetFrame {
  readonly type: 'reset';
  readonly epoch: string;
}

/** A device as its frame shows it (reference, Pairing). */
export interface FrameDevice {
  readonly id: string;
  readonly name: string;
  readonly glyph: string;
  readonly pubkey: Uint8Array;
  /** Milliseconds since 1970. */
  readonly pairedAt: number;
  /** Made by whoever holds the master key; null where no device has certified this one. */
  readonly cert: Uint8Array | null;
}

/** A device was registered: clients wrap their item keys to it. */
export interface DeviceJoinedFrame {
  readonly type: 'device_joined';
  readonly device: FrameDevice;
}

/** A device was revoked, with this id. */
export interface DeviceRevokedFrame {
  readonly type: 'device_revoked';
  readonly id: string;
}

/** A bin as its frame shows it (reference, HTTP, Bins). Times are milliseconds since 1970. */
export interface FrameBin {
  readonly id: string;
  readonly slug: string;
  /** Opaque to the server. */
  readonly meta: Uint8Array | null;
  readonly createdAt: number;
  readonly updatedAt: number;
  /** Live items when the bin changed. */
  readonly itemCount?: number;
}

/** A bin was made or changed. */
export interface BinFrame {
  readonly type: 'bin';
  readonly bin: FrameBin;
}

/** A bin is gone. */
export interface BinDeletedFrame {
  readonly type: 'bin';
  readonly id: string;
  /** Milliseconds since 1970. */
  readonly deletedAt: number;
}

/**
 * A new device asks to be let in; only the device that began the pairing gets this (reference, Pairing, Pairing a new
 * device).
 */
export interface PairRequestFrame {
  readonly type: 'pair_request';
  readonly lookupId: string;
  /** The wire code, six words. */
  readonly code: string;
  readonly deviceId: string;
  /** The host name that the new device dialled; null where it did not say. */
  readonly host: string | null;
  readonly pubkey: Uint8Array;
  readonly name: string;
  readonly glyph: string;
  readonly attestation: Uint8Array;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
}

/** What was wrong with a client's frame. Shape A only: B has none. */
export interface ErrorFrame {
  readonly type: 'error';
  /** A code of the catalogue (reference, Errors). */
  readonly code: string;
  readonly message: string;
}

/** A frame that is not about an item. `encode` spells it. */
export type PlainFrame =
  | CaughtUpFrame
  | ResetFrame
  | DeviceJoinedFrame
  | DeviceRevokedFrame
  | BinFrame
  | BinDeletedFrame
  | PairRequestFrame
  | ErrorFrame
  | PingFrame
  | PongFrame;

// Items. Their texts are joined by the item codec, once per shape and change: these are the keys it may write.

/** An item's deletion. The tag is there where the deleting client gave one. */
export interface DeleteFrame {
  readonly type: 'delete';
  readonly id: string;
  readonly version: number;
  /** Base64 in the shape's spelling. */
  readonly sig?: string;
}

/** The device's own change in its place of the order; only after `hello` with `acks` (reference, Sockets, The cursor). */
export interface AckFrame {
  readonly type: 'ack';
  readonly id: string;
  readonly version: number;
}

/** The item key under the master key; base64 in the shape's spelling. */
export interface MasterText {
  readonly nonce: string;
  readonly ct: string;
}

/** Shape A's envelope; base64url without padding. */
export interface EnvelopeA {
  readonly ct: string;
  readonly nonce: string;
  /** Device id to sealed key. */
  readonly keys: Readonly<Record<string, string>>;
  readonly master?: MasterText;
  readonly sig?: string;
}

/** What a row and a frame of shape A have in common. What a deletion or the purge took is null. */
export interface ItemFieldsA {
  readonly id: string;
  readonly binId: string;
  readonly senderDevice: string | null;
  readonly ts: number | null;
  readonly version: number;
  readonly deletedAt: number | null;
  /** Null for a blob without metadata, and for a deleted item. */
  readonly payloadEnc: EnvelopeA | null;
  readonly blobRef: string | null;
  readonly blobNonce: string | null;
  readonly blobKeys: Readonly<Record<string, string>> | null;
  /** Here only beside a `payloadEnc` that is null (reference, HTTP, Writing an item). */
  readonly master?: MasterText;
  /** Here only beside a `payloadEnc` that is null: the item's tag, or its deletion's. */
  readonly sig?: string;
}

/** An item as a row of `GET /items`, shape A. */
export interface ItemRowA extends ItemFieldsA {
  readonly type: ContentType | null;
}

/** An item's latest state, shape A. The row's `type` is `itemType` here. */
export interface ItemFrameA extends ItemFieldsA {
  readonly type: 'item';
  readonly itemType: ContentType;
}

/** A sealed key of shape B; standard base64. */
export interface WrappedKeyB {
  readonly device_id: string;
  readonly key: string;
}

/** An item as a row of `GET /items`, shape B. What a deletion or the purge took is null. */
export interface ItemRowB {
  readonly id: string;
  readonly version: number;
  readonly bin_id: string;
  readonly type: ContentType | null;
  readonly sender_device: string | null;
  readonly ts: number | null;
  readonly deleted_at: number | null;
  /**
   * Empty for a blob without metadata; its nonce and keys stand in `nonce` and `wrapped` then (reference, HTTP, The two
   * shapes).
   */
  readonly ct: string | null;
  readonly nonce: string | null;
  readonly wrapped: readonly WrappedKeyB[] | null;
  readonly master: MasterText | null;
  readonly sig: string | null;
  readonly blob_ref: string | null;
  readonly blob_nonce: string | null;
  readonly blob_keys: readonly WrappedKeyB[] | null;
}

/** An item's latest state, shape B. */
export interface ItemFrameB {
  readonly type: 'item';
  readonly item: ItemRowB;
}

// The wire.

/** A camelCase key as shape B spells it; what `toSnake` does to its text. */
export type SnakeKey<K extends string> = K extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${SnakeKey<Rest>}`
  : '';

/** A reply or frame as `encode` spells it: keys by shape, bytes as text, everything else as it is. */
export type Wire<S extends Shape, T> = T extends Uint8Array
  ? string
  : T extends readonly (infer Entry)[]
    ? readonly Wire<S, Entry>[]
    : T extends object
      ? { readonly [K in keyof T as S extends 'b' ? SnakeKey<K & string> : K]: Wire<S, T[K]> }
      : T;

/** Every frame that the server sends to a socket of shape A. */
export type ServerFrameA = ItemFrameA | DeleteFrame | AckFrame | Wire<'a', PlainFrame>;

/** Every frame that the server sends to a socket of shape B. */
export type ServerFrameB = ItemFrameB | DeleteFrame | AckFrame | Wire<'b', Exclude<PlainFrame, ErrorFrame>>;

// Checking the keys of texts that are joined by hand.

type LastOf<S extends string> = S extends `${string}"${infer Rest}` ? LastOf<Rest> : S;

/** The keys in a piece of JSON text: what stands in quotes before a colon. */
export type KeysIn<S extends string> = S extends `${infer Head}":${infer Rest}` ? LastOf<Head> | KeysIn<Rest> : never;

/**
 * Takes pieces of joined JSON text with the keys of `T` only: `const row: Piece<ItemRowB> = (text) => text`, then
 * `row(`"bin_id":...`)`. A key that `T` does not have fails to compile.
 */
export type Piece<T> = <S extends string>(text: KeysIn<S> extends keyof T ? S : never) => string;
