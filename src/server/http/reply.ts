/** Writes replies: status, headers and body in one cork, once, and never to a response that is no longer valid. */
import { randomBytes } from 'node:crypto';
import { STATUS_CODES } from 'node:http';
import type { HttpResponse } from 'uWebSockets.js';
import { atMostEvery } from '../../protocol/clock.js';
import { codeOf, COME_BACK_S, ServiceError, statusOf } from '../../protocol/errors.js';
import { encode } from '../../protocol/shape.js';
import { SWALLOW_MAX, type RequestContext } from './request.js';
import { addressOfPeer, type TrustedProxies } from './client-address.js';
import { asRefusal, describe, errorFields, secondsToWait } from './fail.js';
import { DownloadStream, type BlobFile, type Part, type TooSlow, hasTag, partOf, watchPace } from './streams.js';
import type { HttpParts, WebApp, WebFile } from './ports.js';
import type { RequestBudgets } from './limits.js';
import { webPolicy } from '../../protocol/web-app.js';

/** A reply that is serialized already. */
export class Text {
  constructor(
    readonly text: string,
    readonly type = 'application/json',
    /** Request headers that the reply depends on. */
    readonly vary = '',
  ) {}
}

/** A file of the reference or of the web app, cached by its tag. */
export class Page {
  constructor(
    readonly file: WebFile,
    readonly headers: Headers,
  ) {}
}

/** A file, to be sent whole or in part. The response writer closes it. */
export class Download {
  constructor(
    readonly file: BlobFile,
    /** Entity tag with its quotes. */
    readonly etag: string,
    readonly tooSlow: TooSlow,
  ) {}
}

/** The result of a handler: an object with camelCase keys and raw bytes, serialized text, a page, or a file. */
export type Answer = object | Text | Page | Download;

/** Replies above this many characters are encoded once, and not by the library at each attempt to write. */
const LONG_REPLY = 64 * 1024;
/** Memory of an unread reply in addition to its bytes: the request, the connection and their buffers. */
const REPLY_COST = 4 * 1024;
/** Bytes a second at which a client has to read a reply, measured over PACE_WINDOW_MS. */
const READ_PACE_MIN = 16 * 1024;
/** A proxy's request id is adopted only in this form: it goes into headers and logs. */
const SAFE_ID = /^[A-Za-z0-9._-]{1,64}$/;

const METHODS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'POST', 'PATCH', 'DELETE', 'PUT', 'OPTIONS']);

type Headers = readonly (readonly [name: string, value: string])[];
const NO_HEADERS: Headers = [];

const CODINGS_MAX = 16;

const BYTES = 'application/octet-stream';
/** Headers that browsers on other origins may send, and may read. */
const ALLOWED_HEADERS = 'authorization, content-type, x-wire-shape, x-request-id, range, if-range, if-none-match';
const EXPOSED_HEADERS = 'x-request-id, retry-after, etag, content-range, accept-ranges, content-length';
/** Browsers neither guess the type nor send the address as a referrer to other hosts. */
const SAFETY_HEADERS: Headers = [
  ['x-content-type-options', 'nosniff'],
  ['referrer-policy', 'no-referrer'],
];
/**
 * Headers of the reference. A page may load style sheet, script and pictures of its own host: nothing inline, no
 * request, no frame.
 */
export const PAGE_HEADERS: Headers = [
  ['vary', 'accept-encoding'],
  [
    'content-security-policy',
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  ],
  ...SAFETY_HEADERS,
];
export const HTML = 'text/html; charset=utf-8';
/** Headers of texts and HTML of handlers: forms may be sent to this host only, and no page may be framed. */
const TEXT_HEADERS: Headers = [
  [
    'content-security-policy',
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
  ],
  ...SAFETY_HEADERS,
];
/** Browser features that the web app uses; all others are turned off. */
const USED = ['camera', 'clipboard-write', 'fullscreen', 'publickey-credentials-create', 'publickey-credentials-get'];
const UNUSED = [
  ...['accelerometer', 'autoplay', 'browsing-topics', 'clipboard-read', 'compute-pressure', 'digital-credentials-get'],
  ...['display-capture', 'encrypted-media', 'gamepad', 'geolocation', 'gyroscope', 'hid', 'identity-credentials-get'],
  ...['idle-detection', 'keyboard-map', 'local-fonts', 'magnetometer', 'microphone', 'midi', 'otp-credentials'],
  ...['payment', 'picture-in-picture', 'private-state-token-issuance', 'private-state-token-redemption'],
  ...['screen-wake-lock', 'serial', 'storage-access', 'sync-xhr', 'usb', 'window-management', 'xr-spatial-tracking'],
];
/** Headers of the web app's files in addition to their policy. */
const WEB_HEADERS: Headers = [
  ['cross-origin-opener-policy', 'same-origin'],
  ['cross-origin-resource-policy', 'same-origin'],
  ...SAFETY_HEADERS,
  ['permissions-policy', [...USED.map((name) => `${name}=(self)`), ...UNUSED.map((name) => `${name}=()`)].join(', ')],
];
/** A host that may be put into a policy: it cannot begin another directive. */
const POLICY_HOST = /^[a-z0-9.-]{1,253}(:\d{1,5})?$/i;

