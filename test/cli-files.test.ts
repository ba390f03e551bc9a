/** Files at the command line: put, get, export and import, against a real server. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { tmpdir } from 'node:os';
import { buffer } from 'node:stream/consumers';
import t from 'tap';
import { fileNameOf } from '../src/cli/item-content.js';
import { Spool } from '../src/cli/spool.js';
import { EXIT } from '../src/terminal/terminal.js';
import { meter, sizeText } from '../src/cli/transfer.js';
import type { ItemView } from '../src/sdk/events.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Sodium } from '../src/crypto/sodium.js';
import { joinedDesk, type Json } from './support/cli.js';
import { TestClock } from './support/clock.js';
import { temporaryFolder } from './support/postgres.js';
import { fakeTerminal } from './support/vault-context.js';

const BYTES = Buffer.from(Uint8Array.from({ length: 200_000 }, (_, at) => (at * 31) % 256));

const parts = (folder: string): string[] => readdirSync(folder).filter((name) => name.endsWith('.part'));

t.test('CBLOB-19: a file is put by path or pipe, listed, shown and saved unchanged', async (t) => {
  const { desk } = await joinedDesk(t);
  const at = (name: string): string => join(desk.home, name);
  writeFileSync(at('data.bin'), BYTES);
  writeFileSync(at('photo.jpg'), BYTES.subarray(0, 10));
  writeFileSync(at('long.txt'), 'x'.repeat(70_000));
  const put = async (...argv: string[]): Promise<Json> => desk.json(['put', ...argv]);
  const data = await put('--file', at('data.bin'), '--set', 'name=mine.bin');
  t.match(data, { type: 'file', size: BYTES.length, queued: false });
  t.match(await put('--file', at('photo.jpg')), { type: 'image', size: 10 });
  t.match(await put('--file', at('long.txt')), { type: 'file', size: 70_000 });
  const text = await put('--file', at('long.txt'), '--type', 'text');
  t.match(text, { type: 'text' });
  const piped = await desk.json(['put'], { input: BYTES });
  t.match(piped, { type: 'file', size: BYTES.length });
  const named = await desk.json(['put', '--file', '-', '--type', 'audio', '--set', 'label=hum'], { input: BYTES });
  t.match(named, { type: 'audio' });
  t.match(await desk.json(['put'], { input: 'y'.repeat(80_000) }), { type: 'text' });

  const id = String(data['id']);
  const listed = (await desk.json(['list']))['items'] as Json[];
  t.match(
    listed.find((item) => item['id'] === id),
    { title: 'mine.bin', blob: 'file' },
  );
  t.match((await desk.call(['list'])).out, /file +200\.0 kB +Desk +mine\.bin/);
  t.ok((await desk.call(['get', id])).bytes.equals(BYTES), 'a pipe gets the bytes');
  t.match(await desk.call(['get', id], { answers: [] }), { out: /mine\.bin/, notes: /--output/ });
  t.match(await desk.json(['get', id]), { payload: { name: 'mine.bin', size: BYTES.length }, blob: 'file' });
  t.ok((await desk.call(['get', String(named['id']), '-o', '-'])).bytes.equals(BYTES));
  const whole = (await desk.call(['get', String(text['id'])])).bytes.toString();
  t.equal(whole, 'x'.repeat(70_000), 'the whole text is written, not only its beginning');

  mkdirSync(at('out'));
  t.match(await desk.json(['get', id, '--output', at('out')]), { id, file: at('out/mine.bin'), size: BYTES.length });
  t.ok(readFileSync(at('out/mine.bin')).equals(BYTES));
  t.match(
    await desk.call(['--json', 'get', id, '-o', at('out')]),
    { code: EXIT.usage },
    '--force alone replaces a file',
  );
  t.equal((await desk.call(['get', id, '-o', at('out'), '--force'])).code, EXIT.ok);
  const link = await put('https://example.org/');
  t.match(await desk.call(['--json', 'get', String(link['id']), '-o', at('x')]), { error: { code: 'no_blob' } });
  t.match(await desk.call(['--json', 'get', String(text['id']), '--local']), { code: EXIT.unavailable });
  t.match(await desk.call(['--json', 'get', id, '-o', '-']), { code: EXIT.usage });
});

t.test('CBLOB-31: without the server a file is described, and its bytes are refused with what to do', async (t) => {
  const { desk } = await joinedDesk(t);
  const file = join(desk.home, 'data.bin');
  writeFileSync(file, BYTES);
  const id = String((await desk.json(['put', '--file', file]))['id']);
  t.match((await desk.call(['status'])).out, /connected\), 20\d\.\d kB/, 'sizes have the units that lists have');
  t.match(await desk.call(['--json', 'put', '--file', desk.home]), {
    error: { message: `${desk.home}: that is a folder` },
  });
  let asked = 0;
  desk.tap.blobs = () => {
    asked++;
    return Promise.reject(new TypeError('away'));
  };
  const refused = {
    code: EXIT.unavailable,
    bytes: { length: 0 },
    notes: /on the server, not here.*\n.*Omit --local/,
  };
  t.match(await desk.call(['get', id, '--local']), refused);
  t.match(await desk.call(['get', id, '--local', '-o', join(desk.home, 'copy')]), refused);
  t.match(await desk.json(['get', id, '--local']), { payload: { name: 'data.bin' } });
  t.match(await desk.call(['get', id, '--local', '--field', 'name']), { code: EXIT.ok, out: /data\.bin/ });
  t.match(await desk.call(['get', id, '--local'], { answers: [] }), { code: EXIT.ok, out: /data\.bin/ });
  t.equal(asked, 0);
});

t.test('CBLOB-20: content that does not verify leaves no file, and the exit code is 6', async (t) => {
  const { desk } = await joinedDesk(t);
  const { id } = await desk.json(['put', '--type', 'file', '--file', '-'], { input: BYTES });
  const truth = desk.tap.blobs;
  desk.tap.blobs = async (url, init) => {
    const bytes = Buffer.from(await (await truth(url, init)).arrayBuffer());
    bytes[150_000] = (bytes[150_000] ?? 0) ^ 1;
    return new Response(bytes);
  };
  const file = join(desk.home, 'copy.bin');
  t.match(await desk.call(['--json', 'get', String(id), '-o', file]), {
    code: EXIT.untrusted,
    error: { code: 'bad_ct' },
  });
  t.same([readdirSync(desk.home).includes('copy.bin'), parts(desk.home)], [false, []]);
  const piped = await desk.call(['get', String(id)]);
  t.equal(piped.code, EXIT.untrusted);
  t.ok(BYTES.subarray(0, piped.bytes.length).equals(piped.bytes), 'the pipe gets only what has authenticated');
  desk.tap.blobs = () => Promise.resolve(new Response('{}', { status: 404 }));
  t.match(await desk.call(['--json', 'get', String(id), '-o', file]), { error: { code: 'blob_not_found' } });
});

t.test('CBLOB-21: an archive carries the content of files and of large texts', async (t) => {
  const { desk, phrase, first } = await joinedDesk(t);
  const file = await desk.json(['put', '--type', 'file', '--file', '-', '--set', 'name=a.bin'], { input: BYTES });
  const empty = await desk.json(['put', '--type', 'file', '--file', '-', '--set', 'name=empty'], { input: '' });
  const text = await desk.json(['put'], { input: 'z'.repeat(90_000) });
  const archive = join(desk.home, 'vault.archive');
  const small = join(desk.home, 'small.archive');
  const words = { input: `${phrase}\n` };
  t.match(await desk.json(['export', archive, '--phrase-stdin'], words), { items: 3, blobs: 0, lacking: 0 });
  t.match(await desk.json(['export', small, '--no-files', '--phrase-stdin'], words), { items: 3, blobs: 2 });
  t.ok(readFileSync(archive).length > BYTES.length && readFileSync(small).length < BYTES.length);
  const again = await desk.json(['import', archive, '--phrase-stdin'], words);
  t.match(again, { written: 0, same: 3 }, 'all items are here already');

  const { desk: tap } = await joinedDesk(t);
  t.match(await tap.json(['import', archive, '--foreign', '--phrase-stdin'], words), { written: 3, blobs: 0 });
  t.ok((await tap.call(['get', String(file['id'])])).bytes.equals(BYTES));
  t.equal((await tap.call(['get', String(empty['id'])])).bytes.length, 0);
  t.equal((await tap.call(['get', String(text['id'])])).bytes.toString(), 'z'.repeat(90_000));
  t.match(await tap.json(['import', archive, '--foreign', '--phrase-stdin'], words), { written: 0, same: 3 });
  const plain = join(desk.home, 'plain.json');
  t.match(await desk.json(['export', plain, '--plain']), { items: 3, blobs: 2 });
  const document = JSON.parse(readFileSync(plain, 'utf8')) as { readonly items: Json[] };
  t.match(
    document.items.find(({ id }) => id === text['id']),
    { blob: false, payload: { text: 'z'.repeat(90_000) } },
  );

  desk.tap.blobs = () => Promise.resolve(new Response('', { status: 404 }));
  const lacking = await desk.call(['--json', 'export', join(desk.home, 'less'), '--phrase-stdin'], words);
  t.match(lacking, { code: EXIT.untrusted, data: [{ items: 3, lacking: 3 }] }, 'content that is missing is counted');
  desk.tap.blobs = () => Promise.reject(new TypeError('away'));
  const away = await desk.call(['--json', 'export', join(desk.home, 'none'), '--phrase-stdin'], words);
  t.match(away, { code: EXIT.unavailable });
  t.notOk(readdirSync(desk.home).includes('none'));
  t.same(first.problems, []);
});

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

t.test('CBLOB-22: data buffered on disk is encrypted, has no name, and is read as often as needed', async (t) => {
  // A folder of its own: other tests buffer data meanwhile, whose names are visible for a moment.
  const { TMPDIR } = process.env;
  process.env['TMPDIR'] = await temporaryFolder(t);
  t.teardown(() => {
    if (TMPDIR === undefined) delete process.env['TMPDIR'];
    else process.env['TMPDIR'] = TMPDIR;
  });
  async function* input(): AsyncGenerator<Uint8Array> {
    await Promise.resolve();
    for (let at = 0; at < BYTES.length; at += 999) yield BYTES.subarray(at, at + 999);
  }
  const spool = await Spool.of(nodeSodium, input());
  t.equal(spool.size, BYTES.length);
  for (let times = 0; times < 2; times++) t.ok((await buffer(spool.open())).equals(BYTES));
  t.same(readdirSync(tmpdir()), []);
  await spool.close();
  const broken = async function* (): AsyncGenerator<Uint8Array> {
    yield BYTES;
    await Promise.resolve();
    throw new Error('the pipe broke');
  };
  const erased: string[] = [];
  let key = '';
  const sodium: Sodium = {
    ...nodeSodium,
    random: (length) => {
      const bytes = nodeSodium.random(length);
      key ||= hex(bytes);
      return bytes;
    },
    memzero: (bytes) => {
      erased.push(hex(bytes));
      nodeSodium.memzero(bytes);
    },
  };
  await t.rejects(Spool.of(sodium, broken()), { message: 'the pipe broke' });
  t.equal(erased.filter((bytes) => bytes === key).length, 2, 'the key and the copy of the encryption are erased');
});

t.test('CBLOB-19: names and progress that another party chose do no harm', (t) => {
  const named = (name: unknown): string =>
    fileNameOf({ id: 'ID', type: 'file', payload: { name } } as unknown as ItemView);
  for (const [name, safe] of [
    ['../../etc/passwd', 'passwd'],
    ['C:\\Windows\\x.dll', 'x.dll'],
    ['.bashrc', 'bashrc'],
    ['..', 'ID'],
    ['', 'ID'],
    [7, '7'],
    ['a\u0000b\u202ec|d', 'a_b_c_d'],
    ['-rf', 'rf'],
  ] as const)
    t.equal(named(name), safe);
  t.ok(named('x'.repeat(500)).length <= 180);
  // In linear time: quadratic time would take an hour.
  t.equal(named(`a${'.'.repeat(1_000_000)}b. .`).length, 180);
  t.same([0, 999, 1_000, 999_960, 12_345_678].map(sizeText), ['0 bytes', '999 bytes', '1.0 kB', '1.0 MB', '12.3 MB']);
  const terminal = fakeTerminal();
  const clock = new TestClock();
  const bar = meter({ terminal, platform: { clock } }, 'Getting');
  bar.onProgress({ done: 5, total: 10 });
  bar.onProgress({ done: 6, total: 10 });
  clock.advance(2_000);
  bar.onProgress({ done: 20, total: 10 });
  clock.advance(2_000);
  bar.onProgress({ done: 20, total: null });
  bar.ended();
  t.same(terminal.steps, [
    'Getting [##########----------]  50 %  5 bytes of 10 bytes',
    'Getting [####################] 100 %  20 bytes of 10 bytes  10 bytes/s',
    'Getting 20 bytes  5 bytes/s',
    '',
  ]);
  t.end();
});

t.test("CBLOB-27: a file's own name is never a Windows device name, and fits with its extension", (t) => {
  const named = (name: string): string =>
    fileNameOf({ id: 'ID', type: 'file', payload: { name } } as unknown as ItemView);
  for (const device of ['NUL', 'con', 'aux.txt', 'COM1', 'lpt9.tar.gz', 'com\u00b9', 'CONIN$', 'prn .x'])
    t.equal(named(device), `_${device}`);
  for (const plain of ['console.log', 'nullable', 'com10', 'aux_', 'lpt']) t.equal(named(plain), plain);
  const long = named(`${'\u6f22'.repeat(200)}.jpeg`);
  t.ok(Buffer.byteLength(long) <= 180);
  t.match(long, /^\u6f22+\.jpeg$/);
  t.equal(named(`${'x'.repeat(178)} . of many words`), 'x'.repeat(178), 'a cut name ends without space and period');
  t.notMatch(named('\u{1f600}'.repeat(200)), /[\ud800-\udbff](?![\udc00-\udfff])/);
  t.end();
});
