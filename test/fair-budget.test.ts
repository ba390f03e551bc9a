/** How much of a budget each holder may have, and which holdings give way (src/server/http/limits.ts). */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { UNSENT_MAX } from '../src/protocol/limits.js';
import { DOCS_FOLDER } from '../src/root.js';
import { TrustedProxies } from '../src/server/http/client-address.js';
import {
  FairBudget,
  Holding,
  RequestBudgets,
  RESERVE_MS,
  refusalOf,
  STILL_MS,
  type ChargedRequest,
} from '../src/server/http/limits.js';
import { TestClock } from './support/clock.js';

/** How many owners it keeps an account of. */
const ownersOf = (budget: FairBudget): number => budget['holders'].map.size;

/** A budget of 1,600: a device's share is 100, a tenant's 400. */
function stage() {
  const clock = new TestClock();
  const budget = new FairBudget(1_600, clock);
  const gone: string[] = [];
  const holding = (group: string, owner: string, name = owner): Holding =>
    new Holding(group, `${group}/${owner}`, () => void gone.push(name));
  /** Fills the budget: four tenants of four devices, all at their share. */
  const fill = (): Holding[] =>
    ['a', 'b', 'c', 'd'].flatMap((group) =>
      [1, 2, 3, 4].map((device) => {
        const held = holding(group, `${group}${device}`);
        t.equal(budget.set(held, 100), 'held');
        return held;
      }),
    );
  return { clock, budget, gone, holding, fill };
}

t.test('FAIR-01: a device holds at most a sixteenth and a tenant a quarter, and others are not affected', async (t) => {
  const { budget, gone, holding } = stage();
  const first = holding('a', 'a1');
  t.equal(budget.set(first, 100), 'held');
  t.equal(budget.set(first, 101), 'share');
  t.equal(first.amount, 100, 'a refused amount is not counted');
  t.equal(budget.set(holding('a', 'a1'), 1), 'share');
  for (const device of ['a2', 'a3', 'a4']) t.equal(budget.set(holding('a', device), 100), 'held');
  t.equal(budget.set(holding('a', 'a5'), 1), 'share', 'the tenant already holds its quarter');
  t.equal(budget.set(holding('b', 'b1'), 100), 'held');
  t.same(gone, []);
  t.equal(budget.held, 500);
  t.equal(refusalOf('share', 'x').error, 'rate_limited');
  t.equal(refusalOf('share', 'x').retryAfter, 1);
  t.equal(refusalOf('bound', 'x').error, 'unavailable');
});

t.test('FAIR-02: a caller that holds nothing may hold one thing, however large', async (t) => {
  const { budget, holding } = stage();
  const large = holding('a', 'a1');
  t.equal(budget.set(large, 1_000), 'held');
  t.equal(budget.set(holding('a', 'a1'), 1), 'share');
  t.equal(budget.set(holding('b', 'b1'), 1_001), 'bound', 'not beyond the bound');
  t.equal(budget.set(holding('b', 'b1'), 600), 'held');
  const tenant = stage();
  tenant.budget.set(tenant.holding('a', 'a1'), 50);
  t.equal(tenant.budget.set(tenant.holding('a', 'a2'), 351), 'share', 'not beyond what is left of its tenant');
  t.equal(tenant.budget.set(tenant.holding('a', 'a2'), 350), 'held');
  const empty = stage();
  t.equal(empty.budget.set(empty.holding('a', 'a1'), 5_000), 'held', 'beyond the bound where nothing is held');
});

t.test('FAIR-03: at the bound the largest holders give way, what stood still first; small ones stay', async (t) => {
  const { clock, budget, gone, holding } = stage();
  const still = holding('a', 'a1', 'still');
  const moving = holding('a', 'a1', 'moving');
  budget.set(still, 50);
  budget.set(moving, 50);
  for (const device of ['a2', 'a3', 'a4']) budget.set(holding('a', device), 100);
  for (const group of ['b', 'c']) for (const n of [1, 2, 3, 4]) budget.set(holding(group, `${group}${n}`), 100);
  for (const n of [1, 2, 3]) budget.set(holding('d', `d${n}`), 100);
  const small = holding('e', 'e1');
  budget.set(small, 100);
  t.equal(budget.held, 1_600);
  clock.advance(STILL_MS);
  budget.moved(moving);
  t.equal(budget.set(holding('f', 'f1'), 10), 'held');
  t.same(gone, ['still'], 'one holding of the largest tenant gives way, no more than is needed');
  t.equal(budget.set(holding('f', 'f2'), 60), 'held');
  t.notOk(gone.includes('moving'));
  t.equal(small.amount, 100);
});

