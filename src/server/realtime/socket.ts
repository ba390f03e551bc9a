/** Device sockets (reference, Sockets): frames of clients, heartbeats, close codes. */
import { isObject } from '../../protocol/bytes.js';
import { atMostEvery } from '../../protocol/clock.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { codeOf, invalid, rateLimited, ServiceError } from '../../protocol/errors.js';
import type { ClientFrame, ErrorFrame, PingFrame, PongFrame } from '../../protocol/frames.js';
import { retryAfterReason } from '../../protocol/retry-after.js';
import {
  FRAME_MAX,
  FRAMES_PENALTY_MS,
  HELLO_TIMEOUT_MS,
  SOCKET_UNSENT_MAX,
  SOCKETS_PER_DEVICE,
} from '../../protocol/limits.js';
import { validateHelloFrame } from '../http/validators.js';
import { parseJson } from '../http/request.js';
import type { DeviceSocket, Wire } from './device-socket.js';
import { asRefusal, describe } from '../http/fail.js';
import { charge, LargeFrames, OVER } from './frame-rates.js';
import type { SocketParts, TenantActor } from '../http/ports.js';
import { TimerWheel } from './wheel.js';

const PINGS: readonly string[] = [JSON.stringify({ type: 'ping' } satisfies PingFrame)];
const PONG = JSON.stringify({ type: 'pong' } satisfies PongFrame);
/** A client's heartbeat in its usual form, compared as bytes: parsing would be most of the cost of an idle socket. */
const PONG_BYTES = Buffer.from(PONG);

/** A tenant of several may always have this many sockets; those beyond give way where the process has its maximum. */
const TENANT_SOCKETS = 16;
/** The part of the maximum that is kept for tenants with fewer, and the part that is freed when it is reached. */
const KEPT_PARTS = 16;
const FREED_PARTS = 64;
/** All sockets are looked through for that at most this often, ms. */
const MAKE_ROOM_EVERY_MS = 5_000;
/** A socket for which there is no place, or no longer one, may come back within this many seconds, at random. */
const ELSEWHERE_S = 10;

/** A time to come back, s. */
export const elsewhereSeconds = (): number => 1 + Math.random() * (ELSEWHERE_S - 1);

/** Parses a client's frame. Throws `validation` if it is malformed. */
function parseFrame(message: ArrayBuffer, isBinary: boolean): ClientFrame {
  if (isBinary) throw invalid('frame', 'must be text');
  const frame = parseJson(Buffer.from(message), 'frame');
  if (!isObject(frame)) throw invalid('frame', 'must be a JSON object');
  const { type } = frame;
  if (type === 'ping' || type === 'pong') return { type };
  if (type === 'hello') return validateHelloFrame(frame);
  throw invalid('type', 'must be hello, ping or pong');
}

/** All sockets of the process. */
export class Sockets {
  private readonly wheel: TimerWheel<DeviceSocket>;
  /** The end of the last stall: silence before it is not counted. */
  private stalledAt = 0;
  /** The time that `lastSeen` counts from, ms. */
  private readonly since: number;
  private readonly large: LargeFrames;
  /** Devices that exceeded a rate, with the time until which they must not open a socket, earliest first. */
  private readonly penalties = new Map<string, number>();
  private readonly mayMakeRoom: () => boolean;
  /** How many sockets a tenant may always have. The one of single mode has no others to give way to. */
  private readonly spared: number;

  constructor(
    private readonly parts: Pick<SocketParts, 'config' | 'clock' | 'log' | 'presence'>,
    /** Maximum number of sockets of the process. */
    private readonly most: number,
  ) {
    const { clock, config } = parts;
    this.since = clock.now();
    this.mayMakeRoom = atMostEvery(clock, MAKE_ROOM_EVERY_MS);
    this.spared = config.tenantMode === 'single' ? Infinity : TENANT_SOCKETS;
    this.large = new LargeFrames(clock);
    this.wheel = new TimerWheel<DeviceSocket>({
      clock,
      intervalMs: config.wsPingIntervalMs,
      dueAt: (socket) => Math.min(socket.helloBy ?? Infinity, socket.expiresAt, this.silentAt(socket)),
      due: (socket, now) => {
        if (socket.expiresAt <= now) socket.close(CLOSE.expired, 'token expired');
        else if (socket.helloBy !== undefined && socket.helloBy <= now) socket.close(CLOSE.silent, 'no hello');
        else socket.close(CLOSE.silent, 'no sign of life');
      },
      beat: (socket, now) => this.beat(socket, now),
      stalled: (now) => (this.stalledAt = now),
    });
  }

