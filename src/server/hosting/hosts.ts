/**
 * The host names of a hosted service: which is the service's own (the apex) and which belong to tenants, the table of
 * all tenants' names, and which names get a certificate.
 */
import { type Clock, HOUR_MS } from '../../protocol/clock.js';
import { KeyedFlight, SingleFlight } from '../../protocol/single-flight.js';
import type { HostChange, HostChanges, HostingStore } from './store.js';

/** Changes are kept for a day: after this long without a read, ms, some may be gone, and all names are read again. */
const AWAY_MS = 12 * HOUR_MS;

/** `<slug>.<base domain>`: what a tenant may be called. A label of DNS, at least three characters long. */
const SUBDOMAIN = /^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$/;

/**
 * Names that cannot be signed up: those with a meaning for mail, certificates and browsers (RFC 2142, RFC 6761), and
 * those that could be passed off as the service's own.
 */
const RESERVED: ReadonlySet<string> = new Set(
  `abuse account accounts admin administrator api app apps assets auth autoconfig autodiscover billing blog blobs cdn
  checkout claim cloud console contact dashboard demo dev dns docs download email example ftp git health help home
  hostmaster http https imap info internal invalid invoice legal local localhost login mail mcp metrics mta-sts mx
  news noc noreply ns ns1 ns2 oauth official pair pay payment payments pop pop3 portal postmaster privacy prod
  production proxy public recover recovery register root sales secure security server service sftp signin signup
  smtp socket ssl staging static stats status store stripe support sync sysadmin system team terms test tls update
  upload usenet verify vpn webhook webmail webmaster websocket wpad ws www www1 www2`.split(/\s+/),
);

/**
 * The label of the tenant that owns a host name (without port) under `baseDomain` (lower case); '' for the apex. Names
 * are compared in lower case, without the final dot of a fully qualified name (RFC 1034, 3.1). Undefined for every other
 * host, and for labels below a tenant's, which no tenant can use and which must not cost a certificate.
 */
export function labelOf(host: string, baseDomain: string): string | undefined {
  const lower = host.toLowerCase();
  const plain = lower.endsWith('.') ? lower.slice(0, -1) : lower;
  if (plain === baseDomain) return '';
  if (!plain.endsWith(`.${baseDomain}`)) return undefined;
  const label = plain.slice(0, -baseDomain.length - 1);
  return SUBDOMAIN.test(label) ? label : undefined;
}

/** Why a name cannot be signed up, for the error message; undefined where it can. The database checks whether it is taken. */
export function refusalOf(subdomain: string): string | undefined {
  if (!SUBDOMAIN.test(subdomain))
    return 'must be 3 to 63 of the characters a-z, 0-9 and -, with a letter or digit at both ends';
  // Internationalized names have these (RFC 5890), and can look like any other name.
  if (subdomain.slice(2, 4) === '--') return 'must not have hyphens in third and fourth place';
  return RESERVED.has(subdomain) ? 'is reserved' : undefined;
}

/**
 * Host name to tenant, all of them in memory: every request looks its host up, and the proxy does before it requests a
 * certificate. The database is authoritative. `refresh` reads what other instances signed up or freed: it is called
 * every few seconds, and at once after a change here, and when a notification names a tenant that is not known here.
 */
export class TenantHosts {
  private readonly bySlug = new Map<string, string>();
  /** The ids of all tenants in `bySlug`. */
  private readonly tenants = new Set<string>();
  /** Up to where the changes of names were read (see `HostingStore.since`). */
  private position = '';
  /** When they were last read. */
  private readAt = 0;
  /** The next read takes all names, since `position` is of no use to it. */
  private whole = true;
  private readonly reading = new SingleFlight(() => this.read());
  private closed = false;
  /** Names that were added after the start and have had no certificate yet. */
  private readonly uncertified = new Set<string>();
  /** Counts a name; concurrent requests for one name count once. */
  private readonly counting = new KeyedFlight(async (slug: string) => {
    await this.options.takeCertificate(slug);
    this.uncertified.delete(slug);
  });

