/**
 * Any mixture of what happens to the tenants of a hosted service that bills, at two instances at once: signups, claims,
 * payment events (repeated, late, out of order), operators, deletions, nights. After each round a model of the reference
 * (Billing, States) says what must be.
 */
import { randomInt } from 'node:crypto';
import t from 'tap';
import { TestClock } from './support/clock.js';
import { claim, newItem, write, type TestDevice } from './support/devices.js';
import { until } from './support/events.js';
import { BASE, billed, signUp, stateOf, wireAt, type Billed } from './support/hosted.js';
import { inLongRun } from './support/long.js';
import { oneOf } from './support/one-of.js';
import type { WithTeardown } from './support/postgres.js';
import { checkoutDone, deliver, invoiceIs, payerOf, subscriptionIs, type Payer } from './support/stripe.js';
import type { Json, Wire } from './support/wire.js';

const ROUNDS = inLongRun(10, 100);
const AT_ONCE = 20;
const SLUGS = ['anna', 'bert', 'carl', 'dora'] as const;
const SECOND_MS = 1_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const SWEEP_MS = 30_000;
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
  /** What an operator has set, and billing has not changed since; `active` may have been. */
  byOperator: State | undefined;
  written = 0;
  unpaid = false;

  constructor(
    readonly slug: string,
    readonly id: string,
    readonly claimToken: string,
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
  private readonly events: Json[] = [];
  private readonly wires = new Map<string, Wire>();

  constructor(
    private readonly scope: WithTeardown,
    private readonly clock: TestClock,
    private readonly instances: readonly Billed[],
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
      if (before !== undefined && !before.mayBeFreed(this.clock.now())) return `${slug} was signed up twice`;
      const [row] = await this.any.sql('SELECT id, created_at AS at FROM tenants WHERE slug = $1', [slug]);
      this.tenants.set(slug, new Known(slug, String(row?.['id']), reply.text('claimToken'), Number(row?.['at'])));
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
      return [...Object.values(WRITES), '404 tenant_not_found'].includes(outcome) ? undefined : `write: ${outcome}`;
    }),
  ];

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
    for (const tenant of this.tenants.values()) {
      tenant.unpaid = false;
      tenant.mayBeFreed(this.clock.now());
    }
    const results = await Promise.all(Array.from({ length: AT_ONCE }, async () => oneOf(this.calls)?.()));
    return results.filter((result) => result !== undefined);
  }

  /** What an operator does with one tenant; resolves with the tables that still have rows of a deleted one. */
  async operate(): Promise<readonly string[]> {
    const { tenant, any } = this;
    if (tenant === undefined || randomInt(2) === 0) return [];
    const state = oneOf(['suspended', 'inactive', 'active', 'active', 'gone'] as const);
    if (state !== 'gone') {
      const [row] = await any.sql('SELECT set_tenant_state($1, $2) AS verdict', [tenant.id, state]);
      if (row?.['verdict'] === 'ok') tenant.byOperator = state;
      return [];
    }
    for (let verdict: unknown = 'more'; verdict === 'more';) {
      const [row] = await any.sql('SELECT delete_tenant($1, 3, $2) AS verdict', [tenant.id, this.clock.now()]);
      verdict = row?.['verdict'];
    }
    this.tenants.delete(tenant.slug);
    const columns = "SELECT table_name AS name FROM information_schema.columns WHERE column_name = 'tenant_id'";
    const tables = (await any.sql(columns)).map(({ name }) => String(name)).filter((name) => !REMEMBER.includes(name));
    const left: string[] = [];
    for (const table of tables)
      if ((await any.sql(`SELECT FROM ${table} WHERE tenant_id = $1`, [tenant.id])).length > 0) left.push(table);
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
        if (state === undefined) return tenant.mayBeFreed(this.clock.now());
        this.clock.advance(SWEEP_MS);
        return tenant.statesAt(this.clock.now()).includes(state);
      });
      if (state === undefined) this.tenants.delete(slug);
      for (const instance of this.instances) await this.serves(instance, tenant);
    }
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
    const env = { TOKEN_TTL_DAYS: '3650' };
    const first = await billed(t, { clock, env });
    const second = await billed(t, { clock, env, stripe: first.stripe, database: { url: first.databaseUrl } });
    const mixture = new Mixture(t, clock, [first, second]);
    for (let round = 0; round < ROUNDS; round++) {
      t.strictSame(await mixture.round(), [], 'every call is answered as it may be');
      await mixture.settle();
      t.strictSame(await mixture.operate(), [], 'nothing is left of a deleted tenant');
      await mixture.settle();
      clock.advance(oneOf([SECOND_MS, HOUR_MS, HOUR_MS, DAY_MS, DAY_MS, 8 * DAY_MS, 31 * DAY_MS]) ?? 0);
      await mixture.settle();
    }
    for (const { id, slug, written } of mixture.tenants.values()) {
      const [row] = await first.sql('SELECT count(*)::integer AS items FROM items WHERE tenant_id = $1', [id]);
      t.equal(row?.['items'], written, `${slug} has every write that was acknowledged`);
    }
    t.strictSame(await first.sql('SELECT * FROM discrepancies()'), []);
  },
);
