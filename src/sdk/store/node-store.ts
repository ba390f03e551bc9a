/** Durable stores of Node: LevelDB in a folder. */
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ClassicLevel } from 'classic-level';
import { FILE_MODE, FOLDER_MODE, syncFolder } from '../../files/durable.js';
import { errorCode } from '../../protocol/error-code.js';
import { ProtocolError } from '../errors.js';
import { count, field } from '../reader.js';
import { type StoreError, storeError, storeErrorOf } from './error.js';
import type { Level } from './level-store.js';
import { openStore, SET_ASIDE_MAX, type OpenedStore, type OpenStoreOptions, type StorePlace } from './open.js';
import { type StoreOwner, crcWith } from './records.js';

/** More than LevelDB writes at opening: with this much free space, opening does not fail for lack of space. */
const PROBE_BYTES = 256 * 1024;
/** Only its owner reads it, and it is on the disk when the call returns. */
const DURABLE = { mode: FILE_MODE, flush: true } as const;

/**
 * Opens the store of a device in a folder of its own, and creates it (0700) if needed. Inside: `current` and, during a
 * rebuild, `next`; `damaged-<time>`, the last three of those; `lock`, against a second process; `expected.json`, the
 * batch count at the last opening or closing, so that an older state is recognised.
 *
 * All content is read and checked first: about half a second for 50,000 items. Throws `StoreError`; `locked` where
 * another process has it open.
 */
export async function openNodeStore(
  folder: string,
  owner: StoreOwner,
  options?: OpenStoreOptions,
): Promise<OpenedStore> {
  try {
    await mkdir(folder, { recursive: true, mode: FOLDER_MODE });
    const lock = await locked(join(folder, 'lock'));
    const place = new Folder(folder, lock);
    return await openStore(place, owner, options);
  } catch (error) {
    throw storeErrorOf(error);
  }
}

/** LevelDB locks its folder; the operating system releases the lock when the process ends, even after a kill. */
async function locked(path: string): Promise<ClassicLevel> {
  const lock = new ClassicLevel(path);
  await lock.open().catch(async (error: unknown) => {
    if (faultOf(error).code !== 'damaged') throw error;
    // The lock's database has no content, so it can be recreated.
    await rm(path, { recursive: true, force: true });
    await lock.open();
  });
  return lock;
}

/** LevelDB reports a file in place of a folder as an I/O failure; for a store it is damage. */
function faultOf(error: unknown): StoreError {
  const fault = storeErrorOf(error);
  const cause = error instanceof Error ? error.cause : undefined;
  const misplaced = ['EEXIST', 'ENOTDIR'].includes(errorCode(cause));
  return fault.code === 'io' && misplaced ? storeError('damaged', 'a file is in its place', error) : fault;
}

const readBatches = field('batches', count);

/** The folder of one store. The lock is held, so nothing else changes it. */
class Folder implements StorePlace {
  /** The database that was opened last. */
  private level: ClassicLevel<string, Uint8Array> | undefined;
  constructor(
    private readonly folder: string,
    private readonly lock: ClassicLevel,
  ) {}

  readonly inspect = async (): Promise<void> => {
    if (!(await this.has('current'))) return;
    for (const name of await namesIn(this.at('current'))) {
      if (!name.endsWith('.log') || (await isSoundLog(join(this.at('current'), name)))) continue;
      throw storeError('damaged', 'a record of its log does not fit its checksum');
    }
  };

  async current(): Promise<Level> {
    // A crash between the two renames of `promote`.
    if (!(await this.has('current')) && (await this.has('next'))) await this.move('next', 'current');
    return this.opened('current');
  }

  async next(): Promise<Level> {
    await rm(this.at('next'), { recursive: true, force: true });
    return this.opened('next');
  }

  readonly mend = async (): Promise<void> => {
    try {
      await ClassicLevel.repair(this.at('current'));
    } catch (error) {
      // Nothing could be repaired; the caller already treats the store as damaged.
      if (!['damaged', 'io'].includes(faultOf(error).code)) throw error;
    }
  };

