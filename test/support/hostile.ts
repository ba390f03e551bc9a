/** Input that nobody well-behaved sends: values, bodies, tokens, paths, raw requests. Each is named, so that a failure says which. */
import { HAS_NEWER_LIBRARY } from './node-version.js';

const nested = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth);

/** JSON texts of values that stand where something else was expected. */
export const VALUES: Readonly<Record<string, string>> = {
  null: 'null',
  true: 'true',
  zero: '0',
  'minus zero': '-0',
  negative: '-1',
  fraction: '1.5',
  'beyond 2^53': '9007199254740993',
  'beyond int8': '99999999999999999999999999',
  'beyond double': '1e400',
  'tiny double': '1e-400',
  'empty text': '""',
  space: '" "',
  NUL: '"\\u0000"',
  'NUL inside': '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\\u0000aaaaaaaaaaaaaaaa"',
  'lone high surrogate': '"\\ud800"',
  'lone low surrogate': '"\\udc00x"',
  'reversed surrogates': '"\\udc00\\ud800"',
  'raw control character': '"\\u001b[31m"',
  'right to left': '"\\u202Eabc"',
  'not a character': '"\\uffff\\ufffe"',
  backslashes: '"\\\\\\\\x\\\\000"',
  'SQL text': '"\'; DROP TABLE items; --"',
  'path text': '"../../../../etc/passwd"',
  'long text': `"${'x'.repeat(5_000)}"`,
  'long six words': `"${'word '.repeat(30)}"`,
  'many combining marks': `"${'e\\u0301'.repeat(60)}"`,
  'a ligature that grows': `"${'\\ufdfa'.repeat(64)}"`,
  'empty list': '[]',
  'list of null': '[null]',
  'list of lists': '[[[[]]]]',
  'empty object': '{}',
  'object with length': '{"length":32}',
  'object like bytes': '{"type":"Buffer","data":[1,2,3]}',
  'object with prototype': '{"__proto__":{"x":1}}',
  'object with constructor': '{"constructor":{"prototype":{"x":1}}}',
  'deep list': nested(3_000),
};

/** Whole bodies. */
export const BODIES: Readonly<Record<string, string | Buffer>> = {
  'nothing but space': '   ',
  'open brace': '{',
  'two objects': '{}{}',
  'trailing comma': '{"id":1,}',
  'single quotes': "{'id':1}",
  comment: '{/* */}',
  list: '[]',
  text: '"x"',
  number: '7',
  'null itself': 'null',
  'true itself': 'true',
  NaN: '{"id":NaN}',
  Infinity: '{"ts":Infinity}',
  undefined: 'undefined',
  'leading plus': '{"ts":+1}',
  'leading zero': '{"ts":01}',
  'hex number': '{"ts":0x10}',
  'byte order mark': '\uFEFF{}',
  'invalid UTF-8': Buffer.from([0x7b, 0x22, 0xc3, 0x28, 0x22, 0x3a, 0x31, 0x7d]),
  'overlong UTF-8': Buffer.from([0x7b, 0x22, 0xc0, 0x80, 0x22, 0x3a, 0x31, 0x7d]),
  'UTF-16': Buffer.from('{"id":"x"}', 'utf16le'),
  'surrogates as UTF-8': Buffer.from([0x7b, 0x22, 0xed, 0xa0, 0x80, 0x22, 0x3a, 0x31, 0x7d]),
  'NUL bytes': Buffer.alloc(64),
  gzip: Buffer.from('1f8b08000000000000ff', 'hex'),
  'deep lists': nested(30_000),
  'deep objects': `${'{"a":'.repeat(10_000)}1${'}'.repeat(10_000)}`,
  'deep and never closed': '['.repeat(60_000),
  'prototype key': '{"__proto__":{"id":"x","force":true,"admin":true}}',
  'prototype key in B': '{"bin_id":"x","__proto__":null}',
  'constructor key': '{"constructor":{"prototype":{}},"toString":null,"hasOwnProperty":null,"valueOf":1}',
  'a key twice': '{"id":"a","id":"b","code":"a","code":7,"name":"x","name":null}',
  'both spellings': '{"binId":"a","bin_id":"b"}',
  'many keys': `{${Array.from({ length: 4_000 }, (_, index) => `"k${index}":0`).join(',')}}`,
  'a long key': `{"${'k'.repeat(60_000)}":1}`,
  'underscore keys': '{"_":1,"__":2,"_a":3,"a_":4,"a__b":5}',
  'a huge number': `{"ts":${'9'.repeat(50_000)}}`,
  'empty key': '{"":""}',
};

