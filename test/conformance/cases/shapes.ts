/** Wire shapes. */
import { randomBytes } from 'node:crypto';
import {
  newCode,
  newId,
  publicKeyOf,
  waitForRequest,
  wrapBody,
  writeBody,
  type TestItem,
} from '../../support/devices.js';
import { keysNotSnake, SHAPES, spelled, type Ask, type Json, type Reply, type Shape } from '../../support/wire.js';
import { CODES, otherShape, type Case, type Stage, fields } from '../stage.js';

/** The shape a reply to a write is in: a refusal shows it by code and hint, a success by `server_ts`. */
function shapeOf(reply: Reply): Shape {
  const code = reply.at('error.code');
  const inB = code === 'invalid_payload' || reply.at('error.hint') !== undefined || reply.at('server_ts') !== undefined;
  return inB ? 'b' : 'a';
}

const bodyOf = (stage: Stage, shape: Shape): string => JSON.stringify(spelled(shape, writeBody(shape, stage.item())));

const named: Case = {
  ids: ['SHAPE-01', 'SHAPE-02', 'SHAPE-08', 'SHAPE-09'],
  async run(stage, check) {
    const { wire, shape, first } = stage;
    const token = { token: first.token };
    const ways: readonly (readonly [string, string, Ask])[] = [
      ['SHAPE-01', `/items?shape=${shape}`, token],
      ['SHAPE-02', '/items', { ...token, headers: { 'x-wire-shape': shape } }],
    ];
    for (const [id, path, ask] of ways) {
      const right = await wire.post(path, bodyOf(stage, shape), ask);
      check.outcome(id, right, '200', 'a write in the named shape');
      check.same('SHAPE-08', shapeOf(right), shape, 'shape of the success');
      const wrong = await wire.post(path, bodyOf(stage, otherShape(shape)), ask);
      check.outcome(id, wrong, CODES.validation[shape], 'a body of the other shape, read in the named one');
      check.same('SHAPE-09', shapeOf(wrong), shape, 'shape of the refusal');
    }
    const none = await wire.post('/items', bodyOf(stage, 'a'), { ...token, headers: { 'x-wire-shape': 'c' } });
    check.outcome('SHAPE-02', none, Object.values(CODES.validation), 'a shape that does not exist');
  },
};

const MARKS = {
  a: ['binId', 'payloadEnc', 'blobRef', 'contentLength', 'contentType'],
  b: ['bin_id', 'ct', 'wrapped', 'size', 'content_type'],
} as const;

const shown: Case = {
  ids: ['SHAPE-02', 'SHAPE-03', 'SHAPE-04', 'SHAPE-05', 'SHAPE-06'],
  once: true,
  async run(stage, check) {
    const { wire, first, world } = stage;
    const token = { token: first.token };
    for (const shape of SHAPES) {
      const id = shape === 'a' ? 'SHAPE-04' : 'SHAPE-03';
      check.same(
        id,
        shapeOf(await wire.post('/items', bodyOf(stage, shape), token)),
        shape,
        `shape of the reply to a write in ${shape}`,
      );
      for (const mark of MARKS[shape]) {
        const reply = await wire.post('/items', JSON.stringify({ id: 7, [mark]: 'x' }), token);
        check.of(id, reply, shapeOf(reply) === shape, `a body with '${mark}' is read as ${shape}`);
        const other = otherShape(shape);
        const inOther = await wire.post('/items', JSON.stringify({ id: 7, [mark]: 'x' }), { ...token, shape: other });
        check.of('SHAPE-02', inOther, shapeOf(inOther) === other, `a body with '${mark}' that is named ${other}`);
      }
    }
    const mixed = { ...(JSON.parse(bodyOf(stage, 'a')) as Json), bin_id: world.bin };
    check.outcome(
      'SHAPE-06',
      await wire.post('/items', JSON.stringify(mixed), token),
      '400 invalid_payload',
      'both marks',
    );
    const listed = await wire.get(`/items?since=0&limit=1&bin_id=${world.bin}`, token);
    check.of(
      'SHAPE-05',
      listed,
      typeof listed.at('has_more') === 'boolean',
      'bin_id in the query makes it B: has_more',
    );
    const inA = await wire.get(`/items?since=0&limit=1&bin_id=${world.bin}&shape=a`, token);
    check.of('SHAPE-01', inA, typeof inA.at('hasMore') === 'boolean', 'shape=a decides beside bin_id: hasMore');
  },
};

