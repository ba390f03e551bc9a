/**
 * `watch`: prints changes as they arrive, and passes new items to a command (`--exec`) or saves them in a folder (`--to`).
 * Holds no lock, so other commands of the profile can run meanwhile.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { lstat, stat } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { ifThere } from '../../files/there.js';
import { Serial } from '../../protocol/serial.js';
import type { Device } from '../../sdk/device.js';
import type { ConnectionState, ItemView } from '../../sdk/events.js';
import { isRevoked, ClientError } from '../../sdk/errors.js';
import { titleOf, withoutSecrets } from '../../sdk/payloads/shapes.js';
import { fitted, jsonLine, padding, paletteOf, sanitizeText, show, widthOf } from '../../terminal/output.js';
import { CommandError, EXIT, INTERRUPTED, usageError } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';
import type { Context, DeviceCommand } from '../context.js';
import { failureOf } from '../failure.js';
import { ShortIds } from '../find.js';
import { fileNameOf, saveItem, textIn, whole } from '../item-content.js';
import { readAccountCache } from '../account-cache.js';
import { withCopy } from '../open-device.js';
import { sizeText } from '../transfer.js';
import { binName, itemFacts, type Surroundings } from '../views.js';
import { positive } from './items.js';

interface Options extends CommandOptions<'exec' | 'to', 'show'> {
  readonly count?: number;
  readonly last?: number;
}

const BIN_WIDTH = 10;
/** The longest types are `password` and `location`. */
const TYPE_WIDTH = 8;
const TITLE_MIN = 12;
/** Screens narrower than this have no column for the bin. */
const NARROW = 60;

const padded = (text: string, width: number): string => text + padding(text, width);

export function registerWatch(program: DeviceCommand): void {
  program
    .command('watch')
    .summary('see changes as they happen, newest last')
    .description(
      'Prints every change as it comes, newest last, until Ctrl-C (exit code 130). A lost connection is restored automatically. ' +
        'With --json each line is one event; secrets are left out of it unless --show is given.',
    )
    .option('--count <count>', 'end after this many changes, with exit code 0', positive)
    .option('--last <count>', 'begin with this many items that are already here', positive)
    .option('--show', 'with --json and --exec: secrets too')
    .option('--exec <command>', 'run this for each new item, which it reads as JSON from standard input')
    .option('--to <folder>', 'save the file or the text of each new item there')
    .examples('watch --last 10', 'watch --to ~/Downloads', "watch --exec 'jq -r .title'", 'watch --json --count 1')
    .does(watch);
}

async function watch(context: Context, options: Options): Promise<void> {
  if (options.to !== undefined) await expectFolder(options.to);
  await withCopy(context, async ({ device, identity }) => {
    const watcher = new Watcher(context, device, options);
    const keys = { ...context.platform, masterKey: identity.masterKey };
    await watcher.know(await readAccountCache(context.profile.folder, keys));
    const ended = watcher.follow();
    ended.catch(() => undefined); // it is awaited below
    if (options.last !== undefined) await watcher.last(options.last);
    const named = watcher.readNames();
    // Rejects when the device is closed, revoked or halted before it is connected; `ended` does too.
    Promise.all([device.connect(), named]).then(
      () => watcher.ready(),
      () => undefined,
    );
    await ended;
    await watcher.working.idle();
  });
}

/** What is remembered of an item, so that its deletion can name it. */
type Remembered = Pick<ItemView, 'type' | 'ts'> & { readonly title: string };

class Watcher {
  readonly working = new Serial({
    maxWaiting: WAITING_MAX,
    refuse: () => new CommandError(EXIT.failure, `${WAITING_MAX} wait already`),
  });
  private around: Surroundings = { bins: [], devices: [] };
  private waiting = false;
  private readonly items = new Map<string, Remembered>();
  private readonly short = new ShortIds([]);

  constructor(
    private readonly context: Context,
    private readonly device: Device,
    private readonly options: Options,
  ) {}

  /** Remembers the local items, and the names of bins and devices as they were read last. */
  async know({ bins = [], devices = [] }: Partial<Surroundings>): Promise<void> {
    this.around = { bins, devices };
    for (const item of await this.device.list()) this.remember(item);
  }

