/** `watch` as a tool: deletions, new items for a command and for a folder, whatever their names. */
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { joinedDesk } from './support/cli.js';
import { note } from './support/client-world.js';
import { until } from './support/events.js';
import type { WithTeardown } from './support/postgres.js';

async function scene(t: WithTeardown) {
  const made = await joinedDesk(t);
  const to = join(made.desk.home, 'to');
  mkdirSync(to);
  return { ...made, to };
}

const file = (name: unknown, text: string) => ({
  binId: 'inbox',
  type: 'code' as const,
  payload: { lang: '', label: name as string, text },
});

t.test('CLI-61: `watch` names what was deleted', async (t) => {
  const { desk, first } = await scene(t);
  const here = await first.device.put(note('here before'));
  const run = desk.start(['watch', '--count', '3']);
  await run.line(/Watching/);
  const later = await first.device.put(note('came later'));
  await first.device.delete(here.id);
  await first.device.delete(later.id);
  const { out } = await run.result;
  t.match(out.split('\n'), [
    /^\d\d:\d\d:\d\d {2}\w{5} {2}inbox +text +came later$/,
    /^\d\d:\d\d:\d\d {2}\w{5} +deleted +here before$/,
    /^\d\d:\d\d:\d\d {2}\w{5} +deleted +came later$/,
  ]);
  const other = await first.device.put(note('other'));
  const json = desk.start(['--json', 'watch', '--count', '1']);
  await json.line(/ready/);
  await first.device.delete(other.id);
  t.match((await json.result).data.at(-1), { event: 'delete', id: other.id, title: 'other', type: 'text' });
  const narrow = desk.start(['watch', '--count', '1'], { answers: [], width: 40 });
  await narrow.line(/Watching/);
  await first.device.put(note('a text that is much longer than a narrow screen'));
  const { out: line } = await narrow.result;
  t.ok(line.length <= 40, line);
});

t.test('CLI-62: each new item is passed to a command, one after the other; one that fails ends nothing', async (t) => {
  const { desk, first } = await scene(t);
  const [log, busy] = [join(desk.home, 'log'), join(desk.home, 'busy')];
  const command = `test -e '${busy}' && echo twice >> '${log}'; touch '${busy}'; read -r item; echo "$item" >> '${log}'; echo "$SERVICE_ITEM_TYPE $SERVICE_ITEM_ID $SERVICE_ITEM_BIN$SERVICE_CLAIM_TOKEN" >> '${log}'; rm '${busy}'; test "$SERVICE_ITEM_TYPE" = text`;
  await first.device.put(note('before'));
  const run = desk.start(['watch', '--count', '5', '--last', '1', '--exec', command], {
    env: { SERVICE_CLAIM_TOKEN: 'do not pass this on', PATH: process.env['PATH'] ?? '' },
  });
  await run.line(/Watching/);
  const { id } = await first.device.put(note('one $(touch hacked)'));
  const payload = { service: 'mail', user: 'me', secret: 'hunter2' };
  await first.device.put({ binId: 'inbox', type: 'password', payload });
  await first.device.bins.create('work', { name: 'Work' });
  await first.device.move(id, 'work');
  await first.device.put({ ...note('one, changed'), id });
  await first.device.delete(id);
  const { code, notes } = await run.result;
  t.equal(code, EXIT.ok);
  const lines = readFileSync(log, 'utf8').trim().split('\n');
  t.equal(lines.length, 6, 'three items: not those that were there before, nor a move, nor a deletion');
  t.match(JSON.parse(lines[0] ?? ''), { event: 'item', id, payload: { text: 'one $(touch hacked)' } });
  t.equal(lines[1], `text ${id} inbox`);
  t.match(JSON.parse(lines[2] ?? ''), { title: 'mail (me)', payload: { service: 'mail' } });
  t.notMatch(readFileSync(log, 'utf8'), /hunter2|twice/);
  t.match(JSON.parse(lines[4] ?? ''), { payload: { text: 'one, changed' } });
  t.match(notes, /^Not given to the command: \w{5} {2}mail \(me\): the command ended with 1$/m);
  t.notOk(existsSync('hacked'));
});

t.test('CLI-62: a command that never ends is ended with `watch`', async (t) => {
  const { desk, first } = await scene(t);
  const begun = join(desk.home, 'begun');
  const run = desk.start(['watch', '--exec', `echo $$ > '${begun}'; exec sleep 600`], {
    env: { PATH: process.env['PATH'] ?? '' },
  });
  await run.line(/Watching/);
  await first.device.put(note('one'));
  await first.device.put(note('two'));
  await until('it runs', () => existsSync(begun) && readFileSync(begun, 'utf8').trim() !== '');
  run.interrupt();
  t.equal((await run.result).code, EXIT.interrupted);
  const pid = readFileSync(begun, 'utf8').trim();
  await until('it has ended', () => {
    const stat = existsSync(`/proc/${pid}/stat`) ? readFileSync(`/proc/${pid}/stat`, 'utf8') : ' Z ';
    return / [ZX] /.test(stat);
  });
});

