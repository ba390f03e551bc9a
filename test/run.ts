/**
 * The test runner behind `npm test`: one PostgreSQL for all test files, a process for a few files each
 * (support/together.ts), several at once. The last line is always "N passed, N failed".
 *
 *   node build/test/run.js [--long] [part of a file name ...]
 *
 * `--long` includes the long files and gives all files their full counts (support/long.ts). There, and where files are
 * named, each has a process of its own, so that what passes in company only is found.
 *
 * `npm test` starts it through test/start.js, which adds the runs of linter and formatter to the jobs.
 */
import { readFileSync } from 'node:fs';
import { readdir, rm, writeFile } from 'node:fs/promises';
import { SourceMap, type SourceMapPayload } from 'node:module';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { PROJECT_ROOT } from '../src/root.js';
import { ensureTemplate, newFolder, startTestServer } from './support/postgres.js';

/** A file spends half of its time waiting for other processes: four at once keep two cores busy. */
const FILES_AT_ONCE = 4;
/** One after the other they share a browser, whose start takes up to three seconds of a processor. */
const IN_BROWSER: readonly string[] = [
  'client-browser',
  'reference-pages',
  'web-archive',
  'web-attacks',
  'web-devices',
  'web-import',
  'web-passkey',
  'web-screens',
  'web-tabs',
];
/** The slowest files. They start first, so that none of them runs alone at the end. */
const LONGEST: readonly string[] = [
  'conformance',
  'fairness-sockets',
  'objects-server',
  'cli-process',
  'embedded',
  'objects',
  'web-worker',
  'stop-under-load',
  'uploads-cut',
];
/** What these find is of the whole process: its memory and open files, and what Node reports once only. */
const ALONE: readonly string[] = ['change-feed', 'client-blob-size', 'hostile'];
/** Files of one process: loading the library and the server takes half a second of a processor. */
const TOGETHER = 6;
/** How many of the slowest processes are named at the end. */
const SLOWEST_SHOWN = 10;
const FILE_MAX_MS = 15 * 60_000;
/** One of the long ones runs the whole suite once more, on another system. */
const LONG_FILE_MAX_MS = 120 * 60_000;
/** Seconds. The test library gives a file 30, too few on a busy machine; a test that hangs still ends. */
const LIBRARY_TIMEOUT_S = '600';

interface Count {
  passed: number;
  failed: number;
}

const chunks = (files: readonly string[], size: number): string[][] =>
  Array.from({ length: Math.ceil(files.length / size) }, (_, at) => files.slice(at * size, (at + 1) * size));

/** Compiled test files, those of one process each; the long ones only with `--long`. */
async function testFiles(args: readonly string[]): Promise<string[][]> {
  const folder = dirname(fileURLToPath(import.meta.url));
  const parts = args.filter((arg) => !arg.startsWith('--'));
  const long = args.includes('--long');
  const files = (await readdir(folder, { recursive: true }))
    .filter((name) => name.endsWith('.test.js'))
    .filter((name) => long || !name.endsWith('.long.test.js'))
    .filter((name) => parts.length === 0 || parts.some((part) => name.includes(part)))
    .sort()
    .map((name) => join(folder, name));
  const of = (names: readonly string[]): string[] => files.filter((file) => names.includes(basename(file, '.test.js')));
  const [inBrowser, longest, alone] = [of(IN_BROWSER), of(LONGEST), of(ALONE)];
  const others = files.filter((file) => ![inBrowser, longest, alone].flat().includes(file));
  const company = !long && parts.length === 0;
  return [
    ...chunks(inBrowser, company ? IN_BROWSER.length : 1),
    ...chunks(longest, 1),
    ...chunks(others, company ? TOGETHER : 1),
    ...chunks(alone, 1),
  ];
}

interface FileResult extends Count {
  /** Of the file; of the first and the last where there are more. */
  readonly name: string;
  readonly seconds: number;
  /** Of the process and of the children that it waited for; not of the shared PostgreSQL. */
  readonly cpuSeconds: number;
  /** Tests that did not run, with the reason. */
  readonly skipped: readonly string[];
  /** The whole report. */
  readonly text: string;
}

