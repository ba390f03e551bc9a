/** How a device stands, in one look: for a status line, and for the command line's `doctor`. */
import { fingerprintOfMaster } from '../crypto/fingerprint.js';
import type { Cursor, Held } from './store/store.js';
import type { ProtocolFault, Uncertified } from './errors.js';
import type { DeviceEvents, Emitter, LineState } from './events.js';
import type { Identity } from './identity.js';
import type { ItemReader } from './item-reader.js';
import type { HiddenReason } from './reasons.js';
import { fingerprintOfDevice, type DeviceList } from './device-list.js';
import type { Core } from './core.js';

/** A device's state. Times and ages are ms, by this device's clock unless the field says otherwise. */
export interface DeviceStatus {
  readonly serverUrl: string;
  readonly tenantId: string;
  readonly deviceId: string;
  readonly state: 'open' | 'closed' | 'revoked';
  readonly line: LineState;
  /** Up to where the history is here, and which history it is. */
  readonly cursor: Cursor;
  /** The last time that everything was here; null: not since the program began. `complete` as in the event. */
  readonly caughtUp: {
    readonly at: number;
    readonly version: number;
    readonly complete: boolean | null;
  } | null;
  /** What the last completeness check could not get, null where it lacked nothing or was not made. */
  readonly missing: DeviceEvents['missing'] | null;
  /** Why the server is not read any more; null: it is, or nothing has stopped it since the program began. */
  readonly halted: { readonly code: ProtocolFault; readonly message: string } | null;
  /** Items that the server's history names, as they are counted in the completeness check. */
  readonly held: Held;
  /**
   * Own changes on their way. `waiting`: no reply has acknowledged them; the others wait for the stream only.
   * `oldestAgeMs`: of those that wait; null where none waits, or none says when it was made.
   */
  readonly pending: { readonly count: number; readonly waiting: number; readonly oldestAgeMs: number | null };
  /** What is here and not shown, by reason (`reasons.ts` says what each means). */
  readonly hidden: { readonly count: number; readonly byReason: Readonly<Partial<Record<HiddenReason, number>>> };
  /** Items held here that the server's history does not know (`republish` or `discard` them). */
  readonly orphaned: readonly string[];
  /** Null: the list was not read since the program began. `active`: not revoked. */
  readonly devices: { readonly active: number; readonly uncertified: readonly Uncertified[] } | null;
  /** When the token ends, in server time; null where the server did not say. */
  readonly tokenExpiresAt: number | null;
  /** The server's clock minus this device's; null: no answer has told it. Good to about a second. */
  readonly clockOffsetMs: number | null;
  /** What another device shows for this one. */
  readonly fingerprint: string;
  /** The same on all devices of one user: compare two screens. */
  readonly masterFingerprint: string;
}

/** Remembers the last of what is told once, and reads the rest when it is asked. */
export class DeviceStatusReader {
  private line: LineState = { state: 'closed' };
  private caughtUp: DeviceStatus['caughtUp'] = null;
  private missing: DeviceStatus['missing'] = null;
  private halted: DeviceStatus['halted'] = null;
  /** `missing` belongs to the `caught_up` that comes next. */
  private missingIsNew = false;

  constructor(
    private readonly options: Pick<Core, 'sodium' | 'clock' | 'store' | 'outbox' | 'clockOffset'> & {
      readonly items: ItemReader;
      readonly roster: DeviceList;
      readonly emitter: Emitter;
      readonly identity: () => Identity;
      readonly state: () => DeviceStatus['state'];
    },
  ) {
    const { emitter, clock } = options;
    emitter.on('line', (state) => {
      this.line = state;
    });
    emitter.on('missing', (event) => {
      this.missing = event;
      this.missingIsNew = true;
    });
    emitter.on('caught_up', ({ version, complete }) => {
      this.caughtUp = { at: clock.now(), version, complete };
      if (complete === true && !this.missingIsNew) this.missing = null;
      this.missingIsNew = false;
      this.halted = null;
    });
    emitter.on('halted', ({ error: { code, message } }) => {
      this.halted = { code, message };
    });
    emitter.on('reset', () => {
      this.missing = null;
    });
  }

  /** The standing now. Reads the store, asks nobody. */
  async read(): Promise<DeviceStatus> {
    const { sodium, store, items, roster, clockOffset, state } = this.options;
    const identity = this.options.identity();
    const { serverUrl, tenantId, deviceId, keys, masterKey, token } = identity;
    const [cursor, held, hidden, orphaned] = await Promise.all([
      store.cursor(),
      store.held(),
      items.hidden(),
      items.orphaned(),
    ]);
    const byReason: Partial<Record<HiddenReason, number>> = {};
    for (const { reason } of hidden) byReason[reason] = (byReason[reason] ?? 0) + 1;
    return {
      serverUrl,
      tenantId,
      deviceId,
      state: state(),
      line: this.line,
      cursor,
      caughtUp: this.caughtUp,
      missing: this.missing,
      halted: this.halted,
      held,
      pending: this.pending(),
      hidden: { count: hidden.length, byReason },
      orphaned,
      devices: roster.standing(),
      tokenExpiresAt: token.expiresAt,
      clockOffsetMs: clockOffset(),
      fingerprint: fingerprintOfDevice(sodium, { id: deviceId, pubkey: keys.publicKey }),
      masterFingerprint: fingerprintOfMaster(sodium, masterKey),
    };
  }

  private pending(): DeviceStatus['pending'] {
    const all = this.options.outbox.all();
    const waiting = all.filter(({ version }) => version === null);
    const made = waiting.flatMap((change) => {
      // A store that does not keep it: of a write its own time is close.
      const at = change.madeAt ?? (change.kind === 'write' && !change.rewrap ? change.row.ts : undefined);
      return at === undefined ? [] : [at];
    });
    const oldest = made.length === 0 ? null : made.reduce((one, other) => Math.min(one, other));
    // A clock that was set back since makes nothing younger than new.
    const oldestAgeMs = oldest === null ? null : Math.max(0, this.options.clock.now() - oldest);
    return { count: all.length, waiting: waiting.length, oldestAgeMs };
  }
}
