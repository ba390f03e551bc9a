/**
 * Isolation of tenants: every row of the route table with another tenant's token and ids, and whatever a client can
 * write as a host.
 */
import t, { type Test } from 'tap';
import { BILLED_ROWS, TRANSFER_ROWS } from '../src/server/app/route-table.js';
import type { Row } from '../src/server/http/route.js';
import { mustWrite, newItem, type TestDevice } from './support/devices.js';
import { until } from './support/events.js';
import { BASE, billed, tenantOf, type Billed, type BilledTenant } from './support/hosted.js';
import { blobItem, uploadOf } from './support/blobs.js';
import type { Json, Reply, Wire } from './support/wire.js';

/** A served tenant with something of each kind, and all its ids. */
interface Furnished extends BilledTenant {
  readonly ids: Readonly<Record<'itemId' | 'binId' | 'deviceId' | 'blobRef' | 'tenantId', string>>;
  readonly code: string;
}

async function furnished(server: Billed, slug: string): Promise<Furnished> {
  const tenant = await tenantOf(server, slug, Date.now());
  const { wire, device } = tenant;
  const as = { token: device.token };
  await until('a tenant that paid', async () => (await wire.get('/bins', as)).status === 200);
  const binId = `bin-of-${slug}`;
  await wire.post('/bins', { id: binId }, as);
  const item = newItem([device.id], { binId });
  await mustWrite(wire, device, item);
  const blobRef = await blobOf(wire, device, Buffer.alloc(100, slug));
  const code = `zoo zoo zoo zoo zoo ${slug === 'anna' ? 'zone' : 'zero'}`;
  await wire.post('/devices/pair-init', { code, epk: Buffer.alloc(32, 1) }, as);
  return { ...tenant, code, ids: { itemId: item.id, binId, deviceId: device.id, blobRef, tenantId: tenant.id } };
}

/** Uploads through the tenant's own host: the URL names a host that no name server knows. */
async function blobOf(wire: Wire, device: TestDevice, bytes: Buffer): Promise<string> {
  const { blobRef, url, headers } = await uploadOf(wire, device, { size: bytes.length });
  const put = await wire.ask('PUT', `/${pathOf(url)}`, { body: bytes, headers });
  const written = await wire.post('/items', blobItem('a', [device.id], blobRef), { token: device.token });
  if (put.status !== 200 || written.status !== 200) throw new Error(`${put.outcome} ${written.outcome} ${written.raw}`);
  return blobRef;
}

const pathOf = (url: string): string => new URL(url).pathname + new URL(url).search;

/** All that its own device sees of a tenant. */
async function sight({ wire, device, ids }: Furnished): Promise<Json> {
  const as = { token: device.token };
  const [items, bins, devices, requests] = await Promise.all(
    ['/items?since=0', '/bins', '/devices', '/devices/pair-requests'].map((path) => wire.get(path, as)),
  );
  const me = await wire.get('/me', as);
  const blob = await wire.get(`/blobs/${ids.blobRef}/url`, as);
  const seen = devices?.list('devices').map((one) => ({ ...one, lastSeenAt: 0 }));
  const { server } = me.body as { server: Json };
  return { items: items?.body, bins: bins?.body, seen, requests: requests?.body, server, blob: blob.status };
}

const target = ({ path }: Row, id: string): string =>
  path
    .replace('/api', '')
    .replace(/:tenant\/:ref|:[a-z]+/, id)
    .replace(/^(?!\/)/, '/');

const send = (wire: Wire, row: Row, id: string, ask: { token?: string; body?: Json }): Promise<Reply> => {
  const { body, ...rest } = ask;
  const path = row.path.startsWith('/api') ? target(row, id) : `/${row.path.replace(/:tenant\/:ref|:[a-z]+/, id)}`;
  return wire.ask(row.method, path, row.body === 0 ? rest : { ...rest, body: body ?? {} });
};

