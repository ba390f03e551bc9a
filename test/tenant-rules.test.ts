/** What a change is checked against, what memory keeps, and what happens when the database does not answer. */
import fc from 'fast-check';
import t from 'tap';
import type { ServiceError } from '../src/protocol/errors.js';
import type { ItemWrite } from '../src/protocol/item.js';
import type { Effect } from '../src/server/tenant/messages.js';
import { type ItemRow, rowText as rowTextOfBytes } from '../src/server/tenant/codec.js';
import { frameText, rowText } from './support/item-text.js';
import { RecentFrames, RECENT_BYTES, RECENT_ROWS, FrameRing } from '../src/server/tenant/deliver.js';
import { step } from '../src/server/tenant/step.js';
import { blob, BOTH, deviceId, inline, itemId, keysFor, sig, writeChange, writeOf } from './support/changes.js';
import { itemOf, rowOf } from './support/rows.js';
import { range } from './support/stream.js';
import { EPOCH, errorOf, TENANT, World, type Asked } from './support/world.js';

const detail = ({ error }: Asked): unknown => (error as ServiceError | undefined)?.details?.['path'];

/** Device 1 requests a write in a world in which device 3 is revoked. */
function judged(write: Partial<ItemWrite>): { asked: Asked; world: World } {
  const world = new World({ devices: 3 });
  world.database.blobs.set('ref', { state: 'ready', itemId: null });
  world.revoke(3);
  world.compare();
  world.drainOperations();
  const asked = world.write(writeOf({ inline: inline('one', BOTH), ...write }));
  world.settle();
  return { asked, world };
}

t.test('ITEM-29: a write is stored without the keys of revoked devices, in whatever order its keys are', (t) => {
  const master = { nonce: sig('n').subarray(0, 24), ct: Buffer.alloc(48, 7) };
  const given = { blob: blob('ref', BOTH), master };
  const all = [deviceId(3), deviceId(2), deviceId(1)];
  const { world } = judged({ ...given, inline: inline('one', all) });
  const { world: other } = judged({ ...given, inline: inline('one', BOTH) });
  const stored = (of: World): unknown => of.database.items.get(itemId(1))?.row.item;
  t.strictSame(stored(world), stored(other));
  t.not(stored(world), undefined);
  t.equal(world.write(writeOf({ ...given, inline: inline('one', all.toReversed()) })).replies, 0);
  world.settle();
  t.equal(world.head, 1, 'the same write with its keys in another order is a retry');
  t.end();
});

t.test('ITEM-26 ITEM-27: every device that is not revoked needs a key', (t) => {
  const missing = (write: Partial<ItemWrite>): unknown =>
    (judged(write).asked.error as ServiceError | undefined)?.details?.['missingDevices'];
  t.strictSame(missing({ inline: inline('one', []) }), BOTH);
  t.strictSame(missing({ inline: inline('one', [deviceId(2)]) }), [deviceId(1)]);
  t.strictSame(missing({ inline: null, blob: blob('ref', [deviceId(1)]) }), [deviceId(2)]);
  t.equal(
    missing({ inline: inline('one', BOTH), blob: blob('ref', []) }),
    undefined,
    'the inline keys open the metadata and with it the blob',
  );
  t.end();
});

t.test('ITEM-28 ITEM-29 ITEM-30 ITEM-31: unknown devices are refused, revoked ones only in blobKeys', (t) => {
  t.equal(detail(judged({ inline: inline('one', [...BOTH, deviceId(9)]) }).asked), `payloadEnc.keys.${deviceId(9)}`);
  t.equal(detail(judged({ inline: null, blob: blob('ref', [...BOTH, deviceId(9)]) }).asked), `blobKeys.${deviceId(9)}`);
  t.equal(detail(judged({ inline: null, blob: blob('ref', [...BOTH, deviceId(3)]) }).asked), `blobKeys.${deviceId(3)}`);
  const all = [...BOTH, deviceId(3)];
  const { world } = judged({ inline: inline('one', all), blob: blob('ref', BOTH) });
  const item = world.database.items.get(itemId(1))?.row.item;
  t.strictSame(item?.deletedAt === null && item.inline, inline('one', BOTH), 'the key is dropped from the inline keys');
  t.strictSame(item?.deletedAt === null && item.blob?.keys, keysFor(BOTH, 'blob key'), 'blobKeys are stored as sent');
  const again = world.write(writeOf({ inline: inline('one', all), blob: blob('ref', BOTH), ifVersion: 0 }));
  world.settle();
  t.equal(again.version, 1, 'RETRY-01: the same write with the dropped key is a retry');
  t.equal(world.head, 1);
  t.end();
});

