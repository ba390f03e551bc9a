/** Pairing by six words, on a real database and two instances: codes, and the new device. */
import t from 'tap';
import { ulid } from 'ulid';
import { pairCode, Waiter, Waiters } from '../src/server/pairing/pairing.js';
import {
  base64,
  claimedWorld,
  generationOf,
  joinBody,
  newCode,
  newDevice,
  newWorld,
  pairOne,
  random,
  refusal,
  together,
  announced,
  wrapBody,
  type TestDevice,
} from './support/accounts.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { ask, heldBy, open, openIn, request, stays, waits } from './support/pairing.js';

t.test('PAIR-01 PAIR-04 PAIR-15 PAIR-23: a pairing with its steps on two instances completes', async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId, clock } = world;
  const [existing] = (await claimedWorld(world)) as [TestDevice];
  const code = newCode();
  const epk = random(32);
  const opened = await a.pairing.init(tenantId, existing.id, { code: code.toUpperCase().replaceAll(' ', '-'), epk });
  t.same(opened, { lookupId: opened.lookupId, code, expiresAt: clock.now() + 300_000 });
  const fetched = await b.pairing.fetchEpk(tenantId, { code });
  t.same({ ...fetched, epk: base64(fetched.epk) }, { epk, expiresAt: opened.expiresAt, tenantId });

  const device = newDevice();
  const body = joinBody(code, device);
  const before = await generationOf(a.pool, tenantId);
  const asked = announced(b);
  const joining = b.pairing.fetchNpk(tenantId, body, stays());
  await asked;
  t.equal(await generationOf(a.pool, tenantId), before + 1, 'PAIR-11: the existing device has to be notified');
  const { requests } = await a.pairing.requests(tenantId, existing.id);
  const [waiting] = requests;
  t.same(
    {
      ...waiting,
      pubkey: base64(waiting?.pubkey ?? new Uint8Array()),
      attestation: base64(waiting?.attestation ?? new Uint8Array()),
    },
    {
      lookupId: opened.lookupId,
      code,
      deviceId: device.id,
      host: 'sync.example',
      pubkey: body.pubkey,
      name: 'Phone',
      glyph: 'phone',
      attestation: body.attestation,
      expiresAt: opened.expiresAt,
    },
    'PAIR-14',
  );
  const snapshot = await a.loader.load(tenantId);
  t.same(snapshot?.pairRequests, [{ existingDevice: existing.id, frame: { type: 'pair_request', ...waiting } }]);
  t.equal(snapshot?.devices.length, 1, 'PAIR-17: no device joins before the existing one has approved');

  const wrap = wrapBody(code);
  t.same(await a.pairing.wrap(tenantId, existing.id, wrap), { ok: true });
  b.pairing.changed(tenantId);
  const paired = await joining;
  if (paired === 'pending') return t.fail('still pending');
  t.same(paired.device, { ...paired.device, id: device.id, name: 'Phone', glyph: 'phone', pairedAt: clock.now() });
  t.equal(base64(paired.device.pubkey), body.pubkey);
  t.equal(base64(paired.wrappedMasterKey), wrap.wrappedMasterKey);
  t.equal(base64(paired.deviceCert ?? new Uint8Array()), wrap.deviceCert);
  t.equal(base64(paired.confirmation ?? new Uint8Array()), wrap.confirmation);
  t.ok(await a.admits(tenantId, paired.token, clock.now()), 'PAIR-08: the token works');
  t.equal(await generationOf(a.pool, tenantId), before + 2, 'INST-11: writes are checked again');
  t.equal(heldBy(b.pairing), 0);
  t.same((await a.pairing.requests(tenantId, existing.id)).requests, []);
});

