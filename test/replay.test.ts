/** Replay: from a client's cursor to the head, whatever its length, also with concurrent writers. */
import t from 'tap';
import { randomInt } from 'node:crypto';
import { ShiftedClock } from './support/clock.js';
import { edited, join, mustWrite, newItem, writeBody, type TestDevice, type TestItem } from './support/devices.js';
import { inLongRun } from './support/long.js';
import {
  changesOf,
  difference,
  listAll,
  Mirror,
  notRising,
  range,
  startWriters,
  summaryAt,
  untilVersion,
  versionsOf,
  type Acked,
} from './support/stream.js';
import { SHAPES, spelled, type Json, type Wire } from './support/wire.js';
import { world } from './support/two-devices.js';

/** Makes a long history quickly: writes the items in batches of 100. */
async function fill(wire: Wire, device: TestDevice, items: readonly TestItem[]): Promise<void> {
  const batches = range(0, Math.ceil(items.length / 100) - 1).map((at) => items.slice(at * 100, at * 100 + 100));
  let next = 0;
  const work = async (): Promise<void> => {
    for (let batch = batches[next++]; batch !== undefined; batch = batches[next++]) {
      const body = { items: batch.map((item) => writeBody('a', item)) };
      const reply = await wire.post('/items/batch', body, { token: device.token, shape: 'a' });
      const refused = reply.list('results').filter((result) => result['error'] !== undefined);
      if (refused.length > 0) throw new Error(`batch: ${JSON.stringify(refused[0])}`);
    }
  };
  await Promise.all(range(1, 4).map(work));
}

/** Drops the live versions that were in transit when the hello was sent: each is above all earlier ones. */
const sinceHello = (versions: readonly number[], lastBefore: number): readonly number[] =>
  versions.slice(
    Math.max(
      0,
      versions.findIndex((version, at) => version <= (versions[at - 1] ?? lastBefore)),
    ),
  );

/** More than a server keeps in memory, and many pages. */
const MANY = inLongRun(5_000, 20_000);

const caughtUpOf = (frames: readonly Json[]): Json => frames.at(-1) ?? {};

t.setTimeout(600_000);

t.test('replay of a history with every kind of change', async (t) => {
  const { server, wire, first: writer, second: reader, all } = await world(t);
  const mine = { token: writer.token, shape: 'a' } as const;
  await wire.post('/bins', { id: 'other' }, mine);
  const [kept, replaced, moved, removed, purged] = range(1, 5).map(() => newItem(all)) as [
    TestItem,
    TestItem,
    TestItem,
    TestItem,
    TestItem,
  ];
  for (const item of [kept, replaced, moved, removed, purged]) await mustWrite(wire, writer, item);
  const middle = await mustWrite(wire, writer, edited(replaced));
  const latest = edited(edited(replaced));
  await mustWrite(wire, reader, latest);
  const move = { binId: 'other', version: 3, sig: Buffer.alloc(32, 9) };
  const movedTo = (await wire.post(`/items/${moved.id}/reconcile`, move, mine)).number('version');
  const tag = Buffer.alloc(32, 7);
  const removedAt = (await wire.delete(`/items/${removed.id}`, { ...mine, body: { sig: tag } })).number('version');
  const purgedAt = (await wire.delete(`/items/${purged.id}`, { ...mine, body: { sig: tag } })).number('version');
  // What a purge leaves: id, bin, version, time and tag of the delete.
  await server.sql(
    `UPDATE items SET type = NULL, ts = NULL, sender_device = NULL, changed_by = NULL, write_hash = NULL
     WHERE id = $1`,
    [purged.id],
  );

  t.test(
    'REPLAY-01 REPLAY-02 REPLAY-03: replay sends each item once in its latest state, each delete, then caught_up',
    async (t) => {
      for (const shape of SHAPES) {
        const socket = await wire.connect({ shape, token: reader.token });
        const frames = await socket.hello(0);
        const changes = changesOf(frames);
        t.same(
          changes.map(({ kind, id, version }) => [kind, id, version]),
          [
            ['item', kept.id, 1],
            ['item', replaced.id, middle + 1],
            ['item', moved.id, movedTo],
            ['delete', removed.id, removedAt],
            ['delete', purged.id, purgedAt],
          ],
        );
        t.equal(frames.length, changes.length + 1, 'nothing but these and caught_up');
        const row = (at: number): Json => {
          const frame = changes[at]?.frame ?? {};
          return (shape === 'b' ? frame['item'] : frame) as Json;
        };
        const sent = spelled(shape, latest.ct);
        t.equal((shape === 'a' ? (row(1)['payloadEnc'] as Json) : row(1))['ct'], sent, 'the latest content');
        t.equal(row(2)[shape === 'a' ? 'binId' : 'bin_id'], 'other', 'the moved item is in its new bin');
        for (const at of [3, 4]) t.equal(changes[at]?.frame['sig'], spelled(shape, tag), 'with the tag of the delete');
        await socket.close();
      }
    },
  );

  t.test('REPLAY-01: replay sends only versions above since', async (t) => {
    for (const since of range(0, purgedAt)) {
      const socket = await wire.connect({ token: reader.token });
      const versions = versionsOf(await socket.hello(since));
      t.same(
        versions,
        [1, middle + 1, movedTo, removedAt, purgedAt].filter((version) => version > since),
        `${since}`,
      );
      await socket.close();
    }
  });

  t.test('REPLAY-02: replay sends a device its own changes as items, with and without acks', async (t) => {
    for (const acks of [false, true]) {
      const socket = await wire.connect({ token: writer.token });
      const frames = await socket.hello(0, { acks });
      t.same(
        frames.map((frame) => frame['type']),
        ['item', 'item', 'item', 'delete', 'delete', 'caught_up'],
      );
      await socket.close();
    }
  });

  t.test('REPLAY-05: caught_up carries version, epoch, count and sum', async (t) => {
    const [a, b] = [
      await wire.connect({ token: reader.token }),
      await wire.connect({ shape: 'b', token: reader.token }),
    ];
    const epoch = (await wire.get('/service/status')).text('epoch');
    const versionSum = 1 + (middle + 1) + movedTo;
    t.strictSame(caughtUpOf(await a.hello()), {
      type: 'caught_up',
      version: purgedAt,
      epoch,
      itemCount: 3,
      versionSum,
    });
    t.strictSame(caughtUpOf(await b.hello(purgedAt)), {
      type: 'caught_up',
      version: purgedAt,
      epoch,
      item_count: 3,
      version_sum: versionSum,
    });
    const me = await wire.get('/me', { token: reader.token, shape: 'a' });
    t.same(
      ['headVersion', 'versionSum', 'itemCount'].map((field) => me.number(`server.${field}`)),
      [purgedAt, versionSum, 3],
    );
  });
});

