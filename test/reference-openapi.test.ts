/** The OpenAPI documents, checked against the route table and against the replies of a running server. */
import { createHmac, randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { Validator } from '@seriousme/openapi-schema-validator';
import t, { type Test } from 'tap';
import { certifyDevice } from '../src/crypto/device.js';
import { signRecovery } from '../src/crypto/recovery.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { ALL_ROWS } from '../src/server/app/route-table.js';
import { ENDPOINTS } from '../src/docs/endpoints.js';
import { documented as documentedRows, openApi, templateOf } from '../src/docs/openapi.js';
import {
  join,
  lp,
  newCode,
  newId,
  npkBody,
  sealedFor,
  waitForRequest,
  wrapBody,
  writeBody,
} from './support/devices.js';
import { Documented } from './support/documented.js';
import { billed, hosted, tenantOf } from './support/hosted.js';
import { Scene } from './support/scene.js';
import { ADMIN_TOKEN, databaseDown } from './support/server.js';
import { until } from './support/events.js';
import { checkoutDone, deliver } from './support/stripe.js';
import { camel, SHAPES, spelled, type Ask, type Reply, type Shape } from './support/wire.js';

type Json = Readonly<Record<string, unknown>>;

/** Sends requests to a server and checks every reply against the shape's document. */
class Driver {
  constructor(
    readonly t: Test,
    readonly scene: Scene,
    readonly shape: Shape,
    readonly documented: Documented,
  ) {}

  async ask(method: string, path: string, expected: number, options: Ask = {}): Promise<Reply> {
    const { body } = options;
    const reply = await this.scene.wire.ask(method, path, { shape: this.shape, ...options });
    if (expected < 300 && body !== undefined) this.sent(method, path, body);
    return this.check(method, path, expected, reply);
  }

  /** Checks a body that the server took. */
  sent(method: string, path: string, body: unknown): void {
    const sent: unknown = JSON.parse(JSON.stringify(spelled(this.shape, body)));
    this.t.equal(this.documented.bodyFaults(method, `/api${path}`, sent), '', `body of ${method} ${path}`);
  }

  check(method: string, path: string, expected: number, reply: Reply): Reply {
    const whole = path.startsWith('//') ? path.slice(1) : `/api${path}`;
    this.t.equal(reply.status, expected, `${method} ${path}: ${reply.raw.slice(0, 200)}`);
    this.t.equal(this.documented.replyFaults(method, whole, reply), '', `${method} ${path} ${reply.status}`);
    return reply;
  }

  /** Sends a request as the first device. */
  async mine(method: string, path: string, expected: number, body?: unknown): Promise<Reply> {
    return this.ask(method, path, expected, { token: this.scene.first.token, body });
  }
}

async function items(driver: Driver): Promise<void> {
  const { scene, shape } = driver;
  const conflict = 409;
  const item = scene.item();
  const { version } = camel((await driver.mine('POST', '/items', 200, writeBody(shape, item))).body);
  await driver.mine('POST', '/items', 400, writeBody(shape, scene.item({ keys: sealedFor(scene.first.id) })));
  await driver.mine('POST', '/items', 400, writeBody(shape, scene.item({ type: 'poem' })));
  await driver.mine('POST', '/items', 400, writeBody(shape, scene.item({ ct: randomBytes(65_537) })));
  await driver.mine('POST', '/items', 400, writeBody(shape, { ...scene.item(), id: 'x' }));
  await driver.mine('POST', '/items', 404, writeBody(shape, scene.item({ binId: 'nowhere' })));
  await driver.mine('POST', '/items', 400, writeBody(shape, scene.item({ ts: Date.now() + 172_800_000 })));
  await driver.mine('POST', '/items', conflict, writeBody(shape, { ...item, ifVersion: 99, ct: randomBytes(20) }));
  const blob = { blobRef: `${newId()}.bin`, blobNonce: randomBytes(24) };
  const keys = shape === 'a' ? item.keys : Object.entries(item.keys).map(([deviceId, key]) => ({ deviceId, key }));
  await driver.mine('POST', '/items', 400, { ...writeBody(shape, scene.item()), ...blob, blobKeys: keys });
  await driver.mine('POST', '/items', 413, ' '.repeat(300_000));
  await driver.mine('POST', '/items/batch', 200, {
    items: [writeBody(shape, scene.item()), writeBody(shape, scene.item({ keys: {} }))],
  });
  const nothing = await scene.wire.post('/items/batch', { items: [7] }, scene.as(shape));
  driver.check('POST', '/items/batch', 200, nothing);
  await driver.mine('POST', '/items/batch', 400, { items: [] });
  const moved = { binId: 'inbox', version, sig: randomBytes(32) };
  await driver.mine('POST', `/items/${item.id}/reconcile`, 200, moved);
  await driver.mine('POST', `/items/${item.id}/reconcile`, conflict, { ...moved, sig: randomBytes(32) });
  await driver.mine('POST', `/items/${newId()}/reconcile`, 404, moved);
  await driver.mine('GET', '/items?since=0&limit=1', 200);
  await driver.mine('GET', '/items?since=0&limit=1&epoch=other', 200);
  await driver.mine('GET', '/items?since=0&limit=0', 400);
  await driver.mine('GET', '/items?since=0&bin_id=nowhere', 404);
  await driver.mine('DELETE', `/items/${item.id}`, 200, { sig: randomBytes(32) });
  await driver.mine('DELETE', `/items/${(await scene.written()).id}`, 200);
  await driver.mine('DELETE', `/items/${newId()}`, 404);
  // Live rows and deleted ones, with a tag and without.
  await scene.written({ master: null });
  await driver.mine('GET', '/items?since=0', 200);
}

async function blobs(driver: Driver): Promise<void> {
  const { scene, shape } = driver;
  const wish = (size: number): Json => (shape === 'a' ? { contentLength: size, contentType: 'a/b' } : { size });
  const given = await driver.mine('POST', '/blobs/upload-url', 200, wish(9));
  await driver.mine('POST', '/blobs/upload-url', 400, wish(0));
  await driver.mine('POST', '/blobs/upload-url', 413, wish(2 ** 40));
  const { url, blobRef, headers } = camel(given.body) as { url: string; blobRef: string; headers: Ask['headers'] };
  const put = `/${url.slice(new URL(url).origin.length)}`;
  await driver.ask('PUT', put, 403, { body: Buffer.alloc(8), headers: { ...headers, 'content-length': '8' } });
  driver.check('PUT', put, 200, await scene.wire.ask('PUT', put, { shape, body: Buffer.alloc(9), headers }));
  const asked = await driver.mine('GET', `/blobs/${blobRef}/url`, 200);
  await driver.mine('GET', `/blobs/${newId()}.bin/url`, 404);
  const begun = camel((await driver.mine('POST', '/uploads', 200, wish(9))).body);
  await driver.mine('POST', '/uploads', 400, wish(0));
  await driver.mine('POST', '/uploads', 413, wish(2 ** 40));
  await driver.mine('POST', `/uploads/${String(begun['blobRef'])}`, 200);
  await driver.mine('DELETE', `/uploads/${String(begun['blobRef'])}`, 200);
  await driver.mine('POST', `/uploads/${String(begun['blobRef'])}`, 404);
  const get = `/${asked.text('url').slice(new URL(url).origin.length)}`;
  const { etag } = (await driver.ask('GET', get, 200)).headers;
  await driver.ask('GET', get, 206, { headers: { range: 'bytes=1-2' } });
  await driver.ask('GET', get, 304, { headers: { 'if-none-match': String(etag) } });
  await driver.ask('GET', get, 416, { headers: { range: 'bytes=9-' } });
  await driver.ask('GET', `${get}x`, 403);
}

async function binsAndDevices(driver: Driver): Promise<void> {
  const { scene } = driver;
  const { first, second } = scene;
  await driver.mine('POST', '/bins', 200, { id: 'My_bin', meta: randomBytes(8) });
  await driver.mine('POST', '/bins', 409, { id: 'My_bin' });
  await driver.mine('POST', '/bins', 409, { id: 'other', slug: 'my-bin' });
  await driver.mine('PATCH', '/bins/My_bin', 200, { slug: 'other-slug', meta: null });
  await driver.mine('PATCH', '/bins/nowhere', 404, { slug: 'x' });
  await driver.mine('GET', '/bins', 200);
  await driver.mine('DELETE', '/bins/inbox', 409, {});
  await driver.mine('DELETE', '/bins/My_bin', 200, { force: true });
  await driver.mine('GET', '/devices', 200);
  await driver.mine('PATCH', `/devices/${first.id}`, 200, { name: 'renamed', cert: randomBytes(32) });
  await driver.mine('PATCH', `/devices/${newId()}`, 404, { name: 'x' });
  await driver.mine('POST', '/ws-ticket', 200);
  await driver.mine('GET', '/me', 200);
  await driver.ask('GET', '/health', 200);
  await driver.ask('GET', '/ready', 200);
  await driver.ask('GET', '/service/status', 200);
  await driver.ask('GET', '//', 200);
  await driver.ask('GET', '//docs', 200);
  // Another spelling of `/docs`, which the documents do not list.
  driver.t.equal((await scene.wire.get('//docs/')).status, 200);
  const html = { accept: 'text/html' };
  const { raw: page } = await scene.wire.get('//', { headers: html });
  const [, script = ''] = / src="(\/web\/[^"]+)"/.exec(page) ?? [];
  for (const path of ['//docs', '//docs/errors', '//', `/${script}`, '//sw.js', '//manifest.webmanifest']) {
    const { etag } = (await driver.ask('GET', path, 200, { headers: html })).headers;
    await driver.ask('GET', path, 304, { headers: { ...html, 'if-none-match': String(etag) } });
  }
  await driver.ask('GET', '//web/nothing', 404);
  await driver.ask('GET', '//docs/nothing', 404);
  const extra = await join(scene.wire, first, { name: 'extra' });
  await driver.mine('POST', `/devices/${extra.id}/revoke`, 200);
  await driver.ask('GET', '/me', 403, { token: extra.token });
  await driver.ask('GET', '/me', 401);
  await driver.ask('GET', '/me', 401, { token: 'x' });
  await driver.mine('POST', `/devices/${newId()}/revoke`, 404);
  await driver.ask('POST', '/devices/bootstrap/restart', 403, { token: 'wrong' });
  await driver.ask('POST', '/devices/bootstrap/restart', 401);
  await reauthentication(driver, second);
}

