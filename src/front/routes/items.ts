/** Item endpoints (specification, Items; contract 5): validate, decode the shape, ask the tenant, encode the answer. */
import { invalid, ServiceError } from '../../protocol/errors.js';
import { bytesField, decodeWriteA, decodeWriteB, pathInB, rowText } from '../../protocol/item-codec.js';
import type { ItemWrite } from '../../protocol/item.js';
import { isBinId } from '../../protocol/ids.js';
import type { BatchReply, Changed } from '../../protocol/item-replies.js';
import { PAGE_DEFAULT_A, PAGE_DEFAULT_B, PAGE_MAX, SIG_BYTES } from '../../protocol/limits.js';
import type { ErrorFields } from '../../protocol/replies.js';
import { camelKeys, shapeOfBody, type Shape } from '../../protocol/shape.js';
import type { Acknowledged } from '../../tenant/messages.js';
import type { LogPage } from '../../tenant/ports.js';
import {
  validateBatchBody,
  validateDeleteBody,
  validateItemBodyA,
  validateItemBodyB,
  validateReconcileBody,
} from '../../validators/requests.js';
import { isObject } from '../body.js';
import { asRefusal, describe, errorFields, renamed } from '../fail.js';
import type { BlobService, FrontOptions } from '../ports.js';
import type { Call } from '../request.js';
import { Text, type Handler } from '../router.js';
import { fields, ulidOf, wholeNumber } from './fields.js';

const camelEntries = (value: unknown): unknown =>
  Array.isArray(value) ? value.map((entry: unknown) => (isObject(entry) ? camelKeys(entry) : entry)) : value;

/** A B item with camelCase keys, also where its schema nests. */
function camelItem(body: Record<string, unknown>): Record<string, unknown> {
  const item = camelKeys(body);
  if ('wrapped' in item) item['wrapped'] = camelEntries(item['wrapped']);
  if ('blobKeys' in item) item['blobKeys'] = camelEntries(item['blobKeys']);
  return item;
}

type Settling = Pick<BlobService, 'settle'>;

/**
 * Has a write stored. A blob that was uploaded past this server is not known to be there: only where a commit wanted it
 * is the store asked, so that neither a retry nor a conflict ever needs the store (contract 5, 8).
 */
async function settleAndWrite({ actor, deviceId, tenantId }: Call, write: ItemWrite, blobs: Settling) {
  try {
    return await actor.write(write, deviceId);
  } catch (error) {
    if (write.blob === null || !(error instanceof ServiceError) || error.error !== 'blob_not_found') throw error;
    if (!(await blobs.settle(tenantId, write.blob.ref))) throw error;
    return actor.write(write, deviceId);
  }
}

interface Storing {
  readonly requireSig: FrontOptions['config']['requireSig'];
  readonly blobs: Settling;
}

/**
 * Has an item write of either shape stored. Throws `validation`, `item_too_large`, `unknown_type`, `blob_not_found`,
 * `storage_unavailable`, and what the tenant refuses.
 */
async function store(call: Call, body: Record<string, unknown>, { requireSig, blobs }: Storing): Promise<Acknowledged> {
  if (call.shape === 'a') {
    const write = decodeWriteA(validateItemBodyA(body), requireSig);
    return write.blob === null ? call.actor.write(write, call.deviceId) : settleAndWrite(call, write, blobs);
  }
  const fit = validateItemBodyB(camelItem(body));
  const write = decodeWriteB(fit, requireSig);
  try {
    return await settleAndWrite(call, write, blobs);
  } catch (error) {
    throw renamed(error, (path) => pathInB(path, fit));
  }
}

const DECODED: Record<string, unknown> = {};

/** `POST /items`. */
export const writeItem: Handler<Text> = async (call, app) => {
  const stored = store(call, call.body, { requireSig: app.config.requireSig, blobs: app.blobs });
  // Decoded by now. What waits for its commit is carried by every run of the garbage collector.
  call.body = DECODED;
  const { id, version, serverTs } = await stored;
  // Joined by hand: all three are checked, and this is the hottest reply there is.
  const serverPart = call.shape === 'b' ? `,"server_ts":${serverTs}` : '';
  return new Text(`{"id":"${id}","version":${version}${serverPart}}`);
};

/** `DELETE /items/:id`. */
export const deleteItem: Handler<Changed> = async (call) => {
  const body = validateDeleteBody(fields(call));
  const sig = typeof body.sig === 'string' ? bytesField('sig', body.sig, SIG_BYTES) : null;
  const { id, version } = await call.actor.remove(ulidOf(call), sig, call.deviceId);
  return { id, version };
};

/** `POST /items/:id/reconcile`. */
export const moveItem: Handler<Changed> = async (call) => {
  const { binId, version, sig } = validateReconcileBody(fields(call));
  const move = { id: ulidOf(call), binId, version, sig: bytesField('sig', sig, SIG_BYTES) };
  const moved = await call.actor.move(move, call.deviceId);
  return { id: moved.id, version: moved.version };
};

/** The first item that shows a shape decides for the batch; one that mixes both is that item's own fault. */
function shapeOfItems(items: readonly unknown[]): Shape | undefined {
  for (const item of items) {
    if (!isObject(item)) continue;
    try {
      const shape = shapeOfBody(item);
      if (shape !== undefined) return shape;
    } catch (error) {
      if (!(error instanceof ServiceError)) throw error;
    }
  }
  return undefined;
}

