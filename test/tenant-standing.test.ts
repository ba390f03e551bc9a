/** Devices, bins, pairings and state of a tenant: who is notified, who is admitted, and what is checked again. */
import t from 'tap';
import type { ServiceError } from '../src/protocol/errors.js';
import type { PairRequest } from '../src/server/tenant/ports.js';
import { plainFrame } from '../src/server/tenant/replay.js';
import {
  BIN,
  blob,
  BOTH,
  deviceId,
  inline,
  itemId,
  OTHER_BIN,
  sig,
  textWrite,
  writeChange,
  writeOf,
} from './support/changes.js';
import { by, errorOf, openBin, World, type OpenSocket } from './support/world.js';

t.test('TOKEN-14 TOKEN-15 DEV-12 DEV-13: a join is announced; a revocation closes sockets and admits none', (t) => {
  const world = new World();
  const [mine, theirs] = [world.connect(1), world.connect(2)];
  const silent = world.open(2);
  world.join();
  world.revoke(2);
  world.compare();
  const late = world.open(2);
  t.not(typeof late, 'string', 'this instance does not know of the revocation yet');
  world.drainOperations();
  for (const socket of [theirs, silent, late]) {
    if (typeof socket !== 'string') t.equal(socket.witness.closedWith, 4403);
  }
  t.strictSame(
    [...world.state.sessions].map((session) => session.deviceId),
    [deviceId(1)],
    'their sessions are gone before the sockets are closed',
  );
  world.hello(theirs);
  world.hello(silent as OpenSocket);
  t.strictSame(world.underWay, [], 'a hello in transit causes no read');
  t.equal(world.open(2), 'device_revoked');
  t.equal(world.open(9), 'bad_token');
  t.strictSame(
    mine.witness.plain.map(({ type, id }) => [type, id]),
    [
      ['device_revoked', deviceId(2)],
      ['device_joined', undefined],
    ],
  );
  t.equal(mine.witness.closedWith, null);
  t.equal(
    errorOf(world.write(textWrite(1), 2)),
    'device_revoked',
    'a revoked device does not learn whether the write is stored',
  );
  t.equal(errorOf(world.write(textWrite(1), 9)), 'bad_token');
  world.changeTenant((generation) => Object.assign(world.devices[2] ?? {}, { tokenEpoch: generation }));
  world.compare();
  world.drainOperations();
  t.equal(world.open(3), 'device_revoked', 'a token of an earlier token epoch is refused');
  t.end();
});

t.test('BIN-17: a changed bin is announced once, a closing one when it is deleted', (t) => {
  const world = new World();
  const { witness } = world.connect(1);
  world.changeTenant((generation) => world.bins.push(openBin('new', generation)));
  world.compare();
  world.compare();
  world.drainOperations();
  world.changeTenant((generation) => (world.bins = [openBin(BIN), { ...openBin('new', generation), open: false }]));
  world.compare();
  world.drainOperations();
  const closing = world.write({ ...textWrite(1), binId: 'new' });
  t.equal(closing.replies, 0, 'the commit may recognise it as a retry');
  world.commitAll();
  t.equal(errorOf(closing), 'bin_not_found');
  world.changeTenant((generation) => {
    world.bins = [openBin(BIN), { ...openBin('new', generation), open: false, view: null, deletedAt: 5 }];
  });
  world.compare();
  world.drainOperations();
  t.strictSame(witness.plain, [
    { type: 'bin', bin: openBin('new').view },
    { type: 'bin', id: 'new', deletedAt: 5 },
  ]);
  t.end();
});

t.test('PAIR-11 PAIR-12 PAIR-13: a pair request reaches each socket of its device once, in any phase', (t) => {
  const before = (world: World): void => {
    for (let n = 1; n <= 3; n++) world.remote(writeChange(textWrite(n), by(2)));
  };
  const world = new World({ before });
  const live = world.connect(1);
  const other = world.connect(2);
  const behind = world.connect(1);
  behind.witness.stalled = true;
  world.write(textWrite(4), 2);
  world.commitAll();
  const greeting = world.enter(1);
  world.hello(greeting);
  const expiresAt = world.now + 60_000;
  const request = {
    existingDevice: deviceId(1),
    frame: {
      type: 'pair_request',
      lookupId: 'look',
      code: 'six words',
      deviceId: deviceId(9),
      host: null,
      pubkey: new Uint8Array(32),
      name: 'new',
      glyph: 'phone',
      attestation: new Uint8Array(32),
      expiresAt,
    },
  } satisfies PairRequest;
  const shown = JSON.parse(plainFrame('a', request.frame)) as unknown;
  world.changeTenant(() => (world.pairs = [request]));
  world.compare();
  world.serve('reload');
  world.settle();
  for (const { witness } of [live, behind, greeting]) t.strictSame(witness.plain, [shown]);
  t.strictSame(other.witness.plain, []);
  t.strictSame(world.connect(1).witness.plain, [shown], 'sent again after each caught_up while it is pending');
  t.strictSame(world.connect(2).witness.plain, [], 'sent to its own device alone');
  world.now = expiresAt;
  t.strictSame(world.connect(1).witness.plain, [], 'not sent once it has expired');
  t.end();
});

