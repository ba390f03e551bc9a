/**
 * Sends what is in the outbox, in one loop: what gathers while a request is under way goes out together as a batch,
 * which counts as one write. A change is dropped only when the server has refused it for good.
 */
import { rewrapItem } from '../crypto/item.js';
import { text } from '../protocol/bytes.js';
import type { Timer } from '../protocol/clock.js';
import { asError, errorCode } from '../protocol/error-code.js';
import { BATCH_WRITES_MAX, BODY_MAX_BATCH } from '../protocol/limits.js';
import { SingleFlight } from '../protocol/single-flight.js';
import type { DeviceApi } from './api.js';
import { backoffMs, RECONNECT, RETRY_AFTER_MAX_MS } from './platform.js';
import {
  ApiError,
  ClientError,
  isPassing,
  ProtocolError,
  QueuedError,
  retryAfterMs,
  UncertifiedDeviceError,
} from './errors.js';
import type { NewChange } from './outbox.js';
import type { Stored } from './replies.js';
import type { DeviceList } from './device-list.js';
import { type Pending, pendingWrite } from './store/store.js';
import { writeBody } from './wire.js';
import type { Core } from './core.js';

/** Who holds it: between a `reset` and the end of its replay no base is known; the `owner` looks at the server first. */
type Hold = 'reset' | 'owner';

/** What became of a change that was sent: its version, or why not. */
type Outcome = Stored | { readonly error: ApiError };

/** A change that is kept now. `outcome`: its version, or a refusal, or `QueuedError` where it has to wait. */
export interface Submitted {
  readonly outcome: Promise<Stored>;
}

/** A change that was refused for now. */
interface Parked {
  readonly tries: number;
  /** Not sent again before, ms. */
  readonly until: number;
  /** Refusals of it that were told already. */
  readonly told: ReadonlySet<string>;
}

interface Waiter {
  readonly id: string;
  resolve(stored: Stored): void;
  reject(error: Error): void;
}

/** Keys are sealed anew for devices that the server misses this often; a server that never has enough is not humoured. */
const RESEALS_MAX = 3;
/** Codes remembered of one change; a server that makes up more is told of again. */
const TOLD_MAX = 16;
/**
 * Refusals that another attempt does not change. Anything else (storage full, tenant suspended, an uncertified device)
 * may pass, and a user's change is not thrown away for it.
 */
const FINAL: ReadonlySet<string> = new Set([
  'validation',
  'unknown_type',
  'item_too_large',
  'payload_too_large',
  'blob_not_found',
  'bin_not_found',
  'item_not_found',
  'conflict',
]);

/** The one loop that sends. */
export class Sender {
  private readonly waiters = new Map<number, Waiter>();
  private readonly reseals = new Map<number, number>();
  /** Changes that were refused for now, by `seq`: each waits for itself, the others are not held up by them. */
  private readonly parked = new Map<number, Parked>();
  /** `seq`s of changes without a base that were told of. */
  private readonly baseless = new Set<number>();
  /** `seq`s of this program's changes that nobody was sent yet. */
  private readonly unseen = new Set<number>();
  private readonly running = new SingleFlight(() => this.loop());
  private timer: Timer | undefined;
  private failures = 0;
  private rosterRead: Promise<unknown> | undefined;
  private readonly holds = new Set<Hold>();
  /** What ended it. */
  private closed: Error | undefined;

  constructor(
    private readonly options: Pick<Core, 'api' | 'outbox' | 'sodium' | 'reader' | 'clock' | 'random' | 'emit'> & {
      readonly roster: DeviceList;
    },
  ) {}

  /**
   * Keeps a change and sends it. Resolves when it is kept, rejects where it cannot be. It is in the outbox before this
   * returns: what was read of the item to make it still holds then. `gather`: it goes out with the next `kick`, in one
   * request with what is submitted until then.
   */
  async submit(change: NewChange, { gather = false } = {}): Promise<Submitted> {
    if (this.closed !== undefined) throw this.closed;
    const { pending, stored } = this.options.outbox.add(change);
    const { id, seq } = pending;
    this.unseen.add(seq);
    const outcome = new Promise<Stored>((resolve, reject) => this.waiters.set(seq, { id, resolve, reject }));
    // The caller may look at it late, or never, and has not even got it yet.
    outcome.catch(() => undefined);
    try {
      await stored;
    } catch (error) {
      this.waiters.delete(seq);
      this.unseen.delete(seq);
      throw error;
    }
    if (!gather) this.kick();
    return { outcome };
  }

