/** The conformance kit against our own server (the reference, Conformance). */
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';
import { CASES } from './conformance/cases/all.js';
import { runKit, type KitOptions, type Result } from './conformance/kit.js';
import { outsideReason, RULES_OUTSIDE } from './conformance/outside.js';
import { parseRules, readRules } from './conformance/rules.js';
import { command } from './conformance/run.js';
import { TestClock } from './support/clock.js';
import { claim, mustWrite, newItem } from './support/devices.js';
import { HttpProxy } from './support/doctor.js';
import { ADMIN_TOKEN, runServer, type Running } from './support/server.js';

const urlOf = (server: Running): string => `http://127.0.0.1:${server.port}`;
const quiet = { LOG_LEVEL: 'error' };

const of = (results: readonly Result[], ...kinds: readonly Result['kind'][]): Result[] =>
  results.filter(({ kind }) => kinds.includes(kind));
const told = (results: readonly Result[]): string[] => results.map(({ id, text }) => `${id}: ${text}`);

/** The number of rules that must pass at least in a run of either shape, so that it cannot pass by skipping. */
const EXPECTED = 250;

/** The rules that our server has passed in one of the runs below. */
const passed = new Set<string>();
const run = async (options: KitOptions): Promise<Result[]> => {
  const results = await runKit(options);
  for (const { id } of of(results, 'pass')) passed.add(id);
  return results;
};

/** Rules whose cases take seconds of a processor and are the same in both shapes: one of the two runs is enough. */
const HEAVY = /^(RATE-|PASS-13|PASS-14|ERR-11|ERR-12|ERR-15|BATCH-05|HTTP-1[0-2]|WS-25)/;

const BLOBS: readonly string[] = ['ITEM-18', 'ITEM-19', 'ITEM-27', 'ITEM-30', 'ITEM-31', 'SHAPE-19', 'SHAPE-20'];

for (const shape of ['a', 'b'] as const) {
  t.test(`CONF-02 CONF-09: our server passes, with WIRE_SHAPE=${shape}`, async (t) => {
    const server = await runServer(t, { env: { ...quiet, WIRE_SHAPE: shape } });
    const options: KitOptions = { url: urlOf(server), shapes: [shape], adminToken: ADMIN_TOKEN };
    const ids = readRules().flatMap(({ id }) => (shape === 'b' && HEAVY.test(id) ? [] : [id]));
    const results = await run({ ...options, only: ids, reversed: shape === 'b' });
    t.same(told(of(results, 'fail')), []);
    t.ok(of(results, 'pass').length >= EXPECTED, `${of(results, 'pass').length} rules passed`);
    t.equal(results.length, ids.length);
    const blobs = results.filter(({ id, kind }) => BLOBS.includes(id) && kind === 'pass');
    t.equal(blobs.length, BLOBS.length, 'none of the rules of blobs was skipped');
    const left = await runKit({ ...options, only: ['STAT', 'BIN-01'] });
    t.same(told(of(left, 'fail')), [], 'the tenant is usable after it');
  });
}

/** Settings under which rules can be checked that cannot be checked otherwise. */
const SETTINGS: readonly (readonly [
  string,
  Readonly<Record<string, string>>,
  Partial<KitOptions>,
  readonly string[],
])[] = [
  [
    'a claim token and an origin',
    { BOOTSTRAP_TOKEN: 'open-sesame', CORS_ORIGINS: 'https://app.example' },
    { claimToken: 'open-sesame', corsOrigin: 'https://app.example' },
    ['HTTP-07', 'HTTP-08', 'BOOT-01', 'BOOT-03', 'BOOT-05'],
  ],
  ['a storage cap', { STORAGE_CAP_BYTES: '600000' }, {}, ['ITEM-39', 'ITEM-40', 'RETRY-11']],
  ['REQUIRE_SIG=always', { REQUIRE_SIG: 'always' }, {}, ['ITEM-23']],
  ['REQUIRE_SIG=never', { REQUIRE_SIG: 'never' }, {}, ['ITEM-24']],
];

t.test('CONF-02: our server passes under other settings', async (t) => {
  for (const [what, env, more, ids] of SETTINGS) {
    const server = await runServer(t, { env: { ...quiet, ...env } });
    const results = await run({ url: urlOf(server), shapes: ['a', 'b'], only: ids, ...more });
    t.same(
      results.map(({ id, kind }) => `${id} ${kind}`),
      [...ids].map((id) => `${id} pass`),
      what,
    );
    await server.stop();
  }
});

t.test('CONF-07: our server passes with its default rates, and the rules in which minutes pass', async (t) => {
  const clock = new TestClock();
  const rates = { RATE_READ_PER_S: '', RATE_WRITE_PER_S: '', RATE_PAIR_PER_MIN: '', WS_PONG_GRACE_MS: '' };
  const server = await runServer(t, { clock, env: { ...quiet, ...rates } });
  const only = [
    'RATE',
    'BATCH-05',
    'ERR-11',
    'ERR-12',
    'HTTP-10',
    'HTTP-12',
    'TOKEN-20',
    'REAUTH-06',
    'RECOV-06',
    'PAIR-06',
    'PAIR-07',
    'PASS-07',
    'BIN-16',
    'PAIR-22',
    'PAIR-28',
    'HEART',
  ];
  let waits = 0;
  const results = await run({
    url: urlOf(server),
    shapes: ['a', 'b'],
    only,
    slow: true,
    // Second by second, so that calls that wait on the server check again each time; first they have to be waiting.
    pause: async (ms) => {
      waits++;
      for (let calls = 0; calls < 10; calls++) await server.wire.get('/service/status');
      for (let left = ms; left > 0; left -= 1_000) {
        clock.advance(Math.min(left, 1_000));
        await server.wire.get(ms < 60_000 ? '/service/status' : '/health');
      }
    },
  });
  t.same(told(of(results, 'fail', 'skip')), []);
  t.same(
    of(results, 'outside').map(({ id }) => id),
    ['RATE-10', 'RATE-13', 'RATE-15', 'RATE-16', 'RATE-17', 'HEART-05'],
  );
  t.ok(waits > 10, `it waited ${waits} times`);
});

