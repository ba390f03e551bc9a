/** Locks: one running companion per machine and user, and one writer of the pairing's file at a time. */
import { join } from 'node:path';
import { waitForLock, withFileLock, type LockOptions } from '../terminal/lock.js';
import { lockHolder, type FileLock } from '../files/lock.js';
import { privateFolder } from '../files/private.js';
import type { Context, Paths } from './context.js';
import { McpError } from './errors.js';

/** The folder of the pairing, and where a warning about it is printed. */
type Home = Pick<Context, 'paths' | 'note'>;

const instancePath = ({ folder }: Paths): string => join(folder, 'mcp.lock');

/** A restarting MCP client starts the new instance while the old one still ends its calls (`GRACE_MS` in serve.ts). */
const RESTART: Pick<LockOptions, 'clock' | 'timeoutMs'> = { timeoutMs: 6_000 };

/**
 * Takes the instance lock: takes over from an instance that died, waits for one that is ending. Creates the folder of
 * the pairing's file like `withLock`. Throws `McpError` `already_running` with the other process id. `onLost`: this
 * process was suspended, and another one has taken the lock: this one must exit.
 */
export async function holdInstance({ paths, note }: Home, onLost: () => void, wait = RESTART): Promise<FileLock> {
  await privateFolder(paths.folder, note);
  const refusal = (heldBy: number | undefined): McpError => {
    const who = heldBy === undefined ? 'another instance' : `another instance (process ${heldBy})`;
    return new McpError('already_running', `${who} is running on this machine`);
  };
  return waitForLock(instancePath(paths), { ...wait, refusal, onLost });
}

/** Process id of the running instance; undefined if none runs. */
export const runningInstance = (paths: Paths): number | undefined => lockHolder(instancePath(paths));

/**
 * Runs `work` under the lock of the pairing's file. Creates its folder if missing; one that is open to other users
 * is closed to them, with a warning.
 */
export async function withLock<T>({ paths, note }: Home, work: () => Promise<T>): Promise<T> {
  await privateFolder(paths.folder, note);
  const refusal = () => new McpError('already_running', `another command is using ${paths.configPath}`);
  return withFileLock(`${paths.configPath}.lock`, { refusal }, work);
}
