/**
 * Claiming, recovery and pairing where the network fails after the server has committed them; when a token is renewed;
 * and keys for a device that joined, for thousands of items.
 */
import t from 'tap';
import { prepareClaim, prepareRecovery, recover } from '../src/sdk/enrol.js';
import { isUndecided, ApiError, NetworkError } from '../src/sdk/errors.js';
import type { Identity, Token } from '../src/sdk/identity.js';
import { join } from '../src/sdk/pairing.js';
import type { Platform } from '../src/sdk/platform.js';
import { Http, type Call } from '../src/sdk/http.js';
import { Session } from '../src/sdk/session.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { lengthPrefixed } from '../src/protocol/bytes.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { DeviceApi } from '../src/sdk/api.js';
import { Emitter, type RewrapProgress } from '../src/sdk/events.js';
import { Outbox } from '../src/sdk/outbox.js';
import { RewrapQueue } from '../src/sdk/rewrap-queue.js';
import { DeviceList } from '../src/sdk/device-list.js';
import { Sender } from '../src/sdk/sender.js';
import { MemoryStore, type Entry } from '../src/sdk/store/store.js';
import { Writer } from '../src/sdk/writer.js';
import { TestClock } from './support/clock.js';
import { refusal, wiretap, world, type Wiretap } from './support/client-world.js';
import { counted, hurried } from './support/hurried.js';
import { runServer } from './support/server.js';
import { fakeFetch, newIdentity, type FakeAnswer, listed, sealedRow, settle } from './support/client.js';
import { noBlobs } from './support/sealed-blobs.js';

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

const MINUTE = 60_000;

/** A device with `count` items, and another one that joined after they were written. The server accepts writes. */
async function crowd(count: number) {
  const me = newIdentity();
  const joined = newIdentity({ masterKey: me.masterKey });
  const clock = new TestClock();
  const store = new MemoryStore();
  const entries = Array.from({ length: count }, (_, at): Entry => {
    const row = sealedRow(me, { version: at + 1 });
    return { id: row.id, version: row.version, state: 'live', row };
  });
  await store.apply({ entries });
  const at: {
    head: number;
    refuse: () => Error | undefined;
    sizes: number[];
    written: string[];
    conflicts: Set<number>;
  } = {
    head: count,
    refuse: () => undefined,
    sizes: [],
    written: [],
    conflicts: new Set(),
  };
  const device = (of: typeof me) => ({
    ...{ id: of.deviceId, name: 'D', glyph: 'laptop', pubkey: toBase64Url(of.keys.publicKey), pairedAt: 1 },
    ...{ cert: toBase64Url(listed(of).cert), online: true, current: of === me },
  });
  const call: Call = (request) => {
    if (request.path === '/devices') {
      return Promise.resolve({ status: 200, body: { devices: [device(me), device(joined)] } });
    }
    const refused = at.refuse();
    if (refused !== undefined) return Promise.reject(refused);
    const body = JSON.parse(request.json ?? '{}') as { id: string; items?: { id: string }[] };
    const results = (body.items ?? [body]).map(({ id }) => ({ id, version: ++at.head }));
    const error = { code: 'conflict', message: 'another device was faster' };
    const answers = results.map((result, nth) => (at.conflicts.has(nth) ? { id: result.id, error } : result));
    at.sizes.push(results.length);
    at.written.push(...results.map(({ id }) => id));
    return Promise.resolve({ status: 200, body: body.items === undefined ? answers[0] : { results: answers } });
  };
  const api = new DeviceApi(call);
  const problems: Error[] = [];
  const progress: RewrapProgress[] = [];
  const rewrapped: number[] = [];
  const emitter = new Emitter((error) => problems.push(error));
  emitter.on('problem', ({ error }) => problems.push(error));
  emitter.on('rewrap_progress', (event) => progress.push(event));
  emitter.on('rewrapped', ({ items }) => rewrapped.push(items));
  const { emit } = emitter;
  const sodium = nodeSodium;
  const random = () => 0;
  const reader = { masterKey: me.masterKey, device: { id: me.deviceId, keys: me.keys } };
  const outbox = await Outbox.load(store, clock);
  const deviceList = new DeviceList({ api, sodium, identity: me, emit, clock });
  const sender = new Sender({
    api,
    store,
    outbox,
    deviceList,
    sodium,
    reader,
    clock,
    random,
    emit,
    epoch: () => Promise.resolve(null),
    catchUp: () => Promise.resolve(),
  });
  const writer = new Writer({
    identity: me,
    store,
    outbox,
    sender,
    deviceList,
    sodium,
    reader,
    clock,
    admissible: (ts) => ts,
    begun: { learned: () => Promise.resolve() },
    blobs: noBlobs,
  });
  const rewrapper = new RewrapQueue({ writer, deviceList, clock, random, emit });
  /** Advances the clock until `over`, so that the pauses pass. */
  const until = async (over: () => boolean): Promise<number> => {
    const begun = clock.now();
    for (let turns = 0; turns < 5_000 && !over(); turns++) {
      await settle();
      if (!over()) clock.advance(100);
    }
    return clock.now() - begun;
  };
  /** The stream confirms what was written. */
  const confirm = async (): Promise<void> => {
    const done = outbox.all();
    const confirmed = done.flatMap((own): Entry[] => {
      const { id, version } = own;
      if (version === null || own.kind === 'delete') return [];
      return [{ id, version, state: 'live', row: { ...own.row, version } }];
    });
    await store.apply({ entries: confirmed });
    await outbox.replace(
      [],
      done.filter(({ version }) => version !== null),
    );
  };
  return { me, clock, store, at, problems, progress, rewrapped, outbox, sender, writer, rewrapper, until, confirm };
}

