/** The conformance kit and the tests of faults, each server behind a pooler of its own. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import t from 'tap';
import { missing } from './support/proxies.js';

t.setTimeout(3_600_000);

const FILES = ['conformance.test', 'instance-', 'instances.', 'outage', 'faults.long', 'history', 'jobs', 'replay'];

t.test('DEPLOY-13: the conformance kit and the tests of faults', { skip: missing('pgbouncer') }, async (t) => {
  const runner = fileURLToPath(new URL('./run.js', import.meta.url));
  // Node's runner runs nothing inside a test.
  const { NODE_TEST_CONTEXT: _, ...outside } = process.env;
  const env = { ...outside, TEST_POOLER: 'on' };
  const ended = await promisify(execFile)(process.execPath, [runner, '--long', ...FILES], {
    env,
    maxBuffer: 64 * 1024 * 1024,
  }).catch((error: unknown) => error as { readonly stdout: string });
  t.match(ended.stdout.trim().split('\n').at(-1), /^\d{4,} passed, 0 failed/, ended.stdout.slice(-5_000));
});
