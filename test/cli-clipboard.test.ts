/** `copy` and `paste`, with a clipboard tool that is a program of its own, and with a terminal that only takes sequences. */
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import t from 'tap';
import { clipboardTools, copySequence } from '../src/cli/clipboard.js';
import { EXIT } from '../src/terminal/terminal.js';
import { claimedDesk, machine, spawnCli, type CallOptions, type Machine } from './support/cli.js';
import { until } from './support/events.js';
import type { WithTeardown } from './support/postgres.js';

const SECRET = 'tr0ub4dor-and-3';

/**
 * Writes its input to a file, and its arguments and its environment to others. Stays behind as xclip does, until the
 * teardown ends it: for longer than a busy machine takes for a test, so that its pid is not another process's by then.
 */
const TOOL = `#!/bin/sh
echo "$*" >> "$CLIP.calls"
env >> "$CLIP.env"
case "$*" in
  *-out) test -s "$CLIP" && cat "$CLIP" ;;
  *) cat > "$CLIP"; sleep 600 & echo $! >> "$CLIP.pids" ;;
esac
`;

interface Scene {
  readonly desk: Machine;
  /** What the clipboard holds. */
  held(): string;
  /** The arguments and environments of all calls of the tool. */
  seen(): string;
  readonly clip: string;
  readonly options: CallOptions;
  put(...argv: string[]): Promise<string>;
  password(secret?: string): Promise<string>;
  /** Makes the time for clearing come. */
  due(): void;
}

async function scene(t: WithTeardown): Promise<Scene> {
  const desk = await claimedDesk(t);
  const [tools, clip] = [join(desk.home, 'tools'), join(desk.home, 'clip')];
  mkdirSync(tools);
  writeFileSync(join(tools, 'xclip'), TOOL);
  chmodSync(join(tools, 'xclip'), 0o755);
  t.teardown(() => {
    for (const pid of textOf(`${clip}.pids`).split('\n').filter(Boolean)) process.kill(Number(pid));
  });
  const put: Scene['put'] = async (...argv) => String((await desk.json(['put', ...argv]))['id']);
  const file = join(desk.folder, 'clipboard.json');
  return {
    ...{ desk, clip, put },
    options: { env: { DISPLAY: ':99', PATH: `${tools}${delimiter}/usr/bin${delimiter}/bin`, CLIP: clip } },
    held: () => textOf(clip),
    seen: () => textOf(`${clip}.calls`) + textOf(`${clip}.env`),
    password: async (secret = SECRET) =>
      String((await desk.json(['put', '--type', 'password', '--set', 'service=mail'], { input: secret }))['id']),
    due: () => {
      const kept = JSON.parse(readFileSync(file, 'utf8')) as Record<string, unknown>;
      writeFileSync(file, JSON.stringify({ ...kept, until: 1 }), { mode: 0o600 });
    },
  };
}

const textOf = (path: string): string => (existsSync(path) ? readFileSync(path, 'utf8') : '');

/**
 * Whether a process that clears the clipboard of this profile is left: its mark shows it, for its arguments name
 * nothing.
 */
const marked = (desk: Machine): boolean => existsSync(join(desk.folder, 'clipboard.json'));

t.test('CLI-51 CLI-57: only the content is copied, by a pipe, and a secret is printed nowhere', async (t) => {
  const { desk, options, held, seen, put, password } = await scene(t);
  const text = await put('two\nlines\n');
  await put('https://example.org/a');
  t.match(
    await desk.call(['copy'], options),
    { code: EXIT.ok, out: 'Copied: https://example.org/a' },
    'the newest item is copied',
  );
  t.equal(held(), 'https://example.org/a');
  t.match(await desk.call(['copy', text], options), { code: EXIT.ok, out: 'Copied: two', notes: '' });
  t.equal(held(), 'two\nlines\n', 'the text is copied byte for byte');
  await desk.call(['list']);
  t.match(await desk.call(['copy', '1', '--json'], options), {
    data: [{ title: String, by: 'tool', clearedAfterMs: null }],
  });
  t.equal(held(), 'https://example.org/a');
  const id = await password();
  const copied = await desk.call(['copy', '--last'], options);
  t.match(copied, { code: EXIT.ok, out: 'Copied: mail (cleared after 45 s)', notes: '' });
  t.equal(held(), SECRET);
  t.notMatch(
    copied.out + copied.notes + seen(),
    SECRET,
    'the secret is neither printed, nor in an argument, nor in an environment',
  );
  t.notMatch(textOf(join(desk.folder, 'clipboard.json')), SECRET, 'the secret is not on disk');
  t.match(await desk.call(['copy', id, '--last'], options), { code: EXIT.usage });
  const contact = await put('--type', 'contact', '--set', 'name=Ada', '--set', 'email=a@example.org');
  await desk.call(['copy', contact], options);
  t.equal(held(), 'name: Ada\nemail: a@example.org');
  const file = join(desk.home, 'photo.jpg');
  writeFileSync(file, Buffer.from([0xff, 0xd8]));
  const photo = await put('--file', file);
  t.match(await desk.call(['copy', photo, '--json'], options), { code: EXIT.usage, error: { code: 'no_text' } });
  const long = await put('x'.repeat(100_000));
  t.match(await desk.call(['copy', long], options), { code: EXIT.ok });
  t.equal(held().length, 100_000, 'a large text is copied whole, though the list has only a part of it');
});

