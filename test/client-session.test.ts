/** When a token is renewed, and what happens where that fails. The test controls the clock. */
import t from 'tap';
import { Http } from '../src/sdk/http.js';
import { Session } from '../src/sdk/session.js';
import type { Token } from '../src/sdk/identity.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { lengthPrefixed } from '../src/protocol/bytes.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { fakeFetch, newIdentity, type FakeAnswer } from './support/client.js';
import { TestClock } from './support/clock.js';
import { refusal } from './support/client-world.js';

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const call = { method: 'GET', path: '/me', repeatable: true } as const;

function session(token: (now: number) => Token) {
  // Whole seconds, as a Date header has them.
  const clock = new TestClock(Math.floor(Date.now() / 1_000) * 1_000);
  const identity = newIdentity({ token: token(clock.now()) });
  // `ahead`: the server's clock minus the device's; null: its answers have no date. `over`: expired tokens.
  const at: { failure: FakeAnswer | undefined; life: number; ahead: number | null; over: Set<string> } = {
    failure: undefined,
    life: DAY,
    ahead: null,
    over: new Set(),
  };
  const dated = (answer: Exclude<FakeAnswer, Error>): FakeAnswer => {
    if (at.ahead === null) return answer;
    return { ...answer, headers: { date: new Date(clock.now() + at.ahead).toUTCString() } };
  };
  const { fetch, requests } = fakeFetch(({ path, headers }) => {
    if (path === '/me') {
      if (!at.over.has(headers['authorization'] ?? '')) return dated({ body: {} });
      return dated({ status: 401, body: { error: { code: 'expired_token', message: 'over' } } });
    }
    if (at.failure !== undefined) return at.failure;
    const expiresAt = clock.now() + (at.ahead ?? 0) + at.life;
    if (path === '/devices/reauth') return dated({ body: { token: 'new', expiresAt } });
    const challengeId = 'c1';
    const { tenantId, deviceId, keys } = identity;
    const opened = lengthPrefixed('service-reauth-v1', tenantId, deviceId, challengeId, nodeSodium.random(32));
    return { body: { challengeId, challenge: toBase64Url(nodeSodium.seal(opened, keys.publicKey)) } };
  });
  const http = new Http({ baseUrl: 'http://server.test', fetch, clock, random: () => 0 });
  const tokens: Token[] = [];
  let revocations = 0;
  const onRevoked = (): void => {
    revocations++;
  };
  const onToken = (next: Token): void => void tokens.push(next);
  const made = new Session({ http, sodium: nodeSodium, clock, identity, onToken, onRevoked });
  const challenges = (): number => requests.filter(({ path }) => path === '/devices/reauth/challenge').length;
  const used = (): string | undefined => requests.filter(({ path }) => path === '/me').at(-1)?.headers['authorization'];
  return { session: made, clock, at, tokens, challenges, used, identity, requests, revocations: () => revocations };
}

t.test('CLIENT-44: if early renewal fails temporarily the token is still used, and retries wait', async (t) => {
  const world = session((now) => ({ text: 'old', expiresAt: now + HOUR }));
  world.at.ahead = 0;
  world.at.failure = { status: 500, body: { error: { code: 'internal', message: 'no' } } };
  await world.session.call({ ...call });
  t.equal(world.used(), 'Bearer old');
  await world.session.call({ ...call });
  world.clock.advance(59_000);
  await world.session.call({ ...call });
  t.equal(world.challenges(), 1, 'one attempt a minute');
  world.clock.advance(1_000);
  await world.session.call({ ...call });
  t.equal(world.challenges(), 2);
  world.clock.advance(HOUR);
  t.equal((await refusal(world.session.call({ ...call }))).code, 'internal', 'an expired token is not used');
  world.at.failure = undefined;
  await world.session.call({ ...call });
  t.equal(world.used(), 'Bearer new');
});

