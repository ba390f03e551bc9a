/** One exchange with a store of blobs, over an address that was signed for it. Nothing of the device goes with it. */
import type { Clock } from '../../protocol/clock.js';
import { backoffMs, RETRY, type Random } from '../backoff.js';
import { ApiError, ClientError, isPassing, NetworkError, ProtocolError } from '../errors.js';
import { asError } from '../events.js';
import { delay } from '../platform.js';
import { Pace } from './pace.js';

/** Attempts at a transfer, each begun anew, in which nothing was gained. */
const ATTEMPTS_MAX = 5;
/** Fresh addresses that are refused: each upload reserves its size anew. */
const REFUSALS_MAX = 3;
/** A store that asks for a longer wait than this has its refusal handed to the caller. */
const WAIT_MAX_MS = 65_000;

/** What both directions need of their device. */
export interface ExchangePorts {
  readonly clock: Clock;
  readonly random: Random;
  /** Aborted when the device is closed. */
  readonly lifetime: AbortSignal;
}

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
  private readonly ends: readonly AbortSignal[];
  /** What went wrong on this side: whatever the platform says then, this is why. */
  private own: Error | undefined;

  constructor({ clock, lifetime }: ExchangePorts, signal: AbortSignal | undefined) {
    this.ends = signal === undefined ? [lifetime] : [signal, lifetime];
    this.signal = AbortSignal.any([...this.ends, this.stop.signal]);
    this.pace = new Pace(clock, (error) => this.fail(error));
  }

  /** Ends it, with the error that its caller is told. */
  fail(error: Error): void {
    this.own ??= error;
    this.stop.abort(error);
  }

  /** Over, well or not: nothing is waited for, and a connection that the store still holds open is let go. */
  end(): void {
    this.pace.end();
    this.stop.abort();
  }

  /** What a failure of the platform means: told by whoever ended it, else the network's. */
  meaning(error: unknown): Error {
    if (this.own !== undefined) return this.own;
    const [first] = this.ends;
    if (this.ends.some(({ aborted }) => aborted))
      return first?.aborted === true && this.ends.length > 1
        ? new ClientError('cancelled', 'the transfer was cancelled')
        : new ClientError('closed', 'the device was closed');
    if (error instanceof TypeError || asError(error).name === 'AbortError')
      return new NetworkError('network', 'the transfer was cut off', { cause: error });
    return asError(error);
  }
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
    const ends = AbortSignal.any(this.signal === undefined ? [lifetime] : [this.signal, lifetime]);
    await delay(clock, wait, ends).catch(() => {
      throw this.signal?.aborted === true
        ? new ClientError('cancelled', 'the transfer was cancelled')
        : new ClientError('closed', 'the device was closed');
    });
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
