/** The order of decisions for an id that exists. */
import { randomBytes } from 'node:crypto';
import { sealedFor, writeBody, type TestItem } from '../../support/devices.js';
import { spelled } from '../../support/wire.js';
import { CODES, otherShape, type Case, fields } from '../stage.js';

const same: Case = {
  ids: ['RETRY-01', 'RETRY-07'],
  async run(stage, check) {
    const { shape, wire, second } = stage;
    const item = await stage.written();
    const socket = await stage.watch();
    await stage.quietly(check, 'RETRY-01', socket, async () => {
      const again = await stage.write(item);
      check.of(
        'RETRY-01',
        again,
        again.status === 200 && again.at('version') === item.version,
        `200 and version ${item.version}`,
      );
      const byOther = await stage.write(item, second);
      check.of(
        'RETRY-01',
        byOther,
        byOther.at('version') === item.version,
        'the stored version, also to another device',
      );
      const inOther = await stage.write(item, stage.first, otherShape(shape));
      check.of('RETRY-07', inOther, inOther.at('version') === item.version, 'the stored version, in the other shape');
      const body = JSON.stringify(spelled(shape, writeBody(shape, item)));
      const other = (bytes: Buffer): [string, string] => [
        String(spelled(shape, bytes)),
        String(spelled(otherShape(shape), bytes)),
      ];
      const binary = [item.ct, item.nonce, ...Object.values(item.keys)];
      const recoded = binary.map(other).reduce((text, [from, to]) => text.replace(`"${from}"`, `"${to}"`), body);
      const spelling = await wire.post('/items', recoded, stage.as());
      check.of(
        'RETRY-07',
        spelling,
        spelling.at('version') === item.version,
        'the stored version, in the other base64',
      );
    });
  },
};

const deleted: Case = {
  ids: ['RETRY-02'],
  async run(stage, check) {
    const item = await stage.written();
    const version = (await stage.remove(item.id)).number('version');
    const socket = await stage.watch();
    await stage.quietly(check, 'RETRY-02', socket, async () => {
      for (const body of [
        stage.edit(item),
        stage.edit(item, { ts: item.ts + 1e9 }),
        stage.edit(item, { ts: item.ts + 1e9, ifVersion: version }),
      ])
        check.outcome('RETRY-02', await stage.write(body), CODES.conflict[stage.shape], 'a write to a deleted item');
    });
  },
};

const condition: Case = {
  ids: ['RETRY-03', 'RETRY-06', 'RETRY-10', 'RETRY-13', 'RETRY-14'],
  async run(stage, check) {
    const conflict = CODES.conflict[stage.shape];
    const item = stage.item({ ifVersion: 0 });
    const unknown = await stage.write(stage.item({ ifVersion: 7 }));
    check.outcome('RETRY-03', unknown, conflict, 'ifVersion 7 for a new id');
    const created = await stage.write(item);
    check.outcome('RETRY-13', created, '200', 'ifVersion 0 for a new id');
    const version = created.number('version');
    for (const ifVersion of [0, version - 1, version + 1]) {
      const id = ifVersion === 0 ? 'RETRY-13' : 'RETRY-03';
      const reply = await stage.write(stage.edit(item, { ifVersion }));
      check.outcome(id, reply, conflict, `ifVersion ${ifVersion}, the version is ${version}`);
      const details = fields(reply.at('error.details'));
      check.same(
        'RETRY-03',
        [details['version'], details['ts']],
        [version, item.ts],
        'version and ts in error.details',
      );
    }
    const replaced = stage.edit(item, { ifVersion: version });
    const right = await stage.write(replaced);
    check.of(
      'RETRY-14',
      right,
      right.status === 200 && right.at('version') === version + 1,
      'the current ifVersion goes on: a replace',
    );
    const again = await stage.write(replaced);
    check.of(
      'RETRY-10',
      again,
      again.status === 200 && again.at('version') === version + 1,
      'the same write again, ifVersion stale: the stored version',
    );
    const early = await stage.write(stage.edit(item, { ts: item.ts, ifVersion: version + 1 }));
    check.outcome('RETRY-14', early, conflict, 'the current ifVersion, but an earlier ts');
    check.outcome('RETRY-06', early, conflict, 'an earlier ts');
  },
};

