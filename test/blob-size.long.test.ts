/** The same test with a blob of a gigabyte. */
import t from 'tap';
import { largeBlob } from './support/large-blob.js';

t.setTimeout(840_000);

t.test('BLOB-14: a blob of 1 GiB takes less than 64 MiB of memory', { skip: process.platform !== 'linux' }, (t) =>
  largeBlob(t, 1024 * 1024 * 1024),
);
