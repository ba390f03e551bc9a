/**
 * The reference, compared with what runs: the item, the claim and the pairing that its pages show byte for byte, the
 * schemas of frames, the search and the index A-Z, the alerts, and the OpenAPI documents in the tools that readers use.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { randomBytes } from 'node:crypto';
import { runInNewContext } from 'node:vm';
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { promisify } from 'node:util';
import openapiTS, { astToString, type OpenAPI3 } from 'openapi-typescript';
import t from 'tap';
import { acceptRelease, requestJoin, readPairCode } from '../src/crypto/pairing.js';
import { openItem } from '../src/crypto/item.js';
import { keysOfPhrase } from '../src/crypto/master-key.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { PROJECT_ROOT, REFERENCE_FOLDER, DOCS_FOLDER, SERVER_VERSION } from '../src/root.js';
import { readItem } from '../src/sdk/wire.js';
import type { ItemRowA, ItemRowB, SnakeKey } from '../src/protocol/frames.js';
import type { DeletedRowA, DeletedRowB, LiveRowA, LiveRowB } from '../src/protocol/item-replies.js';
import { frameSchemas } from '../src/docs/frame-schemas.js';
import { find, type Index } from '../src/docs/page/search.js';
import { indexScript, sectionsOf } from '../src/docs/search-index.js';
import { render } from '../src/docs/markdown.js';
import { EXAMPLES } from '../src/docs/examples.js';
import { WIRE_CODES } from '../src/docs/errors-page.js';
import { CONFIG_VARIABLES } from '../src/server/config/config.js';
import { readSources } from '../src/docs/site.js';
import { ERROR_DETAILS, ERROR_NOTES, OPERATOR_NOTES } from '../src/docs/error-notes.js';
import { programOf } from '../src/cli/program.js';
import { loadProgramOf } from '../src/load/program.js';
import { adminProgramOf } from '../src/server/admin/program.js';
import { ALL_ROWS } from '../src/server/app/route-table.js';
import { openApi } from '../src/docs/openapi.js';
import { runServer } from './support/server.js';
import { BODY_A, FIRST, ITEM_SECTION } from './vectors/example.js';
import { transcripts, withSection } from './vectors/transcripts.js';
import { newCode, npkBody, sealedFor, wrapBody, writeBody } from './support/devices.js';
import { flagsOf, leaves } from './support/commands.js';
import { compile } from './support/compile.js';
import { Documented } from './support/documented.js';
import { Scene } from './support/scene.js';
import { SHAPES, type Json, type Shape, type Socket } from './support/wire.js';
import { freePort } from './support/free-port.js';
import { temporaryFolder } from './support/postgres.js';

t.setTimeout(600_000);

const sources = await readSources(DOCS_FOLDER, []);

const page = (name: string): string => readFileSync(join(PROJECT_ROOT, 'src/docs', name), 'utf8');
const HOW = 'else: node build/test/vectors/write-pages.js';

/** The value that a table of the section has under a name. */
const valueOf = (section: string, name: string): string =>
  new RegExp(`^\\| ${name} \\| \`(.+)\` \\|$`, 'm').exec(section)?.[1] ?? '';
const fromHex = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, 'hex'));

t.test('REF-24: the item on the page on Cryptography is built from its values and opens with them', async (t) => {
  t.equal(page('cryptography.md'), withSection(page('cryptography.md'), ITEM_SECTION), HOW);
  const { masterKey } = await keysOfPhrase(nodeSodium, valueOf(ITEM_SECTION, 'phrase'));
  t.equal(Buffer.from(masterKey).toString('hex'), valueOf(ITEM_SECTION, 'master key'));
  const secretKey = fromHex(valueOf(ITEM_SECTION, "device's secret key"));
  const publicKey = fromHex(valueOf(ITEM_SECTION, "device's public key"));
  const item = readItem({ ...BODY_A, version: 1, senderDevice: FIRST.id, deletedAt: null }, 'type');
  if (item.deletedAt !== null) throw new Error('the item is deleted');
  const device = { id: FIRST.id, keys: { publicKey, secretKey } };
  const payload: unknown = JSON.parse(valueOf(ITEM_SECTION, 'payload'));
  t.same(
    openItem(nodeSodium, { ...item, master: null }, { masterKey, device }),
    payload,
    'the device opens the item by its own key',
  );
  t.same(openItem(nodeSodium, item, { masterKey, device: null }), payload, 'the item opens by the master wrap');
});

