/**
 * What the web app's pages compute (src/web/ui): the long list and its items, the item that a typed text becomes, words as
 * people type them, the picture of the digits, what a browser must have.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { encode } from 'uqr';
import t, { type Test } from 'tap';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { PROJECT_ROOT } from '../src/root.js';
import { PayloadError, shapedPayload } from '../src/sdk/payloads/shapes.js';
import { deviceIcon } from '../src/web/ui/devices.js';
import { draftOf, payloadOf } from '../src/web/ui/fields.js';
import { hashOf, readPlace } from '../src/web/ui/route.js';
import * as text from '../src/web/ui/strings.js';
import { PAGE_ROWS, pageOffset, shiftOf, visibleRows } from '../src/web/ui/list.js';
import { convert, detect, strength, textOf, type TextKind } from '../src/web/ui/detect.js';
import { signedLanguage } from '../src/web/ui/detect-code.js';
import { encodeWords } from '../src/crypto/words.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { offerText } from '../src/sdk/address.js';
import { takeFragment } from '../src/web/ui/begin.js';
import { browserOf, type BrowserSelf } from '../src/web/ui/browser-name.js';
import { pictureOf, THINGS } from '../src/web/ui/compare.js';
import { qrPath } from '../src/web/ui/qr-code.js';
import { saveStream } from '../src/web/ui/settings-archive.js';
import { placesToAsk, readFragment, readJoin, wordsIn } from '../src/web/ui/typed.js';
import { wayToHttps, whatIsMissing, type Surroundings } from '../src/web/ui/unable.js';

const ROW = 68;
const HEIGHT = 700;
const TOTAL = 20_000;

t.test('WEB-28: of a long list few rows are in the page, and one request covers all of them', (t) => {
  for (let top = 0; top <= TOTAL * ROW; top += 997) {
    const range = visibleRows({ top, height: HEIGHT, row: ROW, total: TOTAL });
    const offset = pageOffset(range);
    const seen = [Math.floor(top / ROW), Math.min(TOTAL, Math.ceil((top + HEIGHT) / ROW))] as const;
    if (range.end - range.first > 30 || range.first > seen[0] || range.end < seen[1])
      t.fail(`at ${top}: rows ${range.first} to ${range.end}, seen ${seen.join(' to ')}`);
    if (range.first < offset || range.end > offset + PAGE_ROWS)
      t.fail(`at ${top}: rows ${range.first} to ${range.end} of a page from ${offset}`);
  }
  t.same(
    visibleRows({ top: 5_000, height: HEIGHT, row: ROW, total: 0 }),
    { first: 0, end: 0 },
    'the list became empty',
  );
  t.same(
    visibleRows({ top: 9_000, height: HEIGHT, row: ROW, total: 3 }),
    { first: 0, end: 3 },
    'the list became short',
  );
  const near = visibleRows({ top: 50_000, height: HEIGHT, row: ROW, total: TOTAL });
  const next = visibleRows({ top: 50_000 + ROW, height: HEIGHT, row: ROW, total: TOTAL });
  t.equal(pageOffset(near), pageOffset(next), 'a small scroll requests the same rows');
  t.end();
});

t.test('WEB-28: what the user looks at stays in place when rows above it are added or removed', (t) => {
  const page = (offset: number, ...ids: string[]) => ({ offset, items: ids.map((id) => ({ id })) });
  const view = { top: 3 * ROW, row: ROW };
  const anchor = { id: 'd', at: 3 };
  t.equal(shiftOf(anchor, page(0, 'a', 'b', 'c', 'd'), view), 0);
  t.equal(shiftOf(anchor, page(0, 'x', 'y', 'a', 'b', 'c', 'd'), view), 2 * ROW, 'two rows were added');
  t.equal(shiftOf(anchor, page(0, 'a', 'd'), view), -2 * ROW, 'two rows were removed');
  t.equal(shiftOf(anchor, page(2, 'c', 'd', 'e'), view), 0, 'another part of the same list');
  t.equal(shiftOf(anchor, page(0, 'a', 'b', 'c', 'e'), view), 0, 'the row itself was removed');
  t.equal(shiftOf({ id: 'a', at: 0 }, page(0, 'x', 'a'), { top: 0, row: ROW }), 0, 'at the top new rows are shown');
  t.equal(shiftOf(null, page(0, 'x'), view), 0);
  t.end();
});

t.test('WEB-29: a name cannot change its text direction to disguise its ending', (t) => {
  t.equal(text.safeText('photo\u202egnp.exe'), 'photo\ufffdgnp.exe');
  t.equal(text.safeText('\u2066a\u2069\u0000\u001b[2J'), '\ufffda\ufffd\ufffd\ufffd[2J');
  for (const plain of ['שלום עולם', 'two\nlines\r\n\tand a tab', '👩‍👩‍👧', 'a\u200fb'])
    t.equal(text.safeText(plain), plain);
  t.end();
});

t.test('WEB-72: an error code or icon that a server names is looked up only among our own', (t) => {
  const { problem } = text;
  t.equal(problem({ name: 'ApiError', code: 'conflict', message: '' }), 'Another device changed it meanwhile.');
  for (const code of ['constructor', 'toString', '__proto__']) {
    t.equal(problem({ name: 'ApiError', code, message: 'as the server says' }), 'as the server says');
    t.equal(deviceIcon(code), deviceIcon('globe'));
  }
  t.end();
});

t.test('WEB-29: no screen turns text into markup', (t) => {
  const folder = join(PROJECT_ROOT, 'src/web/ui');
  const markup = /innerHTML|outerHTML|insertAdjacentHTML|srcdoc|createContextualFragment|document\.write/i;
  t.same(
    readdirSync(folder).filter((name) => markup.test(readFileSync(join(folder, name), 'utf8'))),
    [],
  );
  t.end();
});

t.test('WEB-29: editing changes the fields that are edited and keeps all others', (t) => {
  const before = { service: 'a', user: 'b', secret: 'c', later: { x: 1 } };
  const { payload, errors } = payloadOf('password', { ...draftOf('password', before), user: 'd' }, before);
  t.same(payload, { ...before, user: 'd' });
  t.same(errors, {});
  const place = { name: 'x', addr: '', lat: 1.5, lng: -2 };
  t.same(payloadOf('location', { name: 'x', addr: 'y', lat: '', lng: '' }, place).payload, { name: 'x', addr: 'y' });
  t.same(payloadOf('location', { ...draftOf('location', place), lat: '52,5' }, place).payload, { ...place, lat: 52.5 });
  t.equal(payloadOf('link', { url: 'example.com/a' }).payload['url'], 'https://example.com/a');
  t.end();
});

t.test('WEB-29: the device accepts what the fields accept; what it would refuse is reported at the field', (t) => {
  const values = [
    '',
    'x',
    'https://example.com/',
    'not an address at all',
    '12',
    '91',
    '-200',
    'NaN',
    'Infinity',
    '1e3',
  ];
  for (const type of CONTENT_TYPES)
    for (const value of values)
      for (const other of values) {
        const empty = draftOf(type, {});
        const draft = Object.fromEntries(Object.keys(empty).map((name, at) => [name, at % 2 === 0 ? value : other]));
        const { payload, errors } = payloadOf(type, draft);
        if (Object.keys(errors).length > 0) continue;
        try {
          shapedPayload(type, payload);
        } catch (error) {
          if (!(error instanceof PayloadError)) throw error;
          t.fail(`${type} ${JSON.stringify(draft)}: ${error.message}`);
        }
      }
  t.same(Object.keys(payloadOf('location', { lat: '91', lng: 'x' }).errors).sort(), ['lat', 'lng']);
  t.same(Object.keys(payloadOf('password', { secret: ' ' }).errors), ['secret']);
  t.end();
});

t.test('WEB-29: an address made for a place leads back to that place, whatever its ids contain', (t) => {
  for (const binId of [null, 'inbox', 'a/b', '%', '#?&', 'ü'])
    for (const itemId of [null, '01ABC', 'x/item/y', '%2F'])
      t.same(readPlace(hashOf({ binId, itemId })), { page: null, binId, itemId }, `${binId} ${itemId}`);
  t.same(readPlace(hashOf({ page: 'trust' })), { page: 'trust', binId: null, itemId: null });
  for (const odd of ['', '#', '#/', '#/bin/%E0%A4%A', '#pair=a-b', '#/nowhere', '#/item'])
    t.same(readPlace(odd), { page: null, binId: null, itemId: null }, odd);
  t.end();
});

/** `expected`: fields that the payload must have. */
type Case = readonly [text: string, type: TextKind, expected?: Readonly<Record<string, unknown>>];

