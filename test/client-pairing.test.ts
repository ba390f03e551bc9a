/** Pairing, recovery and re-authentication: real clients, a real server, and a wire that lies. */
import t from 'tap';
import { recover } from '../src/sdk/enrol.js';
import { ApiError, NetworkError, PairingError } from '../src/sdk/errors.js';
import { join, type JoinApproval } from '../src/sdk/pairing.js';
import { CryptoRefusal } from '../src/crypto/refusal.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { TestClock } from './support/clock.js';
import { newId } from './support/client.js';
import { refusal, wiretap, world, type Wiretap, type World } from './support/client-world.js';
import { until } from './support/events.js';
import { counted, hurried, NO_TRAFFIC } from './support/hurried.js';

/** True where a pairing ended with this reason of the crypto core. */
const endedBy = (error: unknown, reason: CryptoRefusal['reason']): boolean =>
  error instanceof PairingError && error.cause instanceof CryptoRefusal && error.cause.reason === reason;

/** The server presents every pairing request to this device in another form. */
function presenting(tap: Wiretap, change: (request: object) => object): void {
  tap.bend = (frame) => (frame['type'] === 'pair_request' ? { ...frame, ...change(frame) } : frame);
  tap.lie = ({ path }, answer) => {
    if (path !== '/devices/pair-requests') return undefined;
    return { requests: (answer['requests'] as object[]).map((request) => ({ ...request, ...change(request) })) };
  };
}

/** A try to join with these words over a wire. */
function joining({ url }: World, words: string, tap: Wiretap = wiretap()) {
  const digits: string[] = [];
  const identity = join({
    platform: tap.platform,
    serverUrl: url,
    name: 'New',
    glyph: 'phone',
    words,
    onDigits: (shown) => digits.push(shown),
  });
  identity.catch(() => undefined);
  return { identity, digits, tap };
}

t.test('pairing by six words', async (t) => {
  const all = await world(t);
  const { device } = all.first;
  await device.connect();

  await t.test('CLIENT-08: both show the same digits, and no request holds the visible words', async (t) => {
    const asked: JoinApproval[] = [];
    const offer = await device.offerPairing((request) => {
      asked.push(request);
      return true;
    });
    const noisy = offer.words.toUpperCase().replaceAll(' ', ' - ');
    const { identity, digits, tap } = joining(all, noisy);
    const joined = await identity;
    t.equal(await offer.joined, joined.deviceId);
    t.same(joined.masterKey, all.first.identity().masterKey);
    t.match(asked, [{ deviceId: joined.deviceId, name: 'New', glyph: 'phone', digits: digits[0] }]);
    t.match(digits[0], /^\d{6}$/);
    const wire = `${tap.sent()}\n${all.first.tap.sent()}`;
    t.notMatch(wire, offer.words);
    t.match(wire, /"code":"([a-z]+ ){5}[a-z]+"/, 'another six words, which do not give these away');
    const listed = (await device.devices.refresh()).find(({ id }) => id === joined.deviceId);
    t.match(listed, { name: 'New', glyph: 'phone', revokedAt: null });
    t.same((await device.devices.recipients()).length, 2, 'certified at once');
  });

  await t.test('CLIENT-09: a wrong checksum is refused before any request', async (t) => {
    const { identity, tap } = joining(all, 'abandon abandon abandon abandon abandon abandon');
    t.match(await refusal(identity), { name: 'CryptoRefusal', reason: 'bad_words' });
    t.same(tap.calls, []);
  });

  await t.test('words that no device shows are refused', async (t) => {
    const offer = await device.offerPairing(() => true);
    offer.cancel();
    t.match(await refusal(offer.joined), { name: 'PairingError', code: 'cancelled' });
    t.match(await refusal(joining(all, offer.words).identity), { name: 'PairingError', code: 'unknown_code' });
  });

  await t.test('CLIENT-15: nothing is released before the user said yes, and nothing after a no', async (t) => {
    let decide: (yes: boolean) => void = () => undefined;
    let ask: () => void = () => undefined;
    const asked = new Promise<void>((resolve) => {
      ask = resolve;
    });
    const offer = await device.offerPairing(async () => {
      ask();
      return new Promise<boolean>((resolve) => {
        decide = resolve;
      });
    });
    const attempt = joining(all, offer.words);
    await asked;
    const wraps = () =>
      all.first.tap.calls.filter(({ path, body }) => path === '/devices/pair-wrap' && body?.['wrappedMasterKey']);
    const before = wraps().length;
    decide(false);
    t.match(await refusal(offer.joined), { code: 'rejected' });
    t.match(await refusal(attempt.identity), { name: 'PairingError', code: 'rejected' });
    t.equal(wraps().length, before);
  });

  await t.test('the secret of a session is erased, also after a no', async (t) => {
    const secrets: Uint8Array[] = [];
    const tap = wiretap();
    const { sodium } = tap.platform;
    const watched: typeof sodium = {
      ...sodium,
      hmacSha256: (message, key) => {
        secrets.push(key);
        return sodium.hmacSha256(message, key);
      },
    };
    const open = await all.open(all.first.identity(), {
      tap: { ...tap, platform: { ...tap.platform, sodium: watched } },
    });
    const offer = await open.device.offerPairing(() => false);
    t.match(await refusal(joining(all, offer.words).identity), { code: 'rejected' });
    t.match(await refusal(offer.joined), { code: 'rejected' });
    t.equal(secrets.length, 1, 'the attestation was checked with it');
    t.ok(secrets[0]?.every((byte) => byte === 0));
  });
});