  /** Sends what waits and is due. Does nothing while the sender is held, or at it already. */
  kick(): void {
    if (this.holds.size > 0 || this.closed !== undefined) return;
    this.timer?.cancel();
    this.timer = undefined;
    void this.running.fresh();
  }

  /** Sends nothing until `release`. */
  hold(why: Hold): void {
    this.holds.add(why);
  }

  /** The others may still hold it. */
  release(why: Hold): void {
    this.holds.delete(why);
    this.kick();
  }

  /** Who waits for changes that are gone from the outbox hears so. */
  abandoned(gone: readonly Pending[]): void {
    const error = new ClientError('reset', "the server's history was replaced");
    for (const pending of gone) {
      this.forget(pending);
      this.finish(pending, (waiter) => waiter.reject(error));
    }
  }

  /** Sends nothing more. Who waits gets `error`; what was not sent stays in the store. */
  close(error: Error): void {
    this.closed = error;
    this.timer?.cancel();
    for (const waiter of this.waiters.values()) waiter.reject(error);
    this.waiters.clear();
  }

  private ready(): readonly Pending[] {
    const now = this.options.clock.now();
    return this.options.outbox.unsent().filter(({ seq }) => (this.parked.get(seq)?.until ?? now) <= now);
  }

  private async loop(): Promise<void> {
    // Asked for while the last round failed: it is tried again when its time has come.
    if (this.timer !== undefined) return;
    this.tellBaseless();
    while (this.holds.size === 0 && this.closed === undefined) {
      if (this.ready().length === 0) break;
      try {
        await this.judgeAnew();
        await this.round(this.ready());
        this.failures = 0;
      } catch (error) {
        this.postpone(asError(error));
        return;
      }
    }
    this.untilDue();
  }

  private tellBaseless(): void {
    for (const { id, seq } of this.options.outbox.baseless()) {
      if (this.baseless.has(seq)) continue;
      this.baseless.add(seq);
      const error = new ProtocolError(`a change of ${id} is not sent: the one below it is not in the store`);
      this.options.emit('problem', { error });
    }
  }

  /** Sends one request. Throws what concerns all of it; what concerns a single change is settled with that change. */
  private async round(ready: readonly Pending[]): Promise<void> {
    const [first] = ready;
    if (first === undefined) return;
    const load: Load = first.kind === 'write' ? fitting(ready) : { kind: 'single', sent: [first] };
    const recorded = this.request(load).then((outcomes) => this.settleAll(load.sent, outcomes));
    const over = recorded.catch(() => undefined);
    for (const { id } of load.sent) this.options.outbox.sending(id, over);
    await recorded;
  }

  /**
   * The list of devices may be another one by now than where a change was made, as where it was held. Nobody has seen
   * that change yet: a device that was revoked meanwhile gets no key of it, and a stranger stops it as it stops `put`.
   */
  private async judgeAnew(): Promise<void> {
    const { outbox, roster } = this.options;
    const strangers = roster.standing()?.uncertified ?? [];
    for (const pending of this.ready()) {
      if (!this.unseen.delete(pending.seq) || pending.kind !== 'write') continue;
      if (strangers.length > 0 && this.waiters.has(pending.seq)) {
        await this.dropRefused(pending, new UncertifiedDeviceError(strangers));
        continue;
      }
      const { inline } = pending.row;
      if (inline === null || ![...inline.keys.keys()].some((id) => roster.isRevoked(id))) continue;
      const keys = new Map([...inline.keys].filter(([id]) => !roster.isRevoked(id)));
      await outbox.replace({ ...pending, row: { ...pending.row, inline: { ...inline, keys } } });
    }
  }

