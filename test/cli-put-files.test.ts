/** Files put at the command line: bytes and names come back unchanged, several at once, and refusals are reported. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { systemClock } from '../src/protocol/clock.js';
import type { Context } from '../src/cli/context.js';
import { withLock } from '../src/cli/profile.js';
import { Notifier } from './support/events.js';
import { claimedDesk, runHere, spawnCli, type Json, type Machine } from './support/cli.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';

/** Files that may be text, and some that are not. */
const FILES: Readonly<Record<string, Buffer>> = {
  'crlf.txt': Buffer.from('one\r\ntwo\r\n'),
  'bom.txt': Buffer.from('\ufeffwith a mark'),
  'no end.md': Buffer.from('# no newline at the end'),
  'ends.txt': Buffer.from('three\n\n\n'),
  'latin1.txt': Buffer.from([0x63, 0x61, 0x66, 0xe9]),
  'with nul.bin': Buffer.from('a\0b'),
  'empty.txt': Buffer.alloc(0),
  'blank.txt': Buffer.from(' \r\n'),
  'address.url': Buffer.from('https://example.org/\n'),
  'ünïcode 📄.txt': Buffer.from('ä\u2028ö'),
  'main.py': Buffer.from('print("x")'),
  'photo.jpg': Buffer.from([0xff, 0xd8, 0xff]),
};

async function scene(t: WithTeardown): Promise<Machine & { readonly at: (name: string) => string }> {
  const desk = await claimedDesk(t);
  mkdirSync(join(desk.home, 'in'));
  mkdirSync(join(desk.home, 'out'));
  return { ...desk, at: (name) => join(desk.home, 'in', name) };
}

const titleOf = ({ title }: Json): string => String(title);

t.test('CLI-40 CLI-42 CLI-45: several files are returned byte for byte and under their names', async (t) => {
  const desk = await scene(t);
  const names = Object.keys(FILES);
  for (const [name, bytes] of Object.entries(FILES)) writeFileSync(desk.at(name), bytes);
  const put = await desk.json(['put', '--file', ...names.map(desk.at)]);
  const written = put['items'] as Json[];
  t.same(put['failed'], []);
  t.same(
    written.map(({ file }) => file),
    names.map(desk.at),
  );
  const { items } = (await desk.json(['list'])) as { items: Json[] };
  t.same(items.map(titleOf).sort(), [...names].sort());
  for (const [at, [name, bytes]] of Object.entries(FILES).entries()) {
    const id = String(written[at]?.['id']);
    const item = items.find((one) => one['id'] === id) ?? {};
    t.equal(titleOf(item), name);
    if (item['type'] !== 'image') t.equal(item['size'], bytes.length, name);
    t.ok((await desk.call(['get', id])).bytes.equals(bytes), `${name} in a pipe`);
    const saved = await desk.json(['get', id, '-o', join(desk.home, 'out')]);
    t.match(saved, { file: join(desk.home, 'out', name), size: bytes.length });
    t.ok(readFileSync(join(desk.home, 'out', name)).equals(bytes), name);
  }
  t.same((await readdir(join(desk.home, 'out'))).sort(), [...names].sort());
});

t.test('CLI-40: names that begin with a hyphen or a dot are kept as they are', async (t) => {
  const desk = await scene(t);
  for (const name of ['-rf', '.profile']) {
    writeFileSync(desk.at(name), name);
    const { id } = await desk.json(['put', '--file', desk.at(name)]);
    t.match(await desk.json(['get', String(id)]), { title: name, payload: { label: name } });
    // Where the file is saved, its name is neither an option nor hidden.
    const { file } = await desk.json(['get', String(id), '-o', join(desk.home, 'out')]);
    t.ok(readFileSync(String(file)).equals(Buffer.from(name)));
  }
});

t.test('CLI-40: an archive has a text byte for byte as it was put', async (t) => {
  const desk = await scene(t);
  writeFileSync(desk.at('bom.txt'), FILES['bom.txt'] ?? '');
  const { id } = await desk.json(['put', '--file', desk.at('bom.txt')]);
  const plain = join(desk.home, 'plain.json');
  await desk.json(['export', plain, '--plain']);
  const { items } = JSON.parse(readFileSync(plain, 'utf8')) as { items: Json[] };
  t.match(
    items.find((item) => item['id'] === id),
    { type: 'code', payload: { label: 'bom.txt', text: '\ufeffwith a mark' } },
  );
});