const LINKS: readonly Case[] = [
  ['https://example.com/a?b=c#d', 'link', { url: 'https://example.com/a?b=c#d', site: 'example.com' }],
  ['  http://10.0.0.1:8080/x  ', 'link', { url: 'http://10.0.0.1:8080/x' }],
  ['www.example.com', 'link', { url: 'https://www.example.com/', site: 'example.com' }],
  ['example.com/some/page', 'link', { url: 'https://example.com/some/page' }],
  [
    'A good article\nhttps://example.com/article',
    'link',
    { title: 'A good article', url: 'https://example.com/article' },
  ],
  ['see https://example.com for more', 'text'],
  ['readme.md', 'text'],
  ['javascript:alert(1)', 'text'],
];

const SECRETS: readonly Case[] = [
  ['anna@example.com / Tr0ub4dor&3', 'password', { user: 'anna@example.com', secret: 'Tr0ub4dor&3' }],
  ['anna@example.com\nhunter2hunter', 'password', { user: 'anna@example.com', secret: 'hunter2hunter' }],
  ['admin:kX9mQ2vL8pRt', 'password', { user: 'admin', secret: 'kX9mQ2vL8pRt' }],
  ['user: anna\npassword: two words', 'password', { user: 'anna', secret: 'two words' }],
  ['username: anna password: s3cret', 'password', { user: 'anna', secret: 's3cret' }],
  [
    'Example shop\nLogin: anna\nPasswort: geheim',
    'password',
    { service: 'Example shop', user: 'anna', secret: 'geheim' },
  ],
  ['site: example.com\nuser: anna\npw: x', 'password', { service: 'example.com', user: 'anna', secret: 'x' }],
  ['For: Bank\nUser: anna\nPassword: x', 'password', { service: 'Bank', user: 'anna', secret: 'x' }],
  ['Tr0ub4dor&3', 'password', { secret: 'Tr0ub4dor&3' }],
  ['kX9mQ2vL8pRt', 'password', { secret: 'kX9mQ2vL8pRt' }],
  ['ghp_abcdefghijklmnopqrstuvwxyz0123456789', 'password'],
  ['-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----', 'password'],
  [
    'otpauth://totp/Example:anna%40example.com?secret=JBSWY3DPEHPK3PXP&issuer=Example',
    'password',
    { service: 'Example', user: 'anna@example.com' },
  ],
  ['getUserById2', 'text'],
  ['2f1e4c8a-9d3b-4c55-8a56-0f3a9f6b7c11', 'text'],
  ['d41d8cd98f00b204e9800998ecf8427e', 'text'],
  ['src/web/ui/Detect2.tsx', 'text'],
  ['either / or', 'text'],
  ['Monday: swim', 'text'],
];

