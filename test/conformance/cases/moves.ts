/** Moves. */
import { randomBytes } from 'node:crypto';
import { newId } from '../../support/devices.js';
import { type Json, type Reply } from '../../support/wire.js';
import { CODES, type Case, fields } from '../stage.js';

const move: Case = {
  ids: ['MOVE-01', 'MOVE-02', 'MOVE-03', 'MOVE-04', 'MOVE-05', 'MOVE-06', 'MOVE-07'],
  async run(stage, check) {
    const { shape, wire, world } = stage;
    const bin = await stage.bin();
    const item = await stage.written();
    const before = await stage.row(item.id, 'b');
    const socket = await stage.watch();
    const post = async (body: Json, id = item.id): Promise<Reply> =>
      wire.post(`/items/${id}/reconcile`, body, stage.as());
    const sig = randomBytes(32);
    const reply = await post({ binId: bin, version: item.version, sig });
    const version = item.version + 1;
    check.of(
      'MOVE-01',
      reply,
      reply.status === 200 && reply.at('id') === item.id && reply.at('version') === version,
      `200, the id and version ${version}`,
    );
    const frame = await socket.next('item');
    const row = fields(shape === 'a' ? frame : frame['item']);
    check.same(
      'MOVE-02',
      [row['id'], row['binId'], row['version']],
      [item.id, bin, version],
      'id, bin and version of the item frame',
    );
    const after = await stage.row(item.id, 'b');
    check.same(
      'MOVE-01',
      [after['bin_id'], after['version'], after['sig']],
      [bin, version, sig.toString('base64')],
      'bin, version and sig of the row',
    );
    const moved = { bin_id: bin, version, sig: sig.toString('base64') };
    check.same(
      'MOVE-03',
      { ...after, ...moved },
      { ...before, ...moved },
      'the row, as before except for bin, version and sig',
    );
    await stage.quietly(check, 'MOVE-05', socket, async () => {
      const again = await post({ binId: bin, version: item.version, sig });
      check.of(
        'MOVE-05',
        again,
        again.status === 200 && again.at('version') === version,
        `a retry: 200 and version ${version}`,
      );
      const stale = [
        { binId: world.bin, version: item.version, sig },
        { binId: bin, version: item.version, sig: randomBytes(32) },
      ];
      for (const body of stale)
        check.outcome(
          'MOVE-04',
          await post(body),
          CODES.conflict[shape],
          `version ${item.version}, the current is ${version}`,
        );
      check.outcome('MOVE-06', await post({ binId: bin, version, sig }, newId()), '404 item_not_found');
      check.outcome('MOVE-07', await post({ binId: 'nowhere', version, sig: randomBytes(32) }), '404 bin_not_found');
    });
    const gone = await stage.written();
    const deleted = await wire.delete(`/items/${gone.id}`, stage.as());
    for (const named of [gone.version, deleted.at('version')])
      check.outcome(
        'MOVE-06',
        await post({ binId: bin, version: named, sig }, gone.id),
        CODES.conflict[shape],
        `a deleted item, by version ${String(named)}`,
      );
  },
};

export const moves: readonly Case[] = [move];
