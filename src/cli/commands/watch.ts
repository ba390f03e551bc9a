/**
 * `watch`: prints changes as they arrive, and passes new items to a command or saves them in a folder. Holds no lock,
 * so other commands of the profile can run meanwhile.
 */
import type { Device } from '../../sdk/device.js';
import type { ConnectionState, ItemView } from '../../sdk/events.js';
import { isRevoked, ClientError } from '../../sdk/errors.js';
import type { Context, DeviceCommand } from '../context.js';
import { ShortIds } from '../find.js';
import { expectFolder, ItemTakers } from '../item-takers.js';
import { readKnown } from '../known.js';
import { withCopy } from '../open-device.js';
import { fitted, onScreen, padding, paletteOf, sanitizeText, widthOf } from '../../terminal/output.js';
import { titleOf, withoutSecrets } from '../../sdk/payloads/shapes.js';
import { CommandError, EXIT } from '../../terminal/terminal.js';
import { binName, itemFacts, type Surroundings } from '../views.js';
import { positive } from './items.js';

interface Options {
  readonly count?: number;
  readonly last?: number;
  readonly show?: boolean;
  readonly exec?: string;
  readonly to?: string;
}

const BIN_WIDTH = 10;
/** `password`, `location`. */
const TYPE_WIDTH = 8;
const TITLE_MIN = 12;
/** Screens narrower than this have no column for the bin. */
const NARROW = 60;

const padded = (text: string, width: number): string => text + padding(text, width);

/** `watch`. */
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
    const printer = new Printer(context, device, options);
    const keys = { ...context.platform, masterKey: identity.masterKey };
    await printer.know(await readKnown(context.profile.folder, keys));
    const ended = printer.follow();
    ended.catch(() => undefined); // it is awaited below
    if (options.last !== undefined) await printer.last(options.last);
    const named = printer.readNames();
    // Rejects when the device is closed, revoked or halted before it is connected; `ended` does too.
    Promise.all([device.connect(), named]).then(
      () => printer.ready(),
      () => undefined,
    );
    await ended;
    await printer.takers.drained();
  });
}

/** What is remembered of an item, so that its deletion can name it. */
type Remembered = Pick<ItemView, 'type' | 'ts'> & { readonly title: string };

class Printer {
  /** Receives new items. */
  readonly takers: ItemTakers;
  private around: Surroundings = { bins: [], devices: [] };
  private waiting = false;
  private readonly items = new Map<string, Remembered>();
  private readonly short = new ShortIds([]);

  constructor(
    private readonly context: Context,
    private readonly device: Device,
    private readonly options: Options,
  ) {
    const { exec, to } = options;
    const facts = (item: ItemView): unknown => this.facts(item, 'item');
    this.takers = new ItemTakers(context, device, { exec, to, facts, named: (item) => this.named(item) });
  }

  /** Remembers the local items, and the names of bins and devices as they were read last. */
  async know({ bins = [], devices = [] }: Partial<Surroundings>): Promise<void> {
    this.around = { bins, devices };
    for (const item of await this.device.list()) this.remember(item);
  }

  private remember({ id, type, ts, payload }: ItemView): void {
    this.short.add(id);
    this.items.set(id, { type, ts, title: titleOf(type, payload) });
  }

  private named({ id, type, payload }: ItemView): string {
    return `${this.short.of(id)}  ${sanitizeText(titleOf(type, payload))}`;
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
      const interrupted = (): void => reject(new CommandError(EXIT.interrupted, 'interrupted'));
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
    if (isNew) this.takers.take(item);
  }

  private item(item: ItemView, event: 'item' | 'known'): void {
    const { terminal } = this.context;
    if (terminal.json) terminal.data(this.facts(item, event));
    else this.print(item.ts, item, titleOf(item.type, item.payload));
  }

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
    const screen = onScreen(terminal);
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
}
