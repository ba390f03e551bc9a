/** Webhooks on running servers, and what tenants are served in each state. */
import t from 'tap';
import { ConfigError, readConfig } from '../src/server/config/config.js';
import { admin } from './support/admin.js';
import { TestClock } from './support/clock.js';
import { claim, mustWrite, newItem, write } from './support/devices.js';
import { untilIs } from './support/events.js';
import { BASE, billed, mustDeliver, signUp, stateOf, tenantOf, type BilledTenant } from './support/hosted.js';
import { databaseDown, runServer, type Running } from './support/server.js';
import * as stripe from './support/stripe.js';

const DAY_MS = 86_400_000;
const SWEEP_MS = 30_000;
/** Tokens must outlive the months by which these tests advance the clock. */
const LONG = { TOKEN_TTL_DAYS: '3650' };

const writing =
  ({ wire, device }: BilledTenant) =>
  async (): Promise<string> =>
    (await write(wire, device, newItem([device.id]))).outcome;

t.test('BILL-02: billing needs multi mode, a key, a webhook secret and a price, and names each missing one', (t) => {
  const multi = { TENANT_MODE: 'multi', BASE_DOMAIN: BASE, PAYMENT_BILLING_ENABLED: 'true' };
  const namesOf = (env: NodeJS.ProcessEnv): readonly string[] => {
    try {
      readConfig(env);
      return [];
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      t.notMatch(error.message, /hunter2/);
      return error.problems.map(({ name }) => name);
    }
  };
  const all = {
    PAYMENT_SECRET_KEY: 'sk_hunter2',
    PAYMENT_WEBHOOK_SECRET: 'whsec_hunter2',
    PAYMENT_PRICE_ID: 'price_1',
  };
  t.same(namesOf({ ...multi, ...all }), []);
  t.same(namesOf(multi), Object.keys(all));
  t.same(namesOf({ ...all, PAYMENT_BILLING_ENABLED: 'true' }), ['PAYMENT_BILLING_ENABLED']);
  t.same(namesOf({ ...multi, ...all, PAYMENT_SECRET_KEY: 'sk hunter2 x' }), ['PAYMENT_SECRET_KEY']);
  for (const [name, value] of [
    ['PAYMENT_BILLING_ENABLED', 'yes'],
    ['PAYMENT_PRICE_ID', 'a price'],
    ['PAYMENT_GRACE_DAYS', '-1'],
    ['PAYMENT_API_BASE', 'stripe'],
    ['PAYMENT_API_BASE', 'http://127.0.0.1/v1'],
  ] as const)
    t.same(namesOf({ ...multi, ...all, [name]: value }), [name], `${name}=${value}`);
  t.same(namesOf({ PAYMENT_BILLING_ENABLED: 'false' }), [], 'with billing off nothing is required');
  t.end();
});

t.test('BILL-01: without billing its endpoints are 404, and a signup is active at once', async (t) => {
  const single = await runServer(t);
  const multi = await runServer(t, { env: { TENANT_MODE: 'multi', BASE_DOMAIN: BASE } });
  for (const { wire } of [single, multi]) {
    t.equal((await wire.get('/billing/portal')).outcome, '404 not_found');
    t.equal(
      (await stripe.deliver(wire, stripe.checkoutDone(stripe.payerOf('x'), Date.now()))).outcome,
      '404 not_found',
    );
    t.equal((await wire.get('//signup/done?return=x')).outcome, '404 not_found');
  }
  const headers = { host: BASE };
  const reply = await multi.wire.post('/signup', { email: 'me@example.com', subdomain: 'anna' }, { headers });
  t.same(Object.keys(reply.body as object).sort(), ['claimToken', 'slug', 'url']);
  t.equal((await multi.sql('SELECT state FROM tenants'))[0]?.['state'], 'active');
});

