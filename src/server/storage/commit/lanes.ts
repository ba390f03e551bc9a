/**
 * Group commit: the changes of many tenants in one call (sql/0002_commit.sql).
 * The next batch is what was queued while the last one was under way, so batches grow with load and no timer delays a
 * single write. Lanes are connections; a second one commits what others have queued while the batch of the first is stuck.
 * A tenant is in one lane at a time: two batches that touch one tenant would only wait for each other's locks.
 */
import type pg from 'pg';
import type { Clock } from '../../../protocol/clock.js';
import { asError } from '../../../protocol/error-code.js';
import { unavailable, type ServiceError } from '../../../protocol/errors.js';
import type { Summary } from '../../../protocol/item.js';
import type { Meter } from '../../../protocol/meter.js';
import { Arena, type Change, type CommitSink, type Position } from '../../tenant/change.js';
import type { CommitLanes, History } from '../../tenant/ports.js';
import { isConnectionLoss, isLockTimeout, isRetryable, isUnavailable } from '../database.js';
import {
  byTenant,
  callBinary,
  COMMIT,
  cutOff,
  INSERT,
  Parameters,
  putCommit,
  putInsert,
  readDecided,
  readInserted,
  type Decided,
  type TenantChanges,
} from './batch.js';

/** Limits of one call: changes, and (BATCH_BYTES) their bytes. */
const BATCH_CHANGES = 256;
/**
 * A batch above this size is at most half of the changes under way. Otherwise writers that wait for their answers would
 * all be in one batch, and PostgreSQL and this process would wait for each other in turns (bench S1, S2).
 */
const BATCH_WHOLE = 32;
const BATCH_BYTES = 8 * 1024 * 1024;
/**
 * From this many waiting changes on, tenants take turns: the next batch takes at most this many of each tenant before it
 * takes more of any. So a write waits for a part of a batch of each other tenant, however many writes of it wait.
 */
const LONG_QUEUE = 2 * BATCH_CHANGES;
const TURN_CHANGES = BATCH_CHANGES / 4;
/**
 * Changes that may wait, and bytes of unanswered changes; beyond that the server sheds load. A tenant holds at
 * most a quarter of each (tenant/actor.ts).
 */
export const QUEUE_CHANGES = 20_000;
export const ARENA_BYTES = 128 * 1024 * 1024;
/** Total calls of one batch if the connection breaks or a deadlock is found; every call may be repeated safely. */
const ATTEMPTS = 3;
const RETRY_MS = 200;
/**
 * A batch that has been under way for so long, ms, is stuck: it waits for another transaction's lock on one of its
 * tenants, or for a slow disk or network. Then another lane begins a batch beside it; without spare cores not earlier,
 * since smaller batches cost more than is saved (bench, Tried and left).
 */
const STUCK_MS = 10;
/** After a batch failed because the database was unreachable, new writes are refused at once for this time, ms. */
const DOWN_MS = 1_000;

export interface LanesOptions {
  /** Opens a connection for a lane; `onLost` is called when it dies. */
  readonly connect: (onLost: (error: Error) => void) => Promise<pg.Client>;
  /** Whether statements stay prepared on a connection (see `ConnectionSettings.pooled`). */
  readonly prepares: boolean;
  readonly lanes: number;
  /** Whether the database has cores of its own: then no lane waits until another is stuck. */
  readonly spareCores: boolean;
  /** STORAGE_CAP_BYTES; 0 is unlimited. */
  readonly storageCap: number;
  readonly history: History;
  readonly clock: Pick<Clock, 'now'>;
  readonly wait: (ms: number) => Promise<void>;
  readonly onFault: (error: unknown) => void;
  /** Measures every batch. */
  readonly meter?: Meter;
}

const inOrder = (one: Change, other: Change): number => one.order - other.order;

