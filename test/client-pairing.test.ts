/** Pairing, recovery and re-authentication: real clients, a real server, and messages altered between them. */
import t from 'tap';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { recover } from '../src/sdk/enrol.js';
import { ApiError, NetworkError, PairingError } from '../src/sdk/errors.js';
import { join, type JoinApproval } from '../src/sdk/pairing.js';
import { keysOfPhrase } from '../src/crypto/master-key.js';
import { CryptoRefusal } from '../src/crypto/refusal.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { concat } from '../src/protocol/bytes.js';
import { TestClock } from './support/clock.js';
import { formsOf } from './liar/secrets.js';
import { newId } from './support/client.js';
import { note, refusal, wiretap, world, type Wiretap, type World } from './support/client-world.js';
import { until } from './support/events.js';
import type { Json } from './support/wire.js';
import { counted, hurried, NO_TRAFFIC } from './support/hurried.js';

/** True where a pairing ended with this reason of the crypto core. */
const endedBy = (error: unknown, reason: CryptoRefusal['reason']): boolean =>
  error instanceof PairingError && error.cause instanceof CryptoRefusal && error.cause.reason === reason;

/** Alters every pairing request that the server presents to this device. */
function presenting(tap: Wiretap, change: (request: object) => object): void {
  tap.alterFrame = (frame) => (frame['type'] === 'pair_request' ? { ...frame, ...change(frame) } : frame);
  tap.alterReply = ({ path }, answer) => {
    if (path !== '/devices/pair-requests') return undefined;
    return { requests: (answer['requests'] as object[]).map((request) => ({ ...request, ...change(request) })) };
  };
}

/** An attempt to join with these words over `tap`. */
function joining({ url }: World, words: string, tap: Wiretap = wiretap(), signal?: AbortSignal) {
  const digits: string[] = [];
  const identity = join({
    platform: tap.platform,
    serverUrl: url,
    name: 'New',
    glyph: 'phone',
    words,
    signal,
    onDigits: (shown) => digits.push(shown),
  });
  identity.catch(() => undefined);
  return { identity, digits, tap };
}

