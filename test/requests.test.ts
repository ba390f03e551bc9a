/**
 * Request bodies before anything else reads them: validation, bounds of depth and size, and writes that are read from
 * their bytes (src/server/tenant/change.ts), compared with parser and validator.
 */
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ulid } from 'ulid';
import fc from 'fast-check';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { isObject } from '../src/protocol/bytes.js';
import { publicKeyField } from '../src/protocol/request-fields.js';
import { JSON_COUNT_MAX, JSON_DEPTH_MAX, jsonExcess, type JsonExcess, parseJson } from '../src/server/http/request.js';
import { camelKeys, toSnake } from '../src/protocol/shape.js';
import { PROJECT_ROOT } from '../src/root.js';
import { validateItemBodyA, validateItemBodyB, isWriteMetadata } from '../src/server/http/validators.js';
import { Arena, type Change, readWriteA } from '../src/server/tenant/change.js';
import { decodeWriteA } from '../src/server/tenant/decode.js';
import { frameBytes, JsonWriter } from '../src/server/tenant/codec.js';
import { base64 } from './support/accounts.js';
import { ask, frontOf, ITEM, writeA } from './support/front.js';
import { socketOf } from './support/front-sockets.js';
import { bytes, deviceId, itemId, TS } from './support/changes.js';
import { inLongRun } from './support/long.js';
import * as requests from '../src/server/http/validators.js';

t.test('a public key of low order is refused exactly where libsodium refuses it', (t) => {
  const scalar = randomBytes(32);
  const candidates = [0, 1, 2, 8, 9].map((low) => Uint8Array.of(low, ...new Uint8Array(31)));
  for (const last of [0xec, 0xed, 0xee, 0xef])
    candidates.push(Uint8Array.of(last, ...new Uint8Array(30).fill(255), 127));
  candidates.push(Buffer.from('e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800', 'hex'));
  candidates.push(Buffer.from('5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157', 'hex'));
  candidates.push(...candidates.map((key) => Uint8Array.from(key, (byte, at) => (at === 31 ? byte | 128 : byte))));
  const refuses = (call: () => unknown): boolean => {
    try {
      call();
      return false;
    } catch {
      return true;
    }
  };
  for (const key of candidates) {
    const bySodium = refuses(() => nodeSodium.scalarmult(scalar, key));
    t.equal(
      refuses(() => publicKeyField('pubkey', base64(key))),
      bySodium,
      Buffer.from(key).toString('hex'),
    );
  }
  t.end();
});

