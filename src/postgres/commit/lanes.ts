/**
 * Group commit: the changes of many tenants in one call (contract 13; sql/0002_commit.sql).
 * Each lane has one connection and a queue; the next batch is what gathered while the last one was under way, so
 * batches grow with load and no timer delays a single write. A tenant always goes through the same lane: two
 * batches that touch one tenant would only wait for each other's locks.
 */
import type pg from 'pg';
import { nextTurn } from '../../protocol/batcher.js';
import { unavailable } from '../../protocol/errors.js';
import type { Summary } from '../../protocol/item.js';
import { NO_METER, type Meter } from '../../protocol/meter.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import type { Change, CommitLanes, CommitSink, Outcome } from '../../tenant/ports.js';
import { isConnectionLoss, isRetryable, isUnavailable } from '../database.js';
import { batchParameters, changeBytes, COMMIT_SQL, INSERT_SQL, insertParameters } from './batch.js';
import { bySink, byTenant, inOrder, type Entry, type TenantEntries } from './entries.js';
import { readDecided, readInserted, type Decided } from './results.js';

/** Changes in one call, and their bytes. */
const BATCH_CHANGES = 256;
const BATCH_BYTES = 8 * 1024 * 1024;
/** Changes and bytes that may wait in a lane; beyond that the server sheds load. */
const QUEUE_CHANGES = 20_000;
const QUEUE_BYTES = 128 * 1024 * 1024;
/** Calls of one batch in all, when the connection breaks or a deadlock is found; every one may be repeated safely. */
const ATTEMPTS = 3;
const RETRY_MS = 200;
/** After a batch failed for want of a database, new writes are refused at once for so long, ms. */
const DOWN_MS = 1_000;

export interface LanesOptions {
  /** Opens a connection for a lane; `onLost` is called when it dies. */
  readonly connect: (onLost: (error: Error) => void) => Promise<pg.Client>;
  readonly lanes: number;
  /** STORAGE_CAP_BYTES; 0 is unlimited. */
  readonly storageCap: number;
  readonly now: () => number;
  readonly wait: (ms: number) => Promise<void>;
  readonly onFault: (error: unknown) => void;
  /** Told of every batch. */
  readonly meter?: Meter;
}

export class PostgresCommitLanes implements CommitLanes {
  private readonly lanes: readonly Lane[];

  constructor(options: LanesOptions) {
    this.lanes = Array.from({ length: options.lanes }, () => new Lane(options));
  }

  submit<C extends Change>(change: C, sink: CommitSink<C>): void {
    // The sink gets back the very changes it submitted.
    this.laneOf(change.tenantId).push(change, sink);
  }

  /** Changes that were taken and wait for their batch. */
  get waiting(): number {
    return this.lanes.reduce((sum, lane) => sum + lane.waiting, 0);
  }

  private laneOf(tenantId: string): Lane {
    let hash = 0;
    for (let i = 0; i < tenantId.length; i++) hash = (hash * 31 + tenantId.charCodeAt(i)) | 0;
    const lane = this.lanes[Math.abs(hash) % this.lanes.length];
    if (lane === undefined) throw new Error('no commit lane');
    return lane;
  }

  /** Resolves when everything queued is answered; then the connections are closed. */
  async close(): Promise<void> {
    await Promise.all(this.lanes.map((lane) => lane.close()));
  }
}

class Lane {
  private queue: Entry[] = [];
  private queuedBytes = 0;
  private orders = 0;
  private client: pg.Client | undefined;
  private readonly working = new SingleFlight(() => this.work());
  private closed = false;
  private downUntil = 0;
  private calls = 0;
  private planAt = 0;

  private readonly meter: Meter;

  constructor(private readonly options: LanesOptions) {
    this.meter = options.meter ?? NO_METER;
  }

  /** Changes that were taken and are not answered. */
  get waiting(): number {
    return this.queue.length;
  }

  push(change: Change, sink: CommitSink): void {
    if (this.closed) throw unavailable('the server is stopping');
    const bytes = changeBytes(change);
    if (this.queue.length >= QUEUE_CHANGES || this.queuedBytes + bytes > QUEUE_BYTES)
      throw unavailable('too many writes wait');
    if (this.options.now() < this.downUntil) throw unavailable('the database is out of reach');
    const order = this.orders++;
    this.queue.push({ change, sink, bytes, order, alone: false, owed: false, since: performance.now() });
    this.queuedBytes += bytes;
    void this.working.fresh();
  }

  async close(): Promise<void> {
    await this.working.idle();
    this.closed = true;
    await this.client?.end();
  }

  private async work(): Promise<void> {
    // What came in with this turn of the event loop goes into one batch.
    if (this.queue.length > 0) await nextTurn();
    while (this.queue.length > 0) {
      try {
        await this.commit(this.take());
      } catch (error) {
        // A fault of ours; the lane goes on with what comes next.
        this.options.onFault(error);
      }
    }
  }

