/** Tenants by host name: signup, tls-check, hosts, isolation. */
import t, { type Test } from 'tap';
import { ConfigError, readConfig } from '../src/server/config/config.js';
import { HOSTED_ROWS, ROWS } from '../src/server/app/route-table.js';
import { TenantHosts, labelOf, refusalOf } from '../src/server/hosting/hosts.js';
import { HostingStore, type HostChanges } from '../src/server/hosting/store.js';
import { TestClock } from './support/clock.js';
import { claim, join, mustWrite, newId, newItem } from './support/devices.js';
import { until } from './support/events.js';
import { BASE, hosted, neighbour, signUp, wireAt, type Hosted } from './support/hosted.js';
import { poolOf, testDatabase } from './support/postgres.js';
import { runServer } from './support/server.js';
import { SHAPES, type Reply } from './support/wire.js';

const DAY_MS = 86_400_000;

t.test('HOST-01 HOST-02 HOST-05: a host name leads to its tenant, the apex or nowhere; bad names are refused', (t) => {
  for (const host of ['one.sync.test', 'ONE.Sync.Test', 'one.sync.test.']) t.equal(labelOf(host, BASE), 'one', host);
  for (const host of ['sync.test', 'SYNC.test.']) t.equal(labelOf(host, BASE), '', host);
  const nowhere = [
    '',
    '.',
    'one',
    'a.one.sync.test',
    '.sync.test',
    'one..sync.test',
    'onesync.test',
    'one.sync.test..',
  ];
  for (const host of [
    ...nowhere,
    'one.sync.test.evil.example',
    '-one.sync.test',
    'o_ne.sync.test',
    'on.sync.test',
    '127.0.0.1',
  ])
    t.equal(labelOf(host, BASE), undefined, host);
  for (const slug of ['abc', 'a-b', '0x0', 'a'.repeat(63)]) t.equal(refusalOf(slug), undefined, slug);
  for (const slug of [
    '',
    'ab',
    'a'.repeat(64),
    '-ab',
    'ab-',
    'Abc',
    'a.b',
    'ä-b',
    'xn--abc',
    'www',
    'admin',
    'api',
    'mail',
  ])
    t.type(refusalOf(slug), 'string', slug);
  t.end();
});

t.test('HOST-19: multi mode does not start without a base domain', (t) => {
  t.throws(() => readConfig({ TENANT_MODE: 'multi' }), ConfigError);
  t.equal(readConfig({ TENANT_MODE: 'multi', DOMAIN: 'Sync.Test' }).domain, 'sync.test');
  t.end();
});

t.test('HOST-03 HOST-09 HOST-10: a name is signed up, and claimed only with its own token', async (t) => {
  const server = await hosted(t);
  const reply = await signUp(server.apex, 'anna');
  t.equal(reply.status, 200);
  t.same(Object.keys(reply.body as object).sort(), ['claimToken', 'slug', 'url']);
  t.equal(reply.at('url'), 'https://anna.sync.test');
  const anna = server.at('anna');
  t.equal((await anna.get('/service/status')).at('claimed'), false);
  t.equal((await anna.get('/service/status')).at('mode'), 'multi');
  const other = (await signUp(server.apex, 'other')).text('claimToken');
  const attempt = { name: 'x', glyph: 'globe', pubkey: Buffer.alloc(32, 9) };
  for (const claimToken of [undefined, null, '', other, `${reply.text('claimToken')}x`])
    t.match(
      (await anna.post('/devices/bootstrap', { ...attempt, claimToken })).outcome,
      /^40[03] /,
      String(claimToken),
    );
  t.equal((await anna.post('/devices/bootstrap', { ...attempt, claimToken: other })).outcome, '403 forbidden');
  const device = await claim(anna, { claimToken: reply.text('claimToken') });
  t.equal((await anna.get('/me', { token: device.token })).status, 200);
  const again = await anna.post('/devices/bootstrap', { ...attempt, claimToken: reply.text('claimToken') });
  t.equal(again.outcome, '410 bootstrap_already_done');
  const rows = JSON.stringify(await server.sql('SELECT * FROM tenants'));
  for (const text of [reply.text('claimToken'), other]) {
    t.notOk(rows.includes(text));
    t.notOk(rows.includes(Buffer.from(text).toString('hex')));
    t.notOk(JSON.stringify(server.logs).includes(text));
  }
});

