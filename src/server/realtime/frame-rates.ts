/**
 * Rate limits of sockets. Frames and bytes are counted per socket (FAIR-20). Frames larger than any that our clients
 * send are also counted per device, tenant and process, since parsing them blocks the event loop (FAIR-23).
 */
import type { Clock } from '../../protocol/clock.js';
import {
  FRAME_BURST,
  FRAME_BYTES_PER_S,
  FRAMES_PER_S,
  LARGE_FRAME_BYTES_PER_S,
  LARGE_FRAME_MIN,
} from '../../protocol/limits.js';

const FRAME_MS = 1_000 / FRAMES_PER_S;
const FRAMES_MS_MAX = FRAME_BURST * FRAME_MS;
/** Bytes are counted in units, so that both counts fit in one small integer. */
const UNIT_BYTES = 64;
const UNITS_PER_S = FRAME_BYTES_PER_S / UNIT_BYTES;
/** Larger than any count of units. */
const FIELD = 2 * UNITS_PER_S;

/** The result of `charge` when the rate is exceeded. */
export const OVER = -1;

/**
 * Counts a frame. `said` is the result for the previous frame, `elapsedMs` ago; 0 for the first. Both leaky buckets are
 * in one number, since there may be a million sockets.
 */
export function charge(said: number, elapsedMs: number, bytes: number): number {
  const passedMs = Math.max(0, elapsedMs);
  const frames = Math.max(0, Math.floor(said / FIELD) - Math.ceil(passedMs)) + FRAME_MS;
  const units = Math.max(0, (said % FIELD) - Math.ceil((passedMs * UNITS_PER_S) / 1_000));
  const after = units + Math.ceil(bytes / UNIT_BYTES);
  return frames > FRAMES_MS_MAX || after > UNITS_PER_S ? OVER : frames * FIELD + after;
}

interface Level {
  bytes: number;
  at: number;
}

/** A bucket holds one second's worth: after this time without use, ms, it is empty, the same as none. */
const EMPTY_MS = 1_000;

/** Leaky buckets by name, in two generations: by the time a generation is dropped, its buckets are empty. */
class Levels {
  private current = new Map<string, Level>();
  private previous = new Map<string, Level>();
  private turnedAt = 0;

  constructor(readonly perS: number) {}

  /** Names that were used in the current second. */
  get size(): number {
    return this.current.size;
  }

  /** The bucket, drained up to now. */
  at(name: string, now: number): Level {
    if (now - this.turnedAt >= EMPTY_MS || now < this.turnedAt) {
      this.previous = this.current;
      this.current = new Map();
      this.turnedAt = now;
    }
    let level = this.current.get(name);
    if (level === undefined) {
      level = this.previous.get(name) ?? { bytes: 0, at: now };
      this.current.set(name, level);
    }
    level.bytes = Math.max(0, level.bytes - (Math.max(0, now - level.at) * this.perS) / 1_000);
    level.at = now;
    return level;
  }
}

/** Bytes of large frames that the process parses: a tenant may use a quarter of the rate, a device a sixteenth. */
export class LargeFrames {
  private readonly process = new Levels(LARGE_FRAME_BYTES_PER_S);
  private readonly tenants = new Levels(LARGE_FRAME_BYTES_PER_S / 4);
  private readonly devices = new Levels(LARGE_FRAME_BYTES_PER_S / 16);

  constructor(private readonly clock: Clock) {}

  /** Counts a frame. False: it exceeds the rate of its device, tenant or the process, and must not be parsed. */
  take(tenantId: string, deviceId: string, bytes: number): boolean {
    if (bytes < LARGE_FRAME_MIN) return true;
    const now = this.clock.now();
    const device = this.devices.at(`${tenantId}/${deviceId}`, now);
    const tenant = this.tenants.at(tenantId, now);
    const all = this.process.at('', now);
    if (device.bytes + bytes > this.devices.perS || tenant.bytes + bytes > this.tenants.perS) return false;
    // When the process is at its rate, only tenants that used more than an equal share of it are refused.
    if (all.bytes + bytes > this.process.perS && tenant.bytes > this.process.perS / this.tenants.size) return false;
    for (const level of [device, tenant, all]) level.bytes += bytes;
    return true;
  }
}
