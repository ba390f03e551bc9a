/**
 * The same moment on two instances, thousands of times. The short test has the same races; more of them find what one
 * race in a thousand does wrong.
 */
import t from 'tap';
import { racing } from './support/races.js';

t.setTimeout(900_000);

t.test('INST-05 INST-06 INST-07 INST-08 INST-09 INST-14 MOVE-04 RETRY-05: two instances at once, for long', (t) =>
  racing(t, 1_000),
);