  private remember({ id, type, ts, payload }: ItemView): void {
    this.short.add(id);
    this.items.set(id, { type, ts, title: titleOf(type, payload) });
  }

  /** Prints events until `--count` is reached; rejects when the user interrupts, or the device is revoked or halted. */
  follow(): Promise<void> {
    const { terminal } = this.context;
    let printed = 0;
    return new Promise((resolve, reject) => {
      const { count = Infinity } = this.options;
      const limited = (print: () => void): void => {
        if (printed >= count) return;
        print();
        if (++printed >= count) resolve();
      };
      this.device.on('bins', ({ bins }) => (this.around = { ...this.around, bins }));
      this.device.on('devices', ({ devices }) => (this.around = { ...this.around, devices }));
      this.device.on('item', (item) => limited(() => this.came(item)));
      this.device.on('delete', ({ id, version }) => limited(() => this.deleted(id, version)));
      this.device.on('connection', ({ state }) => this.connection(state));
      this.device.on('revoked', () => reject(new ClientError('revoked', 'this device was revoked')));
      this.device.on('halted', ({ error }) => reject(error));
      const interrupted = (): void => reject(INTERRUPTED);
      terminal.interrupted.addEventListener('abort', interrupted, { once: true });
      if (terminal.interrupted.aborted) interrupted();
    });
  }

  /** Reads the names of bins and devices. Rejects when the device is revoked. */
  async readNames(): Promise<void> {
    const unread = (error: unknown): void => {
      // Only names are missing, and a lost connection is reported by `connection`.
      if (isRevoked(error)) throw error;
    };
    const { bins, devices } = this.device;
    // Both also arrive as events, which `follow` handles.
    await Promise.all([bins.refresh('changed').catch(unread), devices.refresh().catch(unread)]);
  }

  /** Prints the newest local items, newest last. */
  async last(count: number): Promise<void> {
    for (const item of (await this.device.list()).slice(0, count).reverse()) this.item(item, 'known');
  }

  ready(): void {
    const { terminal } = this.context;
    if (terminal.json) terminal.data({ event: 'ready' });
    else terminal.note('Watching. Ctrl-C ends it.');
  }

  /** An item was added or changed. One that was only moved or re-wrapped is not new. */
  private came(item: ItemView): void {
    const isNew = this.items.get(item.id)?.ts !== item.ts;
    this.remember(item);
    this.item(item, 'item');
    if (isNew) this.take(item);
  }

  private item(item: ItemView, event: 'item' | 'known'): void {
    const { terminal } = this.context;
    if (terminal.json) terminal.data(this.facts(item, event));
    else this.print(item.ts, item, titleOf(item.type, item.payload));
  }

  /** An item as `--json` prints it. */
  private facts(item: ItemView, event: 'item' | 'known') {
    const payload = this.options.show === true ? item.payload : withoutSecrets(item.type, item.payload);
    return { event, ...itemFacts(item, this.around), payload };
  }

  private deleted(id: string, version: number): void {
    const { terminal, platform } = this.context;
    const { title = null, type = null } = this.items.get(id) ?? {};
    this.items.delete(id);
    if (terminal.json) terminal.data({ event: 'delete', id, version, type, title });
    else this.print(platform.clock.now(), { id, binId: null, type: 'deleted' }, title ?? '');
  }

  private print(
    time: number,
    { id, binId, type }: { readonly id: string; readonly binId: string | null; readonly type: string },
    title: string,
  ): void {
    const { terminal } = this.context;
    const { dim, accent } = paletteOf(terminal);
    const screen = terminal.onScreen;
    const clock = new Date(time).toTimeString().slice(0, 8);
    const form = this.short.of(id);
    const where = binId === null ? '' : binName(this.around.bins, binId);
    const bin = screen && terminal.width < NARROW ? [] : [padded(fitted(sanitizeText(where), BIN_WIDTH), BIN_WIDTH)];
    const cells = [...bin, padded(sanitizeText(type), TYPE_WIDTH)].join('  ');
    const before = widthOf(`${clock}  ${form}  ${cells}  `);
    const room = screen ? Math.max(TITLE_MIN, terminal.width - before) : Infinity;
    terminal.print(`${dim(clock)}  ${accent(form)}  ${cells}  ${fitted(sanitizeText(title), room)}`.trimEnd());
  }

