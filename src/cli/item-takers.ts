/** Passes new items of `watch` to a command (`--exec`) or a folder (`--to`), one at a time and in order. */
import { spawn } from 'node:child_process';
import { lstat, stat } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { errorCode } from '../protocol/error-code.js';
import { Serial } from '../protocol/serial.js';
import type { Device } from '../sdk/device.js';
import type { ItemView } from '../sdk/events.js';
import { jsonLine, sanitizeText, show } from '../terminal/output.js';
import { CommandError, EXIT, usageError } from '../terminal/terminal.js';
import type { Context } from './context.js';
import { failureOf } from './failure.js';
import { fileNameOf, saveItem, textIn, whole } from './item-content.js';
import { sizeText } from './transfer.js';

/** Most items that wait for a command or a transfer; further ones are reported and skipped. */
const WAITING_MAX = 1_000;
/** Most files of one name in a folder. */
const COPIES_MAX = 1_000;

interface Options {
  readonly exec?: string | undefined;
  readonly to?: string | undefined;
  /** The item as JSON, as `watch --json` prints it. */
  readonly facts: (item: ItemView) => unknown;
  /** The item in a message. */
  readonly named: (item: ItemView) => string;
}

/** Throws `CommandError` `usage` where there is no such folder: a mistyped name must not receive files. */
export async function expectFolder(folder: string): Promise<void> {
  const found = await stat(folder).catch(() => undefined);
  if (found?.isDirectory() !== true) throw usageError(`${folder} is not a folder`);
}

/** A failure is reported, and does not stop later items. */
export class ItemTakers {
  private readonly working = new Serial({
    maxWaiting: WAITING_MAX,
    refuse: () => new CommandError(EXIT.failure, `${WAITING_MAX} wait already`),
  });

  constructor(
    private readonly context: Context,
    readonly device: Device,
    private readonly options: Options,
  ) {}

  take(item: ItemView): void {
    const { exec, to } = this.options;
    if (exec !== undefined) this.next(item, 'Not given to the command', () => this.exec(exec, item));
    if (to !== undefined) this.next(item, 'Not saved', () => this.save(to, item));
  }

  /** Resolves when nothing waits. */
  drained(): Promise<void> {
    return this.working.idle();
  }

  private next(item: ItemView, otherwise: string, work: () => Promise<void>): void {
    const { terminal } = this.context;
    const ended = (): boolean => terminal.interrupted.aborted;
    this.working
      .run(async () => {
        if (!ended()) await work();
      })
      .catch((error: unknown) => {
        if (!ended()) terminal.note(`${otherwise}: ${this.options.named(item)}: ${failureOf(error).message}`);
      });
  }

  /** Runs the command in a shell. Rejects where it ends with another code than 0. */
  private exec(command: string, item: ItemView): Promise<void> {
    const { terminal } = this.context;
    const { SERVICE_CLAIM_TOKEN: _, ...env } = terminal.env;
    const own = { SERVICE_ITEM_ID: item.id, SERVICE_ITEM_TYPE: item.type, SERVICE_ITEM_BIN: item.binId };
    return new Promise((resolve, reject) => {
      const output = terminal.json ? 2 : 'inherit';
      const child = spawn(command, { shell: true, env: { ...env, ...own }, stdio: ['pipe', output, 'inherit'] });
      const stop = (): void => void child.kill();
      terminal.interrupted.addEventListener('abort', stop, { once: true });
      child.on('error', reject);
      child.on('close', (code, signal) => {
        terminal.interrupted.removeEventListener('abort', stop);
        if (code === 0) resolve();
        else reject(new CommandError(EXIT.failure, `the command ended with ${code ?? signal ?? 'no code'}`));
      });
      // A command that does not read its input is no failure.
      child.stdin?.on('error', () => undefined);
      child.stdin?.end(`${jsonLine(this.options.facts(item))}\n`);
    });
  }

  /** Saves a file or a text under a free name; items of other types are skipped. */
  private async save(folder: string, given: ItemView): Promise<void> {
    const isFile = given.blob?.holds === 'file';
    const item = isFile ? given : await whole(this, given);
    const text = isFile ? undefined : textIn(item);
    if (!isFile && text === undefined) return;
    const output = await freePath(folder, fileNameOf(item));
    const { size } = await saveItem(this.context, this, { item, output, force: false, text });
    show(this.context.terminal, { event: 'saved', id: item.id, file: output, size }, () => [
      `Saved: ${sanitizeText(output)}  ${sizeText(size)}`,
    ]);
  }
}

/** An unused path in the folder: `name`, else `name (2)`. A file that is created there meanwhile is not replaced. */
async function freePath(folder: string, name: string): Promise<string> {
  const ending = extname(name);
  const stem = name.slice(0, name.length - ending.length);
  for (let copy = 1; copy <= COPIES_MAX; copy++) {
    const path = join(folder, copy === 1 ? name : `${stem} (${copy})${ending}`);
    try {
      await lstat(path);
    } catch (error) {
      if (errorCode(error) === 'ENOENT') return path;
      throw error;
    }
  }
  throw new CommandError(EXIT.failure, `${COPIES_MAX} files already have that name`);
}