async function reauthentication(driver: Driver, device: Scene['first']): Promise<void> {
  const { tenantId } = driver.scene.server;
  const asked = await driver.ask('POST', '/devices/reauth/challenge', 200, { body: { deviceId: device.id } });
  const { challengeId, challenge } = camel(asked.body);
  const opened = nodeSodium.sealOpen(Buffer.from(String(challenge), 'base64'), device.keys) ?? new Uint8Array();
  const answer = createHmac('sha256', opened.subarray(-32))
    .update(lp('service-reauth-answer-v1', tenantId, device.id, String(challengeId)))
    .digest();
  const body = { deviceId: device.id, challengeId, answer };
  await driver.ask('POST', '/devices/reauth', 200, { body });
  await driver.ask('POST', '/devices/reauth', 403, { body });
  await driver.ask('POST', '/devices/reauth/challenge', 404, { body: { deviceId: newId() } });
}

async function pairing(driver: Driver): Promise<void> {
  const { scene } = driver;
  const code = newCode();
  await driver.mine('POST', '/devices/pair-init', 200, { code, epk: randomBytes(32) });
  await driver.mine('POST', '/devices/pair-init', 400, { code: 'one two', epk: randomBytes(32) });
  await driver.ask('POST', '/devices/pair-fetch-epk', 200, { body: { code } });
  await driver.ask('POST', '/devices/pair-fetch-epk', 400, { body: { code: newCode() } });
  await driver.mine('POST', '/devices/pair-wrap', 400, wrapBody(code));
  const body = npkBody(code);
  const held = scene.wire.post('/devices/pair-fetch-npk', body, { shape: driver.shape });
  await waitForRequest(scene.wire, scene.first);
  // The same call by the same key replaces the first, which is answered with 202: it is to go on waiting.
  const again = scene.wire.post('/devices/pair-fetch-npk', body, { shape: driver.shape });
  driver.check('POST', '/devices/pair-fetch-npk', 202, await held);
  await driver.mine('GET', '/devices/pair-requests', 200);
  await driver.mine('POST', '/devices/pair-wrap', 200, wrapBody(code));
  await driver.mine('POST', '/devices/pair-wrap', 409, { code, reject: true });
  driver.check('POST', '/devices/pair-fetch-npk', 200, await again);
  await driver.ask('POST', '/devices/pair-fetch-npk', 400, { body: npkBody(newCode()) });
  const bare = newCode();
  await driver.mine('POST', '/devices/pair-init', 200, { code: bare, epk: randomBytes(32) });
  const request = npkBody(bare, { host: null });
  driver.sent('POST', '/devices/pair-fetch-npk', request);
  const joining = scene.wire.post('/devices/pair-fetch-npk', request, { shape: driver.shape });
  await waitForRequest(scene.wire, scene.first);
  await driver.mine('GET', '/devices/pair-requests', 200);
  await driver.mine('POST', '/devices/pair-wrap', 200, wrapBody(bare, { deviceCert: null, confirmation: null }));
  driver.check('POST', '/devices/pair-fetch-npk', 200, await joining);
}

