/** The conformance kit and the fault tests, each server behind a pooler of its own. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import t from 'tap';
import { runKit } from './conformance/kit.js';
import { fitForPooler, PgBouncer } from './support/pgbouncer.js';
import { testDatabase } from './support/postgres.js';
import { missing } from './support/proxies.js';
import { ADMIN_TOKEN, runServer } from './support/server.js';

t.setTimeout(3_600_000);

const FILES = ['conformance.test', 'instance-', 'instances.', 'outage', 'faults.long', 'history', 'jobs', 'replay'];

const skip = missing('pgbouncer');

t.test('DEPLOY-13: the rules that need the database hold behind a pooler', { skip }, async (t) => {
  const { url } = await testDatabase(t);
  await fitForPooler(url);
  const pooler = await PgBouncer.before(t, url);
  const server = await runServer(t, { database: { url }, env: { ...pooler.env, LOG_LEVEL: 'warn' } });
  const only = ['ITEM', 'RETRY', 'BATCH', 'LIST', 'DEL', 'MOVE', 'BIN', 'PAIR', 'DEV', 'WS-0', 'REPLAY'];
  const results = await runKit({
    url: `http://127.0.0.1:${server.port}`,
    shapes: ['a'],
    adminToken: ADMIN_TOKEN,
    only,
  });
  t.same(
    results.filter(({ kind }) => kind === 'fail').map(({ id, text }) => `${id}: ${text}`),
    [],
  );
  t.ok(results.filter(({ kind }) => kind === 'pass').length > 100, 'more than 100 rules passed');
  t.same(
    server.logs.filter(({ level }) => Number(level) >= 50),
    [],
    'the server logged no error',
  );
});

t.test('DEPLOY-13: the conformance kit and the fault tests pass behind a pooler', { skip }, async (t) => {
  const runner = fileURLToPath(new URL('./run.js', import.meta.url));
  // Node's test runner runs no tests inside a test.
  const { NODE_TEST_CONTEXT: _, ...outside } = process.env;
  const env = { ...outside, TEST_POOLER: 'on' };
  const ended = await promisify(execFile)(process.execPath, [runner, '--long', ...FILES], {
    env,
    maxBuffer: 64 * 1024 * 1024,
  }).catch((error: unknown) => error as { readonly stdout: string });
  t.match(ended.stdout.trim().split('\n').at(-1), /^\d{4,} passed, 0 failed/, ended.stdout.slice(-5_000));
});
