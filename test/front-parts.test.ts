/** The front's pure parts: client addresses, rates, the wheel, queries, names of fields. */
import t from 'tap';
import { DeviceRates } from '../src/server/http/limits.js';
import { addressOfPeer, limitKey, parseAddress, TrustedProxies } from '../src/server/http/client-address.js';
import { errorFields } from '../src/server/http/fail.js';
import { readConfig } from '../src/server/config/config.js';
import { hostName, parseQuery } from '../src/server/http/query.js';
import { NO_SLOT, TimerWheel, type TimerEntry } from '../src/server/realtime/wheel.js';
import { invalid, ServiceError } from '../src/protocol/errors.js';
import type { Clock } from '../src/protocol/clock.js';
import { TestClock } from './support/clock.js';

const PRIVATE = ['127.0.0.0/8', '::1/128', '10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'];

function keyOf(proxies: TrustedProxies, peer: string, forwardedFor: string): string {
  const address = parseAddress(peer);
  if (address === undefined) throw new Error(peer);
  return limitKey(proxies.clientOf(address, forwardedFor));
}

t.test('HTTP-09 HTTP-10 HTTP-11: the client is the right-most hop that is not a trusted proxy', (t) => {
  const proxies = new TrustedProxies(PRIVATE);
  const cases: [peer: string, forwardedFor: string, key: string][] = [
    ['203.0.113.7', '198.51.100.1', '203.0.113.7'],
    ['10.0.0.1', '', '10.0.0.1'],
    ['10.0.0.1', '198.51.100.1', '198.51.100.1'],
    ['10.0.0.1', '1.1.1.1, 198.51.100.1', '198.51.100.1'],
    ['10.0.0.1', '1.1.1.1, 198.51.100.1, 10.9.9.9', '198.51.100.1'],
    ['10.0.0.1', '192.168.0.5, 172.31.0.1', '192.168.0.5'],
    ['172.32.0.1', '198.51.100.1', '172.32.0.1'],
    ['10.0.0.1', '198.51.100.1:4711', '198.51.100.1'],
    ['::ffff:10.0.0.1', '::ffff:198.51.100.1', '198.51.100.1'],
    ['::1', '[2001:db8:1:2:3::9]:443', '20010db800010002/64'],
    ['fd12::1', '2001:db8:1:2:ffff::9', '20010db800010002/64'],
    ['10.0.0.1', 'fe80::1%eth0', 'fe80000000000000/64'],
    // An entry that is not an address ends the walk at the hop that wrote it.
    ['10.0.0.1', '198.51.100.1, unknown', '10.0.0.1'],
    ['10.0.0.1', 'unknown, 192.168.0.5', '192.168.0.5'],
    ['10.0.0.1', '198.51.100.1,', '10.0.0.1'],
    ['10.0.0.1', '198.51.100.300', '10.0.0.1'],
    ['10.0.0.1', '<script>', '10.0.0.1'],
    ['10.0.0.1', '1.2.3.4:99999999', '10.0.0.1'],
    ['10.0.0.1', `1.1.1.1${', 10.0.0.2'.repeat(31)}`, '1.1.1.1'],
    // At most 32 hops are followed, more than any service has proxies.
    ['10.0.0.1', `1.1.1.1${', 10.0.0.2'.repeat(32)}`, '10.0.0.2'],
  ];
  for (const [peer, forwardedFor, key] of cases)
    t.equal(keyOf(proxies, peer, forwardedFor), key, `${peer} ${forwardedFor}`);
  t.equal(keyOf(new TrustedProxies([]), '127.0.0.1', '1.1.1.1'), '127.0.0.1', 'no proxy is trusted');
  t.equal(keyOf(new TrustedProxies(['::/0']), '10.0.0.1', '1.1.1.1'), '10.0.0.1', '::/0 is IPv6 only');
  t.equal(keyOf(new TrustedProxies(['0.0.0.0/0']), '::1', '1.1.1.1'), '0000000000000000/64', '0.0.0.0/0 is IPv4 only');
  t.equal(keyOf(new TrustedProxies(['10.0.0.0/9']), '10.128.0.1', '1.1.1.1'), '10.128.0.1', 'a prefix within a byte');
  const byDefault = new TrustedProxies(readConfig({}).trustedProxies);
  for (const peer of ['10.0.0.1', '172.16.0.9', '192.168.1.1', '100.64.0.1', '169.254.1.1', '::ffff:10.0.0.1'])
    t.equal(
      keyOf(byDefault, peer, '198.51.100.1'),
      peer.replace('::ffff:', ''),
      'a peer on a private range is not trusted',
    );
  for (const peer of ['fd12::1', 'fe80::1', '2001:db8::1', '::2', '::'])
    t.not(keyOf(byDefault, peer, '198.51.100.1'), '198.51.100.1');
  for (const peer of ['127.0.0.1', '127.9.9.9', '::1', '::ffff:127.0.0.1'])
    t.equal(keyOf(byDefault, peer, '203.0.113.9, 198.51.100.1'), '198.51.100.1', 'a proxy on this machine is trusted');
  t.equal(keyOf(byDefault, '127.0.0.1', '198.51.100.1, 10.0.0.5'), '10.0.0.5', 'an untrusted hop is the client');
  t.throws(() => new TrustedProxies(['nonsense/8']));
  t.end();
});