async function passwordAndRecovery(driver: Driver, seed: Uint8Array): Promise<void> {
  await driver.ask('GET', '/password/exists', 200);
  const recovery = nodeSodium.signKeyPair(seed);
  const recover = async (expected: number): Promise<void> => {
    const asked = await driver.ask('POST', '/devices/recover/challenge', 200);
    const { challengeId, challenge, tenantId } = camel(asked.body);
    const keys = nodeSodium.boxKeyPair();
    const deviceId = newId();
    const masterKey = nodeSodium.random(32);
    const deviceCert = certifyDevice(nodeSodium, masterKey, { id: deviceId, publicKey: keys.publicKey });
    const claim = {
      host: '127.0.0.1',
      tenantId: String(tenantId),
      challengeId: String(challengeId),
      challenge: Buffer.from(String(challenge), 'base64'),
      deviceId,
      publicKey: keys.publicKey,
      deviceCert,
    };
    const body = {
      challengeId,
      signature: Buffer.from(signRecovery(nodeSodium, recovery, claim)),
      deviceId,
      host: claim.host,
      pubkey: Buffer.from(keys.publicKey),
      deviceCert: Buffer.from(deviceCert),
      name: 'recovered',
      glyph: 'tablet',
    };
    await driver.ask('POST', '/devices/recover', expected, { body });
    if (expected === 200) await driver.ask('POST', '/devices/recover', 403, { body: { ...body, deviceId: newId() } });
  };
  await recover(200);
  await driver.mine('POST', '/password/set', 200, { password: 'p' });
  await driver.mine('POST', '/password/set', 403, { password: 'q', currentPassword: 'wrong' });
  await driver.ask('POST', '/password/verify', 200, { body: { password: 'p' } });
  await driver.ask('POST', '/password/verify', 403, { body: { password: 'q' } });
  await recover(403);
  await driver.mine('DELETE', '/password', 403, { currentPassword: 'wrong' });
  await driver.mine('DELETE', '/password', 200, { currentPassword: 'p' });
  await driver.ask('POST', '/devices/bootstrap', driver.shape === 'a' ? 410 : 409, {
    body: { name: 'x', glyph: 'phone', pubkey: Buffer.from(nodeSodium.boxKeyPair().publicKey) },
  });
  await driver.ask('POST', '/devices/bootstrap/restart', 200, { token: ADMIN_TOKEN });
  const body = { name: 'x', glyph: 'phone', pubkey: Buffer.from(nodeSodium.boxKeyPair().publicKey) };
  const claimed = await driver.ask('POST', '/devices/bootstrap', 200, { body });
  const last = { id: claimed.text('device.id'), token: claimed.text('token') };
  await driver.ask('POST', `/devices/${last.id}/revoke`, 409, { token: last.token });
  await driver.ask('POST', '/devices/bootstrap/restart', 200, { token: ADMIN_TOKEN });
  await driver.ask('POST', '/devices/bootstrap', 200, { body: { ...body, wrappedMasterKey: randomBytes(80) } });
}

