/** The parameters of one `commit_changes` call: one byte string for all payloads and arrays of the small columns. */
import type { Change } from '../tenant/ports.js';
import { MASTER_WRAP_BYTES, NONCE_BYTES, SIG_BYTES } from '../protocol/limits.js';
import { packedLength, writeKeys } from './packing.js';

export const COMMIT_SQL =
  'SELECT * FROM commit_changes($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20)';

/**
 * Settings of a lane's connection. The function's plan is made once, maybe while the tables are still empty, and kept:
 * it must look rows up by their keys, however small the tables were at that moment. Planning it anew would cost
 * more than a small batch.
 */
export const LANE_SETTINGS = `
  SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;
  SET enable_mergejoin = off; SET work_mem = '32MB'; SET synchronous_commit = on`;

const HASH_BYTES = 32;
const MASTER_BYTES = NONCE_BYTES + MASTER_WRAP_BYTES;
const HASH_AT = 0;
const NONCE_AT = HASH_AT + HASH_BYTES;
const SIG_AT = NONCE_AT + NONCE_BYTES;
const MASTER_AT = SIG_AT + SIG_BYTES;
const BLOB_NONCE_AT = MASTER_AT + MASTER_BYTES;
/** Fixed fields come first, absent ones as zeros: every offset in the SQL function is a constant. */
const FIXED_BYTES = BLOB_NONCE_AT + NONCE_BYTES;

const HAS = { nonce: 1, sig: 2, master: 4, blobNonce: 8, inline: 16 } as const;

const KIND = { write: 'w', delete: 'd', move: 'm' } as const;

interface Lengths {
  readonly ct: number;
  readonly keys: number;
  readonly blobKeys: number;
}

function lengthsOf(change: Change): Lengths {
  const inline = change.write?.inline ?? null;
  const blob = change.write?.blob ?? null;
  return {
    ct: inline?.ct.length ?? 0,
    keys: inline === null ? 0 : packedLength(inline.keys),
    blobKeys: blob === null ? 0 : packedLength(blob.keys),
  };
}

/** Bytes a change takes in a batch. */
export function changeBytes(change: Change): number {
  const { ct, keys, blobKeys } = lengthsOf(change);
  return FIXED_BYTES + ct + keys + blobKeys;
}

// Array literals are text. Ids are quoted: a bin may be called NULL.
const list = (values: readonly (number | boolean | null)[]): string => `{${values.map((v) => v ?? 'NULL').join(',')}}`;
const texts = (values: readonly (string | null)[]): string =>
  `{${values.map((v) => (v === null ? 'NULL' : `"${v}"`)).join(',')}}`;

/** Parameters for the changes in this order. Every text in a change was checked to be an id or a known word. */
export function batchParameters(changes: readonly Change[], { now, cap }: { now: number; cap: number }): unknown[] {
  const tenants = new Map<string, number>();
  for (const { tenantId } of changes) if (!tenants.has(tenantId)) tenants.set(tenantId, tenants.size + 1);
  const lengths = changes.map(lengthsOf);
  const offsets: number[] = [];
  let total = 0;
  for (const { ct, keys, blobKeys } of lengths) {
    offsets.push(total);
    total += FIXED_BYTES + ct + keys + blobKeys;
  }
  const bytes = Buffer.alloc(total);
  const has = changes.map((change, i) => writeChange(bytes, offsets[i] ?? 0, change));
  return [
    texts([...tenants.keys()]),
    now,
    cap,
    list(changes.map((change) => tenants.get(change.tenantId) ?? 0)),
    list(changes.map((change) => change.generation)),
    texts(changes.map((change) => KIND[change.kind])),
    texts(changes.map((change) => change.id)),
    texts(changes.map((change) => change.deviceId)),
    texts(changes.map((change) => change.binId)),
    texts(changes.map((change) => change.type)),
    list(changes.map((change) => change.write?.ts ?? null)),
    list(changes.map((change) => change.ifVersion)),
    list(changes.map((change) => change.refused)),
    texts(changes.map((change) => change.write?.blob?.ref ?? null)),
    list(has),
    list(offsets),
    list(lengths.map(({ ct }) => ct)),
    list(lengths.map(({ keys }) => keys)),
    list(lengths.map(({ blobKeys }) => blobKeys)),
    bytes,
  ];
}

/** Writes one change's bytes and tells which fields are there. */
function writeChange(into: Buffer, at: number, change: Change): number {
  let has = 0;
  const put = (bit: number, offset: number, value: Uint8Array | null | undefined): void => {
    if (value === null || value === undefined) return;
    has |= bit;
    into.set(value, at + offset);
  };
  const write = change.write;
  put(0, HASH_AT, change.hash);
  put(HAS.nonce, NONCE_AT, write?.inline?.nonce);
  put(HAS.sig, SIG_AT, change.sig);
  put(HAS.master, MASTER_AT, write?.master?.nonce);
  put(HAS.master, MASTER_AT + NONCE_BYTES, write?.master?.ct);
  put(HAS.blobNonce, BLOB_NONCE_AT, write?.blob?.nonce);
  put(HAS.inline, FIXED_BYTES, write?.inline?.ct);
  let end = at + FIXED_BYTES + (write?.inline?.ct.length ?? 0);
  if (write?.inline) end = writeKeys(into, end, write.inline.keys);
  if (write?.blob) writeKeys(into, end, write.blob.keys);
  return has;
}
