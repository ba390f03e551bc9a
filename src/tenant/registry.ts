/** Which tenants are loaded on this instance. Loads on first use, compares heads on a slow tick, drops what is idle. */
import { CLOSE } from '../protocol/close-codes.js';
import type { Clock, Timer } from '../protocol/clock.js';
import { HEAD_COMPARE_MS } from '../protocol/limits.js';
import { Actor, type ActorPorts } from './actor.js';
import type { HintedGeneration, TenantStandings } from './ports.js';
import { FrameRing } from './ring.js';

/** An actor without sockets or changes under way is dropped after so long without use, ms. */
const IDLE_MS = 5 * 60_000;
/** Changes kept for short absences, over all tenants of the process, bytes. */
const RECENT_BYTES_ALL = 64 * 1024 * 1024;
/** Tenants asked for in one comparison statement. */
const COMPARE_BATCH = 2_000;

export interface RegistryOptions extends Omit<ActorPorts, 'now' | 'onBroken' | 'ring'> {
  readonly clock: Clock;
  readonly standings: TenantStandings;
  /** The epoch of the database as it is known now. */
  readonly epoch: () => string;
  /** Bytes of changes kept for short absences, over all tenants; 64 MiB by default. */
  readonly recentBytes?: number;
}

export class TenantRegistry {
  private readonly actors = new Map<string, Actor>();
  private readonly loading = new Map<string, Promise<Actor | undefined>>();
  private readonly ports: ActorPorts;
  private timer: Timer | undefined;
  private comparing = false;

  constructor(private readonly options: RegistryOptions) {
    const { lanes, log, directory, announcer, purger, onFault, clock, meter } = options;
    const onBroken = (actor: Actor): void => {
      if (this.actors.get(actor.tenantId) === actor) this.drop(actor.tenantId, CLOSE.restart, 'restart');
      else actor.retire(CLOSE.restart, 'restart');
    };
    const now = (): number => clock.now();
    const ring = new FrameRing(options.recentBytes ?? RECENT_BYTES_ALL);
    this.ports = { lanes, log, directory, announcer, purger, onFault, onBroken, ring, now, meter };
  }

  /** Begins the slow tick: comparison of heads and dropping of idle actors. */
  start(): void {
    const tick = (): void => {
      this.timer = this.options.clock.setTimer(HEAD_COMPARE_MS, tick);
      this.dropIdle();
      void this.compareHeads();
    };
    this.timer = this.options.clock.setTimer(HEAD_COMPARE_MS, tick);
  }

  stop(): void {
    this.timer?.cancel();
  }

  get size(): number {
    return this.actors.size;
  }

  /** Tenants with a socket on this instance. */
  tenantsWithSockets(): string[] {
    return [...this.actors.values()].filter((actor) => actor.sessionCount > 0).map((actor) => actor.tenantId);
  }

  /** The tenant's actor when it is loaded. */
  peek(tenantId: string): Actor | undefined {
    return this.actors.get(tenantId);
  }

  /** The tenant's actor, loaded if need be; undefined when there is no such tenant. Throws `unavailable`. */
  get(tenantId: string): Promise<Actor | undefined> {
    const actor = this.actors.get(tenantId);
    if (actor !== undefined) return Promise.resolve(actor);
    let loading = this.loading.get(tenantId);
    if (loading === undefined) {
      loading = this.load(tenantId).finally(() => this.loading.delete(tenantId));
      this.loading.set(tenantId, loading);
    }
    return loading;
  }

  private async load(tenantId: string): Promise<Actor | undefined> {
    const epoch = this.options.epoch();
    const snapshot = await this.options.directory.load(tenantId);
    if (snapshot === undefined) return undefined;
    // The database changed under the read: what was read may belong to the other history.
    if (epoch !== this.options.epoch()) return this.load(tenantId);
    const actor = new Actor(snapshot, epoch, this.ports);
    this.actors.set(tenantId, actor);
    return actor;
  }

  /**
   * Devices, bins, pairings or state of the tenant were changed by this instance. When it resolves, sockets here are
   * told and requests here are judged by the new state; other instances were notified.
   */
  async changed(tenantId: string): Promise<void> {
    const actor = this.actors.get(tenantId) ?? (await this.loading.get(tenantId));
    if (actor === undefined) {
      // Nobody here knows the tenant, so nobody can be behind. The others compare what they have.
      this.options.announcer.announce(tenantId, 0, 'newer');
      return;
    }
    await actor.reload();
    this.options.announcer.announce(tenantId, actor.delivered, actor.generation);
  }

  /** Another instance says that the tenant got this far. */
  nudge(tenantId: string, head: number, generation: HintedGeneration): void {
    this.actors.get(tenantId)?.nudge(head, generation);
  }

  /** Forgets a tenant whose devices are all gone; its sockets close. */
  async reset(tenantId: string): Promise<void> {
    await this.changed(tenantId);
    this.drop(tenantId, CLOSE.restart, 'restart');
  }

  /** A tenant that is no more; its sockets close. */
  forget(tenantId: string): void {
    this.drop(tenantId, CLOSE.restart, 'no such tenant');
  }

  /** The database's history is another one: nothing held here may be believed. */
  restart(): void {
    for (const tenantId of [...this.actors.keys()]) this.drop(tenantId, CLOSE.restart, 'history changed');
  }

  private drop(tenantId: string, code: number, reason: string): void {
    const actor = this.actors.get(tenantId);
    if (actor === undefined) return;
    this.actors.delete(tenantId);
    actor.retire(code, reason);
  }

  private dropIdle(): void {
    const before = this.options.clock.now() - IDLE_MS;
    for (const actor of this.actors.values()) {
      if (actor.idle && actor.usedAt < before) this.drop(actor.tenantId, CLOSE.restart, 'idle');
    }
  }

  /** A notification may be lost; versions are gapless, so comparing heads finds what it would have said (contract 13). */
  async compareHeads(): Promise<void> {
    if (this.comparing) return;
    this.comparing = true;
    try {
      const ids = [...this.actors.keys()];
      for (let at = 0; at < ids.length; at += COMPARE_BATCH) {
        for (const found of await this.options.standings.standings(ids.slice(at, at + COMPARE_BATCH))) {
          this.nudge(found.tenantId, found.head, found.generation);
        }
      }
    } catch (error) {
      this.options.onFault(error, '');
    } finally {
      this.comparing = false;
    }
  }
}
