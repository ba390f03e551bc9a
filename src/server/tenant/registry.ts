/**
 * The tenants loaded on this instance. Loads them on first use, compares them with the database if a notification may
 * have been lost, drops idle ones.
 */
import { Batcher, nextTurn } from '../../protocol/batcher.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { type Clock, MINUTE_MS, type Timer } from '../../protocol/clock.js';
import { unavailable } from '../../protocol/errors.js';
import type { Summary } from '../../protocol/item.js';
import { HEAD_COMPARE_MS } from '../../protocol/limits.js';
import { retryAfterReason, TAKEN_PER_S } from '../../protocol/retry-after.js';
import { KeyedFlight, repeated, SingleFlight } from '../../protocol/single-flight.js';
import { WaitGroup } from '../../protocol/wait-group.js';
import { Actor, type ActorPorts } from './actor.js';
import type { ItemRow } from './codec.js';
import { FrameRing } from './deliver.js';
import type { TenantLoader } from './ports.js';
import { TurnQueue } from './turn-queue.js';

/** An actor without sockets or changes under way is dropped after this time without use, ms. */
const IDLE_MS = 5 * MINUTE_MS;
/** Recent frames kept over all tenants of the process, bytes. */
const RECENT_BYTES_ALL = 64 * 1024 * 1024;
/** Replay pages read concurrently; the other connections of the pool are for everything else. */
const REPLAY_PAGES = 8;
/** Tenants compared in one statement. */
const COMPARE_BATCH = 2_000;
/** Interval of the comparisons of actors that wait for one, ms. */
const TICK_MS = HEAD_COMPARE_MS - 1_000;
/**
 * Interval at which all actors are looked through for idle and overdue ones, ms. They are no longer in the processor's
 * caches: in each tick that took a twentieth of the time of an idle instance.
 */
const SWEEP_MS = MINUTE_MS;
/** Actors that a sweep looks at in one turn of the event loop: a hundred thousand at once would take tens of ms. */
const SWEEP_SLICE = 2_000;
/**
 * An actor that was not compared for this long, ms, is overdue, even if nothing is known to be lost: the next sweep and
 * the tick after it come before five minutes are over.
 */
const COMPARE_ALL_MS = 5 * MINUTE_MS - SWEEP_MS - 2 * TICK_MS;
/**
 * Pause after a comparison of all actors, as a multiple of its duration: a database too busy to notify in time would
 * otherwise get one comparison after another, and be busier for it.
 */
const COMPARE_REST = 9;
/** The longest such pause, ms. */
const COMPARE_REST_MAX_MS = 30_000;

export interface RegistryOptions extends Omit<
  ActorPorts,
  'loader' | 'onBroken' | 'onLate' | 'ring' | 'replays' | 'waiting' | 'current'
> {
  readonly loader: TenantLoader;
  readonly clock: Clock;
}

/** Actors that are read again since they were found behind, and whether that succeeds. */
type Behind = ReadonlyMap<Actor, Promise<boolean>>;

export class TenantRegistry {
  /** The loaded actors. Requests may be checked against one only while it `isCurrent`. */
  readonly actors = new Map<string, Actor>();
  private readonly loading = new KeyedFlight((tenantId: string) => this.load(tenantId));
  private readonly comparing = new SingleFlight(() => this.compareAll());
  /** Comparisons that requests wait for: true if the tenant's actor is up to date. */
  private readonly confirming = new Batcher<string, boolean>(COMPARE_BATCH, (ids) => this.confirm(ids));
  private readonly ports: ActorPorts;
  /** Reads of the actors and of this registry, so that `close` can wait for them. */
  private readonly reads = new WaitGroup();
  private stops: readonly (() => Promise<void>)[] = [];
  /** Until this time, ms, no comparison of all actors is made. */
  private restUntil = -Infinity;
  private restTimer: Timer | undefined;
  /** Repeats a comparison of all that failed and so found nothing; once the database is back that happens at once. */
  private retryTimer: Timer | undefined;
  private closed = false;

  constructor(private readonly options: RegistryOptions) {
    const { log, loader } = options;
    const onBroken = (actor: Actor): void => {
      if (this.actors.get(actor.tenantId) === actor) this.drop(actor.tenantId, CLOSE.restart, 'restart');
      else actor.retire(CLOSE.restart, 'restart');
    };
    this.ports = {
      ...options,
      log: { page: (request) => this.reads.add(log.page(request)) },
      loader: {
        reload: (tenantId, known) => this.reads.add(loader.reload(tenantId, known)),
        head: (tenantId) => this.reads.add(loader.head(tenantId)),
      },
      ring: new FrameRing(RECENT_BYTES_ALL),
      replays: new TurnQueue(REPLAY_PAGES),
      waiting: new Set(),
      onBroken,
      onLate: (tenantId, position) => {
        if (position === null) this.actors.get(tenantId)?.holdUp();
        else this.headHint(tenantId, position.summary.version, position.generation);
      },
      current: (actor) => (this.isCurrent(actor) ? undefined : this.confirming.ask(actor.tenantId)),
    };
  }

