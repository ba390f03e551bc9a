/** Pairing by six words, second half: the answer of the existing device; revocations and passwords in between. */
import t from 'tap';
import { ulid } from 'ulid';
import {
  base64,
  claimedWorld,
  DAY_MS,
  generationOf,
  haveJoined,
  joinBody,
  newCode,
  newDevice,
  newWorld,
  outcomes,
  pairOne,
  random,
  refusal,
  together,
  valueOf,
  wrapBody,
  type Instance,
  type TestDevice,
} from './support/accounts.js';
import { ask, open, openIn, request, stays, waits, type Opened } from './support/pairing.js';

t.test('PAIR-16: only the device that opened the session may wrap, and only once a device has requested', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing } = world;
  const other = await pairOne(world, existing);
  const session = await openIn(world, existing);
  const device = newDevice();
  t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(session.code))), 'pair_invalid');
  await request(session, device);
  t.same((await a.pairing.requests(tenantId, other.id)).requests, [], 'PAIR-12');
  t.equal(await refusal(a.pairing.wrap(tenantId, other.id, wrapBody(session.code))), 'pair_invalid');
  t.equal(await refusal(a.pairing.wrap(tenantId, other.id, { code: session.code, reject: true })), 'pair_invalid');
  t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(session.code))), undefined);
});

t.test('PAIR-14: a request is listed for as long as it can be answered', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing, clock } = world;
  await request(world, newDevice());
  const shown = async (): Promise<number> => (await a.pairing.requests(tenantId, existing.id)).requests.length;
  clock.advance(299_999);
  t.equal(await shown(), 1);
  clock.advance(1);
  t.equal(await shown(), 0);
});

t.test('PAIR-18 PAIR-19: a reject ends the session', async (t) => {
  const world = await open(t);
  const { a, b, tenantId, existing, code, clock } = world;
  const device = newDevice();
  const joining = b.pairing.fetchNpk(tenantId, joinBody(code, device), stays());
  await waits(b, () => clock.waiting);
  const before = await generationOf(a.pool, tenantId);
  t.same(await a.pairing.wrap(tenantId, existing.id, { code, reject: true }), { ok: true });
  t.equal(await generationOf(a.pool, tenantId), before + 1);
  b.pairing.changed(tenantId);
  t.equal(await refusal(joining), 'pair_invalid');
  t.equal(await ask(world, device), 'pair_invalid');
  t.equal(await ask(world, newDevice()), 'pair_invalid');
  t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code })), 'pair_invalid');
  t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(code))), 'pair_invalid');
  t.same(
    await a.pairing.wrap(tenantId, existing.id, { code, reject: true }),
    { ok: true },
    'a reject whose reply was lost may be repeated',
  );
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices'), 1);
});

t.test('PAIR-26: a device that rejects again and again leaves no rejected sessions behind', async (t) => {
  let world = await open(t);
  const { a, tenantId, existing } = world;
  for (let times = 0; times < 3; times++) {
    await request(world, newDevice());
    await a.pairing.wrap(tenantId, existing.id, { code: world.code, reject: true });
    const { code } = world;
    world = await openIn(world, existing);
    t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code })), 'pair_invalid', 'its code stays invalid');
  }
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM pair_sessions'), 1, 'the open one is left');
});

t.test('DEV-21: devices are not paired and revoked without end, which the new device learns first', async (t) => {
  for (const [maxDevices, most] of [
    [20, 200],
    [5, 100],
  ] as const) {
    const world = await open(t, { maxDevices });
    const { a, tenantId, existing, code, clock } = world;
    await haveJoined(world, most - 2);
    const device = newDevice();
    await request(world, device);
    await haveJoined(world, 1);
    await a.pairing.wrap(tenantId, existing.id, wrapBody(code));
    t.match(await ask(world, device), { device: { id: device.id } }, 'a request that was accepted can be approved');
    const refused = await openIn(world, existing);
    t.equal(await ask(refused, newDevice()), 'device_limit');
    clock.advance(DAY_MS);
    t.equal(await ask(await openIn(world, existing), newDevice()), 'pending', 'the next day');
  }
});

