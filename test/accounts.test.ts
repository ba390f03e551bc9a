/** Bootstrap and devices, on a real database and two instances. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { freeName, isDisplayName } from '../src/protocol/ids.js';
import { ulid } from 'ulid';
import { Devices } from '../src/server/devices/devices.js';
import { answerReauthChallenge } from '../src/crypto/reauth.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { AccountStore, type Sighting } from '../src/server/devices/store.js';
import { verifyToken } from '../src/server/http/tokens.js';
import {
  SECRET,
  base64,
  bootstrapBody,
  claimedWorld,
  DAY_MS,
  generationOf,
  joinBody,
  newCode,
  newDevice,
  newWorld,
  pairOne,
  random,
  refusal,
  together,
  valueOf,
  type TestDevice,
} from './support/accounts.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';

t.test('two instances that start at once agree on the tenant; BIN-01: it has one bin', async (t) => {
  const { a, b, tenantId, clock } = await newWorld(t);
  await a.pool.query('DELETE FROM tenants');
  const ids = await Promise.all([a, b, a, b].map(({ pool }) => new AccountStore(pool).singleTenant(clock.now())));
  t.equal(new Set(ids).size, 1);
  t.not(ids[0], tenantId);
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM tenants'), 1);
  t.same(
    (await a.bins.list(ids[0] ?? '')).bins.map(({ id, slug }) => [id, slug]),
    [['inbox', 'inbox']],
  );
});

t.test('BOOT-01 BOOT-04 BOOT-06: the first call claims the server, and its token is accepted', async (t) => {
  const { a, tenantId, clock } = await newWorld(t);
  const device = newDevice();
  const sent = random(80);
  t.equal(await a.bootstrap.claimed(tenantId), false);
  const claimed = await a.bootstrap.claim(tenantId, {
    ...bootstrapBody(device, { wrappedMasterKey: sent, deviceCert: random(32) }),
    deviceId: undefined,
  });
  t.match(claimed.device.id, /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/);
  t.same(claimed.device, {
    id: claimed.device.id,
    name: 'First',
    glyph: 'laptop',
    pubkey: Buffer.from(device.publicKey),
    pairedAt: clock.now(),
  });
  t.equal(base64(claimed.wrappedMasterKey ?? new Uint8Array()), sent);
  t.ok(await a.admits(tenantId, claimed.token, clock.now()));
  t.equal(await a.bootstrap.claimed(tenantId), true);
  t.same(a.announced, [tenantId]);
});

t.test('TOKEN-10: a token is valid until TOKEN_TTL_DAYS have passed, to the millisecond', async (t) => {
  const { a, tenantId, clock } = await newWorld(t);
  const { token } = await a.bootstrap.claim(tenantId, bootstrapBody(newDevice()));
  t.type(verifyToken(SECRET, token, clock.now() + 30 * DAY_MS - 1), 'object');
  t.equal(verifyToken(SECRET, token, clock.now() + 30 * DAY_MS), 'expired_token');
});

t.test('BOOT-02 BOOT-03: of any number of concurrent claims on two instances exactly one wins', async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId } = world;
  const claims = [a, b, a, b, a, b, a, b].map((instance) => () => {
    return instance.bootstrap.claim(tenantId, bootstrapBody(newDevice()));
  });
  for (let round = 0; round < 5; round++) {
    const before = await generationOf(a.pool, tenantId);
    const ends = await together(world, claims);
    t.equal(ends.filter((end) => end === 'ok').length, 1);
    t.equal(ends.filter((end) => end === 'bootstrap_already_done').length, 7);
    t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices'), 1);
    t.equal(await generationOf(a.pool, tenantId), before + 1);
    t.equal(await refusal(a.bootstrap.claim(tenantId, bootstrapBody(newDevice()))), 'bootstrap_already_done');
    await a.bootstrap.restart(tenantId);
  }
});

t.test('BOOT-05: with BOOTSTRAP_TOKEN a missing or wrong claim token is refused and nothing is claimed', async (t) => {
  const { a, tenantId } = await newWorld(t, { bootstrapToken: 'a long operator token' });
  for (const claimToken of [undefined, null, '', 'a long operator tokem', 'a long operator token ']) {
    t.equal(await refusal(a.bootstrap.claim(tenantId, bootstrapBody(newDevice(), { claimToken }))), 'forbidden');
  }
  t.equal(await a.bootstrap.claimed(tenantId), false);
  await a.bootstrap.claim(tenantId, bootstrapBody(newDevice(), { claimToken: 'a long operator token' }));
  t.equal(await refusal(a.bootstrap.claim(tenantId, bootstrapBody(newDevice()))), 'bootstrap_already_done');
});

t.test('a tenant with its own claim token is claimed with that token only, which is then cleared', async (t) => {
  const { a, tenantId } = await newWorld(t);
  await a.pool.query("UPDATE tenants SET claim_token_hash = sha256('right'::bytea)");
  t.equal(await refusal(a.bootstrap.claim(tenantId, bootstrapBody(newDevice()))), 'forbidden');
  t.equal(await refusal(a.bootstrap.claim(tenantId, bootstrapBody(newDevice(), { claimToken: 'wrong' }))), 'forbidden');
  await a.bootstrap.claim(tenantId, bootstrapBody(newDevice(), { claimToken: 'right' }));
  t.equal(await valueOf(a.pool, 'SELECT claim_token_hash AS value FROM tenants'), null);
});

t.test('BOOT-07 BOOT-08 BOOT-09: a restart wipes devices, pair sessions, password and recovery key', async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId, clock } = world;
  const recovery = nodeSodium.signKeyPair(randomBytes(32));
  const device = newDevice();
  const { token } = await a.bootstrap.claim(
    tenantId,
    bootstrapBody(device, { recoveryPubkey: base64(recovery.publicKey) }),
  );
  await a.passwords.set(tenantId, { password: 'old' });
  const { ticket } = await a.passwords.verify(tenantId, { password: 'old' });
  const session = { code: 'one two three four five six', epk: base64(newDevice().publicKey) };
  await a.pairing.init(tenantId, device.id, session);
  const solved = async () => {
    const { challengeId, challenge } = await a.reauth.challenge(tenantId, { deviceId: device.id });
    const ids = { tenantId, deviceId: device.id, challengeId };
    const answer = answerReauthChallenge(nodeSodium, ids, { challenge, keys: device });
    return { deviceId: device.id, challengeId, answer: base64(answer) };
  };
  const [one, two] = [await solved(), await solved()];

  t.same(await b.bootstrap.restart(tenantId), { ok: true });
  t.same(b.resets, [tenantId]);
  t.equal(await a.bootstrap.claimed(tenantId), false);
  t.notOk(await a.admits(tenantId, token, clock.now()));
  t.same((await a.devices.list(tenantId, device.id)).devices, []);
  t.equal(await refusal(a.pairing.fetchEpk(tenantId, session)), 'pair_invalid');
  t.same(await a.passwords.exists(tenantId), { exists: false });
  t.equal(await refusal(a.reauth.answer(tenantId, one)), 'forbidden');
  t.equal(await valueOf(a.pool, 'SELECT recovery_pubkey AS value FROM tenants'), null);

  // The same device id claims again: nothing issued before the restart may work.
  const again = await a.bootstrap.claim(tenantId, bootstrapBody(device));
  t.notOk(await a.admits(tenantId, token, clock.now()), 'an old token stays invalid');
  t.equal(await refusal(a.reauth.answer(tenantId, two)), 'forbidden', 'an old challenge stays invalid');
  t.ok(await a.admits(tenantId, again.token, clock.now()));
  await a.passwords.set(tenantId, { password: 'old' });
  const proof = a.tickets.passwordProof(ticket, tenantId, device.publicKey);
  t.equal((await a.accounts.recoveryState(tenantId, proof))?.passwordShown, false, 'an old ticket proves nothing');
  t.equal(await refusal(a.bootstrap.restart(ulid())), 'tenant_not_found');
});

t.test('BOOT-08: a token from before a restart stays invalid after any number of restarts', async (t) => {
  const world = await newWorld(t);
  const { a, tenantId, clock } = world;
  const [first] = await claimedWorld(world);
  const tokens: string[] = [];
  for (let round = 0; round < 5; round++) {
    await a.bootstrap.restart(tenantId);
    const { token } = await a.bootstrap.claim(tenantId, bootstrapBody(first as TestDevice));
    tokens.push(token);
  }
  const alive = await Promise.all(tokens.map((token) => a.admits(tenantId, token, clock.now())));
  t.same(alive, [false, false, false, false, true]);
});

t.test('BOOT-10: a restart keeps items and bins', async (t) => {
  const world = await newWorld(t);
  const { a, tenantId } = world;
  await claimedWorld(world);
  await a.bins.create(tenantId, { id: 'work' });
  await a.pool.query("INSERT INTO items (tenant_id, id, version, bin_id) VALUES ($1, $2, 1, 'work')", [
    tenantId,
    ulid(),
  ]);
  await a.bootstrap.restart(tenantId);
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM items'), 1);
  t.same(
    (await a.bins.list(tenantId)).bins.map(({ id }) => id),
    ['inbox', 'work'],
  );
});

t.test('DEV-22: a name that is proposed in place of a taken one is valid, and cut by whole characters', (t) => {
  const end = (name: string): string => `${'x'.repeat(64 - Array.from(name).length)}${name}`;
  const cut = (name: string): string => 'x'.repeat(64 - Array.from(name).length);
  t.equal(freeName('Phone', ['Laptop']), 'Phone');
  t.equal(freeName('Phone', ['Phone', 'Phone 2']), 'Phone 3');
  for (const emoji of ['😀😀', '👨‍👩‍👧', '🏴󠁧󠁢󠁥󠁮󠁧󠁿', '🇩🇪', 'é́'])
    t.equal(freeName(end(emoji), [end(emoji)]), `${cut(emoji)} 2`, encodeURI(emoji));
  const faces = '😀'.repeat(64);
  t.equal(freeName(faces, [faces]), `${'😀'.repeat(62)} 2`);
  for (const name of [faces, 'a\u0301'.repeat(32), end('🏴󠁧󠁢󠁥󠁮󠁧󠁿')]) {
    const taken = [name];
    while (taken.length < 120) taken.push(freeName(name, taken));
    t.ok(taken.every(isDisplayName), encodeURI(name));
    t.equal(new Set(taken).size, taken.length);
  }
  t.end();
});

t.test('DEV-20: a name has a visible character, and no line separators, tags or zero-width fillers', async (t) => {
  const { a, tenantId } = await newWorld(t);
  const device = newDevice();
  const claim = (name: string): Promise<unknown> => a.bootstrap.claim(tenantId, bootstrapBody(device, { name }));
  const tags = Array.from('hello', (letter) => String.fromCodePoint(0xe0000 + (letter.codePointAt(0) ?? 0))).join('');
  const unseen = [
    ...[' ', '\u00a0', '\u200b', '\u200b\u200b', '\u200d', '\u2060', '\ufeff', '\u00ad', '\u034f', '\u3164', '\uffa0'],
    ...['\u115f\u1160', '\u2800', '\u180e', '\ufe0f', '\u{e0100}', tags, '\u0301', '\u2028', '\u2029'],
  ];
  const hiding = [
    ...['a\u2028b', 'a\u2029b', `Phone${tags}`, 'Pho\u200bne', 'a\ufeffb', 'a\u2060b', 'a\u{e0001}b'],
    ...['Phone\u1160', 'Phone\u3164', 'Pho\u034fne', 'a\u{1d173}b', 'P\u{e0101}', '葛\u{e0100}\u{e0101}'],
  ];
  for (const name of [...unseen, ...hiding]) t.equal(await refusal(claim(name)), 'validation', encodeURI(name));
  for (const name of ['👨‍👩‍👧', 'می‌خواهم', 'क्‍ष', '❤️ Laptop', '🏴󠁧󠁢󠁥󠁮󠁧󠁿 desk', '.', '名前', '葛\u{e0100}城', '\u182d\u180b'])
    t.ok(isDisplayName(name), encodeURI(name));
  await claim('👨‍👩‍👧 🏴󠁧󠁢󠁳󠁣󠁴󠁿');
  const code = newCode();
  await a.pairing.init(tenantId, device.id, { code, epk: base64(newDevice().publicKey) });
  const { id: deviceId, publicKey } = newDevice();
  const recovery = {
    ...{ deviceId, host: 'sync.example', pubkey: base64(publicKey), glyph: 'globe' as const },
    ...{ challengeId: ulid(), signature: random(64), deviceCert: random(32) },
  };
  const elsewhere: Record<string, (name: string) => Promise<unknown>> = {
    renaming: (name) => a.devices.patch(tenantId, device.id, { name }, device.id),
    pairing: (name) => a.pairing.fetchNpk(tenantId, joinBody(code, newDevice(), { name }), AbortSignal.abort()),
    recovery: (name) => a.recovery.recover(tenantId, { ...recovery, name }),
  };
  for (const [what, give] of Object.entries(elsewhere)) {
    for (const name of ['\u3164', `Phone${tags}`]) t.equal(await refusal(give(name)), 'validation', what);
  }
});

t.test('DEV-09 DEV-14: bad names and unusable keys are refused; a certificate is optional', async (t) => {
  const { a, tenantId } = await newWorld(t);
  const claim = (more: object): Promise<unknown> => a.bootstrap.claim(tenantId, bootstrapBody(newDevice(), more));
  for (const name of ['', 'a\u0000b', 'a\nb', 'a\u202eb', 'a\u2066b', '\ud800', 'x'.repeat(65)]) {
    t.equal(await refusal(claim({ name })), 'validation', JSON.stringify(name));
  }
  for (const pubkey of [random(31), random(33)]) t.equal(await refusal(claim({ pubkey })), 'validation');
  // The encodings of points of low order: 0, 1, two of order 8, p-1, p and p+1, each also with the bit that is ignored.
  for (const point of [
    '00'.repeat(32),
    `01${'00'.repeat(31)}`,
    'e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800',
    '5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157',
    ...['ec', 'ed', 'ee'].map((first) => `${first}${'ff'.repeat(30)}7f`),
  ]) {
    for (const bit of [0, 0x80]) {
      const pubkey = Buffer.from(point, 'hex');
      pubkey.writeUInt8(pubkey.readUInt8(31) | bit, 31);
      t.equal(await refusal(claim({ pubkey: base64(pubkey) })), 'validation', pubkey.toString('hex'));
    }
  }
  t.equal(await refusal(claim({ deviceCert: random(31) })), 'validation');
  t.equal(await refusal(claim({ wrappedMasterKey: random(31) })), 'validation');
  t.equal(await refusal(claim({ wrappedMasterKey: random(1_025) })), 'validation');
  t.equal(await refusal(claim({ recoveryPubkey: random(31) })), 'validation');
  t.equal(await a.bootstrap.claimed(tenantId), false);
  await claim({ name: 'ｘ'.repeat(63) + '😀' });
});

t.test('DEV-01 DEV-02 DEV-03: the list has every field, `online` by socket and `current` for the caller', async (t) => {
  const world = await newWorld(t);
  const { a, tenantId, clock } = world;
  const [first, second] = await claimedWorld(world, 1);
  a.online.add(second?.id ?? '');
  const pairedAt = clock.now();
  clock.advance(1_000);
  a.devices.touch(tenantId, { id: first?.id ?? '' });
  await a.devices.close();
  const { devices } = await a.devices.list(tenantId, first?.id ?? '');
  const seen = { online: false, current: true, lastSeenAt: clock.now() };
  const unseen = { online: true, current: false, lastSeenAt: null };
  t.match(devices, [
    { ...{ id: first?.id, name: 'First', glyph: 'laptop', pairedAt, revokedAt: null }, ...seen },
    { ...{ id: second?.id, name: 'Phone', glyph: 'phone', pairedAt, revokedAt: null }, ...unseen },
  ]);
  t.same(Object.keys(devices[0] ?? {}).sort(), [
    ...['cert', 'current', 'glyph', 'id', 'lastSeenAt', 'name', 'online', 'pairedAt', 'pubkey', 'revokedAt'],
  ]);
  t.equal(base64(devices[1]?.pubkey ?? new Uint8Array()), base64(second?.publicKey ?? new Uint8Array()));
  t.equal(devices[1]?.cert?.length, 32);
  t.equal(devices[0]?.cert, null);
  await a.devices.revoke(tenantId, second?.id ?? '', first?.id);
  const [, gone] = (await a.devices.list(tenantId, first?.id ?? '')).devices;
  t.match(gone, { id: second?.id, online: false, revokedAt: clock.now() }, 'a revoked device is not online');
});

t.test('DEV-23: of revoked devices the latest thousand are listed, and all that are not revoked', async (t) => {
  const world = await newWorld(t);
  const { a, tenantId } = world;
  const [first, second] = await claimedWorld(world, 1);
  await a.pool.query(
    `INSERT INTO devices (tenant_id, id, name, glyph, pubkey, paired_at, revoked_at)
     SELECT $1, 'revoked' || n, 'Old', 'phone', '\\x00', n, 2000 - n FROM generate_series(1, 1200) n`,
    [tenantId],
  );
  const { devices } = await a.devices.list(tenantId, first?.id ?? '');
  t.equal(devices.length, 1_002);
  t.equal(devices[0]?.id, 'revoked1', 'oldest first');
  t.equal(devices[999]?.id, 'revoked1000', 'those that were revoked before all others are left out');
  t.same(
    devices.slice(1_000).map(({ id, revokedAt }) => [id, revokedAt]),
    [first, second].map((device) => [device?.id, null]),
  );
});

t.test('DEV-04 DEV-08: a patch changes the fields it names, and a change raises the generation', async (t) => {
  const world = await newWorld(t);
  const { a, tenantId } = world;
  const [first] = await claimedWorld(world);
  const id = first?.id ?? '';
  const before = await generationOf(a.pool, tenantId);
  const cert = random(32);
  const { device } = await a.devices.patch(tenantId, id, { name: 'Desk', glyph: 'tablet', cert });
  t.match(device, { id, name: 'Desk', glyph: 'tablet' });
  t.equal(base64(device.cert ?? new Uint8Array()), cert);
  t.equal(await generationOf(a.pool, tenantId), before + 1);
  await a.devices.patch(tenantId, id, { name: 'Desk' });
  t.equal(await generationOf(a.pool, tenantId), before + 1, 'a patch without a change does not raise the generation');
  t.equal((await a.devices.patch(tenantId, id, { cert: null })).device.cert, null);
  t.equal((await a.devices.patch(tenantId, id, {})).device.name, 'Desk');
  t.equal(await refusal(a.devices.patch(tenantId, ulid(), { name: 'x' })), 'device_not_found');
  t.equal(await refusal(a.devices.patch(ulid(), id, { name: 'x' })), 'device_not_found', 'TOKEN-26');
  t.equal(await refusal(a.devices.patch(tenantId, id, { name: '\u202e' })), 'validation');
  const both = [() => a.devices.patch(tenantId, id, { name: 'A' }), () => a.devices.patch(tenantId, id, { name: 'A' })];
  const generation = await generationOf(a.pool, tenantId);
  t.same(await together(world, both), ['ok', 'ok']);
  t.equal(await generationOf(a.pool, tenantId), generation + 1, 'the same patch twice at once is one change');
});

t.test("DEV-05 TOKEN-11 TOKEN-12 TOKEN-13: a revocation kills that device's tokens, on every instance", async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId, clock } = world;
  const device = newDevice();
  const { token } = await a.bootstrap.claim(tenantId, bootstrapBody(device));
  const second = await pairOne(world, device);
  const { challengeId, challenge } = await a.reauth.challenge(tenantId, { deviceId: second.id });
  const ids = { tenantId, deviceId: second.id, challengeId };
  const answer = base64(answerReauthChallenge(nodeSodium, ids, { challenge, keys: second }));
  const reauthenticated = await a.reauth.answer(tenantId, { deviceId: second.id, challengeId, answer });
  t.ok(await b.admits(tenantId, reauthenticated.token, clock.now()));

  clock.advance(5);
  const { device: revoked } = await a.devices.revoke(tenantId, second.id);
  t.equal(revoked.revokedAt, clock.now());
  t.notOk(await b.admits(tenantId, reauthenticated.token, clock.now()));
  t.ok(await b.admits(tenantId, token, clock.now()));
  const standing = (await b.loader.load(tenantId))?.devices.find(({ id }) => id === second.id);
  t.match(standing, { revoked: true, keysPurged: false });
  t.ok((standing?.tokenEpoch ?? 0) > (b.epochOf(reauthenticated.token, clock.now()) ?? Infinity));

  clock.advance(5);
  const generation = await generationOf(a.pool, tenantId);
  t.equal(
    (await b.devices.revoke(tenantId, second.id)).device.revokedAt,
    revoked.revokedAt,
    'a second revocation changes nothing',
  );
  t.equal(await generationOf(a.pool, tenantId), generation);
  t.equal(await refusal(a.devices.revoke(tenantId, ulid())), 'device_not_found');
  t.equal(await refusal(a.devices.revoke(ulid(), device.id)), 'device_not_found');
  t.equal(await refusal(a.devices.revoke(tenantId, device.id)), 'last_device');
});

t.test('DEV-06 DEV-07: two devices that revoke each other, or the last one itself, leave one device', async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId } = world;
  let [standing] = (await claimedWorld(world)) as [TestDevice];
  for (let round = 0; round < 5; round++) {
    const other = await pairOne(world, standing);
    const ends = await together(world, [
      () => a.devices.revoke(tenantId, other.id, standing.id),
      () => b.devices.revoke(tenantId, standing.id, other.id),
    ]);
    t.same(ends.toSorted(), ['last_device', 'ok']);
    if (ends[1] === 'ok') standing = other;
  }
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices WHERE revoked_at IS NULL'), 1);
  t.equal(await refusal(a.devices.revoke(tenantId, standing.id, standing.id)), 'last_device');
  const other = await pairOne(world, standing);
  t.equal(await refusal(a.devices.revoke(tenantId, standing.id, standing.id)), undefined, 'it signs out');
  t.equal((await a.loader.load(tenantId))?.devices.find(({ id }) => id === other.id)?.revoked, false);
});

t.test('DEV-15: a device that was just revoked cannot revoke another one', async (t) => {
  const world = await newWorld(t);
  const { a, tenantId } = world;
  const [first, second, third] = await claimedWorld(world, 2);
  await a.devices.revoke(tenantId, second?.id ?? '', first?.id);
  t.equal(await refusal(a.devices.revoke(tenantId, third?.id ?? '', second?.id)), 'device_revoked');
  t.equal(await refusal(a.devices.revoke(tenantId, third?.id ?? '', first?.id)), undefined);
});

t.test('DEV-15: a device that is revoked while its change of a device is waiting changes nothing', async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId } = world;
  const [first, second, third] = (await claimedWorld(world, 2)) as [TestDevice, TestDevice, TestDevice];
  const calls = [
    () => a.devices.patch(tenantId, first.id, { name: 'theirs' }, second.id),
    () => b.devices.patch(tenantId, second.id, { cert: random(32) }, second.id),
    () => b.devices.revoke(tenantId, third.id, second.id),
  ];
  const ends = await together(world, calls, (holder) =>
    holder.query('UPDATE devices SET revoked_at = 1 WHERE id = $1', [second.id]),
  );
  t.same(ends, ['device_revoked', 'device_revoked', 'device_revoked']);
  const { devices } = await a.devices.list(tenantId, first.id);
  t.same(devices.map(({ name }) => name).sort(), ['First', 'Phone', 'Phone']);
  t.same(
    devices.filter(({ revokedAt }) => revokedAt !== null).map(({ id }) => id),
    [second.id],
  );
  t.equal(
    await refusal(a.devices.patch(tenantId, first.id, { name: 'x' }, ulid())),
    'device_revoked',
    'an unknown device changes nothing',
  );
});

t.test('sightings that wait for a hanging database are bounded; the oldest are dropped', async (t) => {
  const clock = new TestClock();
  const written: string[] = [];
  const store = {
    touch: (seen: readonly Sighting[]) => Promise.resolve(void written.push(...seen.map((s) => s.deviceId))),
  };
  const devices = new Devices({
    ...{ store: store as unknown as AccountStore, clock },
    changed: () => Promise.resolve(),
    online: () => Promise.resolve(new Set<string>()),
    onFault: (error) => t.fail(String(error)),
  });
  for (let n = 0; n < 260_000; n++) devices.touch('tenant', { id: String(n) });
  await devices.close();
  t.ok(written.length <= 250_000, `at most 250,000 are kept: ${written.length}`);
  t.ok(written.length >= 246_000);
  t.equal(written.at(-1), '259999');
  t.notOk(written.includes('0'));
});

t.test('sightings that arrive during a write wait for the next interval', async (t) => {
  const clock = new TestClock();
  const writes: number[] = [];
  const devices: Devices = new Devices({
    store: {
      touch: (seen: readonly Sighting[]) => {
        writes.push(seen.length);
        // Under load, new sightings arrive during every statement.
        devices.touch('tenant', { id: `after ${writes.length}` });
        return Promise.resolve();
      },
    } as unknown as AccountStore,
    clock,
    changed: () => Promise.resolve(),
    online: () => Promise.resolve(new Set<string>()),
    onFault: (error) => t.fail(String(error)),
  });
  for (let n = 0; n < 5_000; n++) devices.touch('tenant', { id: String(n) });
  await devices.flush();
  t.same(writes, [4_000, 1_000]);
  clock.advance(3_000);
  await until('a third write', () => writes.length === 3);
  t.same(writes, [4_000, 1_000, 2]);
});

t.test('sightings of a reconnect storm are written in portions, the oldest first', async (t) => {
  const clock = new TestClock();
  const writes: string[][] = [];
  const devices = new Devices({
    store: {
      touch: (seen: readonly Sighting[]) => Promise.resolve(void writes.push(seen.map((one) => one.deviceId))),
    } as unknown as AccountStore,
    clock,
    changed: () => Promise.resolve(),
    online: () => Promise.resolve(new Set<string>()),
    onFault: (error) => t.fail(String(error)),
  });
  for (let n = 0; n < 20_000; n++) devices.touch('tenant', { id: String(n) });
  const next = async (): Promise<number> => {
    const { length } = writes;
    clock.advance(3_000);
    await until('a write', () => writes.length > length && clock.waiting === 1);
    return writes.at(-1)?.length ?? 0;
  };
  t.equal(await next(), 1_000);
  t.equal(await next(), 950);
  t.same(
    writes.flat(),
    Array.from({ length: 1_950 }, (_, n) => String(n)),
  );
  let rounds = 0;
  while (writes.flat().length < 19_500 && rounds < 100) {
    await next();
    rounds++;
  }
  t.ok(rounds < 50, `within three minutes: ${rounds} writes`);
  await devices.close();
  t.equal(writes.flat().length, 20_000, 'close() writes the rest');
  t.equal(clock.waiting, 0);
});

t.test('sightings: close() during a write leaves no timer, and the later of two is stored', async (t) => {
  const clock = new TestClock();
  const writes: Sighting[][] = [];
  let go = (): void => undefined;
  const devices = new Devices({
    store: {
      touch: (seen: Sighting[]) => {
        writes.push(seen);
        return writes.length > 1 ? Promise.resolve() : new Promise<void>((resolve) => (go = resolve));
      },
    } as unknown as AccountStore,
    clock,
    changed: () => Promise.resolve(),
    online: () => Promise.resolve(new Set<string>()),
    onFault: (error) => t.fail(String(error)),
  });
  for (let n = 0; n < 600; n++) devices.touch('tenant', { id: String(n) });
  clock.advance(3_000);
  await until('a write', () => writes.length === 1);
  devices.touch('tenant', { id: '599' });
  const ended = devices.close();
  go();
  await ended;
  t.same(
    writes.map(({ length }) => length),
    [500, 100],
  );
  t.equal(writes[1]?.at(-1)?.at, clock.now(), 'the later sighting of the two is stored');
  t.equal(clock.waiting, 0);
});

t.test('DEV-16: sightings are written once a minute at most, together; a failed write is only reported', async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId, clock } = world;
  const [first] = await claimedWorld(world);
  const device = { id: first?.id ?? '' };
  const seen = (): Promise<number> => valueOf(a.pool, 'SELECT last_seen_at AS value FROM devices');
  const generation = await generationOf(a.pool, tenantId);
  const start = clock.now();
  for (let n = 0; n < 100; n++) a.devices.touch(tenantId, device);
  a.devices.touch(tenantId, { id: ulid() });
  a.devices.touch(ulid(), { ...device });
  t.equal(clock.waiting, 1);
  clock.advance(3_000);
  await a.devices.flush();
  t.equal(await seen(), start);
  clock.advance(56_000);
  a.devices.touch(tenantId, device);
  t.equal(clock.waiting, 0);
  clock.advance(2_000);
  a.devices.touch(tenantId, device);
  await a.devices.flush();
  t.equal(await seen(), start + 61_000);
  t.equal(await generationOf(a.pool, tenantId), generation, 'a sighting does not raise the generation');
  t.same(a.faults, []);
  await b.pool.end();
  b.pool.end = () => Promise.resolve();
  b.devices.touch(tenantId, { id: device.id });
  await b.devices.flush();
  t.equal(b.faults.length, 1);
});
