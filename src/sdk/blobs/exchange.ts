/**
 * Requests to an object store, with a signed URL. The URL comes from the server, which is not trusted, so it may point
 * anywhere: no token is sent there, no redirect is followed, and only http and https are allowed.
 */
import { asError } from '../../protocol/error-code.js';
import type { Core } from '../core.js';
import type { JsonObject } from '../../crypto/payload.js';
import { delay, type Clock, type Timer } from '../../protocol/clock.js';
import { ApiError, ClientError, isTransient, NetworkError, ProtocolError, retryAfterMs } from '../errors.js';
import { backoffMs, abortOnAny, namedWaitMs, REQUEST_WAIT_MAX_MS, RETRY } from '../platform.js';

/** Most attempts at a transfer without progress. */
const ATTEMPTS_MAX = 5;
/** Refused URLs without progress after which a transfer fails. */
const REFUSALS_MAX = 3;
/** A URL that expires sooner than this is not used, ms. */
const REFRESH_BEFORE_MS = 60_000;

/** The dependencies of uploads and downloads. */
export type ExchangePorts = Pick<Core, 'clock' | 'random' | 'lifetime' | 'fetch' | 'baseUrl'>;

/** Request options for every store, in both directions. */
const UNNAMED = {
  // The answer must be a blob: a server must not be able to redirect a device elsewhere.
  redirect: 'manual',
  credentials: 'omit',
  cache: 'no-store',
  referrerPolicy: 'no-referrer',
} as const satisfies RequestInit;

/** One transfer; it ends early by its caller's signal, the closing of the device, or a store that is too slow. */
export class Exchange {
  readonly pace: Pace;
  private readonly stop = new AbortController();
  private readonly release: () => void;
  /** The failure on this side, which is the cause of any error that the platform reports after it. */
  private own: Error | undefined;
  /** Host and port of the last request. */
  private store: string | undefined;

  constructor(
    private readonly ports: ExchangePorts,
    private readonly caller: AbortSignal | undefined,
  ) {
    this.release = abortOnAny(this.stop, [caller, ports.lifetime]);
    this.pace = new Pace(ports.clock, (error) => this.fail(error));
  }

  /** Sends a request to the store. Throws `ProtocolError` `bad_url` for a redirect, and errors of the platform. */
  async request(address: URL, init: RequestInit): Promise<Response> {
    this.store = address.host;
    const response = await this.ports.fetch(address.href, { ...UNNAMED, ...init, signal: this.stop.signal });
    if (response.type === 'opaqueredirect' || (response.status >= 300 && response.status < 400))
      throw new ProtocolError('the address that the server names for a blob leads elsewhere', { code: 'bad_url' });
    return response;
  }

  /** Ends the transfer with the error for its caller. */
  fail(error: Error): void {
    this.own ??= error;
    this.stop.abort(error);
  }

  /**
   * Releases everything, after success or failure: stops the timer and closes a connection that the store keeps open.
   */
  end(): void {
    this.pace.end();
    this.release();
    this.stop.abort();
  }

  /** Maps a failure of the platform to its cause: the side that ended the transfer, else the network. */
  meaning(error: unknown): Error {
    const ended = this.own ?? endOf(this.caller, this.ports.lifetime);
    if (ended !== undefined) return ended;
    if (error instanceof TypeError || asError(error).name === 'AbortError')
      return new NetworkError('network', 'the transfer was cut off', { cause: error, store: this.store });
    return asError(error);
  }
}

/** The error of a transfer that its caller or the device ended; undefined: neither did. */
function endOf(signal: AbortSignal | undefined, lifetime: AbortSignal): Error | undefined {
  if (signal?.aborted === true) return new ClientError('cancelled', 'the transfer was cancelled');
  return lifetime.aborted ? asError(lifetime.reason) : undefined;
}

/** Throws `ClientError` `cancelled`, `closed` or `revoked` where the caller or the device has ended the transfer. */
export function throwIfEnded({ lifetime }: Pick<ExchangePorts, 'lifetime'>, signal: AbortSignal | undefined): void {
  const ended = endOf(signal, lifetime);
  if (ended !== undefined) throw ended;
}

/** Decides whether a failed transfer is started again, and waits before that. */
export class Retries {
  private failures = 0;
  private refusals = 0;

  constructor(
    private readonly ports: ExchangePorts,
    private readonly signal: AbortSignal | undefined,
  ) {}

  /** True during the last attempt. */
  get exhausted(): boolean {
    return this.failures >= ATTEMPTS_MAX - 1;
  }

  /** Called after progress: earlier failures no longer count. */
  reset(): void {
    this.failures = 0;
    this.refusals = 0;
  }

