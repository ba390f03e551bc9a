/** The documented schemas of frames, checked against the frames that real sockets receive. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import type { ItemRowA, ItemRowB, SnakeKey } from '../src/protocol/frames.js';
import type { DeletedRowA, DeletedRowB, LiveRowA, LiveRowB } from '../src/protocol/item-replies.js';
import { frameSchemas } from '../src/docs/frame-schemas.js';
import { newCode, npkBody, sealedFor, wrapBody, writeBody } from './support/devices.js';
import { Documented } from './support/documented.js';
import { Scene } from './support/scene.js';
import { SHAPES, type Json, type Shape, type Socket } from './support/wire.js';

/** Compiles only while the documented rows have the keys that the encoders must write. */
type Fits<Documented extends Encoded, Encoded> = Documented;
export type RowsFit = [
  Fits<LiveRowA | DeletedRowA, ItemRowA>,
  Fits<SnakeKey<keyof LiveRowB | keyof DeletedRowB>, keyof ItemRowB>,
  Fits<keyof ItemRowB, SnakeKey<keyof LiveRowB & keyof DeletedRowB>>,
];

/** Causes every kind of frame once; returns a socket that received them all. */
async function everyFrame(scene: Scene, shape: Shape): Promise<Socket> {
  const { wire, first, second } = scene;
  const socket = await wire.connect({ token: first.token, shape });
  // Before `hello`, so that the replay has a delete without a tag.
  const gone = await scene.written();
  await wire.delete(`/items/${gone.id}`, scene.as('a'));
  await socket.hello(0, { acks: true, epoch: 'another' });
  const code = newCode();
  await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, scene.as('a'));
  const held = wire.post('/devices/pair-fetch-npk', npkBody(code, { host: null }), { shape: 'a' });
  await socket.next('pair_request');
  await wire.post('/devices/pair-wrap', wrapBody(code, { deviceCert: null }), scene.as('a'));
  const joined = (await held).text('device.id');
  await socket.next('device_joined');
  const keys = sealedFor(first.id, second.id, joined);
  const item = scene.item({ keys });
  await wire.post('/items', writeBody('a', item), scene.as('a', second));
  await socket.next('item');
  const bare = { ...writeBody('b', scene.item({ keys, master: null, sig: null })) };
  await wire.post('/items', bare, scene.as('b', second));
  await socket.next('item');
  await wire.delete(`/items/${item.id}`, { ...scene.as('a', second), body: { sig: randomBytes(32) } });
  await socket.next('delete');
  await wire.post('/items', writeBody('a', scene.item({ keys })), scene.as('a'));
  await socket.next('ack');
  await wire.post(`/devices/${joined}/revoke`, {}, scene.as('a'));
  await socket.next('device_revoked');
  await wire.post('/bins', { id: 'framed', meta: randomBytes(9) }, scene.as('a'));
  await socket.next('bin');
  await wire.delete('/bins/framed', scene.as('a'));
  await socket.next('bin');
  socket.send({ type: 'ping' });
  await socket.next('pong');
  await socket.next('ping');
  if (shape === 'a') {
    socket.send({ type: 'nonsense' });
    await socket.next('error');
  }
  return socket;
}

for (const shape of SHAPES) {
  t.test(`REF-10: every frame matches its documented schema, in ${shape}`, async (t) => {
    const scene = await Scene.start(t, { env: { WS_PING_INTERVAL_MS: '100' } });
    const served = await scene.wire.get(`//docs/frames-${shape}.json`);
    t.same(served.body, frameSchemas(shape));
    const documented = new Documented(served.body as Json);
    const socket = await everyFrame(scene, shape);
    for (const frame of socket.frames) {
      t.equal(documented.faults(['properties', 'server'], frame), '', JSON.stringify(frame).slice(0, 300));
    }
    const kinds = new Set(socket.frames.map((frame) => `${String(frame['type'])}${'bin' in frame ? ' made' : ''}`));
    const all = ['item', 'delete', 'ack', 'caught_up', 'reset', 'bin made', 'bin', 'device_joined', 'device_revoked'];
    const expected = [...all, 'pair_request', 'ping', 'pong', ...(shape === 'a' ? ['error'] : [])];
    t.same([...kinds].sort(), expected.sort(), 'every kind of frame was received');
    await socket.close();
  });

  t.test(`REF-10: the schema accepts what a client may send and nothing else, in ${shape}`, (t) => {
    const documented = new Documented(frameSchemas(shape));
    const faults = (frame: Json): string => documented.faults(['properties', 'client'], frame);
    for (const frame of [
      { type: 'hello', since: 0 },
      { type: 'hello', since: 7, epoch: 'e', acks: true },
    ]) {
      t.equal(faults(frame), '');
    }
    t.equal(faults({ type: 'ping' }), '');
    t.equal(faults({ type: 'pong' }), '');
    t.not(faults({ type: 'hello' }), '');
    t.not(faults({ type: 'hello', since: -1 }), '');
    t.not(faults({ type: 'item' }), '');
    t.end();
  });
}
