/** The server under load: requests over persistent connections, and how long to wait after a refusal. */
import { Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { isIP } from 'node:net';
import { isObject } from '../protocol/bytes.js';
import { delay, systemClock } from '../protocol/clock.js';
import { errorCode } from '../protocol/error-code.js';
import { retryAfterSeconds } from '../protocol/retry-after.js';
import { backoffMs, RETRY, RETRY_AFTER_MAX_MS } from '../sdk/platform.js';
import { readCapped } from '../terminal/read-capped.js';

/** A request to the target. Its path begins with `/`. */
export interface TargetRequest {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  readonly path: string;
  /** The `Host` header: the tenant's, whatever address is dialled. Left out: the address. */
  readonly host?: string | undefined;
  readonly token?: string;
  /** JSON text, or bytes. */
  readonly body?: string | Uint8Array;
  readonly headers?: Readonly<Record<string, string>>;
  /** The reply is bytes, not JSON. */
  readonly bytes?: true;
}

/** The reply to a request. `body`: its JSON; undefined where it is none, or `bytes` was requested. */
export interface TargetReply {
  readonly body: unknown;
  readonly bytes: Buffer;
}

/** An unsuccessful request. `code`: the server's error code, else such as `http_500`, or the system's error code. */
export class Refused extends Error {
  override readonly name = 'Refused';

  constructor(
    readonly code: string,
    readonly status: number,
    /** The wait that the server requests, ms; undefined: none. */
    readonly waitMs?: number,
  ) {
    super(code);
  }

  /** True if the same request may succeed later. */
  get transient(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 502;
  }

  /** True if the request may have been executed all the same. */
  get doubtful(): boolean {
    return this.status === 0 || this.status >= 500;
  }
}

/** The server closes connections that are idle for 8 to 12 s; a request that crosses the close would be lost. */
const IDLE_MS = 6_000;
/** How long a request may be silent, and take in all, ms; a blob may be large, and the line slow. */
export const TIMEOUT_MS = 30_000;
const WHOLE_MS = 600_000;
/** Largest reply that is read, bytes. */
export const REPLY_MAX = 80 * 1024 * 1024;

/** Attempts of one request, each the same: the waits between them come to about half a minute. */
const ATTEMPTS = 10;
/** The longest wait that a server may ask for here, ms. */
const WAIT_MAX_MS = 30_000;

interface RetryOptions {
  readonly attempts?: number;
  readonly signal?: AbortSignal;
  readonly onRetry?: (error: Refused) => void;
}

/**
 * Repeats a request while its refusal is `transient`, with growing waits of at least what the server requests, up to
 * `WAIT_MAX_MS`. `onRetry` is called before each wait. Throws the last `Refused`, at once if `signal` is aborted.
 */
export async function withRetries<T>(attempt: () => Promise<T>, options: RetryOptions = {}): Promise<T> {
  const { attempts = ATTEMPTS, signal, onRetry } = options;
  for (let made = 1; ; made++) {
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof Refused) || !error.transient || made >= attempts || signal?.aborted === true) throw error;
      onRetry?.(error);
      const wait = Math.max(error.waitMs ?? 0, backoffMs(made - 1, RETRY, Math.random));
      await delay(systemClock, Math.min(WAIT_MAX_MS, wait), signal).catch(() => undefined);
    }
  }
}

/** The wait that a reply or a close reason requests (`retry after`, seconds), in ms and bounded; undefined: none. */
export const waitMsOf = (seconds: number | undefined): number | undefined =>
  seconds === undefined ? undefined : Math.min(RETRY_AFTER_MAX_MS, seconds * 1_000);

/** An error code that is safe to count and to print: `unknown` for one of another form, since the server may send any. */
export const plainCode = (code: unknown): string =>
  typeof code === 'string' && /^[A-Za-z0-9_]{1,40}$/.test(code) ? code : 'unknown';

function refusalOf(status: number, body: unknown, retryAfter: string | undefined): Refused {
  const error = isObject(body) ? body['error'] : undefined;
  const named = isObject(error) ? error['code'] : undefined;
  const code = named === undefined ? `http_${status}` : plainCode(named);
  return new Refused(code, status, waitMsOf(retryAfterSeconds(retryAfter)));
}

