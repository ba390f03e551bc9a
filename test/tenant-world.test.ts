/**
 * Property tests of the tenant's `step`: any order of messages, commits, reads, answers, failures and stalls, drawn by
 * fast-check. Witnesses check what the sockets get against the log (support/witness.ts).
 */
import fc from 'fast-check';
import t from 'tap';
import type { Change } from '../src/server/tenant/change.js';
import { askedFor } from './support/memory-log.js';
import {
  BIN,
  deleteChange,
  deviceId,
  inline,
  itemId,
  master,
  moveChange,
  OTHER_BIN,
  sig,
  TS,
  writeChange,
  writeOf,
} from './support/changes.js';
import { inLongRun } from './support/long.js';
import { sigOf } from './support/rows.js';
import { TENANT, World, type OpenSocket } from './support/world.js';

const ITEMS = 5;
const HINT_MAX = 3;

/** One event. The numbers choose among what exists at that moment. */
interface Happening {
  readonly what: keyof typeof HAPPENINGS;
  readonly a: number;
  readonly b: number;
  readonly c: number;
}

const pick = <T>(from: readonly T[], n: number): T | undefined =>
  from.length === 0 ? undefined : from[n % from.length];

/** A change that fits what is stored now; one that is committed later may be a conflict, as it should. */
function draw(world: World, { a, b, c }: Happening): Change {
  const id = itemId(b % ITEMS);
  const by = 1 + (a % world.devices.length);
  const context = { tenantId: TENANT, deviceId: deviceId(by) };
  const stored = world.database.items.get(id)?.row.item;
  const keys = world.devices.filter(({ revoked }) => !revoked).map((device) => device.id);
  const text = `text ${world.head} ${c}`;
  const kind = c % 8;
  if (kind === 0) return deleteChange(id, c % 2 === 0 ? sig(`delete ${id}`) : null, context);
  if (stored?.deletedAt === null && kind === 1) {
    const binId = c % 16 < 8 ? BIN : OTHER_BIN;
    return moveChange({ id, binId, version: stored.version, sig: sig(`move ${c}`) }, context);
  }
  if (stored?.deletedAt === null && kind === 2 && stored.inline !== null) {
    const { type, ts, binId, inline: old, blob, sig: tag } = stored;
    const write = { id, binId, type, ts, blob, sig: tag, ifVersion: stored.version };
    return writeChange({ ...write, inline: { ...old, keys: inline('', keys).keys }, master: master() }, context);
  }
  const ts = TS + (kind === 3 ? 0 : world.head + 1);
  return writeChange(writeOf({ id, text, ts, inline: inline(text, keys), ifVersion: null }), context);
}

const liveSocket = (world: World, n: number): OpenSocket | undefined =>
  pick(
    world.sockets.filter(({ witness }) => witness.closedWith === null),
    n,
  );

const HAPPENINGS = {
  open: (world: World, { a, b }: Happening) => {
    if (world.sockets.length < 5) world.open(1 + (a % world.devices.length), b % 2 === 0 ? 'a' : 'b');
  },
  hello: (world: World, { a, b, c }: Happening) => {
    const socket = liveSocket(world, a);
    if (socket === undefined) return;
    const since = [0, socket.witness.cursor, Math.min(c, world.head), world.head + (b % 3)][b % 4] ?? 0;
    const epoch = [null, 'epoch', 'epoch', 'another'][c % 4] ?? null;
    world.hello(socket, { since, epoch, acks: b % 2 === 0 });
  },
  change: (world: World, happening: Happening) => {
    const change = draw(world, happening);
    const { id, deviceId: by } = change;
    const sig = sigOf(change);
    const tag = sig && Uint8Array.from(sig);
    if (change.kind === 'write') world.request({ kind: 'write', write: askedFor(change), deviceId: by });
    else if (change.kind === 'delete') world.request({ kind: 'delete', id, sig: tag, deviceId: by });
    else if (tag !== null) {
      const { binId, ifVersion } = change;
      world.request({ kind: 'move', id, binId, version: ifVersion ?? 0, sig: tag, deviceId: by });
    }
  },
  again: (world: World, { a }: Happening) => {
    const asked = pick(world.asked, a);
    if (asked !== undefined) world.request(asked.ask);
  },
  batch: (world: World, { a }: Happening) => world.startBatch(1 + (a % 4)),
  remote: (world: World, happening: Happening) => world.remote(draw(world, happening)),
  hint: (world: World, { a }: Happening) => {
    const hint = pick(world.hints.slice(-HINT_MAX), a) ?? pick(world.hints, a);
    if (hint !== undefined) world.post({ kind: 'head-hint', ...hint });
  },
  published: (world: World, { a, b, c }: Happening) => {
    const from = Math.max(1, world.head - (a % 5));
    world.published(from, from + (b % 3), c % 3 !== 0);
  },
  compare: (world: World) => world.compare(),
  lie: (world: World, { a }: Happening) => world.post({ kind: 'head-hint', head: world.head + a, generation: 0 }),
  advance: (world: World, { a }: Happening) => {
    const operation = pick(world.underWay, a);
    if (operation !== undefined) world.advance(operation);
  },
  fail: (world: World, { a, b }: Happening) => {
    const operation = pick(world.underWay, a);
    if (operation !== undefined && b % 4 === 0 && operation.name !== 'closed') world.fail(operation, b % 8 === 0);
  },
  stall: (world: World, { a }: Happening) => {
    const socket = liveSocket(world, a);
    if (socket !== undefined) socket.witness.stalled = true;
  },
  drain: (world: World, { a }: Happening) => {
    const socket = pick(world.sockets, a);
    if (socket !== undefined) world.drain(socket);
  },
  close: (world: World, { a }: Happening) => {
    const socket = pick(world.sockets, a);
    if (socket !== undefined) world.close(socket);
  },
  join: (world: World) => {
    if (world.devices.length < 5) world.join();
  },
  revoke: (world: World, { a, b }: Happening) => {
    if (b % 3 === 0) world.revoke(1 + (a % world.devices.length));
  },
  forget: ({ state: { recent, delivered } }: World) => {
    recent.a.forget(delivered);
    recent.b?.forget(delivered);
  },
  crowd: (world: World) => world.crowdOut(),
};

