/** One HTTP exchange after another with a server: time-outs, typed refusals, and repeats where repeating is harmless. */
import { delay, type Clock } from '../protocol/clock.js';
import { backoffMs, follow, type Fetch, type Random, RETRY } from './platform.js';
import { ApiError, NetworkError, ProtocolError, retryAfterMs } from './errors.js';
import { count, errorBody, field, type Read } from './reader.js';

/** One request, below the retries. */
export interface HttpRequest {
  readonly method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  /** Below `/api`, with a leading slash. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string | number | null>>;
  /** Sent as JSON; bytes must be text by now. */
  readonly body?: unknown;
  /** In the place of `body`: JSON that is text already. */
  readonly json?: string;
  /** True where doing it twice is the same as doing it once: only then is it repeated. */
  readonly repeatable: boolean;
  /**
   * True: asked once, whatever the answer. For callers that try again in their own time: repeats inside of theirs would
   * multiply what a server in trouble gets.
   */
  readonly once?: boolean;
  /** How long one attempt may take, ms. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

/** Sends a request and gives the JSON of a 2xx answer. Throws `ApiError`, `NetworkError` or `ProtocolError`. */
export type Call = (request: HttpRequest) => Promise<HttpReply>;

/** A 2xx answer; 202 means something of its own in pairing. */
export interface HttpReply {
  readonly status: number;
  readonly body: unknown;
}

/** Where the server is, and what the platform gives. */
export interface HttpOptions {
  /** Address of the server, as `http://host:port`, with or without a path. */
  readonly baseUrl: string;
  readonly fetch: Fetch;
  readonly clock: Clock;
  readonly random: Random;
  /** Aborted when nobody waits for answers any more: ends what is under way, and every wait before a repeat. */
  readonly lifetime?: AbortSignal;
}

const TIMEOUT_MS = 15_000;
/** Repeats after the first attempt. */
const REPEATS_MAX = 4;
/** Bytes of a reply that are read. A page ends at about 4 MiB; what is larger fills this device's memory. */
const REPLY_MAX = 16 * 1024 * 1024;
/** A server that asks for a longer wait than this gets its refusal handed to the caller instead. */
const WAIT_MAX_MS = 65_000;
/**
 * Longest time that a request waits in all because the server named waits (429): a first reading and an import run into
 * the server's rates again and again, and each time there is room a moment later.
 */
const PATIENCE_MS = 4 * WAIT_MAX_MS;

const readError = field('error', errorBody);

/** The server's address in the one form that everything else is built on: no query, no fragment, no slash at the end. */
export function baseOf(url: string): string {
  const parsed = new URL(url);
  if (parsed.protocol !== 'http:' && parsed.protocol !== 'https:')
    throw new TypeError(`not an http address: ${parsed.protocol}`);
  return `${parsed.origin}${parsed.pathname.replace(/\/+$/, '')}`;
}

/** A server's HTTP side. Holds no token and no state: see `Session` for calls that need one. */
export class Http {
  readonly baseUrl: string;

  /**
   * The server's clock minus this device's, ms, as the last answer's `Date` said, good to about a second; null: none
   * said so. A browser on another origin is not shown the header. It judges the age of tokens, nothing that a lying
   * server could use.
   */
  clockOffset: number | null = null;

  constructor(private readonly options: HttpOptions) {
    this.baseUrl = baseOf(options.baseUrl);
  }

  /** Sends a request, with a bearer token where one is given. A method of this class is a `Call` once bound. */
  async send(request: HttpRequest, token: string | null = null): Promise<HttpReply> {
    const cancel = new AbortController();
    const release = follow(cancel, [request.signal, this.options.lifetime]);
    try {
      return await this.tryAgain(request, token, cancel.signal);
    } finally {
      release();
    }
  }

