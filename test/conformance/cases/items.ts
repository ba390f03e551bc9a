/** Items: their fields, and which devices get a push. */
import { randomBytes } from 'node:crypto';
import { newId, sealedFor, writeBody } from '../../support/devices.js';
import { changesOf, untilVersion } from '../../support/stream.js';
import { spelled, type Shape } from '../../support/wire.js';
import { CODES, type Case, type Stage, fields } from '../stage.js';

const TYPES = ['password', 'link', 'text', 'code', 'image', 'file', 'audio', 'video', 'contact', 'location'];

const fresh: Case = {
  ids: ['ITEM-01'],
  async run(stage, check) {
    const item = stage.item();
    const reply = await stage.write(item);
    check.outcome('ITEM-01', reply, '200');
    check.of('ITEM-01', reply, reply.at('id') === item.id && Number.isInteger(reply.at('version')), 'id and version');
    const time = Number(reply.at('server_ts'));
    if (stage.shape === 'b')
      check.of('ITEM-01', reply, Number.isInteger(time) && time > 1e12, 'server_ts in milliseconds');
  },
};

const types: Case = {
  ids: ['ITEM-06', 'ITEM-08', 'ITEM-20', 'ITEM-25'],
  async run(stage, check) {
    for (const type of TYPES) check.outcome('ITEM-06', await stage.write(stage.item({ type })), '200', type);
    for (const type of ['note', 'Text', '', 'text ', '__proto__', 'constructor'])
      check.outcome('ITEM-06', await stage.write(stage.item({ type })), '400 unknown_type', JSON.stringify(type));
    check.outcome('ITEM-08', await stage.write(stage.item({ ct: randomBytes(65_536) })), '200', '65,536 bytes');
    check.outcome(
      'ITEM-08',
      await stage.write(stage.item({ ct: randomBytes(65_537) })),
      '400 item_too_large',
      '65,537 bytes',
    );
    check.outcome(
      'ITEM-20',
      await stage.write(stage.item({ binId: 'nowhere' })),
      '404 bin_not_found',
      'an unknown bin',
    );
    const bin = await stage.bin();
    check.outcome('ITEM-20', await stage.write(stage.item({ binId: bin })), '200', 'a bin that exists');
    await stage.wire.delete(`/bins/${bin}`, { ...stage.as('a'), body: { force: true } });
    check.outcome('ITEM-20', await stage.write(stage.item({ binId: bin })), '404 bin_not_found', 'a deleted bin');
    check.outcome(
      'ITEM-25',
      await stage.write(stage.item({ sig: Buffer.alloc(32) })),
      '200',
      'a wrong sig of the right size',
    );
  },
};

const both = (name: string): Readonly<Record<Shape, string>> => ({ a: name, b: name });
const inside = (name: string): Readonly<Record<Shape, string>> => ({ a: `payloadEnc.${name}`, b: name });
const bytes = (...sizes: readonly number[]): Buffer[] => sizes.map((size) => Buffer.alloc(size, 1));

/** Values that a field must not have: rule, field as A and B name it, values. */
const BAD: readonly (readonly [string, Readonly<Record<Shape, string>>, readonly unknown[]])[] = [
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
  ['ITEM-11', inside('nonce'), [...bytes(0, 12, 23, 25), null, 7]],
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
    'ERR-04',
    inside('ct'),
    ['*'.repeat(40), 'A'.repeat(41), `${'A'.repeat(38)}===`, '=', `${'A'.repeat(20)}=${'A'.repeat(20)}`],
  ],
];

function withValue(body: Record<string, unknown>, path: string, value: unknown): Record<string, unknown> {
  const [head = '', ...rest] = path.split('.');
  if (rest.length === 0) return { ...body, [head]: value };
  return { ...body, [head]: withValue(body[head] as Record<string, unknown>, rest.join('.'), value) };
}

