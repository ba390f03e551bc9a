/** One process's share of a run: its tenants, their sockets and its writer, in phases that the coordinator begins. */
import { setTimeout as sleep } from 'node:timers/promises';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { Worker as Thread } from 'node:worker_threads';
import type { Sodium } from '../crypto/sodium.js';
import { asError } from '../protocol/error-code.js';
import { forEach } from '../protocol/for-each.js';
import { Serial } from '../protocol/serial.js';
import { nodePlatform } from '../sdk/node-platform.js';
import { headOf, sumOf, TenantAudit, type Audited } from './audit.js';
import { Cleaner } from './cleaning.js';
import { makeTenants, readDeviceList, removeTenant, type FleetTenant } from './fleet.js';
import { Ledger, nowUs } from './ledger.js';
import { Meter, type Tick, type Totals } from './meter.js';
import type { Plan, Share } from './plan.js';
import type { Pace } from './pacer.js';
import { SealedPool } from './pool.js';
import { Receiver } from './receiver.js';
import { Refused, Target } from './target.js';
import { Writer } from './writer.js';

/** Credentials of a process; they never leave the machine. */
export interface Access {
  readonly adminToken?: string | undefined;
  /** Text of a list of devices. */
  readonly deviceList?: string | undefined;
}

/** Result of a reconnect storm. */
export interface StormResult {
  readonly at: number;
  readonly cut: number;
  /** Sockets that were back within `RETURN_WITHIN_MS`, and how long the last of them took. */
  readonly back: number;
  readonly seconds: number;
}

/** Load of the process itself: if it was the bottleneck, the figures measure it and not the server. */
export interface ClientResult {
  /** Its share of the operations per second, in proportion to its tenants. */
  readonly rate: number;
  /** Share of one core. */
  readonly cpu: number;
  readonly loopDelayP99Ms: number;
  /** Writes that were due and not sealed yet. */
  readonly starved: number;
}

/** A process's result. */
export interface PartResult {
  readonly part: number;
  readonly tenants: number;
  readonly sockets: number;
  readonly totals: Totals;
  readonly storms: readonly StormResult[];
  readonly client: ClientResult;
  readonly audit: Audited;
}

const TICK_MS = 1_000;
const CHECK_EVERY_MS = 5_000;
/** After the last answer: how long changes may take to arrive at the sockets, and a lost socket to reconnect. */
const ARRIVE_WITHIN_MS = 15_000;
const RETURN_WITHIN_MS = 75_000;
const CONNECT_WITHIN_MS = 60_000;
const OPEN_EVERY_MS = 5;
const AUDITS_AT_ONCE = 4;

/** A tenant of this process, what is known of it, and the sockets of its devices. */
interface Place {
  readonly tenant: FleetTenant;
  readonly ledger: Ledger;
  readonly receivers: readonly Receiver[];
}

/** Runs one share. Call `prepare`, `connect`, `write`, `finish` in this order; `remove` at the end, or at any time. */
export class LoadWorker {
  private readonly meter = new Meter();
  readonly places: Place[] = [];
  /** Tenants that this process made, or made a bin in: nothing else is removed. */
  private readonly made = new Set<FleetTenant>();
  private readonly removal = new Serial();
  private readonly storms: StormResult[] = [];
  private readonly stop = new AbortController();
  readonly target: Target;
  private pool: SealedPool | undefined;
  private writer: Writer | undefined;
  private preparing: Promise<void> = Promise.resolve();
  private timers: NodeJS.Timeout[] = [];
  private window = { from: Infinity, to: -Infinity };
  /** Its share of all tenants, and so of the rates. */
  private weight = 0;
  private client: ClientResult = { rate: 0, cpu: 0, loopDelayP99Ms: 0, starved: 0 };
  private pushing = false;

  constructor(
    private readonly options: {
      readonly plan: Plan;
      readonly share: Share;
      readonly access: Access;
      readonly onTick: (tick: Tick) => void;
    },
    private readonly sodium: Sodium,
  ) {
    this.target = new Target(options.plan.url, options.plan);
  }

  static async open(options: LoadWorker['options']): Promise<LoadWorker> {
    return new LoadWorker(options, (await nodePlatform()).sodium);
  }

  /** Makes tenants or reads the list, and seals the first writes. */
  prepare(): Promise<void> {
    return (this.preparing = this.begin());
  }

