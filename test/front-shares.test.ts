/** What the front holds for clients that do not read or do not finish, and when it releases it: replies, bodies. */
import { connect, type Socket } from 'node:net';
import { once } from 'node:events';
import t, { type Test } from 'tap';
import type { App } from '../src/server/app/route-table.js';
import type { LoadBound } from '../src/server/http/limits.js';
import type { LogPage } from '../src/server/tenant/ports.js';
import { until } from './support/events.js';
import { ask, DEVICE, frontOf, liveItem, OTHER_DEVICE, tokenOf, writeA, type TestFront } from './support/front.js';
import { raw } from './support/front-sockets.js';

const MIB = 1024 * 1024;
const WIDE: LoadBound = { calls: 10_000, bodies: 100 * MIB, replies: 1_000 * MIB };

/** A page that no kernel takes in one piece: 20 MiB of JSON. */
const LONG: LogPage = {
  rows: Array.from({ length: 240 }, (_, n) => liveItem(n + 1, Buffer.alloc(65_000))),
  more: false,
  summary: { version: 240, itemCount: 240, versionSum: 240 },
};

/** A connection that sends and does not read. */
async function unread(t: Test, port: number, text: string): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.pause();
  t.teardown(() => socket.destroy());
  await once(socket, 'connect');
  socket.write(text);
  return socket;
}

const ITEMS = `GET /api/items?since=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${tokenOf({ deviceId: DEVICE })}\r\n\r\n`;

const held = ({ front }: TestFront, budget: string): number => front.held()[budget] ?? NaN;
const nothing = ({ front }: TestFront): boolean => Object.values(front.held()).every((amount) => amount === 0);

t.test('FAIR-10 FAIR-06: a reply that is not read is held for half a minute, and then cut off', async (t) => {
  const test = await frontOf(t, { services: { bounds: { devices: WIDE, unauthenticated: WIDE } } });
  test.page = LONG;
  const timers = test.clock.waiting;
  const reader = await unread(t, test.port, ITEMS);
  await until('the reply', () => held(test, 'device_replies') > 15 * MIB && held(test, 'device_calls') === 0);
  test.clock.advance(29_000);
  t.ok(held(test, 'device_replies') > 15 * MIB);
  test.clock.advance(1_000);
  await until('an empty house', () => nothing(test));
  t.equal(test.clock.waiting, timers, 'no timer is left');
  reader.destroy();
});

t.test('FAIR-07 FAIR-04: a reply that a device has left unread for 5 seconds gives way to its next one', async (t) => {
  const test = await frontOf(t, {
    services: { bounds: { devices: { ...WIDE, replies: 16 * 22 * MIB }, unauthenticated: WIDE } },
  });
  test.actor.admit(OTHER_DEVICE);
  test.page = LONG;
  const first = await unread(t, test.port, ITEMS);
  const cut = once(first, 'close');
  await until('the reply', () => held(test, 'device_calls') === 0 && held(test, 'device_replies') > 15 * MIB);
  test.clock.advance(5_000);
  test.page = { ...LONG, rows: [] };
  t.equal((await ask(test.port, '/api/items')).status, 200);
  t.equal(held(test, 'device_replies'), 0);
  first.resume();
  await cut;
});

t.test('FAIR-08: calls for which there is no room wait in turn, and read nothing meanwhile', async (t) => {
  let answer = (): void => undefined;
  let asked = 0;
  const test = await frontOf(t, {
    services: {
      // Room for two pages of a device.
      bounds: { devices: { ...WIDE, replies: 16 * 12 * MIB }, unauthenticated: WIDE },
      items: {
        page: () => {
          asked++;
          return new Promise<LogPage>((resolve) => {
            const before = answer;
            answer = () => {
              before();
              resolve({ ...LONG, rows: [] });
            };
          });
        },
      },
    },
  });
  test.actor.admit(OTHER_DEVICE);
  const replies = [1, 2, 3, 4, 5].map(() => ask(test.port, '/api/items'));
  await until('five calls', () => held(test, 'device_calls') === 5);
  t.equal(asked, 2);
  t.equal(held(test, 'device_replies'), 12 * MIB);
  const other = ask(test.port, '/api/items', { token: tokenOf({ deviceId: OTHER_DEVICE }) });
  await until('the other device, which does not wait', () => asked === 3);
  answer();
  t.equal((await other).status, 200);
  await until('the next two', () => asked === 5);
  test.clock.advance(5_000);
  answer();
  const last = await Promise.all(replies);
  t.same(last.map(({ status }) => status).sort(), [200, 200, 200, 200, 429]);
  t.ok(last.every(({ status, headers }) => status === 200 || Number(headers['retry-after']) >= 1));
  t.ok(nothing(test));
});

t.test('FAIR-08: room is also reserved for the lists of bins and devices', async (t) => {
  const never = () => new Promise<never>(() => undefined);
  const test = await frontOf(t, {
    services: {
      bounds: { devices: WIDE, unauthenticated: WIDE },
      bins: { list: never } as unknown as App['bins'],
      devices: { list: never, touch: () => undefined } as unknown as App['devices'],
    },
  });
  const get = (path: string): string => ITEMS.replace('/api/items?since=0', path);
  await unread(t, test.port, get('/api/bins'));
  await until('the bins', () => held(test, 'device_replies') === 6 * MIB);
  await unread(t, test.port, get('/api/devices'));
  await until('the devices', () => held(test, 'device_replies') === 7.5 * MIB);
});