t.test(
  'CLI-40: a file that has content and no size is put with its content',
  { skip: existsSync('/proc/version') ? false : 'no /proc here' },
  async (t) => {
    const desk = await scene(t);
    const { id, type } = await desk.json(['put', '--file', '/proc/version']);
    t.equal(type, 'text', 'read like a pipe');
    t.ok((await desk.call(['get', String(id)])).bytes.equals(readFileSync('/proc/version')));
  },
);

t.test('CLI-42: a file that cannot be read affects none of the others', async (t) => {
  const desk = await scene(t);
  writeFileSync(desk.at('a.txt'), 'a');
  writeFileSync(desk.at('b.txt'), 'b');
  const files = [desk.at('a.txt'), desk.at('missing'), join(desk.home, 'in'), desk.at('b.txt')];
  const person = await desk.call(['put', '--file', ...files]);
  t.equal(person.code, EXIT.failure);
  t.match(person.out, /^Written: \w{26} {2}code {2}\S+a\.txt$/m);
  t.match(person.out, /b\.txt$/m);
  t.match(person.notes, /^Not written: \S+missing: no such file or folder$/m);
  t.match(person.notes, /^Not written: \S+in: that is a folder$/m);
  t.match(person.notes, /^Error: 2 of 4 files could not be written$/m);
  const script = await desk.call(['put', '--json', '--file', ...files]);
  t.equal(script.code, EXIT.failure);
  t.match(script.data, [
    { items: [{ file: files[0] }, { file: files[3] }], failed: [{ file: files[1], error: { code: 'enoent' } }, {}] },
  ]);
  t.match(script.error, { code: 'enoent' });
  const { items } = (await desk.json(['list'])) as { items: Json[] };
  t.equal(items.length, 4);
  for (const argv of [
    ['--id', '01J9ZC4'],
    ['--type', 'password'],
    ['--payload', '{}'],
    ['--type', 'nonsense'],
  ]) {
    const { code } = await desk.call(['put', ...argv, '--file', ...files]);
    t.equal(code, EXIT.usage, argv.join(' '));
  }
  t.equal(((await desk.json(['list'])) as { items: Json[] }).items.length, 4);
  writeFileSync(desk.at('data.bin'), Buffer.from([0xff, 0x00]));
  const bad = [desk.at('missing'), desk.at('data.bin')];
  for (const [order, expected] of [
    [bad, { code: EXIT.failure, error: { code: 'enoent' } }],
    [bad.toReversed(), { code: EXIT.usage, error: { code: 'no_text' } }],
  ] as const)
    t.match(await desk.call(['put', '--json', '--type', 'text', '--file', ...order]), expected, 'the first failure');
});

t.test('CLI-43 CLI-48: a blank text is refused, and `status` mentions interrupted uploads', async (t) => {
  const desk = await scene(t);
  for (const argv of [
    ['   '],
    ['\u200b'],
    ['\u2800\u3164\u00ad'],
    [' \t '],
    ['--type', 'text', '--set', 'text= \n'],
    ['', ''],
  ]) {
    const put = await desk.call(['put', ...argv]);
    t.match(put, { code: EXIT.usage, notes: /Error: .*blank/ }, JSON.stringify(argv));
  }
  t.match(await desk.call(['put'], { input: ' \n\n' }), { code: EXIT.usage, notes: /blank: nothing was written/ });
  t.match(await desk.json(['list']), { items: [] });
  t.match(
    (await desk.call(['status'])).out,
    /^storage .*deleted files and interrupted uploads count until a nightly clean-up of the server/m,
  );
});

