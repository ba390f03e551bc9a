/**
 * The wire as any client sees it: plain HTTP, plain sockets, both shapes spelled by hand. Nothing here is taken from
 * the server's own codecs, so that a fault in them cannot hide itself.
 */
import { Agent, request as httpRequest, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import { Agent as TlsAgent, request as httpsRequest } from 'node:https';
import { connect as tcpConnect } from 'node:net';
import { text as textOf } from 'node:stream/consumers';
import { connect as tlsConnect } from 'node:tls';
import { WebSocket } from 'ws';
import { Notifier, soon } from './events.js';

export type Shape = 'a' | 'b';
export const SHAPES: readonly Shape[] = ['a', 'b'];

/** The fields of a row that are null once its item is deleted. */
export const PAYLOAD_FIELDS: Readonly<Record<Shape, readonly string[]>> = {
  a: ['payloadEnc', 'blobRef', 'blobNonce', 'blobKeys'],
  b: ['ct', 'nonce', 'wrapped', 'master', 'blobRef', 'blobNonce', 'blobKeys'],
};

export type Json = Readonly<Record<string, unknown>>;

const snakeKey = (key: string): string => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const camelKey = (key: string): string => key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
/** Ids are upper case, names are not: a map's keys that are device ids are left as they are. */
const isId = (key: string): boolean => /^[0-9A-Z]{26}$/.test(key);

function renamed(value: unknown, name: (key: string) => string): unknown {
  if (Buffer.isBuffer(value) || value === null || typeof value !== 'object') return value;
  if (Array.isArray(value)) return value.map((entry) => renamed(entry, name));
  return Object.fromEntries(
    Object.entries(value).map(([key, entry]) => [isId(key) ? key : name(key), renamed(entry, name)]),
  );
}

/** A body written in camelCase, as a shape spells it; buffers become its base64. */
export function spelled(shape: Shape, value: unknown): unknown {
  const withText = (entry: unknown): unknown => {
    if (Buffer.isBuffer(entry)) return entry.toString(shape === 'a' ? 'base64url' : 'base64');
    if (Array.isArray(entry)) return entry.map(withText);
    if (entry === null || typeof entry !== 'object') return entry;
    return Object.fromEntries(Object.entries(entry).map(([key, inner]) => [key, withText(inner)]));
  };
  return withText(shape === 'b' ? renamed(value, snakeKey) : value);
}

/** A reply or frame of either shape with camelCase keys; values as they came. */
export const camel = (value: unknown): Json => renamed(value, camelKey) as Json;

/** Every key in a value that is not snake_case; ids as keys are left out. */
export function keysNotSnake(value: unknown): string[] {
  if (value === null || typeof value !== 'object') return [];
  if (Array.isArray(value)) return value.flatMap(keysNotSnake);
  return Object.entries(value).flatMap(([key, entry]) => [
    ...(isId(key) || /^[a-z0-9]+(_[a-z0-9]+)*$/.test(key) ? [] : [key]),
    ...keysNotSnake(entry),
  ]);
}

/** The value at `path` ('device.id', 'items.0.version') of parsed JSON; undefined where there is none. */
export function at(value: unknown, path: string): unknown {
  let found: unknown = value;
  for (const key of path.split('.')) {
    if (found === null || typeof found !== 'object') return undefined;
    found = (found as Record<string, unknown>)[key];
  }
  return found;
}

/** An answer. Paths are as the wire spells them. */
export class Reply {
  constructor(
    readonly status: number,
    readonly headers: IncomingHttpHeaders,
    readonly raw: string,
  ) {}

  /** The parsed body; undefined where it is no JSON. */
  get body(): unknown {
    try {
      return JSON.parse(this.raw) as unknown;
    } catch {
      return undefined;
    }
  }

  at(path: string): unknown {
    return at(this.body, path);
  }

  text(path: string): string {
    const value = this.at(path);
    if (typeof value !== 'string') throw new Error(`no text at ${path} in ${this.status} ${this.raw.slice(0, 300)}`);
    return value;
  }

  number(path: string): number {
    const value = this.at(path);
    if (typeof value !== 'number') throw new Error(`no number at ${path} in ${this.status} ${this.raw.slice(0, 300)}`);
    return value;
  }

  list(path: string): Json[] {
    const value = this.at(path);
    if (!Array.isArray(value)) throw new Error(`no list at ${path} in ${this.status} ${this.raw.slice(0, 300)}`);
    return value as Json[];
  }

  /** Status and code, which is what most refusals are about: '400 validation'; a success is its status alone. */
  get outcome(): string {
    const code = this.at('error.code');
    return typeof code === 'string' ? `${this.status} ${code}` : String(this.status);
  }
}

/** The whole of an answer. */
export const replyOf = async (incoming: IncomingMessage): Promise<Reply> =>
  new Reply(incoming.statusCode ?? 0, incoming.headers, await textOf(incoming));

export interface Ask {
  readonly token?: string;
  readonly shape?: Shape;
  readonly headers?: Readonly<Record<string, string>>;
  /** An object goes out as JSON in the shape's spelling; text or bytes as they are. */
  readonly body?: unknown;
  readonly signal?: AbortSignal;
}

const REQUEST_MAX_MS = 60_000; // on a busy machine a queue of passwords takes half of it

/** Where a server is: its host name, and whether it speaks TLS. */
export interface Place {
  readonly host: string;
  readonly secure: boolean;
  /** The `Host` header, if it is not the address. */
  readonly as?: string;
}

const HERE: Place = { host: '127.0.0.1', secure: false };

/** This machine under another host name. */
export const named = (as: string): Place => ({ ...HERE, as });

/** One server's HTTP and socket address. Connections are kept and closed with `close`. */
export class Wire {
  private readonly agent: Agent;
  private readonly sockets = new Set<Socket>();

  constructor(
    readonly port: number,
    readonly place: Place = HERE,
  ) {
    this.agent = new (place.secure ? TlsAgent : Agent)({ keepAlive: true, maxSockets: 256 });
  }

  /** Sends a request; `path` is below /api unless it begins with `//`. */
  async ask(method: string, path: string, options: Ask = {}): Promise<Reply> {
    const { token, shape, body, signal } = options;
    const headers: Record<string, string> = this.place.as === undefined ? {} : { host: this.place.as };
    let content: Buffer | string | undefined;
    if (typeof body === 'string' || Buffer.isBuffer(body)) content = body;
    else if (body !== undefined) content = JSON.stringify(spelled(shape ?? 'a', body));
    if (content !== undefined) {
      headers['content-type'] = 'application/json';
      headers['content-length'] = String(Buffer.byteLength(content));
    }
    if (token !== undefined) headers['authorization'] = `Bearer ${token}`;
    if (shape !== undefined) headers['x-wire-shape'] = shape;
    Object.assign(headers, options.headers);
    const target = path.startsWith('//') ? path.slice(1) : `/api${path}`;
    return new Promise((resolve, reject) => {
      const { host, secure } = this.place;
      const outgoing = (secure ? httpsRequest : httpRequest)(
        { host, port: this.port, method, path: target, headers, agent: this.agent, signal },
        (incoming) => replyOf(incoming).then(resolve, reject),
      );
      outgoing.setTimeout(REQUEST_MAX_MS, () => outgoing.destroy(new Error(`no answer to ${method} ${target}`)));
      outgoing.on('error', (error: Error & { code?: string }) => {
        // A kept connection that the server closed for idleness in this very moment took nothing of the request.
        if (outgoing.reusedSocket && error.code === 'ECONNRESET') resolve(this.ask(method, path, options));
        else reject(error);
      });
      outgoing.end(content);
    });
  }

  async get(path: string, options: Ask = {}): Promise<Reply> {
    return this.ask('GET', path, options);
  }

  async post(path: string, body: unknown, options: Ask = {}): Promise<Reply> {
    return this.ask('POST', path, { ...options, body });
  }

  async patch(path: string, body: unknown, options: Ask = {}): Promise<Reply> {
    return this.ask('PATCH', path, { ...options, body });
  }

  async delete(path: string, options: Ask = {}): Promise<Reply> {
    return this.ask('DELETE', path, options);
  }

  /** Bytes straight to the port; answers all that came back until the server closed, or `whole` says it is enough. */
  async raw(bytes: string | Buffer, whole?: (text: string) => boolean, maxMs = REQUEST_MAX_MS): Promise<string> {
    return new Promise((resolve, reject) => {
      let text = '';
      const { host, secure } = this.place;
      const begin = (): void => void socket.write(bytes);
      const socket = secure
        ? tlsConnect({ port: this.port, host, servername: host }, begin)
        : tcpConnect(this.port, host, begin);
      const timer = setTimeout(() => {
        socket.destroy();
        reject(new Error(`neither answered nor closed: ${JSON.stringify(text.slice(0, 200))}`));
      }, maxMs);
      const done = (): void => {
        clearTimeout(timer);
        socket.destroy();
        resolve(text);
      };
      socket.setEncoding('latin1');
      socket.on('data', (chunk: string) => {
        text += chunk;
        if (whole?.(text) === true) done();
      });
      socket.on('close', done);
      socket.on('error', done);
    });
  }

  /** Opens a WebSocket. Resolves when it is open, rejects with `UpgradeRefused` when the upgrade was answered otherwise. */
  async connect(options: ConnectOptions): Promise<Socket> {
    const host: Record<string, string> = this.place.as === undefined ? {} : { host: this.place.as };
    const socket = new Socket(this.port, { ...options, headers: { ...host, ...options.headers } }, this.place);
    this.sockets.add(socket);
    void socket.closed.then(() => this.sockets.delete(socket));
    await socket.opened;
    return socket;
  }

  /** Ends what is still open. */
  close(): void {
    for (const socket of this.sockets) socket.terminate();
    this.agent.destroy();
  }
}

export interface ConnectOptions {
  readonly shape?: Shape;
  /** At most one is usual; several are for tests of which one wins. */
  readonly token?: string;
  readonly ticket?: string;
  readonly authorization?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** The upgrade was answered with a plain reply. */
export class UpgradeRefused extends Error {
  constructor(readonly reply: Reply) {
    super(`upgrade refused: ${reply.outcome}`, { cause: reply.raw });
  }
}

interface Closed {
  readonly code: number;
  readonly reason: string;
}

/** The connection of a refused upgrade must not stay behind in a pool. */
const NO_POOL = { plain: new Agent({ keepAlive: false }), secure: new TlsAgent({ keepAlive: false }) };
const FRAME_MAX_MS = 15_000;

/** One WebSocket. Frames queue up until a test takes them. */
export class Socket {
  /** Every frame that came, parsed, oldest first. */
  readonly frames: Json[] = [];
  readonly opened: Promise<void>;
  readonly closed: Promise<Closed>;
  readonly ws: WebSocket;
  private taken = 0;
  private readonly changed = new Notifier();
  private end: Closed | undefined;
  /** Why the connection broke, where it did. */
  private fault = '';

  constructor(port: number, options: ConnectOptions, { host, secure }: Place = HERE) {
    const query = new URLSearchParams();
    if (options.shape !== undefined) query.set('shape', options.shape);
    if (options.token !== undefined) query.set('token', options.token);
    if (options.ticket !== undefined) query.set('ticket', options.ticket);
    const headers: Record<string, string> = { ...options.headers };
    if (options.authorization !== undefined) headers['authorization'] = `Bearer ${options.authorization}`;
    const search = query.size === 0 ? '' : `?${query.toString()}`;
    this.ws = new WebSocket(`${secure ? 'wss' : 'ws'}://${host}:${port}/ws${search}`, {
      headers,
      perMessageDeflate: false,
      agent: secure ? NO_POOL.secure : NO_POOL.plain,
    });
    const since = Date.now();
    this.opened = new Promise((resolve, reject) => {
      this.ws.on('open', resolve);
      this.ws.on('error', (error) => {
        this.fault = error.message;
        reject(error);
      });
      // The library does not report the reset of an open connection.
      this.ws.on('upgrade', ({ socket }) => {
        socket.on('error', (error) => (this.fault = error.message));
        socket.on('end', () => (this.fault ||= `the server ended it ${Date.now() - since} ms after it was asked for`));
      });
      this.ws.on('unexpected-response', (outgoing, incoming) => {
        replyOf(incoming).then((reply) => {
          outgoing.destroy();
          reject(new UpgradeRefused(reply));
        }, reject);
      });
    });
    this.closed = new Promise((resolve) => {
      this.ws.on('close', (code, reason) => {
        this.end = { code, reason: reason.toString('utf8') };
        resolve(this.end);
        this.changed.notify();
      });
    });
    this.ws.on('message', (data: Buffer) => {
      this.frames.push(JSON.parse(data.toString('utf8')) as Json);
      this.changed.notify();
    });
  }

  /** An object goes out as it is; text and bytes as they are. */
  send(frame: Json | string | Buffer): void {
    this.ws.send(typeof frame === 'string' || Buffer.isBuffer(frame) ? frame : JSON.stringify(frame));
  }

  /**
   * The next frame that was not taken yet; with a `type` the next of that type, and the frames before it count as taken.
   * `ping` frames are skipped unless that type is given. Rejects when the socket closes or only pings come for `maxMs`.
   */
  async next(type?: string, maxMs = FRAME_MAX_MS): Promise<Json> {
    let until = Date.now() + maxMs;
    for (;;) {
      while (this.taken < this.frames.length) {
        const frame = this.frames[this.taken++];
        if (frame === undefined) break;
        if (frame['type'] !== 'ping') until = Date.now() + maxMs;
        if (type === undefined ? frame['type'] !== 'ping' : frame['type'] === type) return frame;
      }
      const seen = this.frames.slice(-8).map((frame) => String(frame['type']));
      const wanted = `${type ?? 'a frame'} (last came: ${seen.join(', ')})`;
      if (this.end !== undefined) throw new Error(`closed with ${this.end.code} ${this.fault} before ${wanted}`);
      await soon(this.changed.next(), wanted, Math.max(0, until - Date.now()));
    }
  }

  /** Says hello and answers the frames up to and with `caught_up`. */
  async hello(since = 0, more: Json = {}): Promise<Json[]> {
    const from = this.frames.length;
    this.send({ type: 'hello', since, ...more });
    await this.next('caught_up');
    return this.frames.slice(from, this.taken).filter((frame) => frame['type'] !== 'ping');
  }

  /** Frames of the given types, oldest first. */
  of(...types: readonly string[]): Json[] {
    return this.frames.filter((frame) => types.includes(String(frame['type'])));
  }

  /** Stops and starts reading: for slow readers. */
  pause(): void {
    this.ws.pause();
  }

  resume(): void {
    this.ws.resume();
  }

  /** Sends a close frame and waits for the server's. */
  async close(code = 1000): Promise<Closed> {
    this.ws.close(code);
    return this.closed;
  }

  /** Cuts the connection. */
  terminate(): void {
    this.ws.terminate();
  }
}