t.test('CLI-58: a secret is cleared when its time has come, if it is still in the clipboard', async (t) => {
  const { desk, options, held, password, due, clip, put } = await scene(t);
  const id = await password();
  await desk.call(['copy', id], options);
  due();
  await until('the clipboard is empty', () => held() === '' && !marked(desk));

  await desk.call(['copy', id], options);
  writeFileSync(clip, 'something that was copied elsewhere');
  due();
  await until('its process has ended', () => !marked(desk));
  t.equal(held(), 'something that was copied elsewhere');

  const other = await password('another');
  await desk.call(['copy', id], options);
  const before = textOf(join(desk.folder, 'clipboard.json'));
  await desk.call(['copy', other], options);
  t.not(textOf(join(desk.folder, 'clipboard.json')), before, 'the first process finds another mark, and ends');
  t.equal(held(), 'another');
  due();
  await until('the second is cleared', () => held() === '' && !marked(desk));

  await desk.call(['copy', id], options);
  await desk.call(['copy', await put('no secret')], options);
  due();
  await until('a text is not watched over', () => held() === 'no secret');
});

const noProc = existsSync('/proc/self/environ') ? false : 'no /proc here';

t.test(
  'CLI-58: the process that clears the clipboard outlives the terminal, and is given no secret',
  { skip: noProc },
  async (t) => {
    const { desk, options, held, password, due } = await scene(t);
    const id = await password();
    const { env = {} } = options;
    const before = Date.now();
    const copying = spawnCli(t, ['copy', id], { home: desk.home, env });
    t.match(await copying.ended, { code: EXIT.ok, stdout: /cleared after 45 s/ }, 'the command does not wait for it');
    t.equal(held(), SECRET);
    const { until: at } = JSON.parse(textOf(join(desk.folder, 'clipboard.json'))) as { until: number };
    t.ok(at >= before + 45_000 && at <= Date.now() + 45_000, 'due after 45 s');
    const readable = (path: string): string => {
      try {
        return textOf(path);
      } catch {
        // Another user's process, or one that has ended.
        return '';
      }
    };
    const children = readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .map((pid) => ({
        pid,
        line: readable(join('/proc', pid, 'cmdline')),
        of: readable(join('/proc', pid, 'environ')),
      }))
      .filter(({ line, of }) => line.includes('clipboard-child') && of.includes(desk.home));
    t.equal(children.length, 1);
    for (const { line, of } of children) t.notMatch(line + of, SECRET);
    const [child] = children;
    const session = readable(join('/proc', child?.pid ?? '', 'stat'))
      .split(') ')
      .at(-1)
      ?.split(' ')[3];
    t.equal(session, child?.pid, 'it has a session of its own, so that the end of the terminal does not end it');
    due();
    await until('cleared', () => held() === '');
  },
);

