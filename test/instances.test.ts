/** Several instances on one database agree, whichever of them is queried. */
import t, { type Test } from 'tap';
import { openClient } from '../src/server/storage/database.js';
import { TenantRegistry } from '../src/server/tenant/registry.js';
import { TestClock } from './support/clock.js';
import { claim, edited, join, mustWrite, newItem, write, type TestDevice } from './support/devices.js';
import { until } from './support/events.js';
import { inLongRun } from './support/long.js';
import { temporaryFolder, testDatabase, type WithTeardown } from './support/postgres.js';
import { runServer, type Running } from './support/server.js';
import {
  barrier,
  changesOf,
  difference,
  listAll,
  type Listing,
  Mirror,
  notRising,
  range,
  startWriters,
  untilVersion,
  versionsOf,
} from './support/stream.js';
import { TcpProxy } from './support/tcp-proxy.js';
import { SHAPES, type Socket, type Wire } from './support/wire.js';

t.setTimeout(600_000);

interface Pair {
  readonly one: Running;
  readonly two: Running;
  readonly wires: readonly [Wire, Wire];
  readonly first: TestDevice;
  readonly second: TestDevice;
  readonly all: string[];
  /** Waits until a heartbeat of the second is back: after its clock was advanced it would count as late. */
  readonly back: (beat: number) => Promise<void>;
}

/**
 * Two instances; with clocks that stand still, the first announces no writes to the second, and the second compares
 * nothing. `deaf`: the second receives nothing at all, over connections that stay open; false: all, through a proxy.
 */
async function pair(
  t: WithTeardown,
  clocks: { one?: TestClock; two?: TestClock; deaf?: boolean; env?: Record<string, string> } = {},
): Promise<Pair> {
  const database = await testDatabase(t);
  const { env } = clocks;
  const one = await runServer(t, { database, clock: clocks.one, env });
  const first = await claim(one.wire);
  const second = await join(one.wire, first, { name: 'second' });
  const proxy = clocks.deaf === undefined ? undefined : await TcpProxy.before(t, database.url);
  const link = proxy && { LISTEN_DATABASE_URL: proxy.through(database.url) };
  const two = await runServer(t, { database, clock: clocks.two, env: { ...env, ...link } });
  const back = (beat: number): Promise<void> =>
    until(`heartbeat ${beat} is back`, () => proxy?.carried(`"beat":${beat}`) ?? true);
  await back(2);
  if (clocks.deaf) proxy?.swallow(true);
  return { one, two, wires: [one.wire, two.wire], first, second, all: [first.id, second.id], back };
}

async function live(wire: Wire, device: TestDevice, more: { shape?: 'a' | 'b'; acks?: boolean } = {}): Promise<Socket> {
  const socket = await wire.connect({ shape: more.shape ?? 'a', token: device.token });
  await socket.hello(0, { acks: more.acks ?? false });
  return socket;
}

