/** Rates per device and per address, and which address a call counts for. */
import t from 'tap';
import { ROWS } from '../src/server/app/route-table.js';
import { TestClock } from './support/clock.js';
import { claim, claimBody, newCode, newId, newItem, writeBody, type TestDevice } from './support/devices.js';
import { Scene } from './support/scene.js';
import { ADMIN_TOKEN, runServer, type RunOptions, type Running } from './support/server.js';
import { SHAPES, type Ask, type Json, type Reply, type Wire } from './support/wire.js';

/** A server without limits; servers with limits run beside it, on its database. */
const scene = await Scene.start(t);
const { first, second } = scene;
await scene.written();

interface Limited extends Running {
  readonly clock: TestClock;
}

async function limited(t: Parameters<typeof runServer>[0], env: Readonly<Record<string, string>>): Promise<Limited> {
  const clock = new TestClock();
  const server = await runServer(t, { clock, env, database: { url: scene.server.databaseUrl } });
  return { ...server, clock };
}

const read = async (wire: Wire, device = first): Promise<Reply> => wire.get('/me', { token: device.token, shape: 'a' });
const item = (): Json => writeBody('a', newItem(scene.ids));
const post = async (wire: Wire, device = first): Promise<Reply> =>
  wire.post('/items', item(), { token: device.token, shape: 'a' });

/** Calls until one is refused; returns how many were let through, and the refusal. */
async function until429(call: () => Promise<Reply>): Promise<{ let: number; refusal: Reply }> {
  for (let count = 0; count <= 50; count++) {
    const reply = await call();
    if (reply.status === 429) return { let: count, refusal: reply };
  }
  throw new Error('50 calls were let through');
}

t.test('RATE-01 RATE-02 RATE-05 RATE-06 RATE-07 RATE-08: a bucket holds one second and refills', async (t) => {
  const { wire, clock } = await limited(t, { RATE_READ_PER_S: '7', RATE_WRITE_PER_S: '4' });
  for (const [call, rate] of [
    [read, 7],
    [post, 4],
  ] as const) {
    const used = await until429(async () => call(wire));
    t.equal(used.let, rate);
    t.equal(used.refusal.outcome, '429 rate_limited');
    t.match(used.refusal.headers['retry-after'], /^[1-9]\d*$/);
    t.equal((await until429(async () => call(wire, second))).let, rate, 'another device has its own');
    clock.advance(Number(used.refusal.headers['retry-after']) * 1_000);
    t.equal((await call(wire)).status, 200, 'let through after Retry-After');
    clock.advance(3_600_000);
    t.equal((await until429(async () => call(wire))).let, rate, 'an hour fills no more than a second');
    clock.advance(Math.ceil(1_000 / rate));
    t.equal((await until429(async () => call(wire))).let, 1, 'it refills gradually');
  }
  for (const shape of SHAPES) {
    const reply = await wire.post('/items', item(), { token: first.token, shape });
    t.equal(reply.outcome, '429 rate_limited');
    t.equal(reply.at('error.hint'), shape === 'b' ? '/docs/errors#rate_limited' : undefined);
  }
});

t.test('RATE-03 RATE-04 BATCH-05 ERR-11 ERR-12: reads and writes are counted separately', async (t) => {
  const id = newId();
  const writes: readonly (readonly [string, string])[] = [
    ['POST', '/items'],
    ['POST', '/items/batch'],
    ['DELETE', `/items/${id}`],
    ['POST', `/items/${id}/reconcile`],
  ];
  const isWrite = (method: string, path: string): boolean => writes.some((one) => one[0] === method && one[1] === path);
  const reads = ROWS.filter(({ auth }) => auth === 'device')
    .map(({ method, path }) => [method, path.slice('/api'.length).replace(/:id|:ref/, id)] as const)
    .filter(([method, path]) => !isWrite(method, path));
  const { wire, clock } = await limited(t, { RATE_READ_PER_S: '2', RATE_WRITE_PER_S: '1' });
  const ask = async (method: string, path: string, more: Ask = {}): Promise<Reply> =>
    wire.ask(method, path, {
      token: first.token,
      shape: 'a',
      ...(method === 'GET' ? {} : { body: '{"not": "valid"' }),
      ...more,
    });
  for (const [method, path] of writes) {
    clock.advance(1_000);
    t.not((await ask(method, path)).status, 429, `${method} ${path} uses the one write, also when it is refused`);
    for (const [other, otherPath] of writes)
      t.equal(
        (await ask(other, otherPath)).outcome,
        '429 rate_limited',
        `then ${other} ${otherPath} is too much, bad body or not`,
      );
    t.equal((await read(wire)).status, 200, 'reads count separately');
    t.equal((await ask(method, path, { token: 'nonsense' })).outcome, '401 unauthorized', 'the token is checked first');
  }
  for (const [method, path] of reads) {
    clock.advance(1_000);
    t.not((await ask(method, path)).status, 429, `${method} ${path}`);
    t.equal((await read(wire)).status, 200);
    for (const [other, otherPath] of reads)
      t.equal((await ask(other, otherPath)).outcome, '429 rate_limited', `${other} ${otherPath}`);
    t.equal((await post(wire)).status, 200, 'writes count separately');
    t.equal((await wire.get('/health')).status, 200);
  }
  clock.advance(1_000);
  const batch = { items: [item(), item(), item()] };
  const many = await wire.post('/items/batch', batch, { token: first.token, shape: 'a' });
  t.ok(
    many.list('results').every((result) => 'version' in result),
    'a batch of three counts as one write',
  );
  t.equal((await post(wire)).status, 429);
});

