/** All lies over the network, presented to the small client and to each of its faulty variants. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';
import { isFault, type Outcome } from './liar/network/play.js';
import { FAULTS, seenAll, SMALL_CLIENT } from './support/client-mutants.js';

const LONG = { timeout: 1_800_000 };
t.setTimeout(2 * LONG.timeout);

t.test('CONF-10: the small client believes none of the lies of `npm run liar`, and calls no truth a lie', async (t) => {
  const program = join(PROJECT_ROOT, 'build/test/liar/network/run.js');
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [program, '--json', '--', ...SMALL_CLIENT]);
  const outcomes = JSON.parse(stdout) as Outcome[];
  t.same(
    outcomes.filter((outcome) => isFault(outcome) || outcome.kind === 'skipped'),
    [],
  );
  const silent = outcomes.filter(({ kind }) => kind === 'kept_safe').map(({ id }) => id);
  t.same(silent, ['HONEST-01', 'HONEST-02', 'HONEST-03', 'LIAR-20', 'LIAR-32', 'LIAR-61']);
  t.match(stderr, / noticed, 6 kept safe, 0 silent, 0 believed, 0 skipped\n$/);
});

t.test('CONF-11: each fault put into the small client is detected', LONG, async (t) => seenAll(t, FAULTS));
