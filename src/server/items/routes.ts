/** Item endpoints (reference, HTTP): validate, decode the shape, submit to the tenant's actor, encode the answer. */
import { isObject } from '../../protocol/bytes.js';
import { asError } from '../../protocol/error-code.js';
import { invalid, ServiceError } from '../../protocol/errors.js';
import { isBinId } from '../../protocol/ids.js';
import type { BatchReply, Changed } from '../../protocol/item-replies.js';
import { PAGE_DEFAULT_A, PAGE_DEFAULT_B, PAGE_MAX } from '../../protocol/limits.js';
import type { ErrorFields } from '../../protocol/replies.js';
import { camelKeys, shapeOfBody, type Shape } from '../../protocol/shape.js';
import { type Change, type ChangeReply, readWriteA } from '../tenant/change.js';
import { decodeWriteA, decodeWriteB, tagged } from '../tenant/decode.js';
import { rowText } from '../tenant/codec.js';
import type { ItemLog, LogPage } from '../tenant/ports.js';
import * as validators from '../http/validators.js';
import { fields, NO_FIELDS, type RequestContext, ulidOf, wholeNumber } from '../http/request.js';
import { asRefusal, describe, errorFields, renamed } from '../http/fail.js';
import type { HttpConfig, Log } from '../http/ports.js';
import { Text } from '../http/reply.js';
import { LATER, type FastPath, type Handler } from '../http/route.js';

const camelEntries = (value: unknown): unknown =>
  Array.isArray(value) ? value.map((entry: unknown) => (isObject(entry) ? camelKeys(entry) : entry)) : value;

/** An item of shape B with camelCase keys, also in its nested objects. */
function camelItem(body: Record<string, unknown>): Record<string, unknown> {
  const item = camelKeys(body);
  if ('wrapped' in item) item['wrapped'] = camelEntries(item['wrapped']);
  if ('blobKeys' in item) item['blobKeys'] = camelEntries(item['blobKeys']);
  return item;
}

/** Whether an item may reference a blob. */
interface BlobSettler {
  /** True: the blob is stored. Throws `storage_unavailable`, `unavailable`. */
  settle(tenantId: string, ref: string): Promise<boolean>;
}

export interface ItemParts {
  readonly items: ItemLog;
  readonly blobs: BlobSettler;
  readonly config: Pick<HttpConfig, 'requireSig'>;
  readonly log: Log;
  readonly epoch: () => string;
}

/** The body, in the request's shape, as a change in the tenant's arena. Throws `validation`, `item_too_large`, ... */
function changeOf(ctx: RequestContext, body: Record<string, unknown>, { config }: Pick<ItemParts, 'config'>): Change {
  const { arena } = ctx.actor;
  if (ctx.shape === 'a') return decodeWriteA(arena, validators.validateItemBodyA(body), config.requireSig);
  return decodeWriteB(arena, validators.validateItemBodyB(camelItem(body)), config.requireSig);
}

/**
 * A path of a refused write as shape B names it. The actor names fields as shape A does; B keeps the item's own
 * keys in `wrapped`, and a blob's too where the write has no `blob_keys` (SHAPE-27).
 * @param blobKeys the write has `blob_keys`.
 */
function pathInB(path: string, blobKeys: boolean): string {
  const own = blobKeys ? /^payloadEnc\.keys(?=$|\.)/ : /^(payloadEnc\.keys|blobKeys)(?=$|\.)/;
  return path.replace(own, 'wrapped');
}

/** The refusal of a write; in shape B its paths are spelled as B does. */
const spelled = ({ shape }: RequestContext, error: unknown, body: Record<string, unknown>): unknown =>
  shape === 'b' && error instanceof ServiceError
    ? renamed(error, (path) => pathInB(path, (body['blob_keys'] ?? body['blobKeys'] ?? null) !== null))
    : error;

/**
 * Whether the write is based on the current history, as far as it says so: under another one its `ifVersion` may be the
 * version of another state, and a move would give the item a tag that does not cover it (EPOCH-09). Valid for this turn:
 * an actor of a history that ends later refuses by itself.
 */
function isCurrent(ctx: RequestContext, epoch: ItemParts['epoch']): boolean {
  const named = ctx.query.get('epoch');
  return named === undefined || named === epoch();
}

/** Throws `epoch_mismatch`, or `validation` for a parameter of the wrong form. */
function expectCurrent(ctx: RequestContext, { epoch }: Pick<ItemParts, 'epoch'>): void {
  if (!isCurrent(ctx, epoch) && ctx.parameter('epoch') !== undefined)
    throw new ServiceError('epoch_mismatch', 'the write is based on another history than the current one');
}