/** A file of the web app. `vary`: request headers that the reply depends on. */
export function webPage({ host }: RequestContext, { blobOrigin }: WebApp, file: WebFile, vary: string): Page {
  // Not every browser lets 'self' include WebSockets of the same host.
  const sockets = POLICY_HOST.test(host) ? [`ws://${host}`, `wss://${host}`] : [];
  const policy = webPolicy(blobOrigin === undefined ? sockets : [...sockets, blobOrigin]);
  return new Page(file, [['vary', vary], ['content-security-policy', policy], ...WEB_HEADERS]);
}

/** Headers of a blob: it is ciphertext, and no browser shall interpret it. */
const BLOB_HEADERS: Headers = [
  ['x-content-type-options', 'nosniff'],
  ['content-disposition', 'attachment'],
  ['content-security-policy', "default-src 'none'; sandbox"],
  ['cross-origin-resource-policy', 'cross-origin'],
  ['accept-ranges', 'bytes'],
];
const RETRY_LATER: Headers = [['retry-after', String(COME_BACK_S)]];

/**
 * Whether the connection has to be closed after the reply. The library does not read trailers, so the end of a chunked
 * request is unknown. Of an upload it would receive, without a bound in time, whatever the client goes on sending. Such a
 * reply has a body, even where the same request would otherwise get 204 or 304 (HTTP-16).
 */
const cuts = (ctx: RequestContext): boolean =>
  ctx.closing === 'cut' || ctx.chunked || (ctx.upload?.left ?? 0) > SWALLOW_MAX;

/**
 * Whether so much of the body is still to come that the client is asked to close the connection. The server does not close
 * it: the kernel would answer the next bytes with a reset, which makes a proxy drop the reply and answer 502. The library
 * drops the rest meanwhile, for ten seconds (HTTP-23).
 */
const isLeft = (ctx: RequestContext): boolean => ctx.upload === undefined && ctx.contentLength > SWALLOW_MAX;

/** Whether the client has what this entity tag names, so that it gets a 304. */
const isKept = (ctx: RequestContext, etag: string): boolean => hasTag(ctx.ifNoneMatch, etag) && !cuts(ctx);

interface Outgoing {
  readonly status: number;
  readonly type: string;
  readonly body: string | Buffer;
  readonly headers: Headers;
  /** `Cache-Control`; default: no-store. */
  readonly cache?: string;
  /** `Content-Length` of an answer to HEAD, where it is not the body's. */
  readonly length?: number;
}

/** The best coding that a client accepts (RFC 9110, 12.5.3); '': none. */
function codingOf(header: string): 'br' | 'gzip' | '' {
  const takes = new Map<string, boolean>();
  for (const entry of header.toLowerCase().split(',', CODINGS_MAX)) {
    const [coding = '', ...parameters] = entry.split(';').map((part) => part.trim());
    takes.set(coding, !parameters.some((parameter) => /^q\s*=\s*0(\.0{0,3})?$/.test(parameter)));
  }
  const any = takes.get('*') ?? false;
  return (['br', 'gzip'] as const).find((coding) => takes.get(coding) ?? any) ?? '';
}

type Head = Pick<Outgoing, 'status' | 'type' | 'headers' | 'cache'>;

/** Writing a log line with its cause takes as long as many of the requests that are refused. */
const REFUSAL_LINES_PER_S = 50;

/**
 * Most requests, of all connections, that are answered within the turn of the event loop in which they arrived. The
 * library parses half a megabyte of one connection in a turn, ten thousand requests if each is answered at once. While
 * an answer is pending, it drops further requests and closes the connection: so answers beyond this many wait for the
 * next turn.
 */