t.test('REF-25: the transcripts on the page on Pairing are what a server and two devices send', async (t) => {
  const { port } = await runServer(t);
  const { claim, pairing } = await transcripts(`http://127.0.0.1:${port}`);
  const text = page('pairing.md');
  t.equal(text, withSection(withSection(text, claim), pairing), HOW);

  const code = await readPairCode(nodeSodium, valueOf(pairing, 'visible words'));
  t.equal(code.wireCode, valueOf(pairing, 'wire code'));
  const field = (name: string): string => new RegExp(`"${name}": "([^"]+)"`).exec(pairing)?.[1] ?? '';
  const wire = (name: string): Uint8Array => new Uint8Array(Buffer.from(field(name), 'base64url'));
  const keys = { publicKey: wire('pubkey'), secretKey: fromHex(valueOf(pairing, "N's device secret key")) };
  const device = { id: field('deviceId'), keys, name: field('name'), glyph: field('glyph') };
  const { link, attestation } = requestJoin(nodeSodium, { code, host: field('host'), epk: wire('epk'), device });
  t.equal(Buffer.from(attestation).toString('base64url'), field('attestation'));
  t.equal(link.digits, valueOf(pairing, 'digits'));
  const release = {
    wrappedMasterKey: wire('wrappedMasterKey'),
    deviceCert: wire('deviceCert'),
    confirmation: wire('confirmation'),
  };
  const master = acceptRelease(nodeSodium, link, {
    device: { id: device.id, publicKey: keys.publicKey },
    release,
    keys,
  });
  t.equal(
    Buffer.from(master).toString('hex'),
    valueOf(ITEM_SECTION, 'master key'),
    'N receives the master key of the phrase',
  );
});

/** Compiles only while the documented rows have the keys that the encoders must write. */
type Fits<Documented extends Encoded, Encoded> = Documented;
export type RowsFit = [
  Fits<LiveRowA | DeletedRowA, ItemRowA>,
  Fits<SnakeKey<keyof LiveRowB | keyof DeletedRowB>, keyof ItemRowB>,
  Fits<keyof ItemRowB, SnakeKey<keyof LiveRowB & keyof DeletedRowB>>,
];

/** Causes every kind of frame once; returns a socket that received them all. */
async function everyFrame(scene: Scene, shape: Shape): Promise<Socket> {
  const { wire, first, second } = scene;
  const socket = await wire.connect({ token: first.token, shape });
  // Before `hello`, so that the replay has a delete without a tag.
  const gone = await scene.written();
  await wire.delete(`/items/${gone.id}`, scene.as('a'));
  await socket.hello(0, { acks: true, epoch: 'another' });
  const code = newCode();
  await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, scene.as('a'));
  const held = wire.post('/devices/pair-fetch-npk', npkBody(code, { host: null }), { shape: 'a' });
  await socket.next('pair_request');
  await wire.post('/devices/pair-wrap', wrapBody(code, { deviceCert: null }), scene.as('a'));
  const joined = (await held).text('device.id');
  await socket.next('device_joined');
  const keys = sealedFor(first.id, second.id, joined);
  const item = scene.item({ keys });
  await wire.post('/items', writeBody('a', item), scene.as('a', second));
  await socket.next('item');
  const bare = { ...writeBody('b', scene.item({ keys, master: null, sig: null })) };
  await wire.post('/items', bare, scene.as('b', second));
  await socket.next('item');
  await wire.delete(`/items/${item.id}`, { ...scene.as('a', second), body: { sig: randomBytes(32) } });
  await socket.next('delete');
  await wire.post('/items', writeBody('a', scene.item({ keys })), scene.as('a'));
  await socket.next('ack');
  await wire.post(`/devices/${joined}/revoke`, {}, scene.as('a'));
  await socket.next('device_revoked');
  await wire.post('/bins', { id: 'framed', meta: randomBytes(9) }, scene.as('a'));
  await socket.next('bin');
  await wire.delete('/bins/framed', scene.as('a'));
  await socket.next('bin');
  socket.send({ type: 'ping' });
  await socket.next('pong');
  await socket.next('ping');
  if (shape === 'a') {
    socket.send({ type: 'nonsense' });
    await socket.next('error');
  }
  return socket;
}

