/** The client's parts on their own: no server, no network, and a clock that the test controls. */
import fc from 'fast-check';
import t from 'tap';
import { getEventListeners } from 'node:events';
import { DeviceApi } from '../src/sdk/api.js';
import { backoffMs, RECONNECT } from '../src/sdk/platform.js';
import { caughtUp, FRESH, passed, restarted, type Cursor } from '../src/sdk/store/store.js';
import { failureOf } from '../src/cli/failure.js';
import { ApiError, NetworkError, ProtocolError, UncertifiedDeviceError } from '../src/sdk/errors.js';
import { Http } from '../src/sdk/http.js';
import { DeviceList, fingerprintOfDevice } from '../src/sdk/device-list.js';
import { devicesJson, readDeviceList } from '../src/sdk/replies.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { CLOSE } from '../src/protocol/close-codes.js';
import type { ConnectionState } from '../src/sdk/events.js';
import { ReconnectingSocket } from '../src/sdk/reconnecting-socket.js';
import { ulid } from '../src/sdk/ulid.js';
import { itemChange, readFrame, readItem, writeBody, type Frame } from '../src/sdk/wire.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { isUlid } from '../src/protocol/ids.js';
import { rowText } from './support/item-text.js';
import {
  fakeFetch,
  fakeSockets,
  listed,
  newId,
  newIdentity,
  sealedRow,
  settle,
  type FakeAnswer,
} from './support/client.js';
import { TestClock } from './support/clock.js';

t.test('CLIENT-34: waits double from about 1 s to about 60 s, and half of each is random', (t) => {
  const least = (attempt: number): number => backoffMs(attempt, RECONNECT, () => 0);
  const most = (attempt: number): number => backoffMs(attempt, RECONNECT, () => 0.999999);
  t.same([0, 1, 2, 3, 4, 5, 6, 7, 100].map(most), [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000]);
  t.same([0, 1, 6, 100].map(least), [500, 1000, 30000, 30000]);
  const spread = new Set([0.1, 0.3, 0.5, 0.7].map((chance) => backoffMs(3, RECONNECT, () => chance)));
  t.equal(spread.size, 4, 'devices that lost the same server do not reconnect at the same time');
  t.end();
});

t.test('CLIENT-27 CLIENT-28 CLIENT-29: the cursor moves with the stream, only upwards', (t) => {
  fc.assert(
    fc.property(fc.array(fc.nat(50)), (versions) => {
      let cursor: Cursor = FRESH;
      for (const version of versions) {
        const next = passed(cursor, version);
        if (version <= cursor.since ? next !== undefined : next?.since !== version) return false;
        cursor = next ?? cursor;
      }
      return cursor.since === Math.max(0, ...versions);
    }),
  );
  t.same(caughtUp(FRESH, { version: 7, epoch: 'e' }), { since: 7, epoch: 'e' });
  t.same(caughtUp({ since: 9, epoch: 'e' }, { version: 7, epoch: 'e' }), { since: 9, epoch: 'e' }, 'never backwards');
  t.equal(
    caughtUp({ since: 9, epoch: 'e' }, { version: 12, epoch: 'f' }),
    undefined,
    'another epoch is another history',
  );
  t.same(restarted('f'), { since: 0, epoch: 'f', reset: true });
  t.end();
});

t.test('ids are ULIDs that sort by time', (t) => {
  const bytes = (length: number): Uint8Array => nodeSodium.random(length);
  const ids = [0, 1_700_000_000_000, 1_700_000_000_001, 2 ** 48 - 1].map((now) => ulid(now, bytes));
  t.ok(ids.every(isUlid));
  t.same([...ids].sort(), ids);
  t.not(ulid(5, bytes), ulid(5, bytes));
  t.end();
});