t.test('FAIR-03: where nothing stands still, holdings that move give way', async (t) => {
  const { budget, gone, holding, fill } = stage();
  fill();
  t.equal(budget.set(holding('e', 'e1'), 100), 'held');
  t.ok(gone.length > 0 && gone.length <= 3, `${gone.length} gave way`);
  t.ok(budget.held <= budget.bound);
});

t.test('FAIR-03: a caller that would be the largest holder is refused, and nothing gives way for it', async (t) => {
  const { clock, budget, gone, holding } = stage();
  const large = holding('a', 'a1');
  budget.set(large, 1_000);
  for (const n of [1, 2, 3, 4, 5, 6]) budget.set(holding(`g${n}`, 'x'), 100);
  clock.advance(STILL_MS);
  t.equal(budget.set(holding('h', 'h1'), 1_100), 'bound');
  t.same(gone, []);
});

t.test('FAIR-03: holdings that cannot give way are skipped', async (t) => {
  const { budget, gone, holding } = stage();
  const calls = [1, 2, 3, 4].map((n) => new Holding('a', `a/${n}`));
  for (const call of calls) budget.set(call, 100);
  for (const group of ['b', 'c', 'd']) for (const n of [1, 2, 3, 4]) budget.set(holding(group, `${group}${n}`), 100);
  t.equal(budget.set(holding('e', 'e1'), 100), 'held');
  t.ok(gone.length > 0);
  for (const call of calls) t.equal(call.amount, 100);
});

t.test('FAIR-51: a budget that ten thousand tenants share up to its bound makes room in milliseconds', async (t) => {
  const budget = new FairBudget(10_000, new TestClock());
  for (let n = 0; n < 10_000; n++) budget.set(new Holding(`${n}`, `${n}/device`, () => undefined), 1);
  t.equal(budget.held, 10_000);
  const before = process.cpuUsage();
  // Walking all holders for each tenant would take 0.5 s for each of them.
  for (let n = 0; n < 20; n++) t.equal(budget.set(new Holding(`new ${n}`, `new ${n}/device`), 1), 'held');
  const { user, system } = process.cpuUsage(before);
  t.ok(user + system < 2_000_000, `${Math.round((user + system) / 20_000)} ms of a processor each`);
});

t.test('FAIR-51: where nothing can give way, the refusal costs no order of all holders', async (t) => {
  const budget = new FairBudget(10_000, new TestClock());
  for (let n = 0; n < 10_000; n++) budget.set(new Holding(`${n}`, `${n}/device`), 1);
  const { sort } = Array.prototype;
  const sorted: number[] = [];
  Array.prototype.sort = function (this: unknown[], compare) {
    sorted.push(this.length);
    return sort.call(this, compare) as never[];
  };
  t.teardown(() => (Array.prototype.sort = sort));
  t.equal(budget.set(new Holding('new', 'new/device', () => undefined), 1), 'bound');
  t.same(sorted, [0, 0]);
});

t.test('FAIR-04: what has stood still gives way to something new of the same holder', async (t) => {
  const { clock, budget, gone, holding } = stage();
  budget.set(holding('a', 'a1', 'old'), 60);
  clock.advance(1_000);
  budget.set(holding('a', 'a1', 'young'), 40);
  t.equal(budget.set(holding('a', 'a1'), 50), 'share', 'nothing stands still yet');
  clock.advance(STILL_MS - 1_001);
  t.equal(budget.set(holding('a', 'a1'), 50), 'share', 'nothing gives way before the time is over');
  t.same(gone, []);
  clock.advance(1);
  t.equal(budget.set(holding('a', 'a1'), 50), 'held');
  t.same(gone, ['old']);
  for (const device of ['a2', 'a3', 'a4']) budget.set(holding('a', device), 100);
  clock.advance(STILL_MS);
  t.equal(budget.set(holding('a', 'a5'), 90), 'held', 'the same holds within a tenant');
  t.equal(gone.length, 2);
});

t.test('FAIR-04: what has stood still gives way in time where the clock was set back', async (t) => {
  const { clock, budget, gone, holding } = stage();
  budget.set(holding('a', 'a1', 'old'), 60);
  clock.setBy(-3_600_000);
  t.equal(budget.set(holding('a', 'a1'), 50), 'share');
  clock.advance(STILL_MS);
  t.equal(budget.set(holding('a', 'a1'), 50), 'held');
  t.same(gone, ['old']);
});

