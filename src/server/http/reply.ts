/** Writing replies: status, headers and body in one cork, once, and never to a dead response. */
import { randomBytes } from 'node:crypto';
import type { HttpResponse } from 'uWebSockets.js';
import { codeOf, COME_BACK_S, ServiceError, statusOf } from '../../protocol/errors.js';
import type { Clock } from '../../protocol/clock.js';
import type { Meter } from '../../protocol/meter.js';
import { encode } from '../../protocol/shape.js';
import { SWALLOW_MAX, type RequestContext } from './request.js';
import { addressOfPeer, type TrustedProxies } from './client-address.js';
import { asRefusal, describe, errorFields, retryAfterOf } from './fail.js';
import { Outflow, type BlobFile, type OutflowOptions } from './outflow.js';
import { Pace, type TooSlow } from './pace.js';
import type { DocsPage, Log } from './ports.js';
import { hasTag, partOf } from './range.js';
import type { Shares } from './limits.js';

/** A reply that is text already. */
export class Text {
  constructor(
    readonly text: string,
    readonly type = 'application/json',
  ) {}
}

/** A page of the reference: it may be kept by its tag, and is allowed nothing but its own style sheet. */
export class Page {
  constructor(readonly page: DocsPage) {}
}

/** A file, of which the reply is all or a part. Whoever is given it closes it. */
export class Download {
  constructor(
    readonly file: BlobFile,
    /** Entity tag with its quotes. */
    readonly etag: string,
    readonly tooSlow: TooSlow,
  ) {}
}

/** What a handler gives: an object with camelCase keys and raw bytes, finished text, a page, or a file. */
export type Answer = object | Text | Page | Download;

const STATUS_LINES: Readonly<Record<number, string>> = {
  200: '200 OK',
  202: '202 Accepted',
  204: '204 No Content',
  206: '206 Partial Content',
  304: '304 Not Modified',
  400: '400 Bad Request',
  401: '401 Unauthorized',
  402: '402 Payment Required',
  403: '403 Forbidden',
  404: '404 Not Found',
  405: '405 Method Not Allowed',
  409: '409 Conflict',
  410: '410 Gone',
  413: '413 Payload Too Large',
  416: '416 Range Not Satisfiable',
  429: '429 Too Many Requests',
  500: '500 Internal Server Error',
  503: '503 Service Unavailable',
};

/** Replies above this are turned into bytes once, and not by the library at each attempt; characters. */
const LONG_REPLY = 64 * 1024;
/** What a reply that is not read costs beside its bytes: the call, the connection and their buffers. */
const REPLY_COST = 4 * 1024;
/** Bytes a second that a client has to read of a reply, measured over PACE_WINDOW_MS. */
const READ_PACE_MIN = 16 * 1024;
/** A request id that a proxy gave is taken over only in this form: it goes into headers and logs. */
const SAFE_ID = /^[A-Za-z0-9._-]{1,64}$/;

const METHODS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'POST', 'PATCH', 'DELETE', 'PUT', 'OPTIONS']);

type Headers = readonly (readonly [name: string, value: string])[];
const NO_HEADERS: Headers = [];

/** How a file, or a part of it, goes out. */
interface Sent extends Pick<OutflowOptions, 'part' | 'tooSlow'> {
  readonly status: number;
  readonly headers: Headers;
}
const BYTES = 'application/octet-stream';
/** What browsers on other origins may send, and may read. */
const ASKED = 'authorization, content-type, x-wire-shape, x-request-id, range, if-range, if-none-match';
const EXPOSED = 'x-request-id, retry-after, etag, content-range, accept-ranges, content-length';
/** A page may show itself and its style sheet, and nothing else: no script, no frame, no other host. */
const PAGE_POLICY = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/**
 * What comes with the plain texts and pages: a form may be sent to this host, and the one secret page goes into no
 * frame.
 */
const PLAIN: Headers = [
  ['content-security-policy', "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"],
  ['x-content-type-options', 'nosniff'],
  ['referrer-policy', 'no-referrer'],
];
/** What comes with a blob: nobody knows what it is but the devices, and no browser shall make anything of it. */
const OPAQUE: Headers = [
  ['x-content-type-options', 'nosniff'],
  ['content-disposition', 'attachment'],
  ['content-security-policy', "default-src 'none'; sandbox"],
  ['cross-origin-resource-policy', 'cross-origin'],
  ['accept-ranges', 'bytes'],
];
const COME_BACK: Headers = [['retry-after', String(COME_BACK_S)]];

