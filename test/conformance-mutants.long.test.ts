/** The conformance kit sees: servers that break rules fail with just the ids of these. */
import t from 'tap';
import { BROKEN, failures, seen, soundMutant } from './support/broken-servers.js';

t.setTimeout(300_000);

t.test('CONF-03 CONF-06: fourteen servers that break rules', async (t) => {
  const mutant = await soundMutant(t);
  t.same(
    await failures(mutant, { only: ['STAT', 'RETRY', 'WS-02', 'TOKEN'], shapes: ['a'] }),
    [],
    'the proxy itself breaks nothing',
  );
  await seen(t, mutant, BROKEN);
});
