/** The classes that all background work is built on: one task at a time, one run for many, one batch for many. */
import fc from 'fast-check';
import t from 'tap';
import { Batcher } from '../src/protocol/batcher.js';
import { Serial } from '../src/protocol/serial.js';
import { KeyedFlight, repeated, SingleFlight } from '../src/protocol/single-flight.js';
import { WaitGroup } from '../src/protocol/wait-group.js';
import { ServiceError } from '../src/protocol/errors.js';
import { TestClock } from './support/clock.js';
import { inLongRun } from './support/long.js';
import { refusal } from './support/accounts.js';
import { until } from './support/events.js';

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
/** How a run ends: at once or when released, with a value or an error; `reenter` requests another run from within. */
const END = fc.constantFrom('value', 'throw', 'reject', 'held', 'held-reject', 'reenter');
type End = 'value' | 'throw' | 'reject' | 'held' | 'held-reject' | 'reenter';

/** Runs that end as planned, and what was observed of them. */
class Stage {
  private readonly held: (() => void)[] = [];
  private runs = 0;
  underWay = 0;
  overlaps = 0;
  /** When each run began, in steps of the test. */
  readonly began: number[] = [];

  constructor(
    private readonly plan: readonly End[],
    private readonly now: () => number,
  ) {}

  /** Returns the number of the run, or rejects or throws with it. */
  perform(again: () => void): number | Promise<number> {
    const run = this.runs++;
    const end = this.plan[run % this.plan.length] ?? 'value';
    this.began.push(this.now());
    if (++this.underWay > 1) this.overlaps++;
    // From the 40th run on none requests another one, else there is no end.
    if (end === 'reenter' && run < 40) again();
    if (end === 'throw') {
      this.underWay--;
      throw new Error(String(run));
    }
    return this.ending(run, end);
  }

  private async ending(run: number, end: End): Promise<number> {
    if (end === 'held' || end === 'held-reject') await new Promise<void>((resolve) => this.held.push(resolve));
    this.underWay--;
    if (end === 'reject' || end === 'held-reject') throw new Error(String(run));
    return run;
  }

  /** Lets the held runs go on. */
  release(): void {
    for (const go of this.held.splice(0)) go();
  }
}

const numberOf = (outcome: Promise<number>): Promise<number> =>
  outcome.catch((error: unknown) => Number((error as Error).message));

const STEPS = fc.array(fc.constantFrom('join', 'fresh', 'fresh', 'release', 'turn', 'microtask'), { maxLength: 40 });

t.test('WORK-02: a flight has one run at a time, and a fresh one begins after its call', async (t) => {
  await fc.assert(
    fc.asyncProperty(STEPS, fc.array(END, { minLength: 1, maxLength: 8 }), async (steps, plan) => {
      let at = 0;
      const stage = new Stage(plan, () => at);
      const asked: { readonly at: number; readonly fresh: boolean; readonly run: Promise<number> }[] = [];
      const ask = (fresh: boolean): void => {
        const run = numberOf(fresh ? flight.fresh() : flight.join());
        asked.push({ at: ++at, fresh, run });
      };
      const flight: SingleFlight<number> = new SingleFlight(() => stage.perform(() => ask(true)));
      for (const step of steps) {
        at++;
        if (step === 'join' || step === 'fresh') ask(step === 'fresh');
        if (step === 'release') stage.release();
        if (step === 'turn') await turn();
        if (step === 'microtask') await Promise.resolve();
      }
      while (flight.busy) {
        stage.release();
        await turn();
      }
      await flight.idle();
      const runs = await Promise.all(asked.map(({ run }) => run));
      const stale = asked.filter((call, n) => call.fresh && (stage.began[runs[n] ?? -1] ?? -1) < call.at);
      const spare = stage.began.filter((_, run) => !runs.includes(run));
      return stage.overlaps === 0 && stale.length === 0 && spare.length === 0 && stage.began.length <= asked.length;
    }),
    { numRuns: inLongRun(500, 2_000) },
  );
  t.pass('every call is answered by its run, and no run is made without a call');
});

