/** Completion of items, bins and devices, in real shells, with the built program behind it. */
import { execFile } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import type { Command } from 'commander';
import t from 'tap';
import { complete } from '../src/cli/candidates.js';
import { completionAt, specOf } from '../src/cli/completion-spec.js';
import { completionOf } from '../src/cli/completions.js';
import { programOf } from '../src/cli/program.js';
import { tryLock } from '../src/files/lock.js';
import { BINARY, joinedDesk, type Machine } from './support/cli.js';
import { note } from './support/client-world.js';
import type { WithTeardown } from './support/postgres.js';

const run = promisify(execFile);
const program = programOf(() => async () => undefined);
/** The reason to skip, or false where the shell is installed. */
const missing = (shell: string): string | false =>
  (process.env['PATH'] ?? '').split(delimiter).some((folder) => existsSync(join(folder, shell)))
    ? false
    : `${shell} is not installed`;

/** Text that must be neither executed nor shown as it is. */
const HOSTILE = '$(touch hacked) `touch hacked` \u001b[2J; touch hacked';

interface Scene {
  readonly desk: Machine;
  readonly env: Record<string, string>;
}

/** Completion gives up after two seconds, which a busy machine may exceed: here they are 60 times as long. */
const UNHURRIED = `data:text/javascript,${encodeURIComponent(
  'const wait = setTimeout; globalThis.setTimeout = (then, ms, ...more) => wait(then, 60 * ms, ...more);',
)}`;

/** A machine with two texts, bins and devices, and the program under its name. */
async function scene(t: WithTeardown): Promise<Scene> {
  const { desk, first } = await joinedDesk(t);
  await first.device.bins.create('01jtoread', { name: 'To read' });
  await first.device.bins.create('shop', { name: 'Shopping' });
  await first.device.bins.create('evil', { name: '$(touch hacked)' });
  await first.device.put({ ...note('bread'), id: '01JAAAAAAAAAAAAAAAAAABREAD' });
  await first.device.put({ ...note(`milk\t${HOSTILE}`), id: '01JAAAAAAAAAAAAAAAAAAM11K7' });
  const { items } = (await desk.json(['list'])) as { items: unknown[] };
  if (items.length !== 2) throw new Error('two texts were expected');
  const bin = join(desk.home, 'bin');
  mkdirSync(bin);
  writeFileSync(
    join(bin, 'service-device'),
    `#!/bin/sh\nexec '${process.execPath}' --import "${UNHURRIED}" '${BINARY}' "$@"\n`,
  );
  chmodSync(join(bin, 'service-device'), 0o755);
  const env = {
    ...{ HOME: desk.home, XDG_CONFIG_HOME: desk.home, SERVICE_KEYCHAIN: 'off', TERM: 'dumb' },
    PATH: `${bin}${delimiter}${process.env['PATH'] ?? ''}`,
  };
  return { desk, env };
}

/** Runs a script in a shell, in the machine's home; returns the parts of its output between marks. */
async function parts({ desk, env }: Scene, [shell, ...args]: readonly [string, ...string[]]): Promise<string[][]> {
  const { stdout, stderr } = await run(shell, args, { env, cwd: desk.home });
  if (stderr !== '') throw new Error(stderr);
  return stdout
    .split('--\n')
    .slice(0, -1)
    .map((part) => part.split('\n').filter(Boolean));
}

const MILK = 'milk $(touch hacked) `touch hacked` <U+001B>[2J; …';

t.test('CLI-64: bash completes items with titles, bins and devices, and executes nothing of it', async (t) => {
  const made = await scene(t);
  const script = `${completionOf(program, 'bash')}
c() { COMP_WORDS=(service-device "$@"); COMP_CWORD=$#; COMPREPLY=(); _service_device; printf '%s\\n' "\${COMPREPLY[@]}" --; }
c get ''; c get m; c move BREAD to; c list -b ''; c revoke ''; c get --l; c put --bin '$('; c bins re`;
  const [all, one, to, bins, devices, flags, evil, words] = await parts(made, ['bash', '--norc', '-c', script]);
  t.match(all, ['M11K7  (milk', 'BREAD  (bread)']);
  t.match(all?.[0], /<U\+001B>/);
  t.same(one, ['M11K7'], 'a single match has no title, so that it can be inserted');
  t.same(to, ['To\\ read']);
  t.same(bins?.map((line) => line.split('  ')[0]).sort(), [
    'Shopping',
    'To\\ read',
    '\\$\\(touch\\ hacked\\)',
    'inbox',
  ]);
  t.equal(devices?.length, 2);
  t.same(flags, ['--last', '--local']);
  t.same(evil, ['\\$\\(touch\\ hacked\\)'], 'the name is quoted');
  t.same(words, ['rename']);
  t.notOk(existsSync(join(made.desk.home, 'hacked')));
});

t.test('CLI-64: zsh completes items, bins and devices', { skip: missing('zsh') }, async (t) => {
  const made = await scene(t);
  // Prints what the completion system of zsh would be given.
  const script = `compdef() { : }; _files() { print files }
compadd() { local theirs=; while [[ $1 == -[MldaU]* ]]; do case $1 in -d) theirs=$2; shift 2;; -M) shift 2;; -a) paste -d= <(print -rl -- "\${(@P)2}") <(print -rl -- "\${(@P)theirs}"); return;; *) shift;; esac; done }
${completionOf(program, 'zsh')}
c() { words=(service-device "$@"); CURRENT=\${#words}; _service_device; print -- -- }
c get ''; c move BREAD to; c rename d; c put -b '$('`;
  const [all, to, device, evil] = await parts(made, ['zsh', '-f', '-c', script]);
  t.match(all, ['M11K7=M11K7  milk', 'BREAD=BREAD  bread']);
  t.match(to, [/^To read=To read {2}01jtoread$/]);
  t.match(device, [/^Desk=/]);
  t.match(evil, [/^\$\(touch hacked\)=/]);
  t.notOk(existsSync(join(made.desk.home, 'hacked')));
});

