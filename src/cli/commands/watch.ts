/** `watch`: prints changes as they arrive. Holds no lock, so other commands of the profile can run meanwhile. */
import type { Device } from '../../sdk/device.js';
import type { ItemView } from '../../sdk/events.js';
import { isRevoked, ClientError } from '../../sdk/errors.js';
import type { Context, DeviceCommand } from '../context.js';
import { withCopy } from '../open-device.js';
import { paletteOf, sanitizeText, widthOf } from '../../terminal/output.js';
import { titleOf, withoutSecrets } from '../../sdk/payloads/shapes.js';
import { CommandError, EXIT } from '../../terminal/terminal.js';
import { binName, itemFacts, type Surroundings } from '../views.js';
import { positive } from './items.js';

interface Options {
  readonly count?: number;
  readonly last?: number;
  readonly show?: boolean;
}

const BIN_WIDTH = 14;

/** `watch`. */
export function registerWatch(program: DeviceCommand): void {
  program
    .command('watch')
    .summary('see changes as they happen, newest last')
    .description(
      'Prints every change as it comes, newest last, until Ctrl-C (exit code 130). A lost connection is made again by itself. ' +
        'With --json each line is one event; secrets are left out of it unless --show is given.',
    )
    .option('--count <count>', 'end after so many changes, with exit code 0', positive)
    .option('--last <count>', 'begin with so many items that are here already', positive)
    .option('--show', 'with --json: secrets too')
    .examples('watch --last 10', 'watch --json --count 1')
    .does(watch);
}

async function watch(context: Context, options: Options): Promise<void> {
  await withCopy(context, async ({ device }) => {
    const printer = new Printer(context, device, options);
    const ended = printer.follow();
    const named = printer.readNames();
    // Rejects when the device is revoked, as `last` and `ended` do.
    named.catch(() => undefined);
    if (options.last !== undefined) {
      await named;
      await printer.last(options.last);
    }
    // Rejects when the device is closed or revoked before it is connected, as `ended` does.
    Promise.all([device.connect(), named]).then(
      () => printer.ready(),
      () => undefined,
    );
    await ended;
  });
}

class Printer {
  private around: Surroundings = { bins: [], devices: [] };
  private waiting = false;

  constructor(
    private readonly context: Context,
    private readonly device: Device,
    private readonly options: Options,
  ) {}

  /** Prints events until `--count` is reached; rejects when the user interrupts or the device is revoked. */
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
      this.device.on('item', (item) => limited(() => this.item(item, 'item')));
      this.device.on('delete', ({ id, version }) => limited(() => this.deleted(id, version)));
      this.device.on('line', (line) => this.line(line));
      this.device.on('revoked', () => reject(new ClientError('revoked', 'this device was revoked')));
      const interrupted = (): void => reject(new CommandError(EXIT.interrupted, 'interrupted'));
      terminal.interrupted.addEventListener('abort', interrupted, { once: true });
      if (terminal.interrupted.aborted) interrupted();
    });
  }

  /** Reads the names of bins and devices; ids are shown before. Rejects when the device is revoked. */
  async readNames(): Promise<void> {
    const unread = (error: unknown): [] => {
      // Only names are missing, and a lost connection is reported by `line`.
      if (isRevoked(error)) throw error;
      return [];
    };
    const { bins, roster } = this.device;
    // The list of devices arrives as an event.
    const [list] = await Promise.all([bins.list().catch(unread), roster.list().catch(unread)]);
    if (this.around.bins.length === 0) this.around = { ...this.around, bins: list };
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

  private item(item: ItemView, event: 'item' | 'known'): void {
    const { terminal } = this.context;
    if (terminal.json) {
      const payload = this.options.show === true ? item.payload : withoutSecrets(item.type, item.payload);
      terminal.data({ event, ...itemFacts(item, this.around), payload });
      return;
    }
    const what = `${sanitizeText(item.type)}  ${sanitizeText(titleOf(item.type, item.payload))}`;
    this.print(item.ts, binName(this.around.bins, item.binId), what, item.id);
  }

  private deleted(id: string, version: number): void {
    if (this.context.terminal.json) this.context.terminal.data({ event: 'delete', id, version });
    else this.print(this.context.platform.clock.now(), '', 'deleted', id);
  }

  private print(time: number, bin: string, what: string, id: string): void {
    const { terminal } = this.context;
    const { dim, accent } = paletteOf(terminal);
    const clock = new Date(time).toTimeString().slice(0, 8);
    const where = sanitizeText(bin);
    const gap = ' '.repeat(Math.max(0, BIN_WIDTH - widthOf(where)));
    terminal.print(`${dim(clock)}  ${accent(id)}  ${where}${gap}  ${what}`);
  }

  private line(line: { readonly state: string; readonly retryInMs?: number }): void {
    const { terminal } = this.context;
    if (line.state === 'connected' && this.waiting) terminal.note('Connected again.');
    if (line.state === 'waiting' && !this.waiting) terminal.note('The connection is lost; it is made again by itself.');
    if (line.state === 'waiting' || line.state === 'connected') this.waiting = line.state === 'waiting';
  }
}