  private async request(load: Load): Promise<readonly Outcome[]> {
    if (load.sent.length === 1) {
      try {
        return [expectOutcome(load.sent[0], await this.single(load))];
      } catch (error) {
        if (isPassing(error) || !(error instanceof ApiError)) throw error;
        return [{ error }];
      }
    }
    const results = await this.api.batch(load.kind === 'writes' ? load.bodies : []);
    if (results.length !== load.sent.length)
      throw new ProtocolError('a batch was answered with another number of results', { code: 'wrong_reply' });
    return results.map((result, at) =>
      result instanceof ApiError ? { error: result } : expectOutcome(load.sent[at], result),
    );
  }

  /** Once it has failed nobody waits for an answer any more: then this loop's own waits are enough. */
  private get api(): DeviceApi {
    return this.failures === 0 ? this.options.api : this.options.api.once;
  }

  private single(load: Load): Promise<Stored> {
    const { api } = this;
    if (load.kind === 'writes') return api.write(load.bodies[0] ?? '');
    const [pending] = load.sent;
    if (pending.kind === 'delete') return api.remove(pending.id, pending.sig);
    const { row, base } = pending;
    if (row.sig === null || base === null) throw new ProtocolError(`the move of ${row.id} has no tag or no base`);
    return api.move(row.id, { binId: row.binId, version: base, sig: row.sig });
  }

  /** Every outcome is recorded, whatever became of the others; then the first failure that is not a refusal is thrown. */
  private async settleAll(sent: readonly Pending[], outcomes: readonly Outcome[]): Promise<void> {
    const failures: Error[] = [];
    this.rosterRead = undefined;
    for (const [at, pending] of sent.entries()) {
      const outcome = outcomes[at];
      if (outcome === undefined) continue;
      if ('error' in outcome) {
        await this.refused(pending, outcome.error).catch((error: unknown) => failures.push(asError(error)));
        continue;
      }
      await this.options.outbox.acknowledged(pending, outcome.version);
      this.forget(pending);
      const stored = { id: pending.id, version: outcome.version };
      const told = this.finish(pending, (waiter) => waiter.resolve(stored));
      if (!told && !isRewrap(pending)) this.options.emit('sent', stored);
    }
    if (failures[0] !== undefined) throw failures[0];
  }

  /**
   * A refusal: mended by new keys, or final, or, where nobody waits for the change any more, kept for better times.
   * Throws what passes by itself.
   */
  private async refused(pending: Pending, error: ApiError): Promise<void> {
    if (this.closed !== undefined) return;
    let refusal: Error = error;
    try {
      if (pending.kind === 'write' && (await this.resealed(pending, error))) return;
    } catch (cause) {
      refusal = asError(cause);
    }
    if (isPassing(refusal)) throw refusal;
    const final = refusal instanceof ApiError && FINAL.has(refusal.code);
    if (final || this.waiters.has(pending.seq)) {
      await this.dropRefused(pending, refusal);
      return;
    }
    this.park(pending, refusal);
  }

  /** Nothing but time, or the user, changes this refusal. It is told once, not at each try. */
  private park({ seq }: Pending, refusal: Error): void {
    const { clock, random, emit } = this.options;
    const { tries, told } = this.parked.get(seq) ?? { tries: 0, told: new Set<string>() };
    const code = errorCode(refusal) || refusal.name;
    const until = clock.now() + backoffMs(tries, RECONNECT, random);
    this.parked.set(seq, { tries: tries + 1, until, told: new Set([...told, code].slice(-TOLD_MAX)) });
    if (!told.has(code)) emit('problem', { error: refusal });
  }

  private forget({ seq }: Pending): void {
    this.reseals.delete(seq);
    this.parked.delete(seq);
    this.baseless.delete(seq);
    this.unseen.delete(seq);
  }

  /** A refused change goes, and with it those made on top of it. Its caller hears of it, or an event tells. */
  private async dropRefused(pending: Pending, error: Error): Promise<void> {
    const gone = [pending, ...this.options.outbox.after(pending)];
    await this.options.outbox.drop(gone);
    for (const change of gone) {
      this.forget(change);
      const told = this.finish(change, (waiter) => waiter.reject(error));
      if (told || isRewrap(change)) continue;
      this.options.emit('rejected', { id: change.id, error, row: change.kind === 'delete' ? null : change.row });
    }
  }

