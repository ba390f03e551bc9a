/** One running companion a machine and user (specification, Agent tools), and one writer of the pairing's file at a time. */
import { join } from 'node:path';
import { lockHolder, tryLock, type FileLock } from '../client/node-lock.js';
import { privateFolder } from '../client/node-private.js';
import { delay } from '../client/platform.js';
import { systemClock } from '../protocol/clock.js';
import type { Place } from './context.js';
import { McpError } from './errors.js';

/** A write of the file takes milliseconds; whoever holds its lock longer was stopped in the middle. */
const LOOK_EVERY_MS = 20;
const LOOKS_MAX = 1_500;

const instancePath = ({ folder }: Place): string => join(folder, 'mcp.lock');

/**
 * Makes this process the one that runs. Throws `McpError` `already_running`, which names the other's process id; one that
 * died is taken over. `onLost`: another instance took over while this one was stopped; it must end.
 */
export async function holdInstance(place: Place, onLost: () => void): Promise<FileLock> {
  await privateFolder(place.folder, () => undefined);
  const attempt = tryLock(instancePath(place), onLost);
  if ('lock' in attempt) return attempt.lock;
  const who = attempt.heldBy === undefined ? 'another instance' : `another instance (process ${attempt.heldBy})`;
  throw new McpError('already_running', `${who} runs on this machine`);
}

/** Process id of the instance that runs on this machine; undefined where none does. */
export const runningInstance = (place: Place): number | undefined => lockHolder(instancePath(place));

/** Runs `work` while nobody else changes the pairing's file; its folder is made where it is missing. */
export async function alone<T>(place: Place, work: () => Promise<T>): Promise<T> {
  await privateFolder(place.folder, () => undefined);
  const path = `${place.configPath}.lock`;
  for (let looks = 0; ; looks++) {
    const attempt = tryLock(path);
    if ('lock' in attempt) return work().finally(() => attempt.lock.release());
    if (looks >= LOOKS_MAX)
      throw new McpError('already_running', `another command is at work with ${place.configPath}`);
    await delay(systemClock, LOOK_EVERY_MS);
  }
}