t.test('WORK-02: calls during a run share the next one, with the arguments of the first of them', async (t) => {
  const made: string[] = [];
  let end: (() => void) | undefined;
  const flight = new SingleFlight<string, [string]>(async (name) => {
    made.push(name);
    await new Promise<void>((resolve) => (end = resolve));
    return name;
  });
  const first = [flight.fresh('a'), flight.fresh('b'), flight.join('c')];
  await turn();
  const during = [flight.fresh('d'), flight.fresh('e')];
  const joined = flight.join('f');
  end?.();
  t.same(await Promise.all([...first, joined]), ['a', 'a', 'a', 'a']);
  const late = flight.join('g');
  await turn();
  end?.();
  t.same(await Promise.all([...during, late]), ['d', 'd', 'd']);
  t.same(made, ['a', 'd']);
  t.notOk(flight.busy);
});

t.test('WORK-02: a call around the very end of a run is not left out', async (t) => {
  let wanted = 0;
  let done = 0;
  const flight = new SingleFlight(() => {
    done = wanted;
  });
  // Each call is made in another microtask around the end of the run before it.
  for (let gap = 0; gap < 12; gap++) {
    for (let n = 0; n < 3; n++) {
      wanted++;
      void flight.fresh();
      for (let tick = 0; tick < gap; tick++) await Promise.resolve();
    }
    await flight.idle();
    t.equal(done, wanted, `calls ${gap} microtasks apart are all served`);
  }
});

t.test('WORK-02: each key has runs of its own, and one that throws synchronously is not stuck', async (t) => {
  let made = 0;
  const flight = new KeyedFlight<string, number>((key) => {
    made++;
    if (key === 'bad') throw new Error('at once');
    return made;
  });
  const both = [flight.join('one'), flight.join('one')];
  t.ok(flight.underWay('one') === both[0]);
  t.same(await Promise.all([...both, flight.join('two')]), [1, 1, 2]);
  for (const _ of [1, 2]) await t.rejects(flight.join('bad'), { message: 'at once' });
  t.equal(made, 4, 'a failed run is not kept');
  t.equal(flight.underWay('bad'), undefined);
});

t.test('WORK-01: tasks run one after the other in the order of the calls, however they end', async (t) => {
  const STEP = fc.constantFrom('run', 'run', 'release', 'turn', 'microtask');
  await fc.assert(
    fc.asyncProperty(
      fc.array(STEP, { maxLength: 40 }),
      fc.array(END, { minLength: 1, maxLength: 8 }),
      async (steps, plan) => {
        let at = 0;
        const stage = new Stage(plan, () => at);
        const serial = new Serial();
        const asked: Promise<number>[] = [];
        const order: number[] = [];
        let ended = 0;
        const ask = (): void => {
          const n = asked.length;
          const task = (): number | Promise<number> => {
            order.push(n);
            return stage.perform(ask);
          };
          asked.push(numberOf(serial.run(task)).finally(() => ended++));
        };
        for (const step of steps) {
          at++;
          if (step === 'run') ask();
          if (step === 'release') stage.release();
          if (step === 'turn') await turn();
          if (step === 'microtask') await Promise.resolve();
        }
        while (ended < asked.length) {
          stage.release();
          await turn();
        }
        await serial.idle();
        const runs = await Promise.all(asked);
        const inOrder = (list: readonly number[]): boolean => list.every((value, n) => value === n);
        return stage.overlaps === 0 && inOrder(order) && inOrder(runs) && runs.length === order.length;
      },
    ),
    { numRuns: inLongRun(300, 1_000) },
  );
  t.pass('each caller gets the result of its own task');
});

t.test('WORK-01: a task beyond the bound is refused and not run, and freed room is used again', async (t) => {
  const serial = new Serial({ maxWaiting: 2, refuse: () => new Error('full') });
  const ran: number[] = [];
  let end: (() => void) | undefined;
  const first = serial.run(() => new Promise<void>((resolve) => (end = resolve)));
  const [second, third] = [2, 3].map((n) => serial.run(() => ran.push(n)));
  await t.rejects(
    serial.run(() => ran.push(4)),
    { message: 'full' },
  );
  await turn();
  end?.();
  await Promise.all([first, second, third]);
  await serial.run(() => ran.push(5));
  t.same(ran, [2, 3, 5]);
});

