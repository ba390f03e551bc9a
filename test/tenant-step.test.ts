/** The tenant's rules one by one: messages in, effects out (src/server/tenant/step.ts). */
import t from 'tap';
import { BURST_BYTES } from '../src/server/tenant/deliver.js';
import { step } from '../src/server/tenant/step.js';
import type { Effect, Message } from '../src/server/tenant/messages.js';
import {
  BOTH,
  deleteChange,
  deviceId,
  inline,
  itemId,
  master,
  OTHER_BIN,
  sig,
  textWrite,
  TS,
  writeChange,
} from './support/changes.js';
import { by, errorOf, World } from './support/world.js';

t.test('WS-02 WS-03 ITEM-36: a change reaches every other socket and none of its own device', (t) => {
  const world = new World({ devices: 3 });
  const own = [world.connect(1), world.connect(1)];
  const others = [world.connect(2), world.connect(2, { shape: 'b' }), world.connect(3)];
  const asked = world.write(textWrite(1));
  world.commitAll();
  t.equal(errorOf(asked), 'validation', 'the third device needs a key');
  world.write({ ...textWrite(1), inline: inline('text 1', [...BOTH, deviceId(3)]) });
  world.commitAll();
  for (const { witness } of others) t.strictSame(witness.versions, [1]);
  for (const { witness } of own) t.strictSame(witness.versions, []);
  world.request({ kind: 'delete', id: itemId(1), sig: sig('gone'), deviceId: deviceId(3) });
  world.commitAll();
  t.strictSame(
    [...own, ...others].map(({ witness }) => witness.versions),
    [[2], [2], [1, 2], [1, 2], [1]],
  );
  world.settle();
  t.end();
});

t.test('WS-07: a live socket gets each version, also those that are replaced at once', (t) => {
  const world = new World();
  const { witness } = world.connect(2);
  for (let n = 1; n <= 3; n++) {
    world.write({ ...textWrite(1, `take ${n}`), ts: TS + n });
    world.commitAll();
  }
  t.strictSame(witness.versions, [1, 2, 3]);
  t.strictSame(world.underWay, [], 'nothing was read from the database');
  t.end();
});

t.test('WS-08 WS-09: acks come in version order with the rest, only where they are requested', (t) => {
  const world = new World();
  const asking = world.connect(1, { acks: true });
  const silent = world.connect(1);
  world.write(textWrite(1));
  world.write(textWrite(2), 2);
  world.write(textWrite(3));
  world.commitAll();
  t.strictSame(asking.witness.versions, [1, 2, 3]);
  t.strictSame(silent.witness.versions, [2]);
  t.end();
});

t.test('pushes are sent before the answer, and the answer only after the commit', (t) => {
  const world = new World();
  world.connect(2);
  const asked = world.write(textWrite(1));
  t.equal(asked.replies, 0);
  world.startBatch(1);
  const effects = step(world.state, world.find('commit').read(), world.now);
  t.strictSame(
    effects.map(({ kind }) => kind),
    ['push', 'publish', 'stored'],
  );
  t.end();
});

t.test('INST-55: a retry of a stored write announces its head again', (t) => {
  const world = new World();
  world.write(textWrite(1));
  world.commitAll();
  const before = world.hints.length;
  const again = world.write(textWrite(1));
  world.commitAll();
  t.equal(again.replies, 1);
  t.strictSame(world.hints.slice(before), [{ head: 1, generation: 1 }]);
  t.end();
});

t.test('INST-04: hints that arrive twice, late or out of order cause no second read', (t) => {
  const world = new World();
  const { witness } = world.connect(1);
  for (let n = 1; n <= 6; n++) world.remote(writeChange(textWrite(n), by(2)));
  for (const head of [6, 3, 6, 1]) world.post({ kind: 'head-hint', head, generation: 1 });
  t.strictSame(
    world.underWay.map(({ name }) => name),
    ['gap'],
    'one read, whatever is hinted',
  );
  world.drainOperations();
  t.strictSame(witness.versions, [1, 2, 3, 4, 5, 6], 'every version once, over several pages');
  for (const head of [2, 6]) world.post({ kind: 'head-hint', head, generation: 1 });
  t.strictSame(world.underWay, []);
  t.end();
});