  get size(): number {
    return this.wheel.size;
  }

  /**
   * Whether a tenant that has `own` sockets here can have no more: the process has its maximum, including `opening`
   * sockets that are being opened, or nearly so and the tenant has many.
   */
  isFull(opening: number, own: number): boolean {
    const taken = this.size + opening;
    if (own >= this.spared) return taken >= this.most * (1 - 1 / KEPT_PARTS);
    // Not for those that are only being opened: in a reconnect storm they may be more than there is room for.
    if (this.size >= this.most) this.makeRoom();
    return this.size + opening >= this.most;
  }

  /** Closes sockets of the tenants that have most of them: otherwise a few tenants could keep all others out. */
  private makeRoom(): void {
    if (!this.mayMakeRoom()) return;
    const tenants = new Map<TenantActor, DeviceSocket[]>();
    for (const socket of this.all()) {
      if (socket.closing || socket.actor.sessionCount <= this.spared) continue;
      const known = tenants.get(socket.actor);
      if (known === undefined) tenants.set(socket.actor, [socket]);
      else known.push(socket);
    }
    let left = Math.ceil(this.most / FREED_PARTS);
    for (const sockets of [...tenants.values()].sort((one, other) => other.length - one.length)) {
      const given = Math.max(0, Math.min(left, Math.ceil((sockets.length - this.spared) / 2)));
      for (const socket of sockets.slice(0, given))
        socket.close(CLOSE.overloaded, retryAfterReason(elsewhereSeconds()));
      left -= given;
    }
  }

  /** A time, ms, in the form of `lastSeen`: a difference of times is a heap object until it is truncated. */
  private seen(now: number): number {
    return Math.trunc(now - this.since);
  }

  private silentAt(socket: DeviceSocket): number {
    return Math.max(this.since + socket.lastSeen, this.stalledAt) + this.parts.config.wsPongGraceMs;
  }

  private beat(socket: DeviceSocket, now: number): void {
    // Times ahead are from before the clock was set back: its silence would not count until the clock has caught up.
    socket.lastSeen = Math.min(socket.lastSeen, this.seen(now));
    if (socket.helloBy !== undefined) socket.helloBy = Math.min(socket.helloBy, now + HELLO_TIMEOUT_MS);
    this.stalledAt = Math.min(this.stalledAt, now);
    socket.send(PINGS);
  }

  /** An exception must not reach the library: it would end the process. */
  private guarded(socket: DeviceSocket, work: () => void): void {
    try {
      work();
    } catch (error) {
      this.parts.log.error({ deviceId: socket.deviceId, cause: describe(error) }, 'socket failed');
      socket.close(CLOSE.overloaded, 'internal');
    }
  }

  /** Adds a socket after its upgrade. */
  opened(socket: DeviceSocket): void {
    socket.lastSeen = this.seen(this.parts.clock.now());
    this.wheel.add(socket);
    // If its token has expired meanwhile, the wheel has closed it: nothing would end its session.
    if (socket.wire !== undefined) this.guarded(socket, () => this.register(socket));
  }

  private register(socket: DeviceSocket): void {
    // Checks the device again in the step that registers the socket; otherwise a concurrent revocation would miss it.
    const session = socket.actor.open(socket);
    if (typeof session === 'string') {
      if (session === 'unavailable') socket.close(CLOSE.restart, 'restart');
      else socket.close(CLOSE.revoked, session);
      return;
    }
    socket.session = session;
    this.parts.presence.touched(socket.actor.tenantId, socket.deviceId);
    this.record(socket, 'socket opened');
  }

  message(wire: Wire, message: ArrayBuffer, isBinary: boolean): void {
    const { socket } = wire.getUserData();
    if (socket === undefined || socket.closing) return;
    if (message.byteLength > FRAME_MAX) {
      socket.close(CLOSE.tooLarge, 'frame too large');
      return;
    }
    if (!this.counted(socket, message.byteLength)) return;
    if (!isBinary && message.byteLength === PONG_BYTES.length && PONG_BYTES.equals(new Uint8Array(message))) return;
    try {
      this.take(socket, parseFrame(message, isBinary));
    } catch (error) {
      this.refuse(socket, error);
    }
  }

  /** A ping or pong of the WebSocket protocol: a sign of life like any other frame. The library answers pings. */
  heard(wire: Wire, message: ArrayBuffer): void {
    const { socket } = wire.getUserData();
    if (socket === undefined || socket.closing || !this.counted(socket, message.byteLength)) return;
    if (socket.account() > SOCKET_UNSENT_MAX) socket.close(CLOSE.overloaded, 'overloaded');
  }