t.test('BILL-07 BILL-09 BILL-20: a forged, stale, altered or malformed webhook is refused', async (t) => {
  const server = await billed(t);
  const anna = await tenantOf(server, 'anna');
  const { apex } = server;
  const event = stripe.checkoutDone(anna.payer, Date.now());
  const payload = JSON.stringify(event);
  const good = stripe.signed(payload);
  const send = async (body: string | Buffer, signature?: string): Promise<string> =>
    (
      await apex.ask('POST', '/billing/webhook', {
        body,
        ...(signature === undefined ? {} : { headers: { 'stripe-signature': signature } }),
      })
    ).outcome;
  const other = JSON.stringify({ ...event, id: 'evt_other' });
  const stale = Date.now() - 301_000;
  const refused: readonly (readonly [string, string | Buffer, string | undefined])[] = [
    ['unsigned', payload, undefined],
    ['an empty signature', payload, ''],
    ['nonsense', payload, 't=1,v1=00'],
    ['half a header', payload, good.split(',')[0]],
    ['another secret', payload, stripe.signed(payload, { secret: 'whsec_another' })],
    ['stale', payload, stripe.signed(payload, { at: stale })],
    ['from a time to come', payload, stripe.signed(payload, { at: Date.now() + 302_000 })],
    ['of the year 33658', payload, stripe.signed(payload, { at: 1e15 })],
    ['two times', payload, `t=${Math.floor(stale / 1_000)},${good}`],
    ['a time with a space', payload, good.split(',').reverse().join(', ')],
    ['a time that is no number', payload, good.replace(/t=\d+/, 't=1e9')],
    ['no time', payload, good.replace(/t=\d+,/, '')],
    [
      'a fresh time before an old signature',
      payload,
      stripe.signed(payload, { at: stale }).replace(/t=\d+/, `t=${Math.floor(Date.now() / 1_000)}`),
    ],
    ['altered', payload.replace('"paid"', '"paid "'), good],
    ["another event's signature", other, good],
    ['spelled anew', JSON.stringify(event, null, 1), good],
    ['no JSON', 'not json', stripe.signed('not json')],
    ['nothing', '', stripe.signed('')],
    ['bytes', Buffer.from([0xff, 0xfe, 0x00]), good],
  ];
  for (const [what, body, signature] of refused) t.equal(await send(body, signature), '400 webhook_invalid', what);
  const huge = JSON.stringify({ ...event, pad: 'x'.repeat(1024 * 1024) });
  t.equal(await send(huge, stripe.signed(huge)), '413 payload_too_large');
  t.equal(await stateOf(server, anna.id), 'pending', 'the tenant is still pending');
  const large = JSON.stringify(stripe.eventOf('customer.created', Date.now(), { pad: 'x'.repeat(1024 * 1024 - 400) }));
  t.ok(large.length > 1024 * 1024 - 300);
  t.equal(await send(large, stripe.signed(large)), '200', 'another kind of event, of the largest size');
  const ahead = stripe.signed(large, { at: Date.now() + 290_000 });
  t.equal(await send(large, ahead), '200', 'less than five minutes ahead');
  const stranger = stripe.invoiceIs('paid', stripe.payerOf('stranger'), Date.now());
  t.equal((await stripe.deliver(apex, stranger)).raw, '{"received":true}');
  t.equal(server.logs.filter((line) => line['eventId'] === stranger['id']).length, 1, 'the event is logged once');
  for (const odd of ['null', '7', '"x"', '[]', '{}', '{"id":"evt_odd","type":"invoice.paid","data":{"object":[]}}'])
    t.match(await send(odd, stripe.signed(odd)), /^(200|400 webhook_invalid)$/, odd);
  t.equal(await stateOf(server, anna.id), 'pending');
  t.equal(await send(payload, good), '200');
  t.equal(await stateOf(server, anna.id), 'active');
  const logged = JSON.stringify(server.logs);
  for (const secret of [stripe.SECRET_KEY, stripe.WEBHOOK_SECRET, good]) t.notOk(logged.includes(secret));
  t.match((await apex.get('/billing/webhook')).outcome, '405 method_not_allowed');
});

t.test('BILL-10: while the database is down a webhook is 503; sent again, it is applied', async (t) => {
  const server = await billed(t);
  const anna = await tenantOf(server, 'anna');
  const event = stripe.checkoutDone(anna.payer, Date.now());
  const up = await databaseDown(server.databaseUrl);
  const refusal = await stripe.deliver(server.apex, event);
  t.equal(refusal.outcome, '503 unavailable');
  t.ok(Number(refusal.headers['retry-after']) >= 1);
  await up();
  await untilIs(async () => (await stripe.deliver(server.apex, event)).outcome, '200');
  t.equal(await stateOf(server, anna.id), 'active');
});

