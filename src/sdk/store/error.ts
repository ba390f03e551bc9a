/** The errors of durable stores, independent of the database library. */
import { causesOf, errorCode } from '../../protocol/error-code.js';
import { CodedError } from '../errors.js';

/** Why a store could not be opened, read or written. */
export type StoreFault =
  /** Another process (or page) has it open. Open it again later. */
  | 'locked'
  /** No space on disk, or in the browser's quota. Nothing was changed; it works again when there is space. */
  | 'full'
  /** Folder or disk is not writable. */
  | 'read_only'
  /** Another failure of the disk. */
  | 'io'
  /** The content is not what was stored. Opening it again sets it aside and builds a new store. */
  | 'damaged'
  /** Written by a newer program. Nothing was changed. */
  | 'newer_format'
  /** It belongs to another device or tenant. Nothing was changed. */
  | 'other_owner'
  | 'closed'
  /** This platform cannot provide a safe store. */
  | 'unsupported';

/** A failure of a durable store. Match on `code`. No message contains content or names of items. */
export class StoreError extends CodedError<StoreFault> {
  override readonly name = 'StoreError';

  constructor(
    code: StoreFault,
    message: string,
    /** Details in addition to the code, if known. */
    readonly detail: string | null = null,
    options?: ErrorOptions,
  ) {
    super(code, message, options);
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

/** The error of a fault, with advice. */
export const storeError = (code: StoreFault, detail: string | null = null, cause?: unknown): StoreError =>
  new StoreError(code, detail === null ? ADVICE[code] : `${ADVICE[code]} (${detail})`, detail, { cause });

const FULL = /no space left|ENOSPC|quota|EDQUOT|file too large|EFBIG/i;
const READ_ONLY = /read-only file system|EROFS|permission denied|EACCES|operation not permitted|EPERM/i;

/** LevelDB's message for a table that is missing or truncated. */
const CUT_OFF = /no such file|invalid argument/i;

/** Turns an error of a library into a `StoreError`: LevelDB's by codes and messages, IndexedDB's by names. */
export function storeErrorOf(error: unknown): StoreError {
  if (error instanceof StoreError) return error;
  const causes = causesOf(error);
  const codes = causes.map(errorCode).filter((code) => code !== '');
  const text = causes.map(({ name, message }) => `${name} ${message}`).join('\n');
  return storeError(faultOf(codes, text), null, error);
}

/** `codes` and `text`: of the error and its causes. */
function faultOf(codes: readonly string[], text: string): StoreFault {
  if (codes.includes('LEVEL_LOCKED')) return 'locked';
  // IndexedDB's error where the browser gives a page no storage.
  if (text.includes('SecurityError')) return 'unsupported';
  // Checked before damage, because a write without space may be reported as either.
  if (FULL.test(text)) return 'full';
  if (READ_ONLY.test(text)) return 'read_only';
  if (codes.includes('LEVEL_CORRUPTION')) return 'damaged';
  if (codes.includes('LEVEL_IO_ERROR')) return CUT_OFF.test(text) ? 'damaged' : 'io';
  // IndexedDB's error where a newer version of the page has upgraded the database.
  if (text.includes('VersionError')) return 'newer_format';
  const last = codes.at(-1);
  const notOpen = last === 'LEVEL_DATABASE_NOT_OPEN' || last === 'LEVEL_ITERATOR_NOT_OPEN';
  // IndexedDB's error for a closed database.
  return notOpen || text.includes('InvalidStateError') ? 'closed' : 'io';
}