/** Ticks per second in /proc: USER_HZ, the same on every Linux. */
const TICKS_PER_S = 100;
let cpuCounted = 0;

/**
 * CPU seconds of the files that ended since the last call. Linux adds a child's time to its parent's when the child has
 * ended, so a call at the end of a file returns the time of that file alone. 0 on other systems.
 */
function cpuOfEnded(): number {
  if (process.platform !== 'linux') return 0;
  const stat = readFileSync('/proc/self/stat', 'utf8');
  // After the name, which may hold blanks: cutime and cstime are the 14th and 15th of the rest.
  const [user, system] = stat
    .slice(stat.lastIndexOf(')') + 2)
    .split(' ')
    .slice(13, 15)
    .map(Number);
  const total = ((user ?? 0) + (system ?? 0)) / TICKS_PER_S;
  const since = total - cpuCounted;
  cpuCounted = total;
  return since;
}

/** The program that runs the files: itself where it is one. */
async function programOf([first = '', ...others]: readonly string[], folder: string): Promise<string> {
  if (others.length === 0) return first;
  const name = relative(dirname(fileURLToPath(import.meta.url)), first).replaceAll('/', '-');
  const program = join(folder, `${name}.mjs`);
  const urls = [first, ...others].map((file) => pathToFileURL(file).href);
  const { href } = new URL('./support/together.js', import.meta.url);
  await writeFile(
    program,
    `import { runTogether } from ${JSON.stringify(href)};\nawait runTogether(${JSON.stringify(urls)});\n`,
  );
  return program;
}

/**
 * Counts assertions, as node's own summary does; a test without one counts as failed. A failed suite counts only if no
 * test in the process failed.
 */
async function runFiles(files: readonly string[], folder: string, signal: AbortSignal): Promise<FileResult> {
  const count: Count = { passed: 0, failed: 0 };
  const skipped: string[] = [];
  let failedSuites = 0;
  let text = '';
  const begun = performance.now();
  const timeout = files.some((file) => file.endsWith('.long.test.js')) ? LONG_FILE_MAX_MS : FILE_MAX_MS;
  const events = run({ files: [await programOf(files, folder)], timeout, signal });
  events.on('test:pass', ({ name, skip, details }) => {
    if (details.type === 'suite') return;
    if (skip === undefined || skip === false) count.passed++;
    else if (typeof skip === 'string' && skip !== '') skipped.push(`${name} (${skip})`);
    else {
      // So the library reports a test that ended without an assertion.
      count.failed++;
      text += `${name}: nothing was asserted\n`;
    }
  });
  events.on('test:fail', ({ todo, details }) => {
    if (todo !== undefined && todo !== false) return;
    if (details.type === 'suite') failedSuites++;
    else count.failed++;
  });
  for await (const part of events.compose(new spec())) text += String(part);
  const names = [files.at(0), files.at(-1)].map((file = '') => basename(file, '.test.js'));
  return {
    name: [...new Set(names)].join(' to '),
    passed: count.passed,
    failed: count.failed === 0 ? failedSuites : count.failed,
    seconds: (performance.now() - begun) / 1_000,
    cpuSeconds: cpuOfEnded(),
    skipped,
    text,
  };
}

/** One of the project's development tools, started already: it passes or fails as a whole. */
export interface Check {
  readonly name: string;
  /** Start time by `performance.now`. */
  readonly begun: number;
  /** Whether its exit code was 0, and its whole output. */
  readonly ended: Promise<{ readonly passed: boolean; readonly text: string }>;
}

async function finishCheck({ name, begun, ended }: Check): Promise<FileResult> {
  const { passed, text } = await ended;
  return {
    name,
    passed: passed ? 1 : 0,
    failed: passed ? 0 : 1,
    seconds: (performance.now() - begun) / 1_000,
    cpuSeconds: cpuOfEnded(),
    skipped: [],
    text,
  };
}

/**
 * Translates the positions in a report to those of the sources. Files run without `--enable-source-maps`, which would
 * read the map of every module in every process.
 */