/** The first `TURN_CHANGES` changes of each tenant, then all others. The order within a tenant stays. */
function tenantsInTurn(queue: Change[]): Change[] {
  const counts = new Map<string, number>();
  const [first, others]: [Change[], Change[]] = [[], []];
  for (const change of queue) {
    const count = counts.get(change.tenantId) ?? 0;
    counts.set(change.tenantId, count + 1);
    (count < TURN_CHANGES ? first : others).push(change);
  }
  return counts.size === 1 ? queue : first.concat(others);
}

/** The outcome of a batch: each change is in one of the two lists, except those put back into the queue. */
interface Settled {
  /** By sink. */
  readonly committed: { readonly sink: CommitSink; readonly changes: Change[]; readonly position: Position }[];
  readonly failed: { readonly changes: readonly Change[]; readonly error: Error }[];
}

const NO_TENANTS: ReadonlySet<string> = new Set();

/** Executes one batch at a time, on a connection that is opened when it is first needed, and again when it was lost. */
class Lane {
  readonly parameters: Parameters;
  /** A loop takes batches for this lane. */
  working = false;
  /** Changes of the batch under way. */
  size = 0;
  /** When it began, ms of `performance.now()`; Infinity: none is under way. */
  begun = Infinity;
  /** The epoch of its changes. */
  epoch = '';
  /** Its tenants, and those of the one before until that is reported. */
  private tenants = NO_TENANTS;
  private unreported = NO_TENANTS;
  private client: pg.Client | undefined;
  private calls = 0;
  private planAt = 0;

  constructor(private readonly options: LanesOptions) {
    this.parameters = new Parameters(options.prepares);
  }

  begin(batch: readonly Change[], at: number): void {
    this.unreported = this.tenants;
    this.tenants = batch.length === 0 ? NO_TENANTS : new Set(batch.map(({ tenantId }) => tenantId));
    this.size = batch.length;
    this.begun = batch.length === 0 ? Infinity : at;
    this.epoch = this.options.history.epoch;
  }

  /** The batch before the one under way was reported. */
  reported(): void {
    this.unreported = NO_TENANTS;
  }

  /** Whether an unreported batch has changes of this tenant. */
  holds(tenantId: string): boolean {
    return this.tenants.has(tenantId) || this.unreported.has(tenantId);
  }

  async close(): Promise<void> {
    await this.client?.end();
  }

  /**
   * One statement, repeated if that may help: a change that was stored by a lost call is recognised as `same`. With an
   * open connection it is sent before this returns. `read` throws if the result does not fit the call; then the outcome
   * is unknown, and the connection is not used again.
   */
  call<T>(statement: string, put: () => void, read: (rows: unknown) => T): Promise<T> {
    return this.query(statement, put, 1).then((rows) => {
      try {
        return read(rows);
      } catch (cause) {
        this.disconnect();
        throw Object.assign(unknownOutcome(), { cause });
      }
    });
  }

  /** Those of these tenants that no other transaction has locked. */
  async unlocked(tenants: readonly string[]): Promise<ReadonlySet<string>> {
    const client = await this.prepared();
    try {
      const text = 'SELECT id FROM tenants WHERE id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED';
      return new Set((await client.query<{ id: string }>(text, [tenants])).rows.map(({ id }) => id));
    } catch (error) {
      this.disconnect();
      throw error;
    }
  }

  private query(statement: string, put: () => void, attempt: number): Promise<unknown> {
    const { client } = this;
    const send = (on: pg.Client): Promise<unknown> => {
      // Also of a first attempt: the change was checked against versions of another history (EPOCH-09).
      if (this.options.history.epoch !== this.epoch) throw unknownOutcome();
      put();
      return callBinary(on, statement, this.parameters);
    };
    const sent = client === undefined || ++this.calls >= this.planAt ? this.prepared().then(send) : send(client);
    return sent.catch(async (error: unknown) => {
      if (isUnavailable(error) && !isLockTimeout(error)) this.disconnect();
      if (attempt >= ATTEMPTS || !(isConnectionLoss(error) || isRetryable(error))) throw error;
      await this.options.wait(RETRY_MS);
      return this.query(statement, put, attempt + 1);
    });
  }