  /** Starts the eviction of idle actors, and the comparison of those that wait for one. */
  start(): void {
    const { clock } = this.options;
    // Not awaited by each other: a database that does not answer must not hold up the evictions.
    this.stops = [
      repeated(clock, TICK_MS, async () => void (await this.compareThose([...this.ports.waiting], true))),
      repeated(clock, SWEEP_MS, () => this.sweep()),
    ];
  }

  /**
   * Stops comparing and ignores hints. Resolves when no actor reads: once its sockets are closed and its changes are
   * answered, an actor starts nothing by itself. Call it after everything that changes tenants was closed.
   */
  async close(): Promise<void> {
    this.closed = true;
    for (const stop of this.stops) void stop();
    this.restTimer?.cancel();
    this.retryTimer?.cancel();
    await this.reads.idle();
  }

  tenantsWithSockets(): string[] {
    return [...this.actors.values()].filter(({ sessionCount }) => sessionCount > 0).map(({ tenantId }) => tenantId);
  }

  /**
   * The tenant's actor, loaded if necessary, and compared if that is overdue; undefined if there is no such tenant.
   * Throws `unavailable`.
   */
  async get(tenantId: string): Promise<Actor | undefined> {
    const actor = this.actors.get(tenantId) ?? (await this.loading.join(tenantId));
    if (actor === undefined || this.isCurrent(actor)) return actor;
    const isKnown = await this.confirming.ask(tenantId);
    const current = this.actors.get(tenantId);
    // It was dropped meanwhile: its tenant may have been deleted.
    if (current === undefined) return this.loading.join(tenantId);
    if (!isKnown) throw unavailable('the tenant could not be read');
    return current;
  }

  /** Tenants being loaded do not wait for more of them. */
  hurry(): void {
    this.options.loader.hurry();
  }

  private isCurrent(actor: Actor): boolean {
    return actor.isCurrent(this.options.clock.now());
  }

  private async load(tenantId: string): Promise<Actor | undefined> {
    const { epoch } = this.options.history;
    const begun = this.options.clock.now();
    const snapshot = await this.reads.add(this.options.loader.load(tenantId));
    if (snapshot === undefined) return undefined;
    // The database changed during the read: the result may belong to the other history.
    if (epoch !== this.options.history.epoch) return this.load(tenantId);
    const actor = new Actor(snapshot, epoch, this.ports);
    actor.compared(begun);
    this.actors.set(tenantId, actor);
    return actor;
  }

  /**
   * This instance changed devices, bins, pairings or state of the tenant. When it resolves, sockets here were notified
   * and requests here are checked against the new state; other instances were notified.
   */
  async changed(tenantId: string): Promise<void> {
    const actor = this.actors.get(tenantId) ?? (await this.loading.underWay(tenantId));
    if (actor === undefined) {
      // Not loaded here, so nothing here can be stale.
      this.options.announcer.announce(tenantId, 0, 0);
      return;
    }
    await actor.reload();
    this.options.announcer.announce(tenantId, actor.delivered, actor.generation);
  }

  /** Another instance reports this position of the tenant. */
  headHint(tenantId: string, head: number, generation: number): void {
    if (this.closed) return;
    const actor = this.actors.get(tenantId);
    if (actor !== undefined) actor.headHint(head, generation);
    else this.hintLoading(tenantId, head, generation);
  }

  /**
   * The load under way may read an older state: without the hint, a revoked device would be admitted until compared.
   */
  private hintLoading(tenantId: string, head: number, generation: number): void {
    this.loading.underWay(tenantId)?.then(
      (actor) => (this.closed ? undefined : actor?.headHint(head, generation)),
      // The caller that loads it gets the error.
      () => undefined,
    );
  }

  published(
    tenantId: string,
    generation: number,
    { rows, summary }: { readonly rows: readonly ItemRow[]; readonly summary: Summary | null },
  ): void {
    if (this.closed) return;
    const actor = this.actors.get(tenantId);
    if (actor !== undefined) actor.published(rows, generation, summary);
    else this.hintLoading(tenantId, rows.at(-1)?.version ?? 0, generation);
  }

  /** Drops a tenant whose devices were all removed; its sockets close. */
  async reset(tenantId: string): Promise<void> {
    await this.changed(tenantId);
    this.drop(tenantId, CLOSE.restart, 'restart');
  }

  /** Drops a tenant that no longer exists; its sockets close. */
  forget(tenantId: string): void {
    this.drop(tenantId, CLOSE.restart, 'no such tenant');
  }

  /** The database has another epoch: everything cached here is invalid. */
  restart(): void {
    let before = 0;
    for (const [tenantId, { sessionCount }] of [...this.actors]) {
      this.drop(tenantId, CLOSE.restart, retryAfterReason(before / TAKEN_PER_S));
      before += sessionCount;
    }
  }

