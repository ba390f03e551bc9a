/** What a client needs from where it runs, and how it waits. Node and browsers bind the same ports; tests bind stand-ins. */
import type { Sodium } from '../crypto/sodium.js';
import type { Clock } from '../protocol/clock.js';
import { ClientError } from './errors.js';

/** What a socket tells its owner. `closed` comes exactly once, also when the connection never opened. */
export interface SocketEvents {
  opened(): void;
  /** A text frame; a binary one is not handed on. */
  message(text: string): void;
  /** `retryAfter`: seconds, where the server refused the connection and the platform shows what it said (Node). */
  closed(code: number, reason: string, retryAfter?: number): void;
}

/** One connection. */
export interface OpenSocket {
  send(text: string): void;
  close(code: number, reason: string): void;
  /** Stops and resumes reading, where the platform can (Node): keeps memory bounded while frames are being stored. */
  pause?(): void;
  resume?(): void;
}

/** Bytes of a frame that is read. None of the protocol comes near it: an item is 64 KB of ciphertext and 1,000 keys. */
export const FRAME_MAX = 1024 * 1024;

/** Opens WebSockets. */
export interface SocketPort {
  open(url: string, events: SocketEvents): OpenSocket;
}

/** The platform's own `fetch`, or one like it. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** A request whose body is made while it is sent. */
export interface StreamedPut {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Bytes of the body, exactly: sent as `Content-Length`. */
  readonly size: number;
  readonly body: AsyncGenerator<Uint8Array, void, undefined>;
  readonly signal: AbortSignal;
}

/** Sends a PUT as its body comes, with its length, following no redirect. Rejects as `fetch` does. */
export type SendBody = (put: StreamedPut) => Promise<Response>;

/** Everything of the outside that a client touches. */
export interface Platform {
  readonly sodium: Sodium;
  readonly fetch: Fetch;
  /** Where requests can be streamed (Node). Absent: a body is given to `fetch` as a `Blob`. */
  readonly sendBody?: SendBody;
  readonly sockets: SocketPort;
  readonly clock: Clock;
  /** For jitter only, never for keys. */
  readonly random: Random;
}

/** Lets others have a turn in the middle of long work: the platform's shortest timer, whatever the time is. */
export const yieldToEventLoop = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

/**
 * Aborts `own` with the first of the signals, until the function that it answers is called. `AbortSignal.any` would do it,
 * but of each short signal it keeps something for as long as a long one lives (Node 20), and a device lives for months.
 */
export function follow(own: AbortController, signals: readonly (AbortSignal | undefined)[]): () => void {
  const aborted = (): void => own.abort();
  for (const signal of signals) {
    if (signal?.aborted === true) aborted();
    signal?.addEventListener('abort', aborted, { once: true });
  }
  return () => {
    for (const signal of signals) signal?.removeEventListener('abort', aborted);
  };
}

/** A number from 0 (included) to 1 (excluded), as `Math.random` gives it. */
export type Random = () => number;

/** Between which waits a backoff grows. */
export interface BackoffLimits {
  /** Longest first wait, ms. */
  readonly firstMs: number;
  /** Longest wait of all, ms. */
  readonly maxMs: number;
}

/** Near 1 s at first, near 60 s at most. */
export const RECONNECT: BackoffLimits = { firstMs: 1_000, maxMs: 60_000 };

/** For a request that is tried again while its caller waits. */
export const RETRY: BackoffLimits = { firstMs: 250, maxMs: 8_000 };

/** The longest wait that a server may ask of what goes on in the background: it cannot switch a device off for a day. */
export const RETRY_AFTER_MAX_MS = 15 * 60_000;

/**
 * The wait before attempt `attempt` (0 is the first retry), in whole ms: it doubles up to the limit, and half of it is
 * chance, so that devices which lost the same server do not come back in step.
 */
export function backoffMs(attempt: number, limits: BackoffLimits, random: Random): number {
  const longest = Math.min(limits.maxMs, limits.firstMs * 2 ** Math.min(attempt, 30));
  return Math.round(longest * (0.5 + random() / 2));
}

/** Stands in an entry for a function of the other platform, so that a program for both compiles with either. */
export const unavailable = (name: string, needs: 'Node' | 'browsers', instead: string) => (): never => {
  throw new ClientError('wrong_platform', `${name} works in ${needs} only: use ${instead} here`);
};
