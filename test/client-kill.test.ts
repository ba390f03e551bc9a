/** kill -9 of a client in the middle of its queue. */
import t from 'tap';
import { killing } from './support/killing.js';

t.setTimeout(600_000);

t.test('STORE-15 STORE-16: a client killed at random points loses no change and makes none into two versions', (t) =>
  killing(t, { rounds: 4, seed: 20_261_121 }),
);