t.test('ERR-05: a validator’s refusal names the path of the field and the rule', (t) => {
  const id = ulid();
  const item = { id, binId: 'inbox', type: 'text', ts: 1_700_000_000_000, payloadEnc: { ct: '', nonce: '', keys: {} } };
  const b = { id, binId: 'inbox', type: 'text', ts: 1_700_000_000_000, nonce: '', ct: '', wrapped: [] };
  const millis = 'must be integer milliseconds, not seconds';
  const version = 'must be an integer from 0 to 2^53-1';
  const cases: [check: (input: unknown) => unknown, input: unknown, path: string, rule: string | RegExp][] = [
    [requests.validateItemBodyA, null, 'body', 'must be an object'],
    [requests.validateItemBodyA, { ...item, id: id.toLowerCase() }, 'id', /^must be a ULID/],
    [requests.validateItemBodyA, { ...item, id: undefined }, 'id', /^required, must be a ULID/],
    [requests.validateItemBodyA, { ...item, binId: 'a b' }, 'binId', /^must be a bin id/],
    [requests.validateItemBodyA, { ...item, ts: 1_700_000_000 }, 'ts', millis],
    [requests.validateItemBodyA, { ...item, ts: '2023-11-14' }, 'ts', millis],
    [requests.validateItemBodyA, { ...item, ts: 1_700_000_000_000.5 }, 'ts', /integer/],
    [requests.validateItemBodyA, { ...item, payloadEnc: 'x' }, 'payloadEnc', 'must be an object or null'],
    [
      requests.validateItemBodyA,
      { ...item, payloadEnc: { ...item.payloadEnc, ct: 1 } },
      'payloadEnc.ct',
      'must be text',
    ],
    [requests.validateItemBodyB, { ...b, binId: '' }, 'binId', /^must be a bin id/],
    [requests.validateItemBodyB, { ...b, wrapped: [{ key: '' }] }, 'wrapped[0].deviceId', 'required, must be text'],
    [requests.validateItemBodyB, { ...b, wrapped: Array(1_001).fill({ deviceId: '', key: '' }) }, 'wrapped', /1000/],
    [requests.validateBatchBody, { items: [] }, 'items', 'must be a list of 1 to 100'],
    [requests.validateBatchBody, { items: Array(101).fill({}) }, 'items', 'must be a list of 1 to 100'],
    [requests.validateReconcileBody, { binId: 'x', version: -1, sig: '' }, 'version', version],
    [requests.validateBinCreateBody, { id: 'x', slug: 'No' }, 'slug', /^must be a slug/],
    [
      requests.validateBootstrapBody,
      { name: 'n', glyph: 'watch', pubkey: '' },
      'glyph',
      'must be one of globe, laptop, phone, tablet',
    ],
    [requests.validatePasswordSetBody, { password: '' }, 'password', 'must be text that is not empty'],
    [requests.validateHelloFrame, { type: 'hello', since: 2 ** 53 }, 'since', /integer/],
    [requests.validateHelloFrame, { type: 'hello', since: 0, acks: 'yes' }, 'acks', 'must be true or false'],
  ];
  for (const [check, input, path, rule] of cases) {
    try {
      check(input);
      t.fail(`${path}: the invalid value was accepted`);
    } catch (error) {
      t.match(error, { error: 'validation', details: { path, rule } }, path);
    }
  }
  t.same(requests.validateItemBodyA({ ...item, unknown: 1 }), { ...item, unknown: 1 }, 'unknown keys are kept');
  t.same(requests.validateBatchBody({ items: Array(100).fill(0) }).items.length, 100);
  const long = { ...item, payloadEnc: { ...item.payloadEnc, keys: { ['k'.repeat(100_000)]: 1 } } };
  t.throws(() => requests.validateItemBodyA(long), { message: /^.{1,300}$/ }, 'the message does not repeat a long key');
  t.end();
});

const excess = (text: string): JsonExcess | undefined => jsonExcess(Buffer.from(text));
const nested = (levels: number): string => '['.repeat(levels) + ']'.repeat(levels);

/** Names and values of parsed JSON, counted by a plain walk. */
function countOf(value: unknown): number {
  if (Array.isArray(value)) return value.reduce<number>((sum, entry) => sum + countOf(entry), 1);
  if (typeof value !== 'object' || value === null) return 1;
  return Object.values(value).reduce<number>((sum, entry) => sum + 1 + countOf(entry), 1);
}

function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}

t.test('FAIR-40: JSON may have 32 levels and 32,768 names and values, not one more', (t) => {
  t.same([JSON_DEPTH_MAX, JSON_COUNT_MAX], [32, 32_768]);
  t.equal(excess(nested(32)), undefined);
  t.equal(excess(nested(33)), 'depth');
  t.equal(excess(`${'{"a":'.repeat(32)}1${'}'.repeat(32)}`), undefined);
  t.equal(excess(`${'{"a":'.repeat(33)}1${'}'.repeat(33)}`), 'depth');
  t.equal(excess(`[${nested(31)},${nested(31)},${nested(32)}]`), 'depth', 'the deepest part counts');
  t.equal(excess(`[${Array(5_000).fill(nested(2)).join(',')}]`), undefined, 'closed levels do not add up');
  const numbers = (count: number): string => `[${Array(count).fill('1').join(',')}]`;
  t.equal(excess(numbers(32_767)), undefined);
  t.equal(excess(numbers(32_768)), 'count');
  for (const value of ['{}', '[]', 'true', 'null', '""', '-1.5e9', ' "a" ', '\n0']) {
    const list = (count: number): string => `[${Array(count).fill(value).join(',')}]`;
    t.same([excess(list(32_767)), excess(list(32_768))], [undefined, 'count'], value);
  }
  const names = (count: number): string => `{${Array.from({ length: count }, (_, n) => `"${n}":0`).join(',')}}`;
  t.same([excess(names(16_383)), excess(names(16_384))], [undefined, 'count'], 'a name counts as its value does');
  t.end();
});