t.test('ITEM-20 MOVE-07: a write and a move into an unknown bin are refused', (t) => {
  const { asked, world } = judged({ binId: 'nowhere' });
  t.equal(errorOf(asked), 'bin_not_found');
  world.write(writeOf({ inline: inline('one', BOTH) }));
  world.settle();
  const move = world.request({
    kind: 'move',
    id: itemId(1),
    binId: 'nowhere',
    version: 1,
    sig: sig('m'),
    deviceId: deviceId(1),
  });
  world.settle();
  t.equal(errorOf(move), 'bin_not_found');
  t.end();
});

t.test('ITEM-32: the first item write after a revocation starts the purge, once', (t) => {
  const world = new World({ devices: 3 });
  const write = (n: number, devices: readonly string[]): void => {
    world.write(writeOf({ id: itemId(n), inline: inline(`${n}`, devices) }));
    world.settle();
  };
  write(1, [...BOTH, deviceId(3)]);
  t.strictSame(world.purged, []);
  world.revoke(3);
  world.compare();
  world.request({ kind: 'delete', id: itemId(1), sig: null, deviceId: deviceId(1) });
  world.settle();
  t.strictSame(world.purged, [], 'a delete starts no purge');
  write(2, BOTH);
  write(3, BOTH);
  t.strictSame(world.purged, [deviceId(3)]);
  t.end();
});

t.test('INST-26: a hello while the database is unreachable gets what memory holds, and caught_up later', (t) => {
  const world = new World();
  const live = world.connect(1);
  const first = world.write(writeOf({ inline: inline('one', BOTH) }));
  world.settle();
  t.equal(first.version, 1);
  const [near, far] = [world.enter(1), world.enter(1)];
  world.hello(near, { since: 0 });
  world.fail(world.find('head'), true);
  t.strictSame([near.witness.cursor, near.witness.live], [1, false], 'the socket gets the version that memory holds');
  for (let n = 2; n < 400; n++) world.write(writeOf({ id: itemId(n), inline: inline(`text ${n}`, BOTH) }));
  world.commitAll();
  world.hello(far, { since: 0 });
  world.fail(world.find('page'), true);
  t.equal(far.witness.cursor, 0, 'memory does not reach so far back');
  for (const { witness } of [near, far, live]) t.equal(witness.closedWith, null, 'no socket is closed');
  t.notOk(
    world.underWay.some(({ name }) => name === 'page' || name === 'head'),
    'no read is repeated at once',
  );
  world.compare();
  world.settle();
  t.strictSame([near.witness.live, far.witness.live], [true, true], 'both continue after the next comparison');
  t.end();
});

t.test('DUR-10: any number of hints costs one read, and rows committed meanwhile are held up to a bound', (t) => {
  const world = new World({ gapRows: 5_000, pageRows: 5_000 });
  const live = world.connect(2);
  world.remote(
    writeChange(writeOf({ inline: inline('elsewhere', BOTH) }), { tenantId: TENANT, deviceId: deviceId(1) }),
  );
  for (let n = 0; n < 5_000; n++) world.post({ kind: 'head-hint', head: 1 + n, generation: 0 });
  const reads = (): number => world.underWay.filter(({ name }) => name === 'gap').length;
  t.equal(reads(), 1);
  for (let n = 2; n < 1_600; n++) {
    world.write(writeOf({ id: itemId(n), inline: inline(`text ${n}`, BOTH) }));
    if (n % 200 === 0) world.commitAll();
  }
  world.commitAll();
  t.equal(reads(), 1);
  t.ok(world.state.held.length <= 1_000, `${world.state.held.length} rows are held`);
  world.settle();
  t.strictSame(
    live.witness.versions,
    Array.from({ length: 1_599 }, (_, at) => at + 1),
    'no version is lost',
  );
  t.end();
});

