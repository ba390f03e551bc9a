/** Reading items. */
import { randomBytes } from 'node:crypto';
import { writeBody, type TestItem } from '../../support/devices.js';
import { range } from '../../support/stream.js';
import { PAYLOAD_FIELDS, type Json, type Reply } from '../../support/wire.js';
import { CODES, type Case, type Stage, fields } from '../stage.js';

const list = async (stage: Stage, query: string): Promise<Reply> => stage.wire.get(`/items${query}`, stage.as());
const cursor = (stage: Stage, reply: Reply): unknown => reply.at(stage.shape === 'a' ? 'nextSince' : 'head_version');
const more = (stage: Stage, reply: Reply): unknown => reply.at(stage.shape === 'a' ? 'hasMore' : 'has_more');
const versions = (reply: Reply): number[] => reply.list('items').map((row) => Number(row['version']));

async function writeAll(stage: Stage, items: readonly TestItem[], size = 100): Promise<void> {
  for (let from = 0; from < items.length; from += size) {
    const body = { items: items.slice(from, from + size).map((item) => writeBody('a', item)) };
    const reply = await stage.wire.post('/items/batch', body, stage.as('a'));
    const bad = reply.list('results').find((result) => !('version' in result));
    if (bad !== undefined) throw new Error(`a write of a batch: ${JSON.stringify(bad)}`);
  }
}

/** A cursor above which there are exactly 1,005 rows, until something else is written. */
async function thousand(stage: Stage): Promise<number> {
  const since = await stage.head();
  await writeAll(
    stage,
    range(1, 1_005).map(() => stage.item()),
  );
  return since;
}

const pages: Case = {
  ids: ['LIST-01', 'LIST-04', 'LIST-05', 'LIST-10', 'LIST-11'],
  async run(stage, check) {
    const { shape } = stage;
    const since = await thousand(stage);
    const head = since + 1_005;
    const some = await list(stage, `?since=${since + 100}&limit=50`);
    check.same('LIST-01', versions(some), range(since + 101, since + 150), 'versions of 50 rows above a cursor');
    check.of(
      'LIST-10',
      some,
      more(stage, some) === true && cursor(stage, some) === since + 150,
      `more, and the cursor ${since + 150}`,
    );
    check.same(
      'LIST-04',
      versions(await list(stage, `?since=${since}`)).length,
      shape === 'a' ? 500 : 200,
      'number of rows without a limit',
    );
    for (const limit of [1, 1_000, 1_001, 1_000_000_000])
      check.same(
        'LIST-05',
        versions(await list(stage, `?since=${since}&limit=${limit}`)).length,
        Math.min(limit, 1_000),
        `number of rows with limit ${limit}`,
      );
    for (const rows of [40, 1]) {
      const end = await list(stage, `?since=${head - rows}&limit=40`);
      const whole = versions(end).length === rows && more(stage, end) === false && cursor(stage, end) === head;
      check.of('LIST-11', end, whole, `${rows} rows, no more, and the head ${head}, for a page that ends there`);
    }
    const none = await list(stage, `?since=${head}`);
    check.of(
      'LIST-11',
      none,
      versions(none).length === 0 && more(stage, none) === false && cursor(stage, none) === head,
      `no row, no more, the head ${head}`,
    );
    const bin = await stage.bin();
    const [inBin] = [await stage.written({ binId: bin }), await stage.written()];
    const view = await list(stage, `?since=${since}&bin_id=${bin}`);
    check.same(
      'LIST-11',
      [versions(view), more(stage, view), cursor(stage, view)],
      [[inBin.version], false, inBin.version + 1],
      'versions, hasMore and cursor for a bin whose last row is below the head',
    );
  },
};

