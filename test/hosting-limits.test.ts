/** How much an unauthenticated client may take of a hosted service: names, certificates, pages, webhooks. */
import t, { type Test } from 'tap';
import { networkOf, signupNetworkOf } from '../src/server/http/address-limits.js';
import { limitKey, parseAddress } from '../src/server/http/client-address.js';
import { TenantHosts } from '../src/server/hosting/hosts.js';
import { nightlyJobs } from '../src/server/ops/store.js';
import { ServiceError } from '../src/protocol/errors.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { BASE, billed, hosted, mustDeliver, stateOf, tenantOf, type Billed } from './support/hosted.js';
import { poolOf } from './support/postgres.js';
import type { runServer, Running } from './support/server.js';
import * as stripe from './support/stripe.js';
import type { Reply } from './support/wire.js';

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;

interface Apex extends Running {
  /** Signs up from this address. */
  readonly signUp: (address: string) => Promise<Reply>;
  /** Signs up from this address; returns the outcome. */
  readonly from: (address: string) => Promise<string>;
}

let names = 0;
async function apex(t: Test, more: Parameters<typeof runServer>[1] = {}): Promise<Apex> {
  const server = await hosted(t, more);
  const signUp = (address: string): Promise<Reply> => {
    const body = { email: 'me@example.com', subdomain: `name-${++names}` };
    return server.apex.post('/signup', body, { headers: { 'x-forwarded-for': address } });
  };
  return { ...server, signUp, from: async (address) => (await signUp(address)).outcome };
}

t.test('HOST-20: an address may sign up ten times a day', async (t) => {
  const clock = new TestClock();
  const { from } = await apex(t, { clock });
  for (let n = 0; n < 10; n++) {
    t.equal(await from('192.0.2.1'), '200');
    if (n === 4) clock.advance(HOUR_MS + 1);
  }
  clock.advance(HOUR_MS + 1);
  t.equal(await from('192.0.2.1'), '429 rate_limited', 'an eleventh signup is refused');
  t.equal(await from('192.0.2.2'), '200', 'another address may sign up');
  clock.advance(24 * HOUR_MS);
  t.equal(await from('192.0.2.1'), '200');
});

t.test('HOST-20: a network may sign up 20 times an hour and 50 times a day, on all instances together', async (t) => {
  const clock = new TestClock();
  const one = await apex(t, { clock });
  const two = await apex(t, { clock, database: { url: one.databaseUrl } });
  for (const [address, neighbour] of [
    [(n: number) => `2001:db8:7:${n.toString(16)}::1`, '2001:db9:8::1'],
    [(n: number) => `198.51.100.${n}`, '198.52.101.1'],
  ] as const) {
    for (let n = 0; n < 20; n++) t.equal(await (n % 2 === 0 ? one : two).from(address(n)), '200');
    for (const { from } of [one, two]) t.equal(await from(address(99)), '429 rate_limited');
    t.equal(await one.from(neighbour), '200');
    for (let n = 0; n < 30; n++) {
      if (n % 20 === 0) clock.advance(HOUR_MS + 1);
      t.equal(await one.from(address(100 + n)), '200');
    }
    clock.advance(HOUR_MS + 1);
    // Claimed: otherwise the bound of 50 names that wait (HOST-23) would refuse the next one, and hide a higher limit.
    await one.sql('UPDATE tenants SET claimed_at = $1', [clock.now()]);
    t.equal(await two.from(address(200)), '429 rate_limited', 'a fifty-first signup is refused');
    t.equal(await two.from(neighbour), '200');
    clock.advance(24 * HOUR_MS);
    t.equal(await two.from(address(200)), '200');
  }
});

t.test('HOST-20: a network is an IPv4 /24 or IPv6 /48, and a /16 or /32 for names that wait', (t) => {
  const network = (text: string): string => networkOf(limitKey(parseAddress(text) ?? new Uint8Array(16)));
  t.equal(network('198.51.100.200'), '198.51.100.0/24');
  t.equal(network('::ffff:198.51.100.1'), '198.51.100.0/24', 'an IPv4-mapped address counts as IPv4');
  t.equal(network('2001:db8:7:ffff::1'), network('2001:db8:7::2'));
  t.not(network('2001:db8:7::1'), network('2001:db8:8::1'));
  t.equal(networkOf('unknown'), 'unknown');
  const wide = (text: string): string => signupNetworkOf(limitKey(parseAddress(text) ?? new Uint8Array(16)));
  t.equal(wide('198.51.100.200'), '198.51.0.0/16');
  t.equal(wide('::ffff:198.51.1.1'), '198.51.0.0/16', 'an IPv4-mapped address counts as IPv4');
  t.equal(wide('2001:db8:7:ffff::1'), wide('2001:db8:ffff::2'));
  t.equal(wide('2001:db8::1'), '20010db8/32');
  t.not(wide('2001:db8::1'), wide('2001:db9::1'));
  t.equal(wide('2002:c633:6401::1'), wide('2002:c633:ffff::1'), '6to4 counts to its IPv4 network');
  t.equal(signupNetworkOf('unknown'), 'unknown');
  t.end();
});