  private async begin(): Promise<void> {
    const { plan, share, access } = this.options;
    const { sodium, target, places, made } = this;
    let inAll = plan.tenants;
    if (access.deviceList === undefined) {
      const by = { sodium, target, adminToken: access.adminToken ?? '', plan, share, signal: this.stop.signal };
      await makeTenants(by, (tenant) => {
        places.push(this.placeOf(tenant, 0));
        made.add(tenant);
      });
    } else {
      const { own, ...listed } = readDeviceList(sodium, access.deviceList, { plan, share });
      ({ inAll } = listed);
      await forEach(own, async (tenant) => {
        this.stop.signal.throwIfAborted();
        const base = await headOf(target, tenant);
        await this.cleanerOf(tenant).makeBin(tenant.binId, () => made.add(tenant));
        places.push(this.placeOf(tenant, base));
      });
    }
    // A process without tenants has nothing to write to: the others do its share.
    this.weight = places.length / Math.max(1, inAll);
    const writes = this.rate * (plan.seconds + plan.warmUp);
    if (writes === 0) return;
    const tenants = places.map(({ tenant }) => tenant);
    this.pool = new SealedPool(tenants, plan, writes);
    await this.pool.fill();
  }

  /** Its operations a second. */
  private get rate(): number {
    return this.options.plan.rate * this.weight;
  }

  /** `base`: the tenant's head before the run. */
  private placeOf(tenant: FleetTenant, base: number): Place {
    const { target, meter, measured } = this;
    const ledger = new Ledger(base);
    const shared = { target, meter, ledger, tenant, measured, pushes: () => this.pushing };
    return { tenant, ledger, receivers: tenant.devices.map((device) => new Receiver({ ...shared, device })) };
  }

  private cleanerOf(tenant: FleetTenant): Cleaner {
    return new Cleaner({ sodium: this.sodium, target: this.target, tenant });
  }

  /** Opens the sockets at the plan's rate and holds them. */
  async connect(): Promise<void> {
    const { plan } = this.options;
    const began = nowUs();
    this.timers.push(setInterval(() => this.options.onTick(this.meter.tick()), TICK_MS));
    const all = this.receivers;
    this.timers.push(setInterval(() => all.forEach((receiver) => receiver.check(nowUs())), CHECK_EVERY_MS));
    const gap = 1e6 / (plan.connectRate * this.weight);
    for (let next = 0; next < all.length && !this.stop.signal.aborted;) {
      for (; next < all.length && began + next * gap <= nowUs(); next++) all[next]?.open(began + next * gap);
      await sleep(OPEN_EVERY_MS);
    }
    await this.until(() => all.every(({ live, ended }) => live || ended), CONNECT_WITHIN_MS);
    await this.sleepUntil(nowUs() + plan.hold * 1e6);
  }

  /** All sockets. */
  private get receivers(): readonly Receiver[] {
    return this.places.flatMap(({ receivers }) => receivers);
  }

  private readonly measured = (at: number): boolean => at >= this.window.from && at < this.window.to;

  /** Performs the mix by schedule, with the storms in between, and waits until all changes have arrived. */
  async write(): Promise<void> {
    const { plan } = this.options;
    const { pool, rate } = this;
    if (plan.seconds === 0) return;
    this.pushing = true;
    const begin = nowUs();
    this.window = { from: begin + plan.warmUp * 1e6, to: begin + (plan.warmUp + plan.seconds) * 1e6 };
    const loop = monitorEventLoopDelay({ resolution: 1 });
    loop.enable();
    const cpu = process.cpuUsage();
    const storms = plan.storms.map((storm) => this.storm(storm, begin));
    if (pool !== undefined) await this.pace(pool, { rate, from: begin, to: this.window.to });
    else await this.sleepUntil(this.window.to);
    const used = process.cpuUsage(cpu);
    loop.disable();
    const seconds = Math.max(1, nowUs() - begin) / 1e6;
    this.client = {
      rate,
      cpu: (used.user + used.system) / 1e6 / seconds,
      loopDelayP99Ms: Math.max(0, loop.percentile(99) / 1e6 - 1),
      starved: pool?.starved ?? 0,
    };
    this.storms.push(...(await Promise.all(storms)));
    await this.arrived();
  }