t.test('the same wrap again succeeds, another one is a conflict', async (t) => {
  const world = await open(t);
  const { a, b, tenantId, existing, code } = world;
  await request(world, newDevice());
  const wrap = wrapBody(code);
  const ends = await outcomes([a, b, a, b].map(({ pairing }) => pairing.wrap(tenantId, existing.id, wrap)));
  t.same(ends, ['ok', 'ok', 'ok', 'ok']);
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices'), 2);
  t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(code))), 'conflict');
  t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, { code, reject: true })), 'conflict');
});

t.test('of a concurrent approval and rejection one wins, and the new device gets that result', async (t) => {
  const world = await open(t);
  const { a, b, tenantId, existing } = world;
  for (let round = 0; round < 4; round++) {
    const session = await openIn(world, existing);
    const device = newDevice();
    await request(session, device);
    const { code } = session;
    const ends = await together(world, [
      () => a.pairing.wrap(tenantId, existing.id, wrapBody(code)),
      () => b.pairing.wrap(tenantId, existing.id, { code, reject: true }),
    ]);
    t.equal(ends.filter((end) => end === 'ok').length, 1);
    const joined = (await a.devices.list(tenantId, '')).devices.some(({ id }) => id === device.id);
    t.equal(joined, ends[0] === 'ok');
    t.equal(typeof (await ask(session, device)) === 'object', joined);
  }
});

t.test('an invalid wrap is refused', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing, code } = world;
  await request(world, newDevice());
  for (const more of [
    { wrappedMasterKey: undefined },
    { wrappedMasterKey: null },
    { wrappedMasterKey: random(31) },
    { wrappedMasterKey: random(1_025) },
    { deviceCert: random(31) },
    { confirmation: random(33) },
    { reject: true },
  ]) {
    t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, { ...wrapBody(code), ...more })), 'validation');
  }
});

t.test('PAIR-22: two concurrent pairings do not exceed MAX_DEVICES', async (t) => {
  const world = await newWorld(t, { maxDevices: 3 });
  const { a, b, tenantId } = world;
  const [one, two] = (await claimedWorld(world, 1)) as [TestDevice, TestDevice];
  const sessions = [await openIn(world, one), await openIn(world, two)] as const;
  for (const session of sessions) await request(session, newDevice());
  const ends = await together(world, [
    () => a.pairing.wrap(tenantId, one.id, wrapBody(sessions[0].code)),
    () => b.pairing.wrap(tenantId, two.id, wrapBody(sessions[1].code)),
  ]);
  t.same(ends.toSorted(), ['device_limit', 'ok']);
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices'), 3);
});

t.test('PAIR-21: two concurrent pairings of one id make one device', async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId } = world;
  const [one, two] = (await claimedWorld(world, 1)) as [TestDevice, TestDevice];
  const sessions = [await openIn(world, one), await openIn(world, two)] as const;
  const id = ulid();
  for (const session of sessions) await request(session, { ...newDevice(), id });
  const ends = await together(world, [
    () => a.pairing.wrap(tenantId, one.id, wrapBody(sessions[0].code)),
    () => b.pairing.wrap(tenantId, two.id, wrapBody(sessions[1].code)),
  ]);
  t.same(ends.toSorted(), ['device_exists', 'ok']);
});

t.test('the sessions of a revoked device end, whether open, requested or wrapped', async (t) => {
  const world = await newWorld(t);
  const { a, tenantId } = world;
  const [first] = (await claimedWorld(world)) as [TestDevice];
  for (const state of ['open', 'requested', 'wrapped']) {
    const existing = await pairOne(world, first);
    const session = await openIn(world, existing);
    const device = newDevice();
    if (state !== 'open') await request(session, device);
    if (state === 'wrapped') await a.pairing.wrap(tenantId, existing.id, wrapBody(session.code));
    await a.devices.revoke(tenantId, existing.id, first.id);
    t.equal(await ask(session, device), 'pair_invalid', state);
    t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(session.code))), 'device_revoked');
    t.equal(
      await refusal(a.pairing.init(tenantId, existing.id, { code: newCode(), epk: random(32) })),
      'device_revoked',
    );
  }
  t.equal(await refusal(a.pairing.init(tenantId, ulid(), { code: newCode(), epk: random(32) })), 'bad_token');
});

