/** Exports of other programs imported into a vault on a real server, and the vault exported to other programs. */
import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { mkdir, readdir, readFile, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import t from 'tap';
import { exportVault } from '../src/cli/commands/export.js';
import { importVault } from '../src/cli/commands/import.js';
import { bitwardenEntry, ownItem } from '../src/import/bitwarden-entry.js';
import { readBitwarden } from '../src/import/bitwarden.js';
import type { Secrets } from '../src/import/entries.js';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { holdsFile } from '../src/sdk/payloads/shapes.js';
import { timeOfUlid } from '../src/sdk/ulid.js';
import { PROJECT_ROOT } from '../src/root.js';
import { EXIT } from '../src/terminal/terminal.js';
import { runHere } from './support/cli.js';
import { note, refusal } from './support/client-world.js';
import { bitwardenJson, chromeCsv, vcards } from './support/foreign-exports.js';
import { fakeTerminal } from './support/vault-context.js';
import { filled, place, type Place } from './support/vault-place.js';

async function fileIn(at: Place, name: string, content: string): Promise<string> {
  const path = join(at.folder, name);
  await writeFile(path, content);
  return path;
}

/** Imports, and returns the JSON document that is printed. */
async function taken(at: Place, file: string): Promise<unknown> {
  const terminal = fakeTerminal({ json: true });
  const code = await importVault(at.context(terminal), { file });
  if (code !== EXIT.ok) throw new Error(`${code}: ${terminal.all()}`);
  return terminal.documents[0];
}

/** The items of the vault, sorted: name of the bin, type, payload. */
async function shown({ client }: Place): Promise<string[]> {
  const bins = new Map((await client.device.bins.list()).map(({ id, label }) => [id, label?.name ?? id] as const));
  const items = await client.device.list();
  return items.map(({ binId, type, payload }) => `${bins.get(binId) ?? ''} ${type} ${JSON.stringify(payload)}`).sort();
}

t.test('IMPORT-02 IMPORT-03 IMPORT-05: a Bitwarden export is imported once, whole, with its times', async (t) => {
  const at = await place(t);
  const file = await fileIn(at, 'bitwarden.json', JSON.stringify(bitwardenJson));
  t.match(await taken(at, file), {
    written: 13,
    same: 0,
    bins: 1,
    refused: [],
    account: { entries: 8, withOriginal: 3 },
  });
  const items = await at.client.device.list();
  const login = items.find(({ payload }) => payload?.['user'] === 'ada');
  t.match(login, {
    type: 'password',
    ts: Date.UTC(2024, 0, 2),
    payload: { service: 'Code host (https://code.example/login)', user: 'ada', secret: 'fake-secret-1' },
  });
  t.equal(timeOfUlid(login?.id ?? ''), Date.UTC(2024, 0, 1));
  const notes = items.find(({ type, payload }) => type === 'text' && /^Code host/.test(String(payload?.['text'])));
  t.match(notes?.payload, {
    text: /Ask Ada first\n\nNo field here holds: .*2 custom fields.*\n.*“Code host.bitwarden.json”/,
  });
  t.notMatch(JSON.stringify(notes?.payload), /fake/, 'the searchable note holds no secret');
  const original = items.find(({ payload }) => payload?.['name'] === 'Code host.bitwarden.json');
  t.equal(original?.binId, login?.binId);
  const back = JSON.parse((await buffer(at.client.device.blob(original?.id ?? ''))).toString()) as unknown;
  t.same(back, bitwardenJson.items[0], 'the original entry with every field');
  const names = (await at.client.device.bins.list()).map(({ label }) => label?.name);
  t.ok(names.includes('Work/Code'));

  t.match(await taken(at, file), { written: 0, same: 13, bins: 0 }, 'the second time nothing is written');
  const later = structuredClone(bitwardenJson) as unknown as {
    items: { name: string; revisionDate: string; login: { password: string } }[];
  };
  const [, second] = later.items;
  if (second === undefined) throw new Error('no second item');
  Object.assign(second, {
    revisionDate: '2024-06-01T00:00:00.000Z',
    login: { ...second.login, password: 'fake-changed' },
  });
  await fileIn(at, 'bitwarden.json', JSON.stringify(later));
  t.match(await taken(at, file), { written: 1, same: 12 }, 'a changed entry replaces its item');
  t.equal((await at.client.device.list()).length, 13);

  await at.client.device.bins.remove(login?.binId ?? '');
  t.match(await taken(at, file), { written: 3, renamed: 3, same: 10, bins: 1 }, 'a removed bin is made again');

  const other = await place(t);
  await taken(other, file);
  const ids = new Set((await other.client.device.list()).map(({ id }) => id));
  t.notOk(
    items.some(({ id }) => ids.has(id)),
    'another vault has other ids, so that they reveal nothing to a server',
  );
});

t.test('IMPORT-03: entries without ids are imported once, and each of several equal ones', async (t) => {
  const at = await place(t);
  const chrome = await fileIn(at, 'chrome.csv', chromeCsv);
  t.match(await taken(at, chrome), { written: 4, account: { entries: 3 } });
  const later = new Date(Date.now() + 5_000);
  await utimes(chrome, later, later);
  t.match(await taken(at, chrome), { written: 0, same: 4 }, 'a file with another time adds nothing');
  const people = await fileIn(at, 'people.vcf', vcards);
  t.match(await taken(at, people), { written: 8, account: { entries: 3 } });
  t.match(await taken(at, people), { written: 0, same: 8 });
  const contacts = (await at.client.device.list()).flatMap(({ type, payload }) =>
    type === 'contact' ? [payload] : [],
  );
  t.match(
    contacts.sort((one, other) => (String(one?.['name']) < String(other?.['name']) ? -1 : 1)),
    [
      { name: 'Ada Lovelace', role: 'Countess', email: 'ada@engines.example', phone: '+44-1' },
      { name: 'Charles Babbage', role: 'Engines, Analytical', email: 'charles@engines.example', phone: '' },
      { name: 'Jürgen Müller', role: '', email: '', phone: '+49 1' },
    ],
  );
});

t.test(
  'IMPORT-07 IMPORT-11: a KeePassXC database is imported with its references, attachments and history',
  async (t) => {
    const at = await place(t);
    const file = join(PROJECT_ROOT, 'test/fixtures/keepass/argon2d-4.kdbx');
    const terminal = fakeTerminal({ json: true, answers: ['wrong', 'correct horse'] });
    t.equal(await importVault(at.context(terminal), { file }), EXIT.ok);
    t.match(terminal.documents, [
      { written: 6, bins: 2, account: { entries: 4, leftOut: [{ reason: 'in the recycle bin' }] } },
    ]);
    t.same(terminal.asked.map(({ hidden }) => hidden), [true, true]); // prettier-ignore
    t.notMatch(terminal.all(), /correct horse|fake/);
    const lines = await shown(at);
    const login = (bin: string, service: string, user: string, secret: string): string =>
      `${bin} password ${JSON.stringify({ service, user, secret })}`;
    for (const line of [
      login('Internet', 'Code host (https://code.example/login)', 'ada', 'fake-new-password'),
      login('Internet/Mail', 'Mail (https://mail.example)', 'ada@example.org', 'fake-new-password'),
      login('inbox', 'Third (https://third.example)', 'bob', 'fake-third'),
    ])
      t.ok(lines.includes(line), line);
    t.notOk(lines.some((line) => line.includes('Thrown away')));
    const items = await at.client.device.list();
    const content = async (name: string): Promise<string> => {
      const id = items.find(({ payload }) => payload?.['name'] === name)?.id ?? '';
      return (await buffer(at.client.device.blob(id))).toString();
    };
    t.equal(await content('plan.txt'), 'hello attachment\n');
    t.match(JSON.parse(await content('Code host.keepass.json')), {
      group: 'Internet',
      fields: { PIN: '0000', otp: /otpauth/, Notes: 'Two lines\nof notes' },
      attachments: ['plan.txt'],
      history: [{ fields: { Password: 'fake-old-password' } }],
    });
    const again = fakeTerminal({ json: true, answers: ['correct horse'] });
    t.equal(await importVault(at.context(again), { file }), EXIT.ok);
    t.match(again.documents, [{ written: 0, same: 6 }]);
  },
);

t.test('IMPORT-09: a folder of Markdown is imported byte for byte, with names, and folders as bins', async (t) => {
  const at = await place(t);
  const folder = join(at.folder, 'notes');
  await mkdir(join(folder, 'Trips'), { recursive: true });
  const plan = '\ufeff---\ntitle: x\n---\r\n![](map.png)';
  await writeFile(join(folder, 'Trips', 'Plan.md'), plan);
  const map = randomBytes(70_000);
  await writeFile(join(folder, 'Trips', 'map.png'), map);
  await writeFile(join(folder, 'Today.md'), '# Today\n');
  t.match(await taken(at, folder), { written: 3, bins: 1 });
  t.match(await taken(at, folder), { written: 0, same: 3 });
  const items = await at.client.device.list();
  const note = items.find(({ payload }) => payload?.['label'] === 'Plan.md');
  t.same(note?.payload, { lang: 'markdown', label: 'Plan.md', text: plan });
  const image = items.find(({ type }) => type === 'image');
  t.equal(image?.binId, note?.binId);
  t.ok(map.equals(await buffer(at.client.device.blob(image?.id ?? ''))));
});

t.test('IMPORT-03: an interrupted import resumes when it is run again', async (t) => {
  const at = await place(t);
  const rows = Array.from({ length: 450 }, (_, row) => `n${row},https://n${row}.example,u,fake${row},`);
  const file = await fileIn(at, 'many.csv', ['name,url,username,password,note', ...rows].join('\n'));
  const stop = new AbortController();
  const terminal = fakeTerminal({ interrupted: stop.signal });
  terminal.onStep = (text) => {
    if (text.startsWith('Imported 300')) stop.abort();
  };
  t.match(await refusal(importVault(at.context(terminal), { file })), { exitCode: EXIT.interrupted });
  const there = (await at.client.device.list()).length;
  t.ok(there > 0 && there < 450, `${there} items are stored`);
  t.match(await taken(at, file), { written: 450 - there, same: there });
});

t.test('IMPORT-04: a dry run of our own export counts by type, and writes nothing', async (t) => {
  const at = await filled(t);
  const file = join(at.folder, 'vault.json');
  await exportVault(at.context(fakeTerminal()), { file, plain: true });
  const terminal = fakeTerminal();
  t.equal(await importVault(at.context(terminal), { file, dryRun: true }), EXIT.ok);
  t.match(terminal.printed.join('\n'), /2 items\.[\s\S]*1 +link[\s\S]*Nothing was written/);
});

/** For an export that is not locked. */
const UNLOCKED: Secrets = {
  unlock: () => Promise.reject(new Error('it is not locked')),
  keyFile: () => Promise.resolve(undefined),
};

/** One item of every type that holds no file, and some that Bitwarden has no form for. */
const VARIED: readonly { readonly type: string; readonly payload: Record<string, unknown> }[] = [
  { type: 'password', payload: { service: 'Code (https://code.example/a_(b))', user: 'ada', secret: 'fake 1' } },
  { type: 'password', payload: { service: 'https://plain.example/', user: '', secret: ' fake 2 ' } },
  { type: 'password', payload: { service: 'no address (really)', user: 'x', secret: '' } },
  { type: 'password', payload: { service: 'more', user: 'x', secret: 'y', strange: { deep: [1] } } },
  { type: 'link', payload: { url: 'https://example.org', title: 'Beans', desc: 'a\nb', site: 'example.org' } },
  { type: 'text', payload: { text: '\n  milk, bread\r\n\nand more' } },
  { type: 'text', payload: { text: 'x'.repeat(300) } },
  { type: 'code', payload: { lang: 'sql', label: 'q.sql', text: 'SELECT 1\n' } },
  { type: 'contact', payload: { name: 'Ada', role: '', email: 'ada@example.org', phone: '+44' } },
  { type: 'location', payload: { name: 'Home', addr: '1 Street', lat: 51.5, lng: -0.1 } },
];

t.test('IMPORT-12: items exported to Bitwarden are imported unchanged', async (t) => {
  const from = await place(t);
  const { device } = from.client;
  await device.bins.create('garden', { name: 'The garden' });
  for (const [at, { type, payload }] of VARIED.entries())
    await device.put({ type: type as 'text', payload, binId: at % 2 === 0 ? 'garden' : 'inbox', asIs: true });
  await device.put({ binId: 'inbox', type: 'code', payload: { lang: '', label: 'long', text: 'y'.repeat(90_000) } });
  await device.put({
    binId: 'inbox',
    type: 'file',
    payload: { name: 'a.bin', size: 3, mime: 'x/y' },
    content: bytesSource(Buffer.from('abc')),
  });
  const file = join(from.folder, 'to-bitwarden.json');
  const terminal = fakeTerminal();
  t.equal(await exportVault(from.context(terminal), { file, to: 'bitwarden' }), EXIT.ok);
  t.match(
    terminal.notes.join('\n'),
    /not encrypted[\s\S]*1 item may be longer than Bitwarden accepts[\s\S]*1 item with a file/,
  );
  t.equal((await stat(file)).mode & 0o777, 0o600);
  const document = JSON.parse(await readFile(file, 'utf8')) as {
    encrypted: boolean;
    folders: { id: string; name: string }[];
    items: Record<string, unknown>[];
  };
  t.match(document, { encrypted: false, folders: [{ name: 'The garden' }] });
  for (const item of document.items) {
    t.match(item, { id: /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, name: /./, type: Number });
    t.ok(item['type'] === 1 ? 'login' in item : item['type'] === 2 && 'secureNote' in item);
    t.ok(item['folderId'] === null || item['folderId'] === document.folders[0]?.id);
  }
  const to = await place(t);
  t.match(await taken(to, file), { written: VARIED.length + 1, account: { withOriginal: 0 } });
  const before = (await shown(from)).filter((line) => !line.includes('a.bin'));
  t.same(await shown(to), before);
});

t.test('IMPORT-12: any item is read back from its Bitwarden entry; invalid marks are ignored', async (t) => {
  const types = CONTENT_TYPES.filter((type) => !holdsFile(type));
  const text = fc.oneof(
    fc.string(),
    fc.webUrl(),
    fc.tuple(fc.string(), fc.webUrl()).map(([name, url]) => `${name} (${url})`),
  );
  const fields = ['service', 'user', 'secret', 'text', 'url', 'title', 'lang', 'label', 'name', 'other'];
  const payloads = fc.dictionary(fc.constantFrom(...fields), fc.oneof(text, fc.integer()));
  await fc.assert(
    fc.asyncProperty(fc.constantFrom(...types), payloads, async (type, payload) => {
      const item = { id: 'x', ...bitwardenEntry({ type, payload }) };
      const [entry] = await readBitwarden(JSON.stringify({ encrypted: false, items: [item] }), UNLOCKED);
      t.same(
        entry?.made.map((one) => [one.type, one.payload]),
        [[type, payload]],
      );
    }),
    { numRuns: 200 },
  );
  const code = bitwardenEntry({ type: 'code', payload: { lang: '', label: 'a', text: 'b' } });
  t.match(ownItem({ ...code, notes: 'changed in Bitwarden' }), { payload: { text: 'changed in Bitwarden' } });
  const contact = bitwardenEntry({ type: 'contact', payload: { name: 'Ada', phone: '1' } });
  t.ok(ownItem(contact));
  t.notOk(ownItem({ ...contact, notes: 'name: Ada\nphone: 2' }), 'a change made in Bitwarden takes precedence');
  const mark = (value: unknown) => ({
    ...code,
    fields: [{ name: 'service item', value: JSON.stringify(value), type: 0 }],
  });
  for (const value of [{ type: 'file', payload: {} }, { type: 'no', payload: {} }, { type: 'text', payload: [] }, 7])
    t.notOk(ownItem(mark(value)));
});

t.test(
  'IMPORT-13: the folder has each item as a file, passwords as a table, and a manifest; it appears whole',
  async (t) => {
    const at = await place(t);
    const { device } = at.client;
    await device.bins.create('garden', { name: '../Garden: plans' });
    await device.bins.create('sums', { name: '=HYPERLINK("http:evil")' });
    await device.put({ type: 'password', payload: { service: 'x', user: '', secret: '=1' }, binId: 'sums' });
    for (const { type, payload } of VARIED)
      await device.put({ binId: 'inbox', type: type as 'text', payload, asIs: true });
    await device.put({ ...note('same title'), binId: 'garden' });
    await device.put({ ...note('Same title'), binId: 'garden' });
    const evil = { name: '../../con.txt', size: 3, mime: 'text/plain' };
    await device.put({ type: 'file', payload: evil, content: bytesSource(Buffer.from('abc')), binId: 'garden' });
    const folder = join(at.folder, 'vault');
    t.equal(await exportVault(at.context(fakeTerminal()), { file: folder, to: 'folder' }), EXIT.ok);
    const sums = '_HYPERLINK(_http_evil_)';
    t.same((await readdir(folder)).sort(), ['Garden_ plans', sums, 'inbox', 'manifest.json', 'passwords.csv']);
    t.match(
      await readFile(join(folder, 'passwords.csv'), 'utf8'),
      `\r\n${sums},,login,x,,,,,,=1,\r\n`,
      'a folder is no formula, and a secret is what it was',
    );
    t.same((await readdir(join(folder, 'Garden_ plans'))).sort(), ['Same title (2).md', '_con.txt', 'same title.md']);
    t.equal(await readFile(join(folder, 'Garden_ plans', '_con.txt'), 'utf8'), 'abc');
    t.match((await readdir(join(folder, 'inbox'))).sort(), [
      'Ada.vcf',
      'Beans.url',
      'Home.json',
      /^milk, bread/,
      'q.sql',
      /^x+\.md$/,
    ]);
    t.equal((await stat(folder)).mode & 0o777, 0o700);
    t.equal((await stat(join(folder, 'passwords.csv'))).mode & 0o777, 0o600);
    const manifest = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8')) as { items: { file: string }[] };
    t.equal(manifest.items.length, VARIED.length + 4);
    for (const { file } of manifest.items) t.ok((await stat(join(folder, file))).isFile(), file);

    const again = await refusal(exportVault(at.context(fakeTerminal()), { file: folder, to: 'folder' }));
    t.match(again, { exitCode: EXIT.usage, message: /is not empty/ });
    t.match(await refusal(importVault(at.context(fakeTerminal()), { file: folder })), {
      message: /export --to folder/,
    });
    const to = await place(t);
    t.match(await taken(to, join(folder, 'passwords.csv')), { written: 5, account: { from: 'Bitwarden CSV' } });
    t.match(await taken(to, join(folder, 'inbox', 'Ada.vcf')), { written: 1 });

    const stop = new AbortController();
    stop.abort();
    const halted = fakeTerminal({ interrupted: stop.signal });
    const other = join(at.folder, 'halted');
    t.match(await refusal(exportVault(at.context(halted), { file: other, to: 'folder' })), {
      exitCode: EXIT.interrupted,
    });
    t.notOk(
      (await readdir(at.folder)).some((name) => name.includes('halted')),
      'nothing is left behind',
    );
  },
);

t.test('IMPORT-13: the manifest has each field that no file holds as it is', async (t) => {
  const at = await place(t);
  const { device } = at.client;
  const odd = [
    { type: 'text', payload: { text: 'a', secret: 'of another program' }, beside: { secret: 'of another program' } },
    { type: 'text', payload: { text: 'half \ud83d' }, beside: { text: 'half \ud83d' } },
    {
      type: 'password',
      payload: { service: 's', user: 'u', secret: 'x', text: 'kept' },
      beside: { service: 's', user: 'u', text: 'kept' },
    },
    {
      type: 'password',
      payload: { service: 's', user: 'u', secret: ['x'] },
      beside: { service: 's', user: 'u', secret: ['x'] },
    },
  ] as const;
  const ids: string[] = [];
  for (const { type, payload } of odd)
    ids.push((await device.put({ binId: 'inbox', type, payload: { ...payload }, asIs: true })).id);
  const folder = join(at.folder, 'odd');
  t.equal(await exportVault(at.context(fakeTerminal()), { file: folder, to: 'folder' }), EXIT.ok);
  const { items } = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8')) as {
    items: { id: string; payload: unknown }[];
  };
  for (const [at2, { beside }] of odd.entries())
    t.same(items.find(({ id }) => id === ids[at2])?.payload, beside, JSON.stringify(beside));
});

t.test('IMPORT-12 IMPORT-13: options that exclude each other are refused', async (t) => {
  const at = await place(t);
  for (const options of [
    { file: '-', to: 'folder' },
    { file: '-', to: 'bitwarden' },
    { file: 'x', to: 'bitwarden', plain: true },
  ] as const)
    t.match(await refusal(exportVault(at.context(fakeTerminal()), options)), { exitCode: EXIT.usage });
  const unknown = await runHere(at.folder, ['import', 'x', '--from', 'lotus']);
  t.match(unknown, { code: EXIT.usage, stderr: /bitwarden, chrome, firefox, keepass, vcard, markdown/ });
});
