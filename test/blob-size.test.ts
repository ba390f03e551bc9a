/** A blob is never in memory as a whole. */
import t from 'tap';
import { largeBlob } from './support/large-blob.js';

t.test('BLOB-14: a blob of 96 MiB takes less than 64 MiB of memory', { skip: process.platform !== 'linux' }, (t) =>
  largeBlob(t, 96 * 1024 * 1024),
);