t.test('INST-43: changes announced by another instance are delivered where they follow, else the log is read', (t) => {
  const world = new World();
  const { witness } = world.connect(1);
  const reads = (): string[] => world.underWay.map(({ name }) => name);
  for (let n = 1; n <= 8; n++) world.remote(writeChange(textWrite(n), by(2)));
  world.published(1, 2);
  world.published(1, 3, false);
  world.published(2, 2);
  t.strictSame([witness.versions, reads()], [[1, 2, 3], []], 'changes that arrive twice or overlap cause no read');
  world.published(5, 5);
  t.strictSame([witness.versions, reads()], [[1, 2, 3], ['gap']], 'the fourth is missing');
  world.published(4, 4);
  t.strictSame(witness.versions, [1, 2, 3, 4, 5], 'the late fourth is delivered, then those that were held');
  world.published(7, 8);
  world.drainOperations();
  t.strictSame(witness.versions, [1, 2, 3, 4, 5, 6, 7, 8]);
  t.strictSame(world.state.summary, world.snapshot().summary);
  t.end();
});

t.test('INST-43: rows held for a missing change are bounded by their bytes; the rest is read', (t) => {
  const world = new World();
  const { witness } = world.connect(1);
  const large = (n: number): ReturnType<typeof textWrite> => ({
    ...textWrite(n),
    inline: { ...inline(`text ${n}`, BOTH), ct: Buffer.alloc(60_000, n) },
  });
  for (let n = 1; n <= 30; n++) world.remote(writeChange(large(n), by(2)));
  for (let n = 2; n <= 30; n++) world.published(n, n);
  const held = world.state.held.reduce((sum, row) => sum + row.end - row.at, 0);
  t.ok(held > 900 * 1024 && held <= 1024 * 1024, `${held} bytes`);
  world.published(1, 1);
  world.drainOperations();
  t.strictSame(
    witness.versions,
    Array.from({ length: 30 }, (_, n) => n + 1),
  );
  t.end();
});

t.test('INST-43: a tenant without sockets reads nothing, and continues from what is announced', (t) => {
  const world = new World();
  for (let n = 1; n <= 4; n++) world.remote(writeChange(textWrite(n), by(2)));
  world.compare();
  world.published(3, 4);
  world.remote(writeChange(textWrite(5), by(2)));
  world.write(textWrite(6));
  world.commitAll();
  t.strictSame([world.underWay, world.state.delivered], [[], 6]);
  t.strictSame(world.connect(1).witness.versions, [1, 2, 3, 4, 5, 6], 'a socket that connects then gets every version');
  t.strictSame(world.connect(2, { since: 5 }).witness.versions, [6]);
  t.end();
});

t.test('INST-43: a change under a newer generation waits for the log, and the tenant is read again', (t) => {
  const world = new World();
  const { witness } = world.connect(1);
  world.join();
  world.remote(writeChange(textWrite(1), by(2)));
  world.published(1, 1);
  t.strictSame([witness.versions, world.underWay.map(({ name }) => name)], [[], ['gap', 'reload']]);
  world.drainOperations();
  t.strictSame(witness.versions, [1]);
  t.end();
});

t.test('a hint above the actual head causes one read', (t) => {
  const world = new World();
  const { witness } = world.connect(1);
  world.remote(writeChange(textWrite(1), by(2)));
  world.post({ kind: 'head-hint', head: 99, generation: 1 });
  world.serve('gap');
  t.strictSame(witness.versions, [1]);
  t.strictSame(world.underWay, []);
  world.remote(writeChange(textWrite(2), by(2)));
  world.compare();
  world.advance(world.find('gap'));
  world.remote(writeChange(textWrite(3), by(2)));
  world.compare();
  world.drainOperations();
  t.strictSame(witness.versions, [1, 2, 3], 'what is announced while the gap is read is read after it');
  t.end();
});

t.test(
  'REPLAY-06: caught_up does not count an item that a page of a gap left out, as its delete came before the read',
  (t) => {
    const world = new World({ gapRows: 2 });
    const socket = world.enter(1);
    const { witness } = socket;
    world.hello(socket);
    world.remote(writeChange(textWrite(1), by(2)));
    const head = world.find('head');
    world.advance(head);
    world.compare();
    for (const n of [2, 3]) world.remote(writeChange(textWrite(n), by(2)));
    world.write(textWrite(4));
    world.startBatch(1);
    const commit = world.find('commit');
    world.advance(commit);
    world.remote(deleteChange(itemId(1), null, by(2)));
    world.serve('gap');
    world.advance(commit);
    // The state of version 4 has item 1, of which the log had nothing any more.
    world.advance(head);
    t.notOk(witness.live);
    world.drainOperations();
    t.strictSame(witness.versions, [2, 3, 4, 5]);
    world.settle();
    t.end();
  },
);

