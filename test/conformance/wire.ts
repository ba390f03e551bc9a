/**
 * The kit's calls: as any client makes them, but patient. A server with rates answers 429 in the middle of anything;
 * what is not about rates waits for as long as `Retry-After` says and asks again.
 */
import {
  spelled,
  UpgradeRefused,
  Wire,
  type Ask,
  type ConnectOptions,
  type Place,
  type Reply,
  type Socket,
} from '../support/wire.js';

/** A limit of the contract is a minute at most; a server that asks for more is not waited for. */
const WAIT_MAX_S = 90;
const PATIENCE = 12;
const SHOWN_MAX = 400;

const sent = new WeakMap<Reply, string>();

/** What a reply answers, for a reader of the report: line, shape, body. Tokens are not shown. */
export const sentFor = (reply: Reply): string => sent.get(reply) ?? '';

function shown(method: string, path: string, options: Ask): string {
  const { shape, token, body, headers } = options;
  const parts = [`${method} ${path.startsWith('//') ? path.slice(1) : `/api${path}`}`];
  if (shape !== undefined) parts.push(`shape ${shape}`);
  if (token !== undefined) parts.push('with a token');
  if (headers !== undefined) parts.push(JSON.stringify(headers));
  if (body !== undefined) {
    const text =
      typeof body === 'string' || Buffer.isBuffer(body) ? body.toString() : JSON.stringify(spelled(shape ?? 'a', body));
    parts.push(text.length > SHOWN_MAX ? `${text.slice(0, SHOWN_MAX)}... (${text.length} characters)` : text);
  }
  return parts.join(' ');
}

/** A server's address, asked at the pace that it allows. */
export class PacedWire extends Wire {
  /** Milliseconds waited for rates so far. */
  waited = 0;
  /** What was sent last, by request or frame. */
  last = '';

  constructor(
    port: number,
    place: Place,
    private readonly pause: (ms: number) => Promise<void>,
  ) {
    super(port, place);
  }

  override async ask(method: string, path: string, options: Ask = {}): Promise<Reply> {
    for (let turn = 1; ; turn++) {
      const reply = await this.once(method, path, options);
      if (reply.status !== 429 || turn === PATIENCE || !(await this.obey(reply))) return reply;
    }
  }

  /** Asks once: for checks of the rates themselves. */
  async once(method: string, path: string, options: Ask = {}): Promise<Reply> {
    const text = shown(method, path, options);
    this.last = text;
    const reply = await super.ask(method, path, options);
    sent.set(reply, text);
    return reply;
  }

  /** Opens a socket, or is refused, at once. */
  async connectOnce(options: ConnectOptions): Promise<Socket> {
    const shape = options.shape === undefined ? '' : `, shape ${options.shape}`;
    this.last = `GET /ws (upgrade${shape})`;
    const socket = await super.connect(options);
    const send = socket.send.bind(socket);
    socket.send = (frame) => {
      const text = typeof frame === 'string' || Buffer.isBuffer(frame) ? frame.toString() : JSON.stringify(frame);
      this.last = `frame ${text.slice(0, SHOWN_MAX)} (socket${shape})`;
      send(frame);
    };
    return socket;
  }

  override async connect(options: ConnectOptions): Promise<Socket> {
    for (let turn = 1; ; turn++) {
      try {
        return await this.connectOnce(options);
      } catch (error) {
        if (!(error instanceof UpgradeRefused)) throw error;
        sent.set(error.reply, `GET /ws (upgrade${options.shape === undefined ? '' : `, shape ${options.shape}`})`);
        if (error.reply.status !== 429 || turn === PATIENCE || !(await this.obey(error.reply))) throw error;
      }
    }
  }

  /** Waits as long as a 429 says; false where that is no sensible time. */
  private async obey(reply: Reply): Promise<boolean> {
    const seconds = Number(reply.headers['retry-after']);
    if (!(seconds > 0 && seconds <= WAIT_MAX_S)) return false;
    this.waited += seconds * 1_000;
    await this.pause(seconds * 1_000);
    return true;
  }
}