const CONTACTS: readonly Case[] = [
  ['anna@example.com', 'contact', { email: 'anna@example.com' }],
  ['Anna Example <anna@example.com>', 'contact', { name: 'Anna Example', email: 'anna@example.com' }],
  ['mailto:anna@example.com?subject=x', 'contact', { email: 'anna@example.com' }],
  ['+49 30 1234567', 'contact', { phone: '+49 30 1234567' }],
  ['tel:+4930123456', 'contact', { phone: '+4930123456' }],
  [
    'Anna Example\nHead of Testing\nMail: anna@example.com\nTel.: 030 / 123 45 67',
    'contact',
    { name: 'Anna Example', role: 'Head of Testing', email: 'anna@example.com', phone: '030 / 123 45 67' },
  ],
  [
    'BEGIN:VCARD\r\nVERSION:3.0\r\nN:Example;Anna\r\nFN:Anna Exa\r\n mple\r\nTITLE:Tester\r\nEMAIL;TYPE=work:anna@example.com\r\nTEL;VALUE=uri:tel:+4930123\r\nEND:VCARD',
    'contact',
    { name: 'Anna Example', role: 'Tester', email: 'anna@example.com', phone: '+4930123' },
  ],
  ['4111 1111 1111 1111', 'text'],
  ['01.02.03.04.05', 'contact', { phone: '01.02.03.04.05' }],
  ['2026-11-23', 'text'],
  ['(2026-11-23)', 'text'],
  ['01.02.2026', 'text'],
  ['03/04/2026', 'text'],
  ['01-02-2026', 'text'],
  ['1234567', 'text'],
];