const badFields: Case = {
  ids: [
    'ITEM-03',
    'ITEM-04',
    'ITEM-05',
    'ITEM-09',
    'ITEM-10',
    'ITEM-11',
    'ITEM-12',
    'ITEM-13',
    'ITEM-38',
    'ERR-04',
    'ERR-05',
  ],
  async run(stage, check) {
    const { shape } = stage;
    const socket = await stage.watch();
    await stage.quietly(check, 'ITEM-38', socket, async () => {
      for (const [id, paths, values] of BAD) {
        for (const value of values) {
          const body = spelled(shape, writeBody(shape, stage.item())) as Record<string, unknown>;
          const bad = withValue(body, paths[shape], spelled(shape, value));
          const reply = await stage.wire.post('/items', JSON.stringify(bad), stage.as());
          check.outcome(
            id,
            reply,
            CODES.validation[shape],
            `${paths[shape]} = ${JSON.stringify(spelled(shape, value)).slice(0, 60)}`,
          );
          const path = String(reply.at('error.details.path'));
          const named = path === paths[shape] || path.startsWith(`${paths[shape]}.`);
          check.of(
            'ERR-05',
            reply,
            named &&
              String(reply.at('error.message')).includes(path) &&
              typeof reply.at('error.details.rule') === 'string',
            `details.path and message name ${paths[shape]}, and details.rule is a text`,
          );
        }
      }
    });
    check.outcome('ITEM-05', await stage.write(stage.item({ ts: 1e12 })), '200', 'ts 10^12');
    check.outcome('ITEM-09', await stage.write(stage.item({ ct: randomBytes(16) })), '200', 'a ct of 16 bytes');
  },
};

const HOUR_MS = 3_600_000;

const timesAhead: Case = {
  ids: ['ITEM-43'],
  async run(stage, check) {
    // The server's clock and this one may differ by some minutes.
    const early = stage.item({ ts: Date.now() + 23 * HOUR_MS });
    check.outcome('ITEM-43', await stage.write(early), '200', 'a ts 23 hours ahead');
    for (const ts of [Date.now() + 25 * HOUR_MS, 2 ** 53 - 1]) {
      const reply = await stage.write(stage.item({ ts }));
      check.outcome('ITEM-43', reply, CODES.validation[stage.shape], `ts ${ts}`);
      check.of('ITEM-43', reply, reply.at('error.details.path') === 'ts', 'details.path');
      const time = Number(reply.at(stage.shape === 'a' ? 'error.details.serverTime' : 'error.details.server_time'));
      check.of('ITEM-43', reply, Math.abs(time - Date.now()) < HOUR_MS, 'details tell the server’s time');
    }
  },
};

const keySizes: Case = {
  ids: ['ITEM-14', 'ITEM-15', 'ITEM-16'],
  async run(stage, check) {
    const { shape, world } = stage;
    const invalid = CODES.validation[shape];
    for (const [size, outcome] of [
      [31, invalid],
      [32, '200'],
      [256, '200'],
      [257, invalid],
    ] as const) {
      const keys = Object.fromEntries(world.ids.map((id) => [id, randomBytes(size)]));
      check.outcome('ITEM-14', await stage.write(stage.item({ keys })), outcome, `keys of ${size} bytes`);
    }
    // There are not so many devices: up to 1,000 keys the refusal names the first unknown id, beyond that the field.
    const path = shape === 'a' ? 'payloadEnc.keys' : 'wrapped';
    for (const [count, names] of [
      [1_000, /\.[0-9A-Z]{26}$/],
      [1_001, /[a-z]$/],
    ] as const) {
      const unknown = Array.from({ length: count - world.ids.length }, () => [newId(), Buffer.alloc(32)] as const);
      const keys = { ...sealedFor(...world.ids), ...Object.fromEntries(unknown) };
      const reply = await stage.write(stage.item({ keys }));
      check.outcome('ITEM-15', reply, invalid, `${count} keys, not all of devices`);
      const named = String(reply.at('error.details.path'));
      check.of('ITEM-15', reply, named.startsWith(path) && names.test(named), `details.path for ${count} keys`);
    }
    const bare = { id: newId(), binId: world.bin, type: 'text', ts: Date.now() };
    const nothing = shape === 'a' ? bare : { ...bare, ct: '', nonce: '', wrapped: [] };
    check.outcome('ITEM-16', await stage.wire.post('/items', nothing, stage.as()), invalid, 'neither payload nor blob');
  },
};