  private async pace(pool: SealedPool, { rate, from, to }: Pick<Pace, 'rate' | 'from' | 'to'>): Promise<void> {
    const { plan } = this.options;
    const { sodium, target, meter, measured, places } = this;
    const stopped = this.stop.signal;
    const writer = new Writer({ plan, sodium, target, meter, pool, measured, places, stopped });
    this.writer = writer;
    const stop = new SharedArrayBuffer(4);
    const workerData: Pace = { rate, from, to, stop, arrivals: plan.arrivals };
    const thread = new Thread(new URL('./pacer.js', import.meta.url), { workerData });
    const end = (): void => {
      Atomics.store(new Int32Array(stop), 0, 1);
      Atomics.notify(new Int32Array(stop), 0);
    };
    stopped.addEventListener('abort', end);
    await new Promise<void>((resolve, reject) => {
      thread.on('error', reject);
      thread.on('message', (due: readonly number[] | 'done') => {
        if (due === 'done') resolve();
        else for (const at of due) writer.begin(at);
      });
    });
    stopped.removeEventListener('abort', end);
    await thread.terminate();
    await writer.done();
  }

  private async sleepUntil(us: number): Promise<void> {
    const ms = Math.max(0, (us - nowUs()) / 1_000);
    await sleep(ms, undefined, { signal: this.stop.signal }).catch(() => undefined);
  }

  private async storm({ at, share }: Plan['storms'][number], begin: number): Promise<StormResult> {
    await this.sleepUntil(begin + at * 1e6);
    const from = nowUs();
    const cut = this.receivers.filter((receiver) => Math.random() < share && receiver.storm());
    const away = new Set(cut);
    let last = from;
    await this.until(() => {
      for (const receiver of away) if (receiver.live && away.delete(receiver)) last = nowUs();
      return away.size === 0;
    }, RETURN_WITHIN_MS);
    return { at, cut: cut.length, back: cut.length - away.size, seconds: Math.round((last - from) / 1e3) / 1e3 };
  }

  /** Waits until every socket has received its changes, or gives up; the audit then reports what is missing. */
  private async arrived(): Promise<void> {
    const all = this.receivers;
    await this.until(() => all.every(({ live, ended }) => live || ended), RETURN_WITHIN_MS);
    await this.until(() => this.places.every(({ ledger, receivers }) => ledger.caughtUp(receivers)), ARRIVE_WITHIN_MS);
  }

  private async until(done: () => boolean, withinMs: number): Promise<void> {
    for (const end = nowUs() + withinMs * 1e3; !done() && nowUs() < end && !this.stop.signal.aborted;) await sleep(10);
  }

  /** Audits, and closes the sockets. */
  async finish(): Promise<PartResult> {
    const { sodium, target, places, storms, client } = this;
    const { part } = this.options.share;
    const audits: Audited[] = [];
    const audited = async (place: Place): Promise<void> => {
      const audit = await new TenantAudit({ sodium, target, ...place }).run().catch((error: unknown): Audited => {
        const text = `${place.tenant.slug ?? 'tenant'} could not be audited: ${asError(error).message}`;
        return { ...sumOf([]), acknowledged: place.ledger.changes.size, faults: 1, examples: [text] };
      });
      audits.push(audit);
    };
    await forEach(places, audited, AUDITS_AT_ONCE);
    const sockets = this.receivers.length;
    this.close();
    const { totals } = this.meter;
    return { part, tenants: places.length, sockets, totals, storms, client, audit: sumOf(audits) };
  }

  private close(): void {
    for (const timer of this.timers) clearInterval(timer);
    this.timers = [];
    for (const receiver of this.receivers) receiver.end();
  }

  /** Ends what is under way and removes what was made; resolves with what remains, which another call retries. */
  remove(): Promise<string[]> {
    this.stop.abort();
    return this.removal.run(() => this.removeMade());
  }

  private async removeMade(): Promise<string[]> {
    const adminToken = this.options.access.adminToken ?? '';
    this.close();
    // Waits for what is being made or written at this moment, so that it is removed as well.
    await this.preparing.catch(() => undefined);
    await this.writer?.done();
    await this.pool?.end();
    const left: string[] = [];
    let unreachable = false;
    await forEach([...this.made], async (tenant) => {
      try {
        if (unreachable) throw new Refused('network', 0);
        if (tenant.slug === undefined) await this.cleanerOf(tenant).removeBin(tenant.binId);
        else await removeTenant(this.target, tenant.slug, adminToken);
        this.made.delete(tenant);
      } catch (error) {
        unreachable ||= error instanceof Refused && error.status === 0;
        left.push(`${tenant.slug ?? tenant.binId}: ${asError(error).message}`);
      }
    });
    this.target.close();
    return left;
  }
}