  /**
   * Resolves when the next attempt may start; rejects with `error` if there is none. `isRefused`: true for errors that
   * a new URL may resolve.
   */
  async waitAfter(error: Error, isRefused = isRefusedAddress): Promise<void> {
    const retryAfter = retryAfterMs(error);
    const refused = isRefused(error);
    if (this.exhausted || !(refused || isTransient(error)) || retryAfter > REQUEST_WAIT_MAX_MS) throw error;
    if (refused && ++this.refusals >= REFUSALS_MAX) throw error;
    const { clock, random, lifetime } = this.ports;
    const wait = Math.max(namedWaitMs(retryAfter, random), backoffMs(this.failures++, RETRY, random));
    const stop = new AbortController();
    const release = abortOnAny(stop, [this.signal, lifetime], () => asError(endOf(this.signal, lifetime)));
    try {
      await delay(clock, wait, stop.signal);
    } finally {
      release();
    }
  }
}

/**
 * A refused URL may have expired, or was used by an attempt whose answer was lost: a new one may work. For an
 * expired URL S3 answers 403, Google 400 (`ExpiredToken`); for a used one both answer 412.
 */
export const isRefusedAddress = (error: Error): boolean =>
  error instanceof ApiError && [400, 403, 409, 412].includes(error.status);

/** True where a URL should be replaced before use; `expiresAt` is in server time. */
export const isExpiring = ({ clock, clockOffset }: Pick<Core, 'clock' | 'clockOffset'>, expiresAt: number): boolean =>
  expiresAt - (clock.now() + (clockOffset() ?? 0)) < REFRESH_BEFORE_MS;

/** The slowest transfer allowed: `WINDOW_BYTES` per `WINDOW_MS` of waiting. */
const WINDOW_MS = 60_000;
const WINDOW_BYTES = 16 * 1024;

/**
 * Bounds the duration of a transfer, so that a store that sends single bytes cannot occupy a device for ever. Only time
 * spent waiting for the other side counts.
 */
class Pace {
  private timer: Timer | undefined;
  private begun = 0;
  private waited = 0;
  private bytes = 0;

  /** `stop` is called when the other side is too slow. */
  constructor(
    private readonly clock: Clock,
    private readonly stop: (error: NetworkError) => void,
  ) {}

  /** Starts waiting for the other side. `extraMs`: added to the limit of this wait. */
  wait(extraMs = 0): void {
    this.timer?.cancel();
    this.begun = this.clock.now();
    this.timer = this.clock.setTimer(Math.max(0, WINDOW_MS - this.waited) + extraMs, () =>
      this.stop(new NetworkError('timeout', `fewer than ${WINDOW_BYTES} bytes in ${WINDOW_MS} ms`)),
    );
  }

  /** Ends the wait: the other side has sent or accepted this many bytes. */
  got(bytes: number): void {
    this.end();
    this.waited += Math.max(0, this.clock.now() - this.begun);
    this.bytes += bytes;
    if (this.bytes < WINDOW_BYTES) return;
    this.bytes = 0;
    this.waited = 0;
  }

  /** Stops the timer. */
  end(): void {
    this.timer?.cancel();
    this.timer = undefined;
  }
}

const badUrl = (what: string): ProtocolError =>
  new ProtocolError(`the server names ${what} for a blob`, { code: 'bad_url' });

/**
 * The parsed URL, if a client may use it: https, or http if the server itself is reached over http. Throws
 * `ProtocolError` `bad_url`; the message never contains the URL, which grants access by itself.
 */
export function blobAddress(url: string, baseUrl: string): URL {
  if (!URL.canParse(url)) throw badUrl('something that is no address');
  const parsed = new URL(url);
  const plain = parsed.protocol === 'http:' && new URL(baseUrl).protocol === 'http:';
  if (parsed.protocol !== 'https:' && !plain) throw badUrl('an address of a scheme that is not allowed');
  if (parsed.username !== '' || parsed.password !== '') throw badUrl('an address with a user name');
  parsed.hash = '';
  return parsed;
}

/** Headers that stores need. Others (cookies, framing, another host) could change the meaning of a request. */
const ALLOWED =
  /^(content-type|content-range|content-md5|content-disposition|cache-control|if-none-match|x-[a-z0-9-]{1,60})$/;
const VALUE = /^[\x20-\x7e]{0,1024}$/;
const HEADERS_MAX = 32;

/**
 * The headers of a part as the server specifies them, with lower-case names. `content-length` and `host`, which are
 * signed too and which every platform sets itself, are dropped where they are right. Throws `ProtocolError` `bad_url`.
 */
export function uploadHeaders(
  wanted: JsonObject | null,
  at: { readonly url: URL; readonly part: { readonly from: number; readonly size: number }; readonly total: number },
): Record<string, string> {
  const { url, part, total } = at;
  const range = `bytes ${part.from}-${part.from + part.size - 1}/${total}`;
  const entries = Object.entries(wanted ?? {});
  if (entries.length > HEADERS_MAX) throw badUrl('too many headers');
  const headers: Record<string, string> = {};
  for (const [given, value] of entries) {
    const name = given.toLowerCase();
    if (name === 'content-length' && String(value) === String(part.size)) continue;
    if (name === 'host' && value === url.host) continue;
    if (name === 'content-range' && value !== range) throw badUrl('another range than that of the part');
    if (!ALLOWED.test(name) || typeof value !== 'string' || !VALUE.test(value))
      throw badUrl('a header that is not allowed');
    headers[name] = value;
  }
  return headers;
}