/** Ends the service's connections of a name, at least one: those ended before may still be reconnecting. */
async function terminate(server: Running, name: string): Promise<void> {
  const text = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE $1 AND pid <> pg_backend_pid()`;
  await until(`a connection ${name}`, async () => (await server.sql(text, [name])).length > 0);
}

t.test('two instances that notify each other', async (t) => {
  const { one, two, wires, first, second, all } = await pair(t);

  t.test(
    'INST-01 INST-09: with writers and sockets on both instances every version arrives once, in order, without a gap',
    async (t) => {
      const sockets = await Promise.all(
        wires.flatMap((wire) => SHAPES.map(async (shape) => live(wire, first, { shape, acks: true }))),
      );
      const start = Number(sockets[0]?.of('caught_up')[0]?.['version']);
      const writing = startWriters({
        wires,
        devices: [first, second, second],
        writers: 12,
        insertsOnly: true,
        limit: 1_200,
      });
      await writing.until(1_200);
      await writing.stop();
      t.same([writing.refusals, writing.errors], [[], []]);
      const head = start + writing.acked.length;
      const versions = writing.acked.map(({ version }) => version).sort((x, y) => x - y);
      t.equal(difference(versions, range(start + 1, head)), '', 'no gap and no duplicate');
      for (const socket of sockets) {
        await untilVersion(socket, head);
        const seen = versionsOf(socket.frames).filter((version) => version > start);
        t.equal(difference(seen, range(start + 1, head)), '');
        await socket.close();
      }
    },
  );

  t.test(
    'INST-01 INST-10 LIST-11: with edits and deletes, all readers on all instances reach the same state',
    async (t) => {
      const sockets = await Promise.all(wires.map(async (wire) => live(wire, second)));
      const mirrors = sockets.map(() => new Mirror());
      const writing = startWriters({ wires, devices: [first], writers: 10, sealFor: all });
      const listings: Listing[] = [];
      for (const round of range(1, inLongRun(6, 12))) {
        await writing.until(round * 60);
        for (const wire of wires) listings.push(await listAll(wire, second.token, { limit: 137 }));
      }
      await writing.stop();
      t.same([writing.refusals, writing.errors], [[], []]);
      for (const { changes, head } of listings) {
        t.same(notRising(changes.map(({ version }) => version)), []);
        // Also those that were not acknowledged yet when the list was read.
        const shown = new Map(changes.map(({ id, version }) => [id, version]));
        const lost = writing.acked.filter(({ id, version }) => version <= head && (shown.get(id) ?? 0) < version);
        t.same(lost, [], `a list up to ${head} has every version below`);
      }
      const head = await mustWrite(wires[0], first, newItem(all));
      const truth = new Mirror().apply((await listAll(wires[1], second.token)).changes).state;
      for (const [at, socket] of sockets.entries()) {
        await untilVersion(socket, head);
        t.same(notRising(versionsOf(socket.frames)), []);
        t.equal(difference(mirrors[at]?.apply(changesOf(socket.frames)).state ?? [], truth), '');
        await socket.close();
      }
    },
  );

  t.test('INST-03: changes that are written while notification connections die repeatedly arrive', async (t) => {
    const socket = await live(wires[1], second);
    const start = Number(socket.of('caught_up')[0]?.['version']);
    for (const _ of range(1, 5)) {
      await terminate(one, 'service-listen');
      const head = await mustWrite(wires[0], first, newItem(all));
      await untilVersion(socket, head);
    }
    const seen = versionsOf(socket.frames).filter((version) => version > start);
    t.same(seen, range(start + 1, start + 5));
    await socket.close();
  });

  t.test('INST-04: hints that are duplicate, late, out of order or malformed change nothing', async (t) => {
    const socket = await live(wires[1], second);
    const start = Number(socket.of('caught_up')[0]?.['version']);
    const tell = async (payload: unknown): Promise<unknown> =>
      two.sql('SELECT pg_notify($1, $2)', ['service', typeof payload === 'string' ? payload : JSON.stringify(payload)]);
    const hint = (head: number, generation = 1) => ({ from: 'another', changes: [[two.tenantId, head, generation]] });
    let head = start;
    for (const round of range(1, 5)) {
      await tell(hint(head + 1));
      head = await mustWrite(wires[0], first, newItem(all));
      for (const wrong of [head, head, 1, head - 1, head + 1_000, 0]) await tell(hint(wrong));
      await tell(hint(head, 1_000_000 + round));
      for (const nonsense of ['', '{', '[]', '{"from":1}', '{"from":"x","changes":[["y"]]}']) await tell(nonsense);
      await untilVersion(socket, head);
    }
    await barrier(socket);
    t.same(
      versionsOf(socket.frames).filter((version) => version > start),
      range(start + 1, head),
    );
    t.equal(socket.of('caught_up').length, 1);
    await socket.close();
  });

  t.test('PAIR-23 TOKEN-12 TOKEN-14: a pairing spans both instances, and a revocation acts on both', async (t) => {
    const third = await join(wires[1], first, { existingWire: wires[0], name: 'third' });
    const sockets = await Promise.all(
      [0, 1].map(async (at) => (wires[at] ?? wires[0]).connect({ token: third.token })),
    );
    await sockets[0]?.hello();
    const witness = await live(wires[1], first);
    t.equal((await wires[0].post(`/devices/${third.id}/revoke`, {}, { token: first.token })).status, 200);
    for (const socket of sockets) t.equal((await socket.closed).code, 4403);
    t.same(await witness.next('device_revoked'), { type: 'device_revoked', id: third.id });
    for (const wire of wires) {
      t.equal((await wire.get('/me', { token: third.token })).outcome, '403 device_revoked');
      t.equal((await wire.get('/me', { token: first.token })).status, 200);
    }
    await witness.close();
  });

  t.test('STAT-10 DEV-03: devices with a socket are counted over both instances', async (t) => {
    const sockets = [await live(wires[0], first), await live(wires[1], second)];
    const online = async (wire: Wire, count: number): Promise<boolean> => {
      const me = await wire.get('/me', { token: first.token, shape: 'a' });
      const devices = (await wire.get('/devices', { token: first.token, shape: 'a' })).list('devices');
      return (
        me.number('server.devicesOnline') === count &&
        devices.filter((device) => device['online'] === true).length === count
      );
    };
    for (const wire of wires) await until('two online', async () => online(wire, 2));
    await sockets[1]?.close();
    for (const wire of wires) await until('one online', async () => online(wire, 1));
    await sockets[0]?.close();
    t.pass('both instances agree');
  });

  t.test('DUR-05: no write is lost when the database connections of both instances die repeatedly', async (t) => {
    const socket = await live(wires[1], second);
    const writing = startWriters({ wires, devices: [first], writers: 6, sealFor: all });
    for (const round of range(1, inLongRun(4, 6))) {
      await writing.until(round * 50);
      await terminate(one, round % 2 === 0 ? 'service%' : 'service-commit');
    }
    await writing.until(writing.acked.length + 100);
    await writing.stop();
    t.same(writing.errors, []);
    t.same(
      writing.refusals.filter(({ outcome }) => outcome !== '503 unavailable').map(({ outcome }) => outcome),
      [],
    );
    const listing = await listAll(wires[0], first.token);
    const latest = new Map(writing.acked.sort((x, y) => x.version - y.version).map((change) => [change.id, change]));
    const stored = new Map(listing.changes.map((change) => [change.id, change]));
    t.same(
      [...latest.values()].filter(({ id, version }) => (stored.get(id)?.version ?? 0) < version),
      [],
      'no acknowledged write is lost',
    );
    await untilVersion(socket, await mustWrite(wires[0], first, newItem(all)));
    t.same(notRising(versionsOf(socket.frames)), []);
    await socket.close();
  });
});

/** Makes five unannounced writes on the first instance; `found` makes the second find each. */
async function findsEach(t: Test, { wires, first, second, all }: Pair, found: (round: number) => Promise<void>) {
  const socket = await live(wires[1], second);
  const start = Number(socket.of('caught_up')[0]?.['version']);
  for (const round of range(1, 5)) {
    const version = await mustWrite(wires[0], first, newItem(all));
    await barrier(socket);
    t.same(versionsOf(socket.frames).filter((one) => one > start).length, round - 1, 'the notification is lost');
    await found(round);
    await untilVersion(socket, version);
  }
  t.same(
    versionsOf(socket.frames).filter((one) => one > start),
    range(start + 1, start + 5),
  );
}

t.test('INST-02 INST-18: an instance that receives no notifications finds each change within 5 s', async (t) => {
  const two = new TestClock();
  const made = await pair(t, { one: new TestClock(), two, deaf: true });
  await findsEach(t, made, async () => {
    // 1 ms more, so that no tick of the sockets' heartbeats is due at the time that is waited for.
    two.advance(4_001);
    await until('its heartbeat is sent, and expected back', () => two.hasTimer(750));
    two.advance(750);
  });
});

t.test('INST-02 INST-18 INST-47: changes that an instance did not announce before it died are found', async (t) => {
  const two = new TestClock();
  const comparisons = new Map<TenantRegistry, Promise<void>[]>();
  const { compareHeads } = TenantRegistry.prototype;
  t.intercept(TenantRegistry.prototype, 'compareHeads', {
    value(this: TenantRegistry) {
      const comparison = compareHeads.call(this);
      comparisons.set(this, [...(comparisons.get(this) ?? []), comparison]);
      return comparison;
    },
  });
  // Each compares as soon as it listens.
  const ofTwo = (): readonly Promise<void>[] => [...comparisons.values()][1] ?? [];
  const made = await pair(t, { one: new TestClock(), two, deaf: false });
  await Promise.all(ofTwo());
  await findsEach(t, made, async (round) => {
    await made.back(round + 1);
    // 9 s of silence, and the 4 s to the next heartbeat, make the 13 s of INST-18.
    const silence = 9_000 + round;
    await made.one.sql('UPDATE instances SET seen_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1', [
      silence,
    ]);
    const before = ofTwo().length;
    two.advance(4_000);
    // For the silence, and since nothing of the first was verified until the heartbeat was back. Both are over before the
    // next write, which the second one would find.
    await until('both comparisons', () => ofTwo().length >= before + 2);
    await Promise.all(ofTwo());
  });
});

/** Listens to all instances that are up. Returns a function that gives what was notified since its last call. */
async function notifications(t: WithTeardown, url: string): Promise<() => Promise<string[]>> {
  const client = await openClient({ url, name: 'test-listener', onLost: () => undefined });
  t.teardown(async () => client.end());
  const heard: string[] = [];
  client.on('notification', ({ payload = '' }) => heard.push(payload));
  const { rows } = await client.query<{ id: string }>('SELECT id FROM instances');
  for (const { id } of rows) await client.query(`LISTEN "service_${id}"`);
  await client.query('LISTEN service; LISTEN barrier');
  return async () => {
    // Notifications come in the order of commits, and before the answer of the statement that follows.
    await client.query("NOTIFY barrier, '{}'");
    return heard.splice(0);
  };
}

for (const [count, linked] of [
  [2, false],
  [4, false],
  [4, true],
  [8, false],
] as const) {
  t.test(`INST-44: on ${count} ${linked ? 'linked ' : ''}instances every version arrives once, in order`, async (t) => {
    const database = await testDatabase(t);
    const siblings = linked ? await temporaryFolder(t) : undefined;
    const instances = [];
    for (let n = 0; n < count; n++) instances.push(await runServer(t, { database, ...(siblings && { siblings }) }));
    const wires = instances.map(({ wire }) => wire);
    const [wire] = wires;
    if (wire === undefined) throw new Error('no instance');
    const first = await claim(wire);
    const second = await join(wire, first, { name: 'second' });
    const sockets = await Promise.all(wires.map(async (each) => live(each, first, { acks: true })));
    const writing = startWriters({ wires, devices: [first, second], writers: 12, insertsOnly: true, limit: 600 });
    await writing.until(600);
    await writing.stop();
    t.same([writing.refusals, writing.errors], [[], []]);
    const head = Math.max(...writing.acked.map(({ version }) => version));
    for (const socket of sockets) {
      await untilVersion(socket, head);
      t.equal(difference(versionsOf(socket.frames), range(1, head)), '', 'each version arrives once, in order');
    }
    const notified = await notifications(t, database.url);
    const tell = async (): Promise<boolean> => {
      const version = await mustWrite(wire, first, newItem([first.id, second.id]));
      for (const socket of sockets) await untilVersion(socket, version);
      return (await notified()).some((payload) => payload.includes('"changes"') || !payload.startsWith('{'));
    };
    if (linked) await until('all are linked, and nothing is notified of a change', async () => !(await tell()));
    else await until('it is notified', tell);
    for (const socket of sockets) await socket.close();
  });
}

t.test('INST-03: a listener that reconnects compares heads at once', async (t) => {
  const { two, wires, first, second, all } = await pair(t, { one: new TestClock(), two: new TestClock() });
  const socket = await live(wires[1], second);
  for (const _ of range(1, 3)) {
    const version = await mustWrite(wires[0], first, newItem(all));
    await terminate(two, 'service-listen');
    await untilVersion(socket, version);
  }
  t.pass('the changes arrive though no clock runs and nothing was notified');
});

t.test('INST-11: a commit checks a write again after devices or bins changed on another instance', async (t) => {
  const { wires, first, second, all } = await pair(t, {
    one: new TestClock(),
    two: new TestClock(),
    deaf: true,
  });
  const [here, there] = wires;
  const mine = { token: first.token, shape: 'a' } as const;
  await mustWrite(there, first, newItem(all)); // so that the other instance knows the tenant as it was

  t.equal((await here.post('/bins', { id: 'short' }, mine)).status, 200);
  t.equal(
    (await write(there, first, newItem(all, { binId: 'short' }))).status,
    200,
    'a bin that was made on the other instance is known',
  );
  const inside = newItem(all, { binId: 'short' });
  await mustWrite(there, first, inside);
  t.equal((await here.ask('DELETE', '/bins/short', { ...mine, body: { force: true } })).status, 200);
  t.equal((await write(there, first, newItem(all, { binId: 'short' }))).outcome, '404 bin_not_found');
  t.equal((await write(there, first, edited(inside))).outcome, '409 conflict', 'the item was deleted with its bin');

  const third = await join(here, first, { name: 'third' });
  const lacking = await write(there, first, newItem(all));
  t.equal(lacking.outcome, '400 validation');
  t.same(lacking.at('error.details.missingDevices'), [third.id]);
  t.equal((await write(there, third, newItem([...all, third.id]))).status, 200, 'the new device may write');

  t.equal((await here.post(`/devices/${third.id}/revoke`, {}, mine)).status, 200);
  const item = newItem([...all, third.id]);
  t.equal((await write(there, second, item)).status, 200);
  const row = (await listAll(there, second.token)).rows.find(({ id }) => id === item.id);
  t.same(
    Object.keys((row?.['payloadEnc'] as { keys: object }).keys).sort(),
    [...all].sort(),
    'the key of the revoked device was dropped',
  );
  t.equal((await write(there, third, newItem(all))).outcome, '403 device_revoked', 'the revoked device writes nothing');
});

t.test('INST-63: an instance whose signing keys are different from those of another says so once', async (t) => {
  const database = await testDatabase(t);
  const started = (secret: string): Promise<Running> =>
    runServer(t, { database, env: { TOKEN_SECRET: secret, STORAGE_KIND: 'local', BLOB_URL_SECRET: 'b'.repeat(16) } });
  const faults = ({ logs }: Running): string[] =>
    logs.map(({ cause }) => JSON.stringify(cause) ?? '').filter((cause) => cause.includes('TOKEN_SECRET'));
  const one = await started('the-secret-of-both');
  const two = await started('the-secret-of-both');
  const three = await started('the-secret-of-another');
  await until('each is told', () => [one, two, three].every((server) => faults(server).length > 0));
  const rows = await one.sql('SELECT id, secrets FROM instances ORDER BY id');
  const [first, second, third] = rows.map(({ id }) => String(id));
  t.match(rows, [{ secrets: /^[0-9a-f]{8}$/ }, { secrets: rows[0]?.['secrets'] }, { secrets: /^[0-9a-f]{8}$/ }]);
  t.not(rows[2]?.['secrets'], rows[0]?.['secrets']);
  const named = (server: Running): boolean[] =>
    [first, second, third].map((id) => faults(server)[0]?.includes(String(id)) ?? false);
  t.same([one, two, three].map(named), [
    [false, false, true],
    [false, false, true],
    [true, true, false],
  ]);
  t.same(
    [one, two, three].map((server) => faults(server).length),
    [1, 1, 1],
    'once',
  );
});

t.test('INST-11: the storage cap holds across instances', async (t) => {
  const env = { STORAGE_CAP_BYTES: '20000' };
  const { wires, first, all } = await pair(t, { one: new TestClock(), two: new TestClock(), env });
  const big = () => newItem(all, { ct: Buffer.alloc(4_000) });
  let accepted = 0;
  for (const round of range(1, 10)) {
    const reply = await write(wires[round % 2] ?? wires[0], first, big());
    if (reply.status === 200) accepted++;
    else t.equal(reply.outcome, '413 storage_cap_exceeded');
  }
  t.equal(accepted, 4, 'four items fit, whichever instance takes them');
});
