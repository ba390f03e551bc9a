/**
 * One HTTP request under way. uWebSockets.js frees the request object when its handler returns, so everything needed
 * later is copied first. The response object is valid until it is answered or aborted, and must not be touched after.
 *
 * The body is read under the cap of its route, within the budget for bodies, and parsed.
 */
import type { HttpRequest, HttpResponse } from 'uWebSockets.js';
import { isObject, parsedJson } from '../../protocol/bytes.js';
import { invalid, ServiceError } from '../../protocol/errors.js';
import { isBinId, isUlid } from '../../protocol/ids.js';
import { camelKeys, type Shape, shapeOfBody } from '../../protocol/shape.js';
import { type Bucket, ChargedRequest, type Holding, refusalOf, type RequestBudgets } from './limits.js';
import type { Caller } from './authenticate.js';
import type { UploadRequest, UploadStream } from './streams.js';
import type { TenantActor } from './ports.js';
import { isAscii, isUtf8 } from 'node:buffer';
import { EMPTY_QUERY, parseQuery, QUERY_MAX, type Query } from './query.js';

/** The connection after the reply: kept, closed by the client (`Connection: close`), or closed by the server. */
type Closing = 'keep' | 'ask' | 'cut';

export const NO_BYTES = Buffer.alloc(0);
/** Without leading zeros: a proxy might read them as octal, or refuse what follows them. */
const WHOLE_NUMBER = /^(?:0|[1-9]\d{0,14})$/;
/** The body of a request that has none, or whose body the handler has taken. */
export const NO_FIELDS: Readonly<Record<string, unknown>> = Object.freeze({});

/** The callbacks of a request to its pipeline (src/server/http/pipeline.ts). */
export interface RequestHooks {
  /** The shape of requests that neither name one nor show one in the body. */
  readonly wireShape: Shape;
  /** Charged for bodies that arrive in several pieces, or before their request is admitted. */
  readonly budgets: RequestBudgets;
  now(): number;
  answerLater(ctx: RequestContext, answer: object): void;
  refuseLater(ctx: RequestContext, error: unknown): void;
  /** Called once: the request was answered, or its client has disconnected. */
  over(ctx: RequestContext): void;
}

/** Headers that are copied as they are, and their fields. */
const PLAIN_HEADERS = [
  ['authorization', 'authorization'],
  ['content-type', 'contentType'],
  ['x-request-id', 'givenId'],
  ['origin', 'origin'],
  ['upgrade', 'upgrade'],
  ['stripe-signature', 'signature'],
  ['if-none-match', 'ifNoneMatch'],
  ['if-range', 'ifRange'],
  ['x-forwarded-proto', 'forwardedProto'],
  ['accept', 'accept'],
  ['accept-encoding', 'acceptEncoding'],
  ['access-control-request-method', 'preflightMethod'],
] as const;
const FIELD_OF = new Map<string, (typeof PLAIN_HEADERS)[number][1]>(PLAIN_HEADERS);

/** A request under way: its copied fields, the results of the steps, and whether its response is still valid. */
export class RequestContext extends ChargedRequest implements UploadRequest {
  readonly method: string;
  readonly path: string;
  readonly query: Query;
  /**
   * The query, or the shape that it or the header names, is invalid; thrown after the body was read (reference, HTTP,
   * Order of checks).
   */
  fault: ServiceError | undefined;

  authorization = '';
  contentType = '';
  /** `Stripe-Signature`. */
  signature = '';
  host = '';
  origin = '';
  preflightMethod = '';
  givenId = '';
  ifNoneMatch = '';
  range = '';
  ifRange = '';
  forwardedProto = '';
  accept = '';
  acceptEncoding = '';
  upgrade = '';
  contentLength = 0;
  lengthDeclared = false;
  chunked = false;
  /** A fault in the framing: a proxy in front could delimit this request differently (reference, HTTP, Requests). */
  framing: string | undefined;

