/**
 * How the command line prints, what it accepts for which type, and what it reports for errors. No server, no device.
 */
import { open, type FileHandle } from 'node:fs/promises';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { folderOutput } from '../src/cli/foreign/folder-export.js';
import { documentOutput } from '../src/cli/export-document.js';
import { CommanderError } from 'commander';
import { encode } from 'uqr';
import { ApiError, ClientError, NetworkError, PairingError, ProtocolError, QueuedError } from '../src/sdk/errors.js';
import type { BinView, ItemView } from '../src/sdk/events.js';
import { ulid } from '../src/sdk/ulid.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { CryptoRefusal } from '../src/crypto/refusal.js';
import { describeFile, languageOf, mediaType, textFile, textOf } from '../src/import/detect.js';
import { detectText, PAYLOAD_MAX, titleOf, withoutSecrets } from '../src/sdk/payloads/shapes.js';
import { failureOf } from '../src/cli/failure.js';
import { findBin, findDevice, findItem, ShortIds } from '../src/cli/find.js';
import { addressOf } from '../src/device/newcomer.js';
import { readAccountCache, writeAccountCache } from '../src/cli/account-cache.js';
import { fitted, jsonLine, relative, sanitizeLines, sanitizeText, table, widthOf } from '../src/terminal/output.js';
import { qrLines } from '../src/cli/commands/pair.js';
import { offerText, readOfferText } from '../src/sdk/address.js';
import { assigned, shaped } from '../src/cli/put-content.js';
import { CommandError, EXIT, type Terminal } from '../src/terminal/terminal.js';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { newId } from './support/client.js';
import { temporaryFolder } from './support/postgres.js';

const KEYS = { sodium: nodeSodium, masterKey: nodeSodium.random(32) };
const ESC = '\u001b';
const HOSTILE = `a${ESC}[2J${ESC}]0;x\u0007b\u202ec\u200bd\u0085e\ud800f\u2028g`;

t.test('CLI-14: text from others cannot control the terminal', async (t) => {
  const shown = sanitizeText(HOSTILE);
  t.equal(shown, 'a<U+001B>[2J<U+001B>]0;x<U+0007>b<U+202E>c<U+200B>d<U+0085>e<U+D800>f g');
  t.equal(sanitizeText('two\r\nlines\tand a tab'), 'two lines and a tab', 'text for one line stays one line');
  t.equal(sanitizeLines(`one\r\ntwo\tx${ESC}[1m`), 'one\ntwo\tx<U+001B>[1m', 'line breaks stay where lines are shown');
  for (const honest of ['👩‍👩‍👧 é 日本', '🏴󠁧󠁢󠁷󠁬󠁳󠁿 ❤️', '葛\u{e0100}城'])
    t.equal(sanitizeText(honest), honest, 'honest text is not changed');
  t.equal(sanitizeText('a\u{e0101}b\u1160'), 'a<U+E0101>b<U+1160>', 'what hides is shown');
  const line = jsonLine({ text: HOSTILE });
  t.notMatch(line, /[\p{Cc}\u202e\u200b\u2028]/u, 'JSON has no control characters either');
  t.equal((JSON.parse(line) as { text: string }).text, HOSTILE, 'the JSON has the same value');
  const bins = ['b1', 'b2'].map((id) => ({ id, slug: HOSTILE, label: { name: 'x' } })) as never as readonly BinView[];
  t.throws(() => findBin(bins, 'x'), {
    code: 'ambiguous',
    hint: `Type more of it, or the id:\n  b1  ${shown}  x\n  b2  ${shown}  x`,
  });
  const hidden = jsonLine('a\u{e0041}b\u{e0101}\u3164');
  t.equal(hidden, '"a\\udb40\\udc41b\\udb40\\udd01\\u3164"', 'so are tags, variation selectors and fillers');
  t.equal(JSON.parse(hidden), 'a\u{e0041}b\u{e0101}\u3164');
});

