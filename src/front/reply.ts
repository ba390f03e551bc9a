/** Writing replies: status, headers and body in one cork, once, and never to a dead response. */
import { randomBytes } from 'node:crypto';
import type { HttpResponse } from 'uWebSockets.js';
import { codeOf, COME_BACK_S, statusOf } from '../protocol/errors.js';
import type { Meter } from '../protocol/meter.js';
import { encode } from '../protocol/shape.js';
import type { Load } from './admit.js';
import { SWALLOW_MAX } from './body.js';
import { addressOfPeer, type TrustedProxies } from './client-address.js';
import { asRefusal, describe, errorFields, retryAfterOf } from './fail.js';
import type { DocsPage, FrontLog } from './ports.js';
import type { Call } from './request.js';
import { Page, Text, type Answer } from './router.js';

const STATUS_LINES: Readonly<Record<number, string>> = {
  200: '200 OK',
  202: '202 Accepted',
  204: '204 No Content',
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
  429: '429 Too Many Requests',
  500: '500 Internal Server Error',
  503: '503 Service Unavailable',
};

/** Replies above this are sent as the client takes them, bytes. Smaller ones go to the socket's buffer in one piece. */
const LONG_REPLY = 64 * 1024;
/** A request id that a proxy gave is taken over only in this form: it goes into headers and logs. */
const SAFE_ID = /^[A-Za-z0-9._-]{1,64}$/;

const METHODS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'POST', 'PATCH', 'DELETE', 'PUT', 'OPTIONS']);

type Headers = readonly (readonly [name: string, value: string])[];
const NO_HEADERS: Headers = [];
/** A page may show itself and its style sheet, and nothing else: no script, no frame, no other host. */
const PAGE_POLICY = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/** What comes with the plain texts and pages: a form may be sent to this host, and the one secret page goes into no frame. */
const PLAIN: Headers = [
  ['content-security-policy', "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"],
  ['x-content-type-options', 'nosniff'],
  ['referrer-policy', 'no-referrer'],
];
const COME_BACK: Headers = [['retry-after', String(COME_BACK_S)]];

/** What replies are made with. */
export interface ReplierOptions {
  readonly log: FrontLog;
  readonly now: () => number;
  /** Counts long replies until their clients have read them. */
  readonly load: Load;
  readonly proxies: TrustedProxies;
  readonly corsOrigins: readonly string[];
  readonly meter?: Meter;
}

interface Outgoing {
  readonly status: number;
  readonly type: string;
  readonly text: string;
  readonly headers: Headers;
  /** `Cache-Control`; left out: nothing is kept. */
  readonly cache?: string;
}

/** Whether one of the tags of an `If-None-Match` header is this one (RFC 9110, 13.1.2: weakly compared). */
function hasTag(header: string, etag: string): boolean {
  return header.split(',').some((tag) => [etag, `W/${etag}`, '*'].includes(tag.trim()));
}

/** Writes every reply and refusal, gives requests their ids and leaves one line a request in the log. */
export class Replier {
  /** Ids are unique over processes by their random start, and within one by counting. */
  private readonly idStart = `${randomBytes(6).toString('base64url').replaceAll('_', '-')}.`;
  private nextId = 1;
  private readonly anyOrigin: boolean;
  private readonly debug: boolean;
  /** While the server stops, each reply ends its connection. */
  closing = false;

  constructor(private readonly options: ReplierOptions) {
    this.anyOrigin = options.corsOrigins.includes('*');
    this.debug = options.log.isLevelEnabled('debug');
  }

  /** Gives the call its request id: the proxy's where a trusted one gave one. */
  identify(call: Call): void {
    if (call.givenId !== '' && SAFE_ID.test(call.givenId)) {
      const peer = addressOfPeer(new Uint8Array(call.res.getRemoteAddress()));
      if (peer !== undefined && this.options.proxies.trusts(peer)) {
        call.requestId = call.givenId;
        return;
      }
    }
    call.requestId = this.idStart + (this.nextId++).toString(36);
  }

  /** Answers with what a handler gave, in the request's shape. */
  answer(call: Call, answer: Answer): void {
    const headers = call.status === 503 ? COME_BACK : NO_HEADERS;
    if (answer instanceof Page) this.sendPage(call, answer.page);
    else if (answer instanceof Text) {
      // Items are texts too, of JSON: nothing is shown of them, and these bytes would come with each.
      const texts = answer.type.startsWith('text/') ? [...headers, ...PLAIN] : headers;
      this.send(call, { status: call.status, type: answer.type, text: answer.text, headers: texts });
    } else {
      const text = JSON.stringify(encode(call.shape, answer));
      this.send(call, { status: call.status, type: 'application/json', text, headers });
    }
  }

