/** What a durable store's calls throw, whatever library keeps it. */
import { errorCode } from '../../protocol/error-code.js';

/** Why a store could not be opened, read or written. */
export type StoreFault =
  /** Another process (or page) has it open. Wait, and open it again. */
  | 'locked'
  /** No room on the disk, or none left of the browser's share. Nothing was changed; it works again when there is room. */
  | 'full'
  /** Folder or disk cannot be written. */
  | 'read_only'
  /** The disk failed in another way. */
  | 'io'
  /** What is stored is not what was stored. Opening it again sets it aside and builds a new one. */
  | 'damaged'
  /** A newer program wrote it. Nothing was touched. */
  | 'newer_format'
  /** It belongs to another device or tenant. Nothing was touched. */
  | 'other_owner'
  | 'closed'
  /** This platform cannot keep a store safely. */
  | 'unsupported';

/** A store that cannot do what it was asked. Match on `code`. No message holds content or names of items. */
export class StoreError extends Error {
  override readonly name = 'StoreError';

  constructor(
    readonly code: StoreFault,
    message: string,
    /** What was found, where more is known than the code says. */
    readonly detail: string | null = null,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

const ADVICE: Readonly<Record<StoreFault, string>> = {
  locked: 'the local store is open in another program; close that one, or try again when it has ended',
  full: 'there is no room left for the local store; nothing was changed, and it works again when there is room',
  read_only: 'the local store cannot be written; check the permissions of its folder and whether its disk is read-only',
  io: 'the local store could not be read or written',
  damaged: 'the local store is damaged; close the device and open the store again: it is rebuilt from the server',
  newer_format: 'the local store was written by a newer version of this program; use that version',
  other_owner: 'the local store belongs to another device; choose another place, or remove it',
  closed: 'the local store is closed',
  unsupported: 'the local store cannot be kept here',
};

/** The error of a fault, with what to do about it. */
export const storeError = (code: StoreFault, detail: string | null = null, cause?: unknown): StoreError =>
  new StoreError(code, detail === null ? ADVICE[code] : `${ADVICE[code]} (${detail})`, detail, { cause });

const FULL = /no space left|ENOSPC|quota|EDQUOT|file too large|EFBIG/i;
const READ_ONLY = /read-only file system|EROFS|permission denied|EACCES|operation not permitted|EPERM/i;

/** What LevelDB says of a table that is gone, or shorter than its index says. */
const CUT_OFF = /no such file|invalid argument/i;

interface Told {
  readonly codes: readonly string[];
  readonly text: string;
}

/** Codes, names and messages of an error and of what caused it. */
function toldBy(error: unknown): Told {
  const codes: string[] = [];
  const texts: string[] = [];
  for (let at: unknown = error, depth = 0; at instanceof Error && depth < 8; at = at.cause, depth++) {
    const code = errorCode(at);
    if (code !== '') codes.push(code);
    texts.push(`${at.name} ${at.message}`);
  }
  return { codes, text: texts.join('\n') };
}

/** A library's error (LevelDB's by its codes and messages, IndexedDB's by its names) as a `StoreError`. */
export function storeErrorOf(error: unknown): StoreError {
  if (error instanceof StoreError) return error;
  return storeError(faultOf(toldBy(error)), null, error);
}

function faultOf({ codes, text }: Told): StoreFault {
  if (codes.includes('LEVEL_LOCKED')) return 'locked';
  // Before damage: a write that found no room may be reported as either.
  if (FULL.test(text)) return 'full';
  if (READ_ONLY.test(text)) return 'read_only';
  if (codes.includes('LEVEL_CORRUPTION')) return 'damaged';
  if (codes.includes('LEVEL_IO_ERROR')) return CUT_OFF.test(text) ? 'damaged' : 'io';
  const last = codes.at(-1);
  const notOpen = last === 'LEVEL_DATABASE_NOT_OPEN' || last === 'LEVEL_ITERATOR_NOT_OPEN';
  // IndexedDB's name for a database that was closed.
  return notOpen || text.includes('InvalidStateError') ? 'closed' : 'io';
}
