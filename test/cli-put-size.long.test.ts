/** The same test with a file of a gigabyte. */
import t from 'tap';
import { largePut } from './support/cli-size.js';

t.setTimeout(600_000);

t.test('CBLOB-32: a file of 1 GiB is put in bounded memory', { skip: process.platform !== 'linux' }, (t) =>
  largePut(t, 1024 * 1024 * 1024),
);