t.test('CLI-44: a command for a profile that does not exist leaves no folder', async (t) => {
  const home = await temporaryFolder(t);
  for (const command of ['status', 'list', 'forget', 'sync', 'watch', 'export', 'put']) {
    const more = command === 'export' ? ['x.archive'] : command === 'put' ? ['x'] : [];
    const argv = [command, ...more, '--profile', 'nobody'];
    // The first runs as a process, whose folders are the system's.
    const { code, stderr } = await (command === 'status' ? spawnCli(t, argv, { home }).ended : runHere(home, argv));
    t.match({ code, stderr }, { code: EXIT.notFound, stderr: /no device in profile nobody/ }, command);
  }
  t.same(await readdir(home), []);
});

t.test('CLI-44: a profile that becomes no device leaves no folder', async (t) => {
  const home = await temporaryFolder(t);
  const commands = [
    ['claim', '--show-phrase'],
    ['join', ...'a b c d e f'.split(' ')],
    ['recover', '--phrase-file', '-'],
  ];
  for (const [command = '', ...more] of commands) {
    const { code } = await runHere(home, [command, 'http://127.0.0.1:1', ...more, '--profile', 'nobody']);
    t.not(code, EXIT.ok, command);
    t.same(await readdir(join(home, 'service', 'device')), [], command);
  }
});

t.test('CLI-44 CLI-18: a command waits for one that leaves no folder, and then has one of its own', async (t) => {
  const folder = join(await temporaryFolder(t), 'nobody');
  const changed = new Notifier();
  const terminal = { note: () => undefined, progress: changed.notify, interrupted: new AbortController().signal };
  const context = { terminal, platform: { clock: systemClock }, profile: { folder } } as unknown as Context;
  let second: Promise<string[]> | undefined;
  await withLock(context, async () => {
    second = withLock(context, () => readdir(folder));
    await changed.next();
  });
  t.same(await second, ['lock']);
  t.notOk(existsSync(folder));
});

t.test('CLI-45: search accepts --bin and --type, and a list has the sizes', async (t) => {
  const desk = await scene(t);
  await desk.json(['bins', 'add', 'Work things', '--slug', 'work']);
  writeFileSync(desk.at('milk.txt'), 'milk\n');
  await desk.json(['put', 'milk, bread']);
  await desk.json(['put', 'milk for all', '--bin', 'Work things']);
  await desk.json(['put', '--file', desk.at('milk.txt'), '--bin', 'work']);
  const found = async (...argv: string[]): Promise<string[]> =>
    ((await desk.json(['search', 'milk', ...argv])) as { items: Json[] }).items.map(titleOf).sort();
  t.same(await found(), ['milk for all', 'milk, bread', 'milk.txt']);
  t.same(await found('--bin', 'work'), ['milk for all', 'milk.txt']);
  t.same(await found('--bin', 'Work things', '--type', 'code'), ['milk.txt']);
  t.same(await found('--type', 'link'), []);
  const sizes = ((await desk.json(['list'])) as { items: Json[] }).items.map((item) => [titleOf(item), item['size']]);
  t.same(Object.fromEntries(sizes), { 'milk, bread': 11, 'milk for all': 12, 'milk.txt': 5 });
  t.match(await desk.call(['search', 'milk', '--bin', 'nowhere']), { code: EXIT.notFound });
  t.match(await desk.call(['search', 'milk', '--type', 'nonsense']), { code: EXIT.usage });
});

t.test('CLI-46: the account password is removed only with the current one', async (t) => {
  const desk = await scene(t);
  const file = (name: string, text: string): string => {
    writeFileSync(desk.at(name), text);
    return desk.at(name);
  };
  const none = await desk.call(['password', 'remove', '--json', '--current-file', file('none', 'x')]);
  t.match(none, { code: EXIT.notFound, error: { code: 'no_password' } });
  await desk.json(['password', 'set', '--password-file', file('one', 'first one')]);
  const wrong = await desk.call(['password', 'remove', '--json', '--current-file', file('other', 'second')]);
  t.match(wrong, { code: EXIT.refused, error: { code: 'password_invalid' } });
  t.match(await desk.call(['password', 'set', '--json', '--password-file', file('two', 'x')]), { code: EXIT.refused });
  const removed = await desk.call(['password', 'remove'], { answers: [[/Current/, 'first one']] });
  t.match(removed, { code: EXIT.ok, out: /is removed/ });
  t.match(await desk.json(['password', 'set', '--password-file', file('three', 'third')]), { password: 'set' });
});
