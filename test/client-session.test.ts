/** When a token is renewed, and what happens where that fails (contract 4). Time is in the test's hand. */
import t from 'tap';
import { Http } from '../src/client/http.js';
import { Session } from '../src/client/session.js';
import type { Token } from '../src/client/identity.js';
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
  const clock = new TestClock();
  const identity = newIdentity({ token: token(clock.now()) });
  const at: { failure: FakeAnswer | undefined; life: number } = { failure: undefined, life: DAY };
  const { fetch, requests } = fakeFetch(({ path }) => {
    if (path === '/me') return { body: {} };
    if (at.failure !== undefined) return at.failure;
    if (path === '/devices/reauth') return { body: { token: 'new', expiresAt: clock.now() + at.life } };
    const challengeId = 'c1';
    const { tenantId, deviceId, keys } = identity;
    const opened = lengthPrefixed('service-reauth-v1', tenantId, deviceId, challengeId, nodeSodium.random(32));
    return { body: { challengeId, challenge: toBase64Url(nodeSodium.seal(opened, keys.publicKey)) } };
  });
  const http = new Http({ baseUrl: 'http://server.test', fetch, clock, random: () => 0 });
  const tokens: Token[] = [];
  const none = (): void => undefined;
  const onToken = (next: Token): void => void tokens.push(next);
  const made = new Session({ http, sodium: nodeSodium, clock, identity, onToken, onRevoked: none });
  const challenges = (): number => requests.filter(({ path }) => path === '/devices/reauth/challenge').length;
  const used = (): string | undefined => requests.filter(({ path }) => path === '/me').at(-1)?.headers['authorization'];
  return { session: made, clock, at, tokens, challenges, used, identity, requests };
}

t.test('CLIENT-44: where early renewal fails for now, the token is used on and the server left alone', async (t) => {
  const world = session((now) => ({ text: 'old', expiresAt: now + HOUR }));
  world.at.failure = { status: 500, body: { error: { code: 'internal', message: 'no' } } };
  await world.session.call({ ...call });
  t.equal(world.used(), 'Bearer old');
  await world.session.call({ ...call });
  world.clock.advance(59_000);
  await world.session.call({ ...call });
  t.equal(world.challenges(), 1, 'one try a minute');
  world.clock.advance(1_000);
  await world.session.call({ ...call });
  t.equal(world.challenges(), 2);
  world.clock.advance(HOUR);
  t.equal((await refusal(world.session.call({ ...call }))).code, 'internal', 'not with a token that is over');
  world.at.failure = undefined;
  await world.session.call({ ...call });
  t.equal(world.used(), 'Bearer new');
});

t.test('CLIENT-44: an answer that is not passing is not passed over', async (t) => {
  const world = session((now) => ({ text: 'old', expiresAt: now + HOUR }));
  world.at.failure = { body: { challengeId: 'c1', challenge: toBase64Url(nodeSodium.random(100)) } };
  t.match(await refusal(world.session.call({ ...call })), { reason: 'bad_challenge' });
});

t.test('a token is renewed in the last tenth of a short life, in this program and in the next', async (t) => {
  const first = session((now) => ({ text: 'old', expiresAt: now + HOUR }));
  await first.session.call({ ...call });
  const [token] = first.tokens;
  t.match(token, { text: 'new', issuedAt: first.clock.now() });
  const next = session((now) => ({ text: 'kept', expiresAt: now + DAY, issuedAt: now }));
  next.clock.advance(DAY - 3 * HOUR);
  await next.session.call({ ...call });
  t.equal(next.challenges(), 0, 'an hour-old program does not renew what lives for a day');
  next.clock.advance(HOUR);
  await next.session.call({ ...call });
  t.equal(next.used(), 'Bearer new');
});
