/** Claiming, recovery and pairing where the network fails after the server has committed them. */
import t from 'tap';
import { prepareClaim, prepareRecovery, recover } from '../src/sdk/enrol.js';
import { isUndecided } from '../src/sdk/errors.js';
import type { Identity } from '../src/sdk/identity.js';
import { join } from '../src/sdk/pairing.js';
import type { Platform } from '../src/sdk/platform.js';
import { TestClock } from './support/clock.js';
import { refusal, wiretap, world, type Wiretap } from './support/client-world.js';
import { counted, hurried } from './support/hurried.js';
import { runServer } from './support/server.js';

/** A response in place of the true one. */
type Failure = () => Response;

const unavailable: Failure = () =>
  new Response(JSON.stringify({ error: { code: 'unavailable', message: 'shedding load' } }), { status: 503 });
const FAILURES: readonly [title: string, failure: Failure][] = [
  ["the server's own 503", unavailable],
  ["the server's own 500", () => new Response('{"error":{"code":"internal","message":"no"}}', { status: 500 })],
  ["a proxy's 502", () => new Response('<h1>Bad gateway</h1>', { status: 502 })],
  ["a proxy's 504", () => new Response('', { status: 504 })],
  ['a page that is no answer', () => new Response('<h1>Please log in</h1>')],
  [
    'no answer',
    () => {
      throw new TypeError('connection reset');
    },
  ],
];

/** The server gets each request to `path`; while `failing`, the client gets `failure` for an answer. */
function mangled(tap: Wiretap, path: string, failure: Failure) {
  const state = { failing: true, answers: 0 };
  const platform: Platform = {
    ...tap.platform,
    fetch: async (url, init) => {
      const response = await tap.platform.fetch(url, init);
      if (!state.failing || !url.endsWith(path)) return response;
      state.answers++;
      return failure();
    },
  };
  return { platform, state };
}

const laptop = { name: 'First', glyph: 'laptop' as const };

t.test(
  'CLIENT-39 REAUTH-09: a committed claim whose reply is replaced by a 503 is completed by re-authentication',
  async (t) => {
    const server = await runServer(t);
    const serverUrl = `http://127.0.0.1:${server.port}`;
    const tap = wiretap();
    const { platform } = mangled(tap, '/devices/bootstrap', unavailable);
    const claim = await prepareClaim({ ...laptop, platform, serverUrl });
    const identity = await claim.register();
    t.ok(identity.token.expiresAt !== null, 'the token comes from re-authentication');
    const recovered = await recover({ ...laptop, platform: wiretap().platform, serverUrl, phrase: claim.phrase });
    t.same(recovered.masterKey, identity.masterKey, 'the phrase of the claim recovers the same master key');
  },
);

t.test('CLIENT-39: a claim is retried with the same keys as long as its outcome is unknown', async (t) => {
  const server = await runServer(t);
  const serverUrl = `http://127.0.0.1:${server.port}`;
  const tap = wiretap();
  const lost = mangled(tap, '/devices/bootstrap', unavailable);
  const silent = mangled({ ...tap, platform: lost.platform }, '/reauth/challenge', () => {
    throw new TypeError('unreachable');
  });
  const clock = new TestClock();
  const { platform, traffic } = counted({ ...silent.platform, clock });
  const claim = await prepareClaim({ ...laptop, platform, serverUrl });
  const register = (): Promise<Identity> => hurried(clock, traffic, claim.register());
  t.ok(isUndecided(await refusal(register())), 'neither the reply nor the re-authentication arrived');
  lost.state.failing = false;
  t.ok(isUndecided(await refusal(register())), 'the server is claimed, but perhaps by this device');
  silent.state.failing = false;
  const identity = await register();
  const [row] = await server.sql('SELECT id FROM devices');
  t.equal(row?.['id'], identity.deviceId, 'the server was claimed by this device');
  const late = prepareClaim({ ...laptop, platform: wiretap().platform, serverUrl });
  t.equal((await refusal(late)).code, 'bootstrap_already_done', 'no other device can claim the server');
});

