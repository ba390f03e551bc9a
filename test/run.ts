/**
 * The test runner behind `npm test`: one PostgreSQL for all test files, every file in a process of its own, two at a
 * time. The last line is always "N passed, N failed".
 *
 *   node build/test/run.js [--long] [part of a file name ...]
 */
import { readdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { fileURLToPath } from 'node:url';
import { ensureTemplate, startTestServer } from './support/postgres.js';

/** A third of a file's time is waiting for others: with three files at once two cores are busy. */
const FILES_AT_ONCE = 3;
const FILE_MAX_MS = 15 * 60_000;
/** Seconds. The test library gives a file 30, too few on a busy machine; a test that hangs still ends. */
const LIBRARY_TIMEOUT_S = '300';

interface Count {
  passed: number;
  failed: number;
}

/** Compiled test files; the long ones only with `--long`. */
async function testFiles(args: readonly string[]): Promise<string[]> {
  const folder = dirname(fileURLToPath(import.meta.url));
  const parts = args.filter((arg) => !arg.startsWith('--'));
  return (await readdir(folder, { recursive: true }))
    .filter((name) => name.endsWith('.test.js'))
    .filter((name) => args.includes('--long') || !name.endsWith('.long.test.js'))
    .filter((name) => parts.length === 0 || parts.some((part) => name.includes(part)))
    .sort()
    .map((name) => join(folder, name));
}

/** Counts assertions, as node's own summary does. A suite counts only when it failed and nothing in the run below did. */
async function runFiles(files: string[], signal: AbortSignal): Promise<Count> {
  const count: Count = { passed: 0, failed: 0 };
  let failedSuites = 0;
  const events = run({ files, concurrency: FILES_AT_ONCE, timeout: FILE_MAX_MS, signal });
  events.on('test:pass', ({ skip, details }) => {
    if (details.type !== 'suite' && (skip === undefined || skip === false)) count.passed++;
  });
  events.on('test:fail', ({ todo, details }) => {
    if (todo !== undefined && todo !== false) return;
    if (details.type === 'suite') failedSuites++;
    else count.failed++;
  });
  for await (const text of events.compose(new spec())) process.stdout.write(String(text));
  return { passed: count.passed, failed: count.failed === 0 ? failedSuites : count.failed };
}

async function main(): Promise<void> {
  const count: Count = { passed: 0, failed: 0 };
  const interrupted = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => interrupted.abort());
  try {
    const files = await testFiles(process.argv.slice(2));
    const server = await startTestServer((message) => process.stderr.write(`test database: ${message}\n`));
    try {
      process.env['TEST_DATABASE_ADMIN_URL'] = server.adminUrl;
      process.env['TAP_TIMEOUT'] ??= LIBRARY_TIMEOUT_S;
      await ensureTemplate(server.adminUrl);
      Object.assign(count, await runFiles(files, interrupted.signal));
    } finally {
      await server.stop();
    }
    if (interrupted.signal.aborted) process.exitCode = 130;
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
    process.exitCode = 1;
  }
  // A run without a test proves nothing: it must not look like success.
  if (count.failed > 0 || count.passed === 0) process.exitCode ??= 1;
  process.stdout.write(`${count.passed} passed, ${count.failed} failed\n`);
}

await main();