  async promote(): Promise<string> {
    const time = new Date().toISOString().replace(/[:.]/g, '-');
    const aside = `damaged-${time}-${randomBytes(2).toString('hex')}`;
    await this.move('current', aside);
    await this.move('next', 'current');
    const names = (await readdir(this.folder)).filter((name) => name.startsWith('damaged-')).sort();
    for (const name of names.slice(0, -SET_ASIDE_MAX)) await rm(this.at(name), { recursive: true, force: true });
    return this.at(aside);
  }

  async expected(): Promise<number> {
    try {
      return readBatches(JSON.parse(await readFile(this.at('expected.json'), 'utf8')), '');
    } catch (error) {
      // Damaged, or never written.
      if (error instanceof SyntaxError || error instanceof ProtocolError || errorCode(error) === 'ENOENT') return 0;
      throw error;
    }
  }

  async expect(batches: number): Promise<void> {
    // One fixed name, which the store's lock makes this process's own: after a kill the next call overwrites it.
    await writeFile(this.at('expected.json.new'), JSON.stringify({ batches }), DURABLE);
    await this.move('expected.json.new', 'expected.json');
  }

  release(): Promise<void> {
    return this.lock.close();
  }

  /** LevelDB writes at opening and fails half-way without space, so the space is checked first. */
  readonly reopen = async (): Promise<void> => {
    const probe = this.at('probe');
    try {
      await writeFile(probe, Buffer.alloc(PROBE_BYTES), DURABLE);
    } finally {
      await rm(probe, { force: true });
    }
    await this.level?.close();
    await this.level?.open();
  };

  private async opened(name: string): Promise<Level> {
    this.level = new ClassicLevel(this.at(name), { valueEncoding: 'view' });
    try {
      await this.level.open();
      return this.level;
    } catch (error) {
      throw faultOf(error);
    }
  }

  private at(name: string): string {
    return join(this.folder, name);
  }

  private async has(name: string): Promise<boolean> {
    return (await readdir(this.folder)).includes(name);
  }

  private async move(from: string, to: string): Promise<void> {
    await rename(this.at(from), this.at(to));
    await syncFolder(this.folder);
  }
}

/** Names in a folder; empty where it is not a folder. */
async function namesIn(folder: string): Promise<readonly string[]> {
  try {
    return await readdir(folder);
  } catch (error) {
    if (errorCode(error) === 'ENOTDIR') return [];
    throw error;
  }
}

const BLOCK = 32 * 1024;
/** Checksum (4), length (2), type (1). */
const HEADER = 7;
/** Types of a record: full, first, middle, last. */
const TYPES = 4;

const crc32c = crcWith(0x82f63b78);

/** CRC-32C, masked as LevelDB stores it. */
function masked(bytes: Uint8Array): number {
  const sum = crc32c(bytes);
  return (((sum >>> 15) | (sum << 17)) + 0xa282ead8) >>> 0;
}

/**
 * Checks LevelDB's log before LevelDB reads it (format: LevelDB, doc/log_format.md). LevelDB silently drops what does
 * not match its checksum, up to the end of the block: at the end of the log that looks like an older state, and an
 * acknowledged change would be lost unnoticed. True if every complete record matches its checksum; a record that the
 * end of the file cuts off was being written when the process ended.
 */
async function isSoundLog(path: string): Promise<boolean> {
  const log = await readFile(path);
  for (let at = 0; at < log.length;) {
    const left = BLOCK - (at % BLOCK);
    if (left < HEADER) {
      at += left;
      continue;
    }
    if (at + HEADER > log.length) return true;
    const length = log.readUInt16LE(at + 4);
    const type = log[at + 6] ?? 0;
    // Preallocated and never written, as after a power failure.
    if (type === 0 && length === 0) return log.subarray(at).every((byte) => byte === 0);
    const end = at + HEADER + length;
    if (HEADER + length > left || type > TYPES) return false;
    if (end > log.length) return true;
    if (masked(log.subarray(at + 6, end)) !== log.readUInt32LE(at)) return false;
    at = end;
  }
  return true;
}