t.test('an item survives the round trip to the server', (t) => {
  const device = newIdentity();
  const row = sealedRow(device, { version: 3 });
  const body = writeBody({ ...row, ifVersion: 2 });
  t.equal(body.ifVersion, 2);
  t.same(Object.keys(body.payloadEnc?.keys ?? {}), [device.deviceId]);
  t.equal(rowText('a', readItem(JSON.parse(rowText('a', row)), 'type')), rowText('a', row));
  const frame = readFrame(`{"type":"delete","id":"${row.id}","version":9}`);
  t.same(frame, { kind: 'change', change: { kind: 'delete', id: row.id, version: 9, sig: null } });
  t.end();
});

t.test('CLIENT-32: unknown frames are ignored, broken ones are an error, an unreadable item keeps its version', (t) => {
  t.same(readFrame('{"type":"weather","id":5}'), { kind: 'other' });
  for (const text of ['', 'null', '[]', '{"type":7}', '{"type":"ack","id":"x","version":1}', '{"type":"caught_up"}']) {
    t.throws(() => readFrame(text), ProtocolError, JSON.stringify(text));
  }
  const id = newId();
  const change = itemChange({ id, version: 4, binId: 'inbox', type: 'text', ts: 'now', deletedAt: null }, 'type');
  t.match(change, { kind: 'unreadable', id, version: 4 });
  t.end();
});

t.test('CLIENT-53: the id of a writer, which is kept also for rows that no tag backs, is short', (t) => {
  const row = sealedRow(newIdentity(), { version: 3 });
  const from = (senderDevice: string) => itemChange({ ...JSON.parse(rowText('a', row)), senderDevice }, 'type').kind;
  t.equal(from('x'.repeat(64)), 'item');
  t.equal(from('x'.repeat(65)), 'unreadable');
  t.end();
});

const call = { method: 'GET', path: '/me', repeatable: true } as const;

function http(answer: (nth: number) => FakeAnswer | Promise<FakeAnswer>) {
  const clock = new TestClock();
  const { fetch, requests } = fakeFetch((_, nth) => answer(nth));
  return { clock, requests, http: new Http({ baseUrl: 'http://server.test/', fetch, clock, random: () => 0 }) };
}

const refusal = (status: number, code: string, headers: Record<string, string> = {}): FakeAnswer => ({
  status,
  headers,
  body: { error: { code, message: 'no', details: { path: 'x' } } },
});

t.test('HTTP: a refusal is an ApiError with everything that the server reported', async (t) => {
  const world = http(() => refusal(500, 'internal', { 'x-request-id': 'r1', 'retry-after': '7' }));
  const error = await world.http.send({ ...call }).catch((cause: unknown) => cause);
  t.ok(error instanceof ApiError);
  t.match(error, { code: 'internal', status: 500, details: { path: 'x' }, retryAfter: 7, requestId: 'r1' });
  t.equal(world.requests.length, 1, 'an internal error is not retried');
  t.match(world.requests[0], { path: '/me', headers: { 'x-wire-shape': 'a' } });
});

t.test('HTTP: a repeatable request is repeated after the wait that the server names', async (t) => {
  const world = http((nth) =>
    nth === 0 ? refusal(503, 'unavailable', { 'retry-after': '3' }) : { body: { ok: true } },
  );
  const reply = world.http.send({ ...call });
  await settle();
  world.clock.advance(2_999);
  await settle();
  t.equal(world.requests.length, 1, 'not before');
  world.clock.advance(1);
  t.same((await reply).body, { ok: true });
  t.equal(world.requests.length, 2);
});

t.test('HTTP: a request that is not repeatable is repeated only after a 429, which changed nothing', async (t) => {
  const once = http(() => new Error('connection reset'));
  await t.rejects(once.http.send({ ...call, repeatable: false }), NetworkError);
  t.equal(once.requests.length, 1);
  const limited = http((nth) => (nth === 0 ? refusal(429, 'rate_limited', { 'retry-after': '1' }) : { body: {} }));
  const reply = limited.http.send({ ...call, repeatable: false });
  await settle();
  limited.clock.advance(1_000);
  await reply;
  t.equal(limited.requests.length, 2);
});

