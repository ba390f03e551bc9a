/** Hostile input to what only a hosted service has: signup, its form, tls-check, the page after checkout, webhooks. */
import t from 'tap';
import { billed, tenantOf } from './support/hosted.js';
import { all, BODIES, pathsOf, textWith, VALUES } from './support/hostile.js';
import * as stripe from './support/stripe.js';
import { SHAPES } from './support/wire.js';

/** Texts as they stand in a query or a form. */
const TEXTS: readonly string[] = [
  '%00',
  'a%00b',
  '%ed%a0%80',
  '%ff%fe',
  '%',
  '%zz',
  '%c3',
  '%0d%0a',
  '%e2%80%ae',
  'x'.repeat(5_000),
];

t.test('HTTP-13 HTTP-14 ERR-01 HOST-05: no unauthenticated input to a hosted service is a 5xx', async (t) => {
  const server = await billed(t);
  const { apex } = server;
  const faults: string[] = [];
  let sent = 0;
  const judge = (what: string, status: number): void => {
    sent++;
    if (status < 400 || status >= 500) faults.push(`${what}: ${status}`);
  };
  const jobs: (() => Promise<void>)[] = [];
  const good = { email: 'me@example.com', subdomain: 'hostile' };
  for (const [name, json] of [
    ...Object.entries(VALUES),
    ['a NUL in an address', '"a\\u0000b@example.com"'],
    ['a surrogate in an address', '"a\\ud800b@example.com"'],
    ['an escape in an address', '"a\\u001bb@example.com"'],
    ['a direction in an address', '"a\\u202eb@example.com"'],
  ] as const) {
    for (const shape of SHAPES) {
      for (const at of ['email', 'subdomain']) {
        jobs.push(async () => {
          const reply = await apex.ask('POST', '/signup', { shape, body: textWith(good, [at], json) });
          judge(`signup ${shape} ${at} ${name}`, reply.status);
        });
      }
    }
  }
  for (const [name, body] of Object.entries(BODIES))
    jobs.push(async () => judge(`signup ${name}`, (await apex.ask('POST', '/signup', { body })).status));
  const form = { 'content-type': 'application/x-www-form-urlencoded' };
  for (const text of TEXTS) {
    for (const body of [
      `email=${text}&subdomain=hostile`,
      `email=${text}@example.com&subdomain=hostile`,
      `email=me@example.com&subdomain=${text}`,
      text,
    ])
      jobs.push(async () =>
        judge(`form ${body.slice(0, 60)}`, (await apex.ask('POST', '//signup', { headers: form, body })).status),
      );
    jobs.push(async () =>
      judge(
        `pay ${text.slice(0, 9)}`,
        (await apex.ask('POST', '//signup/pay', { headers: form, body: `return=${text}` })).status,
      ),
    );
    for (const path of [`/tls-check?domain=${text}`, `//signup/done?return=${text}`])
      jobs.push(async () => judge(path.slice(0, 60), (await apex.get(path)).status));
  }
  await all(jobs);
  t.same(faults, []);
  t.ok(sent > 200, `${sent} requests`);
  t.same(await server.sql('SELECT slug FROM tenants'), []);
  t.same(
    server.logs.filter((line) => Number(line['level']) >= 50),
    [],
  );
});

t.test('BILL-20: a signed webhook with an invalid id is 400, and no hostile text in one is a 5xx', async (t) => {
  const server = await billed(t);
  const anna = await tenantOf(server, 'anna');
  const faults: string[] = [];
  const outcomes = new Map<string, number>();
  const events = [
    stripe.checkoutDone(anna.payer, Date.now()),
    stripe.invoiceIs('paid', anna.payer, Date.now()),
    stripe.subscriptionIs('updated', 'active', anna.payer, Date.now()),
  ];
  const values = Object.entries(VALUES).filter(([name]) =>
    /NUL|surrogate|control|not a character|right to left|deep|combining/.test(name),
  );
  const jobs = events.flatMap((event) =>
    pathsOf(event).flatMap((path) =>
      values.map(([name, json]) => async () => {
        const body = textWith(event, path, json);
        const reply = await server.apex.ask('POST', '/billing/webhook', {
          body,
          headers: { 'stripe-signature': stripe.signed(body) },
        });
        outcomes.set(reply.outcome, (outcomes.get(reply.outcome) ?? 0) + 1);
        if (!['200', '400 webhook_invalid'].includes(reply.outcome))
          faults.push(`${path.join('.')} ${name}: ${reply.outcome}`);
        if (path.join() === 'id' && json.startsWith('"') && reply.status === 200) faults.push(`id ${name} was taken`);
      }),
    ),
  );
  await all(jobs, 8);
  t.same(faults, []);
  t.ok((outcomes.get('400 webhook_invalid') ?? 0) > 0);
  t.same(
    server.logs.filter((line) => Number(line['level']) >= 50),
    [],
  );
});
