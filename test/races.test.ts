/** Races between two instances, dozens of each kind. */
import t from 'tap';
import { racing } from './support/races.js';

t.setTimeout(600_000);

t.test('INST-05 INST-06 INST-07 INST-08 INST-09 INST-14 MOVE-04 RETRY-05: dozens of races on two instances', (t) =>
  racing(t, 80),
);
