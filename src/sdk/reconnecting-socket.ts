/**
 * The device's line to the server (the reference, Sockets): ticket, connection, `hello`, heartbeat, and all over again when it
 * breaks. It hands frames on in order and knows nothing of items; where to start from is asked anew for each `hello`.
 */
import { asError } from '../protocol/error-code.js';
import type { Timer } from '../protocol/clock.js';
import { CLOSE } from '../protocol/close-codes.js';
import { backoffMs, type OpenSocket, RECONNECT, RETRY_AFTER_MAX_MS } from './platform.js';
import type { Cursor } from './store/store.js';
import type { Core } from './core.js';
import { isRevoked, ProtocolError, retryAfterMs } from './errors.js';
import type { LineState } from './events.js';
import { readFrame, type Frame } from './wire.js';

/** The server pings every 30 s by default; after two that did not come, it is asked, then given up. */
const ASK_AFTER_MS = 65_000;
const GIVE_UP_AFTER_MS = 90_000;
const LOOK_EVERY_MS = 5_000;
/** A connection that was not open by then never will be. */
const OPEN_WITHIN_MS = 20_000;
/** An overloaded server is left alone for longer: the wait starts as if so many attempts had failed. */
const OVERLOADED_ATTEMPTS = 3;
/** A server that restarts loses all its devices at one moment: they come back over so long a time, ms. */
const RESTART_SPREAD_MS = 3_000;
/** More frames than a socket may send: it is this side that has to slow down, as for an overloaded server. */
const TOO_MANY_FRAMES = 4429;
/**
 * When a connection has proved good, and the next failure begins with a short wait: so long after it brought everything,
 * or when it is alive for so long, ms. A server that lets everybody in and closes at once proves nothing.
 */
const GOOD_AFTER_CAUGHT_UP_MS = 10_000;
const GOOD_AFTER_MS = 60_000;

/** What the line needs, and whom it tells. */
export interface LineOptions extends Pick<Core, 'baseUrl' | 'sockets' | 'clock' | 'random' | 'onProblem'> {
  /** A ticket for one connection: the token never stands in a URL. */
  readonly ticket: () => Promise<string>;
  /** Gets a new token, after the server closed because the old one ran out. */
  readonly renew: () => Promise<void>;
  /** The cursor to say `hello` with. Asked after all frames of the last connection were handled. */
  readonly cursor: () => Promise<Cursor>;
  /** `size`: characters of its text. */
  readonly onFrame: (frame: Frame, size: number) => void;
  readonly onState: (state: LineState) => void;
  readonly onRevoked: () => void;
}

/** One connection's life; what belongs to an older one is recognised by identity and ignored. */
interface Connection {
  socket: OpenSocket | null;
  /** When it opened, and when it had brought everything; null: not yet. */
  openedAt: number | null;
  caughtUpAt: number | null;
  heardAt: number;
  asked: boolean;
}

/** How a connection ended. `retryAfter`: seconds that the refusal of an upgrade named. */
interface Closed {
  readonly code: number;
  readonly reason: string;
  readonly retryAfter?: number;
}

/** Keeps one connection up from `start` until `stop` or revocation. */
export class ReconnectingSocket {
  private current: Connection | undefined;
  private timer: Timer | undefined;
  private attempt = 0;
  private running = false;
  private renewFirst = false;
  private reading = true;

  constructor(private readonly options: LineOptions) {}

  start(): void {
    if (this.running) return;
    this.running = true;
    this.connect();
  }

  /** Closes for good. No frame is handed on after this. */
  stop(): void {
    if (!this.running) return;
    this.running = false;
    this.drop(1000, 'client closed');
    this.options.onState({ state: 'closed' });
  }

  /** The connection has brought everything up to the head. */
  settled(): void {
    if (this.current !== undefined) this.current.caughtUpAt ??= this.options.clock.now();
  }

  /** Breaks the connection and makes another after the usual wait. */
  restart(reason: string): void {
    if (!this.running || this.current === undefined) return;
    this.drop(1000, 'starting anew');
    this.again(reason);
  }

  /** Reads on, or stops reading for a while so that frames do not pile up here. */
  flow(reading: boolean): void {
    if (reading === this.reading) return;
    this.reading = reading;
    const connection = this.current;
    if (reading) connection?.socket?.resume?.();
    else connection?.socket?.pause?.();
    // Who does not read hears nothing: that silence is not the server's.
    if (connection !== undefined) connection.heardAt = this.options.clock.now();
  }

  private connect(): void {
    const now = this.options.clock.now();
    const connection: Connection = { socket: null, openedAt: null, caughtUpAt: null, heardAt: now, asked: false };
    this.current = connection;
    this.options.onState({ state: 'connecting' });
    this.open(connection).catch((error: unknown) => this.failed(connection, error));
  }

  private async open(connection: Connection): Promise<void> {
    if (this.renewFirst) {
      await this.options.renew();
      this.renewFirst = false;
    }
    const ticket = await this.options.ticket();
    if (this.current !== connection) return;
    const url = `${this.options.baseUrl.replace(/^http/, 'ws')}/ws?shape=a&ticket=${encodeURIComponent(ticket)}`;
    connection.heardAt = this.options.clock.now();
    connection.socket = this.options.sockets.open(url, {
      opened: () => this.opened(connection),
      message: (text) => this.message(connection, text),
      closed: (code, reason, retryAfter) => this.closed(connection, { code, reason, retryAfter }),
    });
    this.look(connection);
  }