t.test('CLI-64: fish completes items, bins and devices', { skip: missing('fish') }, async (t) => {
  const made = await scene(t);
  const script = `${completionOf(program, 'fish')}
for line in 'get ' 'get M' 'move BREAD t' 'list -b s' 'rename d' 'bins re'
  complete -C "service-device $line"; printf '%s\\n' --
end`;
  const [all, one, to, bin, device, words] = await parts(made, ['fish', '--no-config', '-c', script]);
  t.match(all, [`M11K7\t${MILK}`, 'BREAD\tbread']);
  t.match(one, [/^M11K7\t/]);
  t.match(to, [/^To read\t01jtoread$/]);
  t.match(bin, [/^Shopping\tshop$/]);
  t.match(device, [/^Desk\t/]);
  t.match(words, [/^rename\t/]);
  t.notOk(existsSync(join(made.desk.home, 'hacked')));
});

t.test('CLI-65: completion contacts no server, and prints nothing where it cannot answer', async (t) => {
  const { desk, env } = await scene(t);
  const calls = desk.tap.calls.length;
  const answer = async (spec: string, ...words: string[]): Promise<string[]> => {
    const lines: string[] = [];
    await complete([spec, '--', ...words], { env, print: (line) => void lines.push(line) });
    return lines;
  };
  t.equal((await answer('1 @item', 'get', '')).length, 2);
  t.same(await answer('1 @item', 'get', "'m"), [
    `M11K7\t${(await answer('1 @item', 'get', 'm'))[0]?.split('\t')[1] ?? ''}`,
  ]);
  t.same(await answer('1 @', 'put', ''), []);
  t.same(await answer('', ''), []);
  t.same(await answer('nonsense @@ : --x', 'a', 'b', 'c'), []);
  t.same(await answer('1 @item --profile:', '--profile', 'nobody', 'get', ''), [], 'an unknown profile offers nothing');
  t.notOk(existsSync(join(desk.home, 'service', 'device', 'nobody')), 'no folder is made for the unknown profile');
  t.same(await answer('1 @item --profile:', '--profile', '../default', 'get', ''), []);
  t.equal(desk.tap.calls.length, calls, 'nothing was sent');

  const held = tryLock(join(desk.folder, 'lock'));
  t.same(await answer('1 @item', 'get', ''), [], 'no items are offered while another command runs');
  t.equal((await answer('1 @bin', 'x', '')).length, 4, 'bins are offered without the lock');
  if ('lock' in held) held.lock.release();
  t.equal((await answer('1 @item', 'get', '')).length, 2);

  const current = join(desk.folder, 'store', 'current');
  const before = readFileSync(join(current, 'CURRENT'));
  writeFileSync(join(current, 'CURRENT'), 'damaged');
  t.same(await answer('1 @item', 'get', ''), []);
  t.equal(
    readFileSync(join(current, 'CURRENT'), 'utf8'),
    'damaged',
    'the damage is left to the command that repairs and reports it',
  );
  writeFileSync(join(current, 'CURRENT'), before);
  t.equal((await answer('1 @item', 'get', '')).length, 2);
  await desk.json(['rm', '--yes', 'BREAD']);
  t.equal((await answer('1 @item', 'get', '')).length, 1);
});

t.test('CLI-64: the words on the line decide what is offered', async (t) => {
  const find = (path: string): string => {
    let command: Command = program;
    for (const name of path.split(' ')) command = command.commands.find((one) => one.name() === name) ?? command;
    return specOf(command, path, [...command.options, ...program.options]);
  };
  const kind = (path: string, line: string): string | undefined => completionAt(find(path), line.split(' ')).kind;
  for (const [path, line, wanted] of [
    ['get', 'get ', 'item'],
    ['get', 'get 8F3KQ ', undefined],
    ['get', 'get --field ', undefined],
    ['get', 'get --field user ', 'item'],
    ['get', '--profile second get ', 'item'],
    ['get', 'get --profile second 8F', 'item'],
    ['copy', 'copy ', 'item'],
    ['move', 'move 8F3KQ ', 'bin'],
    ['move', 'mv 8F3KQ sh', 'bin'],
    ['rm', 'rm 8F3KQ 2M0VT --yes ', 'item'],
    ['restore', 'restore ', 'item'],
    ['put', 'put text ', undefined],
    ['put', 'put --id ', 'item'],
    ['put', 'put -b ', 'bin'],
    ['paste', 'paste --bin sh', 'bin'],
    ['bins rename', 'bins rename ', 'bin'],
    ['bins rename', 'bins rename shop ', undefined],
    ['bins rm', 'bins rm ', 'bin'],
    ['revoke', 'revoke ', 'device'],
    ['certify', 'certify Phone ', undefined],
    ['watch', 'watch --to ', undefined],
  ] as const)
    t.equal(kind(path, line), wanted, line);
  t.equal(completionAt(find('get'), ['--profile', 'second', 'get', '']).profile, 'second');
  t.equal(completionAt(find('get'), ['--profile=third', 'get', '']).profile, 'third');
});