/** The replies that only multi mode gives, on a server of its own. */
async function multiMode(driver: Driver): Promise<void> {
  const server = await hosted(driver.t);
  const { apex } = server;
  const { shape } = driver;
  const body = { email: 'me@example.com', subdomain: 'anna' };
  driver.sent('POST', '/signup', body);
  driver.check('POST', '/signup', 200, await apex.post('/signup', body, { shape }));
  driver.check('POST', '/signup', 409, await apex.post('/signup', body, { shape }));
  driver.check('POST', '/signup', 404, await server.wire.post('/signup', body, { shape }));
  const form = { shape, headers: { 'content-type': 'application/x-www-form-urlencoded' } };
  const typed = 'email=me%40example.com&subdomain=berta';
  driver.check('POST', '//signup', 200, await apex.ask('POST', '//signup', { ...form, body: typed }));
  driver.check('GET', '/tls-check', 200, await server.wire.get('/tls-check?domain=anna.sync.test', { shape }));
  driver.check('GET', '/tls-check', 404, await server.wire.get('/tls-check?domain=nobody.sync.test', { shape }));
  driver.check('GET', '/tls-check', 400, await server.wire.get('/tls-check', { shape }));
  const operator = { shape, token: ADMIN_TOKEN };
  const test = '/admin/test-tenants';
  const bytes = Buffer.alloc(32, 9).toString('base64url');
  const tests = { subdomain: 'load-a', devices: [{ id: '01J00000000000000000000000', pubkey: bytes, cert: bytes }] };
  driver.sent('POST', test, tests);
  driver.check('POST', test, 200, await server.wire.post(test, tests, operator));
  driver.check('POST', test, 409, await server.wire.post(test, tests, operator));
  driver.check('POST', test, 403, await server.wire.post(test, tests, { shape, token: 'another' }));
  driver.check('GET', test, 200, await server.wire.get(test, operator));
  driver.check('DELETE', `${test}/load-a`, 200, await server.wire.ask('DELETE', `${test}/load-a`, operator));
  driver.check('DELETE', `${test}/load-a`, 404, await server.wire.ask('DELETE', `${test}/load-a`, operator));
  const paid = await billed(driver.t);
  const token = /return=([\w-]+)/;
  const signedUp = await paid.apex.post('/signup', { ...body, subdomain: 'clara' }, { shape });
  driver.check('POST', '/signup', 200, signedUp);
  const tenant = await tenantOf(paid, 'dora', Date.now());
  driver.check(
    'GET',
    '/billing/portal',
    200,
    await tenant.wire.get('/billing/portal', { token: tenant.device.token, shape }),
  );
  const event = await deliver(paid.apex, checkoutDone(tenant.payer, Date.now()));
  driver.check('POST', '/billing/webhook', 200, event);
  driver.check('POST', '/billing/webhook', 400, await paid.apex.ask('POST', '/billing/webhook', { shape, body: '{}' }));
  driver.check('GET', '//signup/done', 200, await paid.apex.get('//signup/done', { shape }));
  const left = token.exec(JSON.stringify(paid.stripe.checkouts.map((call) => call.form)))?.[1] ?? '';
  driver.check(
    'POST',
    '//signup/pay',
    200,
    await paid.apex.ask('POST', '//signup/pay', { ...form, body: `return=${left}` }),
  );
}

