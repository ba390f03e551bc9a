/** The same as the short test, many times over. */
import t from 'tap';
import { killing } from './support/killing.js';

t.setTimeout(840_000);

t.test('STORE-15 STORE-16: a client is killed at a hundred random points and more', (t) =>
  killing(t, { rounds: 120, seed: 7 }),
);