  /** Counts a frame before it is processed. False: a rate was exceeded, and the socket is closed. */
  private counted(socket: DeviceSocket, bytes: number): boolean {
    const now = this.parts.clock.now();
    const seen = this.seen(now);
    const said = charge(socket.said, seen - socket.lastSeen, bytes);
    socket.lastSeen = seen;
    const { actor, deviceId } = socket;
    if (said !== OVER && this.large.take(actor.tenantId, deviceId, bytes)) {
      socket.said = said;
      return true;
    }
    socket.close(CLOSE.tooMuch, 'too many frames');
    // Without a penalty the device would reconnect at once and do it again.
    const device = `${actor.tenantId}/${deviceId}`;
    this.penalties.delete(device);
    this.penalties.set(device, now + FRAMES_PENALTY_MS);
    return false;
  }

  /** Throws `rate_limited` if the device has its maximum of sockets, or recently exceeded a rate on one. */
  admit(actor: TenantActor, deviceId: string): void {
    if (this.penalties.size > 0) this.checkPenalty(`${actor.tenantId}/${deviceId}`);
    if (actor.socketsOf(deviceId) < SOCKETS_PER_DEVICE) return;
    throw rateLimited(`at most ${SOCKETS_PER_DEVICE} sockets per device`, 1);
  }

  private checkPenalty(device: string): void {
    const now = this.parts.clock.now();
    // A penalty that ends later than possible was set before the clock was set back; small excesses are tolerated.
    const holds = (until: number): boolean => until > now && until <= now + 2 * FRAMES_PENALTY_MS;
    for (const [each, until] of this.penalties) {
      if (holds(until)) break;
      this.penalties.delete(each);
    }
    const until = this.penalties.get(device) ?? now;
    if (!holds(until)) return;
    throw rateLimited('a socket of this device sent too many frames', (until - now) / 1_000);
  }

  private take(socket: DeviceSocket, frame: ClientFrame): void {
    if (frame.type === 'ping') socket.answer(PONG);
    if (frame.type !== 'hello' || socket.session === undefined) return;
    socket.helloBy = undefined;
    socket.actor.hello(socket.session, { since: frame.since, epoch: frame.epoch ?? null, acks: frame.acks ?? false });
  }

  /**
   * Refuses a malformed frame: B ignores it; A answers it, and closes the socket if before `hello` (reference,
   * Sockets).
   */
  private refuse(socket: DeviceSocket, error: unknown): void {
    const { log } = this.parts;
    if (!(error instanceof ServiceError))
      log.error({ deviceId: socket.deviceId, cause: describe(error) }, 'frame failed');
    if (socket.shape === 'b') return;
    const refusal = asRefusal(error);
    const frame: ErrorFrame = { type: 'error', code: codeOf(refusal.error, 'a'), message: refusal.message };
    socket.answer(JSON.stringify(frame));
    if (socket.helloBy !== undefined) socket.close(CLOSE.protocol, 'hello expected');
  }

  /**
   * The library calls this whenever its buffer has shrunk. The actor is notified only when it is empty, since it then
   * sends the next page of a replay, which for a slow reader would add to the unsent bytes.
   */
  drained(wire: Wire): void {
    const { socket } = wire.getUserData();
    if (socket === undefined || socket.drained() > 0 || socket.closing) return;
    const { session } = socket;
    if (session !== undefined) this.guarded(socket, () => socket.actor.drained(session));
  }

  closed(wire: Wire, code: number): void {
    const { socket } = wire.getUserData();
    if (socket === undefined) return;
    socket.gone();
    this.wheel.remove(socket);
    const { session } = socket;
    if (session === undefined) return;
    socket.session = undefined;
    this.guarded(socket, () => {
      socket.actor.closed(session);
      this.parts.presence.touched(socket.actor.tenantId, socket.deviceId);
    });
    this.record(socket, 'socket closed', code);
  }

  private record(socket: DeviceSocket, message: string, code?: number): void {
    const { log } = this.parts;
    if (!log.isLevelEnabled('debug')) return;
    log.debug({ tenantId: socket.actor.tenantId, deviceId: socket.deviceId, shape: socket.shape, code }, message);
  }

  all(): DeviceSocket[] {
    return this.wheel.items();
  }

  stop(): void {
    this.wheel.stop();
  }
}
