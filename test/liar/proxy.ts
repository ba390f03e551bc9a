/**
 * A lying server: a proxy in front of the real one, whose hooks decide what is answered instead of the truth. It
 * records everything that a client sends, requests and frames alike, so that a test can search it for secrets.
 */
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { WebSocket, WebSocketServer } from 'ws';
import { openFor } from '../support/loopback-server.js';
import type { WithTeardown } from '../support/postgres.js';
import { formsOf } from './secrets.js';

export type Json = Record<string, unknown>;

export interface LiedCall {
  readonly method: string;
  /** Below /api, with the query; without the epoch of a change. */
  readonly path: string;
  readonly body: Json;
}

/** An answer of the liar's own, without a request to the real server. */
export interface RawReply {
  /** Default: 200. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Buffer;
  /** True: the response is never ended. */
  readonly endless?: boolean;
}

/** What the liar does; each hook passes on the truth until a lie sets it. */
export interface Hooks {
  /** The client's answer instead of this 2xx answer; undefined: the truth. */
  answer: (call: LiedCall, truth: Json) => Json | undefined;
  /** The body that the server gets instead of this one; undefined: the truth. */
  tell: (call: LiedCall) => Json | undefined;
  /** The client's answer without a request to the server; undefined: the truth. */
  raw: (call: LiedCall) => RawReply | undefined;
  /** The frames that the client gets instead of this one: none, one or several; a string is sent as it is. */
  frame: (truth: Json) => readonly (Json | string)[];
}

const TRUTH: Hooks = {
  answer: () => undefined,
  tell: () => undefined,
  raw: () => undefined,
  frame: (truth) => [truth],
};

interface Answered {
  readonly status: number;
  readonly text: string;
  readonly headers: Record<string, string>;
}

export class Liar implements Hooks {
  answer = TRUTH.answer;
  tell = TRUTH.tell;
  raw = TRUTH.raw;
  frame = TRUTH.frame;
  /** Everything the client sent: request lines, headers, bodies, frames. */
  readonly heard: string[] = [];
  readonly calls: LiedCall[] = [];
  /** Frames as the server sent them. */
  readonly frames: Json[] = [];
  /** Paths and queries of the sockets that were opened. */
  readonly upgrades: string[] = [];
  private readonly clients = new Set<WebSocket>();
  private readonly sockets = new Set<WebSocket>();

  private constructor(
    private readonly target: number,
    readonly url: string,
  ) {}

  /** A proxy in front of the server on this port, closed after the test. */
  static async before(t: WithTeardown, target: number): Promise<Liar> {
    const server = createServer();
    const liar = new Liar(target, `http://127.0.0.1:${await openFor(t, server)}`);
    const upgrading = new WebSocketServer({ noServer: true, perMessageDeflate: false });
    server.on('request', (request, response) => {
      liar.relay(request, response).catch(() => response.destroy());
    });
    server.on('upgrade', (request, socket, head) => {
      upgrading.handleUpgrade(request, socket, head, (client) => liar.relaySocket(client, request));
    });
    t.teardown(() => liar.cut());
    return liar;
  }

  /** Passes on the truth from now on. */
  honest(): void {
    Object.assign(this, TRUTH);
  }

  /** True if anything that the client sent contains this secret in any of its forms. */
  leaked(secret: Uint8Array | string): boolean {
    const forms = formsOf(secret);
    return this.heard.some((text) => forms.some((form) => text.includes(form)));
  }

  /** The ids of all devices that the client sealed a key for. */
  sealedFor(): readonly string[] {
    const written = this.calls.flatMap(({ path, body }) =>
      path === '/items' ? [body] : path === '/items/batch' ? (body['items'] as Json[]) : [],
    );
    const ids = written.flatMap(({ payloadEnc, blobKeys }) => [
      ...Object.keys(((payloadEnc ?? {}) as Json)['keys'] ?? {}),
      ...Object.keys(blobKeys ?? {}),
    ]);
    return [...new Set(ids)];
  }

  /** Sends frames of the liar's own to every connected client. */
  say(...frames: readonly (Json | string)[]): void {
    for (const client of this.clients) {
      for (const frame of frames) client.send(typeof frame === 'string' ? frame : JSON.stringify(frame));
    }
  }

  /** Cuts every socket; the clients reconnect on their own. */
  cut(): void {
    for (const socket of this.sockets) socket.terminate();
  }