const PLACES: readonly Case[] = [
  ['52.5200,13.4050', 'location', { lat: 52.52, lng: 13.405 }],
  ['geo:52.52,13.405?z=12', 'location', { lat: 52.52, lng: 13.405 }],
  ['33.87° S, 151.21° E', 'location', { lat: -33.87, lng: 151.21 }],
  [
    'https://www.google.com/maps/place/Brandenburger+Tor/@52.5163,13.3777,17z',
    'location',
    { name: 'Brandenburger Tor', lat: 52.5163, lng: 13.3777 },
  ],
  ['https://www.openstreetmap.org/#map=15/52.51/13.37', 'location', { lat: 52.51, lng: 13.37 }],
  ['https://maps.apple.com/?ll=52.51,13.37&q=x', 'location', { lat: 52.51, lng: 13.37 }],
  ['https://www.google.com/search?q=52.51,13.37', 'link'],
  ['https://maps.google.com.evil.example/?q=52.51,13.37', 'link'],
  ['95.123, 13.405', 'text'],
  ['3, 4', 'text'],
];

const CODES: readonly Case[] = [
  ['```ts\nconst a = 1;\n```', 'code', { lang: 'typescript', text: 'const a = 1;' }],
  ['```\nplain\n```', 'code', { lang: '', text: 'plain' }],
  ['```constructor\nplain\n```', 'code', { lang: 'constructor', text: 'plain' }],
  ['{"a": [1, 2]}', 'code', { lang: 'json' }],
  ['#!/bin/sh\necho hi', 'code', { lang: 'shell' }],
  ['git push --force-with-lease origin main', 'code', { lang: 'shell' }],
  ['npm install preact\n# then\nnpm test', 'code', { lang: 'shell' }],
  ['SELECT id FROM items WHERE x = 1', 'code', { lang: 'sql' }],
  ['def greet(name):\n    return f"hi {name}"', 'code', { lang: 'python' }],
  ['interface A {\n  b: string;\n}', 'code', { lang: 'typescript' }],
  ['const a = require("b");\nmodule.exports = a;', 'code', { lang: 'javascript' }],
  ['package main\n\nfunc main() {\n}', 'code', { lang: 'go' }],
  ['fn main() {\n    println!("hi");\n}', 'code', { lang: 'rust' }],
  ['#include <stdio.h>\nint main(void) { return 0; }', 'code', { lang: 'c' }],
  ['<div class="a"><b>x</b></div>', 'code', { lang: 'html' }],
  ['.a {\n  color: red;\n}', 'code', { lang: 'css' }],
  ['services:\n  web:\n    image: x', 'code', { lang: 'yaml' }],
  ['FROM node:24\nRUN npm ci', 'code', { lang: 'dockerfile' }],
  ['a;\nb;\nc;', 'code', { lang: '' }],
];