t.test('what the existing device refuses', async (t) => {
  const all = await world(t);
  const { device, tap } = all.first;
  await device.connect();
  const wrapped = () =>
    tap.calls.some(({ path, body }) => path === '/devices/pair-wrap' && body?.['wrappedMasterKey'] !== undefined);

  const cases: [title: string, reason: CryptoRefusal['reason'], twist: (body: Record<string, unknown>) => object][] = [
    [
      'CLIENT-11: an attestation made over another key',
      'bad_attestation',
      () => ({ pubkey: toBase64Url(nodeSodium.boxKeyPair().publicKey) }),
    ],
    ['CLIENT-11: a name changed on the way', 'bad_attestation', () => ({ name: 'Trusted' })],
    [
      'CLIENT-11: an attestation of somebody who guesses',
      'bad_attestation',
      () => ({ attestation: toBase64Url(nodeSodium.random(32)) }),
    ],
    ['CLIENT-12: a device that dialled another host', 'wrong_host', () => ({ host: 'phishing.example' })],
  ];
  for (const [title, reason, twist] of cases) {
    await t.test(title, async (t) => {
      const offer = await device.offerPairing(() => t.fail('the user is not asked') && true);
      const newcomer = wiretap();
      newcomer.twist = ({ path, body }) =>
        path === '/devices/pair-fetch-npk' && body !== null ? { ...body, ...twist(body) } : undefined;
      const attempt = joining(all, offer.words, newcomer);
      const error = await refusal(offer.joined);
      t.ok(endedBy(error, reason), String(error.cause));
      t.match(await refusal(attempt.identity), { name: /PairingError|ApiError/ });
      t.notOk(wrapped(), 'nothing was released');
    });
  }

  const former = await device.offerPairing(() => true);
  const { deviceId: revoked } = await joining(all, former.words).identity;
  await former.joined;
  await device.revoke(revoked);
  tap.calls.length = 0;
  const lies: [title: string, reason: CryptoRefusal['reason'], change: object][] = [
    ['CLIENT-13: a device id that is not new', 'known_device', { deviceId: device.id }],
    ['CLIENT-13: the id of a device that was revoked', 'known_device', { deviceId: revoked }],
    ['CLIENT-11: a key of low order', 'low_order', { pubkey: toBase64Url(new Uint8Array(32)) }],
  ];
  for (const [title, reason, change] of lies) {
    await t.test(title, async (t) => {
      const offer = await device.offerPairing(() => t.fail('the user is not asked') && true);
      presenting(tap, () => change);
      const attempt = joining(all, offer.words);
      t.ok(endedBy(await refusal(offer.joined), reason));
      await refusal(attempt.identity);
      presenting(tap, () => ({}));
      t.notOk(wrapped());
    });
  }

  await t.test('CLIENT-10: a code in use is drawn again', async (t) => {
    let refused = 0;
    const codes: unknown[] = [];
    const eager = wiretap();
    const platform = {
      ...eager.platform,
      fetch: async (url: string, init: RequestInit) => {
        if (!url.endsWith('/pair-init')) return eager.platform.fetch(url, init);
        codes.push((JSON.parse(init.body as string) as { code: unknown }).code);
        if (refused++ > 0) return eager.platform.fetch(url, init);
        const body = JSON.stringify({ error: { code: 'conflict', message: 'the code is in use' } });
        return new Response(body, { status: 409 });
      },
    };
    const again = await all.open(all.first.identity(), { tap: { ...eager, platform } });
    const offer = await again.device.offerPairing(() => true);
    t.equal(codes.length, 2);
    t.not(codes[0], codes[1]);
    offer.cancel();
    await refusal(offer.joined);
  });
});

