/** A large blob through a server process with the local store, while the process's memory is measured. */
import { createHash, randomBytes, type Hash } from 'node:crypto';
import { once } from 'node:events';
import { request, type IncomingMessage } from 'node:http';
import type { Test } from 'tap';
import { downloadUrl, openRequest, uploadOf } from './blobs.js';
import { claim } from './devices.js';
import { hashOf } from './large-files.js';
import { peakOf } from './memory.js';
import { HAS_NEWER_LIBRARY } from './node-version.js';
import { spawnServer } from './server.js';

const PIECE = 1024 * 1024;
/**
 * Most additional memory, bytes, whatever the size of the blob. The newer library reads on while an upload is paused: up
 * to 32 MiB are kept.
 */
const EXTRA_MAX = (HAS_NEWER_LIBRARY ? 96 : 64) * 1024 * 1024;

/** Pieces that begin with their numbers, so that the hash detects one that is lost, repeated or out of order. */
function* pieces(size: number, hash: Hash): Generator<Buffer> {
  const seed = randomBytes(PIECE);
  for (let at = 0; at < size; at += PIECE) {
    seed.writeUInt32BE(at / PIECE, 0);
    const piece = Buffer.from(seed.subarray(0, Math.min(PIECE, size - at)));
    hash.update(piece);
    yield piece;
  }
}

async function put(url: string, headers: Readonly<Record<string, string>>, size: number): Promise<string> {
  const { sent, reply } = openRequest('PUT', url, headers);
  const hash = createHash('sha256');
  for (const piece of pieces(size, hash)) if (!sent.write(piece)) await once(sent, 'drain');
  sent.end();
  const { outcome } = await reply;
  if (outcome !== '200') throw new Error(`upload: ${outcome}`);
  return hash.digest('hex');
}

async function get(url: string): Promise<string> {
  const sent = request(url, { agent: false });
  sent.end();
  const [reply] = (await once(sent, 'response')) as [IncomingMessage];
  return hashOf(reply);
}

/** Uploads and downloads `size` bytes twice, the second time both at once. */
export async function largeBlob(t: Test, size: number): Promise<void> {
  const child = await spawnServer(t, { env: { MAX_BLOB_SIZE_MB: '2048', LOG_LEVEL: 'warn' } });
  const device = await claim(child.wire);
  const pid = child.process.pid ?? 0;
  const given = await uploadOf(child.wire, device, { size });
  const other = await uploadOf(child.wire, device, { size });
  // The first transfer loads code and allocates buffers: that memory does not depend on the blob's size.
  const small = await uploadOf(child.wire, device, { size: PIECE });
  await put(small.url, small.headers, PIECE);
  await get(await downloadUrl(child.wire, device, small.blobRef));
  const before = await peakOf(pid);
  const hash = await put(given.url, given.headers, size);
  const url = await downloadUrl(child.wire, device, given.blobRef);
  t.equal(await get(url), hash, 'byte for byte');
  const [again, read] = await Promise.all([put(other.url, other.headers, size), get(url)]);
  t.equal(read, hash);
  t.equal(await get(await downloadUrl(child.wire, device, other.blobRef)), again);
  const extra = (await peakOf(pid)) - before;
  t.ok(extra < EXTRA_MAX, `${Math.round(extra / 1_048_576)} MiB of extra memory`);
}
