/**
 * What an application uses of the client: the identity that it saves for a device, payloads, and the developer's guide,
 * whose examples compile and whose tables are complete.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import ts from 'typescript';
import t from 'tap';
import { Device } from '../src/sdk/device.js';
import { SavableIdentity } from '../src/sdk/identity.js';
import { PayloadError } from '../src/sdk/payloads/shapes.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import type { PutRequest } from '../src/sdk/writer.js';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { REASONS } from '../src/sdk/reasons.js';
import { SEARCHED } from '../src/sdk/query.js';
import { PROJECT_ROOT } from '../src/root.js';
import { fakeFetch, fakeSockets, newIdentity } from './support/client.js';
import { note, refusal, wiretap, world } from './support/client-world.js';
import { TestClock } from './support/clock.js';
import { compile, FOR_MODULES } from './support/compile.js';
import * as browserEntry from '../src/sdk/browser.js';
import * as nodeEntry from '../src/sdk/node.js';

t.test('SDK-28: an identity survives a round trip through JSON, and the device opens again', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.put(note('kept'));
  const identity = first.identity();
  const saved = JSON.stringify(identity);
  for (const back of [
    SavableIdentity.parse(saved),
    SavableIdentity.parse(JSON.parse(saved)),
    SavableIdentity.parse(SavableIdentity.of(identity).toJSON()),
  ]) {
    t.same(back, identity);
    t.equal(JSON.stringify(back), saved);
    const again = await all.open(back, { store: new MemoryStore() });
    await again.device.pull();
    t.match(await again.device.list(), [{ payload: { text: 'kept' } }]);
  }
  t.match(JSON.parse(saved), { format: 'service-identity', version: 1 });
});

t.test('SDK-28: a renewed token is delivered in an identity that can be saved', async (t) => {
  const tap = wiretap();
  const all = await world(t, { tap });
  const { first } = all;
  const kept: SavableIdentity[] = [];
  const identity = SavableIdentity.of({ ...first.identity(), token: { text: 'over', expiresAt: null } });
  const device = await Device.open({
    platform: tap.platform,
    identity,
    onIdentity: (next) => kept.push(next),
    onProblem: (error) => t.fail(error.message),
  });
  await device.me();
  device.close();
  t.match(SavableIdentity.parse(JSON.stringify(kept.at(-1))), { deviceId: first.device.id });
  t.not(kept.at(-1)?.token.text, 'over');
});

t.test('SDK-28: anything but a saved identity is refused with the field at fault, and not quoted', async (t) => {
  const good = SavableIdentity.of(newIdentity()).toJSON();
  const secret = good.secretKey;
  const bad: readonly (readonly [unknown, RegExp])[] = [
    ['', /JSON/],
    [`{"secretKey":"${secret}`, /JSON/],
    [null, /object/],
    [[], /object/],
    [7, /object/],
    [{}, /format/],
    [{ ...good, format: 'other' }, /format/],
    [{ ...good, version: 2 }, /version/],
    [{ ...good, secretKey: secret.slice(1) }, /secretKey/],
    [{ ...good, secretKey: undefined }, /secretKey/],
    [{ ...good, masterKey: { 0: 1 } }, /masterKey/],
    [{ ...good, serverUrl: 'ftp://x' }, /serverUrl/],
    [{ ...good, serverUrl: 'nowhere' }, /serverUrl/],
    [{ ...good, glyph: 'toaster' }, /glyph/],
    [{ ...good, token: secret }, /token/],
    [{ ...good, token: { text: 'not a token\n' } }, /token/],
  ];
  for (const [saved, message] of bad) {
    t.throws(() => SavableIdentity.parse(saved), { name: 'ClientError', code: 'bad_identity', message });
    t.throws(() => SavableIdentity.parse(JSON.stringify(saved)), { code: 'bad_identity' });
  }
  fc.assert(
    fc.property(fc.anything(), (anything) => {
      try {
        SavableIdentity.parse(anything);
        return false;
      } catch (error) {
        return (
          error instanceof Error &&
          (error as { code?: unknown }).code === 'bad_identity' &&
          !error.message.includes(secret)
        );
      }
    }),
  );
  // What JSON makes of an identity's bytes without `SavableIdentity`: the second start of a program that saved them so.
  const { keys, masterKey, ...rest } = newIdentity();
  const plain = JSON.parse(JSON.stringify({ ...rest, keys, masterKey })) as never;
  const platform = { sodium: nodeSodium, fetch, sockets: fakeSockets().port, clock: new TestClock(), random: () => 0 };
  for (const identity of [plain, good as never, null as never, {} as never]) {
    const error = await refusal(Device.open({ platform, identity, onProblem: () => undefined }));
    t.match(error, { name: 'ClientError', code: 'bad_identity' });
  }
});

t.test(
  'SDK-29: an unknown type or a payload of another shape is refused before anything is sent or kept',
  async (t) => {
    const { fetch: asked, requests } = fakeFetch(() => ({ body: {} }));
    const store = new MemoryStore();
    const platform = {
      sodium: nodeSodium,
      fetch: asked,
      sockets: fakeSockets().port,
      clock: new TestClock(),
      random: () => 0,
    };
    const device = await Device.open({ platform, identity: newIdentity(), store, onProblem: () => undefined });
    const bytes = (json: string): Uint8Array => new TextEncoder().encode(json);
    const cases: readonly (readonly [type: unknown, payload: unknown, path: string, rule: RegExp])[] = [
      ['txt', { text: 'x' }, 'type', /one of password, link, text/],
      [undefined, { text: 'x' }, 'type', /one of/],
      ['__proto__', { text: 'x' }, 'type', /one of/],
      [{}, { text: 'x' }, 'type', /one of/],
      ['text', { text: 1 }, 'payload.text', /text/],
      ['text', { text: {} }, 'payload.text', /text/],
      ['text', {}, 'payload.text', /missing/],
      ['text', { text: '' }, 'payload.text', /missing/],
      ['text', { txt: 'x' }, 'payload.txt', /no field/],
      ['text', { text: 'x', colour: 'red' }, 'payload.colour', /no field/],
      ['text', JSON.parse('{"text":"x","__proto__":{}}'), 'payload.__proto__', /no field/],
      ['text', 'x', 'payload', /object/],
      ['text', null, 'payload', /object/],
      ['text', undefined, 'payload', /object/],
      ['text', [], 'payload', /object/],
      ['text', bytes('{"text":7}'), 'payload.text', /text/],
      ['link', { url: 'nowhere' }, 'payload.url', /address/],
      ['location', {}, 'payload', /name, an address/],
      ['location', { lat: 91, lng: 0 }, 'payload.lat', /90/],
      ['location', { lat: 1 }, 'payload.lng', /together/],
      ['file', { name: 'a', size: '1' }, 'payload.size', /number/],
      ['file', { name: 'a', size: NaN }, 'payload.size', /number/],
    ];
    for (const [type, payload, path, rule] of cases) {
      const error = await refusal(device.put({ binId: 'inbox', type, payload } as PutRequest));
      t.ok(error instanceof PayloadError, `${path}: ${error.message}`);
      t.match(error, { code: 'bad_payload', path, rule });
    }
    t.match(await refusal(device.put({ binId: 'inbox', type: 'text', payload: bytes('no JSON') })), {
      name: 'CryptoRefusal',
      reason: 'bad_payload',
    });
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...CONTENT_TYPES), fc.anything(), async (type, payload) => {
        const error = await refusal(device.put({ binId: 'inbox', type, payload } as PutRequest));
        return error instanceof PayloadError;
      }),
    );
    t.same(requests, [], 'nothing was requested');
    t.same(await store.pending(), [], 'nothing is kept');
    device.close();
  },
);

t.test("SDK-29: a payload of its type's shape is written as given; undefined fields are omitted", async (t) => {
  const { first } = await world(t);
  const put = async (type: PutRequest['type'], payload: Record<string, unknown>, asIs?: boolean) => {
    const { id } = await first.device.put({ binId: 'inbox', type, payload, asIs });
    return (await first.device.get(id))?.payload;
  };
  t.same(await put('link', { url: 'https://a.example', title: undefined }), { url: 'https://a.example' });
  t.same(await put('location', { lat: 0, lng: -180 }), { lat: 0, lng: -180 });
  const another = { text: 'x', of: { another: ['form'] } };
  t.same(await put('text', another, true), another);
  const { id } = await first.device.put({ binId: 'inbox', type: 'text', payload: another, asIs: true });
  await first.device.put({ id, binId: 'inbox', type: 'text', payload: { ...another, text: 'y' } });
  t.match(
    await first.device.get(id),
    { payload: { text: 'y', of: { another: ['form'] } } },
    'the fields that it has may stay',
  );
  const more = { id, binId: 'inbox', type: 'text', payload: { text: 'y', colour: 'red' } } as const;
  t.match(await refusal(first.device.put(more)), { path: 'payload.colour' });
});

t.test(
  'CLIENT-55: changes to one item are made in the order of the calls, however long the store takes for each',
  async (t) => {
    const all = await world(t);
    const store = new MemoryStore();
    const { device } = await all.open(all.first.identity(), { store });
    const { id } = await device.put(note('first'));
    const get = store.get.bind(store);
    // The earlier the call, the later the answer.
    let turns = 100;
    store.get = async (asked) => {
      for (let turn = (turns -= 20); turn > 0; turn--) await new Promise((resolve) => setImmediate(resolve));
      return get(asked);
    };
    const texts = ['one', 'two', 'three'];
    const edits = texts.map((text) => device.put({ ...note(text), id }));
    const gone = device.delete(id);
    const versions = (await Promise.all([...edits, gone])).map(({ version }) => version);
    t.same(
      versions,
      versions.toSorted((one, other) => one - other),
    );
    t.equal(new Set(versions).size, 4);
  },
);

t.test('SDK-30: the names of the other platform are exported, and throw `wrong_platform` when called', async (t) => {
  const wrong = { name: 'ClientError', code: 'wrong_platform' };
  t.throws(() => nodeEntry.browserPlatform(), wrong);
  t.throws(() => nodeEntry.openBrowserStore('notes', { tenantId: 't', deviceId: 'd' }), wrong);
  t.throws(() => browserEntry.nodePlatform(), wrong);
  t.throws(() => browserEntry.openNodeStore('/tmp', { tenantId: 't', deviceId: 'd' }), wrong);
  t.same(Object.keys(nodeEntry).sort(), Object.keys(browserEntry).sort());
});

const guide = readFileSync(join(PROJECT_ROOT, 'src/docs/sdk.md'), 'utf8');
const source = (name: string): string => readFileSync(join(PROJECT_ROOT, 'src/sdk', name), 'utf8');

interface Snippet {
  readonly where: 'node' | 'browser';
  readonly line: number;
  readonly code: string;
}

const snippets: readonly Snippet[] = [...guide.matchAll(/^```ts( browser)?\n(.*?)^```$/gms)].map((match) => ({
  where: match[1] === undefined ? 'node' : 'browser',
  line: guide.slice(0, match.index).split('\n').length,
  code: match[2] ?? '',
}));

/** Each example is a module of its own; the one name that they share is the device. */
const moduleOf = ({ code }: Snippet): string =>
  `import type { Device as OpenDevice } from '@service/client';\ndeclare const device: OpenDevice;\n` +
  `${/\bdevice\b/.test(code) ? '' : 'void device;\n'}export {};\n${code}`;