const terminal = (screen: boolean): Terminal =>
  ({ onScreen: screen, interactive: screen, colours: false, width: 30, json: false }) as unknown as Terminal;

t.test(
  'CLI-13: tables are aligned by the display width of characters, and are cut to a screen, but not in a pipe',
  async (t) => {
    t.equal(widthOf('日本'), 4);
    t.equal(widthOf('🛒x'), 3);
    t.equal(widthOf('e\u0301'), 1);
    t.equal(fitted('abcdef', 4), 'abc…');
    const columns = [{ title: 'A' }, { title: 'LAST' }];
    const rows = [
      ['日本', 'short'],
      ['x', 'a text that is much longer than the line'],
    ];
    t.same(table(terminal(true), columns, rows), ['A     LAST', '日本  short', 'x     a text that is much lon…']);
    t.match(table(terminal(false), columns, rows)[2], /longer than the line$/);
    const many = Array.from({ length: 130_000 }, () => ['x', 'y']);
    t.equal(table(terminal(true), columns, many).length, 130_001, 'of any number of rows');
  },
);

t.test('CLI-13: on a narrow screen the least important columns are omitted first', async (t) => {
  const columns = [
    { title: '#' },
    { title: 'WHEN', spare: 1 },
    { title: 'FROM', spare: 2, most: 6 },
    { title: 'WHAT' },
  ];
  const rows = [['1', '3 min ago', 'A long name', 'milk and bread, and more of it']];
  const at = (width: number): string[] => table({ ...terminal(true), width }, columns, rows);
  t.same(at(60)[1], '1  3 min ago  A lon…  milk and bread, and more of it');
  t.same(at(40)[1], '1  3 min ago  milk and bread, and more …');
  t.same(at(25), ['#  WHAT', '1  milk and bread, and m…']);
  t.same(at(4)[1], '1  milk and br…', 'the last column keeps a minimum width');
  t.same(table(terminal(false), columns, rows)[1], '1  3 min ago  A long name  milk and bread, and more of it');
});

t.test('CLI-54: times are shown as people write them', async (t) => {
  const local = (...parts: [number, number, number, number?, number?]): number => {
    const [year, month, day, hour = 0, minute = 0] = parts;
    return new Date(year, month - 1, day, hour, minute).getTime();
  };
  const now = local(2026, 6, 15, 12, 30);
  const MINUTE = 60_000;
  for (const [then, said] of [
    [now + 5_000, 'just now'],
    [now - 5_000, 'just now'],
    [now - 5 * MINUTE, '5 min ago'],
    [now - 59 * MINUTE, '59 min ago'],
    [now - 3 * 60 * MINUTE, '3 h ago'],
    [local(2026, 6, 15, 0, 1), '12 h ago'],
    [local(2026, 6, 14, 23, 59), 'yesterday 23:59'],
    [local(2026, 6, 14, 0, 5), 'yesterday 00:05'],
    [local(2026, 6, 13, 14, 2), 'Sat 14:02'],
    [local(2026, 6, 9, 9, 0), 'Tue 09:00'],
    [local(2026, 6, 8, 9, 0), '8 Jun'],
    [local(2026, 3, 12), '12 Mar'],
    [local(2025, 3, 12), '12 Mar 2025'],
    [local(2026, 6, 15, 18), '15 Jun'],
    [local(2031, 1, 2), '2 Jan 2031'],
  ] as const)
    t.equal(relative(then, now), said);
  t.equal(
    relative(local(2026, 1, 1, 0, 0) - MINUTE, local(2026, 1, 1, 2)),
    'yesterday 23:59',
    'yesterday may be in the previous year',
  );
  for (const wild of [Number.MAX_SAFE_INTEGER, -Number.MAX_SAFE_INTEGER, 8_640_000_000_000_001])
    t.equal(relative(wild, now), 'far future', 'an impossible time is in the far future');
});

