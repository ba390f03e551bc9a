/** An open device, from `open` to `close`: its store, its connection, and the values that screens show. */
import { fingerprintOfMaster } from '../../crypto/fingerprint.js';
import { delay, type Clock, type Timer } from '../../protocol/clock.js';
import { asError } from '../../protocol/error-code.js';
import { DEFAULT_BIN } from '../../protocol/limits.js';
import { Device } from '../../sdk/device.js';
import type { BinCounts } from '../../sdk/live-query-index.js';
import { fingerprintOfDevice } from '../../sdk/device-list.js';
import { ApiError, ClientError, isTransient, QueuedError } from '../../sdk/errors.js';
import type { BinView, DeviceEvents } from '../../sdk/events.js';
import type { SavableIdentity } from '../../sdk/identity.js';
import type { Platform } from '../../sdk/platform.js';
import type { DeviceEntry } from '../../sdk/replies.js';
import type { QueryFilter, QueryUpdate } from '../../sdk/query.js';
import type { OpenedStore } from '../../sdk/store/open.js';
import type { Store } from '../../sdk/store/store.js';
import { titleOf } from '../../sdk/payloads/shapes.js';
import { failureOf } from '../link/messages.js';
import type {
  BinRow,
  DeviceInfo,
  DeviceRow,
  ItemDetail,
  ListPage,
  ListParams,
  PutParams,
  ResendHow,
} from '../link/messages.js';
import { Cell } from './cell.js';
import { Imports } from './imports.js';
import type { KeyValue } from './key-value.js';
import { Notices } from './notices.js';
import { Removals } from './removals.js';
import { readRemembered, writeRemembered, type Remembered } from './remembered.js';
import { detailViewOf, rowOf } from './rows.js';
import { Uploads } from './uploads.js';
import type { Vault } from './vault.js';

/** Largest page of a list, items. */
const PAGE_MAX = 200;
/** Recounts of the items that a restored server lost, after writing them again, and the wait between recounts. */
const ORPHAN_COUNTS = 50;
const ORPHAN_WAIT_MS = 200;
/** Changes within these times are published, and counted, once. */
const PUBLISH_AFTER_MS = 30;
const COUNT_AFTER_MS = 500;

interface SessionParts {
  readonly platform: Platform;
  readonly records: Pick<KeyValue, 'all' | 'put' | 'putAll' | 'remove'>;
  readonly vault: Pick<Vault, 'remember' | 'remembered' | 'save' | 'keep' | 'unsealed'>;
  readonly identity: SavableIdentity;
  /** Closed with the session, also where that cannot be opened. */
  readonly opened: { readonly store: Store & Pick<OpenedStore['store'], 'close'> } & Pick<OpenedStore, 'repair'>;
  /** The device was revoked. */
  readonly onRevoked: () => void;
}

/** One open device, for all tabs. */
export class Session {
  readonly info = new Cell<DeviceInfo | null>(null);
  readonly bins = new Cell<readonly BinRow[]>([]);
  readonly devices = new Cell<readonly DeviceRow[]>([]);
  readonly imports = new Imports();
  readonly notices: Notices;
  readonly uploads: Uploads;
  readonly removals: Removals;
  /** The part of `info` that changes by events. */
  private state: Pick<DeviceInfo, 'connection' | 'complete' | 'hidden' | 'orphaned' | 'halted' | 'lock'> = {
    ...{ connection: { state: 'closed' }, complete: null, hidden: 0, orphaned: 0, halted: null },
    lock: { kind: 'none', afterMinutes: null },
  };
  private counts: BinCounts = new Map();
  /** Called when a removal is planned or undone, because lists show it. */
  private readonly onRemovals = new Set<() => void>();
  private readonly ending = new AbortController();
  private publishTimer: Timer | undefined;
  private countTimer: Timer | undefined;

  /** Adds a notice for a background failure that is not retried automatically. */
  private readonly problem = (error: unknown): void => {
    // The phase reports `closed` and `revoked`.
    const isReported = error instanceof ClientError && (error.code === 'closed' || error.code === 'revoked');
    if (isReported || isTransient(error) || error instanceof QueuedError) return;
    this.notices.add('problem', error);
  };

  private constructor(
    readonly device: Device,
    private readonly parts: SessionParts,
    private remembered: Remembered,
  ) {
    const { records, platform, vault } = parts;
    this.notices = new Notices({
      records,
      vault,
      clock: platform.clock,
      write: (item, how) => this.rewrite(item, how),
    });
    const remove = (id: string): Promise<void> => this.remove(id);
    this.removals = new Removals(records, platform.clock, {
      remove,
      changed: () => this.onRemovals.forEach((push) => push()),
    });
    this.uploads = new Uploads(records, { device, remove, clock: platform.clock, onProblem: this.problem });
  }

