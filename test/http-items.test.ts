/** Writing items over HTTP, in both shapes. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { edited, join, mustWrite, newId, sealedFor, write, writeBody, type TestItem } from './support/devices.js';
import { at, camel, SHAPES, spelled, type Json, type Shape } from './support/wire.js';
import { ShiftedClock } from './support/clock.js';
import { Scene } from './support/scene.js';

const scene = await Scene.start(t);
const { wire, first, second } = scene;

const TYPES = ['password', 'link', 'text', 'code', 'image', 'file', 'audio', 'video', 'contact', 'location'];
const VALIDATION = { a: '400 validation', b: '400 invalid_payload' } as const;

/** The row of an item in a shape. */
function rowOf(shape: Shape, item: TestItem, more: Json): Json {
  const { id, binId, type, ts, ct, nonce, keys, master, sig } = item;
  const blob = { blobRef: null, blobNonce: null, blobKeys: null };
  if (shape === 'a') {
    const payloadEnc = { ct, nonce, keys, ...(master ? { master } : {}), ...(sig ? { sig } : {}) };
    return spelled('a', { id, binId, type, ts, deletedAt: null, payloadEnc, ...blob, ...more }) as Json;
  }
  const wrapped = Object.entries(keys).map(([deviceId, key]) => ({ deviceId, key }));
  const row = { id, binId, type, ts, deletedAt: null, ct, nonce, wrapped, master, sig, ...blob, ...more };
  return spelled('b', row) as Json;
}

const byDevice = (row: Json): Json => {
  const wrapped = row['wrapped'];
  if (!Array.isArray(wrapped)) return row;
  const sorted = (wrapped as Json[]).toSorted((x, y) => String(x['device_id']).localeCompare(String(y['device_id'])));
  return { ...row, wrapped: sorted };
};

for (const shape of SHAPES) {
  t.test(`ITEM-01 SHAPE-08: a new item is 200 with id and version (${shape})`, async (t) => {
    const item = scene.item();
    const reply = await write(wire, first, item, shape);
    t.equal(reply.status, 200);
    t.equal(reply.at('id'), item.id);
    t.ok(Number.isInteger(reply.at('version')));
    t.match(reply.headers['content-type'], /^application\/json/);
    if (shape === 'b')
      t.ok(Math.abs(reply.number('server_ts') - Date.now()) < 60_000, 'server_ts is milliseconds of now');
  });

  t.test(
    `ITEM-02 SHAPE-14 SHAPE-15 SHAPE-16 SHAPE-17 SHAPE-18 SHAPE-23 SHAPE-24 SHAPE-25: written in ${shape}, read in both`,
    async (t) => {
      const item = scene.item({ ct: randomBytes(61), type: 'code' });
      const reply = await write(wire, first, item, shape);
      const version = reply.number('version');
      for (const reading of SHAPES) {
        const row = await scene.row(item.id, reading);
        const who = reading === 'a' ? { senderDevice: first.id } : { sender_device: first.id };
        t.same(byDevice(row ?? {}), byDevice(rowOf(reading, item, { version, ...who })), `read in ${reading}`);
      }
    },
  );

  t.test(`ITEM-06: each of the ten types, and no other (${shape})`, async (t) => {
    for (const type of TYPES) t.equal((await write(wire, first, scene.item({ type }), shape)).status, 200, type);
    for (const type of ['note', 'Text', '', 'text ', '__proto__', 'constructor']) {
      t.equal(
        (await write(wire, first, scene.item({ type }), shape)).outcome,
        '400 unknown_type',
        JSON.stringify(type),
      );
    }
  });

  t.test(`ITEM-08: 65,536 bytes of ciphertext are accepted, one more is refused (${shape})`, async (t) => {
    t.equal((await write(wire, first, scene.item({ ct: randomBytes(65_536) }), shape)).status, 200);
    t.equal((await write(wire, first, scene.item({ ct: randomBytes(65_537) }), shape)).outcome, '400 item_too_large');
  });

  t.test(`ITEM-07 SHAPE-12: a later ts replaces the item and is pushed (${shape})`, async (t) => {
    const socket = await scene.watch(second, shape);
    const old = await scene.written();
    await socket.next('item');
    const replaced = edited(old);
    const reply = await write(wire, first, replaced, shape);
    t.equal(reply.number('version'), old.version + 1);
    const frame = camel(await socket.next());
    const pushed = (shape === 'a' ? frame : frame['item']) as Json;
    t.equal(pushed['version'], old.version + 1);
    const ct = at(pushed, shape === 'a' ? 'payloadEnc.ct' : 'ct');
    t.equal(ct, replaced.ct.toString(shape === 'a' ? 'base64url' : 'base64'));
    await socket.close();
  });

  t.test(`ITEM-26 ITEM-28: every device has a key, and no other id (${shape})`, async (t) => {
    const lacking = await write(wire, first, scene.item({ keys: sealedFor(first.id) }), shape);
    t.equal(lacking.outcome, VALIDATION[shape]);
    const details = shape === 'a' ? 'missingDevices' : 'missing_devices';
    t.same(lacking.at(`error.details.${details}`), [second.id]);
    const stranger = await write(wire, first, scene.item({ keys: sealedFor(...scene.ids, newId()) }), shape);
    t.equal(stranger.outcome, VALIDATION[shape]);
    t.notOk(stranger.at(`error.details.${details}`), 'no device is missing');
    const none = await write(wire, first, scene.item({ keys: {} }), shape);
    t.same((none.at(`error.details.${details}`) as string[]).toSorted(), scene.ids.toSorted());
  });
}

