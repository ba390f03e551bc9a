/**
 * The mailbox of one tenant. Messages are applied one after the other by `step`; its effects are executed here, and
 * their results become messages again. Nothing else changes the state, so the order of versions on a socket follows
 * from one loop instead of many callbacks (guarantee 1).
 */
import { CLOSE } from '../../protocol/close-codes.js';
import type { Clock } from '../../protocol/clock.js';
import { asError } from '../../protocol/error-code.js';
import { rateLimited, ServiceError, unavailable, type ErrorName } from '../../protocol/errors.js';
import type { Summary } from '../../protocol/item.js';
import { HEAD_COMPARE_MS, SOCKET_UNSENT_MAX } from '../../protocol/limits.js';
import type { Meter } from '../../protocol/meter.js';
import type { Arena, Change, CommitSink, Position } from './change.js';
import type { ItemRow } from './codec.js';
import type { Effect, Message } from './messages.js';
import type { FrameRing } from './deliver.js';
import type {
  ChangeAnnouncer,
  CommitLanes,
  DeviceState,
  FrameBytes,
  History,
  ItemLog,
  KeyPurger,
  LogPage,
  SocketPort,
  TenantLoader,
  TenantSnapshot,
} from './ports.js';
import type { Replaying, Session } from './session.js';
import { dismiss, TenantState } from './state.js';
import { admit, step } from './step.js';
import type { TurnQueue } from './turn-queue.js';

/** A socket with more than this unsent, bytes, gets nothing more until its buffer has emptied (guarantee 4). */
export const HIGH_WATER_BYTES = 128 * 1024;
/** Rows of one replay page, and bytes at which it ends early: all of it may have to wait in the socket's buffer. */
const REPLAY_ROWS = 500;
const REPLAY_BYTES = 256 * 1024;
/**
 * Rows requested for the next page, as a multiple of the estimate that fills it; no more, since the database reads
 * every row requested.
 */
const MORE_ROWS = 1.1;
/**
 * A tenant's unanswered changes, and their bytes: a quarter of what the commit queue holds (storage/commit/lanes.ts). More
 * are refused, for this tenant alone.
 */
export const PENDING_MAX = 5_000;
export const PENDING_BYTES_MAX = 32 * 1024 * 1024;
const GAP_ROWS = 1_000;
/** Gaps up to this many versions are read in one statement with other tenants'; the usual hint is one version ahead. */
const SMALL_GAP = 50;

export interface ActorPorts {
  readonly lanes: CommitLanes;
  readonly log: ItemLog;
  readonly loader: Pick<TenantLoader, 'reload' | 'head'>;
  readonly announcer: ChangeAnnouncer;
  readonly purger: KeyPurger;
  readonly clock: Pick<Clock, 'now'>;
  readonly history: History;
  /** Called when an effect fails that must not fail; the actor continues. */
  readonly onFault: (error: unknown, tenantId: string) => void;
  /** Keeps the frames of every actor's last changes. */
  readonly ring: FrameRing;
  /** Limits concurrent replay reads, fairly between tenants. */
  readonly replays: TurnQueue;
  /** The actors that the next tick compares with the database; each that has a reason adds itself. */
  readonly waiting: Set<Actor>;
  /** The actor's state can no longer be trusted: it must be dropped and reloaded. */
  readonly onBroken: (actor: Actor) => void;
  /** A retired actor has, or may have (null), committed a change that the actor loaded since does not know of. */
  readonly onLate: (tenantId: string, position: Position | null) => void;
  /**
   * Undefined while the actor's last comparison with the database is fresh; else resolves with whether the actor is now
   * up to date.
   */
  readonly current?: (actor: Actor) => Promise<boolean> | undefined;
  readonly meter?: Meter;
}

interface Reloading {
  resolve(): void;
  reject(error: unknown): void;
}

type Answer = Extract<Effect, { kind: 'stored' | 'refused' }>;

