/**
 * `npm run liar -- COMMAND [ARGUMENT...]`: plays the lies of a server to a client of any language, and prints which it
 * noticed. Starts a server of its own on this machine. The exit code is 0 only if no outcome is `silent` or `believed`,
 * and at least one is `noticed` or `kept_safe`.
 */
import { parseArgs } from 'node:util';
import { startDemoServer } from '../../../src/demo/server.js';
import { chosen, isFault, playAll, type Outcome } from './play.js';

const USAGE = `npm run liar -- [options] -- COMMAND [ARGUMENT...]

  COMMAND        the client: a program that takes commands as lines of JSON (the reference, Conformance)
  --only LIST    ids of lies and prefixes: LIAR-24,HONEST
  --json         the results as one JSON array
  --verbose      what the client wrote to standard error
`;

const WORD: Readonly<Record<Outcome['kind'], string>> = {
  noticed: 'noticed',
  kept_safe: 'kept safe',
  silent: 'SILENT',
  believed: 'BELIEVED',
  skipped: 'skipped',
};

/** An invalid command line; its message is for the user. */
class Usage extends Error {}

function line(outcome: Outcome): string {
  const { id, kind, does, page, text } = outcome;
  const head = `${id.padEnd(10)} ${WORD[kind].padEnd(10)} The server ${does}`;
  const more = isFault(outcome) ? `${text}. What to do: ${page}` : text;
  return more === '' ? head : `${head}\n${' '.repeat(22)}${more}`;
}

function onlyOf(text: string | undefined): readonly string[] | undefined {
  const only = text?.split(',').filter((one) => one !== '');
  const unknown = only?.filter((one) => chosen([one]).length === 0) ?? [];
  if (only?.length === 0 || unknown.length > 0) throw new Usage(`--only: no such lie: ${unknown.join(', ')}`);
  return only;
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      only: { type: 'string' },
      json: { type: 'boolean', default: false },
      verbose: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    process.stdout.write(USAGE);
    return 0;
  }
  if (positionals.length === 0) throw new Usage('which client? Name the command that starts it');
  const only = onlyOf(values.only);
  const server = await startDemoServer({
    RATE_READ_PER_S: '0',
    RATE_WRITE_PER_S: '0',
    RATE_PAIR_PER_MIN: '0',
    MAX_DEVICES: '1000',
  });
  const ends: (() => unknown)[] = [() => server.stop()];
  try {
    const outcomes = await playAll(
      { teardown: (end) => void ends.unshift(end) },
      {
        command: positionals,
        port: Number(new URL(server.url).port),
        only,
        onOutcome: (outcome, complaints) => {
          if (!values.json) process.stdout.write(`${line(outcome)}\n`);
          if (values.verbose && complaints !== '') process.stderr.write(`${complaints}\n`);
        },
      },
    );
    if (values.json) process.stdout.write(`${JSON.stringify(outcomes, null, 2)}\n`);
    const count = (kind: Outcome['kind']): number => outcomes.filter((outcome) => outcome.kind === kind).length;
    (values.json ? process.stderr : process.stdout).write(
      `\n${count('noticed')} noticed, ${count('kept_safe')} kept safe, ${count('silent')} silent, ${count('believed')} believed, ${count('skipped')} skipped\n`,
    );
    return !outcomes.some(isFault) && count('noticed') + count('kept_safe') > 0 ? 0 : 1;
  } finally {
    for (const end of ends) await end();
  }
}

try {
  process.exitCode = await main();
} catch (error) {
  const text =
    error instanceof Usage ? error.message : error instanceof Error ? (error.stack ?? error.message) : String(error);
  process.stderr.write(`${text}\n${error instanceof Usage ? `\n${USAGE}` : ''}`);
  process.exitCode = 2;
}
