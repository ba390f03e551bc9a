/** What bounds device sockets: their token, their number, their hellos, the server's state. */
import { execFileSync } from 'node:child_process';
import t from 'tap';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { frontOf, tokenOf } from './support/front.js';
import { databaseDown } from './support/server.js';
import { barrier, changesOf, range, untilVersion } from './support/stream.js';
import { world } from './support/two-devices.js';
import { SHAPES, UpgradeRefused, Wire } from './support/wire.js';

t.setTimeout(300_000);

t.test('bounds', async (t) => {
  t.test('WS-19: a socket is closed with 4401 when its token expires', async (t) => {
    const clock = new TestClock();
    const env = { TOKEN_TTL_DAYS: '0.01', WS_PING_INTERVAL_MS: '3600000', WS_PONG_GRACE_MS: '10800000' };
    const { wire, first, live } = await world(t, { clock, env });
    clock.advance(400_000);
    const ticket = (await wire.post('/ws-ticket', {}, { token: first.token })).text('ticket');
    const byTicket = await wire.connect({ ticket });
    await byTicket.hello();
    const sockets = [await live(first), await live(first, { shape: 'b' }), byTicket];
    clock.advance(460_000);
    for (const socket of sockets) await barrier(socket);
    clock.advance(30_000);
    for (const socket of sockets) t.equal((await socket.closed).code, 4401);
    await t.rejects(wire.connect({ token: first.token }), { message: /401 expired_token/ });
  });

  t.test('TOKEN-18: a socket opened by ticket stays open when freed memory is reused meanwhile', async (t) => {
    const { server, wire, first } = await world(t);
    // The library once read a socket's memory after freeing it, when the upgrade came later than the request. Here
    // that memory is taken, and filled with bytes that made it hang up, as soon as the server logs an open socket.
    const taken: Buffer[] = [];
    Object.defineProperty(server.logs, 'push', {
      value: () => {
        for (const size of range(3, 16)) {
          for (const _ of range(1, 50)) taken.push(Buffer.allocUnsafeSlow(size * 8).fill(0xf7));
        }
      },
    });
    for (const _ of range(1, 50)) {
      const ticket = (await wire.post('/ws-ticket', {}, { token: first.token })).text('ticket');
      const socket = await wire.connect({ ticket });
      t.equal((await socket.hello()).length, 1);
      await socket.close();
    }
    t.ok(taken.length > 0);
  });

  t.test('WS-22: a device has at most 16 sockets', async (t) => {
    const { wire, first, second } = await world(t);
    const sockets = await Promise.all(range(1, 16).map(async () => wire.connect({ token: first.token })));
    const refusal = await wire.connect({ token: first.token }).catch((error: unknown) => error);
    t.ok(refusal instanceof UpgradeRefused, 'the seventeenth socket is refused');
    if (refusal instanceof UpgradeRefused) t.equal(refusal.reply.outcome, '429 rate_limited');
    await (await wire.connect({ token: second.token })).close();
    await sockets[0]?.close();
    await (await wire.connect({ token: first.token })).hello();
  });

  t.test('WS-23: a socket has at most one hello in 5 s', async (t) => {
    const clock = new TestClock();
    const { wire, first, put, second } = await world(t, { clock });
    for (const shape of SHAPES) {
      const socket = await wire.connect({ shape, token: first.token });
      await socket.hello();
      for (const _ of range(1, 3)) socket.send({ type: 'hello', since: 0 });
      await barrier(socket);
      t.equal(socket.of('caught_up').length, 1, 'no second caught_up within 5 s');
      t.equal((await untilVersion(socket, await put(second))).at(-1)?.kind, 'item', 'the socket stays live');
      clock.advance(5_000);
      const again = await socket.hello(0);
      t.ok(changesOf(again).length > 0, 'after 5 s everything comes again');
      await socket.close();
    }
  });

  t.test('INST-26: a hello while the database is unreachable is answered when it is back', async (t) => {
    const { server, wire, first, second, put } = await world(t);
    await put(second);
    const sockets = await Promise.all(SHAPES.map(async (shape) => wire.connect({ shape, token: first.token })));
    const up = await databaseDown(server.databaseUrl);
    for (const socket of sockets) socket.send({ type: 'hello', since: 0 });
    // This reply comes after the sockets' reads have failed, because it waits for as long as they do.
    t.equal((await wire.get('/me', { token: first.token })).outcome, '503 unavailable');
    for (const socket of sockets) {
      await barrier(socket);
      t.same(socket.of('caught_up'), []);
    }
    await up();
    for (const socket of sockets) {
      await socket.next('caught_up');
      await untilVersion(socket, await put(second));
    }
    t.pass('no socket had to reconnect');
  });

  t.test('WS-21: a socket whose hello fails for another reason is closed with 1013', async (t) => {
    const { server, wire, first, second, put } = await world(t);
    await put(second);
    const sockets = await Promise.all(SHAPES.map(async (shape) => wire.connect({ shape, token: first.token })));
    await server.sql('ALTER TABLE tenants RENAME COLUMN version_sum TO another');
    for (const socket of sockets) socket.send({ type: 'hello', since: 0 });
    for (const socket of sockets) t.equal((await socket.closed).code, 1013);
    await server.sql('ALTER TABLE tenants RENAME COLUMN another TO version_sum');
    const socket = await wire.connect({ token: first.token });
    await socket.hello();
    t.pass('a hello is served once the fault is gone');
  });
});

t.test(
  'WS-30: a socket beyond the number that leaves descriptors free gets 1013 and a time to come back',
  async (t) => {
    const { port } = await frontOf(t, { socketsMax: 2 });
    const wire = new Wire(port);
    const token = tokenOf();
    const sockets = await Promise.all(range(1, 2).map(async () => wire.connect({ token })));
    t.match(await (await wire.connect({ token })).closed, { code: 1013, reason: /^retry-after=([1-9]|10)$/ });
    await sockets[0]?.close();
    const next = await wire.connect({ token });
    next.send({ type: 'ping' });
    await next.next('pong');
    await next.close();
    await sockets[1]?.close();
    wire.close();
  },
);

t.test('WS-30: sockets that wait for admission count too, because their connections hold descriptors', async (t) => {
  const loads: (() => void)[] = [];
  const { port } = await frontOf(t, {
    socketsMax: 2,
    services: {
      tenants: {
        actors: new Map(),
        get: () => new Promise((resolve) => void loads.push(() => resolve(undefined))),
        hurry: () => undefined,
        changed: () => Promise.resolve(),
      },
    },
  });
  const wire = new Wire(port);
  const token = tokenOf();
  const opening = range(1, 2).map(async () => wire.connect({ token }).catch(() => 'refused'));
  await until('two that wait', () => loads.length === 2);
  t.match(await (await wire.connect({ token })).closed, { code: 1013, reason: /^retry-after=([1-9]|10)$/ });
  t.equal(loads.length, 2, 'no tenant was loaded for the closed socket');
  for (const load of loads) load();
  t.same(await Promise.all(opening), ['refused', 'refused']);
  wire.close();
});

t.test('WS-30: the number of sockets follows from the process’s limit of descriptors', (t) => {
  const script = `import('${new URL('../src/server/realtime/descriptors.js', import.meta.url).href}').then(({ socketsThatFit }) => console.log(socketsThatFit()))`;
  const fit = (limit: number): number =>
    Number(execFileSync('sh', ['-c', `ulimit -n ${limit} && exec "$0" -e "$1"`, process.execPath, script]).toString());
  t.equal(fit(300), 172);
  t.equal(fit(10_000), 9_500);
  t.end();
});