const wraps: Case = {
  ids: ['RETRY-15', 'RETRY-16', 'RETRY-17', 'RETRY-18'],
  async run(stage, check) {
    const { world } = stage;
    const bin = await stage.bin();
    const item = await stage.written({ master: null });
    const socket = await stage.watch();
    const sealedAnew = { ...item, keys: sealedFor(...world.ids) };
    const master = { nonce: randomBytes(24), ct: randomBytes(48) };
    await stage.quietly(check, 'RETRY-17', socket, async () => {
      const nothing = await stage.write(sealedAnew);
      check.of(
        'RETRY-17',
        nothing,
        nothing.status === 200 && nothing.at('version') === item.version,
        'other seals for the same devices: 200, the version unchanged',
      );
      const stale = await stage.write({ ...sealedAnew, master, ifVersion: item.version - 1 });
      check.outcome('RETRY-15', stale, CODES.conflict[stage.shape], 'a re-wrap with a stale ifVersion');
    });
    const added = await stage.write({ ...sealedAnew, master, binId: bin });
    check.of(
      'RETRY-16',
      added,
      added.status === 200 && Number(added.at('version')) > item.version,
      'a missing master is added: 200, a new version',
    );
    const frame = await socket.next('item');
    for (let pushed = frame; ; pushed = await socket.next('item')) {
      const row = fields(stage.shape === 'a' ? pushed : pushed['item']);
      if (row['id'] !== item.id) continue;
      check.same('RETRY-16', row['version'], added.at('version'), 'version of the pushed item');
      check.same('RETRY-18', row['binId'], world.bin, 'bin of the pushed item: a re-wrap does not move it');
      break;
    }
    const row = await stage.row(item.id, 'b');
    check.same('RETRY-18', row['bin_id'], world.bin, 'bin of the row');
    check.same('RETRY-16', row['master'], spelled('b', master), 'master of the row');
  },
};

const late: Case = {
  ids: ['RETRY-05', 'RETRY-06', 'RETRY-19'],
  async run(stage, check) {
    const item = await stage.written();
    const newer = stage.edit(item, { ts: item.ts + 10 });
    const replaced = await stage.write(newer);
    check.outcome('RETRY-05', replaced, '200', 'a later ts');
    const version = replaced.number('version');
    const attempts: readonly (readonly ['RETRY-06' | 'RETRY-19', string, TestItem])[] = [
      ['RETRY-19', 'the text before', item],
      ['RETRY-06', 'other content, the same ts', stage.edit(item, { ts: newer.ts })],
      ['RETRY-06', 'other content, an earlier ts', stage.edit(item, { ts: newer.ts - 1 })],
      ['RETRY-06', 'another type', { ...newer, type: 'code' }],
      ['RETRY-06', 'another nonce', { ...newer, nonce: randomBytes(24) }],
    ];
    for (const [id, what, body] of attempts)
      check.outcome(id, await stage.write(body), CODES.conflict[stage.shape], what);
    const row = await stage.row(item.id, 'b');
    for (const id of ['RETRY-06', 'RETRY-19'])
      check.same(
        id,
        [row['version'], row['ct']],
        [version, spelled('b', newer.ct)],
        'version and ct of the row, unchanged',
      );
  },
};

const devices: Case = {
  ids: ['RETRY-04', 'RETRY-08', 'RETRY-09'],
  async run(stage, check) {
    const { shape, world } = stage;
    const item = await stage.written();
    const third = await stage.join();
    const after = await stage.write(item);
    check.of(
      'RETRY-08',
      after,
      after.status === 200 && after.at('version') === item.version,
      'the stored version after a device joined',
    );
    check.outcome(
      'RETRY-08',
      await stage.write(stage.edit(item)),
      CODES.validation[shape],
      'while other content lacks a key',
    );
    const socket = await stage.watch();
    const wrapped = { ...item, keys: { ...item.keys, ...sealedFor(third.id) } };
    const reply = await stage.write(wrapped);
    check.of(
      'RETRY-04',
      reply,
      reply.status === 200 && Number(reply.at('version')) > item.version,
      'a re-wrap that adds a device: a new version',
    );
    const frame = await socket.next('item');
    check.same(
      'RETRY-04',
      fields(shape === 'a' ? frame : frame['item'])['version'],
      reply.at('version'),
      'version of the pushed item',
    );
    await world.revoke(third);
    const left = await stage.write(wrapped);
    check.of(
      'RETRY-09',
      left,
      left.status === 200 && left.at('version') === reply.at('version'),
      'the stored version after it left',
    );
  },
};

export const retry: readonly Case[] = [same, deleted, condition, wraps, late, devices];