/** What replies are made with. */
export interface ResponseWriterOptions {
  readonly log: Log;
  readonly clock: Clock;
  /** Account for replies until their clients have read them. */
  readonly shares: Shares;
  readonly proxies: TrustedProxies;
  readonly corsOrigins: readonly string[];
  readonly meter?: Meter;
}

/**
 * Whether the connection has to be cut behind the reply: the library does not read trailers, so nobody can say where a
 * chunked request ends, and more of a body than is swallowed would be read as the next request. Such a reply has a
 * body, even where the same request would otherwise get 204 or 304 (HTTP-16).
 */
const cuts = (ctx: RequestContext): boolean =>
  ctx.closing === 'cut' || ctx.chunked || (ctx.inflow?.left ?? ctx.contentLength) > SWALLOW_MAX;

interface Outgoing {
  readonly status: number;
  readonly type: string;
  readonly text: string;
  /** The same as bytes, where they are kept: then no reply makes a copy of its own. */
  readonly bytes?: Buffer;
  readonly headers: Headers;
  /** `Cache-Control`; left out: nothing is kept. */
  readonly cache?: string;
  /** Of an answer to HEAD: the length that is told, where it is not the text's. */
  readonly length?: number;
}

/** Writes every reply and refusal, gives requests their ids and leaves one line a request in the log. */
export class ResponseWriter {
  /** Ids are unique over processes by their random start, and within one by counting. */
  private readonly idStart = `${randomBytes(6).toString('base64url').replaceAll('_', '-')}.`;
  private nextId = 1;
  private readonly anyOrigin: boolean;
  private readonly debug: boolean;
  /** While the server stops, each reply ends its connection. */
  closing = false;

  constructor(private readonly options: ResponseWriterOptions) {
    this.anyOrigin = options.corsOrigins.includes('*');
    this.debug = options.log.isLevelEnabled('debug');
  }

  /** Gives the call its request id: the proxy's where a trusted one gave one. */
  identify(ctx: RequestContext): void {
    if (ctx.givenId !== '' && SAFE_ID.test(ctx.givenId)) {
      const peer = addressOfPeer(new Uint8Array(ctx.res.getRemoteAddress()));
      if (peer !== undefined && this.options.proxies.trusts(peer)) {
        ctx.requestId = ctx.givenId;
        return;
      }
    }
    ctx.requestId = this.idStart + (this.nextId++).toString(36);
  }

  /** Answers with what a handler gave, in the request's shape. */
  answer(ctx: RequestContext, answer: Answer): void {
    const headers = ctx.status === 503 ? COME_BACK : NO_HEADERS;
    if (answer instanceof Page) this.sendPage(ctx, answer.page);
    else if (answer instanceof Download) this.sendFile(ctx, answer);
    else if (answer instanceof Text) {
      // Items are texts too, of JSON: nothing is shown of them, and these bytes would come with each.
      const texts = answer.type.startsWith('text/') ? [...headers, ...PLAIN] : headers;
      this.send(ctx, { status: ctx.status, type: answer.type, text: answer.text, headers: texts });
    } else {
      const text = JSON.stringify(encode(ctx.shape, answer));
      this.send(ctx, { status: ctx.status, type: 'application/json', text, headers });
    }
  }

  /** Kept by browsers, but asked for again each time: the answer then is 304 while the server is the same. */
  private sendPage(ctx: RequestContext, { type, text, bytes, etag }: DocsPage): void {
    const kept = hasTag(ctx.ifNoneMatch, etag) && !cuts(ctx);
    const headers: Headers = [
      ['etag', etag],
      ['content-security-policy', PAGE_POLICY],
      ['x-content-type-options', 'nosniff'],
      ['referrer-policy', 'no-referrer'],
    ];
    const content = kept ? { status: 304, type: '', text: '' } : { status: 200, type, text, bytes };
    this.send(ctx, { ...content, headers, cache: 'no-cache' });
  }

  /** Sends a file, or the part of it that is asked for (RFC 9110, 13 and 14). */
  private sendFile(ctx: RequestContext, { file, etag, tooSlow }: Download): void {
    const part = ctx.method === 'HEAD' ? 'whole' : partOf(ctx, { size: file.size, etag });
    const tagged: Headers = [['etag', etag], ...OPAQUE];
    const kept = ctx.ifNoneMatch !== '' && hasTag(ctx.ifNoneMatch, etag) && !cuts(ctx);
    if (!ctx.over && !kept && ctx.method !== 'HEAD' && part !== 'outside') {
      const range = part === 'whole' ? { start: 0, end: file.size } : part;
      const status = part === 'whole' ? 200 : 206;
      this.sendPart(ctx, file, { part: range, status, headers: tagged, tooSlow });
      return;
    }
    this.closeFile(ctx, file);
    if (kept) this.send(ctx, { status: 304, type: '', text: '', headers: tagged });
    else if (part === 'outside') {
      this.fail(ctx, new ServiceError('range_invalid'), [['content-range', `bytes */${file.size}`], ...tagged]);
    } else this.send(ctx, { status: 200, type: BYTES, text: '', headers: tagged, length: file.size });
  }