t.test('REF-06: the documents list every route of the route table, each once', (t) => {
  const rows = documentedRows(ALL_ROWS);
  const keys = rows.map(({ method, path }) => `${method} ${path}`);
  t.same(Object.keys(ENDPOINTS).sort(), keys.sort(), 'each is described, and nothing else');
  const served = rows.map(({ method, path }) => `${method} ${templateOf(path)}`).sort();
  for (const shape of SHAPES) {
    const paths = openApi(shape, ALL_ROWS, '1')['paths'] as Readonly<Record<string, Json>>;
    const written = Object.entries(paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
    );
    t.same(written.sort(), served, shape);
  }
  t.end();
});

t.test('REF-07: the documents are valid OpenAPI 3.1', async (t) => {
  for (const shape of SHAPES) {
    const result = await new Validator().validate(openApi(shape, ALL_ROWS, '1'));
    t.same(result.errors ?? [], []);
    t.equal(result.valid, true, shape);
  }
});

for (const shape of SHAPES) {
  t.test(`REF-08 REF-09: the replies of every endpoint match their documented schema, in ${shape}`, async (t) => {
    const seed = nodeSodium.random(32);
    const recoveryPubkey = Buffer.from(nodeSodium.signKeyPair(seed).publicKey);
    const scene = await Scene.start(t, {}, { recoveryPubkey });
    const served = await scene.wire.get(`//docs/openapi-${shape}.json`);
    const documented = new Documented(served.body as Json);
    const driver = new Driver(t, scene, shape, documented);
    await items(driver);
    await blobs(driver);
    await binsAndDevices(driver);
    await pairing(driver);
    await passwordAndRecovery(driver, seed);
    await multiMode(driver);
    const restore = await databaseDown(scene.server.databaseUrl);
    await driver.ask('GET', '/service/status', 503);
    await driver.ask('GET', '/password/exists', 503);
    await restore();
    t.same(
      documented.successes.filter((success) => !documented.seen.has(success)),
      [],
      'every success of every endpoint was seen',
    );
    t.same(
      documented.bodies.filter((operation) => !documented.taken.has(operation)),
      [],
      'and every body that it takes',
    );
  });

  t.test(`REF-09 FAIR-13: a refusal for a caller's share is documented where no rate is, in ${shape}`, async (t) => {
    const scene = await Scene.start(t);
    const driver = new Driver(t, scene, shape, new Documented(openApi(shape, ALL_ROWS, '1')));
    const half =
      'POST /api/devices/reauth HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{';
    const hold = (): void => {
      const socket = connect(scene.server.port, '127.0.0.1', () => void socket.write(half));
      socket.on('error', () => undefined);
      t.teardown(() => socket.destroy());
    };
    for (let n = 0; n < 125; n++) hold();
    await until('the share is used up', async () => {
      const { status } = await scene.wire.ask('GET', '/password/exists', { shape });
      // One of those above may have been refused while this call had its place.
      hold();
      return status === 429;
    });
    for (const path of ['/devices/pair-fetch-npk', '/devices/reauth', '/devices/recover'])
      await driver.ask('POST', path, 429, { body: {} });
    await driver.ask('GET', '/password/exists', 429);
  });

  t.test(`REF-09: refusals by rate match their documented schema, in ${shape}`, async (t) => {
    const scene = await Scene.start(t, { env: { RATE_PAIR_PER_MIN: '1' } });
    const document = openApi(shape, ALL_ROWS, '1');
    const driver = new Driver(t, scene, shape, new Documented(document));
    await driver.ask('POST', '/devices/pair-fetch-epk', 400, { body: { code: newCode() } });
    await driver.ask('POST', '/devices/pair-fetch-epk', 429, { body: { code: newCode() } });
  });
}

t.test('REF-08: the check finds an undocumented field and a missing one', (t) => {
  const documented = new Documented(openApi('a', ALL_ROWS, '1'));
  const schema = ['components', 'schemas', 'Health'];
  t.equal(documented.faults(schema, { ok: true, version: '1', commit: 'unknown' }), '');
  t.not(documented.faults(schema, { ok: true, version: '1', commit: 'unknown', more: 1 }), '');
  t.not(documented.faults(schema, { ok: true, version: '1' }), '');
  t.end();
});
