/** Tokens, one-use tickets and address limits, on a real database and two instances. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { ulid } from 'ulid';
import { AddressLimits } from '../src/server/http/address-limits.js';
import { checkAdmin } from '../src/server/http/authenticate.js';
import { issueToken, verifyToken } from '../src/server/http/tokens.js';
import { RateStore } from '../src/server/storage/rate-store.js';
import { ServiceError } from '../src/protocol/errors.js';
import { DAY_MS, type Instance, newWorld, outcomes, refusal, SECRET, valueOf, type World } from './support/accounts.js';
import { TestClock } from './support/clock.js';

const CLAIMS = { tenantId: ulid(), deviceId: ulid(), epoch: 3, expiresAt: 2_000_000_000_000 };
const BEFORE = CLAIMS.expiresAt - 1;

const token = issueToken(SECRET, CLAIMS);

t.test('TOKEN-02 TOKEN-08: a token is valid under its own secret only', (t) => {
  t.same(verifyToken(SECRET, token, BEFORE), CLAIMS);
  t.equal(verifyToken(randomBytes(32), token, BEFORE), 'bad_token');
  t.end();
});

t.test('TOKEN-07: a change of any one character makes a token invalid', (t) => {
  for (let at = 0; at < token.length; at++) {
    for (const other of ['A', 'B', '-', '_', '=', ' ', '+', 'w', 'x', 'y', 'z']) {
      if (token[at] === other) continue;
      const changed = token.slice(0, at) + other + token.slice(at + 1);
      if (verifyToken(SECRET, changed, BEFORE) !== 'bad_token') t.fail(`character ${at} as ${other}`);
    }
  }
  for (const changed of [`${token}A`, `${token}=`, token.slice(1), '', ' ', 'é'.repeat(99), 'A'.repeat(1_000_000)]) {
    t.equal(verifyToken(SECRET, changed, BEFORE), 'bad_token');
  }
  t.end();
});

t.test('TOKEN-05 TOKEN-06: only a correctly signed token is reported as expired', (t) => {
  t.equal(verifyToken(SECRET, token, CLAIMS.expiresAt), 'expired_token');
  const forged = `${token.slice(0, -1)}${token.endsWith('A') ? 'B' : 'A'}`;
  t.equal(verifyToken(SECRET, forged, CLAIMS.expiresAt), 'bad_token');
  t.same(verifyToken(SECRET, token, BEFORE), CLAIMS, 'the same token is valid at an earlier time');
  t.equal(verifyToken(SECRET, token, CLAIMS.expiresAt), 'expired_token', 'and expired again');
  t.end();
});

t.test('TOKEN-09: a token has only characters that are safe in a URL', (t) => {
  for (let n = 0; n < 200; n++) t.match(issueToken(randomBytes(32), { ...CLAIMS, epoch: n }), /^[A-Za-z0-9_-]+$/);
  t.end();
});

t.test('a ticket is not accepted as a token, nor a token as a ticket', async (t) => {
  const { a, tenantId, clock } = await newWorld(t);
  const { ticket } = a.tickets.issueSocket({ tenantId, deviceId: ulid(), epoch: 1, expiresAt: clock.now() });
  t.equal(verifyToken(SECRET, ticket, clock.now()), 'bad_token');
  t.equal(a.tickets.readSocket(token, CLAIMS.tenantId), undefined);
  t.equal(a.tickets.passwordProof(ticket, tenantId, randomBytes(32)), undefined);
});

/** Reads and spends a ticket; returns its right where it was valid and not spent before. */
async function redeem({ tickets }: Instance, ticket: string, tenantId: string): Promise<object | undefined> {
  const { spend, ...right } = tickets.readSocket(ticket, tenantId) ?? {};
  return (await spend?.()) === true ? right : undefined;
}

