/** A blob is never in memory. */
import t from 'tap';
import { largeBlob } from './support/large-blob.js';

t.test('BLOB-14: a blob of 96 MiB takes no memory of its size', { skip: process.platform !== 'linux' }, (t) =>
  largeBlob(t, 96 * 1024 * 1024),
);