t.test('FAIR-40: brackets inside a string are not counted as structure', (t) => {
  const brackets = '[{'.repeat(40_000);
  for (const text of [brackets, `\\"${brackets}`, `\\\\\\"${brackets}`, `${brackets}\\\\`, `\\u005b${brackets}\\"`])
    t.equal(excess(`{"a":"${text}","b":[1]}`), undefined, text.slice(0, 8));
  t.equal(excess(`{"a\\"${brackets}":1}`), undefined, 'brackets inside a name are not counted either');
  t.equal(excess(`["\\\\",${nested(33)}]`), 'depth', 'the string ends at its unescaped quotation mark');
  t.equal(excess(`["\\\\\\"",${nested(33)}]`), 'depth');
  t.equal(excess(`["é\u2028🎈",${nested(33)}]`), 'depth', 'bytes above 127 hide no structure after the string');
  for (const broken of ['', '"', '"\\', '"\\"', '\\', '[[', ']]]', '"a', ' ', '1'.repeat(99_999), '\0', '"\\u'])
    t.equal(excess(broken), undefined, `invalid JSON is left to the parser: ${broken.slice(0, 9)}`);
  t.end();
});

t.test('FAIR-40: the scan finds the same depth and count as a walk of the parsed value', (t) => {
  const spaced = fc.constantFrom('', ' ', '\n\t');
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 40, stringUnit: 'binary' }), spaced, (value, space) => {
      const text = JSON.stringify(value, undefined, space);
      return excess(text) === (depthOf(value) > JSON_DEPTH_MAX ? 'depth' : undefined);
    }),
    { numRuns: 300 },
  );
  // Around the bound: as many copies of a value as just fit, and one more.
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 8 }), spaced, (value, space) => {
      const each = countOf(value);
      const fitting = Math.floor((JSON_COUNT_MAX - 1) / each);
      const text = JSON.stringify(value, undefined, space);
      const copies = (count: number): string => `[${Array(count).fill(text).join(',')}]`;
      return excess(copies(fitting)) === undefined && excess(copies(fitting + 1)) === 'count';
    }),
    { numRuns: 40 },
  );
  t.pass('for all generated values');
  t.end();
});

t.test('FAIR-40 ERR-05: a body and a frame beyond the bounds are refused, and the socket stays open', async (t) => {
  const { port, actor } = await frontOf(t);
  const refusal = async (path: string, body: string): Promise<unknown> => {
    const reply = await ask(port, path, { body });
    return [reply.status, reply.error['code'], reply.error['message']];
  };
  const deep = [400, 'validation', 'body: must be at most 32 levels deep'];
  const many = [400, 'validation', 'body: must have at most 32768 names and values'];
  t.same(await refusal('/api/items/batch', `{"items":${nested(32)}}`), deep);
  t.same(await refusal('/api/items/batch', nested(500_000)), deep);
  t.same(await refusal('/api/ws-ticket', `{"x":${nested(32)}}`), deep);
  t.same(await refusal('/api/devices/bootstrap', nested(4_000)), deep, 'a body without a token is refused too');
  t.same(await refusal('/api/items/batch', `{"items":[${Array(32_764).fill('0').join(',')}],"x":0}`), many);
  t.match(await refusal('/api/items/batch', `{"items":[${Array(32_763).fill('0').join(',')}],"x":0}`), [
    400,
    'validation',
    /1 to 100/,
  ]);
  t.match(
    await refusal('/api/items/batch', `{"items":${nested(31)}}`),
    [200],
    'within the bounds the batch is judged: its item alone is invalid',
  );
  const fits = await ask(port, '/api/items', { body: writeA({ more: JSON.parse(nested(31)) as unknown }) });
  t.equal(fits.status, 200, 'an unknown field may have the full depth');

  const socket = await socketOf(t, port);
  await socket.say({ type: 'hello', since: 0 });
  await socket.say(`{"type":"ping","x":${nested(32)}}`);
  t.same(
    socket.frames.filter(({ type }) => type === 'error'),
    [{ type: 'error', code: 'validation', message: 'frame: must be at most 32 levels deep' }],
  );
  await socket.say(`{"type":"ping","x":${nested(31)}}`);
  t.equal(socket.closeCode, undefined);
  t.equal(actor.version, 1);
});

