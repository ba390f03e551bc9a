/** Bounds of JSON from outside: its depth, its size, and how much of a bad body is examined. */
import fc from 'fast-check';
import t from 'tap';
import { JSON_COUNT_MAX, JSON_DEPTH_MAX, jsonExcess, type JsonExcess } from '../src/server/http/request.js';
import { camelKeys, toSnake } from '../src/protocol/shape.js';
import { PROJECT_ROOT } from '../src/root.js';
import { validateItemBodyA, validateItemBodyB } from '../src/server/http/validators.js';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ask, frontOf, ITEM, writeA } from './support/front.js';
import { socketOf } from './support/front-sockets.js';

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
