/** Re-authentication, recovery and the account password, on a real database and two instances. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { ulid } from 'ulid';
import { PasswordQueue } from '../src/server/devices/credentials.js';
import { answerReauthChallenge } from '../src/crypto/reauth.js';
import { signRecovery } from '../src/crypto/recovery.js';
import { nodePasswordHasher, nodeSodium } from '../src/crypto/sodium-node.js';
import { ServiceError } from '../src/protocol/errors.js';
import type { RecoverBody } from '../src/protocol/requests.js';
import {
  base64,
  bootstrapBody,
  claimedWorld,
  DAY_MS,
  haveJoined,
  newDevice,
  newWorld,
  outcomes,
  pairOne,
  random,
  refusal,
  together,
  valueOf,
  type TestDevice,
  type World,
} from './support/accounts.js';
import { until } from './support/events.js';

async function reauthWorld(t: Parameters<typeof newWorld>[0]): Promise<World & { device: TestDevice }> {
  const world = await newWorld(t);
  const [device] = await claimedWorld(world);
  return { ...world, device: device as TestDevice };
}

const solve = async ({ a, tenantId }: World, device: TestDevice): Promise<{ challengeId: string; answer: string }> => {
  const { challengeId, challenge } = await a.reauth.challenge(tenantId, { deviceId: device.id });
  const ids = { tenantId, deviceId: device.id, challengeId };
  return { challengeId, answer: base64(answerReauthChallenge(nodeSodium, ids, { challenge, keys: device })) };
};

t.test('REAUTH-01 REAUTH-02 REAUTH-03 REAUTH-09: the device that opens the challenge gets a token', async (t) => {
  const world = await reauthWorld(t);
  const { a, b, tenantId, clock, device } = world;
  const { challengeId, challenge, expiresAt } = await a.reauth.challenge(tenantId, { deviceId: device.id });
  t.equal(expiresAt, clock.now() + 120_000);
  const ids = { tenantId, deviceId: device.id, challengeId };
  const answer = base64(answerReauthChallenge(nodeSodium, ids, { challenge, keys: device }));
  const issued = await b.reauth.answer(tenantId, { deviceId: device.id, challengeId, answer });
  t.equal(issued.expiresAt, clock.now() + 30 * DAY_MS);
  t.ok(await a.admits(tenantId, issued.token, clock.now()));
});

t.test('REAUTH-04 REAUTH-05: a challenge works once; a wrong answer consumes it and gives no token', async (t) => {
  const world = await reauthWorld(t);
  const { a, b, tenantId, device } = world;
  const { challengeId, answer } = await solve(world, device);
  const body = { deviceId: device.id, challengeId, answer };
  t.equal(await refusal(a.reauth.answer(tenantId, { ...body, answer: random(32) })), 'forbidden');
  t.equal(await refusal(a.reauth.answer(tenantId, body)), 'forbidden');
  for (let round = 0; round < 20; round++) {
    const solved = { deviceId: device.id, ...(await solve(world, device)) };
    const ends = await outcomes([a, b, a, b].map(({ reauth }) => reauth.answer(tenantId, solved)));
    t.same(ends.toSorted(), ['forbidden', 'forbidden', 'forbidden', 'ok']);
  }
  const kept = { deviceId: device.id, ...(await solve(world, device)) };
  t.equal(await refusal(a.reauth.answer(tenantId, { ...kept, answer: 'short' })), 'validation');
  t.equal(await refusal(a.reauth.answer(tenantId, kept)), undefined, 'a malformed answer consumes nothing');
});

t.test('REAUTH-06 REAUTH-07: a late answer, or one of another device, tenant or challenge, is refused', async (t) => {
  const world = await reauthWorld(t);
  const { a, tenantId, clock, device } = world;
  const other = await pairOne(world, device);
  const late = await solve(world, device);
  clock.advance(120_000);
  t.equal(await refusal(a.reauth.answer(tenantId, { deviceId: device.id, ...late })), 'forbidden');
  const mine = await solve(world, device);
  t.equal(await refusal(a.reauth.answer(tenantId, { deviceId: other.id, ...mine })), 'forbidden');
  const [one, two] = [await solve(world, device), await solve(world, device)];
  const crossed = { deviceId: device.id, challengeId: one.challengeId, answer: two.answer };
  t.equal(await refusal(a.reauth.answer(tenantId, crossed)), 'forbidden');
  t.equal(await refusal(a.reauth.answer(ulid(), { deviceId: device.id, ...two })), 'forbidden');
  t.equal(await refusal(a.reauth.answer(tenantId, { deviceId: device.id, ...two })), undefined);
  const recovery = await a.recovery.challenge(tenantId);
  const confused = { deviceId: device.id, challengeId: recovery.challengeId, answer: base64(recovery.challenge) };
  t.equal(await refusal(a.reauth.answer(tenantId, confused)), 'forbidden', 'a recovery challenge is of another kind');
});

t.test('REAUTH-08: a revoked or unknown device gets no token', async (t) => {
  const world = await reauthWorld(t);
  const { a, tenantId, device } = world;
  const other = await pairOne(world, device);
  const solved = await solve(world, other);
  await a.devices.revoke(tenantId, other.id);
  t.equal(await refusal(a.reauth.answer(tenantId, { deviceId: other.id, ...solved })), 'forbidden');
  t.equal(await refusal(a.reauth.challenge(tenantId, { deviceId: other.id })), 'device_revoked');
  t.equal(await refusal(a.reauth.challenge(tenantId, { deviceId: ulid() })), 'device_not_found');
  t.equal(await refusal(a.reauth.challenge(ulid(), { deviceId: device.id })), 'device_not_found');
});

t.test('REAUTH-08: a token issued in a race with a revocation is not accepted', async (t) => {
  const world = await reauthWorld(t);
  const { a, b, tenantId, clock, device } = world;
  for (let round = 0; round < 20; round++) {
    const other = await pairOne(world, device);
    const solved = await solve(world, other);
    const answered = a.reauth.answer(tenantId, { deviceId: other.id, ...solved }).then(
      ({ token }) => token,
      (error: unknown) => {
        if (error instanceof ServiceError) return undefined;
        throw error;
      },
    );
    await b.devices.revoke(tenantId, other.id);
    const token = await answered;
    t.notOk(token !== undefined && (await a.admits(tenantId, token, clock.now())));
  }
});

t.test('expired challenges are deleted', async (t) => {
  const { a, tenantId, clock, device } = await reauthWorld(t);
  for (let n = 0; n < 10; n++) await a.reauth.challenge(tenantId, { deviceId: device.id });
  clock.advance(13 * 60_000);
  await a.recovery.challenge(tenantId);
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM challenges'), 1);
});

const recovery = nodeSodium.signKeyPair(randomBytes(32));

async function start(t: Parameters<typeof newWorld>[0], registered = true, maxDevices = 100): Promise<World> {
  const world = await newWorld(t, { maxDevices });
  const recoveryPubkey = registered ? base64(recovery.publicKey) : null;
  await world.a.bootstrap.claim(world.tenantId, bootstrapBody(newDevice(), { recoveryPubkey }));
  return world;
}

async function signed({ a, tenantId }: World, device = newDevice(), keys = recovery): Promise<RecoverBody> {
  const { challengeId, challenge } = await a.recovery.challenge(tenantId);
  const deviceCert = randomBytes(32);
  const claim = {
    host: 'sync.example',
    tenantId,
    challengeId,
    challenge,
    deviceId: device.id,
    publicKey: device.publicKey,
    deviceCert,
  };
  return {
    challengeId,
    signature: base64(signRecovery(nodeSodium, keys, claim)),
    deviceId: device.id,
    host: claim.host,
    pubkey: base64(device.publicKey),
    deviceCert: base64(deviceCert),
    name: 'Back',
    glyph: 'globe',
  };
}

t.test('RECOV-01 RECOV-02: a device that signs with the recovery key gets a token', async (t) => {
  const world = await start(t);
  const { a, b, tenantId, clock } = world;
  const challenge = await a.recovery.challenge(tenantId);
  t.same(Object.keys(challenge).sort(), ['challenge', 'challengeId', 'tenantId']);
  t.equal(challenge.tenantId, tenantId);
  const body = await signed(world);
  const { device, token } = await b.recovery.recover(tenantId, body);
  t.equal(device.id, body.deviceId);
  t.ok(await a.admits(tenantId, token, clock.now()));
  t.same(b.announced, [tenantId], 'RECOV-08: the other devices are notified');
  const joined = (await a.loader.reload(tenantId, 0))?.devices.at(-1);
  t.match(joined?.view, { id: body.deviceId, name: 'Back', glyph: 'globe' });
  t.equal(base64(joined?.view.cert ?? new Uint8Array()), body.deviceCert);
});

t.test('RECOV-03 RECOV-04: a signature by another key, or over another claim, is refused', async (t) => {
  const world = await start(t);
  const { a, tenantId } = world;
  const stranger = nodeSodium.signKeyPair(randomBytes(32));
  t.equal(await refusal(a.recovery.recover(tenantId, await signed(world, newDevice(), stranger))), 'forbidden');
  const changes: Partial<RecoverBody>[] = [
    { host: 'evil.example' },
    { deviceId: ulid() },
    { pubkey: base64(newDevice().publicKey) },
    { deviceCert: random(32) },
    { signature: random(64) },
  ];
  for (const change of changes) {
    t.equal(await refusal(a.recovery.recover(tenantId, { ...(await signed(world)), ...change })), 'forbidden');
  }
  const [one, two] = [await signed(world), await signed(world)];
  t.equal(await refusal(a.recovery.recover(tenantId, { ...one, challengeId: two.challengeId })), 'forbidden');
  t.equal(await refusal(a.recovery.recover(tenantId, one, 'relay.example')), 'forbidden', 'signed for another host');
  t.same(
    a.foreignHosts,
    [{ tenantId, signedFor: 'sync.example', cameTo: 'relay.example' }],
    'which is reported to the operator',
  );
  t.equal(
    await refusal(a.recovery.recover(tenantId, one, 'sync.example')),
    undefined,
    'the refusal did not consume the challenge',
  );
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices'), 2);
});

t.test('RECOV-05 RECOV-06: a challenge works once and for two minutes', async (t) => {
  const world = await start(t);
  const { a, b, tenantId, clock } = world;
  const body = await signed(world);
  const ends = await outcomes([a, b, a, b].map((instance) => instance.recovery.recover(tenantId, body)));
  t.same(ends.toSorted(), ['forbidden', 'forbidden', 'forbidden', 'ok']);
  const late = await signed(world);
  clock.advance(120_000);
  t.equal(await refusal(a.recovery.recover(tenantId, late)), 'forbidden');
});

t.test('RECOV-07: without a registered key recovery is refused, though a challenge is issued', async (t) => {
  const world = await start(t, false);
  t.equal(await refusal(world.a.recovery.recover(world.tenantId, await signed(world))), 'forbidden');
});

t.test('a recovery by a known device, or beyond the device limit, is refused', async (t) => {
  const world = await start(t, true, 2);
  const { a, tenantId } = world;
  const device = newDevice();
  await a.recovery.recover(tenantId, await signed(world, device));
  t.equal(await refusal(a.recovery.recover(tenantId, await signed(world, device))), 'device_exists');
  t.equal(await refusal(a.recovery.recover(tenantId, await signed(world))), 'device_limit');
});

t.test('DEV-21: however many devices were paired within a day, the owner can recover and claim', async (t) => {
  const world = await start(t, true, 20);
  const { a, tenantId, clock } = world;
  await haveJoined(world, 220);
  const recovered = async (): Promise<unknown> => refusal(a.recovery.recover(tenantId, await signed(world)));
  t.equal(await recovered(), undefined);
  await haveJoined(world, 178);
  t.equal(await recovered(), 'device_limit', 'recoveries have a bound of their own');
  clock.advance(DAY_MS);
  t.equal(await recovered(), undefined, 'the next day');
  await haveJoined(world, 400);
  await a.bootstrap.restart(tenantId);
  t.equal((await claimedWorld(world)).length, 1);
});

t.test('PASS-11: with a password recovery needs a ticket, and a refusal does not consume the ticket', async (t) => {
  const world = await start(t);
  const { a, tenantId } = world;
  const device = newDevice();
  await a.passwords.set(tenantId, { password: 'p' });
  const body = await signed(world, device);
  t.equal(await refusal(a.recovery.recover(tenantId, body)), 'password_required');
  const { ticket: other } = await a.passwords.verify(tenantId, {
    password: 'p',
    pubkey: base64(newDevice().publicKey),
  });
  t.equal(await refusal(a.recovery.recover(tenantId, { ...body, passwordTicket: other })), 'password_required');
  const { ticket } = await a.passwords.verify(tenantId, { password: 'p', pubkey: body.pubkey });
  const wrong = { ...(await signed(world, device)), signature: random(64), passwordTicket: ticket };
  t.equal(await refusal(a.recovery.recover(tenantId, wrong)), 'forbidden', 'the refusal does not consume the ticket');
  t.equal(await refusal(a.recovery.recover(tenantId, { ...body, passwordTicket: ticket })), undefined);
  const again = { ...(await signed(world)), passwordTicket: ticket };
  t.equal(await refusal(a.recovery.recover(tenantId, again)), 'password_required', 'PASS-06: a ticket works once');
});

t.test('a recovery in a race with a restart or a change of the recovery key adds no device', async (t) => {
  for (const restartFirst of [true, false]) {
    const world = await start(t);
    const { a, b, tenantId } = world;
    const body = await signed(world);
    const calls = [() => a.recovery.recover(tenantId, body), () => b.bootstrap.restart(tenantId)];
    const ends = await together(world, restartFirst ? calls.toReversed() : calls);
    t.ok(ends.includes('ok'));
    t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices'), 0, ends.join());
  }
  const world = await start(t);
  const body = await signed(world);
  const wiped = await together(world, [() => world.a.recovery.recover(world.tenantId, body)], (holder) =>
    holder.query('UPDATE tenants SET recovery_pubkey = NULL'),
  );
  t.same(wiped, ['forbidden'], "the key that verified the signature is no longer the tenant's");
});

t.test('PASS-06: of two recoveries at once with one ticket one succeeds', async (t) => {
  const world = await start(t);
  const { a, b, tenantId } = world;
  await a.passwords.set(tenantId, { password: 'p' });
  const { ticket: passwordTicket } = await a.passwords.verify(tenantId, { password: 'p' });
  const [one, two] = [await signed(world), await signed(world)];
  const ends = await together(world, [
    () => a.recovery.recover(tenantId, { ...one, passwordTicket }),
    () => b.recovery.recover(tenantId, { ...two, passwordTicket }),
  ]);
  t.same(ends.toSorted(), ['ok', 'password_required']);
});

t.test('PASS-01 PASS-02 PASS-03 PASS-04 PASS-05: a password is set, changed and verified', async (t) => {
  const world = await newWorld(t);
  await claimedWorld(world);
  const { a, b, tenantId, clock } = world;
  t.same(await a.passwords.exists(tenantId), { exists: false });
  t.equal(
    await refusal(a.passwords.verify(tenantId, { password: 'x' })),
    'password_invalid',
    'no password is right yet',
  );
  t.same(await a.passwords.set(tenantId, { password: 'one' }), { ok: true });
  t.same(await b.passwords.exists(tenantId), { exists: true });
  for (const currentPassword of [undefined, null, '', 'two']) {
    t.equal(await refusal(a.passwords.set(tenantId, { password: 'two', currentPassword })), 'password_invalid');
  }
  await b.passwords.set(tenantId, { password: 'two', currentPassword: 'one' });
  t.equal(await refusal(a.passwords.verify(tenantId, { password: 'one' })), 'password_invalid');
  const verified = await a.passwords.verify(tenantId, { password: 'two' });
  t.same({ ok: verified.ok, expiresAt: verified.expiresAt }, { ok: true, expiresAt: clock.now() + 600_000 });
});

t.test('DEV-15: a device that is revoked before its password is stored sets and removes none', async (t) => {
  const world = await reauthWorld(t);
  const { a, tenantId, device } = world;
  const other = await pairOne(world, device);
  await a.devices.revoke(tenantId, other.id);
  t.equal(await refusal(a.passwords.set(tenantId, { password: 'theirs' }, other.id)), 'device_revoked');
  t.same(await a.passwords.exists(tenantId), { exists: false });
  t.same(await a.passwords.set(tenantId, { password: 'ours' }, device.id), { ok: true });
  t.equal(await refusal(a.passwords.remove(tenantId, { currentPassword: 'ours' }, other.id)), 'device_revoked');
  t.same(await a.passwords.exists(tenantId), { exists: true }, 'nor does it remove one');
});

t.test('of several changes of one password at once one succeeds', async (t) => {
  const world = await newWorld(t);
  await claimedWorld(world);
  const { b, tenantId } = world;
  const set = (password: string, currentPassword?: string) => () =>
    b.passwords.set(tenantId, { password, currentPassword });
  const first = await together(world, [set('p0'), set('p1'), set('p2'), set('p3')]);
  t.equal(first.filter((end) => end === 'ok').length, 1);
  t.equal(first.filter((end) => end === 'password_invalid').length, 3);
  let current = `p${first.indexOf('ok')}`;
  for (let round = 0; round < 5; round++) {
    const ends = await together(
      world,
      [0, 1, 2].map((n) => set(`${round}-${n}`, current)),
    );
    t.equal(ends.filter((end) => end === 'ok').length, 1);
    current = `${round}-${ends.indexOf('ok')}`;
    t.equal(await refusal(b.passwords.verify(tenantId, { password: current })), undefined);
  }
});

t.test('PASS-07 PASS-08: a ticket is bound to time, tenant, key and the password as it was', async (t) => {
  const world = await newWorld(t);
  await claimedWorld(world);
  const { a, tenantId, clock } = world;
  await a.passwords.set(tenantId, { password: 'p' });
  const pubkey = newDevice().publicKey;
  const { ticket } = await a.passwords.verify(tenantId, { password: 'p', pubkey: base64(pubkey) });
  const { ticket: free } = await a.passwords.verify(tenantId, { password: 'p' });
  const shown = async (text: string, scope: { tenantId: string; pubkey: Uint8Array }): Promise<boolean> => {
    const proof = a.tickets.passwordProof(text, scope.tenantId, scope.pubkey);
    return proof !== undefined && (await a.accounts.recoveryState(tenantId, proof))?.passwordShown === true;
  };
  t.ok(await shown(ticket, { tenantId, pubkey }));
  t.ok(await shown(free, { tenantId, pubkey }), 'a ticket without a key fits any key');
  t.notOk(await shown(ticket, { tenantId, pubkey: newDevice().publicKey }));
  t.notOk(await shown(ticket, { tenantId: ulid(), pubkey }));
  t.notOk(await shown(`${ticket.slice(0, -1)}${ticket.endsWith('A') ? 'B' : 'A'}`, { tenantId, pubkey }));
  await a.passwords.set(tenantId, { password: 'p', currentPassword: 'p' });
  t.notOk(await shown(ticket, { tenantId, pubkey }), 'the password was set anew, in the same millisecond');
  const { ticket: fresh } = await a.passwords.verify(tenantId, { password: 'p', pubkey: base64(pubkey) });
  clock.advance(599_999);
  t.ok(await shown(fresh, { tenantId, pubkey }));
  clock.advance(1);
  t.notOk(await shown(fresh, { tenantId, pubkey }));
});

t.test(
  'PASS-13 PASS-14 FAIR-49: passwords are hashed two at a time, tenants in turn, and the queue is bounded',
  async (t) => {
    let working = 0;
    let most = 0;
    const begun: string[] = [];
    const doors: (() => void)[] = [];
    const queue = new PasswordQueue();
    const run = (tenantId: string, side: 'devices' | 'unauthenticated' = 'unauthenticated'): Promise<boolean> =>
      queue.run(tenantId, side, async () => {
        begun.push(tenantId);
        most = Math.max(most, ++working);
        await new Promise<void>((resolve) => doors.push(resolve));
        working--;
        return true;
      });
    const tenants = Array.from({ length: 4 }, (_, n) => `t${n}`);
    const admitted = tenants.flatMap((tenant) => Array.from({ length: 16 }, async () => run(tenant)));
    t.equal(await refusal(run('t0')), 'unavailable', 'beyond the bound of a tenant');
    // One each of tenants that have none, where four tenants have taken all that the others may.
    admitted.push(...Array.from({ length: 64 }, async (_, n) => run(`another ${n}`)));
    t.equal(await refusal(run('another 0')), 'unavailable');
    const error = await run('one more').catch((thrown: unknown) => thrown);
    t.ok(error instanceof ServiceError && (error.retryAfter ?? 0) >= 1, 'beyond the bound for all: with Retry-After');
    // Strangers at the doors of all tenants do not keep out devices.
    admitted.push(run('one more', 'devices'), run('one more', 'devices'));
    for (let n = 0; n < 130; n++) {
      await until('the next one at work', () => doors.length > 0);
      doors.shift()?.();
    }
    t.equal((await Promise.all(admitted)).length, 130);
    t.equal(most, 2);
    const nth = (tenant: string, n: number): number =>
      begun.flatMap((name, at) => (name === tenant ? [at] : []))[n - 1] ?? Infinity;
    const lastFirst = Math.max(...tenants.map((tenant) => nth(tenant, 1)));
    t.ok(
      tenants.every((tenant) => nth(tenant, 3) > lastFirst),
      'each tenant had one hashed before any had three',
    );
    const failed = queue.run('t0', 'unauthenticated', () => Promise.reject(new Error('broken')));
    await t.rejects(failed, { message: 'broken' });
    const after = run('t0');
    await until('it is at work', () => doors.length > 0);
    doors.shift()?.();
    t.equal(await after, true, 'a failure frees its place');
  },
);

t.test('FAIR-49: however many strangers check a password, a device of the tenant is next but one', async (t) => {
  const queue = new PasswordQueue();
  const doors: (() => void)[] = [];
  const run = (side: 'devices' | 'unauthenticated'): Promise<unknown> =>
    queue.run('tenant', side, () => new Promise<void>((resolve) => doors.push(resolve)));
  const strangers = Array.from({ length: 16 }, () => run('unauthenticated'));
  t.equal(await refusal(run('unauthenticated')), 'unavailable');
  let changed = false;
  const device = run('devices').then(() => (changed = true));
  for (let n = 0; n < 17; n++) {
    await until('the next one at work', () => doors.length > 0);
    if (n === 3) t.ok(changed, 'after the stranger at work and one that waited');
    doors.shift()?.();
  }
  await Promise.all([...strangers, device]);
});

t.test('PASS-04 PASS-05: with the real Argon2id the right password gives a ticket, a wrong one does not', async (t) => {
  const world = await newWorld(t, { hasher: nodePasswordHasher });
  await claimedWorld(world);
  const { a, b, tenantId, clock } = world;
  const password = random(32);
  await a.passwords.set(tenantId, { password });
  t.match(await valueOf(a.pool, 'SELECT password_hash AS value FROM tenants'), /^\$argon2id\$/);
  t.match(await b.passwords.verify(tenantId, { password }), {
    ok: true,
    ticket: String,
    expiresAt: clock.now() + 600_000,
  });
  t.equal(await refusal(a.passwords.verify(tenantId, { password: random(32) })), 'password_invalid');
});
