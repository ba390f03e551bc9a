/**
 * The device's connection to the server (the reference, Sockets): ticket, connection, `hello`, heartbeat, and
 * reconnecting after a failure. It passes on frames in order and does not interpret items; the cursor is read again
 * for each `hello`.
 */
import { asError } from '../protocol/error-code.js';
import { monotonic, type Timer } from '../protocol/clock.js';
import { CLOSE } from '../protocol/close-codes.js';
import { retryAfterOf } from '../protocol/retry-after.js';
import { OPEN_WITHIN_MS, type OpenSocket, RETRY_AFTER_MAX_MS } from './platform.js';
import type { Cursor } from './store/store.js';
import type { Core } from './core.js';
import { isRevoked, ProtocolError, retryAfterMs } from './errors.js';
import type { ConnectionState } from './events.js';
import { ReconnectBackoff } from './reconnect-backoff.js';
import { readFrame, type Frame } from './wire.js';

/** The server pings every 30 s by default. After two missed pings this side sends one, and at last gives up. */
const PING_AFTER_MS = 65_000;
const GIVE_UP_AFTER_MS = 90_000;
const CHECK_EVERY_MS = 5_000;
/** How long a connection has to answer the probe of `hurry`. At most `CHECK_EVERY_MS`. */
const PROBE_MS = 5_000;
/** `hurry` sends a probe at the earliest this long after the last frame, and begins an attempt so long after the last. */
const HURRY_EVERY_MS = 2_000;
/**
 * When a connection counts as stable, so that it resets the backoff: this long after it caught up, or after it opened,
 * ms. A server that accepts every connection and closes it immediately must not reset the backoff.
 */
const STABLE_AFTER_CAUGHT_UP_MS = 10_000;
const STABLE_AFTER_OPEN_MS = 60_000;

/** The address of a connection to a server. */
export const socketUrl = (baseUrl: string, ticket: string): string =>
  `${baseUrl.replace(/^http/, 'ws')}/ws?shape=a&ticket=${encodeURIComponent(ticket)}`;

/** The parameters of a `ReconnectingSocket`. */
interface SocketOptions extends Pick<Core, 'baseUrl' | 'sockets' | 'clock' | 'random' | 'onProblem'> {
  /**
   * Learns the epoch that `hello` names, if it is not known, and gets a ticket for one connection, because a token must
   * never be in a URL.
   */
  readonly prepare: () => Promise<string>;
  /** Renews the token, after the server closed the connection because it had expired. */
  readonly renew: () => Promise<void>;
  /** The cursor for `hello`. Called after all frames of the last connection were handled. */
  readonly cursor: () => Promise<Cursor>;
  /** `size`: characters of its text. */
  readonly onFrame: (frame: Frame, size: number) => void;
  readonly onState: (state: ConnectionState) => void;
  readonly onRevoked: () => void;
}

/** One connection. Events of an earlier one are recognised by object identity and ignored. */
class Connection {
  socket: OpenSocket | null = null;
  /** When it opened, and when it had caught up; null: not yet. */
  openedAt: number | null = null;
  caughtUpAt: number | null = null;
  pinged = false;
  /** When the unanswered probe was sent; null: there is none. */
  probedAt: number | null = null;

  /** `heardAt`: when the server was heard last. */
  constructor(public heardAt: number) {}
}

/** Keeps one connection open from `start` until `stop` or revocation. */
export class ReconnectingSocket {
  private current: Connection | undefined;
  private timer: Timer | undefined;
  private readonly backoff: ReconnectBackoff;
  private readonly now: () => number;
  private running = false;
  private renewFirst = false;
  private reading = true;
  /** When the last attempt began, and the earliest time that the server allows for the next one. */
  private triedAt = -Infinity;
  private allowedAt = -Infinity;
  /** When the next attempt begins, and why there is a wait. */
  private retryAt = Infinity;
  private reason = '';

