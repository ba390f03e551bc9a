/** What events mean, and that their order has no effect. */
import { deepStrictEqual, equal } from 'node:assert/strict';
import fc from 'fast-check';
import type pg from 'pg';
import Stripe from 'stripe';
import t from 'tap';
import { ServiceError } from '../src/protocol/errors.js';
import { factOf } from '../src/server/billing/rules.js';
import { BillingStore } from '../src/server/billing/store.js';
import { nightlyJobs } from '../src/server/ops/store.js';
import { inLongRun } from './support/long.js';
import { poolOf, testDatabase, type WithTeardown } from './support/postgres.js';
import { checkoutDone, eventOf, invoiceIs, payerOf, subscriptionIs, type Payer } from './support/stripe.js';
import type { Json } from './support/wire.js';

const DAY_MS = 86_400_000;
const GRACE = 7 * DAY_MS;
const T0 = 1_780_000_000_000;
const payer = payerOf('tenant');

t.test('BILL-09: events are read in the present and in the former forms of the provider', (t) => {
  const kindOf = (event: unknown): string | undefined => factOf(event)?.kind;
  t.match(factOf(checkoutDone(payer, T0)), {
    ...{ tenantId: 'tenant', customerId: 'cus_tenant', subscriptionId: 'sub_tenant', kind: 'good', at: T0 },
  });
  t.equal(kindOf(checkoutDone(payer, T0, { payment_status: 'unpaid' })), 'seen', 'the bank takes days');
  t.equal(kindOf(checkoutDone(payer, T0, { payment_status: 'no_payment_required' })), 'good', 'a trial counts as paid');
  t.equal(kindOf(checkoutDone(payer, T0, { mode: 'payment' })), undefined, 'a single payment is for another product');
  for (const [status, kind] of [
    ['active', 'good'],
    ['trialing', 'good'],
    ['past_due', 'failed'],
    ['unpaid', 'failed'],
    ['paused', 'failed'],
    ['canceled', 'ended'],
    ['incomplete_expired', 'ended'],
    ['incomplete', 'seen'],
    ['new at the provider', 'seen'],
  ] as const)
    t.equal(kindOf(subscriptionIs('updated', status, payer, T0)), kind, status);
  t.equal(kindOf(subscriptionIs('deleted', 'active', payer, T0)), 'ended');
  t.match(factOf(invoiceIs('paid', payer, T0)), { kind: 'good', paidUntil: T0 + 30 * DAY_MS });
  t.match(factOf(invoiceIs('payment_failed', payer, T0)), { kind: 'failed', paidUntil: null });
  const older = {
    customer: { id: 'cus_1' },
    subscription: 'sub_1',
    subscription_details: { metadata: { tenant_id: 'x' } },
  };
  t.match(factOf(eventOf('invoice.paid', T0, older)), {
    ...{ tenantId: 'x', customerId: 'cus_1', subscriptionId: 'sub_1', kind: 'good' },
  });
  const nothing: readonly unknown[] = [
    eventOf('customer.created', T0, { id: 'cus_1' }),
    eventOf('invoice.paid', T0, { customer: 'cus_1' }),
    eventOf('invoice.paid', T0, { subscription: 'sub_1' }),
    eventOf('invoice.paid', T0, { ...older, subscription: 'x'.repeat(256) }),
    { ...invoiceIs('paid', payer, T0), created: 'yesterday' },
    { ...invoiceIs('paid', payer, T0), data: null },
    ...[null, undefined, 7, 'text', [], {}],
  ];
  for (const event of nothing) t.equal(factOf(event), undefined, JSON.stringify(event)?.slice(0, 60));
  t.end();
});

t.test('BILL-20: an id with anything but visible ASCII is refused, wherever it is', (t) => {
  for (const id of ['a b', 'a\n', 'a\u0000', 'a\u007f', 'caf\u00e9', '\u202ea']) {
    const events = [
      { ...invoiceIs('paid', payer, T0), id },
      ...(['tenant', 'customer', 'subscription'] as const).flatMap((field) => {
        const odd = { ...payer, [field]: id };
        return [invoiceIs('paid', odd, T0), checkoutDone(odd, T0), subscriptionIs('updated', 'active', odd, T0)];
      }),
      checkoutDone(payer, T0, { customer: { id } }),
    ];
    for (const event of events)
      t.throws(() => factOf(event), new ServiceError('webhook_invalid'), JSON.stringify(event));
  }
  t.end();
});