t.test('HOST-12: every route refuses another tenant’s token and ids', async (t) => {
  const server = await billed(t);
  const [anna, berta] = [await furnished(server, 'anna'), await furnished(server, 'berta')];
  const before = await sight(anna);
  const rows = BILLED_ROWS.filter((row) => row.tenantless !== true && row.apex !== true);
  t.ok(rows.length >= 30);
  t.ok(
    rows.some(({ path }) => path.startsWith('/api/blobs/')),
    'blobs are in the table',
  );
  const foreign = Object.values(anna.ids);
  /** Anna's ids under every field name that a body has for an id. */
  const { itemId: id, ...others } = anna.ids;
  const naming = {
    id,
    ...others,
    lookupId: id,
    code: anna.code,
    ref: anna.ids.blobRef,
    keys: { [others.deviceId]: '' },
  };
  const tells = (reply: Reply): boolean => foreign.some((one) => reply.raw.includes(one));
  for (const row of rows.filter(({ auth }) => auth === 'device')) {
    const what = `${row.method} ${row.path}`;
    for (const one of [anna.ids.itemId, berta.ids.itemId]) {
      const reply = await send(berta.wire, row, one, { token: anna.device.token, body: naming });
      t.equal(reply.outcome, '401 unauthorized', `${what} with the other's token`);
    }
    if (!row.path.includes(':')) continue;
    for (const one of foreign)
      for (const body of [{}, naming, { name: 'x', binId: berta.ids.binId, version: 1, sig: Buffer.alloc(32) }]) {
        const reply = await send(berta.wire, row, one, { token: berta.device.token, body });
        t.ok(reply.status >= 400 && reply.status < 500, `${what} with the other's ${one}: ${reply.outcome}`);
      }
  }
  for (const row of rows.filter(({ path }) => !path.includes(':'))) {
    // With its token the route acts on its own tenant, and may repeat the ids that it was given.
    const mine = row.auth === 'device';
    const reply = await send(berta.wire, row, '', { ...(mine ? { token: berta.device.token } : {}), body: naming });
    const fine = reply.status >= 400 ? reply.status < 500 : (mine && row.method !== 'GET') || !tells(reply);
    t.ok(fine, `${row.method} ${row.path}: ${reply.outcome}`);
  }
  for (const row of TRANSFER_ROWS) {
    const reply = await send(berta.wire, row, `${anna.id}/${anna.ids.blobRef}`, { token: berta.device.token });
    t.equal(reply.outcome, '403 url_invalid', `${row.method} ${row.path}`);
  }
  const given = await anna.wire.get(`/blobs/${anna.ids.blobRef}/url`, { token: anna.device.token });
  const signed = `/${pathOf(given.text('url'))}`;
  t.equal((await anna.wire.ask('GET', signed)).status, 200, 'a signed URL works at the host that issued it');
  t.ok((await berta.wire.ask('GET', signed)).status >= 400, 'a signed URL works at no other host');
  t.same(await sight(anna), before, 'nothing has changed for anna');
});

interface Attack {
  /** The request line and the headers before the token. */
  readonly head: string;
  readonly what: string;
}

const at = (host: string, target = '/api/me', more = ''): string =>
  `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n${more}`;

/** Most name anna, by whose host a proxy may have routed; some also name berta. */
const ATTACKS: readonly Attack[] = [
  ...[
    ...['anna.sync.test:8080', 'ANNA.Sync.TEST', 'anna.sync.test.', 'anna.sync.test.:443', 'anna.sync.test:'],
    ...['x.anna.sync.test', 'anna.sync.test.berta.sync.test', 'berta.anna.sync.test', 'anna..sync.test', '.sync.test'],
    ...['', ' ', 'anna', 'sync.test', '127.0.0.1', '[::1]', 'localhost', 'xn--nna-5cd.sync.test', 'аnna.sync.test'],
    ...[
      'berta@anna.sync.test',
      'anna.sync.test@berta.sync.test',
      'anna.sync.test:80@berta.sync.test',
      'a:b@anna.sync.test',
    ],
    ...['anna.sync.test, berta.sync.test', 'anna.sync.test berta.sync.test', 'anna.sync.test\tberta.sync.test'],
    ...[
      'anna.sync.test/berta',
      'anna.sync.test#@berta.sync.test',
      'anna.sync.test?x',
      'anna%2esync.test',
      'anna_.sync.test',
    ],
    ...[
      'anna.sync.test:80:81',
      'anna.sync.test:http',
      'anna.sync.test:99999999',
      'http://anna.sync.test',
      '*.sync.test',
    ],
    ...['anna.sync.test\0.berta.sync.test', `${'a'.repeat(300)}.sync.test`, 'anna。sync。test', '"anna.sync.test"'],
  ].map((host) => ({ what: `Host: ${host}`, head: at(host) })),
  { what: 'no Host', head: 'GET /api/me HTTP/1.1\r\n' },
  { what: 'no Host, HTTP/1.0', head: 'GET /api/me HTTP/1.0\r\n' },
  { what: 'two Hosts', head: at('anna.sync.test', '/api/me', 'Host: berta.sync.test\r\n') },
  { what: 'the same Host twice', head: at('anna.sync.test', '/api/me', 'host: anna.sync.test\r\n') },
  { what: 'a folded Host', head: at('anna.sync.test\r\n berta.sync.test') },
  { what: 'a space before the colon', head: 'GET /api/me HTTP/1.1\r\nHost : anna.sync.test\r\n' },
  { what: 'absolute form', head: at('anna.sync.test', 'http://berta.sync.test/api/me') },
  { what: 'absolute form of the same', head: at('anna.sync.test', 'http://anna.sync.test/api/me') },
  { what: 'authority form', head: at('anna.sync.test', 'berta.sync.test:443') },
  { what: 'a host in the path', head: at('anna.sync.test', '//berta.sync.test/api/me') },
  ...['X-Forwarded-Host', 'X-Host', 'X-Original-Host', 'X-Forwarded-Server', 'X-HTTP-Host-Override'].map((name) => ({
    what: name,
    head: at('anna.sync.test', '/api/me', `${name}: berta.sync.test\r\n`),
  })),
  { what: 'Forwarded', head: at('anna.sync.test', '/api/me', 'Forwarded: host=berta.sync.test\r\n') },
  { what: ':authority', head: at('anna.sync.test', '/api/me', ':authority: berta.sync.test\r\n') },
  {
    what: 'X-Original-URL',
    head: at('anna.sync.test', '/api/me', 'X-Original-URL: http://berta.sync.test/api/me\r\n'),
  },
];

