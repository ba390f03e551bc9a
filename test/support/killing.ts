/** A device that is killed again and again in the middle of its work, and what must hold all the same. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { Test } from 'tap';
import { SavableIdentity } from '../../src/sdk/identity.js';
import { world } from './client-world.js';
import { until } from './events.js';
import { temporaryFolder } from './postgres.js';

const SCRIPT = fileURLToPath(new URL('./killed-client.js', import.meta.url));

/** So many lines of a client that failed are shown. */
const LAST_LINES = 30;

interface Run {
  readonly lines: string[][];
  readonly killed: boolean;
}

/** Runs the client; after `lines` of its output it is killed, wherever it is by then. */
async function run(args: readonly string[], killAfter: number): Promise<Run> {
  const child = spawn(process.execPath, [SCRIPT, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  const lines: string[][] = [];
  createInterface({ input: child.stdout }).on('line', (line) => {
    lines.push(line.split(' '));
    if (lines.length === killAfter) child.kill('SIGKILL');
  });
  const [code, signal] = (await once(child, 'close')) as [number | null, NodeJS.Signals | null];
  if (signal !== 'SIGKILL' && code !== 0) {
    const last = lines.slice(-LAST_LINES).map((words) => words.join(' '));
    throw new Error(`the client ended with ${String(signal ?? code)}, and said last:\n${last.join('\n')}`);
  }
  return { lines, killed: signal === 'SIGKILL' };
}

interface Attempt {
  readonly kind: string;
  readonly id: string;
  readonly text: string;
  accepted: boolean;
}

/** Kills `rounds` clients, one after the other on the same folder, lets a last one finish, and looks at what became. */
export async function killing(
  t: Test,
  { rounds, seed }: { readonly rounds: number; readonly seed: number },
): Promise<void> {
  const all = await world(t);
  const witness = all.first;
  await witness.device.connect();
  const versions: { readonly version: number; readonly what: string }[] = [];
  witness.device.on('item', ({ version, payload }) => versions.push({ version, what: String(payload?.['text']) }));
  witness.device.on('delete', ({ id, version }) => versions.push({ version, what: `delete ${id}` }));
  const victim = await all.pair('Victim');
  victim.device.close();
  const folder = await temporaryFolder(t);
  const identityFile = join(folder, 'identity.json');
  await writeFile(identityFile, JSON.stringify(SavableIdentity.of(victim.identity())));
  const attempts: Attempt[] = [];
  const told: Record<string, number> = {};
  /** What must never be told, with what it says. */
  const wrong: string[] = [];
  const client = async (round: number, task: 'work' | 'finish', killAfter: number): Promise<Run> => {
    const done = await run([join(folder, 'store'), identityFile, String(seed + round), task], killAfter);
    for (const [word = '', ...rest] of done.lines) {
      told[word] = (told[word] ?? 0) + 1;
      const [id, text] = rest;
      if (['repaired', 'rejected', 'problem'].includes(word)) wrong.push([word, ...rest].join(' '));
      if (word === 'tries')
        attempts.push({ kind: rest[0] ?? '', id: rest[1] ?? '', text: rest[2] ?? '', accepted: false });
      if (word === 'acknowledged' || word === 'kept') {
        const attempt = attempts.find((one) => one.id === id && one.text === text);
        if (attempt === undefined) throw new Error('an answer to nothing');
        attempt.accepted = true;
      }
    }
    return done;
  };
  let kills = 0;
  let state = seed >>> 0;
  for (let round = 1; round <= rounds; round++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    kills += Number((await client(round, 'work', 1 + Math.floor((state / 2 ** 32) * 160))).killed);
  }
  const { lines } = await client(0, 'finish', Infinity);
  const [row] = await all.server.sql('SELECT max(version)::int AS head FROM items');
  const head = Number(row?.['head']);
  // Over its socket alone: a listing has only the last version of each item.
  await until('the witness at the head', () => versions.at(-1)?.version === head);
  t.comment(`seed ${seed}: ${kills} of ${rounds} killed, ${attempts.length} changes, head ${head}`, told);
  t.ok(kills > rounds / 2, 'most were killed at work');
  t.ok((told['kept'] ?? 0) > 0 && (told['acknowledged'] ?? 0) > 0, 'some offline, some online');
  t.same(wrong, [], 'never repaired, rejected, or a problem other than the line');
  t.ok(
    lines.some(([word, complete]) => word === 'complete' && complete === 'true'),
    'what it holds is complete',
  );

  const whats = versions.map(({ what }) => what);
  t.equal(new Set(whats).size, whats.length, 'no change became two versions');
  t.equal(new Set(versions.map(({ version }) => version)).size, head, 'and every version is a change of its own');
  const seen = new Set(whats);
  const nameOf = ({ kind, id, text }: Attempt): string => (kind === 'delete' ? `delete ${id}` : text);
  t.same(
    attempts.filter((one) => one.accepted && !seen.has(nameOf(one))).map(nameOf),
    [],
    'none that was accepted is lost',
  );
  const known = new Set(attempts.map(nameOf));
  t.same(
    whats.filter((what) => !known.has(what)),
    [],
    'and nothing came that nobody wrote',
  );

  const held = new Map(lines.filter(([word]) => word === 'holds').map(([, id = '', text = '']) => [id, text]));
  const order = new Map(versions.map(({ version, what }) => [what, version]));
  for (const id of new Set(attempts.map((one) => one.id))) {
    const all = attempts.filter((one) => one.id === id);
    // All deletes of an item have one name. One that was stored hides the item, so only the last attempt can have come.
    const lastDelete = all.findLast(({ kind }) => kind === 'delete');
    if (all.some((one) => one.kind === 'delete' && one !== lastDelete && one.accepted))
      t.fail(`${id} came back to life`);
    const came = all.filter((one) => order.has(nameOf(one)) && (one.kind !== 'delete' || one === lastDelete));
    const inOrder = [...came].sort((one, other) => (order.get(nameOf(one)) ?? 0) - (order.get(nameOf(other)) ?? 0));
    if (came.some((one, at) => one !== inOrder[at])) {
      const list = (some: readonly Attempt[]): string => some.map(({ kind, text }) => `${kind} ${text}`).join(', ');
      t.fail(`the changes of ${id} came in another order: made ${list(all)}; came ${list(inOrder)}`);
    }
    const last = came.at(-1);
    const expected = last === undefined || last.kind === 'delete' ? undefined : last.text;
    if (held.get(id) !== expected) t.fail(`${id} holds ${String(held.get(id))}, not ${String(expected)}`);
  }
}
