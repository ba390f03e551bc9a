/** What a client needs from where it runs. Node and browsers bind the same ports; tests bind stand-ins. */
import type { Sodium } from '../crypto/sodium.js';
import type { Clock } from '../protocol/clock.js';
import type { Random } from './backoff.js';

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

/** Bytes of a frame that is read. None of the contract comes near it: an item is 64 KB of ciphertext and 1,000 keys. */
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
export const breathe = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

/** Waits `ms`; rejects with the signal's reason when it is aborted first. */
export function delay(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted === true) {
      reject(abortReason(signal));
      return;
    }
    const aborted = (): void => {
      timer.cancel();
      reject(abortReason(signal));
    };
    const timer = clock.setTimer(ms, () => {
      signal?.removeEventListener('abort', aborted);
      resolve();
    });
    signal?.addEventListener('abort', aborted, { once: true });
  });
}

const abortReason = (signal: AbortSignal | undefined): Error =>
  signal?.reason instanceof Error ? signal.reason : new Error('aborted');