t.test('when the database does not answer, pending calls fail and nothing stays stuck', (t) => {
  const world = new World();
  const live = world.connect(1);
  const asked = world.write(writeOf({ inline: inline('one', BOTH) }));
  world.join();
  world.commitAll();
  world.fail(world.find('reload'));
  t.match(asked.error, { message: 'no database' });
  const greeting = world.enter(1);
  world.hello(greeting);
  world.join();
  world.compare();
  world.fail(world.find('head'));
  t.equal(greeting.witness.closedWith, 1013, 'the socket is closed: it reconnects with the same cursor');
  world.settle();
  t.equal(
    live.witness.plain.filter(({ type }) => type === 'device_joined').length,
    2,
    'the next reload shows the same difference',
  );
  const unknown = world.write(writeOf({ inline: inline('one', [...BOTH, deviceId(3), deviceId(4)]) }));
  world.startBatch(1);
  world.advance(world.find('commit'));
  world.fail(world.find('commit'));
  t.match(unknown.error, { message: 'outcome unknown' });
  world.settle();
  t.equal(world.head, 1, 'the write was committed');
  t.equal(world.state.delivered, 1, 'the comparison of heads finds it');
  t.end();
});

const row = (version: number, ctBytes = 40, id = itemId(version)): ItemRow => {
  const write = writeOf({ id, inline: inline(`${version}`, [], ctBytes) });
  return rowOf({ ...write, version, senderDevice: deviceId(1), deletedAt: null }, deviceId(1));
};
const raise = (): never => {
  throw new Error('no such tenant');
};
const ring = (): FrameRing => new FrameRing(64 * 1024 * 1024);
const rows = (from: number, to: number, ctBytes?: number): ItemRow[] =>
  Array.from({ length: to - from + 1 }, (_, n) => row(from + n, ctBytes));
/** Adds delivered changes, as `deliver` does when they are pushed. */
function add(recent: RecentFrames, added: readonly ItemRow[]): void {
  for (const one of added) {
    recent.ring.beginStep();
    recent.add(one);
  }
}
const versionsAbove = (recent: RecentFrames, cursor: number): number[] =>
  recent.above(cursor).map((position) => recent.ring.versionOf(position));

t.test(
  'WS-24: frames kept in memory are bounded in number and bytes, and the floor rises with what is dropped',
  (t) => {
    const recent = new RecentFrames('a', 0, ring());
    t.ok(recent.covers(0));
    add(recent, rows(1, RECENT_ROWS));
    t.ok(recent.covers(0));
    t.equal(recent.above(0).length, RECENT_ROWS);
    add(recent, rows(RECENT_ROWS + 1, RECENT_ROWS + 10));
    t.notOk(recent.covers(9));
    t.ok(recent.covers(10));
    t.strictSame(
      versionsAbove(recent, 10),
      Array.from({ length: RECENT_ROWS }, (_, n) => n + 11),
    );

    const heavy = new RecentFrames('a', 0, ring());
    for (let n = 1; n <= 20; n++) {
      add(heavy, rows(n, n, 65_536));
      t.equal(heavy.covers(n - 1), true, 'the newest frame is kept');
      const lengths = heavy.above(0).map((position) => heavy.frame(position)?.length ?? 0);
      const bytes = lengths.reduce((sum, length) => sum + length, 0);
      t.ok(bytes <= RECENT_BYTES, `${bytes} bytes`);
      t.ok(
        lengths.length === n || bytes + Math.max(...lengths) > RECENT_BYTES,
        'no more frames than necessary are dropped',
      );
    }
    heavy.forget(20);
    t.strictSame(heavy.above(0), []);
    t.notOk(heavy.covers(19));
    t.ok(heavy.covers(20));
    t.end();
  },
);

t.test('REPLAY-02: memory returns each frame as it was put in', (t) => {
  const shared = ring();
  const payloads = [
    { inline: inline('with keys', BOTH) },
    { inline: null, blob: blob('ref', BOTH) },
    { inline: inline('and metadata', BOTH), blob: blob('ref', BOTH), master: null, sig: null },
    // Base64 of each remainder, short and long.
    ...Array.from({ length: 120 }, (_, n) => ({ inline: inline(`of ${n}`, [deviceId(1)], 16 + n) })),
  ];
  const live = payloads.map((payload, n): ItemRow => {
    const write = writeOf({ id: itemId(n), binId: 'b'.repeat(64), ts: 2 ** 53 - 1, ...payload });
    return rowOf({ ...write, version: n + 1, senderDevice: deviceId(1), deletedAt: null }, deviceId(2));
  });
  const gone = { binId: '', type: null, senderDevice: null, ts: null, deletedAt: 5 };
  const deleted = [sig('gone'), null].map((tag, n): ItemRow =>
    rowOf({ id: itemId(207 + n), version: 209 + n, sig: tag, ...gone }, deviceId(1)),
  );
  const put = [...live, ...deleted];
  for (const shape of ['a', 'b'] as const) {
    const recent = new RecentFrames(shape, 0, shared);
    add(recent, put);
    const got = recent.above(0);
    t.equal(got.length, put.length);
    for (const [n, position] of got.entries()) {
      const one = put[n] as ItemRow;
      const { ring: held } = recent;
      t.strictSame(
        [held.idOf(position), held.versionOf(position), held.deviceOf(position)],
        [one.id, one.version, one.changedBy],
      );
      t.equal(Buffer.from(recent.frame(position) ?? []).toString(), frameText(shape, itemOf(one)));
      t.equal(rowTextOfBytes(shape, one), rowText(shape, itemOf(one)), 'the row in a listing is the same');
    }
  }
  t.end();
});

