/**
 * Any mixture of what happens to the tenants of a hosted service that bills, at two instances at once: signups, claims,
 * payment events (repeated, late, out of order), writes, blobs, sockets, calls of `service-admin`, deletions, nights. After
 * each round a model of the reference (Billing, States) says what must be.
 */
import { randomBytes, randomInt } from 'node:crypto';
import t from 'tap';
import { admin, type Admin } from './support/admin.js';
import { askUpload, blobItem, downloadUrl, send, type BytesReply } from './support/blobs.js';
import { TestClock } from './support/clock.js';
import { claim, newItem, write, type TestDevice } from './support/devices.js';
import { until } from './support/events.js';
import { BASE, billed, MULTI, signUp, stateOf, wireAt, type Billed } from './support/hosted.js';
import { inLongRun } from './support/long.js';
import { oneOf } from './support/one-of.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { versionsOf } from './support/stream.js';
import { checkoutDone, deliver, invoiceIs, payerOf, subscriptionIs, type Payer } from './support/stripe.js';
import { UpgradeRefused, type Json, type Socket, type Wire } from './support/wire.js';

const ROUNDS = inLongRun(10, 100);
const AT_ONCE = 20;
/** Held sockets of one tenant. */
const SOCKETS_MAX = 3;
const SLUGS = ['anna', 'bert', 'carl', 'dora'] as const;
const SECOND_MS = 1_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const SWEEP_MS = 30_000;
/** Within this time a socket has brought what another instance has committed, or is closed. */
const FOLLOW_MS = 15_000;
const GRACE_MS = 7 * DAY_MS;
const SUSPENDED_MS = 30 * DAY_MS;
/** Of the tables with a tenant's id those that remember it for a while after it is gone. */
const REMEMBER = ['gone_tenants', 'host_changes', 'webhook_events'];

type State = 'pending' | 'active' | 'past_due' | 'suspended' | 'inactive';
/** From the best to the worst, as those of several subscriptions count. */
const RANKED: readonly State[] = ['active', 'past_due', 'suspended', 'inactive'];
/** The answer to a write. */
const WRITES: Readonly<Record<State, string>> = {
  ...{ active: '200', past_due: '200', suspended: '403 tenant_suspended' },
  ...{ pending: '402 payment_required', inactive: '402 payment_required' },
};
/** With which a held socket may close: it was not paid for or is gone (1012, 4401), or was silent for hours (4408). */
const CLOSED_WITH = [1012, 4401, 4408];

/** What the provider has reported of a subscription; times in ms. */
class Subscription {
  good = -Infinity;
  readonly failed: number[] = [];
  ended = false;

  constructor(readonly payer: Payer) {}

  /** Undefined: nobody has paid yet. */
  stateAt(now: number): State | undefined {
    if (this.good === -Infinity) return undefined;
    if (this.ended) return 'inactive';
    const since = Math.min(...this.failed.filter((at) => at > this.good));
    if (since === Infinity) return 'active';
    return now < since + GRACE_MS ? 'past_due' : now < since + GRACE_MS + SUSPENDED_MS ? 'suspended' : 'inactive';
  }
}

/** A tenant that was signed up. */
class Known {
  readonly subscriptions: readonly Subscription[];
  device: TestDevice | undefined;
  readonly sockets = new Set<Socket>();
  /** Blobs that items name. */
  readonly blobs = new Map<string, Buffer>();
  /** What an operator has set, and billing has not changed since; `active` may have been. */
  byOperator: State | undefined;
  written = 0;
  unpaid = false;

  constructor(
    readonly slug: string,
    readonly id: string,
    public claimToken: string,
    readonly signedUpAt: number,
  ) {
    const payer = payerOf(id);
    this.subscriptions = [payer, { ...payer, subscription: `${payer.subscription}_2` }].map(
      (of) => new Subscription(of),
    );
  }

  /** Undefined: nobody has paid yet. */
  billingAt(now: number): State | undefined {
    const states = this.subscriptions.map((one) => one.stateAt(now));
    return RANKED.find((state) => states.includes(state));
  }

  /** The states that it may be in. */
  statesAt(now: number): readonly State[] {
    const billing = this.billingAt(now) ?? 'pending';
    if (this.byOperator === undefined) return [billing];
    return this.byOperator === 'active' ? ['active', billing] : [this.byOperator];
  }