const TEXTS: readonly Case[] = [
  ['', 'text', { text: '' }],
  ['   \n ', 'text'],
  ['Buy milk, eggs and bread', 'text'],
  ['Milk: 2\nBread: 1\nEggs: 12', 'text'],
  ['I let the cat = out', 'text'],
  ['git is great for this.', 'text'],
  ['make dinner / wash up', 'text'],
  ['Select one from the list.', 'text'],
  ['שלום עולם', 'text', { text: 'שלום עולם' }],
  ['  indented stays  ', 'text', { text: '  indented stays  ' }],
];

const check = (cases: readonly Case[]) => (t: Test) => {
  for (const [given, type, expected = {}] of cases) {
    const found = detect(given);
    t.equal(found.type, type, JSON.stringify(given));
    t.match(found.payload, expected, JSON.stringify(given));
    if (given.trim() !== '')
      t.doesNotThrow(() => shapedPayload(found.type, found.payload), `${given}: the client accepts its fields`);
  }
  t.end();
};

t.test('WEB-20: an address alone, or a title with one, becomes a link', check(LINKS));
t.test('WEB-21: user and password, labelled lines, tokens and one-time secrets become a password', check(SECRETS));
t.test('WEB-22: mail, phone, a signature and a vCard become a contact', check(CONTACTS));
t.test('WEB-23: coordinates and links to maps become a location', check(PLACES));
t.test('WEB-24: fenced, structured and typical source becomes code of its language', check(CODES));
t.test('WEB-25: everything else stays a text, unchanged', check(TEXTS));

t.test('WEB-26: a type chosen by hand gets its fields from the text, and nothing of the text is lost', (t) => {
  const kinds: readonly TextKind[] = ['password', 'link', 'text', 'code', 'contact', 'location'];
  for (const [given] of [...LINKS, ...SECRETS, ...CONTACTS, ...TEXTS].filter(([one]) => one.trim() !== ''))
    for (const kind of kinds) {
      const fields = convert(given, kind);
      const whole = Object.values(fields).join(' ');
      if (detect(given).type !== kind)
        for (const word of given.trim().split(/\s+/))
          t.ok(whole.includes(word), `${JSON.stringify(given)} as ${kind}: ${word}`);
    }
  t.equal(textOf('password', { service: 'a', user: 'b', secret: 'c' }), 'a\nb\nc');
  t.equal(textOf('location', { name: 'a', lat: 1, lng: 2 }), 'a\n1, 2');
  t.end();
});

/** Texts that make a backtracking pattern slow: runs of one sign, and beginnings without an end. */
const HOSTILE = [
  ...['a', 'A1!', '0 ', ' ', '\t', '\n', '\r', ' \n', '\u2028', '(', '[', '{', '<', '`', '/', '@', 'a@', '-', '=', '#'],
  ...[':', 'a: ', 'a:\n', '"a": ', '; ', '};', ')\n', '[a]\n', 'a{b:', 'a{b: \n', '<a ', '<a>', '</a>', '<a></a> '],
  ...[
    'import ',
    'import a',
    'import {a\n',
    'from a import\n',
    '#include\n',
    'template ',
    'select from ',
    'SELECT a FROM',
  ],
  ...[
    'def a(\n',
    'class a(\n',
    'type a<\n',
    'interface a extends\n',
    'fn a<\n',
    'func a(\n',
    'private a<\n',
    'const a\n',
  ],
  ...['function a(\n', 'async ', 'if :', 'a = ', 'using a\n', '--- a\n', 'FROM a\n', 'curl -', 'npm i\n', '```\n'],
];

