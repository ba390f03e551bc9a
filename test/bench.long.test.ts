/** Each scenario of the bench that `bench.test` does not have runs to its end, in its smallest form. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';
import { buildDrivers } from '../bench/drivers.js';

t.setTimeout(30 * 60_000);

const RUN = join(PROJECT_ROOT, 'build', 'bench', 'run.js');
const NATIVE = buildDrivers().kind === 'C';

/** `C`: a C compiler is needed. */
const RUNS: readonly {
  readonly scenarios: readonly string[];
  readonly options?: readonly string[];
  readonly C?: true;
}[] = [
  { scenarios: ['S1', 'S2', 'S3'] },
  { scenarios: ['S1'], options: ['--node'] },
  { scenarios: ['S5', 'S7', 'S8', 'BLOBS', 'MIX'] },
  { scenarios: ['S4', 'S6'], C: true },
  { scenarios: ['S9'], options: ['--sockets', '2000', '--hold', '5'], C: true },
  { scenarios: ['ROLL'], options: ['--sockets', '1000'], C: true },
  { scenarios: ['LONG'], options: ['--minutes', '2'], C: true },
];

for (const { scenarios, options = [], C = false } of RUNS) {
  const asked = [...scenarios, '--quick', ...options];
  t.test(`LOAD-24: bench ${asked.join(' ')}`, { skip: C && !NATIVE && 'this needs a C compiler' }, async (t) => {
    const run = spawn(process.execPath, [RUN, ...asked], { stdio: ['ignore', 'pipe', 'pipe'] });
    t.teardown(() => run.kill());
    const [out, told] = await Promise.all([text(run.stdout), text(run.stderr), once(run, 'close')]);
    // 1: a figure is below its floor, which says nothing in this form, or an audit failed.
    t.ok(run.exitCode === 0 || run.exitCode === 1, told);
    t.notMatch(told, /audit failed/);
    for (const id of scenarios) t.match(out, new RegExp(`\\b${id}\\b`), `${id} has its table`);
  });
}
