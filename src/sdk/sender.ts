/**
 * Sends the outbox, in one loop. Changes that arrive during a request are sent together as a batch, which counts as
 * one write. A change is dropped only when the server has refused it permanently.
 */
import { moveTag, type Reader, type Recipients, retimeItem, rewrapItem } from '../crypto/item.js';
import { monotonic, type Timer } from '../protocol/clock.js';
import { asError, errorCode } from '../protocol/error-code.js';
import type { LiveItem } from '../protocol/item.js';
import { TS_MIN } from '../protocol/limits.js';
import { SingleFlight } from '../protocol/single-flight.js';
import type { DeviceApi } from './api.js';
import { BatchSize, fitting } from './batch.js';
import { backoffMs, namedWaitMs, RECONNECT } from './platform.js';
import {
  ApiError,
  ClientError,
  isTransient,
  NetworkError,
  ProtocolError,
  QueuedError,
  retryAfterMs,
  UncertifiedDeviceError,
} from './errors.js';
import { versionInStream, type NewChange } from './outbox.js';
import { FINAL_REFUSALS, isTimeRefusal, stateMet } from './refusals.js';
import type { Stored } from './replies.js';
import type { DeviceList } from './device-list.js';
import type { Cursor, Pending } from './store/store.js';
import type { Core } from './core.js';

/** Why nothing is sent. `reset`: no base is known until its replay has ended. `owner`: before `Device.release`. */
type Hold = 'reset' | 'owner';

/** The result of a change that was sent: its version, or the refusal. */
type Outcome = Stored | ApiError;

/** A change in the outbox. `outcome`: its version; rejects with the refusal, or `QueuedError` where it has to wait. */
export interface Submitted {
  readonly outcome: Promise<Stored>;
}

/** Called when a change is dropped whose caller waits; the store keeps the change until the promise is fulfilled. */
export type OnRefused = (error: Error) => Promise<void>;

/** See `Sender.submit`. */
interface SubmitOptions {
  readonly gather?: boolean;
  readonly overwrites?: boolean;
  readonly onRefused?: OnRefused | undefined;
}

interface Waiter extends Pick<SubmitOptions, 'overwrites' | 'onRefused'> {
  readonly id: string;
  resolve(stored: Stored): void;
  reject(error: Error): void;
}

/** In-memory state of a change in the outbox. */
interface Tracked {
  /** The caller of `submit`, while its promise is pending. */
  waiter?: Waiter;
  /** Made by this program, and not yet part of a request. */
  unsent?: boolean;
  /** How often its keys were re-sealed, and how often it was based on a state that it met. */
  reseals: number;
  rebases: number;
  /** Number of non-final refusals, and when the change is due again, ms. A waiting change does not delay others. */
  refusals: number;
  dueAt?: number;
  /** Codes of refusals, and of a missing base, that were reported already. */
  readonly reported: Set<string>;
}

/** How long callers wait for the end of the replay of a reset, ms. */
const RESET_WAIT_MS = 15_000;
/** Most re-seals of a change for devices that the server reports missing: a server may name others each time. */
const RESEALS_MAX = 3;
/** Most states over which a change is written: other devices may keep changing the item. */
const REBASES_MAX = 3;
/** Codes remembered per change. If a server uses more, the forgotten ones are reported again. */
const REPORTED_MAX = 16;

/** Sends the changes of the outbox. */
export class Sender {
  /** By `seq`. */
  private readonly tracked = new Map<number, Tracked>();
  private readonly running = new SingleFlight(() => this.loop());
  private timer: Timer | undefined;
  private readonly now: () => number;
  private failures = 0;
  private readonly batchSize = new BatchSize();
  private deviceListRead: Promise<unknown> | undefined;
  private readonly holds = new Set<Hold>();
  /** How often another history began; `resetsBefore`: when the current request was made. */
  private resets = 0;
  private resetsBefore = 0;
  /** The server has another history, which is read before the next attempt. */
  private mismatched = false;
  /** The error of `close`. */
  private closed: Error | undefined;

  constructor(
    private readonly options: Pick<
      Core,
      'api' | 'store' | 'outbox' | 'sodium' | 'reader' | 'clock' | 'random' | 'emit'
    > & {
      readonly deviceList: DeviceList;
      /** See `Sync.epoch`. */
      readonly epoch: (api: DeviceApi) => Promise<Cursor['epoch']>;
      /** Reads the server's history where no connection does. Rejects as a request does. */
      readonly catchUp: () => Promise<void>;
    },
  ) {
    this.now = monotonic(options.clock);
  }