t.test('WEB-27: the steps to analyze a text grow no faster than its length, whatever its content', (t) => {
  // A pattern whose steps grow with the square of the length takes minutes to hours here: the test would time out.
  for (const piece of HOSTILE) {
    const run = piece.repeat(1_000_000 / piece.length);
    for (const text of [run, `a:${run}x`]) {
      signedLanguage(text);
      t.ok(detect(text).type, encodeURI(piece));
      t.ok(detect(text.slice(0, 1_900)).type, encodeURI(piece));
    }
  }
  t.equal(strength('a'.repeat(1_000)), 0);
  t.end();
});

const ORIGIN = 'https://sync.example.org';
const words = encodeWords(nodeSodium, Uint8Array.from([1, 2, 3, 4, 5, 6, 7, 8])).split(' ');

t.test(
  'WEB-30: six words are read alike when typed, pasted from a numbered list, with hyphens, or in the link',
  async (t) => {
    const forms = [
      words.join(' '),
      `  ${words.join('-').toUpperCase()}\n`,
      words.map((word, at) => `${at + 1}. ${word}`).join('\n'),
      words.join('\u2011'),
      offerText(ORIGIN, words.join(' ')),
      `${ORIGIN}:443/#pair=${words.join('-')}`,
      `#pair=${words.join('-')}`,
    ];
    for (const form of forms) t.same(readJoin(form, ORIGIN), { words, elsewhere: null }, form);
    t.same(wordsIn(''), []);
  },
);

t.test('WEB-30: the link of another server is reported as such, where its address is http or https', async (t) => {
  const of = (address: string): string | null => readJoin(`${address}/#pair=${words.join('-')}`, ORIGIN).elsewhere;
  t.equal(of('https://other.example.org'), 'https://other.example.org');
  t.equal(of('http://sync.example.org'), 'http://sync.example.org');
  t.equal(of('https://sync.example.org:8443/x'), 'https://sync.example.org:8443');
  t.equal(of('Both in one text:  https://other.example.org'), 'https://other.example.org', 'a line, copied as it is');
  t.equal(of(`Both in one text:  ${ORIGIN}`), null);
  t.equal(of('javascript:alert(1)//'), null);
  t.equal(of('see here'), null);
});

t.test('WEB-31: words and a claim token are removed from the address, any other fragment stays', async (t) => {
  const visit = (hash: string): string[] => {
    const replaced: string[] = [];
    t.intercept(globalThis, 'location', { value: { hash, pathname: '/', search: '?a=1' } as never });
    t.intercept(globalThis, 'history', {
      value: { replaceState: (...[, , url]: unknown[]) => replaced.push(String(url)) } as never,
    });
    takeFragment();
    return replaced;
  };
  t.same(visit(`#pair=${words.join('-')}`), ['/?a=1']);
  t.same(visit('#claim=sb_claim_abc'), ['/?a=1']);
  t.same(visit('#/devices'), []);
  t.same(visit(''), []);
  t.same(readFragment(`#pair=${words.join('-')}`), { words: words.join(' ') });
  t.same(readFragment('#claim=a%2Bb'), { token: 'a+b' });
  t.same(readFragment('#claim=%zz'), { token: '%zz' });
});

t.test('WEB-32: all six digits have a picture of their own, and the next digits a dissimilar one', async (t) => {
  const seen = new Set<number>();
  let far = 0;
  const numberOf = (digits: number): number[] =>
    pictureOf(`${digits}`.padStart(6, '0')).map((thing) => THINGS.indexOf(thing));
  let before = numberOf(0);
  for (let digits = 0; digits < 1_000_000; digits++) {
    const picture = numberOf(digits);
    seen.add(picture.reduce((sum, thing) => sum * 10 + thing, 0));
    far += picture.filter((thing, at) => thing !== before[at]).length;
    before = picture;
  }
  t.equal(seen.size, 1_000_000);
  t.ok(far / 1_000_000 > 4, 'the next digits differ in most of the picture');
  t.same(
    pictureOf('048213'),
    ['house', 'umbrella', 'fish', 'anchor', 'house', 'bell'],
    'the picture of these digits never changes',
  );
  for (const wrong of ['', '12345', '1234567', '12a456']) t.throws(() => pictureOf(wrong), RangeError);
});

