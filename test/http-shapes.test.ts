/** The two wire shapes: how the shape of a request is decided, and how it affects every reply and frame. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import {
  newCode,
  newId,
  npkBody,
  publicKeyOf,
  sealedFor,
  waitForRequest,
  wrapBody,
  writeBody,
} from './support/devices.js';
import { Scene } from './support/scene.js';
import { ADMIN_TOKEN } from './support/server.js';
import { camel, keysNotSnake, SHAPES, spelled, type Ask, type Json, type Reply, type Shape } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first, second } = scene;
const token = { token: first.token };

/** The shape a reply is in: a write that is refused shows it by its code, an accepted one by `server_ts`. */
function shapeOf(reply: Reply): Shape {
  const code = reply.at('error.code');
  if (code === 'invalid_payload' || reply.at('error.hint') !== undefined || reply.at('server_ts') !== undefined)
    return 'b';
  return 'a';
}

const bodyOf = (shape: Shape): string => JSON.stringify(spelled(shape, writeBody(shape, scene.item())));

t.test('SHAPE-01 SHAPE-02 SHAPE-08 SHAPE-09: a named shape decides, whatever the body shows', async (t) => {
  for (const named of SHAPES) {
    const ways: readonly (readonly [string, Ask])[] = [
      [`/items?shape=${named}`, token],
      ['/items', { ...token, headers: { 'x-wire-shape': named } }],
    ];
    for (const [path, ask] of ways) {
      const right = await wire.post(path, bodyOf(named), ask);
      t.equal(right.status, 200);
      t.equal(shapeOf(right), named);
      const wrong = await wire.post(path, bodyOf(named === 'a' ? 'b' : 'a'), ask);
      t.equal(
        wrong.outcome,
        named === 'a' ? '400 validation' : '400 invalid_payload',
        'the body is invalid in the named shape',
      );
      t.equal(shapeOf(wrong), named);
    }
    const refused = await wire.post('/items', { id: 'x' }, { ...token, headers: { 'x-wire-shape': named } });
    t.equal(refused.at('error.hint'), named === 'b' ? '/docs/errors#invalid_payload' : undefined);
  }
  const bad = await wire.post('/items', bodyOf('a'), { ...token, headers: { 'x-wire-shape': 'c' } });
  t.equal(bad.outcome, '400 validation', 'no such shape');
});

t.test('SHAPE-03 SHAPE-04 SHAPE-05 SHAPE-06: where no shape is named, typical fields decide', async (t) => {
  for (const [shape, marks] of [
    ['b', ['bin_id', 'ct', 'wrapped', 'size', 'content_type']],
    ['a', ['binId', 'payloadEnc', 'blobRef', 'contentLength', 'contentType']],
  ] as const) {
    t.equal(shapeOf(await wire.post('/items', bodyOf(shape), token)), shape, `a write in ${shape}`);
    for (const mark of marks) {
      const other = shape === 'a' ? 'b' : 'a';
      const reply = await wire.post('/items', JSON.stringify({ id: 7, [mark]: 'x' }), token);
      t.equal(shapeOf(reply), shape, mark);
      const named = await wire.post('/items', JSON.stringify({ id: 7, [mark]: 'x' }), {
        token: first.token,
        shape: other,
      });
      t.equal(shapeOf(named), other, `${mark}, but ${other} is named`);
    }
  }
  const mixed = { ...(JSON.parse(bodyOf('a')) as Json), bin_id: 'inbox' };
  const reply = await wire.post('/items', JSON.stringify(mixed), token);
  t.equal(reply.outcome, '400 invalid_payload', 'a mixture is refused');
  t.equal((await wire.get('/items?since=0&bin_id=inbox', token)).at('has_more'), false, 'bin_id in the query is B');
  t.equal((await wire.get('/items?since=0&bin_id=inbox&shape=a', token)).at('hasMore'), false, 'unless A is named');
});

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

t.test('SHAPE-07 SHAPE-10: WIRE_SHAPE decides where a request neither names nor shows a shape', async (t) => {
  for (const configured of SHAPES) {
    const other = await Scene.start(t, { env: { WIRE_SHAPE: configured } });
    const me = await other.wire.get('/me', { token: other.first.token });
    t.equal(me.at('device.paired_at') === undefined, configured === 'a');
    t.equal((await other.wire.get('/nothing')).at('error.hint') === undefined, configured === 'a', 'an error');
    const token = { token: other.first.token };
    const named = await other.wire.patch(`/devices/${other.first.id}`, '{"name":"desk"}', token);
    t.equal(named.at('device.paired_at') === undefined, configured === 'a', 'a body without a mark of either shape');
    const batch = await other.wire.post('/items/batch', '{"items":[{}]}', token);
    t.match(batch.list('results'), [{ error: { code: configured === 'a' ? 'validation' : 'invalid_payload' } }]);
    const sockets = { none: undefined, a: 'a', b: 'b' } as const;
    for (const shape of Object.values(sockets)) {
      const socket = await other.wire.connect({ token: other.second.token, ...(shape ? { shape } : {}) });
      await socket.hello();
      await other.written();
      const frame = await socket.next('item');
      t.equal('item' in frame, (shape ?? configured) === 'b', `a socket with ${shape ?? 'no shape'}`);
      await socket.close();
    }
    await other.server.stop();
  }
});

