/** Files over bad networks, by programs that are killed. The size of the issue is in the long test. */
import t from 'tap';
import { cutTransfers } from './support/cut-transfers.js';

t.test(
  'CBLOB-46 CBLOB-47: a file that is cut ten times each way, and whose program is killed, arrives once',
  { skip: process.platform !== 'linux' },
  (t) => cutTransfers(t, { size: 64 * 1024 * 1024, mostMib: 160 }),
);