t.test('BILL-09: fields are read where the library has them in its version of the API', (t) => {
  // Typed by the library: a field that moves in another version of it fails to compile here.
  const subscription_details: Stripe.Invoice.Parent.SubscriptionDetails = {
    ...{ subscription: 'sub_1', metadata: { tenant_id: 'x' } },
  };
  const parent: Stripe.Invoice.Parent = { type: 'subscription_details', quote_details: null, subscription_details };
  const invoice: Pick<Stripe.Invoice, 'id' | 'customer' | 'parent'> = { id: 'in_1', customer: 'cus_1', parent };
  const fact = { tenantId: 'x', customerId: 'cus_1', subscriptionId: 'sub_1', kind: 'good' } as const;
  t.match(factOf(eventOf('invoice.paid', T0, invoice)), fact);
  const whole = { subscription: { id: 'sub_1' }, metadata: { tenant_id: 'x' } };
  t.match(
    factOf(eventOf('invoice.paid', T0, { ...invoice, parent: { ...parent, subscription_details: whole } })),
    fact,
  );
  const alone = { ...invoice, parent: null };
  t.equal(
    factOf(eventOf('invoice.paid', T0, alone)),
    undefined,
    'an invoice for something else pays for no subscription',
  );
  t.equal(factOf(eventOf('invoice.payment_failed', T0, { ...alone, parent: { type: 'quote_details' } })), undefined);
  const session: Pick<
    Stripe.Checkout.Session,
    'mode' | 'payment_status' | 'customer' | 'subscription' | 'client_reference_id' | 'metadata'
  > = {
    mode: 'subscription',
    payment_status: 'paid',
    customer: 'cus_1',
    subscription: 'sub_1',
    client_reference_id: 'x',
    metadata: { tenant_id: 'x' },
  };
  t.match(factOf(eventOf('checkout.session.completed', T0, session)), fact);
  const bought = eventOf('checkout.session.completed', T0, { ...session, metadata: {}, payment_link: 'plink_1' });
  t.match(factOf(bought), { ...fact, tenantId: null }, 'the buyer of a payment link chooses the reference');
  const subscription: Pick<Stripe.Subscription, 'id' | 'status' | 'customer' | 'metadata'> = {
    id: 'sub_1',
    status: 'active',
    customer: 'cus_1',
    metadata: { tenant_id: 'x' },
  };
  t.match(factOf(eventOf('customer.subscription.updated', T0, subscription)), fact);
  t.equal(invoiceIs('paid', payer, T0)['api_version'], Stripe.API_VERSION, 'the stand-in sends events of that version');
  t.end();
});

type Kind = 'checkout' | 'created' | 'active' | 'past_due' | 'deleted' | 'paid' | 'failed';

const makers: Readonly<Record<Kind, (payer: Payer, at: number) => Json>> = {
  checkout: (who, at) => checkoutDone(who, at),
  created: (who, at) => subscriptionIs('created', 'incomplete', who, at),
  active: (who, at) => subscriptionIs('updated', 'active', who, at),
  past_due: (who, at) => subscriptionIs('updated', 'past_due', who, at),
  deleted: (who, at) => subscriptionIs('deleted', 'canceled', who, at),
  paid: (who, at) => invoiceIs('paid', who, at),
  failed: (who, at) => invoiceIs('payment_failed', who, at),
};

interface Happened {
  readonly kind: Kind;
  /** Which of the customer's subscriptions. */
  readonly which: number;
  readonly day: number;
}

