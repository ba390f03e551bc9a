/** The two wire shapes: how the shape of a request is decided, and how it affects every reply and frame. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { newCode, newId, npkBody, sealedFor, waitForRequest, wrapBody, writeBody } from './support/devices.js';
import { Scene } from './support/scene.js';
import { ADMIN_TOKEN } from './support/server.js';
import { camel, keysNotSnake, spelled, type Ask, type Json, type Reply, type Shape } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first } = scene;
const token = { token: first.token };

const bodyOf = (shape: Shape): string => JSON.stringify(spelled(shape, writeBody(shape, scene.item())));

t.test('SHAPE-09 SHAPE-26: a refusal before the body has the shape that header or query name', async (t) => {
  const long = 'x'.repeat(300_000);
  const auth = `Authorization: Bearer ${first.token}`;
  /** Status, path, then headers in addition to Host. */
  const early: Readonly<Record<string, readonly [status: number, path: string, ...headers: string[]]>> = {
    framing: [400, '/api/items', 'Transfer-Encoding: gzip'],
    'no such route': [404, '/api/nowhere'],
    'no such method': [405, '/api/me'],
    'no token': [401, '/api/items'],
    'no token, and a body on its way': [401, '/api/items', 'Content-Length: 100'],
    'a bad token': [401, '/api/items', 'Authorization: Bearer x'],
    'no admin': [403, '/api/devices/bootstrap/restart', 'Authorization: Bearer x'],
    'a body too large': [413, '/api/items', auth, `Content-Length: ${long.length}`],
    'a malformed query': [400, '/api/items?%zz', auth, 'Content-Length: 0'],
    'an upgrade without token': [401, '/ws', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13'],
  };
  for (const [what, [status, path, ...headers]] of Object.entries(early)) {
    const method = path === '/ws' ? 'GET' : 'POST';
    const ask = async (query: string, ...more: string[]): Promise<string> => {
      const target = query === '' ? path : `${path}${path.includes('?') ? '&' : '?'}${query}`;
      const key = path === '/ws' ? ['Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=='] : [];
      const lines = [`${method} ${target} HTTP/1.1`, 'Host: x', ...headers, ...key, ...more];
      return wire.raw(`${lines.join('\r\n')}\r\n\r\n`, (text) => text.includes('\r\n\r\n{'));
    };
    const hinted = async (answer: Promise<string>, b: boolean, how: string): Promise<void> => {
      const text = await answer;
      t.ok(text.startsWith(`HTTP/1.1 ${status} `), `${what}: ${status}, ${how}`);
      t.equal(text.includes('"hint":"/docs/errors#'), b, `${what}: ${how}`);
    };
    await hinted(ask(''), false, 'the default');
    await hinted(ask('shape=b'), true, 'the query names it');
    await hinted(ask('', 'X-Wire-Shape: b'), true, 'the header names it');
    await hinted(ask('bin_id=x'), true, 'the query shows it');
    await hinted(ask('shape=a', 'X-Wire-Shape: b'), false, 'the query before the header');
  }
  const limited = await Scene.start(t, { env: { RATE_WRITE_PER_S: '1' } });
  for (const ask of [limited.as('b'), { token: limited.first.token }]) {
    const replies = await Promise.all(Array.from({ length: 5 }, () => limited.wire.post('/items', '{}', ask)));
    const refused = replies.filter(({ status }) => status === 429);
    t.ok(refused.length > 0);
    for (const reply of refused) t.equal(reply.at('error.hint') !== undefined, 'shape' in ask, 'the rate');
  }
  await limited.server.stop();
  const shown = await wire.post('/items?%zz', bodyOf('b'), token);
  t.equal(shown.outcome, '400 invalid_payload', 'the body shows the shape where the query is malformed');
});