  /** The shape that query or header name; it takes precedence over the body's (reference, HTTP, The two shapes). */
  namedShape: Shape | undefined;
  shape: Shape;
  requestId = '';
  /** The turn of the event loop in which it arrived (`ResponseWriter.identify`). */
  turn = 0;
  /** The path of the route table, with its parameters; '' for an unknown path. */
  route = '';
  /** The value of `:id` in the path. */
  id = '';
  deviceId = '';
  /** It waits for its admission or for its handler's answer. */
  waiting = false;
  /** The token bucket of its device; undefined where the route or the configuration has no rate. */
  bucket: Bucket | undefined;
  body: Readonly<Record<string, unknown>> = NO_FIELDS;
  /** The unparsed body, where the row is `raw`. */
  bytes: Uint8Array = NO_BYTES;
  /** The body, where the row is `stream`. */
  upload: UploadStream | undefined;
  /** Status of a success. */
  status = 200;
  /** The HTML that is sent in place of a refusal; undefined: a refusal is JSON. */
  refusalPage: ((refusal: ServiceError) => string) | undefined;
  /** Of a long poll: the answer when it has to end early, because the server stops or needs the slot. */
  giveUp: object | undefined;

  closing: Closing = 'keep';
  /** The handler has called `answer` or `refuse`, maybe before it returned `LATER`. */
  settled = false;
  over = false;
  /** Releases a long reply that is still being sent; called when the client disconnects before its end. */
  unsent: (() => void) | undefined;
  /** Reads its body; stopped at the request's end. */
  reading: { stop(): void } | undefined;
  private ended: (() => void) | undefined;
  /** Set at admission, where the row requires a device. */
  caller: Caller | undefined;

  constructor(
    override readonly res: HttpResponse,
    req: HttpRequest,
    readonly startedAt: number,
    readonly hooks: RequestHooks,
  ) {
    super(res);
    const method = req.getCaseSensitiveMethod();
    this.method = method === 'POST' || method === 'GET' ? method : method.toUpperCase();
    this.path = req.getUrl();
    // Undefined without a question mark, contrary to the library's types.
    const query = req.getQuery() ?? '';
    const { values, malformed } = query === '' || query.length > QUERY_MAX ? EMPTY_QUERY : parseQuery(query);
    this.query = values;
    if (query.length > QUERY_MAX) this.fault = invalid('query', `must be at most ${QUERY_MAX} characters`);
    else if (malformed) this.fault = invalid('query', 'malformed percent-encoding');
    this.shape = hooks.wireShape;
    this.copyHeaders(req);
    this.nameShape();
  }

  private copyHeaders(req: HttpRequest): void {
    let hosts = 0;
    let wireShape: string | undefined;
    req.forEach((key, value) => {
      switch (key) {
        case 'content-length':
          if (this.lengthDeclared) this.framing = 'content-length: given twice';
          else if (!WHOLE_NUMBER.test(value)) this.framing = 'content-length: must be a whole number';
          else this.contentLength = Number(value);
          this.lengthDeclared = true;
          break;
        case 'transfer-encoding':
          if (this.chunked) this.framing = 'transfer-encoding: given twice';
          else if (value.toLowerCase() !== 'chunked') this.framing = 'transfer-encoding: only chunked is taken';
          this.chunked = true;
          break;
        case 'host':
          hosts++;
          this.host = value;
          break;
        case 'x-wire-shape':
          wireShape = wireShape === undefined || wireShape === value ? value : '';
          break;
        case 'x-forwarded-for':
          this.forwardedFor = this.forwardedFor === '' ? value : `${this.forwardedFor},${value}`;
          break;
        case 'range':
          this.range = this.range === '' ? value : `${this.range},${value}`;
          break;
        default: {
          const field = FIELD_OF.get(key);
          if (field !== undefined) this[field] = value;
        }
      }
    });
    if (hosts > 1) this.framing = 'host: given twice';
    if (this.chunked && this.lengthDeclared) this.framing = 'transfer-encoding: not beside content-length';
    if (wireShape !== undefined) this.takeShape(wireShape, 'x-wire-shape');
  }

  /** The query takes precedence over the header: it was written for this one request. */
  private nameShape(): void {
    if (this.query.has('shape')) this.takeShape(this.query.get('shape') ?? '', 'shape');
    else if (this.namedShape === undefined && this.query.has('bin_id')) this.shape = 'b';
  }

  private takeShape(value: string, path: string): void {
    if (value === 'a' || value === 'b') {
      this.namedShape = value;
      this.shape = value;
    } else {
      this.fault ??= invalid(path, 'must be a or b, once');
    }
  }

  /** A query parameter; undefined where it is not given. Throws `validation` when it is empty or given twice. */
  parameter(name: string): string | undefined {
    if (!this.query.has(name)) return undefined;
    const value = this.query.get(name) ?? null;
    if (value === null) throw invalid(name, 'given more than once');
    if (value === '') throw invalid(name, 'must not be empty');
    return value;
  }

