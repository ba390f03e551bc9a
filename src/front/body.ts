/** Reading a request's body under its cap, and what it says (contract 3, `validation` and `payload_too_large`). */
import { isAscii, isUtf8 } from 'node:buffer';
import { invalid, ServiceError } from '../protocol/errors.js';
import { shapeOfBody } from '../protocol/shape.js';
import { refusalOf, type Holding, type Verdict } from './fair-budget.js';
import { JSON_COUNT_MAX, JSON_DEPTH_MAX, jsonExcess } from './json-bounds.js';
import { parseQuery, type Call } from './request.js';
import type { Shares } from './shares.js';

/** A body that takes longer than this is refused, ms. Silence is cut by uWebSockets.js after 10 s already. */
const BODY_MS = 30_000;
/**
 * A reply to a request whose body is still on its way is read by the client only if the connection stays open until
 * the client has stopped sending. So much of an unwanted body is swallowed for that; more is cut off.
 */
export const SWALLOW_MAX = 4 * 1024 * 1024;

/** How a body is read. */
export interface BodyOptions {
  /** The largest body that is taken, bytes. */
  readonly cap: number;
  /** Account for what is held of bodies that come in several pieces. */
  readonly shares: Shares;
  readonly now: () => number;
  /** Called once, unless the client goes away first. The bytes are valid during the call only. */
  readonly done: (bytes: Buffer, fault: ServiceError | undefined) => void;
}

const NOTHING = Buffer.alloc(0);

const tooLarge = (cap: number): ServiceError =>
  new ServiceError('payload_too_large', `the body is larger than ${cap} bytes`, { maxBytes: cap });

const noRoom = (verdict: 'share' | 'bound'): ServiceError => refusalOf(verdict, 'bytes of bodies');

/** One body on its way in. */
class BodyReader {
  private pieces: Buffer[] = [];
  private size = 0;
  /** Of a body that comes in several pieces: what the budget knows of it. */
  private held: Holding | undefined;
  private finished = false;

  constructor(
    private readonly call: Call,
    private readonly options: BodyOptions,
  ) {}

  take(chunk: ArrayBuffer, isLast: boolean): void {
    if (this.finished) return;
    const { cap } = this.options;
    const first = this.size === 0;
    this.size += chunk.byteLength;
    if (this.size > cap) return this.swallow(isLast);
    if (isLast && first) return this.finish(Buffer.from(chunk));
    // Half a body is held before anybody is asked: without this, strangers could fill the memory with halves.
    const verdict = this.hold(chunk);
    if (verdict !== 'held') this.finish(NOTHING, noRoom(verdict));
    else if (isLast) this.finish(Buffer.concat(this.pieces, this.size));
    else if (this.late) this.finish(NOTHING, invalid('body', `took longer than ${BODY_MS / 1_000} seconds`));
  }

  private get late(): boolean {
    return this.options.now() - this.call.startedAt > BODY_MS;
  }

  private hold(chunk: ArrayBuffer): Verdict {
    const { shares } = this.options;
    // The one that began first is the first to give way, however fast its bytes come.
    this.held ??= shares.holding(this.call, () => this.giveWay());
    const verdict = shares.of(this.call).bodies.set(this.held, this.size);
    // The library takes its memory back when \`take\` returns.
    if (verdict === 'held') this.pieces.push(Buffer.from(chunk.slice(0)));
    return verdict;
  }

  /** Refused, so that others have room. */
  giveWay(): void {
    if (!this.finished) this.finish(NOTHING, noRoom('share'));
  }

  private swallow(isLast: boolean): void {
    const { cap } = this.options;
    this.release();
    if (isLast || this.late || this.size > cap + SWALLOW_MAX) this.finish(NOTHING, tooLarge(cap));
  }

  private release(): void {
    if (this.held !== undefined) this.options.shares.of(this.call).bodies.release(this.held);
    this.pieces = [];
  }

  /** The call is over: what is held is held for nobody. */
  stop(): void {
    this.finished = true;
    this.release();
    // What follows cannot be broken off.
    if (this.call.place !== undefined) this.call.place.giveWay = undefined;
  }

  private finish(bytes: Buffer, fault?: ServiceError): void {
    if (fault !== undefined) this.call.closing = 'cut';
    this.stop();
    this.options.done(bytes, fault);
  }
}

/** What came of a body that was whole, or refused, before its call was let in. */
interface Kept {
  readonly bytes: Buffer;
  readonly fault: ServiceError | undefined;
}

