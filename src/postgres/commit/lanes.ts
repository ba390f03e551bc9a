/**
 * Group commit: the changes of many tenants in one call (contract 13; sql/0002_commit.sql).
 * Each lane has one connection and a queue; the next batch is what gathered while the last one was under way, so
 * batches grow with load and no timer delays a single write. A tenant always goes through the same lane: two
 * batches that touch one tenant would only wait for each other's locks.
 */
import type pg from 'pg';
import { unavailable } from '../../protocol/errors.js';
import { NO_METER, type Meter } from '../../protocol/meter.js';
import type { Change, CommitLanes, CommitSink, Outcome, Verdict } from '../../tenant/ports.js';
import { isConnectionLoss, isRetryable, isUnavailable } from '../database.js';
import { readRows } from '../packing.js';
import { batchParameters, changeBytes, COMMIT_SQL, INSERT_SQL, insertParameters } from './batch.js';
import { byTenant, inOrder, type Entry, type TenantEntries } from './entries.js';

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

type ResultRow = [
  n: number,
  verdict: Verdict | 'alone',
  version: number | null,
  ts: number | null,
  head: number,
  itemCount: number,
  versionSum: number,
  generation: number,
  stored: Buffer | null,
];

/** Per tenant, in the order of the parameters; null where nothing was done. */
type InsertRow = [heads: Positions, itemCounts: Positions, versionSums: Positions];
type Positions = readonly (number | null)[];

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
  private working: Promise<void> | undefined;
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
    const bytes = changeBytes(change);
    if (this.queue.length >= QUEUE_CHANGES || this.queuedBytes + bytes > QUEUE_BYTES)
      throw unavailable('too many writes wait');
    if (this.options.now() < this.downUntil) throw unavailable('the database is out of reach');
    this.queue.push({ change, sink, bytes, order: this.orders++, alone: false, since: performance.now() });
    this.queuedBytes += bytes;
    if (this.working === undefined) this.begin();
  }

  private begin(): void {
    // After the current turn of the event loop: what came in with it goes into one batch.
    this.working = new Promise<void>((resolve) => setImmediate(resolve)).then(() => this.work());
  }

  async close(): Promise<void> {
    while (this.working !== undefined) await this.working;
    await this.client?.end();
  }

  private async work(): Promise<void> {
    try {
      while (this.queue.length > 0) await this.commit(this.take());
    } catch (error) {
      // A fault of ours; the lane goes on with what comes next.
      this.options.onFault(error);
    } finally {
      this.working = undefined;
      if (this.queue.length > 0) this.begin();
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

  /** Inserts what is plainly new, and has the rest decided (sql/0002_commit.sql). */
  private async commit(batch: readonly Entry[]): Promise<void> {
    const begun = performance.now();
    const { tenants, others } = byTenant(batch);
    const left = tenants.length === 0 ? [] : await this.insert(tenants);
    if (left.length + others.length > 0) await this.decide([...left, ...others].sort(inOrder));
    const ended = performance.now();
    this.meter.committed(batch.length, ended - begun, ended - (batch[0]?.since ?? begun));
  }

  /** Inserts the changes of tenants that have nothing but new items. Returns those that were not. */
  private async insert(tenants: readonly TenantEntries[]): Promise<readonly Entry[]> {
    const entries = tenants.flatMap((tenant) => tenant.entries);
    let rows: InsertRow[];
    try {
      rows = await this.call(() => ({
        name: 'insert',
        text: INSERT_SQL,
        values: insertParameters(tenants, this.options.storageCap),
      }));
    } catch (error) {
      // Another instance may have stored one of the items a moment ago. Whatever it is, one by one it will show.
      if (!isUnavailable(error) && !isRetryable(error)) return entries;
      this.outage(entries, error);
      return [];
    }
    return this.answerInserts(tenants, rows[0]);
  }

  /** Has a batch decided; one that fails for its content is split until the bad change stands alone (contract 13). */
  private async decide(batch: readonly Entry[]): Promise<void> {
    let rows: ResultRow[];
    try {
      const changes = batch.map((entry) => entry.change);
      rows = await this.call(() => ({
        name: 'commit',
        text: COMMIT_SQL,
        values: batchParameters(changes, { now: this.options.now(), cap: this.options.storageCap }),
      }));
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
    this.answer(batch, rows);
  }

  /** The database cannot be asked: a batch, and where the link is gone whatever waits, is told so. */
  private outage(batch: readonly Entry[], error: unknown): void {
    this.downUntil = isUnavailable(error) ? this.options.now() + DOWN_MS : 0;
    this.options.onFault(error);
    const told = isConnectionLoss(error) ? [...batch, ...this.takeAll()] : batch;
    this.fail(told, unavailable('the database is out of reach'));
  }

  /** One statement, repeated where that may help: a change that was stored by a lost call is recognised. */
  private async call<R extends unknown[]>(query: () => pg.QueryConfig): Promise<R[]> {
    for (let attempt = 1; ; attempt++) {
      try {
        const client = await this.connection();
        await this.planAnew(client);
        return (await client.query<R>({ ...query(), rowMode: 'array' as const })).rows;
      } catch (error) {
        if (isUnavailable(error)) await this.disconnect();
        if (attempt >= ATTEMPTS || !(isConnectionLoss(error) || isRetryable(error))) throw error;
        await this.options.wait(RETRY_MS);
      }
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
  private async disconnect(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    await client?.end().catch(this.options.onFault);
  }

  /** Versions follow from the head: a tenant's changes are its last ones, in their order. */
  private answerInserts(tenants: readonly TenantEntries[], row: InsertRow | undefined): Entry[] {
    const at = this.options.now();
    const left: Entry[] = [];
    const [heads, itemCounts, versionSums] = row ?? [[], [], []];
    for (const [i, { entries, generation }] of tenants.entries()) {
      const head = heads[i] ?? null;
      const [first] = entries;
      if (head === null || first === undefined) {
        left.push(...entries);
        continue;
      }
      const base = head - entries.length + 1;
      const summary = { version: head, itemCount: itemCounts[i] ?? 0, versionSum: versionSums[i] ?? 0 };
      const outcomes = entries.map(({ change }, n): Outcome => ({
        change,
        verdict: 'insert',
        version: base + n,
        ts: null,
        at,
      }));
      this.tell(() => first.sink.committed(outcomes, { summary, generation }));
    }
    return left;
  }

  private answer(batch: readonly Entry[], rows: readonly ResultRow[]): void {
    const at = this.options.now();
    const alone: Entry[] = [];
    const sinks = new Map<CommitSink, { outcomes: Outcome[]; last: ResultRow }>();
    for (const row of rows) {
      const [n, verdict, version, ts] = row;
      const stored = row[8] === null ? null : (readRows(row[8])[0] ?? null);
      const entry = batch[n - 1];
      if (entry === undefined) continue;
      if (verdict === 'alone') {
        entry.alone = true;
        this.queuedBytes += entry.bytes;
        alone.push(entry);
        continue;
      }
      const found = sinks.get(entry.sink) ?? { outcomes: [], last: row };
      found.outcomes.push({ change: entry.change, verdict, version, ts, at, stored });
      sinks.set(entry.sink, found);
    }
    // Back to where they stood: what came later must not overtake them, least of all a change of the same item.
    if (alone.length > 0) this.queue = [...alone, ...this.queue].sort((a, b) => a.order - b.order);
    for (const [sink, { outcomes, last }] of sinks) {
      const [, , , , head, itemCount, versionSum, generation] = last;
      this.tell(() => sink.committed(outcomes, { summary: { version: head, itemCount, versionSum }, generation }));
    }
  }

  /** A sink that throws is a fault of ours: the others are told all the same, and the lane goes on. */
  private tell(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.options.onFault(error);
    }
  }

  private fail(batch: readonly Entry[], error: Error): void {
    const sinks = new Map<CommitSink, Change[]>();
    for (const { sink, change } of batch) {
      const changes = sinks.get(sink);
      if (changes === undefined) sinks.set(sink, [change]);
      else changes.push(change);
    }
    for (const [sink, changes] of sinks) this.tell(() => sink.failed(changes, error));
  }
}