  /** Reads the store without sending anything, then connects. Throws `StoreError`. */
  static async open(parts: SessionParts): Promise<Session> {
    const { platform, vault, identity, opened } = parts;
    const { store, repair } = opened;
    const remembered = await readRemembered(vault);
    // Problems are dropped until there is a session to show them.
    let session: Session | undefined;
    const onProblem = (error: unknown): void => session?.problem(error);
    try {
      const device = await Device.open({
        ...{ platform, identity, store, devices: remembered.devices, onProblem },
        onIdentity: (renewed) => void vault.save(renewed).catch(onProblem),
      });
      session = new Session(device, parts, remembered);
      await session.begin();
      if (repair !== null) session.notices.add('repaired_store');
      return session;
    } catch (error) {
      session?.end();
      // Else the store would be locked at the next attempt.
      await store.close();
      throw error;
    }
  }

  private async begin(): Promise<void> {
    this.listen();
    this.showBins(this.remembered.bins);
    this.showDevices(this.remembered.devices ?? []);
    this.publish();
    await this.notices.load();
    await this.removals.load();
    await this.uploads.load();
    this.background(() =>
      this.device.counts((counts) => {
        this.counts = counts;
        this.showBins(this.remembered.bins);
      }),
    );
    this.background(() => this.count());
    this.background(() => this.device.connect());
  }

  /** Ends everything but the store. */
  private end(): void {
    this.ending.abort(new ClientError('closed', 'the device was closed'));
    this.publishTimer?.cancel();
    this.countTimer?.cancel();
    // One that waits for the server would go on to hold what it reads, and the key of an archive.
    this.imports.stop();
    this.removals.close();
    this.uploads.close();
    this.device.close();
  }

  async close(): Promise<void> {
    this.end();
    await this.parts.opened.store.close();
  }

  /** Adds a notice where another device has the name of this one, which has recovered and could not know the names. */
  compareName(): void {
    this.background(async () => {
      const devices = await this.device.devices.list();
      const isTaken = ({ id, name, revokedAt }: DeviceEntry): boolean =>
        id !== this.device.id && revokedAt === null && name === this.identity.name;
      if (devices.some(isTaken)) this.notices.add('same_name');
    });
  }

  /** Keys and address of the device. */
  get identity(): SavableIdentity {
    return this.parts.identity;
  }

  /** Aborted when it is closed, with `ClientError` `closed`. */
  get over(): AbortSignal {
    return this.ending.signal;
  }

  private get clock(): Clock {
    return this.parts.platform.clock;
  }

  /** The bins known on this device, including those known only from items. */
  get labelledBins(): readonly Pick<BinView, 'id' | 'slug' | 'label'>[] {
    const { bins } = this.remembered;
    const known = new Set(bins.map(({ id }) => id));
    const others = [...this.counts.keys()].filter((id) => !known.has(id));
    return [...bins, ...others.map((id) => ({ id, slug: '', label: null }))];
  }

  /** Pushes a page of the items, and each later state of it. */
  list({ offset, limit, ...filter }: ListParams, push: (page: ListPage) => void): () => void {
    return this.watchQuery({ ...filter, offset, limit: Math.min(limit, PAGE_MAX) }, ({ items, total }) =>
      push({ items: items.map((view) => rowOf(view, this.removals.at(view.id))), offset, total }),
    );
  }

  item(id: string, push: (item: ItemDetail | null) => void): () => void {
    return this.watchQuery({ id, limit: 1 }, ({ items: [view] }) =>
      push(view === undefined ? null : detailViewOf(view, this.removals.at(id))),
    );
  }

  /** Shows each state of a query, and the last one again when removals change. */
  private watchQuery(filter: QueryFilter, show: (update: QueryUpdate) => void): () => void {
    let last: QueryUpdate | undefined;
    const showAgain = (): void => {
      if (last !== undefined) show(last);
    };
    this.onRemovals.add(showAgain);
    const opened = this.device.query(filter, (update) => {
      last = update;
      show(update);
    });
    opened.catch(this.problem);
    return () => {
      this.onRemovals.delete(showAgain);
      // A failure to open has been reported already.
      opened.then(
        (query) => query.close(),
        () => undefined,
      );
    };
  }