  private opened(connection: Connection): void {
    if (this.current !== connection) return;
    connection.openedAt = this.options.clock.now();
    connection.heardAt = connection.openedAt;
    if (!this.reading) connection.socket?.pause?.();
    this.hello(connection);
  }

  private hello(connection: Connection): void {
    this.options
      .cursor()
      .then(({ since, epoch }) => {
        if (this.current !== connection) return;
        connection.socket?.send(JSON.stringify({ type: 'hello', since, epoch, acks: true }));
        this.options.onState({ state: 'connected' });
      })
      .catch((error: unknown) => this.failed(connection, error));
  }

  private message(connection: Connection, text: string): void {
    if (this.current !== connection) return;
    connection.heardAt = this.options.clock.now();
    connection.asked = false;
    try {
      const frame = readFrame(text);
      if (frame.kind === 'ping') connection.socket?.send('{"type":"pong"}');
      else if (frame.kind === 'error') this.options.onProblem(new ProtocolError(`${frame.code}: ${frame.message}`));
      else this.options.onFrame(frame, text.length);
    } catch (error) {
      // One bad frame does not end the line: what it would have brought is found missing at the next `caught_up`.
      this.options.onProblem(asError(error));
    }
  }

  /** One look at a time for the whole line: nothing heard for long means a broken connection, whatever TCP believes. */
  private look(connection: Connection): void {
    this.timer?.cancel();
    this.timer = this.options.clock.setTimer(LOOK_EVERY_MS, () => {
      if (this.current !== connection) return;
      if (!this.reading) connection.heardAt = this.options.clock.now();
      const silent = this.options.clock.now() - connection.heardAt;
      const opened = connection.openedAt !== null;
      if (silent >= (opened ? GIVE_UP_AFTER_MS : OPEN_WITHIN_MS)) {
        this.drop(CLOSE.silent, 'server silent');
        this.again(opened ? 'the server fell silent' : 'the connection did not open');
        return;
      }
      if (opened && silent >= ASK_AFTER_MS && !connection.asked) {
        connection.asked = true;
        connection.socket?.send('{"type":"ping"}');
      }
      this.look(connection);
    });
  }

  private closed(connection: Connection, { code, reason, retryAfter = 0 }: Closed): void {
    if (this.current !== connection) return;
    this.leave();
    if (code === CLOSE.revoked) {
      this.endRevoked();
      return;
    }
    if (code === CLOSE.expired) this.renewFirst = true;
    if (code === CLOSE.overloaded || code === TOO_MANY_FRAMES)
      this.attempt = Math.max(this.attempt, OVERLOADED_ATTEMPTS);
    if (code === CLOSE.protocol) this.options.onProblem(new ProtocolError(`the server closed the socket: ${reason}`));
    const spread = code === CLOSE.restart ? Math.round(this.options.random() * RESTART_SPREAD_MS) : 0;
    this.again(`closed with ${code}${reason === '' ? '' : ` (${reason})`}`, Math.max(spread, retryAfter * 1_000));
  }

  private failed(connection: Connection, error: unknown): void {
    if (this.current !== connection) return;
    this.drop(1000, 'giving up this attempt');
    if (isRevoked(error)) {
      this.endRevoked();
      return;
    }
    this.options.onProblem(asError(error));
    this.again(asError(error).message, retryAfterMs(error));
  }

  private endRevoked(): void {
    this.running = false;
    this.timer?.cancel();
    this.options.onRevoked();
    this.options.onState({ state: 'closed' });
  }

  /** `leastMs`: what the server asks for, or what its way of closing does. */
  private again(reason: string, leastMs = 0): void {
    if (!this.running) return;
    const backoff = backoffMs(this.attempt++, RECONNECT, this.options.random);
    const retryInMs = Math.max(backoff, Math.min(leastMs, RETRY_AFTER_MAX_MS));
    this.options.onState({ state: 'waiting', retryInMs, reason });
    this.timer?.cancel();
    this.timer = this.options.clock.setTimer(retryInMs, () => {
      if (this.running) this.connect();
    });
  }

  private drop(code: number, reason: string): void {
    this.timer?.cancel();
    this.leave()?.socket?.close(code, reason);
  }

  /** The connection under way is none any more: what is heard of it is ignored. */
  private leave(): Connection | undefined {
    const connection = this.current;
    this.current = undefined;
    if (connection !== undefined && this.provedGood(connection)) this.attempt = 0;
    return connection;
  }

  private provedGood({ openedAt, caughtUpAt, heardAt }: Connection): boolean {
    if (openedAt === null) return false;
    const settled = caughtUpAt !== null && this.options.clock.now() - caughtUpAt >= GOOD_AFTER_CAUGHT_UP_MS;
    return settled || heardAt - openedAt >= GOOD_AFTER_MS;
  }
}