t.test('a refused claim is final: no re-authentication is attempted', async (t) => {
  const server = await runServer(t, { env: { BOOTSTRAP_TOKEN: 'only-the-operator-knows' } });
  const tap = wiretap();
  const serverUrl = `http://127.0.0.1:${server.port}`;
  const claim = await prepareClaim({ ...laptop, platform: tap.platform, serverUrl, claimToken: 'a guess' });
  t.equal((await refusal(claim.register())).code, 'forbidden');
  t.notOk(tap.calls.some(({ path }) => path.includes('reauth')));
});

t.test('CLIENT-39: a recovery whose reply is lost is completed; one that never arrived is retried', async (t) => {
  const all = await world(t);
  const device = { serverUrl: all.url, name: 'Recovered', glyph: 'globe' as const, phrase: all.phrase };
  for (const [title, failure] of FAILURES) {
    const { platform } = mangled(wiretap(), '/devices/recover', failure);
    const identity = await recover({ ...device, platform });
    const recovered = await all.open(identity);
    t.match(await recovered.device.me(), { device: { id: identity.deviceId } }, title);
  }
  const tap = wiretap();
  let arrives = false;
  const platform: Platform = {
    ...tap.platform,
    fetch: (url, init) =>
      url.endsWith('/devices/recover') && !arrives ? Promise.resolve(unavailable()) : tap.platform.fetch(url, init),
  };
  const recovery = await prepareRecovery({ ...device, platform });
  t.equal((await refusal(recovery.register())).code, 'unavailable', 'the server does not know the device');
  arrives = true;
  const identity = await recovery.register();
  recovery.forget();
  const ids = tap.calls.flatMap(({ path, body }) => (path === '/devices/reauth/challenge' ? [body?.['deviceId']] : []));
  t.same(ids, [identity.deviceId], 'the same device as at the first attempt');
});

t.test(
  'CLIENT-40 PAIR-09: a new device continues through temporary errors, and requests a lost release again',
  async (t) => {
    const all = await world(t);
    await all.first.device.connect();
    const offer = await all.first.device.offerPairing(() => true);
    const clock = new TestClock();
    const tap = wiretap(clock);
    let attempts = 0;
    const { platform, traffic } = counted({
      ...tap.platform,
      fetch: async (url, init) => {
        if (!url.endsWith('/devices/pair-fetch-npk')) return tap.platform.fetch(url, init);
        attempts++;
        if (attempts <= 7) return unavailable();
        const reply = await tap.platform.fetch(url, init);
        return attempts <= 14 ? unavailable() : reply;
      },
    });
    const request = { serverUrl: all.url, name: 'New', glyph: 'phone' as const, words: offer.words };
    const identity = await hurried(clock, traffic, join({ ...request, platform, onDigits: () => undefined }), 250);
    t.equal(await offer.joined, identity.deviceId);
    t.same(identity.masterKey, all.first.identity().masterKey);
    t.equal(attempts, 15);
  },
);

t.test('CLIENT-40: a new device gives up when the code expires or its user aborts', async (t) => {
  const all = await world(t);
  const clock = new TestClock();
  const begun = clock.now();
  const tap = wiretap(clock);
  const { platform, traffic } = counted({
    ...tap.platform,
    fetch: (url, init) =>
      url.endsWith('/devices/pair-fetch-npk') ? Promise.resolve(unavailable()) : tap.platform.fetch(url, init),
  });
  const offer = await all.first.device.offerPairing(() => true);
  const request = { serverUrl: all.url, name: 'New', glyph: 'phone' as const, words: offer.words };
  const joined = join({ ...request, platform, onDigits: () => undefined });
  const error = await refusal(hurried(clock, traffic, joined));
  t.match(error, { name: 'PairingError', code: 'expired', cause: { code: 'unavailable' } });
  t.ok(clock.now() - begun >= 5 * 60_000);
  const stop = new AbortController();
  const joining = join({ ...request, platform, onDigits: () => stop.abort(), signal: stop.signal });
  t.match(await refusal(hurried(clock, traffic, joining)), { code: 'aborted' });
  offer.cancel();
  await refusal(offer.joined);
});