  /**
   * The next batch: at most one change of an item and one write that names a blob, in the order they came. What is
   * left waits for the next: `commit_changes` judges each change by what was stored before its batch.
   */
  private take(): Entry[] {
    const batch: Entry[] = [];
    const left: Entry[] = [];
    const taken = new Set<string>();
    const tenants = new Map<string, boolean>();
    let bytes = 0;
    let at = 0;
    for (; at < this.queue.length && batch.length < BATCH_CHANGES; at++) {
      const entry = this.queue[at];
      if (entry === undefined) break;
      if (batch.length > 0 && bytes + entry.bytes > BATCH_BYTES) break;
      const { tenantId, id, packed } = entry.change;
      const item = tenantId + id;
      const blob = packed.blobRef === null ? item : tenantId + packed.blobRef;
      const shares = tenants.get(tenantId);
      if (taken.has(item) || taken.has(blob) || shares === false || (entry.alone && shares !== undefined)) {
        left.push(entry);
        // A later change of the same item must not overtake this one.
        taken.add(item).add(blob);
        continue;
      }
      taken.add(item).add(blob);
      tenants.set(tenantId, !entry.alone);
      bytes += entry.bytes;
      entry.owed = true;
      batch.push(entry);
    }
    this.queue = left.length === 0 ? this.queue.slice(at) : [...left, ...this.queue.slice(at)];
    this.queuedBytes -= bytes;
    return batch;
  }

  /** What waits behind a batch that found no database would find none either, and only after as long a wait. */
  private takeAll(): Entry[] {
    const all = this.queue;
    this.queue = [];
    this.queuedBytes = 0;
    return all;
  }

  /** A batch to its end: whatever happens on the way, every change of it is answered, or waits in the queue again. */
  private async commit(batch: readonly Entry[]): Promise<void> {
    const begun = performance.now();
    try {
      await this.insertOrDecide(batch);
    } finally {
      const left = batch.filter(({ owed }) => owed);
      if (left.length > 0) this.fail(left, unavailable('whether it is stored is not known'));
    }
    const ended = performance.now();
    this.meter.committed(batch.length, ended - begun, ended - (batch[0]?.since ?? begun));
  }

  /** Inserts what is plainly new, and has the rest decided (sql/0002_commit.sql). */
  private async insertOrDecide(batch: readonly Entry[]): Promise<void> {
    const { tenants, others } = byTenant(batch);
    const left = tenants.length === 0 ? [] : await this.insert(tenants);
    if (left.length + others.length > 0) await this.decide([...left, ...others].sort(inOrder));
  }

  /** Inserts the changes of tenants that have nothing but new items. Returns those that were not. */
  private async insert(tenants: readonly TenantEntries[]): Promise<readonly Entry[]> {
    const entries = tenants.flatMap((tenant) => tenant.entries);
    let inserted: (Summary | null)[];
    try {
      inserted = await this.call(
        () => ({ name: 'insert', text: INSERT_SQL, values: insertParameters(tenants, this.options.storageCap) }),
        (rows) => readInserted(rows, tenants.length),
      );
    } catch (error) {
      // Another instance may have stored one of the items a moment ago. Whatever it is, one by one it will show.
      if (!isUnavailable(error) && !isRetryable(error)) return entries;
      this.outage(entries, error);
      return [];
    }
    return this.answerInserts(tenants, inserted);
  }

  /** Has a batch decided; one that fails for its content is split until the bad change stands alone (contract 13). */
  private async decide(batch: readonly Entry[]): Promise<void> {
    let decided: Decided[];
    try {
      const changes = batch.map((entry) => entry.change);
      const settings = { now: this.options.now(), cap: this.options.storageCap };
      decided = await this.call(
        () => ({ name: 'commit', text: COMMIT_SQL, values: batchParameters(changes, settings) }),
        (rows) => readDecided(rows, changes.length),
      );
    } catch (error) {
      if (isUnavailable(error) || isRetryable(error)) {
        this.outage(batch, error);
      } else if (batch.length === 1) {
        this.fail(batch, error instanceof Error ? error : new Error(String(error)));
      } else {
        const half = batch.length >> 1;
        await this.decide(batch.slice(0, half));
        await this.decide(batch.slice(half));
      }
      return;
    }
    this.answer(batch, decided);
  }

  /** The database cannot be asked: a batch, and where the link is gone whatever waits, is told so. */
  private outage(batch: readonly Entry[], error: unknown): void {
    this.downUntil = isUnavailable(error) ? this.options.now() + DOWN_MS : 0;
    const told = isConnectionLoss(error) ? [...batch, ...this.takeAll()] : batch;
    this.fail(told, unavailable('the database is out of reach'));
    this.options.onFault(error);
  }