/** Requests to one server. */
export class Target {
  readonly url: URL;
  private readonly agents: readonly (HttpAgent | HttpsAgent)[];
  private turn = 0;

  /** @param from source addresses, used in turns; empty: the system's choice. */
  constructor(
    url: string,
    private readonly options: { readonly connections: number; readonly from: readonly string[] },
  ) {
    this.url = new URL(url);
    const { connections, from } = options;
    const { hostname, protocol } = this.url;
    const secure = protocol === 'https:';
    // Not the tenant's name, which no certificate needs; an address is none.
    const servername = isIP(hostname.replace(/^\[|\]$/g, '')) === 0 ? hostname : '';
    this.agents = (from.length === 0 ? [undefined] : from).map((localAddress) => {
      const maxSockets = Math.max(1, Math.ceil(connections / Math.max(1, from.length)));
      const kept = { keepAlive: true, maxSockets, maxFreeSockets: maxSockets, timeout: IDLE_MS };
      const settings = { ...kept, noDelay: true, localAddress };
      return secure ? new HttpsAgent({ ...settings, servername }) : new HttpAgent(settings);
    });
  }

  /** The next source address, for a socket that the caller opens; undefined: the system's choice. */
  source(): string | undefined {
    const { from } = this.options;
    return from[this.turn++ % Math.max(1, from.length)];
  }

  /** Closes all connections. */
  close(): void {
    for (const agent of this.agents) agent.destroy();
  }

  /** Sends a request, and resolves with its reply if that is a success. Rejects with `Refused`. */
  send(request: TargetRequest): Promise<TargetReply> {
    const { method, path, host, token, body, bytes } = request;
    const payload = typeof body === 'string' ? Buffer.from(body) : body;
    const headers: Record<string, string> = {
      ...(host === undefined ? {} : { host }),
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      ...(payload === undefined ? {} : { 'content-length': String(payload.length) }),
      ...(typeof body === 'string' ? { 'content-type': 'application/json' } : {}),
      'x-wire-shape': 'a',
      ...request.headers,
    };
    const agent = this.agents[this.turn++ % this.agents.length];
    const open = this.url.protocol === 'https:' ? httpsRequest : httpRequest;
    return new Promise((resolve, reject) => {
      const fail = (error: unknown): void => reject(new Refused(plainCode(errorCode(error) || 'network'), 0));
      const outgoing = open(this.url, { method, path, headers, agent });
      const late = (): void => void outgoing.destroy(Object.assign(new Error(), { code: 'timeout' }));
      outgoing.setTimeout(TIMEOUT_MS, late);
      // Not while it waits for a connection.
      outgoing.once('socket', () => {
        const timer = setTimeout(late, WHOLE_MS);
        outgoing.once('close', () => clearTimeout(timer));
      });
      outgoing.on('error', fail);
      // Node closes the connection to a server that switches protocols unasked, and reports nothing.
      outgoing.on('upgrade', (_, socket) => {
        socket.destroy();
        reject(new Refused('http_101', 0));
      });
      outgoing.on('response', (incoming) => {
        readAll(incoming).then((read) => {
          const status = incoming.statusCode ?? 0;
          const reply = { bytes: read, body: bytes ? undefined : json(read) };
          if (status >= 200 && status <= 299) resolve(reply);
          else reject(refusalOf(status, reply.body, incoming.headers['retry-after']));
        }, fail);
      });
      outgoing.end(payload);
    });
  }
}

/** Runs `work` with a few connections of its own, which are closed afterwards. */
export async function withTarget<T>(url: string, work: (target: Target) => Promise<T>): Promise<T> {
  const target = new Target(url, { connections: 8, from: [] });
  try {
    return await work(target);
  } finally {
    target.close();
  }
}

async function readAll(incoming: IncomingMessage): Promise<Buffer> {
  const { bytes, whole } = await readCapped(incoming, REPLY_MAX);
  if (!whole) throw Object.assign(new Error(), { code: 'too_large' });
  return bytes;
}

function json(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString('utf8')) as unknown;
  } catch {
    return undefined;
  }
}