t.test('FAIR-41: a check stops at the first fault, and unknown fields are not examined', (t) => {
  let looked = 0;
  const watched = (map: Record<string, unknown>): Record<string, unknown> =>
    new Proxy(map, {
      get(target, name) {
        if (typeof name === 'string' && name.startsWith('k')) looked++;
        return Reflect.get(target, name) as unknown;
      },
    });
  const wrong = Object.fromEntries(Array.from({ length: 16_000 }, (_, n) => [`k${n}`, 0]));
  const envelope = { ct: '', nonce: '', keys: watched(wrong) };
  t.throws(() => validateItemBodyA(writeA({ payloadEnc: envelope })), { message: /^payloadEnc\.keys\.k0: must be / });
  t.ok(looked < 10, `${looked} of 16,000 values were examined`);
  looked = 0;
  const body = camelKeys(watched({ ...wrong, bin_id: 'inbox', id: ITEM, BinId: 1, toString: 1, constructor: 1 }));
  t.same(body, { binId: 'inbox', id: ITEM });
  t.equal(looked, 0);
  t.throws(() => validateItemBodyB(body), { message: /^type: required/ });
  t.end();
});

t.test('SHAPE-13: every field is read in snake_case and in camelCase, but not in both at once', async (t) => {
  const source = await readFile(join(PROJECT_ROOT, 'src/protocol/requests.ts'), 'utf8');
  const interfaces = [...source.matchAll(/^export interface (\w+) \{\n([^]*?)^\}/gm)];
  // Shape A has one spelling, a sealed master key has no name of two words, frames are spelled alike.
  const others = /^(ItemBodyA|UploadBodyA|EnvelopeBody|MasterBody|HelloFrame)$/;
  const names = interfaces
    .filter(([, name = '']) => !others.test(name))
    .flatMap(([, , fields = '']) => [...fields.matchAll(/^ {2}(\w+)\??:/gm)].map(([, name = '']) => name));
  t.ok(names.length > 60, `${names.length} fields`);
  for (const name of names) {
    for (const spelling of [name, toSnake(name)]) t.same(camelKeys({ [spelling]: 7 }), { [name]: 7 }, spelling);
    if (toSnake(name) !== name)
      t.throws(() => camelKeys({ [name]: 1, [toSnake(name)]: 1 }), { message: /both spellings/ });
  }
});

type RequireSig = Parameters<typeof readWriteA>[2];

/** Everything that later steps use of a change. */
function contents(change: Change): unknown {
  const { at, end, id, binId, type, ts, ifVersion, blobRef, has, ctBytes, keysBytes, blobKeysBytes, ctText } = change;
  const row = Buffer.from(change.bytes.subarray(at, end)).toString('hex');
  const frame = Buffer.from(frameBytes(new JsonWriter(), 'a', change)).toString();
  return { id, binId, type, ts, ifVersion, blobRef, has, ctBytes, keysBytes, blobKeysBytes, ctText, row, frame };
}

function read(body: Buffer, requireSig: RequireSig): unknown {
  const arena = new Arena(4 * 1024 * 1024);
  const change = readWriteA(arena, body, requireSig);
  return change === undefined || !isWriteMetadata(change) ? undefined : contents(change);
}

function parsed(body: Buffer, requireSig: RequireSig): unknown {
  try {
    const value = parseJson(body, 'body');
    if (!isObject(value)) return undefined;
    return contents(decodeWriteA(new Arena(4 * 1024 * 1024), validateItemBodyA(value), requireSig));
  } catch {
    return undefined;
  }
}

const spelled = (length: number, label: string, spelling: number): string => {
  const text = Buffer.from(bytes(label, length)).toString(spelling % 2 === 0 ? 'base64url' : 'base64');
  return spelling < 2 ? text : text.replace(/=+$/, '');
};

/** Characters that are put into a body at random. */
const PIECES = Array.from('"{}[],:\\ -+/=_.e0179azAZ\n\t\0', (character) => character);

interface Drawn {
  readonly ct: number;
  readonly keys: readonly number[];
  readonly spelling: number;
  readonly sig: boolean;
  readonly master: boolean;
  readonly ifVersion: number | null | undefined;
  readonly nulls: boolean;
  readonly reversed: boolean;
  readonly blanks: number;
}