t.test('pairing by six words', async (t) => {
  const all = await world(t);
  const { device } = all.first;
  await device.connect();

  await t.test('CLIENT-08: both devices show the same digits, and no request contains the visible words', async (t) => {
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
    t.match(wire, /"code":"([a-z]+ ){5}[a-z]+"/, 'six other words, which do not reveal the visible ones');
    const listed = (await device.devices.refresh()).find(({ id }) => id === joined.deviceId);
    t.match(listed, { name: 'New', glyph: 'phone', revokedAt: null });
    t.same((await device.devices.recipients()).length, 2, 'the new device is certified at once');
  });

  await t.test('CLIENT-09: a code with a wrong checksum is refused before any request', async (t) => {
    const { identity, tap } = joining(all, 'abandon abandon abandon abandon abandon abandon');
    t.match(await refusal(identity), { name: 'CryptoRefusal', reason: 'bad_words' });
    t.same(tap.calls, []);
  });

  await t.test('a code that no device shows is refused', async (t) => {
    const offer = await device.offerPairing(() => true);
    offer.cancel();
    t.match(await refusal(offer.joined), { name: 'PairingError', code: 'cancelled' });
    t.match(await refusal(joining(all, offer.words).identity), { name: 'PairingError', code: 'unknown_code' });
  });

  await t.test('CLIENT-15: nothing is released to a new device that the user rejects', async (t) => {
    let decide: (yes: boolean) => void = () => undefined;
    let ask: () => void = () => undefined;
    const asked = new Promise<void>((resolve) => {
      ask = resolve;
    });
    const wraps = () =>
      all.first.tap.calls.filter(({ path, body }) => path === '/devices/pair-wrap' && body?.['wrappedMasterKey']);
    const before = wraps().length;
    const shown: unknown[] = [];
    const offer = await device.offerPairing(async ({ name, digits }) => {
      shown.push(name, digits);
      ask();
      return new Promise<boolean>((resolve) => {
        decide = resolve;
      });
    });
    const attempt = joining(all, offer.words);
    await asked;
    t.same(shown, ['New', attempt.digits.at(-1)]);
    t.equal(wraps().length, before, 'nothing before the decision');
    decide(false);
    t.match(await refusal(offer.joined), { code: 'rejected' });
    t.match(await refusal(attempt.identity), { name: 'PairingError', code: 'rejected' });
    t.equal(wraps().length, before);
  });

  await t.test('CLIENT-64: a new device that stops ends the pairing while the user still compares', async (t) => {
    const released = () => all.first.tap.calls.filter(({ path, body }) => path.endsWith('wrap') && !body?.['reject']);
    const before = released().length;
    let ask: () => void = () => undefined;
    const asked = new Promise<void>((resolve) => (ask = resolve));
    const offer = await device.offerPairing(() => {
      ask();
      return new Promise<boolean>(() => undefined);
    });
    const stop = new AbortController();
    const { identity } = joining(all, offer.words, wiretap(), stop.signal);
    await asked;
    stop.abort();
    t.match(await refusal(offer.joined), { name: 'PairingError', code: 'withdrawn' });
    t.match(await refusal(identity), { name: 'NetworkError', code: 'aborted' });
    t.equal(released().length, before, 'nothing was released');
  });

  await t.test('CLIENT-64: an approval that crosses the withdrawal releases nothing', async (t) => {
    const stop = new AbortController();
    let stopped: Promise<unknown> = Promise.resolve();
    const offer = await device.offerPairing(async () => {
      stop.abort();
      await stopped;
      return true;
    });
    const { identity } = joining(all, offer.words, wiretap(), stop.signal);
    stopped = refusal(identity);
    t.match(await refusal(offer.joined), { name: 'PairingError', code: 'withdrawn' });
    t.equal((await device.devices.refresh()).length, 2, 'no device was added');
  });

  await t.test('CLIENT-64: a reply that is not of the server does not end it, and is reported', async (t) => {
    const { tap, problems } = all.first;
    let foreign = 0;
    const offer = await device.offerPairing(
      () =>
        new Promise<boolean>((resolve) => {
          tap.alterReply = ({ path }) => {
            if (path !== '/devices/pair-requests') return undefined;
            if (foreign++ === 0) return {};
            resolve(true);
            return undefined;
          };
        }),
    );
    const { identity } = joining(all, offer.words);
    t.equal(await offer.joined, (await identity).deviceId);
    t.match(problems.splice(0), [{ name: 'ProtocolError', code: 'malformed' }]);
    tap.alterReply = () => undefined;
  });

  await t.test('CLIENT-64: nor does it before a new device has asked', async (t) => {
    const { tap, problems } = all.first;
    let foreign = 0;
    tap.alterReply = ({ path }) => (path === '/devices/pair-requests' && foreign++ === 0 ? {} : undefined);
    const offer = await device.offerPairing(() => true);
    const { identity } = joining(all, offer.words);
    t.equal(await offer.joined, (await identity).deviceId);
    t.match(problems.splice(0), [{ name: 'ProtocolError', code: 'malformed' }]);
    tap.alterReply = () => undefined;
  });

  await t.test(
    'CLIENT-64: a pairing that another one of the same device replaced is not said to be withdrawn',
    async (t) => {
      let ask: () => void = () => undefined;
      const asked = new Promise<void>((resolve) => (ask = resolve));
      const offer = await device.offerPairing(() => {
        ask();
        return new Promise<boolean>(() => undefined);
      });
      const { identity } = joining(all, offer.words);
      await asked;
      const elsewhere = await all.open(all.first.identity());
      const later = await elsewhere.device.offerPairing(() => true);
      t.match(await refusal(offer.joined), { code: 'withdrawn', message: /or another pairing began/ });
      t.match(await refusal(identity), { name: 'PairingError', code: 'rejected' });
      later.cancel();
      await refusal(later.joined);
    },
  );

  await t.test('the secret of a session is erased after a rejection', async (t) => {
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
    t.equal(secrets.length, 1, 'the attestation was checked with the secret');
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
      newcomer.alterRequest = ({ path, body }) =>
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

  await t.test('CLIENT-10: the existing device draws a new code when a code is in use', async (t) => {
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

t.test('CLIENT-14: the existing device releases nothing after five minutes by its own clock', async (t) => {
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
  // Only then does the clock advance to the next poll: the five minutes end when the user approves, not before.
  const requested = "SELECT 1 FROM pair_sessions WHERE state = 'requested'";
  await until('the request', async () => (await all.server.sql(requested)).length > 0);
  t.match(await refusal(hurried(clock, traffic, offer.joined)), { name: 'PairingError', code: 'expired' });
  t.ok(asked);
  t.match(await refusal(attempt.identity), { name: 'PairingError' });
  t.notOk(
    tap.calls.some(({ path, body }) => path === '/devices/pair-wrap' && body?.['wrappedMasterKey'] !== undefined),
  );
});

t.test('CLIENT-70: nor after more than five minutes where that clock is set back', async (t) => {
  const clock = new TestClock();
  const tap = wiretap(clock);
  const { platform, traffic } = counted(tap.platform);
  const all = await world(t, { tap: { ...tap, platform } });
  const offer = await all.first.device.offerPairing(() => true);
  clock.setBy(-3_600_000);
  const begun = clock.now();
  t.match(await refusal(hurried(clock, traffic, offer.joined)), { name: 'PairingError', code: 'expired' });
  const minutes = (clock.now() - begun) / 60_000;
  t.ok(minutes >= 5 && minutes < 6, `it ended after ${minutes} minutes`);
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
      tap.alterReply = ({ path }, answer) =>
        path === '/devices/pair-fetch-npk' && 'device' in answer ? { ...answer, ...lie(answer) } : undefined;
      t.match(await refusal(joining(all, offer.words, tap).identity), { name: 'CryptoRefusal', reason });
      await offer.joined;
    });
  }

  await t.test('CLIENT-17: the new device refuses an invalid certificate even if it is confirmed', async (t) => {
    const careless = wiretap();
    const sodium = { ...careless.platform.sodium, auth: () => nodeSodium.random(32) };
    const tap = { ...careless, platform: { ...careless.platform, sodium } };
    const other = await all.open(all.first.identity(), { tap });
    const offer = await other.device.offerPairing(() => true);
    t.match(await refusal(joining(all, offer.words).identity), { name: 'CryptoRefusal', reason: 'bad_cert' });
    await offer.joined;
  });

  await t.test('CLIENT-11: the existing device detects an ephemeral key that the server swapped', async (t) => {
    const offer = await all.first.device.offerPairing(() => true);
    const tap = wiretap();
    tap.alterReply = ({ path }, answer) =>
      path === '/devices/pair-fetch-epk' ? { ...answer, epk: toBase64Url(other.publicKey) } : undefined;
    const attempt = joining(all, offer.words, tap);
    t.ok(endedBy(await refusal(offer.joined), 'bad_attestation'));
    t.match(await refusal(attempt.identity), { name: 'PairingError', code: 'rejected' });
    const wrap = all.first.tap.calls.filter(({ path }) => path === '/devices/pair-wrap').at(-1);
    t.same(Object.keys(wrap?.body ?? {}), ['code', 'reject'], 'nothing was released');
  });
});

t.test('CLIENT-21: pairing needs the password where one is set, and the typed text is never sent', async (t) => {
  const all = await world(t);
  await all.first.device.connect();
  const typed = 'correct horse battery staple';
  await all.first.device.setPassword(typed);
  t.equal(
    (await refusal(all.first.device.setPassword('other'))).code !== undefined,
    true,
    'changing the password needs the old one',
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
  t.equal(shown, toBase64Url(identity.keys.publicKey), "the ticket is bound to this device's key");
  await all.first.device.setPassword('copper kettle', typed);
  await all.first.device.removePassword('copper kettle');
  // `correct` and `horse` alone may occur in the wire code.
  for (const sent of [tap.sent(), all.first.tap.sent()]) t.notMatch(sent, /correct horse|battery|staple|copper kettle/);
});

t.test('CLIENT-22: a device is recovered by the phrase, which is neither sent nor kept', async (t) => {
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
  const { recovery } = await keysOfPhrase(tap.platform.sodium, all.phrase);
  t.ok(
    formsOf(recovery.publicKey).some((form) => all.first.tap.sent().includes(form)),
    'the recovery key is the one that was registered',
  );
  const seed = formsOf(recovery.secretKey.subarray(0, 32));
  for (const kept of [
    tap.sent(),
    all.first.tap.sent(),
    JSON.stringify(identity),
    JSON.stringify(all.first.identity()),
  ]) {
    t.notMatch(kept, all.phrase);
    t.notOk(kept.includes(`${word} `), 'nor is any word of the phrase');
    t.notOk(
      seed.some((form) => kept.includes(form)),
      'nor is the recovery seed',
    );
  }
  const other = 'legal winner thank year wave sausage worth useful legal winner thank yellow';
  t.ok((await refusal(recover({ ...device, phrase: other }))) instanceof ApiError, 'another phrase recovers nothing');
});

t.test(
  'RECOV-09: a recovered device opens every item through its `master` wrap, with no other device online',
  async (t) => {
    const all = await world(t);
    const { device } = all.first;
    await device.connect();
    const second = await all.pair();
    await second.device.connect();
    await device.bins.create('other', { name: 'Other' });
    const long = 'x'.repeat(100_000);
    const content = nodeSodium.random(3_000);
    const file = { binId: 'inbox', type: 'file' as const, payload: { name: 'a.bin', size: content.length } };
    const stored = {
      inline: await device.put(note('inline')),
      ofAnother: await second.device.put(note('of another device')),
      moved: await device.put(note('moved')),
      replaced: await device.put(note('before')),
      large: await device.put(note(long)),
      file: await device.put({ ...file, content: bytesSource(content) }),
    };
    await device.move(stored.moved.id, 'other');
    await device.put({ ...note('after'), id: stored.replaced.id });
    // An online device would add keys for the recovered one.
    device.close();
    second.device.close();

    const tap = wiretap();
    const request = { platform: tap.platform, serverUrl: all.url, name: 'Recovered', glyph: 'tablet' as const };
    const identity = await recover({ ...request, phrase: all.phrase });
    const recovered = await all.open(identity, { tap });
    const rows: Json[] = [];
    tap.alterReply = ({ path }, answer) => {
      if (path.startsWith('/items?')) rows.push(...(answer['items'] as Json[]));
      return undefined;
    };
    await recovered.device.pull();
    t.same(
      rows.map(({ id }) => id).sort(),
      Object.values(stored)
        .map(({ id }) => id)
        .sort(),
    );
    for (const row of rows) {
      const keys = [(row['payloadEnc'] as Json | null)?.['keys'], row['blobKeys']].map((each) =>
        Object.keys(each ?? {}),
      );
      t.ok(keys.flat().length > 0 && !keys.flat().includes(identity.deviceId), 'it has no key for this device');
    }
    const payload = async ({ id }: { readonly id: string }) => recovered.device.payload(id);
    t.same(await payload(stored.inline), { text: 'inline' });
    t.same(await payload(stored.ofAnother), { text: 'of another device' });
    t.same(await payload(stored.moved), { text: 'moved' });
    t.same(await payload(stored.replaced), { text: 'after' });
    t.same(await payload(stored.large), { text: long });
    t.same(await payload(stored.file), file.payload);
    const parts: Uint8Array[] = [];
    for await (const part of recovered.device.blob(stored.file.id)) parts.push(part);
    t.same(concat(parts), content);
    t.same(recovered.problems, []);
  },
);

t.test('re-authentication', async (t) => {
  const all = await world(t);
  const { device, tap } = all.first;

  await t.test("a refused token is renewed by the device's key, and the call succeeds", async (t) => {
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

  await t.test('a token that is about to expire is renewed before it is used', async (t) => {
    const { token } = all.first.identity();
    const again = await all.open({
      ...all.first.identity(),
      token: { text: token.text, expiresAt: Date.now() + 60_000 },
    });
    await Promise.all([again.device.me(), again.device.me()]);
    const renewals = again.tap.calls.filter(({ path }) => path === '/devices/reauth');
    t.equal(renewals.length, 1, 'one renewal for both calls');
    t.equal(again.tap.calls[0]?.path, '/devices/reauth/challenge');
  });

  await t.test('CLIENT-19: a challenge that opens to another form, such as a key, is not answered', async (t) => {
    const { keys, masterKey, tenantId } = all.first.identity();
    const lies = [nodeSodium.seal(masterKey, keys.publicKey), nodeSodium.seal(nodeSodium.random(100), keys.publicKey)];
    for (const challenge of lies) {
      const again = await all.open({ ...all.first.identity(), token: { text: 'stale', expiresAt: null } });
      again.tap.alterReply = ({ path }, answer) =>
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
    t.match(await refusal(elsewhere.device.me()), { reason: 'bad_challenge' }, "nor is another tenant's challenge");
  });

  await t.test('a recovery whose reply is lost is completed by re-authentication', async (t) => {
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