  /** The device that sent it. Only for rows that require a device. */
  get sender(): Caller {
    if (this.caller === undefined) throw new Error(`${this.path}: a handler asked for a caller that was not resolved`);
    return this.caller;
  }

  /** The actor of its tenant. Only for rows that require a device. */
  get actor(): TenantActor {
    return this.sender.actor;
  }

  /** The answer of a handler that returned `LATER`. */
  answer(answer: object): void {
    this.settled = true;
    this.hooks.answerLater(this, answer);
  }

  /** The refusal of a handler that returned `LATER`. */
  refuse(error: unknown): void {
    this.settled = true;
    this.hooks.refuseLater(this, error);
  }

  /**
   * Calls back once, when the request is over: answered, or its client disconnected. There is one callback at a time: a
   * later call replaces that of an earlier one.
   */
  onEnd(fn: () => void): void {
    if (this.over) fn();
    else this.ended = fn;
  }

  /** Marks the request as over. Only the caller may still touch the response, in this turn. */
  end(): void {
    if (this.over) return;
    this.over = true;
    this.reading?.stop();
    const ended = this.ended;
    this.ended = undefined;
    ended?.();
    this.hooks.over(this);
  }
}

/** The body with camelCase keys; shape B may use either spelling (reference, HTTP, The two shapes). */
export const fields = (ctx: RequestContext): Record<string, unknown> =>
  ctx.shape === 'b' ? camelKeys(ctx.body) : ctx.body;

/** The path's id as a ULID. Throws `validation`. */
export function ulidOf(ctx: RequestContext): string {
  if (!isUlid(ctx.id)) throw invalid('id', 'must be a ULID in upper case');
  return ctx.id;
}

/** The path's id as a bin id. Throws `validation`. */
export function binIdOf(ctx: RequestContext): string {
  if (!isBinId(ctx.id)) throw invalid('id', 'must be 1 to 64 of A-Z a-z 0-9 _ -');
  return ctx.id;
}

/** A query parameter that is a whole number from `min` up; undefined where it is not given. Throws `validation`. */
export function wholeNumber(ctx: RequestContext, name: string, min: number): number | undefined {
  const text = ctx.parameter(name);
  if (text === undefined) return undefined;
  const value = /^\d+$/.test(text) ? Number(text) : NaN;
  if (!(value >= min)) throw invalid(name, `must be a whole number, at least ${min}`);
  return value;
}

/** A body that takes longer than this is refused, ms. uWebSockets.js closes a silent connection after 10 s already. */
const BODY_MS = 30_000;
/** A body that arrives slowly resets the library's time-out of ten seconds this often, ms. */
const STAY_OPEN_MS = 2_000;
/**
 * A client reads the refusal of a body that it is still sending only if the connection stays open meanwhile. Of a chunked
 * one, up to this many bytes are therefore read and dropped before it is refused and the connection closed. Where more of
 * a declared length is left, the client is asked to close.
 */
export const SWALLOW_MAX = 4 * 1024 * 1024;

export type Body = Buffer | ServiceError;
/** Receives a body, whose bytes are valid during the call only. */
type TakeBody = (body: Body) => void;

const tooLarge = (cap: number): ServiceError =>
  new ServiceError('payload_too_large', `the body is larger than ${cap} bytes`, { maxBytes: cap });

const noRoom = (verdict: 'share' | 'bound'): ServiceError => refusalOf(verdict, 'bytes of bodies');

/** Reads one body, and keeps it, complete or refused, until the request is admitted. */
class BodyReader {
  private size = 0;
  /** Both set once the body has arrived in more than one piece, or before the admission. */
  private pieces: Buffer[] | undefined;
  private held: Holding | undefined;
  /** No more is read. */
  private finished = false;
  private kept: Body | undefined;
  private openedAt: number;

  constructor(
    private readonly ctx: RequestContext,
    /** The largest body that is taken, bytes. */
    private readonly cap: number,
    private admitted: boolean,
    private readonly done: TakeBody,
  ) {
    this.openedAt = ctx.startedAt;
  }

  take(chunk: ArrayBuffer, isLast: boolean): void {
    if (this.finished) return;
    const first = this.size === 0;
    this.size += chunk.byteLength;
    if (this.size > this.cap) return this.swallow(isLast);
    if (isLast && first && this.admitted) return this.finish(Buffer.from(chunk));
    // A partial body is charged before its sender is authenticated: else half-sent bodies could fill the memory.
    const verdict = this.hold(chunk);
    if (verdict !== 'held') this.refuse(noRoom(verdict));
    else if (isLast) this.finish(Buffer.concat(this.pieces ?? [], this.size));
    else if (!this.late) this.stayOpen();
    else this.cut(invalid('body', `took longer than ${BODY_MS / 1_000} seconds`));
  }

