/** Admitting sockets at the pace of the database: the window, the queue, and sockets that are turned away. */
import t from 'tap';
import { Admission, TurnedAway } from '../src/server/realtime/admission.js';
import { ServiceError, unavailable } from '../src/protocol/errors.js';
import { TestClock } from './support/clock.js';
import { frontOf, tokenOf } from './support/front.js';
import { openSocket, socketOf } from './support/front-sockets.js';

const settle = async (): Promise<void> => {
  for (let turn = 0; turn < 4; turn++) await new Promise((resolve) => setImmediate(resolve));
};

type Outcome = 'in' | 'failed' | TurnedAway;

/** An admission in front of a database that answers when the test says so. */
function world() {
  const clock = new TestClock();
  const admission = new Admission(clock, () => 0.5);
  const asked: { readonly owner: string; answer(error?: Error): void }[] = [];
  const outcomes = new Map<string, Outcome>();
  const come = (tenantId: string, device: string): void => {
    const owner = `${tenantId}/${device}`;
    const work = (): Promise<'in'> =>
      new Promise((resolve, reject) => {
        asked.push({ owner, answer: (error) => (error === undefined ? resolve('in') : reject(error)) });
      });
    void admission.take({ tenantId, owner }, work).then(
      (outcome) => outcomes.set(owner, outcome),
      () => outcomes.set(owner, 'failed'),
    );
  };
  /** Answers all pending queries after `ms`; returns how many there were. */
  const answer = async (ms: number, error?: Error): Promise<number> => {
    clock.advance(ms);
    const now = asked.splice(0);
    for (const one of now) one.answer(error);
    await settle();
    return now.length;
  };
  const away = (): [owner: string, TurnedAway][] =>
    [...outcomes].flatMap(([owner, outcome]) => (outcome instanceof TurnedAway ? [[owner, outcome]] : []));
  const drainAll = async (): Promise<void> => {
    while (asked.length > 0) await answer(50);
  };
  return { clock, admission, asked, outcomes, come, answer, away, drainAll };
}

t.test('ADMIT-01: a window of sockets is admitted at once, and each answer admits the next one', async (t) => {
  const { asked, outcomes, come, answer, admission } = world();
  for (let n = 0; n < 70; n++) come(`tenant-${n}`, '1');
  t.equal(asked.length, 64, 'a whole window is admitted at once');
  t.equal(admission.waiting, 6);
  asked.shift()?.answer();
  await settle();
  t.equal(asked.at(-1)?.owner, 'tenant-64/1', 'the next socket is admitted, in order of arrival');
  t.equal(admission.waiting, 5);
  t.equal(await answer(5), 64);
  t.equal(asked.length, 5);
  await answer(5);
  t.equal([...outcomes.values()].filter((one) => one === 'in').length, 70);
  t.equal(admission.waiting, 0);
  come('late', '1');
  t.equal(asked.length, 1, 'once the queue is empty a socket does not wait');
});

t.test('ADMIT-02: quick answers widen the window by a step; slow answers and failures halve it', async (t) => {
  const { asked, come, answer } = world();
  let next = 0;
  const more = (count: number): void => {
    for (let n = 0; n < count; n++) come(`tenant-${next++}`, '1');
  };
  more(1_500);
  const sizes: number[] = [];
  for (let window = 0; window < 4; window++) {
    sizes.push(asked.length);
    await answer(50);
  }
  t.same(sizes, [64, 96, 128, 160], 'the step is the same each time');
  const before = asked.length;
  await answer(900);
  t.equal(asked.length, Math.floor(before / 2), 'a slow answer halves the window');
  await answer(50, unavailable());
  t.equal(asked.length, Math.floor(before / 4), 'a failure halves the window');
  await answer(50, new ServiceError('tenant_not_found'));
  t.equal(asked.length, Math.floor(before / 4) + 32, 'a refusal counts as an answer');
  for (let window = 0; window < 20 && asked.length > 0; window++) await answer(600);
  more(100);
  t.equal(asked.length, 16, 'the window never falls below 16');
});

