/**
 * Races between two instances, a thousand of each kind. The short test has the same races; more of them find a fault
 * that occurs once in a thousand.
 */
import t from 'tap';
import { racing } from './support/races.js';

t.setTimeout(900_000);

t.test('INST-05 INST-06 INST-07 INST-08 INST-09 INST-14 MOVE-04 RETRY-05: thousands of races on two instances', (t) =>
  racing(t, 1_000),
);
