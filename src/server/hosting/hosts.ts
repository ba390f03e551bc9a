/**
 * Host name to tenant, all of them in memory: every request asks, and so does the proxy before it gets a certificate.
 * The database has the truth; what other instances signed up or freed
 * is read on every few seconds, and at once when a notification names a tenant that is not known here.
 */
import type { Clock, Timer } from '../../protocol/clock.js';
import { HEAD_COMPARE_MS } from '../../protocol/limits.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import { destinationOf } from './names.js';
import type { HostChange, HostingStore } from './ports.js';

/** What the table is made of. */
export interface TenantHostsOptions {
  readonly store: Pick<HostingStore, 'all' | 'since'>;
  /** Lower case. */
  readonly baseDomain: string;
  readonly clock: Clock;
  readonly onFault: (error: unknown) => void;
  /** Told of a tenant whose name was freed: nothing of it may be served any more. */
  readonly onFreed: (tenantId: string) => void;
}

/** The table; see above. */
export class TenantHosts {
  private readonly bySlug = new Map<string, string>();
  private readonly slugs = new Map<string, string>();
  private position = '';
  private timer: Timer | undefined;
  private readonly reading = new SingleFlight(() => this.read());
  private closed = false;
  /** Names signed up here while the table is being read: that reading may have begun before. */
  private readonly added = new Set<string>();
  /** Names that came after the start, and for which no certificate was asked yet. */
  private readonly fresh = new Set<string>();

  constructor(private readonly options: TenantHostsOptions) {}

  /** Reads the whole table. Rejects with `unavailable`. */
  async start(): Promise<void> {
    const { changes, position } = await this.options.store.all();
    for (const change of changes) this.apply(change);
    this.fresh.clear();
    this.position = position;
    this.setTimer();
  }

  /** Stops reading on; resolves when a reading that was under way is over. */
  async close(): Promise<void> {
    this.closed = true;
    this.timer?.cancel();
    await this.reading.idle();
  }

  /** The tenant of a host name (without port), or undefined: the apex, a stranger's name, a name nobody has. */
  tenantOf(host: string): string | undefined {
    const destination = destinationOf(host, this.options.baseDomain);
    return destination?.kind === 'tenant' ? this.bySlug.get(destination.slug) : undefined;
  }

  /** Is it the name under which the service itself is reached? */
  isApex(host: string): boolean {
    return destinationOf(host, this.options.baseDomain)?.kind === 'apex';
  }

  /** Shall there be a certificate for this name? */
  serves(host: string): boolean {
    return this.isApex(host) || this.tenantOf(host) !== undefined;
  }

  /** A tenant's name that came after the start, until it is settled. */
  isNew(host: string): boolean {
    const destination = destinationOf(host, this.options.baseDomain);
    return destination?.kind === 'tenant' && this.fresh.has(destination.slug);
  }

  /** From now on the name is as old as any. */
  settle(host: string): void {
    const destination = destinationOf(host, this.options.baseDomain);
    if (destination?.kind === 'tenant') this.fresh.delete(destination.slug);
  }

  /** `https://<slug>.<base domain>` without the scheme. */
  hostOf(slug: string): string {
    return `${slug}.${this.options.baseDomain}`;
  }

  /** The name of a tenant; undefined for an unknown one. */
  slugOf(tenantId: string): string | undefined {
    return this.slugs.get(tenantId);
  }

  /** A tenant that this instance has just signed up. */
  add(slug: string, tenantId: string): void {
    this.added.add(slug);
    this.apply({ slug, tenantId });
  }

  /** Another instance speaks of this tenant: if its name is not known here, it is read now. */
  hint(tenantId: string): void {
    if (!this.slugs.has(tenantId)) void this.readOn();
  }

  /**
   * Reads what changed before this call: calls during a reading share the one after it. Never rejects: the next one
   * makes up for it.
   */
  readOn(): Promise<void> {
    return this.reading.fresh();
  }

  private setTimer(): void {
    this.timer = this.options.clock.setTimer(HEAD_COMPARE_MS, () => {
      this.setTimer();
      void this.readOn();
    });
  }

  private async read(): Promise<void> {
    if (this.closed) return;
    try {
      this.added.clear();
      const { changes, position } = await this.options.store.since(this.position);
      // Where a name leads in the end is all that counts. Changes come again as long as an older transaction is open:
      // going back over a name that was freed and given anew would each time forget its new tenant.
      const last = new Map(changes.map((change) => [change.slug, change] as const));
      let early = false;
      for (const change of last.values()) {
        if (change.tenantId === null && this.added.has(change.slug)) early = true;
        else this.apply(change);
      }
      if (!early) this.position = position;
    } catch (error) {
      this.options.onFault(error);
    }
  }

  private apply({ slug, tenantId }: HostChange): void {
    const before = this.bySlug.get(slug);
    if (before === (tenantId ?? undefined)) return;
    if (before !== undefined) {
      this.bySlug.delete(slug);
      this.slugs.delete(before);
      this.fresh.delete(slug);
      this.options.onFreed(before);
    }
    if (tenantId === null) return;
    this.fresh.add(slug);
    this.bySlug.set(slug, tenantId);
    this.slugs.set(tenantId, slug);
  }
}