t.test('HTTP-12: an IPv6 /64 counts as one address', (t) => {
  const key = (text: string): string => limitKey(parseAddress(text) ?? new Uint8Array(16));
  t.equal(key('2001:db8::1'), key('2001:db8:0:0:ffff:ffff:ffff:ffff'));
  t.not(key('2001:db8::1'), key('2001:db8:0:1::1'));
  t.not(key('1.2.3.4'), key('1.2.3.5'));
  t.equal(key('::ffff:102:304'), '1.2.3.4', 'an IPv4-mapped address is spelled as IPv4');
  t.equal(limitKey(addressOfPeer(Uint8Array.of(1, 2, 3, 4)) ?? new Uint8Array(16)), '1.2.3.4');
  t.equal(addressOfPeer(new Uint8Array(0)), undefined, 'a dead peer has no address');
  for (const text of ['', '1.2.3', '1.2.3.4.5', ':::', '12345::', 'a.b.c.d'])
    t.equal(parseAddress(text), undefined, text);
  t.end();
});

const refusal = (work: () => void): ServiceError | undefined => {
  try {
    work();
    return undefined;
  } catch (error) {
    return error as ServiceError;
  }
};

t.test('RATE-01 RATE-02 RATE-05 RATE-06 RATE-07 RATE-08 RATE-13: each device has a bucket of its own', (t) => {
  const clock = new TestClock();
  const rates = new DeviceRates({ read: 3, write: 2 }, clock);
  const taken = (device: string, kind: 'read' | 'write'): number => {
    let count = 0;
    while (count < 10 && refusal(() => rates.take(device, kind)) === undefined) count++;
    return count;
  };
  t.equal(taken('a', 'read'), 3, 'one second is worth three');
  t.equal(taken('a', 'write'), 2, 'writes have their own bucket');
  t.equal(taken('b', 'read'), 3, 'another device has its own');
  const refused = refusal(() => rates.take('a', 'write'));
  t.equal(refused?.error, 'rate_limited');
  t.equal(refused?.retryAfter, 1);
  clock.advance(500);
  t.equal(taken('a', 'write'), 1, 'half a second fills half');
  clock.advance(1_000);
  t.equal(taken('a', 'write'), 2, 'after Retry-After it is full again');
  clock.advance(60_000);
  t.equal(taken('a', 'write'), 2, 'a bucket holds no more than one second');

  const off = new DeviceRates({ read: 0, write: 0 }, clock);
  t.equal(
    refusal(() => {
      for (let i = 0; i < 1_000; i++) off.take('a', 'write');
    }),
    undefined,
    '0 is off',
  );
  t.end();
});

t.test('RATE-05: a bucket in constant use refills at its rate and is never reset', (t) => {
  const clock = new TestClock();
  const rates = new DeviceRates({ read: 1, write: 1 }, clock);
  let taken = 0;
  for (let i = 0; i < 100; i++) {
    if (refusal(() => rates.take('a', 'write')) === undefined) taken++;
    clock.advance(100);
  }
  t.equal(taken, 10, 'ten in ten seconds');
  t.end();
});

const MIB = 1024 * 1024;

