/** Items and bins at the command line, on two machines of one person, against a real server. */
import { chmodSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { sealBinMeta } from '../src/crypto/bin-meta.js';
import type { JsonObject } from '../src/crypto/payload.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Platform } from '../src/sdk/platform.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { joinedDesk, type Json, type Machine } from './support/cli.js';
import { note, type World, wiretap } from './support/client-world.js';

const SECRET = 'tr0ub4dor-and-3';

const items = async (desk: Machine, ...argv: string[]): Promise<Json[]> =>
  (await desk.json([...argv]))['items'] as Json[];

/** Creates a bin with a label that our own client would not write. */
async function createBin(first: World['first'], url: string, id: string, label: JsonObject): Promise<void> {
  const { masterKey, token } = first.identity();
  const created = await fetch(`${url}/api/bins`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token.text}`, 'content-type': 'application/json' },
    body: JSON.stringify({ id, meta: toBase64Url(sealBinMeta(nodeSodium, { masterKey, binId: id }, label)) }),
  });
  if (!created.ok) throw new Error(`the bin was answered ${created.status}`);
}

t.test('CLI-06 CLI-08 CLI-13: items are put, listed, read back, and read by the other device', async (t) => {
  const { desk, first } = await joinedDesk(t);
  const file = join(desk.home, 'hello.py');
  writeFileSync(file, 'print("hello")\n');
  const put = async (argv: readonly string[], input?: string): Promise<string> =>
    String((await desk.json(['put', ...argv], { ...(input === undefined ? {} : { input }) }))['id']);
  const text = await put(['milk,', 'bread']);
  const link = await put(['https://example.org/a']);
  const code = await put(['--file', file]);
  const piped = await put([], 'two\nlines\n');
  const contact = await put(['--type', 'contact', '--set', 'name=Ada', '--set', 'email=a=b@example.org']);
  const place = await put(['--payload', '{"name":"Sion","lat":46.2,"lng":7.36}', '--type', 'location']);
  const password = await put(['--type', 'password', '--set', 'service=mail', '--set', 'user=me'], `${SECRET}\n`);
  const shown = async (id: string, ...argv: string[]): Promise<string> => {
    const { out, bytes } = await desk.call(['get', id, ...argv]);
    return out + bytes.toString();
  };
  t.equal(await shown(text), 'milk, bread');
  t.equal(await shown(link), 'https://example.org/a');
  t.equal(await shown(code), 'print("hello")\n', 'the file is written as it was put');
  t.equal(await shown(code, '--field', 'lang'), 'python');
  t.equal(await shown(piped), 'two\nlines\n');
  t.equal(await shown(contact), 'name: Ada\nemail: a=b@example.org');
  t.match(await shown(place), /name: Sion\nlat: 46.2\nlng: 7.36/);
  t.equal(await shown(password), SECRET, 'a pipe gets the secret alone');

  const card = await desk.call(['get', password.toLowerCase()], { answers: [] });
  t.match(card.out, /service +mail\nuser +me\nsecret +\*{8}$/m);
  t.notMatch(card.out + card.notes, SECRET);
  t.match(await desk.call(['get', password, '--field', 'secret'], { answers: [] }), { out: '********' });
  t.match(await desk.call(['get', password, '--show'], { answers: [] }), { out: new RegExp(SECRET) });
  t.match(await desk.json(['get', password], { screen: true }), { payload: { service: 'mail', secret: null } });
  t.match(await desk.json(['get', password]), { payload: { secret: SECRET } });

  const listed = await items(desk, 'list');
  t.same(
    listed.map(({ id }) => id),
    [password, place, contact, piped, code, link, text],
    'the newest item is first',
  );
  t.match(await items(desk, 'list', '--type', 'code', '--limit', '5'), [
    { id: code, title: 'hello.py', bin: 'inbox', sender: 'Desk' },
  ]);
  const page = await desk.call(['list', '--limit', '2']);
  t.match(
    page.out,
    /^# +ID +WHEN +BIN +TYPE +SIZE +FROM +WHAT\n1 +\w{5} +just now +inbox +password +Desk +mail \(me\)\n.*Sion$/,
  );
  t.match(page.notes, /5 older ones are not listed/);
  await first.device.pull();
  t.match((await first.device.get(password))?.payload, { service: 'mail', user: 'me', secret: SECRET });
});

t.test('CLI-06 CLI-07 CLI-09 CLI-15: wrong input is reported with its exit code, and nothing is sent', async (t) => {
  const { desk } = await joinedDesk(t);
  const big = join(desk.home, 'big.txt');
  const binary = join(desk.home, 'data.bin');
  writeFileSync(big, 'x'.repeat(70_000));
  writeFileSync(binary, Buffer.from([0xff, 0x00]));
  const cases: readonly (readonly [argv: string[], code: number, error: string, input?: string | Buffer])[] = [
    [['put', '--type', 'text', '--file', binary], EXIT.usage, 'no_text'],
    [['put', '--type', 'code'], EXIT.usage, 'no_text', Buffer.from([0xff, 0x00])],
    [['put', '--file', desk.home], EXIT.failure, 'eisdir'],
    [['put'], EXIT.usage, 'usage', ''],
    [['put', '--type', 'image', 'x'], EXIT.usage, 'needs_file'],
    [['put', '--type', 'file', '--payload', '{"name":"a"}'], EXIT.usage, 'needs_file'],
    [['put', '--file', binary, '--set', 'nonsense=1'], EXIT.usage, 'bad_payload'],
    [['put', '--type', 'nonsense', 'x'], EXIT.usage, 'bad_payload'],
    [['put', '--type', 'contact', '--set', 'name=A', '--set', 'age=7'], EXIT.usage, 'bad_payload'],
    [['put', '--type', 'password', '--set', `secret=${SECRET}`], EXIT.usage, 'usage'],
    [['put', '--payload', `{"secret": ${SECRET}`, '--type', 'password'], EXIT.usage, 'bad_payload'],
    [['put', '--payload', `{"secret":"${SECRET}"}`, '--type', 'password'], EXIT.usage, 'usage'],
    [['put', '--payload', '{}', '--type', 'password', '--set', `secret=${SECRET}`], EXIT.usage, 'usage'],
    [['put', '--payload', '{}'], EXIT.usage, 'usage'],
    [['put', 'x', '--file', big], EXIT.usage, 'usage'],
    [['put', '--file', join(desk.home, 'none')], EXIT.failure, 'enoent'],
    [['put', 'x', '--bin', 'nowhere'], EXIT.notFound, 'not_found'],
    [['put', 'x', '--id', '01ABC'], EXIT.notFound, 'not_found'],
    [['put', 'x', '--overwrite'], EXIT.usage, 'usage'],
    [['get', '01ZZZ'], EXIT.notFound, 'not_found'],
    [['rm', '01ZZZ', '--yes'], EXIT.notFound, 'not_found'],
    [['list', '--bin', 'nowhere'], EXIT.notFound, 'not_found'],
    [['list', '--limit', '0'], EXIT.usage, 'usage'],
    [['list', '--nonsense'], EXIT.usage, 'usage'],
    [['nonsense'], EXIT.usage, 'usage'],
    [['get'], EXIT.usage, 'usage'],
    [['search', ' '], EXIT.usage, 'usage'],
    [['--profile', '../x', 'list'], EXIT.usage, 'usage'],
    [['--profile', 'other', 'list'], EXIT.notFound, 'no_device'],
  ];
  for (const [argv, code, error, input] of cases) {
    const result = await desk.call(['--json', ...argv], { input });
    t.match(result, { code, error: { code: error, message: String } }, argv.join(' ').slice(0, 60));
    t.equal(result.out, '');
    t.notMatch(JSON.stringify(result.error), SECRET, 'the message does not repeat the content');
  }
  t.notOk(
    desk.tap.calls.some(({ method, path }) => method === 'POST' && path.startsWith('/items')),
    'nothing was sent',
  );
});

t.test('CLI-11: a payload from standard input may hold a secret, which is then in no argument', async (t) => {
  const { desk } = await joinedDesk(t);
  const input = JSON.stringify({ service: 'mail', secret: SECRET });
  const { id } = await desk.json(['put', '--type', 'password', '--payload', '-'], { input });
  t.match(await desk.json(['get', String(id)]), { payload: { service: 'mail', secret: SECRET } });
});

t.test('SECRET-04: a command closes a profile folder that is open to others, and warns once', async (t) => {
  const { desk } = await joinedDesk(t);
  const folder = join(desk.home, 'service/device/default');
  chmodSync(folder, 0o755);
  t.match(
    (await desk.call(['list'])).notes,
    /^Warning: .*default was open to other users \(mode 755\)\. It is closed now/m,
  );
  t.equal(statSync(folder).mode & 0o777, 0o700);
  t.notMatch((await desk.call(['list'])).notes, /open to other users/);
});

t.test('CLI-09 CLI-21: an item is overwritten, moved and deleted by the beginning of its id', async (t) => {
  const { desk, first } = await joinedDesk(t);
  const { id } = await first.device.put(note('first text'));
  const short = id.slice(0, 20);
  t.match(await desk.json(['put', 'second text', '--id', short]), { id, queued: false, binId: 'inbox' });
  t.match(await desk.json(['bins', 'add', 'Großeinkauf', '--emoji', '🛒']), {
    bin: { name: 'Großeinkauf', emoji: '🛒' },
  });
  t.match(await desk.json(['move', short, 'grosseinkauf']), { id, queued: false });
  t.match(await items(desk, 'list', '--bin', 'GROSSEINKAUF'), [{ id, title: 'second text' }]);
  await first.device.pull();
  t.match((await first.device.get(id))?.payload, { text: 'second text' });

  t.match(
    await desk.call(['rm', short, '--json']),
    { code: EXIT.usage, error: { code: 'usage' } },
    'no terminal to confirm at',
  );
  t.equal(
    (await desk.call(['rm', short], { answers: [[/Delete 1 item/, '']] })).code,
    EXIT.failure,
    'the default answer is no',
  );
  t.match(await items(desk, 'list'), [{ id }]);
  const asked = await desk.call(['rm', short, id], { answers: [[/Delete 1 item/, 'y']] });
  t.match(asked, { code: EXIT.ok, notes: /second text/ });
  t.same(await items(desk, 'list'), []);
  t.match(await desk.call(['put', 'third', '--id', id, '--json']), {
    code: EXIT.notFound,
    error: { code: 'deleted_item' },
  });
  await first.device.pull();
  t.equal(await first.device.get(id), undefined, 'the delete has a tag, so the other device applies it');
});

t.test(
  'CLI-21: an item that is overwritten keeps the fields of other clients, as long as its type stays',
  async (t) => {
    const { desk, first } = await joinedDesk(t);
    const { id } = await first.device.put({
      ...note('first text'),
      payload: { text: 'first text', mood: 7 },
      asIs: true,
    });
    await desk.json(['put', 'second text', '--id', id]);
    await first.device.pull();
    t.same((await first.device.get(id))?.payload, { text: 'second text', mood: 7 });
    await desk.json(['put', 'https://example.org/', '--id', id]);
    await first.device.pull();
    t.match(await first.device.get(id), { type: 'link' });
    t.notOk('mood' in ((await first.device.get(id))?.payload ?? {}), 'another type has other fields');
  },
);

t.test(
  'CLI-19: the content of waiting changes that another device forestalled is kept as an item of its own, once',
  async (t) => {
    const tap = wiretap();
    let away = false;
    const fetch: Platform['fetch'] = async (url, init) => {
      if (away) throw new TypeError('fetch failed');
      return tap.platform.fetch(url, init);
    };
    const { desk, first } = await joinedDesk(t, { ...tap, platform: { ...tap.platform, fetch } });
    const { id } = await first.device.put(note('one'));
    const { id: gone } = await first.device.put(note('two'));
    const { id: moved } = await first.device.put(note('three'));
    const { id: large } = await first.device.put(note('x'.repeat(70_000)));
    await desk.json(['bins', 'add', 'Elsewhere']);
    await desk.json(['list']);
    away = true;
    for (const text of ['mine', 'mine, later']) t.match(await desk.json(['put', text, '--id', id]), { queued: true });
    t.match(await desk.json(['put', 'mine too', '--id', gone]), { queued: true });
    t.match(await desk.json(['put', 'not large', '--id', large]), { queued: true }, 'its blob cannot be read');
    t.match(await desk.json(['move', moved, 'elsewhere']), { queued: true });
    await first.device.put({ ...note('theirs'), id });
    await first.device.put({ ...note('theirs too'), id: moved });
    await first.device.delete(gone);
    away = false;
    const { notes } = await desk.call(['sync']);
    t.equal([...notes.matchAll(/kept as a new item/g)].length, 2, notes);
    t.match(notes, new RegExp(`a change of ${moved} that waited was refused and is dropped`));
    await first.device.pull();
    const texts = (await first.device.list()).map(({ payload }) => payload?.['text']);
    t.same(texts.sort(), ['mine too', 'mine, later', 'not large', 'theirs', 'theirs too']);
    t.notMatch((await desk.call(['sync'])).notes, /refused/, 'it is told once');
  },
);

t.test('CLI-09 CLI-21: bins are added, renamed, and removed with their items', async (t) => {
  const { desk, first } = await joinedDesk(t);
  const { bin } = (await desk.json(['bins', 'add', 'To read', '--slug', 'reading'])) as { bin: Json };
  t.match(bin, { slug: 'reading', name: 'To read' });
  t.notMatch(desk.tap.sent(), 'To read', 'the server does not learn the name');
  t.match(await desk.call(['bins', 'add', 'Again', '--slug', 'reading', '--json']), {
    code: EXIT.refused,
    error: { code: 'conflict' },
  });
  t.match(await desk.call(['bins', 'add', 'x', '--slug', 'No!', '--json']), { code: EXIT.usage });
  t.match(await desk.call(['bins', 'add', 'a\u202eb', '--json']), { code: EXIT.usage });
  await desk.json(['put', 'a book', '--bin', 'to READ']);
  t.match(await desk.json(['bins', 'rename', 'reading', 'Later', '--emoji', '📚']), {
    bin: { name: 'Later', slug: 'reading' },
  });
  const list = await desk.call(['bins']);
  t.match(list.out, /^NAME +ITEMS +SLUG\n/);
  t.match(list.out, /^📚 Later +1 +reading$/m);
  t.equal((await desk.call(['bins', 'rm', 'later', '--json'])).code, EXIT.usage);
  t.match(await desk.json(['bins', 'rm', 'later', '--yes']), { removed: true, items: 1 });
  t.match(await desk.json(['bins', 'list']), { bins: [{ slug: 'inbox', name: null }] });
  await first.device.pull();
  t.same(await first.device.list(), []);
});

t.test('CLI-09: a bin that another client left without a visible name is shown by its slug', async (t) => {
  const { desk, first, url } = await joinedDesk(t);
  await createBin(first, url, 'blank', { name: ' \u200d' });
  t.match((await desk.call(['bins'])).out, /^blank +0 +blank$/m);
});

t.test('CLI-10 CLI-11: search finds every word, regardless of case and accents, and no secret', async (t) => {
  const { desk, first } = await joinedDesk(t);
  await first.device.put(note('Un CAFÉ à Zürich'));
  await first.device.put(note('coffee in Zurich'));
  await desk.json(['put', '--type', 'password', '--set', 'service=Zürich bank'], { input: SECRET });
  const before = desk.tap.calls.length;
  t.match(await items(desk, 'search', 'zurich', 'cafe'), [{ title: 'Un CAFÉ à Zürich' }]);
  t.equal((await items(desk, 'search', 'ZÜRICH')).length, 3);
  await first.device.put(note('Łódź, Cæsar'));
  t.equal((await items(desk, 'search', 'lodz', 'caesar')).length, 1);
  t.same(await items(desk, 'search', SECRET), []);
  const asked = desk.tap.calls
    .slice(before)
    .map((call) => JSON.stringify(call))
    .join('\n');
  t.notMatch(asked, /zurich|cafe/i, 'the server does not learn what is searched for');
  t.match(await desk.call(['search', 'nothing']), { code: EXIT.ok, out: '', notes: 'Nothing found.' });
});

t.test('CLI-14: hostile names and payloads are printed harmlessly everywhere', async (t) => {
  const tap = wiretap();
  const { desk, first, url } = await joinedDesk(t, tap);
  const hostile = 'ha\u001b[2J\u202ercode\u0007 \u009b31m';
  const { id } = await first.device.put({
    binId: 'inbox',
    type: 'code',
    payload: { lang: hostile, label: hostile, text: `${hostile}\n${hostile}` },
  });
  await first.device.put({
    binId: 'inbox',
    type: 'password',
    payload: { service: { evil: 1 }, user: 7, secret: [hostile] },
    asIs: true,
  });
  await createBin(first, url, 'evil', { name: hostile, emoji: hostile });
  await first.device.put({ ...note(hostile), binId: 'evil' });
  // Nor would a server accept such names of devices or such a slug.
  tap.alterReply = ({ path, method }, answer) => {
    if (path === '/devices')
      return { devices: (answer['devices'] as Json[]).map((one) => ({ ...one, name: hostile, glyph: hostile })) };
    return path === '/bins' && method === 'POST' ? { bin: { ...(answer['bin'] as Json), slug: hostile } } : undefined;
  };
  const screen = { answers: [] };
  for (const argv of [
    ['list'],
    ['devices'],
    ['bins'],
    ['bins', 'add', 'Work'],
    ['get', id],
    ['search', 'ha'],
    ['get', id, '--field', 'label'],
    ['watch', '--last', '3', '--count', '1'],
  ]) {
    const run = desk.start(argv, screen);
    if (argv[0] === 'watch') {
      await run.line(/Watching/);
      await first.device.put(note(hostile));
    }
    const { out, notes, code } = await run.result;
    t.equal(code, EXIT.ok, argv.join(' '));
    t.match(out, /<U\+001B>/, argv.join(' '));
    t.notMatch(out + notes, /[\u001b\u009b\u0007\u202e]/, argv.join(' '));
  }
});
