/** The real-time channel. */
import { randomBytes } from 'node:crypto';
import { writeBody } from '../../support/devices.js';
import { barrier, changesOf, notRising, range, startWriters, untilVersion, versionsOf } from '../../support/stream.js';
import { spelled, UpgradeRefused, type Json, type Socket } from '../../support/wire.js';
import { type Case, type Stage, fields } from '../stage.js';

const TYPED = ['caught_up', 'item', 'delete', 'ack', 'bin', 'pong'];

/** An item of shape B with its keys sorted by device id. */
const inOrder = (item: Json): Json => {
  const device = (entry: Json): string => String(entry['device_id']);
  return {
    ...item,
    wrapped: [...(item['wrapped'] as Json[])].sort((one, other) => device(one).localeCompare(device(other))),
  };
};

const frames: Case = {
  ids: ['WS-01', 'WS-04', 'WS-05', 'WS-09'],
  async run(stage, check) {
    const { shape, first, second, world } = stage;
    const raw: { readonly text: string; readonly binary: boolean }[] = [];
    const socket = await stage.connect({ token: second.token, shape });
    const plain = await stage.watch(second);
    socket.ws.on('message', (data: Buffer, binary: boolean) => raw.push({ text: data.toString('utf8'), binary }));
    await socket.hello(await stage.head(), { acks: true });
    const item = await stage.written({ type: 'code' });
    await stage.remove(item.id);
    await stage.written({}, second);
    await stage.bin();
    await socket.next('bin');
    await barrier(socket);
    await barrier(plain);
    for (const { text, binary } of raw) {
      const { type } = JSON.parse(text) as Json;
      check.ok('WS-01', !binary && typeof type === 'string', 'a JSON text frame with a type', text);
    }
    const seen = new Set(socket.frames.map((frame) => String(frame['type'])));
    check.same(
      'WS-01',
      TYPED.filter((type) => !seen.has(type)),
      [],
      'types of frames that did not arrive',
    );
    check.same('WS-09', plain.of('ack').length, 0, 'number of acks without `acks: true`');
    const frame = socket.of('item')[0] ?? {};
    const { id, ts, version, ct, nonce, keys, master, sig } = item;
    const blob = { blobRef: null, blobNonce: null, blobKeys: null };
    const row = { id, binId: world.bin, senderDevice: first.id, ts, version, deletedAt: null, ...blob };
    if (shape === 'a') {
      const flat = spelled('a', {
        type: 'item',
        itemType: 'code',
        ...row,
        payloadEnc: { ct, nonce, sig, keys, master },
      });
      check.same('WS-04', frame, flat, 'the item frame');
      check.skip('WS-05', 'B alone');
    } else {
      const wrapped = Object.entries(keys).map(([deviceId, key]) => ({ deviceId, key }));
      const inner = spelled('b', { type: 'code', ...row, ct, nonce, sig, wrapped, master });
      // A server may send the keys in any order.
      const came = { ...frame, item: inOrder(frame['item'] as Json) };
      check.same('WS-05', came, { type: 'item', item: inOrder(inner as Json) }, 'the item frame');
      check.skip('WS-04', 'A alone');
    }
  },
};

const pushes: Case = {
  ids: ['WS-02', 'WS-03'],
  async run(stage, check) {
    const { first, second } = stage;
    const others = [await stage.watch(second), await stage.watch(second, 'a'), await stage.watch(second, 'b')];
    const own = [await stage.watch(first), await stage.watch(first, 'b')];
    const item = await stage.written();
    const removed = (await stage.remove(item.id)).number('version');
    const marker = await stage.written({}, second);
    for (const socket of others) {
      await untilVersion(socket, removed);
      const news = changesOf(socket.frames).filter(({ version }) => version < marker.version);
      check.same(
        'WS-02',
        news.map(({ kind, version }) => `${kind} ${version}`),
        [`item ${item.version}`, `delete ${removed}`],
        "changes that another device's socket got",
      );
    }
    for (const socket of own) {
      await untilVersion(socket, marker.version);
      check.same(
        'WS-03',
        versionsOf(socket.frames),
        [marker.version],
        "versions that the changing device's socket got",
      );
    }
  },
};