const drawn: fc.Arbitrary<Drawn> = fc.record({
  ct: fc.integer({ min: 16, max: 300 }),
  keys: fc.uniqueArray(fc.integer({ min: 1, max: 30 }), { minLength: 1, maxLength: 6 }),
  spelling: fc.integer({ min: 0, max: 3 }),
  sig: fc.boolean(),
  master: fc.boolean(),
  ifVersion: fc.constantFrom(undefined, null, 0, 7, 123_456_789),
  nulls: fc.boolean(),
  reversed: fc.boolean(),
  blanks: fc.integer({ min: 0, max: 2 }),
});

const reversed = (members: object): object => Object.fromEntries(Object.entries(members).reverse());

function bodyOf({ ct, keys, spelling, sig, master, ifVersion, nulls, ...more }: Drawn): string {
  const envelope = {
    ct: spelled(ct, 'ct', spelling),
    nonce: spelled(24, 'nonce', spelling),
    keys: Object.fromEntries(keys.map((n) => [deviceId(n), spelled(32 + n, `key ${n}`, spelling)])),
    ...(master ? { master: { nonce: spelled(24, 'mn', spelling), ct: spelled(48, 'mc', spelling) } } : {}),
    ...(nulls && !master ? { master: null } : {}),
    ...(sig ? { sig: spelled(32, 'sig', spelling) } : {}),
    ...(nulls && !sig ? { sig: null } : {}),
  };
  const payloadEnc = more.reversed ? reversed(envelope) : envelope;
  const body = {
    ...{ id: itemId(1), binId: 'inbox', type: 'text', ts: TS, payloadEnc },
    ...(nulls ? { blobRef: null, blobNonce: null, blobKeys: null } : {}),
    ...(ifVersion === undefined ? {} : { ifVersion }),
  };
  return JSON.stringify(more.reversed ? reversed(body) : body, null, more.blanks);
}

t.test('SHAPE-28: a write as JSON serializers produce it is read from its bytes with the parser’s result', (t) => {
  fc.assert(
    fc.property(drawn, fc.constantFrom<RequireSig>('always', 'a', 'never'), (write, requireSig) => {
      const body = Buffer.from(bodyOf(write));
      const expected = parsed(body, requireSig);
      t.strictSame(read(body, requireSig), expected);
      return expected !== undefined || (requireSig !== 'never' && !write.sig);
    }),
    { numRuns: inLongRun(300, 3_000) },
  );
  t.end();
});

t.test('SHAPE-28: a damaged write is left to the parser or read with the parser’s result', (t) => {
  const sample = (): Buffer =>
    Buffer.from(
      bodyOf({
        ...{ ct: 40, keys: [3, 1], spelling: 0, sig: true, master: true, ifVersion: 0 },
        nulls: true,
        reversed: false,
        blanks: 1,
      }),
    );
  const mutation = fc.record({
    at: fc.nat(sample().length - 1),
    kind: fc.constantFrom('replace', 'insert', 'remove', 'cut', 'repeat'),
    bytes: fc.constantFrom(...PIECES, '\\u0041', 'null', 'é', '"sig":null,', '{}', '""'),
    count: fc.integer({ min: 1, max: 60 }),
  });
  let same = 0;
  fc.assert(
    fc.property(fc.array(mutation, { minLength: 1, maxLength: 3 }), (mutations) => {
      let body = sample();
      for (const { at, kind, bytes: given, count } of mutations) {
        const [before, after] = [body.subarray(0, at), body.subarray(at)];
        if (kind === 'replace') body = Buffer.concat([before, Buffer.from(given), after.subarray(given.length)]);
        else if (kind === 'insert') body = Buffer.concat([before, Buffer.from(given), after]);
        else if (kind === 'remove') body = Buffer.concat([before, after.subarray(count)]);
        else if (kind === 'cut') body = Buffer.from(before);
        else body = Buffer.concat([before, after.subarray(0, count), after]);
      }
      const found = read(body, 'a');
      if (found === undefined) return;
      same++;
      t.strictSame(found, parsed(body, 'a'), body.toString('latin1'));
    }),
    { numRuns: inLongRun(3_000, 60_000) },
  );
  t.ok(same > 20, `${same} damaged writes were read from their bytes`);
  t.end();
});