  /** Nobody has paid for a day, or had when the round began: signups and the nightly jobs may free the name. */
  mayBeFreed(now: number): boolean {
    this.unpaid ||= this.billingAt(now) === undefined && now - this.signedUpAt > DAY_MS - SECOND_MS;
    return this.unpaid;
  }
}

class Mixture {
  /** Of each name the newest tenant. */
  readonly tenants = new Map<string, Known>();
  /** Names whose tenant an operator has deleted in this round. */
  private readonly deleted = new Set<string>();
  /** The operator's calls, one after the other, as of one person. */
  private ordering: Promise<unknown> = Promise.resolve();
  /** Sockets that closed with another code than they may. */
  readonly wronglyClosed: string[] = [];
  private readonly events: Json[] = [];
  private readonly wires = new Map<string, Wire>();

  constructor(
    private readonly scope: WithTeardown,
    private readonly clock: TestClock,
    private readonly instances: readonly Billed[],
    private readonly program: Admin,
  ) {}

  private get any(): Billed {
    return oneOf(this.instances) as Billed;
  }

  private at({ port }: Billed, host: string): Wire {
    const key = `${port} ${host}`;
    const wire = this.wires.get(key) ?? wireAt(this.scope, port, host);
    this.wires.set(key, wire);
    return wire;
  }

  private get tenant(): Known | undefined {
    return oneOf([...this.tenants.values()]);
  }

  /** Each resolves with the answer if it is wrong. */
  private readonly calls: readonly (() => Promise<string | undefined>)[] = [
    async () => {
      const slug = oneOf(SLUGS) as string;
      const before = this.tenants.get(slug);
      const reply = await signUp(this.any.apex, slug);
      if (reply.status !== 200) return reply.status === 409 ? undefined : `signup: ${reply.outcome}`;
      if (before !== undefined && !this.mayBeGone(before)) return `${slug} was signed up twice`;
      const [row] = await this.any.sql('SELECT id, created_at AS at FROM tenants WHERE slug = $1', [slug]);
      if (row === undefined) return this.deleted.has(slug) ? undefined : `${slug} is gone`;
      this.tenants.set(slug, new Known(slug, String(row['id']), reply.text('claimToken'), Number(row['at'])));
      return undefined;
    },
    async () => {
      const { tenant } = this;
      if (tenant === undefined || tenant.device !== undefined) return undefined;
      const wire = this.at(this.any, `${tenant.slug}.${BASE}`);
      const device = await claim(wire, { claimToken: tenant.claimToken }).catch((error: unknown) => String(error));
      if (typeof device !== 'string') tenant.device = device;
      // Two at once, or the tenant was freed.
      else if (!/bootstrap: (403|404|409|410)/.test(device)) return device;
      return undefined;
    },
    ...Array.from({ length: 6 }, () => () => this.pays()),
    async () => {
      const event = oneOf(this.events);
      return event === undefined ? undefined : this.delivered(event);
    },
    ...Array.from({ length: 2 }, () => async () => {
      const { tenant } = this;
      if (tenant?.device === undefined) return undefined;
      const outcome = await this.write(this.any, tenant);
      return this.judged(tenant, 'write', outcome);
    }),
    () => this.keepsBlob(),
    () => this.opensSocket(),
    () => this.ordered(() => this.orders()),
  ];

  /** An answer to a device; wrong, unless its tenant may get it. Of another tenant of the same name it is a stranger. */
  private judged(tenant: Known, what: string, outcome: string, ...more: readonly string[]): string | undefined {
    const allowed = [...Object.values(WRITES), '404 tenant_not_found', ...more];
    if (allowed.includes(outcome) || (outcome.startsWith('401') && this.mayBeGone(tenant))) return undefined;
    return `${tenant.slug}: ${what}: ${outcome}`;
  }

  private mayBeGone(tenant: Known): boolean {
    return tenant.mayBeFreed(this.clock.now()) || this.deleted.has(tenant.slug);
  }

  /** A signed URL's request, at any instance. */
  private signedAt(method: string, url: string, body?: Buffer): Promise<BytesReply> {
    const { host, pathname, search } = new URL(url);
    const headers = { host, ...(body ? { 'content-type': 'application/octet-stream' } : {}) };
    return send(method, `http://127.0.0.1:${this.any.port}${pathname}${search}`, {
      headers,
      ...(body ? { body } : {}),
    });
  }

