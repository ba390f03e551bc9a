/** HTTP requests to a server: time-outs, typed refusals, and retries of requests that may be repeated. */
import { parsedJson } from '../protocol/bytes.js';
import { delay } from '../protocol/clock.js';
import { TS_AHEAD_MAX_MS, TS_MIN } from '../protocol/limits.js';
import { retryAfterSeconds } from '../protocol/retry-after.js';
import { chunksOf } from './blobs/source.js';
import { backoffMs, abortOnAny, type Platform, REQUEST_WAIT_MAX_MS, RETRY } from './platform.js';
import { ApiError, NetworkError, ProtocolError, retryAfterMs } from './errors.js';
import { errorBody, field, isCount, type Read } from './reader.js';

/** One request. */
export interface HttpRequest {
  readonly method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  /** Below `/api`, with a leading slash. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string | number | null>>;
  /** Sent as JSON; the caller encodes bytes as text. */
  readonly body?: unknown;
  /** Instead of `body`: JSON as text. */
  readonly json?: string;
  /** True where executing it twice equals executing it once. Only then is it retried. */
  readonly repeatable: boolean;
  /**
   * True: never retried. For callers with their own backoff: nested retries would multiply the load on a server in
   * trouble.
   */
  readonly once?: boolean;
  /** Called before it is repeated although it may have been executed. */
  readonly onRepeat?: () => void;
  /** Time-out of one attempt, ms. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

/** Sends a request and returns the JSON of a 2xx answer. Throws `ApiError`, `NetworkError` or `ProtocolError`. */
export type Call = (request: HttpRequest) => Promise<HttpReply>;

/** A 2xx answer; pairing uses 202 for "pending". */
export interface HttpReply {
  readonly status: number;
  readonly body: unknown;
}

/** The server's address and the platform. */
interface HttpOptions extends Pick<Platform, 'fetch' | 'clock' | 'random'> {
  /** Address of the server, as `http://host:port`, with or without a path. */
  readonly baseUrl: string;
  /** When aborted, ends requests in progress and waits before retries. */
  readonly lifetime?: AbortSignal;
}

const TIMEOUT_MS = 15_000;
/** `clockOffset` may be wrong by more than a second where a reply took long, ms. */
const OFFSET_ERROR_MS = 60_000;
/** Retries after the first attempt. */
const REPEATS_MAX = 4;
/** Largest reply read, in bytes. A page ends at about 4 MiB; more would only fill this device's memory. */
const REPLY_MAX = 16 * 1024 * 1024;
/**
 * Total time that a request waits for `Retry-After` of 429 answers: an initial sync or an import reaches the rate
 * limit repeatedly, and is admitted shortly after.
 */
const PATIENCE_MS = 4 * REQUEST_WAIT_MAX_MS;

const readError = field('error', errorBody);

/**
 * The server's address in canonical form: no query, no fragment, no trailing slash. Throws `TypeError` for one that is
 * not http or https, or has user information.
 */
export function baseOf(url: string): string {
  const parsed = new URL(url);
  if (parsed.protocol !== 'http:' && parsed.protocol !== 'https:')
    throw new TypeError(`not an http address: ${parsed.protocol}`);
  // Nothing would send it, and a reader may not notice that the host of `localhost:x@other.example` is after the `@`.
  if (parsed.username !== '' || parsed.password !== '') throw new TypeError('an address with a user name or password');
  return `${parsed.origin}${parsed.pathname.replace(/\/+$/, '')}`;
}

/** The HTTP client of one server. It holds no token: see `Session` for authenticated calls. */
export class Http {
  readonly baseUrl: string;

  /**
   * The server's clock minus this device's, ms, from the last `Date` header received, accurate to about a second;
   * or from the refusal of a time; null: none yet. A browser on another origin cannot read the header. A wrong value only
   * makes tokens and blob URLs be renewed early or late, and new content look older.
   */
  clockOffset: number | null = null;

  constructor(private readonly options: HttpOptions) {
    this.baseUrl = baseOf(options.baseUrl);
  }

  /** `ts`, or the server's time, if that is known and so much earlier that the server would refuse `ts`. */
  admissible(ts: number): number {
    if (this.clockOffset === null) return ts;
    const serverTime = this.options.clock.now() + this.clockOffset;
    // No server takes so early a time: this one's clock is not set.
    if (serverTime < TS_MIN) return ts;
    return ts > serverTime + TS_AHEAD_MAX_MS - OFFSET_ERROR_MS ? serverTime : ts;
  }

  /** Sends a request, with a bearer token if one is given. */
  async send(request: HttpRequest, token: string | null = null): Promise<HttpReply> {
    const cancel = new AbortController();
    const release = abortOnAny(cancel, [request.signal, this.options.lifetime]);
    try {
      return await this.tryAgain(request, token, cancel.signal);
    } finally {
      release();
    }
  }

  private async tryAgain(request: HttpRequest, token: string | null, cancel: AbortSignal): Promise<HttpReply> {
    /** `waitedMs`: total wait requested by `Retry-After`. */
    const tried = { repeats: 0, waitedMs: 0 };
    for (;;) {
      try {
        return await this.attempt(request, token, cancel);
      } catch (error) {
        const wait = this.waitBefore(tried, request, error);
        if (wait === undefined) throw error;
        if (isBriefly(error)) request.onRepeat?.();
        await delay(this.options.clock, wait, cancel).catch((cause: unknown) => {
          throw new NetworkError('aborted', `${request.path} was cancelled`, { cause });
        });
      }
    }
  }