const idOf = (item: unknown): string | null =>
  isObject(item) && typeof item['id'] === 'string' && item['id'].length <= 64 ? item['id'] : null;

/** Once the store was out of reach it is not asked again: whoever waits for a batch waits for one call to it, not a hundred. */
function askedOnce({ blobs }: FrontOptions): Settling {
  let down: Error | undefined;
  return {
    settle: async (tenantId, ref) => {
      if (down !== undefined) throw down;
      try {
        return await blobs.settle(tenantId, ref);
      } catch (error) {
        down = error instanceof Error ? error : new Error('the store failed');
        throw error;
      }
    },
  };
}

/** `POST /items/batch`: each write is judged alone; two writes of one id one after the other. */
export const writeBatch: Handler<Text> = async (call, app) => {
  const { items } = validateBatchBody(fields(call));
  call.shape = call.namedShape ?? shapeOfItems(items) ?? call.shape;
  const before = new Map<string, Promise<unknown>>();
  const storing: Storing = { requireSig: app.config.requireSig, blobs: askedOnce(app) };
  const results = items.map((item, at) => {
    const id = idOf(item);
    const earlier = id === null ? undefined : before.get(id);
    const ask = (): Promise<Acknowledged> => writeOne(call, storing, { item, at });
    const stored = earlier === undefined ? ask() : earlier.then(ask);
    const result = stored.then(
      ({ id: written, version }) => ({ id: written, version }),
      (error: unknown) => ({ id, error: refusalOf(call, app, error) }),
    );
    if (id !== null) before.set(id, result);
    return result;
  });
  // Spelled here already: `details` are encoded by then, and device ids among them are data.
  const reply: BatchReply = { results: await Promise.all(results) };
  return new Text(JSON.stringify(reply));
};

async function writeOne(
  call: Call,
  storing: Storing,
  { item, at }: { readonly item: unknown; readonly at: number },
): Promise<Acknowledged> {
  if (!isObject(item)) throw invalid(`items[${at}]`, 'must be an object');
  if (call.namedShape === undefined) shapeOfBody(item);
  return store(call, item, storing);
}

/** An unexpected error is logged here: in a batch it takes one result with it, not the reply. */
function refusalOf(call: Call, { log }: FrontOptions, error: unknown): ErrorFields {
  if (!(error instanceof ServiceError)) {
    log.error(
      { requestId: call.requestId, tenantId: call.tenantId, cause: describe(error) },
      'write of a batch failed',
    );
  }
  return errorFields(asRefusal(error), call.shape);
}

interface Cursor {
  readonly since: number;
  readonly reset: boolean;
}

function cursorOf(call: Call, epoch: string): Cursor {
  const since = wholeNumber(call, 'since', 0);
  if (since === undefined && call.shape === 'b') throw invalid('since', 'required');
  if (since !== undefined && since > Number.MAX_SAFE_INTEGER) throw invalid('since', 'must be at most 2^53-1');
  const known = call.parameter('epoch');
  const foreign = known !== undefined && known !== epoch;
  return { since: foreign ? 0 : (since ?? 0), reset: foreign };
}

/** The bin whose rows are asked for. A request of shape B may use either spelling of its name (contract 2). */
function binOf(call: Call): string | undefined {
  const camel = call.shape === 'b' ? call.parameter('binId') : undefined;
  const snake = call.parameter('bin_id');
  if (camel !== undefined && snake !== undefined) throw invalid('bin_id', 'given in both spellings');
  const binId = snake ?? camel;
  if (binId !== undefined && !isBinId(binId)) throw invalid('bin_id', 'must be 1 to 64 of A-Z a-z 0-9 _ -');
  return binId;
}

/** `GET /items`. */
export const listItems: Handler<Text> = async (call, { items, epoch }) => {
  const { tenantId, shape } = call;
  const binId = binOf(call);
  const limit = Math.min(wholeNumber(call, 'limit', 1) ?? (shape === 'b' ? PAGE_DEFAULT_B : PAGE_DEFAULT_A), PAGE_MAX);
  const history = epoch();
  const cursor = cursorOf(call, history);
  const page = await items.page({ tenantId, since: cursor.since, limit, binId });
  if (cursor.since <= page.summary.version) return pageText(shape, page, { epoch: history, reset: cursor.reset });
  // A cursor above the head belongs to another history (contract 5, GET /items).
  const whole = await items.page({ tenantId, since: 0, limit, binId });
  return pageText(shape, whole, { epoch: history, reset: true });
};

function pageText(shape: Shape, page: LogPage, { epoch, reset }: { epoch: string; reset: boolean }): Text {
  const last = page.rows.at(-1);
  const next = page.more && last !== undefined ? last.item.version : page.summary.version;
  const [nextKey, moreKey] = shape === 'b' ? ['head_version', 'has_more'] : ['nextSince', 'hasMore'];
  const rows = page.rows.map((row) => rowText(shape, row.item)).join(',');
  const tail = `"${nextKey}":${next},"${moreKey}":${page.more},"epoch":${JSON.stringify(epoch)}${reset ? ',"reset":true' : ''}`;
  return new Text(`{"items":[${rows}],${tail}}`);
}
