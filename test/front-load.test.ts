/** What the front has under way, and what it refuses beyond that: admission, bodies, upgrades, the way down. */
import t from 'tap';
import type { FrontOptions, LoadBound } from '../src/front/ports.js';
import { soon, until } from './support/events.js';
import { DEVICE, frontOf, STUBS, tokenOf, ask, writeA, type HttpAnswer } from './support/front.js';
import { openSocket, raw, refusedSocket, socketOf } from './support/front-sockets.js';

const turn = () => new Promise((resolve) => setImmediate(resolve));

const WIDE: LoadBound = { calls: 1_000, bytes: 1_000_000 };

/** An address limiter that answers when it is told to. */
function slowLimiter() {
  const asked: (() => void)[] = [];
  const addressLimits: FrontOptions['addressLimits'] = {
    take: () => new Promise<void>((resolve) => void asked.push(resolve)),
  };
  return { asked, addressLimits, answer: () => asked.forEach((resolve) => resolve()) };
}

/** A stranger's call that its address is counted for; its body has about `size` bytes. */
const stranger = (port: number, size = 0): Promise<HttpAnswer> =>
  ask(port, '/api/password/verify', { body: { password: 'p'.repeat(40), pad: 'x'.repeat(size) }, token: null });

const free = (port: number): Promise<HttpAnswer> => ask(port, '/api/password/exists', { token: null });

t.test('ERR-15: strangers who wait for their rate are counted, and refused beyond the bound', async (t) => {
  const limiter = slowLimiter();
  const { port } = await frontOf(t, {
    services: { ...limiter, bounds: { devices: WIDE, strangers: { calls: 2, bytes: 1_000_000 } } },
  });
  const waiting = [stranger(port), stranger(port)];
  await until('stranger 2 in the wait', () => limiter.asked.length === 2);
  const shed = await stranger(port);
  t.equal(shed.status, 503);
  t.match(shed.headers['retry-after'], /^[1-9]\d*$/);
  t.equal(limiter.asked.length, 2, 'nothing was asked for the one too many');
  t.equal((await ask(port, '/api/items', { body: writeA() })).status, 200, 'devices go on');
  t.equal((await ask(port, '/api/health', { token: null })).status, 200);
  limiter.answer();
  for (const reply of await Promise.all(waiting)) t.equal(reply.status, 200);
  t.equal((await free(port)).status, 200, 'and afterwards there is room again');
});

t.test('ERR-15: a stranger who goes away while he waits is counted until the wait is over', async (t) => {
  const limiter = slowLimiter();
  const { port, lines } = await frontOf(t, {
    services: { ...limiter, bounds: { devices: WIDE, strangers: { calls: 1, bytes: 1_000_000 } } },
  });
  const gone = await raw(t, port, 'POST /api/password/verify HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n');
  await until('stranger 1 in the wait', () => limiter.asked.length === 1);
  gone.socket.destroy();
  t.equal((await free(port)).status, 503, 'his statement is still under way');
  limiter.answer();
  await until('room again', async () => (await free(port)).status === 200);
  t.notOk(lines.some((line) => line.level === 'error'));
});

t.test('ERR-15: bodies of calls that wait for their admission are counted while they are kept', async (t) => {
  const limiter = slowLimiter();
  const { port } = await frontOf(t, {
    services: { ...limiter, bounds: { devices: WIDE, strangers: { calls: 100, bytes: 1_000 } } },
  });
  const first = stranger(port, 600);
  await until('stranger 1 in the wait', () => limiter.asked.length === 1);
  t.equal((await free(port)).status, 200);
  const text = JSON.stringify({ password: 'p'.repeat(40), pad: 'x'.repeat(600) });
  const second = await raw(
    t,
    port,
    `POST /api/password/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${text.length}\r\n\r\n${text}`,
  );
  await until('stranger 2 in the wait', () => limiter.asked.length === 2);
  t.equal((await free(port)).status, 503, 'two bodies are more than there is room for');
  second.socket.destroy();
  await until('room again', async () => (await free(port)).status === 200);
  const third = stranger(port, 600);
  await until('stranger 3 in the wait', () => limiter.asked.length === 3);
  t.equal((await free(port)).status, 503, 'again');
  limiter.answer();
  for (const reply of await Promise.all([first, third])) t.equal(reply.status, 200, 'they had their bodies');
  t.equal((await free(port)).status, 200, 'and what was kept is let go of');
});

t.test('ERR-15: a body that comes when there is no more room is not kept', async (t) => {
  const limiter = slowLimiter();
  const { port } = await frontOf(t, {
    services: { ...limiter, bounds: { devices: WIDE, strangers: { calls: 100, bytes: 1_000 } } },
  });
  const text = JSON.stringify({ password: 'p'.repeat(40), pad: 'x'.repeat(1_000) });
  const head = `POST /api/password/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${text.length}\r\n\r\n`;
  const late = await raw(t, port, head);
  await until('stranger 1 in the wait', () => limiter.asked.length === 1);
  const full = stranger(port, 1_000);
  await until('stranger 2 in the wait', () => limiter.asked.length === 2);
  await until('a full house', async () => (await free(port)).status === 503);
  late.socket.write(text);
  await ask(port, '/api/health', { token: null });
  limiter.answer();
  t.equal(await late.status(), 503);
  t.equal((await full).status, 200);
  t.equal((await free(port)).status, 200);
});