t.test(
  'WORK-10: a wait group is idle when its last promise has settled, also one that the one before adds',
  async (t) => {
    const group = new WaitGroup();
    await group.idle();
    const ends: (() => void)[] = [];
    const held = (): Promise<void> => new Promise((resolve) => ends.push(resolve));
    const failing = group.add(held().then(() => Promise.reject(new Error('fails'))));
    const adding = group.add(held()).then(() => void group.add(held()));
    let idle = 0;
    const waiting = [1, 2].map(() => group.idle().then(() => idle++));
    t.equal(group.size, 2);
    ends[0]?.();
    await t.rejects(failing, { message: 'fails' });
    ends[1]?.();
    await adding;
    await turn();
    t.same([group.size, idle], [1, 0], 'the added one is waited for');
    ends[2]?.();
    await Promise.all(waiting);
    t.same([group.size, idle], [0, 2]);
  },
);

/** How a batch ends. */
const ANSWER = fc.constantFrom('right', 'right', 'reject', 'throw', 'short', 'long', 'nothing', 'held', 'pause-fails');

t.test('WORK-03: every call of a batcher is answered, by a batch that began after it', async (t) => {
  const STEP = fc.constantFrom('ask', 'ask', 'ask', 'release', 'turn', 'microtask');
  await fc.assert(
    fc.asyncProperty(
      fc.array(STEP, { maxLength: 40 }),
      fc.array(ANSWER, { minLength: 1, maxLength: 6 }),
      fc.integer({ min: 1, max: 4 }),
      async (steps, plan, max) => {
        const held: (() => void)[] = [];
        const begun = new Set<number>();
        let [underWay, wrong, batches] = [0, 0, 0];
        const planned = (): string => plan[batches % plan.length] ?? 'right';
        const end = async (keys: readonly number[], how: string): Promise<readonly number[]> => {
          if (how === 'held') await new Promise<void>((resolve) => held.push(resolve));
          underWay--;
          if (how === 'reject') throw new Error('rejected');
          if (how === 'short') return keys.slice(1);
          if (how === 'long') return [...keys, 0];
          return how === 'nothing' ? (undefined as unknown as number[]) : keys.map((key) => key * 10);
        };
        const run = (keys: readonly number[]): Promise<readonly number[]> => {
          const how = planned();
          batches++;
          if (++underWay > 1 || keys.length > max || keys.some((key) => begun.has(key))) wrong++;
          for (const key of keys) begun.add(key);
          if (how !== 'throw') return end(keys, how);
          underWay--;
          throw new Error('at once');
        };
        const pause = (): Promise<void> | undefined =>
          planned() === 'pause-fails' ? Promise.reject(new Error('pause')) : undefined;
        const batcher = new Batcher<number, number>(max, run, pause);
        let settled = 0;
        const asked: Promise<void>[] = [];
        const ask = (key: number): Promise<void> =>
          batcher.ask(key).then(
            (value) => {
              settled++;
              if (value !== key * 10) wrong++;
            },
            () => {
              settled++;
            },
          );
        for (const step of steps) {
          if (step === 'ask') asked.push(ask(asked.length));
          if (step === 'release') for (const go of held.splice(0)) go();
          if (step === 'turn') await turn();
          if (step === 'microtask') await Promise.resolve();
        }
        for (let turns = 0; settled < asked.length && turns < 1_000; turns++) {
          for (const go of held.splice(0)) go();
          await turn();
        }
        return wrong === 0 && settled === asked.length && underWay === 0;
      },
    ),
    { numRuns: inLongRun(300, 1_000) },
  );
  t.pass('every call is answered, however the batches end');
});

t.test('WORK-02: repeated work does not overlap itself, and its stop waits for the run under way', async (t) => {
  const clock = new TestClock();
  const ends: (() => void)[] = [];
  const stop = repeated(clock, 1_000, () => new Promise((resolve) => ends.push(resolve)));
  clock.advance(3_000);
  await turn();
  t.equal(ends.length, 1, 'no second run begins while the first has not ended');
  ends[0]?.();
  await turn();
  clock.advance(1_000);
  await turn();
  t.equal(ends.length, 2);
  const stopped = stop();
  t.equal(await Promise.race([stopped.then(() => 'stopped'), turn()]), undefined, 'a run is under way');
  ends[1]?.();
  await stopped;
  clock.advance(10_000);
  await turn();
  t.equal(ends.length, 2, 'no other run begins');
});

/** The most callers that may wait. */
const BOUND = 50_000;