t.test('HOST-09: BOOTSTRAP_TOKEN is for single mode, and opens no tenant', async (t) => {
  const server = await hosted(t, { env: { BOOTSTRAP_TOKEN: 'open-sesame' } });
  const { claimToken } = (await signUp(server.apex, 'anna')).body as { claimToken: string };
  const anna = server.at('anna');
  const attempt = { name: 'x', glyph: 'globe', pubkey: Buffer.alloc(32, 9), claimToken: 'open-sesame' };
  t.equal((await anna.post('/devices/bootstrap', attempt)).outcome, '403 forbidden');
  t.ok((await claim(anna, { claimToken })).token, 'the claim token of the signup is enough');
});

t.test('HOST-04 HOST-05 HOST-06: signup refuses taken and bad names, bad addresses and other hosts', async (t) => {
  const server = await hosted(t);
  const many = await Promise.all(Array.from({ length: 20 }, async () => signUp(server.apex, 'wanted')));
  t.equal(many.filter((reply) => reply.status === 200).length, 1);
  t.same(
    new Set(many.filter((reply) => reply.status !== 200).map((reply) => reply.outcome)),
    new Set(['409 conflict']),
  );
  for (const shape of SHAPES) {
    const ask = { shape, headers: { 'x-forwarded-for': `198.51.100.${shape === 'a' ? 1 : 2}` } };
    const taken = await server.apex.post('/signup', { email: 'me@example.com', subdomain: 'wanted' }, ask);
    t.equal(taken.outcome, shape === 'a' ? '409 conflict' : '409 slug_taken');
    const fresh = await server.apex.post('/signup', { email: 'me@example.com', subdomain: `new-${shape}` }, ask);
    t.ok(fresh.at(shape === 'a' ? 'claimToken' : 'claim_token'));
  }
  const named = (reply: Reply): unknown => [reply.outcome, reply.at('error.details.path')];
  for (const subdomain of ['www', 'a', '-ab', 'Anna', 'a.b', '', 7, null])
    t.same(
      named(await signUp(server.apex, subdomain as string, 'me@example.com')),
      ['400 validation', 'subdomain'],
      String(subdomain),
    );
  for (const email of [
    '',
    'me',
    'me@',
    '@example.com',
    'a b@example.com',
    'me@example',
    `${'x'.repeat(250)}@example.com`,
    7,
  ])
    t.same(named(await signUp(server.apex, 'fine-name', email as string)), ['400 validation', 'email'], String(email));
  const elsewhere = server.at('wanted');
  t.equal((await signUp(elsewhere, 'fine-name')).outcome, '404 tenant_not_found', "not at a tenant's host");
  t.equal((await signUp(wireAt(t, server.port, 'evil.example'), 'fine-name')).outcome, '404 tenant_not_found');
});

t.test('HOST-07: an address may sign up five times an hour, on all instances together', async (t) => {
  const clock = new TestClock();
  const one = await hosted(t, { clock });
  const two = await hosted(t, { clock, database: { url: one.databaseUrl } });
  const from = { headers: { 'x-forwarded-for': '192.0.2.1' } };
  const attempt = async (server: Hosted, n: number): Promise<string> =>
    (await server.apex.post('/signup', { email: 'me@example.com', subdomain: `name-${n}` }, from)).outcome;
  for (let n = 0; n < 5; n++) t.equal(await attempt(n % 2 === 0 ? one : two, n), '200');
  for (const server of [one, two]) t.equal(await attempt(server, 5), '429 rate_limited');
  clock.advance(59 * 60_000);
  t.equal(await attempt(one, 5), '429 rate_limited');
  clock.advance(60_001);
  t.equal(await attempt(one, 5), '200');
});

t.test('HOST-08: signup is 503 while a thousand tenants are unclaimed', async (t) => {
  const server = await hosted(t);
  await server.sql(
    `INSERT INTO tenants (id, slug, created_at) SELECT lpad(n::text, 26, '0'), 'waiting-' || n, $1 FROM generate_series(1, 999) n`,
    [Date.now()],
  );
  t.equal((await signUp(server.apex, 'the-last')).status, 200);
  const refusal = await signUp(server.apex, 'one-more');
  t.equal(refusal.outcome, '503 unavailable');
  t.ok(Number(refusal.headers['retry-after']) >= 1);
});

