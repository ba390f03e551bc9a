/** Batch writes. */
import { writeBody, type TestItem } from '../../support/devices.js';
import { changesOf, untilVersion } from '../../support/stream.js';
import type { Json } from '../../support/wire.js';
import { CODES, type Case } from '../stage.js';

const each: Case = {
  ids: ['BATCH-01', 'BATCH-04'],
  async run(stage, check) {
    const { shape, wire } = stage;
    const stored = await stage.written();
    const socket = await stage.watch();
    const [x, y, z] = [stage.item(), stage.item(), stage.item()];
    const writes: readonly TestItem[] = [
      x,
      stored,
      stage.item({ binId: 'none' }),
      y,
      stage.edit(stored, { ts: stored.ts }),
      stage.item({ type: 'note' }),
      z,
    ];
    const items = [...writes.map((item) => writeBody(shape, item)), 'no object', {}];
    const reply = await wire.post('/items/batch', { items }, stage.as());
    check.outcome('BATCH-01', reply, '200');
    const results = reply.list('results');
    check.same('BATCH-01', results.length, items.length, 'number of results');
    const codes = results.map((result) => (result['error'] as Json | undefined)?.['code'] ?? 'ok');
    const code = (outcome: string): string => outcome.slice(4);
    const [invalid, conflict] = [code(CODES.validation[shape]), code(CODES.conflict[shape])];
    check.same(
      'BATCH-04',
      codes,
      ['ok', 'ok', 'bin_not_found', 'ok', conflict, 'unknown_type', 'ok', invalid, invalid],
      'outcome of each write',
    );
    check.same('BATCH-04', results[1]?.['version'], stored.version, 'version of the repeated write');
    const good = [0, 3, 6].map((index) => results[index] ?? {});
    check.same(
      'BATCH-01',
      good.map(({ id }) => id),
      [x.id, y.id, z.id],
      'ids of the accepted new items',
    );
    const versions = [1, 2, 3].map((step) => stored.version + step);
    check.same(
      'BATCH-04',
      good.map(({ version }) => version),
      versions,
      'versions of the accepted new items, in the order of the batch',
    );
    const marker = await stage.written();
    await untilVersion(socket, marker.version);
    const pushed = changesOf(socket.frames).filter(({ id }) => id !== marker.id);
    check.same(
      'BATCH-04',
      pushed.map(({ id, version }) => [id, version]),
      [x, y, z].map(({ id }, at) => [id, versions[at]]),
      'changes pushed',
    );
  },
};

const bounds: Case = {
  ids: ['BATCH-01', 'BATCH-02'],
  async run(stage, check) {
    const { shape, wire } = stage;
    const many = (count: number): unknown[] => Array.from({ length: count }, () => writeBody(shape, stage.item()));
    for (const items of [[], many(101), 'x', null])
      check.outcome(
        'BATCH-02',
        await wire.post('/items/batch', { items }, stage.as()),
        CODES.validation[shape],
        'no list of 1 to 100',
      );
    const hundred = await wire.post('/items/batch', { items: many(100) }, stage.as());
    check.of(
      'BATCH-01',
      hundred,
      hundred.list('results').filter(({ version }) => Number.isInteger(version)).length === 100,
      '100 are taken',
    );
  },
};

export const batch: readonly Case[] = [each, bounds];