  /**
   * Stores a change and sends it. Resolves when it is stored, rejects if storing fails. The change is in the outbox
   * before this returns, so the state it is based on is still current. `gather`: it is sent with the next `kick`, in
   * one request with the changes submitted until then. `overwrites`: while the caller waits, a write that meets a conflict
   * is based on what it met, and sent again; a blob that is too old for that is refused.
   */
  async submit(change: NewChange, { gather = false, overwrites, onRefused }: SubmitOptions = {}): Promise<Submitted> {
    if (this.closed !== undefined) throw this.closed;
    const { pending, stored } = this.options.outbox.add(change);
    const { id, seq } = pending;
    const tracked = this.track(seq);
    tracked.unsent = true;
    const outcome = new Promise<Stored>((resolve, reject) => {
      tracked.waiter = { id, overwrites, onRefused, resolve, reject };
    });
    // The caller gets `outcome` only when this resolves, and may await it late or never.
    outcome.catch(() => undefined);
    try {
      await stored;
    } catch (error) {
      this.forget(seq);
      throw error;
    }
    if (!isRewrap(pending)) this.options.emit('kept', { id });
    if (!gather) this.kick();
    return { outcome };
  }

  /** Sends the changes that are due. Sends nothing while the sender is held or already sending. */
  kick(): void {
    if (this.closed !== undefined) return;
    if (this.holds.size > 0) return this.limitWait();
    this.timer?.cancel();
    this.timer = undefined;
    void this.running.fresh();
  }

  /** Sends nothing until `release`. */
  hold(why: Hold): void {
    this.holds.add(why);
    if (why === 'reset') this.resets++;
  }

  /** Removes one hold; another may remain. */
  release(why: Hold): void {
    this.holds.delete(why);
    this.kick();
  }

  /** Drops changes that mean nothing after a reset. */
  abandon(gone: readonly Pending[]): Promise<void> {
    return this.drop(gone, new ClientError('reset', "the server's history was replaced"));
  }

  /** Withdraws an unacknowledged delete (`Writer.withdraw`); its caller gets `ClientError` `cancelled`. */
  async withdraw(id: string): Promise<boolean> {
    const gone = await this.options.outbox.withdraw(id);
    if (gone === undefined) return false;
    this.forget(gone.seq)?.reject(new ClientError('cancelled', `the deletion of ${id} was taken back`));
    return true;
  }

  /** Stops sending. Waiting callers get `error`; unsent changes stay in the store. */
  close(error: Error): void {
    this.closed = error;
    this.timer?.cancel();
    for (const { waiter } of this.tracked.values()) waiter?.reject(error);
    this.tracked.clear();
  }

  private ready(): readonly Pending[] {
    const now = this.now();
    return this.options.outbox.unsent().filter(({ seq }) => (this.tracked.get(seq)?.dueAt ?? now) <= now);
  }

  private async loop(): Promise<void> {
    // After a failed round, the timer retries.
    if (this.timer !== undefined) return;
    this.reportBaseless();
    while (this.holds.size === 0 && this.closed === undefined) {
      if (this.ready().length === 0) break;
      const begun = this.now();
      try {
        if (this.mismatched) await this.options.catchUp();
        this.mismatched = false;
        await this.checkRecipients();
        if (!(await this.round())) break;
        this.failures = 0;
        this.batchSize.succeeded();
      } catch (error) {
        this.batchSize.failed(this.now() - begun);
        return this.postpone(asError(error));
      }
    }
    if (this.holds.size > 0) return this.limitWait();
    this.untilDue();
  }

  private reportBaseless(): void {
    for (const { id, seq } of this.options.outbox.baseless()) {
      const error = new ProtocolError(`a change of ${id} is not sent: the one below it is not in the store`);
      this.report(this.track(seq), 'baseless', error);
    }
  }

  /** Emits a problem of a change once, not at each attempt. */
  private report({ reported }: Tracked, code: string, error: Error): void {
    if (reported.has(code)) return;
    reported.add(code);
    for (const oldest of reported) if (reported.size > REPORTED_MAX) reported.delete(oldest);
    this.options.emit('problem', { error });
  }