t.test('SHAPE-28: each unusual or invalid spelling of a write is left to the parser', (t) => {
  const plain = bodyOf({
    ct: 40,
    keys: [1, 3],
    spelling: 0,
    sig: true,
    master: true,
    ifVersion: 5,
    nulls: false,
    reversed: false,
    blanks: 0,
  });
  t.not(read(Buffer.from(plain), 'a'), undefined);
  const others: Readonly<Record<string, string>> = {
    'a member that nobody knows': plain.replace('{', '{"more":{"x":[1]},'),
    'a member twice': plain.replace('"binId"', '"binId":"other","binId"'),
    'a null, and then its member': plain.replace('{', '{"binId":null,'),
    'an escape in a text': plain.replace('"inbox"', '"in\\u0062ox"'),
    'an escape in a name': plain.replace('"binId"', '"bin\\u0049d"'),
    'an escape in base64': plain.replace(/"ct":"(.)/, '"ct":"\\u0041'),
    'a device twice': plain.replace(/"keys":\{("[^"]*":"[^"]*")/, '"keys":{$1,$1'),
    'a number with a fraction of nothing': plain.replace('"ifVersion":5', '"ifVersion":5.0'),
    'a number with an exponent': plain.replace('"ifVersion":5', '"ifVersion":5e0'),
    'no device': plain.replace(/"keys":\{[^}]*\}/, '"keys":{}'),
    'minus zero': plain.replace('"ifVersion":5', '"ifVersion":-0'),
  };
  for (const [name, body] of Object.entries(others)) {
    t.not(parsed(Buffer.from(body), 'a'), undefined, `${name}: the parser accepts it`);
    t.equal(read(Buffer.from(body), 'a'), undefined, `${name}: left to the parser`);
  }
  const wrong: Readonly<Record<string, string>> = {
    'a leading zero': plain.replace('"ifVersion":5', '"ifVersion":05'),
    'a comma too many': plain.replace(/\}$/, ',}'),
    'two values': `${plain}{}`,
    'no value': '',
    'a list': `[${plain}]`,
    'an id in lower case': plain.replace(itemId(1), itemId(1).toLowerCase().replace('t', 'a')),
    'a device that is none': plain.replace(deviceId(1), `${deviceId(1).slice(1)}U`),
    'a time in seconds': plain.replace(String(TS), String(TS / 1_000)),
    'a bin that is none': plain.replace('inbox', 'in box'),
    'a type that is none': plain.replace('"text"', '"txt"'),
    'a short nonce': plain.replace(/"nonce":"..../, '"nonce":"'),
    'a long tag': plain.replace('"sig":"', '"sig":"AAAA'),
    'a master without its nonce': plain.replace(/"master":\{"nonce":"[^"]*",/, '"master":{'),
    'no keys': plain.replace(/"keys":\{[^}]*\},/, ''),
    'a master of null': plain.replace(/"master":\{[^}]*\}/, '"master":{"nonce":null,"ct":null}'),
    'a master without its text': plain.replace(/("master":\{"nonce":"[^"]*"),[^}]*/, '$1,"ct":null'),
    'a master that is empty': plain.replace(/"master":\{[^}]*\}/, '"master":{}'),
    'very many nulls': plain.replace('{', `{${'"sig":null,'.repeat(16_500)}`),
    'a text without its end': plain.slice(0, 50),
    'a character of two bytes': plain.replace(/"ct":"./, '"ct":"\u0141'),
  };
  for (const [name, body] of Object.entries(wrong)) {
    t.equal(parsed(Buffer.from(body), 'a'), undefined, `${name}: the parser refuses it`);
    t.equal(read(Buffer.from(body), 'a'), undefined, `${name}: left to the parser, which refuses it`);
  }
  t.equal(
    read(Buffer.from(plain.replace(/,"sig":"[^"]*"/, '')), 'a'),
    undefined,
    'a write without the required tag is left to the parser',
  );
  t.equal(
    read(Buffer.from(plain.replace('{', `{${' '.repeat(300_000)}`)), 'a'),
    undefined,
    'a body of more than 300,000 bytes is left to the parser',
  );
  t.end();
});
