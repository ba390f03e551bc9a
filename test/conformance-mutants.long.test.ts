/** The conformance kit detects servers that break rules: each fails with exactly the ids of these. */
import t from 'tap';
import { BROKEN, failures, seen, soundMutant } from './support/broken-servers.js';

t.setTimeout(600_000);

t.test('CONF-03 CONF-06: each of fourteen servers that break rules fails with the ids of these rules', async (t) => {
  const mutant = await soundMutant(t);
  t.same(
    await failures(mutant, { only: ['STAT', 'RETRY', 'WS-02', 'TOKEN'], shapes: ['a'] }),
    [],
    'the proxy itself breaks nothing',
  );
  await seen(t, mutant, BROKEN);
});