  private async tryAgain(request: HttpRequest, token: string | null, cancel: AbortSignal): Promise<HttpReply> {
    /** `waitedMs`: because the server named a wait. */
    const tried = { repeats: 0, waitedMs: 0 };
    for (;;) {
      try {
        return await this.attempt(request, token, cancel);
      } catch (error) {
        const wait = this.waitBefore(tried, request, error);
        if (wait === undefined) throw error;
        await delay(this.options.clock, wait, cancel).catch((cause: unknown) => {
          throw new NetworkError('aborted', `${request.path} was cancelled`, { cause });
        });
      }
    }
  }

  /** How long to wait before the same request again, or undefined when it is not repeated. */
  private waitBefore(
    tried: { repeats: number; waitedMs: number },
    request: HttpRequest,
    error: unknown,
  ): number | undefined {
    if (request.once === true) return undefined;
    if (error instanceof NetworkError && error.final) return undefined;
    const asked = retryAfterMs(error);
    const limited = error instanceof ApiError && error.status === 429;
    if (asked > WAIT_MAX_MS) return undefined;
    // A wait that is named is no failure: it ends with the caller's patience, not with a number of tries.
    if (limited && asked > 0) {
      tried.waitedMs += asked;
      return tried.waitedMs <= PATIENCE_MS ? asked : undefined;
    }
    // 429 is decided before anything is done, so it may be repeated whatever the request is.
    if (tried.repeats >= REPEATS_MAX || !(limited || (request.repeatable && isBriefly(error)))) return undefined;
    return Math.max(asked, backoffMs(tried.repeats++, RETRY, this.options.random));
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
          // The server's default may be the other shape, so this one is always named.
          'x-wire-shape': 'a',
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        },
        body,
        // A token must not follow a redirect to wherever a proxy or an attacker points.
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
      // The platform knows more than that: a program's own way to the server may be shut.
      if (error instanceof NetworkError) throw error;
      throw new NetworkError('network', `${request.method} ${request.path} got no answer`, { cause: error });
    }
    if (!response.ok) throw refusal(response, text);
    try {
      return { status: response.status, body: JSON.parse(text) as unknown };
    } catch (cause) {
      const message = `${request.method} ${request.path} was answered with something that is not JSON`;
      throw new ProtocolError(message, { cause });
    }
  }

  private urlOf(request: HttpRequest): string {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries(request.query ?? {})) if (value !== null) query.set(key, String(value));
    const tail = query.size === 0 ? '' : `?${query.toString()}`;
    return `${this.baseUrl}/api${request.path}${tail}`;
  }
}

/** No answer, or one of a server or proxy that is not there for the moment. */
const isBriefly = (error: unknown): boolean =>
  error instanceof NetworkError
    ? error.code !== 'aborted'
    : error instanceof ApiError && [502, 503, 504].includes(error.status);

/** The whole reply as text. Throws `ProtocolError` for one that is larger than any the protocol has. */
async function readCapped({ body }: Response): Promise<string> {
  if (body === null) return '';
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    size += value.length;
    if (size > REPLY_MAX) {
      await reader.cancel();
      throw new ProtocolError(`a reply of more than ${REPLY_MAX} bytes`, { code: 'too_large' });
    }
    text += decoder.decode(value, { stream: true });
  }
}

/** What an answer without success says, ours or a store's. */
export const refusalOf = async (response: Response): Promise<ApiError> => refusal(response, await readCapped(response));

function refusal(response: Response, text: string): ApiError {
  const { status, headers } = response;
  let error: Read<typeof readError>;
  try {
    error = readError(JSON.parse(text), '');
  } catch {
    // The page of a proxy, which has no error body of ours.
    error = { code: `http_${status}`, message: `status ${status} without an error body`, details: null };
  }
  const seconds = headers.get('retry-after');
  return new ApiError({
    ...{ ...error, details: error.details ?? {}, status, requestId: headers.get('x-request-id') },
    retryAfter: seconds !== null && /^\d{1,9}$/.test(seconds) ? count(Number(seconds), 'Retry-After') : null,
  });
}