/** Where a path's id should be. */
export const PATH_IDS: readonly string[] = [
  'x',
  '%00',
  '%',
  '%zz',
  '%2e%2e',
  '..%2f..%2fetc%2fpasswd',
  '%c0%ae%c0%ae',
  '%ff%fe',
  '01ARZ3NDEKTSV4RRFFQ69G5FAV%00',
  '01ARZ3NDEKTSV4RRFFQ69G5FAV%20',
  '01arz3ndektsv4rrffq69g5fav',
  '81ARZ3NDEKTSV4RRFFQ69G5FAV',
  '01ARZ3NDEKTSV4RRFFQ69G5FAU',
  '01ARZ3NDEKTSV4RRFFQ69G5FAV;x=1',
  "'%20OR%201=1--",
  '__proto__',
  'constructor',
  '%F0%9F%92%A9',
  'a'.repeat(3_000),
  '*',
  '..',
  '.',
  '%2F',
  '%5C',
];

/** Queries. */
export const QUERIES: readonly string[] = [
  'since=%00',
  'since=%',
  'since=%zz',
  'since=NaN',
  'since=Infinity',
  'since=1e309',
  'since=-0',
  'since=%D9%A1',
  `since=${'9'.repeat(2_000)}`,
  'since=0&limit=%00',
  'since=0&limit=-9007199254740993',
  'since=0&bin_id=%00',
  'since=0&bin_id=../x',
  'since=0&bin_id=%F0%9F%92%A9',
  'since=0&bin_id=__proto__',
  `since=0&bin_id=${'a'.repeat(2_000)}`,
  'since=0&shape=__proto__',
  'shape=%61%00',
  'since=1&since=2',
  '=',
  '&&&=&',
  '%=%',
  'shape=a&shape=a',
  'limit=0',
];

/** Tokens broken in every way, made from a good one. */
export function tokens(good: string): string[] {
  const flips = Array.from({ length: 24 }, (_, index) => {
    const at = Math.floor((index * good.length) / 24);
    return good.slice(0, at) + (good[at] === 'A' ? 'B' : 'A') + good.slice(at + 1);
  });
  const cuts = [1, 2, 10, 40]
    .map((end) => good.slice(0, end))
    .concat(good.slice(0, -1), good.slice(0, -10), good.slice(5));
  const parts = good.split('.');
  return [
    ...flips.filter((token) => token !== good),
    ...cuts,
    parts.toReversed().join('.'),
    parts.map(() => '').join('.'),
    `${good}.${good}`,
    'A'.repeat(8_000),
    '.'.repeat(2_000),
    '*'.repeat(200),
    '%00',
    "'--",
    'null',
    'undefined',
    '[object',
    'eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.',
    'ü'.repeat(30),
  ].filter((token) => token !== good);
}

const request = (head: string, body = ''): string => `${head}\r\n\r\n${body}`;
const HEAD = 'POST /api/devices/pair-fetch-epk HTTP/1.1\r\nHost: x\r\nContent-Type: application/json';