t.test('replay with concurrent writers', async (t) => {
  const clock = new ShiftedClock();
  const { wire, first: writer, second: reader, all } = await world(t, { clock });
  const third = await join(wire, writer, { name: 'third' });
  const writers = { wires: [wire], devices: [writer, third], writers: 8, sealFor: [...all, third.id] };
  const acked: Acked[] = [];

  t.test('REPLAY-04 REPLAY-06 REPLAY-08: a hello at any moment gets every change once, with exact sums', async (t) => {
    const writing = startWriters(writers);
    await writing.until(300);
    const seen: { since: number; head: number; frames: Json[] }[] = [];
    const sockets = [];
    for (let round = 0; writing.acked.length < inLongRun(1_000, 2_000) || seen.length <= 30; round++) {
      const head = Math.max(...writing.acked.map(({ version }) => version));
      const since = round % 3 === 0 ? 0 : round % 3 === 1 ? head : randomInt(head);
      const socket = await wire.connect({ token: reader.token, shape: SHAPES[round % 2] });
      await socket.hello(since);
      seen.push({ since, head, frames: socket.frames });
      sockets.push(socket);
      if (sockets.length > 12) await sockets.shift()?.close();
    }
    await writing.stop();
    t.same([writing.refusals, writing.errors], [[], []]);
    acked.push(...writing.acked);
    const last = Math.max(...acked.map(({ version }) => version));
    for (const socket of sockets) {
      await untilVersion(socket, last);
      await socket.close();
    }
    t.ok(seen.length > 30, `${seen.length} replays`);
    const truth = await listAll(wire, reader.token);
    for (const [round, { since, head, frames }] of seen.entries()) {
      const at = frames.findIndex((frame) => frame['type'] === 'caught_up');
      const { version, itemCount, versionSum, item_count, version_sum } = frames[at] as Record<string, number>;
      const replayed = changesOf(frames.slice(0, at));
      const versions = versionsOf(frames);
      const label = `replay ${round} from ${since}`;
      t.ok((version ?? 0) >= head, `${label}: caught_up is not below the committed head`);
      t.same(
        { itemCount: itemCount ?? item_count, versionSum: versionSum ?? version_sum },
        summaryAt(acked, version ?? 0),
      );
      t.same(notRising(versions), [], `${label}: versions rise`);
      const live = versions.filter((one) => one > (version ?? 0));
      const following = range((version ?? 0) + 1, live.at(-1) ?? version ?? 0);
      t.equal(difference(live, following), '', `${label}: every version after caught_up is pushed`);
      const below = acked.filter((change) => change.version <= (version ?? 0));
      const owed = new Map(below.sort((x, y) => x.version - y.version).map((change) => [change.id, change]));
      const expected = [...owed.values()].filter((change) => change.version > since);
      const latest = new Set(expected.map((change) => change.version));
      // A row that changed while the pages were read may be sent in both states; the older is outdated at `caught_up`.
      const states = replayed.filter((change) => owed.get(change.id)?.version === change.version);
      const found = states.map((change) => change.version);
      t.equal(
        difference(
          found,
          [...latest].sort((x, y) => x - y),
        ),
        '',
        `${label}: the state at caught_up is complete`,
      );
      const older = replayed.filter((change) => !latest.has(change.version));
      t.same(
        older.filter((change) => change.version >= (owed.get(change.id)?.version ?? 0)),
        [],
        label,
      );
    }
    const made = new Mirror().apply([...acked].sort((x, y) => x.version - y.version));
    t.equal(difference(made.state, new Mirror().apply(truth.changes).state), '');
  });

  t.test('REPLAY-08: a socket that sends hello again and again during writes is complete every time', async (t) => {
    const writing = startWriters(writers);
    const socket = await wire.connect({ token: reader.token });
    const mirror = new Mirror();
    let cursor = 0;
    for (const round of range(1, inLongRun(12, 25))) {
      await writing.until(round * 60);
      const lastBefore = versionsOf(socket.frames).at(-1) ?? 0;
      const frames = await socket.hello(cursor);
      t.same(notRising(sinceHello(versionsOf(frames), lastBefore)), []);
      mirror.apply(changesOf(frames));
      cursor = Number(caughtUpOf(frames)['version']);
      const { itemCount, versionSum } = caughtUpOf(frames);
      t.same({ itemCount, versionSum }, mirror.summary, `complete at ${cursor}`);
      clock.advance(5_000);
    }
    await writing.stop();
    t.same([writing.refusals, writing.errors], [[], []]);
    await socket.close();
  });

  t.test('REPLAY-09: replay and paging over HTTP give the same rows from any cursor', async (t) => {
    const head = (await listAll(wire, reader.token)).head;
    for (const round of range(1, inLongRun(8, 24))) {
      const since = round === 1 ? 0 : randomInt(head + 1);
      const shape = SHAPES[round % 2] ?? 'a';
      const listing = await listAll(wire, reader.token, { since, shape, limit: 1 + randomInt(400) });
      const socket = await wire.connect({ shape, token: reader.token });
      const frames = await socket.hello(since);
      const changes = changesOf(frames).map(({ kind, id, version }) => ({ kind, id, version }));
      t.equal(difference(changes, listing.changes), '', `from ${since} in ${shape}`);
      t.equal(caughtUpOf(frames)['version'], listing.head);
      const rows = new Map(listing.rows.map((row) => [row['version'], row]));
      const wrong = frames.filter(({ type, item, itemType, ...flat }) => {
        const row = type === 'item' ? ((item as Json | undefined) ?? { ...flat, type: itemType }) : undefined;
        return (
          row !== undefined && JSON.stringify(sorted(row)) !== JSON.stringify(sorted(rows.get(row['version']) ?? {}))
        );
      });
      t.same(wrong.slice(0, 2), [], 'the same rows, field by field');
      await socket.close();
    }
  });

  t.test(`REPLAY-02 REPLAY-07: a replay of ${MANY} items is complete from any cursor`, async (t) => {
    await fill(
      wire,
      writer,
      range(1, MANY).map(() => newItem([...all, third.id])),
    );
    const truth = await listAll(wire, reader.token);
    const start = await wire.connect({ token: reader.token });
    const frames = await start.hello(0);
    t.equal(
      difference(
        versionsOf(frames),
        truth.changes.map(({ version }) => version),
      ),
      '',
    );
    const { itemCount, versionSum } = caughtUpOf(frames);
    t.same({ itemCount, versionSum }, new Mirror().apply(truth.changes).summary);
    for (const since of [truth.head - MANY + 1, truth.head - 1_000, truth.head - 1]) {
      const socket = await wire.connect({ token: reader.token, shape: 'b' });
      t.equal(difference(versionsOf(await socket.hello(since)), range(since + 1, truth.head)), '');
      await socket.close();
    }
    await start.close();
  });
});

const sorted = (row: Json): [string, unknown][] => Object.entries(row).sort(([one], [other]) => (one < other ? -1 : 1));
