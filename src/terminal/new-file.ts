/** Writing a file atomically: it appears under its name when it is complete, mode 0600 and durable. */
import { lstat, open, rm, type FileHandle } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { tempSibling, FILE_MODE, placeFile, syncFolder } from '../files/durable.js';
import { errorCode } from '../protocol/error-code.js';
import { CommandError, EXIT, usageError } from './terminal.js';

/** Codes of the file system where there is no room for what is written. */
export const FULL: ReadonlySet<string> = new Set(['ENOSPC', 'EDQUOT', 'EFBIG']);

const taken = (path: string): CommandError =>
  usageError(`${path} already exists.`, 'Give another name, or --force to replace it.');

/** The system's error as a `CommandError`, where the user can do something about it. */
function toUserError(path: string, error: unknown): unknown {
  const code = errorCode(error);
  if (code === 'EEXIST') return taken(path);
  if (FULL.has(code)) return new CommandError(EXIT.failure, `There is no room for ${path}. Nothing was left behind.`);
  if (code === 'ENOENT' || code === 'ENOTDIR') return usageError(`The folder of ${path} does not exist.`);
  if (code === 'EACCES' || code === 'EROFS') return usageError(`${path} may not be written here.`);
  return error;
}

/** The result of writing to `path`. Its error is a `CommandError` where the user can do something about it. */
export const writingTo = <T>(path: string, work: Promise<T>): Promise<T> =>
  work.catch((error: unknown) => {
    throw toUserError(path, error);
  });

/** A file being written; ended by `finish`, `abandon` or a failed `write`; `abandon` after that does nothing. */
export class NewFile {
  private constructor(
    private readonly path: string,
    private readonly temporary: string,
    private readonly handle: FileHandle,
    private readonly force: boolean,
  ) {}

  /** Opens a temporary file. `force`: `finish` replaces an existing file; otherwise an existing one is a `CommandError`. */
  static async create(name: string, force: boolean): Promise<NewFile> {
    const path = resolve(name);
    await NewFile.expectFree(path, force);
    const temporary = tempSibling(path, '.part');
    return new NewFile(path, temporary, await writingTo(path, open(temporary, 'wx', FILE_MODE)), force);
  }

  static async save(name: string, bytes: Uint8Array, force: boolean): Promise<void> {
    const file = await NewFile.create(name, force);
    await file.write(bytes);
    await file.finish();
  }

  /** Throws `CommandError` where the name is taken by something that may not be replaced. */
  static async expectFree(name: string, force: boolean): Promise<void> {
    const found = await lstat(resolve(name)).catch(() => undefined);
    if (found === undefined) return;
    if (!found.isFile()) throw usageError(`${name} is not a file.`);
    if (!force) throw taken(name);
  }

  /** Appends bytes. After a failure nothing is left behind. */
  readonly write = (bytes: Uint8Array): Promise<void> => this.orAbandon(() => this.handle.appendFile(bytes));

  /** Makes the file durable and gives it its name. */
  finish(): Promise<void> {
    return this.orAbandon(async () => {
      await this.handle.sync();
      await this.handle.close();
      await placeFile(this.temporary, this.path, this.force ? 'replace' : 'keep');
      await syncFolder(dirname(this.path));
    });
  }

  /** Removes the temporary file. No-op after a failure of `write` or `finish`. */
  async abandon(): Promise<void> {
    await this.handle.close().catch(() => undefined);
    await rm(this.temporary, { force: true });
  }

  private async orAbandon(work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      await this.abandon();
      throw toUserError(this.path, error);
    }
  }
}
