/** One device socket: what it sends, what of that waits for its reader, and how it ends. */
import type { WebSocket } from 'uWebSockets.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { HELLO_TIMEOUT_MS } from '../../protocol/limits.js';
import type { Shape } from '../../protocol/shape.js';
import type { SocketPort } from '../tenant/ports.js';
import type { Session } from '../tenant/session.js';
import type { TenantActor } from '../http/ports.js';
import { Unsent, type SocketRoom } from './unsent.js';
import { NO_SLOT, type TimerEntry } from './wheel.js';

/** A peer that asks but does not read gets no more answers beyond this backlog, bytes. */
const ANSWERS_MAX = 16 * 1024;
/** A socket that is to close, and whose reader does not take what came before, is cut after so long. */
const CLOSE_GRACE_MS = 5_000;

/** What uWebSockets.js keeps for us with a socket. */
export interface SocketData {
  socket: DeviceSocket;
}

/** The connection, as the library has it. */
export type Wire = WebSocket<SocketData>;

// The frames of the send under way. `cork` calls back before it returns, so one slot for the process spares a closure
// for each of many sends.
let corkWire: Wire | undefined;
let corkFrames: readonly string[] = [];
let corkDropped = false;

/** What `send` of the library says: all is with the kernel; more than may wait was thrown away. */
const SENT = 1;
const DROPPED = 2;

function sendCorked(): void {
  for (const frame of corkFrames) if (corkWire?.send(frame) === DROPPED) corkDropped = true;
}

/** Whose socket it is, and by what right. */
export interface SocketOrigin {
  readonly actor: TenantActor;
  readonly deviceId: string;
  readonly tokenEpoch: number;
  readonly shape: Shape;
  /** When the token it was opened with ends, ms. */
  readonly expiresAt: number;
  /** Where it accounts for what it has not sent yet. */
  readonly room: SocketRoom;
}

/**
 * One socket. A million of them may be open, so it holds a few fields and no closures, and the time it must keep is
 * kept by the wheel.
 */
export class DeviceSocket implements SocketPort, TimerEntry {
  readonly deviceId: string;
  readonly tokenEpoch: number;
  readonly shape: Shape;
  readonly actor: TenantActor;
  readonly expiresAt: number;
  /** Until when a `hello` must have come; undefined after it: a number that is none of the small ones takes memory. */
  helloBy: number | undefined;
  /** When the last frame came, ms since there are sockets: small for weeks, and so without memory of its own. */
  lastSeen = 0;
  /** What it said lately (see `charge`). */
  said = 0;
  session: Session | undefined;
  slot = NO_SLOT;
  index = 0;
  noted = false;
  /** Undefined before the upgrade is through and after the close: nothing is sent then. */
  wire: Wire | undefined;
  private unsent: Unsent | undefined;
  private readonly room: SocketRoom;

  constructor(origin: SocketOrigin, now: number) {
    this.deviceId = origin.deviceId;
    this.tokenEpoch = origin.tokenEpoch;
    this.shape = origin.shape;
    this.actor = origin.actor;
    this.expiresAt = origin.expiresAt;
    this.helloBy = now + HELLO_TIMEOUT_MS;
    this.room = origin.room;
  }

  /** Nothing of it is read or sent any more. */
  get closing(): boolean {
    return this.unsent?.closing !== undefined;
  }

  send(frames: readonly string[]): number {
    const { wire } = this;
    if (wire === undefined || this.closing) return 0;
    let dropped: boolean;
    if (frames.length === 1) {
      const result = wire.send(frames[0] ?? '');
      if (result === SENT && this.unsent === undefined) return 0;
      dropped = result === DROPPED;
    } else {
      corkWire = wire;
      corkFrames = frames;
      corkDropped = false;
      wire.cork(sendCorked);
      corkWire = undefined;
      corkFrames = [];
      dropped = corkDropped;
    }
    if (!dropped) return this.account();
    // A frame that was dropped is a gap that the client cannot see: it must come again with its cursor.
    this.close(CLOSE.overloaded, 'overloaded');
    return 0;
  }

  /**
   * Accounts for what the library holds of it, bytes, and returns that. Where there is no room for so much, the socket is
   * cut: what it was sent cannot be taken back otherwise.
   */
  account(): number {
    const { wire, room } = this;
    if (wire === undefined) return 0;
    const bytes = wire.getBufferedAmount();
    if (bytes === 0 && this.unsent === undefined) return 0;
    const unsent = (this.unsent ??= this.holding());
    if (room.budget.set(unsent, bytes) !== 'held') {
      this.cut();
      return 0;
    }
    if (bytes === 0 && unsent.closing === undefined) this.unsent = undefined;
    return bytes;
  }

  private holding(): Unsent {
    const { tenantId } = this.actor;
    return new Unsent(tenantId, `${tenantId}/${this.deviceId}`, () => this.cut());
  }

  /** The reader took some of it. Returns what is left, bytes. */
  drained(): number {
    const left = this.account();
    const { unsent, wire } = this;
    if (unsent === undefined) return left;
    if (left > 0) this.room.budget.moved(unsent);
    else if (unsent.closing !== undefined) wire?.end(unsent.closing.code, unsent.closing.reason);
    return left;
  }

  /**
   * Closes it once its reader has taken what came before. After `end` the library keeps what is unsent for as long as
   * the reader takes a little of it now and then, and nobody would know: so a socket ends when it holds nothing, and is
   * cut when that takes long.
   */
  close(code: number, reason: string): void {
    const { wire, room } = this;
    if (wire === undefined || this.closing) return;
    if (this.account() === 0) {
      this.wire?.end(code, reason);
      return;
    }
    const unsent = (this.unsent ??= this.holding());
    unsent.closing = { code, reason, timer: room.clock.setTimer(CLOSE_GRACE_MS, () => this.cut()) };
  }

  /** Ends the connection at once, with all that is unsent. */
  private cut(): void {
    this.wire?.close();
  }

  /** The connection is gone. */
  gone(): void {
    this.wire = undefined;
    const { unsent } = this;
    if (unsent === undefined) return;
    this.unsent = undefined;
    unsent.closing?.timer.cancel();
    this.room.budget.release(unsent);
  }

  /** Answers the client itself, unless it has stopped reading. */
  answer(frame: string): void {
    if (this.wire !== undefined && this.wire.getBufferedAmount() < ANSWERS_MAX) this.send([frame]);
  }
}