async function problemsOf(where: Snippet['where'], folder: string): Promise<string[]> {
  const files = snippets.flatMap((snippet) => {
    if (snippet.where !== where) return [];
    const file = join(folder, `guide-line-${snippet.line}.ts`);
    writeFileSync(file, moduleOf(snippet));
    return [file];
  });
  const paths = { '@service/client': [join(PROJECT_ROOT, `build/src/sdk/${where}.d.ts`)] };
  return compile(files, { ...FOR_MODULES, noEmit: true, types: [], paths });
}

t.test('SDK-23: every example of the guide compiles against the package’s entry', async (t) => {
  const folder = mkdtempSync(join(PROJECT_ROOT, 'build', 'guide-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
  t.ok(snippets.length >= 12, `${snippets.length} examples were found`);
  t.same(await problemsOf('node', folder), []);
  t.same(await problemsOf('browser', folder), []);
});

/** The names that an entry exports, types included. */
function namesOf(where: Snippet['where']): string[] {
  const entry = join(PROJECT_ROOT, `build/src/sdk/${where}.d.ts`);
  const program = ts.createProgram([entry], { noEmit: true, skipLibCheck: true, types: [], noLib: true });
  const file = program.getSourceFile(entry);
  const symbol = file === undefined ? undefined : program.getTypeChecker().getSymbolAtLocation(file);
  return symbol === undefined
    ? []
    : program
        .getTypeChecker()
        .getExportsOfModule(symbol)
        .map(({ name }) => name)
        .sort();
}

t.test('SDK-25 SDK-30: both entries export the same names, among them every name in the guide', (t) => {
  const common = namesOf('node');
  for (const name of ['nodePlatform', 'openNodeStore', 'browserPlatform', 'openBrowserStore', 'OpenedBrowserStore'])
    t.ok(common.includes(name), name);
  t.same(namesOf('browser'), common);
  // Settings of the server and names of the language, which are not the library's.
  const others = new Set(['BOOTSTRAP_TOKEN', 'CORS_ORIGINS', 'RangeError']);
  const named = [
    ...guide.matchAll(
      /`([A-Z][A-Za-z]*[a-z][A-Za-z]*|[A-Z]+(?:_[A-Z]+)+|REASONS|SEARCHED|\w+(?=\([^`]*\)`))(?:\([^`]*\))?`/g,
    ),
  ]
    .map((match) => match[1] ?? '')
    .filter((name) => /^[A-Z]/.test(name) && !others.has(name));
  t.ok(named.includes('ApiError') && named.includes('REASONS') && named.includes('DeviceStatus'));
  t.same(
    [...new Set(named)].filter((name) => !common.includes(name)),
    [],
  );
  t.end();
});

/** Names in back quotes in one cell, by default the first, of each table row in the section under a heading. */
function firstCells(heading: string, cell = 0): string[] {
  const section = guide.split(/^## /m).find((part) => part.startsWith(`${heading}\n`)) ?? '';
  const rows = section.split('\n').filter((row) => row.startsWith('| `'));
  return rows.flatMap((row) => [...(row.split(' | ')[cell] ?? '').matchAll(/`(\w+)`/g)].map((match) => match[1] ?? ''));
}

