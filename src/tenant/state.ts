/** A tenant's state in memory. A cache: PostgreSQL has the truth, and all of this may be lost at any time (contract 13). */
import type { Summary } from '../protocol/item.js';
import { DEFAULT_BIN } from '../protocol/limits.js';
import type { Effect, Pending } from './messages.js';
import type { DeviceStanding, LogRow, PairRequest, TenantSnapshot } from './ports.js';
import { Recent } from './recent.js';
import type { ChangeRing } from './ring.js';
import { CLOSED, type Session } from './session.js';

export interface TenantState {
  readonly tenantId: string;
  /** Names the history that versions belong to (contract 11). */
  readonly epoch: string;
  /** When the message in hand came, ms. */
  now: number;
  /** active, past_due, suspended, inactive, pending (contract 12). */
  standing: string;
  generation: number;
  devices: ReadonlyMap<string, DeviceStanding>;
  /** Bins that take writes. */
  bins: ReadonlySet<string>;
  pairRequests: readonly PairRequest[];

  /** Everything up to here went through `deliver`, exactly once and in order. */
  delivered: number;
  /** Count and version sum at `summary.version`; exact for `delivered` when the two are equal. */
  summary: Summary;
  /** The highest head heard of. Above `delivered`, a gap is being read or about to be. */
  knownHead: number;
  gapReading: boolean;
  /** Committed here while a gap was read, in version order, and the sums at the last of them. */
  held: readonly LogRow[];
  heldSummary: Summary | null;
  /** The highest head heard of when the gap under way, or the last one, began to be read. */
  gapFor: number;

  /** Changes whose checks turned out to be stale, until the snapshot they wait for is here. */
  waiting: Pending[];
  reloading: boolean;
  /** A newer generation was heard of while a reload was under way: what that one reads may be older. */
  reloadAgain: boolean;

  readonly sessions: Set<Session>;
  readonly recent: Recent;
  /** Revoked devices whose key purge was started by this actor. */
  readonly purging: Set<string>;
}

const NONE_HELD: readonly LogRow[] = [];

/** The state of a tenant that was just read; `ring` keeps its last changes, beside those of others. */
export function initialState(snapshot: TenantSnapshot, epoch: string, ring: ChangeRing): TenantState {
  return {
    tenantId: snapshot.tenantId,
    epoch,
    now: 0,
    standing: snapshot.state,
    generation: snapshot.generation,
    devices: devicesOf(snapshot),
    bins: binsOf(snapshot),
    pairRequests: snapshot.pairRequests,
    delivered: snapshot.summary.version,
    summary: snapshot.summary,
    knownHead: snapshot.summary.version,
    gapReading: false,
    held: NONE_HELD,
    heldSummary: null,
    gapFor: snapshot.summary.version,
    waiting: [],
    reloading: false,
    reloadAgain: false,
    sessions: new Set(),
    recent: new Recent(snapshot.summary.version, ring),
    purging: new Set(),
  };
}

/** Lean copies: names and keys stay in the database, a million devices are held here. */
export function devicesOf(snapshot: TenantSnapshot): Map<string, DeviceStanding> {
  return new Map(
    snapshot.devices.map(({ id, tokenEpoch, revoked, keysPurged }) => [id, { id, tokenEpoch, revoked, keysPurged }]),
  );
}

/** Most tenants have this one bin: they share the set. */
const ONLY_DEFAULT: ReadonlySet<string> = new Set([DEFAULT_BIN]);

export function binsOf(snapshot: TenantSnapshot): ReadonlySet<string> {
  const [only, ...more] = snapshot.bins.filter((bin) => bin.open);
  if (only?.id === DEFAULT_BIN && more.length === 0) return ONLY_DEFAULT;
  return new Set(snapshot.bins.filter((bin) => bin.open).map((bin) => bin.id));
}

/**
 * Takes a session out and has its socket closed. Both in one step: however long the close takes, nothing more is sent
 * to a socket that has lost its right or its place in the history.
 */
export function dismiss(state: TenantState, session: Session, because: { code: number; reason: string }): Effect {
  session.phase = CLOSED;
  state.sessions.delete(session);
  return { kind: 'close', session, ...because };
}