const replaced: Case = {
  ids: ['ITEM-07'],
  async run(stage, check) {
    const { shape } = stage;
    const old = await stage.written();
    const socket = await stage.watch();
    const next = stage.edit(old);
    const reply = await stage.write(next);
    check.of(
      'ITEM-07',
      reply,
      reply.status === 200 && reply.at('version') === old.version + 1,
      `200 and version ${old.version + 1}`,
    );
    const frame = await socket.next('item');
    const row = fields(shape === 'a' ? frame : frame['item']);
    check.same('ITEM-07', [row['id'], row['version']], [old.id, old.version + 1], 'id and version of the pushed item');
    const ct = shape === 'a' ? fields(row['payloadEnc'])['ct'] : row['ct'];
    check.same('ITEM-07', ct, spelled(shape, next.ct), 'ct of the pushed item');
  },
};

const unsigned: Case = {
  ids: ['ITEM-21', 'ITEM-22', 'ITEM-23', 'ITEM-24'],
  once: true,
  async run(stage, check) {
    const [a, b] = [
      await stage.write(stage.item({ sig: null }), stage.first, 'a'),
      await stage.write(stage.item({ sig: null }), stage.first, 'b'),
    ];
    const settings: Readonly<Record<string, readonly [string, string]>> = {
      '400 200': ['ITEM-21', 'a'],
      '400 400': ['ITEM-23', 'always'],
      '200 200': ['ITEM-24', 'never'],
    };
    const [id, setting] = settings[`${a.status} ${b.status}`] ?? ['', ''];
    for (const one of check.ids) {
      if (id === '') check.of(one, b.status >= 400 ? b : a, false, 'one of the three settings of REQUIRE_SIG');
      else if (one === id || (one === 'ITEM-22' && id === 'ITEM-21')) {
        check.of(one, a, a.status === 200 || a.outcome === CODES.validation.a, `${CODES.validation.a} without sig`);
        check.of(one, b, b.status === 200 || b.outcome === CODES.validation.b, `${CODES.validation.b} without sig`);
      } else check.skip(one, `the server's REQUIRE_SIG is '${setting}', as it seems`);
    }
  },
};

const whoIsTold: Case = {
  ids: ['ITEM-35', 'ITEM-36'],
  async run(stage, check) {
    const { first, second, wire, shape, world } = stage;
    const item = await stage.written({ master: null });
    const [ofFirst, alsoFirst, ofSecond] = [
      await stage.watch(first),
      await stage.watch(first),
      await stage.watch(second),
    ];
    const master = { nonce: randomBytes(24), ct: randomBytes(48) };
    check.outcome('ITEM-35', await stage.write({ ...item, master }, second), '200', 'a re-wrap by the second device');
    const move = { binId: world.bin, version: item.version + 1, sig: randomBytes(32) };
    check.outcome(
      'ITEM-35',
      await wire.post(`/items/${item.id}/reconcile`, move, stage.as(shape, second)),
      '200',
      'a new sig by the second device',
    );
    for (const socket of [ofFirst, alsoFirst]) {
      const changes = await untilVersion(socket, item.version + 2);
      check.same(
        'ITEM-36',
        changes.map(({ version }) => version),
        [item.version + 1, item.version + 2],
        "versions pushed to the content's writer",
      );
    }
    const row = fields(await stage.row(item.id));
    check.same('ITEM-35', row['senderDevice'], first.id, 'senderDevice after a re-wrap and a move by another device');
    await stage.remove(item.id, undefined, second);
    check.same(
      'ITEM-35',
      fields(await stage.row(item.id))['senderDevice'],
      first.id,
      'senderDevice after a delete by another device',
    );
    const marker = await stage.written();
    const told = (await untilVersion(ofSecond, marker.version)).map(({ version }) => version);
    check.same('ITEM-36', told, [marker.version], 'versions pushed to the device that made the changes');
    check.same(
      'ITEM-36',
      changesOf(ofFirst.frames).map(({ version }) => version),
      [1, 2, 3].map((step) => item.version + step),
      "all versions pushed to the content's writer",
    );
  },
};

