/** A blob is never in memory as a whole. */
import t from 'tap';
import { largeBlob } from './support/large-blob.js';

t.test('BLOB-14: a blob of 128 MiB takes a bounded part of it in memory', { skip: process.platform !== 'linux' }, (t) =>
  largeBlob(t, 128 * 1024 * 1024),
);
