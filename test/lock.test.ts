/** The lock between processes (src/files/lock.ts): every order of its steps, and real processes. */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';
import { chmod, chown, mkdir, readdir, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import t from 'tap';
import { lockHolder, take, tryLock, type LockFiles } from '../src/files/lock.js';
import { waitForLock } from '../src/terminal/lock.js';
import { TestClock } from './support/clock.js';
import { soon, until } from './support/events.js';
import { temporaryFolder } from './support/postgres.js';
import { smallDisk } from './support/small-disk.js';

/** What a contender does next, found by running the code up to the first call whose answer is not known yet. */
type Step =
  | { readonly kind: 'list' }
  | { readonly kind: 'first' }
  | { readonly kind: 'isHeld' | 'create' | 'remove'; readonly number: number }
  | { readonly kind: 'end'; readonly number: number | undefined };

class Next extends Error {
  constructor(readonly step: Step) {
    super(step.kind);
  }
}

/** The step after those whose answers are `known`. The code depends on its answers alone, so rerunning it shows it. */
function nextStep(known: readonly unknown[]): Step {
  let at = 0;
  const call = (step: Step): unknown => {
    if (at < known.length) return known[at++];
    throw new Next(step);
  };
  const files: LockFiles = {
    list: () => call({ kind: 'list' }) as number[],
    first: () => call({ kind: 'first' }) as number,
    isHeld: (number) => call({ kind: 'isHeld', number }) as boolean,
    create: (number) => call({ kind: 'create', number }) as boolean,
    remove: (number) => void call({ kind: 'remove', number }),
  };
  try {
    return { kind: 'end', number: take(files) };
  } catch (error) {
    if (error instanceof Next) return error.step;
    throw error;
  }
}

interface Contender {
  /** `at`: in the middle of an attempt. `in`: it has the lock. `out`: it has no attempt left. `dead`: it died. */
  readonly state: 'at' | 'in' | 'out' | 'dead';
  readonly known: readonly unknown[];
  readonly number: number;
  /** Attempts that are left. */
  readonly tries: number;
}

interface World {
  /** Owner of each file; -1: it was released. */
  readonly files: Readonly<Record<number, number>>;
  readonly contenders: readonly Contender[];
  readonly deaths: number;
  /** How often a first number was drawn in an empty folder, and how often a lock may yet be removed, not released. */
  readonly firsts: number;
  readonly removals: number;
}

const START: Contender = { state: 'at', known: [], number: 0, tries: 1 };

function perform(
  world: World,
  who: number,
  step: Exclude<Step, { kind: 'end' }>,
): { files: World['files']; answer: unknown } {
  const { files } = world;
  if (step.kind === 'list') return { files, answer: Object.keys(files).map(Number) };
  // Random in the real code; a lower second number is the worse case.
  if (step.kind === 'first') return { files, answer: 50 - 10 * world.firsts };
  const owner = files[step.number];
  if (step.kind === 'isHeld')
    return { files, answer: owner === undefined || (owner >= 0 && world.contenders[owner]?.state !== 'dead') };
  if (step.kind === 'create')
    return owner === undefined ? { files: { ...files, [step.number]: who }, answer: true } : { files, answer: false };
  const { [step.number]: _, ...left } = files;
  return { files: left, answer: undefined };
}

/** All worlds that one step of one contender leads to. */
function* successors(world: World): Generator<World> {
  for (const [who, contender] of world.contenders.entries()) {
    if (contender.state === 'out' || contender.state === 'dead') continue;
    const become = (next: Partial<Contender>, rest: Partial<World> = {}): World => ({
      ...world,
      ...rest,
      contenders: world.contenders.map((other, at) => (at === who ? { ...contender, ...next } : other)),
    });
    // It may die between any two steps, with or without the lock.
    if (world.deaths > 0) yield become({ state: 'dead', known: [] }, { deaths: world.deaths - 1 });
    const again: Partial<Contender> = {
      known: [],
      tries: contender.tries - 1,
      state: contender.tries > 1 ? 'at' : 'out',
    };
    if (contender.state === 'in') {
      const files = contender.number in world.files ? { ...world.files, [contender.number]: -1 } : world.files;
      yield become(again, { files });
      if (world.removals > 0) {
        const { [contender.number]: _, ...left } = world.files;
        yield become(again, { files: left, removals: world.removals - 1 });
      }
      continue;
    }
    const step = nextStep(contender.known);
    if (step.kind === 'end')
      yield become(step.number === undefined ? again : { state: 'in', number: step.number, known: [] });
    else {
      const { files, answer } = perform(world, who, step);
      const firsts = world.firsts + (step.kind === 'first' ? 1 : 0);
      yield become({ known: [...contender.known, answer ?? null] }, { files, firsts });
    }
  }
}

/** Visits every reachable world; returns how many there are, and the first in which two have the lock. */
function explore(first: World): { readonly worlds: number; readonly held: number; readonly two: World | undefined } {
  const seen = new Set<string>([JSON.stringify(first)]);
  const open = [first];
  let held = 0;
  for (let world = open.pop(); world !== undefined; world = open.pop()) {
    const inside = world.contenders.filter(({ state }) => state === 'in').length;
    if (inside > 0) held++;
    if (inside > 1) return { worlds: seen.size, held, two: world };
    for (const next of successors(world)) {
      const key = JSON.stringify(next);
      if (seen.has(key)) continue;
      seen.add(key);
      open.push(next);
    }
  }
  return { worlds: seen.size, held, two: undefined };
}

const FIRST: readonly (readonly [string, World['files']])[] = [
  ['none yet', {}],
  ['an abandoned one', { 7: -1 }],
  ['an abandoned one, and what a killed contender left', { 3: -1, 7: -1 }],
];

/** Attempts of each of three, how many may die, how many locks are removed. More takes minutes and finds no more. */
const CASES: readonly (readonly [tries: readonly number[], deaths: number, removals: number])[] = [
  [[1, 1, 1], 1, 0],
  [[2, 1, 1], 0, 0],
  [[1, 1, 1], 0, 2],
];

for (const [name, files] of FIRST) {
  t.test(`WORK-05: no two of three contenders have the lock at once, in any order of their steps: ${name}`, (t) => {
    for (const [tries, deaths, removals] of CASES) {
      const contenders = tries.map((count): Contender => ({ ...START, tries: count }));
      const { worlds, held, two } = explore({ files, contenders, deaths, firsts: 0, removals });
      t.equal(two, undefined, `two have the lock in none of ${worlds} worlds`);
      t.ok(held > 100, 'the lock is held in more than 100 of them');
    }
    t.end();
  });
}

const CONTENDER = fileURLToPath(new URL('./support/lock-contender.js', import.meta.url));
/** No process has this number. */
const NOBODY = 4_194_999;
const OTHER_USER = 65_534;
const [CONTENDERS, ROUNDS] = [8, 50];

t.test('WORK-05: of eight processes at an abandoned lock one at a time holds it, and each gets its turn', async (t) => {
  const folder = await temporaryFolder(t);
  const path = join(folder, 'lock');
  await mkdir(path);
  const processes = Array.from({ length: CONTENDERS }, (): ChildProcess => fork(CONTENDER, [folder]));
  t.teardown(() => {
    for (const each of processes) each.kill('SIGKILL');
  });
  await Promise.all(processes.map(async (each) => once(each, 'message')));
  const found: unknown[] = [];
  for (const each of processes) each.on('message', (message) => found.push(message));
  for (let round = 1; round <= ROUNDS; round++) {
    const top = Math.max(0, ...(await readdir(path)).map(Number));
    await writeFile(join(path, String(top + 1)), `${NOBODY} 0123456789abcdef`);
    for (const each of processes) each.send('go');
    await until(`the end of round ${round}`, () => found.length === round * CONTENDERS);
  }
  t.same(
    found.filter((each) => each !== 'alone'),
    [],
  );
  t.equal((await readdir(path)).length, 1, 'files that are no longer needed are removed');
});

t.test(
  'WORK-06: a lock is released, taken over from a dead process, and replaces the file of an older version',
  async (t) => {
    const path = join(await temporaryFolder(t), 'lock');
    await writeFile(path, `${process.ppid} 0123456789abcdef`);
    const first = tryLock(path);
    t.ok('lock' in first);
    t.same(tryLock(path), { heldBy: process.pid });
    t.equal(lockHolder(path), process.pid);
    if ('lock' in first) first.lock.release();
    t.equal(lockHolder(path), undefined);
    const second = tryLock(path);
    if ('lock' in first) first.lock.release();
    t.equal(lockHolder(path), process.pid, 'a second release of the former lock does not release the new one');
    if ('lock' in second) second.lock.release();
    const top = Math.max(...(await readdir(path)).map(Number));
    await writeFile(join(path, String(top + 1)), `${NOBODY} 0123456789abcdef`);
    t.equal(lockHolder(path), undefined);
    const third = tryLock(path);
    t.same(await readdir(path), [String(top + 2)]);
    if ('lock' in third) third.lock.release();
  },
);

t.test('WORK-08: a link in the place of a lock is refused, and nothing in it is removed', async (t) => {
  const folder = await temporaryFolder(t);
  const path = join(folder, 'lock');
  await mkdir(join(folder, 'mail'));
  await writeFile(join(folder, 'mail', '7'), 'a letter');
  await symlink(join(folder, 'mail'), path);
  t.throws(() => tryLock(path), { code: 'ENOTDIR' });
  t.same(await readdir(join(folder, 'mail')), ['7']);
  t.throws(() => tryLock(join(folder, 'nowhere', 'lock')), { code: 'ENOENT' });
  t.same((await readdir(folder)).sort(), ['lock', 'mail'], 'no folder is made for the lock');
});

t.test(
  "WORK-08: another user's folder in the place of a lock is refused, and nothing in it is removed",
  { skip: process.getuid?.() === 0 ? false : 'needs root, to start a process of another user' },
  async (t) => {
    const folder = await temporaryFolder(t);
    const path = join(folder, 'lock');
    await mkdir(path);
    // Open to everyone: only the check of the owner keeps the other user from removing the abandoned lock in it.
    await chmod(path, 0o777);
    await writeFile(join(path, '7'), `${NOBODY} 0123456789abcdef`);
    const contender = fork(CONTENDER, [folder], { uid: OTHER_USER, gid: OTHER_USER });
    t.teardown(() => contender.kill('SIGKILL'));
    await soon(once(contender, 'message'), 'the process of the other user');
    const attempt = async (): Promise<unknown> => {
      const answer = once(contender, 'message');
      contender.send('go');
      return ((await soon(answer, 'an answer')) as unknown[])[0];
    };
    t.equal(await attempt(), 'ENOTDIR');
    t.same(await readdir(path), ['7']);
    await chown(folder, OTHER_USER, OTHER_USER);
    await chown(path, OTHER_USER, OTHER_USER);
    t.equal(await attempt(), 'alone', 'the folder was refused for its owner and nothing else');
    t.same(await readdir(path), ['8']);
  },
);

t.test('WORK-09: removing a lock leaves nothing and never fails; a holder that lost it is notified', async (t) => {
  const path = join(await temporaryFolder(t), 'lock');
  const first = tryLock(path);
  if ('lock' in first) first.lock.remove();
  t.equal(existsSync(path), false);
  let told = 0;
  const second = tryLock(path, { onLost: () => told++, touchEveryMs: 1 });
  // Taken over while this process was stopped, and removed again.
  await rm(path, { recursive: true });
  await until('it is told', () => told > 0);
  await writeFile(path, 'something else');
  t.doesNotThrow(() => 'lock' in second && second.lock.remove());
  t.equal(told, 1);
});

t.test('WORK-06: a lock that a full disk has no room for is held by nobody once there is room', async (t) => {
  const disk = await smallDisk(t, '1m');
  if (disk === undefined) return t.comment('this user may not mount a small disk');
  const path = join(disk, 'lock');
  const before = tryLock(path);
  if ('lock' in before) before.lock.release();
  await writeFile(join(disk, 'filler'), Buffer.alloc(2 * 1024 * 1024)).catch(() => undefined);
  t.throws(() => tryLock(path), { code: 'ENOSPC' });
  t.throws(() => tryLock(path), { code: 'ENOSPC' }, 'the next one is told the same, and does not wait');
  await rm(join(disk, 'filler'));
  const after = tryLock(path);
  t.ok('lock' in after);
  if ('lock' in after) after.lock.release();
});

t.test(
  'WORK-06: a live holder keeps its lock where it is looked at before its first touch after a suspension',
  async (t) => {
    const path = join(await temporaryFolder(t), 'lock');
    await mkdir(path);
    const file = join(path, '7');
    await writeFile(file, `${process.ppid} 0123456789abcdef`);
    let at = 1_000;
    const attempt = () => tryLock(path, { now: () => at });
    const held = { heldBy: process.ppid };
    const touch = async (agoMs: number): Promise<void> => {
      const touched = new Date(Date.now() - agoMs);
      await utimes(file, touched, touched);
    };
    await touch(60_000);
    t.same(attempt(), held, 'the first look takes nothing');
    at += 2_000;
    t.same(attempt(), held, 'nor does one before the holder had time to touch its file');
    await touch(0);
    at += 10_000;
    t.same(attempt(), held);
    await touch(50_000);
    t.same(attempt(), held, 'each suspension counts anew');
    at += 5_000;
    const taken = attempt();
    t.ok('lock' in taken, 'a file that stays untouched is of no holder');
    if ('lock' in taken) taken.lock.release();
  },
);

t.test('CLI-18: a clock that is set back does not make the wait for a lock longer', async (t) => {
  const path = join(await temporaryFolder(t), 'lock');
  const held = tryLock(path);
  const clock = new TestClock();
  let refused = false;
  const waiting = waitForLock(path, { clock, timeoutMs: 1_000, refusal: () => new Error('held') });
  waiting.catch(() => (refused = true));
  clock.setBy(-3_600_000);
  for (let waited = 0; waited <= 2_000; waited += 50) {
    clock.advance(50);
    await setImmediate();
  }
  t.ok(refused, 'it ends after two seconds at the latest');
  if ('lock' in held) held.lock.release();
  clock.advance(50);
  await waiting.then((lock) => lock.release()).catch(() => undefined);
});