t.test('CLI-06: the type is detected from the content', async (t) => {
  t.match(detectText('https://example.org/a?b'), {
    type: 'link',
    payload: { url: 'https://example.org/a?b', site: 'example.org' },
  });
  t.match(detectText('see https://example.org'), { type: 'text' });
  t.match(detectText('ftp://example.org'), { type: 'text' });
  t.match(textFile('main.ts', 'let a'), {
    type: 'code',
    payload: { lang: 'typescript', label: 'main.ts', text: 'let a' },
  });
  t.same(textFile('notes.md', '# x'), { type: 'code', payload: { lang: 'markdown', label: 'notes.md', text: '# x' } });
  t.same(textFile('without', 'x'), { type: 'code', payload: { lang: '', label: 'without', text: 'x' } });
  t.equal(languageOf('Dockerfile'), 'dockerfile');
  t.equal(languageOf('constructor'), undefined, 'an inherited property is no language');
  t.strictSame(['a.jpg', 'a.mp3', 'a.mp4', 'a.pdf', 'main.ts'].map(mediaType), [
    ...['image', 'audio', 'video'],
    ...[undefined, undefined],
  ]);
  t.equal(textOf(Buffer.from([0xff, 0xfe])), undefined);
  t.equal(textOf(Buffer.from('a\0b')), undefined);
  t.same(describeFile('file', 'a.pdf', 7), { name: 'a.pdf', size: 7, mime: 'application/pdf' });
  t.same(describeFile('image', 'a.jpg', 7), { label: 'a.jpg', mime: 'image/jpeg' });
});

t.test('CLI-07: a payload that does not have the shape of its type is refused', async (t) => {
  t.same(shaped('contact', { name: 'Ada' }), { name: 'Ada', role: '', email: '', phone: '' });
  t.same(shaped('location', assigned('location', ['lat=46.2', 'lng=7.36'])), {
    name: '',
    addr: '',
    lat: 46.2,
    lng: 7.36,
  });
  const refused: (() => unknown)[] = [
    () => shaped('contact', {}),
    () => shaped('contact', { name: 'Ada', secret: 'x' }),
    () => shaped('text', { text: 7 }),
    () => shaped('text', { text: 'x', constructor: 'y' }),
    () => shaped('link', { url: 'not an address' }),
    () => shaped('location', {}),
    () => shaped('location', { lat: 91, lng: 0 }),
    () => shaped('location', { lat: 1 }),
    () => assigned('location', ['lat=north']),
    () => assigned('text', ['nothing']),
  ];
  for (const wrong of refused) t.throws(wrong, { code: 'bad_payload', exitCode: EXIT.usage });
  for (const type of ['image', 'file', 'audio', 'video'] as const)
    t.throws(() => shaped(type, {}), { code: 'needs_file' });
  const room = PAYLOAD_MAX - JSON.stringify({ text: '' }).length;
  t.ok(shaped('text', { text: 'x'.repeat(room) }));
  t.throws(() => shaped('text', { text: 'x'.repeat(room + 1) }), { code: 'no_text' }, 'over 16 MiB by one byte');
  for (const type of CONTENT_TYPES)
    t.type(titleOf(type, { text: 7 }), 'string', `${type} has a title whatever the payload`);
});

t.test('CLI-11: a secret is in no title and no listing', async (t) => {
  const payload = { service: 'mail', user: 'me', secret: 'hunter2' };
  t.equal(titleOf('password', payload), 'mail (me)');
  t.same(withoutSecrets('password', payload), { service: 'mail', user: 'me' });
  t.equal(titleOf('password', { secret: 'hunter2' }), '(no name)');
  const foreign = { ...payload, password: 'hunter2', totp: { seed: 'JBSWY3DP' }, constructor: 'hunter2' };
  t.same(withoutSecrets('password', foreign), { service: 'mail', user: 'me' }, 'nor is a field that we do not know');
  t.same(withoutSecrets('link', { url: 'https://x.example', more: 1 }), { url: 'https://x.example', more: 1 });
});