  private connection(state: ConnectionState['state']): void {
    const { terminal } = this.context;
    if (state === 'connected' && this.waiting) terminal.note('Connected again.');
    if (state === 'waiting' && !this.waiting) terminal.note('The connection is lost; it is restored automatically.');
    if (state === 'waiting' || state === 'connected') this.waiting = state === 'waiting';
  }

  /** Passes a new item to a command or a folder, one at a time and in order. A failure does not stop later items. */
  private take(item: ItemView): void {
    const { exec, to } = this.options;
    if (exec !== undefined) this.next(item, 'Not given to the command', () => this.exec(exec, item));
    if (to !== undefined) this.next(item, 'Not saved', () => this.save(to, item));
  }

  private next(item: ItemView, otherwise: string, work: () => Promise<void>): void {
    const { terminal } = this.context;
    const ended = (): boolean => terminal.interrupted.aborted;
    this.working
      .run(async () => {
        if (!ended()) await work();
      })
      .catch((error: unknown) => {
        if (!ended()) terminal.note(`${otherwise}: ${this.short.named(item)}: ${failureOf(error).message}`);
      });
  }

  /** Runs the command in a shell. Rejects where it ends with another code than 0. */
  private async exec(command: string, item: ItemView): Promise<void> {
    const { json, env, interrupted } = this.context.terminal;
    const { SERVICE_CLAIM_TOKEN: _, ...passed } = env;
    const own = { SERVICE_ITEM_ID: item.id, SERVICE_ITEM_TYPE: item.type, SERVICE_ITEM_BIN: item.binId };
    const output = json ? 2 : 'inherit';
    const child = spawn(command, { shell: true, env: { ...passed, ...own }, stdio: ['pipe', output, 'inherit'] });
    const stop = (): void => void child.kill();
    interrupted.addEventListener('abort', stop, { once: true });
    // A command that does not read its input is no failure.
    child.stdin?.on('error', () => undefined);
    child.stdin?.end(`${jsonLine(this.facts(item, 'item'))}\n`);
    // Also an interrupted command is waited for: it may still write to the terminal.
    const closed = once(child, 'close').finally(() => interrupted.removeEventListener('abort', stop));
    const [code, signal] = (await closed) as [number | null, NodeJS.Signals | null];
    if (code !== 0) throw new CommandError(EXIT.failure, `the command ended with ${code ?? signal ?? 'no code'}`);
  }

  /** Saves a file or a text under a free name; items of other types are skipped. */
  private async save(folder: string, given: ItemView): Promise<void> {
    const item = await whole(this.device, given);
    const text = textIn(item);
    if (text === undefined && item.blob?.holds !== 'file') return;
    const output = await freePath(folder, fileNameOf(item));
    const { size } = await saveItem(this.context, this.device, { item, output, force: false, text });
    show(this.context.terminal, { event: 'saved', id: item.id, file: output, size }, () => [
      `Saved: ${sanitizeText(output)}  ${sizeText(size)}`,
    ]);
  }
}

/** Most items that wait for a command or a transfer; further ones are reported and skipped. */
const WAITING_MAX = 1_000;
/** Most files of one name in a folder. */
const COPIES_MAX = 1_000;

/** Throws `CommandError` `usage` where there is no such folder: a mistyped name must not receive files. */
async function expectFolder(folder: string): Promise<void> {
  const found = await stat(folder).catch(() => undefined);
  if (found?.isDirectory() !== true) throw usageError(`${folder} is not a folder`);
}

/** An unused path in the folder: `name`, else `name (2)`. A file that is created there meanwhile is not replaced. */
async function freePath(folder: string, name: string): Promise<string> {
  const ending = extname(name);
  const stem = name.slice(0, name.length - ending.length);
  for (let copy = 1; copy <= COPIES_MAX; copy++) {
    const path = join(folder, copy === 1 ? name : `${stem} (${copy})${ending}`);
    if ((await ifThere(() => lstat(path))) === undefined) return path;
  }
  throw new CommandError(EXIT.failure, `${COPIES_MAX} files already have that name`);
}