  /** The library closes a connection that delivers less than 16 KiB a second, unless it is paused and resumed. */
  private stayOpen(): void {
    const now = this.ctx.hooks.now();
    if (Math.abs(now - this.openedAt) < STAY_OPEN_MS) return;
    this.openedAt = now;
    this.ctx.res.pause();
    this.ctx.res.resume();
  }

  private get late(): boolean {
    return this.ctx.hooks.now() - this.ctx.startedAt > BODY_MS;
  }

  private hold(chunk: ArrayBuffer) {
    const { budgets } = this.ctx.hooks;
    // Progress is not noted with `moved`: the body that began first is evicted first, however fast its bytes arrive.
    this.held ??= budgets.holding(this.ctx, () => this.giveWay());
    const verdict = budgets.of(this.ctx).bodies.set(this.held, this.size);
    // A copy: the library reuses its memory when `take` returns.
    if (verdict === 'held') (this.pieces ??= []).push(Buffer.from(chunk.slice(0)));
    return verdict;
  }

  /** Evicted: refuses the body, to make room for others. */
  giveWay(): void {
    if (this.kept !== undefined) this.kept = noRoom('share');
    else if (!this.finished) this.refuse(noRoom('share'));
  }

  private swallow(isLast: boolean): void {
    const { cap } = this;
    this.release();
    if (isLast || this.late || this.size > cap + SWALLOW_MAX) this.cut(tooLarge(cap));
  }

  /** The library drops the rest of a declared length after the reply (`isLeft` in reply.ts). A chunked one has no known end. */
  private refuse(fault: ServiceError): void {
    if (this.ctx.chunked) this.cut(fault);
    else this.finish(fault);
  }

  private cut(fault: ServiceError): void {
    this.ctx.closing = 'cut';
    this.finish(fault);
  }

  private release(): void {
    if (this.held !== undefined) this.ctx.hooks.budgets.of(this.ctx).bodies.release(this.held);
    this.pieces = undefined;
  }

  /** The body was handed over, or the request is over. */
  stop(): void {
    this.end();
    this.kept = undefined;
    this.ctx.reading = undefined;
    this.release();
  }

  private end(): void {
    this.finished = true;
    // A request that does not wait for its client cannot be evicted.
    if (this.ctx.place !== undefined) this.ctx.place.giveWay = undefined;
  }

  /** The body is complete or refused. Kept, it stays charged. */
  finish(body: Body): void {
    if (this.admitted) {
      this.stop();
      this.done(body);
      return;
    }
    this.end();
    this.kept = body;
    this.pieces = undefined;
    if (body instanceof ServiceError) this.release();
  }

  /** The request is admitted: hands over what was read so far, if it is complete. */
  admit(): void {
    this.admitted = true;
    if (this.kept !== undefined) this.finish(this.kept);
  }
}

/**
 * Reads a body of at most `cap` bytes, and calls `done` once, unless the client disconnects first, and not before the
 * request is `admitted`. A declared length over the cap is refused before anything is read. A request whose body is
 * incomplete may be evicted from those under way (see `FairBudget`).
 */
export function readBody(ctx: RequestContext, cap: number, admitted: boolean, done: TakeBody): BodyReader {
  const reader = new BodyReader(ctx, cap, admitted, done);
  if (ctx.contentLength > cap) {
    ctx.closing = 'ask';
    reader.finish(tooLarge(cap));
    return reader;
  }
  ctx.reading = reader;
  const { place } = ctx;
  if (place !== undefined) place.giveWay = () => reader.giveWay();
  ctx.res.onData((chunk, isLast) => reader.take(chunk, isLast));
  return reader;
}

const JSON_TYPE = /^application\/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?$/i;

function textOf(bytes: Buffer, path: string): string {
  if (isAscii(bytes)) return bytes.toString('latin1');
  if (!isUtf8(bytes)) throw invalid(path, 'must be UTF-8');
  return bytes.toString('utf8');
}

/**
 * Parses JSON from a client; `path` names it in a refusal. All JSON of clients is parsed here: depth and count are
 * checked before the parser builds anything (FAIR-40). Throws `validation`.
 */