t.test('PAIR-25: a session that was wrapped in time gives its device the key later too, and no other', async (t) => {
  const world = await open(t);
  const { a, b, tenantId, existing, code, clock } = world;
  const device = newDevice();
  await request(world, device);
  await a.pairing.wrap(tenantId, existing.id, wrapBody(code));
  clock.advance(300_000);
  const again = await b.pairing.fetchNpk(tenantId, joinBody(code, device), stays());
  t.match(again, { device: { id: device.id }, token: String });
  clock.advance(300_000);
  t.match(
    await ask(world, device),
    { device: { id: device.id } },
    'the result is given for as long as the session is kept',
  );
  t.equal(await ask(world, newDevice()), 'pair_expired', 'PAIR-06: another key');
  t.equal(await refusal(a.pairing.fetchEpk(tenantId, { code })), 'pair_expired');
  clock.advance(300_001);
  await openIn(world, existing);
  t.equal(await ask(world, device), 'pair_invalid', 'the session is removed');
});

t.test('a new device that is revoked before it fetched its key gets none', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing, code } = world;
  const device = newDevice();
  await request(world, device);
  await a.pairing.wrap(tenantId, existing.id, wrapBody(code));
  await a.devices.revoke(tenantId, device.id, existing.id);
  t.equal(await ask(world, device), 'pair_invalid');
});

t.test('in a race of revocation and wrap no device joins by a revoked device', async (t) => {
  const world = await newWorld(t);
  const { a, b, tenantId } = world;
  const [first] = (await claimedWorld(world)) as [TestDevice];
  for (let round = 0; round < 6; round++) {
    const existing = await pairOne(world, first);
    const session = await openIn(world, existing);
    const device = newDevice();
    await request(session, device);
    const calls = [
      () => a.pairing.wrap(tenantId, existing.id, wrapBody(session.code)),
      () => b.devices.revoke(tenantId, existing.id, first.id),
    ];
    // The first call to take the lock goes first: both orders occur.
    const ends = await together(world, round % 2 === 0 ? calls : calls.toReversed());
    const [wrapped, revoked] = round % 2 === 0 ? ends : ends.toReversed();
    t.equal(revoked, 'ok');
    const order = await a.pool.query<{ id: string; at: number }>(
      'SELECT id, token_epoch AS at FROM devices WHERE id = ANY ($1)',
      [[existing.id, device.id]],
    );
    const at = (id: string): number | undefined => order.rows.find((row) => row.id === id)?.at;
    if (wrapped === 'ok')
      t.ok((at(device.id) ?? 0) < (at(existing.id) ?? 0), 'the new device joined before the revocation');
    else t.equal(at(device.id), undefined);
  }
});

t.test('after a race of restart and wrap no device and no session is left', async (t) => {
  for (let round = 0; round < 2; round++) {
    const world = await open(t);
    const { a, b, tenantId, existing, code } = world;
    const device = newDevice();
    await request(world, device);
    const calls = [() => a.pairing.wrap(tenantId, existing.id, wrapBody(code)), () => b.bootstrap.restart(tenantId)];
    await together(world, round % 2 === 0 ? calls : calls.toReversed());
    t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices'), 0);
    t.equal(await ask(world, device), 'pair_invalid');
  }
});

t.test('INST-08: a write is checked against the devices as they are when it is committed', async (t) => {
  // A commit compares the generation: it must have risen whenever the devices differ from those that were checked.
  const world = await newWorld(t);
  const { a, b, tenantId } = world;
  const [first] = (await claimedWorld(world)) as [TestDevice];
  const seen = new Map<number, string>();
  let done = false;
  const reader = (async () => {
    while (!done) {
      const snapshot = await b.loader.load(tenantId);
      const devices = snapshot?.devices.map(({ id, revoked }) => `${id} ${revoked}`).join();
      const before = seen.get(snapshot?.generation ?? 0);
      if (before !== undefined && before !== devices)
        t.fail(`generation ${snapshot?.generation} has two sets of devices`);
      seen.set(snapshot?.generation ?? 0, devices ?? '');
    }
  })();
  // A slow reader gets more rounds: it has compared nothing before it has seen several generations.
  for (let round = 0; round < 15 || seen.size <= 5; round++) {
    const device = await pairOne(world, first);
    await a.devices.revoke(tenantId, device.id, first.id);
    // Reads in such quick succession wait for each other.
    world.clock.advance(25);
  }
  done = true;
  world.clock.advance(25);
  await reader;
  t.ok(seen.size > 5);
});

