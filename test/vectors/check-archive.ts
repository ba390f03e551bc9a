/** The vectors of the archive, run against the client over a given binding. */
import { ArchiveWriter, readArchive } from '../../src/sdk/archive/archive.js';
import { ArchiveError, type ArchiveRecord } from '../../src/sdk/archive/records.js';
import { phraseSeed } from '../../src/crypto/master-key.js';
import { toBase64Url } from '../../src/protocol/base64.js';
import type { Sodium } from '../../src/crypto/sodium.js';
import { bytesSink, bytesSource } from '../support/archives.js';

const CHUNK_SIZE_AT = 20;
const SALT_AT = 24;
const PREFIX_AT = 40;
const OWN_CHUNK = 64 * 1024;

/** Records of an archive, and whether writing them again gives its bytes. */
export async function archiveCheck(
  sodium: Sodium,
  input: { readonly phrase: string; readonly archive: Uint8Array },
): Promise<Record<string, unknown>> {
  const seed = await phraseSeed(sodium, input.phrase);
  const records: ArchiveRecord[] = [];
  try {
    for await (const record of readArchive(sodium, seed, bytesSource(input.archive))) records.push(record);
  } catch (error) {
    if (error instanceof ArchiveError) return { reason: error.code };
    throw error;
  }
  const view = new DataView(input.archive.buffer, input.archive.byteOffset);
  const told = records.map((one) => (one.record === 'part' ? { ...one, data: toBase64Url(one.data) } : one));
  if (view.getUint32(CHUNK_SIZE_AT) !== OWN_CHUNK) return { records: told };
  const drawn = [input.archive.slice(SALT_AT, PREFIX_AT), input.archive.slice(PREFIX_AT, PREFIX_AT + 16)];
  const { sink, written } = bytesSink();
  const fixed: Sodium = { ...sodium, random: () => drawn.shift() ?? new Uint8Array(0) };
  const writer = await ArchiveWriter.create(fixed, seed, sink);
  for (const record of records) await writer.add(record);
  await writer.finish();
  return { records: told, rewritten: Buffer.from(written()).equals(Buffer.from(input.archive)) };
}
