/**
 * The clipboard: through the system's own tools that are on `PATH` and fit the session, else through the terminal (OSC
 * 52). Copied text is passed through a pipe, never as an argument.
 *
 * A copied secret is cleared after `CLEAR_AFTER_MS` by a child process, which outlives the command and its terminal.
 * The child has the secret's hash, and clears the clipboard only where it still holds the secret. A terminal's
 * clipboard cannot be read, so it is cleared in any case.
 *
 * The profile's file `clipboard.json` names the newest copy: a child that finds another copy there ends. Without that
 * file (the profile was removed) the secret is cleared all the same.
 */
import { spawn } from 'node:child_process';
import { hash, randomBytes } from 'node:crypto';
import { accessSync, constants, existsSync, writeSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readPrivateJson, removePrivate, writePrivate } from '../files/private.js';
import { delay, type Clock } from '../protocol/clock.js';
import { PAYLOAD_MAX } from '../sdk/payloads/shapes.js';
import { count, nonEmpty, object } from '../sdk/reader.js';
import { CommandError, EXIT, type Terminal } from '../terminal/terminal.js';
import type { Context } from './context.js';

type CommandLine = readonly [command: string, ...args: string[]];

/** A system's tools. `clear` absent: an empty text is copied instead. `utf16`: `copy` reads UTF-16. */
interface Tools {
  readonly copy: CommandLine;
  readonly paste: CommandLine;
  readonly clear?: CommandLine;
  readonly utf16?: boolean;
}

const POWERSHELL = '[Console]::OutputEncoding = [Text.Encoding]::UTF8; Get-Clipboard -Raw';
const WINDOWS: Tools = {
  copy: ['clip.exe'],
  paste: ['powershell.exe', '-NoProfile', '-NonInteractive', '-Command', POWERSHELL],
  utf16: true,
};
const MACOS: Tools = { copy: ['pbcopy'], paste: ['pbpaste'] };
const WAYLAND: Tools = {
  copy: ['wl-copy', '--type', 'text/plain'],
  paste: ['wl-paste', '--no-newline', '--type', 'text'],
  clear: ['wl-copy', '--clear'],
};
const X11: readonly Tools[] = [
  { copy: ['xclip', '-selection', 'clipboard', '-in'], paste: ['xclip', '-selection', 'clipboard', '-out'] },
  {
    copy: ['xsel', '--clipboard', '--input'],
    paste: ['xsel', '--clipboard', '--output'],
    clear: ['xsel', '--clipboard', '--clear'],
  },
];

/** Time-out of a tool: the window system that it calls may not respond. */
const TOOL_MS = 5_000;
/** Largest text that terminals accept by OSC 52, bytes. */
const OSC52_MAX = 74_994;
/** Largest piece of a control string that GNU screen passes on, bytes. */
const SCREEN_PIECE = 512;

type Env = Terminal['env'];
const isSet = (env: Env, name: string): boolean => (env[name] ?? '') !== '';

/** The tools that fit a session, the likeliest first. */
function fitting(env: Env, system: NodeJS.Platform): readonly Tools[] {
  if (system === 'darwin') return [MACOS];
  const wsl = isSet(env, 'WSL_DISTRO_NAME') || isSet(env, 'WSL_INTEROP');
  return [
    ...(isSet(env, 'WAYLAND_DISPLAY') ? [WAYLAND] : []),
    ...(isSet(env, 'DISPLAY') ? X11 : []),
    ...(system === 'win32' || wsl ? [WINDOWS] : []),
  ];
}

/** A command with the path of its program; undefined where `PATH` has none. */
function located(env: Env, [name, ...args]: CommandLine): CommandLine | undefined {
  for (const folder of (env['PATH'] ?? '').split(delimiter)) {
    // An empty entry is the current folder, which others may write to.
    if (folder === '') continue;
    try {
      accessSync(join(folder, name), constants.X_OK);
      return [join(folder, name), ...args];
    } catch {
      // The next folder.
    }
  }
  return undefined;
}

type Installed = Required<Tools>;