  private drop(tenantId: string, code: number, reason: string): void {
    const actor = this.actors.get(tenantId);
    if (actor === undefined) return;
    this.actors.delete(tenantId);
    actor.retire(code, reason);
  }

  /** Evicts idle actors, and notes those that have not been compared for long. */
  private async sweep(): Promise<void> {
    const now = this.options.clock.now();
    let seen = 0;
    for (const actor of this.actors.values()) {
      if (actor.idle && actor.usedAt < now - IDLE_MS) this.drop(actor.tenantId, CLOSE.restart, 'idle');
      else if (actor.toCompare(now, COMPARE_ALL_MS)) this.ports.waiting.add(actor);
      if (++seen % SWEEP_SLICE === 0) await nextTurn();
      if (this.closed) return;
    }
  }

  /** Whether an actor of `waiting` still has a reason; removes it otherwise. */
  private stillWaits(actor: Actor): boolean {
    const waits = actor.toCompare(this.options.clock.now(), COMPARE_ALL_MS);
    if (waits && this.actors.get(actor.tenantId) === actor) return true;
    this.ports.waiting.delete(actor);
    return false;
  }

  /**
   * Notifications may have been lost; versions are gapless, so comparing heads finds what they announced. Resolves when
   * everything that changed before this call is known here, or the database could not be reached; soon after a
   * comparison that took long, resolves at once, and the comparison follows later.
   */
  async compareHeads(): Promise<void> {
    if (this.closed || this.restTimer !== undefined) return;
    // Never longer, even if the clock was set back.
    const rest = Math.min(COMPARE_REST_MAX_MS, this.restUntil - this.options.clock.now());
    if (rest <= 0) await this.comparing.fresh();
    else {
      this.restTimer = this.options.clock.setTimer(rest, () => {
        this.restTimer = undefined;
        void this.comparing.fresh();
      });
    }
  }

  private async compareAll(): Promise<void> {
    const { clock } = this.options;
    const begun = clock.now();
    this.retryTimer?.cancel();
    if (!(await this.compareThose([...this.actors.values()]))) {
      if (!this.closed) this.retryTimer = clock.setTimer(TICK_MS, () => void this.compareHeads());
      return;
    }
    this.restUntil = clock.now() + Math.min(COMPARE_REST_MAX_MS, COMPARE_REST * (clock.now() - begun));
  }

  /**
   * False if the database could not be queried, which was reported. `waiting`: only those that still wait; a batch
   * without any leaves the event loop a turn all the same.
   */
  private async compareThose(actors: readonly Actor[], waiting = false): Promise<boolean> {
    try {
      for (let at = 0; at < actors.length && !this.closed; at += COMPARE_BATCH) {
        const batch = actors.slice(at, at + COMPARE_BATCH);
        const those = waiting ? batch.filter((actor) => this.stillWaits(actor)) : batch;
        if (those.length === 0) await nextTurn();
        else await Promise.all((await this.compare(those)).values());
      }
      return true;
    } catch (error) {
      this.options.onFault(error, '');
      return false;
    }
  }

  /**
   * Comparisons that requests wait for; an actor compared in the meantime is not compared again. Nobody waits until
   * another tenant was read.
   */
  private async confirm(ids: readonly string[]): Promise<(boolean | Promise<boolean>)[]> {
    const stale = new Set<Actor>();
    for (const id of ids) {
      const actor = this.actors.get(id);
      if (actor !== undefined && !this.isCurrent(actor)) stale.add(actor);
    }
    const behind: Behind = stale.size === 0 ? new Map() : await this.compare([...stale]);
    return ids.map((id) => {
      const actor = this.actors.get(id);
      return actor !== undefined && (behind.get(actor) ?? true);
    });
  }

  private async compare(actors: readonly Actor[]): Promise<Behind> {
    const begun = this.options.clock.now();
    const positions = await this.reads.add(this.options.loader.positions(actors));
    const moved = new Map(positions.map((position) => [position.tenantId, position]));
    const behind = new Map<Actor, Promise<boolean>>();
    for (const actor of actors) {
      const position = moved.get(actor.tenantId);
      if (position === undefined) {
        actor.compared(begun);
        actor.heard();
        continue;
      }
      // It may have been dropped meanwhile.
      if (this.actors.get(actor.tenantId) !== actor) continue;
      if (position.head === null) this.forget(actor.tenantId);
      else if (position.generation <= actor.generation) {
        actor.compared(begun);
        actor.headHint(position.head, position.generation);
        // A commit whose outcome is unknown here was not announced to the other instances.
        if (actor.heldUp) this.options.announcer.announce(actor.tenantId, position.head, position.generation);
      } else behind.set(actor, this.broughtUp(actor));
    }
    return behind;
  }

  /** The actor reports a failure to `onFault`; until a reload succeeds no request is checked against its state. */
  private async broughtUp(actor: Actor): Promise<boolean> {
    try {
      await actor.reload();
      return true;
    } catch {
      actor.holdUp();
      return false;
    }
  }
}
