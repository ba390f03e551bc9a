/** Exports that no program writes, or only a broken one: refused within bounds, or read without loss. */
import { execFileSync } from 'node:child_process';
import { gzipSync } from 'node:zlib';
import t from 'tap';
import { readBitwarden } from '../src/import/bitwarden.js';
import { readCsv } from '../src/import/csv.js';
import type { Entry } from '../src/import/entries.js';
import { kdbxLibrary } from '../src/import/kdbx.js';
import { readKeepass } from '../src/import/keepass.js';
import { readVcards } from '../src/import/vcard.js';

const PASSWORD = 'correct horse';

/** The entries of a database whose first group has this XML in it. */
async function keepassWith(xml: string): Promise<readonly Entry[]> {
  const { Credentials, HashedBlockTransform, Kdbx, KdbxFormat, ProtectedValue } = await kdbxLibrary();
  const database = Kdbx.create(new Credentials(ProtectedValue.fromString(PASSWORD)), 'Hostile');
  database.setVersion(3);
  database.header.keyEncryptionRounds = 100;
  const whole = (await database.saveXml()).replace(
    /(<Group>[\s\S]*?)(<Group>)/,
    (_, group, below) => `${group}${xml}${below}`,
  );
  const format = new KdbxFormat(database);
  const inner = format as unknown as { encryptData: (data: ArrayBuffer, key: ArrayBuffer) => Promise<ArrayBuffer> };
  const encrypt = inner.encryptData.bind(inner);
  inner.encryptData = async (data, key) => {
    const blocks = await HashedBlockTransform.encrypt(new Uint8Array(gzipSync(whole)).buffer);
    return encrypt(new Uint8Array(Buffer.concat([Buffer.from(data).subarray(0, 32), Buffer.from(blocks)])).buffer, key);
  };
  const keyFile = (): Promise<undefined> => Promise.resolve(undefined);
  return readKeepass(new Uint8Array(await format.save()), { unlock: (_, open) => open(PASSWORD), keyFile });
}

t.test(
  'IMPORT-10: a database of very many empty entries is refused, one of very many groups has no entry',
  async (t) => {
    await t.rejects(keepassWith('<Entry/>'.repeat(150_000)), {
      name: 'ForeignError',
      message: /more than 100000 entries/,
    });
    t.same(await keepassWith('<Group/>'.repeat(150_000)), []);
  },
);

t.test('IMPORT-02 IMPORT-07: entries that have one UUID become an item each, the same at each import', async (t) => {
  const entry = (title: string): string =>
    `<Entry><UUID>${Buffer.alloc(16, 7).toString('base64')}</UUID><String><Key>Title</Key><Value>${title}</Value></String></Entry>`;
  const [one, again] = [await keepassWith(entry('a') + entry('b')), await keepassWith(entry('a') + entry('b'))];
  t.same(
    one.map(({ name }) => name),
    ['a', 'b'],
  );
  t.equal(new Set(one.map(({ key }) => key)).size, 2);
  t.same(
    again.map(({ key }) => key),
    one.map(({ key }) => key),
  );
});

t.test('IMPORT-02 IMPORT-07: an attachment that a database refers to and does not have is named', async (t) => {
  const binary = (file: string): string => `<Binary><Key>${file}</Key><Value Ref="7"/></Binary>`;
  const title = '<String><Key>Title</Key><Value>a</Value></String>';
  const [entry] = await keepassWith(`<Entry>${title}${binary('one.pdf')}${binary('two.pdf')}</Entry>`);
  t.same(entry?.unplaced, ['2 attachments that are missing']);
  const [note, original, ...more] = entry?.made ?? [];
  t.match(note?.payload, { text: /2 attachments that are missing/ });
  const bytes: Uint8Array[] = [];
  for await (const part of original?.content?.open() ?? []) bytes.push(part);
  t.match(JSON.parse(Buffer.concat(bytes).toString()), { attachments: ['one.pdf', 'two.pdf'] });
  t.same(more, []);
});

t.test('IMPORT-02 IMPORT-05: what an entry has beside the part of its type is named, and kept', async (t) => {
  const login = { username: 'me', password: 'x' };
  const sshKey = { privateKey: '', publicKey: 'ssh-ed25519 AAAA', keyFingerprint: '' };
  const items = [
    { type: 1, name: 'both', login, card: { number: '4' } },
    { type: 2, name: 'a note', notes: 'n', login, identity: { firstName: null, lastName: '' } },
    { type: 5, name: 'half', sshKey },
    { type: 1, name: 'one', login, card: null, identity: {}, sshKey: null },
  ];
  const none = { unlock: () => Promise.reject(new Error('it is open')), keyFile: () => Promise.resolve(undefined) };
  const entries = await readBitwarden(JSON.stringify({ encrypted: false, folders: [], items }), none);
  t.same(
    entries.map(({ unplaced }) => unplaced),
    [['the card'], ['the login'], ['the SSH key'], []],
  );
  t.same(
    entries.map(({ made }) => made.some(({ part }) => part === 'original')),
    [true, true, true, false],
  );
});

t.test('IMPORT-02 IMPORT-06: what is in a second column of a name is neither dropped nor read as the first', (t) => {
  const [entry] = readCsv('name,url,username,password,note,note\na,https://a.example,me,x,,second\n')?.entries ?? [];
  t.same(entry?.unplaced, ['note (2)']);
  t.same(
    entry?.made.map(({ part }) => part),
    ['main', 'note', 'original'],
  );
  const [again] = readCsv('name,url,username,password,x,x,x (2),x\na,,me,x,1,2,3,4\n')?.entries ?? [];
  t.same(
    again?.unplaced,
    ['x', 'x (2)', 'x (2) (2)', 'x (3)'],
    'nor a column that is called like the number of another',
  );
  t.end();
});

t.test('IMPORT-10: a value of a vCard that has very many parts is refused', (t) => {
  const card = `BEGIN:VCARD\nFN:a\nORG:${';'.repeat(200_000)}\nEND:VCARD\n`;
  t.throws(() => readVcards(card), { name: 'ForeignError', message: /a value has more than 1000 parts/ });
  t.end();
});

t.test('IMPORT-08 IMPORT-10: a long value of a vCard takes memory in proportion to its length', (t) => {
  const script = `
    const { readVcards } = await import(${JSON.stringify(new URL('../src/import/vcard.js', import.meta.url).href)});
    const text = { plain: 'é'.repeat(5_000_000), encoded: '=C3=A9'.repeat(5_000_000), escaped: '\\\\n\\\\\\\\'.repeat(3_000_000) };
    const line = process.argv[1] === 'escaped' ? 'NOTE:' : 'NOTE;ENCODING=QUOTED-PRINTABLE:';
    const [entry] = readVcards('BEGIN:VCARD\\nFN:a\\n' + line + text[process.argv[1]] + '\\nEND:VCARD\\n');
    const note = entry.made.find(({ part }) => part === 'note')?.payload.text ?? '';
    console.log(note.length, JSON.stringify(note.slice(-2)));`;
  // In a heap that a list of these characters would fill.
  const argv = ['--max-old-space-size=200', '--input-type=module', '--eval', script];
  const read = (how: string): string => execFileSync(process.execPath, [...argv, how], { encoding: 'utf8' });
  // After the name and an empty line.
  t.equal(read('plain'), '5000003 "éé"\n');
  t.equal(read('encoded'), '5000003 "éé"\n');
  t.equal(read('escaped'), `6000003 ${JSON.stringify('\n\\')}\n`);
  t.end();
});