  /** Resolves when the change is stored on this device and shown; a later refusal becomes a notice. */
  async put({ seen, ...item }: PutParams): Promise<{ readonly id: string }> {
    const { id } = item;
    const now = seen === undefined ? undefined : await this.device.get(id);
    // As where a tab that led was closed, and the next one gets the call again.
    if (seen !== undefined && now !== undefined && now.ts > seen && now.senderDevice !== this.device.id) {
      const message = 'another device has changed the item meanwhile';
      await this.refused(item, new ApiError({ code: 'conflict', status: 409, message }));
      return { id };
    }
    const onRefused = (error: Error): Promise<void> => this.refused(item, error);
    await this.kept(
      (onKept) => this.device.put({ ...item, onKept, onRefused }),
      () => undefined,
    );
    return { id };
  }

  /** Writes a refused change again, unchecked (`asIs`): it may stem from an import. */
  private async rewrite(item: PutParams, how: ResendHow): Promise<void> {
    // Written by a tab that ended before the notice was dismissed; it may have been changed since.
    if (how === 'copy' && (await this.device.get(item.id)) !== undefined) return;
    try {
      await this.device.put({ ...item, asIs: true, ...(how === 'overwrite' && { onConflict: 'overwrite' }) });
    } catch (error) {
      // In the outbox: sent when the server is reachable again.
      if (!(error instanceof QueuedError)) throw error;
    }
  }

  move(id: string, binId: string): Promise<void> {
    return this.kept((onKept) => this.device.move(id, binId, onKept));
  }

  /**
   * Makes a change to an item, and waits until it is durable on this device or refused, but not for an unreachable
   * server. `onRefused` gets a later refusal; the default adds a notice without the change's content.
   */
  private kept(
    change: (onKept: () => void) => Promise<unknown>,
    onRefused: (error: Error) => void = (error) => this.notices.add('rejected', error),
  ): Promise<void> {
    let isKept = false;
    return new Promise<void>((resolve, reject) => {
      const onKept = (): void => {
        isKept = true;
        resolve();
      };
      change(onKept)
        .catch((error: unknown) => {
          if (error instanceof QueuedError) return undefined;
          if (isKept) return onRefused(asError(error));
          return reject(asError(error));
        })
        .catch(this.problem)
        .finally(() => {
          // A change without effect is not kept.
          resolve();
          this.publishSoon();
        });
    });
  }

  private async remove(id: string): Promise<void> {
    try {
      await this.kept((onKept) => this.device.delete(id, onKept));
    } catch (error) {
      // Another device has deleted it already, or its file was refused meanwhile and is about to be sent again.
      if (error instanceof ClientError && (error.code === 'unknown_item' || error.code === 'deleted_item'))
        return this.uploads.cancel(id);
      this.notices.add('rejected', error);
    }
  }

  private listen(): void {
    const { device } = this;
    device.on('connection', ({ state }) => {
      if (state === 'connected') this.uploads.resume();
      this.change({ connection: { state } });
    });
    device.on('caught_up', ({ complete }) => {
      // Published together with the counts.
      this.state = { ...this.state, complete, halted: null };
      this.countSoon();
    });
    device.on('bins', ({ bins }) => this.showBins(bins));
    device.on('devices', ({ devices }) => this.showDevices(devices));
    device.on('uncertified', () => this.publishSoon());
    device.on('kept', ({ id }) => {
      this.uploads.kept(id);
      this.publishSoon();
    });
    device.on('sent', ({ id }) => {
      this.uploads.written(id);
      this.publishSoon();
    });
    device.on('rejected', (event) => this.rejected(event));
    device.on('quarantined', () => this.countSoon());
    device.on('untagged_delete', () => {
      this.notices.add('untagged_delete');
      this.countSoon();
    });
    device.on('missing', () => this.notices.add('missing'));
    device.on('reset', () => this.notices.add('reset'));
    device.on('orphaned', ({ ids }) => this.change({ orphaned: ids.length }));
    device.on('halted', ({ error }) => {
      this.notices.add('problem', error);
      this.change({ halted: failureOf(error) });
    });
    device.on('revoked', () => this.parts.onRevoked());
  }

  /** A change in the outbox was refused: a file is sent again, other content is kept in a notice. */
  private async rejected({ id, error, row }: DeviceEvents['rejected']): Promise<void> {
    this.publishSoon();
    // Of a queued file, e.g. because its blob was removed.
    if (this.uploads.retry(id, 'queued')) return;
    if (row === null || row.blob !== null) return this.notices.add('rejected', error);
    const { binId, type, payload } = this.device.opened(row);
    await this.refused({ id, binId, type, payload: payload ?? {} }, error);
  }

  private async refused(item: PutParams, error: Error): Promise<void> {
    // One that is damaged is there.
    const isNew = await this.device.get(item.id).then(
      (view) => view === undefined,
      () => false,
    );
    await this.notices.refused(item, { title: titleOf(item.type, item.payload), error, isNew });
  }