t.test('ADMIT-02: sockets admitted before the window was halved do not halve it again', async (t) => {
  const { asked, come, answer, clock } = world();
  for (let n = 0; n < 500; n++) come(`tenant-${n}`, '1');
  const slow = asked.splice(0);
  clock.advance(600);
  slow.shift()?.answer();
  await settle();
  t.equal(asked.length, 0, 'no socket is admitted before the halved window has room');
  clock.advance(600);
  for (const one of slow.splice(0, 20)) one.answer();
  await settle();
  clock.advance(-3_600_000);
  for (const one of slow) one.answer();
  await settle();
  t.equal(asked.length, 32);
  await answer(600);
  t.equal(asked.length, 16, 'sockets admitted since then do halve it, even if the clock was set back');
});

t.test('ADMIT-02: a window that has room does not grow', async (t) => {
  const { asked, come, answer } = world();
  for (let n = 0; n < 1_000; n++) {
    come(`tenant-${n}`, '1');
    await answer(1);
  }
  for (let n = 0; n < 100; n++) come(`late-${n}`, '1');
  t.equal(asked.length, 64);
});

t.test('ADMIT-03 ADMIT-04: sockets beyond the queue are turned away with different times to come back', async (t) => {
  const { come, away, answer, outcomes, drainAll, clock, admission } = world();
  come('early', '1');
  await answer(5);
  clock.advance(60_000);
  for (let n = 0; n < 12_064; n++) come(`tenant-${n}`, '1');
  await settle();
  const turned = away();
  // Sockets for five seconds at 1,000 a second wait; the others get the times after those.
  t.equal(turned.length, 7_000);
  t.ok(turned.every(([, { code }]) => code === 1013));
  const seconds = turned.map(([, one]) => one.seconds);
  t.equal(Math.min(...seconds), 6);
  t.equal(Math.max(...seconds), 12);
  for (let second = 6; second <= 11; second++)
    t.ok(Math.abs(seconds.filter((each) => each === second).length - 1_000) <= 2, `a thousand after ${second} s`);
  await answer(50);
  t.ok(admission.rate > 1_000, 'the idle minute before does not lower the rate');
  await drainAll();
  t.equal([...outcomes.values()].filter((one) => one === 'in').length, 5_065, 'all sockets that waited are admitted');
});

t.test('ADMIT-03: at most 5,000 wait, however quick the database is: requests need the other calls', async (t) => {
  const { come, away, admission, answer } = world();
  let next = 0;
  for (let round = 0; round < 100; round++) {
    for (let n = 0; n < 2_500; n++) come(`tenant-${next++}`, '1');
    await answer(1);
  }
  t.ok(admission.rate > 2_000, `${admission.rate} a second`);
  const before = away().length;
  for (let n = 0; n < 6_000; n++) come(`late-${n}`, '1');
  await settle();
  t.ok(away().length > before);
  t.equal(admission.waiting, 5_000);
});

t.test("ADMIT-05: a device that comes back early keeps its time, and changes no other device's time", async (t) => {
  const { clock, come, away, outcomes, answer, drainAll, asked } = world();
  come('first', '1');
  for (let n = 0; n < 5_100; n++) come(`tenant-${n}`, '1');
  await settle();
  const [[impatient, told] = ['', undefined]] = away();
  if (told === undefined) throw new Error('nobody was turned away');
  const [tenantId = ''] = impatient.split('/');
  for (let n = 0; n < 1_000; n++) come(tenantId, '1');
  await settle();
  const again = outcomes.get(impatient);
  t.ok(again instanceof TurnedAway && Math.ceil(again.seconds) === told.seconds, 'its time to come back is unchanged');
  come('late', '1');
  await settle();
  const late = outcomes.get('late/1');
  t.ok(late instanceof TurnedAway && late.seconds <= told.seconds + 1, 'the retries count as one attempt');
  await answer(50);
  await drainAll();
  clock.advance(told.seconds * 1_000);
  await settle();
  come(tenantId, '1');
  t.equal(asked.at(-1)?.owner, impatient, 'at its time the device is admitted');
});

t.test('ADMIT-05: a time given before the clock was set back keeps no device out', async (t) => {
  const { clock, come, away, asked, drainAll } = world();
  for (let n = 0; n < 5_100; n++) come(`tenant-${n}`, '1');
  await settle();
  const [[owner] = ['']] = away();
  await drainAll();
  clock.setBy(-3_600_000);
  come(owner.split('/')[0] ?? '', '1');
  t.equal(asked.at(-1)?.owner, owner, 'the device is admitted');
});

