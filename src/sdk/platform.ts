/**
 * The platform that a client runs on, and its backoff. Node and browsers implement the same ports; tests use doubles.
 */
import type { Sodium } from '../crypto/sodium.js';
import type { Clock } from '../protocol/clock.js';
import { ClientError } from './errors.js';

/** The events of a socket. `closed` is called exactly once, also when the connection never opened. */
export interface SocketEvents {
  opened(): void;
  /** A text frame; binary ones are ignored. */
  message(text: string): void;
  /** `retryAfter`: seconds, if the server refused the connection and the platform exposes the header (Node). */
  closed(code: number, reason: string, retryAfter?: number): void;
}

/** An open or opening connection. */
export interface OpenSocket {
  send(text: string): void;
  close(code: number, reason: string): void;
  /** Stops and resumes reading, where the platform can (Node): bounds the memory of frames that wait to be stored. */
  pause?(): void;
  resume?(): void;
}

/**
 * Largest frame accepted from a server, in bytes. The protocol stays far below: an item has at most 64 KB of ciphertext
 * and 1,000 keys.
 */
export const SERVER_FRAME_MAX = 1024 * 1024;

/** Time-out of opening a connection. */
export const OPEN_WITHIN_MS = 20_000;
/** Time-out of the closing handshake, after which the socket is dropped; a browser would wait a minute or more. */
export const CLOSE_WITHIN_MS = 2_000;

/** Opens WebSockets. */
export interface SocketPort {
  open(url: string, events: SocketEvents): OpenSocket;
}

/** The platform's own `fetch`, or an equivalent. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** All input and output of a client. */
export interface Platform {
  readonly sodium: Sodium;
  readonly fetch: Fetch;
  readonly sockets: SocketPort;
  readonly clock: Clock;
  /** For jitter only, never for keys. */
  readonly random: Random;
}

/** Yields to the event loop during long work, by the platform's shortest timer, independent of the injected clock. */
export const yieldToEventLoop = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

/**
 * Aborts `own`, with `reason` if given, with the first of the signals; the returned function detaches it.
 * `AbortSignal.any` leaks memory here: it retains memory for each short-lived signal as long as the long-lived one
 * exists (Node 20), and a device lives for months.
 */
export function abortOnAny(
  own: AbortController,
  signals: readonly (AbortSignal | undefined)[],
  reason?: () => Error,
): () => void {
  const aborted = (): void => own.abort(reason?.());
  const detach = signals.flatMap((signal) => {
    if (signal?.aborted === true) aborted();
    return signal === undefined ? [] : [onAbort(signal, aborted)];
  });
  return () => detach.forEach((end) => end());
}

/** By signal: what to do when it is aborted, and the one listener that does it. */
const waiting = new WeakMap<AbortSignal, { readonly all: Set<() => void>; readonly run: () => void }>();

function listenerOf(signal: AbortSignal) {
  const all = new Set<() => void>();
  const listener = { all, run: () => all.forEach((one) => one()) };
  waiting.set(signal, listener);
  return listener;
}

/** Many may wait for one signal; Node warns of more than ten listeners as of a leak. */
function onAbort(signal: AbortSignal, work: () => void): () => void {
  const { all, run } = waiting.get(signal) ?? listenerOf(signal);
  if (all.size === 0) signal.addEventListener('abort', run, { once: true });
  all.add(work);
  return () => {
    if (all.delete(work) && all.size === 0) signal.removeEventListener('abort', run);
  };
}

/** The result of `work`, unless a signal is aborted first: then rejects with the error that `ended` throws. */
export async function abortable<T>(
  work: Promise<T>,
  signals: readonly (AbortSignal | undefined)[],
  ended: () => void,
): Promise<T> {
  const stop = new AbortController();
  const over = new Promise<void>((resolve) => stop.signal.addEventListener('abort', () => resolve(), { once: true }));
  const release = abortOnAny(stop, signals);
  try {
    return await Promise.race([work, over.then(ended).then(() => work)]);
  } finally {
    release();
  }
}

/** A number from 0 (included) to 1 (excluded), as `Math.random` gives it. */
export type Random = () => number;

/** The bounds of a backoff. */
interface BackoffLimits {
  /** Longest first wait, ms. */
  readonly firstMs: number;
  /** Longest wait of all, ms. */
  readonly maxMs: number;
}

/** For reconnecting and for sending the outbox. */
export const RECONNECT: BackoffLimits = { firstMs: 1_000, maxMs: 60_000 };

/** For a request that is retried while its caller waits. */
export const RETRY: BackoffLimits = { firstMs: 250, maxMs: 8_000 };

/** Longest `Retry-After` that a request waits for; for a longer one the caller gets the refusal. */
export const REQUEST_WAIT_MAX_MS = 65_000;

/** Longest `Retry-After` honoured by background work: a server cannot switch a device off for a day. */
export const RETRY_AFTER_MAX_MS = 15 * 60_000;

/**
 * The wait before attempt `attempt` (0 is the first retry), in whole ms. It doubles up to the limit, and half of it is
 * random, so that devices that lost the same server do not reconnect in step.
 */
export function backoffMs(attempt: number, limits: BackoffLimits, random: Random): number {
  const longest = Math.min(limits.maxMs, limits.firstMs * 2 ** Math.min(attempt, 30));
  return Math.round(longest * (0.5 + random() / 2));
}

/**
 * Random addition to a wait that the server named: up to a quarter of the wait, or up to a second if that is more,
 * because a server names whole seconds and so gives many devices the same time.
 */
const JITTER_PARTS = 4;
const JITTER_MIN_MS = 1_000;

/** A wait that the server named, `askedMs`, as background work observes it: with jitter, and bounded. 0: it named none. */
export function namedWaitMs(askedMs: number, random: Random): number {
  if (askedMs === 0) return 0;
  const jitter = Math.round(random() * Math.max(JITTER_MIN_MS, askedMs / JITTER_PARTS));
  return Math.min(askedMs + jitter, RETRY_AFTER_MAX_MS);
}

/** Replaces a function of the other platform in an entry, so that a program for both compiles with either entry. */
export const unavailable = (name: string, needs: 'Node' | 'browsers', instead: string) => (): never => {
  throw new ClientError('wrong_platform', `${name} works in ${needs} only: use ${instead} here`);
};
