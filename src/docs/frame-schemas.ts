/** JSON Schemas of every frame of the real-time channel (src/protocol/frames.ts), one document for each shape. */
import type typiaLibrary from 'typia';
import type { Shape } from '../protocol/shape.js';
import type * as frames from '../protocol/frames.js';
import type { LiveFieldsA, LiveRowB, ContentTypeName } from '../protocol/item-replies.js';
import type { Bytes } from '../protocol/replies.js';
import type { HelloFrame, Ulid, Count } from '../protocol/requests.js';
import { refTo, schemasNamedBy, schemasOf, type Json } from './schemas.js';

/** Only while building, as in src/server/http/validators.ts. */
declare const typia: typeof typiaLibrary;

/** A frame as it is built, with text in the place of bytes. */
type Spelled<T> = T extends Uint8Array ? Bytes : T extends object ? { [K in keyof T]: Spelled<T[K]> } : T;

interface ItemFrameA extends LiveFieldsA {
  readonly type: 'item';
  /** A row's `type`. */
  readonly itemType: ContentTypeName;
}

interface ItemFrameB {
  readonly type: 'item';
  readonly item: LiveRowB;
}

/** An item was deleted. */
interface DeleteFrame {
  readonly type: 'delete';
  readonly id: Ulid;
  readonly version: Count;
  /** The delete's tag, 32 bytes, where the deleting client gave one. */
  readonly sig?: Bytes;
}

interface AckFrame extends frames.AckFrame {
  readonly id: Ulid;
  readonly version: Count;
}

const GENERATED =
  typia.json.schemas<
    [
      HelloFrame,
      ItemFrameA,
      ItemFrameB,
      DeleteFrame,
      AckFrame,
      Spelled<frames.CaughtUpFrame>,
      Spelled<frames.ResetFrame>,
      Spelled<frames.BinFrame>,
      Spelled<frames.BinDeletedFrame>,
      Spelled<frames.DeviceJoinedFrame>,
      Spelled<frames.DeviceRevokedFrame>,
      Spelled<frames.PairRequestFrame>,
      Spelled<frames.ErrorFrame>,
      Spelled<frames.PingFrame>,
      Spelled<frames.PongFrame>,
    ]
  >();

/** The names of the frames that a server sends, in the order of the page. */
const FROM_SERVER = [
  'ItemFrame',
  'DeleteFrame',
  'AckFrame',
  'CaughtUpFrame',
  'ResetFrame',
  'BinFrame',
  'BinDeletedFrame',
  'DeviceJoinedFrame',
  'DeviceRevokedFrame',
  'PairRequestFrame',
  'ErrorFrame',
  'PingFrame',
  'PongFrame',
] as const;

/** The names of the generated schemas, in their order: a mapped type has none of its own. */
const NAMES = ['HelloFrame', 'ItemFrameA', 'ItemFrameB', ...FROM_SERVER.slice(1)];

/** Every named schema, frames that have a component of their own and those that have none. */
function named(): object {
  const out: Record<string, object> = { ...GENERATED.components.schemas };
  GENERATED.schemas.forEach((schema, at) => {
    if (!('$ref' in schema)) out[NAMES[at] ?? ''] = schema;
  });
  return out;
}

const FROM_CLIENT = ['HelloFrame', 'PingFrame', 'PongFrame'] as const;

/** The document of a shape: `client` and `server` say what either side may send. */
export function frameSchemas(shape: Shape): Json {
  // B has no `error` frame (Sockets).
  const sent = FROM_SERVER.filter((name) => shape === 'a' || name !== 'ErrorFrame').map((name) =>
    name === 'ItemFrame' ? `ItemFrame${shape.toUpperCase()}` : name,
  );
  const client = { anyOf: FROM_CLIENT.map((name) => refTo(name)) };
  const server = { anyOf: sent.map((name) => refTo(name)) };
  return {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    title: `Frames of /ws, shape ${shape.toUpperCase()}`,
    description: 'JSON text frames. A client ignores frames that it does not know, and fields too.',
    properties: { client, server },
    components: { schemas: schemasNamedBy([client, server], schemasOf(shape, named())) },
  };
}