t.test('SHAPE-13: a B request may spell its keys in snake_case or in camelCase', async (t) => {
  const code = newCode();
  const started = await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, scene.as('b'));
  t.equal(started.status, 200);
  const asked = spelled('a', npkBody(code)) as Json;
  const held = wire.post('/devices/pair-fetch-npk', JSON.stringify(asked), { shape: 'b' });
  await waitForRequest(wire, first);
  const wrong = spelled('b', { ...wrapBody(code), wrappedMasterKey: undefined }) as Json;
  const mixed = { ...wrong, wrappedMasterKey: randomBytes(80).toString('base64'), reject: false };
  t.equal((await wire.post('/devices/pair-wrap', JSON.stringify(mixed), scene.as('b'))).outcome, '200');
  const paired = await held;
  t.equal(paired.at('device.id'), asked['deviceId']);
  t.equal((await wire.post(`/devices/${paired.text('device.id')}/revoke`, {}, scene.as('b'))).status, 200);
  const item = scene.item();
  const camelWrite = spelled('a', {
    ...writeBody('b', item),
    wrapped: Object.entries(item.keys).map(([deviceId, key]) => ({ deviceId, key })),
  });
  t.equal((await wire.post('/items', JSON.stringify(camelWrite), scene.as('b'))).outcome, '200', 'a write');
  const twice = { ...(spelled('b', writeBody('b', scene.item())) as Json), binId: 'inbox' };
  t.equal(
    (await wire.post('/items', JSON.stringify(twice), scene.as('b'))).outcome,
    '400 invalid_payload',
    'one key in both spellings',
  );
});

t.test('SHAPE-21 SHAPE-23 SHAPE-24: base64 and base64url are accepted, with and without padding', async (t) => {
  const bytes = Buffer.from('fbefbefbefbeffffff3ffbefbefbefbeffffff3ffbefbefbefbeffffff3ffb3f', 'hex');
  const spellings = [
    bytes.toString('base64'),
    bytes.toString('base64').replaceAll('=', ''),
    bytes.toString('base64url'),
  ];
  const padded = bytes.toString('base64url').padEnd(Math.ceil(bytes.length / 3) * 4, '=');
  for (const shape of SHAPES) {
    for (const text of [...spellings, padded]) {
      const item = scene.item();
      const body = spelled(shape, writeBody(shape, item)) as Record<string, unknown>;
      const holder = shape === 'a' ? (body['payloadEnc'] as Record<string, unknown>) : body;
      holder['sig'] = text;
      holder['ct'] = text;
      t.equal((await wire.post('/items', JSON.stringify(body), scene.as(shape))).outcome, '200', text);
      const a = (await scene.row(item.id, 'a'))?.['payloadEnc'] as Json;
      const b = await scene.row(item.id, 'b');
      t.same([a['sig'], a['ct']], [bytes.toString('base64url'), bytes.toString('base64url')]);
      t.same([b?.['sig'], b?.['ct']], [bytes.toString('base64'), bytes.toString('base64')]);
    }
  }
  const bin = await wire.post('/bins', { id: newId(), meta: bytes }, scene.as('a'));
  t.equal(bin.at('bin.meta'), bytes.toString('base64url'));
  const inB = (await wire.get('/bins', scene.as('b'))).list('bins').find((entry) => entry['id'] === bin.at('bin.id'));
  t.equal(inB?.['meta'], bytes.toString('base64'));
  const devices = async (shape: Shape): Promise<unknown> =>
    (await wire.get('/devices', scene.as(shape))).list('devices')[0]?.['pubkey'];
  t.same(await devices('a'), publicKeyOf(first).toString('base64url'));
  t.same(await devices('b'), publicKeyOf(first).toString('base64'));
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

t.test('SHAPE-12: every frame in B is snake_case', async (t) => {
  const socket = await wire.connect({ token: first.token, shape: 'b' });
  await socket.hello(0, { acks: true });
  const code = newCode();
  await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, scene.as('a'));
  const held = wire.post('/devices/pair-fetch-npk', npkBody(code), { shape: 'a' });
  await socket.next('pair_request');
  await wire.post('/devices/pair-wrap', wrapBody(code), scene.as('a'));
  const joined = (await held).text('device.id');
  await socket.next('device_joined');
  await wire.post(`/devices/${joined}/revoke`, {}, scene.as('a'));
  await socket.next('device_revoked');
  await wire.post('/bins', { id: 'framed' }, scene.as('a'));
  await socket.next('bin');
  const item = scene.item();
  await wire.post('/items', writeBody('a', item), scene.as('a', second));
  await socket.next('item');
  await wire.delete(`/items/${item.id}`, scene.as('a', second));
  await socket.next('delete');
  await scene.written();
  await socket.next('ack');
  socket.send({ type: 'ping' });
  await socket.next('pong');
  for (const frame of socket.frames) t.same(keysNotSnake(frame), [], String(frame['type']));
  const seen = new Set(socket.frames.map((frame) => frame['type']));
  for (const type of [
    'caught_up',
    'pair_request',
    'device_joined',
    'device_revoked',
    'bin',
    'item',
    'delete',
    'ack',
    'pong',
  ]) {
    t.ok(seen.has(type), `a ${type} frame was seen`);
  }
  t.match(socket.of('caught_up')[0], { version: Number, epoch: String, item_count: Number, version_sum: Number });
  await socket.close();
});
