/**
 * Limits per client address that hold across instances: pairing, password, challenges, signup, payment pages, guesses at
 * the operator's tokens (reference, HTTP, Rates). The window slides, because fixed windows would admit twice as many uses
 * around their boundary.
 */
import { isIPv4 } from 'node:net';
import { type Clock, DAY_MS, HOUR_MS, MINUTE_MS } from '../../protocol/clock.js';
import { rateLimited, type ServiceError } from '../../protocol/errors.js';
import { sha256 } from './tokens.js';

/** What is limited; each purpose is counted separately. */
type RatePurpose =
  | 'pair'
  | 'password'
  | 'challenge'
  | 'signup'
  | 'payment'
  /** Webhooks with an invalid signature. */
  | 'webhook'
  /** Wrong values of ADMIN_TOKEN and BOOTSTRAP_TOKEN, which people choose: they can be guessed. */
  | 'guess'
  /** The page that checkout returns to, which reloads every ten seconds. */
  | 'return';

/** This instance's counts for one address and purpose. */
interface Known {
  /** Uses that were admitted or are being counted, oldest first. */
  used: number[];
  /** All uses are refused until this time, ms since 1970. */
  until: number;
}

/** Most uses in a window's list; a higher rate is applied as the same rate over a shorter window. */
const LISTED_MAX = 500;
const REMEMBERED_MAX = 20_000;

/** At most `limit` uses in any period of `ms`. */
interface Window {
  readonly limit: number;
  readonly ms: number;
}

/** Also per day, since unclaimed names are freed only after a day. */
const SIGNUPS: readonly Window[] = [
  { limit: 5, ms: HOUR_MS },
  { limit: 10, ms: DAY_MS },
];
/** For a whole network, since its owner can use any number of addresses. */
const NETWORK_SIGNUPS: readonly Window[] = [
  { limit: 20, ms: HOUR_MS },
  { limit: 50, ms: DAY_MS },
];
/** Below the limits of certificate authorities: Let's Encrypt allows 300 orders in three hours, renewals included. */
const CERTIFICATES: Window = { limit: 60, ms: HOUR_MS };
/** A name is counted once in this time, ms: else each of several instances would count it again. */
const CERTIFICATE_MS = 30 * DAY_MS;
/**
 * A network may guess tokens and passwords this many times as often as one address: the owner of an IPv6 /48 has 65,536
 * of them.
 */
const NETWORK_GUESSES = 10;
const RETURNS: readonly Window[] = [{ limit: 30, ms: MINUTE_MS }];

/** The network of a `limitKey`: its first `ofIPv4` or `ofIPv6` bytes. Other keys are returned unchanged. */
function networkOfBytes(address: string, ofIPv4: number, ofIPv6: number): string {
  if (isIPv4(address)) {
    const bytes = address.split('.').map((byte, n) => (n < ofIPv4 ? byte : '0'));
    return `${bytes.join('.')}/${8 * ofIPv4}`;
  }
  return /^[0-9a-f]{16}\/64$/.test(address) ? `${address.slice(0, 2 * ofIPv6)}/${8 * ofIPv6}` : address;
}

/** The IPv4 /24 or IPv6 /48 of a `limitKey`. */
export const networkOf = (address: string): string => networkOfBytes(address, 3, 6);

/** The IPv4 /16 or IPv6 /32, which belongs to one provider, of a `limitKey`. */
export const signupNetworkOf = (address: string): string => networkOfBytes(address, 2, 4);

const refusal = (waitMs: number): ServiceError => rateLimited(undefined, waitMs / 1_000);

/** Limits by client address: checked against this instance's counts first, then against those of all instances. */
export class AddressLimits {
  private readonly known = new Map<string, Known>();
  private readonly perMinute: Window;

  constructor(
    private readonly options: {
      /** See src/server/storage/rate-store.ts. */
      readonly store: {
        take(key: Uint8Array, now: number, window: Window): Promise<number>;
        takeOnce(once: { key: Uint8Array; ms: number }, key: Uint8Array, now: number, window: Window): Promise<number>;
        wait(key: Uint8Array, now: number, window: Window): Promise<number>;
      };
      readonly clock: Clock;
      /** RATE_PAIR_PER_MIN, for each purpose that has no limit of its own; 0: off. */
      readonly perMinute: number;
    },
  ) {
    const limit = Math.min(options.perMinute, LISTED_MAX);
    this.perMinute = { limit, ms: Math.max(1, Math.round((MINUTE_MS * limit) / Math.max(1, options.perMinute))) };
  }

