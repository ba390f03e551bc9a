/** A file to import, archive or plain export: read record by record, as often as needed. */
import { open, type FileHandle } from 'node:fs/promises';
import { isArchive, readArchive, type ByteSource } from '../sdk/archive/archive.js';
import { type ArchiveRecord, readPlain } from '../sdk/archive/records.js';
import type { Sodium } from '../crypto/sodium.js';
import { CommandError, EXIT } from '../terminal/terminal.js';
import { readBytes } from './read-bytes.js';

/** A plain export is parsed as one JSON document in memory. */
const PLAIN_MAX = 256 * 1024 * 1024;
const MAGIC_BYTES = 8;
const UNKNOWN_FORM = 'is not an archive, a plain export of a vault, or an export of a known program.';

/** Called with the share of the file that was read, from 0 to 1. */
type OnRead = (share: number) => void;

/** An open file of either form. */
export class ImportSource {
  private constructor(
    private readonly handle: FileHandle,
    private readonly size: number,
    /** True: encrypted, and `records` needs the seed. */
    readonly encrypted: boolean,
  ) {}

  /** Opens a path that `readForeign` has found to be a file. Throws `CommandError` where it has neither form. */
  static async open(path: string): Promise<ImportSource> {
    const handle = await open(path, 'r');
    try {
      const start = await readBytes(handle, 0, MAGIC_BYTES);
      const encrypted = isArchive(start);
      if (!encrypted && !/^\s*\{/.test(start.toString('utf8')))
        throw new CommandError(EXIT.untrusted, `${path} ${UNKNOWN_FORM}`);
      return new ImportSource(handle, (await handle.stat()).size, encrypted);
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  /** All records. Throws `ArchiveError`. `seed`: of the archive's words. */
  async *records(sodium: Sodium, seed: Uint8Array, onRead: OnRead): AsyncGenerator<ArchiveRecord> {
    if (this.encrypted) yield* readArchive(sodium, seed, this.bytes(onRead));
    else yield* readPlain(await this.whole());
  }

  /** Closes the file. */
  async close(): Promise<void> {
    await this.handle.close();
  }

  private bytes(onRead: OnRead): ByteSource {
    let at = 0;
    return {
      read: async (length) => {
        const bytes = await readBytes(this.handle, at, length);
        at += bytes.length;
        onRead(this.size === 0 ? 1 : at / this.size);
        return bytes;
      },
    };
  }

  private async whole(): Promise<string> {
    const tooLong = `A plain export of more than ${PLAIN_MAX / 1024 / 1024} MiB cannot be read at once.`;
    const instead = 'Export it as an archive instead: those are read piece by piece.';
    if (this.size > PLAIN_MAX) throw new CommandError(EXIT.failure, tooLong, instead);
    return (await readBytes(this.handle, 0, this.size)).toString('utf8');
  }
}
