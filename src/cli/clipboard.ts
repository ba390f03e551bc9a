/**
 * The clipboard: through the system's own tools that are on `PATH` and fit the session, else through the terminal (OSC
 * 52). Copied text is passed through a pipe, never as an argument.
 */
import { spawn } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import type { Clock } from '../protocol/clock.js';
import { CommandError, EXIT, type Terminal } from '../terminal/terminal.js';

/** A command and its arguments. */
type CommandLine = readonly [command: string, ...args: string[]];

/** A system's tools. `clear` absent: an empty text is copied instead. `utf16`: `copy` reads UTF-16. */
export interface Tools {
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

/** The path of a program; undefined where `PATH` has none. */
function found(env: Env, name: string): string | undefined {
  for (const folder of (env['PATH'] ?? '').split(delimiter)) {
    // An empty entry is the current folder, which others may write to.
    if (folder === '') continue;
    try {
      accessSync(join(folder, name), constants.X_OK);
      return join(folder, name);
    } catch {
      // The next folder.
    }
  }
  return undefined;
}

/** The tools of this session that are installed. */
export function clipboardTools(env: Env, system: NodeJS.Platform = process.platform): readonly Tools[] {
  return fitting(env, system).flatMap((tools) => {
    const paths = [tools.copy, tools.paste, tools.clear].map((line) => (line === undefined ? '' : found(env, line[0])));
    const [copy, paste, clear] = paths;
    if (copy === undefined || paste === undefined || clear === undefined) return [];
    const at = (path: string, [, ...args]: CommandLine): CommandLine => [path, ...args];
    const cleared = tools.clear === undefined ? {} : { clear: at(clear, tools.clear) };
    return [{ ...tools, copy: at(copy, tools.copy), paste: at(paste, tools.paste), ...cleared }];
  });
}

/** What a tool is run with. */
export interface Session {
  readonly env: Env;
  readonly clock: Clock;
}

/**
 * Runs a tool with this input and returns its output, up to `most` bytes (absent: no output is read). Undefined where
 * the tool cannot be started, fails, writes more, or does not end within `TOOL_MS`.
 */
function run(
  { env, clock }: Session,
  [command, ...args]: CommandLine,
  io: { readonly input?: Uint8Array; readonly most?: number },
): Promise<Buffer | undefined> {
  const { input, most } = io;
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

/** Copies a text; false where the tool fails. */
async function copyBy(session: Session, tools: Tools, text: string): Promise<boolean> {
  const input = tools.utf16 === true ? Buffer.from(`\ufeff${text}`, 'utf16le') : Buffer.from(text);
  return (await run(session, tools.copy, { input })) !== undefined;
}

/** Empties the clipboard; false where the tool fails. */
export async function clearBy(session: Session, tools: Tools): Promise<boolean> {
  return (await run(session, tools.clear ?? tools.copy, {})) !== undefined;
}

/** The clipboard's text, at most `most` bytes; undefined where the tool fails, as some do for an empty clipboard. */
export async function pasteBy(session: Session, tools: Tools, most: number): Promise<Buffer | undefined> {
  const bytes = await run(session, tools.paste, { most });
  // PowerShell appends a line break.
  return bytes !== undefined && tools.utf16 === true ? Buffer.from(bytes.toString('utf8').replace(/\r\n$/, '')) : bytes;
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
export const clearSequence = (env: Env): string => copySequence(env, ' ') + copySequence(env, '');

/** How a text was copied: by a tool, or by the terminal, whose clipboard cannot be read. */
export type CopiedBy = Tools | 'terminal';

/** Copies a text. Throws `CommandError` `no_clipboard` where neither a tool nor the terminal can copy it. */
export async function copyText(
  terminal: Pick<Terminal, 'env' | 'screen'>,
  clock: Clock,
  text: string,
): Promise<CopiedBy> {
  const session = { env: terminal.env, clock };
  for (const tools of clipboardTools(terminal.env)) if (await copyBy(session, tools, text)) return tools;
  const { screen } = terminal;
  if (screen === undefined || terminal.env['TERM'] === 'dumb')
    throw noClipboard(terminal.env, 'there is no clipboard here');
  if (Buffer.byteLength(text) > OSC52_MAX)
    throw noClipboard(terminal.env, `a terminal copies ${OSC52_MAX} bytes at most, and this is more`);
  screen.write(copySequence(terminal.env, text));
  return 'terminal';
}

/** The error where no clipboard can be reached; its hint names a tool to install. */
export function noClipboard(env: Env, message: string): CommandError {
  const tool = isSet(env, 'WAYLAND_DISPLAY') ? 'wl-clipboard' : 'xclip';
  const hint = `Install ${tool}, or use a pipe: \`get\` writes only the content to it, and \`put\` reads it.`;
  return new CommandError(EXIT.unavailable, message, hint, { code: 'no_clipboard' });
}
