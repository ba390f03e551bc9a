/** Export and import of the encrypted archive (the reference, Archive), as the command line has them. */
import { BlobDecryptor, BlobEncryptor, streamNonce } from '../../crypto/blob-stream.js';
import { fingerprintOfMaster } from '../../crypto/fingerprint.js';
import { masterKeyOfSeed, phraseSeed } from '../../crypto/master-key.js';
import { CryptoRefusal } from '../../crypto/refusal.js';
import type { Sodium } from '../../crypto/sodium.js';
import { BINS_MAX, KEY_BYTES } from '../../protocol/limits.js';
import { ArchiveWriter, readArchive, type ByteSource } from '../../sdk/archive/archive.js';
import { ID_TRIES, OF_ONE_ITEM, payloadIn, renewedId, unwritten } from '../../sdk/archive/import-rules.js';
import {
  ArchiveError,
  binRecord,
  PART_BYTES,
  type ArchivedBin,
  type ArchivedItem,
  type ArchiveRecord,
} from '../../sdk/archive/records.js';
import { portionsOf, type BlobSource } from '../../sdk/blobs/source.js';
import { ApiError, ClientError, isPassing, QueuedError } from '../../sdk/errors.js';
import { holdsFile } from '../../sdk/payloads/shapes.js';
import type { Calls } from '../link/messages.js';
import type { Session } from './session.js';

/** Bytes whose size has to be known before they are written, encrypted in a blob of the browser's until then. */
async function spooled(sodium: Sodium, input: AsyncIterable<Uint8Array>): Promise<BlobSource> {
  const secret = { nonce: streamNonce(sodium), aad: new Uint8Array(0) };
  const key = sodium.random(KEY_BYTES);
  const encryptor = new BlobEncryptor(sodium, { ...secret, key });
  const parts: BlobPart[] = [];
  let size = 0;
  for await (const bytes of input) {
    size += bytes.length;
    // One blob for each portion, so that the browser may move it to its disk.
    for (const chunk of encryptor.push(bytes)) parts.push(new Blob([new Uint8Array(chunk)]));
  }
  parts.push(new Blob([new Uint8Array(encryptor.finish())]));
  const sealed = new Blob(parts);
  return {
    size,
    async *open() {
      const decryptor = new BlobDecryptor(sodium, { ...secret, keys: [key] });
      try {
        for await (const bytes of portionsOf({ size: sealed.size, open: () => sealed.stream() }))
          yield* decryptor.push(bytes);
        yield decryptor.finish();
      } finally {
        decryptor.end();
      }
    },
  };
}

/**
 * A file that the server does not have, not as it was written, or does not give to a device that was revoked is left out
 * of an export; anything else ends it.
 */
const isLacking = (error: unknown): boolean =>
  error instanceof CryptoRefusal ||
  (error instanceof ApiError && error.code === 'blob_not_found') ||
  (error instanceof ClientError && error.code === 'revoked');

/** The archive of everything that this browser shows, encrypted under the vault's twelve words. */
export async function* archiveOf(
  sodium: Sodium,
  { device, identity, labelledBins }: Pick<Session, 'device' | 'identity' | 'labelledBins'>,
  { phrase, signal }: { readonly phrase: string; readonly signal: AbortSignal },
): AsyncGenerator<Uint8Array, void, undefined> {
  const seed = await phraseSeed(sodium, phrase);
  const own = await masterKeyOfSeed(sodium, seed);
  if (!sodium.equal(own, identity.masterKey))
    throw new ArchiveError('wrong_words', 'these are not the twelve words of this vault');
  sodium.memzero(own);
  const ready: Uint8Array[] = [];
  const sink = (bytes: Uint8Array): Promise<void> => Promise.resolve(void ready.push(bytes));
  const writer = await ArchiveWriter.create(sodium, seed, sink);
  sodium.memzero(seed);
  const masterFingerprint = fingerprintOfMaster(sodium, identity.masterKey);
  await writer.add({
    record: 'manifest',
    format: 1,
    createdAt: Date.now(),
    tenantId: identity.tenantId,
    masterFingerprint,
  });
  for (const { id, slug, label } of labelledBins.slice(0, BINS_MAX)) await writer.add(binRecord(id, slug, label));
  for (const { id, binId, type, ts, payload, blob } of [...(await device.list())].reverse()) {
    if (signal.aborted) return;
    const item = { record: 'item', id, bin: binId, type, ts, payload, blob: blob !== null, content: null } as const;
    const content = blob === null ? undefined : await contentOf(sodium, device.blob(id, { signal }));
    await writer.add({ ...item, content: content?.size ?? null });
    if (content !== undefined)
      for await (const piece of portionsOf(content))
        for (let at = 0; at < piece.length; at += PART_BYTES) {
          await writer.add({ record: 'part', data: piece.subarray(at, at + PART_BYTES) });
          yield* ready.splice(0);
        }
    yield* ready.splice(0);
  }
  await writer.finish();
  yield* ready;
}