t.test('socket tickets', async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId, clock } = world;
  const standing = { deviceId: ulid(), epoch: 7, expiresAt: clock.now() + DAY_MS };
  const right = { tenantId, ...standing };

  t.test('TOKEN-18 TOKEN-19: of concurrent uses of a ticket on two instances exactly one succeeds', async (t) => {
    for (let round = 0; round < 50; round++) {
      const { ticket } = a.tickets.issueSocket(right);
      const tries = await Promise.all([a, b, a, b].map((instance) => redeem(instance, ticket, tenantId)));
      const letIn = tries.filter((found) => found !== undefined);
      t.same(letIn, [standing]);
    }
  });

  t.test('300 tickets that are used at once are spent, each once', async (t) => {
    const tickets = Array.from({ length: 300 }, () => a.tickets.issueSocket(right).ticket);
    const first = await Promise.all(tickets.map((ticket) => redeem(a, ticket, tenantId)));
    const second = await Promise.all(tickets.map((ticket) => redeem(b, ticket, tenantId)));
    t.equal(first.filter((found) => found !== undefined).length, 300);
    t.equal(second.filter((found) => found !== undefined).length, 0);
  });

  t.test('TOKEN-20 TOKEN-26: a ticket is refused after 60 s, at another tenant and when altered', async (t) => {
    const { ticket, expiresAt } = a.tickets.issueSocket(right);
    const spent = (): Promise<number> => valueOf(a.pool, 'SELECT count(*) AS value FROM spent_tickets');
    const before = await spent();
    t.equal(expiresAt, clock.now() + 60_000);
    t.equal(await redeem(a, ticket, ulid()), undefined);
    t.equal(await redeem(a, `${ticket.slice(0, -2)}${ticket.endsWith('A') ? 'BB' : 'AA'}`, tenantId), undefined);
    clock.advance(59_999);
    t.match(a.tickets.readSocket(ticket, tenantId), standing, 'until then it is valid');
    clock.advance(1);
    t.equal(await redeem(a, ticket, tenantId), undefined);
    t.equal(await spent(), before, 'a refused ticket is not recorded as spent');
  });

  t.test('records of spent tickets are removed long after their expiry, and not before', async (t) => {
    const { ticket } = a.tickets.issueSocket(right);
    await redeem(a, ticket, tenantId);
    const count = (): Promise<number> => valueOf(a.pool, 'SELECT count(*) AS value FROM spent_tickets');
    const before = await count();
    clock.advance(9 * 60_000);
    await redeem(a, a.tickets.issueSocket(right).ticket, tenantId);
    t.equal(await count(), before + 1);
    clock.advance(60 * 60_000);
    await redeem(a, a.tickets.issueSocket(right).ticket, tenantId);
    t.equal(await count(), 1);
  });
});

const limitsOf = (world: World, { pool }: Instance, perMinute = 5): AddressLimits =>
  new AddressLimits({ store: new RateStore(pool), clock: world.clock, perMinute });

t.test('RATE-09 RATE-10 RATE-11 RATE-12: five calls per minute, address and purpose over all instances', async (t) => {
  const world = await newWorld(t);
  const [one, two] = [limitsOf(world, world.a), limitsOf(world, world.b)];
  const ends = await outcomes(
    Array.from({ length: 20 }, (_, n) => (n % 2 === 0 ? one : two).take('pair', '192.0.2.1')),
  );
  t.equal(ends.filter((end) => end === 'ok').length, 5);
  t.equal(ends.filter((end) => end === 'rate_limited').length, 15);
  t.equal(await refusal(one.take('password', '192.0.2.1')), undefined);
  t.equal(await refusal(one.take('challenge', '192.0.2.1')), undefined);
  t.equal(await refusal(two.take('pair', '192.0.2.2')), undefined, 'PASS-12: another address is not limited');
  for (let n = 0; n < 4; n++) await one.take('password', '192.0.2.1');
  t.equal(await refusal(two.take('password', '192.0.2.1')), 'rate_limited');
  world.clock.advance(60_001);
  t.equal(await refusal(two.take('password', '192.0.2.1')), undefined, 'a minute later it is admitted again');
  const stored = await valueOf<string>(
    world.a.pool,
    "SELECT string_agg(encode(key, 'escape'), '') AS value FROM rate_limits",
  );
  t.notMatch(stored, /192/, 'the address is not stored in plain text');
});

t.test('RATE-07 RATE-08: Retry-After is the time until the next call fits into a sliding window', async (t) => {
  const world = await newWorld(t);
  const { clock } = world;
  const limits = limitsOf(world, world.a);
  const fresh = limitsOf(world, world.b);
  for (let n = 0; n < 5; n++) {
    await limits.take('pair', 'x');
    clock.advance(1_500);
  }
  for (const judge of [limits, fresh]) {
    const error = await judge.take('pair', 'x').catch((thrown: unknown) => thrown);
    t.ok(error instanceof ServiceError);
    t.equal((error as ServiceError).retryAfter, 53, 'of 60 s, 7.5 have passed');
  }
  clock.advance(52_499);
  t.equal(await refusal(limits.take('pair', 'x')), 'rate_limited');
  clock.advance(501);
  t.equal(await refusal(fresh.take('pair', 'x')), undefined);
  t.equal(
    await refusal(limits.take('pair', 'x')),
    'rate_limited',
    'one place was free, and the other instance took it',
  );
  clock.advance(60_000);
  const ends = await outcomes(Array.from({ length: 6 }, () => limits.take('pair', 'x')));
  t.equal(ends.filter((end) => end === 'ok').length, 5);
});

