/** An HTTP/1.1 client on one connection that it keeps for as long as the server does, and that tells what was not answered. */
import { connect } from 'node:net';
import { once } from 'node:events';
import { Raw } from './front-sockets.js';

/** An answer as it stood on the wire. */
export interface RawAnswer {
  readonly status: number;
  readonly retryAfter: string | undefined;
  readonly body: string;
  /** The server will close the connection. */
  readonly last: boolean;
}

export interface RawRequest {
  readonly token: string;
  readonly path: string;
  /** Left out: a GET; else a POST of this as JSON. */
  readonly body?: unknown;
}

const HEAD_END = '\r\n\r\n';

export class KeepAlive extends Raw {
  static async open(port: number): Promise<KeepAlive> {
    const socket = connect(port, '127.0.0.1');
    await once(socket, 'connect');
    return new KeepAlive(socket);
  }

  /** Undefined where the connection closed without a whole answer. */
  async ask({ token, path, body }: RawRequest): Promise<RawAnswer | undefined> {
    const content = body === undefined ? '' : JSON.stringify(body);
    const head = [
      `${body === undefined ? 'GET' : 'POST'} /api${path} HTTP/1.1`,
      'Host: localhost',
      `Authorization: Bearer ${token}`,
      ...(body === undefined
        ? []
        : ['Content-Type: application/json', `Content-Length: ${Buffer.byteLength(content)}`]),
    ].join('\r\n');
    this.socket.write(head + HEAD_END + content);
    for (;;) {
      const answer = this.take();
      if (answer !== undefined) return answer;
      if (this.closed) return undefined;
      await this.changed.next();
    }
  }

  private take(): RawAnswer | undefined {
    const end = this.got.indexOf(HEAD_END);
    if (end === -1) return undefined;
    const head = this.got.slice(0, end);
    const length = Number(/^content-length: *(\d+)$/im.exec(head)?.[1] ?? 0);
    const from = end + HEAD_END.length;
    if (this.got.length < from + length) return undefined;
    const body = this.got.slice(from, from + length);
    this.got = this.got.slice(from + length);
    const retryAfter = /^retry-after: *(.+)$/im.exec(head)?.[1];
    return { status: Number(head.split(' ')[1]), retryAfter, body, last: /^connection: *close$/im.test(head) };
  }

  end(): void {
    this.socket.destroy();
  }
}
