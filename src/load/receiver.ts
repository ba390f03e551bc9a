/** The socket of one device: opens, catches up, answers heartbeats, reconnects with the last version it saw. */
import { WebSocket } from 'ws';
import { CLOSE } from '../protocol/close-codes.js';
import { errorCode } from '../protocol/error-code.js';
import { retryAfterOf, retryAfterSeconds } from '../protocol/retry-after.js';
import { OPEN_WITHIN_MS, SERVER_FRAME_MAX } from '../sdk/platform.js';
import { record } from '../sdk/reader.js';
import { ReconnectBackoff } from '../sdk/reconnect-backoff.js';
import type { FleetDevice, FleetTenant } from './fleet.js';
import { nowUs, type Ledger } from './ledger.js';
import type { Meter } from './meter.js';
import { plainCode, waitMsOf, type Target } from './target.js';

/** What a socket needs. */
interface ReceiverOptions {
  readonly target: Target;
  readonly meter: Meter;
  readonly ledger: Ledger;
  readonly tenant: FleetTenant;
  readonly device: FleetDevice;
  /** Whether an operation scheduled for this time is in the measured time. */
  readonly measured: (at: number) => boolean;
  /** Whether frames of changes count as pushes. */
  readonly pushes: () => boolean;
}

/** A connection without a frame for this long is dead, regardless of TCP, us (reference, Sockets). */
const SILENT_US = 90_000_000;

/** One socket, for the whole run. */
export class Receiver {
  /** Versions of changes in order of arrival, and the item of each by its place in the ledger; -1: not of the run. */
  readonly versions: number[] = [];
  readonly entries: number[] = [];
  /** Descriptions of frames that a correct server does not send. */
  readonly unexpected: string[] = [];
  live = false;
  /** The server ended this device, or the run ended it. */
  ended = false;
  /** The last version received. */
  at: number;
  private epoch: string | undefined;
  private socket: WebSocket | undefined;
  private heardAt = 0;
  private scheduledAt = 0;
  private readonly backoff = new ReconnectBackoff(Math.random);
  private first = true;
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly options: ReceiverOptions) {
    this.at = options.ledger.base;
  }

  /** Opens the socket; `at`: the time scheduled for that. */
  open(at = nowUs()): void {
    const { target, tenant, device, meter } = this.options;
    this.scheduledAt = at;
    const { protocol, host } = target.url;
    const socket = new WebSocket(`${protocol === 'https:' ? 'wss' : 'ws'}://${host}/ws?shape=a`, {
      ...{ handshakeTimeout: OPEN_WITHIN_MS, maxPayload: SERVER_FRAME_MAX, perMessageDeflate: false },
      ...{ followRedirects: false, skipUTF8Validation: true },
      localAddress: target.source(),
      headers: {
        authorization: `Bearer ${device.token}`,
        ...(tenant.host === undefined ? {} : { host: tenant.host }),
      },
    });
    this.socket = socket;
    this.heardAt = nowUs();
    let code = '';
    let waitMs: number | undefined;
    socket.on('open', () => {
      meter.count('opened');
      if (this.first) meter.time('connect', nowUs() - this.scheduledAt);
      this.heardAt = nowUs();
      socket.send(JSON.stringify({ type: 'hello', since: this.at, epoch: this.epoch }));
    });
    socket.on('message', (data: Buffer) => this.frame(data));
    socket.on('error', (error) => {
      code ||= plainCode(errorCode(error) || 'socket_error');
    });
    socket.on('unexpected-response', (_, response) => {
      code = `connect_${response.statusCode ?? 0}`;
      waitMs = waitMsOf(retryAfterSeconds(response.headers['retry-after']));
      response.resume();
      socket.terminate();
    });
    socket.on('close', (closedWith, reason) => {
      if (this.socket === socket) this.closed(code, closedWith, waitMs ?? waitMsOf(retryAfterOf(String(reason))) ?? 0);
    });
  }

  /** Cuts the connection and reconnects at once, as part of a storm. False: there was none. */
  storm(): boolean {
    if (!this.live || this.socket === undefined) return false;
    this.drop();
    this.open();
    return true;
  }

  /** Ends a connection that has been silent for too long. */
  check(now: number): void {
    if (this.socket?.readyState !== WebSocket.OPEN || now - this.heardAt < SILENT_US) return;
    this.options.meter.error('silent');
    this.socket.terminate();
  }

  /** Closes for good. */
  end(): void {
    this.ended = true;
    clearTimeout(this.timer);
    this.drop();
  }

  private drop(): void {
    const { socket } = this;
    this.socket = undefined;
    this.settle(false);
    socket?.terminate();
  }

  private settle(live: boolean): void {
    if (live !== this.live) this.options.meter.sockets += live ? 1 : -1;
    this.live = live;
  }

  /** `code`: what went wrong, empty: nothing; `askedMs`: how long the server wants us to stay away. */
  private closed(code: string, closedWith: number, askedMs: number): void {
    const { meter } = this.options;
    const wasLive = this.live;
    this.socket = undefined;
    this.settle(false);
    if (wasLive) meter.count('lost');
    meter.error(code === '' ? `close_${closedWith}` : code);
    if (this.ended || closedWith === CLOSE.revoked || closedWith === CLOSE.expired) {
      this.ended = true;
      return;
    }
    // Timed from the loss, or from the scheduled time of the first attempt.
    const from = wasLive ? nowUs() : this.scheduledAt;
    this.timer = setTimeout(() => this.open(from), this.backoff.waitMs(closedWith, askedMs));
  }

  private frame(data: Buffer): void {
    const now = nowUs();
    this.heardAt = now;
    let frame: Readonly<Record<string, unknown>>;
    try {
      frame = record(JSON.parse(data.toString('utf8')), '');
    } catch {
      this.note('a frame that is not a JSON object');
      return;
    }
    switch (frame['type']) {
      case 'item':
      case 'delete':
        this.changed(frame, now);
        break;
      case 'ping':
        this.socket?.send('{"type":"pong"}');
        break;
      case 'caught_up':
        this.caughtUp(frame, now);
        break;
      case 'reset':
        this.note('a reset: the history was replaced');
        break;
      case 'error':
        this.options.meter.error(`frame_${plainCode(frame['code'])}`);
        break;
      default:
    }
  }

  private caughtUp({ epoch }: Readonly<Record<string, unknown>>, now: number): void {
    const { meter } = this.options;
    if (typeof epoch === 'string' && epoch.length <= 256) this.epoch = epoch;
    meter.time(this.first ? 'caughtUp' : 'reconnect', now - this.scheduledAt);
    this.first = false;
    this.backoff.reset();
    this.settle(true);
  }

  private changed({ id, version }: Readonly<Record<string, unknown>>, now: number): void {
    const { ledger, meter, measured, pushes } = this.options;
    if (typeof id !== 'string' || typeof version !== 'number' || !Number.isSafeInteger(version))
      return this.note('a change without id or version');
    const entry = ledger.byId.get(id);
    if (version <= this.at) this.note(`version ${version} after ${this.at}`);
    else this.at = version;
    this.versions.push(version);
    this.entries.push(entry?.index ?? -1);
    if (entry === undefined) {
      ledger.foreign.add(version);
      return;
    }
    if (!pushes()) return;
    meter.count('pushed');
    // A replayed change is late because of the connection; `reconnect` measures that.
    if (!this.live) return;
    const sentAt = ledger.sentAtOf(entry, version);
    meter.time('push', now - sentAt, measured(sentAt));
  }

  private note(text: string): void {
    if (this.unexpected.length < 10) this.unexpected.push(text);
  }
}
