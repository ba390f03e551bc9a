/** The item that a typed text becomes (src/web/ui/detect.ts). */
import t, { type Test } from 'tap';
import { convert, detect, strength, textOf, type TextKind } from '../src/web/ui/detect.js';
import { signedLanguage } from '../src/web/ui/detect-code.js';
import { shapedPayload } from '../src/sdk/payloads/shapes.js';

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
  ['2026-11-23', 'text'],
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