t.test('SDK-24: the guide’s tables name every event, reason, error code and searched content type', (t) => {
  const events = /interface DeviceEvents \{(.*?)^\}/ms.exec(source('events.ts'))?.[1] ?? '';
  const names = [...events.matchAll(/^ {2}readonly (\w+):/gm)].map((match) => match[1] ?? '');
  t.ok(names.length > 15);
  t.same(firstCells('Events').sort(), names.sort());
  t.same(firstCells('Reasons').sort(), Object.keys(REASONS).sort());
  for (const { meaning, whatToDo } of Object.values(REASONS)) {
    t.ok(guide.includes(meaning), meaning);
    t.ok(guide.includes(whatToDo), whatToDo);
  }
  t.same(
    firstCells('Live queries')
      .filter((name) => Object.hasOwn(SEARCHED, name))
      .sort(),
    Object.keys(SEARCHED).sort(),
  );
  const codes = firstCells('Errors', 1);
  for (const union of ['ClientFailure', 'PairingFailure', 'ProtocolFault']) {
    const body = new RegExp(`type ${union} =(.*?);`, 's').exec(source('errors.ts'))?.[1] ?? '';
    const known = [...body.matchAll(/\| '(\w+)'/g)].map((match) => match[1] ?? '');
    t.ok(known.length > 5, union);
    t.same(
      known.filter((code) => !codes.includes(code)),
      [],
      union,
    );
  }
  t.end();
});