t.test('BILL-08 BILL-13: an event is applied once on two instances; a payment restores both', async (t) => {
  const one = await billed(t);
  const two = await billed(t, { stripe: one.stripe, database: { url: one.databaseUrl } });
  const now = Date.now();
  const anna = await tenantOf(one, 'anna', now - 9 * DAY_MS);
  const there = { ...anna, wire: two.at('anna') };
  await untilIs(writing(anna), '200');
  await untilIs(writing(there), '200');
  const socket = await there.wire.connect({ token: anna.device.token });
  await socket.hello(0, { acks: true });
  const failed = stripe.invoiceIs('payment_failed', anna.payer, now - 8 * DAY_MS);
  const replies = await Promise.all(
    Array.from({ length: 20 }, async (_, n) => stripe.deliver(n % 2 === 0 ? one.apex : two.apex, failed)),
  );
  t.same(new Set(replies.map((reply) => reply.outcome)), new Set(['200']));
  for (const tenant of [anna, there]) await untilIs(writing(tenant), '403 tenant_suspended');
  const applied = await one.sql('SELECT count(*) AS n FROM webhook_events WHERE id = $1', [failed['id']]);
  t.equal(applied[0]?.['n'], 1);
  await mustDeliver(two.apex, stripe.invoiceIs('paid', anna.payer, now - 1_000));
  for (const tenant of [anna, there]) await untilIs(writing(tenant), '200');
  await mustDeliver(one.apex, { ...failed, id: 'evt_late' });
  t.equal(await stateOf(one, anna.id), 'active', 'an event older than the payment changes nothing');
  t.equal((await socket.next('ack'))['type'], 'ack', 'the socket stays open all the time');
});

t.test('BILL-11 BILL-14: without payment a tenant is past_due, suspended, inactive, until it pays', async (t) => {
  const clock = new TestClock();
  const server = await billed(t, { clock, env: LONG });
  const anna = await tenantOf(server, 'anna', clock.now());
  const { wire, device, payer } = anna;
  const as = { token: device.token };
  await untilIs(writing(anna), '200');
  const tick = async (wanted: string): Promise<void> =>
    untilIs(async () => {
      clock.advance(SWEEP_MS);
      return stateOf(server, anna.id);
    }, wanted);
  await mustDeliver(server.apex, stripe.invoiceIs('payment_failed', payer, clock.now() + 1_000), clock.now());
  t.equal(await stateOf(server, anna.id), 'past_due');
  clock.advance(6 * DAY_MS);
  await mustDeliver(server.apex, stripe.subscriptionIs('updated', 'past_due', payer, clock.now()), clock.now());
  t.equal(await writing(anna)(), '200', 'a tenant in its grace period has full service');
  clock.advance(DAY_MS);
  await tick('suspended');
  await untilIs(writing(anna), '403 tenant_suspended');
  t.equal((await wire.get('/items?since=0', as)).status, 200, 'a suspended tenant may read');
  clock.advance(30 * DAY_MS);
  await tick('inactive');
  await untilIs(async () => (await wire.get('/items?since=0', as)).outcome, '402 payment_required');
  for (const [method, path] of [
    ['GET', '/devices'],
    ['GET', '/bins'],
    ['POST', '/ws-ticket'],
    ['POST', '/devices/pair-init'],
    ['POST', '/items'],
  ] as const)
    t.equal(
      (await wire.ask(method, path, { ...as, ...(method === 'POST' ? { body: {} } : {}) })).outcome,
      '402 payment_required',
      path,
    );
  await t.rejects(wire.connect(as), { message: 'upgrade refused: 402 payment_required' });
  for (const path of ['/me', '/health', '/service/status', '/billing/portal'])
    t.equal((await wire.get(path, as)).status, 200, path);
  t.equal((await wire.post('/devices/reauth/challenge', { deviceId: device.id })).status, 200);
  await mustDeliver(server.apex, stripe.invoiceIs('paid', payer, clock.now()), clock.now());
  await untilIs(writing(anna), '200');
});

t.test('BILL-14: a pending tenant can be claimed, and cannot be used until it has paid', async (t) => {
  const server = await billed(t);
  const reply = await signUp(server.apex, 'anna');
  const wire = server.at('anna');
  t.equal((await wire.get('/service/status')).at('claimed'), false);
  const device = await claim(wire, { claimToken: reply.text('claimToken') });
  const as = { token: device.token };
  t.equal((await wire.get('/me', as)).status, 200);
  t.equal((await wire.get('/items?since=0', as)).outcome, '402 payment_required');
  t.equal((await write(wire, device, newItem([device.id]))).outcome, '402 payment_required');
  t.equal((await wire.post('/ws-ticket', {}, as)).outcome, '402 payment_required');
  await t.rejects(wire.connect(as), { message: 'upgrade refused: 402 payment_required' });
  const id = (await wire.get('/service/status')).text('tenantId');
  await mustDeliver(server.apex, stripe.checkoutDone(stripe.payerOf(id), Date.now()));
  t.equal(await mustWrite(wire, device, newItem([device.id])), 1);
});

