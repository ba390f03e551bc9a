/**
 * The state of this browser (empty, locked, or an open device) and the calls that change it. Everything that a screen
 * shows is a value of this engine or of its open device (`session.ts`).
 */
import { every, monotonic, type Timer } from '../../protocol/clock.js';
import { Serial } from '../../protocol/serial.js';
import { PublicApi } from '../../sdk/api.js';
import { ClientError, isTransient } from '../../sdk/errors.js';
import { Http } from '../../sdk/http.js';
import { Device } from '../../sdk/device.js';
import type { SavableIdentity } from '../../sdk/identity.js';
import type { Platform } from '../../sdk/platform.js';
import { openBrowserStore, removeIndexed } from '../../sdk/store/browser-store.js';
import { problemOf } from '../link/host.js';
import { type Failure, type NewLock, type Opener, type Phase } from '../link/messages.js';
import { Cell } from './cell.js';
import { Enrolment, Offers, type Method } from './enrolment.js';
import { ForeignImports } from './foreign.js';
import type { KeyValue } from './key-value.js';
import { Session } from './session.js';
import { Vault } from './vault.js';

/** Interval between checks of the lock's time limit, ms. */
const LOCK_EVERY_MS = 5_000;

/** Longest wait for the store: a closed tab holds it until its worker has ended, which takes seconds on a busy machine. */
const STORE_WAIT_MS = 60_000;
/** Wait before the server's status is queried again after a transient failure, ms. */
const STATUS_RETRY_MS = 5_000;

/** The engine of one browser. */
export class Engine {
  readonly phase = new Cell<Phase>({ phase: 'starting' });
  /** The open device; null while there is none. */
  readonly session = new Cell<Session | null>(null);
  readonly enrolment: Enrolment;
  readonly offers = new Offers();
  readonly foreign = new ForeignImports();
  /** Resolves when `start` has determined the state of this browser. Never rejects. */
  settled: Promise<void> = Promise.resolve();
  private readonly vault: Vault;
  private lockAfterMinutes: number | null = null;
  private touchedAt = 0;
  private readonly now: () => number;
  private isRevoked = false;
  /** Id of the device that this browser stores, once it was enrolled or opened here. */
  private stored: string | undefined;
  private retryTimer: Timer | undefined;
  /** Serialises opening and closing: a slow unlock never takes effect after a later lock. */
  private readonly serial = new Serial();

  constructor(
    readonly platform: Platform,
    private readonly records: KeyValue,
    readonly serverUrl: string,
  ) {
    this.now = monotonic(platform.clock);
    this.vault = new Vault(records, platform.sodium);
    this.enrolment = new Enrolment(platform, serverUrl, (identity, by) => this.enrolled(identity, by));
    every(platform.clock, LOCK_EVERY_MS, () => {
      // It is locked also where the store cannot be closed.
      if (this.isLockDue()) this.lock().catch(() => undefined);
    });
  }

  /** Determines the state of this browser; opens a device without a lock. */
  start(): Promise<void> {
    this.settled = this.serial.run(() => this.begin());
    return this.settled;
  }

  private async begin(): Promise<void> {
    // Already open.
    if (this.session.value !== null) return this.phase.set({ phase: this.isRevoked ? 'revoked' : 'open' });
    this.phase.set({ phase: 'starting' });
    try {
      const lock = await this.vault.lockState();
      this.lockAfterMinutes = await this.vault.lockAfter();
      if (lock === undefined) {
        this.phase.set({ phase: 'empty', claimed: null, problem: null });
        this.askClaimed();
      } else if (lock.kind === 'none') await this.open(await this.vault.open());
      else this.phase.set({ phase: 'locked', kind: lock.kind, passkey: lock.passkey });
    } catch (error) {
      // That of a device that has just been stored.
      this.vault.close();
      this.phase.set({ phase: 'failed', problem: problemOf(error) });
    }
  }

  /** Queries the server whether it is claimed. */
  askClaimed(): void {
    const api = new PublicApi((request) => new Http({ ...this.platform, baseUrl: this.serverUrl }).send(request));
    const publish = (claimed: boolean | null, problem: Failure | null): void => {
      if (this.phase.value.phase === 'empty') this.phase.set({ phase: 'empty', claimed, problem });
    };
    api.status().then(
      ({ claimed }) => publish(claimed, null),
      (error: unknown) => {
        publish(null, problemOf(error));
        if (!isTransient(error)) return;
        // At most one retry is scheduled, however many queries failed.
        this.retryTimer?.cancel();
        this.retryTimer = this.platform.clock.setTimer(STATUS_RETRY_MS, () => {
          const now = this.phase.value;
          if (now.phase === 'empty' && now.claimed === null) this.askClaimed();
        });
      },
    );
  }

  /** The open device. Throws `ClientError` `closed` while there is none. */
  get current(): Session {
    const session = this.session.value;
    if (session === null) throw new ClientError('closed', 'no device is open in this browser');
    return session;
  }

