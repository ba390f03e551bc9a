/** Changes go to the instances that subscribe to their tenants (src/server/storage/change-feed.ts). */
import t, { type Test } from 'tap';
import { NoticeMac, partsNotices, type Notice } from '../src/server/storage/notice.js';
import { SET_PARTS, TenantSet } from '../src/server/storage/subscriptions.js';
import type { ItemRow } from '../src/server/tenant/codec.js';
import { Events, until } from './support/events.js';
import {
  beatBack,
  changeBytes,
  changesHead,
  COALESCE_MS,
  framesOf,
  listensAnew,
  listeners,
  NOTICE_KEY,
  notifyChanges,
  notifySigned,
  pair,
  rowsOf,
  subscribes,
  tell,
  world,
  type Instance,
} from './support/feeds.js';
import { TcpProxy } from './support/tcp-proxy.js';

function publish(from: Instance, head: number, ...sizes: readonly number[]): readonly ItemRow[] {
  const rows = rowsOf(head, ...sizes);
  from.feed.publish('tenant', rows, { summary: { version: head, itemCount: 3, versionSum: 9 }, generation: 1 });
  from.clock.advance(COALESCE_MS);
  return rows;
}

/** Waits until the instances know each other's subscriptions and have nothing more to send. */
async function acquainted(...all: readonly Instance[]): Promise<void> {
  for (const one of all) {
    const told = (): boolean => one.statements.all.some((text) => text.includes('"parts"'));
    await until('it is asked and answers', () => {
      one.clock.advance(COALESCE_MS);
      return told();
    });
  }
  for (const one of all) {
    tell(one, [`word of ${one.id}`, 1, 1]);
    for (const other of all)
      if (other !== one) await other.hints.until((heard) => heard.some(([tenant]) => tenant === `word of ${one.id}`));
  }
  for (const { hints } of all) hints.all.length = 0;
}

t.test('INST-40: an instance with a socket is notified of the change itself, one without is not', async (t) => {
  const { a, b, instance } = await pair(t);
  const c = instance('c');
  await c.feed.start();
  await a.beat();
  await acquainted(a, b, c);
  await subscribes(b);
  tell(b, ['sync', 1, 1]);
  await a.hints.until(1);
  const rows = publish(a, 3, 40, 700, 40);
  await b.changes.until(1);
  const [tenantId, generation, carried] = b.changes.all[0] ?? [];
  t.strictSame([tenantId, generation, carried?.summary], ['tenant', 1, { version: 3, itemCount: 3, versionSum: 9 }]);
  t.strictSame(framesOf(carried?.rows ?? []), framesOf(rows), 'the rows are those that were published');
  t.strictSame(
    carried?.rows.map(({ version, changedBy }) => [version, changedBy]),
    rows.map(({ version, changedBy }) => [version, changedBy]),
  );
  b.tenants.length = 0;
  // Each is waited for: an instance that hears nothing of several listens anew, and misses what is sent meanwhile.
  for (let beats = 0; beats < 15; beats++) await beatBack(b);
  b.clock.advance(COALESCE_MS);
  tell(b, ['sync', 2, 1]);
  await a.hints.until(2);
  publish(a, 4, 40);
  tell(a, ['after', 1, 1]);
  await b.hints.until((all) => all.some(([tenant]) => tenant === 'after'));
  await c.hints.until((all) => all.some(([tenant]) => tenant === 'after'));
  t.equal(b.changes.all.length, 1, 'an instance whose socket is gone is not notified');
  for (const { hints, changes } of [b, c])
    t.notOk([...hints.all, ...changes.all.slice(1)].some(([id]) => id === 'tenant'));
  t.strictSame([...a.faults.all, ...b.faults.all, ...c.faults.all], []);
});