t.test('WEB-33: two different ones of the twelve words are asked for, and every pair occurs', async (t) => {
  const pairs = new Set<string>();
  for (let one = 0; one < 12; one++) {
    for (let other = 0; other < 11; other++) {
      const drawn = [one + 12 * 7, other + 11 * 5];
      const [first, second] = placesToAsk(() => drawn.shift() ?? 0);
      t.ok(first >= 0 && first < second && second < 12);
      pairs.add(`${first},${second}`);
    }
  }
  t.equal(pairs.size, (12 * 11) / 2);
});

t.test('WEB-34: the proposed name contains browser and platform', async (t) => {
  const name = (userAgent: string, more: Partial<BrowserSelf> = {}): string =>
    browserOf({ userAgent, maxTouchPoints: 0, ...more }).join('|');
  const webkit = 'AppleWebKit/537.36 (KHTML, like Gecko)';
  const safari = 'AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0';
  t.equal(name('Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0'), 'Firefox|Linux');
  t.equal(
    name(`Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${webkit} Chrome/140.0 Safari/537.36 Edg/140.0`),
    'Edge|Windows',
  );
  t.equal(name(`Mozilla/5.0 (Linux; Android 10; K) ${webkit} Chrome/140.0 Mobile Safari/537.36`), 'Chrome|Android');
  t.equal(
    name(`Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) ${safari} Mobile Safari/604.1`),
    'Safari|iPhone',
  );
  const mac = `Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) ${safari} Safari/605.1.15`;
  t.equal(name(mac), 'Safari|Mac');
  t.equal(name(mac, { maxTouchPoints: 5 }), 'Safari|iPad');
  const brands = ['Not A Brand', 'Chromium', 'Brave'].map((brand) => ({ brand }));
  t.equal(
    name(`Mozilla/5.0 (X11; CrOS x86_64) ${webkit} Chrome/140.0`, { userAgentData: { brands, platform: 'Chrome OS' } }),
    'Brave|Chromebook',
  );
  t.equal(name(''), '|');
  t.equal(text.begin.browserOn('Firefox', 'Linux'), 'Firefox on Linux');
  t.equal(text.begin.browserOn('', ''), 'Browser', 'there is always a name');
});

t.test('WEB-35: what a browser lacks is named, and a page without https lacks only that', async (t) => {
  const whole: Surroundings = {
    isSecureContext: true,
    WebAssembly: {},
    Worker: {},
    BroadcastChannel: {},
    ReadableStream: {},
    indexedDB: {},
    crypto: { subtle: {}, randomUUID: {} },
    navigator: { locks: {} },
  };
  t.same(whatIsMissing(whole), []);
  t.same(whatIsMissing({}), ['insecure']);
  t.same(whatIsMissing({ ...whole, isSecureContext: false, crypto: {}, navigator: {} }), ['insecure']);
  t.same(whatIsMissing({ ...whole, indexedDB: null, navigator: {}, crypto: { subtle: {} } }), [
    'storage',
    'locks',
    'crypto',
  ]);
  t.same(whatIsMissing({ ...whole, WebAssembly: undefined, Worker: undefined }), ['wasm', 'workers']);
  t.same(whatIsMissing({ ...whole, BroadcastChannel: undefined, ReadableStream: undefined }), ['channels', 'streams']);
});