  /**
   * Sends one request; false if there is nothing to send. Throws errors of the whole request; the result of a single
   * change is settled with that change.
   */
  private async round(): Promise<boolean> {
    const epoch = await this.options.epoch(this.api);
    // A reset has begun: the changes are based on the history before it, and are sent after its replay.
    if (this.holds.size > 0) return false;
    this.resetsBefore = this.resets;
    const ready = this.ready();
    const [first] = ready;
    if (first === undefined) return false;
    const { sent, bodies } =
      first.kind === 'write' ? fitting(ready, this.batchSize.bytes) : { sent: [first], bodies: [] };
    const recorded = this.request(sent, bodies, epoch).then((outcomes) => this.settleAll(sent, outcomes));
    const over = recorded.catch(() => undefined);
    for (const { id, seq } of sent) {
      // An earlier request may have been carried out.
      if (this.track(seq).unsent !== true) this.options.outbox.doubt(seq);
      this.track(seq).unsent = false;
      this.options.outbox.sending(id, over);
    }
    await recorded;
    return true;
  }

  /**
   * The device list may have changed since a change was made, for example while the sender was held. From changes not
   * sent yet, keys of devices revoked since are removed; an uncertified device causes a refusal as in `put`.
   */
  private async checkRecipients(): Promise<void> {
    const { outbox, deviceList } = this.options;
    const uncertified = deviceList.counts()?.uncertified ?? [];
    for (const pending of this.ready()) {
      const tracked = this.tracked.get(pending.seq);
      if (this.holds.size > 0) return;
      if (tracked?.unsent !== true || pending.kind !== 'write') continue;
      if (uncertified.length > 0 && tracked.waiter !== undefined) {
        await this.dropRefused(pending, new UncertifiedDeviceError(uncertified));
        continue;
      }
      const { inline } = pending.row;
      if (inline === null || ![...inline.keys.keys()].some((id) => deviceList.isRevoked(id))) continue;
      const keys = new Map([...inline.keys].filter(([id]) => !deviceList.isRevoked(id)));
      await outbox.replace([{ ...pending, row: { ...pending.row, inline: { ...inline, keys } } }]);
    }
  }

  /** `bodies`: of writes, as JSON; empty for a change of another kind, which is sent alone. */
  private async request(
    sent: readonly Pending[],
    bodies: readonly string[],
    epoch: Cursor['epoch'],
  ): Promise<readonly Outcome[]> {
    const [first] = sent;
    const onRepeat = (): void => sent.forEach(({ seq }) => this.options.outbox.doubt(seq));
    if (first !== undefined && sent.length === 1) {
      try {
        const isWrite = first.kind === 'write';
        const reply = isWrite ? this.api.write(bodies[0] ?? '', epoch, onRepeat) : this.single(first, epoch);
        return [expectOutcome(first, await reply)];
      } catch (error) {
        if (isTransient(error) || !(error instanceof ApiError)) throw error;
        return [error];
      }
    }
    const results = await this.api.batch(bodies, epoch, onRepeat);
    if (results.length !== sent.length)
      throw new ProtocolError('a batch was answered with another number of results', { code: 'wrong_reply' });
    return results.map((result, at) => (result instanceof ApiError ? result : expectOutcome(sent[at], result)));
  }

  /** After a failure no caller waits, so requests are not retried in addition to the backoff of this loop. */
  private get api(): DeviceApi {
    return this.failures === 0 ? this.options.api : this.options.api.once;
  }

  private single(pending: Exclude<Pending, PendingWrite>, epoch: Cursor['epoch']): Promise<Stored> {
    const { api } = this;
    if (pending.kind === 'delete') return api.remove(pending.id, pending.sig, epoch);
    const { row, base } = pending;
    if (row.sig === null || base === null) throw new ProtocolError(`the move of ${row.id} has no tag or no base`);
    return api.move(row.id, { binId: row.binId, version: base, sig: row.sig }, epoch);
  }

  /**
   * Throws after a reset that began during the request: its reply, and what was decided by it, is of the history before.
   * The change stays in the outbox, and is sent again on its state in the new one.
   */
  private expectSameHistory(): void {
    if (this.resets !== this.resetsBefore)
      throw new NetworkError('network', 'the reply came after another history had begun');
  }

