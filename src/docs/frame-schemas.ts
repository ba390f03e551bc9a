/** JSON Schemas of every frame of the real-time channel (src/protocol/frames.ts), one document per shape. */
import type typiaLibrary from 'typia';
import type { Shape } from '../protocol/shape.js';
import type * as frames from '../protocol/frames.js';
import type { LiveRowA, LiveRowB, ContentTypeName } from '../protocol/item-replies.js';
import type { Bytes } from '../protocol/replies.js';
import type { HelloFrame } from '../protocol/requests.js';
import { refTo, schemasNamedBy, schemasOf, type Json } from './schemas.js';

/** Exists only at build time, as in src/server/http/validators.ts. */
declare const typia: typeof typiaLibrary;

/** A frame with its bytes as text. */
type Spelled<T> = T extends Uint8Array
  ? Bytes
  : T extends string | number
    ? T
    : T extends object
      ? { [K in keyof T]: Spelled<T[K]> }
      : T;

interface ItemFrameA extends frames.Without<LiveRowA, 'type'> {
  readonly type: 'item';
  /** A row's `type`. */
  readonly itemType: ContentTypeName;
}

interface ItemFrameB {
  readonly type: 'item';
  readonly item: LiveRowB;
}

/** An item was deleted. */
interface DeleteFrame extends frames.Without<frames.DeleteFrame, 'sig'> {
  /** The delete's tag, 32 bytes, if the deleting client gave one. */
  readonly sig?: Bytes;
}

/** Frames by the names of their schemas, in the order of the page; needed because a mapped type has no name. */
interface Frames {
  HelloFrame: HelloFrame;
  ItemFrameA: ItemFrameA;
  ItemFrameB: ItemFrameB;
  DeleteFrame: DeleteFrame;
  AckFrame: frames.AckFrame;
  CaughtUpFrame: Spelled<frames.CaughtUpFrame>;
  ResetFrame: Spelled<frames.ResetFrame>;
  BinFrame: Spelled<frames.BinFrame>;
  BinDeletedFrame: Spelled<frames.BinDeletedFrame>;
  DeviceJoinedFrame: Spelled<frames.DeviceJoinedFrame>;
  DeviceRevokedFrame: Spelled<frames.DeviceRevokedFrame>;
  PairRequestFrame: Spelled<frames.PairRequestFrame>;
  ErrorFrame: Spelled<frames.ErrorFrame>;
  PingFrame: Spelled<frames.PingFrame>;
  PongFrame: Spelled<frames.PongFrame>;
}

const GENERATED = typia.json.schema<Frames>().components.schemas ?? {};
const { Frames: FRAMES, ...COMPONENTS } = GENERATED as Record<string, { readonly properties?: Record<string, object> }>;
const BY_NAME = FRAMES?.properties ?? {};

/** Every named schema: components, and the frames that typia inlined. */
const NAMED = {
  ...Object.fromEntries(Object.entries(BY_NAME).filter(([, schema]) => !('$ref' in schema))),
  ...COMPONENTS,
};

const FROM_CLIENT = ['HelloFrame', 'PingFrame', 'PongFrame'];

/** The document of a shape: `client` and `server` list the frames that each side may send. */
export function frameSchemas(shape: Shape): Json {
  // B has no `error` frame (Sockets).
  const left = ['HelloFrame', ...(shape === 'a' ? ['ItemFrameB'] : ['ItemFrameA', 'ErrorFrame'])];
  const sent = Object.keys(BY_NAME).filter((name) => !left.includes(name));
  const client = { anyOf: FROM_CLIENT.map(refTo) };
  const server = { anyOf: sent.map(refTo) };
  return {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    title: `Frames of /ws, shape ${shape.toUpperCase()}`,
    description: 'JSON text frames. A client ignores frames that it does not know, and fields too.',
    properties: { client, server },
    components: { schemas: schemasNamedBy([client, server], schemasOf(shape, NAMED)) },
  };
}