  /** Delayed and merged: each count reads the whole store, and a server could cause any number of them. */
  private countSoon(): void {
    if (!this.over.aborted)
      this.countTimer ??= this.clock.setTimer(COUNT_AFTER_MS, () => this.background(() => this.count()));
  }

  /** Counts the hidden and orphaned items in the store. */
  private async count(): Promise<void> {
    this.countTimer?.cancel();
    this.countTimer = undefined;
    const [hidden, orphaned] = await Promise.all([this.device.hidden(), this.device.orphaned()]);
    this.change({ hidden: hidden.length, orphaned: orphaned.length });
    this.publish();
  }

  private showBins(bins: readonly BinView[]): void {
    this.remember({ ...this.remembered, bins });
    const labels = new Map(bins.map(({ id, label }) => [id, label]));
    // The bin of an item may be missing in the list: not listed yet, or the server is unreachable.
    const ids = new Set([DEFAULT_BIN, ...labels.keys(), ...this.counts.keys()]);
    const rows = [...ids].map((id): BinRow => {
      const label = labels.get(id);
      return { id, name: label?.name ?? '', emoji: label?.emoji ?? '', count: this.counts.get(id) ?? 0 };
    });
    this.bins.set(rows);
  }

  private showDevices(devices: readonly DeviceEntry[]): void {
    const uncertified = new Set(this.device.devices.counts()?.uncertified.map(({ id }) => id));
    this.devices.set(devices.map((device) => this.deviceRow(device, !uncertified.has(device.id))));
    this.remember({ ...this.remembered, devices });
    this.publishSoon();
  }

  private deviceRow(device: DeviceEntry, certified: boolean): DeviceRow {
    const { id, name, glyph, online, pairedAt, lastSeenAt, revokedAt } = device;
    const fingerprint = fingerprintOfDevice(this.parts.platform.sodium, device);
    const state = revokedAt === null ? 'active' : 'revoked';
    const own = id === this.device.id;
    const wasRevoked = state === 'active' && this.device.devices.isRevoked(id);
    return { id, name, glyph, own, online, pairedAt, lastSeenAt, state, certified, wasRevoked, fingerprint };
  }

  private remember(remembered: Remembered): void {
    const before = this.remembered;
    this.remembered = remembered;
    // Nothing new was read from the server.
    if (before.bins === remembered.bins && before.devices === remembered.devices) return;
    this.background(() => writeRemembered(this.parts.vault, remembered));
  }

  private publishSoon(): void {
    if (!this.over.aborted) this.publishTimer ??= this.clock.setTimer(PUBLISH_AFTER_MS, () => this.publish());
  }

  /** Writes the items that a server restored to an older state has lost again, or drops them here. */
  async orphans(how: 'republish' | 'discard'): Promise<void> {
    for (const id of await this.device.orphaned())
      try {
        // One that is refused, as where its bin is lost too, does not keep the others from being written.
        if (how === 'republish') await this.kept((onKept) => this.device.republish(id, onKept));
        else await this.device.discard(id);
      } catch (error) {
        // Another device has written it again meanwhile.
        if (!(error instanceof ClientError && error.code === 'unknown_item')) throw error;
      }
    // The stream gives an item its new version after the reply.
    for (let counts = 0; counts < ORPHAN_COUNTS; counts++) {
      await this.count();
      if (this.state.orphaned === 0) return;
      await delay(this.clock, ORPHAN_WAIT_MS);
    }
  }

  /** Publishes a changed lock. */
  relock(lock: DeviceInfo['lock']): void {
    this.change({ lock });
    this.publish();
  }

  private change(change: Partial<typeof this.state>): void {
    this.state = { ...this.state, ...change };
    this.publishSoon();
  }

  private publish(): void {
    this.publishTimer?.cancel();
    this.publishTimer = undefined;
    const { device } = this;
    const { name, serverUrl, deviceId, masterKey } = this.identity;
    const { waiting: count, oldestAgeMs } = device.waiting();
    this.info.set({
      deviceId,
      name: this.devices.value.find(({ own }) => own)?.name ?? name,
      serverUrl,
      fingerprint: device.fingerprint,
      masterFingerprint: fingerprintOfMaster(this.parts.platform.sodium, masterKey),
      waiting: { count, since: oldestAgeMs === null ? null : this.clock.now() - oldestAgeMs },
      uncertified: device.devices.counts()?.uncertified ?? [],
      ...this.state,
    });
  }

  private background(work: () => Promise<unknown>): void {
    work().catch(this.problem);
  }
}