t.test("ERR-15: half bodies count in their sender's share and are refused when it is full", async (t) => {
  const { port } = await frontOf(t, {
    services: { bounds: { devices: WIDE, strangers: { calls: 100, bytes: 1_000 } } },
  });
  const head =
    'POST /api/devices/bootstrap HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n';
  const halves = [];
  for (let count = 0; count < 2; count++) {
    halves.push(await raw(t, port, head + 'x'.repeat(600)));
    await ask(port, '/api/health', { token: null });
  }
  await until('a full house', async () => (await free(port)).status === 503);
  const third = await raw(t, port, head + 'x'.repeat(600));
  t.equal(await third.status(), 503, 'a third half is not held');
  t.match(third.got, /retry-after: [1-9]/i);
  await third.until(() => third.closed);
  t.equal((await ask(port, '/api/items', { body: writeA() })).status, 200, 'devices have a share of their own');
  for (const half of halves) half.socket.destroy();
  await until('room again', async () => (await free(port)).status === 200);
});

t.test('ERR-15: devices whose tenant is being loaded, and sockets being opened, are counted', async (t) => {
  const loads: (() => void)[] = [];
  const tickets: ((right: undefined) => void)[] = [];
  const { port, actor, clock } = await frontOf(t, {
    services: {
      bounds: { devices: { calls: 2, bytes: 1_000_000 }, strangers: WIDE },
      tenants: {
        peek: () => undefined,
        get: () => new Promise((resolve) => void loads.push(() => resolve(actor))),
        changed: () => Promise.resolve(),
      },
      tickets: {
        issueSocket: () => ({ ticket: 'a-ticket', expiresAt: 1 }),
        redeemSocket: () => new Promise((resolve) => void tickets.push(resolve)),
      },
    },
  });
  const device = () => ask(port, '/api/devices');
  const call = device();
  await until('the load of the tenant', () => loads.length === 1);
  const upgrade = openSocket(t, port, { query: '?ticket=slow' });
  await until('the look at the ticket', () => tickets.length === 1);
  t.equal((await device()).status, 503);
  t.equal((await refusedSocket(t, port)).status, 503, 'by token');
  t.equal((await refusedSocket(t, port, { query: '?ticket=other' })).status, 503, 'by ticket');
  t.equal((await ask(port, '/api/devices', { token: tokenOf({ forged: true }) })).status, 401, 'the token comes first');
  t.equal(loads.length + tickets.length, 2, 'nothing more was asked');
  tickets[0]?.(undefined);
  t.match(await upgrade, { status: 401 });
  // The first load lets the call in; the second, after its body, lets it act.
  for (let done = 0; done < 2; done++) {
    await until('the load of the tenant', () => loads.length > done);
    loads[done]?.();
  }
  t.equal((await call).status, 200);
  const last = socketOf(t, port);
  await until('the load of the tenant', () => loads.length === 3);
  loads[2]?.();
  await last;
  t.ok(clock);
});

t.test('HTTP-14 WS-20: a server that stops waits for calls and upgrades that wait for their admission', async (t) => {
  const limiter = slowLimiter();
  let redeem: ((right: { deviceId: string; epoch: number; tokenExpiresAt: number }) => void) | undefined;
  const { port, front } = await frontOf(t, {
    services: {
      ...limiter,
      tickets: {
        issueSocket: () => ({ ticket: 'a-ticket', expiresAt: 1 }),
        redeemSocket: () => new Promise((resolve) => (redeem = resolve)),
      },
    },
  });
  const call = stranger(port);
  const upgrade = openSocket(t, port, { query: '?ticket=slow' });
  await until('a wait of each kind', () => limiter.asked.length === 1 && redeem !== undefined);
  let stopped = false;
  const stop = front.close(1_000).then(() => (stopped = true));
  for (let turns = 0; turns < 10; turns++) await turn();
  t.notOk(stopped);
  limiter.answer();
  t.equal((await call).status, 200);
  t.notOk(stopped);
  redeem?.({ deviceId: DEVICE, epoch: 1, tokenExpiresAt: 4e12 });
  t.match(await upgrade, { status: 503 }, 'no socket any more');
  await soon(stop, 'the end of the server');
});

t.test('PAIR-07: a call that would be held once the server stops is answered at once', async (t) => {
  const limiter = slowLimiter();
  const { port, front } = await frontOf(t, {
    services: {
      ...limiter,
      pairing: {
        ...STUBS.pairing,
        // Ends with the call only.
        fetchNpk: (_tenant, _body, gone) =>
          new Promise((resolve) => gone.addEventListener('abort', () => resolve('pending'))),
      },
    },
  });
  const pubkey = Buffer.alloc(32, 7).toString('base64url');
  const body = {
    code: 'one two three four five six',
    host: 'x',
    pubkey,
    name: 'Phone',
    glyph: 'phone',
    attestation: pubkey,
  };
  const text = JSON.stringify(body);
  const slow = await raw(
    t,
    port,
    `POST /api/devices/pair-fetch-npk HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${text.length}\r\n\r\n`,
  );
  const other = stranger(port);
  await until('stranger 1 in the wait', () => limiter.asked.length === 1);
  const stop = front.close(1_000);
  await turn();
  slow.socket.write(text);
  t.equal(await slow.status(), 202, 'pending');
  limiter.answer();
  t.equal((await other).status, 200);
  await soon(stop, 'the end of the server');
});
