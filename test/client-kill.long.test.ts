/** The same as the short test, with more rounds. */
import t from 'tap';
import { killing } from './support/killing.js';

t.setTimeout(840_000);

t.test('STORE-15 STORE-16: a client killed at more than a hundred random points loses and duplicates nothing', (t) =>
  killing(t, { rounds: 120, seed: 7 }),
);