const AT_ONCE_MAX = 64;

/** Writes every reply and refusal, assigns request ids and logs one line for each request. */
export class ResponseWriter {
  /** Ids are unique across processes by their random prefix, and within one by a counter. */
  private readonly idStart = `${randomBytes(6).toString('base64url').replaceAll('_', '-')}.`;
  private nextId = 1;
  /** The turn of the event loop, and how many requests were answered in the turn in which they arrived. */
  private readonly turn = { number: 0, answered: 0, ends: false };
  private readonly anyOrigin: boolean;
  private readonly debug: boolean;
  /** While the server stops, each reply closes its connection. */
  closing = false;
  /** Log lines of refusals in this second, and how many were left out since the last line. */
  private readonly lines = { written: 0, left: 0 };
  private readonly beginsSecond: () => boolean;

  /** @param budgets charged for replies until their clients have read them. */
  constructor(
    private readonly parts: Pick<HttpParts, 'config' | 'log' | 'clock' | 'meter'>,
    private readonly proxies: TrustedProxies,
    private readonly budgets: RequestBudgets,
  ) {
    this.anyOrigin = parts.config.corsOrigins.includes('*');
    this.debug = parts.log.isLevelEnabled('debug');
    this.beginsSecond = atMostEvery(parts.clock, 1_000);
  }

  /** Records the turn in which a request arrived, and assigns its id: the one that a trusted proxy sent, if any. */
  identify(ctx: RequestContext): void {
    ctx.turn = this.turn.number;
    if (!this.turn.ends) {
      this.turn.ends = true;
      setImmediate(this.endTurn);
    }
    const isAdopted = SAFE_ID.test(ctx.givenId) && this.proxies.trusts(addressOfPeer(ctx.res.getRemoteAddress()));
    ctx.requestId = isAdopted ? ctx.givenId : this.idStart + (this.nextId++).toString(36);
  }

  /** Answers with the result of a handler, in the request's shape. */
  answer(ctx: RequestContext, answer: Answer): void {
    const headers = ctx.status === 503 ? RETRY_LATER : NO_HEADERS;
    if (answer instanceof Page) this.sendPage(ctx, answer);
    else if (answer instanceof Download) this.sendFile(ctx, answer);
    else {
      const reply = answer instanceof Text ? answer : new Text(JSON.stringify(encode(ctx.shape, answer)));
      const { text, type, vary } = reply;
      // Not for JSON, which no browser renders: every item's reply would carry these bytes.
      const texts = type.startsWith('text/') ? [...headers, ...TEXT_HEADERS] : headers;
      const varied: Headers = vary === '' ? texts : [...texts, ['vary', vary]];
      this.send(ctx, { status: ctx.status, type, body: text, headers: varied });
    }
  }

  /** Each encoding has a tag of its own (RFC 9110, 8.8.3): 304 for as long as the file is unchanged. */
  private sendPage(ctx: RequestContext, { file, headers: more }: Page): void {
    const coding = file.compressed === undefined ? '' : codingOf(ctx.acceptEncoding);
    const bytes = coding === '' ? file.bytes : (file.compressed?.[coding] ?? file.bytes);
    const etag = `"${file.hash}${coding === '' ? '' : `.${coding}`}"`;
    const kept = isKept(ctx, etag);
    const headers: Headers = [['etag', etag], ...more];
    const encoded: Headers = coding === '' || kept ? headers : [...headers, ['content-encoding', coding]];
    const content = kept ? { status: 304, type: '', body: '' } : { status: 200, type: file.type, body: bytes };
    this.send(ctx, { ...content, headers: encoded, cache: file.cache });
  }

  /** Sends a file, or the requested part of it (RFC 9110, 13 and 14). */
  private sendFile(ctx: RequestContext, download: Download): void {
    const { file, etag } = download;
    const part = ctx.method === 'HEAD' ? 'whole' : partOf(ctx, { size: file.size, etag });
    const tagged: Headers = [['etag', etag], ...BLOB_HEADERS];
    const kept = isKept(ctx, etag);
    if (!ctx.over && !kept && ctx.method !== 'HEAD' && part !== 'outside') {
      const whole = { start: 0, end: file.size };
      if (part === 'whole') return this.sendPart(ctx, download, whole, { status: 200, type: BYTES, headers: tagged });
      const headers: Headers = [...tagged, ['content-range', `bytes ${part.start}-${part.end - 1}/${file.size}`]];
      return this.sendPart(ctx, download, part, { status: 206, type: BYTES, headers });
    }
    this.closeFile(ctx, file);
    if (kept) this.send(ctx, { status: 304, type: '', body: '', headers: tagged });
    else if (part === 'outside') {
      this.fail(ctx, new ServiceError('range_invalid'), [['content-range', `bytes */${file.size}`], ...tagged]);
    } else this.send(ctx, { status: 200, type: BYTES, body: '', headers: tagged, length: file.size });
  }