  /**
   * The lane's connection. A cached plan fits the table sizes at the time it was made. A plan made for empty tables
   * scans them: 20 times the work shortly after, until the first autovacuum. So plans are discarded each time the
   * number of calls has grown fourfold, as the tables may have.
   */
  private async prepared(): Promise<pg.Client> {
    const client = this.client ?? (await this.connect());
    if (this.calls >= this.planAt) {
      this.planAt = Math.max(4, this.calls * 4);
      await client.query('DISCARD PLANS');
    }
    return client;
  }

  private async connect(): Promise<pg.Client> {
    // The connection may be lost before `connect` returns it: then it is used once, which fails, and not kept.
    const opening: { lost: boolean; client?: pg.Client } = { lost: false };
    const client = await this.options.connect((error) => {
      opening.lost = true;
      if (opening.client !== undefined && this.client === opening.client) this.client = undefined;
      this.options.onFault(error);
    });
    opening.client = client;
    if (!opening.lost) this.client = client;
    this.calls = 1;
    this.planAt = 4;
    return client;
  }

  /**
   * A connection that timed out may still be executing: its result must not be taken for the next batch's, and unsent
   * bytes must never be sent, since their memory is reused.
   */
  private disconnect(): void {
    const { client } = this;
    this.client = undefined;
    if (client !== undefined) void cutOff(client).catch(this.options.onFault);
  }
}

/** The queue of all changes, and the lanes that commit them. */
export class PostgresCommitLanes implements CommitLanes {
  readonly arena = new Arena(ARENA_BYTES);
  private readonly lanes: readonly Lane[];
  private queue: Change[] = [];
  private orders = 0;
  private whenIdle: (() => void)[] = [];
  private closed = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** When the database was last found unreachable. */
  private downSince = -Infinity;

  constructor(private readonly options: LanesOptions) {
    this.lanes = Array.from({ length: options.lanes }, () => new Lane(options));
  }

  /** Accepted changes that wait for their batch. */
  get waiting(): number {
    return this.queue.length;
  }

  submit(change: Change, sink: CommitSink): void {
    if (this.closed) throw unavailable('the server is stopping');
    if (this.queue.length >= QUEUE_CHANGES) throw unavailable('too many writes wait');
    // Not longer where the clock was set back.
    if (Math.abs(this.options.clock.now() - this.downSince) < DOWN_MS)
      throw unavailable('the database is out of reach');
    change.sink = sink;
    change.epoch = this.options.history.epoch;
    change.order = this.orders++;
    this.queue.push(change);
    this.wake(change.tenantId);
  }

  /** Lets an idle lane work, now or as soon as the others are stuck. `tenantId`: of the only change that is new. */
  private wake(tenantId?: string): void {
    const lane = this.lanes.find(({ working }) => !working);
    if (lane === undefined) return;
    const others = this.others(lane);
    if (tenantId !== undefined && holds(others, tenantId)) return;
    if (!this.isDue(others)) {
      this.timer ??= setTimeout(() => {
        this.timer = undefined;
        if (this.queue.length > 0) this.wake();
      }, STUCK_MS);
      return;
    }
    lane.working = true;
    // Changes of the same turn of the event loop share a batch.
    setImmediate(() => void this.work(lane));
  }

  /** Resolves when everything queued is answered; then the connections are closed. */
  async close(): Promise<void> {
    while (this.lanes.some(({ working }) => working))
      await new Promise<void>((resolve) => void this.whenIdle.push(resolve));
    this.closed = true;
    clearTimeout(this.timer);
    await Promise.all(this.lanes.map((lane) => lane.close()));
  }

  /**
   * Commits batch after batch on a lane. The next one is sent to PostgreSQL before the last one's pushes and replies are
   * written, so that both work at once. Its result arrives in a later turn of the event loop, and no other lane takes
   * changes of its tenants before it is reported, so messages are written to the sockets in the order of the batches.
   */
  private async work(lane: Lane): Promise<void> {
    let last: Settled | undefined;
    do {
      const begun = performance.now();
      const others = this.others(lane);
      const batch = this.isDue(others) ? this.take(lane, others) : [];
      lane.begin(batch, begun);
      const call = batch.length === 0 ? undefined : this.commit(batch, lane);
      if (last !== undefined) this.report(last);
      lane.reported();
      last = await call;
      if (last !== undefined) this.guarded(() => this.measure(batch, begun));
      // What is left in the queue is taken by the lane that ends last.
    } while (last !== undefined || (this.queue.length > 0 && this.others(lane).length === 0));
    lane.working = false;
    for (const wake of this.whenIdle.splice(0)) wake();
  }