t.test('CLI-09: what is typed finds the item, bin or device that is meant, or lists the matches', async (t) => {
  const item = (id: string) => ({ id, type: 'text' as const, payload: { text: `text of ${id}` } }) as never;
  const items = [item('01AAAAAAAAB'), item('01AAAAAAAAC')];
  t.match(findItem(items, '01aaaaaaaab'), { id: '01AAAAAAAAB' });
  t.throws(() => findItem(items, '01A'), { code: 'ambiguous', exitCode: EXIT.usage, hint: /text of 01AAAAAAAAC/ });
  t.throws(() => findItem(items, ''), { code: 'not_found' });
  const bin = (id: string, name: string) => ({ id, slug: `s-${id}`, label: { name } }) as never;
  const bins = [bin('b1', 'Café'), bin('b2', 'Other'), bin('b3', 'other'), bin('b4', '  Łódź  Größe')];
  for (const typed of ['b1', 's-b1', 'cafe', 'CAFÉ']) t.match(findBin(bins, typed), { id: 'b1' }, typed);
  t.throws(() => findBin(bins, 'OTHER'), { code: 'ambiguous' });
  t.throws(() => findBin(bins, 'none'), { code: 'not_found' });
  t.match(findBin(bins, 'lodz grosse'), { id: 'b4' });
  const swapped = [
    { id: 'b1', slug: 'trash', label: { name: 'Work' } },
    { id: 'b2', slug: 'work', label: { name: 'Trash' } },
  ] as never;
  t.throws(() => findBin(swapped, 'trash'), { code: 'ambiguous' }, 'a slug does not take the place of a name');
  const device = (id: string, name: string) => ({ id, name }) as never;
  const devices = [device('01DEVICEAA', 'Téléphone'), device('01DEVICEAB', 'Desk'), device('01DEVICEB', 'desk')];
  for (const typed of ['01DEVICEAA', '01deviceaa', 'telephone', ' TÉLÉPHONE '])
    t.match(findDevice(devices, typed), { id: '01DEVICEAA' }, typed);
  for (const typed of ['01DEVICEA', 'DESK'])
    t.throws(() => findDevice(devices, typed), { code: 'ambiguous', hint: /01DEVICEAB {2}Desk/ }, typed);
  for (const typed of ['', 'none', 'EVICEB']) t.throws(() => findDevice(devices, typed), { code: 'not_found' }, typed);
});

t.test('CLI-50: short ids stay short after 2,000 quick writes, and each finds its own item', async (t) => {
  const at = Date.UTC(2026, 5, 15);
  const ids = Array.from({ length: 2_000 }, (_, one) => ulid(at + (one >> 4), (length) => nodeSodium.random(length)));
  const items = ids.map((id) => ({ id, type: 'text', payload: { text: id } })) as never as readonly ItemView[];
  const short = new ShortIds(ids);
  const shown = ids.map((id) => short.of(id));
  t.equal(new Set(shown).size, ids.length);
  t.ok(shown.filter((form) => form.length === 5).length > 1_900, 'nearly all have five characters');
  t.ok(Math.max(...shown.map((form) => form.length)) <= 8);
  for (const at of [0, 1, 777, 1_999])
    for (const typed of [shown[at] ?? '', (shown[at] ?? '').toLowerCase(), ids[at] ?? '', ids[at]?.slice(0, 20) ?? ''])
      t.equal(findItem(items, typed).id, ids[at]);
});

t.test('CLI-50: ids that others chose lengthen only their own short ids', async (t) => {
  const own = '01JAAAAAAAAAAAAAAAAAAWXYZ7';
  const chosen = ['01JAAAAAAAAAAAAAAAAAA00001', '01JBBAAAAAAAAAAAAAAAA00001', '01JCCAAAAAAAAAAAAAAAA00001'];
  const begun = 'WXYZ7AAAAAAAAAAAAAAAAAAAAA';
  const short = new ShortIds([own, ...chosen]);
  t.equal(short.of(own), 'WXYZ7');
  for (const id of chosen) t.equal(short.of(id).length, 22);
  short.add(begun);
  const items = [own, begun, ...chosen].map((id) => ({ id })) as never as readonly ItemView[];
  t.not(short.of(own), 'WXYZ7', 'a short id gets longer when another id begins with it');
  for (const { id } of items) t.equal(findItem(items, short.of(id)).id, id);
});

