/** Notifications between instances over real LISTEN/NOTIFY (src/server/storage/change-feed.ts). */
import { Socket } from 'node:net';
import { mock } from 'node:test';
import t, { type Test } from 'tap';
import { Events, soon, until } from './support/events.js';
import { TcpProxy } from './support/tcp-proxy.js';
import {
  beatBack,
  changeBytes,
  changesHead,
  beatHeard,
  COALESCE_MS,
  isBeat,
  listeners,
  listensAnew,
  notifyChanges,
  notifySigned,
  pair,
  tell,
  world,
  type Hint,
} from './support/feeds.js';

t.test('INST-51: instances find each other, and an instance alone sends no notifications', async (t) => {
  const { instance, pool } = await world(t);
  const [a, b] = [instance('a'), instance('b')];
  const heard = new Events<string>();
  const client = await pool.connect();
  client.on('notification', ({ payload }) => heard.add(payload ?? ''));
  await client.query('LISTEN service; LISTEN marker');
  t.teardown(() => client.release(true));
  await a.feed.start();
  t.notOk(a.feed.othersUp);
  tell(a, ['tenant', 1, 1]);
  await b.feed.start();
  await a.others.until(1);
  t.ok(a.feed.othersUp && b.feed.othersUp, 'a knows b by its notification, b knows a by the table');
  await heard.until((all) => all.some((text) => text.includes('"b"')));
  t.notOk(
    heard.all.some((text) => text.includes('tenant')),
    'an announcement is not sent while there is no other instance',
  );
  tell(a, ['tenant', 2, 1]);
  await b.hints.until(1);
  t.strictSame(b.hints.all, [['tenant', 2, 1]]);
  t.strictSame(a.hints.all, [], 'an instance does not receive its own hints');
  // What b still sent would arrive after it has left, and count as present.
  await until('b has answered', () => {
    for (const { clock } of [a, b]) clock.advance(COALESCE_MS);
    return b.statements.all.some((text) => text.includes('"parts"'));
  });
  tell(b, ['last', 1, 1]);
  await a.hints.until(1);
  await heard.until((all) => all.some((text) => text.includes('"last"')));
  const told = heard.all.length;
  await b.feed.close();
  await client.query("SELECT pg_notify('marker', 'after b')");
  await heard.until((all) => all.includes('after b'));
  const last = heard.all.slice(told).filter((text) => text.includes('"from":"b"'));
  t.same(last, [], 'an instance that leaves sends nothing more: received late, it would count as present');
  await a.beat();
  t.notOk(a.feed.othersUp, 'b has left');
  await pool.query(
    "INSERT INTO instances (id, seen_at) VALUES ('c', (extract(epoch FROM now()) * 1000)::bigint - 15100)",
  );
  await a.beat();
  t.notOk(a.feed.othersUp, 'c was last seen too long ago');
  await pool.query("UPDATE instances SET seen_at = (extract(epoch FROM now()) * 1000)::bigint - 9000 WHERE id = 'c'");
  await a.beat();
  t.ok(a.feed.othersUp);
  t.equal(a.others.all.length, 2, 'the first other instance is reported, so that everything is announced again');
  await pool.query("DELETE FROM instances WHERE id = 'a'");
  await a.beat();
  t.equal(a.others.all.length, 3, 'so is the loss of this registration');
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('hints are coalesced, and a large number of them is split', async (t) => {
  const { a, b } = await pair(t);
  tell(a, ['tenant', 3, 1], ['tenant', 5, 1], ['tenant', 4, 2]);
  await b.hints.until(1);
  tell(a, ['other', 0, 8], ['other', 3, 7]);
  await b.hints.until(2);
  t.strictSame(
    b.hints.all,
    [
      ['tenant', 5, 2],
      ['other', 3, 8],
    ],
    'the highest head and generation of each tenant',
  );
  const crowd = Array.from({ length: 1_000 }, (_, n): Hint => [
    `tenant ${n}`.padStart(26, '0'),
    Number.MAX_SAFE_INTEGER,
    Number.MAX_SAFE_INTEGER,
  ]);
  tell(a, ...crowd);
  await b.hints.until(1_002);
  t.strictSame(b.hints.all.slice(2), crowd);
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('INST-42: a malformed notification is a hint or ignored, and is reported once, without its text', async (t) => {
  const { a, pool } = await pair(t);
  const rows = [Buffer.alloc(0), Buffer.alloc(7), Buffer.alloc(400, 7), Buffer.alloc(300)];
  for (const [n, row] of rows.entries())
    await notifyChanges(pool, 'service_a', [changesHead('x'), changeBytes(['tenant', n + 1, 1], row)]);
  for (const payload of [
    'secret',
    '{"from":"x","parts":7}',
    '{"from":"x","added":["7"]}',
    '{"from":"x","added":[7],"late":"7"}',
    '{"from":"x","parts":[],"set":"7"}',
    '{"from":"x","changes":[["t",1,"1"]]}',
    '',
    '=',
    '[]',
    Buffer.alloc(300).toString('base64'),
  ])
    await pool.query('SELECT pg_notify($1, $2)', ['service_a', payload]);
  const parts = [
    [0, 'secret'],
    [-1, ''],
    [9, 'AA=='],
  ] as const;
  await notifySigned(pool, 'service', { from: 'x', parts, added: [-1, 9e15], changes: [['last', 1, 1]] });
  await a.hints.until(rows.length + 1);
  t.strictSame(a.hints.all, [...rows.map((_, n): Hint => ['tenant', n + 1, 1]), ['last', 1, 1]]);
  t.strictSame(a.changes.all, []);
  t.equal(a.faults.all.length, 1);
  await a.beat();
  await pool.query("SELECT pg_notify('service_a', 'secret')");
  await a.faults.until(2);
  t.notMatch(a.faults.all.map(String).join(), /secret/);
});

t.test('INST-42: changes of another version, or with wrong lengths, lead to a comparison of heads', async (t) => {
  const { a, b, pool } = await pair(t);
  const change = changeBytes(['tenant', 1, 1], Buffer.alloc(300));
  const wrong = [
    [changesHead('b', 1), change],
    [changesHead('b'), change.subarray(0, 20)],
    [changesHead('b'), change.subarray(0, -1)],
    [changesHead('b'), change, Buffer.from([200])],
    [],
  ];
  for (const pieces of wrong) {
    const { length } = a.gaps.all;
    await notifyChanges(pool, 'service_a', pieces);
    await a.gaps.until(length + 1);
  }
  tell(b, ['last', 1, 1]);
  await a.hints.until(1);
  t.strictSame(a.hints.all, [['last', 1, 1]]);
  t.strictSame(a.changes.all, []);
  t.equal(a.faults.all.length, 1);
});

t.test('a notification that is no hint is ignored', async (t) => {
  const { a, pool } = await pair(t);
  const wrong = [
    'null',
    '7',
    '{}',
    '{"from":7}',
    '{"from":"x","changes":{}}',
    '{"from":"x","changes":[["t","1",1]]}',
    '{"from":"x","changes":[[1,1,1]]}',
  ];
  for (const payload of [...wrong, '{"from":"x","changes":[["last",1,1]]}'])
    await pool.query('SELECT pg_notify($1, $2)', ['service', payload]);
  await a.hints.until(1);
  t.strictSame(a.hints.all, [['last', 1, 1]]);
});

/** Of this process. Node reports a deprecation once, at its first occurrence. */
const warnings: string[] = [];
process.on('warning', ({ name, message }) => {
  if (name === 'DeprecationWarning') warnings.push(message);
});

t.test('INST-03: a listening connection that dies is replaced, and a gap is reported', async (t) => {
  const { a, b, pool } = await pair(t);
  const [pid] = await listeners(pool);
  const before = a.gaps.all.length;
  await pool.query('SELECT pg_terminate_backend($1)', [pid]);
  await a.gaps.until(before + 1);
  tell(b, ['tenant', 7, 1]);
  await a.hints.until(1);
  t.strictSame(a.hints.all, [['tenant', 7, 1]]);
  t.equal((await listeners(pool)).length, 2, 'no connection is left over');
  t.strictSame(warnings, [], 'no statement queues up behind another in the driver');
});

t.test('INST-45: a heartbeat that comes back before all channels are listened to again proves nothing', async (t) => {
  const { instance, pool } = await world(t);
  const a = instance('a');
  await a.feed.start();
  await beatBack(a);
  const write = Socket.prototype.write;
  const held = new Events<() => void>();
  const holding = mock.method(Socket.prototype, 'write', function (this: Socket, ...sent: Parameters<typeof write>) {
    if (!String(sent[0]).includes('LISTEN service_generations')) return write.apply(this, sent);
    held.add(() => void write.apply(this, sent));
    return true;
  });
  t.teardown(() => holding.mock.restore());
  await pool.query('SELECT pg_terminate_backend($1)', [(await listeners(pool))[0]]);
  await held.until(1);
  a.clock.advance(1);
  await beatBack(a);
  t.equal(a.feed.heard.since, Infinity);
  const gaps = a.gaps.all.length;
  held.all[0]?.();
  await a.gaps.until(gaps + 1);
  t.equal(a.feed.heard.since, a.clock.now());
});

t.test('INST-03: an instance listens before it reports that it is connected', async (t) => {
  const { instance, pool } = await world(t);
  const [a, b] = [instance('a'), instance('b')];
  await b.feed.start();
  // What is notified from this moment on must be received.
  const notified = a.gaps
    .until(1)
    .then(async () => pool.query('SELECT pg_notify($1, $2)', ['service', '{"from":"b","changes":[["tenant",1,1]]}']));
  const started = a.feed.start();
  await notified;
  await started;
  await a.hints.until(1);
  t.pass('the notification is received');
});

t.test('INST-03: a link that is open and carries nothing is given up after three heartbeats', async (t) => {
  const { url, pool, instance } = await world(t);
  const proxy = await TcpProxy.before(t, url);
  const [a, b] = [instance('a', proxy.through(url)), instance('b')];
  await a.feed.start();
  await b.feed.start();
  await a.others.until(1);
  tell(b, ['tenant', 1, 1]);
  await a.hints.until(1);
  proxy.freeze();
  tell(b, ['tenant', 2, 1]);
  await b.statements.until((all) => all.some((text) => text.includes('["tenant",2,1]')));
  const { since } = a.feed.heard;
  for (let beats = 0; beats < 3; beats++) await a.beat();
  t.equal(a.feed.heard.since, since);
  await a.beat();
  await listensAnew(a, since);
  tell(b, ['tenant', 3, 1]);
  await a.hints.until(2);
  t.strictSame(
    a.hints.all,
    [
      ['tenant', 1, 1],
      ['tenant', 3, 1],
    ],
    'lost hints are left to the comparison of heads',
  );
  await beatHeard(a, b, 1);
  const content = [a.feed.heard.since, a.gaps.all.length];
  for (let beats = 2; beats <= 6; beats++) await beatHeard(a, b, beats);
  t.same([a.feed.heard.since, a.gaps.all.length], content, 'the new connection is kept, and no gap is reported');
  t.ok((await listeners(pool)).length >= 2);
});

t.test(
  'INST-03: a clock that leaps sends one heartbeat, not one for each missed, and a closed feed does not listen',
  async (t) => {
    const { a, pool } = await pair(t);
    const beats = (): number => a.statements.all.filter(isBeat).length;
    const before = beats();
    const { since } = a.feed.heard;
    a.clock.advance(3_600_000);
    await a.feed.close();
    t.ok(beats() - before <= 2, 'the heartbeat under way and at most one more');
    t.equal(a.feed.heard.since, since, 'heartbeats that were not received yet are no reason to listen anew');
    // A backend ends a moment after its client.
    await until('only the other instance listens', async () => (await listeners(pool)).length === 1);
    for (let rounds = 0; rounds < 50; rounds++) await pool.query('SELECT 1');
    t.equal((await listeners(pool)).length, 1, 'no other listener appears');
    t.strictSame(a.faults.all, []);
  },
);

t.test('a listener that was replaced while it could not connect does not come back', async (t) => {
  const { url, pool, instance } = await world(t);
  const proxy = await TcpProxy.before(t, url);
  const a = instance('a', proxy.through(url));
  await a.feed.start();
  // The waits between attempts to connect pass when this test says so. The pool's idle timers must begin and end on
  // the same side of the switch: one left over would keep the process for a minute.
  const idle = await Promise.all(Array.from({ length: pool.idleCount }, async () => pool.connect()));
  mock.timers.enable({ apis: ['setTimeout'] });
  for (const client of idle) client.release();
  t.teardown(() => mock.timers.reset());
  proxy.refuse(true);
  proxy.cut();
  const aWhile = async (): Promise<void> => {
    for (let rounds = 0; rounds < 50; rounds++) await pool.query('SELECT 1');
  };
  // The pool works, so heartbeats are sent and not received: the feed listens anew at least twice, each time in vain. A
  // listener that is replaced before it has failed reports nothing.
  const { since } = a.feed.heard;
  while (a.faults.all.length < 2) {
    await a.beat();
    await aWhile();
  }
  proxy.refuse(false);
  // Longer than the longest wait of any listener: each that still tries has tried.
  for (let seconds = 0; seconds < 12 || a.feed.heard.since === since || a.feed.heard.since === Infinity; seconds++) {
    mock.timers.tick(1_000);
    await aWhile();
  }
  // A backend ends a moment after its client.
  await until('one listener', async () => (await listeners(pool)).length === 1 && proxy.connections === 1);
  await aWhile();
  t.equal((await listeners(pool)).length, 1);
  t.equal(proxy.connections, 1);
});

t.test('INST-45: a heartbeat that came back proves that all before it came, and nothing is compared', async (t) => {
  const { url, instance } = await world(t);
  const proxy = await TcpProxy.before(t, url);
  const a = instance('a', proxy.through(url));
  t.same(a.feed.heard, { since: Infinity, until: -Infinity }, 'nothing is known yet');
  await a.feed.start();
  await until('the heartbeat is back', () => a.feed.heard.until === a.clock.now());
  const begun = a.gaps.all.length;
  for (let beats = 0; beats < 2; beats++) await beatBack(a);
  t.equal(a.gaps.all.length, begun);
  proxy.freeze();
  const { until: last } = a.feed.heard;
  for (let beats = 1; beats <= 3; beats++) {
    await a.beat();
    a.clock.advance(749);
    t.equal(a.gaps.all.length, begun + beats - 1);
    a.clock.advance(1);
    t.equal(a.gaps.all.length, begun + beats, 'each heartbeat that does not come back is a gap');
  }
  t.equal(a.feed.heard.until, last);
});

/** An instance whose heartbeats came back ever later and now do not come back, and its gaps until then. */
async function late(t: Test) {
  const { url, instance } = await world(t);
  const proxy = await TcpProxy.before(t, url);
  const a = instance('a', proxy.through(url));
  await a.feed.start();
  await until('the heartbeat is back', () => a.feed.heard.until === a.clock.now());
  const begun = a.gaps.all.length;
  for (const ms of [740, 2_900]) {
    proxy.freeze();
    await a.beat();
    const sent = a.clock.now();
    a.clock.advance(ms);
    proxy.thaw();
    await until('it is back', () => a.feed.heard.until === sent);
  }
  t.equal(a.gaps.all.length, begun, 'a heartbeat that is gradually later is no gap');
  proxy.freeze();
  return { a, begun };
}

t.test('INST-45: a heartbeat is overdue after four times as long as the previous one took, up to 8 s', async (t) => {
  const { a, begun } = await late(t);
  await a.beat();
  a.clock.advance(3_999);
  t.equal(a.gaps.all.length, begun);
  a.clock.advance(4_000);
  t.equal(a.gaps.all.length, begun, 'the next heartbeat changes nothing');
  a.clock.advance(1);
  t.equal(a.gaps.all.length, begun + 1, 'the limit is eight seconds');
});

t.test('INST-45: heartbeats become overdue in time where the clock was set back', async (t) => {
  const { a, begun } = await late(t);
  await a.beat();
  await a.beat();
  a.clock.setBy(-3_600_000);
  a.clock.advance(4_000);
  t.equal(a.gaps.all.length, begun + 1);
  a.clock.advance(8_000);
  t.equal(a.gaps.all.length, begun + 2);
});

for (const again of [false, true])
  t.test(
    `INST-49: an instance ends although its link carries nothing${again ? ', nor does another link' : ''}`,
    async (t) => {
      const { url, instance } = await world(t);
      const proxy = await TcpProxy.before(t, url);
      const a = instance('a', proxy.through(url));
      await a.feed.start();
      proxy.swallow(true);
      if (again) {
        for (let beats = 0; beats < 4; beats++) await a.beat();
        await until('it connects anew', () => proxy.swallowing > 0);
      }
      await soon(a.feed.close(), 'the end');
      t.same(a.faults.all, []);
    },
  );

t.test('INST-46 INST-51: what could not be announced is reported with the next heartbeat, once', async (t) => {
  const { a, b } = await pair(t);
  await beatBack(a);
  await beatBack(b);
  const before = b.gaps.all.length;
  a.feed.announce('tenant', 1, 1);
  const refused = new Error('the database is away');
  a.refuse(refused);
  a.clock.advance(COALESCE_MS);
  await a.faults.until(1);
  t.same([a.faults.all, b.gaps.all.length], [[refused], before]);
  a.refuse(undefined);
  await beatBack(a);
  await b.gaps.until(before + 1);
  await beatBack(a);
  tell(a, ['sync', 2, 1]);
  await b.hints.until((all) => all.some(([tenant, head]) => tenant === 'sync' && head === 2));
  t.equal(b.gaps.all.length, before + 1, 'the heartbeat after that has nothing to report');
});

t.test(
  'INST-46: notifications whose connection ended are sent again, and no heads are compared for them',
  async (t) => {
    const { a, b } = await pair(t);
    await beatBack(a);
    await beatBack(b);
    const before = b.gaps.all.length;
    a.refuse(Object.assign(new Error('ended by the administrator'), { code: '57P01' }), 2);
    tell(a, ['tenant', 1, 1]);
    await b.hints.until(1);
    t.strictSame(b.hints.all, [['tenant', 1, 1]]);
    await beatBack(a);
    tell(a, ['sync', 2, 1]);
    await b.hints.until(2);
    t.equal(b.gaps.all.length, before, 'its heartbeat had nothing to report');
    t.same(a.faults.all, []);
  },
);

t.test('INST-46: a notification that has failed for a second is not sent again, but reported', async (t) => {
  const { a, b } = await pair(t);
  await beatBack(a);
  await beatBack(b);
  const before = b.gaps.all.length;
  const ended = Object.assign(new Error('ended by the administrator'), { code: '57P01' });
  a.refuse(ended, 2, 500);
  tell(a, ['tenant', 1, 1]);
  await a.faults.until(1);
  t.same(a.faults.all, [ended]);
  t.same(b.hints.all, [], 'the third attempt would have been heard');
  await beatBack(a);
  await b.gaps.until(before + 1);
});

t.test('INST-46: announcements before an instance was known, or beyond the bound, are reported too', async (t) => {
  const { a, instance } = await pair(t);
  const c = instance('c');
  await c.feed.start();
  // One for its own connection, and one for the report of a, which is sent by the clock of a.
  await until('a tells c', () => {
    a.clock.advance(COALESCE_MS);
    return c.gaps.all.length === 2;
  });
  await beatBack(a);
  const before = c.gaps.all.length;
  for (let n = 0; n <= 50_000; n++) a.feed.announce(`tenant ${n}`, 1, 1);
  a.clock.advance(COALESCE_MS);
  await c.hints.until(50_000);
  await beatBack(a);
  await c.gaps.until(before + 1);
  t.pass('the announcement that found no place is found by comparing');
});

t.test('INST-47: an instance that dies is missed once; one that ended in order is not', async (t) => {
  const { a, b, pool } = await pair(t);
  await beatBack(a);
  const before = a.gaps.all.length;
  await b.feed.close();
  await beatBack(a);
  t.equal(a.gaps.all.length, before, 'b ended in order');
  await notifySigned(pool, 'service', { from: 'c', changes: [['of c', 1, 1]] });
  await a.hints.until(1);
  await pool.query(
    "INSERT INTO instances (id, seen_at) VALUES ('c', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 9500)",
  );
  await beatBack(a);
  await a.gaps.until(before + 1);
  await beatBack(a);
  t.equal(a.gaps.all.length, before + 1, 'the silent instance is reported once');
});

t.test('INST-18: heads are compared with each heartbeat while nothing of an instance can be verified', async (t) => {
  const { a, b, pool } = await pair(t);
  await b.feed.close();
  await beatBack(a);
  const before = a.gaps.all.length;
  await pool.query(
    "INSERT INTO instances (id, seen_at) VALUES ('c', (extract(epoch FROM clock_timestamp()) * 1000)::bigint)",
  );
  await pool.query('SELECT pg_notify($1, $2)', ['service_a', Buffer.alloc(300, 1).toString('base64')]);
  await beatBack(a);
  t.equal(a.gaps.all.length, before, 'it may be about to answer');
  // The heartbeat comes back before the answer of its statement, which names the instance, or after it.
  await beatBack(a);
  const gaps = a.gaps.all.length;
  await beatBack(a);
  await beatBack(a);
  t.equal(a.gaps.all.length, gaps + 2);
  await notifySigned(pool, 'service', { from: 'c', changes: [['of c', 1, 1]] });
  await a.hints.until(1);
  await beatBack(a);
  t.equal(a.gaps.all.length, gaps + 2, 'its notifications are read');
});

t.test('INST-48: a generation is notified by the transaction that raises it, whichever it is', async (t) => {
  const { pool, instance } = await world(t);
  const a = instance('a');
  await a.feed.start();
  const id = '01ARZ3NDEKTSV4RRFFQ69G5FAV';
  await pool.query("INSERT INTO tenants (id, slug, state, created_at) VALUES ($1, 'x', 'active', 1)", [id]);
  await pool.query('UPDATE tenants SET head = head + 1 WHERE id = $1', [id]);
  const { rows } = await pool.query<{ generation: number }>(
    'UPDATE tenants SET generation = generation + 1 WHERE id = $1 RETURNING generation',
    [id],
  );
  const generation = Number(rows[0]?.generation);
  await pool.query('BEGIN; UPDATE tenants SET generation = generation + 1; ROLLBACK');
  await pool.query('DELETE FROM tenants WHERE id = $1', [id]);
  await a.hints.until(2);
  t.same(a.hints.all, [
    [id, 0, generation],
    [id, 0, generation + 1],
  ]);
  await pool.query("SELECT pg_notify('service_generations', 'nonsense')");
  await a.faults.until(1);
});

t.test('INST-51: a heartbeat of a known instance is received by that instance alone, and it stays known', async (t) => {
  const { a, b, pool } = await pair(t);
  const heard = new Events<string>();
  const client = await pool.connect();
  client.on('notification', ({ payload }) => heard.add(payload ?? ''));
  await client.query('LISTEN service; LISTEN marker');
  t.teardown(() => client.release(true));
  for (let beats = 0; beats < 5; beats++) {
    await beatBack(a);
    await beatBack(b);
  }
  await client.query("SELECT pg_notify('marker', 'after all')");
  await heard.until((all) => all.includes('after all'));
  t.same(
    heard.all.filter((text) => text.includes('"beat"')),
    [],
  );
  t.ok(a.feed.othersUp && b.feed.othersUp);
});