  /** The other lanes that are working. */
  private others(lane: Lane): readonly Lane[] {
    return this.lanes.filter((other) => other !== lane && other.working);
  }

  /** Whether a lane may begin a batch beside those of the others. */
  private isDue(others: readonly Lane[]): boolean {
    return this.options.spareCores || others.every(({ begun }) => performance.now() - begun >= STUCK_MS);
  }

  private measure(batch: readonly Change[], begun: number): void {
    const ended = performance.now();
    this.options.meter?.committed(batch.length, ended - begun, ended - (batch[0]?.since ?? begun));
  }

  /**
   * The next batch of a lane, in order of arrival, or by turns if many changes wait: at most one change per item and one
   * per blob. The rest waits for the next batch, since `commit_changes` judges each change by what was stored before its
   * batch.
   */
  private take(lane: Lane, others: readonly Lane[]): Change[] {
    const most = Math.min(BATCH_CHANGES, Math.max(BATCH_WHOLE, Math.ceil((this.queue.length + lane.size) / 2)));
    const batch: Change[] = [];
    const left: Change[] = [];
    const taken = new Set<string>();
    if (this.queue.length > LONG_QUEUE) this.queue = tenantsInTurn(this.queue);
    // Only if some change has to be its tenant's only one in the batch; otherwise the map is not needed.
    const tenants = this.queue.some(({ alone }) => alone) ? new Map<string, boolean>() : undefined;
    let bytes = 0;
    let at = 0;
    for (; at < this.queue.length && batch.length < most; at++) {
      const change = this.queue[at];
      if (change === undefined) break;
      const size = change.end - change.at;
      if (batch.length > 0 && bytes + size > BATCH_BYTES) break;
      const { tenantId, id, blobRef } = change;
      if (holds(others, tenantId)) {
        left.push(change);
        continue;
      }
      const shares = tenants?.get(tenantId);
      const apart = shares === false || (change.alone && shares !== undefined);
      const item = tenantId + id;
      const blob = blobRef === null ? undefined : tenantId + blobRef;
      const waits = apart || taken.has(item) || (blob !== undefined && taken.has(blob));
      // Also for a change that waits: a later change of the same item must not overtake it.
      taken.add(item);
      if (blob !== undefined) taken.add(blob);
      if (waits) {
        left.push(change);
        continue;
      }
      tenants?.set(tenantId, !change.alone);
      bytes += size;
      batch.push(change);
    }
    this.queue = left.length === 0 ? this.queue.slice(at) : [...left, ...this.queue.slice(at)];
    return batch;
  }

  /**
   * Inserts plain new items, and calls `commit_changes` for the rest (sql/0002_commit.sql). Never rejects, and omits no
   * change: on any failure, changes not known to be decided count as failed, and their clients retry (guarantee 2).
   */
  private async commit(taken: readonly Change[], lane: Lane): Promise<Settled> {
    const settled: Settled = { committed: [], failed: [] };
    const batch = taken.filter(({ epoch }) => epoch === lane.epoch);
    try {
      const { tenants, others } = byTenant(batch);
      const left = tenants.length === 0 ? [] : await this.insert(tenants, settled, lane);
      // If the database is unreachable, the others would wait for the same time limit again.
      if (left === undefined) settled.failed.push({ changes: others, error: outOfReach() });
      else if (left.length + others.length > 0) await this.decide([...left, ...others].sort(inOrder), settled, lane);
    } catch (error) {
      this.options.onFault(error);
    }
    this.failTheRest(taken, settled);
    return settled;
  }