t.test('FAIR-05: reservations wait, owners are served in turn, and no wait is endless', async (t) => {
  const { clock, budget, holding } = stage();
  const served: string[] = [];
  const ask = async (owner: string, name: string): Promise<void> => {
    served.push(`${name} ${await budget.reserve(holding('a', owner), 100)}`);
  };
  const firsts = ['a1', 'a2', 'a3', 'a4'].map((owner) => holding('a', owner));
  for (const first of firsts) t.equal(budget.reserve(first, 100), 'held');
  const all = [ask('a1', 'one'), ask('a1', 'two'), ask('a2', 'three')];
  t.equal(clock.waiting, 3);
  for (const first of firsts.slice(0, 2)) budget.release(first);
  await Promise.all([all[0], all[2]]);
  t.same(served.sort(), ['one held', 'three held'], 'the first owner is not served twice before the second');
  t.equal(RESERVE_MS, 5_000);
  clock.advance(RESERVE_MS);
  await all[1];
  t.equal(served.at(-1), 'two share');
  t.equal(clock.waiting, 0, 'no timer is left');
  t.equal(budget['queue'].size, 0, 'no reservation waits');
});

t.test('FAIR-05: a reservation that is released while it waits takes nothing', async (t) => {
  const { clock, budget, holding } = stage();
  const [first, second] = [holding('a', 'a1'), holding('a', 'a1')];
  budget.set(first, 100);
  const waiting = budget.reserve(second, 10);
  budget.release(second);
  t.equal(await waiting, 'share');
  budget.release(first);
  t.equal(budget.held, 0);
  t.equal(clock.waiting, 0);
  t.equal(budget['queue'].size, 0);
});

t.test('FAIR-06: a budget forgets every holder that holds nothing', async (t) => {
  const { budget, fill, holding } = stage();
  const held = fill();
  t.equal(ownersOf(budget), 16);
  for (const one of held) budget.set(one, 1);
  t.equal(budget.held, 16);
  for (const one of held) budget.release(one);
  for (const one of held) budget.release(one);
  t.equal(budget.held, 0, 'a second release changes nothing');
  t.equal(ownersOf(budget), 0);
  const again = holding('a', 'a1');
  budget.set(again, 10);
  budget.set(again, 0);
  budget.set(again, 7);
  t.equal(budget.held, 7);
  budget.release(again);
  t.equal(ownersOf(budget), 0);
});

t.test(
  'FAIR-03, FAIR-06: after any sequence of calls, the sum matches the holdings and stays within the bound',
  async (t) => {
    const clock = new TestClock();
    const budget = new FairBudget(1_600, clock);
    // A seeded generator, so that a failure can be reproduced.
    let seed = 7;
    const random = (below: number): number => (seed = (seed * 48_271) % 2_147_483_647) % below;
    const all = Array.from({ length: 200 }, (_, n) => {
      const group = `g${n % 7}`;
      return new Holding(group, `${group}/${n % 40}`, n % 3 === 0 ? undefined : () => undefined);
    });
    let broken = 0;
    for (let step = 0; step < 20_000; step++) {
      const holding = all[random(all.length)] as Holding;
      const what = random(10);
      if (what < 6) budget.set(holding, random(120));
      else if (what < 8) budget.release(holding);
      else if (what < 9) budget.moved(holding);
      else clock.advance(random(3_000));
      const sum = all.reduce((held, { amount }) => held + amount, 0);
      if (sum !== budget.held || sum > budget.bound) broken++;
    }
    t.equal(broken, 0);
    for (const holding of all) budget.release(holding);
    t.equal(budget.held, 0);
    t.equal(ownersOf(budget), 0);
  },
);

t.test('FAIR-01: the table on the page Limits has the bounds of the code, and the shares of each', (t) => {
  const page = readFileSync(join(DOCS_FOLDER, 'limits.md'), 'utf8');
  const MIB = 1024 * 1024;
  const amount = (cell: string): number => {
    const [, digits = '', unit] = /^([\d,]+)( MiB)?$/.exec(cell.trim()) ?? [];
    return Number(digits.replaceAll(',', '')) * (unit === undefined ? 1 : MIB);
  };
  const budgets = new RequestBudgets(new TestClock(), new TrustedProxies([]));
  const ofOwner = (owner: string) => budgets.of({ owner } as ChargedRequest);
  const bounds = new Map<string, number>([['sockets_unsent', UNSENT_MAX]]);
  for (const [kind, owner] of [
    ['device', 'tenant/device'],
    ['stranger', ''],
  ] as const)
    for (const [what, { bound }] of Object.entries(ofOwner(owner))) bounds.set(`${kind}_${what}`, bound);
  const named = new Map<string, number>();
  for (const [, name = '', bound = '', tenant = '', owner = ''] of page.matchAll(
    /^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([^|]*)\| ([^|]+) \|$/gm,
  )) {
    named.set(name, amount(bound));
    // A client without a token has no tenant.
    if (tenant.trim() !== '') t.equal(amount(tenant), amount(bound) / 4, `${name}: a tenant`);
    t.equal(amount(owner), amount(bound) / 16, `${name}: a device or an address`);
  }
  t.same(named, bounds);
  t.end();
});