  constructor(private readonly options: SocketOptions) {
    this.backoff = new ReconnectBackoff(options.random);
    this.now = monotonic(options.clock);
  }

  start(): void {
    if (this.running) return;
    this.running = true;
    this.connect();
  }

  /** Closes for good. No frame is passed on after this. */
  stop(): void {
    if (!this.running) return;
    this.running = false;
    this.drop(1000, 'client closed');
    this.options.onState({ state: 'closed' });
  }

  /** Called when the connection has delivered everything up to the head. */
  settled(): void {
    if (this.current !== undefined) this.current.caughtUpAt ??= this.now();
  }

  /** Closes the connection and opens another after the usual wait. */
  restart(reason: string): void {
    if (!this.running || this.current === undefined) return;
    this.drop(1000, 'starting anew');
    this.reconnectLater(reason);
  }

  /**
   * For a network change or a user's request: shortens the current wait, except one that the server requested, and
   * probes an open connection (`PROBE_MS`). May be called at any rate.
   */
  hurry(): void {
    if (!this.running) return;
    const connection = this.current;
    const now = this.now();
    if (connection === undefined) {
      const inMs = Math.max(this.triedAt + HURRY_EVERY_MS, this.allowedAt) - now;
      if (inMs <= 0) this.connect();
      else if (now + inMs < this.retryAt) this.retryIn(inMs);
    } else if (connection.openedAt !== null && this.reading && connection.probedAt === null) {
      const { heardAt } = connection;
      const inMs = Math.min(heardAt + HURRY_EVERY_MS - now, HURRY_EVERY_MS);
      if (inMs <= 0) return this.probe(connection, heardAt);
      this.timer?.cancel();
      this.timer = this.options.clock.setTimer(inMs, () => this.probe(connection, heardAt));
    }
  }

  /** Sends a probe, unless a frame has arrived since `heardAt`. */
  private probe(connection: Connection, heardAt: number): void {
    if (this.current !== connection) return;
    if (this.reading && connection.heardAt === heardAt) {
      connection.probedAt = this.now();
      connection.socket?.send('{"type":"ping"}');
    }
    this.watch(connection, PROBE_MS);
  }

  /** Resumes or pauses reading, so that frames do not pile up in memory. */
  flow(reading: boolean): void {
    if (reading === this.reading) return;
    this.reading = reading;
    const connection = this.current;
    if (reading) connection?.socket?.resume?.();
    else connection?.socket?.pause?.();
    // While reading is paused, silence is not the server's fault.
    if (connection !== undefined) connection.heardAt = this.now();
  }

  private connect(): void {
    const now = this.now();
    this.timer?.cancel();
    this.triedAt = now;
    const connection = new Connection(now);
    this.current = connection;
    this.options.onState({ state: 'connecting' });
    this.open(connection).catch((error: unknown) => this.failed(connection, error));
  }

  private async open(connection: Connection): Promise<void> {
    if (this.renewFirst) {
      await this.options.renew();
      this.renewFirst = false;
    }
    const ticket = await this.options.prepare();
    if (this.current !== connection) return;
    connection.heardAt = this.now();
    connection.socket = this.options.sockets.open(socketUrl(this.options.baseUrl, ticket), {
      opened: () => this.opened(connection),
      message: (text) => this.message(connection, text),
      closed: (code, reason, retryAfter) => this.closed(connection, code, reason, retryAfter),
    });
    this.watch(connection);
  }

  private opened(connection: Connection): void {
    if (this.current !== connection) return;
    connection.openedAt = this.now();
    connection.heardAt = connection.openedAt;
    if (!this.reading) connection.socket?.pause?.();
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
    connection.heardAt = this.now();
    connection.pinged = false;
    connection.probedAt = null;
    try {
      const frame = readFrame(text);
      if (frame.kind === 'ping') connection.socket?.send('{"type":"pong"}');
      else if (frame.kind === 'error') this.options.onProblem(new ProtocolError(`${frame.code}: ${frame.message}`));
      else this.options.onFrame(frame, text.length);
    } catch (error) {
      // One bad frame does not end the connection: the next `caught_up` reveals a missing change.
      this.options.onProblem(asError(error));
    }
  }

