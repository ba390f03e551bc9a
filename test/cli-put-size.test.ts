/** The memory of `put --file`, which does not grow with the file. */
import t from 'tap';
import { largePut } from './support/cli-size.js';

t.test('CBLOB-32: a file of 256 MiB is put in bounded memory', { skip: process.platform !== 'linux' }, (t) =>
  largePut(t, 256 * 1024 * 1024),
);