  /** Records every outcome of this history; then throws the first failure that is not a refusal. */
  private async settleAll(sent: readonly Pending[], outcomes: readonly Outcome[]): Promise<void> {
    const failures: Error[] = [];
    this.deviceListRead = undefined;
    for (const [at, pending] of sent.entries()) {
      const outcome = outcomes[at];
      if (outcome === undefined) continue;
      const settled = outcome instanceof ApiError ? this.refused(pending, outcome) : this.accepted(pending, outcome);
      await settled.catch((error: unknown) => failures.push(asError(error)));
    }
    if (failures[0] !== undefined) throw failures[0];
  }

  /** Records the version of a change. Throws `ProtocolError` `wrong_reply` where the stream contradicts it. */
  private async accepted(pending: Pending, { id, version: named }: Stored): Promise<void> {
    const { outbox, emit } = this.options;
    const version = await this.versionOf(pending, named);
    const may = await outbox.mayBecome(pending, version);
    this.expectSameHistory();
    if (!may) throw wrongReply(pending, 'names a version that the stream gave to another state');
    await outbox.acknowledged(pending, version, () => this.closed !== undefined);
    if (version !== named) emit('problem', { error: wrongReply(pending, 'names a version that it does not have') });
    const waiter = this.forget(pending.seq);
    waiter?.resolve({ id, version });
    if (waiter === undefined && !isRewrap(pending)) emit('sent', { id, version });
  }

  /**
   * The version that a reply named, or the lower one that the stream gave to the change and that the item still has: the
   * change would stay on top until the stream reaches the named one. The server is asked again, because the reply to a
   * repeated request may name a re-wrap or a delete that the stream has yet to bring.
   */
  private async versionOf(pending: Pending, named: number): Promise<number> {
    const { store } = this.options;
    const known = versionInStream(await store.get(pending.id), pending);
    if (known === undefined || known >= named) return named;
    const next = await this.api.nextChange({ ...(await store.cursor()), since: known - 1 });
    return next?.id === pending.id && next.version === known ? known : named;
  }

  /**
   * Handles a refusal: re-seals, drops the change if the refusal is final, or, where no caller waits, schedules a
   * retry. Throws transient errors.
   */
  private async refused(pending: Pending, error: ApiError): Promise<void> {
    if (this.closed !== undefined) return;
    let refusal: Error = error;
    try {
      if (await this.overwritten(pending, error)) return;
      if (pending.kind === 'write' && (await this.resealed(pending, error))) return;
    } catch (cause) {
      refusal = asError(cause);
    }
    this.expectSameHistory();
    if (isTransient(refusal)) throw refusal;
    // The server's clock may be behind for a while: no reason to drop what waits.
    const final = refusal instanceof ApiError && FINAL_REFUSALS.has(refusal.code) && !isTimeRefusal(refusal);
    const tracked = this.track(pending.seq);
    if (final || tracked.waiter !== undefined) return this.dropRefused(pending, refusal);
    // Retried later: the refusal may be temporary, or the user may resolve it.
    tracked.dueAt = this.now() + backoffMs(tracked.refusals++, RECONNECT, this.options.random);
    this.report(tracked, errorCode(refusal) || refusal.name, refusal);
  }

  private track(seq: number): Tracked {
    const tracked = this.tracked.get(seq) ?? { reseals: 0, rebases: 0, refusals: 0, reported: new Set() };
    this.tracked.set(seq, tracked);
    return tracked;
  }

  /** Returns the waiting caller, if any, which must be settled. */
  private forget(seq: number): Waiter | undefined {
    const waiter = this.tracked.get(seq)?.waiter;
    this.tracked.delete(seq);
    return waiter;
  }

  /** Drops a refused change and those based on it. */
  private dropRefused(pending: Pending, error: Error): Promise<void> {
    return this.drop([pending, ...this.options.outbox.after(pending)], error);
  }

