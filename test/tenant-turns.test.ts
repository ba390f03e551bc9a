/** The order in which replays read: tenants in turn, within each its devices in turn. */
import t from 'tap';
import { TurnQueue } from '../src/server/tenant/turn-queue.js';

/** Work under way, ended by hand. */
class Work {
  readonly begun: string[] = [];
  private readonly ends = new Map<string, () => void>();

  constructor(private readonly turns: TurnQueue) {}

  /** `name`: tenant, device, number; 'a1.1'. */
  ask(name: string, fails = false): Promise<string> {
    const [tenantId = '', deviceId = ''] = name;
    return this.turns.take({ tenantId, deviceId }, () => {
      this.begun.push(name);
      return new Promise((resolve, reject) => {
        this.ends.set(name, () => (fails ? reject(new Error(name)) : resolve(name)));
      });
    });
  }

  async end(name: string): Promise<void> {
    this.ends.get(name)?.();
    // The next turn begins in the step after the one that sends what was read.
    for (let step = 0; step < 2; step++) await new Promise((resolve) => setImmediate(resolve));
  }
}

t.test('FAIR-25: tenants read in turn, and within each its devices', async (t) => {
  const work = new Work(new TurnQueue(4));
  const results = ['a1.1', 'a1.2', 'a1.3', 'a2.1', 'a3.1', 'b1.1', 'b1.2'].map((name) => work.ask(name));
  t.same(work.begun, ['a1.1', 'b1.1'], 'one read of each tenant, however many it requests');
  for (const name of ['c', 'd', 'e', 'f']) results.push(work.ask(`${name}1.1`));
  t.same(work.begun.slice(2), ['c1.1', 'd1.1'], 'four reads in all');
  await work.end('a1.1');
  t.same(work.begun.slice(4), ['a1.2'], 'the first in the queue');
  await work.end('a1.2');
  t.same(work.begun.slice(5), ['e1.1'], 'then the other tenants, except b, which has its share');
  for (let at = 0; at < work.begun.length; at++) await work.end(work.begun[at] ?? '');
  t.equal((await Promise.all(results)).length, 11);
  t.ok(work.begun.indexOf('f1.1') < work.begun.indexOf('a2.1'), 'each tenant has a turn before any has another');
  t.ok(work.begun.indexOf('a3.1') < work.begun.indexOf('a1.3'), 'each device has a turn before any has another');
});

t.test('FAIR-43: a tenant has as many places as it may, and the others are for tenants without any', async (t) => {
  const work = new Work(new TurnQueue(4, 2));
  const results = ['a1.1', 'a1.2', 'a1.3', 'a2.1', 'b1.1', 'b1.2', 'b1.3', 'c1.1', 'd1.1'].map((name) =>
    work.ask(name),
  );
  t.same(work.begun, ['a1.1', 'a1.2', 'b1.1', 'c1.1'], 'two of the first, and one of each other tenant');
  await work.end('a1.2');
  t.same(work.begun.slice(4), ['d1.1'], 'of a tenant without any, not of those that wait longer and have one');
  await work.end('b1.1');
  t.same(work.begun.slice(5), ['b1.2'], 'b has none now');
  await work.end('a1.1');
  t.same(work.begun.slice(6), ['a1.3'], 'nor has a: the first in its queue');
  for (let at = 0; at < work.begun.length; at++) await work.end(work.begun[at] ?? '');
  t.equal((await Promise.all(results)).length, 9);
});

t.test('FAIR-25: work that fails gives its place to the next', async (t) => {
  const queue = new TurnQueue(4);
  const atOnce = queue.take({ tenantId: 'a', deviceId: '1' }, () => {
    throw new Error('before there was a promise');
  });
  await t.rejects(atOnce, { message: /before/ });
  const work = new Work(queue);
  const first = work.ask('a1.1', true);
  const second = work.ask('a1.2');
  await new Promise((resolve) => setImmediate(resolve));
  const ended = work.end('a1.1');
  await t.rejects(first, { message: 'a1.1' });
  await ended;
  t.same(work.begun, ['a1.1', 'a1.2']);
  await work.end('a1.2');
  t.equal(await second, 'a1.2');
  const throws = new TurnQueue(4).take({ tenantId: 'a', deviceId: '1' }, async () => {
    await Promise.resolve();
    throw new Error('broken');
  });
  await t.rejects(throws, { message: 'broken' });
});
