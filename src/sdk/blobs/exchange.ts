/**
 * One exchange with a store of blobs, over an address that was signed for it. The server names the address and is not
 * trusted, so it may lead anywhere: no token goes there, no redirect is followed, and nothing but http is spoken.
 */
import { asError } from '../../protocol/error-code.js';
import type { Core } from '../core.js';
import type { JsonObject } from '../../crypto/payload.js';
import { delay, type Clock, type Timer } from '../../protocol/clock.js';
import { ApiError, ClientError, isPassing, NetworkError, ProtocolError } from '../errors.js';
import { backoffMs, follow, RETRY } from '../platform.js';

/** Attempts at a transfer, each begun anew, in which nothing was gained. */
const ATTEMPTS_MAX = 5;
/** Fresh addresses that are refused: each upload reserves its size anew. */
const REFUSALS_MAX = 3;
/** A store that asks for a longer wait than this has its refusal handed to the caller. */
const WAIT_MAX_MS = 65_000;

/** What both directions need of their device. */
export type ExchangePorts = Pick<Core, 'clock' | 'random' | 'lifetime' | 'fetch' | 'baseUrl'>;

/** Said to every store, in both directions. */
export const UNNAMED = {
  // An answer is a blob or nothing: whoever sends a device elsewhere must not find it going there.
  redirect: 'manual',
  credentials: 'omit',
  cache: 'no-store',
  referrerPolicy: 'no-referrer',
} as const satisfies RequestInit;

/** One exchange: ended by its caller, by the end of the device, and by a store that is too slow. */
export class Exchange {
  readonly signal: AbortSignal;
  readonly pace: Pace;
  private readonly stop = new AbortController();
  private readonly release: () => void;
  /** What went wrong on this side: whatever the platform says then, this is why. */
  private own: Error | undefined;

  constructor(
    private readonly ports: ExchangePorts,
    private readonly caller: AbortSignal | undefined,
  ) {
    this.signal = this.stop.signal;
    this.release = follow(this.stop, [caller, ports.lifetime]);
    this.pace = new Pace(ports.clock, (error) => this.fail(error));
  }

  /** Ends it, with the error that its caller is told. */
  fail(error: Error): void {
    this.own ??= error;
    this.stop.abort(error);
  }

  /** Over, well or not: nothing is waited for, and a connection that the store still holds open is let go. */
  end(): void {
    this.pace.end();
    this.release();
    this.stop.abort();
  }

  /** What a failure of the platform means: told by whoever ended it, else the network's. */
  meaning(error: unknown): Error {
    const told = this.own ?? endOf(this.caller, this.ports.lifetime);
    if (told !== undefined) return told;
    if (error instanceof TypeError || asError(error).name === 'AbortError')
      return new NetworkError('network', 'the transfer was cut off', { cause: error });
    return asError(error);
  }
}

/** Who ended a transfer on purpose: its caller, or the device. */
function endOf(signal: AbortSignal | undefined, lifetime: AbortSignal): ClientError | undefined {
  if (signal?.aborted === true) return new ClientError('cancelled', 'the transfer was cancelled');
  return lifetime.aborted ? new ClientError('closed', 'the device was closed') : undefined;
}

/** Decides whether a transfer that failed is begun anew, and waits before it. */
export class Retries {
  private failures = 0;
  private refusals = 0;

  constructor(
    private readonly ports: ExchangePorts,
    private readonly signal: AbortSignal | undefined,
  ) {}

  /** True where the attempt under way is the last one. */
  get exhausted(): boolean {
    return this.failures >= ATTEMPTS_MAX - 1;
  }

  /** Something was gained: what failed before does not count any more. */
  reset(): void {
    this.failures = 0;
    this.refusals = 0;
  }

  /** Resolves when it may be tried again; rejects with `error` where that is of no use. */
  async waitAfter(error: Error): Promise<void> {
    const told = error instanceof ApiError ? (error.retryAfter ?? 0) * 1_000 : 0;
    const refused = isRefusedAddress(error);
    if (this.exhausted || !(refused || isPassing(error)) || told > WAIT_MAX_MS) throw error;
    if (refused && ++this.refusals >= REFUSALS_MAX) throw error;
    const { clock, random, lifetime } = this.ports;
    const wait = Math.max(told, backoffMs(this.failures++, RETRY, random));
    const stop = new AbortController();
    const release = follow(stop, [this.signal, lifetime]);
    try {
      await delay(clock, wait, stop.signal);
    } catch (cause) {
      throw endOf(this.signal, lifetime) ?? asError(cause);
    } finally {
      release();
    }
  }
}