const fallback: Case = {
  ids: ['SHAPE-07', 'SHAPE-10'],
  once: true,
  async run(stage, check) {
    const { wire, second } = stage;
    const me = await wire.get('/me', { token: stage.first.token });
    const configured: Shape = me.at('device.paired_at') === undefined ? 'a' : 'b';
    const refused = await wire.get('/nothing');
    const hinted = refused.at('error.hint') !== undefined;
    check.of('SHAPE-07', refused, hinted === (configured === 'b'), `the same WIRE_SHAPE (${configured}) as /me shows`);
    const token = { token: stage.first.token };
    const named = await wire.patch(`/devices/${stage.first.id}`, '{"name":"desk"}', token);
    const unmarked = named.at('device.paired_at') === undefined ? 'a' : 'b';
    check.of('SHAPE-07', named, unmarked === configured, `${configured} for a body without a mark of either shape`);
    const batch = await wire.post('/items/batch', '{"items":[{}]}', token);
    const [result] = batch.list('results');
    const code = `400 ${String(fields(result?.['error'])['code'])}`;
    check.of('SHAPE-07', batch, code === CODES.validation[configured], `${configured} for a write without a mark`);
    for (const shape of [undefined, 'a', 'b'] as const) {
      const socket = await stage.connect({ token: second.token, ...(shape === undefined ? {} : { shape }) });
      await socket.hello(await stage.head());
      await stage.written();
      const frame = await socket.next('item');
      const want = shape ?? configured;
      check.same(
        'SHAPE-10',
        'item' in frame ? 'b' : 'a',
        want,
        `shape of the frames of a socket opened with shape ${shape ?? 'none'}`,
      );
    }
  },
};

/** Replies in B of endpoints that neither add nor remove a device. */
async function tour(stage: Stage): Promise<Reply[]> {
  const { wire, first, world } = stage;
  const out: Reply[] = [];
  const ask = async (method: string, path: string, body?: Json, more: Ask = stage.as('b')): Promise<Reply> => {
    const reply = await wire.ask(method, path, { ...more, shape: 'b', body });
    out.push(reply);
    return reply;
  };
  const item = stage.item();
  for (const path of ['/health', '/service/status', '/password/exists']) await ask('GET', path, undefined, {});
  for (const path of ['/me', '/bins', '/devices', '/devices/pair-requests']) await ask('GET', path);
  const { version } = fields((await ask('POST', '/items', writeBody('b', item))).body);
  await ask('POST', '/items', writeBody('b', stage.item({ keys: {} })));
  await ask('POST', '/items', writeBody('b', { ...item, ifVersion: 99, ct: randomBytes(20) }));
  await ask('POST', '/items/batch', {
    items: [writeBody('b', stage.item()), writeBody('b', stage.item({ keys: {} }))],
  });
  await ask('POST', `/items/${item.id}/reconcile`, { binId: world.bin, version, sig: randomBytes(32) });
  await ask('GET', `/items?since=${stage.base}&limit=1`);
  await ask('GET', '/items?since=0&limit=1&epoch=other');
  await ask('DELETE', `/items/${item.id}`, { sig: randomBytes(32) });
  await ask('GET', `/items?since=${stage.base}`);
  const bin = stage.ownBin(newId());
  await ask('POST', '/bins', { id: bin, meta: randomBytes(8) });
  await ask('PATCH', `/bins/${bin}`, { slug: `s-${newId().toLowerCase()}` });
  await ask('DELETE', `/bins/${bin}`, { force: true });
  await ask('PATCH', `/devices/${first.id}`, { name: 'renamed' });
  await ask('POST', '/ws-ticket', {});
  const code = newCode();
  await ask('POST', '/devices/pair-init', { code, epk: randomBytes(32) });
  await ask('POST', '/devices/pair-fetch-epk', { code }, {});
  const held = wire.post('/devices/pair-fetch-npk', await world.npkBody(code), { shape: 'b' });
  await waitForRequest(wire, first);
  await ask('GET', '/devices/pair-requests');
  await ask('POST', '/devices/pair-wrap', { code, reject: true });
  out.push(await held);
  await ask('POST', '/devices/reauth/challenge', { deviceId: first.id }, {});
  await ask('POST', '/devices/recover/challenge', {}, {});
  await ask('POST', '/devices/bootstrap', {}, {});
  return out;
}

