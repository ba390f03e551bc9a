/** A tenant's state in memory. A cache: PostgreSQL is authoritative, and all of this may be lost at any time. */
import { DEFAULT_BIN } from '../../protocol/limits.js';
import type { Change } from './change.js';
import type { Effect } from './messages.js';
import type { DeviceState, PairRequest, TenantSnapshot } from './ports.js';
import { NONE_HELD, RecentFrames, type Delivery, type FrameRing } from './deliver.js';
import { CLOSED, type Session } from './session.js';

export interface TenantState extends Delivery {
  readonly tenantId: string;
  /** Names the history that versions belong to (reference, Sockets). */
  readonly epoch: string;
  /** Arrival time of the current message, ms. */
  now: number;
  /** active, past_due, suspended, inactive, pending (reference, HTTP, States of a tenant). */
  billingState: string;
  generation: number;
  devices: ReadonlyMap<string, DeviceState>;
  /** Devices that are not revoked. */
  activeDevices: number;
  /** Stored keys may still contain entries of a revoked device. */
  unpurged: boolean;
  /** Bins that accept writes. */
  bins: ReadonlySet<string>;
  pairRequests: readonly PairRequest[];

  /** Changes checked against an outdated state; they wait for the next reload. */
  waiting: Change[];
  reloading: boolean;
  /** A newer generation was announced during a reload, which may read an older state. */
  reloadAgain: boolean;

  /** Revoked devices whose key purge was started by this actor; null before the first. */
  purging: Set<string> | null;
}

/** The state of a tenant that was just read; `ring` keeps its last changes, and those of other tenants. */
export function initialState(snapshot: TenantSnapshot, epoch: string, ring: FrameRing): TenantState {
  return {
    tenantId: snapshot.tenantId,
    epoch,
    now: 0,
    billingState: snapshot.state,
    generation: snapshot.generation,
    ...devicesOf(snapshot),
    bins: binsOf(snapshot),
    pairRequests: snapshot.pairRequests,
    delivered: snapshot.summary.version,
    summary: snapshot.summary,
    knownHead: snapshot.summary.version,
    gapReading: false,
    gapHead: 0,
    held: NONE_HELD,
    heldSummary: null,
    headAtGapRead: snapshot.summary.version,
    waiting: [],
    reloading: false,
    reloadAgain: false,
    sessions: new Set(),
    recent: { a: new RecentFrames('a', snapshot.summary.version, ring), b: null },
    ring,
    purging: null,
  };
}

type Devices = Pick<TenantState, 'devices' | 'activeDevices' | 'unpurged'>;

/** Copies without names and keys, which stay in the database: a million devices are held here. */
export function devicesOf(snapshot: TenantSnapshot): Devices {
  return {
    devices: new Map(
      snapshot.devices.map(({ id, tokenEpoch, revoked, keysPurged }) => [
        id,
        { id, tokenEpoch, revoked, keysPurged, notedAt: 0 },
      ]),
    ),
    activeDevices: snapshot.devices.filter(({ revoked }) => !revoked).length,
    unpurged: snapshot.devices.some(({ revoked, keysPurged }) => revoked && !keysPurged),
  };
}

/** Shared, since most tenants have only this bin. */
const ONLY_DEFAULT: ReadonlySet<string> = new Set([DEFAULT_BIN]);

export function binsOf(snapshot: TenantSnapshot): ReadonlySet<string> {
  const open = snapshot.bins.filter((bin) => bin.open).map((bin) => bin.id);
  return open.length === 1 && open[0] === DEFAULT_BIN ? ONLY_DEFAULT : new Set(open);
}

/**
 * Removes a session and closes its socket. Both in one step: however long the close takes, nothing more is sent to a
 * socket that has lost its authorization or its position in the history.
 */
export function dismiss(state: TenantState, session: Session, because: { code: number; reason: string }): Effect {
  session.phase = CLOSED;
  state.sessions.delete(session);
  return { kind: 'close', session, ...because };
}