/** Values that a field must not have: [rule, field as A and B name it, bad values]. */
type Bad = readonly [rule: string, path: Readonly<Record<Shape, string>>, values: readonly unknown[]];

const both = (name: string): Readonly<Record<Shape, string>> => ({ a: name, b: name });
const inside = (name: string): Readonly<Record<Shape, string>> => ({ a: `payloadEnc.${name}`, b: name });
const bytes = (...sizes: readonly number[]): Buffer[] => sizes.map((size) => Buffer.alloc(size, 1));

const BAD: readonly Bad[] = [
  [
    'ITEM-03',
    both('id'),
    ['', 'x', newId().toLowerCase(), `8${newId().slice(1)}`, `${newId()}0`, newId().slice(1), 'I'.repeat(26), 7, null],
  ],
  ['ITEM-04', { a: 'binId', b: 'bin_id' }, ['', 'a'.repeat(65), 'in box', 'ä', '../x', 'a.b', 7, null, 'inbox\n']],
  [
    'ITEM-05',
    both('ts'),
    [1_700_000_000, 999_999_999_999, 1e12 + 0.5, 2 ** 53, -1e12, '1700000000000', null, true, [1e12]],
  ],
  ['ITEM-09', inside('ct'), bytes(1, 15)],
  ['ITEM-10', inside('ct'), ['', null, 7, {}]],
  ['ITEM-11', inside('nonce'), [...bytes(0, 23, 25, 12), null, 7]],
  ['ITEM-12', inside('sig'), [...bytes(0, 31, 33, 64), 7, {}]],
  [
    'ITEM-13',
    inside('master'),
    [
      {},
      'x',
      { nonce: Buffer.alloc(24) },
      { nonce: Buffer.alloc(23), ct: Buffer.alloc(48) },
      { nonce: Buffer.alloc(24), ct: Buffer.alloc(47) },
      { nonce: Buffer.alloc(25), ct: Buffer.alloc(48) },
      { nonce: Buffer.alloc(24), ct: Buffer.alloc(49) },
      [],
    ],
  ],
  [
    'SHAPE-22',
    inside('ct'),
    [
      'AAAA AAAA AAAA AAAA AAAA AAAA',
      `${'A'.repeat(40)}\n`,
      ` ${'A'.repeat(40)}`,
      `${'A'.repeat(20)}\t${'A'.repeat(20)}`,
    ],
  ],
  [
    'ERR-04',
    inside('ct'),
    ['*'.repeat(40), 'A'.repeat(41), `${'A'.repeat(38)}===`, '=', `${'A'.repeat(20)}=${'A'.repeat(20)}`],
  ],
];

