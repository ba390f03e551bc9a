/** The registry of actors with ports in memory, which a test holds up, empties and puts into another history. */
import type { CommitLanes, ItemLog, TenantLoader, TenantUpdate } from '../../src/server/tenant/ports.js';
import type { Actor } from '../../src/server/tenant/actor.js';
import { TenantRegistry } from '../../src/server/tenant/registry.js';
import { BIN, deviceId } from './changes.js';
import { TestClock } from './clock.js';
import { NOTHING_HEARD } from './instances.js';
import { MemoryLog } from './memory-log.js';
import { openBin } from './world.js';

/** A load that is answered when the test says so. */
interface Load {
  readonly tenantId: string;
  answer(): void;
  fail(error: Error): void;
}

/** A registry with its ports in memory. */
export class Setting {
  readonly clock = new TestClock();
  readonly log = new MemoryLog();
  readonly faults: unknown[] = [];
  readonly announced: (readonly [string, number, number])[] = [];
  /** Tenants, heads and the number of rows with them. */
  readonly published: (readonly [string, number, number])[] = [];
  readonly subscribed: string[] = [];
  readonly loads: Load[] = [];
  /** Loads wait for the test while this is set. */
  holding = false;
  epoch = 'epoch';
  devices = [1];
  /** Devices that are revoked, and have keys left. */
  revoked: readonly number[] = [];
  /** Requested purges, and whether the purger has room for more. */
  readonly purges: string[] = [];
  purgerHasRoom = true;
  readonly gone = new Set<string>();
  readonly registry: TenantRegistry;

  constructor(ports: { lanes?: CommitLanes; log?: ItemLog } = {}) {
    const loader: TenantLoader = {
      load: async (tenantId) => this.load(tenantId),
      hurry: () => undefined,
      reload: async (tenantId) => this.load(tenantId),
      head: (tenantId) => Promise.resolve(this.log.summary(tenantId)),
      // As the database answers: tenants without news are left out.
      positions: (known) =>
        Promise.resolve(
          known.flatMap(({ tenantId, delivered, generation }) => {
            const tenant = this.log.tenant(tenantId);
            const news = tenant.head > delivered || tenant.generation > generation;
            return news ? [{ tenantId, head: tenant.head, generation: tenant.generation }] : [];
          }),
        ),
    };
    this.registry = new TenantRegistry({
      lanes: ports.lanes ?? this.log,
      log: ports.log ?? this.log,
      loader,
      announcer: {
        heard: NOTHING_HEARD,
        announce: (...hint) => void this.announced.push(hint),
        publish: (id, rows, { summary }) => void this.published.push([id, summary.version, rows.length]),
        subscribe: (tenantId) => void this.subscribed.push(tenantId),
      },
      purger: {
        purge: (_, id) => {
          this.purges.push(id);
          return this.purgerHasRoom;
        },
      },
      onFault: (error) => void this.faults.push(error),
      clock: this.clock,
      history: this,
    });
  }

  /** The tenant's actor, where it is current enough to judge requests. */
  peek(tenantId: string): Actor | undefined {
    const actor = this.registry.actors.get(tenantId);
    return actor?.isCurrent(this.clock.now()) === true ? actor : undefined;
  }

  private load(tenantId: string): Promise<TenantUpdate | undefined> {
    if (!this.holding) return Promise.resolve(this.snapshot(tenantId));
    return new Promise((resolve, reject) => {
      // A read returns the state at the moment when it began.
      const snapshot = this.snapshot(tenantId);
      this.loads.push({ tenantId, answer: () => resolve(snapshot), fail: reject });
    });
  }

  private snapshot(tenantId: string): TenantUpdate | undefined {
    if (this.gone.has(tenantId)) return undefined;
    const view = { name: 'device', glyph: 'phone' as const, pubkey: new Uint8Array(32), pairedAt: 1, cert: null };
    return {
      tenantId,
      state: 'active',
      generation: this.log.tenant(tenantId).generation,
      summary: this.log.summary(tenantId),
      devices: this.devices.map((n) => ({
        ...{ id: deviceId(n), tokenEpoch: 1, revoked: this.revoked.includes(n), keysPurged: !this.revoked.includes(n) },
        view: { ...view, id: deviceId(n) },
      })),
      bins: [openBin(BIN)],
      pairRequests: [],
    };
  }

  async actor(tenantId = 'tenant'): Promise<Actor> {
    if (!this.gone.has(tenantId)) this.ensure(tenantId);
    const actor = await this.registry.get(tenantId);
    if (actor === undefined) throw new Error('no such tenant');
    return actor;
  }

  private ensure(tenantId: string): void {
    try {
      this.log.tenant(tenantId);
    } catch {
      this.log.addTenant(tenantId);
    }
  }

  /** A device joins in the database. */
  join(n: number): void {
    this.devices.push(n);
    this.log.tenant('tenant').generation++;
  }
}