const pairFetch = async (wire: Wire, ask: Ask = {}): Promise<Reply> =>
  wire.post('/devices/pair-fetch-epk', { code: newCode() }, { shape: 'a', ...ask });
const forwarded = (address: string): Ask => ({ headers: { 'x-forwarded-for': address } });

t.test('RATE-09 RATE-10 RATE-07 RATE-08 ERR-12 INST-18: pairing is limited by address across instances', async (t) => {
  const fresh = await runServer(t);
  const options: RunOptions = {
    clock: new TestClock(),
    env: { RATE_PAIR_PER_MIN: '5' },
    database: { url: fresh.databaseUrl },
  };
  const [one, two] = [await runServer(t, options), await runServer(t, options)];
  const clock = options.clock as TestClock;
  for (const server of [one, two, one, two, one]) t.equal((await pairFetch(server.wire)).outcome, '400 pair_invalid');
  for (const server of [one, two]) {
    const refusal = await pairFetch(server.wire);
    t.equal(refusal.outcome, '429 rate_limited');
    const wait = Number(refusal.headers['retry-after']);
    t.ok(Number.isInteger(wait) && wait >= 1 && wait <= 60, `Retry-After ${wait}`);
    const bad = await server.wire.post('/devices/pair-fetch-epk', '{', { shape: 'a' });
    t.equal(bad.outcome, '429 rate_limited', 'the rate is checked before the body');
  }
  clock.advance(Number((await pairFetch(two.wire)).headers['retry-after']) * 1_000);
  t.equal((await pairFetch(two.wire)).outcome, '400 pair_invalid', 'after Retry-After');
  clock.advance(60_001);
  const raced = await Promise.all(
    Array.from({ length: 20 }, async (_, index) => pairFetch((index % 2 === 0 ? one : two).wire)),
  );
  t.equal(raced.filter((reply) => reply.status !== 429).length, 5, 'concurrently on both instances');
});

t.test('RATE-11 RATE-12: password checks and challenges are limited to 5 a minute and address', async (t) => {
  const fresh = await runServer(t, { env: { RATE_PAIR_PER_MIN: '' } });
  const device = await claim(fresh.wire);
  const calls: readonly (readonly [string, Json])[] = [
    ['/password/verify', { password: 'x' }],
    ['/devices/reauth/challenge', { deviceId: device.id }],
  ];
  for (const [index, [path, body]] of calls.entries()) {
    const used = await until429(async () =>
      fresh.wire.post(path, body, { shape: 'a', ...forwarded(`198.51.100.${index}`) }),
    );
    t.equal(used.let, 5, path);
    t.ok(Number(used.refusal.headers['retry-after']) >= 1);
  }
  const recovery = await until429(async () =>
    fresh.wire.post('/devices/recover/challenge', {}, { shape: 'a', ...forwarded('198.51.100.9') }),
  );
  t.equal(recovery.let, 5, 'recovery');
  t.equal(
    (await until429(async () => pairFetch(fresh.wire, forwarded('198.51.100.1')))).let,
    5,
    'each purpose counts separately',
  );
});