/** Whole requests as bytes: each must be answered from 400 to 499. */
export const RAW: Readonly<Record<string, string | Buffer>> = {
  'two hosts': request('GET /api/health HTTP/1.1\r\nHost: a\r\nHost: b'),
  'two lengths': request(`${HEAD}\r\nContent-Length: 2\r\nContent-Length: 2`, '{}'),
  'two other lengths': request(`${HEAD}\r\nContent-Length: 2\r\nContent-Length: 20`, '{}'),
  'a list of lengths': request(`${HEAD}\r\nContent-Length: 2, 2`, '{}'),
  'a length with space': request(`${HEAD}\r\nContent-Length: 2 2`, '{}'),
  'a length in hex': request(`${HEAD}\r\nContent-Length: 0x2`, '{}'),
  'a length of twenty digits': request(`${HEAD}\r\nContent-Length: 99999999999999999999`, '{}'),
  'a length of ten gigabytes': request(`${HEAD}\r\nContent-Length: 10000000000`, '{}'),
  'coding xchunked': request(`${HEAD}\r\nTransfer-Encoding: xchunked`, '2\r\n{}\r\n0\r\n\r\n'),
  'coding with a tab': request(`${HEAD}\r\nTransfer-Encoding:\tchunked\t, identity`, '2\r\n{}\r\n0\r\n\r\n'),
  'coding beside length': request(`${HEAD}\r\nTransfer-Encoding: chunked\r\nContent-Length: 2`, '2\r\n{}\r\n0\r\n\r\n'),
  'length beside coding': request(
    `${HEAD}\r\nContent-Length: 12\r\nTransfer-Encoding: chunked`,
    '2\r\n{}\r\n0\r\n\r\n',
  ),
  'a header without a name': request('GET /api/me HTTP/1.1\r\nHost: x\r\n: x'),
  'a huge header': request(`GET /api/me HTTP/1.1\r\nHost: x\r\nX-Huge: ${'x'.repeat(100_000)}`),
  'five hundred headers': request(`GET /api/me HTTP/1.1\r\nHost: x${`\r\nX-Many: ${'1'.repeat(9)}`.repeat(500)}`),
  'a huge path': request(`GET /api/${'x'.repeat(60_000)} HTTP/1.1\r\nHost: x`),
  'a chunk size that is none': request(`${HEAD}\r\nTransfer-Encoding: chunked`, 'zz\r\n{}\r\n0\r\n\r\n'),
  'a chunk size too large': request(`${HEAD}\r\nTransfer-Encoding: chunked`, 'fffffffffffffffff\r\n{}\r\n0\r\n\r\n'),
  'a negative chunk size': request(`${HEAD}\r\nTransfer-Encoding: chunked`, '-2\r\n{}\r\n0\r\n\r\n'),
  'a chunk that is longer than it says': request(`${HEAD}\r\nTransfer-Encoding: chunked`, '1\r\n{}\r\n0\r\n\r\n'),
  'an unknown method': request('BREW /api/items HTTP/1.1\r\nHost: x'),
  'a method of symbols': request('G@T! /api/items HTTP/1.1\r\nHost: x'),
  'an upgrade to h2c': request(
    'GET /api/me HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x',
  ),
  'an upgrade elsewhere': request(
    'GET /api/items HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13',
  ),
  'an upgrade without a key': request(
    'GET /ws?token=x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13',
  ),
  'an upgrade of another version': request(
    'GET /ws?token=x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 99',
  ),
  'an upgrade with a body': request(
    'GET /ws?token=x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nContent-Length: 5',
    'hello',
  ),
  'a socket path without an upgrade': request('GET /ws HTTP/1.1\r\nHost: x'),
  'a path that climbs': request('GET /api/../../etc/passwd HTTP/1.1\r\nHost: x'),
  'a path of slashes': request('GET ////api////me HTTP/1.1\r\nHost: x'),
  'a path with bytes above 127': Buffer.from(
    '474554202f6170692fe9ff20485454502f312e310d0a486f73743a20780d0a0d0a',
    'hex',
  ),
};

/** The newer library waits for the rest of such a line. */
const NO_VERSION = { 'no version': request('GET /api/me\r\nHost: x') };

