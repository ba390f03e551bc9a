/**
 * Limits per client address that hold across instances: pairing, password, challenges, signup, payment pages (see the
 * page Limits). A sliding window, so that no border between two of them admits twice as many.
 */
import { createHash } from 'node:crypto';
import type { Clock } from '../../protocol/clock.js';
import { ServiceError } from '../../protocol/errors.js';

/** What is limited; each purpose has a count of its own. */
export type RatePurpose =
  | 'pair'
  | 'password'
  | 'challenge'
  | 'signup'
  | 'payment'
  /** Webhooks whose signature does not hold. */
  | 'webhook'
  /** The page that checkout returns to, which looks again every ten seconds. */
  | 'return'
  /** Names that get their first certificate. */
  | 'certificate';

/** What the limits are made of. */
export interface AddressLimitsOptions {
  readonly store: {
    /** Counts one use of `key` (32 bytes) in the window, on all instances; 0 when admitted, else the ms to wait. */
    take(use: { key: Uint8Array; now: number; windowMs: number; limit: number }): Promise<number>;
  };
  readonly clock: Clock;
  /** RATE_PAIR_PER_MIN, for each purpose that has no limit of its own; 0: off. */
  readonly perMinute: number;
  /** Addresses remembered here. More addresses only cost more statements. */
  readonly maxRemembered?: number;
}

/** What this instance knows of an address and purpose. */
interface Known {
  /** Uses that were admitted, or are being asked for, oldest first. */
  used: number[];
  /** Refused until then. */
  until: number;
}

const MINUTE_MS = 60_000;
/** Uses that a window's list holds at most; a higher rate is the same rate in a shorter window. */
const LISTED_MAX = 500;
const REMEMBERED_MAX = 20_000;

/** So many uses within so long; `limit` 0: any number. */
interface Window {
  readonly limit: number;
  readonly ms: number;
}

const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
/** By day too, since names that nobody claims are freed after a day only. */
const SIGNUPS: readonly Window[] = [
  { limit: 5, ms: HOUR_MS },
  { limit: 10, ms: DAY_MS },
];
/** Whoever has a network has as many addresses as he likes. */
const NETWORK_SIGNUPS: readonly Window[] = [
  { limit: 20, ms: HOUR_MS },
  { limit: 50, ms: DAY_MS },
];
/** Below what certificate authorities take: Let's Encrypt has 300 orders in three hours, renewals among them. */
const CERTIFICATES: readonly Window[] = [{ limit: 60, ms: HOUR_MS }];
const RETURNS: readonly Window[] = [{ limit: 30, ms: MINUTE_MS }];

/** One count of a use. */
interface Count {
  readonly name: string;
  readonly window: Window;
}

/** An IPv4 /24 or an IPv6 /48 around what limits per address count by; anything else is its own. */
export function networkOf(address: string): string {
  const [, four] = /^(\d+\.\d+\.\d+)\.\d+$/.exec(address) ?? [];
  if (four !== undefined) return `${four}.0/24`;
  const [, six] = /^([0-9a-f]{12})[0-9a-f]{4}\/64$/.exec(address) ?? [];
  return six === undefined ? address : `${six}/48`;
}

/** An IPv4 /16 or an IPv6 /32 around what limits per address count by: what one provider has; anything else is its own. */
export function signupNetworkOf(address: string): string {
  const [, four] = /^(\d+\.\d+)\.\d+\.\d+$/.exec(address) ?? [];
  if (four !== undefined) return `${four}.0.0/16`;
  const [, six] = /^([0-9a-f]{8})[0-9a-f]{8}\/64$/.exec(address) ?? [];
  return six === undefined ? address : `${six}/32`;
}

const refusal = (waitMs: number): ServiceError =>
  new ServiceError('rate_limited', undefined, undefined, Math.max(1, Math.ceil(waitMs / 1_000)));

/** Limits by client address: judged here first, then by what all instances counted. */
export class AddressLimits {
  private readonly known = new Map<string, Known>();
  private readonly perMinute: Window;
  private readonly maxRemembered: number;

  constructor(private readonly options: AddressLimitsOptions) {
    const limit = Math.min(options.perMinute, LISTED_MAX);
    this.perMinute = { limit, ms: Math.max(1, Math.round((MINUTE_MS * limit) / Math.max(1, options.perMinute))) };
    this.maxRemembered = options.maxRemembered ?? REMEMBERED_MAX;
  }

  /**
   * Counts one use, or throws `rate_limited` with Retry-After. Judged here first: a flood from one address costs as
   * many statements as it has uses, no more. `address` is an IPv4 address or an IPv6 /64, in one spelling.
   */
  async take(purpose: RatePurpose, address: string): Promise<void> {
    for (const count of this.countsOf(purpose, address)) await this.takeOne(count);
  }

  private countsOf(purpose: RatePurpose, address: string): Count[] {
    const counts = (who: string, windows: readonly Window[]): Count[] =>
      windows.map((window) => ({ name: `${purpose} ${who}${window.ms === DAY_MS ? ' a day' : ''}`, window }));
    switch (purpose) {
      case 'signup':
        return [...counts(address, SIGNUPS), ...counts(networkOf(address), NETWORK_SIGNUPS)];
      case 'certificate':
        return counts(address, CERTIFICATES);
      case 'return':
        return this.perMinute.limit <= 0 ? [] : counts(address, RETURNS);
      default:
        return counts(address, [this.perMinute]);
    }
  }

  private async takeOne({ name, window }: Count): Promise<void> {
    if (window.limit <= 0) return;
    const now = this.options.clock.now();
    const known = this.recall(name, now - window.ms, now);
    if (known.until > now) throw refusal(known.until - now);
    if (known.used.length >= window.limit) throw refusal((known.used[0] ?? now) + window.ms - now);
    // Counted before the answer is there: calls that come meanwhile must not all ask.
    known.used.push(now);
    const key = createHash('sha256').update(name).digest();
    let waitMs: number;
    try {
      waitMs = await this.options.store.take({ key, now, windowMs: window.ms, limit: window.limit });
    } catch (error) {
      forget(known, now);
      throw error;
    }
    if (waitMs <= 0) return;
    forget(known, now);
    known.until = Math.max(known.until, now + waitMs);
    throw refusal(waitMs);
  }

  private recall(name: string, from: number, now: number): Known {
    const found = this.known.get(name) ?? { used: [], until: 0 };
    found.used = found.used.filter((at) => at > from && at <= now);
    // Last again in the map's order, so that what goes first is what was quiet longest.
    this.known.delete(name);
    for (const oldest of this.known.keys()) {
      if (this.known.size < this.maxRemembered) break;
      this.known.delete(oldest);
    }
    this.known.set(name, found);
    return found;
  }
}

function forget(known: Known, at: number): void {
  const index = known.used.indexOf(at);
  if (index >= 0) known.used.splice(index, 1);
}