t.test("CLIENT-14: five minutes by the existing device's own clock, whatever the server says", async (t) => {
  const clock = new TestClock();
  const tap = wiretap(clock);
  const { platform, traffic } = counted(tap.platform);
  const all = await world(t, { tap: { ...tap, platform } });
  let asked = false;
  const offer = await all.first.device.offerPairing(() => {
    asked = true;
    clock.advance(5 * 60_000);
    return true;
  });
  const attempt = joining(all, offer.words);
  // Only then is the clock turned, to the next poll: the five minutes are over when the user says yes, not before.
  const requested = "SELECT 1 FROM pair_sessions WHERE state = 'requested'";
  await until('the request', async () => (await all.server.sql(requested)).length > 0);
  t.match(await refusal(hurried(clock, traffic, offer.joined)), { name: 'PairingError', code: 'expired' });
  t.ok(asked);
  t.match(await refusal(attempt.identity), { name: 'PairingError' });
  t.notOk(
    tap.calls.some(({ path, body }) => path === '/devices/pair-wrap' && body?.['wrappedMasterKey'] !== undefined),
  );
});

t.test('what the new device refuses', async (t) => {
  const all = await world(t);
  await all.first.device.connect();
  const other = nodeSodium.boxKeyPair();
  const foreignMaster = nodeSodium.random(32);
  const swapped = (answer: Record<string, unknown>, over: object) => ({ ...(answer['device'] as object), ...over });
  const cases: [title: string, reason: CryptoRefusal['reason'], lie: (answer: Record<string, unknown>) => object][] = [
    [
      'CLIENT-16: a confirmation that does not hold',
      'bad_confirmation',
      () => ({ confirmation: toBase64Url(nodeSodium.random(32)) }),
    ],
    [
      'CLIENT-16: another master key than the one confirmed',
      'bad_confirmation',
      () => ({ wrappedMasterKey: toBase64Url(nodeSodium.seal(foreignMaster, other.publicKey)) }),
    ],
    ['CLIENT-18: another id', 'wrong_device', (answer) => ({ device: swapped(answer, { id: newId() }) })],
    [
      'CLIENT-18: another public key',
      'wrong_device',
      (answer) => ({ device: swapped(answer, { pubkey: toBase64Url(other.publicKey) }) }),
    ],
  ];
  for (const [title, reason, lie] of cases) {
    await t.test(title, async (t) => {
      const offer = await all.first.device.offerPairing(() => true);
      const tap = wiretap();
      tap.lie = ({ path }, answer) =>
        path === '/devices/pair-fetch-npk' && 'device' in answer ? { ...answer, ...lie(answer) } : undefined;
      t.match(await refusal(joining(all, offer.words, tap).identity), { name: 'CryptoRefusal', reason });
      await offer.joined;
    });
  }

  await t.test('CLIENT-17: a certificate that does not hold, though it is confirmed', async (t) => {
    const careless = wiretap();
    const sodium = { ...careless.platform.sodium, auth: () => nodeSodium.random(32) };
    const tap = { ...careless, platform: { ...careless.platform, sodium } };
    const other = await all.open(all.first.identity(), { tap });
    const offer = await other.device.offerPairing(() => true);
    t.match(await refusal(joining(all, offer.words).identity), { name: 'CryptoRefusal', reason: 'bad_cert' });
    await offer.joined;
  });

  await t.test('CLIENT-11: an ephemeral key swapped by the server is noticed by the existing device', async (t) => {
    const offer = await all.first.device.offerPairing(() => true);
    const tap = wiretap();
    tap.lie = ({ path }, answer) =>
      path === '/devices/pair-fetch-epk' ? { ...answer, epk: toBase64Url(other.publicKey) } : undefined;
    const attempt = joining(all, offer.words, tap);
    t.ok(endedBy(await refusal(offer.joined), 'bad_attestation'));
    t.match(await refusal(attempt.identity), { name: 'PairingError', code: 'rejected' });
  });
});