  private async relay(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const bytes = await buffer(request);
    const { method = '', url = '' } = request;
    // Signed URLs are outside /api, and their bodies are bytes, not JSON.
    const signed = url.startsWith('/blobs/');
    const content = bytes.toString(signed ? 'latin1' : 'utf8');
    this.heard.push(`${method} ${url}`, JSON.stringify(request.headers), content);
    const call = {
      method,
      path: signed ? url : pathOf(method, url),
      body: signed || content === '' ? {} : (JSON.parse(content) as Json),
    };
    this.calls.push(call);
    const raw = this.raw(call);
    if (raw !== undefined) {
      response.writeHead(raw.status ?? 200, { 'content-type': 'application/json', ...raw.headers });
      if (raw.endless === true) response.write(raw.body ?? '{');
      else response.end(raw.body ?? '{}');
      return;
    }
    if (signed) {
      await this.passOn({ method, url, headers: request.headers, sent: bytes }, response);
      return;
    }
    const told = this.tell(call);
    const sent = told === undefined ? content : JSON.stringify(told);
    const headers = { ...request.headers, 'content-length': String(Buffer.byteLength(sent)) };
    const { status, text, headers: answered } = await this.forward({ method, url, headers, sent });
    const ok = status >= 200 && status < 300;
    const lie = ok ? this.answer(call, JSON.parse(text) as Json) : undefined;
    response.writeHead(status, answered).end(lie === undefined ? text : JSON.stringify(lie));
  }

  /** Passes a request to the server and its answer back, byte for byte. */
  private async passOn(
    call: { method: string; url: string; headers: IncomingMessage['headers']; sent: Buffer },
    response: ServerResponse,
  ): Promise<void> {
    const { method, url: path, headers, sent } = call;
    await new Promise<void>((resolve, reject) => {
      const outgoing = httpRequest({ host: '127.0.0.1', port: this.target, method, path, headers }, (incoming) => {
        response.writeHead(incoming.statusCode ?? 502, incoming.headers);
        incoming.pipe(response).on('finish', resolve).on('error', reject);
      });
      outgoing.on('error', reject);
      outgoing.end(sent);
    });
  }

  private async forward(call: {
    method: string;
    url: string;
    headers: IncomingMessage['headers'];
    sent: string;
  }): Promise<Answered> {
    return new Promise((resolve, reject) => {
      const { method, url: path, headers, sent } = call;
      const outgoing = httpRequest({ host: '127.0.0.1', port: this.target, method, path, headers }, (incoming) => {
        const chunks: Buffer[] = [];
        incoming.on('data', (chunk: Buffer) => chunks.push(chunk));
        incoming.on('end', () => {
          const retry = incoming.headers['retry-after'];
          const kept = { 'content-type': 'application/json', ...(retry === undefined ? {} : { 'retry-after': retry }) };
          resolve({ status: incoming.statusCode ?? 502, text: Buffer.concat(chunks).toString('utf8'), headers: kept });
        });
      });
      outgoing.on('error', reject);
      outgoing.end(sent);
    });
  }

  private relaySocket(client: WebSocket, request: IncomingMessage): void {
    const url = request.url ?? '';
    this.upgrades.push(url);
    this.heard.push(url, JSON.stringify(request.headers));
    const { authorization } = request.headers;
    const server = new WebSocket(`ws://127.0.0.1:${this.target}${url}`, {
      headers: authorization === undefined ? {} : { authorization },
      perMessageDeflate: false,
    });
    const waiting: string[] = [];
    this.sockets.add(client).add(server);
    this.clients.add(client);
    client.on('message', (data: Buffer) => {
      const text = data.toString('utf8');
      this.heard.push(text);
      if (server.readyState === WebSocket.OPEN) server.send(text);
      else waiting.push(text);
    });
    server.on('open', () => {
      for (const text of waiting) server.send(text);
    });
    server.on('message', (data: Buffer) => {
      const truth = JSON.parse(data.toString('utf8')) as Json;
      this.frames.push(truth);
      for (const frame of this.frame(truth)) client.send(typeof frame === 'string' ? frame : JSON.stringify(frame));
    });
    const end = (code: number): void => {
      this.sockets.delete(client);
      this.clients.delete(client);
      this.sockets.delete(server);
      if (code >= 3000 || code === 1000 || code === 1012 || code === 1013) client.close(code);
      else client.terminate();
      server.terminate();
    };
    server.on('error', () => end(1006));
    client.on('error', () => end(1006));
    server.on('close', end);
    client.on('close', () => end(1006));
  }
}

/**
 * The path below `/api` by which lies recognise a call. Only that of a listing has its query, which lies read: any other
 * query names the shape or the epoch, and does not change what the call is.
 */
function pathOf(method: string, url: string): string {
  const [path = '', query = ''] = url.replace(/^\/api/, '').split('?');
  return method === 'GET' && path === '/items' ? `${path}?${query}` : path;
}

/** Replaces the rows of a listing. */
export const rows = (truth: Json, change: (rows: readonly Json[]) => readonly Json[]): Json => ({
  ...truth,
  items: change(truth['items'] as Json[]),
});

export const base64url = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64url');