t.test('SDK-13: thousands of items are re-wrapped in batches of at most 100, with pauses and progress', async (t) => {
  const world = await crowd(2_500);
  const run = world.rewrapper.run();
  const took = await world.until(() => world.rewrapped.length > 0);
  t.equal(await run, 2_500);
  t.same(world.rewrapped, [2_500]);
  t.same(world.progress[0], { done: 0, total: 2_500 });
  t.same(world.progress.at(-1), { done: 2_500, total: 2_500 });
  t.equal(world.progress.length, 26, 'once at the start, and once per batch');
  t.same(
    world.at.sizes,
    Array.from({ length: 25 }, () => 100),
    'a batch is one request, which counts as one write',
  );
  t.equal(new Set(world.at.written).size, 2_500);
  t.equal(world.at.written.length, 2_500, 'each once');
  t.ok(took >= 24 * 500, 'most of the write rate is left to the user');
  t.same(world.problems, []);
});

t.test('SDK-13: the user’s own write waits for one batch at most', async (t) => {
  const world = await crowd(1_000);
  const run = world.rewrapper.run();
  await world.until(() => world.at.written.length > 0);
  const own = world.writer.put({ binId: 'inbox', type: 'text', payload: { text: 'mine' } });
  await settle();
  const { id } = await own;
  t.ok(world.at.written.indexOf(id) <= 200);
  await world.until(() => world.rewrapped.length > 0);
  t.equal(await run, 1_000);
});

t.test('SDK-14: an interrupted run is resumed, and nothing is written twice', async (t) => {
  const world = await crowd(500);
  const stop = new AbortController();
  const run = refusal(world.rewrapper.run(stop.signal));
  const second = refusal(world.rewrapper.run());
  await world.until(() => world.at.written.length >= 200);
  stop.abort();
  t.equal((await run).code, 'cancelled');
  t.equal((await second).code, 'cancelled', 'a caller that shares the run is cancelled too');
  const before = world.at.written.length;
  t.ok(before >= 200 && before < 500);
  await world.confirm();
  world.rewrapper.resume();
  await world.until(() => world.rewrapped.length > 0);
  t.same(world.rewrapped, [500 - before], 'the run resumes at once, with only what is missing');
  t.equal(new Set(world.at.written).size, 500);
  t.equal(world.at.written.length, 500);
  t.same(world.problems, [], 'a requested end is not reported as a problem');
});

t.test('SDK-14: a run that is requested while a stopped one ends is another one', async (t) => {
  const world = await crowd(300);
  const stop = new AbortController();
  const run = refusal(world.rewrapper.run(stop.signal));
  await world.until(() => world.at.written.length >= 100);
  stop.abort();
  const others = [world.rewrapper.run(), world.rewrapper.run()];
  t.equal((await run).code, 'cancelled');
  await world.until(() => world.rewrapped.length > 0);
  t.equal(new Set(world.at.written).size, 300);
  t.same(await Promise.all(others), [world.rewrapped[0], world.rewrapped[0]]);
});

t.test('SDK-14: a run that a lost connection ended resumes at once when the connection is back', async (t) => {
  const world = await crowd(300);
  world.at.refuse = () => (world.at.written.length >= 100 ? new NetworkError('network', 'unreachable') : undefined);
  world.rewrapper.now();
  await world.until(() => world.problems.length > 0);
  t.match(world.problems[0], { code: 'queued' });
  world.at.refuse = () => undefined;
  await world.until(() => world.outbox.all().every(({ version }) => version !== null));
  await world.confirm();
  world.rewrapper.resume();
  await world.until(() => world.rewrapped.length > 0);
  t.equal(new Set(world.at.written).size, 300);
  t.equal(world.at.written.length, 300);
});

t.test('SDK-14: a deferred run begins after ten minutes, once, and not on a closed device', async (t) => {
  const world = await crowd(10);
  world.rewrapper.later();
  world.rewrapper.resume();
  world.clock.advance(9 * MINUTE);
  await settle();
  t.same(world.at.written, []);
  world.clock.advance(MINUTE);
  await world.until(() => world.rewrapped.length > 0);
  t.same(world.rewrapped, [10]);
  world.rewrapper.later();
  world.rewrapper.close();
  world.rewrapper.later();
  t.equal(world.clock.waiting, 0);
});

t.test('SDK-13: a permanent refusal ends the run with its reason; a conflict does not', async (t) => {
  const world = await crowd(150);
  world.at.conflicts.add(7);
  const run = world.rewrapper.run();
  await world.until(() => world.rewrapped.length > 0);
  t.equal(await run, 148, 'one conflict in each batch');
  const other = await crowd(1);
  other.at.refuse = () => new ApiError({ code: 'validation', status: 400, message: 'no' });
  t.equal((await refusal(other.rewrapper.run())).code, 'validation');
});
