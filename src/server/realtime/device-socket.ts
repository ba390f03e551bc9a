/** One device socket: sending, accounting for unsent bytes, and closing. */
import type { WebSocket } from 'uWebSockets.js';
import type { Timer } from '../../protocol/clock.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { HELLO_TIMEOUT_MS } from '../../protocol/limits.js';
import type { Shape } from '../../protocol/shape.js';
import type { FrameBytes, SocketPort } from '../tenant/ports.js';
import type { Session } from '../tenant/session.js';
import type { Caller } from '../http/authenticate.js';
import type { TenantActor } from '../http/ports.js';
import { type FairBudget, Holding } from '../http/limits.js';
import { TimerEntry } from './wheel.js';

/** A peer that sends pings but does not read gets no more answers beyond this backlog, bytes. */
const ANSWERS_MAX = 16 * 1024;
/** A closing socket whose peer does not read the unsent bytes is cut off after this time, ms. */
const CLOSE_GRACE_MS = 5_000;

/** The user data of a socket in uWebSockets.js. */
export interface SocketData {
  /** Undefined: it was upgraded only to be closed with a time to come back. */
  socket: DeviceSocket | undefined;
}

export type Wire = WebSocket<SocketData>;

// The frames of the current send. `cork` calls back before it returns, so these variables replace a closure per send.
let corkWire: Wire | undefined;
let corkFrames: readonly FrameBytes[] = [];
let corkDropped = false;

/** Results of the library's `send`: all bytes are with the kernel; the frame was dropped, since too many bytes wait. */
const SENT = 1;
const DROPPED = 2;

function sendCorked(): void {
  for (const frame of corkFrames) if (corkWire?.send(frame) === DROPPED) corkDropped = true;
}

/** The bytes that the library buffers for one socket; exists only while there are any. */
class Unsent extends Holding {
  /** The close frame that follows once the peer has read what is buffered; undefined: the socket stays open. */
  closing: { readonly code: number; readonly reason: string; readonly timer: Timer } | undefined;
}

/** One socket. A million may be open, so it has few fields and no closures, and the wheel keeps its timers. */
export class DeviceSocket extends TimerEntry implements SocketPort {
  readonly deviceId: string;
  readonly tokenEpoch: number;
  readonly actor: TenantActor;
  /** When the token expires, s, rounded down. Milliseconds would be too large for a small integer: a heap object. */
  private readonly expiry: number;
  /** Deadline of the `hello`, ms; undefined after it, again to avoid a heap object. */
  helloBy: number | undefined;
  /** Time of the last frame, ms since `Sockets` was created: a small integer for weeks, and so no heap object. */
  lastSeen = 0;
  /** The state of its rates (see `charge`). */
  said = 0;
  session: Session | undefined;
  /** Undefined before the upgrade has completed and after the close: nothing is sent then. */
  wire: Wire | undefined;
  private unsent: Unsent | undefined;

  /** @param budget for the unsent bytes, shared by all sockets of the process. */
  constructor(
    { actor, device, claims }: Pick<Caller, 'actor' | 'device' | 'claims'>,
    readonly shape: Shape,
    private readonly budget: FairBudget,
  ) {
    super();
    this.actor = actor;
    // Not the text in the claims, which would be another one for each socket.
    this.deviceId = device.id;
    this.tokenEpoch = claims.epoch;
    this.expiry = Math.floor(claims.expiresAt / 1_000);
    this.helloBy = budget.clock.now() + HELLO_TIMEOUT_MS;
  }

  /** When the token used to open it expires, ms. */
  get expiresAt(): number {
    return this.expiry * 1_000;
  }

  /** It is closing: it neither reads nor sends any more. */
  get closing(): boolean {
    return this.unsent?.closing !== undefined;
  }

  send(frames: readonly FrameBytes[]): number {
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
    // A dropped frame is a gap that the client cannot detect: it must reconnect with its cursor.
    this.close(CLOSE.overloaded, 'overloaded');
    return 0;
  }

  /**
   * Charges the bytes that the library buffers to the budget, and returns them. If the budget refuses, the socket is
   * cut off: nothing else frees the library's buffer.
   */
  account(): number {
    const { wire, budget } = this;
    if (wire === undefined) return 0;
    const bytes = wire.getBufferedAmount();
    if (bytes === 0 && this.unsent === undefined) return 0;
    const unsent = (this.unsent ??= this.holding());
    if (budget.set(unsent, bytes) !== 'held') {
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

  /** The peer has read part of the buffer. Returns the bytes left. */
  drained(): number {
    const left = this.account();
    const { unsent, wire } = this;
    if (unsent === undefined) return left;
    if (left > 0) this.budget.moved(unsent);
    else if (unsent.closing !== undefined) wire?.end(unsent.closing.code, unsent.closing.reason);
    return left;
  }

  /**
   * Closes it once its peer has read the unsent bytes. After `end` the library would keep them, outside of the budget,
   * as long as the peer reads a few now and then: so `end` is called when nothing is unsent, and a socket for which
   * that takes long is cut off.
   */
  close(code: number, reason: string): void {
    const { wire, budget } = this;
    if (wire === undefined || this.closing) return;
    if (this.account() === 0) {
      this.wire?.end(code, reason);
      return;
    }
    const unsent = (this.unsent ??= this.holding());
    unsent.closing = { code, reason, timer: budget.clock.setTimer(CLOSE_GRACE_MS, () => this.cut()) };
  }

  /** Closes the connection at once, and drops unsent bytes. */
  private cut(): void {
    this.wire?.close();
  }

  /** The connection was closed. */
  gone(): void {
    this.wire = undefined;
    const { unsent } = this;
    if (unsent === undefined) return;
    this.unsent = undefined;
    unsent.closing?.timer.cancel();
    this.budget.release(unsent);
  }

  /** Answers a frame of the client, unless the client has stopped reading. */
  answer(frame: string): void {
    if (this.wire !== undefined && this.wire.getBufferedAmount() < ANSWERS_MAX) this.send([frame]);
  }
}