for (const shape of SHAPES) {
  t.test(`REF-10: every frame matches its documented schema, in ${shape}`, async (t) => {
    const scene = await Scene.start(t, { env: { WS_PING_INTERVAL_MS: '100' } });
    const served = await scene.wire.get(`//docs/frames-${shape}.json`);
    t.same(served.body, frameSchemas(shape));
    const documented = new Documented(served.body as Json);
    const socket = await everyFrame(scene, shape);
    for (const frame of socket.frames) {
      t.equal(documented.faults(['properties', 'server'], frame), '', JSON.stringify(frame).slice(0, 300));
    }
    const kinds = new Set(socket.frames.map((frame) => `${String(frame['type'])}${'bin' in frame ? ' made' : ''}`));
    const all = ['item', 'delete', 'ack', 'caught_up', 'reset', 'bin made', 'bin', 'device_joined', 'device_revoked'];
    const expected = [...all, 'pair_request', 'ping', 'pong', ...(shape === 'a' ? ['error'] : [])];
    t.same([...kinds].sort(), expected.sort(), 'every kind of frame was received');
    await socket.close();
  });

  t.test(`REF-10: the schema accepts what a client may send and nothing else, in ${shape}`, (t) => {
    const documented = new Documented(frameSchemas(shape));
    const faults = (frame: Json): string => documented.faults(['properties', 'client'], frame);
    for (const frame of [
      { type: 'hello', since: 0 },
      { type: 'hello', since: 7, epoch: 'e', acks: true },
    ]) {
      t.equal(faults(frame), '');
    }
    t.equal(faults({ type: 'ping' }), '');
    t.equal(faults({ type: 'pong' }), '');
    t.not(faults({ type: 'hello' }), '');
    t.not(faults({ type: 'hello', since: -1 }), '');
    t.not(faults({ type: 'item' }), '');
    t.end();
  });
}

const SAVED = join(REFERENCE_FOLDER, 'saved');
const textOf = (name: string): string => readFileSync(join(SAVED, name), 'utf8');

/** The index as a page gets it: by running the script. */
function built(script: string): Index {
  const scope: { referenceIndex?: Index } = {};
  runInNewContext(script, { globalThis: scope });
  return scope.referenceIndex ?? [];
}

const index = built(textOf('search-index.js'));
const best = (query: string): string => {
  const [hit] = find(index, query, 1);
  return hit === undefined ? '' : `${hit.page}#${hit.anchor}`;
};