const parameters: Case = {
  ids: ['LIST-02', 'LIST-03', 'LIST-06', 'LIST-07', 'LIST-08', 'LIST-09', 'LIST-16', 'LIST-17', 'ERR-05'],
  async run(stage, check) {
    const { shape, wire } = stage;
    const invalid = CODES.validation[shape];
    const bad: readonly (readonly ['LIST-06' | 'LIST-07' | 'LIST-08', readonly string[]])[] = [
      [
        'LIST-06',
        [
          'since=-1',
          'since=1.5',
          'since=x',
          'since=1e3',
          'since=%201',
          'since=0x10',
          'since=9007199254740992',
          'since=99999999999999999999',
          'since=0&limit=0',
          'since=0&limit=-1',
          'since=0&limit=2.5',
          'since=0&limit=ten',
        ],
      ],
      ['LIST-07', ['since=', 'since=0&limit=', 'since=0&epoch=', 'since=0&bin_id=']],
      [
        'LIST-08',
        ['since=0&since=0', 'since=0&limit=1&limit=1', 'since=0&epoch=x&epoch=x', 'since=0&bin_id=inbox&bin_id=inbox'],
      ],
    ];
    for (const [id, queries] of bad)
      for (const query of queries) {
        const reply = await list(stage, `?${query}`);
        check.outcome(id, reply, invalid, query);
        const [, name] = /([a-z_]+)=[^=]*$/.exec(query) ?? [];
        check.of('ERR-05', reply, reply.at('error.details.path') === name, `details.path is ${name}`);
      }
    const unshaped = { token: stage.first.token };
    const configured = (await wire.get('/me', unshaped)).at('device.paired_at') === undefined ? 'a' : 'b';
    for (const query of ['shape=c', 'shape=', 'shape=A', 'shape=a&shape=a', 'shape=a&shape=b']) {
      const reply = await wire.get(`/items?since=0&${query}`, unshaped);
      check.outcome('LIST-09', reply, CODES.validation[configured], query);
    }
    const without = await list(stage, '?limit=1');
    if (shape === 'a') {
      const zero = await list(stage, '?since=0&limit=1');
      check.of(
        'LIST-02',
        without,
        without.status === 200 && without.raw === zero.raw,
        'without since the same as from 0',
      );
    } else {
      check.outcome('LIST-03', without, invalid, 'B must say since');
      check.outcome('LIST-03', await list(stage, ''), invalid, 'B must say since, also without a limit');
    }
    check.skip(shape === 'a' ? 'LIST-03' : 'LIST-02', 'of the other shape');
    check.outcome('LIST-16', await list(stage, '?since=0&bin_id=nowhere'), '404 bin_not_found');
    const page = await list(stage, '?since=0&limit=1');
    const epoch = page.at('epoch');
    check.of('LIST-17', page, typeof epoch === 'string' && epoch !== '', 'a non-empty epoch');
  },
};

const resets: Case = {
  ids: ['LIST-18', 'LIST-19', 'EPOCH-01'],
  async run(stage, check) {
    const { wire } = stage;
    const { version: head } = await stage.written();
    const whole = await list(stage, '?since=0&limit=2');
    const epoch = whole.text('epoch');
    const same = await list(stage, `?since=${head - 1}&limit=2&epoch=${encodeURIComponent(epoch)}`);
    for (const id of ['LIST-18', 'LIST-19'])
      check.of(
        id,
        same,
        versions(same).join() === String(head) && same.at('reset') === undefined,
        'no reset with the right epoch and a cursor below the head',
      );
    const others: readonly (readonly ['LIST-18' | 'LIST-19', string])[] = [
      ['LIST-18', `since=${head}&limit=2&epoch=other`],
      ['LIST-19', `since=${head + 1}&limit=2`],
      ['LIST-19', `since=9007199254740991&limit=2&epoch=${encodeURIComponent(epoch)}`],
    ];
    for (const [id, query] of others) {
      const reset = await list(stage, `?${query}`);
      check.of(
        id,
        reset,
        reset.at('reset') === true && versions(reset).join() === versions(whole).join(),
        'reset: true, and the rows from 0',
      );
      check.of(id, reset, reset.at('epoch') === epoch, `the epoch ${epoch}`);
      const cursors = [whole, reset].map((page) => `${String(more(stage, page))} ${String(cursor(stage, page))}`);
      check.same(id, cursors[1], cursors[0], 'more and cursor, as from 0');
    }
    const socket = await stage.connect({ token: stage.second.token, shape: stage.shape });
    const frames = await socket.hello(head);
    const places = {
      status: (await wire.get('/service/status', stage.as())).at('epoch'),
      me: fields((await wire.get('/me', stage.as())).at('server'))['epoch'],
      caughtUp: frames.at(-1)?.['epoch'],
    };
    for (const [place, found] of Object.entries(places)) check.same('EPOCH-01', found, epoch, `epoch of ${place}`);
  },
};

