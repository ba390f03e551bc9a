/**
 * Sends what is in the outbox, in one loop: what gathers while a request is under way goes out together as a batch,
 * which counts as one write (contract 5). A change is dropped only when the server has refused it for good.
 */
import { rewrapItem, type Reader } from '../crypto/item.js';
import type { Sodium } from '../crypto/sodium.js';
import type { Clock, Timer } from '../protocol/clock.js';
import { text } from '../protocol/bytes.js';
import { BATCH_WRITES_MAX, BODY_MAX_BATCH } from '../protocol/limits.js';
import type { DeviceApi } from './api.js';
import { backoffMs, RECONNECT, type Random } from './backoff.js';
import { ApiError, ClientError, isPassing, ProtocolError, QueuedError } from './errors.js';
import { asError, type Emit } from './events.js';
import type { Outbox } from './outbox.js';
import type { Stored } from './replies.js';
import type { Roster } from './roster.js';
import { pendingWrite, type Pending } from './store.js';
import { writeBody } from './wire.js';

type PendingWrite = Extract<Pending, { kind: 'write' }>;

/** What the sender needs of its device. */
export interface SenderOptions {
  readonly api: DeviceApi;
  readonly outbox: Outbox;
  readonly roster: Roster;
  readonly sodium: Sodium;
  readonly reader: Reader;
  readonly clock: Clock;
  readonly random: Random;
  readonly emit: Emit;
}

/** What became of a change that was sent: its version, or why not. */
type Outcome = { readonly version: number } | { readonly error: ApiError };

interface Waiter {
  readonly id: string;
  resolve(stored: Stored): void;
  reject(error: Error): void;
}

