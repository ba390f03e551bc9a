/** Deletes. */
import { randomBytes } from 'node:crypto';
import { newId } from '../../support/devices.js';
import { PAYLOAD_FIELDS, spelled } from '../../support/wire.js';
import { type Case, fields } from '../stage.js';

const remove: Case = {
  ids: ['DEL-01', 'DEL-02', 'DEL-03', 'DEL-07', 'DEL-08'],
  async run(stage, check) {
    const { shape } = stage;
    for (const sig of [undefined, randomBytes(32)]) {
      const id = sig === undefined ? 'DEL-08' : 'DEL-07';
      const item = await stage.written();
      const socket = await stage.watch();
      const reply = await stage.remove(item.id, sig === undefined ? undefined : { sig });
      check.outcome(id, reply, '200', sig === undefined ? 'a delete without a body' : 'a delete with its tag');
      const right = reply.at('id') === item.id && Number(reply.at('version')) > item.version;
      check.of('DEL-01', reply, reply.status === 200 && right, `200, the id, and a version above ${item.version}`);
      const text = sig === undefined ? undefined : spelled(shape, sig);
      const frame = await socket.next('delete');
      check.same(
        'DEL-03',
        [frame['id'], frame['version']],
        [item.id, reply.at('version')],
        'id and version of the delete frame',
      );
      check.same(id, frame['sig'] ?? undefined, text, 'sig of the delete frame');
      const row = fields(await stage.row(item.id));
      check.same(id, row['sig'] ?? undefined, text, 'sig of the row');
      check.ok('DEL-02', Number.isInteger(row['deletedAt']), 'deletedAt in milliseconds', row);
      check.same(
        'DEL-02',
        PAYLOAD_FIELDS[shape].filter((field) => row[field] !== null),
        [],
        'payload fields that are not null',
      );
      check.same('DEL-01', row['version'], reply.at('version'), 'version of the row');
    }
  },
};

const again: Case = {
  ids: ['DEL-04', 'DEL-05'],
  async run(stage, check) {
    const item = await stage.written();
    const version = (await stage.remove(item.id)).number('version');
    const socket = await stage.watch();
    await stage.quietly(check, 'DEL-04', socket, async () => {
      for (const body of [undefined, { sig: randomBytes(32) }]) {
        const reply = await stage.remove(item.id, body);
        check.of(
          'DEL-04',
          reply,
          reply.status === 200 && reply.at('version') === version,
          `200 and version ${version}`,
        );
      }
      check.outcome('DEL-05', await stage.remove(newId()), '404 item_not_found');
    });
  },
};

export const deletes: readonly Case[] = [remove, again];