const SERVED = new Set([
  ...['anna.sync.test:8080', 'ANNA.Sync.TEST', 'anna.sync.test.', 'anna.sync.test.:443', 'anna.sync.test:'].map(
    (host) => `Host: ${host}`,
  ),
  ...['X-Forwarded-Host', 'X-Host', 'X-Original-Host', 'X-Forwarded-Server', 'X-HTTP-Host-Override', 'Forwarded'],
  'X-Original-URL',
]);

async function asked(
  t: Test,
  server: Billed,
  { head }: Attack,
  token: string,
): Promise<{ status: string; text: string }> {
  const bytes = Buffer.from(`${head}Authorization: Bearer ${token}\r\nConnection: close\r\n\r\n`);
  const text = await server.wire.raw(bytes, (answer) => /\r\n\r\n[^]*\}/.test(answer));
  const status = /^HTTP\/1\.1 (\d{3}) /.exec(text)?.[1] ?? 'cut';
  // 505 is the HTTP library's answer to a line that it cannot read.
  t.notMatch(status, /^50[0-4]/, 'the server does not fail');
  return { status, text };
}

t.test('HOST-22: whatever a client writes as a host, it reaches the tenant of its Host or none', async (t) => {
  const server = await billed(t);
  const [anna, berta] = [await furnished(server, 'anna'), await furnished(server, 'berta')];
  // All at once: the library waits ten seconds for the rest of a line that it cannot read.
  const each = ATTACKS.map(async (attack) => {
    const { what } = attack;
    const [hers, others] = await Promise.all([
      asked(t, server, attack, anna.device.token),
      asked(t, server, attack, berta.device.token),
    ]);
    t.equal(hers.status === '200', SERVED.has(what), `${what}: ${hers.status}`);
    t.notOk(hers.text.includes(berta.id), what);
    t.not(others.status, '200', `${what}, with the other's token: ${others.status}`);
    t.notOk(others.text.includes(anna.id) || others.text.includes(berta.id), what);
  });
  await Promise.all(each);
  // Links are built from the configuration, not from what a client writes.
  const headers = {
    host: `${BASE.toUpperCase()}:666`,
    'x-forwarded-host': 'evil.example',
    'x-forwarded-proto': 'http',
  };
  const signedUp = await server.apex.post('/signup', { email: 'me@example.com', subdomain: 'clara' }, { headers });
  t.equal(signedUp.text('url'), 'https://clara.sync.test');
  t.notMatch(signedUp.raw, /evil|666/);
  for (const host of ['evil.example', `x.${BASE}`, `anna.${BASE}@${BASE}`, `${BASE}@evil.example`, `${BASE}:80@evil`]) {
    const reply = await server.apex.post(
      '/signup',
      { email: 'me@example.com', subdomain: 'dora' },
      { headers: { host } },
    );
    t.equal(reply.outcome, '404 tenant_not_found', host);
  }
});