  /**
   * @param options.baseDomain lower case.
   * @param options.onFreed is called for a tenant whose name was freed: nothing of it may be served any more.
   * @param options.takeCertificate counts a new name, once on all instances together. Throws `rate_limited`, `unavailable`.
   */
  constructor(
    private readonly options: {
      readonly store: Pick<HostingStore, 'all' | 'since'>;
      readonly clock: Clock;
      readonly baseDomain: string;
      readonly onFault: (error: unknown) => void;
      readonly onFreed: (tenantId: string) => void;
      readonly takeCertificate: (slug: string) => Promise<void>;
    },
  ) {}

  /** Reads the whole table. Rejects with `unavailable`. */
  async start(): Promise<void> {
    await this.update();
    this.uncertified.clear();
  }

  /** Stops following changes; resolves when a read that was under way has ended. */
  close(): Promise<void> {
    this.closed = true;
    return this.reading.idle();
  }

  /** The tenant of a host name (without port); undefined for the apex, a foreign name, and a name without a tenant. */
  tenantOf(host: string): string | undefined {
    return this.bySlug.get(labelOf(host, this.options.baseDomain) ?? '');
  }

  /** Whether the host is the name under which the service itself is reached. */
  isApex(host: string): boolean {
    return labelOf(host, this.options.baseDomain) === '';
  }

  /**
   * Whether the proxy may get a certificate for this name. A name that was added after the start is counted, once; rejects
   * as `takeCertificate` does. Anybody may sign up, and each new name that is reached over HTTPS costs the proxy an order
   * at its certificate authority, which limits orders too: without a limit a flood of new names would leave none for other
   * tenants and for renewals.
   */
  async certifies(host: string): Promise<boolean> {
    const slug = labelOf(host, this.options.baseDomain) ?? '';
    if (!this.uncertified.has(slug)) return this.isApex(host) || this.bySlug.has(slug);
    await this.counting.join(slug);
    return true;
  }

  /** Another instance has announced this tenant: if its name is not known here, the changes are read now. */
  hint(tenantId: string): void {
    if (!this.tenants.has(tenantId)) void this.refresh();
  }

  /**
   * Reads what changed before this call: calls during a read share the one after it. Never rejects: after a failure the
   * next read continues from the same position.
   */
  refresh(): Promise<void> {
    return this.reading.fresh();
  }

  /**
   * The database has another history: a position counts its transactions, and names may be gone without a change. Reads
   * all names.
   */
  restart(): Promise<void> {
    this.whole = true;
    return this.refresh();
  }

  private async read(): Promise<void> {
    if (!this.closed) await this.update().catch(this.options.onFault);
  }

  private async update(): Promise<void> {
    const now = this.options.clock.now();
    const whole = this.whole || Math.abs(now - this.readAt) > AWAY_MS;
    this.whole = false;
    try {
      const { changes, position } = await (whole ? this.readAll() : this.options.store.since(this.position));
      this.readAt = now;
      for (const change of changes) this.apply(change);
      this.position = position;
    } catch (error) {
      this.whole ||= whole;
      throw error;
    }
  }

  /** All names, with those that are free again. */
  private async readAll(): Promise<HostChanges> {
    const { changes, position } = await this.options.store.all();
    const taken = new Set(changes.map(({ slug }) => slug));
    const free = [...this.bySlug.keys()].filter((slug) => !taken.has(slug));
    return { position, changes: [...changes, ...free.map((slug) => ({ slug, tenantId: null }))] };
  }

  private apply({ slug, tenantId }: HostChange): void {
    const before = this.bySlug.get(slug);
    if (before === (tenantId ?? undefined)) return;
    if (before !== undefined) {
      this.bySlug.delete(slug);
      this.tenants.delete(before);
      this.uncertified.delete(slug);
      this.options.onFreed(before);
    }
    if (tenantId === null) return;
    this.uncertified.add(slug);
    this.bySlug.set(slug, tenantId);
    this.tenants.add(tenantId);
  }
}
