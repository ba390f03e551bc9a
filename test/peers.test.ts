/** What instances know of each other's subscriptions (src/server/storage/subscriptions.ts). */
import { randomBytes } from 'node:crypto';
import { deflateRawSync } from 'node:zlib';
import t from 'tap';
import { hintPayloads, NoticeMac, partsNotices, type Hint } from '../src/server/storage/notice.js';
import { bucketOf, Peers, RecentHeads, SET_PARTS, TenantSet } from '../src/server/storage/subscriptions.js';

const TENANTS = Array.from({ length: 20_000 }, (_, n) => `01ARZ3NDEKTSV4RRFFQ${String(n).padStart(7, '0')}`);
const payloadOf = (notice: object): string =>
  new NoticeMac(randomBytes(32)).sign('service', JSON.stringify({ from: TENANTS[0], ...notice }));
const partsOf = (set: TenantSet): string[] => Array.from({ length: SET_PARTS }, (_, n) => set.part(n));

t.test('INST-40: a set of subscriptions arrives whole, with few false positives', async (t) => {
  const set = new TenantSet();
  for (const id of TENANTS) set.add(bucketOf(id));
  const notices = partsNotices(partsOf(set), { set: 1, late: 7 });
  for (const notice of notices) t.ok(payloadOf(notice).length < 8_000);
  t.ok(notices.length <= 4, `${notices.length} notifications`);
  const peers = new Peers();
  peers.seen('a', 0);
  for (const [n, { parts, set }] of notices.entries()) {
    t.ok(
      n === 0 || peers.subscribes('a', bucketOf('whatever')),
      'until all parts have arrived it counts as subscribed to everything',
    );
    peers.subscribe('a', { parts, set });
  }
  t.ok(TENANTS.every((id) => peers.subscribes('a', bucketOf(id))));
  const strangers = TENANTS.filter((id) => peers.subscribes('a', bucketOf(`${id}x`))).length;
  t.ok(strangers < TENANTS.length / 10, `${strangers} false positives of ${TENANTS.length}`);
  peers.doubt();
  t.strictSame(peers.subscribers(bucketOf('whatever')), ['a']);
});

t.test('INST-40: even incompressible parts fit into notifications', async (t) => {
  const bytes = partsOf(new TenantSet()).map(() => deflateRawSync(randomBytes(4_096)).toString('base64'));
  const set = new TenantSet();
  for (const [n, part] of bytes.entries()) t.ok(set.setPart(n, part));
  for (const notice of partsNotices(partsOf(set), { set: 1e9, late: 1e9 })) t.ok(payloadOf(notice).length < 8_000);
});

t.test('INST-41: heads fill notifications up to the last byte that PostgreSQL accepts, and not beyond', (t) => {
  const mac = new NoticeMac(randomBytes(32));
  const hints = TENANTS.slice(0, 500).map((id): Hint => [id, 1_000, 1]);
  const lengths: number[] = [];
  // Ids of all lengths, so that every remainder occurs.
  for (let length = 1; length <= 64; length++) {
    const payloads = hintPayloads('x'.repeat(length), hints);
    lengths.push(...payloads.map((payload) => mac.sign('service', payload).length));
    const told = payloads.flatMap((payload) => (JSON.parse(payload) as { changes: Hint[] }).changes);
    t.strictSame(told, hints, 'each hint is sent once, in order');
  }
  t.equal(Math.max(...lengths), 7_999);
  t.end();
});

t.test('INST-57: parts of a set that was sent earlier, or is sent again, change nothing', async (t) => {
  const [before, after] = [new TenantSet(), new TenantSet()];
  for (const set of [before, after]) set.add(5);
  after.add(7);
  const peers = new Peers();
  peers.seen('a', 0);
  const tell = (of: TenantSet, set: number): void =>
    peers.subscribe('a', { parts: partsOf(of).map((bits, n) => [n, bits]), set });
  const known = (): boolean[] => [5, 7, 9].map((bucket) => peers.subscribes('a', bucket));
  tell(after, 2);
  peers.subscribe('a', { added: [9] });
  t.strictSame(known(), [true, true, true]);
  tell(before, 1);
  t.strictSame(known(), [true, true, true]);
  peers.doubt();
  tell(before, 1);
  t.strictSame(peers.subscribers(1_000), ['a'], 'an earlier set does not end the doubt');
  tell(after, 2);
  t.strictSame(peers.subscribers(1_000), ['a'], 'nor does a set that is sent again');
  t.strictSame(known(), [true, true, true], 'subscriptions that were added since stay');
  tell(after, 3);
  t.strictSame([...known(), peers.subscribes('a', 1_000)], [true, true, false, false]);
  tell(before, 4);
  t.strictSame(known(), [true, false, false]);
});

t.test('INST-42: a part that cannot be read changes nothing', async (t) => {
  const set = new TenantSet();
  set.add(5);
  const before = partsOf(set);
  const bomb = deflateRawSync(Buffer.alloc(10_000_000)).toString('base64');
  const good = set.part(1);
  for (const [n, text] of [
    [0, ''],
    [0, 'secret'],
    [0, deflateRawSync(Buffer.alloc(7)).toString('base64')],
    [0, bomb],
    [-1, good],
    [SET_PARTS, good],
    [0.5, good],
  ] as const)
    t.notOk(set.setPart(n, text), `${n} ${text.slice(0, 10)}`);
  for (const bucket of [-1, 0.5, 2 ** 31, 2 ** 40, NaN]) t.notOk(set.add(bucket));
  t.strictSame(partsOf(set), before);
});

t.test('INST-52: recent heads are kept for 20 s, and for at most 50,000 tenants', async (t) => {
  const recent = new RecentHeads();
  const kept = (now: number): string[] => [...recent.all(now)].map(({ hint }) => hint[0]);
  recent.note(['a', 1, 1], 0);
  recent.note(['b', 1, 1], 1_000);
  recent.note(['a', 2, 1], 2_000);
  recent.note(['c', 1, 1], 19_999);
  t.strictSame(kept(20_999), ['b', 'a', 'c']);
  t.ok(recent.reaches(-1e9));
  t.strictSame(kept(21_000), ['a', 'c']);
  t.notOk(recent.reaches(999));
  t.ok(recent.reaches(1_000));
  for (let n = 0; n < 50_001; n++) recent.note([`tenant ${n}`, 1, 1], 21_001);
  t.equal(kept(21_001).length, 50_000);
  t.notOk(recent.reaches(21_000));
  t.strictSame(kept(50_000), []);
});