t.test('RATE-13: a rate of 0 turns the limit off, and the store is not queried', async (t) => {
  const asked = (): Promise<number> => Promise.reject(new Error('asked'));
  const store = { take: asked, takeOnce: asked, wait: asked };
  const limits = new AddressLimits({ store, clock: new TestClock(), perMinute: 0 });
  const ends = await outcomes(Array.from({ length: 100 }, () => limits.take('pair', 'x')));
  t.ok(ends.every((end) => end === 'ok'));
});

t.test('RATE-13 BILL-19: a limit that has a rate of its own is not turned off with another one', async (t) => {
  const take = (): Promise<number> => Promise.resolve(0);
  const store = { take, takeOnce: take, wait: take };
  const limits = new AddressLimits({ store, clock: new TestClock(), perMinute: 0 });
  const ends = await outcomes(Array.from({ length: 31 }, () => limits.take('return', 'x')));
  t.same(ends.lastIndexOf('ok'), 29, 'thirty a minute');
});

t.test('a flood of calls costs one statement per admitted call, also with very many addresses', async (t) => {
  let asked = 0;
  const take = (): Promise<number> => Promise.resolve(asked++ >= 0 ? 0 : 1);
  const store = { take, takeOnce: take, wait: () => Promise.resolve(0) };
  const clock = new TestClock();
  const limits = new AddressLimits({ store, clock, perMinute: 5 });
  await outcomes(Array.from({ length: 1_000 }, () => limits.take('pair', 'x')));
  t.equal(asked, 5);
  // More addresses than are remembered.
  for (let n = 0; n < 21_000; n++) await limits.take('pair', `other ${n}`);
  t.equal(asked, 21_005);
});

t.test('a remembered refusal spares the store, and ends when the clock is set back', async (t) => {
  let asked = 0;
  const take = (): Promise<number> => Promise.resolve(asked++ === 0 ? 60_000 : 0);
  const store = { take, takeOnce: take, wait: () => Promise.resolve(0) };
  const clock = new TestClock();
  const limits = new AddressLimits({ store, clock, perMinute: 5 });
  t.equal(await refusal(limits.take('pair', 'x')), 'rate_limited');
  t.equal(await refusal(limits.take('pair', 'x')), 'rate_limited');
  t.equal(asked, 1, 'the refusal is remembered');
  clock.setBy(-3_600_000);
  t.equal(await refusal(limits.take('pair', 'x')), undefined);
  t.equal(asked, 2);
});

t.test('HOST-21: no name is counted under the key of all names', async (t) => {
  const keys: Uint8Array[] = [];
  const takeOnce = (once: { key: Uint8Array }, key: Uint8Array): Promise<number> => {
    keys.push(once.key, key);
    return Promise.resolve(0);
  };
  const none = (): Promise<number> => Promise.resolve(0);
  const limits = new AddressLimits({
    store: { take: none, takeOnce, wait: none },
    clock: new TestClock(),
    perMinute: 5,
  });
  for (const slug of ['all', 'other']) await limits.takeCertificate(slug);
  t.equal(new Set(keys.map((key) => Buffer.from(key).toString('hex'))).size, 3);
});

t.test('calls while the database is unreachable are not counted', async (t) => {
  let away = true;
  const take = (): Promise<number> => (away ? Promise.reject(new ServiceError('unavailable')) : Promise.resolve(0));
  const store = { take, takeOnce: take, wait: take };
  const limits = new AddressLimits({ store, clock: new TestClock(), perMinute: 5 });
  for (let n = 0; n < 10; n++) t.equal(await refusal(limits.take('pair', 'x')), 'unavailable');
  away = false;
  t.equal(await refusal(limits.take('pair', 'x')), undefined);
});

t.test('RATE-17: while the database is unreachable, right and wrong tokens have the same answer', async (t) => {
  const away = (): Promise<number> => Promise.reject(new ServiceError('unavailable'));
  const store = { take: away, takeOnce: away, wait: away };
  const limits = new AddressLimits({ store, clock: new TestClock(), perMinute: 5 });
  for (const token of ['right', 'wrong', 'right']) {
    const call = { authorization: `Bearer ${token}`, address: '192.0.2.1' };
    t.equal(await refusal(checkAdmin(call, 'right', limits)), 'unavailable', token);
  }
});

t.test('a high rate is enforced as well', async (t) => {
  const world = await newWorld(t);
  const limits = limitsOf(world, world.a, 60_000);
  const ends = await outcomes(Array.from({ length: 600 }, () => limits.take('pair', 'x')));
  t.equal(ends.filter((end) => end === 'ok').length, 500, '1,000 a second, of which half at once');
  world.clock.advance(500);
  t.equal(await refusal(limits.take('pair', 'x')), undefined);
});