t.test(
  "RATE-17: guesses at the operator's tokens are limited by address; then the right one is refused too",
  async (t) => {
    const fresh = await runServer(t);
    const options: RunOptions = {
      clock: new TestClock(),
      env: { RATE_PAIR_PER_MIN: '5', BOOTSTRAP_TOKEN: 'open-sesame' },
      database: { url: fresh.databaseUrl },
    };
    const [one, two] = [await runServer(t, options), await runServer(t, options)];
    const restart = async ({ wire }: Running, token: string, ask: Ask = {}): Promise<Reply> =>
      wire.post('/devices/bootstrap/restart', {}, { token, shape: 'a', ...ask });
    const claimWith = async ({ wire }: Running, claimToken: string | undefined): Promise<Reply> =>
      wire.post('/devices/bootstrap', claimBody({ claimToken }), { shape: 'a' });
    for (let n = 0; n < 9; n++) {
      t.equal((await restart(one, ADMIN_TOKEN)).outcome, '200', 'right ones are not counted');
      t.equal((await claimWith(one, undefined)).outcome, '403 forbidden', 'nor are missing ones');
    }
    for (const server of [one, two, one]) t.equal((await restart(server, 'wrong')).outcome, '403 forbidden');
    for (const server of [two, one]) t.equal((await claimWith(server, 'open-sesam')).outcome, '403 forbidden');
    // The right one first: two has counted only some of the wrong ones itself.
    t.equal((await restart(two, ADMIN_TOKEN)).outcome, '429 rate_limited', 'what one has counted holds on two');
    for (const server of [one, two]) {
      const refusal = await restart(server, 'wrong');
      t.equal(refusal.outcome, '429 rate_limited');
      t.ok(Number(refusal.headers['retry-after']) >= 1);
      t.equal((await restart(server, ADMIN_TOKEN)).outcome, '429 rate_limited', 'the right one tells nothing either');
      t.equal((await claimWith(server, 'open-sesame')).outcome, '429 rate_limited');
    }
    const open = await runServer(t, { ...options, env: { RATE_PAIR_PER_MIN: '5' } });
    t.equal((await claimWith(open, 'any')).outcome, '200', 'where no token is required, none is guessed');
    t.equal((await restart(one, ADMIN_TOKEN, forwarded('203.0.113.7'))).outcome, '200', 'from another address');
    (options.clock as TestClock).advance(60_001);
    const raced = await Promise.all(Array.from({ length: 20 }, async () => restart(one, 'wrong')));
    t.equal(raced.filter((reply) => reply.status === 403).length, 5, 'sent at once, no more are compared');
    (options.clock as TestClock).advance(60_001);
    for (let n = 0; n < 50; n++) {
      const from = forwarded(`2001:db8:1:${n % 10}::1`);
      t.equal((await restart(n % 2 === 0 ? one : two, 'wrong', from)).outcome, '403 forbidden');
    }
    for (const token of ['wrong', ADMIN_TOKEN])
      t.equal((await restart(two, token, forwarded('2001:db8:1:ff::1'))).outcome, '429 rate_limited', 'of a network');
    t.equal((await restart(two, ADMIN_TOKEN, forwarded('2001:db8:2::1'))).outcome, '200', 'from another network');
    t.equal((await claimWith(one, 'open-sesame')).outcome, '200');
  },
);

t.test('RATE-14: setting the password is limited by device, from whatever address', async (t) => {
  const options: RunOptions = {
    clock: new TestClock(),
    env: { RATE_PAIR_PER_MIN: '3' },
    database: { url: scene.server.databaseUrl },
  };
  const [one, two] = [await runServer(t, options), await runServer(t, options)];
  let address = 0;
  // A thief with a device's token guesses the current password; each guess comes from another address.
  const guess = async (device: TestDevice, { wire }: Running): Promise<Reply> =>
    wire.post(
      '/password/set',
      { password: 'new', currentPassword: `guess ${address}` },
      { token: device.token, shape: 'a', ...forwarded(`203.0.113.${++address}`) },
    );
  t.equal((await scene.wire.post('/password/set', { password: 'old' }, scene.as('a'))).status, 200);
  for (const server of [one, two, one]) t.equal((await guess(first, server)).outcome, '403 password_invalid');
  for (const server of [one, two]) {
    const refusal = await guess(first, server);
    t.equal(refusal.outcome, '429 rate_limited');
    t.ok(Number(refusal.headers['retry-after']) >= 1);
  }
  t.equal((await guess(second, one)).outcome, '403 password_invalid', 'another device has a limit of its own');
  (options.clock as TestClock).advance(60_001);
  t.equal((await guess(first, one)).outcome, '403 password_invalid', 'a minute later');
});

t.test('PASS-16 RATE-14: removing the password counts against the same limit', async (t) => {
  const options: RunOptions = { clock: new TestClock(), env: { RATE_PAIR_PER_MIN: '3' } };
  const { wire } = await runServer(t, options);
  const device = await claim(wire);
  const as = { token: device.token, shape: 'a' } as const;
  const remove = async (currentPassword: string): Promise<Reply> =>
    wire.delete('/password', { ...as, body: { currentPassword } });
  t.equal((await wire.post('/password/set', { password: 'old' }, as)).status, 200);
  t.equal(
    (await wire.post('/password/set', { password: 'x', currentPassword: 'y' }, as)).outcome,
    '403 password_invalid',
  );
  t.equal((await remove('guess')).outcome, '403 password_invalid');
  t.equal((await remove('old')).outcome, '429 rate_limited', 'the right password too');
  t.equal((await wire.get('/password/exists')).at('exists'), true);
});

