/**
 * The keys of every frame of the real-time channel (reference, Sockets): as the server builds it, and as each shape
 * spells it. The encoders use these types, so a wrong key does not compile.
 */
import type { Shape } from './shape.js';
import type { ContentTypeName, DeletedRowA, DeletedRowB, LiveRowA, LiveRowB } from './item-replies.js';
import type { Bin, Device, PairRequestFields } from './replies.js';
import type { Count, HelloFrame, Ulid } from './requests.js';

/** `Omit` that keeps the order of the fields, which the reference's schemas have too. */
export type Without<T, Names> = { [K in keyof T as K extends Names ? never : K]: T[K] };

// Frames of clients. Both shapes spell them alike.

/** Requests a `pong`. Any frame counts as a sign of life; this one has no other purpose. */
export interface PingFrame {
  readonly type: 'ping';
}

/** The answer to a `ping`. */
export interface PongFrame {
  readonly type: 'pong';
}

/** What a client may send. `hello` comes first; its keys are validated like a request's. */
export type ClientFrame = HelloFrame | PingFrame | PongFrame;

// Frames of the server, except items: built once with camelCase keys and raw bytes, then spelled by shape.

/** The backlog is sent; states what the client must hold now (reference, Sockets). */
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

/** Another history begins: the client must forget all versions, and gets everything from 0. */
export interface ResetFrame {
  readonly type: 'reset';
  readonly epoch: string;
}

/** A device as its frame shows it (reference, Pairing). */
export interface FrameDevice extends Device<Uint8Array> {
  /** Made with the master key; null if no device has certified this one. */
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
export interface FrameBin extends Without<Bin<Uint8Array>, 'itemCount'> {
  /** Live items when the bin changed; absent if they could not be counted. */
  readonly itemCount?: Count;
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
 * A new device requests to join; sent only to the device that began the pairing (reference, Pairing, Pairing a new
 * device).
 */
export interface PairRequestFrame extends PairRequestFields<Uint8Array> {
  readonly type: 'pair_request';
}

/** What was wrong with a client's frame. Shape A only. */
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

/** A camelCase key as shape B spells it; the type-level form of `toSnake`. */
export type SnakeKey<K extends string> = K extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${SnakeKey<Rest>}`
  : '';

/** A reply or frame as `encode` spells it: keys by shape, bytes as text, everything else unchanged. */
export type Wire<S extends Shape, T> = T extends Uint8Array
  ? string
  : T extends string | number
    ? T
    : T extends readonly (infer Entry)[]
      ? readonly Wire<S, Entry>[]
      : T extends object
        ? { readonly [K in keyof T as S extends 'b' ? SnakeKey<K & string> : K]: Wire<S, T[K]> }
        : T;

// Items. The item codec joins their JSON text by hand, once per shape and change; these types have the allowed keys.

/** A live or deleted row: the keys of a live one, each null if the deletion or the purge removed its value. */
type EitherRow<Live, Deleted> = {
  [K in keyof Live]: Live[K] | (K extends keyof Deleted ? Deleted[K] : never);
};

/** An item as a row of `GET /items`, shape A. */
export type ItemRowA = EitherRow<LiveRowA<string>, DeletedRowA<string>>;

/** What a row and a frame of shape A have in common. */
export type ItemFieldsA = Omit<ItemRowA, 'type'>;

/** An item's latest state, shape A. The row's `type` is `itemType` here. */
export interface ItemFrameA extends ItemFieldsA {
  readonly type: 'item';
  readonly itemType: ContentTypeName;
}

/** An item as a row of `GET /items`, shape B. */
export type ItemRowB = Wire<'b', EitherRow<LiveRowB<string>, DeletedRowB<string>>>;

/** An item's latest state, shape B. */
export interface ItemFrameB {
  readonly type: 'item';
  readonly item: ItemRowB;
}

/** An item's deletion. Has a tag if the deleting client gave one. */
export interface DeleteFrame {
  readonly type: 'delete';
  readonly id: Ulid;
  readonly version: Count;
  /** Base64 in the shape's spelling. */
  readonly sig?: string;
}

/**
 * The device's own change, at its place in version order; only after `hello` with `acks` (reference, Sockets, The
 * cursor).
 */
export interface AckFrame {
  readonly type: 'ack';
  readonly id: Ulid;
  readonly version: Count;
}

// Type checks for the keys of JSON text that is joined by hand.

type LastOf<S extends string> = S extends `${string}"${infer Rest}` ? LastOf<Rest> : S;

/** The keys in a piece of JSON text: the quoted strings before a colon. */
type KeysIn<S extends string> = S extends `${infer Head}":${infer Rest}` ? LastOf<Head> | KeysIn<Rest> : never;

/**
 * Accepts pieces of JSON text with the keys of `T` only: `const row: Piece<ItemRowB> = (text) => text`, then
 * `row(`"bin_id":...`)`. A key that `T` does not have fails to compile.
 */
export type Piece<T> = <S extends string>(text: KeysIn<S> extends keyof T ? S : never) => string;