  /** Kept by browsers, but asked for again each time: the answer then is 304 while the server is the same. */
  private sendPage(call: Call, { type, text, etag }: DocsPage): void {
    const kept = hasTag(call.ifNoneMatch, etag);
    const headers: Headers = [
      ['etag', etag],
      ['content-security-policy', PAGE_POLICY],
      ['x-content-type-options', 'nosniff'],
      ['referrer-policy', 'no-referrer'],
    ];
    const content = kept ? { status: 304, type: '', text: '' } : { status: 200, type, text };
    this.send(call, { ...content, headers, cache: 'no-cache' });
  }

  /** Answers with a refusal; `headers` come beside it. */
  fail(call: Call, error: unknown, headers: Headers = NO_HEADERS): void {
    const refusal = asRefusal(error);
    const status = statusOf(refusal.error, call.shape);
    if (status >= 500) this.report(call, error, status);
    this.options.meter?.refused(codeOf(refusal.error, 'a'));
    const seconds = retryAfterOf(refusal, status);
    this.send(call, {
      status,
      type: 'application/json',
      text: JSON.stringify({ error: errorFields(refusal, call.shape) }),
      headers: seconds === undefined ? headers : [...headers, ['retry-after', String(seconds)]],
    });
  }

  private report(call: Call, error: unknown, status: number): void {
    const { log } = this.options;
    const fields = { requestId: call.requestId, route: call.route, tenantId: call.tenantId, cause: describe(error) };
    if (status === 500) log.error(fields, 'request failed');
    else log.warn(fields, 'request refused');
  }

  /** Whether browsers on this origin may call (contract 4). */
  allows(origin: string): boolean {
    return origin !== '' && (this.anyOrigin || this.options.corsOrigins.includes(origin));
  }

  /** Answers the question a browser asks before it calls from another origin. */
  preflight(call: Call, methods: string): void {
    const headers: Headers = [
      ['access-control-allow-methods', methods],
      ['access-control-allow-headers', 'authorization, content-type, x-wire-shape, x-request-id'],
      ['access-control-max-age', '600'],
    ];
    this.send(call, { status: 204, type: '', text: '', headers });
  }

  private send(call: Call, out: Outgoing): void {
    if (call.over) return;
    // The library does not read trailers, so nobody can say where a chunked request ends.
    if (call.chunked || call.contentLength > SWALLOW_MAX) call.closing = 'cut';
    if (call.closing !== 'cut') this.deliver(call, out);
    // Not in the turn that parses what came with it: while an answer is owed the library takes no further request
    // from the connection but drops it, so what stands behind doubtful framing is never run.
    else setImmediate(() => this.deliver(call, out));
  }

  private deliver(call: Call, out: Outgoing): void {
    if (call.over) return;
    call.end();
    call.res.cork(() => this.write(call, out));
    this.record(call, out.status);
  }

  private write(call: Call, { status, type, text, headers, cache = 'no-store' }: Outgoing): void {
    const { res } = call;
    if (status !== 200) res.writeStatus(STATUS_LINES[status] ?? String(status));
    if (type !== '') res.writeHeader('content-type', type);
    res.writeHeader('cache-control', cache);
    res.writeHeader('x-request-id', call.requestId);
    for (const [name, value] of headers) res.writeHeader(name, value);
    if (call.origin !== '') this.writeOrigin(res, call.origin);
    const cut = this.closing || call.closing === 'cut';
    if (call.closing === 'ask' && !cut) res.writeHeader('connection', 'close');
    if (status === 204 || status === 304) res.endWithoutBody(undefined, cut);
    else if (call.method === 'HEAD') res.endWithoutBody(Buffer.byteLength(text), cut);
    else if (text.length > LONG_REPLY) this.writeLong(call, Buffer.from(text));
    else res.end(text, cut);
  }

  private writeOrigin(res: HttpResponse, origin: string): void {
    if (!this.allows(origin)) return;
    res.writeHeader('access-control-allow-origin', this.anyOrigin ? '*' : origin);
    res.writeHeader('access-control-expose-headers', 'x-request-id, retry-after');
    if (!this.anyOrigin) res.writeHeader('vary', 'origin');
  }

  /** Hands the kernel what it takes and keeps the rest, counted, until the client has read. */
  private writeLong(call: Call, bytes: Buffer): void {
    const { load } = this.options;
    const [sent] = call.res.tryEnd(bytes, bytes.length);
    if (sent) return;
    load.bytes += bytes.length;
    const release = (): void => {
      if (call.unsent === undefined) return;
      call.unsent = undefined;
      load.bytes -= bytes.length;
    };
    call.unsent = release;
    call.res.onWritable((offset) => {
      const [done] = call.res.tryEnd(bytes.subarray(offset), bytes.length);
      if (done) release();
      return done;
    });
  }

  private record(call: Call, status: number): void {
    if (!this.debug) return;
    const { log, now } = this.options;
    log.debug(
      {
        requestId: call.requestId,
        method: METHODS.has(call.method) ? call.method : 'other',
        // The table's path, not the request's: an unknown path may hold anything, a code or a token too.
        path: call.route || 'unknown',
        status,
        ms: now() - call.startedAt,
        tenantId: call.tenantId || undefined,
        deviceId: call.deviceId || undefined,
      },
      'request',
    );
  }
}