export class Actor implements CommitSink {
  private readonly tenant: TenantState;
  private readonly mailbox: Message[] = [];
  private running = false;
  /** Unanswered changes, and their bytes. */
  private pending = 0;
  private pendingBytes = 0;
  private retired = false;
  /** Arrival time of the oldest change pushed by the current message; undefined: it pushed none. */
  private pushedSince: number | undefined;
  /** True while a lane reports a batch: replies wait until the pushes of every tenant are sent. */
  private reporting = false;
  private heldAnswers: Answer[] | undefined;
  /** A read failed or a commit's outcome is unknown: each tick compares heads until one finds nothing new. */
  heldUp = false;
  /** A generation that was announced at `at`, ms, and is not read yet; the state was the database's as of `asOf`. */
  private behind: { readonly generation: number; readonly at: number; readonly asOf: number } | undefined;
  /** Callers that wait for a reload; undefined while there are none, to save memory: there are many actors. */
  private reloads: Reloading[] | undefined;
  /** Where the bytes of this tenant's changes are written. */
  readonly arena: Arena;
  /** Time of the last request or socket, ms: idle actors are dropped by the registry. */
  usedAt: number;
  /** Time at which devices, bins and state were last those of the database, ms. */
  private comparedAt: number;

  constructor(
    snapshot: TenantSnapshot,
    epoch: string,
    private readonly ports: ActorPorts,
  ) {
    this.tenant = new TenantState(snapshot, epoch, ports.ring);
    this.arena = ports.lanes.arena;
    this.usedAt = ports.clock.now();
    this.comparedAt = this.usedAt;
  }

  get tenantId(): string {
    return this.tenant.tenantId;
  }

  /** active, past_due, suspended, inactive or pending (reference, HTTP, States of a tenant). */
  get state(): string {
    return this.tenant.billingState;
  }

  get generation(): number {
    return this.tenant.generation;
  }

  /** The head up to which every version was delivered here. */
  get delivered(): number {
    return this.tenant.delivered;
  }

  get sessionCount(): number {
    return this.tenant.sessions.size;
  }

  /** True if dropping the actor now only costs time. */
  get idle(): boolean {
    return this.pending === 0 && this.tenant.sessions.size === 0;
  }

  /**
   * True if the state is known to be the database's within the last 5 s, so that requests may use it. After a
   * suspension (laptop lid, SIGSTOP) the event loop handles waiting requests before overdue timers, so the state may
   * predate a revocation. The clock may also have been set back.
   */
  isCurrent(now: number): boolean {
    return !this.retired && Math.abs(now - this.asOf) <= HEAD_COMPARE_MS;
  }

  /** The state is at least as recent as the database's at this time, ms. */
  private get asOf(): number {
    const { since, until } = this.ports.announcer.heard;
    const heard = this.comparedAt < since ? this.comparedAt : Math.max(this.comparedAt, until);
    return Math.min(heard, this.behind?.asOf ?? Infinity);
  }

  /** Whether the next tick must compare it with the database: for a reason, or since that was not done for `ms`. */
  toCompare(now: number, ms: number): boolean {
    // The clock may have been set back.
    return this.heldUp || this.behind !== undefined || Math.abs(now - this.comparedAt) > ms;
  }

  /** Each tick compares it until one finds nothing new. */
  holdUp(): void {
    this.heldUp = true;
    this.ports.waiting.add(this);
  }

  /** The database was read at this time, ms, and had no newer generation: any announced before that does not exist. */
  compared(at: number): void {
    this.comparedAt = at;
    if (this.behind !== undefined && this.behind.at < at) this.behind = undefined;
  }

  /** The same object as long as nothing about the device changes. */
  device(id: string): DeviceState | undefined {
    return this.tenant.devices.get(id);
  }

  socketsOf(deviceId: string): number {
    let count = 0;
    for (const session of this.tenant.sessions) if (session.deviceId === deviceId) count++;
    return count;
  }

  onlineDevices(): Set<string> {
    return new Set([...this.tenant.sessions].map((session) => session.deviceId));
  }

