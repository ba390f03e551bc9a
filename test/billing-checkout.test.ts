/** Paying: signup, the page after checkout, the portal, and a provider that does not work. */
import t from 'tap';
import { StripePayments } from '../src/server/billing/stripe.js';
import { ServiceError } from '../src/protocol/errors.js';
import { TestClock } from './support/clock.js';
import { claim } from './support/devices.js';
import { SOON_MS } from './support/events.js';
import { BASE, billed, mustDeliver, signUp, stateOf, tenantOf, type Billed } from './support/hosted.js';
import * as stripe from './support/stripe.js';
import type { Reply } from './support/wire.js';

const DAY_MS = 86_400_000;
const FORM = { 'content-type': 'application/x-www-form-urlencoded' };

/** The path to which the last checkout returns. */
function returnOf(server: Billed): string {
  const page = server.stripe.checkouts.at(-1)?.form['success_url'] ?? '';
  if (!page.startsWith(`https://${BASE}/signup/done?return=`)) throw new Error(`not our page: ${page}`);
  return `/${page.slice(`https://${BASE}`.length)}`;
}

const idOf = async (server: Billed, slug: string): Promise<string> =>
  (await server.at(slug).get('/service/status')).text('tenantId');

t.test('BILL-03: a signup with billing is pending and answers the URL of a checkout', async (t) => {
  const server = await billed(t);
  const reply = await signUp(server.apex, 'anna');
  t.equal(reply.status, 200);
  t.same(Object.keys(reply.body as object).sort(), ['checkoutUrl', 'claimToken', 'slug', 'url']);
  t.match(reply.at('checkoutUrl'), /^https:\/\/checkout\.stripe\.test\/c\/cs_test_1$/);
  const id = await idOf(server, 'anna');
  t.equal(await stateOf(server, id), 'pending');
  const [call, ...more] = server.stripe.checkouts;
  t.same(more, []);
  t.match(call, {
    key: `checkout-${id}`,
    form: {
      mode: 'subscription',
      'line_items[0][price]': stripe.PRICE,
      'line_items[0][quantity]': '1',
      client_reference_id: id,
      'metadata[tenant_id]': id,
      customer_email: 'anna@example.com',
      'subscription_data[metadata][tenant_id]': id,
    },
  });
  const token = reply.text('claimToken');
  t.notOk(JSON.stringify(server.stripe.calls).includes(token), 'the provider gets no claim token');
  const returnToken = returnOf(server).split('=')[1] ?? '';
  const rows = JSON.stringify(await server.sql('SELECT * FROM tenants'));
  for (const secret of [token, returnToken]) {
    t.ok(secret.length === 43);
    t.notOk(rows.includes(secret));
    t.notOk(rows.includes(Buffer.from(secret).toString('hex')));
    t.notOk(JSON.stringify(server.logs).includes(secret));
  }
  const b = await server.apex.post(
    '/signup',
    { email: 'b@example.com', subdomain: 'berta' },
    { shape: 'b', headers: { 'x-forwarded-for': '198.51.100.1' } },
  );
  t.ok(b.text('checkout_url'));
});

