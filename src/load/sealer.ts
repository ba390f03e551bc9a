/** The thread that seals items before they are due: sealing takes longer than sending. */
import { parentPort, workerData } from 'node:worker_threads';
import { sealItem } from '../crypto/item.js';
import { toBase64Url } from '../protocol/base64.js';
import { AEAD_TAG_BYTES } from '../protocol/limits.js';
import { nodePlatform } from '../sdk/node-platform.js';
import { ulid } from '../sdk/ulid.js';
import { writeBody } from '../sdk/wire.js';
import type { FleetTenant } from './fleet.js';

/** What the thread is started with. */
export interface SealerData {
  readonly tenants: readonly FleetTenant[];
  /** Bytes of ciphertext. */
  readonly size: number;
}

/** An order: `count` new items of a tenant, or new content of one item. */
export type Order =
  | { readonly tenant: number; readonly count: number }
  | { readonly tenant: number; readonly id: string; readonly ts: number; readonly ifVersion: number };

/** A sealed write. */
export interface Sealed {
  readonly tenant: number;
  readonly id: string;
  readonly ts: number;
  /** JSON of the request. */
  readonly body: string;
  readonly replaces: boolean;
}

/** Length of the JSON around a text. */
const FRAME = '{"text":""}'.length;

const { tenants, size } = workerData as SealerData;
const { sodium } = await nodePlatform();

/** Random text for a ciphertext of `size` bytes. */
function randomText(): string {
  const length = Math.max(1, size - AEAD_TAG_BYTES - FRAME);
  return toBase64Url(sodium.random(length)).slice(0, length);
}

function seal(order: Order): void {
  const to = tenants[order.tenant];
  if (to === undefined) return;
  const replaces = 'id' in order;
  for (let left = replaces ? 1 : order.count; left > 0; left--) {
    const now = Date.now();
    const id = replaces ? order.id : ulid(now, (length) => sodium.random(length));
    const ts = replaces ? Math.max(now, order.ts + 1) : now;
    const head = { id, binId: to.binId, type: 'text', ts } as const;
    const payload = sealItem(sodium, { ...head, payload: { text: randomText() } }, to);
    const body = JSON.stringify(writeBody({ ...head, ...payload, ifVersion: replaces ? order.ifVersion : 0 }));
    parentPort?.postMessage({ tenant: order.tenant, id, ts, body, replaces } satisfies Sealed);
  }
}

parentPort?.on('message', seal);
