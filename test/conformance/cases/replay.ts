/** Replay, heartbeat, epoch. */
import { randomBytes, randomInt } from 'node:crypto';
import {
  barrier,
  changesOf,
  listAll,
  Mirror,
  notRising,
  range,
  startWriters,
  summaryAt,
  untilVersion,
  versionsOf,
} from '../../support/stream.js';
import { writeBody } from '../../support/devices.js';
import { spelled, type Json, type Reply, type Socket } from '../../support/wire.js';
import { CODES, type Case, type Stage, fields } from '../stage.js';

const open = async (stage: Stage): Promise<Socket> => stage.connect({ token: stage.second.token, shape: stage.shape });
const ending = (frames: readonly Json[]): Json => fields(frames.at(-1));

const history: Case = {
  ids: ['REPLAY-01', 'REPLAY-02', 'REPLAY-03', 'REPLAY-05', 'REPLAY-06'],
  async run(stage, check) {
    const { shape, second, world, wire } = stage;
    const since = await stage.head();
    const bin = await stage.bin();
    const [kept, replaced, moved, removed] = [
      await stage.written(),
      await stage.written(),
      await stage.written(),
      await stage.written(),
    ];
    const latest = stage.edit(replaced);
    const replacedAt = (await stage.write(latest, second)).number('version');
    const move = { binId: bin, version: moved.version, sig: randomBytes(32) };
    const movedAt = (await wire.post(`/items/${moved.id}/reconcile`, move, stage.as())).number('version');
    const tag = randomBytes(32);
    const removedAt = (await stage.remove(removed.id, { sig: tag })).number('version');
    const socket = await open(stage);
    const frames = await socket.hello(since);
    const changes = changesOf(frames);
    check.same(
      'REPLAY-02',
      changes.filter(({ kind }) => kind === 'item').map(({ id, version }) => [id, version]),
      [
        [kept.id, kept.version],
        [replaced.id, replacedAt],
        [moved.id, movedAt],
      ],
      'ids and versions of the items sent: each item once',
    );
    check.same(
      'REPLAY-03',
      changes.filter(({ kind }) => kind === 'delete').map(({ id, version }) => [id, version]),
      [[removed.id, removedAt]],
      'ids and versions of the deletes sent',
    );
    check.same('REPLAY-03', changes.at(-1)?.frame['sig'], spelled(shape, tag), 'sig of the delete');
    check.same(
      'REPLAY-01',
      frames.map(({ type }) => type),
      ['item', 'item', 'item', 'delete', 'caught_up'],
      'types of the frames',
    );
    check.same('REPLAY-01', notRising(changes.map(({ version }) => version)), [], 'versions that do not rise');
    const rows = changes.map(({ frame }) => fields(shape === 'a' ? frame : (frame['item'] ?? frame)));
    const ct = shape === 'a' ? fields(rows[1]?.['payloadEnc'])['ct'] : rows[1]?.['ct'];
    check.same(
      'REPLAY-02',
      [ct, rows[2]?.['binId']],
      [spelled(shape, latest.ct), bin],
      'latest ct of the replaced item, latest bin of the moved one',
    );
    for (const from of [kept.version, replacedAt, movedAt, removedAt]) {
      const some = versionsOf(await (await open(stage)).hello(from));
      check.same(
        'REPLAY-01',
        some,
        [kept.version, replacedAt, movedAt, removedAt].filter((version) => version > from),
        `versions above ${from}`,
      );
    }
    const me = fields((await stage.me()).at('server'));
    const { version, epoch, itemCount, versionSum, type, ...rest } = ending(frames);
    check.same(
      'REPLAY-05',
      [type, version, epoch, rest],
      ['caught_up', me['headVersion'], me['epoch'], {}],
      'type, version, epoch and other fields of caught_up',
    );
    check.same(
      'REPLAY-05',
      Object.keys(frames.at(-1) ?? {}).sort(),
      shape === 'a'
        ? ['epoch', 'itemCount', 'type', 'version', 'versionSum']
        : ['epoch', 'item_count', 'type', 'version', 'version_sum'],
      'fields of caught_up',
    );
    check.same('REPLAY-06', [itemCount, versionSum], [me['itemCount'], me['versionSum']], 'itemCount and versionSum');
    check.ok('REPLAY-01', world.ids.length > 1, 'the tenant has at least two devices');
  },
};

