/**
 * npm run bench -- [S1 ... S9 BLOBS MIX LONG ROLL] [options]
 *
 * Exit code 1 only if a floor is missed or an audit fails; see README.md.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { PROJECT_ROOT } from '../src/root.js';
import { AuditError } from './audit.js';
import { Context, type Options, type ScenarioId } from './context.js';
import { buildDrivers } from './drivers.js';
import { machineFacts, stolenTicks, type MachineFacts } from './machine.js';
import { blobs } from './scenarios/blobs.js';
import { heldSockets } from './scenarios/held.js';
import { idleSockets } from './scenarios/idle.js';
import { twoInstances } from './scenarios/instances.js';
import { longRun } from './scenarios/long.js';
import { mixed } from './scenarios/mix.js';
import { reconnects } from './scenarios/reconnect.js';
import { replays } from './scenarios/replay.js';
import { rollingRestart } from './scenarios/roll.js';
import { WriteScenarios } from './scenarios/writes.js';
import { meets, table, type Outcome } from './stats.js';

/** The default scenarios. S9, LONG and ROLL take gigabytes, so they must be named. */
const USUAL: readonly ScenarioId[] = ['S1', 'S2', 'S3', 'S4', 'S5', 'S6', 'S7', 'S8', 'BLOBS', 'MIX'];
const ALL: readonly ScenarioId[] = [...USUAL, 'S9', 'LONG', 'ROLL'];
/** The slow disk is a C library; Node drivers cannot choose addresses, hold too few sockets, and take much memory. */
const C_ONLY: readonly ScenarioId[] = ['S4', 'S6', 'S9', 'LONG', 'ROLL'];
const RESULTS = join(PROJECT_ROOT, 'build', 'bench', 'results.json');

const USAGE = `npm run bench -- [${ALL.join(' ')}] [options]
  --rounds N     interleaved rounds (5)
  --seconds N    measured seconds of each leg (4)
  --instances N  instances on one port that serve S1 to S4 and LONG (1)
  --together     each on a port of its own, all devices of a tenant at the same; a C compiler is needed
  --sockets N    sockets of S9 (250000) and ROLL (100000)
  --hold N       seconds for which S9 holds them (120)
  --minutes N    how long LONG goes on, 2 to 20 (10)
  --quick        one round of 2 s legs on small populations: a look, not figures to quote
  --markdown     tables as Markdown
  --node         the Node drivers even where there is a C compiler`;

function positive(name: string, text: string): number {
  const value = Number(text);
  if (!(value > 0)) throw new Error(`--${name} takes a number above 0`);
  return value;
}

/** Bounded, because the drivers keep every write and frame of a leg in memory until its audit. */
function minutes(text: string): number {
  const value = Number(text);
  if (!(Number.isInteger(value) && value >= 2 && value <= 20)) throw new Error('--minutes takes a number from 2 to 20');
  return value;
}

function readOptions(): Options {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      rounds: { type: 'string' },
      seconds: { type: 'string' },
      instances: { type: 'string', default: '1' },
      together: { type: 'boolean', default: false },
      sockets: { type: 'string' },
      hold: { type: 'string', default: '120' },
      minutes: { type: 'string', default: '10' },
      quick: { type: 'boolean', default: false },
      markdown: { type: 'boolean', default: false },
      node: { type: 'boolean', default: false },
    },
  });
  const asked = positionals.map((text) => text.toUpperCase());
  const unknown = asked.find((text) => !ALL.some((id) => id === text));
  if (unknown !== undefined) throw new Error(`unknown scenario ${unknown}`);
  const { quick } = values;
  return {
    scenarios: new Set(asked.length === 0 ? USUAL : ALL.filter((id) => asked.includes(id))),
    rounds: Math.ceil(positive('rounds', values.rounds ?? (quick ? '1' : '5'))),
    seconds: positive('seconds', values.seconds ?? (quick ? '2' : '4')),
    instances: Math.ceil(positive('instances', values.instances)),
    placed: values.together ? 'together' : undefined,
    sockets: values.sockets === undefined ? undefined : Math.ceil(positive('sockets', values.sockets)),
    hold: positive('hold', values.hold),
    minutes: minutes(values.minutes),
    quick,
    markdown: values.markdown,
    node: values.node,
  };
}