t.test('PAIR-02: a code in use is a conflict, the code of an ended session is not', async (t) => {
  const world = await open(t);
  const { a, b, tenantId, existing, code, clock } = world;
  const other = await pairOne(world, existing);
  const fresh = await openIn(world, existing);
  t.equal(await refusal(b.pairing.init(tenantId, other.id, { code: fresh.code, epk: random(32) })), 'conflict');
  t.equal(await refusal(b.pairing.init(tenantId, existing.id, { code: fresh.code, epk: random(32) })), 'conflict');
  t.equal(
    await refusal(b.pairing.init(tenantId, other.id, { code, epk: random(32) })),
    undefined,
    'a session that was ended by a newer one frees its code',
  );
  clock.advance(300_000);
  t.equal(await refusal(b.pairing.init(tenantId, other.id, { code: fresh.code, epk: random(32) })), undefined);
  const found = await a.pairing.fetchEpk(tenantId, { code: fresh.code });
  t.equal(found.expiresAt, clock.now() + 300_000, 'of two sessions with this code the live one is found');
});

t.test('PAIR-02: of several devices that choose one code at once, one gets it', async (t) => {
  const world = await newWorld(t);
  const { b, tenantId } = world;
  const devices = await claimedWorld(world, 3);
  for (let round = 0; round < 3; round++) {
    const body = { code: newCode(), epk: random(32) };
    const ends = await together(
      world,
      devices.map((device) => () => b.pairing.init(tenantId, device.id, body)),
    );
    t.same(ends.toSorted(), ['conflict', 'conflict', 'conflict', 'ok']);
  }
});

t.test('PAIR-03: a new session ends the old one', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing, code } = world;
  const device = newDevice();
  await request(world, device);
  const before = await generationOf(a.pool, tenantId);
  const second = await openIn(world, existing);
  t.equal(await generationOf(a.pool, tenantId), before + 1, 'the end of a request is notified');
  t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code })), 'pair_invalid');
  t.equal(await ask(world, device), 'pair_invalid');
  t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code: second.code })), undefined);
  t.same((await a.loader.load(tenantId))?.pairRequests, []);
});

t.test('a new session does not remove a key that waits for its device', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing, code } = world;
  const device = newDevice();
  await request(world, device);
  await a.pairing.wrap(tenantId, existing.id, wrapBody(code));
  await openIn(world, existing);
  t.match(await ask(world, device), { device: { id: device.id } });
});

t.test('PAIR-05 PAIR-06: an unknown code is pair_invalid, a late one pair_expired', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing, code, clock } = world;
  const device = newDevice();
  for (const wrong of [
    newCode(),
    'one two three',
    '',
    ' '.repeat(50),
    `${code} more`,
    '\u0000',
    'ünï cödë in six wörds hërë',
    ulid(),
  ]) {
    t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code: wrong })), 'pair_invalid', wrong);
    t.equal(await refusal(a.pairing.fetchNpk(tenantId, joinBody(wrong, device), stays())), 'pair_invalid');
    t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(wrong))), 'pair_invalid');
  }
  t.equal(
    await refusal(a.pairing.init(tenantId, existing.id, { code: 'five words are too few', epk: random(32) })),
    'pair_invalid',
  );
  t.equal(await refusal(a.pairing.fetchEpk(ulid(), { code })), 'pair_invalid', 'TOKEN-26: another tenant');
  clock.advance(299_999);
  t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code })), undefined);
  clock.advance(1);
  t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code })), 'pair_expired');
  t.equal(await ask(world, device), 'pair_expired');
  t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(code))), 'pair_expired');
  clock.advance(600_000);
  t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code })), 'pair_expired');
  clock.advance(1);
  await openIn(world, existing);
  t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code })), 'pair_invalid', 'the session is removed');
});

t.test('PAIR-06: a call that is held when the session expires gets pair_expired', async (t) => {
  const world = await open(t);
  const { b, tenantId, code, clock } = world;
  clock.advance(290_000);
  const joining = refusal(b.pairing.fetchNpk(tenantId, joinBody(code, newDevice()), stays()));
  let ended = false;
  const watched = joining.finally(() => {
    ended = true;
  });
  for (let ms = 0; ms < 25_000 && !ended; ms += 1_000) {
    await waits(
      b,
      () => clock.waiting,
      () => ended,
    );
    if (!ended) clock.advance(1_000);
  }
  t.equal(await watched, 'pair_expired');
  t.equal(heldBy(b.pairing), 0);
});