t.test('CLIENT-44: an early renewal that fails permanently fails the call', async (t) => {
  const world = session((now) => ({ text: 'old', expiresAt: now + HOUR }));
  world.at.failure = { body: { challengeId: 'c1', challenge: toBase64Url(nodeSodium.random(100)) } };
  t.match(await refusal(world.session.call({ ...call })), { reason: 'bad_challenge' });
});

t.test('a token with a short lifetime is renewed in its last tenth, in this program and in the next', async (t) => {
  const first = session((now) => ({ text: 'old', expiresAt: now + HOUR }));
  await first.session.call({ ...call });
  const [token] = first.tokens;
  t.match(token, { text: 'new', issuedAt: first.clock.now() });
  const next = session((now) => ({ text: 'kept', expiresAt: now + DAY, issuedAt: now }));
  next.clock.advance(DAY - 3 * HOUR);
  await next.session.call({ ...call });
  t.equal(next.challenges(), 0, 'a token that lives for a day is not renewed three hours before its end');
  next.clock.advance(HOUR);
  await next.session.call({ ...call });
  t.equal(next.used(), 'Bearer new');
});

t.test('SDK-15: a clock that is far ahead costs no valid token, and causes no renewal at every call', async (t) => {
  const world = session((now) => ({ text: 'old', expiresAt: now - 60 * DAY + 20 * DAY, issuedAt: now - 60 * DAY }));
  world.at.ahead = -60 * DAY;
  world.at.failure = { status: 500, body: { error: { code: 'internal', message: 'no' } } };
  for (let call_ = 0; call_ < 5; call_++) await world.session.call({ ...call });
  t.equal(world.challenges(), 0, 'expired for 40 days by its clock, valid for 20 by server time');
  t.equal(world.used(), 'Bearer old');
  world.at.failure = undefined;
  world.at.life = 10 * DAY;
  world.clock.advance(19 * DAY + HOUR);
  await world.session.call({ ...call });
  t.equal(world.used(), 'Bearer new', 'it is renewed less than a day before its end in server time');
  for (let call_ = 0; call_ < 5; call_++) await world.session.call({ ...call });
  t.equal(world.challenges(), 1);
});

t.test('SDK-15: with a clock that is far behind, expiry is judged by server time once it is known', async (t) => {
  const world = session((now) => ({ text: 'old', expiresAt: now + 365 * DAY + HOUR, issuedAt: now + 365 * DAY - DAY }));
  world.at.ahead = 365 * DAY;
  await world.session.call({ ...call });
  t.equal(world.challenges(), 0, 'no reply has given the server time yet');
  await world.session.call({ ...call });
  t.equal(world.challenges(), 1, 'the token has an hour left');
  t.equal(world.used(), 'Bearer new');
});

t.test('SDK-16: a token that expired while the device was away is renewed by its key, once for all', async (t) => {
  const world = session((now) => ({ text: 'old', expiresAt: now + HOUR, issuedAt: now - DAY }));
  world.at.over.add('Bearer old');
  world.clock.advance(200 * DAY);
  await Promise.all([1, 2, 3].map(() => world.session.call({ ...call })));
  t.equal(world.used(), 'Bearer new');
  t.equal(world.challenges(), 1);
  t.match(world.tokens, [{ text: 'new' }]);
});

t.test('SDK-16: a device that was revoked while it was away learns so once, and what to do', async (t) => {
  const world = session((now) => ({ text: 'old', expiresAt: now + HOUR, issuedAt: now - DAY }));
  world.at.over.add('Bearer old');
  world.at.failure = { status: 403, body: { error: { code: 'device_revoked', message: 'revoked' } } };
  t.equal((await refusal(world.session.call({ ...call }))).code, 'device_revoked');
  const next = await refusal(world.session.call({ ...call }));
  t.match(next, { name: 'ClientError', code: 'revoked', message: /paired anew.*recover/s });
  t.equal(world.revocations(), 1);
});
