/**
 * One HTTP request under way. uWebSockets.js frees the request when its handler returns, so everything needed later
 * is copied first; the response object lives until it is answered or aborted, and is never touched after that.
 */
import type { HttpRequest, HttpResponse } from 'uWebSockets.js';
import { invalid, type ServiceError } from '../protocol/errors.js';
import type { Shape } from '../protocol/shape.js';
import type { TokenClaims } from '../account/tokens.js';
import type { Bucket } from './admit.js';
import type { Holding } from './fair-budget.js';
import type { Inflow } from './inflow.js';
import type { TenantActor } from './ports.js';

/** How the connection goes on after the reply: kept, closed by the client as told, or cut. */
export type Closing = 'keep' | 'ask' | 'cut';

type Query = ReadonlyMap<string, string | null>;

/** What a query says. */
export interface ParsedQuery {
  /** Name to value; null marks a name that was given more than once. Parts with a malformed escape are left out. */
  readonly values: Query;
  /** Some part had a malformed escape. */
  readonly malformed: boolean;
}

/**
 * The longest query that is read: ours have a token and a few numbers. The library lets half a megabyte through, and
 * its quarter of a million parts would be read before anybody knows whose they are.
 */
const QUERY_MAX = 4_096;

const EMPTY_QUERY: ParsedQuery = { values: new Map(), malformed: false };

/** Reads a query. One bad part leaves the others readable: the refusal needs to know the shape (contract 2). */
export function parseQuery(text: string): ParsedQuery {
  if (text === '') return EMPTY_QUERY;
  const values = new Map<string, string | null>();
  let malformed = false;
  for (const part of text.split('&')) {
    const at = part.indexOf('=');
    const [name, value] = at < 0 ? [part, ''] : [part.slice(0, at), part.slice(at + 1)];
    try {
      const key = decodeURIComponent(name.replaceAll('+', ' '));
      const decoded = decodeURIComponent(value.replaceAll('+', ' '));
      values.set(key, values.has(key) ? null : decoded);
    } catch {
      // decodeURIComponent throws for nothing else than a malformed escape.
      malformed = true;
    }
  }
  return { values, malformed };
}

/** A name or an address in brackets, and maybe a port, which may be empty (RFC 9110, 7.2; RFC 3986, 3.2.3). */
const HOST = /^(\[[0-9a-f:.]*\]|[^:[\]]*)(?::\d{0,5})?$/i;

/**
 * The host name of a Host header: lower case, without port. Empty for one of another form, such as one with a user's
 * part: a proxy could read that as another host than we do.
 */
export const hostName = (header: string): string => (HOST.exec(header)?.[1] ?? '').toLowerCase();

/** What a call tells those who took it in (src/front/pipeline.ts). */
export interface CallKeeper {
  /** The answer of a handler that had said that it comes later. */
  answerLater(call: Call, answer: object): void;
  refuseLater(call: Call, error: unknown): void;
  /** Once: it was answered, or its client went away. */
  over(call: Call): void;
}

/**
 * A request under way: what was copied of it, what the steps found out about it, and whether its response still lives.
 */
export class Call {
  readonly method: string;
  readonly path: string;
  readonly query: Query;
  readonly startedAt: number;
  /** Set where the query or the shape it names does not parse; raised when it is the body's turn (contract 3, order). */
  fault: ServiceError | undefined;

  authorization = '';
  contentType = '';
  /** `Stripe-Signature`. */
  signature = '';
  host = '';
  origin = '';
  preflightMethod = '';
  forwardedFor = '';
  givenId = '';
  /** Tags of what the client has already. */
  ifNoneMatch = '';
  /** Which part of a file is asked for, and of which one. */
  range = '';
  ifRange = '';
  /** The scheme that a proxy says the client used. */
  forwardedProto = '';
  upgrade = '';
  /** Declared length of the body in bytes; 0 where none is declared. */
  contentLength = 0;
  lengthDeclared = false;
  chunked = false;
  /** Says what is wrong with the framing: a proxy in front could read this request otherwise (contract 4). */
  framing: string | undefined;

  /** The shape that query or header name; it wins over what a body shows (contract 2). */
  namedShape: Shape | undefined;
  shape: Shape;
  requestId = '';
  /** The path as the route table has it, `:id` and all; '' for none of them. */
  route = '';
  /** The part of the path that stands for `:id`. */
  id = '';
  tenantId = '';
  deviceId = '';
  /** What limits per address count the client by, once somebody asked (`Shares.addressOf`). */
  address = '';
  /** Whose shares it uses: its device, in a spelling that no other tenant's device has; '' for a stranger. */
  owner = '';
  /** Its place among the calls under way. */
  place: Holding | undefined;
  /** Room that is reserved for its reply. */
  room: Holding | undefined;
  /** What its device may still read and write; undefined where nothing is counted. */
  bucket: Bucket | undefined;
  body: Record<string, unknown> = {};
  /** The body as it came, where the row takes it raw. */
  bytes: Uint8Array = new Uint8Array();
  /** The body on its way in, where the row streams it. */
  inflow: Inflow | undefined;
  /** Status of a success. */
  status = 200;
  /** Of a held call: what it is answered with when the server stops before it has its answer. */
  giveUp: object | undefined;