function inSources(text: string): string {
  return text.replace(
    /(?:file:\/\/)?([^\s()]*\bbuild\/[^\s()]+\.js):(\d+):(\d+)/g,
    (found, file: string, line: string, column: string) => {
      const path = resolve(PROJECT_ROOT, file);
      try {
        const map = new SourceMap(JSON.parse(readFileSync(`${path}.map`, 'utf8')) as SourceMapPayload);
        const entry = map.findEntry(Number(line) - 1, Number(column) - 1);
        if (!('originalSource' in entry)) return found;
        const source = relative(PROJECT_ROOT, join(dirname(path), entry.originalSource));
        return `${source}:${entry.originalLine + 1}:${entry.originalColumn + 1}`;
      } catch {
        return found; // a file without a map, for example a library's
      }
    },
  );
}

/** Prints one line per file, and the whole report of a file with a failure. */
function report({ name, passed, failed, seconds, cpuSeconds, skipped, text }: FileResult): void {
  if (failed > 0) process.stdout.write(inSources(text));
  process.stdout.write(
    `${failed > 0 ? 'FAILED' : 'ok'} ${name}: ${passed} passed, ${seconds.toFixed(1)} s, CPU ${cpuSeconds.toFixed(1)} s\n`,
  );
  for (const title of skipped) process.stdout.write(`   skipped: ${title}\n`);
}

type Job = (signal: AbortSignal) => Promise<FileResult>;

/** Runs all jobs, a few at once, and prints which of them took longest. */
async function runJobs(jobs: readonly Job[], signal: AbortSignal): Promise<Count> {
  const results: FileResult[] = [];
  const left = [...jobs];
  const work = async (): Promise<void> => {
    for (let job = left.shift(); job !== undefined && !signal.aborted; job = left.shift()) {
      const result = await job(signal);
      report(result);
      results.push(result);
    }
  };
  await Promise.all(Array.from({ length: FILES_AT_ONCE }, work));
  const most = (of: 'seconds' | 'cpuSeconds'): string =>
    [...results]
      .sort((one, other) => other[of] - one[of])
      .slice(0, SLOWEST_SHOWN)
      .map((result) => `${result.name} ${result[of].toFixed(0)} s`)
      .join(', ');
  process.stdout.write(`slowest: ${most('seconds')}\nmost CPU: ${most('cpuSeconds')}\n`);
  const sum = (of: 'passed' | 'failed'): number => results.reduce((total, result) => total + result[of], 0);
  return { passed: sum('passed'), failed: sum('failed') };
}

/** Runs the tests, waits for the checks to end, and sets the exit code. */
export async function main(args: readonly string[], checks: readonly Check[] = []): Promise<void> {
  const count: Count = { passed: 0, failed: 0 };
  const interrupted = new AbortController();
  const folder = await newFolder();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => interrupted.abort());
  try {
    const jobs: Job[] = [
      ...checks.map(
        (check): Job =>
          () =>
            finishCheck(check),
      ),
      ...(await testFiles(args)).map(
        (files): Job =>
          (signal) =>
            runFiles(files, folder, signal),
      ),
    ];
    const server = await startTestServer((message) => process.stderr.write(`test database: ${message}\n`));
    try {
      process.env['TEST_DATABASE_ADMIN_URL'] = server.adminUrl;
      process.env['TEST_CLUSTER'] = server.cluster;
      process.env['TAP_TIMEOUT'] ??= LIBRARY_TIMEOUT_S;
      if (args.includes('--long')) process.env['TEST_LONG'] = 'on';
      await ensureTemplate(server.adminUrl);
      // The processes of the files inherit the options of this one.
      process.execArgv.push('--import', new URL('./support/preload.js', import.meta.url).href);
      Object.assign(count, await runJobs(jobs, interrupted.signal));
    } finally {
      await server.stop();
    }
    if (interrupted.signal.aborted) process.exitCode = 130;
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
    process.exitCode = 1;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  // A run without a test proves nothing: it must not look like success.
  if (count.failed > 0 || count.passed === 0) process.exitCode ??= 1;
  process.stdout.write(`${count.passed} passed, ${count.failed} failed\n`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main(process.argv.slice(2));