/** The state that the events lead to, found in another way than the server's: from all of them at once. */
function meant(events: readonly Happened[], today: number): string {
  const states: string[] = [0, 1].map((which) => {
    const mine = events.filter((event) => event.which === which);
    const days = (...kinds: readonly Kind[]): number[] =>
      mine.filter(({ kind }) => kinds.includes(kind)).map(({ day }) => day);
    const good = days('checkout', 'active', 'paid');
    if (good.length === 0) return 'pending';
    if (days('deleted').length > 0) return 'inactive';
    const bad = days('past_due', 'failed').filter((day) => day > Math.max(...good));
    if (bad.length === 0) return 'active';
    const late = today - Math.min(...bad);
    return late < 7 ? 'past_due' : late < 37 ? 'suspended' : 'inactive';
  });
  const order: readonly string[] = ['active', 'past_due', 'suspended', 'inactive', 'pending'];
  return order.find((state) => states.includes(state)) ?? 'pending';
}

interface Bench {
  readonly store: BillingStore;
  readonly pool: pg.Pool;
  readonly sql: (text: string, values?: readonly unknown[]) => Promise<Record<string, unknown>[]>;
  readonly tenant: (id: string) => Promise<void>;
}

async function bench(t: WithTeardown): Promise<Bench> {
  const { url } = await testDatabase(t);
  const pool = poolOf(t, url);
  const sql = async (text: string, values: readonly unknown[] = []): Promise<Record<string, unknown>[]> =>
    (await pool.query<Record<string, unknown>>(text, [...values])).rows;
  const tenant = async (id: string): Promise<void> => {
    await sql(`INSERT INTO tenants (id, slug, state, created_at) VALUES ($1, $1, 'pending', 1)`, [id]);
  };
  return { store: new BillingStore(pool), pool, sql, tenant };
}

/** Applies events as the webhook does; all at once where `together`. */
async function applyAll({ store }: Bench, events: readonly Json[], now: number, together = false): Promise<void> {
  const one = async (event: Json): Promise<void> => {
    const fact = factOf(event);
    if (fact !== undefined) await store.apply(fact, GRACE, now);
  };
  if (together) await Promise.all(events.map(one));
  else for (const event of events) await one(event);
}

interface Scenario {
  readonly events: Happened[];
  /** Events by number: some of them, with repetitions, then all of them. */
  readonly order: number[];
  readonly rest: number[];
  readonly today: number;
  /** Whether the events of `order` and `rest` are applied all at once. */
  readonly together: boolean;
}

/** One scenario for each state but `pending`, so that no run is without one. */
const EXAMPLES: readonly Scenario[] = [45, 50, 60, 100].map((today) => ({
  events: [
    { kind: 'checkout', which: 0, day: 0 },
    { kind: today === 45 ? 'paid' : 'failed', which: 0, day: 45 },
    { kind: 'past_due', which: 0, day: today === 45 ? 44 : 47 },
  ],
  ...{ order: [1], rest: [2, 1, 0], today, together: today > 50 },
}));