/** Room for the JSON around the writes of a batch. */
const BATCH_BYTES = BODY_MAX_BATCH - 1024;
/** Keys are sealed anew for devices that the server misses this often; a server that never has enough is not humoured. */
const RESEALS_MAX = 3;
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
  /** Changes that were refused for now: the others are not held up by them. */
  private readonly parked = new Set<number>();
  private running: Promise<void> | undefined;
  private timer: Timer | undefined;
  private failures = 0;
  private held = false;
  private closed = false;

  constructor(private readonly options: SenderOptions) {}

  /** The outcome of a change just added: its version, or a refusal, or `QueuedError` where it has to wait. */
  async outcome(pending: Pending): Promise<Stored> {
    const { id, seq } = pending;
    const settled = new Promise<Stored>((resolve, reject) => this.waiters.set(seq, { id, resolve, reject }));
    this.kick();
    return settled;
  }

  /** Sends what waits, parked or not. Does nothing while the sender is held, or at it already. */
  kick(): void {
    if (this.held || this.closed) return;
    this.timer?.cancel();
    this.timer = undefined;
    this.parked.clear();
    this.running ??= this.loop().finally(() => {
      this.running = undefined;
      // What was added after the loop's last look would wait for the next change otherwise.
      if (this.timer === undefined && this.ready().length > 0) this.kick();
    });
  }

  /** Sends nothing until `release`: between a reset and the end of its replay no base is known. */
  hold(): void {
    this.held = true;
  }

  release(): void {
    this.held = false;
    this.kick();
  }

  /** Who waits for changes that are gone from the outbox hears so. */
  abandoned(gone: readonly Pending[]): void {
    const error = new ClientError('reset', "the server's history was replaced");
    for (const pending of gone) this.finish(pending, (waiter) => waiter.reject(error));
  }

  /** Sends nothing more. Who waits gets `error`; what was not sent stays in the store. */
  close(error: Error): void {
    this.closed = true;
    this.timer?.cancel();
    for (const waiter of this.waiters.values()) waiter.reject(error);
    this.waiters.clear();
  }

  private ready(): readonly Pending[] {
    return this.options.outbox.unsent().filter((pending) => !this.parked.has(pending.seq));
  }

  private async loop(): Promise<void> {
    while (!this.held && !this.closed) {
      const ready = this.ready();
      if (ready.length === 0) break;
      try {
        await this.round(ready);
        this.failures = 0;
      } catch (error) {
        this.postpone(asError(error));
        return;
      }
    }
    if (this.parked.size > 0) this.later();
  }

  /** Sends one request. Throws what concerns all of it; what concerns a single change is settled with that change. */
  private async round(ready: readonly Pending[]): Promise<void> {
    const [first] = ready;
    if (first === undefined) return;
    const sent = first.kind === 'write' ? fitting(ready) : [first];
    const recorded = this.request(sent).then((outcomes) => this.settleAll(sent, outcomes));
    const over = recorded.catch(() => undefined);
    for (const { id } of sent) this.options.outbox.sending(id, over);
    await recorded;
  }

  private async request(sent: readonly Pending[]): Promise<readonly Outcome[]> {
    const [only] = sent;
    if (sent.length === 1 && only !== undefined) {
      try {
        return [{ version: (await this.single(only)).version }];
      } catch (error) {
        if (isPassing(error) || !(error instanceof ApiError)) throw error;
        return [{ error }];
      }
    }
    const bodies = sent.flatMap((pending) => (pending.kind === 'write' ? [writeBody(pendingWrite(pending))] : []));
    const results = await this.options.api.batch(bodies);
    if (results.length !== sent.length) throw new ProtocolError('a batch was answered with another number of results');
    return results.map((result) => (typeof result === 'number' ? { version: result } : { error: result }));
  }

  private single(pending: Pending): Promise<Stored> {
    const { api } = this.options;
    if (pending.kind === 'write') return api.write(pendingWrite(pending));
    if (pending.kind === 'delete') return api.remove(pending.id, pending.sig);
    const { row, base } = pending;
    if (row.sig === null || base === null) throw new ProtocolError(`the move of ${row.id} has no tag or no base`);
    return api.move(row.id, { binId: row.binId, version: base, sig: row.sig });
  }

  /** Every outcome is recorded, whatever became of the others; then the first failure that is not a refusal is thrown. */
  private async settleAll(sent: readonly Pending[], outcomes: readonly Outcome[]): Promise<void> {
    const failures: Error[] = [];
    for (const [at, pending] of sent.entries()) {
      const outcome = outcomes[at];
      if (outcome === undefined) continue;
      if ('error' in outcome) {
        await this.refused(pending, outcome.error).catch((error: unknown) => failures.push(asError(error)));
        continue;
      }
      await this.options.outbox.acknowledged(pending, outcome.version);
      this.reseals.delete(pending.seq);
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
    if (this.closed) return;
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
    this.parked.add(pending.seq);
    this.options.emit('problem', { error: refusal });
  }

  /** A refused change goes, and with it those made on top of it. Its caller hears of it, or an event tells. */
  private async dropRefused(pending: Pending, error: Error): Promise<void> {
    const gone = [pending, ...this.options.outbox.after(pending)];
    await this.options.outbox.drop(gone);
    for (const change of gone) {
      this.reseals.delete(change.seq);
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
    await this.options.roster.refresh();
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
    if (this.closed) return;
    for (const waiter of this.waiters.values()) waiter.reject(new QueuedError(waiter.id, error));
    this.waiters.clear();
    if (!isPassing(error)) this.options.emit('problem', { error });
    this.later();
  }

  private later(): void {
    if (this.closed) return;
    const wait = backoffMs(this.failures++, RECONNECT, this.options.random);
    this.timer?.cancel();
    this.timer = this.options.clock.setTimer(wait, () => this.kick());
  }
}

const isRewrap = (pending: Pending): boolean => pending.kind === 'write' && pending.rewrap;

/** As many writes from the front as one batch takes. A single one goes alone, whatever its size. */
function fitting(ready: readonly Pending[]): readonly Pending[] {
  const writes = ready.filter((pending) => pending.kind === 'write').slice(0, BATCH_WRITES_MAX);
  let bytes = 0;
  const count = writes.findIndex((pending) => {
    bytes += text(JSON.stringify(writeBody(pendingWrite(pending)))).length + 1;
    return bytes > BATCH_BYTES;
  });
  return writes.slice(0, count < 0 ? writes.length : Math.max(1, count));
}