  private async keepsBlob(): Promise<string | undefined> {
    const { tenant } = this;
    if (tenant?.device === undefined) return undefined;
    const { device, slug } = tenant;
    const wire = (): Wire => this.at(this.any, `${slug}.${BASE}`);
    const bytes = randomBytes(randomInt(1, 9_000));
    const asked = await askUpload(wire(), device, { size: bytes.length });
    if (asked.status !== 200) return this.judged(tenant, 'upload URL', asked.outcome);
    const { outcome } = await this.signedAt('PUT', asked.text('url'), bytes);
    if (outcome !== '200') return this.judged(tenant, 'upload', outcome, '403 url_invalid');
    const ref = asked.text('blobRef');
    const { outcome: named } = await wire().post('/items', blobItem('a', [device.id], ref), { token: device.token });
    if (named !== '200') return this.judged(tenant, 'item of a blob', named);
    tenant.written++;
    tenant.blobs.set(ref, bytes);
    return undefined;
  }

  private async opensSocket(): Promise<string | undefined> {
    const { tenant } = this;
    if (tenant?.device === undefined || tenant.sockets.size >= SOCKETS_MAX) return undefined;
    try {
      const wire = this.at(this.any, `${tenant.slug}.${BASE}`);
      const socket = await wire.connect({ authorization: tenant.device.token });
      tenant.sockets.add(socket);
      void socket.closed.then(({ code, reason }) => {
        tenant.sockets.delete(socket);
        if (!CLOSED_WITH.includes(code)) this.wronglyClosed.push(`${tenant.slug}: ${code} ${reason}`);
      });
      socket.send({ type: 'hello', since: 0, acks: true });
      return undefined;
    } catch (error) {
      return this.judged(tenant, 'socket', error instanceof UpgradeRefused ? error.reply.outcome : String(error));
    }
  }

  /** Does this after all that was ordered before. */
  private ordered<T>(work: () => Promise<T>): Promise<T> {
    const done = this.ordering.then(work);
    this.ordering = done.catch(() => undefined);
    return done;
  }

  /** One call of the operator's program, while everything else goes on. */
  private async orders(): Promise<string | undefined> {
    const { tenant, program } = this;
    if (tenant === undefined || this.mayBeGone(tenant)) return undefined;
    const { slug } = tenant;
    const what = oneOf(['suspend', 'activate', 'claim-token', 'purge', 'list', 'delete'] as const);
    if (what === 'purge' || what === 'list') {
      const { code, error } = await program.json(...(what === 'list' ? ['tenants', 'list'] : ['purge']));
      return code === 0 || error?.['code'] === 'busy' ? undefined : `${what}: ${JSON.stringify(error)}`;
    }
    if (what === 'claim-token') {
      const { code, data, error } = await program.json('claim-token', slug);
      if (code === 0) tenant.claimToken = String(data['claimToken']);
      return code === 0 || error?.['code'] === 'bootstrap_already_done' ? undefined : JSON.stringify(error);
    }
    return what === 'delete' ? this.deletes(tenant) : this.sets(tenant, what ?? 'suspend');
  }

  private async sets(tenant: Known, command: 'suspend' | 'activate'): Promise<string | undefined> {
    const { code, error } = await this.program.json('tenants', command, tenant.slug);
    if (code !== 0) return `${command}: ${JSON.stringify(error)}`;
    tenant.byOperator = command === 'suspend' ? 'suspended' : 'active';
    return undefined;
  }

  private async deletes({ slug, id }: Known): Promise<string | undefined> {
    this.deleted.add(slug);
    const { code, error } = await this.program.json('tenants', 'delete', slug, '--confirm', slug);
    if (code !== 0) return `delete: ${JSON.stringify(error)}`;
    return (await stateOf(this.any, id)) === undefined ? undefined : `${slug} was deleted, and is still there`;
  }

  private async delivered(event: Json): Promise<string | undefined> {
    const { outcome } = await deliver(this.any.apex, event, { at: this.clock.now() });
    return outcome === '200' ? undefined : `event: ${outcome}`;
  }

