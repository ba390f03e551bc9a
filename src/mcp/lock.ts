/** One running companion a machine and user (specification, Agent tools), and one writer of the pairing's file at a time. */
import { join } from 'node:path';
import { delay } from '../client/platform.js';
import { lockHolder, tryLock, type FileLock } from '../files/lock.js';
import { privateFolder } from '../files/private.js';
import { systemClock, type Clock } from '../protocol/clock.js';
import type { Place } from './context.js';
import { McpError } from './errors.js';

/** A write of the file takes milliseconds; whoever holds its lock longer was stopped in the middle. */
const LOOK_EVERY_MS = 50;
const LOOKS_MAX = 600;

const instancePath = ({ folder }: Place): string => join(folder, 'mcp.lock');

/** How long the instance before is waited for, and by which clock. */
export interface Patience {
  readonly clock: Clock;
  readonly patienceMs: number;
}

/** An MCP client that restarts ends its old instance while it starts the new one; the old one may take its grace. */
const RESTART: Patience = { clock: systemClock, patienceMs: 6_000 };

/**
 * Makes this process the one that runs. One that died is taken over, one that is ending is waited for. Throws `McpError`
 * `already_running`, which names the other's process id. `onLost`: another instance took over while this one was stopped
 * for long; it must end.
 */
export async function holdInstance(place: Place, onLost: () => void, patience: Patience = RESTART): Promise<FileLock> {
  await privateFolder(place.folder, () => undefined);
  const { clock, patienceMs } = patience;
  const until = clock.now() + patienceMs;
  for (;;) {
    const attempt = tryLock(instancePath(place), { onLost });
    if ('lock' in attempt) return attempt.lock;
    if (clock.now() >= until) {
      const who = attempt.heldBy === undefined ? 'another instance' : `another instance (process ${attempt.heldBy})`;
      throw new McpError('already_running', `${who} runs on this machine`);
    }
    await delay(clock, LOOK_EVERY_MS);
  }
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