t.test('RATE-15 RATE-16 RATE-07 RATE-08: bytes of bodies and of replies are limited separately', (t) => {
  const clock = new TestClock();
  const rates = new DeviceRates({ read: 100, write: 100 }, clock);
  for (let n = 0; n < 8; n++) rates.take('a', 'write', MIB);
  const full = refusal(() => rates.take('a', 'write', MIB));
  t.equal(full?.error, 'rate_limited');
  t.equal(full?.retryAfter, 1);
  rates.take('a', 'write', 0);
  rates.take('b', 'write', MIB);
  clock.advance(250);
  rates.take('a', 'write', MIB);
  t.ok(refusal(() => rates.take('a', 'write', 1)));
  clock.advance(3_000);
  for (let n = 0; n < 8; n++) rates.take('a', 'write', MIB);
  t.ok(
    refusal(() => rates.take('a', 'write', 1)),
    'no more than 8 MiB is saved up',
  );

  const bucket = rates.take('c', 'read');
  if (bucket === undefined) throw new Error('no bucket');
  bucket.replies -= 32 * MIB;
  t.ok(refusal(() => rates.take('c', 'read')));
  rates.take('c', 'write', MIB);
  bucket.replies -= 32 * MIB;
  t.equal(refusal(() => rates.take('c', 'read'))?.retryAfter, 3, 'the excess must be made up first');
  clock.advance(2_001);
  rates.take('c', 'read');
  clock.advance(60_000);
  const again = rates.take('c', 'read');
  if (again === undefined) throw new Error('no bucket');
  t.equal(again.replies, 32 * MIB, 'no more than 32 MiB is saved up');
  again.replies -= 3 * 1024 * MIB;
  for (let n = 0; n < 2; n++, clock.advance(1))
    t.ok(
      refusal(() => rates.take('c', 'read')),
      'however large the excess',
    );
  rates.stop();
  t.end();
});

t.test('RATE-16 RATE-05: a client that pauses is still charged for replies it requested at once', (t) => {
  const clock = new TestClock();
  const rates = new DeviceRates({ read: 100, write: 100 }, clock);
  const admitted = Array.from({ length: 100 }, () => rates.take('a', 'read'));
  for (const bucket of admitted) if (bucket !== undefined) bucket.replies -= 4 * MIB;
  // An excess of 368 MiB, at 16 MiB a second: 23 s.
  for (let rested = 0; rested < 4; rested++) {
    clock.advance(5_000);
    rates.take('b', 'write');
  }
  t.equal(refusal(() => rates.take('a', 'read'))?.retryAfter, 4, 'after 20 s, in which others were served');
  clock.advance(2_000);
  t.ok(refusal(() => rates.take('a', 'read')));
  clock.advance(60_000);
  t.equal(rates.take('a', 'read')?.replies, 32 * MIB, 'in the end the excess is made up');
  clock.advance(60_000);
  t.equal(clock.waiting, 0, 'and its bucket is forgotten');
  t.end();
});

t.test('RATE-13: where the rate of requests is off, bytes are not counted either', (t) => {
  const rates = new DeviceRates({ read: 0, write: 0 }, new TestClock());
  for (let n = 0; n < 100; n++) t.equal(rates.take('a', 'write', MIB), undefined);
  const reading = new DeviceRates({ read: 1, write: 0 }, new TestClock());
  const writing = new DeviceRates({ read: 0, write: 1 }, new TestClock());
  t.ok(reading.take('a', 'read'));
  t.ok(writing.take('a', 'write', 8 * MIB));
  for (let n = 0; n < 100; n++) {
    t.equal(reading.take('a', 'write', MIB), undefined, 'bodies, where writes alone are not limited');
    t.equal(writing.take('a', 'read', MIB), undefined, 'replies, where reads alone are not limited');
  }
  t.ok(refusal(() => reading.take('a', 'read')));
  t.ok(refusal(() => writing.take('a', 'write')));
  for (const one of [reading, writing]) one.stop();
  t.end();
});

interface Item extends TimerEntry {
  dueAt: number;
}

function wheelOf(clock: Clock, intervalMs: number) {
  const beats: { item: Item; at: number }[] = [];
  const dues: { item: Item; at: number }[] = [];
  let stalls = 0;
  const wheel: TimerWheel<Item> = new TimerWheel<Item>({
    clock,
    intervalMs,
    dueAt: (item) => item.dueAt,
    due: (item, now) => {
      dues.push({ item, at: now });
      wheel.remove(item);
    },
    beat: (item) => void beats.push({ item, at: clock.now() }),
    stalled: () => (stalls += 1),
  });
  const add = (dueAt = Infinity): Item => {
    const item = { slot: NO_SLOT, index: 0, noted: false, dueAt };
    wheel.add(item);
    return item;
  };
  return { wheel, beats, dues, add, stalls: () => stalls };
}