export function parseJson(bytes: Buffer, path: string): unknown {
  const excess = jsonExcess(bytes);
  if (excess === 'depth') throw invalid(path, `must be at most ${JSON_DEPTH_MAX} levels deep`);
  if (excess === 'count') throw invalid(path, `must have at most ${JSON_COUNT_MAX} names and values`);
  // The parser's own message quotes the body, which must not get into replies or logs.
  return parsedJson(textOf(bytes, path), () => invalid(path, 'must be valid JSON'));
}

/** Parses the body and determines the request's shape (reference, HTTP, The two shapes). No body is an empty object. */
export function takeBody(ctx: RequestContext, bytes: Buffer): void {
  if (bytes.length > 0) {
    if (ctx.contentType !== 'application/json' && !JSON_TYPE.test(ctx.contentType))
      throw invalid('content-type', 'must be application/json');
    const body = parseJson(bytes, 'body');
    if (!isObject(body)) throw invalid('body', 'must be a JSON object');
    ctx.body = body;
  }
  if (ctx.namedShape !== undefined) return;
  try {
    ctx.shape = shapeOfBody(ctx.body) ?? ctx.shape;
  } catch (error) {
    // A body with marks of both shapes is `invalid_payload`, which is B's name for it (reference, HTTP, The two shapes).
    ctx.shape = 'b';
    throw error;
  }
}

/** Takes the fields of an HTML form as the body. Throws `validation` for anything else. */
export function takeForm(ctx: RequestContext, bytes: Buffer): void {
  if (!/^application\/x-www-form-urlencoded(;|$)/i.test(ctx.contentType))
    throw invalid('content-type', 'must be application/x-www-form-urlencoded');
  const { values, malformed } = parseQuery(bytes.toString('utf8'));
  if (malformed) throw invalid('body', 'has a malformed escape');
  // A field that is given twice is null in the map, which no validator accepts.
  ctx.body = Object.fromEntries(values);
}

export const JSON_DEPTH_MAX = 32;
/** Maximum number of names and values. The largest legitimate batch, 1 MiB for 100 devices, has about 16,000. */
export const JSON_COUNT_MAX = 32_768;

export type JsonExcess = 'depth' | 'count';

const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/** Kinds of bytes outside of strings. Kind 0 is part of a number, `true`, `false` or `null`. */
const BETWEEN = 1;
const OPENS = 2;
const CLOSES = 3;
const KINDS = new Uint8Array(256);
for (const byte of [0x20, 0x09, 0x0a, 0x0d, 0x2c, 0x3a]) KINDS[byte] = BETWEEN;
for (const byte of [0x5b, 0x7b]) KINDS[byte] = OPENS;
for (const byte of [0x5d, 0x7d]) KINDS[byte] = CLOSES;
// Of none of these kinds, but it ends a number.
KINDS[QUOTE] = 4;

/** The end of the string whose first byte is at `start`: after its closing quote, or the end of the bytes. */
function endOfString(bytes: Buffer, start: number): number {
  const { length } = bytes;
  let at = bytes.indexOf(QUOTE, start);
  if (at < 0) return length;
  let escapes = 0;
  while (at - escapes > start && bytes[at - escapes - 1] === BACKSLASH) escapes++;
  if (escapes % 2 === 0) return at + 1;
  // After an escaped quote the scan is byte by byte: in a string of many of them each would cost a search.
  for (at++; at < length; at++) {
    const byte = bytes[at];
    if (byte === QUOTE) return at + 1;
    if (byte === BACKSLASH) at++;
  }
  return length;
}

/**
 * The bound that a JSON text exceeds; undefined where it exceeds none. Every name and value counts, lists and objects
 * too. A parser builds an object for every two bytes of `[[[[...` and blocks the event loop meanwhile; this reads each
 * byte once and allocates nothing. For bytes that are not JSON, undefined only means that they may be parsed.
 */
export function jsonExcess(bytes: Buffer): JsonExcess | undefined {
  const { length } = bytes;
  let depth = 0;
  let count = 0;
  for (let at = 0; at < length;) {
    const byte = bytes[at++] ?? 0;
    const kind = KINDS[byte];
    if (kind === BETWEEN) continue;
    if (kind === CLOSES) {
      depth--;
      continue;
    }
    if (++count > JSON_COUNT_MAX) return 'count';
    if (byte === QUOTE) at = endOfString(bytes, at);
    else if (kind === OPENS) {
      if (++depth > JSON_DEPTH_MAX) return 'depth';
    } else while (at < length && KINDS[bytes[at] ?? 0] === 0) at++;
  }
  return undefined;
}