t.test('a code is accepted in any case, width, dash and white space', (t) => {
  for (const spelled of [
    'Able-Bake  car\tdog-EASY fox',
    'able\u2014bake\u00a0car dog easy fox ',
    'ａble bake car dog easy fox',
  ]) {
    t.equal(pairCode(spelled), 'able bake car dog easy fox');
  }
  t.end();
});

t.test('PAIR-07: a call waits for 25 s, checking again and again; the next call continues', async (t) => {
  const world = await open(t);
  const { b, tenantId, clock } = world;
  const device = newDevice();
  const joining = b.pairing.fetchNpk(tenantId, joinBody(world.code, device), stays());
  const started = clock.now();
  // The time of its statements counts too.
  clock.advance(10_000);
  let ended = false;
  const watched = joining.finally(() => {
    ended = true;
  });
  for (;;) {
    await waits(
      b,
      () => clock.waiting,
      () => ended,
    );
    if (ended) break;
    clock.advance(1_000);
  }
  t.equal(await watched, 'pending');
  t.equal(clock.now() - started, 25_000);
  t.equal(heldBy(b.pairing), 0);
  t.equal(await ask(world, device), 'pending', 'PAIR-09');
});

t.test('a wrap on another instance is found within 2 s without any notification', async (t) => {
  const world = await open(t);
  const { a, b, tenantId, existing, code, clock } = world;
  const device = newDevice();
  const joining = b.pairing.fetchNpk(tenantId, joinBody(code, device), stays());
  await waits(b, () => clock.waiting);
  await a.pairing.wrap(tenantId, existing.id, wrapBody(code));
  clock.advance(2_000);
  t.match(await joining, { device: { id: device.id } });
});

t.test('a change that arrives while a held call reads the session is not lost', async (t) => {
  const clock = new TestClock();
  const waiter = new Waiter('tenant', 'session', 1);
  waiter.notify();
  t.equal(await waiter.next(clock, 1_000), 'look');
  t.equal(clock.waiting, 0, 'the call did not wait');
  const next = waiter.next(clock, 1_000);
  t.equal(clock.waiting, 1, 'one notification causes one read');
  waiter.end();
  t.equal(await next, 'end');
  t.equal(await waiter.next(clock, 1_000), 'end');
});

t.test('PAIR-24: a session has one held call: a second replaces it, a caller that leaves is released', async (t) => {
  const world = await open(t);
  const { b, tenantId, code, clock } = world;
  const body = joinBody(code, newDevice());
  const first = b.pairing.fetchNpk(tenantId, body, stays());
  await waits(b, () => clock.waiting);
  const caller = new AbortController();
  const second = b.pairing.fetchNpk(tenantId, body, caller.signal);
  t.equal(await first, 'pending');
  await waits(b, () => clock.waiting);
  t.equal(heldBy(b.pairing), 1);
  caller.abort();
  t.equal(await second, 'pending');
  t.equal(heldBy(b.pairing), 0);
  t.equal(clock.waiting, 0, 'no timer is left');
});

t.test('PAIR-07: a call is held no longer where the clock is set back', async (t) => {
  const world = await open(t);
  const { b, tenantId, code, clock } = world;
  const held = b.pairing.fetchNpk(tenantId, joinBody(code, newDevice()), stays());
  await waits(b, () => clock.waiting);
  clock.setBy(-3_600_000);
  let outcome: unknown;
  void held.then((one) => (outcome = one));
  for (let seconds = 0; seconds < 30 && outcome === undefined; seconds += 2) {
    clock.advance(2_000);
    await until('its next look, or its end', () => clock.waiting > 0 || outcome !== undefined);
  }
  t.equal(outcome, 'pending');
});

t.test('PAIR-24: of two calls the later one is held, whichever reads the database faster', async (t) => {
  const waiters = new Waiters();
  const clock = new TestClock();
  const [slow, fast] = [waiters.arrive(), waiters.arrive()];
  const later = waiters.add('tenant', 'session', fast);
  const earlier = waiters.add('tenant', 'session', slow);
  t.equal(await earlier.next(clock, 1), 'end', 'the call that its client has replaced ends');
  waiters.remove(earlier);
  later.notify();
  t.equal(await later.next(clock, 1), 'look', 'the later call is still held');
  t.equal(waiters['tenants'].size, 1);
  const third = waiters.add('tenant', 'session', waiters.arrive());
  t.equal(await later.next(clock, 1), 'end');
  waiters.remove(third);
  t.equal(waiters['tenants'].size, 0);
});