const beside: Case = {
  ids: ['REPLAY-04', 'REPLAY-06', 'REPLAY-08', 'WS-06'],
  async run(stage, check) {
    const { wire, world, first } = stage;
    const before = fields((await stage.me()).at('server'));
    const base = Number(before['headVersion']);
    const third = await stage.join();
    const writing = startWriters({
      wires: [wire],
      devices: [first, third],
      writers: 6,
      sealFor: world.ids,
      limit: 240,
    });
    const seen: { readonly head: number; readonly frames: Json[]; readonly socket: Socket }[] = [];
    for (const round of range(1, 10)) {
      await writing.until(round * 20);
      const head = Math.max(base, ...writing.acked.map(({ version }) => version));
      const socket = await open(stage);
      await socket.hello(round % 2 === 0 ? base : base + randomInt(head - base + 1));
      seen.push({ head, frames: socket.frames, socket });
    }
    await writing.stop();
    const last = await stage.written();
    for (const { head, frames, socket } of seen) {
      await untilVersion(socket, last.version);
      const at = frames.findIndex(({ type }) => type === 'caught_up');
      const { version, itemCount, versionSum } = fields(frames[at]);
      check.ok(
        'REPLAY-04',
        Number(version) >= head,
        `caught_up.version of at least ${head}, committed before hello`,
        version,
      );
      const sum = summaryAt(writing.acked, Number(version));
      check.same(
        'REPLAY-06',
        [itemCount, versionSum],
        [Number(before['itemCount']) + sum.itemCount, Number(before['versionSum']) + sum.versionSum],
        `itemCount and versionSum at version ${String(version)}`,
      );
      const versions = versionsOf(frames);
      check.same('WS-06', notRising(versions), [], 'versions that do not rise');
      check.same(
        'REPLAY-08',
        versions.filter((one) => one > Number(version)),
        range(Number(version) + 1, last.version),
        `versions after caught_up(${String(version)})`,
      );
    }
    for (const id of new Set(writing.acked.map((change) => change.id))) await stage.remove(id);
  },
};

const paging: Case = {
  ids: ['REPLAY-09'],
  async run(stage, check) {
    const { wire, second, shape } = stage;
    const since = await stage.head();
    for (const _ of range(1, 12)) {
      const item = await stage.written();
      if (item.version % 3 === 0) await stage.remove(item.id);
      else if (item.version % 3 === 1) await stage.write(stage.edit(item));
    }
    const listing = await listAll(wire, second.token, { since, shape, limit: 5 });
    const frames = await (await open(stage)).hello(since);
    check.same(
      'REPLAY-09',
      new Mirror().apply(changesOf(frames)).state,
      new Mirror().apply(listing.changes).state,
      'the state by socket, the same as by paging',
    );
    const rows = new Map(listing.rows.map((row) => [row['version'], row]));
    for (const { type, item, itemType, ...flat } of frames.filter((frame) => frame['type'] === 'item')) {
      const row = (item as Json | undefined) ?? { ...flat, type: itemType };
      check.same('REPLAY-09', row, rows.get(row['version']), `the row of a ${String(type)} frame`);
    }
  },
};

const pings: Case = {
  ids: ['HEART-01', 'HEART-02', 'HEART-03', 'HEART-04'],
  needs: 'slow',
  once: true,
  async run(stage, check) {
    const lively = await stage.watch();
    const silent = await stage.watch();
    const mute = await stage.connect({ token: stage.second.token, shape: stage.shape });
    const began = Date.now();
    for (const _ of range(1, 10)) {
      await stage.world.pause(10_500);
      await barrier(lively);
    }
    const [greeting, quiet] = [await mute.closed, await silent.closed];
    check.same('HEART-04', greeting.code, 4408, 'close code without a hello');
    check.same('HEART-02', quiet.code, 4408, 'close code after 90 s without a frame from the client');
    check.ok('HEART-01', lively.of('ping').length >= 2, 'pings in 105 s: at least 2', lively.of('ping').length);
    check.ok(
      'HEART-03',
      lively.ws.readyState === 1,
      `a socket that sends other frames than pong is open after ${Date.now() - began} ms`,
    );
  },
};