t.test(
  'WEB-36: the suggested route to https fits the address: an own authority at home, a known one otherwise',
  async (t) => {
    const home = wayToHttps({ hostname: '192.168.1.20', port: '8080' });
    t.equal(home.proxy, 'sudo caddy reverse-proxy --from https://192.168.1.20 --to :8080 --internal-certs');
    t.match(
      home.certificate,
      /install -Dm644 \S+\/root\.crt ~\/ca\/root\.crt && caddy file-server --root ~\/ca --listen :2080$/,
    );
    t.notMatch(home.certificate, /root\.key/);
    t.equal(home.certificateUrl, 'http://192.168.1.20:2080/root.crt');
    for (const hostname of ['nas', 'nas.local', 'nas.lan', 'x.home.arpa', '[fd00::1]']) {
      t.match(wayToHttps({ hostname, port: '8080' }).proxy, /--internal-certs$/, hostname);
    }
    const known = wayToHttps({ hostname: 'sync.example.org', port: '8080' });
    t.same(known, {
      proxy: 'sudo caddy reverse-proxy --from https://sync.example.org --to :8080',
      certificate: null,
      certificateUrl: null,
      address: 'https://sync.example.org',
    });
    t.equal(wayToHttps({ hostname: 'nas', port: '' }).proxy, null, 'no proxy is suggested where one exists');
  },
);

t.test('WEB-37: the drawn QR code has the modules that the encoder gives, and a white border', async (t) => {
  const link = offerText(ORIGIN, words.join(' '));
  const { size, path } = qrPath(link);
  const drawn = Array.from({ length: size }, () => new Array<boolean>(size).fill(false));
  for (const [, x, y, run, back] of path.matchAll(/M(\d+) (\d+)h(\d+)v1h(-\d+)z/g)) {
    t.equal(Number(run), -Number(back));
    for (let at = 0; at < Number(run); at++) (drawn[Number(y)] as boolean[])[Number(x) + at] = true;
  }
  t.same(drawn, encode(link, { ecc: 'M', border: 4 }).data);
  t.equal(path.replace(/M\d+ \d+h\d+v1h-\d+z/g, ''), '');
  const edge = [0, 1, 2, 3, size - 4, size - 3, size - 2, size - 1];
  t.notOk(edge.some((at) => drawn[at]?.includes(true) === true || drawn.some((row) => row[at] === true)));
});

t.test('WEB-38: a saved file is complete; a stream that fails or is stopped leaves none', async (t) => {
  const target = () => {
    const did: (string | number)[] = [];
    const say = (what: string) => () => Promise.resolve(void did.push(what));
    const write = (bytes: Uint8Array) => Promise.resolve(void did.push(bytes.length));
    return { did, write, close: say('close'), abort: say('abort') };
  };
  async function* pieces(end?: () => void): AsyncGenerator<Uint8Array> {
    yield new Uint8Array(3);
    yield new Uint8Array(4);
    end?.();
  }
  const never = new AbortController().signal;
  const heard: number[] = [];
  const whole = target();
  t.equal(await saveStream(pieces(), whole, { onBytes: (n) => void heard.push(n), stop: never }), 7);
  t.same(
    [whole.did, heard],
    [
      [3, 4, 'close'],
      [3, 7],
    ],
  );

  const broken = target();
  const fail = (): never => {
    throw new Error('cut');
  };
  await t.rejects(saveStream(pieces(fail), broken, { onBytes: () => undefined, stop: never }), { message: 'cut' });
  t.same(broken.did, [3, 4, 'abort']);

  const stop = new AbortController();
  const stopped = target();
  await t.rejects(saveStream(pieces(), stopped, { onBytes: () => stop.abort(), stop: stop.signal }));
  t.same(stopped.did, [3, 'abort']);

  const late = new AbortController();
  const last = target();
  await t.rejects(
    saveStream(
      pieces(() => late.abort()),
      last,
      { onBytes: () => undefined, stop: late.signal },
    ),
  );
  t.same(last.did, [3, 4, 'abort'], 'a stop at the end leaves no file either');
});