t.test('REF-21: an error, endpoint, variable or command that is searched by its name is found first', (t) => {
  for (const code of WIRE_CODES) t.match(best(code), new RegExp(`^(?:errors|error-${code})#${code}$`), code);
  for (const key of Object.keys(EXAMPLES)) {
    const [method = '', path = ''] = key.replaceAll(/:([a-z]+)/g, '{$1}').split(' ');
    t.match(best(`${method} ${path}`), /^endpoints-[a-z]+#/, key);
  }
  t.match(best('METRICS_PORT'), /^(?:configuration|alert)/);
  t.match(best('restore'), /^operating#restore$/);
  t.match(best('twelve words'), /#/);
  t.end();
});

t.test('REF-21: every word of a query must occur, case and accents do not matter, the excerpt shows the match', (t) => {
  const pages = [
    {
      name: 'p',
      title: 'Page',
      sections: sectionsOf(render('# Page\n\n## Café\n\nA `long_name` & <more>.\n\n## Tea\n\nOnly tea.').html),
    },
  ];
  const own = built(indexScript(pages));
  t.same(
    find(own, 'CAFE', 9).map(({ anchor }) => anchor),
    ['café'],
  );
  t.same(
    find(own, 'tea only', 9).map(({ heading }) => heading),
    ['Tea'],
  );
  t.same(find(own, 'tea coffee', 9), [], 'a query finds nothing where one of its words is missing');
  t.same(find(own, '  ', 9), []);
  const [hit] = find(own, 'long_name', 9);
  t.same(hit?.excerpt, ['A ', 'long_name', ' & <more>.']);
  // The query is never read as a pattern, and the excerpt of a long text is short.
  t.same(find(own, '.* (', 9), []);
  const long = built(
    indexScript([
      {
        name: 'l',
        title: 'L',
        sections: sectionsOf(render(`# L\n\n${'word '.repeat(500)}needle ${'word '.repeat(500)}`).html),
      },
    ]),
  );
  const shown = find(long, 'needle', 1)[0]?.excerpt.join('') ?? '';
  t.match(shown, /^… .*needle.* …$/);
  t.ok(shown.length < 300);
  t.end();
});

t.test('REF-21: the index A-Z has each heading, endpoint, error, variable, command, option, without a script', (t) => {
  const none = () => async () => undefined;
  const html = textOf('index-a-z.html').replaceAll('<wbr>', '');
  const has = (term: string): void => {
    t.ok(
      html.includes(
        `>${term.replaceAll('&', '&amp;').replaceAll("'", '&#39;').replaceAll('"', '&quot;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')}</a>`,
      ),
      term,
    );
  };
  for (const [, , sections] of index) for (const [, heading] of sections) if (heading !== '') has(heading);
  for (const code of WIRE_CODES) has(code);
  for (const { name } of CONFIG_VARIABLES) has(name);
  for (const key of Object.keys(EXAMPLES)) has(key.replaceAll(/:([a-z]+)/g, '{$1}'));
  for (const command of ['backup <file>', 'verify [file]', 'check-storage', 'claim [url]']) has(command);
  for (const program of [adminProgramOf(none), programOf(none), loadProgramOf(none)]) {
    const commands = leaves(program);
    for (const { path } of commands) t.match(html, new RegExp(`>${path}(?:</a>| [[&])`), path);
    for (const command of [program, ...commands.map((leaf) => leaf.command)])
      for (const flag of flagsOf(command)) t.match(html, new RegExp(`>${flag}(?:</a>| )`), `${command.name()} ${flag}`);
  }
  t.match(textOf('http.html'), '<a class="az-link" href="index-a-z.html">');
  t.end();
});

const pages = new Map(sources.map(({ name, markdown }) => [name, markdown]));
const night = sources.filter(({ parent, name }) => parent === 'alerts' || name === 'alerts').map(({ name }) => name);

interface Alert {
  readonly name: string;
  readonly severity: string;
  readonly runbook: string;
}

const alerts = readFileSync(join(PROJECT_ROOT, 'deploy/prometheus/alerts.yml'), 'utf8')
  .split(/^ +- alert: /m)
  .slice(1)
  .map((text): Alert => ({
    name: /^\w+/.exec(text)?.[0] ?? '',
    severity: /severity: (\w+)/.exec(text)?.[1] ?? '',
    runbook: /runbook_url: (\S+)/.exec(text)?.[1] ?? '',
  }));

t.test('REF-20: every alert has its page with severity and three sections, and every page has its alert', (t) => {
  t.ok(alerts.length >= 7);
  for (const { name, severity, runbook } of alerts) {
    const page = runbook.replace(/^\/docs\//, '');
    const text = pages.get(page) ?? '';
    t.match(text, `The alert \`${name}\`.`, name);
    t.match(text, `Severity: ${severity}.`, name);
    const headings = render(text).headings.map((heading) => heading.text);
    t.same(headings.slice(1), ['First', 'Do not', 'It is over when'], name);
    t.match(pages.get('alerts'), `| [\`${name}\`](${page}.md) | ${severity} |`, `${name} is in the table`);
  }
  const named = alerts.map(({ runbook }) => runbook.replace('/docs/', ''));
  t.same([...night].sort(), ['alerts', ...named].sort());
  t.end();
});

/** Programs that a server's machine has. */
const PROGRAMS: ReadonlySet<string> = new Set([
  'systemctl',
  'journalctl',
  'curl',
  'df',
  'uptime',
  'nproc',
  'service-admin',
  'grep',
  'tail',
  'ss',
  'date',
  'docker',
]);

t.test('REF-20: the commands, options, metrics and variables on these pages exist', async (t) => {
  const port = await freePort();
  await runServer(t, { env: { METRICS_PORT: String(port) } });
  const scraped = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  const operating = pages.get('operating') ?? '';
  const configuration = pages.get('configuration') ?? '';
  const notes = [ERROR_NOTES, ERROR_DETAILS, OPERATOR_NOTES].flatMap((all) => Object.entries(all));
  const texts = [...night.map((name) => [name, pages.get(name) ?? ''] as const), ...notes];
  for (const [name, text] of texts) {
    const blocks = [...text.matchAll(/^ {4}(\S.*)$/gm)].map(([, line = '']) => line);
    for (const line of blocks) {
      for (const part of line.split(' | ')) t.ok(PROGRAMS.has(part.split(' ', 1)[0] ?? ''), `${name}: ${part}`);
    }
    for (const [, command = ''] of text.matchAll(/service-admin ([a-z-]+(?: (?:list|activate|suspend|delete)\b)?)/g))
      t.match(operating, `| \`${command}`, `${name}: service-admin ${command}`);
    for (const [metric] of text.matchAll(/\b(?:service|nodejs|process)_[a-z0-9]+_[a-z0-9_]+/g)) {
      const family = metric.replace(/_(?:sum|count|bucket)$/, '').replace(/_$/, '');
      t.ok(scraped.includes(family), `${name}: ${metric}`);
    }
    for (const [, variable = ''] of text.matchAll(/`([A-Z]+(?:_[A-Z]+)+)`/g))
      t.match(configuration, `| \`${variable}\``, `${name}: ${variable}`);
  }
});

const run = promisify(execFile);
const documentOf = (shape: Shape) => openApi(shape, ALL_ROWS, SERVER_VERSION);

/** What the linter reports about each file, as `severity rule: message`. It sends nothing over the network. */
async function lint(paths: readonly string[]): Promise<string[][]> {
  const program = createRequire(import.meta.url)
    .resolve('@redocly/cli/package.json')
    .replace('package.json', 'bin/cli.js');
  const args = [program, 'lint', '--extends', 'recommended', '--format', 'json', ...paths];
  const env = { ...process.env, CI: 'true', REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' };
  // It exits with 1 where it finds an error, and reports on standard output.
  const { stdout = '' } = await run(process.execPath, args, { env, cwd: PROJECT_ROOT }).catch(
    (error: unknown) => error as { readonly stdout?: string },
  );
  // One document after the other.
  return stdout.split(/(?<=\n\})\s*(?=\{\n)/).map((text) => {
    const { problems } = JSON.parse(text) as { problems: { ruleId: string; severity: string; message: string }[] };
    return problems.map(({ ruleId, severity, message }) => `${severity} ${ruleId}: ${message}`);
  });
}

t.test("REF-14: Redocly's recommended rules find nothing in either document", async (t) => {
  const folder = await temporaryFolder(t);
  const a = documentOf('a') as { readonly paths: Record<string, unknown> };
  const twice = { ...a, paths: { ...a.paths, '/docs/': a.paths['/docs'] } };
  const files = [];
  for (const [name, document] of Object.entries({ a, b: documentOf('b'), twice })) {
    files.push(join(folder, `openapi-${name}.json`));
    await writeFile(files.at(-1) ?? '', JSON.stringify(document));
  }
  const [ofA, ofB, ofTwice] = await lint(files);
  t.same([ofA, ofB], [[], []]);
  const found = ofTwice?.join('\n');
  t.match(found, /error operation-operationId-unique/, 'the linter detects a duplicate operation');
  t.match(found, /error no-path-trailing-slash/);
});

/** A program that uses the types as a client would: a field that is not in the document must not compile. */
const USE: Readonly<Record<Shape, string>> = {
  a: `import type { components, operations, paths } from './openapi-a.js';
type Reply = paths['/api/me']['get']['responses'][200]['content']['application/json'];
export const device = (me: Reply): string => me.device.id;
export const bin: components['schemas']['BinId'] = 'inbox';
export type Docs = operations['get_docs'];
// @ts-expect-error no such field
export const none = (me: Reply): unknown => me.nothing;
`,
  b: `import type { components, paths } from './openapi-b.js';
type Reply = paths['/api/me']['get']['responses'][200]['content']['application/json'];
export const device = (me: Reply): number => me.device.paired_at;
export const bin: components['schemas']['BinId'] = 'inbox';
// @ts-expect-error no such field
export const none = (me: Reply): unknown => me.nothing;
`,
};

t.test('REF-15: the types generated from both documents compile, and so does code that uses them', async (t) => {
  const folder = await temporaryFolder(t);
  await writeFile(join(folder, 'package.json'), '{ "type": "module" }');
  const roots: string[] = [];
  for (const shape of SHAPES) {
    const types = astToString(await openapiTS(documentOf(shape) as unknown as OpenAPI3));
    for (const [name, text] of [
      [`openapi-${shape}.ts`, types],
      [`use-${shape}.ts`, USE[shape]],
    ] as const) {
      roots.push(join(folder, name));
      await writeFile(join(folder, name), text);
    }
  }
  const config = await readFile(join(PROJECT_ROOT, 'tsconfig.json'), 'utf8');
  const { compilerOptions } = JSON.parse(config) as { compilerOptions: object };
  const of = { rootDir: folder, types: [], incremental: false, tsBuildInfoFile: undefined, noEmit: true };
  t.same(await compile(roots, { ...compilerOptions, ...of }), []);
});