  /** The wait before the next attempt, ms; undefined: no further attempt. */
  private waitBefore(
    tried: { repeats: number; waitedMs: number },
    request: HttpRequest,
    error: unknown,
  ): number | undefined {
    if (request.once === true) return undefined;
    if (error instanceof NetworkError && error.final) return undefined;
    const retryAfter = retryAfterMs(error);
    const limited = error instanceof ApiError && error.status === 429;
    if (retryAfter > REQUEST_WAIT_MAX_MS) return undefined;
    // A wait that the server requested is not a failure: it is bounded by `PATIENCE_MS`, not by the number of attempts.
    if (limited && retryAfter > 0) {
      tried.waitedMs += retryAfter;
      return tried.waitedMs <= PATIENCE_MS ? retryAfter : undefined;
    }
    // 429 is decided before anything is executed, so any request may be repeated after it.
    if (tried.repeats >= REPEATS_MAX || !(limited || (request.repeatable && isBriefly(error)))) return undefined;
    return Math.max(retryAfter, backoffMs(tried.repeats++, RETRY, this.options.random));
  }

  private async attempt(request: HttpRequest, token: string | null, cancel: AbortSignal): Promise<HttpReply> {
    const stop = new AbortController();
    const limit = request.timeoutMs ?? TIMEOUT_MS;
    const timer = this.options.clock.setTimer(limit, () =>
      stop.abort(new NetworkError('timeout', `no answer from ${request.path} within ${limit} ms`)),
    );
    try {
      return await this.exchange(request, token, AbortSignal.any([stop.signal, cancel]));
    } finally {
      timer.cancel();
    }
  }

  private async exchange(request: HttpRequest, token: string | null, signal: AbortSignal): Promise<HttpReply> {
    let response: Response;
    let text: string;
    const body = request.json ?? (request.body === undefined ? undefined : JSON.stringify(request.body));
    try {
      response = await this.options.fetch(this.urlOf(request), {
        method: request.method,
        headers: {
          accept: 'application/json',
          // The server's default may be the other shape, so the shape is always sent.
          'x-wire-shape': 'a',
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        },
        body,
        // A redirect could send the token elsewhere.
        redirect: 'error',
        credentials: 'omit',
        cache: 'no-store',
        signal,
      });
      const date = Date.parse(response.headers.get('date') ?? '');
      if (!Number.isNaN(date)) this.clockOffset = date - this.options.clock.now();
      text = await readCapped(response);
    } catch (error) {
      if (error instanceof ProtocolError) throw error;
      if (signal.reason instanceof NetworkError) throw signal.reason;
      if (signal.aborted) throw new NetworkError('aborted', `${request.path} was cancelled`);
      // A platform's `fetch` may throw a `NetworkError` itself.
      if (error instanceof NetworkError) throw error;
      throw new NetworkError('network', `${request.method} ${request.path} got no answer`, { cause: error });
    }
    if (!response.ok) {
      const refused = refusal(response, text);
      const { serverTime } = refused.details;
      if (isCount(serverTime)) this.clockOffset = serverTime - this.options.clock.now();
      throw refused;
    }
    const message = `${request.method} ${request.path} was answered with something that is not JSON`;
    return { status: response.status, body: parsedJson(text, (cause) => new ProtocolError(message, { cause })) };
  }

  private urlOf(request: HttpRequest): string {
    const url = new URL(`${this.baseUrl}/api${request.path}`);
    for (const [key, value] of Object.entries(request.query ?? {}))
      if (value !== null) url.searchParams.set(key, String(value));
    return url.href;
  }
}

/** No answer, or one of a server or proxy that is temporarily unavailable. */
const isBriefly = (error: unknown): boolean =>
  error instanceof NetworkError
    ? error.code !== 'aborted'
    : error instanceof ApiError && [502, 503, 504].includes(error.status);

/** Reads the whole reply as text. Throws `ProtocolError` `too_large`. */
async function readCapped({ body }: Response): Promise<string> {
  if (body === null) return '';
  const decoder = new TextDecoder();
  let text = '';
  let size = 0;
  for await (const chunk of chunksOf(body)) {
    size += chunk.length;
    if (size > REPLY_MAX) throw new ProtocolError(`a reply of more than ${REPLY_MAX} bytes`, { code: 'too_large' });
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

/** The error of a non-2xx answer, from our server or from an object store. */
export const refusalOf = async (response: Response): Promise<ApiError> => refusal(response, await readCapped(response));

function refusal(response: Response, text: string): ApiError {
  const { status, headers } = response;
  let error: Read<typeof readError>;
  try {
    error = readError(JSON.parse(text), '');
  } catch {
    // A proxy's error page.
    error = { code: `http_${status}`, message: `status ${status} without an error body`, details: null };
  }
  return new ApiError({
    ...{ ...error, details: error.details ?? {}, status, requestId: headers.get('x-request-id') },
    retryAfter: retryAfterSeconds(headers.get('retry-after')) ?? null,
  });
}