  /** An event of up to three days ago, delivered once or twice at once. */
  private async pays(): Promise<string | undefined> {
    const { tenant } = this;
    const subscription = tenant && (randomInt(4) > 0 ? tenant.subscriptions[0] : tenant.subscriptions[1]);
    if (subscription === undefined) return undefined;
    const { payer } = subscription;
    const at = Math.floor((this.clock.now() - randomInt(3 * DAY_MS)) / SECOND_MS) * SECOND_MS;
    const kind = oneOf(['good', 'good', 'good', 'failed', 'failed', 'ended'] as const);
    const event =
      kind === 'good'
        ? oneOf([checkoutDone, invoiceIs.bind(undefined, 'paid')])?.(payer, at)
        : kind === 'failed'
          ? invoiceIs('payment_failed', payer, at)
          : subscriptionIs('deleted', 'canceled', payer, at);
    if (event === undefined) return undefined;
    const results = await Promise.all(Array.from({ length: randomInt(1, 3) }, () => this.delivered(event)));
    this.events.push(event);
    if (kind === 'good') subscription.good = Math.max(subscription.good, at);
    else if (kind === 'failed') subscription.failed.push(at);
    else subscription.ended = true;
    return results.find((wrong) => wrong !== undefined);
  }

  private async write(instance: Billed, tenant: Known): Promise<string> {
    const { slug, device } = tenant;
    if (device === undefined) return 'no device';
    const { outcome } = await write(this.at(instance, `${slug}.${BASE}`), device, newItem([device.id]));
    if (outcome === '200') tenant.written++;
    return outcome;
  }

  /** Calls at once; resolves with the answers that are wrong. */
  async round(): Promise<readonly string[]> {
    this.deleted.clear();
    for (const tenant of this.tenants.values()) {
      tenant.unpaid = false;
      tenant.mayBeFreed(this.clock.now());
    }
    const results = await Promise.all(Array.from({ length: AT_ONCE }, async () => oneOf(this.calls)?.()));
    return results.filter((result) => result !== undefined);
  }

  /** What an operator does with one tenant; resolves with what is wrong. */
  async operate(): Promise<readonly string[]> {
    const { tenant, any } = this;
    if (tenant === undefined || randomInt(2) === 0) return [];
    const what = oneOf(['suspend', 'activate', 'activate', 'inactive', 'delete'] as const) ?? 'delete';
    if (what === 'delete') return [await this.deletes(tenant)].filter((wrong) => wrong !== undefined);
    if (what !== 'inactive') return [await this.sets(tenant, what)].filter((wrong) => wrong !== undefined);
    // As of a deletion that was cut off.
    const [row] = await any.sql("SELECT set_tenant_state($1, 'inactive') AS verdict", [tenant.id]);
    if (row?.['verdict'] === 'ok') tenant.byOperator = 'inactive';
    return [];
  }

  /** The tables that have rows of a tenant that is gone. */
  private async leftOf(id: string): Promise<readonly string[]> {
    const columns = "SELECT table_name AS name FROM information_schema.columns WHERE column_name = 'tenant_id'";
    const tables = (await this.any.sql(columns)).map(({ name }) => String(name));
    const left: string[] = [];
    for (const table of tables.filter((name) => !REMEMBER.includes(name)))
      if ((await this.any.sql(`SELECT FROM ${table} WHERE tenant_id = $1`, [id])).length > 0) left.push(table);
    return left;
  }

  /** Waits until each tenant is as the model says, on each instance. */
  async settle(): Promise<void> {
    for (const tenant of [...this.tenants.values()]) {
      const { slug, id } = tenant;
      const [server] = this.instances as [Billed];
      let state: State | undefined;
      const what = (): string =>
        `${slug} is ${state}, not ${tenant.statesAt(this.clock.now()).join(' or ')}: ${JSON.stringify(tenant)}`;
      await until(what, async () => {
        state = (await stateOf(server, id)) as State | undefined;
        if (state === undefined) return this.mayBeGone(tenant);
        this.clock.advance(SWEEP_MS);
        return tenant.statesAt(this.clock.now()).includes(state);
      });
      if (state === undefined) this.tenants.delete(slug);
      for (const instance of this.instances) await this.serves(instance, tenant);
      await this.follow(tenant, state);
      if (state !== undefined) continue;
      let left: readonly string[] = [];
      await until(
        () => `of ${slug}, which is gone, there is left: ${left.join()}`,
        async () => (left = await this.leftOf(id)).length === 0,
      );
    }
  }

