/**
 * The kit's calls: those of any client, with waiting. A server with rates may answer 429 at any time; unless a check is
 * about rates, the kit then waits as long as `Retry-After` says and sends the request again.
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

/** The contract's limits last a minute at most: the kit does not wait where a server demands much more. */
const WAIT_MAX_S = 90;
const PATIENCE = 12;
const SHOWN_MAX = 400;

const sent = new WeakMap<Reply, string>();

/** The request of a reply, for the report: method, path, shape, headers, body. The call's token is not shown. */
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

/** A server, called at the pace that it allows. */
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

  /** Sends a request once, without waiting: for checks of the rates themselves. */
  async once(method: string, path: string, options: Ask = {}): Promise<Reply> {
    const text = shown(method, path, options);
    this.last = text;
    const reply = await super.ask(method, path, options);
    sent.set(reply, text);
    return reply;
  }

  /** Opens a socket, without waiting where the rate refuses it. */
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

  /** Waits as long as a 429 says; false where it names no time, or more than `WAIT_MAX_S`. */
  private async obey(reply: Reply): Promise<boolean> {
    const seconds = Number(reply.headers['retry-after']);
    if (!(seconds > 0 && seconds <= WAIT_MAX_S)) return false;
    this.waited += seconds * 1_000;
    await this.pause(seconds * 1_000);
    return true;
  }
}