  /**
   * Stores a device's change. Its reply is called exactly once: `stored` once its version is durable (guarantee 2). Its
   * bytes, which are pinned in the arena, are released then.
   */
  submit(change: Change, deviceId: string): void {
    change.tenantId = this.tenantId;
    change.senderDevice = deviceId;
    change.changedBy = deviceId;
    change.since = performance.now();
    change.heldBytes = change.end - change.at;
    this.pending++;
    this.pendingBytes += change.heldBytes;
    this.usedAt = this.ports.clock.now();
    if (this.pending > PENDING_MAX || this.pendingBytes > PENDING_BYTES_MAX)
      return this.answer({ kind: 'refused', change, error: rateLimited('too many writes of the tenant wait', 1) });
    this.post({ kind: 'change', change });
  }

  /** Checks the device and registers its socket in one step, or returns the error. */
  open(socket: SocketPort): Session | ErrorName {
    if (this.retired) return 'unavailable';
    this.usedAt = this.ports.clock.now();
    const session = admit(this.tenant, socket);
    // Its `hello` reads the head, which includes everything written until now.
    if (this.sessionCount === 1) this.ports.announcer.subscribe(this.tenantId, this.usedAt);
    return session;
  }

  hello(session: Session, frame: { since: number; epoch: string | null; acks: boolean }): void {
    this.post({ kind: 'hello', session, ...frame });
  }

  drained(session: Session): void {
    this.post({ kind: 'drained', session });
  }

  closed(session: Session): void {
    this.usedAt = this.ports.clock.now();
    this.post({ kind: 'closed', session });
  }

  /** A hint, from another instance or from the comparison of heads, that the tenant's history reached this head. */
  headHint(head: number, generation: number): void {
    this.noteGeneration(generation);
    this.post({ kind: 'head-hint', head, generation });
  }

  /** The database is reachable and has nothing that is unknown here. */
  heard(): void {
    if (!this.heldUp) return;
    this.heldUp = false;
    this.headHint(0, 0);
  }

  /** Rows that another instance committed: versions in order, without a gap. */
  published(rows: readonly ItemRow[], generation: number, summary: Summary | null): void {
    this.noteGeneration(generation);
    this.post({ kind: 'published', rows, generation, summary });
  }

  /** Until the generation is read, the state ages regardless of heartbeats received: the read may fail. */
  private noteGeneration(generation: number): void {
    if (generation <= Math.max(this.generation, this.behind?.generation ?? 0)) return;
    this.behind = { generation, at: this.ports.clock.now(), asOf: this.asOf };
    this.ports.waiting.add(this);
  }

  /**
   * Reloads devices, bins and pairings. Resolves once sockets were notified and requests are checked against the new
   * state; rejects when the database cannot be read.
   */
  reload(): Promise<void> {
    return new Promise((resolve, reject) => {
      (this.reloads ??= []).push({ resolve, reject });
      // A read under way may have seen the older state.
      this.post({ kind: 'head-hint', head: 0, generation: Infinity });
    });
  }

  /** Closes every socket, refuses new ones, and drops the recent frames. */
  retire(code: number, reason: string): void {
    this.retired = true;
    const { delivered, recent } = this.tenant;
    recent.a.forget(delivered);
    recent.b?.forget(delivered);
    for (const session of [...this.tenant.sessions]) this.carryOut(dismiss(this.tenant, session, { code, reason }));
  }

  committed(changes: readonly Change[], position: Position): void {
    this.reporting = true;
    this.post({ kind: 'committed', changes, ...position });
  }

  failed(changes: readonly Change[], error: Error): void {
    this.reporting = true;
    if (this.retired) this.ports.onLate(this.tenantId, null);
    else this.holdUp();
    this.post({ kind: 'failed', changes, error });
  }

  settled(): void {
    this.reporting = false;
    const { heldAnswers } = this;
    this.heldAnswers = undefined;
    for (const effect of heldAnswers ?? []) this.carryOut(effect);
  }

  private post(message: Message): void {
    // Most messages arrive singly: no queue is allocated for them.
    let next: Message | undefined = message;
    if (this.running || this.mailbox.length > 0) {
      this.mailbox.push(message);
      if (this.running) return;
      next = this.mailbox.shift();
    }
    this.running = true;
    try {
      for (; next !== undefined; next = this.mailbox.shift()) {
        for (const effect of this.apply(next)) this.carryOut(effect);
        if (this.pushedSince !== undefined) this.ports.meter?.pushed(performance.now() - this.pushedSince);
        this.pushedSince = undefined;
      }
    } finally {
      this.running = false;
    }
  }

