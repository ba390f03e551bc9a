/** kill -9 of a client in the middle of its queue. */
import t from 'tap';
import { killing } from './support/killing.js';

t.setTimeout(300_000);

t.test(
  'STORE-15 STORE-16: a client is killed at random points: nothing accepted is lost, nothing is sent as two',
  (t) => killing(t, { rounds: 6, seed: 20_261_121 }),
);