t.test('ADMIT-06: a tenant has a quarter of the queue, and tenants are served in turn', async (t) => {
  const { come, away, answer, asked, outcomes, admission } = world();
  come('first', '1');
  for (let n = 0; n < 3_000; n++) come('crowd', String(n));
  t.equal(admission.waiting, 1_250, 'a tenant has a quarter of a queue of five seconds');
  t.ok(away().every(([owner]) => owner.startsWith('crowd/')));
  come('small', '1');
  await answer(50);
  t.ok(
    asked.some(({ owner }) => owner === 'small/1'),
    'the small tenant is served before the rest of the large one',
  );
  for (let n = 0; n < 6_000; n++) come(`tenant-${n}`, '1');
  await settle();
  const out = [...outcomes].filter(([owner, one]) => owner.startsWith('tenant-') && one instanceof TurnedAway);
  const waiting = admission.waiting;
  t.ok(waiting <= 5_000 && waiting >= 4_800, `the queue stays full: ${waiting} wait`);
  const answered = [...outcomes.keys(), ...asked.map(({ owner }) => owner)].filter((owner) =>
    owner.startsWith('crowd/'),
  );
  t.equal(3_000 - answered.length, 16, 'the large tenant gives way first, until it has few places');
  t.ok(out.length < 1_200, `${out.length} of the others find no place`);
  const full = world();
  for (let n = 0; n < 5_064; n++) full.come(`crowd-${n % 5}`, String(n));
  for (const tenant of ['crowd-0', 'few']) full.come(tenant, 'late');
  await settle();
  t.equal(full.admission.waiting, 5_000);
  t.ok(full.outcomes.get('crowd-0/late') instanceof TurnedAway, 'a tenant with many takes the place of none');
  t.notOk(full.outcomes.has('few/late'), 'one with few does');
});

t.test(
  'ADMIT-07: while the database hangs new sockets are turned away at once, and none waits without end',
  async (t) => {
    const { clock, come, outcomes, admission } = world();
    come('stuck', '1');
    clock.advance(6_000);
    come('late', '1');
    await settle();
    t.ok(outcomes.get('late/1') instanceof TurnedAway);
    t.equal(admission.waiting, 0);
  },
);

t.test('ADMIT-04: while the database answers nothing, few are told to come back soon', async (t) => {
  const { clock, come, away, admission } = world();
  // Fewer than wait, so the rate has never been measured.
  for (let n = 0; n < 20; n++) come(`stuck-${n}`, '1');
  clock.advance(6_000);
  for (let n = 0; n < 1_000; n++) come(`tenant-${n}`, '1');
  await settle();
  t.ok(admission.rate < 11, `${admission.rate} a second`);
  const seconds = away().map(([, one]) => one.seconds);
  t.equal(seconds.length, 1_000);
  t.equal(seconds.filter((each) => each <= 1).length, 10);
  t.equal(Math.max(...seconds), 60, 'the last ones after as long as is promised (ADMIT-08)');
});

t.test('ADMIT-04: while every query fails at once, few are told to come back soon', async (t) => {
  const { come, answer, admission } = world();
  for (let n = 0; n < 5_064; n++) come(`tenant-${n}`, '1');
  for (let n = 0; n < 100; n++) await answer(50, unavailable());
  t.ok(admission.waiting > 0, 'others waited all the time');
  t.ok(admission.rate < 20, `${admission.rate}/s`);
});

t.test('ADMIT-04: a wait while the window had room does not count', async (t) => {
  const { clock, come, away, admission } = world();
  for (let n = 0; n < 20; n++) come(`early-${n}`, '1');
  clock.advance(4_900);
  for (let n = 0; n < 4_000; n++) come(`tenant-${n}`, '1');
  await settle();
  t.same(away(), []);
  t.equal(admission.rate, 1_000);
});

t.test('ADMIT-04: after one long stall a quick database admits as fast as before', async (t) => {
  const { come, answer, admission, drainAll } = world();
  let next = 0;
  const more = (count: number): void => {
    for (let n = 0; n < count; n++) come(`tenant-${next++}`, '1');
  };
  for (let storm = 0; storm < 40; storm++) {
    more(2_000);
    for (let window = 0; window < 4; window++) await answer(20);
  }
  t.ok(admission.rate > 1_000, `${admission.rate} a second`);
  await drainAll();
  more(3_000);
  await answer(15_000);
  t.ok(admission.rate < 500, `${admission.rate} a second`);
  for (let storm = 0; storm < 20; storm++) {
    more(2_000);
    await drainAll();
  }
  t.ok(admission.rate > 500, `${admission.rate} a second`);
});

