/** One running companion a machine and user, and one writer of the pairing's file at a time. */
import { join } from 'node:path';
import { heldLock, underLock, type Patience } from '../terminal/lock.js';
import { lockHolder, type FileLock } from '../files/lock.js';
import { privateFolder } from '../files/private.js';
import { systemClock } from '../protocol/clock.js';
import type { Paths } from './context.js';
import { McpError } from './errors.js';

const instancePath = ({ folder }: Paths): string => join(folder, 'mcp.lock');

/** An MCP client that restarts ends its old instance while it starts the new one; the old one may take its grace. */
const RESTART: Pick<Patience, 'clock' | 'patienceMs'> = { clock: systemClock, patienceMs: 6_000 };

/**
 * Makes this process the one that runs. One that died is taken over, one that is ending is waited for. Throws `McpError`
 * `already_running`, which names the other's process id. `onLost`: another instance took over while this one was stopped
 * for long; it must end.
 */
export async function holdInstance(paths: Paths, onLost: () => void, patience = RESTART): Promise<FileLock> {
  await privateFolder(paths.folder, () => undefined);
  const refusal = (heldBy: number | undefined): McpError => {
    const who = heldBy === undefined ? 'another instance' : `another instance (process ${heldBy})`;
    return new McpError('already_running', `${who} runs on this machine`);
  };
  return heldLock(instancePath(paths), { ...patience, refusal, onLost });
}

/** Process id of the instance that runs on this machine; undefined where none does. */
export const runningInstance = (paths: Paths): number | undefined => lockHolder(instancePath(paths));

/** Runs `work` while nobody else changes the pairing's file; its folder is made where it is missing. */
export async function withLock<T>(paths: Paths, work: () => Promise<T>): Promise<T> {
  await privateFolder(paths.folder, () => undefined);
  const refusal = () => new McpError('already_running', `another command is at work with ${paths.configPath}`);
  return underLock(`${paths.configPath}.lock`, refusal, work);
}
