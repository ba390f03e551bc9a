/** Sockets that take all that they can get do not affect a device of another tenant. */
import t from 'tap';
import { until } from './support/events.js';
import { inLongRun } from './support/long.js';
import { SlowSocket } from './support/slow.js';
import { fill, Flood, PER_DEVICE, released, stage, unread, unsent } from './support/socket-attacks.js';
import { range } from './support/stream.js';

t.setTimeout(600_000);

const MIB = 1024 * 1024;
/** Enough even on a busy machine. */
const FILLED_MAX_MS = 180_000;
/** A tenant's share of what sockets may leave unsent is 32 MiB; the library's buffers take up to twice what is in them. */
const GROWTH_MAX_MIB = 144;
/** How much heap and allocator may vary: no growth may depend on the number of sockets. */
const NOISE_MIB = 48;
/** How much they may keep after the sockets are gone. */
const KEPT_MAX_MIB = 96;

t.test('FAIR-26 FAIR-25: sockets that never read cost bounded memory, and no other caller is refused', async (t) => {
  const scene = await stage(t, 6);
  const { place, judge, greedy, devices } = scene;
  await fill(greedy, devices);
  // What the process needs for the work itself must not count as the cost of its readers.
  const warm = await SlowSocket.open({ port: place.server.port, token: greedy.device.token, host: greedy.host });
  warm.send({ type: 'hello', since: 0 });
  await warm.until(({ caughtUp }) => caughtUp !== undefined);
  warm.close();
  judge.begin();
  await judge.after(3);
  const quiet = await judge.end();
  t.same(quiet.refusals, []);
  const idle = await place.memory();

  const peaks: number[] = [];
  for (const count of [3, 6]) {
    judge.begin();
    const sockets = await unread({ ...scene, devices: devices.slice(0, count) });
    // The buffers that the system has for each connection are filled first.
    await until('much that is unsent', async () => (await unsent(place)) > 4 * MIB, FILLED_MAX_MS);
    const held = await unsent(place);
    t.ok(held <= 32 * MIB, `${held} bytes unsent`);
    const seen = await judge.end();
    t.same(seen.refusals, []);
    peaks.push(seen.peakMib - idle);
    for (const socket of sockets) socket.close();
    await released(place);
    t.comment(`${count * PER_DEVICE} sockets, ${held} bytes unsent: ${JSON.stringify(seen)}`);
  }
  const [once = 0, twice = 0] = peaks;
  t.ok(Math.max(once, twice) < GROWTH_MAX_MIB, `${Math.max(once, twice)} MiB more`);
  t.ok(twice - once < NOISE_MIB, `${twice - once} MiB more for twice as many`);
  const after = (await place.memory()) - idle;
  t.ok(after < KEPT_MAX_MIB, `${after} MiB more after they disconnected; before ${JSON.stringify(quiet)}`);
});

t.test('FAIR-26 FAIR-28: sockets that never read and keep sending pings cost bounded memory', async (t) => {
  const scene = await stage(t, 1);
  const { place, judge, greedy, devices } = scene;
  await fill(greedy, devices);
  judge.begin();
  await judge.after(3);
  await judge.end();
  const idle = await place.memory();
  const sockets = await unread(scene);
  judge.begin();
  const pinging = setInterval(() => {
    // Below what a socket may send, so that it is not closed.
    for (const socket of sockets) for (const _ of range(1, 6)) socket.send({ type: 'ping' });
    // Frames of the protocol, which the library answers by itself: empty mask, 100 bytes.
    const ping = Buffer.concat([Buffer.from([0x89, 0x80 | 100, 0, 0, 0, 0]), Buffer.alloc(100)]);
    for (const socket of sockets) for (const _ of range(1, 3)) socket.sendRaw(ping);
  }, 500);
  t.teardown(() => clearInterval(pinging));
  await judge.after(inLongRun(8, 20));
  clearInterval(pinging);
  const seen = await judge.end();
  t.same(seen.refusals, []);
  t.ok((await unsent(place)) <= 8 * MIB);
  t.ok(seen.peakMib - idle < GROWTH_MAX_MIB, `${seen.peakMib - idle} MiB more`);
  for (const socket of sockets) socket.close();
  await released(place);
});

t.test('FAIR-27: sockets that send junk as fast as they can are closed, and no other caller is refused', async (t) => {
  // A device for each kind of junk, since a device that sent too much is refused for a while.
  const scene = await stage(t, 3);
  const { place, judge } = scene;
  judge.begin();
  await judge.after(5);
  t.comment(JSON.stringify(await judge.end()));
  const frames = ['['.repeat(14_000), `{"type":"hello","since":0,"x":[${'{},'.repeat(4_600)}{}]}`, '{"type":"pong"}'];
  for (const [at, frame] of frames.entries()) {
    judge.begin();
    const flood = new Flood({ ...scene, devices: scene.devices.slice(at, at + 1) }, frame);
    await judge.after(inLongRun(4, 10));
    const seen = await judge.end();
    await flood.end();
    t.same(seen.refusals, []);
    // A client that still sends when the connection ends may lose the close frame.
    t.ok(
      flood.codes.includes(4429) && flood.codes.every((code) => code === 4429 || code === 1006),
      String(flood.codes),
    );
    t.ok(flood.refused > 0, 'a device that reconnects at once is refused');
    t.comment(JSON.stringify(seen), flood.codes, flood.refused);
  }
  await released(place);
});

t.test('FAIR-29: an incomplete frame costs at most 64 KiB, and for a longer one the connection is cut', async (t) => {
  const scene = await stage(t, 6);
  const { place, judge, greedy, devices } = scene;
  judge.begin();
  await judge.after(3);
  await judge.end();
  const idle = await place.memory();
  judge.begin();
  const { port } = place.server;
  const sockets: SlowSocket[] = [];
  /** The header of a masked text frame of `size` bytes, and all but 1,000 of them. */
  const half = (size: number): Buffer => {
    const head = Buffer.from([0x81, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    head.writeUInt32BE(size, 6);
    return Buffer.concat([head, Buffer.alloc(size - 1_000, 120)]);
  };
  for (const { token } of devices)
    for (const _ of range(1, PER_DEVICE)) sockets.push(await SlowSocket.open({ port, token, host: greedy.host }));
  for (const socket of sockets) socket.sendRaw(half(65_536));
  await judge.after(5);
  const seen = await judge.end();
  t.same(seen.refusals, []);
  t.ok(seen.peakMib - idle < 32, `${seen.peakMib - idle} MiB more`);
  const [first] = sockets;
  const longer = await SlowSocket.open({ port, token: devices[0]?.token ?? '', host: greedy.host }).catch(String);
  t.match(longer, /429/, 'a device has at most sixteen sockets');
  first?.close();
  await until('room for another', async () => {
    const socket = await SlowSocket.open({ port, token: devices[0]?.token ?? '', host: greedy.host }).catch(
      () => undefined,
    );
    socket?.sendRaw(half(1_048_576));
    if (socket !== undefined) await socket.until(() => false).catch(() => undefined);
    return socket?.closedWith === 1006;
  });
  for (const socket of sockets) socket.close();
});
