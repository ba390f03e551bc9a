/** One HTTP keep-alive connection with one request at a time: a minimal client, to keep its cost in Node low. */
import { connect, type Socket } from 'node:net';

export interface Answer {
  readonly status: number;
  readonly body: Buffer;
}

export interface Ask {
  readonly method: string;
  readonly path: string;
  readonly host: string;
  /** Header lines, each with its line end. */
  readonly headers?: string;
  readonly body?: string | Buffer;
}

interface Waiting {
  resolve(answer: Answer): void;
  reject(error: Error): void;
}

const HEAD_END = '\r\n\r\n';

export class Connection {
  private readonly socket: Socket;
  private parts: Buffer[] = [];
  private have = 0;
  /** Bytes of the whole answer, once its head has arrived. */
  private whole: number | undefined;
  private waiting: Waiting | undefined;

  constructor(port: number) {
    this.socket = connect({ port, host: '127.0.0.1', noDelay: true });
    this.socket.on('data', (part) => this.heard(part));
    this.socket.on('error', (error) => this.lost(error));
    this.socket.on('close', () => this.lost(new Error('a connection was lost')));
  }

  /** Rejects if the connection is lost before the answer. */
  ask({ method, path, host, headers = '', body = '' }: Ask): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (this.waiting !== undefined) throw new Error('a request is under way');
      this.waiting = { resolve, reject };
      const said = body.length === 0 || /^content-length:/im.test(headers);
      const length = said ? '' : `Content-Length: ${Buffer.byteLength(body)}\r\n`;
      const head = `${method} ${path} HTTP/1.1\r\nHost: ${host}\r\n${headers}${length}\r\n`;
      if (typeof body === 'string') {
        this.socket.write(head + body, 'latin1');
      } else {
        this.socket.cork();
        this.socket.write(head, 'latin1');
        this.socket.write(body);
        this.socket.uncork();
      }
    });
  }

  close(): void {
    this.socket.destroy();
  }

  private lost(error: Error): void {
    this.waiting?.reject(error);
    this.waiting = undefined;
  }

  private heard(part: Buffer): void {
    this.parts.push(part);
    this.have += part.length;
    if (this.whole === undefined) this.readHead();
    if (this.whole === undefined || this.have < this.whole) return;
    const all = this.joined();
    const answer = { status: Number(all.toString('latin1', 9, 12)), body: all.subarray(all.indexOf(HEAD_END) + 4) };
    const { waiting } = this;
    this.parts = [];
    this.have = 0;
    this.whole = undefined;
    this.waiting = undefined;
    waiting?.resolve(answer);
  }

  private readHead(): void {
    const all = this.joined();
    const end = all.indexOf(HEAD_END);
    if (end < 0) return;
    const length = /\r\ncontent-length: *(\d+)/i.exec(all.toString('latin1', 0, end))?.[1];
    if (length === undefined) throw new Error('an answer without a length');
    this.whole = end + HEAD_END.length + Number(length);
  }

  private joined(): Buffer {
    const [only] = this.parts;
    if (only !== undefined && this.parts.length === 1) return only;
    const all = Buffer.concat(this.parts);
    this.parts = [all];
    return all;
  }
}