const snake: Case = {
  ids: ['SHAPE-11', 'SHAPE-13'],
  once: true,
  async run(stage, check) {
    const { wire, first } = stage;
    for (const reply of await tour(stage)) {
      const wrong = keysNotSnake(reply.body);
      check.of('SHAPE-11', reply, wrong.length === 0, `every key in snake_case, not ${wrong.join(', ')}`);
    }
    const code = newCode();
    const started = await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, stage.as('b'));
    check.outcome('SHAPE-13', started, '200', 'pair-init in snake_case');
    const body = JSON.stringify(spelled('a', await stage.world.npkBody(code)));
    const held = wire.post('/devices/pair-fetch-npk', body, { shape: 'b' });
    await waitForRequest(wire, first);
    const wrap = spelled('b', { ...wrapBody(code), wrappedMasterKey: undefined }) as Json;
    const mixed = JSON.stringify({ ...wrap, wrappedMasterKey: randomBytes(80).toString('base64') });
    check.outcome(
      'SHAPE-13',
      await wire.post('/devices/pair-wrap', mixed, stage.as('b')),
      '200',
      'both spellings in B',
    );
    const paired = await held;
    stage.adopt({ ...first, id: paired.text('device.id'), token: paired.text('token') });
    const item = stage.item();
    const camelWrite = JSON.stringify(spelled('a', writeBody('b', item)));
    check.outcome('SHAPE-13', await wire.post('/items', camelWrite, stage.as('b')), '200', 'a write in camelCase');
    const twice = { ...(spelled('b', writeBody('b', stage.item())) as Json), binId: stage.world.bin };
    const both = await wire.post('/items', JSON.stringify(twice), stage.as('b'));
    check.outcome('SHAPE-13', both, CODES.validation.b, 'one key in both spellings');
  },
};

const FRAMES = ['caught_up', 'pair_request', 'device_joined', 'device_revoked', 'bin', 'item', 'delete', 'ack', 'pong'];

const frames: Case = {
  ids: ['SHAPE-12'],
  once: true,
  async run(stage, check) {
    const { wire, first, second } = stage;
    const socket = await stage.watch(first, 'b', { acks: true });
    const code = newCode();
    await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, stage.as('a'));
    const held = wire.post('/devices/pair-fetch-npk', await stage.world.npkBody(code), { shape: 'a' });
    await socket.next('pair_request');
    await wire.post('/devices/pair-wrap', wrapBody(code), stage.as('a'));
    const joined = (await held).text('device.id');
    await socket.next('device_joined');
    await stage.world.revoke({ id: joined });
    await socket.next('device_revoked');
    await stage.bin();
    await socket.next('bin');
    const item = await stage.written({}, second);
    await socket.next('item');
    await stage.remove(item.id, undefined, second);
    await socket.next('delete');
    await stage.written();
    await socket.next('ack');
    socket.send({ type: 'ping' });
    await socket.next('pong');
    for (const frame of socket.frames) {
      check.same('SHAPE-12', keysNotSnake(frame), [], `keys of '${String(frame['type'])}' that are not snake_case`);
    }
    const seen = new Set(socket.frames.map((frame) => String(frame['type'])));
    check.same(
      'SHAPE-12',
      FRAMES.filter((type) => !seen.has(type)),
      [],
      'types of frames that did not arrive',
    );
  },
};