t.test('HTTP: a request leaves nothing behind in the signals that outlive it', async (t) => {
  const lifetime = new AbortController();
  const { fetch } = fakeFetch(() => ({ body: { ok: true } }));
  const clock = new TestClock();
  const http = new Http({ baseUrl: 'http://server.test/', fetch, clock, random: () => 0, lifetime: lifetime.signal });
  for (let n = 0; n < 3; n++) await http.send({ ...call, signal: lifetime.signal });
  const { signal } = lifetime;
  t.same(getEventListeners(signal, 'abort'), []);
  // What `AbortSignal.any` attaches to a signal is not a listener.
  const dependants = Object.getOwnPropertySymbols(signal).filter((symbol) => /dependant/i.test(String(symbol)));
  const sizes = dependants.map((symbol) => (signal as never as Record<symbol, Set<unknown> | null>)[symbol]?.size ?? 0);
  t.same(
    sizes.filter((size) => size > 0),
    [],
  );
  const waiting = new Http({
    ...{ baseUrl: 'http://server.test', clock, random: () => 0, lifetime: signal },
    fetch: (_, { signal: stop }) =>
      new Promise((_resolve, reject) => {
        const stopped = (): void => reject(new Error('stopped'));
        if (stop?.aborted === true) stopped();
        stop?.addEventListener('abort', stopped);
      }),
  });
  const held = Array.from({ length: 20 }, () => waiting.send({ ...call }));
  t.equal(getEventListeners(signal, 'abort').length, 1, 'Node warns of more than ten');
  lifetime.abort();
  for (const one of held) await t.rejects(one, { name: 'NetworkError', code: 'aborted' });
  await t.rejects(waiting.send({ ...call }), { name: 'NetworkError', code: 'aborted' }, 'and later requests too');
});

t.test('HTTP: no answer is a timeout, a proxy page counts by its status, HTML with 200 is an error', async (t) => {
  const silent = http(() => new Promise<FakeAnswer>(() => undefined));
  const late = silent.http.send({ ...call, repeatable: false });
  await settle();
  silent.clock.advance(15_000);
  await t.rejects(late, { name: 'NetworkError', code: 'timeout' });
  const proxy = new Http({
    baseUrl: 'http://server.test',
    fetch: async () => Promise.resolve(new Response('<h1>Bad gateway</h1>', { status: 502 })),
    clock: new TestClock(),
    random: () => 0,
  });
  await t.rejects(proxy.send({ ...call, repeatable: false }), { code: 'http_502', status: 502 });
  const portal = new Http({
    baseUrl: 'http://server.test',
    fetch: async () => Promise.resolve(new Response('<h1>Please log in</h1>')),
    clock: new TestClock(),
    random: () => 0,
  });
  await t.rejects(portal.send({ ...call }), ProtocolError);
});

t.test('a refresh during a reading of the devices reads them again, since the first answer may be older', async (t) => {
  const me = newIdentity();
  const entry = ({ deviceId, keys }: typeof me) => ({
    ...{ id: deviceId, name: 'D', glyph: 'laptop', pubkey: toBase64Url(keys.publicKey), pairedAt: 1 },
    ...{ cert: toBase64Url(listed(me).cert), online: true, current: deviceId === me.deviceId },
  });
  const answers: ((devices: readonly object[]) => void)[] = [];
  const api = new DeviceApi(
    () => new Promise((resolve) => answers.push((devices) => resolve({ status: 200, body: { devices } }))),
  );
  const deviceList = new DeviceList({
    ...{ api, sodium: nodeSodium, identity: me, emit: () => [], clock: new TestClock() },
  });
  const [first, known] = [deviceList.refresh(), deviceList.list()];
  await settle();
  t.equal(answers.length, 1);
  const later = [deviceList.refresh(), deviceList.refresh()];
  await settle();
  t.equal(answers.length, 1, 'one at a time');
  answers[0]?.([entry(me)]);
  t.same([(await first).length, (await known).length], [1, 1]);
  await settle();
  t.equal(answers.length, 2, 'one reading for both');
  answers[1]?.([entry(me), entry(newIdentity())]);
  for (const list of later) t.equal((await list).length, 2);
});

