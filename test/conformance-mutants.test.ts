/** The conformance kit detects servers that break rules. Here are two of them; the long test has them all. */
import t from 'tap';
import { BROKEN, failures, seen, soundMutant } from './support/broken-servers.js';

/** One breaks a rule of answers, one a rule of frames. */
const SOME = ['a page of another history does not say reset', 'caught_up without the sum of versions'];

t.test('CONF-03 CONF-06: a server that breaks rules fails with the ids of these rules', async (t) => {
  const mutant = await soundMutant(t);
  const some = BROKEN.filter(({ what }) => SOME.includes(what));
  t.equal(some.length, SOME.length);
  await seen(t, mutant, some);
  mutant.mutation = { answer: ({ path }) => (path === '/api/health' ? { body: { ok: 'yes' } } : undefined) };
  const [health] = await failures(mutant, { only: ['STAT-01'], shapes: ['a'] });
  t.equal(
    health?.text,
    'shape a: expected: {ok: true, version}; came: 200 {"ok":"yes"}; sent: GET /api/health shape a (the reference, HTTP)',
  );
});