t.test('CLIENT-21: a password is asked for where it is set, and what was typed is never sent', async (t) => {
  const all = await world(t);
  await all.first.device.connect();
  const typed = 'correct horse battery staple';
  await all.first.device.setPassword(typed);
  t.equal(
    (await refusal(all.first.device.setPassword('other'))).code !== undefined,
    true,
    'changing it needs the old one',
  );
  const words = async () => all.first.device.offerPairing(() => true);
  const without = await words();
  t.match(await refusal(joining(all, without.words).identity), { name: 'PairingError', code: 'password_required' });
  const tap = wiretap();
  const base = {
    platform: tap.platform,
    serverUrl: all.url,
    name: 'New',
    glyph: 'phone' as const,
    onDigits: () => undefined,
  };
  const wrong = join({
    ...base,
    words: without.words,
    password: () => Promise.resolve('correct horse battery stable'),
  });
  t.equal((await refusal(wrong)).code, 'password_invalid');
  const [identity] = await Promise.all([
    join({ ...base, words: without.words, password: () => Promise.resolve(typed) }),
    without.joined,
  ]);
  t.same(identity.masterKey, all.first.identity().masterKey);
  const shown = tap.calls.filter(({ path }) => path === '/password/verify').at(-1)?.body?.['pubkey'];
  t.equal(shown, toBase64Url(identity.keys.publicKey), 'the ticket is of use to this device alone');
  // `correct` and `horse` alone may be words of the wire code.
  for (const sent of [tap.sent(), all.first.tap.sent()]) t.notMatch(sent, /correct horse|battery|staple/);
});

t.test('CLIENT-22: recovery by the phrase, which neither leaves the device nor stays on it', async (t) => {
  const all = await world(t);
  const { id } = await all.first.device.put({ binId: 'inbox', type: 'text', payload: { text: 'before' } });
  const tap = wiretap();
  const device = { platform: tap.platform, serverUrl: all.url, name: 'Recovered', glyph: 'tablet' as const };
  const identity = await recover({ ...device, phrase: all.phrase });
  const recovered = await all.open(identity, { tap });
  await recovered.device.connect();
  t.match(await recovered.device.get(id), { payload: { text: 'before' } });
  await recovered.device.put({ binId: 'inbox', type: 'text', payload: { text: 'after' } });
  const word = all.phrase.split(' ').find((one) => one.length > 5) ?? all.phrase;
  for (const kept of [
    tap.sent(),
    all.first.tap.sent(),
    JSON.stringify(identity),
    JSON.stringify(all.first.identity()),
  ]) {
    t.notMatch(kept, all.phrase);
    t.notOk(kept.includes(`${word} `), 'nor a word of it among others');
  }
  const other = 'legal winner thank year wave sausage worth useful legal winner thank yellow';
  t.ok((await refusal(recover({ ...device, phrase: other }))) instanceof ApiError, 'another phrase recovers nothing');
});