t.test('FAIR-08 FAIR-06: a client that disconnects while it waits for room takes none', async (t) => {
  const test = await frontOf(t, {
    services: {
      bounds: { devices: { ...WIDE, replies: 16 * 6 * MIB }, unauthenticated: WIDE },
      items: { page: () => new Promise<LogPage>(() => undefined) },
    },
  });
  await unread(t, test.port, ITEMS);
  await until('one page', () => held(test, 'device_replies') === 6 * MIB);
  const waiting = await unread(t, test.port, ITEMS);
  await until('two calls', () => held(test, 'device_calls') === 2);
  waiting.destroy();
  await until('one call', () => held(test, 'device_calls') === 1);
  t.equal(held(test, 'device_replies'), 6 * MIB);
});

t.test('FAIR-09 FAIR-14: on one connection one reply is held, however many are requested', async (t) => {
  const text = 'x'.repeat(20_000);
  const test = await frontOf(t, {
    services: { docs: () => ({ type: 'text/html', hash: '1', cache: 'no-cache', bytes: Buffer.from(text) }) },
  });
  const reader = await unread(t, test.port, 'GET /docs HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(5_000));
  const cut = once(reader, 'close');
  t.equal((await ask(test.port, '/api/me')).status, 200);
  // 100 MB were requested: the connection ended at the first reply that could not be sent.
  reader.resume();
  let got = 0;
  reader.on('data', (chunk: Buffer) => (got += chunk.length));
  await cut;
  t.ok(got > text.length && got < 4_000 * text.length, `${got} bytes`);
  await until('an empty house', () => nothing(test));
});

t.test('FAIR-09: a reader that is merely slow gets the whole reply', async (t) => {
  const test = await frontOf(t);
  test.page = LONG;
  const reader = await unread(t, test.port, ITEMS);
  await until('the reply', () => held(test, 'device_replies') > 15 * MIB);
  let got = 0;
  reader.on('data', (chunk: Buffer) => (got += chunk.length));
  reader.resume();
  await until('all of it', () => got > 15 * MIB && nothing(test));
  t.equal((await ask(test.port, '/api/me')).status, 200);
});

t.test('FAIR-12: a route without a token takes 8 KiB of body; claiming and recovery take 64 KiB', async (t) => {
  const { port } = await frontOf(t);
  const sized = async (path: string, bytes: number): Promise<number> => {
    const body = { pad: 'x'.repeat(bytes - '{"pad":""}'.length) };
    return (await ask(port, path, { body, token: null })).status;
  };
  const small = ['pair-fetch-epk', 'pair-fetch-npk', 'reauth', 'reauth/challenge'].map(
    (name) => `/api/devices/${name}`,
  );
  for (const path of [...small, '/api/password/verify']) {
    t.equal(await sized(path, 8_193), 413, path);
    t.not(await sized(path, 8_192), 413, path);
  }
  for (const path of ['/api/devices/bootstrap', '/api/devices/recover']) {
    t.not(await sized(path, 65_536), 413, path);
    t.equal(await sized(path, 65_537), 413, path);
  }
});

t.test('RATE-15: a body beyond the rate is refused before it is read', async (t) => {
  const test = await frontOf(t, { config: { rateReadPerS: 1_000, rateWritePerS: 1_000 } });
  const full = { items: [writeA()], pad: 'x'.repeat(1_000_000) };
  const batch = () => ask(test.port, '/api/items/batch', { body: full });
  for (let n = 0; n < 8; n++) t.equal((await batch()).status, 200);
  const head =
    'POST /api/items/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n' +
    `Authorization: Bearer ${tokenOf()}\r\nContent-Length: 1000000\r\n\r\n`;
  const refused = await raw(t, test.port, head);
  t.equal(await refused.status(), 429, 'before any of it was sent');
  t.match(refused.got, /retry-after: 1\r/i);
  t.equal((await ask(test.port, '/api/items', { body: writeA() })).status, 200, 'small bodies are accepted');
  test.clock.advance(1_000);
  t.equal((await batch()).status, 200);
  // The length of a chunked body is not known before: it is charged afterwards.
  const text = JSON.stringify(full);
  const chunked =
    'POST /api/items/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n' +
    `Authorization: Bearer ${tokenOf()}\r\n\r\n${text.length.toString(16)}\r\n${text}\r\n0\r\n\r\n`;
  const outcomes: number[] = [];
  for (let n = 0; n < 6; n++) outcomes.push(await (await raw(t, test.port, chunked)).status());
  t.same(outcomes.slice(-2), [429, 429]);
});

t.test('RATE-16: after replies beyond the rate, reads are 429 until the excess is made up', async (t) => {
  const test = await frontOf(t, { config: { rateReadPerS: 1_000, rateWritePerS: 1_000 } });
  test.page = LONG;
  const read = () => ask(test.port, '/api/items');
  for (let n = 0; n < 2; n++) t.equal((await read()).status, 200);
  const late = await read();
  t.equal(late.status, 429);
  t.match(late.headers['retry-after'], /^[1-9]$/);
  t.equal((await ask(test.port, '/api/items', { body: writeA() })).status, 200, 'writes are accepted');
  test.clock.advance(Number(late.headers['retry-after']) * 1_000);
  t.equal((await read()).status, 200);
});