const order: Case = {
  ids: ['WS-06', 'WS-07', 'WS-08', 'WS-09'],
  async run(stage, check) {
    const { first, second, wire, world } = stage;
    const plain = await stage.watch(first);
    const acking = await stage.watch(first, stage.shape, { acks: true });
    const start = await stage.head();
    const bin = await stage.bin();
    const writing = startWriters({
      wires: [wire],
      devices: [first, second],
      writers: 6,
      limit: 160,
      sealFor: world.ids,
    });
    await writing.until(160);
    await writing.stop();
    const faults = [...writing.errors.map(({ message }) => message), ...writing.refusals.map(({ outcome }) => outcome)];
    check.same('WS-07', faults, [], 'errors and refusals of the concurrent writers');
    const { version: last } = await stage.written({ binId: bin }, second);
    const byFirst = new Set(writing.acked.filter(({ device }) => device === first.id).map(({ version }) => version));
    await untilVersion(plain, last);
    await untilVersion(acking, last);
    const after = (socket: Socket): number[] => versionsOf(socket.frames).filter((version) => version > start);
    check.same(
      'WS-07',
      after(plain),
      range(start + 1, last).filter((version) => !byFirst.has(version)),
      "versions pushed, without the device's own",
    );
    check.same('WS-08', after(acking), range(start + 1, last), 'versions with acks, in order');
    check.same('WS-09', plain.of('ack').length, 0, 'number of acks without `acks: true`');
    const ids = new Map(writing.acked.map(({ version, id }) => [version, id]));
    const wrong = changesOf(acking.of('ack')).filter(
      ({ version, id }) => ids.get(version) !== id || !byFirst.has(version),
    );
    check.same(
      'WS-08',
      wrong.map(({ frame }) => frame),
      [],
      "acks that name another item or another device's change",
    );
    for (const socket of [plain, acking])
      check.same('WS-06', notRising(versionsOf(socket.frames)), [], 'versions that do not rise');
    await cleared(
      stage,
      writing.acked.map(({ id }) => id),
    );
  },
};

/** Deletes the writers' items from the inbox, which cannot be deleted as a whole. */
async function cleared(stage: Stage, ids: readonly string[]): Promise<void> {
  for (const id of new Set(ids)) await stage.remove(id);
}

/** Frames that no client should send, in the form in which they are sent. */
const MALFORMED: readonly (string | Buffer)[] = [
  'nonsense',
  '',
  '[]',
  'null',
  '"hello"',
  '1',
  '{}',
  '{"type":null}',
  '{"type":"subscribe"}',
  '{"type":["hello"]}',
  '{"type":"item","id":"x"}',
  '{"type":"hello"',
  '\u0000',
  '{"type":"HELLO","since":0}',
];
const HELLOS: readonly string[] = [
  '{"type":"hello"}',
  ...['-1', '1.5', '"0"', 'null', 'true', '9007199254740992', '1e300', '[]', '{}', '-0.1'].map(
    (since) => `{"type":"hello","since":${since}}`,
  ),
  '{"type":"hello","since":0,"epoch":5}',
  '{"type":"hello","since":0,"acks":"yes"}',
];
const BINARY = Buffer.from('{"type":"hello","since":0}');
const table: readonly (readonly [string, readonly (string | Buffer)[]])[] = [
  ['', MALFORMED],
  ['WS-15', HELLOS],
  ['WS-16', [BINARY]],
];

const firstFrame: Case = {
  ids: ['WS-10', 'WS-11', 'WS-15', 'WS-16'],
  async run(stage, check) {
    const { shape, first } = stage;
    const head = await stage.head();
    for (const [rule, list] of table) {
      for (const frame of list) {
        const socket = await stage.connect({ token: first.token, shape });
        const note = (id: string, holds: boolean, what: string, came: unknown): void => {
          for (const one of rule === '' ? [id] : [id, rule])
            check.ok(one, holds, `${what} after the first frame ${frame.toString()}`, came);
        };
        socket.send(frame);
        if (shape === 'a') {
          const { code } = await socket.closed;
          const [error, ...others] = socket.frames;
          const told =
            error?.['type'] === 'error' && error['code'] === 'validation' && typeof error['message'] === 'string';
          const what = 'error {code: "validation", message} alone, and close 4400';
          note('WS-10', code === 4400 && told && others.length === 0, what, [error ?? null, code]);
        } else {
          socket.send({ type: 'hello', since: head });
          const next = await socket.next();
          note('WS-11', next['type'] === 'caught_up', 'nothing, and caught_up to a hello', next);
          socket.terminate();
        }
      }
    }
    check.skip(shape === 'a' ? 'WS-11' : 'WS-10', 'of the other shape');
  },
};

const laterFrame: Case = {
  ids: ['WS-13', 'WS-14', 'WS-15', 'WS-16'],
  async run(stage, check) {
    const { shape } = stage;
    const socket = await stage.watch();
    const own = shape === 'a' ? 'WS-13' : 'WS-14';
    for (const [rule, list] of table) {
      for (const frame of list) {
        const ids = rule === '' ? [own] : [own, rule];
        socket.send(frame);
        if (shape === 'b') socket.send({ type: 'ping' });
        const next = await socket.next();
        const told = next['type'] === 'error' && next['code'] === 'validation' && typeof next['message'] === 'string';
        const good = shape === 'a' ? told : next['type'] === 'pong';
        for (const id of ids)
          check.ok(id, good, `${shape === 'a' ? 'error' : 'nothing'} to the frame ${frame.toString()}`, next);
      }
    }
    const item = await stage.written();
    check.same(
      own,
      (await untilVersion(socket, item.version)).at(-1)?.version,
      item.version,
      'version of the next push: the socket stays open',
    );
    check.same(
      'WS-15',
      socket.of('caught_up').length,
      1,
      'number of caught_up frames: no malformed hello was accepted',
    );
    check.skip(shape === 'a' ? 'WS-14' : 'WS-13', 'of the other shape');
  },
};