  /** Waits until each socket has brought every write, or is closed, as it must be where its upgrade would be refused. */
  private async follow({ slug, sockets, written }: Known, state: State | undefined): Promise<void> {
    const refused = state === undefined || WRITES[state].startsWith('402');
    for (const socket of sockets) {
      const has = (): number => new Set(versionsOf(socket.frames)).size;
      let advanced = 0;
      await until(
        () => `a socket of ${slug}, which is ${state}, is open with ${has()} of ${written} writes`,
        () => {
          // The notifications of another instance go out by the clock; after an hour the socket would be closed as silent.
          if (advanced < FOLLOW_MS) this.clock.advance(SECOND_MS);
          advanced += SECOND_MS;
          return !sockets.has(socket) || (!refused && has() === written);
        },
      );
    }
  }

  /** The blobs that a device does not get as it has kept them. */
  async lost(): Promise<readonly string[]> {
    const lost: string[] = [];
    for (const { slug, id, device, blobs } of this.tenants.values()) {
      const state = (await stateOf(this.any, id)) as State;
      if (device === undefined || WRITES[state].startsWith('402')) continue;
      for (const [ref, bytes] of blobs) {
        const url = await downloadUrl(this.at(this.any, `${slug}.${BASE}`), device, ref);
        if (!(await this.signedAt('GET', url)).bytes.equals(bytes)) lost.push(`${slug} ${ref}`);
      }
    }
    return lost;
  }

  /** Waits until the instance serves the tenant as its state in the database says. */
  private async serves(instance: Billed, tenant: Known): Promise<void> {
    const { slug, id, device } = tenant;
    let seen: readonly string[] = [];
    await until(
      () => `${slug}: ${seen.join(', ')}`,
      async () => {
        this.clock.advance(SECOND_MS);
        const state = (await stateOf(instance, id)) as State | undefined;
        const reply = await this.at(instance, `${slug}.${BASE}`).get('/service/status');
        seen = [state ?? 'gone', reply.outcome];
        if (state === undefined) return reply.outcome === '404 tenant_not_found';
        if (reply.at('tenantId') !== id) return false;
        if (device === undefined) return true;
        seen = [state, await this.write(instance, tenant)];
        return seen[1] === WRITES[state];
      },
    );
  }
}

t.test(
  'BILL-08 BILL-11 BILL-12 BILL-16 BILL-17 BILL-18 HOST-04 HOST-15: any mixture of payments, operators and time',
  async (t) => {
    const clock = new TestClock();
    const env = { TOKEN_TTL_DAYS: '3650', DATA_DIR: await temporaryFolder(t) };
    const first = await billed(t, { clock, env });
    const second = await billed(t, { clock, env, stripe: first.stripe, database: { url: first.databaseUrl } });
    const program = await admin(t, { ...MULTI, DATABASE_URL: first.databaseUrl, DATA_DIR: env.DATA_DIR });
    const mixture = new Mixture(t, clock, [first, second], program);
    for (let round = 0; round < ROUNDS; round++) {
      t.strictSame(await mixture.round(), [], 'every call is answered as it may be');
      await mixture.settle();
      t.strictSame(await mixture.operate(), [], 'the operator does what the program says');
      await mixture.settle();
      t.strictSame(mixture.wronglyClosed, [], 'every socket that closed was told why');
      clock.advance(oneOf([SECOND_MS, HOUR_MS, HOUR_MS, DAY_MS, DAY_MS, 8 * DAY_MS, 31 * DAY_MS]) ?? 0);
      await mixture.settle();
    }
    for (const { id, slug, written } of mixture.tenants.values()) {
      const [row] = await first.sql('SELECT count(*)::integer AS items FROM items WHERE tenant_id = $1', [id]);
      t.equal(row?.['items'], written, `${slug} has every write that was acknowledged`);
    }
    t.strictSame(await mixture.lost(), [], 'every blob that an item names is there');
    t.strictSame(await first.sql('SELECT * FROM discrepancies()'), []);
    t.match(await program.json('verify'), { code: 0 }, 'the operator finds nothing wrong');
  },
);
