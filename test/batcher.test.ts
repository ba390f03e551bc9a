/** Callers that share a statement (src/protocol/batcher.ts). */
import t from 'tap';
import { Batcher } from '../src/protocol/batcher.js';
import { ServiceError } from '../src/protocol/errors.js';
import { refusal } from './support/accounts.js';
import { KeyedFlight } from '../src/protocol/single-flight.js';
import { until } from './support/events.js';

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
      { pause: (answered) => (answered < 3 ? undefined : new Promise((resolve) => pauses.push(resolve))) },
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
    {
      pause: () => {
        pauses++;
        return new Promise(() => undefined);
      },
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