t.test('WS-24: all tenants share one bound of memory: the oldest frames go first, and the floor rises', (t) => {
  const shared = new FrameRing(3 * 1024 * 1024);
  const quiet = new RecentFrames('a', 0, shared);
  const others: RecentFrames[] = [];
  const othersWrite = (tenants: number): void => {
    for (let n = 0; n < tenants; n++) {
      const other = new RecentFrames('a', 0, shared);
      add(other, rows(1, 3, 60_000));
      others.push(other);
    }
  };
  add(quiet, rows(1, 2, 60_000));
  // A frame is a third longer than its ciphertext: 13 fit into a segment.
  othersWrite(9);
  t.ok(quiet.covers(0) && quiet.above(0).length === 2, 'while there is room all frames are kept');
  othersWrite(5);
  t.notOk(quiet.covers(1));
  t.ok(quiet.covers(2));
  t.strictSame(quiet.above(0), []);
  t.ok(shared['segments'].size <= 3, 'memory stays within the bound');
  t.equal(others.at(-1)?.above(0).length, 3, 'the newest frames are kept');
  add(quiet, rows(3, 3));
  t.ok(quiet.covers(2), 'new frames are kept again');
  t.end();
});

t.test('FAIR-47: a tenant that changes much takes the place of at most half of the frames of others', (t) => {
  const shared = new FrameRing(16 * 1024 * 1024);
  const first = new RecentFrames('a', 0, shared);
  add(first, rows(1, 2));
  const changesMuch = (): RecentFrames => {
    const busy = new RecentFrames('a', 0, shared);
    add(busy, rows(1, 200, 60_000));
    return busy;
  };
  t.ok(changesMuch().covers(198), 'its own newest frames are kept');
  t.ok(first.covers(0), 'and there was room for the others');
  // 13 of these frames fit into a segment of 1 MiB: they take up more than half of the memory.
  const others = Array.from({ length: 60 }, () => new RecentFrames('a', 0, shared));
  for (const other of others) add(other, rows(1, 3, 60_000));
  t.notOk(first.covers(1), 'many tenants with a little each replace the oldest');
  for (let tenants = 0; tenants < 3; tenants++) changesMuch();
  t.same(
    others.slice(-20).map((other) => other.covers(0)),
    Array.from({ length: 20 }, () => true),
    'the newest half is kept, however many change much',
  );
  const calm = Array.from({ length: 60 }, () => new RecentFrames('a', 0, shared));
  for (const one of calm) add(one, rows(1, 3, 60_000));
  // The first ones share a segment with older frames.
  t.ok(calm[5]?.covers(0), 'and where none does any more, the others have nearly all of it');
  t.ok(shared['segments'].size <= 16, 'memory stays within the bound');
  t.end();
});

/** A tenant's change: how many bytes of ciphertext, of which item. */
const added = fc.record({ tenant: fc.nat({ max: 3 }), item: fc.nat({ max: 20 }), kib: fc.nat({ max: 40 }) });

t.test(
  'WS-24, REPLAY-02: for any changes of any tenants memory returns what a log would, or reports that it cannot',
  (t) => {
    let served = 0;
    let refused = 0;
    fc.assert(
      fc.property(fc.array(added, { minLength: 40, maxLength: 160 }), (all) => {
        const shared = new FrameRing(2 * 1024 * 1024);
        const tenants = [0, 1, 2, 3].map(() => ({ recent: new RecentFrames('a', 0, shared), log: [] as ItemRow[] }));
        for (const { tenant, item, kib } of all) {
          const { recent, log } = tenants[tenant] ?? raise();
          log.push(row(log.length + 1, 16 + kib * 1024, itemId(item)));
          add(recent, log.slice(-1));
          // A read in between changes nothing.
          if (item === 0) recent.above(0);
        }
        for (const { recent, log } of tenants) {
          for (let cursor = 0; cursor <= log.length; cursor++) {
            if (!recent.covers(cursor)) {
              refused++;
              if (cursor === log.length) throw new Error('there is nothing above the head');
              continue;
            }
            served++;
            const latest = log
              .slice(cursor)
              .filter(({ id }, n, rest) => !rest.slice(n + 1).some((later) => later.id === id));
            const expected = latest.map((one) => [one.version, frameText('a', itemOf(one))]);
            const got = recent
              .above(cursor)
              .map((position) => [
                recent.ring.versionOf(position),
                Buffer.from(recent.frame(position) ?? []).toString(),
              ]);
            if (JSON.stringify(got) !== JSON.stringify(expected)) throw new Error(`above ${cursor} of ${log.length}`);
          }
        }
      }),
      { numRuns: 60 },
    );
    t.ok(served > 1_000 && refused > 100, `${served} served, ${refused} refused`);
    t.end();
  },
);