/** `body` with the value at a dotted path replaced. */
function withValue(body: Record<string, unknown>, path: string, value: unknown): Record<string, unknown> {
  const [head = '', ...rest] = path.split('.');
  if (rest.length === 0) return { ...body, [head]: value };
  return { ...body, [head]: withValue(body[head] as Record<string, unknown>, rest.join('.'), value) };
}

for (const shape of SHAPES) {
  t.test(
    `ITEM-03 ITEM-04 ITEM-05 ITEM-09 ITEM-10 ITEM-11 ITEM-12 ITEM-13 ITEM-38 SHAPE-22 ERR-04 ERR-05: bad fields (${shape})`,
    async (t) => {
      const socket = await scene.watch();
      await scene.quietly(t, socket, async () => {
        for (const [rule, paths, values] of BAD) {
          for (const value of values) {
            const body = spelled(shape, writeBody(shape, scene.item())) as Record<string, unknown>;
            const bad = withValue(body, paths[shape], spelled(shape, value));
            const reply = await wire.post('/items', JSON.stringify(bad), { token: first.token, shape });
            const what = `${rule} ${paths[shape]} ${JSON.stringify(value)?.slice(0, 60)}`;
            t.equal(reply.outcome, VALIDATION[shape], what);
            const path = String(reply.at('error.details.path'));
            t.ok(path === paths[shape] || path.startsWith(`${paths[shape]}.`), `${what}: names ${path}`);
            t.ok(reply.text('error.message').includes(path), 'the message names the path');
            t.type(reply.at('error.details.rule'), 'string');
          }
        }
      });
      await socket.close();
    },
  );

  t.test(`ITEM-14 ITEM-15: sealed keys are 32 to 256 bytes, at most 1,000 of them (${shape})`, async (t) => {
    for (const [size, outcome] of [
      [31, VALIDATION[shape]],
      [32, '200'],
      [256, '200'],
      [257, VALIDATION[shape]],
    ] as const) {
      const keys = Object.fromEntries(scene.ids.map((id) => [id, randomBytes(size)]));
      t.equal((await write(wire, first, scene.item({ keys }), shape)).outcome, outcome, `${size} bytes`);
    }
    // There are not so many devices: up to 1,000 keys, the refusal names the first unknown id, beyond that the field.
    const path = shape === 'a' ? 'payloadEnc.keys' : 'wrapped';
    for (const [count, named] of [
      [1_000, new RegExp(`^${path}\\.[0-9A-Z]{26}$`)],
      [1_001, new RegExp(`^${path}$`)],
    ] as const) {
      const strangers = Array.from({ length: count - scene.ids.length }, () => [newId(), Buffer.alloc(32)] as const);
      const keys = { ...sealedFor(...scene.ids), ...Object.fromEntries(strangers) };
      const reply = await write(wire, first, scene.item({ keys }), shape);
      t.equal(reply.outcome, VALIDATION[shape]);
      t.match(reply.at('error.details.path'), named, `${count} keys`);
    }
  });

  t.test(`ITEM-20: a write into an unknown or deleted bin is 404 (${shape})`, async (t) => {
    t.equal((await write(wire, first, scene.item({ binId: 'nowhere' }), shape)).outcome, '404 bin_not_found');
    const bin = `bin_${shape}`;
    await wire.post('/bins', { id: bin }, { token: first.token, shape: 'a' });
    t.equal((await write(wire, first, scene.item({ binId: bin }), shape)).status, 200);
    await wire.delete(`/bins/${bin}`, { token: first.token, body: { force: true } });
    t.equal((await write(wire, first, scene.item({ binId: bin }), shape)).outcome, '404 bin_not_found');
  });

  t.test(`ITEM-16 ERR-04: a missing required field is a schema error (${shape})`, async (t) => {
    const body = spelled(shape, writeBody(shape, scene.item())) as Record<string, unknown>;
    const required =
      shape === 'a'
        ? ['id', 'binId', 'type', 'ts', 'payloadEnc']
        : ['id', 'bin_id', 'type', 'ts', 'nonce', 'ct', 'wrapped'];
    for (const field of required) {
      const lacking = JSON.stringify({ ...body, [field]: undefined });
      const reply = await wire.post('/items', lacking, { token: first.token, shape });
      t.equal(reply.outcome, VALIDATION[shape], field);
      t.match(reply.at('error.details.path'), new RegExp(`^${field}`), field);
    }
  });
}