t.test('SHAPE-27: a refusal in B names fields as B spells them', async (t) => {
  const pathOf = async (body: Json, shape: Shape = 'b'): Promise<unknown> => {
    const reply = await wire.post('/items', body, scene.as(shape));
    t.equal(reply.outcome, shape === 'b' ? '400 invalid_payload' : '400 validation');
    const path = reply.text('error.details.path');
    t.ok(reply.text('error.message').startsWith(`${path}: `), path);
    return path;
  };
  const item = scene.item({ keys: sealedFor(first.id) });
  const good = writeBody('b', scene.item());
  const stranger = newId();
  const wrapped = [...scene.ids, stranger].map((deviceId) => ({ deviceId, key: randomBytes(80) }));
  t.equal(await pathOf(writeBody('b', item)), 'wrapped', 'a device lacks its key');
  t.equal(await pathOf(writeBody('a', item), 'a'), 'payloadEnc.keys', 'and in A');
  t.equal(await pathOf({ ...good, wrapped }), `wrapped.${stranger}`, 'an unknown device');
  for (const key of ['nonce', 'ct', 'wrapped'] as const) t.equal(await pathOf({ ...good, [key]: undefined }), key);
  t.equal(await pathOf({ ...good, binId: '/' }), 'bin_id');
  t.equal(await pathOf({ ...good, nonce: 'AA' }), 'nonce');
  t.equal(await pathOf({ ...good, wrapped: [{ deviceId: first.id }] }), 'wrapped[0].key');
  t.equal(await pathOf({ ...good, wrapped: [{ key: 'AA' }] }), 'wrapped[0].device_id');
  t.equal(await pathOf({ ...good, master: { nonce: 'AA', ct: 'AA' } }), 'master.nonce');
  t.equal(await pathOf({ ...good, blobNonce: randomBytes(24) }), 'blob_ref');
  const blobRef = `${newId()}.bin`;
  const one = wrapped.slice(0, 1);
  t.equal(await pathOf({ ...good, ct: '', blobRef, wrapped: one }), 'wrapped', "a blob's keys stand in `wrapped`");
  t.equal(await pathOf({ ...good, ct: '', blobRef, wrapped }), `wrapped.${stranger}`);
  const named = { ...good, ct: '', blobRef, blobNonce: randomBytes(24) };
  t.equal(await pathOf({ ...named, blobKeys: one }), 'blob_keys', 'unless they have a place of their own');
  t.equal(await pathOf({ ...named, blobKeys: wrapped }), `blob_keys.${stranger}`);
  const batch = await wire.post('/items/batch', { items: [writeBody('b', item)] }, scene.as('b'));
  t.match(batch.list('results')[0], { error: { details: { path: 'wrapped' }, message: /^wrapped: / } }, 'in a batch');
  const mixed = await wire.post('/items', '{"binId":"inbox","ct":""}', token);
  t.equal(mixed.at('error.details.path'), 'ct', 'a mixture');
});