  closing: Closing = 'keep';
  /** Answered or aborted: the response may not be touched any more. */
  over = false;
  /** The client is gone; set before `over`. */
  aborted = false;
  /** Lets go of a long reply that is still being sent; called when the client goes away in the middle of it. */
  unsent: (() => void) | undefined;
  private ended: (() => void) | undefined;
  private knownActor: TenantActor | undefined;
  private knownClaims: TokenClaims | undefined;

  constructor(
    readonly res: HttpResponse,
    req: HttpRequest,
    context: { readonly now: number; readonly shape: Shape },
    private readonly keeper: CallKeeper,
  ) {
    this.method = req.getCaseSensitiveMethod().toUpperCase();
    this.path = req.getUrl();
    // Undefined without a question mark, other than the library's types say.
    const query = req.getQuery() ?? '';
    const { values, malformed } = query.length > QUERY_MAX ? EMPTY_QUERY : parseQuery(query);
    this.query = values;
    if (query.length > QUERY_MAX) this.fault = invalid('query', `must be at most ${QUERY_MAX} characters`);
    else if (malformed) this.fault = invalid('query', 'malformed percent-encoding');
    this.startedAt = context.now;
    this.shape = context.shape;
    this.copyHeaders(req);
    this.nameShape();
  }

  private copyHeaders(req: HttpRequest): void {
    let hosts = 0;
    let lengths = 0;
    let encodings = 0;
    let wireShape: string | undefined;
    req.forEach((key, value) => {
      switch (key) {
        case 'authorization':
          this.authorization = value;
          break;
        case 'content-type':
          this.contentType = value;
          break;
        case 'content-length':
          lengths++;
          this.lengthDeclared = true;
          if (!/^\d{1,15}$/.test(value)) this.framing = 'content-length: must be a whole number';
          else this.contentLength = Number(value);
          break;
        case 'transfer-encoding':
          encodings++;
          this.chunked = true;
          if (value.toLowerCase() !== 'chunked') this.framing = 'transfer-encoding: only chunked is taken';
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
        case 'x-request-id':
          this.givenId = value;
          break;
        case 'origin':
          this.origin = value;
          break;
        case 'upgrade':
          this.upgrade = value;
          break;
        default:
          this.copyRare(key, value);
      }
    });
    if (hosts > 1) this.framing = 'host: given twice';
    if (lengths > 1) this.framing = 'content-length: given twice';
    if (encodings > 1) this.framing = 'transfer-encoding: given twice';
    if (encodings > 0 && lengths > 0) this.framing = 'transfer-encoding: not beside content-length';
    if (wireShape !== undefined) this.takeShape(wireShape, 'x-wire-shape');
  }

  /** Headers that few requests have. */
  private copyRare(key: string, value: string): void {
    switch (key) {
      case 'stripe-signature':
        this.signature = value;
        break;
      case 'if-none-match':
        this.ifNoneMatch = value;
        break;
      case 'range':
        this.range = this.range === '' ? value : `${this.range},${value}`;
        break;
      case 'if-range':
        this.ifRange = value;
        break;
      case 'x-forwarded-proto':
        this.forwardedProto = value;
        break;
      case 'access-control-request-method':
        this.preflightMethod = value;
        break;
    }
  }

  /** The query is the last word: it is in the URL that somebody wrote for this one request. */
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

  /** The tenant's actor. Only routes whose row asks for a device have one. */
  get actor(): TenantActor {
    if (this.knownActor === undefined)
      throw new Error(`${this.path}: a handler asked for a tenant that was not resolved`);
    return this.knownActor;
  }

  set actor(actor: TenantActor) {
    this.knownActor = actor;
  }

  /** What the caller's token or ticket says. Only where the row asks for a device. */
  get claims(): TokenClaims {
    if (this.knownClaims === undefined) throw new Error(`${this.path}: a handler asked for a caller that has no token`);
    return this.knownClaims;
  }

  set claims(claims: TokenClaims) {
    this.knownClaims = claims;
  }

  /** The answer of a handler that gave `LATER`. */
  answer(answer: object): void {
    this.keeper.answerLater(this, answer);
  }

  /** The refusal of a handler that gave `LATER`. */
  refuse(error: unknown): void {
    this.keeper.refuseLater(this, error);
  }

  /** Calls back once, when the call is over: answered, or its client gone. */
  onEnd(fn: () => void): void {
    if (this.over) fn();
    else this.ended = fn;
  }

  /** Answered, gone, or given up: from here on the response belongs to nobody else. */
  end(): void {
    if (this.over) return;
    this.over = true;
    const ended = this.ended;
    this.ended = undefined;
    ended?.();
    this.keeper.over(this);
  }
}