/** The item's fields as a row of a shape gives them. */
function rowOf(shape: Shape, item: TestItem, more: Json): Json {
  const { id, binId, type, ts, ct, nonce, keys, master, sig } = item;
  const blob = { blobRef: null, blobNonce: null, blobKeys: null };
  const payloadEnc = { ct, nonce, keys, master, sig };
  if (shape === 'a')
    return spelled('a', { id, binId, type, ts, deletedAt: null, payloadEnc, ...blob, ...more }) as Json;
  const wrapped = Object.entries(keys).map(([deviceId, key]) => ({ deviceId, key }));
  return spelled('b', {
    id,
    binId,
    type,
    ts,
    deletedAt: null,
    ct,
    nonce,
    wrapped,
    master,
    sig,
    ...blob,
    ...more,
  }) as Json;
}

const byDevice = (row: Json): Json => {
  const wrapped = row['wrapped'];
  if (!Array.isArray(wrapped)) return row;
  const sorted = (wrapped as Json[]).toSorted((x, y) => String(x['device_id']).localeCompare(String(y['device_id'])));
  return { ...row, wrapped: sorted };
};

const rows: Case = {
  ids: ['ITEM-02', 'SHAPE-14', 'SHAPE-15', 'SHAPE-16', 'SHAPE-17', 'SHAPE-18', 'SHAPE-23', 'SHAPE-24', 'SHAPE-25'],
  async run(stage, check) {
    const { first, shape } = stage;
    const item = stage.item({ ct: randomBytes(61), type: 'code' });
    const reply = await stage.write(item);
    const version = reply.number('version');
    for (const reading of SHAPES) {
      const found = byDevice(await stage.row(item.id, reading));
      const who = reading === 'a' ? { senderDevice: first.id } : { sender_device: first.id };
      const want = byDevice(rowOf(reading, item, { version, ...who }));
      const what = `the row in ${reading} of an item written in ${shape}`;
      if (reading === shape) check.same('ITEM-02', found, want, what);
      else check.same(shape === 'a' ? 'SHAPE-14' : 'SHAPE-15', found, want, what);
      check.same(
        reading === 'a' ? 'SHAPE-25' : 'SHAPE-17',
        Object.keys(found).sort(),
        Object.keys(want).sort(),
        `fields of ${what}`,
      );
      const keys = reading === 'a' ? fields(found['payloadEnc'])['keys'] : found['wrapped'];
      check.same(
        'SHAPE-16',
        keys,
        reading === 'a' ? fields(want['payloadEnc'])['keys'] : want['wrapped'],
        `keys of ${what}`,
      );
      const ct = reading === 'a' ? fields(found['payloadEnc'])['ct'] : found['ct'];
      check.same(reading === 'a' ? 'SHAPE-23' : 'SHAPE-24', ct, spelled(reading, item.ct), `ct of ${what}`);
      if (reading === 'b')
        check.same(
          'SHAPE-18',
          [found['master'], found['sig']],
          [want['master'], want['sig']],
          `master and sig of ${what}`,
        );
    }
    for (const id of check.ids) check.skip(id, `not looked at in shape ${shape}`);
  },
};

const base64: Case = {
  ids: ['SHAPE-21', 'SHAPE-22', 'SHAPE-23', 'SHAPE-24'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const bytes = Buffer.from('fbefbefbefbeffffff3ffbefbefbefbeffffff3ffbefbefbefbeffffff3ffb3f', 'hex');
    const [std, url] = [bytes.toString('base64'), bytes.toString('base64url')];
    const body = (item: TestItem, text: string): string => {
      const json = spelled(shape, writeBody(shape, item)) as Record<string, unknown>;
      const holder = shape === 'a' ? (json['payloadEnc'] as Record<string, unknown>) : json;
      holder['sig'] = text;
      holder['ct'] = text;
      return JSON.stringify(json);
    };
    for (const text of [std, std.replaceAll('=', ''), url, url.padEnd(44, '=')]) {
      const item = stage.item();
      check.outcome('SHAPE-21', await wire.post('/items', body(item, text), stage.as()), '200', text);
      const a = fields((await stage.row(item.id, 'a'))['payloadEnc']);
      const b = await stage.row(item.id, 'b');
      check.same('SHAPE-23', [a['sig'], a['ct']], [url, url], `sig and ct in A, written as ${text}`);
      check.same('SHAPE-24', [b['sig'], b['ct']], [std, std], `sig and ct in B, written as ${text}`);
    }
    for (const text of [
      ` ${std}`,
      `${std}\n`,
      `${std.slice(0, 8)} ${std.slice(8)}`,
      `${std.slice(0, 8)}\t${std.slice(8)}`,
    ]) {
      const reply = await wire.post('/items', body(stage.item(), text), stage.as());
      check.outcome('SHAPE-22', reply, CODES.validation[shape], JSON.stringify(text));
    }
    const bin = stage.ownBin(newId());
    await wire.post('/bins', { id: bin, meta: bytes }, stage.as('a'));
    const meta = (await wire.get('/bins', stage.as())).list('bins').find(({ id }) => id === bin)?.['meta'];
    check.same(shape === 'a' ? 'SHAPE-23' : 'SHAPE-24', meta, spelled(shape, bytes), 'meta in /bins');
    const pubkey = (await wire.get('/devices', stage.as())).list('devices').find(({ id }) => id === stage.first.id)?.[
      'pubkey'
    ];
    check.same(
      shape === 'a' ? 'SHAPE-23' : 'SHAPE-24',
      pubkey,
      spelled(shape, publicKeyOf(stage.first)),
      'pubkey in /devices',
    );
  },
};