t.test('CLI-50: a hundred thousand ids that others chose with one ending take no time', (t) => {
  const own = '01JAAAAAAAAAAAAAAAAAAWXYZ7';
  const ids = Array.from({ length: 100_000 }, (_, n) => `${String(n).padStart(16, '0')}AAAAAWXYZ7`);
  const short = new ShortIds(ids);
  short.add(own);
  for (const id of [own, ...ids]) if (!id.endsWith(short.of(id))) throw new Error(id);
  t.equal(short.of(own), 'AAAAAAWXYZ7', 'its form is as long as theirs need it to be');
  t.equal(short.of(ids[7] ?? ''), ids[7]?.slice(-15));
  t.equal(short.of('01JBBBBBBBBBBBBBBBBBBWXYZ7'), 'BWXYZ7', 'one that was not added');
  t.end();
});

t.test('CLI-49: a number means the item that the last list showed under it, or nothing', async (t) => {
  const [one = '', two = '', three = ''] = ['A', 'B', 'C'].map((end) => `01JAAAAAAAAAAAAAAAAAAAAAA${end}`);
  const items = [three, one].map((id) => ({ id, type: 'text', payload: {} })) as never as readonly ItemView[];
  const listed = { at: 0, ids: [one, two] };
  t.equal(findItem(items, ' 1 ', listed).id, one, 'the number does not mean the item that is first now');
  t.throws(() => findItem(items, '2', listed), {
    code: 'not_found',
    message: /number 2 of the last list is not there/,
  });
  t.throws(() => findItem(items, '3', listed), { code: 'not_found' });
  for (const none of ['-1', '1.0', '1e0', '٣', '00001'])
    t.throws(() => findItem(items, none, listed), { code: 'not_found' });
  t.throws(() => findItem(items, '1'), { code: 'not_found' }, 'without a list a number means nothing');
});

t.test('CLI-03: an address is accepted as people type it', async (t) => {
  t.equal(addressOf('sync.example.org/'), 'https://sync.example.org');
  t.equal(addressOf('localhost:8080'), 'http://localhost:8080');
  t.equal(addressOf('[::1]:8080'), 'http://[::1]:8080');
  t.equal(addressOf('http://a.example/path/?x#y'), 'http://a.example/path');
  for (const wrong of ['ftp://x', 'http://', 'a b']) t.throws(() => addressOf(wrong), { code: 'usage' });
  for (const wrong of ['localhost:x@evil.example', 'localhost@evil.example', 'https://good.example:443@evil.example/'])
    t.throws(() => addressOf(wrong), { code: 'usage', hint: /without a user name/ }, 'it would lead to another host');
});