t.test('PASS-09 PASS-10: once a password is set a ticket is needed; a call without it uses up nothing', async (t) => {
  const world = await open(t);
  const { a, tenantId, existing } = world;
  await a.passwords.set(tenantId, { password: 'p' });
  const device = newDevice();
  const pubkey = base64(device.publicKey);
  t.equal(await ask(world, device), 'password_required');
  t.equal(await ask(world, device, { passwordTicket: 'nonsense' }), 'password_required');
  const { ticket: other } = await a.passwords.verify(tenantId, {
    password: 'p',
    pubkey: base64(newDevice().publicKey),
  });
  t.equal(await ask(world, device, { passwordTicket: other }), 'password_required');
  const { ticket } = await a.passwords.verify(tenantId, { password: 'p', pubkey });
  t.equal(
    await ask(world, { ...device, id: existing.id }, { passwordTicket: ticket }),
    'device_exists',
    'device_exists does not use up the ticket',
  );
  t.equal(await ask(world, device, { passwordTicket: ticket }), 'pending');
  t.equal(await ask(world, device, { passwordTicket: ticket }), 'pending', 'the same call continues');
  t.equal(await ask(world, device), 'pending');
  await a.pairing.wrap(tenantId, existing.id, wrapBody(world.code));
  t.match(await ask(world, device, { passwordTicket: ticket }), { device: { id: device.id } });
});

t.test('PASS-06: a ticket that was used for one session is not valid for another', async (t) => {
  const world = await open(t);
  const { a, b, tenantId, existing } = world;
  await a.passwords.set(tenantId, { password: 'p' });
  const { ticket } = await a.passwords.verify(tenantId, { password: 'p' });
  const other = await newOther(world);
  const sessions = [await openIn(world, existing), await openIn(world, other)] as const;
  const ask = (instance: Instance, code: string) => () =>
    instance.pairing.fetchNpk(tenantId, joinBody(code, newDevice(), { passwordTicket: ticket }), AbortSignal.abort());
  const ends = await together(world, [ask(a, sessions[0].code), ask(b, sessions[1].code)]);
  t.same(ends.toSorted(), ['ok', 'password_required']);
});

t.test(
  'a password that is set or changed while a request waits must be shown before the key is released',
  async (t) => {
    const world = await open(t);
    const { a, tenantId, existing, code } = world;
    const device = newDevice();
    await request(world, device);
    await a.passwords.set(tenantId, { password: 'p' });
    t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(code))), 'password_required');
    t.equal(await ask(world, device), 'password_required');
    const { ticket } = await a.passwords.verify(tenantId, { password: 'p' });
    t.equal(await ask(world, device, { passwordTicket: ticket }), 'pending');
    await a.passwords.set(tenantId, { password: 'q', currentPassword: 'p' });
    t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(code))), 'password_required');
    const { ticket: again } = await a.passwords.verify(tenantId, { password: 'q' });
    t.equal(await ask(world, device, { passwordTicket: again }), 'pending');
    t.equal(await refusal(a.pairing.wrap(tenantId, existing.id, wrapBody(code))), undefined);
    t.match(await ask(world, device), { device: { id: device.id } });
  },
);

/** A second device, paired while a password is set. */
async function newOther(world: Opened): Promise<TestDevice> {
  const device = newDevice();
  const { ticket } = await world.a.passwords.verify(world.tenantId, { password: 'p' });
  const session = await openIn(world, world.existing);
  await request(session, device, { passwordTicket: ticket });
  await world.a.pairing.wrap(world.tenantId, world.existing.id, wrapBody(session.code));
  return device;
}
