/** A tenant's state in memory. A cache: PostgreSQL is authoritative, and all of this may be lost at any time. */
import { DEFAULT_BIN } from '../../protocol/limits.js';
import type { Change } from './change.js';
import type { Effect } from './messages.js';
import type { DeviceState, PairRequest, TenantSnapshot } from './ports.js';
import { Delivery, type FrameRing } from './deliver.js';
import { CLOSED, type Session } from './session.js';

export class TenantState extends Delivery {
  readonly tenantId: string;
  /** Arrival time of the current message, ms. */
  now = 0;
  /** active, past_due, suspended, inactive, pending (reference, HTTP, States of a tenant). */
  billingState: string;
  generation: number;
  devices: ReadonlyMap<string, DeviceState>;
  activeDevices: number;
  /** Stored keys may still contain entries of a revoked device. */
  unpurged: boolean;
  /** Bins that accept writes. */
  bins: ReadonlySet<string>;
  pairRequests: readonly PairRequest[];

  /** Changes checked against an outdated state; they wait for the next reload. */
  readonly waiting: Change[] = [];
  reloading = false;
  /** A newer generation was announced during a reload, which may read an older state. */
  reloadAgain = false;

  /** Revoked devices whose key purge was started by this actor; null before the first. */
  purging: Set<string> | null = null;

  /** @param epoch names the history that versions belong to (reference, Sockets). */
  constructor(
    snapshot: TenantSnapshot,
    readonly epoch: string,
    ring: FrameRing,
  ) {
    super(snapshot.summary, ring);
    this.tenantId = snapshot.tenantId;
    this.billingState = snapshot.state;
    this.generation = snapshot.generation;
    ({ devices: this.devices, activeDevices: this.activeDevices, unpurged: this.unpurged } = devicesOf(snapshot));
    this.bins = binsOf(snapshot);
    this.pairRequests = snapshot.pairRequests;
  }
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
