/** Sealed writes to be sent, refilled by the sealing thread. If they run out, this machine is the bottleneck. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { FleetTenant } from './fleet.js';
import type { Ledger } from './ledger.js';
import type { Plan } from './plan.js';
import type { Order, Sealed, SealerData } from './sealer.js';

/** Sealed writes held by a process, about 2 KiB each with a handful of devices. */
const HELD_MAX = 20_000;
/** Refilled in portions, so that the thread is not woken for each. */
const PORTION = 16;
/** Replacements that are ready, or ordered, for each tenant. */
const REPLACES_READY = 8;

interface Stock {
  readonly inserts: Sealed[];
  readonly replaces: Sealed[];
  /** Ordered, and not sealed yet. */
  coming: number;
  replacesComing: number;
}

/** The sealed writes of a process's tenants. */
export class SealedPool {
  /** Inserts for which nothing was ready. */
  starved = 0;
  private readonly worker: Worker;
  private readonly stocks: readonly Stock[];
  private readonly full: number;
  /** The run may need more writes than are held at a time. */
  private readonly scarce: boolean;
  private failure: Error | undefined;

  /** @param expected writes of the whole run on this process. */
  constructor(tenants: readonly FleetTenant[], plan: Pick<Plan, 'size'>, expected: number) {
    this.full = Math.max(4, Math.ceil(Math.min(HELD_MAX, expected * 1.2) / Math.max(1, tenants.length)));
    this.scarce = expected * 1.2 > HELD_MAX;
    this.stocks = tenants.map(() => ({ inserts: [], replaces: [], coming: 0, replacesComing: 0 }));
    const workerData: SealerData = { size: plan.size, tenants };
    this.worker = new Worker(new URL('./sealer.js', import.meta.url), { workerData });
    this.worker.on('message', (sealed: Sealed) => this.arrived(sealed));
    this.worker.on('error', (error: Error) => (this.failure = error));
  }

  /** Fills the pool before the first write is due. Rejects with the failure of the thread. */
  async fill(): Promise<void> {
    this.stocks.forEach((_, tenant) => this.refill(tenant));
    while (this.stocks.some(({ coming }) => coming > 0)) await once(this.worker, 'message');
  }

  /** A new item's write; undefined: none is ready. Throws the failure of the thread. */
  insert(tenant: number): Sealed | undefined {
    if (this.failure !== undefined) throw this.failure;
    const sealed = this.stocks[tenant]?.inserts.pop();
    this.refill(tenant);
    return sealed;
  }

  /** New content for an item that is `busy` for it; undefined: none is ready. */
  replace(tenant: number): Sealed | undefined {
    return this.stocks[tenant]?.replaces.shift();
  }

  /** Orders new content for an item if few replacements are ready. */
  prepareReplace(tenant: number, ledger: Ledger): void {
    const stock = this.stocks[tenant];
    if (stock === undefined || stock.replaces.length + stock.replacesComing >= REPLACES_READY) return;
    const entry = ledger.take(({ blob }) => blob === undefined);
    if (entry === undefined) return;
    stock.replacesComing++;
    this.order({ tenant, id: entry.id, ts: entry.ts, ifVersion: entry.version });
  }

  /** Ends the thread. */
  async end(): Promise<void> {
    await this.worker.terminate();
  }

  private refill(tenant: number): void {
    const stock = this.stocks[tenant];
    if (stock === undefined) return;
    const missing = this.full - stock.inserts.length - stock.coming;
    if (missing < Math.min(PORTION, this.full)) return;
    // If the whole run was sealed in advance, the thread idles unless this tenant received more writes than most.
    const empty = stock.inserts.length === 0 && stock.coming === 0;
    if (!empty && !this.scarce && this.full - missing > this.full / 10) return;
    const count = empty || this.scarce ? missing : Math.min(missing, PORTION);
    stock.coming += count;
    this.order({ tenant, count });
  }

  private order(order: Order): void {
    this.worker.postMessage(order);
  }

  private arrived(sealed: Sealed): void {
    const stock = this.stocks[sealed.tenant];
    if (stock === undefined) return;
    if (sealed.replaces) {
      stock.replacesComing--;
      stock.replaces.push(sealed);
      return;
    }
    stock.coming--;
    stock.inserts.push(sealed);
  }
}