  private apply(message: Message): Effect[] {
    try {
      return step(this.tenant, message, this.ports.clock.now());
    } catch (error) {
      return this.broke(message, error);
    }
  }

  /**
   * A defect in the middle of a step: the state may be half changed, and sockets fed from it would miss versions
   * (guarantee 1). An actor is a cache, so this one is dropped and its sockets reconnect to a new one. Every pending
   * change and reload is answered.
   */
  private broke(message: Message, error: unknown): Effect[] {
    this.ports.onFault(error, this.tenantId);
    const failure = asError(error);
    const waiting = this.tenant.waiting.splice(0);
    for (const waiter of this.takeReloads()) waiter.reject(failure);
    this.ports.onBroken(this);
    const own = message.kind === 'change' ? [message.change] : 'changes' in message ? message.changes : [];
    const waiters = new Set([...own, ...waiting]);
    return [...waiters].map((change) => ({ kind: 'refused', change, error: failure }));
  }

  private carryOut(effect: Effect): void {
    try {
      this.run(effect);
    } catch (error) {
      // One failing effect must not prevent the tenant's others.
      this.ports.onFault(error, this.tenantId);
    }
  }

  private run(effect: Effect): void {
    switch (effect.kind) {
      case 'stored':
      case 'refused':
        return this.answer(effect);
      case 'commit':
        return this.commit(effect.change);
      case 'send':
        return this.send(effect.session, effect.frames, effect.since, effect.phase);
      case 'push':
        for (const session of effect.sessions) this.send(session, effect.frames, effect.since);
        return;
      case 'close':
        return effect.session.port.close(effect.code, effect.reason);
      case 'publish':
        if (!this.retired) return this.ports.announcer.publish(this.tenantId, effect.rows, effect.position);
        // Its history may have ended: it is unknown in which one this was committed, so receivers must look it up.
        this.ports.onLate(this.tenantId, effect.position);
        return this.ports.announcer.publish(this.tenantId, [], effect.position);
      case 'purge-keys':
        // Requested again with a later write, if the purger had no room.
        if (!this.ports.purger.purge(this.tenantId, effect.deviceId)) this.tenant.purging?.delete(effect.deviceId);
        return;
      case 'reload':
        return this.load();
      case 'read-gap':
        return this.readGap(effect.since);
      case 'read-head':
      case 'read-page':
        return this.readForReplay(effect);
    }
  }

  private commit(change: Change): void {
    try {
      // It was checked, by its client too, against versions of another history (EPOCH-09).
      if (this.ports.history.epoch !== this.tenant.epoch) throw unavailable('the database has another history');
      this.ports.lanes.submit(change, this);
    } catch (error) {
      this.run({ kind: 'refused', change, error: asError(error) });
    }
  }

  /** Called exactly once per change, however often a lane reports it: once released, its bytes may be reused. */
  private answer(effect: Answer): void {
    const { change } = effect;
    if (change.answered) return;
    if (this.reporting && this.heldAnswers !== undefined) return void this.heldAnswers.push(effect);
    if (this.reporting) return void (this.heldAnswers = [effect]);
    change.answered = true;
    this.pending--;
    this.pendingBytes -= change.heldBytes;
    this.arena.unpin(change.segment);
    if (effect.kind === 'stored') change.reply.stored(change);
    else change.reply.refused(effect.error);
  }

  /** One failing socket must not keep frames from the tenant's other sockets. */
  private send(session: Session, frames: readonly FrameBytes[], since = Infinity, phase?: Replaying): void {
    try {
      const waiting = session.port.send(frames);
      if (since < (this.pushedSince ?? Infinity)) this.pushedSince = since;
      // Frames outside of any replay (bins, devices) are few; a peer that lets them pile up does not read at all.
      if (phase === undefined && waiting > SOCKET_UNSENT_MAX) return session.port.close(CLOSE.overloaded, 'overloaded');
      // A closing socket takes every frame, unsent: its replay would read on to the end of the log.
      const congested = waiting > HIGH_WATER_BYTES || session.port.closing;
      if (phase !== undefined) this.post({ kind: 'sent', session, phase, congested });
      else if (congested) this.post({ kind: 'congested', session });
    } catch (error) {
      this.ports.onFault(error, this.tenantId);
      // Frames were lost: it must not get later ones.
      this.carryOut(dismiss(this.tenant, session, { code: CLOSE.restart, reason: 'restart' }));
    }
  }

