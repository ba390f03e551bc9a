/** What people do many times a day: the numbers of the last list, the newest item, bins by name, deletions taken back, folders. */
import { mkdirSync, readdirSync, readFileSync, rmdirSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { filesIn } from '../src/cli/put-content.js';
import { systemClock } from '../src/protocol/clock.js';
import { EXIT } from '../src/terminal/terminal.js';
import { machine, type Json, type Machine } from './support/cli.js';
import { wiretap } from './support/client-world.js';
import { door, titlesOf, type Door } from './support/door.js';
import type { WithTeardown } from './support/postgres.js';

const MINUTE = 60_000;

interface Scene extends Door {
  readonly desk: Machine;
  /** Advances the machine's clock. */
  later(ms: number): void;
  /** Makes the server unreachable; `becomes(undefined)` brings it back. */
  away(): void;
}

async function scene(t: WithTeardown): Promise<Scene> {
  let ahead = 0;
  const at = await door(t);
  const desk = await machine(t, wiretap({ ...systemClock, now: () => systemClock.now() + ahead }));
  await desk.json(['claim', at.url, '--show-phrase', '--name', 'Desk']);
  const away = (): void => at.becomes((socket) => void socket.destroy());
  return { ...at, desk, away, later: (ms) => void (ahead += ms) };
}

const put = async (desk: Machine, ...argv: string[]): Promise<string> =>
  String((await desk.json(['put', ...argv]))['id']);
const contentOf = async (desk: Machine, ...argv: string[]): Promise<string> => {
  const { out, bytes, notes } = await desk.call(['get', ...argv]);
  return out + bytes.toString() + notes;
};
const titles = async (desk: Machine): Promise<string[]> => titlesOf(await desk.json(['list']));

t.test('CLI-49 CLI-51: a number means the item that the last list showed under it, also after new items', async (t) => {
  const { desk } = await scene(t);
  t.match(await desk.call(['get', '--last']), { code: EXIT.notFound, notes: /no items yet/ });
  t.match(await desk.call(['get', '1']), { code: EXIT.notFound }, 'no number is known before a list');
  for (const text of ['one', 'two', 'three']) await put(desk, text);
  const { out } = await desk.call(['list']);
  t.match(out, /^1 +\w{5} .*three\n2 +\w{5} .*two\n3 +\w{5} .*one$/m);
  const four = await put(desk, 'four');
  t.equal(await contentOf(desk, '1'), 'three', 'the number does not mean the item that is newest now');
  t.equal(await contentOf(desk, '--last'), 'four');
  t.match(await desk.json(['list']), { items: [{ title: 'four' }, {}, {}, {}] });
  t.equal(await contentOf(desk, '1'), 'three', 'a list for a script does not change the numbers');
  t.match(await desk.json(['put', 'two, again', '--id', '2']), { queued: false });
  t.match(await desk.call(['move', '3', 'inbox']), { code: EXIT.ok, out: /^Moved to inbox: \w{5} {2}one$/ });
  t.match(await desk.call(['get', '4']), { code: EXIT.notFound, notes: /there is no item "4"/ });

  t.match(await desk.call(['rm', '1', '--yes']), { code: EXIT.ok, out: /^Deleted: \w{5} {2}three$/ });
  t.match(await desk.call(['get', '1']), {
    code: EXIT.notFound,
    notes: /number 1 of the last list is not there any more/,
  });
  t.match((await desk.call(['search', 'again'])).out, /^1 +\w{5} .*two, again$/m);
  t.equal(await contentOf(desk, '1'), 'two, again', 'a search counts as a list');
  t.match(await desk.call(['get', '1', '--last']), { code: EXIT.usage });
  t.match(await desk.call(['get']), { code: EXIT.usage, notes: /which item/ });
  t.match(await desk.json(['get', four]), { id: four });

  const file = join(desk.folder, 'listed.json');
  t.equal(statSync(file).mode & 0o777, 0o600);
  t.notMatch(readFileSync(file, 'utf8'), /two|again/, 'no title is on disk');
  rmSync(file);
  mkdirSync(file);
  const unkept = await desk.call(['list']);
  t.match(unkept, { code: EXIT.ok, out: /^2 +\w{5} .*four$/m, notes: /numbers of this list are not kept/ });
  rmdirSync(file);
  for (const damaged of ['', '{', '{"at":1,"ids":["01"]}', '{"at":1,"ids":[7]}', '[]']) {
    writeFileSync(file, damaged);
    t.match(await desk.call(['get', '1']), { code: EXIT.notFound, notes: /there is no item "1"/ }, damaged);
  }
});

t.test('CLI-49: a number of an old list deletes only after a yes to the title', async (t) => {
  const { desk, later } = await scene(t);
  for (const text of ['one', 'two', 'three']) await put(desk, text);
  await desk.call(['list']);
  later(11 * MINUTE);
  t.match(await desk.call(['rm', '1', '--yes']), { code: EXIT.usage, notes: /list of these numbers is old/ });
  const asked = await desk.call(['rm', '1', '--yes'], { answers: [[/Delete 1 item/, 'n']] });
  t.match(asked, { code: EXIT.failure, notes: /^ {2}\w{5} {2}three$/m });
  t.match(await desk.call(['rm', '1', '--yes'], { answers: [[/Delete 1 item/, 'y']] }), { code: EXIT.ok });
  t.same(await titles(desk), ['one', 'two']);
  later(-60 * MINUTE);
  t.match(await desk.call(['rm', '2', '--yes']), { code: EXIT.usage }, 'a list from the future counts as old');
  t.match((await desk.json(['rm', '--yes', await put(desk, 'four')]))['deleted'], [{}], 'an id is never old');
});

t.test('CLI-53: a list has numbers, short ids, times, bins, sizes and senders, and fits the screen', async (t) => {
  const { desk } = await scene(t);
  await desk.json(['bins', 'add', 'A bin with a long name', '--emoji', '🛒']);
  await put(desk, 'milk, bread', '-b', 'a BIN with a long name');
  const listed = async (width: number, ...argv: string[]): Promise<string[]> =>
    (await desk.call(['list', ...argv], { answers: [], width })).out.split('\n');
  t.match(await listed(80), [
    /^# +ID +WHEN +BIN +TYPE +SIZE +FROM +WHAT$/,
    /^1 +\w{5} +just now +🛒 A bin wi… +text +11 bytes +Desk +milk,/,
  ]);
  t.match(await listed(80, '-b', 'a bin with a LONG name'), [
    /^# +ID +WHEN +TYPE +SIZE +FROM +WHAT$/,
    /Desk {2}milk, bread$/,
  ]);
  t.match(await listed(40), [/^# +ID +WHEN +WHAT$/, /^1 +\w{5} +just now +milk, bread$/]);
  const { items } = (await desk.json(['list'])) as { items: Json[] };
  t.match(items, [{ size: 11, sender: 'Desk', ts: Number }]);
});

t.test('CLI-52: bins are given by their names everywhere, also without a server', async (t) => {
  const { desk, away } = await scene(t);
  await desk.json(['bins', 'add', 'Großeinkauf']);
  await desk.json(['bins', 'add', 'Same', '--slug', 'one']);
  await desk.json(['bins', 'add', 'SAME', '--slug', 'two']);
  const several = await desk.call(['list', '-b', 'same']);
  t.match(several, { code: EXIT.usage, notes: /can be any of 2 bins[^]*one {2}Same[^]*two {2}SAME/ });
  t.match(several.notes, /^ {2}01[0-9A-Za-z]{24} {2}one {2}Same$/m, 'the matches are listed with their ids');
  await desk.json(['list']);
  t.match(
    await desk.call(['bins', 'rm', 'inbox']),
    { code: EXIT.refused, notes: /cannot be removed/ },
    'no question is asked',
  );
  await desk.json(['bins', 'add', 'Draft']);
  t.match(await desk.json(['bins', 'rename', 'DRAFT', 'Finished']), { bin: { name: 'Finished' } });
  t.match(await desk.json(['bins', 'rm', 'finished', '--yes']), { removed: true });
  desk.tap.alterReply = ({ path }, { bins }) =>
    path === '/bins' ? { bins: (bins as Json[]).map((bin) => ({ ...bin, slug: '' })) } : undefined;
  t.match(
    (await desk.call(['bins'])).out,
    /^inbox +\d+ +inbox$/m,
    'a bin for which the server names no slug has its id',
  );
  desk.tap.alterReply = () => undefined;
  away();
  t.match(await desk.json(['put', 'milk', '--bin', 'grosseinkauf']), { queued: true });
  t.match(await desk.json(['list', '-b', 'GROSSEINKAUF']), { items: [{ title: 'milk' }] });
  t.match(await desk.json(['search', 'milk', '-b', 'grosseinkauf']), { items: [{ title: 'milk' }] });
  t.match((await desk.call(['list'])).out, /Großeinkauf/);
  t.match((await desk.call(['bins'])).out, /^Großeinkauf +\? /m);
  t.match(await desk.json(['move', await put(desk, 'bread'), 'grosseinkauf']), { queued: true });
  const files = readdirSync(desk.home, { recursive: true, encoding: 'utf8' })
    .map((name) => join(desk.home, name))
    .filter((path) => statSync(path).isFile());
  t.ok(files.includes(join(desk.folder, 'known.json')));
  for (const path of files) t.notMatch(readFileSync(path, 'latin1'), /einkauf/i, path);
});

t.test('CLI-56: `restore` undoes a deletion that was not sent, and names the item', async (t) => {
  const { desk, away, becomes } = await scene(t);
  for (const text of ['one', 'two', 'three']) await put(desk, text);
  t.match(await desk.call(['restore']), { code: EXIT.notFound, notes: /no deletion waits[^]*for good/ });
  await desk.call(['list']);
  away();
  const removed = await desk.call(['rm', '1', '2', '--yes']);
  t.match(removed, { code: EXIT.ok, notes: /queued[^]*`service-device restore` takes it back/ });
  t.same(await titles(desk), ['one']);
  t.match(await desk.call(['restore', 'nothing']), { code: EXIT.notFound, notes: /no deletion of "nothing" waits/ });
  const back = await desk.call(['restore']);
  t.match(back, { code: EXIT.ok, out: /^Restored: \w{5} {2}two$/, notes: /If the deletion did reach the server/ });
  t.match(await desk.json(['restore', '1']), { restored: [String] }, 'an item is restored by its number in the list');
  t.match(await desk.call(['restore', '--last']), { code: EXIT.notFound });
  t.match(await desk.call(['restore', '1', '--last']), { code: EXIT.usage });
  becomes(undefined);
  await desk.json(['sync']);
  t.same(await titles(desk), ['one', 'three', 'two']);
  t.notOk(
    desk.tap.calls.some(({ method }) => method === 'DELETE'),
    'the server never received the deletion',
  );
});

t.test('CLI-56: with --later a deletion waits for the next command; one that was sent is final', async (t) => {
  const { desk } = await scene(t);
  const one = await put(desk, 'one');
  const two = await put(desk, 'two');
  t.match(await desk.json(['rm', '--yes', '--later', one, two]), { deleted: [{ queued: true }, { queued: true }] });
  t.match(await desk.json(['restore', two]), { restored: [two] });
  t.same(await titles(desk), ['two'], 'the next command sent the other deletion');
  t.match(await desk.call(['restore', one]), { code: EXIT.notFound, notes: /for good/ });
  await desk.json(['rm', '--yes', two]);
  t.match(await desk.call(['restore']), { code: EXIT.notFound });
});

t.test('CLI-56: a deletion whose answer was lost is reported as too late to restore', async (t) => {
  const { desk, away, becomes } = await scene(t);
  const id = await put(desk, 'one');
  desk.tap.alterReply = ({ method }) => {
    if (method !== 'DELETE') return undefined;
    away();
    throw new TypeError('the connection broke');
  };
  t.match(await desk.json(['rm', '--yes', id]), { deleted: [{ queued: true }] });
  desk.tap.alterReply = () => undefined;
  becomes(undefined);
  t.match(await desk.call(['restore', '--json']), { code: EXIT.refused, error: { code: 'sent', message: /too late/ } });
  t.same(await titles(desk), []);
});

t.test('CLI-55: every file in a folder and its subfolders is put under its path', async (t) => {
  const { desk } = await scene(t);
  const at = (...names: string[]): string => join(desk.home, 'notes', ...names);
  for (const folder of ['.', 'sub', 'sub/deep', '.git']) mkdirSync(at(folder), { recursive: true });
  writeFileSync(at('a.md'), '# a');
  writeFileSync(at('sub', 'b.py'), 'b = 1\n');
  writeFileSync(at('sub', 'deep', 'photo.jpg'), Buffer.from([0xff, 0xd8, 0xff]));
  writeFileSync(at('sub', 'Dockerfile'), 'FROM scratch');
  writeFileSync(at('.git', 'config'), 'hidden');
  writeFileSync(at('.env'), 'SECRET=1');
  symlinkSync('/etc/passwd', at('passwd'));
  symlinkSync('..', at('sub', 'round'));
  const done = await desk.call(['put', '--folder', at('.')]);
  t.match(done, { code: EXIT.ok, notes: 'Left out: 2 hidden, 2 links.' });
  t.equal(done.out.split('\n').length, 4);
  const { items } = (await desk.json(['list'])) as { items: Json[] };
  t.same(items.map(({ title, type }) => `${String(type)} ${String(title)}`).sort(), [
    'code notes/a.md',
    'code notes/sub/Dockerfile',
    'code notes/sub/b.py',
    'image notes/sub/deep/photo.jpg',
  ]);
  const code = items.find(({ title }) => title === 'notes/sub/Dockerfile') ?? {};
  t.match(await desk.json(['get', String(code['id'])]), { payload: { lang: 'dockerfile' } });
  const saved = await desk.json(['get', String(code['id']), '-o', desk.home]);
  t.equal(saved['file'], join(desk.home, 'Dockerfile'), 'a file is saved under its name, not under its path');

  const mixed = await desk.call([
    'put',
    '--json',
    '--file',
    at('a.md'),
    at('none'),
    '--folder',
    at('sub'),
    at('missing'),
  ]);
  t.equal(mixed.code, EXIT.failure);
  t.match(mixed.data[0], { items: [{}, {}, {}, {}], failed: [{ file: at('none') }, { file: at('missing') }] });
  mkdirSync(at('empty'));
  t.match(await desk.call(['put', '--folder', at('empty')]), {
    code: EXIT.usage,
    notes: /there are no files to put/,
  });
  t.match(await desk.call(['put', 'text', '--folder', at('.')]), { code: EXIT.usage });
  t.match(await desk.call(['put', '--file', at('sub')]), { code: EXIT.failure, notes: /that is a folder\n.*--folder/ });
  t.equal((await filesIn([at('.')], 11)).files.length, 4);
  await t.rejects(filesIn([at('.')], 10), {
    exitCode: EXIT.usage,
    message: /there are more than 10 names: nothing was/,
  });
});