t.test('HOST-23 HOST-18: at most 50 waiting names are of one /16 or /32, on all instances together', async (t) => {
  const clock = new TestClock();
  const one = await apex(t, { clock });
  const two = await apex(t, { clock, database: { url: one.databaseUrl } });
  // Each name comes from a /48 or /24 of its own, so that no hourly limit counts them together.
  for (const [address, elsewhere] of [
    [(n: number) => `2001:db8:${n.toString(16)}::1`, '2001:db9::1'],
    [(n: number) => `198.51.${n}.1`, '198.50.0.1'],
  ] as const) {
    const outcomes = new Map<string, number>();
    const all = await Promise.all(
      Array.from({ length: 60 }, async (_, n) => (n % 2 === 0 ? one : two).from(address(n))),
    );
    for (const outcome of all) outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
    t.same(
      [...outcomes].sort(),
      [
        ['200', 50],
        ['429 rate_limited', 10],
      ],
      'exactly 50, also of concurrent signups',
    );
    const refused = await two.signUp(address(200));
    t.equal(refused.outcome, '429 rate_limited');
    t.ok(Number(refused.headers['retry-after']) >= 1, 'with Retry-After');
    t.equal(await one.from(elsewhere), '200', 'other networks sign up');
    t.equal(await two.from('2001:dba::1'), '200');
  }
  const [claimed] = await one.sql(
    "UPDATE tenants SET claimed_at = $1, state = 'pending' WHERE id = (SELECT id FROM tenants WHERE signup_network = '198.51.0.0/16' LIMIT 1) RETURNING slug",
    [clock.now()],
  );
  t.equal(await two.from('198.51.201.1'), '429 rate_limited', 'a claimed name counts until it is paid');
  await one.sql("UPDATE tenants SET state = 'active' WHERE slug = $1", [claimed?.['slug']]);
  t.equal(await two.from('198.51.201.1'), '200', 'then it no longer counts');
  clock.advance(24 * HOUR_MS - 1_000);
  t.equal(await one.from('198.51.202.1'), '429 rate_limited', 'no name is freed before 24 hours are over');
  clock.advance(1_001);
  t.equal(await two.from('198.51.202.1'), '200', 'a signup frees names that are older than 24 hours');
  const left = await one.sql('SELECT slug FROM tenants ORDER BY created_at');
  t.same(
    left.map(({ slug }) => slug),
    [claimed?.['slug'], `name-${names}`],
    'only the claimed and the new name are left',
  );
});