/** A device, and its programs: each reads the list of another once, and stores it as JSON. */
function lister() {
  const me = newIdentity();
  const sibling = () => ({ ...newIdentity(), masterKey: me.masterKey });
  const entry = (of: typeof me, revokedAt: number | null) => ({
    ...{ id: of.deviceId, name: 'D', glyph: 'laptop', pubkey: toBase64Url(of.keys.publicKey), pairedAt: 1, revokedAt },
    ...{ cert: toBase64Url(listed(of).cert), online: true, current: of === me },
  });
  const own = entry(me, null);
  const at: { stored: string | undefined } = { stored: undefined };
  const run = async (...devices: readonly object[]) => {
    const told: string[] = [];
    const remembered = at.stored === undefined ? undefined : readDeviceList(JSON.parse(at.stored), '');
    const api = new DeviceApi(() => Promise.resolve({ status: 200, body: { devices: [own, ...devices] } }));
    const deviceList = new DeviceList({
      ...{ api, sodium: nodeSodium, identity: me, clock: new TestClock(), remembered },
      emit: (name) => [told.push(name)],
    });
    at.stored = JSON.stringify(devicesJson(await deviceList.refresh()));
    return { deviceList, told };
  };
  const count = (): number => (JSON.parse(at.stored ?? '[]') as unknown[]).length;
  return { sibling, entry, run, count };
}

t.test('CLIENT-62 LIAR-62: a device that was seen revoked stays uncertified in every later run', async (t) => {
  const { sibling, entry, run } = lister();
  const other = sibling();
  await run(entry(other, null));
  t.same((await run(entry(other, 7))).told, ['devices']);
  t.match((await run()).deviceList.counts(), { active: 1 }, 'a list that leaves it out');
  for (const which of ['next', 'one after']) {
    const { deviceList, told } = await run(entry(other, null));
    t.same(told, ['devices', 'uncertified'], `the ${which}`);
    const refused: unknown = await deviceList.recipients().catch((error: unknown) => error);
    if (!(refused instanceof UncertifiedDeviceError)) throw new Error('not refused');
    t.match(refused, { code: 'uncertified_device', message: /was revoked\. Revoke it again\.$/ });
    t.notMatch(refused.message, /certify/, 'which would be refused');
    t.match(failureOf(refused), { hint: /service-device revoke/ });
    const fingerprint = fingerprintOfDevice(nodeSodium, { id: other.deviceId, pubkey: other.keys.publicKey });
    const certified = deviceList.certify(other.deviceId, fingerprint);
    await t.rejects(certified, { code: 'revoked_device', message: /revoke it again/ });
  }
  const { deviceList, told } = await run({ ...entry(other, 9), wasRevokedAt: 7 });
  t.same(told, ['devices'], 'until it is revoked again');
  await t.rejects(deviceList.certify(other.deviceId, ''), { code: 'revoked_device', message: /pair it anew/ });
  t.match(await deviceList.recipients(), { length: 1 });
});

t.test('CLIENT-62: no number of devices that a server invents has a revoked one forgotten', async (t) => {
  const { sibling, entry, run, count } = lister();
  const [other, bare] = [sibling(), sibling()];
  const invented = Array.from({ length: 1_500 }, () => ({ ...entry(newIdentity(), 3), wasCertified: true }));
  await run(entry(other, null), entry(bare, null), ...invented);
  await run(entry(other, null), entry(bare, null));
  t.equal(count(), 3, 'they take no place');
  const swapped = toBase64Url(newIdentity().keys.publicKey);
  await run(entry(other, 7), { ...entry(bare, null), cert: null }, ...invented);
  await run(entry(other, 7), { ...entry(bare, 7), cert: null, pubkey: swapped });
  await run();
  for (const which of [other, bare]) {
    const { deviceList, told } = await run(entry(which, null));
    t.same(told, ['devices', 'uncertified'], 'also where its certificate was taken away first');
    await t.rejects(deviceList.recipients(), { code: 'uncertified_device' });
  }
});