  /** The server misses devices in `keys`: one joined meanwhile. Its key is added, and the write goes out again. */
  private async resealed(pending: PendingWrite, error: ApiError): Promise<boolean> {
    if (!Array.isArray(error.details['missingDevices'])) return false;
    const times = this.reseals.get(pending.seq) ?? 0;
    if (times >= RESEALS_MAX) return false;
    this.reseals.set(pending.seq, times + 1);
    // Once for all refusals of one answer: they were judged by the same list.
    this.rosterRead ??= this.options.roster.refresh();
    await this.rosterRead;
    const { sodium, reader, roster } = this.options;
    const devices = await roster.recipients();
    const payload = rewrapItem(sodium, pending.row, { ...reader, devices });
    if (payload === null) return false;
    await this.options.outbox.replace({ ...pending, row: { ...pending.row, ...payload } });
    return true;
  }

  private finish(pending: Pending, end: (waiter: Waiter) => void): boolean {
    const waiter = this.waiters.get(pending.seq);
    this.waiters.delete(pending.seq);
    if (waiter !== undefined) end(waiter);
    return waiter !== undefined;
  }

  /** Nothing goes out for now: callers learn that their change waits, and after a while it is tried again. */
  private postpone(error: Error): void {
    if (this.closed !== undefined) return;
    for (const waiter of this.waiters.values()) waiter.reject(new QueuedError(waiter.id, error));
    this.waiters.clear();
    if (!isPassing(error)) this.options.emit('problem', { error });
    const asked = Math.min(retryAfterMs(error), RETRY_AFTER_MAX_MS);
    this.wakeIn(Math.max(asked, backoffMs(this.failures++, RECONNECT, this.options.random)));
  }

  /** Comes back when the first of the parked changes is due. */
  private untilDue(): void {
    if (this.closed !== undefined || this.parked.size === 0) return;
    let first = Infinity;
    for (const { seq } of this.options.outbox.unsent()) first = Math.min(first, this.parked.get(seq)?.until ?? first);
    if (first < Infinity) this.wakeIn(Math.max(0, first - this.options.clock.now()));
  }

  private wakeIn(ms: number): void {
    this.timer?.cancel();
    this.timer = this.options.clock.setTimer(ms, () => this.kick());
  }
}

/** The reply must be about this change. Its version is above the base, or the base's own where nothing was to be done. */
function expectOutcome(sent: Pending | undefined, stored: Stored): Stored {
  if (sent?.id !== stored.id || stored.version < Math.max(sent.base ?? 0, 1))
    throw new ProtocolError(`the reply to a change of ${sent?.id} is not about it`, { code: 'wrong_reply' });
  return stored;
}

const isRewrap = (pending: Pending): boolean => pending.kind === 'write' && pending.rewrap;

/** A change that writes an item. */
export type PendingWrite = Extract<Pending, { kind: 'write' }>;

/** One request's worth of changes; of writes also the bodies, which are made once. */
export type Load =
  | { readonly kind: 'writes'; readonly sent: readonly PendingWrite[]; readonly bodies: readonly string[] }
  | { readonly kind: 'single'; readonly sent: readonly [Exclude<Pending, PendingWrite>] };

/** Room for the JSON around the writes of a batch. */
const BATCH_BYTES = BODY_MAX_BATCH - 1024;

/** As many writes from the front as one batch takes, with their bodies. A single one goes alone, whatever its size. */
export function fitting(ready: readonly Pending[]): Load & { readonly kind: 'writes' } {
  const sent: PendingWrite[] = [];
  const bodies: string[] = [];
  let bytes = 0;
  for (const pending of ready) {
    if (pending.kind !== 'write') continue;
    const body = JSON.stringify(writeBody(pendingWrite(pending)));
    bytes += text(body).length + 1;
    if (sent.length > 0 && (bytes > BATCH_BYTES || sent.length >= BATCH_WRITES_MAX)) break;
    sent.push(pending);
    bodies.push(body);
  }
  return { kind: 'writes', sent, bodies };
}
