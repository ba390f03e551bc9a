/** The status of a device as one value, for a status line. */
import { fingerprintOfMaster } from '../crypto/fingerprint.js';
import type { Cursor, Held } from './store/store.js';
import type { ProtocolFault, Uncertified } from './errors.js';
import type { DeviceEvents, Emitter, ConnectionState } from './events.js';
import type { Identity } from './identity.js';
import type { ItemReader } from './item-reader.js';
import type { HiddenReason } from './reasons.js';
import { fingerprintOfDevice, type DeviceList } from './device-list.js';
import type { Core } from './core.js';

/** The status of a device. Times and ages are ms, by this device's clock unless the field says otherwise. */
export interface DeviceStatus extends Pick<Identity, 'serverUrl' | 'tenantId' | 'deviceId'> {
  readonly state: 'open' | 'closed' | 'revoked';
  readonly connection: ConnectionState;
  /** The position up to which the history was applied. */
  readonly cursor: Cursor;
  /** The last `caught_up` since the program started, and when it was; null: none. */
  readonly caughtUp: (DeviceEvents['caught_up'] & { readonly at: number }) | null;
  /** The items that the last completeness check found missing; null where none were, or no check was made. */
  readonly missing: DeviceEvents['missing'] | null;
  /**
   * Why reading from the server was stopped; null while it is read, or if nothing stopped it since the program
   * started.
   */
  readonly halted: { readonly code: ProtocolFault; readonly message: string } | null;
  /** Items of the server's history, as the completeness check counts them. */
  readonly held: Held;
  /**
   * Changes of this device in the outbox. `waiting`: not acknowledged by a reply; the others are acknowledged and not
   * yet confirmed by the stream. `oldestAgeMs`: of the waiting ones; null where there are none, or none has a time.
   */
  readonly pending: { readonly count: number; readonly waiting: number; readonly oldestAgeMs: number | null };
  /** Items that are stored and not shown, by reason (see `reasons.ts`). */
  readonly hidden: { readonly count: number; readonly byReason: Readonly<Partial<Record<HiddenReason, number>>> };
  /** Items stored here that the server's history does not have (`republish` or `discard` them). */
  readonly orphaned: readonly string[];
  /** Null: the list was not read since the program started. `active`: not revoked. */
  readonly devices: { readonly active: number; readonly uncertified: readonly Uncertified[] } | null;
  /** When the token expires, in server time; null if the server did not report it. */
  readonly tokenExpiresAt: number | null;
  /** The server's clock minus this device's, accurate to about a second; null where no reply had a `Date`. */
  readonly clockOffsetMs: number | null;
  /** The fingerprint that other devices show for this one. */
  readonly fingerprint: string;
  /** Equal on all devices of one user: compare two screens. */
  readonly masterFingerprint: string;
}

/** Keeps the last event of each kind that the status contains, and reads the rest on demand. */
export class DeviceStatusReader {
  private last: Pick<DeviceStatus, 'connection' | 'caughtUp' | 'missing' | 'halted'> = {
    ...{ connection: { state: 'closed' }, caughtUp: null, missing: null, halted: null },
  };
  /** From a `missing` event to the `caught_up` of the same check, which follows it. */
  private missingIsNew = false;

  constructor(
    private readonly options: Pick<Core, 'sodium' | 'clock' | 'store' | 'outbox' | 'clockOffset'> & {
      readonly items: ItemReader;
      readonly deviceList: DeviceList;
      readonly emitter: Emitter;
      readonly identity: () => Identity;
      readonly state: () => DeviceStatus['state'];
    },
  ) {
    const { emitter, clock } = options;
    const set = (last: Partial<typeof this.last>): void => void (this.last = { ...this.last, ...last });
    emitter.on('connection', (connection) => set({ connection }));
    emitter.on('missing', (missing) => {
      set({ missing });
      this.missingIsNew = true;
    });
    emitter.on('caught_up', (event) => {
      set({ caughtUp: { at: clock.now(), ...event }, halted: null });
      if (event.complete === true && !this.missingIsNew) set({ missing: null });
      this.missingIsNew = false;
    });
    emitter.on('halted', ({ error: { code, message } }) => set({ halted: { code, message } }));
    emitter.on('reset', () => set({ missing: null }));
  }

  /** The current status. Reads the store, sends nothing. */
  async read(): Promise<DeviceStatus> {
    const { sodium, store, items, deviceList, clockOffset, state } = this.options;
    const { serverUrl, tenantId, deviceId, keys, masterKey, token } = this.options.identity();
    const [cursor, held, hidden, orphaned] = await Promise.all([
      store.cursor(),
      store.held(),
      items.hidden(),
      items.orphaned(),
    ]);
    const byReason: Partial<Record<HiddenReason, number>> = {};
    for (const { reason } of hidden) byReason[reason] = (byReason[reason] ?? 0) + 1;
    return {
      ...{ serverUrl, tenantId, deviceId, ...this.last, cursor, held, orphaned },
      state: state(),
      pending: this.pending(),
      hidden: { count: hidden.length, byReason },
      devices: deviceList.counts(),
      tokenExpiresAt: token.expiresAt,
      clockOffsetMs: clockOffset(),
      fingerprint: fingerprintOfDevice(sodium, { id: deviceId, pubkey: keys.publicKey }),
      masterFingerprint: fingerprintOfMaster(sodium, masterKey),
    };
  }

  /** Changes that wait; reads nothing. */
  pending(): DeviceStatus['pending'] {
    const all = this.options.outbox.all();
    const waiting = all.filter(({ version }) => version === null);
    // Without `madeAt` (the store does not keep it), the `ts` of a write is close enough.
    const made = waiting.flatMap(
      (change) => change.madeAt ?? (change.kind === 'write' && !change.rewrap ? change.row.ts : []),
    );
    const oldest = made.length === 0 ? null : made.reduce((one, other) => Math.min(one, other));
    // The clock may have been set back since.
    const oldestAgeMs = oldest === null ? null : Math.max(0, this.options.clock.now() - oldest);
    return { count: all.length, waiting: waiting.length, oldestAgeMs };
  }
}