t.test(
  'CLIENT-62: a list that names a device twice is refused, as one of its entries could hide the other',
  async (t) => {
    const { sibling, entry, run } = lister();
    const other = sibling();
    await run(entry(other, 7));
    await t.rejects(run(entry(other, 7), { ...entry(other, 7), cert: null }), { code: 'malformed' });
  },
);

t.test('CLIENT-62: of revoked devices that are left out a thousand are kept, those left out last', async (t) => {
  const { sibling, entry, run, count } = lister();
  const [first, ...many] = Array.from({ length: 1_001 }, () => entry(sibling(), 7));
  await run(first ?? {});
  await run();
  await run(...many);
  t.equal(count(), 1_002);
  await run();
  t.equal(count(), 1_001, 'one is forgotten');
  t.match((await run({ ...many.at(-1), revokedAt: null })).told, ['devices', 'uncertified'], 'not the last one');
});

t.test(
  'CLIENT-62: a device whose name or key is longer than any device has is refused, as the list is stored',
  async (t) => {
    const { sibling, entry, run } = lister();
    const device = entry(sibling(), null);
    await run({ ...device, name: '😀'.repeat(64) });
    for (const part of [
      { name: 'x'.repeat(257) },
      { glyph: 'x'.repeat(257) },
      { pubkey: 'A'.repeat(88) },
      { cert: 'A'.repeat(88) },
    ])
      await t.rejects(run({ ...device, ...part }), { code: 'malformed' });
  },
);

function line(overrides: { prepare?: () => Promise<string> } = {}) {
  const clock = new TestClock();
  const { port, connections } = fakeSockets();
  const frames: Frame[] = [];
  const states: ConnectionState[] = [];
  const problems: Error[] = [];
  const at = { cursor: FRESH, revoked: 0, renewed: 0 };
  const made = new ReconnectingSocket({
    baseUrl: 'https://server.test',
    sockets: port,
    clock,
    random: () => 0,
    prepare: overrides.prepare ?? (() => Promise.resolve('tick/et')),
    renew: () => {
      at.renewed++;
      return Promise.resolve();
    },
    cursor: () => Promise.resolve(at.cursor),
    onFrame: (frame) => frames.push(frame),
    onState: (state) => states.push(state),
    onRevoked: () => at.revoked++,
    onProblem: (error) => problems.push(error),
  });
  const open = async () => {
    await settle();
    const connection = connections.at(-1);
    if (connection === undefined) throw new Error('no connection was opened');
    connection.events.opened();
    await settle();
    return connection;
  };
  return { line: made, clock, connections, frames, states, problems, at, open };
}

t.test('CLIENT-20 CLIENT-35: sockets open by ticket, and each sends hello with the last applied version', async (t) => {
  const world = line();
  world.line.start();
  const first = await world.open();
  t.equal(first.url, 'wss://server.test/ws?shape=a&ticket=tick%2Fet');
  t.same(first.sent, [{ type: 'hello', since: 0, epoch: null, acks: true }]);
  world.at.cursor = { since: 41, epoch: 'e' };
  first.events.closed(1006, '');
  t.match(world.states.at(-1), { state: 'waiting', retryInMs: 500 });
  world.clock.advance(500);
  const second = await world.open();
  t.same(second.sent, [{ type: 'hello', since: 41, epoch: 'e', acks: true }]);
  first.frame({ type: 'bin' });
  t.same(world.frames, [], 'frames of an ended connection are ignored');
  world.line.stop();
  t.equal(second.closed?.code, 1000);
  t.equal(world.clock.waiting, 0, 'no timer is left');
});

