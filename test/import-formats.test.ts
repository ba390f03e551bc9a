/** How exports of other programs are converted, and which are refused: dry runs, without a server or a device. */
import { execFileSync } from 'node:child_process';
import { mkdir, readdir, readFile, symlink, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import t, { type Test } from 'tap';
import { readCsv } from '../src/import/csv.js';
import { rowsOf } from '../src/import/csv-rows.js';
import { type Entry, jsonOriginal } from '../src/import/entries.js';
import { kdbxLibrary } from '../src/import/kdbx.js';
import { expectPlainXml } from '../src/import/kdbx-xml.js';
import { readKeepass } from '../src/import/keepass.js';
import { readVcards } from '../src/import/vcard.js';
import { PROJECT_ROOT } from '../src/root.js';
import { EXIT } from '../src/terminal/terminal.js';
import { machine, type CallOptions, type Json, type Machine, type Result } from './support/cli.js';
import {
  bitwardenCsv,
  bitwardenJson,
  chromeCsv,
  firefoxCsv,
  lockedBitwarden,
  vcards,
} from './support/foreign-exports.js';
import { inLongRun } from './support/long.js';
import { temporaryFolder } from './support/postgres.js';

const PASSWORD = 'correct horse';
/** Written by KeePassXC 2.7 over databases of kdbxweb. */
const keepass = (name: string): string => join(PROJECT_ROOT, 'test/fixtures/keepass', `${name}.kdbx`);

interface Desk {
  readonly folder: string;
  readonly machine: Machine;
  /** Writes a file with this content; gives its path. */
  readonly file: (name: string, content: string | Uint8Array) => Promise<string>;
  /** The document of a dry run with `--json`; asserts that it shows no secret. */
  readonly dry: (path: string, argv?: readonly string[], options?: CallOptions) => Promise<Json>;
  readonly refused: (path: string, argv?: readonly string[], options?: CallOptions) => Promise<Result>;
}

async function desk(t: Test): Promise<Desk> {
  const folder = await temporaryFolder(t);
  const own = await machine(t);
  const file: Desk['file'] = async (name, content) => {
    const path = join(folder, name);
    await writeFile(path, content);
    return path;
  };
  const call = (path: string, argv: readonly string[] = [], options: CallOptions = {}): Promise<Result> =>
    own.call(['--json', 'import', path, '--dry-run', ...argv], options);
  return {
    ...{ folder, machine: own, file },
    dry: async (path, argv, options) => {
      const result = await call(path, argv, options);
      if (result.code !== 0) throw new Error(JSON.stringify(result.error));
      t.equal(/fake|4000000000000002|737/i.test(result.out.replaceAll('fake-old', '')), false, 'no secret is shown');
      return result.data[0] ?? {};
    },
    refused: async (path, argv, options) => {
      const result = await call(path, argv, options);
      t.equal(result.code, 6, JSON.stringify(result.data));
      t.equal(/fake/i.test(JSON.stringify(result.error)), false, 'the error repeats none of the content');
      return result;
    },
  };
}

const kindsOf = (document: Json): string[] =>
  (document['kinds'] as { kind: string; becomes: string; entries: number }[])
    .map(({ kind, becomes, entries }) => `${entries} ${kind}: ${becomes}`)
    .sort();

/** The parts that no field can hold, by the entry's name. */
const noField = (document: Json): Record<string, unknown> =>
  Object.fromEntries((document['each'] as { name: string; noField: unknown }[]).map((one) => [one.name, one.noField]));

const BITWARDEN_KINDS = [
  '1 SSH key: password + note',
  '1 card: note + original',
  '1 identity: contact + note + original',
  '1 login: link',
  '1 login: nothing: in the trash',
  '1 login: password',
  '1 login: password + note + original',
  '1 secure note: note',
];

t.test(
  'IMPORT-01 IMPORT-02 IMPORT-04 IMPORT-05: each Bitwarden type is converted, and what no field can hold is named',
  async (t) => {
    const at = await desk(t);
    const path = await at.file('export.json', JSON.stringify(bitwardenJson));
    const document = await at.dry(path);
    t.match(document, { from: 'Bitwarden JSON', entries: 8, items: 13, withOriginal: 3, dryRun: true });
    t.same(kindsOf(document), BITWARDEN_KINDS);
    t.same(noField(document), {
      'Code host': ['1 further address', 'the one-time password', '1 passkey', '2 custom fields', '1 earlier password'],
      ...{ 'plain.example': [], 'Wifi of the office': [], 'Deploy key': [], 'Thrown away': [], 'A page': [] },
      ...{ Visa: ['the card'], Me: ['its name, “Me”', 'ssn'] },
    });
    t.match(document['leftOut'], [{ reason: 'in the trash', entries: 1 }]);
    t.match(document['marks'], [
      { mark: 'favourite', entries: 1 },
      { mark: 'ask again', entries: 1 },
    ]);
    t.same(await readdir(at.machine.home), [], 'no profile is made');
    const shown = await at.machine.call(['import', path, '--dry-run']);
    t.match(
      shown.out,
      /8 entries, which become 13 items in 2 bins[\s\S]*password \+ note \+ original[\s\S]*Nothing was written/,
    );
    t.notMatch(shown.out + shown.notes, /fake|4000000000000002|737/i, 'no secret is shown');
  },
);

t.test('IMPORT-05: the collections of an organisation become bins', async (t) => {
  const at = await desk(t);
  const item = { type: 2, name: 'Shared', notes: 'x', secureNote: { type: 0 }, collectionIds: ['c2', 'c1'] };
  const collections = [{ id: 'c1', organizationId: 'o', name: 'Staff' }, { id: 'c2', organizationId: 'o', name: 'Desk' }]; // prettier-ignore
  const document = await at.dry(
    await at.file('o.json', JSON.stringify({ encrypted: false, collections, items: [item] })),
  );
  t.match(document['each'], [{ bin: 'Desk', noField: ['1 further collection'] }]);
});

t.test('IMPORT-02: a field that a newer Bitwarden adds is named as one that no field can hold', async (t) => {
  const at = await desk(t);
  const [first] = bitwardenJson.items.slice(2, 3);
  const path = await at.file('b.json', JSON.stringify({ encrypted: false, items: [{ ...first, brandNew: { a: 1 } }] }));
  t.same(noField(await at.dry(path)), { 'Wifi of the office': ['brandNew'] });
});

t.test('IMPORT-05 IMPORT-11: a password-protected export opens with its password only', async (t) => {
  const at = await desk(t);
  for (const kdf of ['pbkdf2', 'argon2id'] as const) {
    const path = await at.file(`${kdf}.json`, JSON.stringify(await lockedBitwarden(bitwardenJson, PASSWORD, kdf)));
    const answers = [[/password/, 'wrong'], [/password/, PASSWORD]] as const; // prettier-ignore
    const opened = await at.dry(path, [], { answers });
    t.same(kindsOf(opened), BITWARDEN_KINDS, kdf);
    t.match((await at.refused(path, ['--password-file', '-'], { input: 'wrong\n' })).error, {
      message: /does not open/,
    });
  }
  const bound = await at.file(
    'bound.json',
    JSON.stringify({ encrypted: true, encKeyValidation_DO_NOT_EDIT: '2.a|b|c', items: [] }),
  );
  t.match((await at.refused(bound)).error, { message: /keys of a Bitwarden account/, hint: /password protected/ });
});

t.test('IMPORT-06: the CSV of Bitwarden, Chrome and Firefox is accepted, as RFC 4180 allows it', async (t) => {
  const at = await desk(t);
  const bitwarden = await at.dry(await at.file('bitwarden.csv', bitwardenCsv), ['--from', 'bitwarden']);
  t.same(kindsOf(bitwarden), ['1 login: password', '1 login: password + note + original', '1 secure note: note']);
  t.same(noField(bitwarden)['Code host'], ['1 further address', 'the one-time password', '2 custom fields']);
  const chrome = await at.dry(await at.file('chrome.csv', chromeCsv), ['--from', 'chrome']);
  t.match(chrome, { from: 'Chrome CSV', entries: 3, items: 4, withOriginal: 0 });
  const firefox = await at.dry(await at.file('logins.csv', firefoxCsv), ['--from', 'firefox']);
  t.match(firefox, { from: 'Firefox CSV', entries: 2, items: 4 });
  t.same(noField(firefox), { 'https://code.example': [], 'https://router.example': ['the realm'] });
  const added = chromeCsv
    .replace('note\n', 'note,extra\n')
    .replaceAll(/,(\n)/g, ',,$1')
    .replace('the note', 'the note,kept');
  t.same(
    noField(await at.dry(await at.file('new.csv', added)))['Mail'],
    [],
    'the last entry named Mail has nothing extra',
  );
  for (const [name, csv] of [
    ['bitwarden.csv', bitwardenCsv],
    ['chrome.csv', chromeCsv],
    ['logins.csv', firefoxCsv],
  ] as const) {
    const expected = await at.dry(await at.file(name, csv));
    for (const [end, mark] of [
      ['\n', ''],
      ['\n', '\ufeff'],
      ['\r\n', ''],
      ['\r\n', '\ufeff'],
      ['\r', '\ufeff'],
    ] as const) {
      const file = await at.file(name, mark + csv.replace('\ufeff', '').replaceAll(/\r?\n/g, end));
      t.same(await at.dry(file), expected, `${name}, ${JSON.stringify(mark + end)}`);
    }
  }
  const values = JSON.stringify(readCsv(bitwardenCsv));
  for (const value of ['two\\nlines', 'fake \\"quoted\\" secret']) t.ok(values.includes(value), value);
});

t.test('IMPORT-06 IMPORT-10: rows of CSV are read back as they were written, each with its line', (t) => {
  const cell = fc.string({ unit: fc.constantFrom('a', '"', ',', '\n', '\r', ' ', 'ä') });
  const table = fc
    .integer({ min: 1, max: 4 })
    .chain((width) => fc.array(fc.array(cell, { minLength: width, maxLength: width })));
  fc.assert(
    fc.property(table, fc.constantFrom('\n', '\r\n', '\r'), fc.boolean(), (rows, end, last) => {
      let line = 1;
      const expected: { cells: string[]; line: number }[] = [];
      const written = rows.map((cells) => {
        expected.push({ cells, line });
        const quoted = cells.map((one) => (/^[aä]+$/.test(one) ? one : `"${one.replaceAll('"', '""')}"`)).join(',');
        line += 1 + (quoted.match(/\r\n|\r|\n/g)?.length ?? 0);
        return quoted;
      });
      t.same([...rowsOf(written.join(end) + (last ? end : ''), 4)], expected);
    }),
    { numRuns: 100 },
  );
  t.same([...rowsOf('a,b\n\n\r\n,\n', 2)], [{ cells: ['a', 'b'], line: 1 }, { cells: ['', ''], line: 4 }], 'empty lines'); // prettier-ignore
  for (const [csv, why] of [
    ['a,b,c', /line 1: it has more than 2 columns/],
    ['a,b\n1', /line 2: the row has more or fewer columns/],
    ['a,b\n1,2,3', /line 2: the row has more or fewer columns/],
    ['a,b\n\n1"2,3', /line 3: a quotation mark is within a value/],
    ['a,b\n"1"2,3', /line 2: a quotation mark is within a value/],
    ['a,b\n"1""', /line 2: a quotation mark is not closed/],
  ] as const)
    t.throws(() => [...rowsOf(csv, 2)], { message: why }, csv);
  t.end();
});

t.test('IMPORT-07 IMPORT-11: KeePassXC databases open with each key derivation function', async (t) => {
  const at = await desk(t);
  for (const name of ['aes-3.1', 'argon2d-4', 'argon2id-4']) {
    const document = await at.dry(keepass(name), [], { answers: [[/password of this database/, PASSWORD]] });
    t.same(
      kindsOf(document),
      ['1 entry: nothing: in the recycle bin', '1 entry: password + note + file + original', '2 entry: password'],
      name,
    );
    const rest = noField(document)['Code host'] as string[];
    t.match(rest, ['the one-time password', '1 custom field', /earlier version/], name);
    const bins = (document['each'] as { name: string; bin: string }[]).map(({ name, bin }) => `${bin}>${name}`);
    t.ok(bins.includes('Internet/Mail>Mail') && bins.includes('>Third'), bins.join());
  }
  const file = await at.file('password', `${PASSWORD}\n`);
  t.match(await at.dry(keepass('aes-3.1'), ['--password-file', file]), { entries: 4 }, 'with a password from a file');
  t.match((await at.refused(keepass('aes-3.1'), ['--password-file', '-'], { input: 'wrong' })).error, {
    message: /does not open/,
  });
});

t.test('IMPORT-07: a database opens with its key file, alone and with a password', async (t) => {
  const at = await desk(t);
  const library = await kdbxLibrary();
  const { Consts, Credentials, Int64, Kdbx, ProtectedValue } = library;
  const key = Buffer.from(await Credentials.createRandomKeyFile(2));
  const keyFile = await at.file('vault.keyx', key);
  for (const password of ['', PASSWORD]) {
    const own = password === '' ? null : ProtectedValue.fromString(password);
    const database = Kdbx.create(new Credentials(own, new Uint8Array(key)), 'Keyed');
    database.setKdf(Consts.KdfId.Aes);
    database.header.kdfParameters?.set('R', 5, Int64.from(1_000));
    database.createEntry(database.getDefaultGroup()).fields.set('Title', 'Only one');
    const path = await at.file('keyed.kdbx', Buffer.from(await database.save()));
    const answers = [[/password of this database/, password]] as const;
    t.match(await at.dry(path, ['--key-file', keyFile], { answers }), { entries: 1 });
    await at.refused(path, ['--password-file', '-'], { input: PASSWORD });
    if (own === null)
      t.match(await at.dry(path, ['--key-file', keyFile]), { entries: 1 }, 'no password is prompted for');
    const endless = await at.machine.call(['--json', 'import', path, '--dry-run', '--key-file', '/dev/zero']);
    t.match(endless, { code: EXIT.usage, error: { message: /is not a key file/ } }, 'what never ends is not read on');
  }
});

t.test('IMPORT-08: vCards 2.1, 3.0 and 4.0 become contacts', async (t) => {
  const at = await desk(t);
  const document = await at.dry(await at.file('people.vcf', vcards));
  t.same(kindsOf(document), ['1 contact: contact + note', '2 contact: contact + note + original']);
  t.same(noField(document), {
    'Ada Lovelace': [],
    'Charles Babbage': ['1 further mail address', 'the address', 'the birthday', 'the photo'],
    'Jürgen Müller': ['1 further phone number'],
  });
});

t.test('IMPORT-09: a folder of Markdown is imported without links, hidden files and devices', async (t) => {
  const at = await desk(t);
  const folder = join(at.folder, 'notes');
  await mkdir(join(folder, 'Trips', 'Lisbon'), { recursive: true });
  await mkdir(join(folder, '.obsidian'));
  await writeFile(join(folder, 'Today.md'), '---\ntags: [a]\n---\n# Today\n');
  await writeFile(join(folder, 'Trips/Lisbon/Plan.md'), '![](map.png)\r\n');
  await writeFile(join(folder, 'Trips/Lisbon/map.png'), Uint8Array.of(0x89, 0x50, 0x4e, 0x47));
  await writeFile(join(folder, 'Trips/empty.md'), '');
  await writeFile(join(folder, '.hidden.md'), 'hidden');
  await symlink('/etc/passwd', join(folder, 'passwd.md'));
  await symlink('Trips', join(folder, 'Linked'));
  execFileSync('mkfifo', [join(folder, 'pipe.md')]);
  const document = await at.dry(folder);
  t.same(kindsOf(document), [
    ...['1 file: file', '1 file: nothing: no file', '1 image: image'],
    ...['2 file: nothing: a link', '2 file: nothing: hidden', '2 markdown: code'],
  ]);
  const bins = new Map((document['each'] as { where: string; bin: string }[]).map(({ where, bin }) => [where, bin]));
  t.equal(bins.get('Trips/Lisbon/Plan.md'), 'Trips/Lisbon');
  const piped = join(at.folder, 'piped');
  await mkdir(piped);
  await writeFile(join(piped, 'Today.md'), '# Today\n');
  execFileSync('mkfifo', [join(piped, 'manifest.json')]);
  t.same(kindsOf(await at.dry(piped)), ['1 file: nothing: no file', '1 markdown: code']);
  const without = join(at.folder, 'none');
  await mkdir(without);
  t.match((await at.refused(without)).error, { message: /no Markdown file/ });
});

t.test('IMPORT-01: a damaged export is refused, with the entry and the reason', async (t) => {
  const at = await desk(t);
  const item = { id: 'x', type: 1, name: 'n', login: { username: 'u', password: 'fake' } };
  const json = (items: unknown): string => JSON.stringify({ encrypted: false, items });
  const cases: readonly (readonly [name: string, content: string | Uint8Array, message: RegExp])[] = [
    ['cut.json', JSON.stringify(bitwardenJson).slice(0, 900), /is refused: it is not JSON, or is cut short/],
    [
      'type.json',
      json([item, { ...item, login: { password: ['fake'] } }]),
      /at items\[1\]\.login\.password: must be a string/,
    ],
    ['no-type.json', json([{ ...item, type: 'fake' }]), /at items\[0\]\.type/],
    ['no-items.json', '{"encrypted": false, "items": {}}', /at items: must be an array/],
    ['deep.json', `{"encrypted": false, "items": ${'['.repeat(40)}${']'.repeat(40)}}`, /more than 32 levels/],
    ['cut.csv', chromeCsv.replace(',the note', ',"the note'), /at line 5?[345]: a quotation mark is not closed/],
    ['columns.csv', `${chromeCsv}a,b,fake\n`, /at line 5: the row has more or fewer columns/],
    [
      'crlf.csv',
      `${bitwardenCsv}\na,b,fake`.replaceAll(/\r?\n/g, '\r\n'),
      /at line 7: the row has more or fewer columns/,
    ],
    ['latin.csv', Buffer.from('name,url,username,password\nfake,\u00e4,u,p\n', 'latin1'), /it is not UTF-8/],
    ['cut.vcf', vcards.slice(0, vcards.lastIndexOf('END:')), /at line \d+: the card has no end/],
    ['line.vcf', 'BEGIN:VCARD\r\nVERSION:3.0\r\nfake line\r\nEND:VCARD\r\n', /at line 3: it is not a line of a vCard/],
    ['nested.vcf', 'BEGIN:VCARD\r\nBEGIN:VCARD\r\nEND:VCARD\r\n', /at line 2: a card begins within another/],
    ['unknown.txt', 'milk, bread', /or an export of a known program/],
    ['old.kdb', Buffer.from('03d9a29a65fb4bb500000000', 'hex'), /KeePass 1/],
    ['cut.kdbx', Buffer.from('03d9a29a67fb4bb501000400', 'hex'), /damaged|not a KeePass database/],
  ];
  for (const [name, content, message] of cases)
    t.match((await at.refused(await at.file(name, content))).error, { message }, name);
  t.match((await at.refused(await at.file('f.csv', firefoxCsv), ['--from', 'chrome'])).error, {
    message: /it is Firefox CSV, not chrome/,
  });
  t.match((await at.refused(await at.file('x.txt', 'milk'), ['--from', 'vcard'])).error, {
    message: /it is not from vcard/,
  });
});

t.test('IMPORT-10: an export beyond a bound of size, folders or key cost is refused', async (t) => {
  const at = await desk(t);
  const sparse = await at.file('large.vcf', 'BEGIN:VCARD\r\n');
  await truncate(sparse, 65 * 1024 * 1024);
  t.match((await at.refused(sparse)).error, { message: /more than 64 MiB/ });
  const folders = Array.from({ length: 1_001 }, (_, at) => ({ id: `f${at}`, name: `Folder ${at}` }));
  const items = folders.map(({ id }) => ({ id: `i${id}`, folderId: id, type: 2, name: id, notes: 'x' }));
  const many = await at.file('many.json', JSON.stringify({ encrypted: false, folders, items }));
  t.match((await at.refused(many)).error, { message: /1001 folders, and a vault has at most 1000 bins/ });
  const locked = (await lockedBitwarden({}, 'x', 'pbkdf2')) as object;
  const argon2id = { kdfType: 1, kdfIterations: 3, kdfMemory: 16, kdfParallelism: 2 };
  for (const [cost, message] of [
    [{ kdfIterations: 2_000_001 }, /2000001 passes, and at most 2000000/],
    [{ ...argon2id, kdfIterations: 11 }, /11 passes, and at most 10/],
    [{ ...argon2id, kdfMemory: 1_025 }, /1025 memory, and at most 1024/],
    [{ ...argon2id, kdfParallelism: 17 }, /17 lanes, and at most 16/],
  ] as const) {
    const costly = await at.file('costly.json', JSON.stringify({ ...locked, ...cost }));
    t.match((await at.refused(costly, ['--password-file', '-'], { input: 'x' })).error, { message });
  }
});

const packedOnce = new Map<number, Buffer>();

/** So many MiB of zeros, packed: a second of a processor for 300, which several tests unpack. */
function packedZeros(mib: number): Buffer {
  const packed = packedOnce.get(mib) ?? gzipSync(Buffer.alloc(mib * 1024 * 1024));
  packedOnce.set(mib, packed);
  return packed;
}

t.test('IMPORT-10 DEP-07: a database that unpacks to too much, or whose key costs too much, is refused', async (t) => {
  const at = await desk(t);
  const library = await kdbxLibrary();
  const { Consts, Credentials, HashedBlockTransform, Int64, Kdbx, KdbxFormat, ProtectedValue } = library;
  const bomb = packedZeros(300);
  for (const version of [3, 4] as const) {
    const database = Kdbx.create(new Credentials(ProtectedValue.fromString('x')), 'Hostile');
    if (version === 3) {
      database.setVersion(3);
      database.header.keyEncryptionRounds = 100;
    } else {
      database.setKdf(Consts.KdfId.Aes);
      database.header.kdfParameters?.set('R', 5, Int64.from(100));
    }
    const format = new KdbxFormat(database);
    const inner = format as unknown as { encryptData: (data: ArrayBuffer, key: ArrayBuffer) => Promise<ArrayBuffer> };
    const encrypt = inner.encryptData.bind(inner);
    inner.encryptData = async (data, key) => {
      const packed = new Uint8Array(bomb).buffer;
      const blocks = version === 4 ? packed : await HashedBlockTransform.encrypt(packed);
      const start = version === 4 ? Buffer.alloc(0) : Buffer.from(data).subarray(0, 32);
      return encrypt(new Uint8Array(Buffer.concat([start, Buffer.from(blocks)])).buffer, key);
    };
    const path = await at.file('hostile.kdbx', Buffer.from(await format.save()));
    const { error } = await at.refused(path, ['--password-file', '-'], { input: 'x' });
    t.match(error, { message: /unpacks to more than 256 MiB/ }, `version ${version}`);
  }
  // The cost of the key is checked before the password is prompted for: nobody is there to type one.
  const header = Buffer.from(
    await (async () => {
      const database = Kdbx.create(new Credentials(ProtectedValue.fromString('x')), 'Costly');
      database.setKdf(Consts.KdfId.Argon2id);
      database.header.kdfParameters?.set('M', 5, Int64.from(1024 * 1024));
      database.header.kdfParameters?.set('I', 5, Int64.from(1));
      return database.save();
    })(),
  );
  for (const [name, value, why] of [
    ['I', 1_001n, /passes/],
    ['M', 2n ** 31n, /memory/],
  ] as const) {
    // prettier-ignore
    const changed = Buffer.from(header);
    // A value of a VarDictionary: its kind, the length of its name, the name, the length of the value, the value.
    const at2 = changed.indexOf(
      Buffer.concat([Buffer.from([5, 1, 0, 0, 0]), Buffer.from(name), Buffer.from([8, 0, 0, 0])]),
    );
    changed.writeBigUInt64LE(value, at2 + 10);
    t.match((await at.refused(await at.file('costly.kdbx', changed))).error, { message: why }, name);
  }
});

t.test('IMPORT-10: an attachment is in memory once for all its entries, which are bounded', async (t) => {
  const { Consts, Credentials, Int64, Kdbx, ProtectedValue } = await kdbxLibrary();
  const read = async (entries: number, isProtected: boolean): Promise<readonly Entry[]> => {
    const database = Kdbx.create(new Credentials(ProtectedValue.fromString(PASSWORD)), 'Hostile');
    database.setKdf(Consts.KdfId.Aes);
    database.header.kdfParameters?.set('R', 5, Int64.from(100));
    const bytes = new Uint8Array(2 ** 20);
    const binary = await database.createBinary(isProtected ? ProtectedValue.fromBinary(bytes.buffer) : bytes.buffer);
    for (let made = 0; made < entries; made++)
      database.createEntry(database.getDefaultGroup()).binaries.set('scan.pdf', binary);
    const keyFile = (): Promise<undefined> => Promise.resolve(undefined);
    return readKeepass(new Uint8Array(await database.save()), { unlock: (_, open) => open(PASSWORD), keyFile });
  };
  for (const isProtected of [false, true]) {
    const seen = new Set<unknown>();
    for (const { made } of await read(256, isProtected))
      for (const { content } of made) for await (const bytes of content?.open() ?? []) seen.add(bytes);
    t.equal(seen.size, 1, `protected: ${isProtected}`);
    await t.rejects(read(257, isProtected), { message: /its entries take too much memory/ });
  }
});

t.test('IMPORT-10: database XML is refused for entities, comments, large attachments and too many entries', (t) => {
  const packed = (mib: number): string => packedZeros(mib).toString('base64');
  const xml = (inner: string): Buffer => Buffer.from(`<?xml version="1.0"?>\n<KeePassFile>${inner}</KeePassFile>`);
  const small = `<Binary ID="0" Compressed="True">${packed(100)}</Binary>`;
  expectPlainXml(xml(small.repeat(2)));
  const bad: readonly (readonly [inner: string, why: RegExp])[] = [
    [small.repeat(3), /an attachment unpacks to too much/],
    [`<Binary ID="0" Compressed="True">&#72;4sI</Binary>`, /unpacks to too much/],
    ['<!DOCTYPE a [<!ENTITY b "c">]>', /parts that no KeePass program writes/],
    ['<Binary Compressed="True">H4sI<!-- -->AAAA</Binary>', /parts that no KeePass program writes/],
    ['<a/>'.repeat(3_000_001), /too many entries/],
    // What hides an attachment, or where it ends.
    [`<Binary ID="0"\nCompressed="True">${packed(300)}</Binary>`, /unpacks to too much/],
    [`<Binary ID="0" Com\u0001pressed="True">${packed(300)}</Binary>`, /unpacks to too much/],
    [`<Binary Compressed="True" ID=">AAA">${packed(300)}</Binary>`, /unpacks to too much/],
    [`<Binary Compressed="True" ID=">AAA<">${packed(300)}</Binary>`, /parts that no KeePass program writes/],
    ['<Binary Compressed="True">H4sI<a/>AAAA</Binary>', /parts that no KeePass program writes/],
    ['<Binary Compressed="True">H4sI<?a b?>AAAA</Binary>', /parts that no KeePass program writes/],
    ["<Binary Compressed='True'>H4sIAAAA</Binary>", /parts that no KeePass program writes/],
    // What takes the parser, or the library after it, quadratic time.
    [Array.from({ length: 1_001 }, (_, at) => `<a${at}></a${at}>`).join(''), /parts that no KeePass program writes/],
    [`<a ${Array.from({ length: 9 }, (_, at) => `a${at}=""`).join(' ')}/>`, /parts that no KeePass program writes/],
    [`<a></a${' '.repeat(100)}x>`, /parts that no KeePass program writes/],
    ['<a xmlns:b="c"/>', /parts that no KeePass program writes/],
    ['<a>'.repeat(257), /parts that no KeePass program writes/],
    [`<Tags>${' '.repeat(10_001)}</Tags>`, /too many tags/],
  ];
  for (const [inner, why] of bad) t.throws(() => expectPlainXml(xml(inner)), { message: why }, inner.slice(0, 60));
  const plain =
    '<Value ProtectInMemory="True">Compressed &gt; a > b</Value>\r\n\t<Value Ref="0" /><Tags>a;b</Tags><Binary ID="0" Compressed="False">/////w==</Binary>';
  expectPlainXml(xml(plain));
  t.end();
});

t.test('IMPORT-02 IMPORT-08: what a program wrote loosely into a vCard is neither dropped nor another text', (t) => {
  const lines = [
    'FN;ENCODING=QUOTED-PRINTABLE:\u0141ukasz =C5=81',
    'ORG:Contoso;C:\\',
    'ORG:Fabrikam',
    'TITLE:One',
    'TITLE:Two',
  ];
  const [entry] = readVcards(`BEGIN:VCARD\n${lines.join('\n')}\nEND:VCARD\n`);
  t.match(entry?.made[0], { payload: { name: '\u0141ukasz \u0141', role: 'One, Contoso, C:\\' } });
  t.same(entry?.unplaced, ['1 further title', '1 further organisation']);
  t.end();
});

t.test('IMPORT-10: a file of very many short lines is refused before they fill the memory', async (t) => {
  const small = process.memoryUsage().heapUsed + 2 ** 30;
  const rows = `name,url,username,password\n${',,,\n'.repeat(4_000_000)}`;
  t.throws(() => readCsv(rows), { message: /more than 100000 rows/ });
  t.throws(() => readVcards(`BEGIN:VCARD\n${'A:\n'.repeat(4_000_000)}END:VCARD\n`), { message: /2000000 lines/ });
  t.ok(process.memoryUsage().heapUsed < small);
});

t.test(
  'IMPORT-10: an export whose entries each repeat one long name is refused before they fill the memory',
  async (t) => {
    const csv = `name,url,username,password,${'x'.repeat(16 * 1024 * 1024)}\n${'a,b,c,d,e\n'.repeat(100)}`;
    t.throws(() => readCsv(csv), { message: /its entries take too much memory/ });
    // Longer than any text can be, as 20 MB of deep JSON are with their indentation.
    const long = Array<string>(6).fill('x'.repeat(100_000_000));
    t.throws(() => jsonOriginal('bitwarden', long), { message: /an entry is too long/ });

    const at = await desk(t);
    const { Consts, Credentials, Int64, Kdbx, ProtectedValue } = await kdbxLibrary();
    const database = Kdbx.create(new Credentials(ProtectedValue.fromString('x')), 'Hostile');
    database.setKdf(Consts.KdfId.Aes);
    database.header.kdfParameters?.set('R', 5, Int64.from(100));
    // A group of 10 MB, with 300 entries in the group below it, took 6 GB, from a file of 20 KB.
    const group = database.createGroup(database.getDefaultGroup(), 'x'.repeat(5_000));
    database.createEntry(database.createGroup(group, 'below'));
    const path = await at.file('names.kdbx', Buffer.from(await database.save()));
    const { error } = await at.refused(path, ['--password-file', '-'], { input: 'x' });
    t.match(error, { message: /the names of its groups are too long/ });
  },
);

t.test('IMPORT-10: a value that is all line ends takes no memory for each of them', (t) => {
  const script = `
    const { readCsv } = await import(${JSON.stringify(new URL('../src/import/csv.js', import.meta.url).href)});
    const columns = ['type', 'name', 'login_uri', 'login_username', 'login_password', 'notes', 'fields'];
    const cells = columns.map((column) => (column === process.argv[1] ? '"' + '\\n'.repeat(2 ** 25) + '"' : 'x'));
    try {
      console.log(readCsv(columns.join() + '\\n' + cells.join() + '\\n').entries[0].unplaced.length);
    } catch (error) {
      console.log(error.why);
    }`;
  // In a heap that a list of these lines would fill.
  const argv = ['--max-old-space-size=300', '--input-type=module', '--eval', script];
  const read = (column: string): string => execFileSync(process.execPath, [...argv, column], { encoding: 'utf8' });
  t.equal(read('fields'), '0\n');
  t.match(read('notes'), /a text is over/);
  t.end();
});

t.test('IMPORT-10: a CSV with very many columns is read in linear time', async (t) => {
  const columns = Array.from({ length: 100_000 }, (_, at) => `c${at}`);
  const row = `a,https://a.example,me,secret,${columns.map(() => 'x').join(',')}`;
  // Searching the columns for each of them would take minutes.
  const read = readCsv(`name,url,username,password,${columns.join(',')}\n${row}\n`);
  t.match(read?.entries[0], { name: 'a', unplaced: { length: columns.length } });
});

t.test('IMPORT-01 IMPORT-10: an export with random changes is either read or refused with exit code 6', async (t) => {
  const at = await desk(t);
  const inputs: readonly (readonly [name: string, bytes: Buffer])[] = [
    ['b.json', Buffer.from(JSON.stringify(bitwardenJson))],
    ['b.csv', Buffer.from(bitwardenCsv)],
    ['c.csv', Buffer.from(chromeCsv)],
    ['f.csv', Buffer.from(firefoxCsv)],
    ['p.vcf', Buffer.from(vcards)],
    ['k3.kdbx', await readFile(keepass('aes-3.1'))],
    ['k4.kdbx', await readFile(keepass('argon2d-4'))],
  ];
  const change = fc.tuple(
    fc.nat(),
    fc.uint8Array({ minLength: 1, maxLength: 4 }),
    fc.constantFrom('write', 'cut', 'add'),
  );
  await fc.assert(
    fc.asyncProperty(fc.constantFrom(...inputs), fc.array(change, { maxLength: 3 }), async ([name, bytes], changes) => {
      let content = Buffer.from(bytes);
      for (const [place, noise, how] of changes) {
        const begin = content.length === 0 ? 0 : place % content.length;
        if (how === 'cut') content = content.subarray(0, begin);
        else {
          const behind = content.subarray(how === 'add' ? begin : begin + noise.length);
          content = Buffer.concat([content.subarray(0, begin), noise, behind]);
        }
      }
      const path = await at.file(name, content);
      const argv = ['--json', 'import', path, '--dry-run', '--password-file', '-'];
      const { code, error } = await at.machine.call(argv, { input: PASSWORD });
      t.ok(code === 0 || code === 6, `${code} ${JSON.stringify(error)}`);
    }),
    { numRuns: inLongRun(80, 250) },
  );
});