t.test('BILL-12 BILL-14: a cancelled tenant is inactive despite late events, until it subscribes again', async (t) => {
  const server = await billed(t);
  const now = Date.now();
  const anna = await tenantOf(server, 'anna', now - 5 * DAY_MS);
  const { payer } = anna;
  await untilIs(writing(anna), '200');
  const socket = await anna.wire.connect({ token: anna.device.token });
  await socket.hello();
  await mustDeliver(server.apex, stripe.subscriptionIs('deleted', 'canceled', payer, now - 2 * DAY_MS));
  t.match(await socket.closed, { code: 1012, reason: 'payment required' }, 'an open socket is closed, with the reason');
  await untilIs(writing(anna), '402 payment_required');
  await mustDeliver(server.apex, stripe.subscriptionIs('updated', 'active', payer, now - DAY_MS));
  await mustDeliver(server.apex, stripe.invoiceIs('paid', payer, now));
  t.equal(await stateOf(server, anna.id), 'inactive');
  const next = { ...payer, subscription: `${payer.subscription}_next` };
  await mustDeliver(server.apex, stripe.checkoutDone(next, now - 3 * DAY_MS));
  await untilIs(writing(anna), '200');
  await mustDeliver(server.apex, stripe.subscriptionIs('deleted', 'canceled', payer, now));
  t.equal(await stateOf(server, anna.id), 'active', 'the end of the old subscription does not end the new one');
});

t.test('BILL-17: a payment does not reopen a tenant that the operator closed', async (t) => {
  const server = await billed(t);
  const anna = await tenantOf(server, 'anna', Date.now() - DAY_MS);
  const byHand = async (state: string): Promise<unknown> =>
    server.sql('SELECT set_tenant_state($1, $2)', [anna.id, state]);
  const paid = async (): Promise<void> => mustDeliver(server.apex, stripe.invoiceIs('paid', anna.payer, Date.now()));
  await byHand('suspended');
  await paid();
  t.equal(await stateOf(server, anna.id), 'suspended');
  await mustDeliver(server.apex, stripe.invoiceIs('payment_failed', anna.payer, Date.now() + 2_000));
  t.equal(await stateOf(server, anna.id), 'suspended', 'nor does a state better than suspended reopen it');
  await byHand('active');
  t.equal(await stateOf(server, anna.id), 'active');
  await mustDeliver(server.apex, stripe.subscriptionIs('deleted', 'canceled', anna.payer, Date.now()));
  t.equal(await stateOf(server, anna.id), 'inactive', 'once the operator opened it, the tenant follows billing again');
});

t.test('BILL-17 OPER-04: a payment does not reopen a tenant whose deletion was cut short', async (t) => {
  const server = await billed(t);
  const anna = await tenantOf(server, 'anna', Date.now() - DAY_MS);
  await mustWrite(anna.wire, anna.device, newItem([anna.device.id]));
  await server.sql(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'cut short'; END $$`);
  await server.sql('CREATE TRIGGER fail BEFORE DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION fail()');
  const operator = await admin(t, { DATABASE_URL: server.databaseUrl });
  const remove = async (): Promise<number | null> =>
    (await operator.plain('tenants', 'delete', 'anna', '--confirm', 'anna')).code;
  t.not(await remove(), 0);
  t.strictSame(await server.sql('SELECT count(*) AS n FROM items'), [{ n: 0 }], 'its items are gone already');
  await mustDeliver(server.apex, stripe.invoiceIs('paid', anna.payer, Date.now()));
  t.equal(await stateOf(server, anna.id), 'inactive');
  await server.sql('DROP TRIGGER fail ON tenants');
  t.equal(await remove(), 0);
  t.strictSame(await server.sql('SELECT FROM tenants'), []);
});

const freeing = async (server: Running, now: number): Promise<unknown> =>
  (await server.sql('SELECT free_unclaimed($1, 100, $2) AS n', [now - DAY_MS, now]))[0]?.['n'];

t.test('BILL-18: pending tenants that nobody pays for are freed after 24 hours', async (t) => {
  const server = await billed(t);
  const paid = (await signUp(server.apex, 'paid')).text('claimToken');
  const id = (await server.at('paid').get('/service/status')).text('tenantId');
  await mustDeliver(server.apex, stripe.checkoutDone(stripe.payerOf(id), Date.now()));
  await tenantOf(server, 'claimed-only');
  await signUp(server.apex, 'neither');
  const [row] = await server.sql('SELECT max(created_at) AS at FROM tenants');
  const born = Number(row?.['at']);
  t.equal(await freeing(server, born + DAY_MS - 60_000), 0);
  t.equal(await freeing(server, born + DAY_MS + 1), 2);
  t.same(await server.sql('SELECT slug FROM tenants'), [{ slug: 'paid' }]);
  t.ok(await claim(server.at('paid'), { claimToken: paid }), 'a tenant that has paid may be claimed later');
});