t.test('CLI-04: address and words are one text, which a QR code holds', async (t) => {
  const words = 'one two three four five six';
  const text = offerText('https://sync.example.org', words);
  t.equal(text, 'https://sync.example.org/#pair=one-two-three-four-five-six');
  t.same(readOfferText(text), { url: 'https://sync.example.org/', words: 'one-two-three-four-five-six' });
  t.equal(readOfferText('https://sync.example.org'), undefined);
  t.equal(new URL(text).pathname + new URL(text).search, '/', 'the words are in the fragment, which no program sends');
  const plain = qrLines(text, false);
  const inked = qrLines(text, true);
  t.ok(plain.every((line) => line.length === plain[0]?.length && /^[ █▀▄]+$/.test(line)));
  t.match(inked[0], /^\u001b\[30;107m.*\u001b\[0m$/, 'the code is dark on light whatever colours the terminal has');
  const { data, size } = encode(text, { border: 2 });
  /** Where the lines draw a block: two rows of the code in each. */
  const blocks = (lines: readonly string[]): boolean[][] =>
    lines
      .map((line) => line.replaceAll(/\u001b\[[\d;]+m/g, ''))
      .flatMap((line) => ['█▀', '█▄'].map((half) => Array.from(line, (one) => half.includes(one))))
      .slice(0, size);
  t.same(blocks(inked), data, 'blocks are dark');
  t.same(
    blocks(plain),
    data.map((row) => row.map((dark) => !dark)),
    'blocks are light',
  );
});

t.test('CLI-15: every failure has its exit code, and none shows a stack', async (t) => {
  const api = (code: string, status: number) => new ApiError({ code, status, message: `about ${code}`, retryAfter: 7 });
  const cases: readonly (readonly [Error, number, string])[] = [
    [new CommandError(EXIT.notFound, 'x'), EXIT.notFound, 'not_found'],
    [new CommanderError(1, 'commander.unknownOption', 'error: unknown option'), EXIT.usage, 'usage'],
    [api('device_revoked', 403), EXIT.refused, 'device_revoked'],
    [api('bin_not_found', 404), EXIT.notFound, 'bin_not_found'],
    [api('item_not_found', 404), EXIT.notFound, 'item_not_found'],
    [api('conflict', 409), EXIT.refused, 'conflict'],
    // Names that every object inherits are neither known codes nor a success.
    [api('constructor', 400), EXIT.failure, 'constructor'],
    [api('toString', 409), EXIT.refused, 'refused'],
    [api('__proto__', 403), EXIT.refused, '__proto__'],
    [api('forbidden', 403), EXIT.refused, 'forbidden'],
    [api('expired_token', 401), EXIT.refused, 'expired_token'],
    [api('rate_limited', 429), EXIT.unavailable, 'rate_limited'],
    [api('internal', 500), EXIT.unavailable, 'internal'],
    [api('http_502', 502), EXIT.unavailable, 'http_502'],
    [api('last_device', 409), EXIT.refused, 'last_device'],
    [new NetworkError('network', 'GET /x got no answer'), EXIT.unavailable, 'network'],
    [new NetworkError('aborted', 'x'), EXIT.interrupted, 'interrupted'],
    [new ProtocolError('not JSON'), EXIT.failure, 'bad_answer'],
    [new ClientError('revoked', 'x'), EXIT.refused, 'revoked'],
    [new ClientError('fingerprint', 'x'), EXIT.untrusted, 'fingerprint'],
    [new PairingError('unknown_code'), EXIT.notFound, 'pairing_unknown_code'],
    [new PairingError('bad_request'), EXIT.untrusted, 'pairing_bad_request'],
    [new CryptoRefusal('bad_words', 'x'), EXIT.usage, 'bad_words'],
    [new CryptoRefusal('bad_challenge', 'x'), EXIT.untrusted, 'bad_challenge'],
    [Object.assign(new Error('x'), { code: 'ENOSPC', path: '/a' }), EXIT.failure, 'enospc'],
    // As Node gives it.
    [Object.assign(new Error('x'), { code: 'Unknown system error -122', path: '/a' }), EXIT.failure, 'edquot'],
    [Object.assign(new Error('x'), { code: 'EFBIG', path: '/a' }), EXIT.failure, 'efbig'],
    [new TypeError('boom'), EXIT.failure, 'failure'],
  ];
  for (const [error, exitCode, code] of cases) {
    const failure = failureOf(error);
    t.match(failure, { exitCode, code }, code);
    t.notMatch(failure.message, /\n|at .*:\d+/, `${code}: the message is one line`);
  }
  const elsewhere = new PairingError('bad_request', { cause: new CryptoRefusal('wrong_host', 'x') });
  t.match(failureOf(elsewhere), {
    ...{ exitCode: EXIT.untrusted, code: 'pairing_bad_request', message: /another server address/ },
    hint: /address that `pair` shows.*somebody may be in between: never type the twelve words there/,
  });
  t.match(failureOf(api('rate_limited', 429)).hint, /7 s/, 'the hint says how long to wait');
  const refused = new NetworkError('network', 'x', { cause: Object.assign(new Error(), { code: 'ECONNREFUSED' }) });
  t.match(failureOf(refused).message, /nothing listens/);
  const away = new NetworkError('network', 'x', { cause: refused.cause, store: 'files.example:9000' });
  t.match(failureOf(away), {
    message: 'files.example:9000, which the server names for files, cannot be reached (nothing listens at its address)',
    hint: /PUBLIC_URL/,
  });
  const hostile = new ApiError({ code: `evil${ESC}[2J`, status: 418, message: HOSTILE });
  for (const error of [hostile, new QueuedError('x', hostile), new ClientError('closed', HOSTILE)])
    t.notMatch(JSON.stringify(Object.values(failureOf(error))), /\\u001b|\u202e/, "a server's text is harmless too");
});

t.test('CLI-15: a list from the server that is too large to be read again is not stored', async (t) => {
  const folder = await temporaryFolder(t);
  const bin = { id: 'inbox', slug: 'inbox', createdAt: 1, updatedAt: 1, itemCount: null, label: null, readable: true };
  await writeAccountCache(folder, { devices: [], bins: [bin] }, KEYS);
  await writeAccountCache(folder, { devices: [], bins: [bin, { ...bin, slug: 's'.repeat(9_000_000) }] }, KEYS);
  t.equal((await readAccountCache(folder)).bins?.length, 1, 'the previous list stays');
});

t.test('CLI-15: a list of devices that is too long does not hide a revocation', async (t) => {
  const folder = await temporaryFolder(t);
  const device = (name: string, revokedAt: number | null) => ({
    ...{ id: newId(), name, glyph: 'laptop', pubkey: new Uint8Array(32), cert: new Uint8Array(32), pairedAt: 1 },
    ...{ lastSeenAt: null, online: false, current: false, revokedAt },
  });
  const other = { ...device('Other', null), wasCertified: true };
  await writeAccountCache(folder, { devices: [other], bins: [] }, KEYS);
  const invented = Array.from({ length: 9_998 }, () => device('\u0001'.repeat(256), 3));
  await writeAccountCache(folder, { devices: [...invented, { ...other, revokedAt: 7 }], bins: undefined }, KEYS);
  t.match((await readAccountCache(folder)).devices, [{ id: other.id, name: 'Other', revokedAt: 7 }]);
  const certified = invented.map((one) => ({ ...one, glyph: one.name, wasCertified: true }));
  await writeAccountCache(folder, { devices: [...certified, { ...other, revokedAt: 9 }], bins: undefined }, KEYS);
  t.match(
    (await readAccountCache(folder)).devices?.at(-1),
    { id: other.id, revokedAt: 9 },
    'however many were certified',
  );
  const bin = {
    id: 'inbox',
    slug: 's'.repeat(9_000_000),
    createdAt: 1,
    updatedAt: 1,
    itemCount: null,
    label: null,
    readable: true,
  };
  await writeAccountCache(folder, { devices: [{ ...other, revokedAt: 11 }], bins: [bin] }, KEYS);
  t.match(await readAccountCache(folder), { devices: [{ revokedAt: 11 }], bins: [] }, 'whatever the bins are');
});

t.test('CLI-20: a list that was never read is not stored as empty', async (t) => {
  const folder = await temporaryFolder(t);
  const bin = { id: 'inbox', slug: 'inbox', createdAt: 1, updatedAt: 1, itemCount: null, label: null, readable: true };
  await writeAccountCache(folder, { devices: undefined, bins: [bin] }, KEYS);
  t.match(await readAccountCache(folder), { devices: undefined, bins: [{ id: 'inbox' }] });
  await writeAccountCache(folder, { devices: [], bins: undefined }, KEYS);
  t.match(await readAccountCache(folder), { devices: [], bins: [{ id: 'inbox' }] });
});

t.test('CLI-20 CLI-52: names of bins are known without the server, and not on disk in the clear', async (t) => {
  const folder = await temporaryFolder(t);
  const label = { name: 'Großeinkauf', emoji: '🛒' };
  const bin = { id: 'b1', slug: 'b1', createdAt: 1, updatedAt: 1, itemCount: null, label, readable: true };
  await writeAccountCache(folder, { devices: [], bins: [bin] }, KEYS);
  // Only the devices are written: the names of the bins stay.
  await writeAccountCache(folder, { devices: [], bins: undefined }, KEYS);
  t.match((await readAccountCache(folder, KEYS)).bins, [{ id: 'b1', label }]);
  const other = { ...KEYS, masterKey: nodeSodium.random(32) };
  t.match((await readAccountCache(folder, other)).bins, [{ id: 'b1', label: null, readable: false }]);
  t.notMatch(readFileSync(join(folder, 'known.json'), 'utf8'), /einkauf|🛒/);
  const { bins } = JSON.parse(readFileSync(join(folder, 'known.json'), 'utf8')) as { bins: Record<string, unknown>[] };
  const before = bins.map((one) => ({ ...one, meta: undefined }));
  writeFileSync(join(folder, 'known.json'), JSON.stringify({ devices: [], bins: before }));
  t.match(
    (await readAccountCache(folder, KEYS)).bins,
    [{ id: 'b1', label: null, readable: true }],
    'a file of an earlier version is read',
  );
  await writeAccountCache(folder, { devices: [], bins: [{ ...bin, label: null, readable: false }] }, KEYS);
  t.match(
    (await readAccountCache(folder, KEYS)).bins,
    [{ label: null, readable: false }],
    'a label that does not verify stays unreadable without the server',
  );
  await writeAccountCache(folder, { devices: [], bins: [{ ...bin, slug: '' }] }, KEYS);
  t.match(
    await readAccountCache(folder, KEYS),
    { devices: [], bins: [{ id: 'b1', label }] },
    'an empty slug hides nothing else',
  );
});

t.test('ARCHIVE-14: an export to standard output is read no faster than its reader takes it', async (t) => {
  let taken = (): void => undefined;
  const write = (): Promise<void> => new Promise((resolve) => (taken = resolve));
  const terminal = { write, print: () => undefined } as unknown as Parameters<typeof documentOutput>[0];
  const form = { head: { format: 'test' }, bins: 'bins', entry: () => ({ text: 'x'.repeat(100_000) }) };
  const output = await documentOutput(terminal, { file: '-' }, form);
  let added = false;
  const record = { record: 'bin', id: 'inbox', slug: 'inbox', label: null } as const;
  const adding = output.add(record).then(() => (added = true));
  await new Promise(setImmediate);
  t.equal(added, false);
  taken();
  await adding;
});

t.test('ARCHIVE-14: a folder that is exported is durable: every file and folder in it', async (t) => {
  const folder = await temporaryFolder(t);
  const handle = await open(folder);
  const prototype = Object.getPrototypeOf(handle) as FileHandle;
  await handle.close();
  let synced = 0;
  const { sync } = prototype;
  prototype.sync = function (this: FileHandle) {
    synced++;
    return sync.call(this);
  };
  t.teardown(() => (prototype.sync = sync));
  const output = await folderOutput(join(folder, 'out'), {} as Parameters<typeof folderOutput>[1]);
  await output.add({ record: 'bin', id: 'inbox', slug: 'inbox', label: null });
  const item = { record: 'item', id: 'A', bin: 'inbox', type: 'text', ts: 1, payload: { text: 'x' } } as const;
  await output.add({ ...item, blob: false, content: null });
  await output.finish();
  t.ok(synced >= 4, 'the file, its folder, the root and its parent');
});
