/** One running companion a machine and user, and one writer of the pairing's file at a time. */
import { join } from 'node:path';
import { waitForLock, withFileLock, type LockOptions } from '../terminal/lock.js';
import { lockHolder, type FileLock } from '../files/lock.js';
import { privateFolder } from '../files/private.js';
import type { Place } from './context.js';
import { McpError } from './errors.js';

const instancePath = ({ folder }: Place): string => join(folder, 'mcp.lock');

/** An MCP client that restarts ends its old instance while it starts the new one; the old one may take its grace. */
const RESTART: Pick<LockOptions, 'clock' | 'timeoutMs'> = { timeoutMs: 6_000 };

/**
 * Makes this process the one that runs. One that died is taken over, one that is ending is waited for. Throws `McpError`
 * `already_running`, which names the other's process id. `onLost`: another instance took over while this one was stopped
 * for long; it must end.
 */
export async function holdInstance(place: Place, onLost: () => void, patience = RESTART): Promise<FileLock> {
  await privateFolder(place.folder, () => undefined);
  const refusal = (heldBy: number | undefined): McpError => {
    const who = heldBy === undefined ? 'another instance' : `another instance (process ${heldBy})`;
    return new McpError('already_running', `${who} runs on this machine`);
  };
  return waitForLock(instancePath(place), { ...patience, refusal, onLost });
}

/** Process id of the instance that runs on this machine; undefined where none does. */
export const runningInstance = (place: Place): number | undefined => lockHolder(instancePath(place));

/** Runs `work` while nobody else changes the pairing's file; its folder is made where it is missing. */
export async function alone<T>(place: Place, work: () => Promise<T>): Promise<T> {
  await privateFolder(place.folder, () => undefined);
  const refusal = () => new McpError('already_running', `another command is at work with ${place.configPath}`);
  return withFileLock(`${place.configPath}.lock`, { refusal }, work);
}