t.test('INST-02: after a failed read the next comparison reads again', (t) => {
  const world = new World();
  const { witness } = world.connect(1);
  world.remote(writeChange(textWrite(1), by(2)));
  world.compare();
  world.fail(world.find('gap'));
  t.strictSame(witness.versions, []);
  world.compare();
  world.drainOperations();
  t.strictSame(witness.versions, [1]);
  t.end();
});

t.test('MOVE-02 RETRY-04 RETRY-16: moves and re-wraps are pushed as the stored item', (t) => {
  const world = new World();
  const { witness } = world.connect(2);
  world.write(textWrite(1));
  world.commitAll();
  world.request({
    kind: 'move',
    id: itemId(1),
    binId: OTHER_BIN,
    version: 1,
    sig: sig('moved'),
    deviceId: deviceId(1),
  });
  world.commitAll();
  world.drainOperations();
  world.write({ ...textWrite(1), master: master(), ifVersion: 2 });
  world.commitAll();
  world.drainOperations();
  t.strictSame(witness.versions, [1, 2, 3], 'the witness compares each frame with the stored item');
  t.end();
});

t.test('a transaction of which this actor gets only a part is read from the log', (t) => {
  const world = new World();
  const { witness } = world.connect(2);
  for (let n = 1; n <= 3; n++) world.write(textWrite(n));
  world.startBatch(3);
  const committed = world.find('commit').read() as Extract<Message, { kind: 'committed' }>;
  world.underWay.length = 0;
  // Another actor of this tenant, dropped meanwhile, had requested the second.
  world.post({ ...committed, changes: committed.changes.filter(({ version }) => version !== 2) });
  world.drainOperations();
  t.strictSame(witness.versions, [1, 2, 3]);
  t.end();
});

t.test(
  'WS-24 WS-25 WS-26: a socket that falls behind gets nothing until it has read, then everything in order',
  (t) => {
    const world = new World({ pageRows: 2 });
    const socket = world.connect(2);
    const { witness } = socket;
    witness.stalled = true;
    for (let n = 1; n <= 300; n++) {
      world.write(textWrite(n));
      world.commitAll();
    }
    t.strictSame(witness.versions, [1], 'the version that filled the buffer');
    world.drain(socket);
    t.strictSame(
      world.underWay.map(({ name }) => name),
      ['page'],
      'memory does not reach so far back: pages are read',
    );
    witness.stalled = true;
    world.drainOperations();
    t.strictSame(witness.versions, [1, 2, 3], 'a page is read only after the previous one was taken');
    world.drain(socket);
    world.drainOperations();
    t.equal(witness.versions.length, 300);
    world.settle();
    t.end();
  },
);

t.test('WS-24: a burst is cut off at a bound, and the socket continues by replay', (t) => {
  const world = new World();
  const socket = world.connect(2);
  const large = (n: number) => ({ ...textWrite(n), inline: inline(`large ${n}`, BOTH, 65_536) });
  for (let n = 1; n <= 20; n++) world.write(large(n));
  world.startBatch(20);
  const effects = step(world.state, world.find('commit').read(), world.now);
  const sends = effects.filter((effect): effect is Extract<Effect, { kind: 'send' }> => effect.kind === 'send');
  const sent = sends.reduce((sum, { frames }) => sum + frames.reduce((bytes, frame) => bytes + frame.length, 0), 0);
  t.equal(sends.length, 1);
  t.ok(sent > 0 && sent <= BURST_BYTES, `${sent} bytes in one step`);
  t.equal(socket.session.phase.kind, 'replaying');
  t.end();
});