  /**
   * Counts one use, or throws `rate_limited` with Retry-After. A flood from one address executes statements for the
   * admitted uses only. `address` is what `limitKey` returns; a device's limit has its owner in place of it.
   */
  async take(purpose: RatePurpose, address: string): Promise<void> {
    for (const [name, window] of this.countsOf(purpose, address))
      await this.takeOne(name, window, (now) => this.options.store.take(sha256(name), now, window));
  }

  /** Counts a name that gets its first certificate, once on all instances. Throws as `take`. */
  takeCertificate(slug: string): Promise<void> {
    const name = 'certificate all';
    const once = { key: sha256(`certificate of ${slug}`), ms: CERTIFICATE_MS };
    return this.takeOne(name, CERTIFICATES, (now) =>
      this.options.store.takeOnce(once, sha256(name), now, CERTIFICATES),
    );
  }

  /**
   * An operator's token was sent, the right one or a wrong one. A wrong one counts. While none is left to the address,
   * the right one is refused too, else guessing would go on behind the refusals; so it queries the counts of all
   * instances as well, and is refused where they cannot be read. Throws as `take`.
   */
  async guess(address: string, isRight: boolean): Promise<void> {
    if (!isRight) return this.take('guess', address);
    for (const [name, window] of this.countsOf('guess', address)) {
      const now = this.options.clock.now();
      const known = this.usable(name, window, now);
      refuseFor(known, now, await this.options.store.wait(sha256(name), now, window));
    }
  }

  private countsOf(purpose: RatePurpose, address: string): (readonly [name: string, window: Window])[] {
    const counts = (of: string, windows: readonly Window[]) =>
      windows.map((window) => [`${purpose} ${of}${window.ms === DAY_MS ? ' a day' : ''}`, window] as const);
    const network = networkOf(address);
    if (purpose === 'signup') return [...counts(address, SIGNUPS), ...counts(network, NETWORK_SIGNUPS)];
    if (purpose === 'return') return counts(address, RETURNS);
    if (this.options.perMinute <= 0) return [];
    const own = counts(address, [this.perMinute]);
    // A device, whose guesses count for its owner from whatever address, is in no network.
    if ((purpose !== 'guess' && purpose !== 'password') || network === address) return own;
    const limit = Math.min(LISTED_MAX, NETWORK_GUESSES * this.perMinute.limit);
    return [...own, ...counts(network, [{ ...this.perMinute, limit }])];
  }

  private async takeOne(name: string, window: Window, count: (now: number) => Promise<number>): Promise<void> {
    const now = this.options.clock.now();
    const known = this.usable(name, window, now);
    // Counted before the statement runs: else each of several concurrent uses would execute one.
    known.used.push(now);
    // A use that could not be counted, or was not admitted, is none.
    const waitMs = await count(now).catch((error: unknown) => {
      forget(known, now);
      throw error;
    });
    if (waitMs !== 0) forget(known, now);
    refuseFor(known, now, waitMs);
  }

  /** What this instance knows of the uses in the window. Throws where none is left. */
  private usable(name: string, { limit, ms }: Window, now: number): Known {
    const known = this.recall(name, now - ms, now);
    // The store counts uses up to one window ahead, so it never returns a wait this long: the clock was set back since.
    if (known.until > now + 2 * ms) known.until = 0;
    if (known.until > now) throw refusal(known.until - now);
    if (known.used.length >= limit) throw refusal((known.used[0] ?? now) + ms - now);
    return known;
  }

  private recall(name: string, from: number, now: number): Known {
    const found = this.known.get(name) ?? { used: [], until: 0 };
    found.used = found.used.filter((at) => at > from && at <= now);
    // Inserted again at the end of the map's order: the first entry is the one unused for longest.
    this.known.delete(name);
    for (const oldest of this.known.keys()) {
      if (this.known.size < REMEMBERED_MAX) break;
      this.known.delete(oldest);
    }
    this.known.set(name, found);
    return found;
  }
}

/** Throws, and remembers the refusal, where the store said to wait. */
function refuseFor(known: Known, now: number, waitMs: number): void {
  if (waitMs <= 0) return;
  known.until = Math.max(known.until, now + waitMs);
  throw refusal(waitMs);
}

function forget(known: Known, at: number): void {
  const index = known.used.indexOf(at);
  if (index >= 0) known.used.splice(index, 1);
}