t.test('CONF-02: our server passes every rule that the kit checks, in one of these runs', (t) => {
  const checked = [...new Set(CASES.flatMap(({ ids }) => ids))];
  t.same(
    checked.filter((id) => !passed.has(id)),
    [],
  );
  t.end();
});

t.test('CONF-04: every rule is checked by the kit, or listed with the reason why it is not', (t) => {
  const rules = readRules();
  const checked = new Set(CASES.flatMap(({ ids }) => ids));
  t.same(
    rules.filter((rule) => !checked.has(rule.id) && outsideReason(rule) === undefined).map(({ id }) => id),
    [],
    'rules without a case and without a reason: add a case to test/conformance/cases or a reason to outside.ts',
  );
  const known = new Set(rules.map(({ id }) => id));
  t.same(
    [...checked, ...Object.keys(RULES_OUTSIDE)].filter((id) => !known.has(id)),
    [],
    'ids that are not rules',
  );
  t.same(
    Object.keys(RULES_OUTSIDE).filter((id) => checked.has(id)),
    [],
    'listed as not checked, but checked',
  );
  t.same(parseRules('## One\nSource: the reference, HTTP\n\n- **X-01** A rule.\n'), [
    { id: 'X-01', sentence: 'A rule.', section: 'One', source: 'the reference, HTTP' },
  ]);
  t.end();
});

t.test('CONF-05: the kit imports nothing of the server', (t) => {
  const folder = join(PROJECT_ROOT, 'test/conformance');
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'));
  const seen = new Set<string>();
  const visit = (file: string): void => {
    if (seen.has(file)) return;
    seen.add(file);
    if (!relative(PROJECT_ROOT, file).startsWith('test/')) return;
    for (const [, target = ''] of readFileSync(file, 'utf8').matchAll(/\b(?:from |import |import\()'(\.[^']+)'/g))
      visit(resolve(dirname(file), target.replace(/\.js$/, '.ts')));
  };
  for (const file of files) visit(join(folder, file));
  const reached = [...seen].map((file) => relative(PROJECT_ROOT, file)).filter((file) => file.startsWith('src/'));
  t.same(
    reached.filter((file) => !/^src\/(protocol|crypto|sdk)\/|^src\/root\.ts$/.test(file)),
    [],
  );
  t.ok(reached.length > 0 && seen.size > 30, 'the imports were found');
  t.end();
});

const RUN = fileURLToPath(new URL('conformance/run.js', import.meta.url));

interface Ended {
  readonly code: unknown;
  readonly out: string;
  readonly err: string;
}

/** Runs the kit as a command, in a process of its own. */
async function spawned(...args: readonly string[]): Promise<Ended> {
  return new Promise((done) => {
    execFile(process.execPath, [RUN, ...args], (error, out, err) =>
      done({ code: error === null ? 0 : error.code, out, err }),
    );
  });
}

/** The same command in this process. */
async function here(...args: readonly string[]): Promise<Ended> {
  const said = { out: '', err: '' };
  const code = await command(args, { out: (text) => void (said.out += text), err: (text) => void (said.err += text) });
  return { code, ...said };
}

t.test('CONF-01 CONF-08: the command reports every rule, and leaves a claimed server untouched', async (t) => {
  const server = await runServer(t, { env: quiet });
  const device = await claim(server.wire);
  await mustWrite(server.wire, device, newItem([device.id]));
  const refused = await spawned('--url', urlOf(server), '--only', 'STAT');
  t.equal(refused.code, 2);
  t.match(refused.err, /claimed/);
  t.equal((await server.wire.get('/me', { token: device.token })).status, 200, 'a claimed server is left alone');
  const table = await spawned('--url', urlOf(server), '--only', 'STAT', '--admin-token', ADMIN_TOKEN);
  t.equal(table.code, 0, table.err);
  t.match(table.out, /^STAT-01 +pass +`GET \/health` answers/m);
  t.match(table.out, /^STAT-02 +not checkable from outside .*\n +needs the database/m);
  t.match(table.out, /\n10 passed, 0 failed, 2 skipped\n$/);
  const json = await here(
    '--url',
    urlOf(server),
    '--only',
    'STAT-01,BIN-16',
    '--json',
    '--admin-token',
    ADMIN_TOKEN,
    '--shape',
    'b',
  );
  t.match(JSON.parse(json.out), [
    { id: 'BIN-16', kind: 'skip', text: /--slow/ },
    { id: 'STAT-01', kind: 'pass' },
  ]);
  for (const args of [
    [],
    ['--url', 'x'],
    ['--url', urlOf(server), '--shape', 'c'],
    ['--url', urlOf(server), '--only', 'NONE-01'],
    ['--wrong'],
  ])
    t.equal((await here(...args)).code, 2, args.join(' '));
  t.equal((await here('--help')).code, 0);
  const proxy = await HttpProxy.before(t, server.port);
  proxy.answer = ({ url }, response) => url === '/api/health' && Boolean(response.end('{}'));
  const failing = await here('--url', proxy.url, '--only', 'STAT-01,STAT-03', '--admin-token', ADMIN_TOKEN);
  t.match(failing, { code: 1, out: /^STAT-01 +FAIL [^]*\n1 passed, 1 failed, 0 skipped\n$/m }, failing.err);
  await server.stop();
  t.match(await here('--url', urlOf(server)), { code: 2, err: /does not answer/ });
});
