/**
 * Group commit: the changes of many tenants in one call of `commit_changes` (contract 13; sql/0002_commit.sql).
 * Each lane has one connection and a queue; the next batch is what gathered while the last one was under way, so
 * batches grow with load and no timer delays a single write. A tenant always goes through the same lane: two
 * batches that touch one tenant would only wait for each other's locks.
 */
import type pg from 'pg';
import { unavailable } from '../protocol/errors.js';
import type { Change, CommitLanes, CommitSink, Outcome, Verdict } from '../tenant/ports.js';
import { batchParameters, changeBytes, COMMIT_SQL } from './commit-batch.js';
import { isConnectionLoss, isRetryable, isUnavailable } from './database.js';
import { readRows } from './packing.js';

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

interface Entry {
  readonly change: Change;
  readonly sink: CommitSink;
  readonly bytes: number;
  /** Rises from change to change of a lane. */
  readonly order: number;
  /** Judged without others of its tenant, because together they would pass the storage cap. */
  alone: boolean;
}

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

export interface LanesOptions {
  /** Opens a connection for a lane; `onLost` is called when it dies. */
  readonly connect: (onLost: (error: Error) => void) => Promise<pg.Client>;
  readonly lanes: number;
  /** STORAGE_CAP_BYTES; 0 is unlimited. */
  readonly storageCap: number;
  readonly now: () => number;
  readonly wait: (ms: number) => Promise<void>;
  readonly onFault: (error: unknown) => void;
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

  constructor(private readonly options: LanesOptions) {}

  push(change: Change, sink: CommitSink): void {
    const bytes = changeBytes(change);
    if (this.queue.length >= QUEUE_CHANGES || this.queuedBytes + bytes > QUEUE_BYTES)
      throw unavailable('too many writes wait');
    if (this.options.now() < this.downUntil) throw unavailable('the database is out of reach');
    this.queue.push({ change, sink, bytes, order: this.orders++, alone: false });
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
      const { tenantId, id, write } = entry.change;
      const item = tenantId + id;
      const blob = write?.blob ? tenantId + write.blob.ref : item;
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

  /** Commits a batch; one that fails for its content is split until the bad change stands alone (contract 13). */
  private async commit(batch: readonly Entry[]): Promise<void> {
    let rows: ResultRow[];
    try {
      rows = await this.call(batch);
    } catch (error) {
      if (isUnavailable(error) || isRetryable(error)) {
        this.downUntil = isUnavailable(error) ? this.options.now() + DOWN_MS : 0;
        this.options.onFault(error);
        this.fail(
          isConnectionLoss(error) ? [...batch, ...this.takeAll()] : batch,
          unavailable('the database is out of reach'),
        );
      } else if (batch.length === 1) {
        this.fail(batch, error instanceof Error ? error : new Error(String(error)));
      } else {
        const half = batch.length >> 1;
        await this.commit(batch.slice(0, half));
        await this.commit(batch.slice(half));
      }
      return;
    }
    this.answer(batch, rows);
  }

  private async call(batch: readonly Entry[]): Promise<ResultRow[]> {
    const changes = batch.map((entry) => entry.change);
    for (let attempt = 1; ; attempt++) {
      try {
        const values = batchParameters(changes, { now: this.options.now(), cap: this.options.storageCap });
        const client = await this.connection();
        await this.planAnew(client);
        const query = { name: 'commit', text: COMMIT_SQL, values, rowMode: 'array' as const };
        return (await client.query<ResultRow>(query)).rows;
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