/** Submits a change to the tenant's actor. Rejects with its refusal. */
function submitted({ actor, deviceId }: RequestContext, change: Change): Promise<Change> {
  return new Promise((resolve, reject) => {
    change.reply = { stored: resolve, refused: reject };
    actor.submit(change, deviceId);
  });
}

/**
 * Stores an item write of either shape. Rejects with `validation`, `item_too_large`, `unknown_type`, `blob_not_found`,
 * `storage_unavailable`, and what the actor refuses. The database may not know yet that a blob was uploaded directly to
 * the blob store: the store is queried only after a commit needed the blob, so that retries and conflicts never depend
 * on it (BLOB-33).
 */
async function store(
  ctx: RequestContext,
  body: Record<string, unknown>,
  parts: Pick<ItemParts, 'config' | 'blobs'>,
): Promise<Change> {
  try {
    const change = changeOf(ctx, body, parts);
    const { blobRef } = change;
    try {
      return await submitted(ctx, change);
    } catch (error) {
      if (blobRef === null || !(error instanceof ServiceError) || error.error !== 'blob_not_found') throw error;
      if (!(await parts.blobs.settle(ctx.tenantId, blobRef))) throw error;
      return await submitted(ctx, changeOf(ctx, body, parts));
    }
  } catch (error) {
    throw spelled(ctx, error, body);
  }
}

class WriteReply implements ChangeReply {
  constructor(private readonly ctx: RequestContext) {}

  stored(change: Change): void {
    this.ctx.answer(changedText(this.ctx, change));
  }

  refused(error: Error): void {
    this.ctx.refuse(error);
  }
}

/** Concatenated, not serialized: the values need no escaping, and this is the hottest reply. */
function changedText({ shape }: RequestContext, { id, version, decidedAt }: Change): Text {
  const serverPart = shape === 'b' ? `,"server_ts":${decidedAt}` : '';
  return new Text(`{"id":"${id}","version":${version}${serverPart}}`);
}

function submitAndReply(ctx: RequestContext, change: Change): typeof LATER {
  change.reply = new WriteReply(ctx);
  ctx.actor.submit(change, ctx.deviceId);
  return LATER;
}

/** Fast path of `POST /items`: a shape A write in the form that JSON serializers give it. */
export const writeItemFromBytes: FastPath<ItemParts> = (ctx, bytes, { config, epoch }) => {
  if (ctx.contentType !== 'application/json' || ctx.namedShape === 'b' || !isCurrent(ctx, epoch)) return undefined;
  const { shape } = ctx;
  const { arena } = ctx.actor;
  // Set before the read, since a refusal for lack of room has to be in this shape too.
  ctx.shape = 'a';
  const change = readWriteA(arena, bytes, config.requireSig);
  if (change !== undefined && validators.isWriteMetadata(change)) return submitAndReply(ctx, change);
  if (change !== undefined) arena.unpin(change.segment);
  ctx.shape = shape;
  return undefined;
};

export const writeItem: Handler<ItemParts, Text> = (ctx, app) => {
  expectCurrent(ctx, app);
  const { body } = ctx;
  // Released, since it is decoded now: else every garbage collection until the commit would copy what it references.
  ctx.body = NO_FIELDS;
  if (ctx.shape === 'b' || typeof body['blobRef'] === 'string')
    return store(ctx, body, app).then((change) => changedText(ctx, change));
  return submitAndReply(ctx, changeOf(ctx, body, app));
};

const changed = ({ id, version }: Change): Changed => ({ id, version });

export const deleteItem: Handler<ItemParts, Changed> = async (ctx, app) => {
  expectCurrent(ctx, app);
  const { sig } = validators.validateDeleteBody(fields(ctx));
  const id = ulidOf(ctx);
  const change = tagged(ctx.actor.arena, 'delete', sig);
  return changed(await submitted(ctx, Object.assign(change, { id })));
};

export const moveItem: Handler<ItemParts, Changed> = async (ctx, app) => {
  expectCurrent(ctx, app);
  const { binId, version: ifVersion, sig } = validators.validateReconcileBody(fields(ctx));
  const id = ulidOf(ctx);
  const change = tagged(ctx.actor.arena, 'move', sig);
  return changed(await submitted(ctx, Object.assign(change, { id, binId, ifVersion })));
};

/** The shape of a batch is that of the first item that shows one; an item that mixes both is refused by itself. */
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

/** Does not call the blob store again after a failure: so a batch waits for one time-out, not for a hundred. */
function failFast(blobs: BlobSettler): BlobSettler {
  let down: Error | undefined;
  return {
    settle: async (tenantId, ref) => {
      if (down !== undefined) throw down;
      return blobs.settle(tenantId, ref).catch((error: unknown) => {
        down = asError(error);
        throw down;
      });
    },
  };
}