t.test('WS-07: a step that adds more than memory holds sends its first frames unchanged', (t) => {
  const world = new World({ ringBytes: 2 * 1024 * 1024 });
  const write = (version: number): ItemWrite =>
    writeOf({ id: itemId(version), inline: inline(`text ${version}`, BOTH, 60_000) });
  const sockets = [world.connect(2), world.connect(2, { shape: 'b' })];
  const commit = (from: number, to: number): void => {
    for (let version = from; version <= to; version++) world.write(write(version));
    world.commitAll();
  };
  // The tenant's part of what is kept for all is used up: from now on it has one segment.
  for (let version = 1; version <= 4; version++) commit(version, version);
  world.remote(writeChange(write(5), { tenantId: TENANT, deviceId: deviceId(1) }));
  world.compare();
  const gap = world.find('gap');
  world.advance(gap);
  commit(6, 21);
  t.equal(world.state.held.length, 16, 'what follows a gap waits until it is read');
  world.advance(gap);
  t.equal(world.state.delivered, 21, 'both are delivered in one step');
  world.settle();
  t.strictSame(
    sockets.map(({ witness }) => witness.versions),
    sockets.map(() => range(1, 21)),
  );
  t.end();
});

t.test('WS-24: a change that is too long to be kept is read from the log', (t) => {
  const recent = new RecentFrames('a', 0, ring());
  const tooLong = row(2, 1024 * 1024);
  add(recent, [...rows(1, 1), tooLong, ...rows(3, 3)]);
  t.notOk(recent.covers(1));
  t.ok(recent.covers(2));
  t.strictSame(versionsAbove(recent, 0), [3]);
  t.end();
});

t.test('REPLAY-02: memory gives each item once, in its latest state', (t) => {
  const recent = new RecentFrames('a', 3, ring());
  add(
    recent,
    [4, 5, 6, 7].map((version) => row(version, 40, itemId(version % 2))),
  );
  t.strictSame(versionsAbove(recent, 3), [6, 7]);
  t.strictSame(versionsAbove(recent, 6), [7]);
  t.notOk(recent.covers(2));
  t.end();
});

t.test('ARCH-07: the same messages give the same effects', (t) => {
  const played = (): Effect[][] => {
    const world = new World();
    const { session } = world.connect(1);
    const write = writeOf({ inline: inline('one', BOTH) });
    const change = writeChange(write, { tenantId: TENANT });
    const effects = step(world.state, { kind: 'change', change }, 7).map(({ kind }) => ({ kind }) as Effect);
    world.remote(writeChange(write, { tenantId: TENANT }));
    const hinted = step(world.state, { kind: 'head-hint', head: 1, generation: 1 }, 8);
    const hello = step(world.state, { kind: 'hello', session, since: 0, epoch: EPOCH, acks: true }, 99_000_000);
    // Other kinds of messages: a write that is committed and pushed, a revocation and what it closes.
    const other = new World();
    other.connect(2);
    other.write(write);
    other.settle();
    other.revoke(2);
    other.settle();
    return [effects, hinted, hello];
  };
  const none = (): never => {
    throw new Error('a step read a clock, or drew a number');
  };
  const guards = [t.intercept(Date, 'now', { value: none }), t.intercept(Math, 'random', { value: none })];
  let [first, second]: Effect[][][] = [];
  try {
    [first, second] = [played(), played()];
  } finally {
    for (const guard of guards) guard.restore();
  }
  t.equal(JSON.stringify(first), JSON.stringify(second));
  t.strictSame(
    first?.map((effects) => effects.map(({ kind }) => kind)),
    [['commit'], ['read-gap'], ['read-head']],
  );
  t.end();
});