/**
 * Bytes whose first line is not `METHOD /path HTTP/1.1`: uWebSockets.js answers them itself and closes, with 505 (this is
 * no version of HTTP that it speaks) or 400. None of our code sees them, and no proxy sends them.
 */
export const UNREADABLE: Readonly<Record<string, string | Buffer>> = {
  'a bare carriage return': 'GET /api/me HTTP/1.1\rHost: x\r\r',
  'bare line feeds': 'GET /api/me HTTP/1.1\nHost: x\n\n',
  'an unknown version': request('GET /api/me HTTP/3.7\r\nHost: x'),
  'an old version': request('GET /api/me HTTP/1.0\r\nHost: x'),
  ...(HAS_NEWER_LIBRARY ? {} : NO_VERSION),
  'version 0.9': 'GET /api/me\r\n\r\n',
  'HTTP/2 preface': 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
  'a TLS hello': Buffer.from(`160301020001${'00'.repeat(200)}`, 'hex'),
  'random bytes': Buffer.from('deadbeef00ff'.repeat(40), 'hex'),
  'a tunnel': request('CONNECT example.org:443 HTTP/1.1\r\nHost: x'),
  'another server asked for': request('GET http://example.org/api/me HTTP/1.1\r\nHost: x'),
  'a star': request('OPTIONS * HTTP/1.1\r\nHost: x'),
  'a path with a NUL': request('GET /api/me\0 HTTP/1.1\r\nHost: x'),
  'a path without a slash': request('GET api/me HTTP/1.1\r\nHost: x'),
};

/** Heads and bodies that are not or never whole: the library waits for more and closes after its 10 s. */
export const UNFINISHED: Readonly<Record<string, string>> = {
  'no host': request('GET /api/health HTTP/1.1'),
  'a space before the colon': request(`${HEAD}\r\nTransfer-Encoding : chunked`, '2\r\n{}\r\n0\r\n\r\n'),
  'a header without a colon': request('GET /api/health HTTP/1.1\r\nHost: x\r\nnonsense'),
  'a folded header': request('GET /api/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer\r\n  x'),
  'a NUL in a header': request('GET /api/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\0b'),
  ...(HAS_NEWER_LIBRARY ? NO_VERSION : {}),
  'half a method': 'GE',
  'half a head': request('POST /api/items HTTP/1.1\r\nHost: x\r\nContent-').trimEnd(),
  'a head without its body': request(`${HEAD}\r\nContent-Length: 100`),
  'half a body': request(`${HEAD}\r\nContent-Length: 100`, '{"code":'),
  'half a chunk': request(`${HEAD}\r\nTransfer-Encoding: chunked`, 'ff\r\n{"co'),
};

/** Every path to a value in a JSON body: 'payloadEnc.keys.01..'. */
export function pathsOf(value: unknown, prefix: readonly string[] = []): string[][] {
  if (value === null || typeof value !== 'object') return [[...prefix]];
  const own = prefix.length === 0 ? [] : [[...prefix]];
  return [...own, ...Object.entries(value).flatMap(([name, entry]) => pathsOf(entry, [...prefix, name]))];
}

/** The JSON text of a body with the value at a path replaced by other JSON text. */
export function textWith(body: unknown, path: readonly string[], json: string): string {
  const mark = '@@@';
  const copy = JSON.parse(JSON.stringify(body)) as Record<string, unknown>;
  let at = copy;
  for (const name of path.slice(0, -1)) at = at[name] as Record<string, unknown>;
  at[path.at(-1) ?? ''] = mark;
  return JSON.stringify(copy).replace(`"${mark}"`, () => json);
}

/** Runs `jobs` some at a time. */
export async function all(jobs: readonly (() => Promise<void>)[], atOnce = 24): Promise<void> {
  const queue = jobs.values();
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      for (const job of queue) await job();
    }),
  );
}
