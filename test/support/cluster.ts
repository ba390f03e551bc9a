/**
 * Two real server processes on one real PostgreSQL, several tenants, load on both, and the tally afterwards: every
 * acknowledged write is stored, versions are 1 to head without a gap, and every socket saw them complete and in order.
 */
import type { Test } from 'tap';
import { claim, join, type TestDevice } from './devices.js';
import { BASE, MULTI, signUp, wireAt } from './hosted.js';
import { Load } from './load.js';
import { NamedProxy } from './named-proxy.js';
import { OwnPostgres } from './own-postgres.js';
import { until } from './events.js';
import { freePort } from './free-port.js';
import { Recorder, type Address } from './recorder.js';
import { spawnServer, type Child } from './server.js';
import { difference, Mirror, notRising, range } from './stream.js';
import type { Wire } from './wire.js';

/** An instance: its place stays when its process is another. */
export class Node {
  /** Its process, the last one. */
  child: Child | undefined;

  private constructor(
    private readonly t: Test,
    readonly port: number,
    readonly proxy: NamedProxy,
    private readonly env: Readonly<Record<string, string>>,
  ) {}

  static async start(t: Test, postgres: OwnPostgres, env: Readonly<Record<string, string>> = {}): Promise<Node> {
    const node = new Node(t, await freePort(), await NamedProxy.before(t, postgres.url), env);
    await node.start();
    return node;
  }

  async start(): Promise<void> {
    const env = { ...MULTI, LOG_LEVEL: 'warn', PORT: String(this.port), ...this.env };
    this.child = await spawnServer(this.t, { database: { url: this.proxy.url }, env });
  }

  /** kill -9. */
  async kill(): Promise<void> {
    await this.child?.end('SIGKILL');
  }
}

/** A tenant of the cluster. */
export interface Tenant {
  readonly slug: string;
  readonly id: string;
  readonly devices: readonly TestDevice[];
  /** Of the instances. */
  readonly wires: readonly Wire[];
  /** Only new items are written, so that every version stays a row. */
  readonly insertsOnly: boolean;
  readonly load: Load;
  readonly recorders: readonly Recorder[];
}

interface ClusterOptions {
  readonly tenants: number;
  /** Between two requests of one worker, ms. */
  readonly paceMs: number;
  readonly env?: Readonly<Record<string, string>>;
}

/** How long everybody may take to have everything again, ms. */
const CATCH_UP_MS = 60_000;

export class Cluster {
  readonly tenants: Tenant[] = [];

  private constructor(
    private readonly t: Test,
    readonly postgres: OwnPostgres,
    readonly nodes: readonly [Node, Node],
    private readonly options: ClusterOptions,
  ) {}

  /** Starts everything: of each tenant two devices, each with a writer, a reader and a socket on either instance. */
  static async start(t: Test, options: ClusterOptions): Promise<Cluster> {
    const postgres = await OwnPostgres.start(t);
    const nodes = [await Node.start(t, postgres, options.env), await Node.start(t, postgres, options.env)] as const;
    const cluster = new Cluster(t, postgres, nodes, options);
    for (const number of range(1, options.tenants)) await cluster.addTenant(`tenant-${number}`, number % 3 !== 0);
    return cluster;
  }

  private async addTenant(slug: string, insertsOnly: boolean): Promise<void> {
    const { t, nodes } = this;
    const wires = nodes.map(({ port }) => wireAt(t, port, `${slug}.${BASE}`));
    const claimToken = (await signUp(wireAt(t, nodes[0].port, BASE), slug)).text('claimToken');
    const [one] = wires;
    if (one === undefined) throw new Error('no wire');
    const first = await claim(one, { claimToken });
    const devices = [first, await join(one, first, { name: 'second' })];
    for (const wire of wires)
      await until('the new tenant on every instance', async () => (await wire.get('/service/status')).status === 200);
    const id = (await one.get('/service/status')).text('tenantId');
    const sealFor = devices.map((device) => device.id);
    const load = new Load();
    const places = this.placesOf({ slug });
    const recorders = devices.flatMap((device) => [
      new Recorder(places, device.token),
      new Recorder([...places].reverse(), device.token),
    ]);
    t.teardown(async () => Promise.all(recorders.map(async (recorder) => recorder.end())));
    for (const [at, device] of devices.entries()) {
      const own = at % 2 === 0 ? wires : [...wires].reverse();
      const common = { wires: own, device, sealFor, insertsOnly, paceMs: this.options.paceMs };
      load.write(common);
      load.read(common);
    }
    this.tenants.push({ slug, id, devices, wires, insertsOnly, load, recorders });
  }