/** The tools of this session that are installed. */
export function clipboardTools(env: Env, system: NodeJS.Platform = process.platform): readonly Installed[] {
  return fitting(env, system).flatMap(({ copy: copying, paste: pasting, clear: clearing = copying, utf16 = false }) => {
    const [copy, paste, clear] = [located(env, copying), located(env, pasting), located(env, clearing)];
    return copy && paste && clear ? [{ copy, paste, clear, utf16 }] : [];
  });
}

interface ToolContext {
  readonly env: Env;
  readonly clock: Clock;
}

/**
 * Runs a tool with this input and returns its output, up to `most` bytes (absent: no output is read). Undefined where
 * the tool cannot be started, fails, writes more, or does not end within `TOOL_MS`.
 */
function run(
  { env, clock }: ToolContext,
  [command, ...args]: CommandLine,
  { input, most }: { readonly input?: Uint8Array; readonly most?: number },
): Promise<Buffer | undefined> {
  return new Promise((resolve) => {
    // Tools that own the clipboard keep running: they must neither hold a pipe of this process nor end with its
    // terminal.
    const child = spawn(command, args, {
      env,
      detached: most === undefined,
      windowsHide: true,
      stdio: ['pipe', most === undefined ? 'ignore' : 'pipe', 'ignore'],
    });
    const chunks: Buffer[] = [];
    let size = 0;
    const end = (result: Buffer | undefined): void => {
      late.cancel();
      resolve(result);
    };
    const late = clock.setTimer(TOOL_MS, () => {
      child.kill('SIGKILL');
      end(undefined);
    });
    child.stdout?.on('data', (chunk: Buffer) => {
      size += chunk.length;
      // The tool may have exited with 0 before that, so `size` is checked again at the end.
      if (size > (most ?? 0)) child.kill('SIGKILL');
      else chunks.push(chunk);
    });
    child.on('error', () => end(undefined));
    // `close` also waits for processes that hold the output; without an output to read, `exit` is enough.
    child.on(most === undefined ? 'exit' : 'close', (code) =>
      end(code === 0 && size <= (most ?? 0) ? Buffer.concat(chunks) : undefined),
    );
    // EPIPE where the tool ends before it has read its input: its exit code decides.
    child.stdin?.on('error', () => undefined);
    child.stdin?.end(input);
  });
}

/** The clipboard's text, at most `PAYLOAD_MAX` bytes; undefined where the tool fails, as some do for an empty clipboard. */
export async function pasteBy(context: ToolContext, tools: Installed): Promise<Buffer | undefined> {
  const bytes = await run(context, tools.paste, { most: PAYLOAD_MAX });
  // PowerShell appends a line break.
  return bytes !== undefined && tools.utf16 ? Buffer.from(bytes.toString('utf8').replace(/\r\n$/, '')) : bytes;
}

/** The sequence that makes a terminal copy a text (OSC 52), also from inside tmux and GNU screen. */
export function copySequence(env: Env, text: string): string {
  const osc = `\u001b]52;c;${Buffer.from(text).toString('base64')}\u0007`;
  // tmux handles the first itself (`set-clipboard on`), and passes the second on (`allow-passthrough`).
  if (isSet(env, 'TMUX')) return `${osc}\u001bPtmux;${osc.replaceAll('\u001b', '\u001b\u001b')}\u001b\\`;
  if (!isSet(env, 'STY')) return osc;
  const pieces = osc.match(new RegExp(`[^]{1,${SCREEN_PIECE}}`, 'g')) ?? [];
  return pieces.map((piece) => `\u001bP${piece}\u001b\\`).join('');
}

/** The sequence that clears the clipboard: some terminals ignore an empty text, so a space is copied first. */
const clearSequence = (env: Env): string => copySequence(env, ' ') + copySequence(env, '');

/** How a text was copied: by a tool, or by the terminal, whose clipboard cannot be read. */
export type CopiedBy = Installed | 'terminal';