  /**
   * One statement, repeated where that may help: a change that was stored by a lost call is recognised. `read` throws
   * where the answer is none to what was asked; then whatever was done is not known, and the connection is not used again.
   */
  private async call<T>(query: () => pg.QueryConfig, read: (rows: unknown) => T): Promise<T> {
    let rows: unknown;
    for (let attempt = 1; ; attempt++) {
      try {
        const client = await this.connection();
        await this.planAnew(client);
        ({ rows } = await client.query<unknown[]>({ ...query(), rowMode: 'array' as const }));
        break;
      } catch (error) {
        if (isUnavailable(error)) this.disconnect();
        if (attempt >= ATTEMPTS || !(isConnectionLoss(error) || isRetryable(error))) throw error;
        await this.options.wait(RETRY_MS);
      }
    }
    try {
      return read(rows);
    } catch (cause) {
      this.disconnect();
      throw Object.assign(unavailable('whether it is stored is not known'), { cause });
    }
  }

  /**
   * A plan is made for tables of the size they have then, and kept. Made while they were empty, it reads them whole:
   * 20 times the work a moment later, until the first autovacuum. So it is made anew each time the calls have grown
   * fourfold, as the tables may have.
   */
  private async planAnew(client: pg.Client): Promise<void> {
    if (++this.calls < this.planAt) return;
    this.planAt = this.calls * 4;
    await client.query('DISCARD PLANS');
  }

  private async connection(): Promise<pg.Client> {
    if (this.client !== undefined) return this.client;
    // It may be lost before `connect` has handed it over: then it is used once, which fails, and never kept.
    const opening: { lost: boolean; client?: pg.Client } = { lost: false };
    const client = await this.options.connect((error) => {
      opening.lost = true;
      if (opening.client !== undefined && this.client === opening.client) this.client = undefined;
      this.options.onFault(error);
    });
    opening.client = client;
    if (!opening.lost) this.client = client;
    this.calls = 0;
    this.planAt = 4;
    return client;
  }

  /** A connection that timed out may still be at work: its answer must not be taken for the next batch's. */
  private disconnect(): void {
    const client = this.client;
    this.client = undefined;
    // Its end is not waited for: a link that is dead on its way never confirms it.
    client?.end().catch(this.options.onFault);
  }

  /** Versions follow from the head: a tenant's changes are its last ones, in their order. */
  private answerInserts(tenants: readonly TenantEntries[], inserted: readonly (Summary | null)[]): Entry[] {
    const at = this.options.now();
    const left: Entry[] = [];
    for (const [i, { entries, generation }] of tenants.entries()) {
      const summary = inserted[i] ?? null;
      const [first] = entries;
      if (summary === null || first === undefined) {
        left.push(...entries);
        continue;
      }
      const base = summary.version - entries.length + 1;
      const outcomes = entries.map(({ change }, n): Outcome => ({
        change,
        verdict: 'insert',
        version: base + n,
        ts: null,
        at,
      }));
      this.tell(first.sink, entries, () => first.sink.committed(outcomes, { summary, generation }));
    }
    return left;
  }

  private answer(batch: readonly Entry[], decided: readonly Decided[]): void {
    const at = this.options.now();
    const back: Entry[] = [];
    const sinks = new Map<CommitSink, { entries: Entry[]; outcomes: Outcome[]; last: Decided }>();
    for (const [i, entry] of batch.entries()) {
      const last = decided[i];
      if (last === undefined) continue;
      const { verdict, version, ts, stored } = last;
      if (verdict === 'alone') {
        // Alone it was already: what is not decided now never is, and it is told so with those without an answer.
        if (!entry.alone) back.push(entry);
        continue;
      }
      const found = sinks.get(entry.sink) ?? { entries: [], outcomes: [], last };
      found.entries.push(entry);
      found.outcomes.push({ change: entry.change, verdict, version, ts, at, stored });
      sinks.set(entry.sink, { ...found, last });
    }
    this.putBack(back);
    for (const [sink, { entries, outcomes, last }] of sinks) {
      const { summary, generation } = last;
      this.tell(sink, entries, () => sink.committed(outcomes, { summary, generation }));
    }
  }

  /** Back to where they stood: what came later must not overtake them, least of all a change of the same item. */
  private putBack(entries: readonly Entry[]): void {
    if (entries.length === 0) return;
    for (const entry of entries) {
      entry.alone = true;
      entry.owed = false;
      this.queuedBytes += entry.bytes;
    }
    this.queue = [...entries, ...this.queue].sort(inOrder);
  }

  private fail(batch: readonly Entry[], error: Error): void {
    for (const [sink, entries] of bySink(batch)) {
      const changes = entries.map(({ change }) => change);
      this.tell(sink, entries, () => sink.failed(changes, error));
    }
  }

  /**
   * Tells a sink, once. One that throws is a fault of ours: whom it has not answered yet it is to answer that the outcome
   * is not known; the others are told all the same, and the lane goes on.
   */
  private tell(sink: CommitSink, entries: readonly Entry[], work: () => void): void {
    for (const entry of entries) entry.owed = false;
    try {
      work();
    } catch (error) {
      this.options.onFault(error);
      this.tellAgain(sink, entries);
    }
  }

  private tellAgain(sink: CommitSink, entries: readonly Entry[]): void {
    const changes = entries.map(({ change }) => change);
    try {
      sink.failed(changes, unavailable('whether it is stored is not known'));
    } catch (error) {
      this.options.onFault(error);
    }
  }
}