const names = Object.keys(HAPPENINGS) as (keyof typeof HAPPENINGS)[];
/** Events that make progress are drawn more often than those that end or break something. */
const OFTEN: Partial<Record<keyof typeof HAPPENINGS, number>> = {
  advance: 12,
  change: 5,
  batch: 4,
  remote: 4,
  hint: 3,
  hello: 3,
  open: 2,
  drain: 2,
};

const number = fc.nat({ max: 997 });
const happening = (from: readonly (keyof typeof HAPPENINGS)[]): fc.Arbitrary<Happening> =>
  fc.record({
    what: fc.constantFrom(...from.flatMap((name) => new Array<typeof name>(OFTEN[name] ?? 1).fill(name))),
    a: number,
    b: number,
    c: number,
  });

const happenings = (from: readonly (keyof typeof HAPPENINGS)[], maxLength: number): fc.Arbitrary<Happening[]> =>
  fc.array(happening(from), { minLength: 1, maxLength, size: 'max' });

function play(script: readonly Happening[], world: World): World {
  for (const one of script) HAPPENINGS[one.what](world, one);
  world.settle();
  return world;
}

t.setTimeout(600_000);

/** Runs of a property: in the long run enough to find a fault that one order in a thousand shows. */
const RUNS = Number(process.env['PROPERTY_RUNS'] ?? inLongRun(200, 3_000));

t.test('WS-06 WS-07 REPLAY-01 REPLAY-02 REPLAY-08 INST-04: sockets get exactly the log, in any event order', (t) => {
  let versions = 0;
  let caughtUp = 0;
  const property = fc.property(happenings(names, 120), (script) => {
    const world = play(script, new World({ devices: 3 }));
    for (const { witness } of world.sockets) {
      versions += witness.versions.length;
      if (witness.live) caughtUp++;
    }
    const open = world.sockets.filter(({ witness }) => witness.closedWith === null);
    for (const { witness } of open) {
      const device = world.devices.find(({ id }) => id === witness.deviceId);
      if (device === undefined || device.revoked) throw new Error(`a socket of revoked ${witness.deviceId} is open`);
    }
    for (const { ask, version } of world.asked) {
      const id = ask.kind === 'write' ? ask.write.id : ask.id;
      if (version !== undefined && world.database.history[version - 1]?.row.item.id !== id)
        throw new Error(`${id} is not ${version}`);
    }
  });
  fc.assert(property, { numRuns: RUNS, includeErrorInReport: true });
  t.comment(`${versions} versions reached ${caughtUp} sockets that were caught up at the end`);
  // About three versions a script, and six scripts of ten: with far fewer the property would prove little.
  t.ok(versions > RUNS && caughtUp > RUNS / 5, 'the scripts delivered versions and caught up');
  t.end();
});

t.test('REPLAY-04 REPLAY-06 EPOCH-04: a long history in small pages is replayed exactly during writes', (t) => {
  const calm = names.filter((name) => !['fail', 'close', 'revoke', 'join'].includes(name));
  const property = fc.property(fc.nat({ max: 40 }), happenings(calm, 60), (length, script) => {
    const before = (world: World): void => {
      for (let n = 0; n < length; n++) world.remote(draw(world, { what: 'remote', a: n, b: n * 7, c: n * 13 }));
      world.hints.length = 0;
    };
    const world = new World({ devices: 3, pageRows: 2, gapRows: 2, before });
    for (const n of [0, 1, 2, 3]) {
      HAPPENINGS.open(world, { what: 'open', a: n, b: n, c: 0 });
      HAPPENINGS.hello(world, { what: 'hello', a: n, b: n + length, c: length });
    }
    play(script, world);
  });
  fc.assert(property, { numRuns: RUNS, includeErrorInReport: true });
  t.pass(`${RUNS} scripts`);
  t.end();
});