/**
 * A refused address may be late, or spent by an attempt whose answer was lost: a fresh one may do. S3 answers a late one
 * with 403, Google with 400 (`ExpiredToken`), both a spent one with 412.
 */
const isRefusedAddress = (error: Error): boolean =>
  error instanceof ApiError && [400, 403, 409, 412].includes(error.status);

/** Throws `ProtocolError` `bad_url` for an answer that leads elsewhere. */
export function expectNoRedirect(response: Response): void {
  if (response.type === 'opaqueredirect' || (response.status >= 300 && response.status < 400))
    throw new ProtocolError('the address that the server names for a blob leads elsewhere', { code: 'bad_url' });
}

/** In so long a time of waiting, ms, so many bytes must pass. */
const WINDOW_MS = 60_000;
const WINDOW_BYTES = 16 * 1024;

/**
 * How slow a transfer may be: a store that gives a byte now and then must not hold a device for ever. Counts the time
 * that is spent waiting for the other side; that of one's own work does not count.
 */
export class Pace {
  private timer: Timer | undefined;
  private begun = 0;
  private waited = 0;
  private bytes = 0;

  /** `stop` is called where the other side is too slow. */
  constructor(
    private readonly clock: Clock,
    private readonly stop: (error: NetworkError) => void,
  ) {}

  /** From now on the other side is waited for. `extraMs`: longer than usual, once. */
  wait(extraMs = 0): void {
    this.timer?.cancel();
    this.begun = this.clock.now();
    this.timer = this.clock.setTimer(Math.max(0, WINDOW_MS - this.waited) + extraMs, () =>
      this.stop(new NetworkError('timeout', `fewer than ${WINDOW_BYTES} bytes in ${WINDOW_MS} ms`)),
    );
  }

  /** The other side has done its part: so many bytes. */
  got(bytes: number): void {
    this.end();
    this.waited += Math.max(0, this.clock.now() - this.begun);
    this.bytes += bytes;
    if (this.bytes < WINDOW_BYTES) return;
    this.bytes = 0;
    this.waited = 0;
  }

  /** Nothing is waited for any more. */
  end(): void {
    this.timer?.cancel();
    this.timer = undefined;
  }
}

const badUrl = (what: string): ProtocolError =>
  new ProtocolError(`the server names ${what} for a blob`, { code: 'bad_url' });

/**
 * The address, where it is one that may be asked: https, or http where the server itself is reached so. Throws
 * `ProtocolError` `bad_url`; the message never has the address, which is a right by itself.
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

/** Headers that stores ask for. Others (cookies, framing, another host) could make one request mean two things. */
const ALLOWED = /^(content-type|content-md5|content-disposition|cache-control|if-none-match|x-[a-z0-9-]{1,60})$/;
const VALUE = /^[\x20-\x7e]{0,1024}$/;
const HEADERS_MAX = 32;

/**
 * What the server wants to be sent with an upload, lower-case names. `content-length` and `host`, which are signed too
 * and which every platform sets by itself, are left out where they are right. Throws `ProtocolError` `bad_url`.
 */
export function uploadHeaders(
  told: JsonObject | null,
  { url, size }: { readonly url: URL; readonly size: number },
): Record<string, string> {
  const entries = Object.entries(told ?? {});
  if (entries.length > HEADERS_MAX) throw badUrl('too many headers');
  const headers: Record<string, string> = {};
  for (const [given, value] of entries) {
    const name = given.toLowerCase();
    if (name === 'content-length' && String(value) === String(size)) continue;
    if (name === 'host' && value === url.host) continue;
    if (!ALLOWED.test(name) || typeof value !== 'string' || !VALUE.test(value))
      throw badUrl('a header that is not allowed');
    headers[name] = value;
  }
  return headers;
}