/** Every endpoint once, in a shape, with successes and refusals. */
async function tour(shape: Shape): Promise<Map<string, Reply>> {
  const other = await Scene.start(t);
  const as = other.as(shape);
  const out = new Map<string, Reply>();
  const ask = async (method: string, path: string, body?: Json, more: Ask = as): Promise<Reply> => {
    const reply = await other.wire.ask(method, path, { ...more, shape, body });
    out.set(`${method} ${path.replaceAll(/[0-9A-Z]{26}/g, ':id')} ${reply.status} ${out.size}`, reply);
    return reply;
  };
  const open = { shape };
  await ask('GET', '/health', undefined, open);
  await ask('GET', '/service/status', undefined, open);
  await ask('GET', '/me');
  const item = other.item();
  const { version } = camel((await ask('POST', '/items', writeBody(shape, item))).body);
  await ask('POST', '/items', writeBody(shape, other.item({ keys: sealedFor(other.first.id) })));
  await ask('POST', '/items', writeBody(shape, { ...item, ifVersion: 99, ct: randomBytes(20) }));
  await ask('POST', '/items/batch', {
    items: [writeBody(shape, other.item()), writeBody(shape, other.item({ keys: {} }))],
  });
  await ask('POST', `/items/${item.id}/reconcile`, { binId: 'inbox', version, sig: randomBytes(32) });
  await ask('GET', '/items?since=0&limit=1');
  await ask('GET', '/items?since=0&limit=1&epoch=other');
  await ask('DELETE', `/items/${item.id}`, { sig: randomBytes(32) });
  await ask('GET', '/items?since=0');
  await ask('POST', '/bins', { id: 'my_bin', meta: randomBytes(8) });
  await ask('PATCH', '/bins/my_bin', { slug: 'other-slug' });
  await ask('GET', '/bins');
  await ask('DELETE', '/bins/my_bin', { force: true });
  await ask('GET', '/devices');
  await ask('PATCH', `/devices/${other.first.id}`, { name: 'renamed', cert: randomBytes(32) });
  await ask('POST', '/ws-ticket', {});
  const code = newCode();
  await ask('POST', '/devices/pair-init', { code, epk: randomBytes(32) });
  await ask('POST', '/devices/pair-fetch-epk', { code }, open);
  const held = other.wire.post('/devices/pair-fetch-npk', npkBody(code), open);
  await waitForRequest(other.wire, other.first);
  await ask('GET', '/devices/pair-requests');
  await ask('POST', '/devices/pair-wrap', wrapBody(code));
  out.set('POST /devices/pair-fetch-npk', await held);
  await ask('POST', '/devices/reauth/challenge', { deviceId: other.first.id }, open);
  await ask(
    'POST',
    '/devices/reauth',
    { deviceId: other.first.id, challengeId: newId(), answer: randomBytes(32) },
    open,
  );
  await ask('POST', '/devices/recover/challenge', {}, open);
  await ask('GET', '/password/exists', undefined, open);
  await ask('POST', '/password/set', { password: 'p' });
  await ask('POST', '/password/verify', { password: 'p' }, open);
  await ask('POST', '/password/verify', { password: 'q' }, open);
  await ask('POST', `/devices/${other.second.id}/revoke`, {});
  await ask('POST', '/devices/bootstrap', {}, open);
  await ask('POST', '/devices/bootstrap', { name: 'x', glyph: 'phone', pubkey: randomBytes(32) }, open);
  await ask('POST', '/devices/bootstrap/restart', {}, { token: ADMIN_TOKEN });
  const claimed = await ask(
    'POST',
    '/devices/bootstrap',
    { name: 'x', glyph: 'phone', pubkey: randomBytes(32), wrappedMasterKey: randomBytes(80) },
    open,
  );
  if (claimed.status !== 200) throw new Error(`the tour did not end well: ${claimed.raw}`);
  await other.server.stop();
  return out;
}

t.test('SHAPE-11 SHAPE-08 SHAPE-13: every endpoint has the same fields in both shapes, B in snake_case', async (t) => {
  const [a, b] = [await tour('a'), await tour('b')];
  /** The kinds of a reply's fields, by camelCase path; array entries count as one. */
  const fieldsOf = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.length === 0 ? [] : [fieldsOf(value[0])];
    if (value === null || typeof value !== 'object') return value === null ? 'null' : typeof value;
    // lastSeenAt is stored about a second later, so only a slow tour sees it.
    const kind = (key: string, entry: unknown): unknown => (key === 'lastSeenAt' ? 'time' : fieldsOf(entry));
    return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, kind(key, entry)]));
  };
  t.same(
    [...b.values()].map((reply) => reply.status),
    [...a.values()].map((reply) => (reply.status === 410 ? 409 : reply.status)),
  );
  const inA = [...a.values()];
  let snakes = 0;
  for (const [index, [what, reply]] of [...b].entries()) {
    t.same(keysNotSnake(reply.body), [], what);
    snakes += /"[a-z]+_[a-z_]+":/.test(reply.raw) ? 1 : 0;
    if (what.includes('/items') || reply.status >= 400) continue;
    t.same(fieldsOf(camel(reply.body)), fieldsOf(inA[index]?.body), `${what}: the same fields in A`);
  }
  t.ok(snakes > 15, 'the tour saw keys of several words');
  t.ok(
    [...a.values()].every((reply) => !/"[a-z]+_[a-z_]+":/.test(reply.raw)),
    'A has no such key',
  );
});