  private failTheRest(batch: readonly Change[], settled: Settled): void {
    const known = settled.committed.reduce((sum, { changes }) => sum + changes.length, 0);
    // `failed` may include changes that were queued behind the batch, so its size proves nothing.
    if (settled.failed.length === 0 && known >= batch.length) return;
    const settledOnes = new Set([...settled.committed, ...settled.failed].flatMap(({ changes }) => changes));
    const queued = new Set(this.queue);
    const changes = batch.filter((change) => !settledOnes.has(change) && !queued.has(change));
    if (changes.length === 0) return;
    settled.failed.push({ changes, error: unknownOutcome() });
  }

  /**
   * Inserts the changes of tenants that have only new items. Resolves with the changes that are left to decide, and with
   * undefined in an outage.
   */
  private async insert(
    tenants: readonly TenantChanges[],
    settled: Settled,
    lane: Lane,
  ): Promise<readonly Change[] | undefined> {
    let inserted: (Summary | null)[];
    try {
      const put = (): void => putInsert(lane.parameters, tenants, this.options.storageCap);
      inserted = await lane.call(INSERT.text, put, (rows) => readInserted(rows, tenants.length));
    } catch (error) {
      const changes = tenants.flatMap((tenant) => tenant.changes);
      if (this.outage(changes, error, settled)) return undefined;
      // Another instance may have stored one of the items meanwhile: `commit_changes` decides each change.
      return isLockTimeout(error) ? this.unlocked(changes, error, settled, lane) : changes;
    }
    return this.inserted(tenants, inserted, settled);
  }

  /**
   * Calls `commit_changes`; a batch that fails because of its content is split until the bad change is alone (INST-15).
   */
  private async decide(batch: readonly Change[], settled: Settled, lane: Lane): Promise<void> {
    let decided: Decided[];
    try {
      const settings = { now: this.options.clock.now(), cap: this.options.storageCap };
      const put = (): void => putCommit(lane.parameters, batch, settings);
      decided = await lane.call(COMMIT.text, put, (rows) => readDecided(rows, batch.length));
    } catch (error) {
      if (this.outage(batch, error, settled)) return;
      if (isLockTimeout(error)) {
        const left = await this.unlocked(batch, error, settled, lane);
        // Otherwise the same batch is not repeated, so that this ends: the lock is gone, or one of a whole table.
        if (left.length < batch.length) return left.length === 0 ? undefined : this.decide(left, settled, lane);
        return void settled.failed.push({ changes: batch, error: lockedElsewhere() });
      }
      if (batch.length === 1) return void settled.failed.push({ changes: batch, error: asError(error) });
      const half = batch.length >> 1;
      await this.decide(batch.slice(0, half), settled, lane);
      return this.decide(batch.slice(half), settled, lane);
    }
    this.decided(batch, decided, settled);
  }

  /** After a lock timeout: fails the changes of tenants that are still locked, and resolves with the others. */
  private async unlocked(
    batch: readonly Change[],
    timeout: unknown,
    { failed }: Settled,
    lane: Lane,
  ): Promise<readonly Change[]> {
    this.options.onFault(timeout);
    const unlocked = await lane.unlocked([...new Set(batch.map(({ tenantId }) => tenantId))]);
    failed.push({ changes: batch.filter(({ tenantId }) => !unlocked.has(tenantId)), error: lockedElsewhere() });
    return batch.filter(({ tenantId }) => unlocked.has(tenantId));
  }

  /**
   * Whether the database is unreachable, or has another history: then these changes fail. If the connection is gone, the
   * queued changes fail now too: they would otherwise fail after another time limit.
   */
  private outage(batch: readonly Change[], error: unknown, { failed }: Settled): boolean {
    if (batch[0]?.epoch !== this.options.history.epoch) {
      failed.push({ changes: batch, error: unknownOutcome() });
      return true;
    }
    if (isLockTimeout(error) || (!isUnavailable(error) && !isRetryable(error))) return false;
    this.downSince = isUnavailable(error) ? this.options.clock.now() : -Infinity;
    const waiting = isConnectionLoss(error) ? this.queue.splice(0) : [];
    failed.push({ changes: [...batch, ...waiting], error: outOfReach() });
    this.options.onFault(error);
    return true;
  }