t.test('what changes while the tenant is being read is read once more afterwards', (t) => {
  const world = new World();
  const { witness } = world.connect(1);
  world.join();
  world.compare();
  world.advance(world.find('reload'));
  world.join();
  world.compare();
  world.compare();
  world.advance(world.find('reload'));
  t.strictSame(
    world.underWay.map(({ name }) => name),
    ['reload'],
    'one more reload',
  );
  world.drainOperations();
  t.strictSame(
    witness.plain.map(({ type }) => type),
    ['device_joined', 'device_joined'],
  );
  t.end();
});

t.test('INST-08 INST-11: a write that was checked against outdated devices is checked again', (t) => {
  const world = new World();
  const lacking = world.write(textWrite(1));
  const blobOnly = world.write(writeOf({ id: itemId(2), inline: null, blob: blob('ref', BOTH) }));
  world.join();
  const complete = world.write({ ...textWrite(3), inline: inline('text 3', [...BOTH, deviceId(3)]) });
  world.commitAll();
  t.strictSame(
    [lacking, blobOnly, complete].map(({ replies }) => replies),
    [0, 0, 0],
  );
  world.settle();
  t.equal(errorOf(lacking), 'validation');
  t.strictSame((lacking.error as ServiceError).details, {
    path: 'payloadEnc.keys',
    rule: 'every device that is not revoked needs a key',
    missingDevices: [deviceId(3)],
  });
  t.match((blobOnly.error as ServiceError).details, { path: 'blobKeys', missingDevices: [deviceId(3)] });
  t.equal(complete.version, 1, 'a write that names the new device is stored, though the known devices lacked it');
  t.end();
});

t.test('a change that is stale again and again is answered with unavailable after six tries', (t) => {
  const world = new World();
  const asked = world.write(textWrite(1));
  let rounds = 0;
  for (; asked.replies === 0 && rounds < 50; rounds++) {
    world.changeTenant(() => undefined);
    world.commitAll();
    world.drainOperations();
  }
  t.equal(errorOf(asked), 'unavailable');
  t.equal(rounds, 6, 'first try and five rechecks');
  world.settle();
  t.end();
});

t.test('RETRY-08 RETRY-09 RETRY-11: the same write again succeeds after a join, a revocation, a suspension', (t) => {
  const world = new World();
  world.write(textWrite(1));
  world.commitAll();
  const changes = [
    () => world.join(),
    () => world.revoke(2),
    () => world.changeTenant(() => (world.standing = 'suspended')),
  ];
  for (const change of changes) {
    change();
    // Also with `ifVersion: 0`, as our clients send it: a write that is not recognised would be refused.
    for (const write of [textWrite(1), { ...textWrite(1), ifVersion: 0 }]) {
      const again = world.write(write);
      world.settle();
      t.equal(again.version, 1);
    }
    t.equal(world.head, 1);
  }
  t.end();
});

t.test('a suspended, inactive or pending tenant refuses writes, moves and deletes', (t) => {
  for (const [standing, code] of [
    ['suspended', 'tenant_suspended'],
    ['inactive', 'payment_required'],
    ['pending', 'payment_required'],
  ] as const) {
    const world = new World();
    world.write(textWrite(1));
    world.commitAll();
    world.changeTenant(() => (world.standing = standing));
    world.write(textWrite(2));
    world.request({ kind: 'delete', id: itemId(1), sig: null, deviceId: deviceId(1) });
    world.request({ kind: 'move', id: itemId(1), binId: OTHER_BIN, version: 1, sig: sig('x'), deviceId: deviceId(1) });
    world.settle();
    t.strictSame(world.asked.slice(1).map(errorOf), [code, code, code]);
    t.equal(world.head, 1, 'nothing was changed');
  }
  t.end();
});