t.test('CLI-59: without a tool the terminal copies, through tmux and screen too', async (t) => {
  const { desk, password, put, due } = await scene(t);
  const sequences = join(desk.home, 'screen');
  const none = { PATH: join(desk.home, 'nothing') };
  const copied = await desk.call(['copy', await put('milk')], { env: none, sequences });
  t.match(copied, { code: EXIT.ok, out: 'Copied: milk', notes: /terminal was asked/ });
  t.equal(textOf(sequences), `\u001b]52;c;${Buffer.from('milk').toString('base64')}\u0007`);
  writeFileSync(sequences, '');
  const secret = await desk.call(['copy', await password()], { env: none, sequences });
  t.match(secret, { code: EXIT.ok, notes: /cleared without being read/ });
  t.equal(textOf(sequences), `\u001b]52;c;${Buffer.from(SECRET).toString('base64')}\u0007`);
  due();
  await until('it is cleared unread', () => textOf(sequences).endsWith('\u001b]52;c;IA==\u0007\u001b]52;c;\u0007'));

  const large = await desk.call(['copy', await put('x'.repeat(74_995))], { env: none, sequences });
  t.match(large, { code: EXIT.unavailable, notes: /74994 bytes at most/ });
  const nowhere = await desk.call(['copy', '--json'], { env: none });
  t.match(nowhere, { code: EXIT.unavailable, error: { code: 'no_clipboard', hint: /xclip/ } });
  const wayland = await desk.call(['paste'], { env: { ...none, WAYLAND_DISPLAY: 'wayland-0' } });
  t.match(wayland, { code: EXIT.unavailable, notes: /Install wl-clipboard/ });
  t.equal(copySequence({ TMUX: '1' }, 'a'), '\u001b]52;c;YQ==\u0007\u001bPtmux;\u001b\u001b]52;c;YQ==\u0007\u001b\\');
  const inScreen = copySequence({ STY: '1' }, 'x'.repeat(2_000));
  t.ok(inScreen.split('\u001b\\').every((piece) => piece.length <= 520));
  t.equal(inScreen.replaceAll(/\u001bP|\u001b\\/g, ''), copySequence({}, 'x'.repeat(2_000)));
});

t.test('CLI-60: `paste` puts the text in the clipboard as `put` would', async (t) => {
  const { desk, options, clip } = await scene(t);
  await desk.json(['bins', 'add', 'Shopping']);
  writeFileSync(clip, 'milk, bread\n');
  t.match(await desk.call(['paste', '-b', 'shopping'], options), { code: EXIT.ok, out: /^Written: \w{26} {2}text$/ });
  t.match(await desk.json(['list', '-b', 'shopping']), { items: [{ title: 'milk, bread' }] });
  writeFileSync(clip, 'https://example.org/x');
  t.match(await desk.call(['paste', '--json'], options), { data: [{ type: 'link', queued: false }] });
  const refused = async (bytes: Buffer | string, code: number): Promise<void> => {
    writeFileSync(clip, bytes);
    t.match(await desk.call(['paste'], options), { code, notes: /^Error: / });
  };
  await refused('', EXIT.notFound);
  await refused(' \n', EXIT.usage);
  await refused(Buffer.from([0xff, 0xfe, 0]), EXIT.usage);
  await refused(Buffer.alloc(16 * 1024 * 1024 + 1, 'x'), EXIT.notFound);
  t.equal(((await desk.json(['list'])) as { items: unknown[] }).items.length, 2);
});

t.test('CLI-59: the clipboard tools are those of the session', async (t) => {
  const { home } = await machine(t);
  const tool = (name: string): void => {
    writeFileSync(join(home, name), '');
    chmodSync(join(home, name), 0o755);
  };
  for (const name of ['wl-copy', 'wl-paste', 'xsel', 'pbcopy', 'pbpaste', 'clip.exe', 'powershell.exe']) tool(name);
  writeFileSync(join(home, 'xclip'), '', { mode: 0o644 });
  const found = (env: Record<string, string>, system: NodeJS.Platform = 'linux'): string[] =>
    clipboardTools({ PATH: `${delimiter}${home}`, ...env }, system).map(({ copy }) => copy[0].slice(home.length + 1));
  t.same(found({}), []);
  t.same(found({ WAYLAND_DISPLAY: 'wayland-0', DISPLAY: ':0' }), ['wl-copy', 'xsel'], 'what cannot be run is ignored');
  t.same(found({ DISPLAY: ':0' }), ['xsel']);
  t.same(found({ WSL_DISTRO_NAME: 'Debian' }), ['clip.exe']);
  t.same(found({}, 'darwin'), ['pbcopy']);
  t.same(found({}, 'win32'), ['clip.exe']);
});
