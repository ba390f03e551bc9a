/** Export and import of the encrypted archive (the reference, Archive), and the writing of any import. */
import { masterKeyOfSeed, phraseSeed } from '../../crypto/master-key.js';
import { erasing, type Sodium } from '../../crypto/sodium.js';
import type { Incoming } from '../../import/records.js';
import { BINS_MAX } from '../../protocol/limits.js';
import { ArchiveWriter, readArchive, type ByteSink, type ByteSource } from '../../sdk/archive/archive.js';
import { isLacking, partsOf } from '../../sdk/archive/content-parts.js';
import { Importer, type Spooled, surveyOf } from '../../sdk/archive/importer.js';
import { ArchiveError, binRecord, manifestOf, type ArchiveRecord } from '../../sdk/archive/records.js';
import { SpoolCipher } from '../../sdk/archive/spool-cipher.js';
import { fileSource, portionsOf } from '../../sdk/blobs/source.js';
import type { Platform } from '../../sdk/platform.js';
import type { Imported } from '../link/messages.js';
import type { Session } from './session.js';

/** Buffers content whose size must be known before it is written, encrypted, in browser blobs. */
async function spooled(sodium: Sodium, input: AsyncIterable<Uint8Array>): Promise<Spooled> {
  const cipher = new SpoolCipher(sodium);
  const parts: BlobPart[] = [];
  // One blob per portion, so that the browser may move each to disk.
  const size = await cipher.seal(input, (bytes) => void parts.push(new Blob([new Uint8Array(bytes)])));
  const sealed = new Blob(parts);
  return {
    size,
    open: () => cipher.open(portionsOf(fileSource(sealed))),
    close: () => Promise.resolve(cipher.end()),
  };
}

/**
 * The archive of everything that this browser shows, encrypted under the vault's twelve words. Its key is erased when the
 * session is closed, as where the browser is locked; it ends with `ClientError` `closed` then.
 */
export async function* archiveOf(
  sodium: Sodium,
  { device, identity, labelledBins, over }: Pick<Session, 'device' | 'identity' | 'labelledBins' | 'over'>,
  { phrase, signal }: { readonly phrase: string; readonly signal: AbortSignal },
): AsyncGenerator<Uint8Array, void, undefined> {
  const ready: Uint8Array[] = [];
  const sink = (bytes: Uint8Array): Promise<void> => Promise.resolve(void ready.push(bytes));
  const writer = await writerOf(sodium, { phrase, sink, masterKey: identity.masterKey });
  const end = (): void => writer.end();
  over.addEventListener('abort', end);
  try {
    over.throwIfAborted();
    await writer.add(manifestOf(sodium, identity, Date.now()));
    for (const { id, slug, label } of labelledBins.slice(0, BINS_MAX)) await writer.add(binRecord(id, slug, label));
    for (const { id, binId, type, ts, payload, blob } of [...(await device.list())].reverse()) {
      if (signal.aborted) return;
      const item = { record: 'item', id, bin: binId, type, ts, payload, blob: blob !== null, content: null } as const;
      const content = blob === null ? undefined : await contentOf(sodium, device.blob(id, { signal }));
      try {
        await writer.add({ ...item, content: content?.size ?? null });
        yield* ready.splice(0);
        if (content === undefined) continue;
        for await (const part of partsOf(content)) {
          await writer.add(part);
          yield* ready.splice(0);
        }
      } finally {
        await content?.close();
      }
    }
    await writer.finish();
    yield* ready;
  } finally {
    over.removeEventListener('abort', end);
    end();
  }
}

/** The writer of an archive under these words. Throws `ArchiveError` `wrong_words` for those of another vault. */
async function writerOf(
  sodium: Sodium,
  { phrase, sink, masterKey }: { readonly phrase: string; readonly sink: ByteSink; readonly masterKey: Uint8Array },
): Promise<ArchiveWriter> {
  const seed = await phraseSeed(sodium, phrase);
  try {
    const own = await masterKeyOfSeed(sodium, seed);
    if (!erasing(sodium, own, (key) => sodium.equal(key, masterKey)))
      throw new ArchiveError('wrong_words', 'these are not the twelve words of this vault');
    return await ArchiveWriter.create(sodium, seed, sink);
  } finally {
    sodium.memzero(seed);
  }
}

/** A file's content; undefined: the server does not have it. */
const contentOf = (sodium: Sodium, pieces: AsyncIterable<Uint8Array>): Promise<Spooled | undefined> =>
  spooled(sodium, pieces).catch((error: unknown) => {
    if (isLacking(error)) return undefined;
    throw error;
  });

const sourceOf = (file: Blob): ByteSource => {
  let at = 0;
  return {
    read: async (length) => {
      const bytes = new Uint8Array(await file.slice(at, at + length).arrayBuffer());
      at += bytes.length;
      return bytes;
    },
  };
};

/**
 * Imports the items of an archive that are missing in this vault, or newer in the archive. All of it is read and
 * verified before anything is written; a repeated import continues where the last one stopped. Throws `ArchiveError`.
 */
export async function importArchive(
  platform: Pick<Platform, 'sodium' | 'clock'>,
  session: Pick<Session, 'device' | 'imports'>,
  { file, phrase }: { readonly file: File; readonly phrase: string },
): Promise<Imported> {
  const { sodium } = platform;
  const seed = await phraseSeed(sodium, phrase);
  try {
    const records = (): AsyncGenerator<ArchiveRecord> => readArchive(sodium, seed, sourceOf(file));
    return await importRecords(platform, session, async () => ({ ...(await surveyOf(records())), records }));
  } finally {
    sodium.memzero(seed);
  }
}

/** Writes what `prepare` gives, as the only import of the session. Throws as `prepare`, and as `Importer`. */
export async function importRecords(
  { sodium, clock }: Pick<Platform, 'sodium' | 'clock'>,
  { device, imports }: Pick<Session, 'device' | 'imports'>,
  prepare: () => Promise<Incoming>,
): Promise<Imported> {
  const signal = imports.begin();
  const spool = (input: AsyncIterable<Uint8Array>): Promise<Spooled> => spooled(sodium, input);
  const importer = new Importer(device, { sodium, clock, overwrite: false, spool, signal });
  try {
    const { bins, items, records } = await prepare();
    await importer.bins(bins, await device.bins.list());
    const { counts } = importer;
    if (counts.bins > 0) await device.bins.refresh('changed');
    await importer
      .items(
        records(() => undefined),
        () => imports.taken(items),
      )
      .catch((error: unknown) => {
        if (!signal.aborted) throw error;
      });
    await importer.finish();
    const refused = [...counts.refused.values()].reduce((sum, items) => sum + items, 0);
    return { ...counts, refused, stopped: signal.aborted };
  } finally {
    importer.close();
    imports.end();
  }
}