  /**
   * Drops changes, and replaces others. The caller gets the error, or event `rejected` reports it. The store forgets them
   * only then, and only when what the program does about it is done: if that fails, or the program ends in between, the
   * next one is told again. Nothing else waits for that.
   */
  private drop(gone: readonly Pending[], error: Error, changed: readonly Pending[] = []): Promise<void> {
    const { emit, outbox } = this.options;
    const kept = (): readonly Pending[] => {
      const told = gone.flatMap((change) => this.tell(change, error)).filter((result) => result instanceof Promise);
      if (told.length === 0) return [];
      Promise.all(told)
        .then(() => outbox.removeKept(gone, () => this.closed !== undefined))
        .catch((cause: unknown) => emit('problem', { error: asError(cause) }));
      // All of them: one without the change below it could be neither sent nor refused again.
      return gone;
    };
    return outbox.replace(changed, gone, { kept });
  }

  /** Tells the caller of a dropped change, or the listeners; returns what these return. */
  private tell(change: Pending, error: Error): readonly unknown[] {
    const { id, kind } = change;
    const waiter = this.forget(change.seq);
    waiter?.reject(error);
    if (waiter !== undefined) return [waiter.onRefused?.(error)];
    return isRewrap(change)
      ? []
      : this.options.emit('rejected', { id, kind, error, row: kind === 'delete' ? null : change.row });
  }

  /**
   * Adds the keys of devices that the server reports missing, because one joined since the write was sealed, removes those
   * of a blob for devices that were revoked since, or gives the write the server's time where its own is too far ahead; it
   * is then sent again, as it is where the missing devices are revoked by now. False if it cannot be re-sealed.
   */
  private async resealed(pending: PendingWrite, error: ApiError): Promise<boolean> {
    const { missingDevices } = error.details;
    const isLate = isTimeRefusal(error);
    const hasOthers = pending.row.blob !== null && error.code === 'validation';
    if (!Array.isArray(missingDevices) && !isLate && !hasOthers) return false;
    const tracked = this.track(pending.seq);
    if (tracked.reseals >= RESEALS_MAX) return false;
    // Read once for all refusals of one reply, which are based on the same list.
    this.deviceListRead ??= this.options.deviceList.refresh();
    await this.deviceListRead;
    const { outbox, sodium, reader, deviceList } = this.options;
    const by = { ...reader, devices: await deviceList.recipients() };
    const payload = isLate
      ? await this.retimed(pending, Number(error.details['serverTime']), by)
      : rewrapItem(sodium, pending.row, by);
    // A device that was missing is revoked by now: the write lacks nothing, and is sent again as it is.
    const isGone = (id: unknown): boolean => typeof id === 'string' && deviceList.isRevoked(id);
    if (payload === null && (!Array.isArray(missingDevices) || !missingDevices.every(isGone))) return false;
    this.expectSameHistory();
    tracked.reseals++;
    if (payload !== null) await outbox.replace(this.withRow(pending, { ...pending.row, ...payload }));
    return true;
  }

  /**
   * Bases a write, the refused one or the first above it that overwrites, on the state that was met, just after that one's
   * time; those below it are dropped. In one batch: dropped first and made again by its caller, it would be lost where the
   * program ends in between. False where there is none.
   */
  private async overwritten(refused: Pending, error: ApiError): Promise<boolean> {
    const { clock, deviceList, outbox, reader, sodium } = this.options;
    const met = stateMet(error, clock.now());
    const changes = [refused, ...outbox.after(refused)];
    const pending = changes.find(({ seq }) => this.tracked.get(seq)?.waiter?.overwrites === true);
    if (met === null || pending?.kind !== 'write') return false;
    const tracked = this.track(pending.seq);
    if (tracked.rebases >= REBASES_MAX) return false;
    let { row } = pending;
    if (row.ts <= met.ts) {
      // A blob is encrypted with it.
      if (row.blob !== null) return false;
      row = {
        ...row,
        ...retimeItem(sodium, row, { ...reader, devices: await deviceList.recipients(), ts: met.ts + 1 }),
      };
    }
    const changed = this.withRow({ ...pending, base: met.version }, row);
    this.expectSameHistory();
    tracked.rebases++;
    await this.drop(changes.slice(0, changes.indexOf(pending)), error, changed);
    return true;
  }

  /** A write with another content, and the moves that follow, whose tags cover it. */
  private withRow(pending: PendingWrite, row: LiveItem): readonly Pending[] {
    const { outbox, sodium, reader } = this.options;
    const changed: Pending[] = [{ ...pending, row }];
    let last = row;
    for (const later of outbox.after(pending)) {
      if (later.kind !== 'move') break;
      const { binId } = later.row;
      last = { ...last, binId, sig: moveTag(sodium, last, { binId, masterKey: reader.masterKey }) };
      changed.push({ ...later, row: last });
    }
    return changed;
  }