  /** Headers go out with the first bytes: a disk that cannot be read is a refusal, not a broken file. */
  private sendPart(ctx: RequestContext, file: BlobFile, { part, status, headers, tooSlow }: Sent): void {
    const { clock, log } = this.options;
    const done = (error?: unknown): void => {
      ctx.unsent = undefined;
      if (error !== undefined) log.error({ requestId: ctx.requestId, cause: describe(error) }, 'a blob was cut off');
      this.closeFile(ctx, file);
    };
    const outflow = new Outflow({ res: ctx.res, file, part, clock, tooSlow, done });
    outflow
      .fill()
      .then((held) => {
        if (ctx.over) return outflow.abort();
        ctx.end();
        ctx.unsent = () => outflow.abort();
        ctx.res.cork(() => {
          const range: Headers =
            status === 206 ? [['content-range', `bytes ${part.start}-${part.end - 1}/${file.size}`]] : NO_HEADERS;
          this.writeHead(ctx, { status, type: BYTES, headers: [...headers, ...range] });
          outflow.begin(held);
        });
        this.record(ctx, status);
      })
      .catch((error: unknown) => {
        outflow.abort();
        this.fail(ctx, error);
      });
  }

  private closeFile({ requestId }: RequestContext, file: BlobFile): void {
    file.close().catch((error: unknown) => {
      this.options.log.error({ requestId, cause: describe(error) }, 'a blob could not be closed');
    });
  }

  /** Answers with a refusal; `headers` come beside it. */
  fail(ctx: RequestContext, error: unknown, headers: Headers = NO_HEADERS): void {
    const refusal = asRefusal(error);
    const status = statusOf(refusal.error, ctx.shape);
    if (status >= 500) this.report(ctx, error, status);
    this.refuse(ctx, refusal, headers);
  }

  /** The same for a refusal that is meant, whatever its status: the log is not told why. */
  refuse(ctx: RequestContext, refusal: ServiceError, headers: Headers = NO_HEADERS): void {
    const status = statusOf(refusal.error, ctx.shape);
    this.options.meter?.refused(codeOf(refusal.error, 'a'));
    const seconds = retryAfterOf(refusal, status);
    this.send(ctx, {
      status,
      type: 'application/json',
      text: JSON.stringify({ error: errorFields(refusal, ctx.shape) }),
      headers: seconds === undefined ? headers : [...headers, ['retry-after', String(seconds)]],
    });
  }

  private report(ctx: RequestContext, error: unknown, status: number): void {
    const { log } = this.options;
    const fields = { requestId: ctx.requestId, route: ctx.route, tenantId: ctx.tenantId, cause: describe(error) };
    if (status === 500) log.error(fields, 'request failed');
    else log.warn(fields, 'request refused');
  }

  /** Whether browsers on this origin may call (reference, Configuration). */
  allows(origin: string): boolean {
    return origin !== '' && (this.anyOrigin || this.options.corsOrigins.includes(origin));
  }

  /** Answers the question a browser asks before it calls from another origin. */
  preflight(ctx: RequestContext, methods: string): void {
    const headers: Headers = [
      ['access-control-allow-methods', methods],
      ['access-control-allow-headers', ASKED],
      ['access-control-max-age', '600'],
    ];
    this.send(ctx, { status: cuts(ctx) ? 200 : 204, type: '', text: '', headers });
  }

  private send(ctx: RequestContext, out: Outgoing): void {
    if (ctx.over) return this.options.shares.freeRoom(ctx);
    if (cuts(ctx)) ctx.closing = 'cut';
    if (ctx.closing !== 'cut') this.deliver(ctx, out);
    // Not in the turn that parses what came with it: while an answer is owed the library takes no further request
    // from the connection but drops it, so what stands behind doubtful framing is never run.
    else setImmediate(() => this.deliver(ctx, out));
  }

  private deliver(ctx: RequestContext, out: Outgoing): void {
    const { shares } = this.options;
    if (!ctx.over) {
      ctx.end();
      let unread: Buffer | undefined;
      ctx.res.cork(() => (unread = this.write(ctx, out)));
      if (ctx.bucket !== undefined) ctx.bucket.replies -= out.text.length;
      // Not before the cork is off: it may end in closing the connection.
      if (unread !== undefined) this.keep(ctx, unread);
      this.record(ctx, out.status);
    }
    shares.freeRoom(ctx);
  }

