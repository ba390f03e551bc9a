/** Bare connections and WebSockets against the front. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { WebSocket } from 'ws';
import { Notifier, soon } from './events.js';
import { answerOf, tokenOf, type HttpAnswer } from './front.js';
import type { WithTeardown } from './postgres.js';

/** A bare connection: bytes as they are. */
export class Raw {
  got = '';
  closed = false;
  protected readonly changed = new Notifier();

  constructor(readonly socket: Socket) {
    socket.setEncoding('latin1');
    socket.on('data', (chunk: string) => {
      this.got += chunk;
      this.changed.notify();
    });
    // A server that cuts a connection may show as a reset; `closed` is what tests look at.
    socket.on('error', () => undefined);
    socket.on('close', () => {
      this.closed = true;
      this.changed.notify();
    });
  }

  /** Resolves when `is` holds. Throws as `soon` does. */
  async until(is: () => boolean): Promise<void> {
    const what = (): string => `more of a reply; so far ${JSON.stringify(this.got.slice(0, 200))}`;
    await soon(this.changed.until(is), what);
  }

  /** The status of the first reply, once it and its whole body are here. */
  async status(): Promise<number> {
    await this.until(() => this.closed || wholeReply(this.got));
    return Number(/^HTTP\/1\.1 (\d{3})/.exec(this.got)?.[1] ?? 0);
  }
}

function wholeReply(text: string): boolean {
  const end = text.indexOf('\r\n\r\n');
  const length = Number(/content-length: (\d+)/i.exec(text.slice(0, end))?.[1] ?? 0);
  return end >= 0 && text.length >= end + 4 + length;
}

/** Opens a bare connection and sends `text`. */
export async function raw(t: WithTeardown, port: number, text: string): Promise<Raw> {
  const socket = connect(port, '127.0.0.1');
  t.teardown(() => socket.destroy());
  const connection = new Raw(socket);
  await once(socket, 'connect');
  socket.write(text);
  return connection;
}

/** A socket that keeps what it got. */
export class TestSocket {
  readonly frames: Record<string, unknown>[] = [];
  closeCode: number | undefined;
  closeReason = '';
  private readonly changed = new Notifier();

  constructor(readonly ws: WebSocket) {
    ws.on('message', (data: Buffer) => {
      this.frames.push(JSON.parse(data.toString()) as Record<string, unknown>);
      this.changed.notify();
    });
    ws.on('error', () => undefined);
    ws.on('close', (code, reason) => {
      this.closeCode = code;
      this.closeReason = reason.toString();
      this.changed.notify();
    });
  }

  /** Resolves when `is` holds. Throws as `soon` does. */
  async until(is: () => boolean): Promise<void> {
    const what = (): string => `more of a socket; so far ${this.frames.length} frames, close ${String(this.closeCode)}`;
    await soon(this.changed.until(is), what);
  }

  /** Resolves with the close code. */
  async closed(): Promise<number> {
    await this.until(() => this.closeCode !== undefined);
    return this.closeCode ?? 0;
  }

  /** Sends a frame and waits until the server has read it: a ping behind it is answered. */
  async say(frame: string | Buffer | object): Promise<void> {
    const pongs = this.pongs;
    this.ws.send(typeof frame === 'string' || Buffer.isBuffer(frame) ? frame : JSON.stringify(frame));
    this.ws.send('{"type":"ping"}');
    await this.until(() => this.pongs > pongs || this.closeCode !== undefined);
  }

  get pongs(): number {
    return this.frames.filter((frame) => frame['type'] === 'pong').length;
  }
}

interface SocketAsk {
  readonly query?: string;
  readonly headers?: Record<string, string>;
}

const withToken = (): string => `?token=${tokenOf()}`;

/** Opens a socket, or resolves with the refusal. */
export async function openSocket(
  t: WithTeardown,
  port: number,
  options: SocketAsk = {},
): Promise<TestSocket | HttpAnswer> {
  const ws = new WebSocket(`ws://127.0.0.1:${port}/ws${options.query ?? withToken()}`, {
    headers: options.headers ?? {},
  });
  t.teardown(() => ws.terminate());
  const socket = new TestSocket(ws);
  const opened = new Promise<TestSocket | HttpAnswer>((resolve, reject) => {
    ws.once('open', () => resolve(socket));
    ws.once('unexpected-response', (_, reply) => answerOf(reply).then(resolve, reject));
  });
  return soon(opened, 'a socket, or its refusal');
}

/** Opens a socket that has to open. */
export async function socketOf(t: WithTeardown, port: number, options: SocketAsk = {}): Promise<TestSocket> {
  const opened = await openSocket(t, port, options);
  if (opened instanceof TestSocket) return opened;
  throw new Error(`no socket: ${opened.status} ${opened.text}`);
}

/** Opens a socket that has to be refused. */
export async function refusedSocket(t: WithTeardown, port: number, options: SocketAsk = {}): Promise<HttpAnswer> {
  const opened = await openSocket(t, port, options);
  if (opened instanceof TestSocket) throw new Error('the socket was opened');
  return opened;
}