t.test('WS-24: a socket whose buffer is full is not filled further by more hellos', (t) => {
  const before = (world: World): void => {
    for (let n = 1; n <= 9; n++) world.remote(writeChange(textWrite(n), by(2)));
  };
  const world = new World({ before });
  const socket = world.enter(1);
  socket.witness.stalled = true;
  world.hello(socket);
  world.drainOperations();
  const { unsent } = socket.witness;
  t.ok(unsent > 0, 'one page waits in the buffer');
  for (let n = 0; n < 5; n++) world.hello(socket);
  world.post({ kind: 'hello', session: socket.session, since: 0, epoch: null, acks: false });
  t.strictSame(world.underWay, [], 'no page is read for it');
  t.equal(socket.witness.unsent, unsent, 'nothing else is sent');
  world.settle();
  t.strictSame(socket.witness.versions.slice(-9), [1, 2, 3, 4, 5, 6, 7, 8, 9], 'the last hello is served in the end');
  t.end();
});

t.test('WS-23: a hello within 5 s of another is not served; in A it gets rate_limited', (t) => {
  const world = new World();
  for (const shape of ['a', 'b'] as const) {
    const { session, witness } = world.connect(1, { shape });
    world.now += 4_999;
    world.post({ kind: 'hello', session, since: 0, epoch: null, acks: false });
    t.strictSame(
      witness.plain.map((frame) => frame['code']),
      shape === 'a' ? ['rate_limited'] : [],
    );
    t.strictSame(world.underWay, []);
    world.now += 1;
    witness.expectHello({ since: 0, epoch: null, acks: false });
    world.post({ kind: 'hello', session, since: 0, epoch: null, acks: false });
    world.drainOperations();
    t.ok(witness.live);
  }
  t.end();
});

t.test('REPLAY-04: a hello at the head reads the head alone; what others committed meanwhile is read', (t) => {
  const world = new World();
  world.write(textWrite(1));
  world.commitAll();
  const socket = world.enter(1);
  world.remote(writeChange(textWrite(2), by(2)));
  world.hello(socket, { since: 1 });
  t.strictSame(
    world.underWay.map(({ name }) => name),
    ['head'],
  );
  world.drainOperations();
  t.strictSame(socket.witness.versions, [2]);
  t.equal(socket.witness.caughtUp, 2);
  world.settle();
  t.end();
});

t.test('INST-02: any answer of the database reveals a missed change', (t) => {
  const world = new World();
  const { witness } = world.connect(1);
  world.remote(writeChange(textWrite(1), by(2)));
  const asked = world.write({ ...textWrite(1, 'other'), ts: TS });
  world.commitAll();
  world.drainOperations();
  t.strictSame([errorOf(asked), witness.versions], ['version_conflict', [1]], 'the answer to a refused write');
  world.remote(writeChange(textWrite(2), by(2)));
  world.join();
  world.post({ kind: 'head-hint', head: 0, generation: world.database.generation });
  world.drainOperations();
  t.strictSame(witness.versions, [1, 2], 'the answer to a reload of the devices');
  t.end();
});

t.test('new changes that a replay reads from the database reach the live sockets too', (t) => {
  const world = new World({ before: (before) => before.remote(writeChange(textWrite(1), by(2))) });
  const live = world.connect(1, { since: 1 });
  world.remote(writeChange(textWrite(2), by(2)));
  const socket = world.enter(1);
  world.hello(socket);
  t.strictSame(
    world.underWay.map(({ name }) => name),
    ['page'],
    'memory does not reach so far back',
  );
  world.drainOperations();
  t.strictSame([socket.witness.versions, live.witness.versions], [[1, 2], [2]]);
  t.end();
});

t.test('EPOCH-02 EPOCH-03 EPOCH-04 EPOCH-05: a cursor of another epoch or above the head starts from 0', (t) => {
  const world = new World();
  for (let n = 1; n <= 3; n++) world.write(textWrite(n));
  world.commitAll();
  t.strictSame(world.connect(1, { since: 3, epoch: 'other' }).witness.versions, [1, 2, 3]);
  t.strictSame(world.connect(1, { since: 4, epoch: 'epoch' }).witness.versions, [1, 2, 3]);
  t.strictSame(world.connect(1, { since: 3, epoch: 'epoch' }).witness.versions, []);
  t.strictSame(world.connect(1, { since: 2 }).witness.versions, [3]);
  world.remote(writeChange(textWrite(4), by(2)));
  const ahead = world.connect(1, { since: 4, epoch: 'epoch' });
  t.equal(ahead.witness.caughtUp, 4, 'a version seen on another instance causes no reset');
  t.strictSame(ahead.witness.versions, []);
  t.end();
});