  /**
   * The write at the server's time, or just after the state that it replaces. Null where that is no earlier time, which a
   * server may name to make the item unchangeable, and for a blob, which is bound to its time.
   */
  private async retimed(pending: PendingWrite, serverTime: number, by: Reader & Recipients) {
    const { outbox, sodium } = this.options;
    const { id, seq, row, rewrap } = pending;
    // A blob is encrypted with it.
    if (rewrap || row.blob !== null) return null;
    const { entry } = await outbox.look(id);
    let last = entry?.state === 'live' ? entry.row.ts : 0;
    // Acknowledged, but not in the store yet.
    for (const before of outbox.ofItem(id)) if (before.seq < seq && before.kind === 'write') last = before.row.ts;
    const ts = Math.max(serverTime, last + 1);
    return ts >= TS_MIN && ts < row.ts ? retimeItem(sodium, row, { ...by, ts }) : null;
  }

  /** The replay of a reset may not end, without a server or a connection: no caller waits for that, and it is read again. */
  private limitWait(waitMs = RESET_WAIT_MS): void {
    if (this.closed !== undefined || !this.holds.has('reset')) return;
    this.timer ??= this.options.clock.setTimer(waitMs, () => {
      this.timer = undefined;
      if (!this.holds.has('reset')) return this.kick();
      this.tellQueued(new NetworkError('timeout', 'its new history was not read in time'));
      if (this.options.outbox.unsent().length > 0) void this.endReset();
    });
  }

  private async endReset(): Promise<void> {
    const { catchUp, emit, random } = this.options;
    let waitMs = 0;
    try {
      await catchUp();
    } catch (error) {
      if (this.closed === undefined && !isTransient(error)) emit('problem', { error: asError(error) });
      waitMs = Math.max(namedWaitMs(retryAfterMs(error), random), backoffMs(this.failures++, RECONNECT, random));
    }
    this.limitWait(Math.max(RESET_WAIT_MS, waitMs));
  }

  /** Callers that wait get `QueuedError`. */
  private tellQueued(error: Error): void {
    for (const tracked of this.tracked.values()) {
      tracked.waiter?.reject(new QueuedError(tracked.waiter.id, error));
      tracked.waiter = undefined;
    }
  }

  /** Handles a failed request: waiting callers get `QueuedError`, and the request is retried later. */
  private postpone(error: Error): void {
    if (this.closed !== undefined) return;
    this.tellQueued(error);
    this.mismatched = errorCode(error) === 'epoch_mismatch';
    if (!isTransient(error)) this.options.emit('problem', { error });
    const { random } = this.options;
    const asked = namedWaitMs(retryAfterMs(error), random);
    this.wakeIn(Math.max(asked, backoffMs(this.failures++, RECONNECT, random)));
  }

  /** Wakes when the first postponed change is due. */
  private untilDue(): void {
    if (this.closed !== undefined) return;
    let first = Infinity;
    for (const { seq } of this.options.outbox.unsent()) first = Math.min(first, this.tracked.get(seq)?.dueAt ?? first);
    if (first < Infinity) this.wakeIn(Math.max(0, first - this.now()));
  }

  private wakeIn(ms: number): void {
    this.timer?.cancel();
    this.timer = this.options.clock.setTimer(ms, () => {
      this.timer = undefined;
      this.kick();
    });
  }
}

/** The reply must name this item. Its version is above the base, or equal where the write changed nothing. */
function expectOutcome(sent: Pending | undefined, stored: Stored): Stored {
  if (sent?.id !== stored.id || stored.version < Math.max(sent.base ?? 0, 1)) throw wrongReply(sent, 'is not about it');
  return stored;
}

const wrongReply = (sent: Pending | undefined, what: string): ProtocolError =>
  new ProtocolError(`the reply to a change of ${sent?.id} ${what}`, { code: 'wrong_reply' });

const isRewrap = (pending: Pending): boolean => pending.kind === 'write' && pending.rewrap;

/** A change that writes an item. */
type PendingWrite = Extract<Pending, { kind: 'write' }>;