t.test('PAIR-09 PAIR-10 PAIR-25: the same key continues and gets the result again, another is refused', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing, code, clock } = world;
  const device = newDevice();
  await request(world, device);
  const before = await generationOf(a.pool, tenantId);
  t.equal(await ask(world, { ...newDevice(), id: device.id }), 'pair_invalid');
  t.equal(await ask(world, device, { name: 'Other name' }), 'pending');
  t.equal((await a.pairing.requests(tenantId, existing.id)).requests[0]?.name, 'Phone', 'the first request stands');
  t.equal(await generationOf(a.pool, tenantId), before, 'a repeated request notifies nobody');
  await a.pairing.wrap(tenantId, existing.id, wrapBody(code));
  t.equal(await ask(world, newDevice()), 'pair_invalid');
  const first = (await ask(world, device)) as { token: string };
  t.same(await ask(world, device), first, 'a lost reply can be fetched again');
  t.ok(await a.admits(tenantId, first.token, clock.now()));
  clock.advance(300_000);
  t.match(
    await ask(world, device),
    { device: { id: device.id }, token: String },
    'a session that was wrapped in time gives the result later',
  );
  t.equal(await ask(world, newDevice()), 'pair_expired');
});

t.test('PAIR-10: of two keys that request at once one gets the session', async (t) => {
  const world = await open(t);
  const { a, b, tenantId, existing } = world;
  for (let round = 0; round < 3; round++) {
    const { code } = await openIn(world, existing);
    const asks = [a, b].map((instance) => () => {
      return instance.pairing.fetchNpk(tenantId, joinBody(code, newDevice()), AbortSignal.abort());
    });
    t.same((await together(world, asks)).toSorted(), ['ok', 'pair_invalid']);
    t.equal((await a.pairing.requests(tenantId, existing.id)).requests.length, 1);
  }
});

t.test('PAIR-20: a device without id, host and certificate is paired; the server generates its id', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing, code } = world;
  const device = newDevice();
  const bare = { deviceId: undefined, host: undefined };
  await request(world, device, bare);
  const [waiting] = (await a.pairing.requests(tenantId, existing.id)).requests;
  t.match(waiting, { host: null, deviceId: /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/ });
  await a.pairing.wrap(tenantId, existing.id, { code, wrappedMasterKey: random(80) });
  t.match(await ask(world, device, bare), {
    device: { id: waiting?.deviceId },
    deviceCert: null,
    confirmation: null,
  });
});

t.test('PAIR-21 PAIR-22: a known id or a device over the limit is refused, the session stays free', async (t) => {
  const world = await open(t, { maxDevices: 2 });
  const { a, tenantId, existing, code } = world;
  t.equal(await ask(world, { ...newDevice(), id: existing.id }), 'device_exists');
  const second = newDevice();
  await request(world, second);
  await a.pairing.wrap(tenantId, existing.id, wrapBody(code));
  const full = await openIn(world, existing);
  t.equal(await ask(full, newDevice()), 'device_limit');
  await a.devices.revoke(tenantId, second.id);
  t.equal(await ask(full, second), 'device_exists', 'a revoked id is known too');
  t.equal(await ask(full, newDevice()), 'pending', 'the session is still free');
});

t.test('DEV-09 DEV-11: an invalid request is refused, and the session stays free', async (t) => {
  const world = await open(t);
  const device = newDevice();
  for (const more of [
    { name: 'a\u202eb' },
    { host: 'a\u0000b' },
    { host: 'a b' },
    { pubkey: base64(new Uint8Array(32)) },
    { pubkey: random(31) },
    { attestation: random(31) },
  ]) {
    t.equal(await ask(world, device, more), 'validation', JSON.stringify(more));
  }
  t.equal(await ask(world, newDevice()), 'pending');
  const { a, tenantId, existing } = world;
  t.equal(await refusal(a.pairing.init(tenantId, existing.id, { code: newCode(), epk: random(16) })), 'validation');
});