/** The body of a call that waits for its admission: a copy, accounted for until the call is let in or over. */
export class KeptBody {
  private kept: Kept | undefined;
  private held: Holding | undefined;

  constructor(
    private readonly call: Call,
    private readonly shares: Shares,
  ) {}

  /** Takes the body in. Where there is no room it is dropped, and the call will be refused. */
  put(bytes: Buffer, fault: ServiceError | undefined): void {
    this.kept = { bytes: NOTHING, fault };
    if (bytes.length === 0) return;
    this.held = this.shares.holding(this.call, () => (this.kept = { bytes: NOTHING, fault: noRoom('share') }));
    const verdict = this.shares.of(this.call).bodies.set(this.held, bytes.length);
    if (verdict !== 'held') this.kept = { bytes: NOTHING, fault: fault ?? noRoom(verdict) };
    else {
      this.kept = { bytes: Buffer.from(bytes), fault };
      this.call.onEnd(() => void this.take());
    }
  }

  /** Hands the body over, and holds it no longer; undefined while it is on its way, and after it was taken. */
  take(): Kept | undefined {
    const { kept, held } = this;
    this.kept = undefined;
    if (held !== undefined) this.shares.of(this.call).bodies.release(held);
    return kept;
  }
}

/**
 * Reads the body; a declared length over the cap is refused before anything is read. While it is on its way the call
 * gives its place to others where there are too many (see \`FairBudget\`).
 */
export function readBody(call: Call, options: BodyOptions): void {
  if (call.contentLength > options.cap) {
    call.closing = 'ask';
    options.done(NOTHING, tooLarge(options.cap));
    return;
  }
  const reader = new BodyReader(call, options);
  call.onEnd(() => reader.stop());
  const { place } = call;
  if (place !== undefined) place.giveWay = () => reader.giveWay();
  call.res.onData((chunk, isLast) => reader.take(chunk, isLast));
}

const JSON_TYPE = /^application\/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?$/i;

function textOf(bytes: Buffer, path: string): string {
  if (isAscii(bytes)) return bytes.toString('latin1');
  if (!isUtf8(bytes)) throw invalid(path, 'must be UTF-8');
  return bytes.toString('utf8');
}

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/**
 * What JSON from outside says; `path` names it in a refusal. Every byte of JSON that a stranger sent is parsed here and
 * nowhere else: the bounds are looked at before anything is built (FAIR-40). Throws `validation`.
 */
export function parseJson(bytes: Buffer, path: string): unknown {
  const excess = jsonExcess(bytes);
  if (excess === 'depth') throw invalid(path, `must be at most ${JSON_DEPTH_MAX} levels deep`);
  if (excess === 'count') throw invalid(path, `must have at most ${JSON_COUNT_MAX} names and values`);
  const text = textOf(bytes, path);
  try {
    return JSON.parse(text) as unknown;
  } catch {
    // The parser's own message quotes the body, which must not travel further.
    throw invalid(path, 'must be valid JSON');
  }
}

/** Takes the body in and settles the request's shape (contract 2). No body at all is an empty object. */
export function takeBody(call: Call, bytes: Buffer): void {
  if (bytes.length > 0) {
    if (call.contentType !== 'application/json' && !JSON_TYPE.test(call.contentType)) {
      throw invalid('content-type', 'must be application/json');
    }
    const body = parseJson(bytes, 'body');
    if (!isObject(body)) throw invalid('body', 'must be a JSON object');
    call.body = body;
  }
  if (call.namedShape !== undefined) return;
  try {
    call.shape = shapeOfBody(call.body) ?? call.shape;
  } catch (error) {
    // A body with marks of both shapes is `invalid_payload`, which is B's name for it (contract 2).
    call.shape = 'b';
    throw error;
  }
}

/** Takes what a form of HTML sends as the body's fields. Throws `validation` for anything else. */
export function takeForm(call: Call, bytes: Buffer): void {
  if (!/^application\/x-www-form-urlencoded(;|$)/i.test(call.contentType)) {
    throw invalid('content-type', 'must be application/x-www-form-urlencoded');
  }
  const { values, malformed } = parseQuery(bytes.toString('utf8'));
  if (malformed) throw invalid('body', 'has a malformed escape');
  // A field that is given twice is null in the map, which no validator takes.
  call.body = Object.fromEntries(values);
}