t.test('ERR-15: callers beyond the bound are refused at once, and those that wait are served', async (t) => {
  let go: (() => void) | undefined;
  const stands = new Promise<void>((resolve) => (go = resolve));
  const batcher = new Batcher<number, number>(10_000, async (keys) => {
    await stands;
    return keys.map((key) => key * 10);
  });
  const asked = Array.from({ length: BOUND + 3 }, (_, key) => batcher.ask(key));
  const settled = Promise.allSettled(asked);
  t.equal(await refusal(asked[BOUND] as Promise<number>), 'unavailable');
  go?.();
  const ends = await settled;
  t.same(
    ends.slice(0, BOUND).map((end) => end.status === 'fulfilled' && end.value),
    Array.from({ length: BOUND }, (_, key) => key * 10),
  );
  for (const end of ends.slice(BOUND)) t.ok(end.status === 'rejected' && end.reason instanceof ServiceError);
  t.equal(await batcher.ask(9), 90, 'further calls are served');
});

t.test(
  'after a large batch the next one waits for more callers to share it, after a small one it does not',
  async (t) => {
    const batches: number[] = [];
    const pauses: (() => void)[] = [];
    const batcher = new Batcher<number, number>(
      100,
      (keys) => {
        batches.push(keys.length);
        return Promise.resolve(keys);
      },
      (answered) => (answered < 3 ? undefined : new Promise((resolve) => pauses.push(resolve))),
    );
    const ask = (count: number): Promise<number[]> =>
      Promise.all(Array.from({ length: count }, (_, key) => batcher.ask(key)));
    await ask(2);
    await ask(2);
    t.same([batches, pauses.length], [[2, 2], 0]);
    await ask(3);
    const [one, other] = [ask(5), ask(6)];
    await new Promise((resolve) => setImmediate(resolve));
    t.same(batches, [2, 2, 3], 'no batch begins during the pause');
    pauses.shift()?.();
    await Promise.all([one, other]);
    t.same(batches, [2, 2, 3, 11]);
    pauses.shift()?.();
    await ask(1);
    t.same(batches, [2, 2, 3, 11, 1], 'after the pause the next batch begins at once');
  },
);

t.test('`hurry` ends the pause, and skips the next one where a batch is under way', async (t) => {
  const batches: number[] = [];
  const ends: (() => void)[] = [];
  let pauses = 0;
  const batcher = new Batcher<number, number>(
    100,
    async (keys) => {
      batches.push(keys.length);
      await new Promise<void>((resolve) => ends.push(resolve));
      return keys;
    },
    () => {
      pauses++;
      return new Promise(() => undefined);
    },
  );
  const first = batcher.ask(1);
  await until('a batch', () => ends.length === 1);
  ends.shift()?.();
  await first;
  const [patient, hasty] = [batcher.ask(2), batcher.ask(3)];
  await until('a pause', () => pauses === 1);
  batcher.hurry();
  await until('the next batch, in the pause', () => ends.length === 1);
  t.same(batches, [1, 2], 'the batch has all waiting calls');
  const another = batcher.ask(4);
  batcher.hurry();
  ends.shift()?.();
  await Promise.all([patient, hasty]);
  await until('one without a pause before it', () => ends.length === 1);
  ends.shift()?.();
  await another;
  // As in the registry: the batcher is called one turn of the microtasks after `join`.
  const flight = new KeyedFlight((key: string) => batcher.ask(Number(key)));
  const last = flight.join('5');
  batcher.hurry();
  await until('the last, in the pause too', () => ends.length === 1);
  ends.shift()?.();
  t.equal(await last, 5);
  const later = batcher.ask(6);
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
  t.same(batches, [1, 2, 1, 1], '`hurry` has no lasting effect: the next batch waits');
  batcher.hurry();
  await until('the next', () => ends.length === 1);
  ends.shift()?.();
  await later;
});

t.test('REPLAY-04: a call made while a statement is under way is answered by a later statement', async (t) => {
  const ends: (() => void)[] = [];
  let head = 1;
  const batcher = new Batcher<string, number>(10, async (keys) => {
    // A statement reads what is there when it begins.
    const found = keys.map(() => head);
    await new Promise<void>((resolve) => ends.push(resolve));
    return found;
  });
  const early = batcher.ask('tenant');
  await until('a statement', () => ends.length === 1);
  head = 2;
  const late = [batcher.ask('tenant'), batcher.ask('tenant')];
  t.equal(ends.length, 1, 'one statement is under way');
  ends[0]?.();
  t.equal(await early, 1);
  await until('the next statement', () => ends.length === 2);
  ends[1]?.();
  t.same(await Promise.all(late), [2, 2]);
  t.equal(ends.length, 2, 'the calls that waited share one statement');
});