  private load(): void {
    const waiters = this.takeReloads();
    const begun = this.ports.clock.now();
    this.ports.loader.reload(this.tenantId, this.tenant.generation).then(
      (update) => {
        if (update === undefined) this.vanish();
        else this.post({ kind: 'reloaded', update });
        this.comparedAt = begun;
        if (this.generation >= (this.behind?.generation ?? 0)) this.behind = undefined;
        for (const waiter of waiters) waiter.resolve();
      },
      (error: unknown) => {
        this.post({ kind: 'reload-failed', error: asError(error) });
        // Callers that queued a further reload fail too: it was given up together with this one.
        for (const waiter of [...waiters, ...this.takeReloads()]) waiter.reject(error);
        this.ports.onFault(error, this.tenantId);
      },
    );
  }

  /** The tenant was deleted: its sockets close, changes waiting for a reload are refused, and `reload` resolves. */
  private vanish(): void {
    this.retire(CLOSE.expired, 'tenant gone');
    this.ports.onBroken(this);
    this.post({ kind: 'reload-failed', error: new ServiceError('tenant_not_found') });
    for (const waiter of this.takeReloads()) waiter.resolve();
  }

  private takeReloads(): Reloading[] {
    const { reloads = [] } = this;
    this.reloads = undefined;
    return reloads;
  }

  private readGap(since: number): void {
    const small = this.tenant.knownHead - since <= SMALL_GAP;
    const request = { tenantId: this.tenantId, since, limit: small ? SMALL_GAP : GAP_ROWS, small };
    this.whenCurrent(() => this.ports.log.page(request)).then(
      (page) => {
        this.post({ kind: 'gap', page });
      },
      (error: unknown) => {
        this.holdUp();
        this.post({ kind: 'gap-failed' });
        this.ports.onFault(error, this.tenantId);
      },
    );
  }

  /** A revoked device must not be sent anything: if the last comparison is too old, it is repeated before the read. */
  private whenCurrent<T>(read: () => Promise<T>): Promise<T> {
    const comparing = this.ports.current?.(this);
    // At once and without a promise of its own: what settles may start the next read in the same turn (PendingReads).
    if (comparing === undefined) return read();
    return comparing.then((known) => {
      if (!known) throw unavailable('the tenant could not be read');
      return read();
    });
  }

  private readForReplay(effect: Extract<Effect, { kind: 'read-head' | 'read-page' }>): void {
    const { session, phase } = effect;
    const failed = (error: unknown): void => {
      const away = error instanceof ServiceError && error.error === 'unavailable';
      if (away) this.holdUp();
      this.post({ kind: 'replay-failed', session, phase, away });
      this.ports.onFault(error, this.tenantId);
    };
    if (effect.kind === 'read-head') {
      this.whenCurrent(() => this.ports.loader.head(this.tenantId)).then(
        (summary) => this.post({ kind: 'head', session, phase, summary }),
        failed,
      );
      return;
    }
    const read = async (): Promise<LogPage | undefined> => {
      // The session may have moved on while this waited in the queue.
      if (session.phase !== phase) return undefined;
      const { cursor: since, rowBytes = 0 } = phase;
      const limit = Math.min(REPLAY_ROWS, Math.ceil((REPLAY_BYTES / rowBytes) * MORE_ROWS));
      return this.ports.log.page({ tenantId: this.tenantId, since, limit, maxBytes: REPLAY_BYTES });
    };
    this.ports.replays
      .take({ tenantId: this.tenantId, deviceId: session.deviceId }, () => this.whenCurrent(read))
      .then((page) => page && this.post({ kind: 'page', session, phase, page }), failed);
  }
}