t.test('ADMIT-04: a slow window counts by its duration', async (t) => {
  const { come, answer, admission } = world();
  for (let n = 0; n < 1_000; n++) come(`tenant-${n}`, '1');
  await answer(5_000);
  t.ok(admission.rate < 20, `${admission.rate} a second`);
});

t.test('ADMIT-08: while the database hardly answers the times to come back grow, up to a minute', async (t) => {
  const { come, answer, away, admission, asked, outcomes, clock, drainAll } = world();
  for (let n = 0; n < 3_000; n++) come(`tenant-${n}`, '1');
  for (let round = 0; round < 30 && asked.length > 0; round++) await answer(4_000);
  t.ok(admission.rate < 30, `${admission.rate} a second`);
  for (let n = 0; n < 30_000; n++) come(`more-${n}`, '1');
  await settle();
  const gone = away();
  const seconds = gone.map(([, one]) => one.seconds);
  t.ok(seconds.length > 20_000 && Math.max(...seconds) <= 60 && Math.min(...seconds) >= 1);

  // The database answers as before: what it was like is not what devices wait for.
  await drainAll();
  const due = new Map(gone.slice(0, 5_000).map(([owner, one]) => [owner, one.seconds]));
  let second = 0;
  for (; due.size > 0 && second < 600; second++, clock.advance(1_000)) {
    for (const [owner, at] of due) if (at <= second) come(owner.split('/')[0] ?? '', '1');
    await drainAll();
    for (const owner of due.keys()) {
      const outcome = outcomes.get(owner);
      if (outcome === 'in') due.delete(owner);
      else if (outcome instanceof TurnedAway && (due.get(owner) ?? 0) <= second)
        due.set(owner, second + outcome.seconds);
    }
  }
  t.ok(second <= 90, `all are back after ${second} s`);
});

t.test('ADMIT-09: sockets of tenants that are loaded on the instance are admitted while others wait', async (t) => {
  const loads: (() => void)[] = [];
  const { port, actor, front } = await frontOf(t, {
    services: {
      tickets: {
        issueSocket: () => ({ ticket: 'x', expiresAt: 1 }),
        readSocket: () => ({
          ...{ deviceId: 'other', epoch: 1, expiresAt: 4e12 },
          spend: () => new Promise((resolve) => void loads.push(() => resolve(false))),
        }),
      },
    },
  });
  // As many as the window has places for, and one more.
  const slow = Array.from({ length: 65 }, () => socketOf(t, port, { query: '?ticket=slow' }).catch(() => undefined));
  while (front.admission.waiting === 0) await settle();
  const socket = await socketOf(t, port, { query: `?token=${tokenOf()}` });
  await socket.say({ type: 'ping' });
  t.equal(actor.sessions.length, 1);
  t.equal(front.admission.waiting, 1);
  for (let n = 0; n < slow.length; n++) {
    while (loads.length <= n) await settle();
    loads[n]?.();
  }
  await Promise.all(slow);
});

t.test('ADMIT-03: a socket that is not admitted is opened and closed with 1013 and a time', async (t) => {
  const loads: (() => void)[] = [];
  const { port, clock, actor } = await frontOf(t, {
    services: {
      tenants: {
        actors: new Map(),
        get: () => new Promise((resolve) => void loads.push(() => resolve(undefined))),
        hurry: () => undefined,
        changed: () => Promise.resolve(),
      },
    },
  });
  const stuck = openSocket(t, port);
  while (loads.length === 0) await settle();
  clock.advance(6_000);
  for (let n = 0; n < 2; n++) {
    const away = await socketOf(t, port);
    t.equal(await away.closed(), 1013);
    t.match(away.closeReason, /^retry-after=\d+$/);
  }
  t.equal(loads.length, 1, 'the database was not queried again');
  t.equal(actor.sessions.length, 0);
  loads[0]?.();
  t.match(await stuck, { status: 404 });
});