const reversed = (members: object): object => Object.fromEntries(Object.entries(members).reverse());

const spellings: Case = {
  ids: ['SHAPE-28'],
  async run(stage, check) {
    const { wire, first } = stage;
    const ask = { token: first.token, headers: { 'x-wire-shape': 'a' } } as const;
    const ways: readonly (readonly [string, (body: Readonly<Record<string, unknown>>) => string])[] = [
      [
        'in another order',
        (body) => JSON.stringify(reversed({ ...body, payloadEnc: reversed(fields(body['payloadEnc'])) })),
      ],
      ['with white space', (body) => ` ${JSON.stringify(body, null, '\t')}\r\n`],
      [
        'with nulls',
        (body) => JSON.stringify({ ...body, blobRef: null, blobNonce: null, blobKeys: null, ifVersion: null }),
      ],
      ['with a member that nobody knows', (body) => JSON.stringify({ later: { x: [1, '"'] }, ...body })],
      ['with an escape in a name', (body) => JSON.stringify(body).replace('"binId"', '"bin\\u0049d"')],
      ['with an escape in a text', (body) => JSON.stringify(body).replace('"type":"t', '"type":"\\u0074')],
      [
        'with an escape in base64',
        (body) =>
          JSON.stringify(body)
            .replace('"nonce":"', '"nonce":"\\u0041')
            .replace(/("nonce":"\\u0041)./, '$1'),
      ],
      [
        'with a member that is given twice, the last one counts',
        (body) => JSON.stringify(body).replace('{', '{"binId":"none",'),
      ],
    ];
    for (const [way, spell] of ways) {
      const item = stage.item();
      const body = fields(spelled('a', writeBody('a', item)));
      const envelope = fields(body['payloadEnc']);
      const nonce = `A${String(envelope['nonce']).slice(1)}`;
      const sent = { ...body, type: 'text', payloadEnc: { ...envelope, nonce } };
      check.outcome('SHAPE-28', await wire.post('/items', spell(sent), ask), '200', way);
      const row = await stage.row(item.id, 'a');
      const found = fields(row['payloadEnc']);
      check.same(
        'SHAPE-28',
        [row['binId'], row['type'], found['nonce'], found['keys']],
        [body['binId'], 'text', nonce, envelope['keys']],
        way,
      );
    }
    for (const [what, spell] of [
      ['a comma too many', (json: string) => json.replace(/\}$/, ',}')],
      ['two values', (json: string) => `${json}{}`],
      ['an end that is missing', (json: string) => json.slice(0, -1)],
    ] as const) {
      const json = JSON.stringify(spelled('a', writeBody('a', stage.item())));
      check.outcome('SHAPE-28', await wire.post('/items', spell(json), ask), CODES.validation.a, what);
    }
  },
};

export const shapes: readonly Case[] = [
  named,
  { ...shown, ids: [...shown.ids, 'SHAPE-01'] },
  fallback,
  snake,
  frames,
  rows,
  base64,
  spellings,
];