t.test('INST-40: subscriptions that begin together are announced together, at once after a quiet time', async (t) => {
  const { a, b, instance } = await pair(t);
  const c = instance('c');
  await c.feed.start();
  await b.beat();
  await acquainted(a, b, c);
  await subscribes(b, 'first');
  const told = (): string[] => b.statements.all.filter((text) => text.includes('"added"'));
  // The statement that was waited for may have been another one.
  await b.statements.until(() => told().length > 0);
  const before = told().length;
  b.clock.advance(2_000);
  b.feed.subscribe('second', b.clock.now());
  b.feed.subscribe('third', b.clock.now());
  b.clock.advance(50);
  b.clock.advance(COALESCE_MS);
  await b.statements.until(() => told().length === before + 1);
  t.match(told().at(-1), /"added":\[\d+,\d+\]/);
  b.feed.subscribe('fourth', b.clock.now());
  b.clock.advance(80);
  tell(b, ['sync', 1, 1]);
  await b.statements.until((all) => all.some((text) => text.includes('["sync",1,')));
  t.equal(told().length, before + 1, 'the next announcement waits 50 ms for each other instance');
  b.clock.advance(COALESCE_MS);
  b.clock.advance(COALESCE_MS);
  await b.statements.until(() => told().length === before + 2);
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('INST-52: what is published before a subscription arrives is announced as a head, once', async (t) => {
  const { a, b } = await pair(t);
  await acquainted(a, b);
  publish(a, 3, 40, 40, 40);
  publish(a, 4, 40);
  await subscribes(b);
  await until('a answers', () => {
    a.clock.advance(COALESCE_MS);
    return b.hints.all.length > 0;
  });
  t.strictSame(b.hints.all, [['tenant', 4, 1]]);
  t.strictSame(b.changes.all, []);
  publish(a, 5, 40);
  await b.changes.until(1);
  await subscribes(b, 'another');
  tell(b, ['sync', 1, 1]);
  await a.hints.until(1);
  tell(a, ['after', 1, 1]);
  await b.hints.until(2);
  t.strictSame(b.hints.all, [
    ['tenant', 4, 1],
    ['after', 1, 1],
  ]);
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('INST-52: heads are compared where the socket was opened too long ago for announced heads', async (t) => {
  const { a, b } = await pair(t);
  await acquainted(a, b);
  publish(a, 3, 40);
  a.clock.advance(20_000);
  a.feed.publish('other', rowsOf(1, 40), { summary: { version: 1, itemCount: 1, versionSum: 1 }, generation: 1 });
  a.clock.advance(COALESCE_MS);
  const before = b.gaps.all.length;
  b.feed.subscribe('tenant', b.clock.now() - 21_000);
  b.clock.advance(50);
  b.clock.advance(COALESCE_MS);
  await until('a answers', () => {
    a.clock.advance(COALESCE_MS);
    return b.gaps.all.length > before;
  });
  t.notOk(b.hints.all.some(([tenant]) => tenant === 'tenant'));
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test(
  'INST-52: a socket opened while no other instance seems to run is announced when one turns out to run',
  async (t) => {
    const { a, b, pool } = await pair(t);
    await acquainted(a, b);
    await pool.query("UPDATE instances SET seen_at = seen_at - 16000 WHERE id = 'a'");
    await b.beat();
    t.notOk(b.feed.othersUp);
    b.feed.subscribe('tenant', b.clock.now());
    publish(a, 3, 40);
    await a.beat();
    await b.beat();
    t.ok(b.feed.othersUp);
    await until('it is sent, and a answers', () => {
      b.clock.advance(COALESCE_MS);
      a.clock.advance(COALESCE_MS);
      return b.hints.all.length > 0;
    });
    t.strictSame(b.hints.all, [['tenant', 3, 1]]);
  },
);

t.test('INST-52: a subscription whose statement failed is sent again', async (t) => {
  const { a, b } = await pair(t);
  await acquainted(a, b);
  b.refuse(new Error('the database is away'));
  b.feed.subscribe('tenant', b.clock.now());
  b.clock.advance(50);
  b.clock.advance(COALESCE_MS);
  await b.faults.until(1);
  publish(a, 3, 40);
  b.refuse(undefined);
  await b.beat();
  await until('it is sent, and a answers', () => {
    b.clock.advance(COALESCE_MS);
    a.clock.advance(COALESCE_MS);
    return b.hints.all.length > 0;
  });
  t.strictSame(b.hints.all, [['tenant', 3, 1]]);
});

t.test('INST-56: a notification that no instance signed is a hint at most; a repeat changes nothing', async (t) => {
  const { pool, instance } = await world(t);
  const [a, b] = [instance('a'), instance('b')];
  const overheard = new Events<readonly [channel: string, payload: string]>();
  const client = await pool.connect();
  t.teardown(() => client.release(true));
  client.on('notification', ({ channel, payload }) => overheard.add([channel, payload ?? '']));
  await client.query('LISTEN service; LISTEN service_a');
  await a.feed.start();
  await b.feed.start();
  await a.others.until(1);
  await acquainted(a, b);
  const told = ([, text]: readonly [string, string]): boolean => /"from":"b".*"parts"/.test(text);
  await overheard.until((all) => all.some(told));
  await subscribes(b);
  tell(b, ['subscribed', 1, 1]);
  await a.hints.until(1);
  publish(a, 7, 400);
  await b.changes.until(1);

  const nobody = Array.from({ length: SET_PARTS }, (_, n) => new TenantSet().part(n));
  const forged: Notice[] = partsNotices(nobody, { set: 1_000_000 }).map((notice) => ({ from: 'b', ...notice }));
  forged.push(
    { from: 'b', changes: [['tenant', 9, 1]] },
    { from: 'b', untold: true, asks: true },
    { from: 'x', untold: true, asks: true, added: [1], late: 1 },
  );
  const again = overheard.all.filter(told);
  const gaps = a.gaps.all.length;
  const answered = a.statements.all.length;
  for (const notice of forged) {
    await pool.query('SELECT pg_notify($1, $2)', ['service_a', JSON.stringify(notice)]);
    await notifySigned(pool, 'service_a', notice, Buffer.alloc(32, 8));
    const elsewhere = new NoticeMac(NOTICE_KEY).sign('service_b', JSON.stringify(notice));
    await pool.query('SELECT pg_notify($1, $2)', ['service_a', elsewhere]);
  }
  const change = [changesHead('b'), changeBytes(['tenant', 9, 1], Buffer.alloc(300))];
  await notifyChanges(pool, 'service_a', change, { key: Buffer.alloc(32, 8) });
  await notifyChanges(pool, 'service_a', change, { signedFor: 'service_b' });
  for (const heard of again) await pool.query('SELECT pg_notify($1, $2)', [...heard]);
  await notifySigned(pool, 'service_a', { from: 'x', changes: [['last', 1, 1]] }, Buffer.alloc(32, 8));
  await a.hints.until((all) => all.some(([tenant]) => tenant === 'last'));

  t.strictSame(a.changes.all, []);
  t.strictSame(a.hints.all.filter(([tenant]) => tenant === 'tenant').length, 3);
  t.equal(a.gaps.all.length, gaps);
  a.clock.advance(COALESCE_MS);
  publish(a, 8, 400);
  await b.changes.until(2);
  t.notOk(
    a.statements.all.slice(answered).some((text) => text.includes('service_x')),
    'a sender that is no instance is sent nothing',
  );
  t.strictSame(
    a.faults.all.map(String),
    ['Error: a notification came that is none of ours'],
    'forged changes in the name of b are reported',
  );
  t.strictSame(b.faults.all, []);
});

/** Two instances that know each other; the first one listens through a proxy. */
async function listensByProxy(t: Test) {
  const { url, pool, instance } = await world(t);
  const proxy = await TcpProxy.before(t, url);
  const [a, b] = [instance('a', proxy.through(url)), instance('b')];
  await a.feed.start();
  await b.feed.start();
  await a.others.until(1);
  await acquainted(a, b);
  await beatBack(a);
  return { a, b, proxy, pool };
}

t.test('INST-53: an overdue heartbeat makes an instance announce to all; after a reconnect it queries', async (t) => {
  const { a, b, proxy, pool } = await listensByProxy(t);
  proxy.freeze();
  await subscribes(b);
  publish(a, 3, 40);
  await a.beat();
  t.same([...b.hints.all, ...b.changes.all], [], 'a does not know of the subscription');
  a.clock.advance(750);
  a.clock.advance(COALESCE_MS);
  await b.hints.until(1);
  publish(a, 4, 40);
  await b.hints.until(2);
  t.strictSame(b.hints.all, [
    ['tenant', 3, 1],
    ['tenant', 4, 1],
  ]);
  const { since } = a.feed.heard;
  for (let beats = 0; beats < 3; beats++) await a.beat();
  await listensAnew(a, since);
  const answers = (): number => b.statements.all.filter((text) => text.includes('"parts"')).length;
  const before = answers();
  await until('b answers', () => {
    a.clock.advance(COALESCE_MS);
    b.clock.advance(COALESCE_MS);
    return answers() > before;
  });
  await beatBack(a);
  tell(b, ['sync', 1, 1]);
  await a.hints.until((all) => all.some(([tenant]) => tenant === 'sync'));
  const heard = b.hints.all.length;
  publish(a, 5, 40);
  await b.changes.until((all) => all.at(-1)?.[2].summary?.version === 5);
  t.equal(b.hints.all.length, heard, 'b is sent the rows, not a head');
  t.ok((await listeners(pool)).length >= 2);
});

t.test('INST-53: where more than 1,000 heads would have to be announced again, the others compare heads', async (t) => {
  const { a, b, proxy } = await listensByProxy(t);
  const overdue = async (tenants: number): Promise<void> => {
    for (let n = 0; n < tenants; n++)
      a.feed.publish(`tenant ${n}`, [], { summary: { version: 1, itemCount: 1, versionSum: 1 }, generation: 1 });
    proxy.freeze();
    await a.beat();
    a.clock.advance(1_000);
    a.clock.advance(COALESCE_MS);
    proxy.thaw();
  };
  const gaps = b.gaps.all.length;
  await overdue(1_000);
  await b.hints.until(1_000);
  await beatBack(a);
  tell(a, ['sync', 1, 1]);
  await b.hints.until(1_001);
  t.equal(b.gaps.all.length, gaps);
  await overdue(1_001);
  await beatBack(a);
  await b.gaps.until(gaps + 1);
  t.equal(b.hints.all.length, 1_001, 'no head is announced singly');
});

t.test('INST-41: a notification carries a change that fits, and announces the head of one that does not', async (t) => {
  const { a, b } = await pair(t);
  await subscribes(b);
  tell(b, ['sync', 1, 1]);
  await a.hints.until(1);
  let head = 0;
  const carriedSizes: number[] = [];
  for (let size = 5_300; size < 5_900; size += 7) {
    publish(a, ++head, size);
    const [version] = [head];
    await until('told', () => b.changes.all.length + b.hints.all.length >= version);
    if (b.changes.all.at(-1)?.[2].summary?.version === head) carriedSizes.push(size);
    else t.strictSame(b.hints.all.at(-1), ['tenant', head, 1]);
  }
  t.ok(carriedSizes.length > 5 && b.hints.all.length > 5, 'both sides of the boundary were met');
  t.equal(carriedSizes.length + b.hints.all.length, head);
  const before = b.changes.all.length;
  publish(a, head + 40, ...Array.from({ length: 40 }, (_, n) => 300 + n * 60));
  await b.changes.until((all) => all.at(-1)?.[2].summary?.version === head + 40);
  const versions = b.changes.all.slice(before).flatMap(([, , { rows }]) => rows.map(({ version }) => version));
  t.strictSame(
    versions,
    Array.from({ length: 40 }, (_, n) => head + 1 + n),
    'a transaction that needs several notifications arrives whole and in order',
  );
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});