t.test('HOST-11: tls-check is 200 for the apex and existing tenants only', async (t) => {
  const server = await hosted(t);
  await signUp(server.apex, 'anna');
  // As the proxy does: by the address of the server.
  const check = async (query: string): Promise<string> => (await server.wire.get(`/tls-check${query}`)).outcome;
  for (const domain of [BASE, 'anna.sync.test', 'ANNA.sync.test'])
    t.equal(await check(`?domain=${domain}`), '200', domain);
  for (const domain of [
    'nobody.sync.test',
    'a.anna.sync.test',
    'sync.test.evil.example',
    'anna.sync.test:443',
    'localhost',
  ])
    t.equal(await check(`?domain=${domain}`), '404 tenant_not_found', domain);
  for (const query of ['', '?domain=', '?domain=a&domain=b']) t.equal(await check(query), '400 validation', query);
});

t.test('HOST-01 HOST-02 HOST-17: a host leads to its tenant in any spelling; the apex serves a form', async (t) => {
  const server = await hosted(t);
  const { device } = await neighbour(t, server.port, 'anna');
  const me = async (host: string): Promise<string> =>
    (await wireAt(t, server.port, host).get('/me', { token: device.token })).outcome;
  for (const host of [
    'anna.sync.test',
    'Anna.SYNC.test',
    'anna.sync.test:8080',
    'anna.sync.test.',
    'anna.sync.test.:443',
  ])
    t.equal(await me(host), '200', host);
  for (const host of [
    BASE,
    'nobody.sync.test',
    'x.anna.sync.test',
    'anna.sync.test.evil.example',
    'evil.example',
    'anna',
    '[::1]',
    'anna.sync.test@evil',
  ])
    t.equal(await me(host), '404 tenant_not_found', host);
  const asking = (line: string): Promise<string> =>
    server.wire.raw(`GET /api/me HTTP/1.1\r\n${line}Authorization: Bearer ${device.token}\r\n\r\n`, (text) =>
      text.includes('tenant_not_found'),
    );
  for (const line of ['Host:\r\n', 'Host: \r\n'])
    t.match(await asking(line), /^HTTP\/1\.1 404 [^]*"code":"tenant_not_found"/, 'an empty host');
  t.match(await asking(''), /^HTTP\/1\.1 400 /, 'no host');
  t.equal((await server.wire.get('/health')).status, 200, 'health answers for any host');
  const page = await server.apex.get('//');
  t.match(page.headers['content-type'], 'text/html');
  t.match(page.raw, /<form method="post" action="\/signup">/);
  t.notMatch(page.raw, /<script/);
  isPlain(t, page);
  t.match((await server.at('anna').get('//')).headers['content-type'], 'text/plain');
  const form = { headers: { 'content-type': 'application/x-www-form-urlencoded', 'x-forwarded-for': '192.0.2.9' } };
  const done = await server.apex.ask('POST', '//signup', { ...form, body: 'email=me%40example.com&subdomain=berta' });
  t.equal(done.status, 200);
  isPlain(t, done);
  t.equal(done.headers['cache-control'], 'no-store', 'the one page with a secret');
  t.match(done.raw, /https:\/\/berta\.sync\.test\/#claim=[A-Za-z0-9_-]{43}</);
  const evil = await server.apex.ask('POST', '//signup', {
    ...form,
    body: 'email=me%40example.com&subdomain=%3Cscript%3E',
  });
  t.equal(evil.outcome, '400 validation');
  t.notMatch(evil.raw, /<script/);
});

t.test('HOST-17: a browser gets the form again when it is refused, with a sentence and what was typed', async (t) => {
  const server = await hosted(t);
  const submit = (body: string): Promise<Reply> =>
    server.apex.ask('POST', '//signup', {
      headers: {
        ...{
          'content-type': 'application/x-www-form-urlencoded',
          accept: 'text/html,*/*',
          'x-forwarded-for': '192.0.2.10',
        },
      },
      body,
    });
  t.equal((await submit('email=me%40example.com&subdomain=dora')).status, 200);
  const refused: readonly (readonly [body: string, status: number, says: RegExp])[] = [
    ['email=me%40example.com&subdomain=dora', 409, /This name is taken/],
    ['email=%22%3E%3Cscript%3E&subdomain=emil', 400, /The mail address must be an address such as/],
    ['email=me%40example.com&subdomain=%22%3E%3Cscript%3E', 400, /The name must be 3 to 63 of the characters/],
  ];
  for (const [body, status, says] of refused) {
    const reply = await submit(body);
    t.equal(reply.status, status, body);
    t.match(reply.headers['content-type'], 'text/html');
    t.match(reply.raw, says);
    t.notMatch(reply.raw, /<script/, 'what was typed is escaped');
    isPlain(t, reply);
  }
  t.match((await submit('email=me%40example.com&subdomain=dora')).raw, /value="me@example.com"[^]*value="dora"/);
  const limited = await submit('email=me%40example.com&subdomain=fritz');
  t.equal(limited.status, 429);
  t.match(limited.raw, /Try again in \d+ minutes/);
  t.ok(Number(limited.headers['retry-after']) > 0);
});

/** Asserts that a page cannot be framed, runs no script, and sends its form to this host only. */
function isPlain(t: Test, { headers }: Reply): void {
  t.match(headers['content-security-policy'], /default-src 'none'.*form-action 'self'; frame-ancestors 'none'/);
  t.equal(headers['x-content-type-options'], 'nosniff');
  t.equal(headers['referrer-policy'], 'no-referrer');
}

t.test('HOST-12 HOST-13: tokens, tickets and ids of a tenant do not work at another tenant', async (t) => {
  const server = await hosted(t);
  const [anna, berta] = [await neighbour(t, server.port, 'anna'), await neighbour(t, server.port, 'berta')];
  const item = newItem([anna.device.id]);
  t.equal(await mustWrite(anna.wire, anna.device, item), 1);
  t.equal(await mustWrite(berta.wire, berta.device, newItem([berta.device.id])), 1, 'each tenant has its own versions');
  const asked = HOSTED_ROWS.filter((row) => row.auth === 'device');
  t.ok(asked.length > 15);
  for (const { method, path } of asked) {
    const target = path.replace('/api', '').replace(':id', item.id);
    const reply = await berta.wire.ask(method, target, {
      token: anna.device.token,
      ...(method === 'GET' ? {} : { body: {} }),
    });
    t.equal(reply.outcome, '401 unauthorized', `${method} ${target} with the other's token`);
  }
  const mine = { token: berta.device.token };
  t.equal((await berta.wire.delete(`/items/${item.id}`, mine)).outcome, '404 item_not_found');
  t.equal((await berta.wire.patch(`/devices/${anna.device.id}`, { name: 'x' }, mine)).outcome, '404 device_not_found');
  t.equal((await berta.wire.post(`/devices/${anna.device.id}/revoke`, {}, mine)).outcome, '404 device_not_found');
  t.equal(
    (await berta.wire.post('/devices/reauth/challenge', { deviceId: anna.device.id })).outcome,
    '404 device_not_found',
  );
  t.same(
    (await berta.wire.get('/items?since=0', mine)).list('items').filter((row) => row['id'] === item.id),
    [],
  );
  t.equal((await berta.wire.get('/me', mine)).at('server.itemCount'), 1);
  const ticket = (await anna.wire.post('/ws-ticket', {}, { token: anna.device.token })).text('ticket');
  for (const credential of [{ token: anna.device.token }, { ticket }])
    await t.rejects(berta.wire.connect(credential), { message: 'upgrade refused: 401 unauthorized' });
  // Both tenants may have an item of the same id, each with its own content.
  t.equal(await mustWrite(berta.wire, berta.device, { ...newItem([berta.device.id]), id: item.id }), 2);
  const second = await join(anna.wire, anna.device);
  t.equal((await anna.wire.get('/devices', { token: second.token })).list('devices').length, 2);
  t.equal((await berta.wire.get('/devices', mine)).list('devices').length, 1);
});

t.test('HOST-14: a tenant that signs up on one instance becomes known on the others', async (t) => {
  const clock = new TestClock();
  const one = await hosted(t, { clock });
  const two = await hosted(t, { clock, database: { url: one.databaseUrl } });
  const reply = await signUp(one.apex, 'anna');
  const served = async (server: Hosted): Promise<boolean> =>
    (await server.wire.get('/tls-check?domain=anna.sync.test')).status === 200;
  t.ok(await served(one));
  // The first instance notifies the second only once it knows of it.
  await until('the name on the other instance', async () => {
    clock.advance(5);
    return served(two);
  });
  await claim(two.at('anna'), { claimToken: reply.text('claimToken') });
});

t.test('HOST-15 HOST-18: a name that stays unclaimed for 24 hours is freed and may be signed up again', async (t) => {
  const server = await hosted(t);
  await signUp(server.apex, 'lazy');
  const kept = await neighbour(t, server.port, 'kept');
  // The time is a parameter: advancing the server's clock would also start its nightly jobs.
  const [row] = await server.sql(`SELECT created_at AS at FROM tenants WHERE slug = 'lazy'`);
  const born = Number(row?.['at']);
  const free = async (now: number): Promise<number> =>
    Number((await server.sql('SELECT free_unclaimed($1, 100, $2) AS n', [now - DAY_MS, now]))[0]?.['n']);
  t.equal(await free(born + DAY_MS), 0);
  // A claim under way: its transaction is open.
  const claiming = poolOf(t, server.databaseUrl, { size: 1 });
  await claiming.query('BEGIN');
  const claimed = await claiming.query(
    `SELECT c.verdict FROM tenants t, claim_tenant(t.id, true, t.claim_token_hash, $1, 'x', 'globe', $2, NULL, NULL, 9, 1) c
      WHERE t.slug = 'lazy'`,
    [newId(), Buffer.alloc(32, 9)],
  );
  t.same(claimed.rows, [{ verdict: 'ok' }]);
  t.equal(await free(born + DAY_MS + 1), 0, 'a name that is being claimed is kept');
  await claiming.query('ROLLBACK');
  t.equal(await free(born + DAY_MS + 1), 1);
  const lazy = async (): Promise<number> => (await server.wire.get('/tls-check?domain=lazy.sync.test')).status;
  await until('the name unknown', async () => (await lazy()) !== 200);
  t.equal((await server.at('lazy').get('/service/status')).outcome, '404 tenant_not_found');
  t.equal((await kept.wire.get('/me', { token: kept.device.token })).status, 200, 'the claimed tenant is kept');
  t.equal((await signUp(server.apex, 'lazy')).status, 200);
});

t.test('HOST-15: a freed name that is signed up again keeps its new tenant on every reading', async (t) => {
  const freed: string[] = [];
  const asked: (() => void)[] = [];
  let answer: HostChanges = { changes: [{ slug: 'lazy', tenantId: 'second' }], position: '7' };
  const positions: string[] = [];
  const hosts = new TenantHosts({
    store: {
      all: async () => ({ changes: [{ slug: 'lazy', tenantId: 'first' }], position: '7' }),
      since: async (position) => {
        positions.push(position);
        const now = answer;
        for (const done of asked.splice(0)) done();
        return now;
      },
    },
    clock: new TestClock(),
    baseDomain: BASE,
    onFault: (error) => t.fail(String(error)),
    onFreed: (tenant) => freed.push(tenant),
    takeCertificate: () => Promise.reject(new Error('not asked for')),
  });
  await hosts.start();
  t.teardown(() => hosts.close());
  for (let n = 0; n < 3; n++) await hosts.refresh();
  t.equal(hosts.tenantOf('lazy.sync.test'), 'second');
  t.same(freed, ['first'], 'the second tenant does not count as freed');
  // The name is signed up here during a reading that still saw it as free.
  answer = { changes: [{ slug: 'lazy', tenantId: null }], position: '9' };
  await hosts.refresh();
  t.same(freed, ['first', 'second']);
  answer = { changes: [{ slug: 'lazy', tenantId: null }], position: '11' };
  let signedUp: Promise<void> | undefined;
  asked.push(() => {
    answer = { changes: [{ slug: 'lazy', tenantId: 'third' }], position: '12' };
    signedUp = hosts.refresh();
  });
  await hosts.refresh();
  await signedUp;
  t.equal(hosts.tenantOf('lazy.sync.test'), 'third');
  t.same(freed, ['first', 'second']);
  t.equal(positions.at(-1), '11', 'by a reading of its own');
});

t.test('HOST-26: a name that was freed and signed up again leads to its new tenant, in whatever order', async (t) => {
  const server = await hosted(t);
  const pool = poolOf(t, server.databaseUrl);
  const store = new HostingStore(pool);
  const { position } = await store.all();
  await signUp(server.apex, 'anna');
  const [row] = await server.sql(`SELECT id FROM tenants WHERE slug = 'anna'`);
  // One transaction frees a name and signs it up; another, begun before, commits after it. Rows are stored anywhere.
  await server.sql(`INSERT INTO host_changes (slug, tenant_id, at) VALUES ('anna', $1, 7), ('anna', NULL, 7)`, [
    row?.['id'],
  ]);
  await server.sql(`INSERT INTO host_changes (slug, tenant_id, at) VALUES ('anna', NULL, 8), ('berta', 'gone', 8)`);
  const { changes } = await store.since(position);
  t.same(
    changes.toSorted((one, other) => one.slug.localeCompare(other.slug)),
    [
      { slug: 'anna', tenantId: row?.['id'] },
      { slug: 'berta', tenantId: null },
    ],
  );
});

t.test('HOST-26: an instance that did not read the names for half a day reads all of them', async (t) => {
  const clock = new TestClock();
  const freed: string[] = [];
  const all: HostChanges[] = [
    {
      changes: [
        { slug: 'kept', tenantId: 'one' },
        { slug: 'freed', tenantId: 'two' },
      ],
      position: '1',
    },
    {
      changes: [
        { slug: 'kept', tenantId: 'one' },
        { slug: 'new', tenantId: 'three' },
      ],
      position: '9',
    },
  ];
  const hosts = new TenantHosts({
    // The nightly job has removed the changes.
    store: {
      all: async () => all.shift() ?? { changes: [], position: '' },
      since: async (position) => ({ changes: [], position }),
    },
    ...{ clock, baseDomain: BASE },
    onFault: (error) => t.fail(String(error)),
    onFreed: (tenant) => freed.push(tenant),
    takeCertificate: () => Promise.reject(new Error('not asked for')),
  });
  await hosts.start();
  t.teardown(() => hosts.close());
  const known = (): (string | undefined)[] => ['kept', 'freed', 'new'].map((slug) => hosts.tenantOf(`${slug}.${BASE}`));
  clock.advance(DAY_MS / 2);
  await hosts.refresh();
  t.same(known(), ['one', 'two', undefined]);
  clock.advance(DAY_MS / 2 + 1);
  await hosts.refresh();
  t.same(known(), ['one', undefined, 'three']);
  t.same(freed, ['two']);
  await hosts.refresh();
  t.same(known(), ['one', undefined, 'three'], 'and then the changes again');
});

t.test('HOST-26 EPOCH-08: a database of another history has its names read as a whole', async (t) => {
  const server = await hosted(t);
  for (const name of ['anna', 'lost']) t.equal((await signUp(server.apex, name)).status, 200);
  // A standby that was promoted lacks the last signup, and counts its next transactions like the lost ones.
  const { length } = await server.sql(`WITH tenant AS (DELETE FROM tenants WHERE slug = 'lost' RETURNING id),
    change AS (DELETE FROM host_changes WHERE slug = 'lost'),
    born AS (INSERT INTO tenants (id, slug, created_at) SELECT left(id, 25) || CASE right(id, 1) WHEN '0' THEN '1' ELSE '0' END, 'born', created_at
      FROM tenants WHERE slug = 'anna'
      RETURNING id)
    INSERT INTO host_changes (xid, slug, tenant_id, at) SELECT '3', 'born', id, 1 FROM born RETURNING 1`);
  t.equal(length, 1);
  await server.sql("UPDATE installation SET system_identifier = '1'");
  await server.sql(
    'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
  );
  const status = async (name: string): Promise<string> => (await server.at(name).get('/service/status')).outcome;
  await until('the names of the new history', async () => (await status('lost')) === '404 tenant_not_found');
  t.equal(await status('born'), '200');
  t.equal(await status('anna'), '200');
});

t.test('CFG-22: tenants of the other mode stop the start, or are reported', async (t) => {
  const warned = ({ logs }: { readonly logs: readonly object[] }): boolean =>
    logs.some((line) => /TENANT_MODE is multi, and no host leads to/.test(JSON.stringify(line)));
  const env = { LOG_LEVEL: 'warn' };
  const database = await testDatabase(t);
  const multi = await hosted(t, { database, env });
  t.equal(warned(multi), false, 'nobody has claimed the tenant of single mode');
  t.equal((await signUp(multi.apex, 'anna')).status, 200);
  await multi.stop();
  await t.rejects(
    runServer(t, { database, env }),
    { name: 'StartError', message: /TENANT_MODE is single, and this database has tenants with names/ },
    'every host would lead to anna',
  );
  const other = await testDatabase(t);
  const single = await runServer(t, { database: other, env });
  t.equal(warned(single), false);
  await claim(single.wire);
  await single.stop();
  t.equal(warned(await hosted(t, { database: other, env })), true, 'no host leads to the claimed tenant');
});

t.test('HOST-16: each mode has its own endpoints', async (t) => {
  const single = await runServer(t);
  t.equal((await single.wire.post('/signup', { email: 'me@example.com', subdomain: 'anna' })).outcome, '404 not_found');
  t.equal((await single.wire.get('/tls-check?domain=a.b')).outcome, '404 not_found');
  const multi = await hosted(t);
  t.equal((await multi.apex.post('/devices/bootstrap/restart', {})).outcome, '404 not_found');
  t.ok(ROWS.some(({ path }) => path === '/api/devices/bootstrap/restart'));
});
