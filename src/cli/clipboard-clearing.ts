/**
 * A copied secret is cleared after a while by a process of its own, which outlives the command and its terminal. It is
 * given the secret's hash: it clears the clipboard only where that still holds the secret. A terminal's clipboard cannot be
 * read; that one is cleared in any case.
 *
 * The profile's file `clipboard.json` names the newest copy: a process that finds another one there ends. Where there is no
 * such file (the profile was removed) the secret is cleared all the same.
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

/** What the process reads from its standard input. `sequence`: for a terminal, in the place of `tools`. */
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

/** Tools and systems change line ends, and add one. */
const hashOf = (salt: string, text: string): string =>
  createHash('sha256')
    .update(`${salt}\n${text.replaceAll('\r\n', '\n').replace(/\n$/, '')}`)
    .digest('base64url');

/** A secret that was copied before is not cleared any more: something else is in the clipboard now. */
export async function replaceCopied(folder: string, now: number): Promise<void> {
  if (existsSync(join(folder, FILE))) await mark(folder, now);
}

/** Names a new copy, which is cleared at `until`. */
async function mark(folder: string, until: number): Promise<string> {
  const name = randomBytes(12).toString('hex');
  await writePrivate(join(folder, FILE), Buffer.from(JSON.stringify({ mark: name, until })));
  return name;
}

/** Has a secret cleared after `CLEAR_AFTER_MS`, by a process that was started when this resolves. Rejects where it cannot be. */
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

/** The process's work: waits until the time has come, and clears. Ends at once where another copy came after this one. */
export async function clearWhenDue({ clock, env }: Session, clearing: Clearing): Promise<void> {
  const { folder, salt, hash, tools, sequence } = clearing;
  const began = clock.now();
  for (;;) {
    const newest = await newestMark(folder);
    if (newest !== undefined && newest.mark !== clearing.mark) return;
    const waited = Math.abs(clock.now() - began);
    // Whatever is in the file, and wherever the clock is set to.
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
    // Damaged: it names no other copy, so the secret is still to be cleared.
    return undefined;
  }
}

/** To the terminal that the command was called in, as standard output. */
function toTerminal(sequence: string): void {
  try {
    writeSync(1, sequence);
  } catch {
    // It was closed meanwhile, and its clipboard is out of reach.
  }
}