t.test('HOST-18: a signup does not count names that the nightly job is freeing', async (t) => {
  const clock = new TestClock();
  const { from, databaseUrl, sql } = await apex(t, { clock });
  for (let n = 0; n < 50; n++) t.equal(await from(`2001:db8:${n.toString(16)}::1`), '200');
  const pool = poolOf(t, databaseUrl, { size: 1 });
  const later = clock.now() + 24 * HOUR_MS + 1;
  const free = nightlyJobs({ pool, now: () => later, softDeleteMs: 0 }).find(({ name }) => name.startsWith('free'));
  // The pool has one connection: this is the transaction of the job.
  await pool.query('BEGIN');
  t.equal(await free?.batch(new AbortController().signal), 50);
  clock.advance(24 * HOUR_MS + 1);
  const answer = from('2001:db8:f::1');
  const waits = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`;
  await until('the signup waits', async () => (await sql(waits)).length > 0);
  await pool.query('COMMIT');
  t.equal(await answer, '200');
});

t.test('HOST-23: two hundred signups from networks of one /32 do not close signup for others', async (t) => {
  const { from } = await apex(t, { clock: new TestClock() });
  const outcomes = new Set<string>();
  for (let round = 0; round < 4; round++) {
    const all = Array.from({ length: 50 }, async (_, n) => from(`2a00:1:${n.toString(16)}:${round.toString(16)}::1`));
    for (const outcome of await Promise.all(all)) outcomes.add(outcome);
  }
  t.same([...outcomes].sort(), ['200', '429 rate_limited']);
  t.equal(await from('203.0.113.1'), '200');
});

t.test('HOST-21: at most 60 new names an hour get their first certificate, on all instances together', async (t) => {
  const clock = new TestClock();
  const old = await apex(t, { clock });
  t.equal(await old.from('192.0.2.1'), '200');
  const known = `name-${names}.${BASE}`;
  await old.stop();
  const server = await apex(t, { clock, database: { url: old.databaseUrl } });
  const ask = async (domain: string, at: Running = server): Promise<string> =>
    (await at.wire.get(`/tls-check?domain=${domain}`)).outcome;
  const fresh: string[] = [];
  for (let n = 0; n < 62; n++) {
    t.equal(await server.from(`45.${n}.1.1`), '200');
    fresh.push(`name-${names}.${BASE}`);
  }
  const [first = '', last = ''] = [fresh[0], fresh.at(-1)];
  const many = await Promise.all(
    Array.from({ length: 100 }, async (_, n) => ask(n % 2 === 0 ? first : first.toUpperCase())),
  );
  t.same(new Set(many), new Set(['200']), 'many handshakes for one name count once');
  for (const name of fresh.slice(1, 60)) t.equal(await ask(name), '200');
  t.equal(await ask(last), '429 rate_limited');
  for (const name of [BASE, known, first]) t.equal(await ask(name), '200', 'admitted and older names are not limited');
  t.equal(await ask(`nobody.${BASE}`), '404 tenant_not_found');
  const other = await apex(t, { clock, database: { url: old.databaseUrl } });
  t.equal(await ask(last, other), '200', 'the name existed when this instance started');
  t.equal(await other.from('46.2.0.1'), '200');
  t.equal(await ask(`name-${names}.${BASE}`, other), '429 rate_limited', 'all instances count together');
  clock.advance(HOUR_MS + 1);
  t.equal(await ask(last), '200');
});

t.test('HOST-21: a name counts once, however many instances are asked for it', async (t) => {
  const first = await apex(t);
  const others = [];
  for (let n = 0; n < 3; n++) others.push(await apex(t, { database: { url: first.databaseUrl } }));
  const fresh: string[] = [];
  for (let n = 0; n < 21; n++) {
    t.equal(await first.from(`45.${n}.2.1`), '200');
    fresh.push(`name-${names}.${BASE}`);
  }
  const ask = async (domain: string, at: Running): Promise<string> =>
    (await at.wire.get(`/tls-check?domain=${domain}`)).outcome;
  const last = fresh.at(-1) ?? '';
  for (const other of others) await until('the names', async () => (await ask(last, other)) !== '404 tenant_not_found');
  for (const name of fresh) {
    const outcomes = await Promise.all([first, ...others].map(async (at) => ask(name, at)));
    t.same(outcomes, ['200', '200', '200', '200'], name);
  }
});

t.test('HOST-21: a name is counted again where counting it failed', async (t) => {
  let fault: Error | undefined = new ServiceError('unavailable');
  let taken = 0;
  const hosts = new TenantHosts({
    store: {
      all: async () => ({ changes: [{ slug: 'old', tenantId: 'first' }], position: '1' }),
      since: async (position) => ({ changes: [{ slug: 'new', tenantId: 'second' }], position }),
    },
    clock: new TestClock(),
    baseDomain: BASE,
    onFault: (error) => t.fail(String(error)),
    onFreed: () => undefined,
    takeCertificate: async () => {
      taken++;
      if (fault !== undefined) throw fault;
      return Promise.resolve();
    },
  });
  await hosts.start();
  t.teardown(() => hosts.close());
  await hosts.refresh();
  t.equal(await hosts.certifies(`none.${BASE}`), false);
  t.equal(await hosts.certifies(`old.${BASE}`), true);
  await t.rejects(hosts.certifies(`new.${BASE}`), /database is down/);
  fault = undefined;
  t.equal(await hosts.certifies(`NEW.${BASE}.`), true);
  t.equal(await hosts.certifies(`new.${BASE}`), true, 'admitted without counting from then on');
  t.equal(taken, 2);
});

/** Sends an event from this address, signed unless a signature is given. */
const send = async (server: Billed, address: string, event: object, signature?: string): Promise<string> => {
  const body = JSON.stringify(event);
  const headers = { 'x-forwarded-for': address, 'stripe-signature': signature ?? stripe.signed(body) };
  return (await server.apex.ask('POST', '/billing/webhook', { body, headers })).outcome;
};

t.test('BILL-19: forged webhooks and the page after checkout are limited by address', async (t) => {
  const server = await billed(t, { env: { RATE_PAIR_PER_MIN: '5' } });
  const anna = await tenantOf(server, 'anna');
  const paid = stripe.checkoutDone(anna.payer, Date.now());
  for (let n = 0; n < 5; n++) t.equal(await send(server, '192.0.2.1', paid, 't=1,v1=00'), '400 webhook_invalid');
  t.equal(await send(server, '192.0.2.1', paid, 't=1,v1=00'), '429 rate_limited');
  t.equal(await send(server, '192.0.2.2', paid, 't=1,v1=00'), '400 webhook_invalid', 'each address is counted alone');
  t.equal(await stateOf(server, anna.id), 'pending');
  t.equal(await send(server, '192.0.2.1', paid), '200', 'a valid one from the same address is accepted');
  t.equal(await stateOf(server, anna.id), 'active');
  await mustDeliver(server.apex, stripe.invoiceIs('paid', anna.payer, Date.now()));
  const page = async (address: string): Promise<number> =>
    (await server.apex.get('//signup/done?return=x', { headers: { 'x-forwarded-for': address } })).status;
  for (let n = 0; n < 30; n++) t.equal(await page('192.0.2.1'), 404);
  t.equal(await page('192.0.2.1'), 429);
  t.equal(await page('192.0.2.2'), 404);
});
