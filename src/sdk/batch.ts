/** Which of the changes that wait are sent together: `Sender` sends them as one request. */
import { text } from '../protocol/bytes.js';
import { BATCH_WRITES_MAX, BODY_MAX_BATCH } from '../protocol/limits.js';
import type { Pending } from './store/store.js';
import { writeBody } from './wire.js';

/** Largest batch; reserves room for the JSON around its writes. */
const BATCH_BYTES = BODY_MAX_BATCH - 1024;
/** After a batch failed in more than `SLOW_MS` the limit is halved, down to this; each success raises it again. */
const BATCH_BYTES_MIN = 16 * 1024;
const BATCH_GROWTH = 1.25;
const SLOW_MS = 5_000;

/** The size limit of the next batch, which follows what the connection can send within the time-out of either side. */
export class BatchSize {
  bytes = BATCH_BYTES;

  /** A request was answered. */
  succeeded(): void {
    this.bytes = Math.min(BATCH_BYTES, this.bytes * BATCH_GROWTH);
  }

  /** A request failed after this many ms. */
  failed(afterMs: number): void {
    if (afterMs > SLOW_MS) this.bytes = Math.max(BATCH_BYTES_MIN, this.bytes / 2);
  }
}

/** As many writes from the front as fit into `most` bytes, with their bodies; at least one, whatever its size. */
export function fitting(ready: readonly Pending[], most: number) {
  const sent: Pending[] = [];
  const bodies: string[] = [];
  let bytes = 0;
  for (const pending of ready) {
    if (pending.kind !== 'write') continue;
    const body = JSON.stringify(writeBody({ ...pending.row, ifVersion: pending.base }));
    bytes += text(body).length + 1;
    if (sent.length > 0 && (bytes > most || sent.length >= BATCH_WRITES_MAX)) break;
    sent.push(pending);
    bodies.push(body);
  }
  return { sent, bodies };
}
