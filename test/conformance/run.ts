/**
 * `npm run conformance -- --url http://host:port`: the contract's rules against any server, by HTTP and sockets alone.
 * Prints a table, and ends with `N passed, N failed, N skipped`; the exit code is 0 only where none failed.
 */
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import type { Shape } from '../support/wire.js';
import { runKit, type Result } from './kit.js';
import { readRules } from './rules.js';
import { NoStart } from './world.js';

const USAGE = `npm run conformance -- --url http://host:port [options]

  --url URL           the server; https works too. In multi mode: a tenant's host
  --shape a|b|both    the wire shapes to check (both)
  --only LIST         ids of rules and prefixes: ITEM,RETRY-05
  --claim-token T     claims a server that has BOOTSTRAP_TOKEN set, or a fresh tenant in multi mode
  --admin-token T     WIPES the devices of a claimed server, and checks the restart of the bootstrap
  --cors-origin O     an origin of the server's CORS_ORIGINS
  --slow              with the rules that take minutes to see (about half an hour in all)
  --json              the results as one JSON array, without the table
  --verbose           every case, and how long it took

The server must be unclaimed, or --admin-token be given. Use one that holds nothing of value.
A server with RATE_READ_PER_S=0 RATE_WRITE_PER_S=0 RATE_PAIR_PER_MIN=0 is checked in a minute; with the default rates the
kit waits as it is told to, some twenty minutes in all. The rules on rates are checked where there are any.
`;

const WORD: Readonly<Record<Result['kind'], string>> = {
  pass: 'pass',
  fail: 'FAIL',
  skip: 'skipped',
  outside: 'not checkable from outside',
};

/** An invalid command line; its message is for the user. */
class Usage extends Error {}

function shapesOf(text: string): readonly Shape[] {
  if (text === 'both') return ['a', 'b'];
  if (text === 'a' || text === 'b') return [text];
  throw new Usage(`--shape takes a, b or both, not '${text}'`);
}

function onlyOf(text: string | undefined): readonly string[] | undefined {
  if (text === undefined) return undefined;
  const list = text.split(',').filter((one) => one !== '');
  const ids = readRules().map(({ id }) => id);
  const unknown = list.filter((one) => !ids.some((id) => id === one || id.startsWith(`${one}-`)));
  if (list.length === 0 || unknown.length > 0) throw new Usage(`--only: no such rule: ${unknown.join(', ')}`);
  return list;
}

function line({ id, kind, sentence, text }: Result): string {
  const head = `${id.padEnd(10)} ${WORD[kind].padEnd(8)} ${sentence}`;
  return kind === 'pass' ? head : `${head}\n${' '.repeat(11)}${text}`;
}

/** Where a run writes: the process's streams, or a test's. */
interface Streams {
  readonly out: (text: string) => void;
  readonly err: (text: string) => void;
}

function print(results: readonly Result[], json: boolean, out: Streams['out']): void {
  if (json) {
    out(`${JSON.stringify(results, null, 2)}\n`);
    return;
  }
  let section = '';
  for (const result of results) {
    if (result.section !== section) out(`\n${result.section}\n`);
    section = result.section;
    out(`${line(result)}\n`);
  }
}

const count = (results: readonly Result[], ...kinds: readonly Result['kind'][]): number =>
  results.filter(({ kind }) => kinds.includes(kind)).length;

async function main(args: readonly string[], { out, err }: Streams): Promise<number> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      url: { type: 'string' },
      shape: { type: 'string', default: 'both' },
      only: { type: 'string' },
      'claim-token': { type: 'string' },
      'admin-token': { type: 'string' },
      'cors-origin': { type: 'string' },
      slow: { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
      verbose: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    out(USAGE);
    return 0;
  }
  if (values.url === undefined || !URL.canParse(values.url)) throw new Usage('--url takes the address of a server');
  err('A server with RATE_*=0 is checked faster; with rates the kit waits as it is told to.\n');
  const results = await runKit({
    url: values.url,
    shapes: shapesOf(values.shape),
    only: onlyOf(values.only),
    slow: values.slow,
    claimToken: values['claim-token'],
    adminToken: values['admin-token'],
    corsOrigin: values['cors-origin'],
    onCase: (ids, shape, ms) => {
      if (values.verbose) err(`${String(ms).padStart(7)} ms  ${shape}  ${ids.join(' ')}\n`);
    },
  });
  print(results, values.json, out);
  const [passed, failed] = [count(results, 'pass'), count(results, 'fail')];
  const summary = `${passed} passed, ${failed} failed, ${count(results, 'skip', 'outside')} skipped\n`;
  (values.json ? err : out)(
    `\n${count(results, 'outside')} of the skipped rules are not checkable from outside\n${summary}`,
  );
  return failed === 0 && passed > 0 ? 0 : 1;
}

/** One run of the command: its exit code. */
export async function command(args: readonly string[], streams: Streams): Promise<number> {
  try {
    return await main(args, streams);
  } catch (error) {
    const known = error instanceof Usage || error instanceof NoStart || error instanceof TypeError;
    const text = error instanceof Error ? (known ? error.message : (error.stack ?? error.message)) : String(error);
    streams.err(`${text}\n${error instanceof Usage ? `\n${USAGE}` : ''}`);
    return 2;
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { stdout, stderr } = process;
  const streams = { out: (text: string) => void stdout.write(text), err: (text: string) => void stderr.write(text) };
  process.exitCode = await command(process.argv.slice(2), streams);
}