t.test('CLIENT-34: consecutive failures wait longer, until a connection lives 10 s after its replay', async (t) => {
  const world = line();
  world.line.start();
  const waits: number[] = [];
  for (let attempt = 0; attempt < 4; attempt++) {
    const connection = await world.open();
    connection.events.closed(1006, '');
    const state = world.states.at(-1);
    waits.push(state?.state === 'waiting' ? state.retryInMs : 0);
    world.clock.advance(60_000);
  }
  t.same(waits, [500, 1000, 2000, 4000], 'waits grow for a server that accepts and disconnects');
  let connection = await world.open();
  world.line.settled();
  connection.events.closed(1012, 'restart');
  t.match(world.states.at(-1), { state: 'waiting', retryInMs: 8_000 }, 'also after it delivered everything');
  world.clock.advance(8_000);
  connection = await world.open();
  world.line.settled();
  world.clock.advance(10_000);
  connection.events.closed(1012, 'restart');
  t.match(world.states.at(-1), { state: 'waiting', retryInMs: 500 });
  world.line.stop();
});

t.test('HEART: pings are answered; a silent connection is probed, then given up', async (t) => {
  const world = line();
  world.line.start();
  const connection = await world.open();
  connection.frame({ type: 'ping' });
  t.same(connection.sent.at(-1), { type: 'pong' });
  world.clock.advance(65_000);
  t.same(connection.sent.at(-1), { type: 'ping' }, 'the server is probed');
  connection.frame({ type: 'pong' });
  world.clock.advance(60_000);
  t.equal(connection.closed, null, 'an answer keeps the connection open');
  world.clock.advance(30_000);
  t.equal(connection.closed?.code, CLOSE.silent);
  t.match(world.states.at(-1), { state: 'waiting' });
  world.line.stop();
});

t.test(
  'CLIENT-56: a wait is cut short on request, at most once in 2 s, never below what the server named',
  async (t) => {
    const world = line();
    const attempts = (): number => world.states.filter(({ state }) => state === 'connecting').length;
    world.line.hurry();
    t.equal(attempts(), 0, 'a line that was not started is not opened');
    world.line.start();
    for (let failures = 0; failures < 5; failures++) {
      (await world.open()).events.closed(1006, '');
      world.clock.advance(500 * 2 ** failures);
    }
    (await world.open()).events.closed(1006, '');
    t.match(world.states.at(-1), { state: 'waiting', retryInMs: 16_000 });
    t.equal(attempts(), 6);
    for (let asked = 0; asked < 100; asked++) world.line.hurry();
    t.equal(attempts(), 6, 'not within 2 s of the last attempt');
    t.match(world.states.at(-1), { state: 'waiting', retryInMs: 2_000 });
    world.clock.advance(1_999);
    world.line.hurry();
    t.equal(attempts(), 6);
    world.clock.advance(1);
    t.equal(attempts(), 7, 'the next attempt is made after 2 s');
    (await world.open()).events.closed(1006, '');
    t.match(world.states.at(-1), { state: 'waiting', retryInMs: 30_000 }, 'the waits continue to grow');
    world.clock.advance(2_000);
    world.line.hurry();
    t.equal(attempts(), 8, 'at once where the last attempt is longer ago');
    await settle();
    world.clock.advance(2_000);
    world.line.hurry();
    t.equal(attempts(), 8, 'an attempt under way is left alone');
    world.connections.at(-1)?.events.closed(1006, '', 20);
    t.match(world.states.at(-1), { state: 'waiting', retryInMs: 30_000 });
    world.line.hurry();
    t.match(world.states.at(-1), { state: 'waiting', retryInMs: 20_000 }, 'the server named 20 s');
    world.clock.advance(19_999);
    world.line.hurry();
    t.equal(attempts(), 8);
    world.clock.advance(1);
    t.equal(attempts(), 9);
    world.line.stop();
    t.equal(world.clock.waiting, 0);
    world.line.hurry();
    t.equal(attempts(), 9);
  },
);