  /** As `current`. */
  get device(): Device {
    return this.current.device;
  }

  /** Throws `ClientError` `bad_identity` for the wrong passphrase or passkey. */
  unlock(opener: Opener): Promise<void> {
    return this.serial.run(async () => {
      if (this.phase.value.phase !== 'locked') return;
      await this.open(await this.vault.open(opener));
    });
  }

  /**
   * Serialised, like everything that writes the vault: closing erases the data key, and a lock made around an erased key
   * opens nothing any more; one written after `forget` would stay, around nothing.
   */
  setLock(lock: NewLock): Promise<void> {
    return this.serial.run(async () => {
      await this.vault.setLock(lock);
      // Changing it counts as activity; without a lock none is recorded once the time limit has passed.
      this.touchedAt = this.now();
      await this.publishLock();
    });
  }

  setLockAfter(minutes: number | null): Promise<void> {
    return this.serial.run(async () => {
      await this.vault.setLockAfter(minutes);
      this.touchedAt = this.now();
      this.lockAfterMinutes = minutes;
      await this.publishLock();
    });
  }

  /** Records the user's activity. Locks instead if the time limit has passed, as after the machine slept. */
  async touched(): Promise<void> {
    if (this.isLockDue()) return this.lock();
    this.touchedAt = this.now();
  }

  private isLockDue(): boolean {
    const { lockAfterMinutes, touchedAt, session } = this;
    if (lockAfterMinutes === null || session.value === null) return false;
    const passed = this.now() - touchedAt;
    return passed >= lockAfterMinutes * 60_000;
  }

  /** Locks now, where there is a lock. */
  lock(): Promise<void> {
    return this.serial.run(async () => {
      const lock = await this.vault.lockState();
      if (lock === undefined || lock.kind === 'none' || this.session.value === null) return;
      try {
        await this.close();
      } finally {
        this.phase.set({ phase: 'locked', kind: lock.kind, passkey: lock.passkey });
      }
    });
  }

  /** Revokes this device, then forgets it. Throws if the server refuses or is unreachable: nothing was done then. */
  async signOut(): Promise<void> {
    const { device } = this;
    await device.revoke(device.id);
    await this.forget();
  }

  /** Removes everything of this browser's device from this browser. */
  forget(): Promise<void> {
    return this.serial.run(async () => {
      // A store that cannot be closed is removed nevertheless.
      await this.close().catch(() => undefined);
      await this.vault.idle();
      try {
        await this.records.clear();
        for (const { name } of await indexedDB.databases())
          if (name?.startsWith('service-device-') === true) await removeIndexed(name);
      } finally {
        await this.begin();
      }
    });
  }

  private enrolled(identity: SavableIdentity, by: Method): Promise<void> {
    return this.serial.run(async () => {
      // Two attempts may both register a device: one was cancelled after its request was sent, or two tabs began at once.
      // The first stays, since its outbox may hold changes that nothing else has.
      if ((await this.vault.lockState()) !== undefined) return void this.revokeSurplus(identity);
      this.stored = identity.deviceId;
      await this.vault.create(identity);
      // From here on this browser is a device: the phase reports a failure, as at a start.
      await this.begin();
      if (by === 'recover') this.session.value?.compareName();
    });
  }

  /** Revokes a device that this browser has registered and does not store, as that device: none may be open here. */
  private async revokeSurplus(identity: SavableIdentity): Promise<void> {
    if (identity.deviceId === this.stored) return;
    const onProblem = (error: unknown): void => this.session.value?.notices.add('problem', error);
    const device = await Device.open({ platform: this.platform, identity, onProblem });
    await device
      .revoke(device.id)
      .catch(onProblem)
      .finally(() => device.close());
  }

  private async open(identity: SavableIdentity): Promise<void> {
    const { platform, records, vault } = this;
    this.touchedAt = this.now();
    this.isRevoked = false;
    this.stored = identity.deviceId;
    try {
      const opened = await openBrowserStore(identity.deviceId, identity, AbortSignal.timeout(STORE_WAIT_MS));
      const parts = { platform, records, vault, identity, opened, onRevoked: () => this.revoked() };
      this.session.set(await Session.open(parts));
    } catch (error) {
      // No key stays in memory without an open device.
      vault.close();
      throw error;
    }
    await this.publishLock();
    // The server may have reported the revocation already.
    if (!this.isRevoked) this.phase.set({ phase: 'open' });
  }

  private async close(): Promise<void> {
    this.offers.cancel();
    this.foreign.drop();
    const session = this.session.value;
    this.session.set(null);
    try {
      await session?.close();
    } finally {
      this.vault.close();
    }
  }

  private revoked(): void {
    this.isRevoked = true;
    this.phase.set({ phase: 'revoked' });
  }

  private async publishLock(): Promise<void> {
    const lock = await this.vault.lockState();
    this.session.value?.relock({ kind: lock?.kind ?? 'none', afterMinutes: this.lockAfterMinutes });
  }
}