t.test('HEART-01 HEART-05: each item is visited once an interval, and the visits are spread', (t) => {
  const clock = new TestClock();
  const { beats, add, wheel } = wheelOf(clock, 30_000);
  const items = Array.from({ length: 600 }, () => add());
  t.equal(clock.waiting, 1, 'one timer for all');
  clock.advance(30_000);
  t.equal(beats.length, 600);
  t.equal(new Set(beats.map((beat) => beat.item)).size, 600);
  const perTick = new Map<number, number>();
  for (const { at } of beats) perTick.set(at, (perTick.get(at) ?? 0) + 1);
  t.same(
    [...perTick.values()],
    Array.from({ length: 30 }, () => 20),
    'visits once a second, equally many each time',
  );
  beats.length = 0;
  clock.advance(30_000);
  t.equal(new Set(beats.map((beat) => beat.item)).size, 600, 'once more in the next interval');
  for (const item of items) wheel.remove(item);
  t.equal(wheel.size, 0);
  clock.advance(1_000);
  t.equal(clock.waiting, 0, 'no timer runs without an item');
  add();
  beats.length = 0;
  clock.advance(30_000);
  t.equal(beats.length, 1, 'the wheel starts again');
  t.end();
});

t.test('HEART-02 HEART-04: an item that falls due is found within a tick, however long the interval', (t) => {
  for (const intervalMs of [20, 1_000, 30_000, 3_600_000]) {
    const clock = new TestClock();
    const { dues, add } = wheelOf(clock, intervalMs);
    const tick = intervalMs / Math.min(300, Math.floor(intervalMs / 10));
    const waits = [1, 700, 30_000, 90_000, 7_300_000];
    const start = clock.now();
    for (const wait of waits) add(start + wait);
    clock.advance(7_300_000 + 2 * tick);
    t.equal(dues.length, waits.length);
    for (const [at, due] of dues.entries()) {
      const late = due.at - start - (waits[at] ?? 0);
      t.ok(late >= 0 && late <= tick + 1, `interval ${intervalMs}, due after ${waits[at] ?? 0}: late by ${late}`);
    }
  }
  t.end();
});

t.test('HEART-02: an item is checked at most three times a round, also after a hundred rounds', (t) => {
  const INTERVAL_MS = 1_000;
  for (const grace of [1.1, 1.5, 1.9, 3]) {
    const clock = new TestClock();
    let looks = 0;
    let heardAt = clock.now();
    const item = { slot: NO_SLOT, index: 0, noted: false };
    const wheel = new TimerWheel<typeof item>({
      clock,
      intervalMs: INTERVAL_MS,
      dueAt: () => {
        looks++;
        return heardAt + grace * INTERVAL_MS;
      },
      due: () => t.fail('an item that answers each ping is never due'),
      beat: () => (heardAt = clock.now()),
      stalled: () => undefined,
    });
    wheel.add(item);
    clock.advance(99 * INTERVAL_MS);
    looks = 0;
    clock.advance(INTERVAL_MS);
    t.ok(looks <= 3, `grace of ${grace} intervals: ${looks} looks in round 100`);
    wheel.stop();
  }
  t.end();
});

t.test('HEART-02: items that are removed while others are visited do not affect the rest', (t) => {
  const clock = new TestClock();
  const { wheel, beats, add } = wheelOf(clock, 1_000);
  const items = Array.from({ length: 500 }, (_, at) => add(at % 3 === 0 ? clock.now() + 500 + at : Infinity));
  for (const [at, item] of items.entries()) if (at % 3 === 1) wheel.remove(item);
  clock.advance(5_000);
  const staying = items.filter((_, at) => at % 3 === 2);
  t.equal(wheel.size, staying.length);
  t.same(new Set(wheel.items()), new Set(staying));
  for (const item of staying) t.ok(beats.filter((beat) => beat.item === item).length >= 4);
  t.end();
});

t.test('HEART-01 HEART-05: the wheel sleeps until an item is due, and wakes for items added meanwhile', (t) => {
  const clock = new TestClock();
  let timers = 0;
  const counting = {
    now: () => clock.now(),
    setTimer: (ms: number, fn: () => void) => {
      timers++;
      return clock.setTimer(ms, fn);
    },
  };
  const { beats, dues, add } = wheelOf(counting, 30_000);
  for (let n = 0; n < 30; n++) add();
  clock.advance(30_000);
  timers = 0;
  clock.advance(30_000);
  t.equal(timers, 60, 'twice a second');
  t.equal(beats.length, 60);
  clock.advance(450);
  beats.length = 0;
  const [late, soon] = [add(), add(clock.now() + 120)];
  clock.advance(300);
  t.match(dues, [{ item: soon }], 'what is due before the next visit is found');
  clock.advance(29_700);
  t.equal(beats.filter(({ item }) => item === late).length, 1, 'one visit in its first interval');
  clock.setBy(-3_600_000);
  beats.length = 0;
  const after = add();
  clock.advance(30_500);
  for (const item of [after, late])
    t.ok(beats.filter((beat) => beat.item === item).length >= 1, 'a clock that is set back delays nothing');
  t.end();
});

