/** A server that breaks one rule: a proxy before a good one, which alters answers and frames. */
import { request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { text as textOf } from 'node:stream/consumers';
import { WebSocket, WebSocketServer } from 'ws';
import { LoopbackServer } from './loopback-server.js';
import type { WithTeardown } from './postgres.js';

type Json = Record<string, unknown>;

/** One call that went through, and its good answer. */
interface Passing {
  readonly method: string;
  /** With the query. */
  readonly path: string;
  readonly token: string | undefined;
  readonly status: number;
  /** Parsed; undefined where it is no object. */
  readonly body: Json | undefined;
}

/** What of the truth is told otherwise; each part is left out where it is told as it is. */
export interface Mutation {
  answer?(call: Passing, mutant: Mutant): { readonly status?: number; readonly body?: Json } | undefined;
  /** The frames that a client gets instead of this one. */
  frame?(frame: Json): readonly Json[];
  /** The code that a client's socket is closed with. */
  close?(code: number): number;
  /** The path and query of an upgrade, as the good server gets them. */
  upgrade?(path: string): string;
}

const HOP = new Set(['connection', 'keep-alive', 'transfer-encoding', 'content-length']);

export class Mutant extends LoopbackServer {
  mutation: Mutation = {};
  private readonly clients = new Set<WebSocket>();
  private readonly upgrades = new WebSocketServer({ noServer: true, perMessageDeflate: false, maxPayload: 1 << 24 });

  private constructor(private readonly target: number) {
    super();
    this.server.on('upgrade', (request, socket, head) => this.open(request, socket, head));
  }

  /** Before the server on this port of this machine, closed after the test. */
  static before(t: WithTeardown, target: number): Promise<Mutant> {
    return new Mutant(target).listenFor(t);
  }

  override async stop(): Promise<void> {
    for (const client of this.clients) client.terminate();
    await super.stop();
  }

  /** A frame to every open socket, out of the blue. */
  push(frame: Json): void {
    for (const client of this.clients) client.send(JSON.stringify(frame));
  }

  protected take(request: IncomingMessage, response: ServerResponse): void {
    const { method = 'GET', url: path = '/', headers } = request;
    const outgoing = httpRequest({ host: '127.0.0.1', port: this.target, method, path, headers }, (truth) => {
      const told = (text: string): void => {
        const call = {
          method,
          path,
          token: headers.authorization,
          status: truth.statusCode ?? 0,
          body: objectOf(text),
        };
        const { status = call.status, body } = this.mutation.answer?.(call, this) ?? {};
        const kept = Object.entries(truth.headers).filter(([name]) => !HOP.has(name));
        response.writeHead(status, Object.fromEntries(kept) as Record<string, string>);
        response.end(body === undefined ? text : JSON.stringify(body));
      };
      textOf(truth).then(told, () => response.destroy());
    });
    outgoing.on('error', () => response.destroy());
    request.on('error', () => outgoing.destroy());
    response.on('close', () => outgoing.destroy());
    request.pipe(outgoing);
  }

  /** The good server decides first: a refusal goes to the client as it is. */
  private open(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    const path = this.mutation.upgrade?.(request.url ?? '/') ?? request.url ?? '/';
    const authorization = request.headers.authorization;
    const behind = new WebSocket(`ws://127.0.0.1:${this.target}${path}`, {
      headers: authorization === undefined ? {} : { authorization },
      perMessageDeflate: false,
    });
    const early: string[] = [];
    let send = (text: string): void => void early.push(text);
    behind.on('error', () => socket.destroy());
    behind.on('unexpected-response', (_, truth) => {
      const refused = (text: string): void => {
        const head = `HTTP/1.1 ${truth.statusCode ?? 500} Refused\r\nContent-Type: application/json\r\nConnection: close`;
        socket.end(`${head}\r\nContent-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
      };
      textOf(truth).then(refused, () => socket.destroy());
    });
    behind.on('message', (data: Buffer) => send(data.toString('utf8')));
    behind.on('open', () => {
      this.upgrades.handleUpgrade(request, socket, head, (client) => {
        send = (text) => this.tell(client, text);
        early.forEach(send);
        this.join(client, behind);
      });
    });
  }

  private tell(client: WebSocket, text: string): void {
    const frames = this.mutation.frame?.(JSON.parse(text) as Json);
    if (frames === undefined) client.send(text);
    else for (const frame of frames) client.send(JSON.stringify(frame));
  }

  private join(client: WebSocket, behind: WebSocket): void {
    this.clients.add(client);
    client.on('message', (data: Buffer, binary) => behind.send(data, { binary }));
    behind.on('close', (code, reason) => {
      const told = this.mutation.close?.(code) ?? code;
      if (told === 1005 || told === 1006) client.terminate();
      else client.close(told, reason);
    });
    client.on('error', () => behind.terminate());
    client.on('close', () => {
      this.clients.delete(client);
      behind.close();
    });
  }
}

function objectOf(text: string): Json | undefined {
  try {
    const value = JSON.parse(text) as unknown;
    return value !== null && typeof value === 'object' && !Array.isArray(value) ? (value as Json) : undefined;
  } catch {
    return undefined;
  }
}