  /** Checks for silence at intervals: a connection without traffic is broken, whatever TCP reports. */
  private watch(connection: Connection, ms = CHECK_EVERY_MS): void {
    this.timer?.cancel();
    this.timer = this.options.clock.setTimer(ms, () => {
      if (this.current !== connection) return;
      const now = this.now();
      if (!this.reading) {
        connection.heardAt = now;
        connection.probedAt = null;
      }
      const silent = now - connection.heardAt;
      const opened = connection.openedAt !== null;
      const unanswered = connection.probedAt !== null && now - connection.probedAt >= PROBE_MS;
      if (unanswered || silent >= (opened ? GIVE_UP_AFTER_MS : OPEN_WITHIN_MS)) {
        this.drop(CLOSE.silent, 'server silent');
        return this.reconnectLater(opened ? 'the server fell silent' : 'the connection did not open');
      }
      if (opened && silent >= PING_AFTER_MS && !connection.pinged) {
        connection.pinged = true;
        connection.socket?.send('{"type":"ping"}');
      }
      this.watch(connection);
    });
  }

  /** `retryAfter`: seconds, from a refused upgrade. */
  private closed(connection: Connection, code: number, reason: string, retryAfter = 0): void {
    if (this.current !== connection) return;
    this.detach();
    if (code === CLOSE.revoked) return this.endRevoked();
    if (code === CLOSE.expired) this.renewFirst = true;
    const named = code === CLOSE.restart || code === CLOSE.overloaded ? retryAfterOf(reason) : undefined;
    if (code === CLOSE.protocol) this.options.onProblem(new ProtocolError(`the server closed the socket: ${reason}`));
    this.reconnectLater(
      `closed with ${code}${reason === '' ? '' : ` (${reason})`}`,
      (named ?? retryAfter) * 1_000,
      code,
    );
  }

  private failed(connection: Connection, error: unknown): void {
    if (this.current !== connection) return;
    this.drop(1000, 'giving up this attempt');
    if (isRevoked(error)) return this.endRevoked();
    this.options.onProblem(asError(error));
    this.reconnectLater(asError(error).message, retryAfterMs(error));
  }

  private endRevoked(): void {
    this.running = false;
    this.timer?.cancel();
    this.options.onRevoked();
    this.options.onState({ state: 'closed' });
  }

  /** `askedMs`: the wait that the server named; `code`: its close code. 0: none. */
  private reconnectLater(reason: string, askedMs = 0, code = 0): void {
    if (!this.running) return;
    this.allowedAt = this.now() + Math.min(askedMs, RETRY_AFTER_MAX_MS);
    this.reason = reason;
    this.retryIn(this.backoff.waitMs(code, askedMs));
  }

  private retryIn(retryInMs: number): void {
    this.retryAt = this.now() + retryInMs;
    this.options.onState({ state: 'waiting', retryInMs, reason: this.reason });
    this.timer?.cancel();
    this.timer = this.options.clock.setTimer(retryInMs, () => {
      if (this.running) this.connect();
    });
  }

  private drop(code: number, reason: string): void {
    this.timer?.cancel();
    this.detach()?.socket?.close(code, reason);
  }

  /** Detaches the current connection: its later events are ignored. */
  private detach(): Connection | undefined {
    const connection = this.current;
    this.current = undefined;
    if (connection !== undefined && isStable(connection, this.now())) this.backoff.reset();
    return connection;
  }
}

function isStable({ openedAt, caughtUpAt, heardAt }: Connection, now: number): boolean {
  if (openedAt === null) return false;
  const caughtUp = caughtUpAt !== null && now - caughtUpAt >= STABLE_AFTER_CAUGHT_UP_MS;
  return caughtUp || heardAt - openedAt >= STABLE_AFTER_OPEN_MS;
}
