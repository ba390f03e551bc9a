/** The same as `uploads-cut`, with a file of 1 GiB. */
import t from 'tap';
import { cutTransfers } from './support/cut-transfers.js';

t.test(
  'CBLOB-46 CBLOB-47: a file of 1 GiB that is cut ten times each way, and whose program is killed, arrives once',
  { skip: process.platform !== 'linux', timeout: 900_000 },
  (t) => cutTransfers(t, 1024 * 1024 * 1024, 160),
);
