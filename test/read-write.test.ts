/** Writes read from the bytes of their bodies (src/server/tenant/change.ts), compared with parser and validator. */
import fc from 'fast-check';
import t from 'tap';
import { parseJson, isObject } from '../src/server/http/request.js';
import { isWriteMetadata, validateItemBodyA } from '../src/server/http/validators.js';
import { Arena, type Change, readWriteA } from '../src/server/tenant/change.js';
import { decodeWriteA } from '../src/server/tenant/decode.js';
import { frameBytes, JsonWriter } from '../src/server/tenant/codec.js';
import { bytes, deviceId, itemId, TS } from './support/changes.js';
import { inLongRun } from './support/long.js';

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