t.test('CLI-63: files and texts are saved in a folder under safe names, and replace nothing', async (t) => {
  const { desk, first, to } = await scene(t);
  const truth = desk.tap.blobs;
  const during: string[][] = [];
  desk.tap.blobs = async (url, init) => {
    const answer = await truth(url, init);
    const flush = (): void => void during.push(readdirSync(to));
    return new Response(answer.body?.pipeThrough(new TransformStream({ flush })) ?? null, answer);
  };
  writeFileSync(join(to, 'notes.md'), 'mine');
  const names = [
    'notes.md',
    '../../escape.sh',
    'CON',
    '.bashrc',
    'a\u0000b\u001b[2J\u202etxt',
    '/etc/passwd',
    '',
    '-rf',
    '..',
  ];
  const run = desk.start(['watch', '--json', '--count', String(names.length + 4), '--to', to]);
  await run.line(/ready/);
  const ids: string[] = [];
  for (const name of names) ids.push((await first.device.put(file(name, `text of ${name}`))).id);
  await first.device.put({ binId: 'inbox', type: 'password', payload: { service: 's', user: 'u', secret: 'x' } });
  await first.device.put({ binId: 'inbox', type: 'link', payload: { url: 'https://example.org' } });
  const text = await first.device.put(note('z'.repeat(90_000)));
  const bytes = Buffer.alloc(300_000, 'b');
  const content = { size: bytes.length, open: () => [bytes] as never };
  const size = bytes.length;
  await first.device.put({ binId: 'inbox', type: 'file', payload: { name: 'big.bin', size, mime: 'x/y' }, content });
  const { code, data } = await run.result;
  t.equal(code, EXIT.ok);
  const saved = data.filter(({ event }) => event === 'saved');
  t.equal(saved.length, names.length + 2, 'passwords and links are not saved');
  t.ok(
    saved.every(
      ({ file: path }) =>
        String(path).startsWith(`${to}/`) &&
        !String(path)
          .slice(to.length + 1)
          .includes('/'),
    ),
  );
  t.same(
    readdirSync(to).sort(),
    [
      ...[`${text.id}.txt`, String(ids[6]), String(ids[8]), 'a_b_[2J_txt', 'bashrc', 'big.bin', 'escape.sh'],
      ...['notes (2).md', 'notes.md', 'passwd', 'rf', '_CON'],
    ].sort(),
  );
  t.equal(readFileSync(join(to, 'notes.md'), 'utf8'), 'mine');
  t.equal(readFileSync(join(to, 'notes (2).md'), 'utf8'), 'text of notes.md');
  t.equal(readFileSync(join(to, `${text.id}.txt`), 'utf8').length, 90_000, 'a large text is saved whole');
  t.ok(readFileSync(join(to, 'big.bin')).equals(bytes));
  t.ok(during.length > 0 && during.every((names) => !names.includes('big.bin')), 'a file is shown when it is complete');
  t.equal(statSync(join(to, 'big.bin')).mode & 0o777, 0o600);
  t.notOk(existsSync(join(desk.home, 'escape.sh')));
  t.match(await desk.call(['watch', '--to', join(desk.home, 'nowhere')]), {
    code: EXIT.usage,
    notes: /is not a folder/,
  });
});

t.test('CLI-63: what cannot be saved is reported, and the next item is saved', async (t) => {
  const { desk, first, to } = await scene(t);
  const run = desk.start(['watch', '--count', '2', '--to', to]);
  await run.line(/Watching/);
  desk.tap.blobs = () => Promise.resolve(new Response('', { status: 404 }));
  const bytes = Buffer.from('x');
  const content = { size: 1, open: () => [bytes] as never };
  await first.device.put({ binId: 'inbox', type: 'file', payload: { name: 'lost', size: 1, mime: 'x/y' }, content });
  await first.device.put(file('fine.txt', 'fine'));
  const { code, notes, out } = await run.result;
  t.equal(code, EXIT.ok);
  t.match(notes, /^Not saved: \w{5} {2}lost: /m);
  t.match(out, /^Saved: .*fine\.txt {2}4 bytes$/m);
  t.same(readdirSync(to), ['fine.txt']);
});
