/** What goes out in one request: of the changes that are ready, as many from the front as it takes. Pure. */
import { text } from '../protocol/bytes.js';
import { BATCH_WRITES_MAX, BODY_MAX_BATCH } from '../protocol/limits.js';
import { pendingWrite, type Pending } from './store/store.js';
import { writeBody } from './wire.js';

/** A change that writes an item. */
export type PendingWrite = Extract<Pending, { kind: 'write' }>;

/** One request's worth of changes; of writes also the bodies, which are made once. */
export type Load =
  | { readonly kind: 'writes'; readonly sent: readonly PendingWrite[]; readonly bodies: readonly string[] }
  | { readonly kind: 'single'; readonly sent: readonly [Exclude<Pending, PendingWrite>] };

/** Room for the JSON around the writes of a batch. */
const BATCH_BYTES = BODY_MAX_BATCH - 1024;

/** As many writes from the front as one batch takes, with their bodies. A single one goes alone, whatever its size. */
export function fitting(ready: readonly Pending[]): Load & { readonly kind: 'writes' } {
  const sent: PendingWrite[] = [];
  const bodies: string[] = [];
  let bytes = 0;
  for (const pending of ready) {
    if (pending.kind !== 'write') continue;
    const body = JSON.stringify(writeBody(pendingWrite(pending)));
    bytes += text(body).length + 1;
    if (sent.length > 0 && (bytes > BATCH_BYTES || sent.length >= BATCH_WRITES_MAX)) break;
    sent.push(pending);
    bodies.push(body);
  }
  return { kind: 'writes', sent, bodies };
}
