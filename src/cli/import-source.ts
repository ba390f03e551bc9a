/** A file to import, archive or plain export: read record by record, as often as needed. */
import type { FileHandle } from 'node:fs/promises';
import { isArchive, readArchive, type ByteSource } from '../sdk/archive/archive.js';
import { type ArchiveRecord, readPlain } from '../sdk/archive/records.js';
import type { Sodium } from '../crypto/sodium.js';
import { CommandError, EXIT } from '../terminal/terminal.js';
import { readBytes, withFile } from '../files/read.js';

/** A plain export is parsed as one JSON document in memory. */
const PLAIN_MAX = 256 * 1024 * 1024;
const MAGIC_BYTES = 8;
const UNKNOWN_FORM = 'is not an archive, a plain export of a vault, or an export of a known program.';
const OTHER_FILES = '`import --help` names the programs. To keep the file itself, use `put --file`.';

export type ImportSource = Awaited<ReturnType<typeof sourceOf>>;

/** Called with the share of the file that was read, from 0 to 1. */
type OnRead = (share: number) => void;

/**
 * Runs `work` with the file of a path that `readForeign` has found to be one, and closes it. Throws `CommandError` where it
 * has neither form.
 */
export const withSource = <T>(path: string, work: (source: ImportSource) => Promise<T>): Promise<T> =>
  withFile(path, async (handle) => work(await sourceOf(handle, path)));

async function sourceOf(handle: FileHandle, path: string) {
  const start = await readBytes(handle, 0, MAGIC_BYTES);
  const encrypted = isArchive(start);
  if (!encrypted && !/^\s*\{/.test(start.toString('utf8')))
    throw new CommandError(EXIT.untrusted, `${path} ${UNKNOWN_FORM}`, OTHER_FILES, { code: 'not_archive' });
  const { size } = await handle.stat();
  return {
    /** True: `records` needs the seed. */
    encrypted,
    /** All records. Throws `ArchiveError`. `seed`: of the archive's words. */
    async *records(sodium: Sodium, seed: Uint8Array, onRead: OnRead): AsyncGenerator<ArchiveRecord> {
      if (encrypted) yield* readArchive(sodium, seed, bytesOf(handle, size, onRead));
      else yield* readPlain(await wholeOf(handle, size));
    },
  };
}

function bytesOf(handle: FileHandle, size: number, onRead: OnRead): ByteSource {
  let at = 0;
  return {
    read: async (length) => {
      const bytes = await readBytes(handle, at, length);
      at += bytes.length;
      onRead(size === 0 ? 1 : at / size);
      return bytes;
    },
  };
}

async function wholeOf(handle: FileHandle, size: number): Promise<string> {
  const tooLong = `A plain export of more than ${PLAIN_MAX / 1024 / 1024} MiB cannot be read at once.`;
  const instead = 'Export it as an archive instead: those are read piece by piece.';
  if (size > PLAIN_MAX) throw new CommandError(EXIT.failure, tooLong, instead);
  return (await readBytes(handle, 0, size)).toString('utf8');
}