  /** Answers the whole text where the client did not take all of it at once. */
  private write(ctx: RequestContext, out: Outgoing): Buffer | undefined {
    const { res } = ctx;
    const { status, text } = out;
    this.writeHead(ctx, out);
    // The library cuts only where it is told a length, which 204 and 304 must not have: their client is asked to close.
    // Where a cut is a must there are no such replies, see `cuts`.
    const empty = status === 204 || status === 304;
    const cut = !empty && (this.closing || ctx.closing === 'cut');
    if (!cut && (this.closing || ctx.closing === 'ask')) res.writeHeader('connection', 'close');
    if (empty) res.endWithoutBody();
    else if (ctx.method === 'HEAD' && cut) res.endWithoutBody(out.length ?? Buffer.byteLength(text), cut);
    else if (ctx.method === 'HEAD') {
      // Told a length as above, the library waits for that many bytes, and drops the connection at its next request.
      res.writeHeader('content-length', String(out.length ?? Buffer.byteLength(text)));
      res.endWithoutBody();
    } else if (cut) res.end(text, cut);
    else return this.offer(res, text, out.bytes);
    return undefined;
  }

  /** Not `end`: that has the library keep what the client does not take, however often he asks and does not read. */
  private offer(res: HttpResponse, text: string, kept?: Buffer): Buffer | undefined {
    const bytes = kept ?? (text.length > LONG_REPLY ? Buffer.from(text) : undefined);
    const [, responded] = res.tryEnd(bytes ?? text, bytes?.length ?? Buffer.byteLength(text));
    return responded ? undefined : (bytes ?? Buffer.from(text));
  }

  private writeHead(
    ctx: RequestContext,
    { status, type, headers, cache = 'no-store' }: Pick<Outgoing, 'status' | 'type' | 'headers' | 'cache'>,
  ): void {
    const { res } = ctx;
    if (status !== 200) res.writeStatus(STATUS_LINES[status] ?? String(status));
    if (type !== '') res.writeHeader('content-type', type);
    res.writeHeader('cache-control', cache);
    res.writeHeader('x-request-id', ctx.requestId);
    for (const [name, value] of headers) res.writeHeader(name, value);
    if (ctx.origin !== '') this.writeOrigin(res, ctx.origin);
  }

  private writeOrigin(res: HttpResponse, origin: string): void {
    if (!this.allows(origin)) return;
    res.writeHeader('access-control-allow-origin', this.anyOrigin ? '*' : origin);
    res.writeHeader('access-control-expose-headers', EXPOSED);
    if (!this.anyOrigin) res.writeHeader('vary', 'origin');
  }

  /** Keeps a reply until the client has read it, at the cost of his own share, and for as long as he goes on reading. */
  private keep(ctx: RequestContext, bytes: Buffer): void {
    const { res } = ctx;
    const { shares, clock } = this.options;
    const { replies } = shares.of(ctx);
    const held = ctx.room ?? shares.holding(ctx);
    ctx.room = undefined;
    const cut = (): void => void res.close();
    held.giveWay = cut;
    const pace = new Pace({
      clock,
      moved: () => res.getWriteOffset(),
      waiting: () => true,
      tooSlow: (bytesPerS) => bytesPerS < READ_PACE_MIN,
      cut,
    });
    const release = (): void => {
      ctx.unsent = undefined;
      pace.end();
      replies.release(held);
    };
    ctx.unsent = release;
    // Anew: what was reserved is no bound of what one reply may be.
    replies.release(held);
    if (replies.set(held, bytes.length + REPLY_COST) !== 'held') return cut();
    res.onWritable((offset) => {
      replies.moved(held);
      const [taken, responded] = res.tryEnd(bytes.subarray(offset), bytes.length);
      if (responded) release();
      return taken;
    });
  }

  private record(ctx: RequestContext, status: number): void {
    if (!this.debug) return;
    const { log, clock } = this.options;
    log.debug(
      {
        requestId: ctx.requestId,
        method: METHODS.has(ctx.method) ? ctx.method : 'other',
        // The table's path, not the request's: an unknown path may hold anything, a code or a token too.
        path: ctx.route || 'unknown',
        status,
        ms: clock.now() - ctx.startedAt,
        tenantId: ctx.tenantId || undefined,
        deviceId: ctx.deviceId || undefined,
      },
      'request',
    );
  }
}
