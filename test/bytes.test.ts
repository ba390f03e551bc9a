/** Bytes that the platform holds and V8 does not count. */
import t from 'tap';
import { discard } from '../src/protocol/bytes.js';

const MIB = 1024 * 1024;

/** Sizes of the buffers that are allocated while 64 MiB are discarded. */
function allocated(): number[] {
  const sizes: number[] = [];
  const { ArrayBuffer: real } = globalThis;
  class Counted extends real {
    constructor(size: number) {
      super(1);
      sizes.push(size);
    }
  }
  Object.assign(globalThis, { ArrayBuffer: Counted });
  for (let n = 0; n < 64; n++) discard(MIB);
  globalThis.ArrayBuffer = real;
  return sizes;
}

t.test('WEB-94: collections are suggested in a browser only: in Node they stop a program with a large heap', (t) => {
  t.same(allocated(), []);
  const { process: own } = globalThis;
  Reflect.deleteProperty(globalThis, 'process');
  const sizes = allocated();
  globalThis.process = own;
  t.same(
    sizes,
    Array.from({ length: 8 }, () => 64 * MIB),
  );
  t.end();
});