t.test('RATE-13: a rate of 0 turns the limit off', async (t) => {
  const replies = await Promise.all(
    Array.from({ length: 150 }, async (_, index) =>
      index % 3 === 0 ? read(scene.wire) : index % 3 === 1 ? post(scene.wire) : pairFetch(scene.wire),
    ),
  );
  t.same(
    replies.filter((reply) => reply.status === 429),
    [],
  );
});

t.test('HTTP-09 HTTP-10 HTTP-11 HTTP-12: a call counts for the right-most untrusted hop', async (t) => {
  /** The outcome ('ok' or 'limited') of a call with each header in turn, where two a minute are let through. */
  const outcomes = async (
    t: Parameters<typeof runServer>[0],
    env: Readonly<Record<string, string>>,
    headers: readonly (string | undefined)[],
  ): Promise<string[]> => {
    const server = await runServer(t, { env: { RATE_PAIR_PER_MIN: '2', ...env } });
    const out: string[] = [];
    for (const header of headers) {
      const reply = await pairFetch(server.wire, header === undefined ? {} : forwarded(header));
      out.push(reply.status === 429 ? 'limited' : 'ok');
    }
    await server.stop();
    return out;
  };
  const [ok, limited] = ['ok', 'limited'] as const;
  t.same(
    await outcomes(t, { TRUSTED_PROXIES: 'none' }, ['192.0.2.1', '192.0.2.2', '192.0.2.3', undefined]),
    [ok, ok, limited, limited],
    'no peer is trusted',
  );
  t.same(
    await outcomes(t, { TRUSTED_PROXIES: '10.0.0.0/8' }, ['192.0.2.1', '192.0.2.2', '192.0.2.3']),
    [ok, ok, limited],
    'the peer is not in the list',
  );
  t.same(
    await outcomes(t, {}, ['192.0.2.1', '192.0.2.2', '192.0.2.1', '192.0.2.2', '192.0.2.1', '192.0.2.3']),
    [ok, ok, ok, ok, limited, ok],
    'loopback is trusted',
  );
  const named = { TRUSTED_PROXIES: '127.0.0.1,10.0.0.0/8,192.168.0.0/16,fc00::/7' };
  t.same(
    await outcomes(t, named, [
      '1.1.1.1, 192.0.2.7',
      '2.2.2.2, 192.0.2.7',
      '3.3.3.3, 192.0.2.7',
      '192.0.2.7, 3.3.3.3',
      '192.0.2.7,10.0.0.4, 192.168.1.1',
      '192.0.2.7, fc00::1',
    ]),
    [ok, ok, limited, ok, limited, limited],
    'the right-most hop that is not a proxy counts; what a client wrote before it does not',
  );
  t.same(
    await outcomes(t, {}, ['192.0.2.7, 10.0.0.4', '192.0.2.8, 10.0.0.4', '192.0.2.9, 10.0.0.4', '192.0.2.7, 10.0.0.5']),
    [ok, ok, limited, ok],
    'by default a hop on a private range is a client',
  );
  t.same(
    await outcomes(t, {}, [
      '2001:db8:1:2::1',
      '2001:db8:1:2:ffff::2',
      '2001:0DB8:1:2:3:4:5:6',
      '2001:db8:1:3::1',
      '::ffff:192.0.2.1',
      '192.0.2.1',
      '::ffff:c000:0201',
    ]),
    [ok, ok, limited, ok, ok, ok, limited],
    'an IPv6 /64 is one, a mapped IPv4 address is that IPv4 address',
  );
  const odd = [
    '',
    ' ',
    ',',
    'unknown',
    '999.1.1.1',
    '192.0.2.1:443',
    '[2001:db8::1]:443',
    'x'.repeat(2_000),
    '192.0.2.1, nonsense',
  ];
  t.equal(
    (await outcomes(t, { RATE_PAIR_PER_MIN: '100' }, odd)).every((outcome) => outcome === ok),
    true,
    'a malformed header is not an error',
  );
});

t.test('RATE-06: each device has its own rate on each instance', async (t) => {
  const servers = [await limited(t, { RATE_WRITE_PER_S: '3' }), await limited(t, { RATE_WRITE_PER_S: '3' })];
  const devices: TestDevice[] = [first, second];
  for (const { wire } of servers) {
    for (const device of devices)
      t.equal((await until429(async () => post(wire, device))).let, 3, 'per device and instance');
  }
});
