/** The mailbox around `step`, and the registry of actors, with ports in memory (src/server/tenant/actor.ts). */
import t from 'tap';
import { unavailable } from '../src/protocol/errors.js';
import type { Summary } from '../src/protocol/item.js';
import { SOCKET_UNSENT_MAX } from '../src/protocol/limits.js';
import { HIGH_WATER_BYTES, PENDING_BYTES_MAX, PENDING_MAX, type Actor } from '../src/server/tenant/actor.js';
import { ARENA_BYTES, QUEUE_CHANGES } from '../src/server/storage/commit/lanes.js';
import type { Change, CommitSink } from '../src/server/tenant/change.js';
import type { CommitLanes } from '../src/server/tenant/ports.js';
import { arena, deviceId, inline, itemId, refusal, TS, write, writeChange, writeOf } from './support/changes.js';
import { until } from './support/events.js';
import { FrameRecorder, listen } from './support/instances.js';
import { MemoryLog } from './support/memory-log.js';
import { Setting } from './support/tenant-setting.js';

const MINUTE = 60_000;

const turn = async (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const state = async (promise: Promise<unknown>): Promise<string> =>
  Promise.race([
    promise.then(
      () => 'resolved',
      () => 'rejected',
    ),
    turn().then(() => 'pending'),
  ]);

t.test('ITEM-32: a purge for which there was no room is requested again by a later write', async (t) => {
  const setting = new Setting();
  setting.devices = [1, 2];
  setting.revoked = [2];
  setting.purgerHasRoom = false;
  const actor = await setting.actor();
  let items = 0;
  const put = async (): Promise<unknown> => write(actor, writeOf({ id: itemId(++items) }), deviceId(1));
  for (let n = 0; n < 2; n++) await put();
  t.same(setting.purges, [deviceId(2), deviceId(2)]);
  setting.purgerHasRoom = true;
  for (let n = 0; n < 2; n++) await put();
  t.same(setting.purges, [deviceId(2), deviceId(2), deviceId(2)], 'once it is queued it is not requested again');
});

t.test('a change that the lane does not accept is refused, and the actor is idle afterwards', async (t) => {
  const lanes: CommitLanes = {
    arena,
    submit: () => {
      throw unavailable();
    },
  };
  const actor = await new Setting({ lanes }).actor();
  t.equal(await refusal(write(actor, writeOf(), deviceId(1))), 'unavailable');
  t.ok(actor.idle);
});

t.test('FAIR-44: a tenant with its share of unanswered writes is refused more, and no other tenant is', async (t) => {
  t.strictSame([PENDING_MAX, PENDING_BYTES_MAX], [5_000, 32 * 1024 * 1024]);
  t.strictSame(
    [QUEUE_CHANGES / 4, ARENA_BYTES / 4],
    [PENDING_MAX, PENDING_BYTES_MAX],
    'a quarter of what a lane holds',
  );
  const answers: (() => void)[] = [];
  const lanes: CommitLanes = {
    arena,
    submit: (change, sink) => {
      answers.push(() => {
        sink.failed([change], unavailable());
        sink.settled();
      });
    },
  };
  const setting = new Setting({ lanes });
  const [busy, other] = [await setting.actor('busy'), await setting.actor('other')];
  const large = inline('large', [deviceId(1)], 65_536);
  for (const [item, most] of [
    [writeOf(), PENDING_MAX],
    [writeOf({ inline: large }), Math.floor(PENDING_BYTES_MAX / 66_000)],
  ] as const) {
    const waiting = Array.from({ length: most }, async () => refusal(write(busy, item, deviceId(1))));
    t.equal(answers.length, most, 'all of them are passed on');
    let refused = '';
    for (let more = 0; more < 10 && refused !== 'rate_limited'; more++) {
      const outcome = refusal(write(busy, item, deviceId(1)));
      refused = (await state(outcome)) === 'pending' ? 'pending' : await outcome;
    }
    t.equal(refused, 'rate_limited');
    const passed = answers.length;
    void refusal(write(other, item, deviceId(1)));
    t.equal(answers.length, passed + 1, "another tenant's write is passed on");
    for (const answer of answers.splice(0)) answer();
    t.ok((await Promise.all(waiting)).every((code) => code === 'unavailable'));
    t.ok(busy.idle, 'and everything is released with the answers');
  }
});

t.test(
  'WS-07: a fault in a step fails its calls; the actor is given up, since its state may be half changed',
  async (t) => {
    let breaks = true;
    const log = new MemoryLog();
    const lanes: CommitLanes = {
      arena,
      submit: (change, sink) => {
        if (!breaks) return log.submit(change, sink);
        const standing = undefined as unknown as { summary: Summary; generation: number };
        sink.committed([Object.assign(change, { verdict: 'insert', version: 1 })], standing);
        sink.settled();
      },
    };
    log.addTenant('tenant');
    const setting = new Setting({ lanes });
    const broken = await setting.actor();
    const recorder = await listen(broken, 1);
    t.strictSame(setting.subscribed, ['tenant'], 'the first socket subscribes this instance to the tenant');
    const [first, second] = [broken.reload(), broken.reload()];
    await t.rejects(write(broken, writeOf(), deviceId(1)));
    await t.rejects(second, 'who waits for a reload is told as well');
    await first;
    t.equal(setting.faults.length, 1);
    t.equal(recorder.closedWith, 1012, 'its sockets are closed, so that they reconnect to a new actor');
    t.ok(broken.idle);
    breaks = false;
    const actor = await setting.actor();
    t.not(actor, broken);
    t.equal((await write(actor, writeOf(), deviceId(1))).version, 1);
    t.ok(actor.idle);
  },
);

t.test('INST-55: a commit whose answer was lost is discovered, and announced to sockets and instances', async (t) => {
  const lanes: CommitLanes = {
    arena,
    submit: (change, sink) => {
      setting.log.apply([change]);
      sink.failed([change], unavailable());
      sink.settled();
    },
  };
  const setting = new Setting({ lanes });
  setting.devices = [1, 2];
  setting.registry.start();
  const actor = await setting.actor();
  const recorder = await listen(actor, 2);
  const one = writeOf({ inline: inline('one', [deviceId(1), deviceId(2)]) });
  t.equal(await refusal(write(actor, one, deviceId(1))), 'unavailable');
  t.strictSame(recorder.versions, []);
  setting.clock.advance(4_000);
  await recorder.until(() => recorder.versions.length > 0);
  t.strictSame(recorder.versions, [1]);
  t.strictSame(setting.announced, [['tenant', 1, 1]]);
  await until('nothing is news', () => {
    setting.clock.advance(4_000);
    return !actor.heldUp;
  });
  t.equal(setting.announced.length, 1);
  await setting.registry.close();
});

t.test('a socket that throws does not affect the others', async (t) => {
  const setting = new Setting();
  setting.devices = [1, 2, 3];
  const actor = await setting.actor();
  const broken = await listen(actor, 2);
  const sound = await listen(actor, 3);
  broken.send = () => {
    throw new Error('socket is gone');
  };
  const keys = [1, 2, 3].map((n) => deviceId(n));
  await write(actor, writeOf({ inline: inline('one', keys) }), deviceId(1));
  t.strictSame(sound.versions, [1]);
  t.match(setting.faults, [{ message: 'socket is gone' }]);
  t.equal(broken.closedWith, 1012, 'a socket that has missed a version is closed');
  t.equal(actor.sessionCount, 1);
});

t.test('WS-24: a socket that piles up live frames without reading is closed with 1013', async (t) => {
  const setting = new Setting();
  setting.devices = [1, 2];
  const actor = await setting.actor();
  const deaf = await listen(actor, 2);
  const keys = [deviceId(1), deviceId(2)];
  deaf.send = () => SOCKET_UNSENT_MAX;
  await write(actor, writeOf({ inline: inline('one', keys) }), deviceId(1));
  t.equal(deaf.closedWith, undefined, 'up to the bound the socket is only held back');
  const deafer = await listen(actor, 2);
  deafer.send = () => SOCKET_UNSENT_MAX + 1;
  await write(actor, writeOf({ id: itemId(2), inline: inline('two', keys) }), deviceId(1));
  t.equal(deafer.closedWith, 1013);
});

t.test('a tenant that is gone: its sockets close, its pending calls fail, no socket is opened', async (t) => {
  const setting = new Setting();
  const actor = await setting.actor();
  const recorder = await listen(actor, 1);
  setting.gone.add('tenant');
  setting.log.tenant('tenant').generation++;
  t.equal(await refusal(write(actor, writeOf(), deviceId(1))), 'tenant_not_found');
  t.equal(recorder.closedWith, 4401);
  t.equal(actor.open(new FrameRecorder(deviceId(1), 1)), 'unavailable');
  await actor.reload();
  t.equal(await refusal(write(actor, writeOf(), deviceId(1))), 'tenant_not_found');
});

t.test('TOKEN-03: a tenant that is deleted while a request compares it is unknown to that request', async (t) => {
  const setting = new Setting();
  await setting.actor();
  // The comparison finds a newer generation, and the read that follows it no tenant any more.
  setting.log.tenant('tenant').generation++;
  setting.gone.add('tenant');
  setting.clock.advance(6_000);
  // Not compared by `equal`, which would print the whole actor.
  t.ok((await setting.registry.get('tenant')) === undefined);
  t.equal(setting.registry.actors.size, 0);
});

t.test('TOKEN-11: a reload resolves only with a read that began after the call', async (t) => {
  const setting = new Setting();
  const actor = await setting.actor();
  setting.holding = true;
  const first = actor.reload();
  setting.join(2);
  const second = actor.reload();
  t.equal(setting.loads.length, 1, 'one read at a time');
  setting.loads[0]?.answer();
  t.equal(await state(first), 'resolved');
  t.equal(await state(second), 'pending');
  t.equal(actor.device(deviceId(2)), undefined);
  setting.loads[1]?.answer();
  t.equal(await state(second), 'resolved');
  t.ok(actor.device(deviceId(2)));

  const third = actor.reload();
  const fourth = actor.reload();
  setting.loads[2]?.fail(new Error('no database'));
  t.strictSame([await state(third), await state(fourth)], ['rejected', 'rejected']);
  const fifth = actor.reload();
  setting.loads[3]?.answer();
  t.equal(await state(fifth), 'resolved', 'the next reload is served');
  t.match(setting.faults, [{ message: 'no database' }]);
});

t.test('FAIR-45: requests of a tenant do not wait until another one was read', async (t) => {
  const setting = new Setting();
  const [slow, other] = [await setting.actor('slow'), await setting.actor('other')];
  setting.log.tenant('slow').generation++;
  setting.clock.advance(6_000);
  setting.holding = true;
  const [waiting, served] = [setting.registry.get('slow'), setting.registry.get('other')];
  await until('the changed one is being read', () => setting.loads.length === 1);
  t.equal(await state(waiting), 'pending');
  t.equal(await state(served), 'resolved');
  setting.clock.advance(6_000);
  const later = setting.registry.get('other');
  await turn();
  t.equal(await state(later), 'resolved', 'nor do later ones');
  setting.loads[0]?.answer();
  t.ok((await waiting) === slow && (await later) === other);
  setting.log.tenant('slow').generation++;
  setting.clock.advance(6_000);
  const failing = refusal(setting.registry.get('slow'));
  await until('it is read again', () => setting.loads.length === 2);
  setting.loads[1]?.fail(unavailable());
  t.equal(await failing, 'unavailable');
});

t.test('WS-24 WS-25: a socket with a full buffer is sent nothing until the buffer has emptied', async (t) => {
  const setting = new Setting();
  setting.devices = [1, 2];
  const actor = await setting.actor();
  const recorder = await listen(actor, 2);
  const send = recorder.send.bind(recorder);
  recorder.send = (frames) => {
    send(frames);
    return HIGH_WATER_BYTES + 1;
  };
  const keys = [1, 2].map((n) => deviceId(n));
  for (let n = 0; n < 5; n++) await write(actor, writeOf({ id: itemId(n), inline: inline(`${n}`, keys) }), deviceId(1));
  t.strictSame(recorder.versions, [1]);
  recorder.send = send;
  if (recorder.session !== undefined) actor.drained(recorder.session);
  t.strictSame(recorder.versions, [1, 2, 3, 4, 5]);
  if (recorder.session !== undefined) actor.closed(recorder.session);
  t.equal(actor.sessionCount, 0);
});

t.test('FAIR-25: no further page is read for a socket that is closing', async (t) => {
  let pages = 0;
  const setting: Setting = new Setting({
    log: {
      page: (request) => {
        pages++;
        return setting.log.page({ ...request, limit: 1 });
      },
    },
  });
  setting.devices = [1, 2];
  setting.log.addTenant('tenant');
  const keys = [deviceId(1), deviceId(2)];
  for (let n = 0; n < 5; n++) {
    const write = writeOf({ id: itemId(n), inline: inline(`${n}`, keys) });
    setting.log.apply([writeChange(write, { tenantId: 'tenant', deviceId: deviceId(1) })]);
  }
  const actor = await setting.actor();
  const recorder = new FrameRecorder(deviceId(2), 1);
  const session = actor.open(recorder);
  if (typeof session === 'string') throw new Error(session);
  const send = recorder.send.bind(recorder);
  recorder.send = (frames) => {
    // Its peer reads, and then sends more than it may.
    if (recorder.closing) return 0;
    recorder.closing = pages === 2;
    return send(frames);
  };
  actor.hello(session, { since: 0, epoch: null, acks: false });
  await until('the second page', () => pages >= 2);
  for (let n = 0; n < 20; n++) await turn();
  t.equal(pages, 2);
});

t.test('the registry loads a tenant once for concurrent calls, and keeps no failure', async (t) => {
  const setting = new Setting();
  setting.log.addTenant('tenant');
  setting.holding = true;
  t.equal(setting.peek('tenant'), undefined);
  const both = [setting.registry.get('tenant'), setting.registry.get('tenant')];
  await turn();
  t.equal(setting.loads.length, 1);
  setting.loads[0]?.fail(unavailable());
  for (const one of both) t.equal(await refusal(one), 'unavailable');
  const again = setting.registry.get('tenant');
  await turn();
  setting.loads[1]?.answer();
  const actor = await again;
  t.ok(actor !== undefined && setting.peek('tenant') === actor, 'a failure is not kept');
  setting.gone.add('nobody');
  const nobody = setting.registry.get('nobody');
  await turn();
  setting.loads[2]?.answer();
  t.equal(await nobody, undefined);
  t.equal(setting.registry.actors.size, 1);
});

t.test('TOKEN-12: a change of a tenant is announced, whether it is loaded, loading or neither', async (t) => {
  const setting = new Setting();
  setting.log.addTenant('tenant');
  await setting.registry.changed('tenant');
  t.strictSame(setting.announced, [['tenant', 0, 0]], 'the database itself announces the generation');
  setting.holding = true;
  const loading = setting.registry.get('tenant');
  await turn();
  setting.join(2);
  const changed = setting.registry.changed('tenant');
  setting.loads[0]?.answer();
  const actor = await loading;
  t.equal(await state(changed), 'pending', 'the load under way may be from before the change');
  setting.loads[1]?.answer();
  await changed;
  t.ok(actor?.device(deviceId(2)));
  t.strictSame(setting.announced.at(-1), ['tenant', 0, 2]);
});

t.test(
  'INST-26: a hello whose read failed is served after the next comparison of heads, even one without news',
  async (t) => {
    let away = true;
    const setting: Setting = new Setting({
      log: { page: (request) => (away ? Promise.reject(unavailable()) : setting.log.page(request)) },
    });
    setting.devices = [1, 2];
    setting.log.addTenant('tenant');
    const keys = [1, 2].map((n) => deviceId(n));
    setting.log.apply([
      writeChange(writeOf({ inline: inline('one', keys) }), { tenantId: 'tenant', deviceId: deviceId(2) }),
    ]);
    const actor = await setting.actor();
    const recorder = new FrameRecorder(deviceId(1), 1);
    const session = actor.open(recorder);
    if (typeof session === 'string') throw new Error(session);
    actor.hello(session, { since: 0, epoch: null, acks: false });
    await until('the read fails', () => setting.faults.length === 1);
    await setting.registry.compareHeads();
    await until('it fails again', () => setting.faults.length === 2);
    t.strictSame([recorder.versions, recorder.caughtUp], [[], undefined]);
    away = false;
    await setting.registry.compareHeads();
    await recorder.until(() => recorder.caughtUp !== undefined);
    t.strictSame([recorder.versions, recorder.caughtUp], [[1], 1]);
  },
);

t.test('INST-02: the unnoticed loss of a notification is repaired within five minutes', async (t) => {
  const setting = new Setting();
  setting.devices = [1, 2];
  const recorder = await listen(await setting.actor(), 1);
  setting.registry.start();
  t.teardown(() => setting.registry.close());
  const one = writeOf({ inline: inline('one', [deviceId(1), deviceId(2)]) });
  setting.log.apply([writeChange(one, { tenantId: 'tenant', deviceId: deviceId(2) })]);
  for (let seconds = 0; seconds < 300; seconds += 4) {
    setting.clock.advance(4_000);
    await turn();
    if (seconds === 200) t.strictSame(recorder.versions, []);
  }
  await recorder.until(() => recorder.versions.length > 0);
  t.strictSame(recorder.versions, [1]);
});

t.test('an unused actor is dropped after five minutes, one with a socket or a change under way is not', async (t) => {
  const held: (() => void)[] = [];
  const lanes: CommitLanes = {
    arena,
    submit: (change, sink) =>
      void held.push(() => {
        sink.failed([change], new Error('late'));
        sink.settled();
      }),
  };
  const setting = new Setting({ lanes });
  setting.registry.start();
  t.teardown(() => setting.registry.close());
  const [idle, listening, writing] = [
    await setting.actor('idle'),
    await setting.actor('listening'),
    await setting.actor('writing'),
  ];
  const recorder = await listen(listening, 1);
  const asked = write(writing, writeOf(), deviceId(1));
  setting.clock.advance(5 * MINUTE);
  await turn();
  t.ok(setting.registry.actors.get('idle') === idle);
  setting.clock.advance(MINUTE);
  await turn();
  t.equal(setting.registry.actors.get('idle'), undefined);
  t.ok(setting.registry.actors.get('listening') === listening);
  t.ok(setting.registry.actors.get('writing') === writing);
  t.equal(idle.open(new FrameRecorder(deviceId(1), 1)), 'unavailable', 'a dropped actor opens no socket');
  for (const answer of held) answer();
  await t.rejects(asked, { message: 'late' });
  if (recorder.session !== undefined) listening.closed(recorder.session);
  setting.clock.advance(6 * MINUTE);
  await turn();
  t.equal(setting.registry.actors.size, 0);
});

t.test(
  'EPOCH-08: when the epoch changes every socket closes, and a load that began before is read again',
  async (t) => {
    const setting = new Setting();
    const old = await listen(await setting.actor(), 1);
    setting.holding = true;
    const [loading] = [setting.actor('other')];
    await turn();
    setting.epoch = 'another';
    setting.registry.restart();
    t.equal(old.closedWith, 1012);
    t.equal(setting.registry.actors.size, 0);
    setting.loads[0]?.answer();
    await turn();
    t.equal(setting.loads.length, 2);
    setting.loads[1]?.answer();
    t.equal((await loading)['tenant'].epoch, 'another');
  },
);

t.test(
  'EPOCH-09: a write that comes to an actor after its history has ended is not stored in the next one',
  async (t) => {
    const setting = new Setting();
    const actor = await setting.actor();
    t.equal((await write(actor, writeOf(), deviceId(1))).version, 1);
    setting.epoch = 'another';
    setting.registry.restart();
    const onVersion = writeOf({ ts: TS + 1, ifVersion: 1, inline: inline('two') });
    t.equal(await refusal(write(actor, onVersion, deviceId(1))), 'unavailable', 'version 1 may be another state there');
    t.equal(setting.log.tenant('tenant').head, 1);
    t.ok(actor.idle);
    const next = await setting.actor();
    t.equal((await write(next, onVersion, deviceId(1))).version, 2, 'the next actor is of the new history');
  },
);

/** Lanes that settle a change, by `end`, when the test calls what waits. */
function held(end: (change: Change, sink: CommitSink) => void) {
  const waiting: (() => void)[] = [];
  const submit: CommitLanes['submit'] = (change, sink) =>
    void waiting.push(() => {
      end(change, sink);
      sink.settled();
    });
  return { lanes: { arena, submit }, waiting };
}

t.test(
  'INST-17 INST-58: a commit that ends after its actor was given up reaches the sockets of the next actor',
  async (t) => {
    const { lanes, waiting } = held((change, sink) => {
      const { changes, ...standing } = setting.log.apply([change]);
      sink.committed(changes, standing);
    });
    const setting = new Setting({ lanes });
    setting.devices = [1, 2];
    const writing = write(
      await setting.actor(),
      writeOf({ inline: inline('one', [deviceId(1), deviceId(2)]) }),
      deviceId(1),
    );
    await until('the lane has it', () => waiting.length === 1);
    setting.registry.restart();
    const recorder = await listen(await setting.actor(), 2);
    t.strictSame(recorder.versions, []);
    waiting[0]?.();
    t.equal((await writing).version, 1);
    await recorder.until(() => recorder.versions.length > 0);
    t.strictSame(recorder.versions, [1]);
    t.strictSame(
      setting.published,
      [['tenant', 1, 0]],
      'without rows: it may be of another history, so other instances read it too',
    );
  },
);

t.test(
  'INST-55: a commit whose answer was lost after its actor was given up is discovered by the next one',
  async (t) => {
    const { lanes, waiting } = held((change, sink) => {
      setting.log.apply([change]);
      sink.failed([change], unavailable());
    });
    const setting = new Setting({ lanes });
    setting.devices = [1, 2];
    setting.registry.start();
    t.teardown(() => setting.registry.close());
    const one = writeOf({ inline: inline('one', [deviceId(1), deviceId(2)]) });
    const writing = refusal(write(await setting.actor(), one, deviceId(1)));
    await until('the lane has it', () => waiting.length === 1);
    setting.registry.restart();
    const recorder = await listen(await setting.actor(), 2);
    waiting[0]?.();
    t.equal(await writing, 'unavailable');
    setting.clock.advance(4_000);
    await until('the commit is sent', () => recorder.versions.length > 0);
    t.strictSame(recorder.versions, [1]);
    t.strictSame(setting.announced, [['tenant', 1, 1]]);
  },
);

t.test('BOOT-11: a reset closes the sockets and is announced to the other instances', async (t) => {
  const setting = new Setting();
  const recorder = await listen(await setting.actor(), 1);
  setting.devices = [];
  setting.log.tenant('tenant').generation++;
  await setting.registry.reset('tenant');
  t.not(recorder.closedWith, undefined);
  t.equal(setting.registry.actors.get('tenant'), undefined);
  t.strictSame(setting.announced.at(-1), ['tenant', 0, 2]);
});

t.test('WS-24: frames kept for short absences are bounded over all tenants', async (t) => {
  const readFromLog: string[] = [];
  const setting: Setting = new Setting({
    log: {
      page: (request) => {
        readFromLog.push(request.tenantId);
        return setting.log.page(request);
      },
    },
  });
  const actors: Actor[] = [];
  for (let n = 0; n < 1_000; n++) {
    const actor = await setting.actor(`tenant ${n}`);
    await write(actor, writeOf({ ts: TS + n, inline: inline(`${n}`, [deviceId(1)], 65_536) }), deviceId(1));
    actors.push(actor);
  }
  let bytes = 0;
  for (const actor of actors) {
    const recorder = await listen(actor, 1);
    await recorder.until(() => recorder.versions.length > 0);
    t.strictSame(recorder.versions, [1]);
    if (!readFromLog.includes(actor.tenantId)) bytes += recorder.bytes;
  }
  t.ok(bytes > 56 * 1024 * 1024 && bytes <= 64 * 1024 * 1024, `${bytes} bytes are served from memory`);
  const [quiet, busy] = [actors[0], actors.at(-1)].map((actor) => actor?.tenantId ?? '');
  t.ok(readFromLog.includes(quiet ?? ''), 'the frames of the tenant that was quiet longest are dropped');
  t.notOk(readFromLog.includes(busy ?? ''), 'the frames of the last tenant are kept');
});