t.test('BILL-05: after the payment the page shows the claim link to its holder, for seven days', async (t) => {
  const clock = new TestClock();
  const server = await billed(t, { clock });
  const { apex } = server;
  const form = { headers: { ...FORM, 'x-forwarded-for': '192.0.2.77' } };
  const sent = await apex.ask('POST', '//signup', { ...form, body: 'email=anna%40example.com&subdomain=anna' });
  t.equal(sent.status, 200);
  t.match(sent.raw, /<a href="https:\/\/checkout\.stripe\.test\/c\/cs_test_1">/);
  t.notMatch(sent.raw, /claim=/, 'no claim link is shown before the payment');
  const path = returnOf(server);
  const page = async (target = path): Promise<Reply> => apex.get(target);
  const waiting = await page();
  t.match(waiting.raw, /Waiting for the payment/);
  t.notMatch(waiting.raw, /claim=/);
  t.equal(waiting.headers['cache-control'], 'no-store');
  t.match(waiting.raw, /<meta name="referrer" content="no-referrer">/);
  const payer = stripe.payerOf(await idOf(server, 'anna'));
  await mustDeliver(apex, stripe.checkoutDone(payer, clock.now()), clock.now());
  const shown = /https:\/\/anna\.sync\.test\/#claim=([A-Za-z0-9_-]{43})</.exec((await page()).raw)?.[1] ?? '';
  t.equal(shown.length, 43);
  const again = await page();
  t.match(again.raw, shown, 'the link is shown each time the page is loaded');
  t.notMatch(again.raw, /24 hours|shown once/, 'a tenant that is paid for is kept');
  const returnToken = path.split('=')[1] ?? '';
  t.not(shown, returnToken);
  for (const wrong of [returnToken.slice(1), `${returnToken}x`, 'x'.repeat(43), '%00', shown]) {
    const reply = await page(`//signup/done?return=${wrong}`);
    t.equal(reply.status, 404, wrong);
    t.notMatch(reply.raw, /claim=/);
  }
  t.equal((await page('//signup/done?return=')).outcome, '400 validation');
  t.match((await page('//signup/done')).raw, /Thank you/);
  t.equal((await server.at('anna').get(path)).outcome, '404 tenant_not_found', 'the page exists at the apex only');
  clock.advance(7 * DAY_MS - 3_600_000);
  t.match((await page()).raw, shown);
  clock.advance(3_600_001);
  t.equal((await page()).status, 404, 'after seven days the page is gone');
  await claim(server.at('anna'), { claimToken: shown });
});

t.test('BILL-05: no link is shown once the tenant is claimed or another claim token is issued', async (t) => {
  const server = await billed(t);
  const token = (await signUp(server.apex, 'anna')).text('claimToken');
  const path = returnOf(server);
  const id = await idOf(server, 'anna');
  await mustDeliver(server.apex, stripe.checkoutDone(stripe.payerOf(id), Date.now()));
  t.match((await server.apex.get(path)).raw, token, 'the link has the token that the signup answered');
  await server.sql('SELECT renew_claim_token($1, $2)', [id, Buffer.alloc(32, 7)]);
  const renewed = (await server.apex.get(path)).raw;
  t.match(renewed, /Another claim link was issued/);
  t.notMatch(renewed, /claim=/);
  await server.sql(`UPDATE tenants SET claim_token_hash = sha256(convert_to($2, 'UTF8')) WHERE id = $1`, [id, token]);
  await claim(server.at('anna'), { claimToken: token });
  const claimed = (await server.apex.get(path)).raw;
  t.match(claimed, /is claimed/);
  t.notMatch(claimed, /claim=/);
});