  /** Where a tenant's sockets are opened. */
  placesOf({ slug }: Pick<Tenant, 'slug'>): Address[] {
    return this.nodes.map(({ port }) => ({ port, host: `${slug}.${BASE}` }));
  }

  get recorders(): Recorder[] {
    return this.tenants.flatMap(({ recorders }) => recorders);
  }

  /** Changes that are acknowledged so far. */
  get acked(): number {
    return this.tenants.reduce((sum, { load }) => sum + load.acked.length, 0);
  }

  /** Nobody asks for anything from now on. */
  async pause(): Promise<void> {
    await Promise.all(this.tenants.map(async ({ load }) => load.pause()));
  }

  resume(): void {
    for (const { load } of this.tenants) load.resume();
  }

  /** The head of each tenant, from the database itself. */
  async heads(): Promise<Map<string, number>> {
    const rows = await this.postgres.sql('SELECT id, head FROM tenants');
    return new Map(rows.map((row) => [String(row['id']), Number(row['head'])]));
  }

  /** Resolves when every socket has come to its tenant's head. Asks nothing of the service. */
  async caughtUp(): Promise<void> {
    const heads = await this.heads();
    await Promise.all(
      this.tenants.flatMap(({ id, recorders }) =>
        recorders.map(async (recorder) => recorder.reach(heads.get(id) ?? 0, CATCH_UP_MS)),
      ),
    );
  }

  /** Ends the load and counts. */
  async tally(): Promise<void> {
    await Promise.all(this.tenants.map(async ({ load }) => load.finish()));
    await this.caughtUp();
    for (const tenant of this.tenants) await this.tallyOf(tenant);
  }

  private async tallyOf({ id, slug, load, recorders, insertsOnly, wires, devices }: Tenant): Promise<void> {
    const { t } = this;
    t.same(load.wrong.slice(0, 3), [], `${slug}: no answer but 200 and 503`);
    const acked = [...load.acked].sort((one, other) => one.version - other.version);
    const head = (await this.heads()).get(id) ?? 0;
    const versions = acked.map(({ version }) => version);
    t.equal(difference(versions, range(1, head)), '', `${slug}: ${head} acknowledged, 1 to head, each once`);
    const truth = new Mirror().apply(acked);
    const rows = await this.postgres.sql('SELECT id, version, deleted_at FROM items WHERE tenant_id = $1', [id]);
    const stored = new Mirror().apply(
      rows.map((row) => ({
        kind: row['deleted_at'] === null ? 'item' : 'delete',
        id: String(row['id']),
        version: Number(row['version']),
      })),
    );
    t.equal(difference(stored.state, truth.state), '', `${slug}: what is stored is what was acknowledged`);
    for (const [at, recorder] of recorders.entries()) {
      const seen = recorder.seen.map(({ version }) => version);
      if (insertsOnly) t.equal(difference(seen, range(1, head)), '', `${slug}: socket ${at} saw each once, in order`);
      t.same(notRising(seen).slice(0, 3), [], `${slug}: socket ${at}: in order, none twice`);
      const state = new Mirror().apply(
        recorder.seen.map((change) => (change.kind === 'ack' ? ackedAs(truth, change) : change)),
      );
      t.equal(difference(state.state, truth.state), '', `${slug}: socket ${at} ends at what is stored`);
      t.same(recorder.odd, [], `${slug}: socket ${at} was told of no other history and no error`);
    }
    for (const wire of wires) {
      const me = await wire.get('/me', { token: devices[0]?.token, shape: 'a' });
      const { itemCount, versionSum } = truth.summary;
      t.match(me.at('server'), { headVersion: head, itemCount, versionSum }, `${slug}: /me agrees`);
    }
  }
}

/** An `ack` does not say what it acknowledges. */
const ackedAs = (truth: Mirror, { id, version }: { readonly id: string; readonly version: number }) => ({
  kind: truth.deleted.get(id) === version ? ('delete' as const) : ('item' as const),
  id,
  version,
});