/** `POST /items/batch`: each write succeeds or fails by itself; writes of one id run one after the other. */
export const writeBatch: Handler<ItemParts, Text> = async (ctx, app) => {
  expectCurrent(ctx, app);
  const { items } = validators.validateBatchBody(fields(ctx));
  ctx.shape = ctx.namedShape ?? shapeOfItems(items) ?? ctx.shape;
  const before = new Map<string, Promise<unknown>>();
  const parts = { config: app.config, blobs: failFast(app.blobs) };
  const results = items.map((item, at) => {
    const id = idOf(item);
    const earlier = id === null ? undefined : before.get(id);
    const write = async (): Promise<Change> => {
      if (!isObject(item)) throw invalid(`items[${at}]`, 'must be an object');
      if (ctx.namedShape === undefined) shapeOfBody(item);
      return store(ctx, item, parts);
    };
    const stored = earlier === undefined ? write() : earlier.then(write);
    const result = stored.then(changed, (error: unknown) => ({ id, error: refusalOf(ctx, app, error) }));
    if (id !== null) before.set(id, result);
    return result;
  });
  // Serialized here: the `details` of errors are in the request's shape already, and a second encoding would rename the
  // device ids among their keys.
  const reply: BatchReply = { results: await Promise.all(results) };
  return new Text(JSON.stringify(reply));
};

/** Logs an unexpected error: in a batch it fails one result, not the reply. */
function refusalOf(ctx: RequestContext, { log }: ItemParts, error: unknown): ErrorFields {
  if (!(error instanceof ServiceError))
    log.error({ requestId: ctx.requestId, tenantId: ctx.tenantId, cause: describe(error) }, 'write of a batch failed');
  return errorFields(asRefusal(error), ctx.shape);
}

function cursorOf(ctx: RequestContext, epoch: string): { readonly since: number; readonly reset: boolean } {
  const since = wholeNumber(ctx, 'since', 0);
  if (since === undefined && ctx.shape === 'b') throw invalid('since', 'required');
  if (since !== undefined && since > Number.MAX_SAFE_INTEGER) throw invalid('since', 'must be at most 2^53-1');
  const known = ctx.parameter('epoch');
  const foreign = known !== undefined && known !== epoch;
  return { since: foreign ? 0 : (since ?? 0), reset: foreign };
}

/** The bin that the query names. Shape B may spell the parameter either way (reference, HTTP, The two shapes). */
function binOf(ctx: RequestContext): string | undefined {
  const camel = ctx.shape === 'b' ? ctx.parameter('binId') : undefined;
  const snake = ctx.parameter('bin_id');
  if (camel !== undefined && snake !== undefined) throw invalid('bin_id', 'given in both spellings');
  const binId = snake ?? camel;
  if (binId !== undefined && !isBinId(binId)) throw invalid('bin_id', 'must be 1 to 64 of A-Z a-z 0-9 _ -');
  return binId;
}

export const listItems: Handler<ItemParts, Text> = async (ctx, { items, epoch }) => {
  const { tenantId, shape } = ctx;
  const binId = binOf(ctx);
  const limit = Math.min(wholeNumber(ctx, 'limit', 1) ?? (shape === 'b' ? PAGE_DEFAULT_B : PAGE_DEFAULT_A), PAGE_MAX);
  const history = epoch();
  const cursor = cursorOf(ctx, history);
  const page = await items.page({ tenantId, since: cursor.since, limit, binId });
  if (cursor.since <= page.summary.version) return pageText(shape, page, { epoch: history, reset: cursor.reset });
  // A cursor above the head belongs to another history (reference, HTTP, Reading items).
  const whole = await items.page({ tenantId, since: 0, limit, binId });
  return pageText(shape, whole, { epoch: history, reset: true });
};

function pageText(shape: Shape, page: LogPage, { epoch, reset }: { epoch: string; reset: boolean }): Text {
  const last = page.rows.at(-1);
  const next = page.upTo ?? (page.more && last !== undefined ? last.version : page.summary.version);
  const [nextKey, moreKey] = shape === 'b' ? ['head_version', 'has_more'] : ['nextSince', 'hasMore'];
  const rows = page.rows.map((row) => rowText(shape, row)).join(',');
  const tail = `"${nextKey}":${next},"${moreKey}":${page.more},"epoch":${JSON.stringify(epoch)}${reset ? ',"reset":true' : ''}`;
  return new Text(`{"items":[${rows}],${tail}}`);
}