t.test('BILL-08 BILL-12: events in any order, repeated or concurrent, lead to the same state', async (t) => {
  const made = await bench(t);
  const { sql, tenant } = made;
  let runs = 0;
  const happened = fc.record({
    kind: fc.constantFrom(...(Object.keys(makers) as Kind[])),
    which: fc.integer({ min: 0, max: 1 }),
    day: fc.integer({ min: 0, max: 50 }),
  });
  const scenario = fc.array(happened, { minLength: 1, maxLength: 10 }).chain((events) =>
    fc.record({
      events: fc.constant(events),
      order: fc.array(fc.nat({ max: events.length - 1 }), { maxLength: 2 * events.length }),
      rest: fc.shuffledSubarray([...events.keys()], { minLength: events.length }),
      today: fc.integer({ min: 50, max: 100 }),
      together: fc.boolean(),
    }),
  );
  const seen = new Set<unknown>();
  await fc.assert(
    fc.asyncProperty(scenario, async ({ events, order, rest, today, together }) => {
      const run = ++runs;
      const now = T0 + today * DAY_MS;
      const figures = async (name: string, chosen: readonly number[], at: boolean): Promise<object> => {
        const id = `${name}${run}`;
        await tenant(id);
        const all = events.map(({ kind, which, day }, n) => {
          const who = { ...payerOf(id), subscription: `sub_${id}_${which}` };
          return { ...makers[kind](who, T0 + day * DAY_MS), id: `evt_${id}_${n}` };
        });
        await applyAll(
          made,
          chosen.flatMap((n) => all[n] ?? []),
          now,
          at,
        );
        const [row] = await sql('SELECT state, billing_state, billing_since, paid_until FROM tenants WHERE id = $1', [
          id,
        ]);
        const facts = await sql(
          `SELECT right(id, 2) AS which, good_at, ended_at, CASE WHEN good_at IS NULL OR EXISTS (
              SELECT 1 FROM unnest(failed_at) f WHERE f > good_at) THEN ARRAY(SELECT f FROM unnest(failed_at) f ORDER BY f)
            END AS failed FROM subscriptions WHERE tenant_id = $1 ORDER BY id`,
          [id],
        );
        return { ...row, facts };
      };
      const straight = await figures('a', [...events.keys()], false);
      deepStrictEqual(await figures('b', [...order, ...rest], together), straight);
      const { state } = straight as { state: string };
      seen.add(state);
      equal(state, meant(events, today));
    }),
    { numRuns: inLongRun(40, 120), examples: EXAMPLES.map((example) => [example]) },
  );
  t.same(seen, new Set(['active', 'past_due', 'suspended', 'inactive', 'pending']), 'the property saw every state');
});

/** The same event without the tenant's id: the customer alone identifies the tenant. */
function nameless({ subscription }: Payer, event: Json): Json {
  const copy = structuredClone(event) as { data: { object: Record<string, unknown> } };
  copy.data.object['parent'] = { subscription_details: { subscription } };
  return copy;
}

t.test('BILL-08 BILL-09: events of an unknown customer take effect once its tenant is known', async (t) => {
  const made = await bench(t);
  const { store, sql, tenant } = made;
  await tenant('late');
  const who = payerOf('late');
  const paid = factOf(nameless(who, invoiceIs('paid', who, T0)));
  const failed = factOf(nameless(who, invoiceIs('payment_failed', who, T0 + DAY_MS)));
  if (paid === undefined || failed === undefined) throw new Error('no facts');
  const now = T0 + 2 * DAY_MS;
  t.same(await store.apply(failed, GRACE, now), { verdict: 'unknown', tenantId: null });
  t.same(await store.apply(paid, GRACE, now), { verdict: 'unknown', tenantId: null });
  t.same(await store.apply(paid, GRACE, now), { verdict: 'repeated', tenantId: null });
  const [named] = [factOf(checkoutDone(who, T0))];
  if (named === undefined) throw new Error('no fact');
  t.same(await store.apply(named, GRACE, now), { verdict: 'changed', tenantId: 'late' });
  const [row] = await sql(`SELECT state, billing_since AS since FROM tenants WHERE id = 'late'`);
  t.same(row, { state: 'past_due', since: T0 + DAY_MS }, 'the failure that arrived first counts');
  // From now on the customer identifies the tenant.
  const again = factOf(nameless(who, invoiceIs('paid', who, T0 + 2 * DAY_MS)));
  if (again === undefined) throw new Error('no fact');
  t.same(await store.apply(again, GRACE, now), { verdict: 'changed', tenantId: 'late' });
});

t.test('BILL-08 BILL-18: a tenant is kept whose payment came before the event that names it', async (t) => {
  const { store, sql, tenant } = await bench(t);
  await tenant('early');
  const who = payerOf('early');
  for (const event of [
    nameless(who, invoiceIs('paid', who, T0)),
    checkoutDone(who, T0, { payment_status: 'unpaid' }),
  ]) {
    const fact = factOf(event);
    if (fact === undefined) throw new Error('no fact');
    await store.apply(fact, GRACE, T0);
  }
  t.same(await sql("SELECT state FROM tenants WHERE id = 'early'"), [{ state: 'active' }]);
  t.same(await sql('SELECT free_unclaimed(10, 100, 10) AS freed'), [{ freed: 0 }]);
});