  /** Versions are derived from the head: a tenant's changes are its last versions, in order. */
  private inserted(
    tenants: readonly TenantChanges[],
    summaries: readonly (Summary | null)[],
    { committed }: Settled,
  ): Change[] {
    const at = this.options.clock.now();
    const left: Change[] = [];
    for (const [i, { changes, generation, sink }] of tenants.entries()) {
      const summary = summaries[i] ?? null;
      if (summary === null || sink === null) {
        left.push(...changes);
        continue;
      }
      let version = summary.version - changes.length;
      for (const change of changes) {
        change.verdict = 'insert';
        change.version = ++version;
        change.decidedAt = at;
      }
      committed.push({ sink, changes, position: { summary, generation } });
    }
    return left;
  }

  private decided(batch: readonly Change[], decided: readonly Decided[], { committed }: Settled): void {
    const at = this.options.clock.now();
    const back: Change[] = [];
    const sinks = new Map<CommitSink, { changes: Change[]; last: Decided }>();
    for (const [i, change] of batch.entries()) {
      const last = decided[i];
      if (last === undefined || change.sink === null) continue;
      if (last.verdict === 'alone') {
        // A change that was already alone is not put back: it fails with those without a result.
        if (!change.alone) back.push(change);
        continue;
      }
      change.verdict = last.verdict;
      change.version = last.version ?? 0;
      change.storedTs = last.ts;
      change.decidedAt = at;
      change.stored = last.stored;
      const found = sinks.get(change.sink);
      if (found === undefined) sinks.set(change.sink, { changes: [change], last });
      else {
        found.changes.push(change);
        found.last = last;
      }
    }
    this.putBack(back);
    for (const [sink, { changes, last }] of sinks)
      committed.push({ sink, changes, position: { summary: last.summary, generation: last.generation } });
  }

  /** Restores their place in the queue: later changes must not overtake them, least of all those of the same item. */
  private putBack(changes: readonly Change[]): void {
    if (changes.length === 0) return;
    for (const change of changes) change.alone = true;
    this.queue = [...changes, ...this.queue].sort(inOrder);
  }

  private report({ committed, failed }: Settled): void {
    const sinks = committed.map(({ sink }) => sink);
    for (const { sink, changes, position } of committed) this.reportTo(sink, changes, position);
    for (const { changes, error } of failed) {
      for (const [sink, theirs] of bySink(changes)) {
        sinks.push(sink);
        this.reportTo(sink, theirs, error);
      }
    }
    for (const sink of sinks) this.guarded(() => sink.settled());
  }

  /**
   * A sink that throws is a defect: it is called again to fail the changes it has not answered, with an unknown
   * outcome. The other sinks get their outcomes, and the lane continues.
   */
  private reportTo(sink: CommitSink, changes: readonly Change[], outcome: Position | Error): void {
    try {
      if (outcome instanceof Error) sink.failed(changes, outcome);
      else sink.committed(changes, outcome);
    } catch (error) {
      this.options.onFault(error);
      this.guarded(() => sink.failed(changes, unknownOutcome()));
    }
  }

  private guarded(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.options.onFault(error);
    }
  }
}

const holds = (lanes: readonly Lane[], tenantId: string): boolean => lanes.some((lane) => lane.holds(tenantId));

const lockedElsewhere = (): ServiceError => unavailable('another transaction has locked the tenant');

const outOfReach = (): ServiceError => unavailable('the database is out of reach');

const unknownOutcome = (): ServiceError => unavailable('whether it is stored is not known');

/** Changes grouped by the sink that submitted them. */
function bySink(changes: readonly Change[]): Map<CommitSink, Change[]> {
  const found = new Map<CommitSink, Change[]>();
  for (const change of changes) {
    if (change.sink === null) continue;
    const before = found.get(change.sink);
    if (before === undefined) found.set(change.sink, [change]);
    else before.push(change);
  }
  return found;
}
