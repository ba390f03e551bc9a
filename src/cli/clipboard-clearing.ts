/**
 * A copied secret is cleared after `CLEAR_AFTER_MS` by a child process, which outlives the command and its terminal.
 * The child has the secret's hash, and clears the clipboard only where it still holds the secret. A terminal's
 * clipboard cannot be read, so it is cleared in any case.
 *
 * The profile's file `clipboard.json` names the newest copy: a child that finds another copy there ends. Without that
 * file (the profile was removed) the secret is cleared all the same.
 */
import { spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { existsSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readPrivate, removePrivate, writePrivate } from '../files/private.js';
import { delay } from '../protocol/clock.js';
import { PAYLOAD_MAX } from '../sdk/payloads/shapes.js';
import { count, nonEmpty, object } from '../sdk/reader.js';
import type { Terminal } from '../terminal/terminal.js';
import { clearBy, clearSequence, type CopiedBy, pasteBy, type Session, type Tools } from './clipboard.js';

/** How long a secret stays in the clipboard, ms. */
export const CLEAR_AFTER_MS = 45_000;

/** The JSON that the child reads from its standard input. `sequence`: for a terminal, where `tools` is null. */
export interface Clearing {
  readonly folder: string;
  readonly mark: string;
  readonly salt: string;
  readonly hash: string;
  readonly tools: Tools | null;
  readonly sequence: string;
}

const FILE = 'clipboard.json';
const FILE_MAX = 1_024;
const LOOK_EVERY_MS = 250;
const CHILD = fileURLToPath(new URL('./clipboard-child.js', import.meta.url));
const readMark = object({ mark: nonEmpty, until: count });

/** Independent of the kind of line ends and of a last one: clipboard tools and systems change both. */
const hashOf = (salt: string, text: string): string =>
  createHash('sha256')
    .update(`${salt}\n${text.replaceAll('\r\n', '\n').replace(/\n$/, '')}`)
    .digest('base64url');

/** Cancels the clearing of an earlier secret, since the clipboard holds something else now. */
export async function replaceCopied(folder: string, now: number): Promise<void> {
  if (existsSync(join(folder, FILE))) await mark(folder, now);
}

/** Stores the mark of a new copy, which is cleared at `until` (ms), and returns it. */
async function mark(folder: string, until: number): Promise<string> {
  const name = randomBytes(12).toString('hex');
  await writePrivate(join(folder, FILE), Buffer.from(JSON.stringify({ mark: name, until })));
  return name;
}

/** Starts the child that clears a secret after `CLEAR_AFTER_MS`. Rejects where the child cannot be started. */
export async function clearLater(
  { env, screen }: Pick<Terminal, 'env' | 'screen'>,
  {
    folder,
    secret,
    by,
    now,
  }: { readonly folder: string; readonly secret: string; readonly by: CopiedBy; readonly now: number },
): Promise<void> {
  const salt = randomBytes(16).toString('hex');
  const tools = by === 'terminal' ? null : by;
  const clearing: Clearing = {
    ...{ folder, salt, tools },
    hash: hashOf(salt, secret),
    sequence: clearSequence(env),
    mark: await mark(folder, now + CLEAR_AFTER_MS),
  };
  const output = tools === null && screen !== undefined ? screen.fd : 'ignore';
  const child = spawn(process.execPath, [CHILD], {
    env,
    cwd: '/',
    detached: true,
    windowsHide: true,
    stdio: ['pipe', output, 'ignore'],
  });
  await new Promise<void>((resolve, reject) => {
    child.once('error', reject);
    child.stdin?.once('error', reject);
    child.stdin?.end(JSON.stringify(clearing), resolve);
  });
  child.unref();
}

/** The child's work: waits until the secret is due, and clears it. Ends without that once there is a newer copy. */
export async function clearWhenDue({ clock, env }: Session, clearing: Clearing): Promise<void> {
  const { folder, salt, hash, tools, sequence } = clearing;
  const began = clock.now();
  for (;;) {
    const newest = await newestMark(folder);
    if (newest !== undefined && newest.mark !== clearing.mark) return;
    const waited = Math.abs(clock.now() - began);
    // The time waited is a bound of its own: the file may have a wrong time, and the clock may be set back.
    if (clock.now() >= (newest?.until ?? Infinity) || waited >= CLEAR_AFTER_MS) break;
    await delay(clock, LOOK_EVERY_MS);
  }
  if (tools === null) toTerminal(sequence);
  else {
    const held = await pasteBy({ clock, env }, tools, PAYLOAD_MAX);
    if (held !== undefined && hashOf(salt, held.toString('utf8')) === hash) await clearBy({ clock, env }, tools);
  }
  if ((await newestMark(folder))?.mark === clearing.mark) await removePrivate(join(folder, FILE));
}

async function newestMark(folder: string): Promise<{ readonly mark: string; readonly until: number } | undefined> {
  try {
    const stored = await readPrivate(join(folder, FILE), FILE_MAX, () => undefined);
    return stored === undefined ? undefined : readMark(JSON.parse(stored.toString('utf8')), FILE);
  } catch {
    // Damaged: the file names no other copy, so the secret must still be cleared.
    return undefined;
  }
}

/** Writes to the command's terminal, which is the child's standard output. */
function toTerminal(sequence: string): void {
  try {
    writeSync(1, sequence);
  } catch {
    // The terminal was closed, so its clipboard is out of reach.
  }
}