t.test('ITEM-25: the server does not verify a sig', async (t) => {
  t.equal((await write(wire, first, scene.item({ sig: Buffer.alloc(32) }))).status, 200);
});

t.test('ITEM-35 ITEM-36: senderDevice stays with the content; all devices but the caller get the push', async (t) => {
  const [ofFirst, alsoFirst, ofSecond] = [
    await scene.watch(first),
    await scene.watch(first),
    await scene.watch(second),
  ];
  const item = await scene.written();
  t.equal((await ofSecond.next())['senderDevice'], first.id);
  const third = await join(wire, first);
  for (const socket of [ofFirst, alsoFirst, ofSecond]) await socket.next('device_joined');
  const keys = { ...item.keys, ...sealedFor(third.id) };
  t.equal(
    (await write(wire, second, { ...item, keys })).number('version'),
    item.version + 1,
    'a re-wrap by the second',
  );
  const move = { binId: 'inbox', version: item.version + 1, sig: randomBytes(32) };
  const moved = await wire.post(`/items/${item.id}/reconcile`, move, { token: second.token, shape: 'a' });
  t.equal(moved.number('version'), item.version + 2, 'a move by the second');
  for (const socket of [ofFirst, alsoFirst]) {
    for (const version of [item.version + 1, item.version + 2]) {
      t.match(await socket.next(), { type: 'item', version, senderDevice: first.id }, 'the content writer gets it');
    }
  }
  await wire.delete(`/items/${item.id}`, { token: second.token });
  t.match(await ofFirst.next(), { type: 'delete', version: item.version + 3 });
  t.equal((await scene.row(item.id))?.['senderDevice'], first.id, 'a delete does not change senderDevice');
  const marker = await mustWrite(wire, first, scene.item({ keys: sealedFor(...scene.ids, third.id) }));
  t.match(await ofSecond.next(), { type: 'item', version: marker }, 'the changing device got no push');
  await wire.post(`/devices/${third.id}/revoke`, {}, { token: first.token });
  for (const socket of [ofFirst, alsoFirst, ofSecond]) await socket.close();
});

t.test('ITEM-37: versions are one sequence over all bins, from 1, without a gap', async (t) => {
  const fresh = await Scene.start(t);
  await fresh.wire.post('/bins', { id: 'other' }, { token: fresh.first.token });
  const writers = [fresh.first, fresh.second].flatMap((device) =>
    Array.from({ length: 40 }, async (_, index) =>
      mustWrite(fresh.wire, device, fresh.item({ binId: index % 2 === 0 ? 'inbox' : 'other' })),
    ),
  );
  const refused = Array.from({ length: 20 }, async () => write(fresh.wire, fresh.first, fresh.item({ binId: 'none' })));
  const versions = (await Promise.all(writers)).toSorted((x, y) => x - y);
  t.ok((await Promise.all(refused)).every((reply) => reply.status === 404));
  t.same(
    versions,
    Array.from({ length: 80 }, (_, index) => index + 1),
  );
});

t.test(
  'ITEM-43: a ts more than 24 hours ahead is refused with the server’s time; a retry of a stored one is not',
  async (t) => {
    const clock = new ShiftedClock();
    const own = await Scene.start(t, { clock });
    const write = async (item: TestItem) => own.wire.post('/items', writeBody('a', item), own.as('a'));
    const ahead = (ms: number): number => clock.now() + 24 * 3_600_000 + ms;
    const late = await write(own.item({ ts: ahead(60_000) }));
    t.equal(late.outcome, VALIDATION.a);
    t.match(late.at('error.details'), { path: 'ts', rule: "at most 24 hours after the server's clock" });
    t.ok(Math.abs(late.number('error.details.serverTime') - clock.now()) < 60_000);
    const item = own.item({ ts: ahead(-60_000) });
    const stored = await write(item);
    t.equal(stored.outcome, '200');
    clock.advance(-3_600_000);
    const again = await write(item);
    t.match([again.outcome, again.at('version')], ['200', stored.at('version')], 'the clock was set back');
    t.equal((await write({ ...item, ts: item.ts + 1, ct: randomBytes(40) })).outcome, VALIDATION.a);
  },
);