t.test('re-authentication', async (t) => {
  const all = await world(t);
  const { device, tap } = all.first;

  await t.test("a token that is refused is renewed by the device's key, and the call goes through", async (t) => {
    const identity = { ...all.first.identity(), token: { text: 'stale', expiresAt: null } };
    const again = await all.open(identity);
    t.match(await again.device.me(), { device: { id: device.id } });
    t.not(again.identity().token.text, 'stale');
    t.type(again.identity().token.expiresAt, 'number');
    t.same(
      again.tap.calls.map(({ path }) => path),
      ['/me', '/devices/reauth/challenge', '/devices/reauth', '/me'],
    );
  });

  await t.test('a token that runs out is renewed before it is used', async (t) => {
    const { token } = all.first.identity();
    const again = await all.open({
      ...all.first.identity(),
      token: { text: token.text, expiresAt: Date.now() + 60_000 },
    });
    await Promise.all([again.device.me(), again.device.me()]);
    const renewals = again.tap.calls.filter(({ path }) => path === '/devices/reauth');
    t.equal(renewals.length, 1, 'once for all who wait');
    t.equal(again.tap.calls[0]?.path, '/devices/reauth/challenge');
  });

  await t.test('CLIENT-19: a sealed key presented as a challenge is not opened for the server', async (t) => {
    const { keys, masterKey, tenantId } = all.first.identity();
    const lies = [nodeSodium.seal(masterKey, keys.publicKey), nodeSodium.seal(nodeSodium.random(100), keys.publicKey)];
    for (const challenge of lies) {
      const again = await all.open({ ...all.first.identity(), token: { text: 'stale', expiresAt: null } });
      again.tap.lie = ({ path }, answer) =>
        path.endsWith('challenge') ? { ...answer, challenge: toBase64Url(challenge) } : undefined;
      t.match(await refusal(again.device.me()), { name: 'CryptoRefusal', reason: 'bad_challenge' });
      t.notOk(
        again.tap.calls.some(({ path }) => path === '/devices/reauth'),
        'nothing was answered',
      );
    }
    const elsewhere = await all.open({
      ...all.first.identity(),
      tenantId: `${tenantId}x`,
      token: { text: 'stale', expiresAt: null },
    });
    t.match(await refusal(elsewhere.device.me()), { reason: 'bad_challenge' }, 'nor one for another tenant');
  });

  await t.test('a bootstrap or recovery whose reply is lost is finished by re-authentication', async (t) => {
    const lossy = wiretap();
    const platform = {
      ...lossy.platform,
      fetch: async (url: string, init: RequestInit) => {
        const response = await lossy.platform.fetch(url, init);
        if (url.endsWith('/devices/recover')) throw new TypeError('connection reset');
        return response;
      },
    };
    const identity = await recover({ platform, serverUrl: all.url, name: 'Lossy', glyph: 'globe', phrase: all.phrase });
    const recovered = await all.open(identity);
    t.match(await recovered.device.me(), { device: { id: identity.deviceId } });
    const dead = { ...platform, fetch: () => Promise.reject(new TypeError('unreachable')), clock: new TestClock() };
    const never = recover({ platform: dead, serverUrl: all.url, name: 'Never', glyph: 'globe', phrase: all.phrase });
    t.ok((await refusal(hurried(dead.clock, NO_TRAFFIC, never))) instanceof NetworkError);
  });
  t.same(all.first.problems, []);
  t.ok(tap.calls.length > 0);
});