t.test('BILL-08 BILL-09: an event may arrive at the same moment as the checkout that names its tenant', async (t) => {
  const made = await bench(t);
  const { sql, tenant } = made;
  const ids = Array.from({ length: 40 }, (_, n) => `pair-${n}`);
  for (const id of ids) await tenant(id);
  const events = ids.map((id, n) => {
    const who = payerOf(id);
    const both = [checkoutDone(who, T0), nameless(who, invoiceIs('payment_failed', who, T0 + DAY_MS))];
    return n % 2 === 0 ? both : both.toReversed();
  });
  await Promise.all(events.map(async (both) => applyAll(made, both, T0 + 2 * DAY_MS, true)));
  const states = await sql('SELECT state, count(*)::integer AS n FROM tenants GROUP BY state');
  t.same(states, [{ state: 'past_due', n: ids.length }]);
});

t.test('BILL-16: one tenant’s events change no other tenant', async (t) => {
  const made = await bench(t);
  const { sql, tenant } = made;
  for (const id of ['one', 'two']) {
    await tenant(id);
    await applyAll(made, [checkoutDone(payerOf(id), T0)], T0);
  }
  const two = await sql(`SELECT * FROM tenants WHERE id = 'two'`);
  const [one] = [payerOf('one')];
  await applyAll(
    made,
    [invoiceIs('payment_failed', one, T0 + DAY_MS), subscriptionIs('deleted', 'canceled', one, T0 + 2 * DAY_MS)],
    T0 + 3 * DAY_MS,
  );
  t.same(await sql(`SELECT state FROM tenants WHERE id = 'one'`), [{ state: 'inactive' }]);
  t.same(await sql(`SELECT * FROM tenants WHERE id = 'two'`), two);
});

t.test('BILL-18: ids of events are kept for 30 days', async (t) => {
  const made = await bench(t);
  const { store, pool, tenant } = made;
  await tenant('kept');
  await applyAll(made, [checkoutDone(payerOf('kept'), T0), invoiceIs('paid', payerOf('nobody'), T0)], T0);
  // By the job itself, whose own number of days this is.
  let now = T0;
  const job = nightlyJobs({ pool, now: () => now, softDeleteMs: 0 }).find(({ name }) => name === 'clear old webhooks');
  const clear = async (at: number): Promise<number | undefined> => {
    now = at;
    return job?.batch(new AbortController().signal);
  };
  t.equal(await clear(T0 + 30 * DAY_MS), 0);
  t.equal(await clear(T0 + 30 * DAY_MS + 1), 3, 'two ids, and the fact about an unknown customer');
  t.equal((await store.account('kept'))?.subscription, 'running');
});

t.test('BILL-11: grace and suspension end at the exact millisecond, once for three sweeps', async (t) => {
  const made = await bench(t);
  const { store, sql, tenant } = made;
  await tenant('late');
  const who = payerOf('late');
  const failedAt = T0 + DAY_MS;
  await applyAll(made, [checkoutDone(who, T0), invoiceIs('payment_failed', who, failedAt)], failedAt);
  await applyAll(made, [invoiceIs('payment_failed', who, failedAt + 3 * DAY_MS)], failedAt + 3 * DAY_MS);
  const state = async (): Promise<unknown> => (await sql(`SELECT state FROM tenants WHERE id = 'late'`))[0]?.['state'];
  const sweep = async (now: number): Promise<number> =>
    (await Promise.all([1, 2, 3].map(async () => store.sweep(GRACE, 100, now)))).flat().length;
  for (const [after, becomes] of [
    [GRACE, 'suspended'],
    [GRACE + 30 * DAY_MS, 'inactive'],
  ] as const) {
    const before = await state();
    t.equal(await sweep(failedAt + after - 1), 0);
    t.equal(await state(), before, 'the state stays until its time, counted from the first failure');
    t.equal(await sweep(failedAt + after), 1, 'one of three concurrent sweeps changes the state');
    t.equal(await state(), becomes);
    t.equal(await sweep(failedAt + after), 0);
  }
});