  /** Headers go out with the first bytes: a file that cannot be read is a refusal, not an incomplete download. */
  private sendPart(ctx: RequestContext, { file, tooSlow }: Download, part: Part, head: Head): void {
    const { clock, log } = this.parts;
    const done = (error?: unknown): void => {
      ctx.unsent = undefined;
      if (error !== undefined) log.error({ requestId: ctx.requestId, cause: describe(error) }, 'a blob was cut off');
      this.closeFile(ctx, file);
    };
    const download = new DownloadStream({ res: ctx.res, file, part, clock, tooSlow, done });
    download
      .fill()
      .then((held) => {
        if (ctx.over) return download.end();
        ctx.end();
        ctx.unsent = () => download.end();
        ctx.res.cork(() => {
          this.writeHead(ctx, head);
          download.begin(held);
        });
        this.record(ctx, head.status);
      })
      .catch((error: unknown) => {
        download.end();
        this.fail(ctx, error);
      });
  }

  private closeFile({ requestId }: RequestContext, file: BlobFile): void {
    file.close().catch((error: unknown) => {
      this.parts.log.error({ requestId, cause: describe(error) }, 'a blob could not be closed');
    });
  }

  /** Answers with a refusal, with additional headers. A 5xx is logged with its cause. */
  fail(ctx: RequestContext, error: unknown, headers: Headers = NO_HEADERS): void {
    const refusal = asRefusal(error);
    const status = statusOf(refusal.error, ctx.shape);
    if (status >= 500) this.report(ctx, error, status);
    this.refuse(ctx, refusal, headers);
  }

  /** Answers with an expected refusal: whatever its status, it is not logged. */
  refuse(ctx: RequestContext, refusal: ServiceError, headers: Headers = NO_HEADERS): void {
    const status = statusOf(refusal.error, ctx.shape);
    this.parts.meter?.refused(codeOf(refusal.error, 'a'));
    const seconds = secondsToWait(refusal, status);
    const sent: Headers = seconds === undefined ? headers : [...headers, ['retry-after', String(seconds)]];
    const page = ctx.refusalPage?.(refusal);
    if (page !== undefined)
      return this.send(ctx, { status, type: HTML, body: page, headers: [...sent, ...TEXT_HEADERS] });
    const body = JSON.stringify({ error: errorFields(refusal, ctx.shape) });
    this.send(ctx, { status, type: 'application/json', body, headers: sent });
  }

  private report(ctx: RequestContext, error: unknown, status: number): void {
    const { log } = this.parts;
    const fields = { requestId: ctx.requestId, route: ctx.route, tenantId: ctx.tenantId, cause: describe(error) };
    if (status === 500) return log.error(fields, 'request failed');
    // During a database outage, every device's requests are refused.
    if (this.beginsSecond()) this.lines.written = 0;
    const leftOut = this.lines.left++;
    if (this.lines.written++ >= REFUSAL_LINES_PER_S) return;
    this.lines.left = 0;
    log.warn(leftOut === 0 ? fields : { ...fields, leftOut }, 'request refused');
  }

  /** Whether CORS allows this origin (reference, Configuration). */
  allows(origin: string): boolean {
    return origin !== '' && (this.anyOrigin || this.parts.config.corsOrigins.includes(origin));
  }

  preflight(ctx: RequestContext, methods: string): void {
    const headers: Headers = [
      ['access-control-allow-methods', methods],
      ['access-control-allow-headers', ALLOWED_HEADERS],
      ['access-control-max-age', '600'],
    ];
    this.send(ctx, { status: cuts(ctx) ? 200 : 204, type: '', body: '', headers });
  }

  private send(ctx: RequestContext, out: Outgoing): void {
    if (ctx.over) return this.budgets.releaseRoom(ctx);
    if (cuts(ctx)) ctx.closing = 'cut';
    else if (isLeft(ctx)) ctx.closing = 'ask';
    const atOnce = ctx.turn === this.turn.number;
    if (ctx.closing !== 'cut' && !(atOnce && ++this.turn.answered > AT_ONCE_MAX)) this.deliver(ctx, out);
    // Not in the turn that parses the bytes that arrived with it. While an answer is pending, the library drops further
    // requests of the connection, so bytes after a doubtful framing are never run as a request.
    else setImmediate(() => this.deliver(ctx, out));
  }