t.test('BILL-06: a customer who left the checkout returns to it, or to one new one once it expired', async (t) => {
  const clock = new TestClock();
  const server = await billed(t, { clock });
  const { apex } = server;
  const { sessions } = server.stripe;
  const born = clock.now();
  await signUp(apex, 'anna');
  const path = returnOf(server);
  t.equal((await signUp(apex, 'anna')).outcome, '409 conflict', 'the same mail address proves nothing');
  const body = `return=${path.split('=')[1] ?? ''}`;
  const pay = async (text = body): Promise<Reply> => apex.ask('POST', '//signup/pay', { headers: FORM, body: text });
  t.match((await pay()).raw, /c\/cs_test_1"/);
  t.equal(server.stripe.checkouts.length, 1, 'the same checkout is answered');
  const first = sessions.get('cs_test_1');
  if (first === undefined) throw new Error('no session');
  Object.assign(first, { status: 'expired', url: null });
  const both = await Promise.all([pay(), pay()]);
  for (const reply of both) t.match(reply.raw, /c\/cs_test_2"/);
  t.equal(sessions.size, 2, 'two calls at once get one new checkout');
  Object.assign(sessions.get('cs_test_2') ?? {}, { status: 'complete', url: null });
  t.equal((await pay()).outcome, '409 conflict', 'a completed checkout that is not confirmed yet is a conflict');
  t.equal((await pay('return=nonsense')).outcome, '404 not_found');
  t.equal((await pay('')).outcome, '400 validation');
  Object.assign(sessions.get('cs_test_2') ?? {}, { status: 'expired', url: null });
  clock.advance(DAY_MS - 2 * 3_600_000);
  t.match((await pay()).raw, /c\/cs_test_3"/);
  for (const { form } of server.stripe.checkouts)
    t.ok(Number(form['expires_at']) * 1_000 <= born + DAY_MS - 3_600_000, 'a checkout ends an hour before its tenant');
  Object.assign(sessions.get('cs_test_3') ?? {}, { status: 'expired', url: null });
  clock.advance(1_800_000);
  t.equal((await pay()).outcome, '404 not_found', 'a checkout must not outlive its tenant');
  const payer = stripe.payerOf(await idOf(server, 'anna'));
  await mustDeliver(apex, stripe.checkoutDone(payer, clock.now()), clock.now());
  t.equal((await pay()).outcome, '404 not_found', 'a tenant that has paid gets no checkout');
});

t.test('BILL-04: while the provider fails a signup is 503 or 500, and the name is free again', async (t) => {
  const server = await billed(t);
  const { apex } = server;
  const names = async (): Promise<unknown> => (await server.sql('SELECT count(*) AS n FROM tenants'))[0]?.['n'];
  for (const [status, outcome] of [
    [500, '503 unavailable'],
    [503, '503 unavailable'],
    [429, '503 unavailable'],
    [400, '500 internal'],
    [401, '500 internal'],
    [403, '500 internal'],
  ] as const) {
    server.stripe.failWith = status;
    const reply = await signUp(apex, 'anna');
    t.equal(reply.outcome, outcome, String(status));
    if (outcome.startsWith('503')) t.ok(Number(reply.headers['retry-after']) >= 1);
    t.equal(await names(), 0, 'the name is free');
    t.equal((await server.wire.get('/tls-check?domain=anna.sync.test')).outcome, '404 tenant_not_found');
  }
  server.stripe.failWith = 0;
  t.equal((await signUp(apex, 'anna')).status, 200);
  await server.stripe.stop();
  t.equal((await signUp(apex, 'berta')).outcome, '503 unavailable', 'an unreachable provider is unavailable');
  t.equal(await names(), 1);
  const logged = JSON.stringify(server.logs);
  t.match(logged, /the payment provider: \S+/, 'the cause is in the log');
  for (const secret of [stripe.SECRET_KEY, stripe.SECRET_KEY.slice(8), stripe.WEBHOOK_SECRET, 'anna@example.com'])
    t.notOk(logged.includes(secret), secret);
});

t.test('BILL-04: a slow provider is unavailable, a wrong key is internal, and no error has the key', async (t) => {
  const standIn = await stripe.StripeStandIn.start(t);
  const options = {
    ...{ secretKey: stripe.SECRET_KEY, webhookSecret: stripe.WEBHOOK_SECRET, priceId: stripe.PRICE },
    ...{ apiBase: standIn.url, timeoutMs: 100 },
  };
  const errorOf = async (call: Promise<unknown>): Promise<ServiceError> => {
    const error: unknown = await call.then(
      () => new Error('it worked'),
      (refusal: unknown) => refusal,
    );
    if (!(error instanceof ServiceError)) throw error;
    t.notMatch(`${error.message} ${String(error.cause)} ${JSON.stringify(error)}`, /sk_/);
    return error;
  };
  standIn.failWith = -1;
  t.equal((await errorOf(new StripePayments(options).portal('cus_1', 'https://x'))).error, 'unavailable');
  standIn.failWith = 0;
  const wrong = new StripePayments({ ...options, timeoutMs: SOON_MS, secretKey: 'sk_wrong_key' });
  t.equal((await errorOf(wrong.portal('cus_1', 'https://x'))).error, 'internal');
  const right = new StripePayments({ ...options, timeoutMs: SOON_MS });
  t.match(await right.portal('cus_1', 'https://x'), /^https:\/\/billing\.stripe\.test\/p\/cus_1$/);
});

t.test('BILL-16: what the buyer of another subscription writes into its checkout pays for no tenant', async (t) => {
  const server = await billed(t);
  await signUp(server.apex, 'anna');
  const id = await idOf(server, 'anna');
  const other = { ...stripe.payerOf('other'), tenant: id };
  const link = { client_reference_id: id, metadata: {}, payment_link: 'plink_1' };
  await mustDeliver(server.apex, stripe.checkoutDone(other, Date.now(), link));
  t.equal(await stateOf(server, id), 'pending');
  await mustDeliver(server.apex, stripe.checkoutDone(stripe.payerOf(id), Date.now()));
  t.equal(await stateOf(server, id), 'active', 'the checkout of its signup does');
});

t.test('BILL-15: a tenant whose customer the provider has deleted pays as a new one', async (t) => {
  const server = await billed(t);
  const { wire, payer, device } = await tenantOf(server, 'anna', Date.now() - DAY_MS);
  await mustDeliver(server.apex, stripe.subscriptionIs('deleted', 'canceled', payer, Date.now()));
  Object.assign(server.stripe.sessions.get('cs_test_1') ?? {}, { status: 'complete', url: null });
  server.stripe.deleted.add(payer.customer);
  const url = async (): Promise<unknown> => (await wire.get('/billing/portal', { token: device.token })).at('url');
  t.equal(await url(), 'https://checkout.stripe.test/c/cs_test_2');
  t.match(server.stripe.checkouts.at(-1)?.form, { customer: undefined, customer_email: /@/ });
  t.equal(await url(), 'https://checkout.stripe.test/c/cs_test_2', 'and there is one such checkout');
});

t.test("BILL-15 BILL-16: the portal is the tenant's own, or a checkout, five times a minute", async (t) => {
  // A clock that stands still: on a slow machine the rate would refill.
  const server = await billed(t, { clock: new TestClock(), env: { RATE_PAIR_PER_MIN: '5' } });
  const anna = await tenantOf(server, 'anna', Date.now() - DAY_MS);
  const berta = await tenantOf(server, 'berta');
  const portal = async ({ wire }: typeof anna, token?: string): Promise<Reply> =>
    wire.get('/billing/portal', token === undefined ? {} : { token });
  t.same((await portal(anna, anna.device.token)).body, {
    url: `https://billing.stripe.test/p/${anna.payer.customer}`,
  });
  t.equal(server.stripe.calls.at(-1)?.form['return_url'], 'https://anna.sync.test');
  t.equal((await portal(anna)).outcome, '401 unauthorized');
  t.equal((await portal(berta, anna.device.token)).outcome, '401 unauthorized', 'the token of another tenant');
  t.equal(
    (await portal(berta, berta.device.token)).at('url'),
    'https://checkout.stripe.test/c/cs_test_2',
    'a pending tenant gets a checkout',
  );
  t.equal(server.stripe.checkouts.length, 2, 'it is the checkout of its signup');
  await mustDeliver(server.apex, stripe.subscriptionIs('deleted', 'canceled', anna.payer, Date.now()));
  Object.assign(server.stripe.sessions.get('cs_test_1') ?? {}, { status: 'complete', url: null });
  t.equal(
    (await portal(anna, anna.device.token)).at('url'),
    'https://checkout.stripe.test/c/cs_test_3',
    'a tenant whose subscription ended gets a new checkout',
  );
  const bought = server.stripe.checkouts.at(-1)?.form;
  t.match(bought, { customer: anna.payer.customer, client_reference_id: anna.id });
  t.equal(bought?.['customer_email'], undefined, 'the checkout is for the same customer');
  server.stripe.sessions.delete('cs_test_3');
  t.equal(
    (await portal(anna, anna.device.token)).at('url'),
    'https://checkout.stripe.test/c/cs_test_4',
    'a checkout that the provider lost is replaced',
  );
  server.stripe.failWith = 500;
  t.equal((await portal(anna, anna.device.token)).outcome, '503 unavailable');
  server.stripe.failWith = 0;
  t.equal((await portal(anna, anna.device.token)).status, 200);
  t.equal((await portal(anna, anna.device.token)).outcome, '429 rate_limited');
  t.equal((await portal(berta, berta.device.token)).status, 200, 'each device has its own rate');
});
