/** A WebSocket client over bare TCP that can stop reading, and keeps of each frame only what a test asks for. */
import { createHash, randomBytes } from 'node:crypto';
import { connect, type Socket as TcpSocket } from 'node:net';
import { Notifier, soon, SOON_MS } from './events.js';
import { changesOf, type Seen } from './stream.js';
import type { Json } from './wire.js';

/** Magic of RFC 6455, section 1.3. */
const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
const TEXT = 1;
const CLOSE = 8;

interface SlowOptions {
  readonly port: number;
  readonly token: string;
  /** As the client names the server; its address by default. */
  readonly host?: string;
}

/** One frame, without its payload fields. */
export type Summary = Omit<Seen, 'frame' | 'kind'> & { readonly type: string };

export class SlowSocket {
  /** What came, oldest first; for frames that are no change, version is theirs or 0. */
  readonly summaries: Summary[] = [];
  /** The last `caught_up`. */
  caughtUp: Json | undefined;
  closedWith: number | undefined;
  private pending = Buffer.alloc(0);
  private chunks: Buffer[] = [];
  private chunkBytes = 0;
  private wanted = 2;
  private readonly changed = new Notifier();
  /** When the last frame came that was no heartbeat: those come for ever. */
  private lastCame = Date.now();

  private constructor(private readonly tcp: TcpSocket) {
    tcp.on('close', () => {
      this.closedWith ??= 1006;
      this.changed.notify();
    });
    tcp.on('error', () => undefined);
  }

  static async open({ port, token, host = '127.0.0.1' }: SlowOptions): Promise<SlowSocket> {
    const tcp = connect(port, '127.0.0.1');
    const key = randomBytes(16).toString('base64');
    const upgraded = new Promise<Buffer>((resolve, reject) => {
      let got = Buffer.alloc(0);
      const take = (chunk: Buffer): void => {
        got = Buffer.concat([got, chunk]);
        if (!got.includes('\r\n\r\n')) return;
        tcp.off('data', take);
        resolve(got);
      };
      tcp.on('data', take);
      tcp.once('error', reject);
      tcp.once('close', () => reject(new Error('closed before its upgrade was answered')));
      tcp.write(
        `GET /ws?shape=a HTTP/1.1\r\nhost: ${host}\r\nauthorization: Bearer ${token}\r\nupgrade: websocket\r\n` +
          `connection: Upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: ${key}\r\n\r\n`,
      );
    });
    const head = await soon(upgraded, 'the answer to an upgrade');
    const end = head.indexOf('\r\n\r\n') + 4;
    const accept = createHash('sha1')
      .update(key + GUID)
      .digest('base64');
    if (!head.subarray(0, end).includes(accept)) throw new Error(`no upgrade: ${head.toString('latin1')}`);
    const socket = new SlowSocket(tcp);
    tcp.on('data', (chunk: Buffer) => socket.take(chunk));
    socket.take(head.subarray(end));
    return socket;
  }

  /** A masked text frame, under 64 KiB. */
  send(frame: Json | string): void {
    const payload = Buffer.from(typeof frame === 'string' ? frame : JSON.stringify(frame));
    const mask = randomBytes(4);
    const head = payload.length < 126 ? Buffer.from([0x81, 0x80 | payload.length]) : Buffer.alloc(4);
    if (payload.length >= 126) head.writeUInt32BE(0x81fe_0000 + payload.length, 0);
    this.sendRaw(Buffer.concat([head, mask, payload.map((byte, at) => byte ^ (mask[at % 4] ?? 0))]));
  }

  /** Bytes as they are. */
  sendRaw(bytes: Uint8Array): void {
    this.tcp.write(bytes);
  }

  /** Leaves everything in the kernel from now on, and so at last in the server's hands. */
  stopReading(): void {
    this.tcp.pause();
  }

  readAgain(): void {
    this.tcp.resume();
  }

  close(): void {
    this.tcp.destroy();
  }

  /** Waits until it holds; rejects when the socket closes or only heartbeats come for long. */
  async until(holds: (socket: this) => boolean): Promise<void> {
    const from = Date.now();
    while (!holds(this)) {
      if (this.closedWith !== undefined) throw new Error(`closed with ${this.closedWith}`);
      const left = Math.max(from, this.lastCame) + SOON_MS - Date.now();
      await soon(this.changed.next(), () => `anything after ${this.came()}`, Math.max(0, left));
    }
  }

  private came(): string {
    const { summaries, caughtUp, chunkBytes, pending, wanted } = this;
    const last = summaries.filter(({ type }) => type !== 'ping').at(-1);
    const counts = `${summaries.length} frames, the last ${last?.type ?? 'none'} of version ${last?.version ?? 0}`;
    const begun = `${pending.length + chunkBytes} of ${wanted} bytes of another`;
    return `${counts}, ${caughtUp === undefined ? 'not ' : ''}caught up; ${begun}`;
  }

  private take(chunk: Buffer): void {
    // Chunks are put together only when a whole frame is there: frames here are many times larger than chunks.
    this.chunks.push(chunk);
    this.chunkBytes += chunk.length;
    if (this.pending.length + this.chunkBytes < this.wanted) return;
    this.pending = Buffer.concat([this.pending, ...this.chunks]);
    this.chunks = [];
    this.chunkBytes = 0;
    let came = false;
    for (let size = this.frameSize(); size > 0; size = this.frameSize()) came = true;
    if (came) this.changed.notify();
  }

  /** Handles the frame at the front; 0 when it is not whole yet. */
  private frameSize(): number {
    const { pending } = this;
    if (pending.length < 2) return this.want(2);
    const short = (pending[1] ?? 0) & 0x7f;
    const headSize = short === 126 ? 4 : short === 127 ? 10 : 2;
    if (pending.length < headSize) return this.want(headSize);
    const length = short === 126 ? pending.readUInt16BE(2) : short === 127 ? Number(pending.readBigUInt64BE(2)) : short;
    const size = headSize + length;
    if (pending.length < size) return this.want(size);
    this.handle((pending[0] ?? 0) & 0x0f, pending.subarray(headSize, size));
    this.pending = pending.subarray(size);
    this.wanted = 2;
    return size;
  }

  private want(bytes: number): 0 {
    this.wanted = bytes;
    return 0;
  }

  private handle(opcode: number, payload: Buffer): void {
    if (opcode === CLOSE) this.closedWith = payload.length >= 2 ? payload.readUInt16BE(0) : 1005;
    if (opcode !== TEXT) return;
    const frame = JSON.parse(payload.toString('utf8')) as Json;
    if (frame['type'] === 'caught_up') this.caughtUp = frame;
    const [change] = changesOf([frame]);
    const type = String(frame['type']);
    if (type !== 'ping') this.lastCame = Date.now();
    this.summaries.push({ type, id: change?.id ?? '', version: change?.version ?? Number(frame['version'] ?? 0) });
  }
}