const views: Case = {
  ids: ['LIST-13', 'LIST-15'],
  async run(stage, check) {
    const { shape, base } = stage;
    const [one, other] = [await stage.bin(), await stage.bin()];
    const written = [];
    for (const binId of [one, other, one, other, other, one]) written.push(await stage.written({ binId }));
    const mine = written.filter(({ binId }) => binId === one).map(({ version }) => version);
    const all = await list(stage, `?since=${base}&bin_id=${one}`);
    check.same('LIST-15', versions(all), mine, 'versions of the rows of one bin');
    check.of(
      'LIST-15',
      all,
      all.list('items').every((row) => fields(row)['binId'] === one),
      'rows of that bin only',
    );
    const page = await list(stage, `?since=${base}&limit=2&bin_id=${one}`);
    check.of(
      'LIST-15',
      page,
      more(stage, page) === true && cursor(stage, page) === mine[1],
      `more, and the cursor ${mine[1]}`,
    );
    const [gone] = written;
    if (gone === undefined) throw new Error('nothing was written');
    await stage.remove(gone.id);
    const row = fields(await stage.row(gone.id));
    check.ok('LIST-13', Number.isInteger(row['deletedAt']), 'a row with deletedAt for a deleted item', row);
    check.same(
      'LIST-13',
      PAYLOAD_FIELDS[shape].filter((field) => row[field] !== null),
      [],
      'payload fields that are not null',
    );
  },
};

const beside: Case = {
  ids: ['LIST-12'],
  async run(stage, check) {
    const mine = new Set<string>();
    let done = false;
    const since0 = await stage.head();
    const writers = Promise.all(
      [stage.first, stage.second].map(async (device) => {
        for (let index = 0; index < 25; index++) {
          const item = await stage.written({}, device);
          mine.add(item.id);
          if (index % 2 === 0) await stage.write(stage.edit(item), device);
          if (index % 5 === 0) await stage.remove(item.id, undefined, device);
        }
      }),
    ).then(() => (done = true));
    const held = new Map<string, Json>();
    let [since, rising] = [since0, true];
    for (;;) {
      const over = done;
      const page = await list(stage, `?since=${since}&limit=7`);
      for (const row of page.list('items')) held.set(String(row['id']), row);
      const found = versions(page);
      rising &&= found.every((version, index) => version > (found[index - 1] ?? since));
      if (more(stage, page) === true)
        check.same('LIST-12', cursor(stage, page), found.at(-1), 'cursor before more rows');
      else check.ok('LIST-12', Number(cursor(stage, page)) >= (found.at(-1) ?? since), 'a cursor that does not fall');
      since = Number(cursor(stage, page));
      if (over && more(stage, page) !== true) break;
    }
    await writers;
    check.ok('LIST-12', rising, 'versions rise within and over all pages');
    check.same(
      'LIST-12',
      [...held.keys()].sort(),
      [...mine].sort(),
      'items found by paging concurrently with two writers',
    );
    const truth = new Map(
      (await stage.rows(stage.shape, since0)).map((row) => [String(row['id']), JSON.stringify(row)]),
    );
    check.same(
      'LIST-12',
      [...held].filter(([id, row]) => truth.get(id) !== JSON.stringify(row)).length,
      0,
      'number of items not found in their latest state',
    );
  },
};

const big: Case = {
  ids: ['LIST-14'],
  async run(stage, check) {
    const bin = await stage.bin();
    const since = await stage.head();
    await writeAll(
      stage,
      range(1, 70).map(() => stage.item({ binId: bin, ct: randomBytes(65_536) })),
      11,
    );
    const first = await list(stage, `?since=${since}&limit=70`);
    check.ok(
      'LIST-14',
      more(stage, first) === true,
      'more behind the first page of 70 items of 64 KiB',
      more(stage, first),
    );
    const seen: number[] = [];
    for (let from = since, page = first; ; page = await list(stage, `?since=${from}&limit=1000`)) {
      seen.push(...versions(page));
      check.same('LIST-14', cursor(stage, page), seen.at(-1), 'cursor of the page');
      check.ok('LIST-14', page.raw.length < 8 * 1024 * 1024, 'a page of about 4 MiB', `${page.raw.length} characters`);
      if (more(stage, page) !== true || Number(seen.at(-1)) <= from) break;
      from = Number(seen.at(-1));
    }
    check.same('LIST-14', seen, range(since + 1, since + 70), 'versions over all pages');
  },
};

export const lists: readonly Case[] = [pages, parameters, resets, views, beside, big];
