/** Files over bad networks, by programs that are killed. The long test has files of the full size. */
import t from 'tap';
import { cutTransfers } from './support/cut-transfers.js';

t.test(
  'CBLOB-46 CBLOB-47: a file that is cut off four times in each direction, its program killed, arrives once',
  { skip: process.platform !== 'linux' },
  (t) => cutTransfers(t, { size: 32 * 1024 * 1024, cuts: 4, mostMib: 160 }),
);