/** Runs the scenarios; each outcome comes when its scenario has ended, so that a later failure does not lose it. */
async function* scenarios(context: Context): AsyncGenerator<Outcome> {
  const { scenarios: asked } = context.options;
  const has = (...ids: ScenarioId[]): boolean => ids.some((id) => asked.has(id));
  if (has('S1', 'S2', 'S3', 'S4')) yield* await WriteScenarios.run(context);
  if (has('S5')) yield await idleSockets(context);
  if (has('S6')) yield await reconnects(context);
  if (has('S7')) yield await replays(context);
  if (has('S8')) yield await twoInstances(context);
  if (has('S9')) yield await heldSockets(context);
  if (has('BLOBS')) yield await blobs(context);
  if (has('MIX')) yield await mixed(context);
  if (has('LONG')) yield await longRun(context);
  if (has('ROLL')) yield await rollingRestart(context);
}

function factLines(facts: MachineFacts, { rounds, seconds }: Options): string[] {
  return [
    `${facts.cores} cores (${facts.cpu}), ${facts.memoryGiB} GiB, Linux ${facts.kernel}; client on the same cores`,
    `Node ${facts.node}, PostgreSQL ${facts.postgres}, drivers in ${facts.drivers}`,
    `commit ${facts.commit}, ${facts.at.slice(0, 16).replace('T', ' ')} UTC`,
    `${rounds} interleaved rounds, ${seconds} s measured in each leg`,
  ];
}

const print = (lines: readonly string[], markdown: boolean): void => {
  process.stdout.write(`${lines.map((line) => (markdown ? `- ${line}` : line)).join('\n')}\n\n`);
};

/** The options without the scenarios that need a C compiler. */
function withoutC(options: Options): Options {
  const left = C_ONLY.filter((id) => options.scenarios.has(id));
  if (left.length > 0) process.stderr.write(`${left.join(', ')} left out: a C compiler is needed\n`);
  return { ...options, scenarios: new Set([...options.scenarios].filter((id) => !left.includes(id))) };
}

async function main(): Promise<number> {
  const asked = readOptions();
  const drivers = buildDrivers(asked.node);
  // The Node drivers know one port.
  if (asked.placed === 'together' && drivers.kind !== 'C') throw new Error('--together needs a C compiler');
  const options = drivers.slowFlush === undefined ? withoutC(asked) : asked;
  const context = new Context(options, drivers);
  const before = stolenTicks();
  try {
    const facts = machineFacts(await (await context.fast()).version(), drivers.kind);
    print(factLines(facts, options), options.markdown);
    const outcomes: Outcome[] = [];
    for await (const outcome of scenarios(context)) {
      outcomes.push(outcome);
      process.stdout.write(`${table(outcome, options.markdown)}\n`);
    }
    const after = stolenTicks();
    const stolen = (after[0] - before[0]) / Math.max(1, after[1] - before[1]);
    print([`${(stolen * 100).toFixed(1)} % of the CPU time taken by other guests of the host`], options.markdown);
    mkdirSync(join(RESULTS, '..'), { recursive: true });
    const { rounds, seconds, quick } = options;
    writeFileSync(RESULTS, `${JSON.stringify({ facts, rounds, seconds, quick, stolen, outcomes }, null, 2)}\n`);
    const missed = outcomes.flatMap(({ targets }) => targets).filter((target) => !meets(target, target.floor));
    for (const { name } of missed) process.stderr.write(`below the floor: ${name}\n`);
    return missed.length > 0 ? 1 : 0;
  } finally {
    await context.close();
  }
}

for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(130));

let code: number;
try {
  code = await main();
} catch (error) {
  if (error instanceof AuditError) process.stderr.write(`audit failed: ${error.message}\n`);
  else process.stderr.write(`${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n${USAGE}\n`);
  // A failed audit is a result; any other error means that nothing was measured.
  code = error instanceof AuditError ? 1 : 2;
}
// Children may still run after an error; they are killed with this process.
process.exit(code);