t.test('CLIENT-57: on request an open connection is probed, and given up after 5 s without an answer', async (t) => {
  const world = line();
  world.line.start();
  const connection = await world.open();
  const pings = (): number => connection.sent.filter(({ type }) => type === 'ping').length;
  world.line.hurry();
  world.clock.advance(1_999);
  t.equal(pings(), 0, 'a connection that has just been opened is not probed yet');
  connection.frame({ type: 'pong' });
  world.clock.advance(1);
  t.equal(pings(), 0, 'nor after a frame that has arrived since');
  for (let asked = 0; asked < 100; asked++) world.line.hurry();
  world.clock.advance(1_998);
  t.equal(pings(), 0);
  world.clock.advance(1);
  for (let asked = 0; asked < 100; asked++) world.line.hurry();
  t.equal(pings(), 1, 'one probe, 2 s after the last frame');
  connection.frame({ type: 'pong' });
  world.clock.advance(60_000);
  t.equal(connection.closed, null, 'an answer keeps the connection open');
  world.line.flow(false);
  world.line.hurry();
  t.equal(pings(), 1, 'no probe while nothing is read, since silence then means nothing');
  world.line.flow(true);
  world.line.hurry();
  world.clock.advance(2_000);
  t.equal(pings(), 2);
  world.clock.advance(4_999);
  t.equal(connection.closed, null);
  world.clock.advance(1);
  t.equal(connection.closed?.code, CLOSE.silent);
  t.match(world.states.at(-1), { state: 'waiting', retryInMs: 500 });
  world.line.stop();
  t.equal(world.clock.waiting, 0);
});

t.test('close codes: 4401 renews the token first, 4403 ends, 1013 waits longer', async (t) => {
  const world = line();
  world.line.start();
  (await world.open()).events.closed(CLOSE.expired, '');
  world.clock.advance(1_000);
  (await world.open()).events.closed(CLOSE.overloaded, '');
  t.equal(world.at.renewed, 1);
  t.match(world.states.at(-1), { state: 'waiting', retryInMs: 4_000 });
  world.clock.advance(60_000);
  (await world.open()).events.closed(CLOSE.revoked, '');
  t.equal(world.at.revoked, 1);
  t.match(world.states.at(-1), { state: 'closed' });
  world.clock.advance(600_000);
  await settle();
  t.equal(world.connections.length, 3, 'no further attempt');
});

t.test('a ticket that is refused because the device is revoked ends the line as well', async (t) => {
  const refused = new ApiError({ code: 'device_revoked', status: 403, message: 'revoked' });
  const world = line({ prepare: () => Promise.reject(refused) });
  world.line.start();
  await settle();
  t.equal(world.at.revoked, 1);
  t.equal(world.clock.waiting, 0);
});

t.test('CLIENT-32: a broken frame is reported and does not end the line', async (t) => {
  const world = line();
  world.line.start();
  const connection = await world.open();
  connection.frame('{');
  connection.frame({ type: 'error', code: 'validation', message: 'no' });
  connection.frame({ type: 'weather' });
  t.equal(world.problems.length, 2);
  t.equal(connection.closed, null);
  t.same(world.frames, [{ kind: 'other' }]);
  world.line.stop();
});

t.test('CLIENT-46: an endless reply is cancelled', async (t) => {
  let chunks = 0;
  let cancelled = false;
  const fetch = () => {
    const body = new ReadableStream<Uint8Array>({
      pull: (controller) => {
        chunks++;
        controller.enqueue(new Uint8Array(1024 * 1024).fill(0x20));
      },
      cancel: () => {
        cancelled = true;
      },
    });
    return Promise.resolve(new Response(body));
  };
  const http = new Http({ baseUrl: 'http://server.test', fetch, clock: new TestClock(), random: () => 0 });
  await t.rejects(http.send({ method: 'GET', path: '/me', repeatable: true }), ProtocolError);
  t.ok(chunks <= 20 && cancelled, `${chunks} MiB were read`);
});