const sequence: Case = {
  ids: ['ITEM-37', 'ITEM-38'],
  once: true,
  async run(stage, check) {
    const other = await stage.bin();
    const head = await stage.head();
    const writers = [stage.first, stage.second].flatMap((device) =>
      Array.from({ length: 20 }, async (_, index) => stage.written(index % 2 === 0 ? {} : { binId: other }, device)),
    );
    const refused = await Promise.all(
      Array.from({ length: 10 }, async () => stage.write(stage.item({ binId: 'none' }))),
    );
    const versions = (await Promise.all(writers)).map(({ version }) => version).sort((x, y) => x - y);
    check.same(
      'ITEM-37',
      versions,
      versions.map((_, index) => head + 1 + index),
      'versions of 40 concurrent writes, over two bins',
    );
    for (const reply of refused) check.refused('ITEM-38', reply, 'a write into an unknown bin');
    check.same('ITEM-38', await stage.head(), head + 40, 'the head after 40 writes and 10 refusals');
  },
};

/** The largest storage cap that the kit fills, in bytes: a larger one takes too long. */
const CAP_MAX = 20_000_000;

async function room(stage: Stage): Promise<{ readonly cap: number; readonly used: number }> {
  const { storageCapBytes, storageUsedBytes } = fields((await stage.me()).at('server'));
  return { cap: Number(storageCapBytes), used: Number(storageUsedBytes) };
}

const cap: Case = {
  ids: ['ITEM-39', 'ITEM-40', 'RETRY-11'],
  once: true,
  async run(stage, check) {
    const before = await room(stage);
    const item = await stage.written({ ct: randomBytes(3_000) });
    const filled = await room(stage);
    await stage.remove(item.id);
    const after = await room(stage);
    check.ok(
      'ITEM-40',
      filled.used >= before.used + 3_000 && after.used <= filled.used - 3_000,
      'used bytes rise by the item and fall with it',
      [before.used, filled.used, after.used],
    );
    const { cap: most } = before;
    if (most === 0 || most > CAP_MAX) {
      for (const id of ['ITEM-39', 'RETRY-11'])
        check.skip(id, most === 0 ? 'no storage cap is set' : `a cap of ${most} bytes takes too long to fill`);
      return;
    }
    const bin = await stage.bin();
    const stored = await stage.written({ binId: bin });
    const size = 60_000;
    for (let turn = 0; turn <= most / size; turn++) {
      const reply = await stage.write(stage.item({ binId: bin, ct: randomBytes(size) }));
      if (reply.status === 200) continue;
      check.outcome('ITEM-39', reply, '413 storage_cap_exceeded');
      const again = await stage.write(stored);
      check.of(
        'RETRY-11',
        again,
        again.at('version') === stored.version,
        'the same write again, over the cap: the stored version',
      );
      return;
    }
    check.ok('ITEM-39', false, `413 storage_cap_exceeded before ${most} bytes are passed`, 'every write was accepted');
  },
};

export const items: readonly Case[] = [
  fresh,
  types,
  badFields,
  timesAhead,
  keySizes,
  replaced,
  unsigned,
  whoIsTold,
  sequence,
  cap,
];