async function contentOf(sodium: Sodium, pieces: AsyncIterable<Uint8Array>): Promise<BlobSource | undefined> {
  try {
    return await spooled(sodium, pieces);
  } catch (error) {
    if (isLacking(error)) return undefined;
    throw error;
  }
}

const bytesOf = (file: Blob): ByteSource => {
  let at = 0;
  return {
    read: async (length) => {
      const bytes = new Uint8Array(await file.slice(at, at + length).arrayBuffer());
      at += bytes.length;
      return bytes;
    },
  };
};

type Imported = ReturnType<Calls['importArchive']>;

/**
 * Brings the items of an archive into this vault: those that are not here, and those that are newer there. The whole is
 * read and verified before anything is written; it may be repeated, and goes on where it stopped. Throws `ArchiveError`.
 */
export async function importArchive(
  sodium: Sodium,
  session: Pick<Session, 'device'>,
  { file, phrase }: { readonly file: File; readonly phrase: string },
): Promise<Imported> {
  const seed = await phraseSeed(sodium, phrase);
  try {
    const records = (): AsyncGenerator<ArchiveRecord> => readArchive(sodium, seed, bytesOf(file));
    const bins = await surveyed(records());
    const counts = { items: 0, skipped: 0, bins: await withBins(session, bins) };
    const all = records();
    // Not `for await`: the parts that follow an item are read as its content.
    for (let next = await all.next(); next.done !== true; next = await all.next())
      if (next.value.record === 'item')
        counts[(await importItem(sodium, session, { item: next.value, all })) ? 'items' : 'skipped']++;
    return counts;
  } finally {
    sodium.memzero(seed);
  }
}

async function surveyed(records: AsyncGenerator<ArchiveRecord>): Promise<ReadonlyMap<string, ArchivedBin | undefined>> {
  const bins = new Map<string, ArchivedBin | undefined>();
  for await (const record of records) {
    if (record.record === 'bin') bins.set(record.id, record);
    if (record.record === 'item' && !bins.has(record.bin)) bins.set(record.bin, undefined);
    if (bins.size > BINS_MAX) throw new ArchiveError('bad_record', 'it has too many bins');
  }
  return bins;
}

/** Creates the bins that are missing; resolves with their number. */
async function withBins(
  { device: { bins } }: Pick<Session, 'device'>,
  wanted: ReadonlyMap<string, ArchivedBin | undefined>,
): Promise<number> {
  const here = new Set((await bins.list()).map(({ id }) => id));
  const missing = [...wanted].filter(([id]) => !here.has(id));
  for (const [id, bin] of missing) await bins.create(id, bin?.label ?? { name: id });
  if (missing.length > 0) await bins.refresh('changed');
  return missing.length;
}

/** True where it was written. */
async function importItem(
  sodium: Sodium,
  { device }: Pick<Session, 'device'>,
  { item, all }: { readonly item: ArchivedItem; readonly all: AsyncGenerator<ArchiveRecord> },
): Promise<boolean> {
  const known = unwritten(item, await device.get(item.id), false) !== undefined;
  if (known || (item.blob && item.content === null)) return false;
  const content = item.content === null ? undefined : await spooled(sodium, partsOf(all, item.content));
  const { bin: binId, type, ts } = item;
  const what =
    content === undefined || holdsFile(type)
      ? { payload: item.payload ?? {}, content }
      : { payload: await payloadIn(content) };
  for (let round = 0; ; round++) {
    // An item that was deleted here cannot come back under its id.
    const id = round === 0 ? item.id : renewedId(sodium, item.id, round);
    if (round > 0 && unwritten(item, await device.get(id), false) !== undefined) return false;
    try {
      await device.put({ id, binId, type, ts, ...what, asIs: true });
      return true;
    } catch (error) {
      if (error instanceof QueuedError) return true;
      // The others go on without it.
      if (error instanceof ApiError && OF_ONE_ITEM.has(error.code)) return false;
      const deleted = error instanceof ClientError && error.code === 'deleted_item';
      if (!deleted || round >= ID_TRIES || isPassing(error)) throw error;
    }
  }
}

async function* partsOf(records: AsyncGenerator<ArchiveRecord>, length: number): AsyncGenerator<Uint8Array> {
  for (let due = length; due > 0;) {
    const next = await records.next();
    const value = next.done === true ? undefined : next.value;
    if (value?.record !== 'part') throw new ArchiveError('bad_record', 'the content of an item is cut short');
    due -= value.data.length;
    yield value.data;
  }
}