const pings: Case = {
  ids: ['WS-12', 'WS-15', 'WS-18'],
  async run(stage, check) {
    const socket = await stage.connect({ token: stage.first.token, shape: stage.shape });
    socket.send({ type: 'pong' });
    socket.send({ type: 'ping' });
    check.same('WS-12', await socket.next(), { type: 'pong' }, 'the answer to a ping before hello');
    await socket.hello(await stage.head());
    check.ok('WS-12', socket.of('caught_up').length === 1, 'one caught_up after the hello');
    socket.send({ type: 'ping' });
    check.same('WS-18', await socket.next('pong'), { type: 'pong' }, 'the answer to a ping');
    const high = await stage.connect({ token: stage.first.token, shape: stage.shape });
    high.send({ type: 'hello', since: Number.MAX_SAFE_INTEGER });
    check.same('WS-15', (await high.next())['type'], 'reset', 'the answer to since 2^53-1');
    const low = await stage.connect({ token: stage.first.token, shape: stage.shape });
    check.same('WS-15', (await low.hello(0)).at(-1)?.['type'], 'caught_up', 'the end of the answer to since 0');
  },
};

const sizes: Case = {
  ids: ['WS-17'],
  async run(stage, check) {
    const padded = (size: number): string => `{"type":"ping","pad":"${'x'.repeat(size - 24)}"}`;
    for (const size of [16_385, 20_000, 65_536]) {
      const socket = await stage.watch();
      socket.send(padded(16_384));
      check.same('WS-17', await socket.next(), { type: 'pong' }, 'the answer to a frame of 16 KiB');
      socket.send(padded(size));
      check.same('WS-17', (await socket.closed).code, 1009, `close code after a frame of ${size} bytes`);
    }
  },
};

const bounds: Case = {
  ids: ['WS-22', 'WS-23', 'WS-26'],
  async run(stage, check) {
    const { shape } = stage;
    const device = await stage.join();
    const socket = await stage.watch(device);
    for (const _ of range(1, 3)) socket.send({ type: 'hello', since: 0 });
    await barrier(socket);
    check.same('WS-23', socket.of('caught_up').length, 1, 'number of caught_up frames after four hellos');
    check.same('WS-26', socket.of('caught_up').length, 1, 'number of caught_up frames');
    const item = await stage.written();
    check.same(
      'WS-23',
      (await untilVersion(socket, item.version)).at(-1)?.version,
      item.version,
      'version of the next push: the socket stays live',
    );
    const opened = await Promise.allSettled(
      range(2, 16).map(async () => stage.connect({ token: device.token, shape })),
    );
    check.same(
      'WS-22',
      opened.filter(({ status }) => status === 'rejected').length,
      0,
      'number of sockets refused of the first 16',
    );
    const refusal = await stage.wire.connectOnce({ token: device.token, shape }).then(
      (open) => open.terminate(),
      (error: unknown) => error,
    );
    check.ok('WS-22', refusal instanceof UpgradeRefused, 'a refusal of the 17th', refusal === undefined ? 'open' : '');
    check.same('WS-22', await stage.upgrade({ token: stage.first.token, shape }), 'open', "another device's upgrade");
  },
};

const slowReader: Case = {
  ids: ['WS-25', 'WS-26'],
  async run(stage, check) {
    const bin = await stage.bin();
    const socket = await stage.watch();
    socket.pause();
    const versions: number[] = [];
    for (const _ of range(1, 9)) {
      const items = range(1, 11).map(() => writeBody('a', stage.item({ binId: bin, ct: randomBytes(65_536) })));
      const reply = await stage.wire.post('/items/batch', { items }, stage.as('a'));
      versions.push(...reply.list('results').map(({ version }) => Number(version)));
    }
    socket.resume();
    await untilVersion(socket, Math.max(...versions));
    check.same(
      'WS-25',
      versionsOf(socket.frames),
      versions,
      'versions pushed after 6 MiB were written to a paused socket',
    );
    check.same('WS-26', socket.of('caught_up').length, 1, 'number of caught_up frames');
    const row = changesOf(socket.frames)[0]?.frame ?? {};
    check.same(
      'WS-25',
      fields(stage.shape === 'a' ? row : row['item'])['version'],
      versions[0],
      'version of the first frame',
    );
  },
};

export const sockets: readonly Case[] = [
  frames,
  pushes,
  order,
  firstFrame,
  laterFrame,
  pings,
  sizes,
  bounds,
  slowReader,
];