/** Copies a text. Throws `CommandError` `no_clipboard` where neither a tool nor the terminal can copy it. */
export async function copyText({ env, screen }: Terminal, clock: Clock, text: string): Promise<CopiedBy> {
  for (const tools of clipboardTools(env)) {
    const input = tools.utf16 ? Buffer.from(`\ufeff${text}`, 'utf16le') : Buffer.from(text);
    if ((await run({ env, clock }, tools.copy, { input })) !== undefined) return tools;
  }
  if (screen === undefined || env['TERM'] === 'dumb') throw noClipboard(env, 'there is no clipboard here');
  if (Buffer.byteLength(text) > OSC52_MAX)
    throw noClipboard(env, `a terminal copies ${OSC52_MAX} bytes at most, and this is more`);
  screen.write(copySequence(env, text));
  return 'terminal';
}

/** The error where no clipboard can be reached; its hint names a tool to install. */
export function noClipboard(env: Env, message: string): CommandError {
  const tool = isSet(env, 'WAYLAND_DISPLAY') ? 'wl-clipboard' : 'xclip';
  const hint = `Install ${tool}, or use a pipe: \`get\` writes only the content to it, and \`put\` reads it.`;
  return new CommandError(EXIT.unavailable, message, hint, { code: 'no_clipboard' });
}

/** How long a secret stays in the clipboard, ms. */
export const CLEAR_AFTER_MS = 45_000;

/** The JSON that the child reads from its standard input. `sequence`: for a terminal, where `tools` is null. */
export interface Clearing {
  readonly folder: string;
  readonly mark: string;
  readonly salt: string;
  readonly hash: string;
  readonly tools: Installed | null;
  readonly sequence: string;
}

const FILE = 'clipboard.json';
const FILE_MAX = 1_024;
const LOOK_EVERY_MS = 250;
const CHILD = fileURLToPath(new URL('./clipboard-child.js', import.meta.url));
const readMark = object({ mark: nonEmpty, until: count });

/** Independent of the kind of line ends and of a last one: clipboard tools and systems change both. */
const hashOf = (salt: string, text: string): string =>
  hash('sha256', `${salt}\n${text.replaceAll('\r\n', '\n').replace(/\n$/, '')}`, 'base64url');

/** Cancels the clearing of an earlier secret, since the clipboard holds something else now. */
export async function replaceCopied({ profile, platform }: Context): Promise<void> {
  if (existsSync(join(profile.folder, FILE))) await mark(profile.folder, platform.clock.now());
}

/** Stores the mark of a new copy, which is cleared at `until` (ms), and returns it. */
async function mark(folder: string, until: number): Promise<string> {
  const name = randomBytes(12).toString('hex');
  await writePrivate(join(folder, FILE), Buffer.from(JSON.stringify({ mark: name, until })));
  return name;
}

/** Starts the child that clears a secret after `CLEAR_AFTER_MS`. Rejects where the child cannot be started. */
export async function clearLater({ terminal, profile, platform }: Context, secret: string, by: CopiedBy) {
  const { env, screen } = terminal;
  const { folder } = profile;
  const salt = randomBytes(16).toString('hex');
  const tools = by === 'terminal' ? null : by;
  const clearing: Clearing = {
    ...{ folder, salt, tools },
    hash: hashOf(salt, secret),
    sequence: clearSequence(env),
    mark: await mark(folder, platform.clock.now() + CLEAR_AFTER_MS),
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
export async function clearWhenDue({ clock, env }: ToolContext, clearing: Clearing): Promise<void> {
  const { folder, salt, tools, sequence } = clearing;
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
    const held = await pasteBy({ clock, env }, tools);
    if (held !== undefined && hashOf(salt, held.toString('utf8')) === clearing.hash)
      await run({ clock, env }, tools.clear, {});
  }
  if ((await newestMark(folder))?.mark === clearing.mark) await removePrivate(join(folder, FILE));
}

/** Undefined where the file is missing or damaged: it names no other copy, so the secret must still be cleared. */
const newestMark = (folder: string) => readPrivateJson(join(folder, FILE), FILE_MAX, readMark);

/** Writes to the command's terminal, which is the child's standard output. */
function toTerminal(sequence: string): void {
  try {
    writeSync(1, sequence);
  } catch {
    // The terminal was closed, so its clipboard is out of reach.
  }
}