  private readonly endTurn = (): void => {
    this.turn.number++;
    this.turn.answered = 0;
    this.turn.ends = false;
  };

  private deliver(ctx: RequestContext, out: Outgoing): void {
    if (!ctx.over) {
      ctx.end();
      let unread: Buffer | undefined;
      ctx.res.cork(() => (unread = this.write(ctx, out)));
      if (ctx.bucket !== undefined) ctx.bucket.replies -= out.body.length;
      // Not inside the cork: this may close the connection.
      if (unread !== undefined) this.keep(ctx, unread);
      this.record(ctx, out.status);
    }
    this.budgets.releaseRoom(ctx);
  }

  /** Returns the whole body where the client did not take all of it at once. */
  private write(ctx: RequestContext, out: Outgoing): Buffer | undefined {
    const { res } = ctx;
    const { status, body, length } = out;
    this.writeHead(ctx, out);
    // The library can close the connection only after a reply with a length, which 204 and 304 must not have: those ask
    // the client to close. Where closing is required, no such reply is sent (`cuts`).
    const empty = status === 204 || status === 304;
    const cut = !empty && (this.closing || ctx.closing === 'cut');
    if (!cut && (this.closing || ctx.closing === 'ask')) res.writeHeader('connection', 'close');
    if (empty) res.endWithoutBody();
    else if (ctx.method === 'HEAD' && cut) res.endWithoutBody(length ?? Buffer.byteLength(body), cut);
    else if (ctx.method === 'HEAD') {
      // Given the length as an argument, the library waits for that many bytes, and drops the next request.
      res.writeHeader('content-length', String(length ?? Buffer.byteLength(body)));
      res.endWithoutBody();
    } else if (cut) res.end(body, cut);
    else return this.offer(res, body);
    return undefined;
  }

  /** Not by `end`, with which the library buffers unread replies of any number of requests. */
  private offer(res: HttpResponse, body: string | Buffer): Buffer | undefined {
    const sent = typeof body === 'string' && body.length > LONG_REPLY ? Buffer.from(body) : body;
    const [, responded] = res.tryEnd(sent, Buffer.byteLength(sent));
    if (responded) return undefined;
    return typeof sent === 'string' ? Buffer.from(sent) : sent;
  }

  private writeHead(ctx: RequestContext, { status, type, headers, cache = 'no-store' }: Head): void {
    const { res } = ctx;
    if (status !== 200) res.writeStatus(`${status} ${STATUS_CODES[status]}`);
    if (type !== '') res.writeHeader('content-type', type);
    res.writeHeader('cache-control', cache);
    res.writeHeader('x-request-id', ctx.requestId);
    for (const [name, value] of headers) res.writeHeader(name, value);
    if (!this.allows(ctx.origin)) return;
    res.writeHeader('access-control-allow-origin', this.anyOrigin ? '*' : ctx.origin);
    res.writeHeader('access-control-expose-headers', EXPOSED_HEADERS);
    if (!this.anyOrigin) res.writeHeader('vary', 'origin');
  }

  /** Keeps a reply until the client has read it, charged to the client's own share, while the client keeps the pace. */
  private keep(ctx: RequestContext, bytes: Buffer): void {
    const { res } = ctx;
    const { budgets } = this;
    const { clock } = this.parts;
    const { replies } = budgets.of(ctx);
    const held = ctx.room ?? budgets.holding(ctx);
    ctx.room = undefined;
    const cut = (): void => void res.close();
    held.giveWay = cut;
    const endPace = watchPace({
      clock,
      moved: () => res.getWriteOffset(),
      waiting: () => true,
      tooSlow: (bytesPerS) => bytesPerS < READ_PACE_MIN,
      cut,
    });
    const release = (): void => {
      ctx.unsent = undefined;
      endPace();
      replies.release(held);
    };
    ctx.unsent = release;
    // Released and set again: a reply may be larger than its reservation.
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
    const { log, clock } = this.parts;
    log.debug(
      {
        requestId: ctx.requestId,
        method: METHODS.has(ctx.method) ? ctx.method : 'other',
        // The table's path, not the request's: an unknown path may hold a code or a token.
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
