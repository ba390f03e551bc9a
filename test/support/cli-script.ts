/**
 * Property tests of the command line: any order of commands on the profiles of one vault, drawn by fast-check, with what
 * goes wrong in between: the server away, answers lost, clocks set, programs killed, a full disk, damaged files. In the
 * end everything works again; then what was promised is there, once, and all profiles show the same.
 */
import { existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { Agent } from './cli-agent.js';
import { FAULTS } from './cli-line.js';
import * as reads from './cli-reads.js';
import { expectContent, pick, profileOf, type Builder, type Numbers, type Step, type Way } from './cli-step.js';
import * as writes from './cli-writes.js';
import { CliWorld, markIn, type Attempt, type Profile, type Ran } from './cli-world.js';
import type { WithTeardown } from './postgres.js';

const STEPS = { ...reads, ...writes } satisfies Readonly<Record<string, Builder>>;

/** Runs commands at once, one each for a profile or all for one. */
async function perform(world: CliWorld, steps: readonly (Step | undefined)[]): Promise<void> {
  const given = steps.filter((step) => step !== undefined);
  const alone = given.length === 1;
  world.before = world.items;
  if (!alone) for (const { profile } of given) profile.line.share();
  const ways = given.map(({ profile }): Way => {
    const { line, view, deleted, numbers } = profile;
    const faultless = alone && !line.hurried && world.full === 0;
    return { alone, clean: faultless && !line.away, away: faultless && line.away, view, deleted, numbers };
  });
  const results = await Promise.all(given.map(({ profile, argv, options }) => world.run(profile, argv, options)));
  if (world.full > 0 && --world.full === 0) world.free();
  given.forEach((step, at) => {
    const [result, way] = [results[at], ways[at]];
    if (result === undefined || way === undefined) return;
    plausible(world, step, result, way);
    step.said?.(result, way);
  });
  await world.observe();
  given.forEach((step, at) => {
    const [result, way] = [results[at], ways[at]];
    if (result === undefined || way === undefined) return;
    if (!result.killed) step.check?.(result, way);
    known(world, step, way, result);
  });
}

/** What is right of every command. */
function plausible(world: CliWorld, { argv, profile }: Step, result: Ran, way: Way): void {
  const { code, data, error, notes, killed } = result;
  if (killed) return;
  const what = `${profile.name}: ${argv.join(' ')} (${code}): `;
  if (![0, 1, 2, 3, 4, 5, 6, 130].includes(code)) world.fault(`${what}no such exit code`);
  if (code === 130 && (way.clean || way.away)) world.fault(`${what}nobody interrupted it`);
  if (argv[0] === '--json') {
    if (code === 0 && (data.length !== 1 || error !== undefined))
      world.fault(`${what}${data.length} documents, ${JSON.stringify(error)}`);
    // An import or export that is not whole reports what it did.
    if (code !== 0 && error === undefined && data.length !== 1) world.fault(`${what}no error`);
  }
  if (error?.['code'] === 'failure' && world.full === 0) world.fault(`${what}${JSON.stringify(error)}`);
  if (/copy was damaged/.test(notes)) repaired(world, profile, notes);
  if (/does not verify|no device of yours|history was replaced/.test(notes)) world.fault(`${what}${notes}`);
}

/** A damaged copy is read again: only what waited can be lost, and the note says whether it is. */
function repaired(world: CliWorld, profile: Profile, notes: string): void {
  if (!profile.rotten) world.fault(`${profile.name}: nothing had damaged its copy: ${notes}`);
  profile.rotten = false;
  if (/may be lost|(?:is|are) lost/.test(notes))
    for (const one of world.attempts) if (one.by === profile.name && one.said === 'queued') one.said = 'unknown';
}

/** What is known of a profile after a command. */
function known(world: CliWorld, { profile, local, argv }: Step, way: Way, { code }: Ran): void {
  const { name } = profile;
  profile.queued ||= world.attempts.some((one) => one.by === name && one.said === 'queued' && !world.counted.has(one));
  for (const one of world.attempts) if (one.by === name && one.said === 'queued') world.counted.add(one);
  // It contacts the server where something waits only.
  if (argv[1] === 'restore' && code === 3 && way.alone) return;
  if (way.clean && local !== true) {
    const flushes = !['put', 'restore'].includes(argv[1] ?? '');
    if (flushes) profile.queued = false;
    if (flushes) world.doubtful.delete(name);
    profile.view = profile.queued ? undefined : new Map(world.items);
    profile.deleted = profile.queued ? undefined : [];
  } else if (!way.clean && !way.away) {
    profile.view = undefined;
    profile.deleted = undefined;
    world.doubtful.add(name);
    if (!way.alone && ['list', 'search'].includes(argv[0] ?? '')) profile.numbers = undefined;
  }
}

const SKEWS = [0, 2, -2, 90, -90, 4_320, -4_320];

const MINUTE = 60_000;

const doing =
  (name: keyof typeof STEPS) =>
  (world: CliWorld, numbers: Numbers): Promise<void> =>
    perform(world, [STEPS[name](world, numbers, true)]);

/** What can happen. */
const HAPPENINGS = {
  put: doing('put'),
  move: doing('move'),
  rm: doing('rm'),
  restore: doing('restore'),
  list: doing('list'),
  show: doing('show'),
  get: doing('get'),
  bins: doing('bins'),
  send: doing('send'),
  uploads: doing('uploads'),
  sync: doing('sync'),
  status: doing('status'),
  file: doing('file'),
  /** Two commands at once, of one profile or of two. */
  both: async (world: CliWorld, { a, b, c }: Numbers) => {
    const one = { a, b: b >> 2, c };
    const other = { a: b % 2 === 0 ? a : a + 1, b: c, c: b >> 1 };
    const names = ['put', 'rm', 'move', 'list', 'sync', 'put', 'get', 'show'] as const;
    const step = (n: number, numbers: Numbers) => STEPS[pick(names, n) ?? 'put'](world, numbers, false);
    await perform(world, [step(b >> 3, one), step(c >> 3, other)]);
  },
  away: (world: CliWorld, { a, b }: Numbers) => {
    for (const profile of b % 3 === 0 ? world.profiles : [profileOf(world, a)]) profile.line.away = true;
  },
  back: (world: CliWorld, { a, b }: Numbers) => {
    for (const profile of b % 3 !== 0 ? world.profiles : [profileOf(world, a)]) profile.line.away = false;
  },
  /** The next command of a profile meets a fault. */
  fault: (world: CliWorld, { a, b, c }: Numbers) => {
    const fault = pick(FAULTS, b);
    const profile = profileOf(world, a);
    if (fault !== undefined) profile.line.expect(fault, c % 14);
    world.story.push(`${profile.name}: ${String(fault)} at request ${c % 14}`);
  },
  clock: (world: CliWorld, { a, b }: Numbers) => {
    profileOf(world, a).line.skew = (pick(SKEWS, b) ?? 0) * MINUTE;
  },
  disk: (world: CliWorld, { c }: Numbers) => {
    if (world.full > 0) world.free();
    else world.fill((c % 48) * 16_384, 1 + (c % 4));
  },
  /** A file of a profile is damaged: the list that its numbers stand for, or what is known of the account. */
  damage: (world: CliWorld, { a, b, c }: Numbers) => {
    const profile = profileOf(world, a);
    const name = b % 2 === 0 ? 'listed.json' : 'known.json';
    const path = join(profile.machine.folder, name);
    try {
      if (c % 3 === 0) rmSync(path);
      else
        writeFileSync(path, c % 3 === 1 ? readFileSync(path).subarray(0, 40) : '{"at":1,"ids":["3"]}', { mode: 0o600 });
    } catch {
      return; // it is not there
    }
    if (b % 2 === 0) profile.numbers = [];
    else profile.line.hurried = true;
    profile.view = undefined;
  },
  /** The local copy of a profile is damaged. */
  rot: (world: CliWorld, { a, b }: Numbers) => {
    const profile = profileOf(world, a);
    const folder = join(profile.machine.folder, 'store', 'current');
    const logs = existsSync(folder) ? readdirSync(folder).filter((name) => /\.(log|ldb)$/.test(name)) : [];
    const path = join(folder, pick(logs.sort(), b) ?? '');
    if (logs.length === 0 || statSync(path).size < 20) return;
    const bytes = readFileSync(path);
    const at = 8 + (b % (bytes.length - 8));
    bytes[at] = (bytes[at] ?? 0) ^ 0x55;
    writeFileSync(path, bytes);
    world.story.push(`${profile.name}: ${path.slice(-12)} is damaged at ${at} of ${bytes.length}`);
    profile.rotten = true;
    profile.view = undefined;
    profile.deleted = undefined;
  },
  /** The program is killed at any moment, in a process of its own. */
  slain: async (world: CliWorld, { a, b }: Numbers) => {
    const profile = profileOf(world, a);
    const { name, line, queued, machine } = profile;
    if (line.away || queued || world.full > 0 || world.doubtful.has(name)) return;
    const mark = world.nextMark();
    world.contents.set(mark, Buffer.from(`${mark} slain`));
    world.ask(name, { id: undefined, kind: 'put', mark, bin: 'inbox' }, true);
    await world.slay(machine.home, ['--json', 'put', `${mark} slain`], b % 700);
    world.story.push(`${name}: put ${mark}, and is slain after ${b % 700} ms`);
    profile.view = undefined;
    profile.deleted = undefined;
    profile.queued = true;
    world.doubtful.add(name);
    const { device } = world.made.first;
    await device.pull();
    for (const item of await device.list())
      if (markIn(item.payload) === mark)
        line.accepted.push({ by: name, id: item.id, version: item.version, kind: 'put' });
    await world.observe();
  },
  /** An agent calls a tool. */
  agent: (world: CliWorld, numbers: Numbers) => world.agent?.act(numbers),
  /** One profile ends the access of another one, which is not told before it asks. */
  revoke: async (world: CliWorld, { a }: Numbers) => {
    const by = profileOf(world, a);
    const other = profileOf(world, a + 1);
    const works = !by.line.away && !by.line.hurried && !other.line.away && !other.line.hurried && world.full === 0;
    if (world.profiles.length < 3 || !works) return;
    const { code, notes } = await world.run(by, ['revoke', other.name, '--yes']);
    if (code !== 0) return world.fault(`${by.name} cannot revoke ${other.name}: ${notes}`);
    world.left.add(other.name);
    world.profiles.splice(world.profiles.indexOf(other), 1);
    by.view = undefined;
    by.deleted = undefined;
    for (const argv of [['list'], ['put', world.nextMark()], ['sync']]) {
      const refused = await world.run(other, ['--json', ...argv]);
      if (refused.code !== 5) world.fault(`${other.name} is revoked, and ${argv.join(' ')} ended with ${refused.code}`);
    }
    await world.observe();
  },
  /** Another device of the user changes something. */
  other: async (world: CliWorld, { a, b, c }: Numbers) => {
    const { device } = world.made.first;
    const id = pick([...world.items.keys()], b);
    const mark = world.nextMark();
    world.contents.set(mark, Buffer.from(`${mark} elsewhere`));
    const by = 'First';
    if (id !== undefined && a % 4 === 0) {
      world.ask(by, { id, kind: 'delete' }, true);
      await device.delete(id);
    } else {
      const binId = 'inbox';
      const attempt = world.ask(by, { id: a % 2 === 0 ? id : undefined, kind: 'put', mark, bin: binId }, true);
      const text = { ...(attempt.id === undefined ? {} : { id: attempt.id }), binId, type: 'text' as const };
      attempt.id = (await device.put({ ...text, payload: { text: `${mark} elsewhere` } })).id;
    }
    world.story.push(`First: ${a % 4 === 0 ? 'deletes' : mark} ${String(id)} ${c}`);
    await world.observe();
  },
};

export type Name = keyof typeof HAPPENINGS;

export const NAMES = Object.keys(HAPPENINGS) as Name[];

/** One event; numbers that are left out are 0. */
export type Script = readonly ({ readonly what: Name } & Partial<Numbers>)[];

const OFTEN: Partial<Record<Name, number>> = {
  put: 6,
  rm: 3,
  move: 2,
  list: 3,
  show: 2,
  get: 2,
  both: 3,
  fault: 6,
  away: 2,
  back: 3,
  restore: 2,
  bins: 2,
};

/** A script of these events. */
export function scriptOf(names: readonly Name[]): fc.Arbitrary<Script> {
  const what = fc.constantFrom(...names.flatMap((name) => new Array<Name>(OFTEN[name] ?? 1).fill(name)));
  const number = fc.nat({ max: 10_000 });
  return fc.noBias(
    fc.array(fc.record({ what, a: number, b: number, c: number }), { minLength: 1, maxLength: 40, size: 'max' }),
  );
}

/** Everything works again, and every profile catches up: nothing waits, all show the same, and what was promised is there. */
async function settle(world: CliWorld): Promise<void> {
  world.free();
  await world.agent?.settle();
  for (const { line } of world.profiles) {
    line.away = false;
    line.skew = 0;
    line.mend();
  }
  for (let round = 0; round < 2; round++)
    for (const [a] of world.profiles.entries()) await perform(world, [reads.sync(world, { a, b: 0, c: 0 }, true)]);
  for (const [a] of world.profiles.entries()) {
    await perform(world, [reads.list(world, { a, b: 1, c: 0 }, true)]);
    await perform(world, [reads.status(world, { a, b: 1, c: 0 }, true)]);
  }
  const [profile] = world.profiles;
  for (const [id, { mark }] of [...world.items].slice(0, 4))
    if (profile !== undefined) expectContent(world, mark, await world.run(profile, ['get', id]));
  for (const one of world.attempts) promised(world, one);
}

/** A change that was queued was sent, or it was said that it was refused; or the same profile made a later one. */
function promised(world: CliWorld, attempt: Attempt): void {
  const { by, id, kind, said, mark } = attempt;
  if (said !== 'queued' || id === undefined) return;
  if (world.left.has(by)) return;
  const sent = world.accepted.slice(attempt.after).some((one) => one.by === by && one.id === id);
  const at = world.attempts.indexOf(attempt);
  const later = world.attempts.slice(at + 1).some((one) => one.by === by && one.id === id && one.said !== 'refused');
  const refused = world.profiles.some(({ name, refused }) => name === by && refused.has(id));
  const gone = kind === 'delete' && !world.items.has(id);
  if (!sent && !later && !refused && !gone)
    world.fault(`${by}: the ${kind} ${mark ?? ''} of ${id} was queued, and never came`);
}

/** Plays a script. Throws if something was wrong. */
export async function play(
  script: Script,
  options: { readonly disk?: string | undefined; readonly profiles?: number } = {},
): Promise<CliWorld> {
  const ends: (() => unknown)[] = [];
  const scope: WithTeardown = { teardown: (done) => void ends.push(done) };
  try {
    const world = await CliWorld.of(
      scope,
      options.profiles ?? (script.some(({ what }) => what === 'revoke') ? 3 : 2),
      options.disk,
    );
    try {
      if (script.some(({ what }) => what === 'agent')) world.agent = await Agent.pair(scope, world);
      for (const one of script) {
        await HAPPENINGS[one.what](world, { a: 0, b: 0, c: 0, ...one });
        if (world.faults.length > 0) break;
      }
      if (world.faults.length === 0) await settle(world);
    } finally {
      world.free();
    }
    if (world.faults.length > 0) throw new Error(`${world.faults.join('\n')}\n\n${world.story.join('\n')}`);
    return world;
  } finally {
    for (const end of ends.reverse()) await end();
  }
}
