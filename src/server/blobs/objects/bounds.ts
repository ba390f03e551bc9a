/** No call of a store is waited for without end: deadlines of calls, and of silence within a body. */
import { Readable } from 'node:stream';
import { storageUnavailable } from '../../../protocol/errors.js';
import { StoreFault } from './fault.js';

/** How long a store may take. */
export interface Bounds {
  /** One call with all its retries, ms. */
  readonly callMs: number;
  /** Between two pieces of a body, ms. */
  readonly silenceMs: number;
  /** A call that failed in a way that passes is made again so often. */
  readonly retries: number;
}

/** Somebody waits for a HEAD while his item is written: that bounds the first. */
export const DEFAULT_BOUNDS: Bounds = { callMs: 10_000, silenceMs: 30_000, retries: 2 };

/** Rejects with a fault where the work takes longer. What the work comes to later is dropped; it has bounds of its own. */
export async function inTime<T>(call: string, ms: number, work: () => Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new StoreFault('timeout', `${call}: no answer in time`)), ms);
  });
  try {
    return await Promise.race([work(), late]);
  } finally {
    clearTimeout(timer);
  }
}

/** A body, and what is known of it. */
export interface Body {
  readonly call: string;
  readonly source: Readable;
  /** Bytes; undefined: not told. */
  readonly size: number | undefined;
  readonly silenceMs: number;
  readonly faultOf: (error: unknown) => StoreFault;
}

/**
 * The body as a stream that ends well only with all of its bytes, and fails as the port says. The clock runs while the
 * store is waited for, not while the reader takes his time.
 */
export const boundedBody = (body: Body): Readable => Readable.from(pieces(body), { objectMode: false });

async function* pieces({ call, source, size, silenceMs, faultOf }: Body): AsyncGenerator<Buffer> {
  let got = 0;
  const reader = source[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  try {
    for (;;) {
      const next = await inTime(call, silenceMs, () => reader.next());
      if (next.done === true) break;
      got += next.value.length;
      yield next.value;
    }
    if (size !== undefined && got !== size) throw new StoreFault('broken', `${call}: ${got} bytes of ${size}`);
  } catch (error) {
    throw storageUnavailable(faultOf(error));
  } finally {
    source.destroy();
  }
}