const epochs: Case = {
  ids: ['EPOCH-02', 'EPOCH-03', 'EPOCH-05'],
  async run(stage, check) {
    const { version: head } = await stage.written();
    const { version: last } = await stage.written();
    const status = await stage.wire.get('/service/status');
    const epoch = status.at('epoch');
    const say = async (hello: Json): Promise<Json[]> => {
      const socket = await open(stage);
      const { since, ...more } = hello;
      const frames = await socket.hello(Number(since), more);
      socket.terminate();
      return frames;
    };
    const whole = (await stage.rows(stage.shape, 0)).map((row) => row['version']);
    const resets: readonly (readonly ['EPOCH-02' | 'EPOCH-03', Json])[] = [
      ['EPOCH-02', { since: last, epoch: 'another' }],
      ['EPOCH-03', { since: last + 1, epoch }],
    ];
    for (const [id, hello] of resets) {
      const frames = await say(hello);
      const what = `hello ${JSON.stringify(hello)}`;
      check.same(id, frames[0], { type: 'reset', epoch }, `first frame to ${what}`);
      check.same(id, versionsOf(frames), whole, `versions from 0 to ${what}`);
      check.same(id, [ending(frames)['type'], ending(frames)['epoch']], ['caught_up', epoch], `last frame to ${what}`);
    }
    for (const hello of [
      { since: head, epoch },
      { since: head },
      { since: head, epoch: null },
      { since: last, epoch },
    ]) {
      const types = (await say(hello)).map(({ type }) => type);
      check.same(
        'EPOCH-05',
        types,
        hello.since === last ? ['caught_up'] : ['item', 'caught_up'],
        `frames to hello ${JSON.stringify(hello)}`,
      );
    }
  },
};

/** Writes that name the history which they are based on. */
const based: Case = {
  ids: ['EPOCH-09'],
  async run(stage, check) {
    const { shape, wire } = stage;
    const bin = await stage.bin();
    const item = await stage.written();
    const epoch = (await wire.get('/service/status', stage.as())).text('epoch');
    const fresh = (): Json => writeBody(shape, stage.item());
    const sig = randomBytes(32);
    const changes: readonly (readonly [string, (query: string) => Promise<Reply>])[] = [
      ['a new item', (query) => wire.post(`/items?${query}`, fresh(), stage.as())],
      ['a replacement', (query) => wire.post(`/items?${query}`, writeBody(shape, stage.edit(item)), stage.as())],
      ['a batch', (query) => wire.post(`/items/batch?${query}`, { items: [fresh()] }, stage.as())],
      [
        'a move',
        async (query) => {
          const { version } = await stage.row(item.id, 'a');
          return wire.post(`/items/${item.id}/reconcile?${query}`, { binId: bin, version, sig }, stage.as());
        },
      ],
      ['a delete', (query) => wire.delete(`/items/${item.id}?${query}`, stage.as())],
    ];
    for (const [what, change] of changes) {
      const head = await stage.head();
      check.outcome('EPOCH-09', await change('epoch=another'), '409 epoch_mismatch', what);
      for (const query of ['epoch=', 'epoch=x&epoch=x'])
        check.outcome('EPOCH-09', await change(query), CODES.validation[shape], `${what}, ${query}`);
      check.same('EPOCH-09', await stage.head(), head, `the head after the refusals of ${what}`);
      check.outcome('EPOCH-09', await change(`epoch=${encodeURIComponent(epoch)}`), '200', `${what}, the epoch`);
      check.same('EPOCH-09', await stage.head(), head + 1, `the head after ${what}`);
    }
  },
};

export const replays: readonly Case[] = [history, beside, paging, pings, epochs, based];