t.test('HEART-01: adding an item while a wake is overdue skips no other item, whatever the interval', (t) => {
  for (const intervalMs of [1_000, 10_000, 25_000, 40_000]) {
    const stopped = { time: 1.8e12, due: 0, fn: (): void => undefined };
    const clock = {
      now: () => stopped.time,
      setTimer: (ms: number, fn: () => void) => {
        Object.assign(stopped, { due: stopped.time + ms, fn });
        return { cancel: () => undefined };
      },
    };
    const { wheel, beats, add } = wheelOf(clock, intervalMs);
    const items = Array.from({ length: 60 }, () => add());
    const rounds = 20;
    for (const begun = stopped.time; stopped.time < begun + rounds * intervalMs;) {
      stopped.time = stopped.due + 3;
      wheel.remove(add());
      stopped.fn();
    }
    const counts = items.map((item) => beats.filter((beat) => beat.item === item).length);
    t.ok(Math.min(...counts) >= rounds - 1 && Math.max(...counts) <= rounds + 1, `${intervalMs}: ${counts.join(' ')}`);
  }
  t.end();
});

t.test('HEART-02: a stall is reported, since frames could not be read meanwhile', (t) => {
  const stopped = { time: 1_000, fn: (): void => undefined };
  const clock = {
    now: () => stopped.time,
    setTimer: (_ms: number, fn: () => void) => {
      stopped.fn = fn;
      return { cancel: () => undefined };
    },
  };
  let stalls = 0;
  const wheel = new TimerWheel<Item>({
    clock,
    intervalMs: 30_000,
    dueAt: () => Infinity,
    due: () => undefined,
    beat: () => undefined,
    stalled: () => (stalls += 1),
  });
  wheel.add({ slot: NO_SLOT, index: 0, noted: false, dueAt: Infinity });
  stopped.time += 500;
  stopped.fn();
  t.equal(stalls, 0);
  stopped.time += 60_000;
  stopped.fn();
  t.equal(stalls, 1);
  stopped.time += 1_600;
  stopped.fn();
  t.equal(stalls, 2, 'a short stall while the wheel sleeps is reported too');
  t.end();
});

t.test('LIST-07 LIST-08: a parsed query distinguishes empty, repeated and malformed parameters', (t) => {
  t.same(
    [...parseQuery('a=1&b=&c&d=x%20y+z&a=2').values],
    [
      ['a', null],
      ['b', ''],
      ['c', ''],
      ['d', 'x y z'],
    ],
  );
  t.same(parseQuery('a=%zz&b=1'), { values: new Map([['b', '1']]), malformed: true });
  t.same(parseQuery('a=%ff'), { values: new Map(), malformed: true }, 'not UTF-8');
  t.same(parseQuery(''), { values: new Map(), malformed: false });
  t.equal(hostName('Example.COM:8080'), 'example.com');
  t.equal(hostName('[::1]:8080'), '[::1]');
  t.equal(hostName('example.com:'), 'example.com', 'a port may be empty');
  for (const odd of [
    'a.test:80@b.test',
    'a.test:80:81',
    'a.test:http',
    'a.test:123456',
    '[::1]x',
    'a[b]',
    '[::1',
    ':',
    '',
  ])
    t.equal(hostName(odd), '', odd);
  t.end();
});

t.test('ERR-05 SHAPE-09: in B a refused field is spelled as in B, and ids in its path are unchanged', (t) => {
  const path = 'blobKeys.01ARZ3NDEKTSV4RRFFQ69G5FAV';
  t.match(errorFields(invalid(path, 'too short'), 'b'), {
    code: 'invalid_payload',
    message: 'blob_keys.01ARZ3NDEKTSV4RRFFQ69G5FAV: too short',
    hint: '/docs/errors#invalid_payload',
    details: { path: 'blob_keys.01ARZ3NDEKTSV4RRFFQ69G5FAV', rule: 'too short' },
  });
  t.match(errorFields(invalid(path, 'too short'), 'a'), { code: 'validation', details: { path } });
  t.match(errorFields(new ServiceError('validation', 'x', { missingDevices: ['A'] }), 'b'), {
    details: { missing_devices: ['A'] },
  });
  t.end();
});
