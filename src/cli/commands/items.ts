/** `list`, `search`, `move` and `rm`. */
import { InvalidArgumentError } from 'commander';
import type { ItemView } from '../../sdk/events.js';
import { titleOf, withoutSecrets } from '../../sdk/payloads/shapes.js';
import { confirmed } from '../../terminal/ask.js';
import type { Context, DeviceCommand } from '../context.js';
import { findAnyId, findBin, findItem, folding } from '../find.js';
import { binsOf } from '../known.js';
import { counted, sanitizeText, show } from '../../terminal/output.js';
import { contentType } from '../payloads.js';
import { CommandError, EXIT } from '../../terminal/terminal.js';
import { binName, noteHidden, showItems, surroundings } from '../views.js';
import { allWritten, noteQueued, written } from '../writes.js';

interface Options {
  readonly bin?: string;
  readonly type?: string;
  readonly limit: number;
  readonly local?: boolean;
}

const LIMIT_DEFAULT = 50;

/** Parses an option's value: an integer from 1 on. */
export function positive(value: string): number {
  const number = Number(value);
  if (!Number.isSafeInteger(number) || number < 1) throw new InvalidArgumentError('A number from 1 on is needed.');
  return number;
}

/** The options that `list` and `search` share. */
const listing = (program: DeviceCommand, name: string, description: string): DeviceCommand =>
  program
    .command(name)
    .description(description)
    .option('--bin <bin>', 'those of a bin: slug, id or name')
    .option('--type <type>', 'those of a type')
    .option('--limit <count>', 'at most so many', positive, LIMIT_DEFAULT)
    .option('--local', 'ask the server nothing');

/** `list` and `search <text...>`. */
export function registerLists(program: DeviceCommand): void {
  listing(program, 'list', 'Lists items, newest first.')
    .alias('ls')
    .summary('list items, newest first')
    .examples('list', 'list --bin shopping --type text --limit 5')
    .does((context, options: Options) =>
      listItems(context, options, { empty: 'Nothing there.', left: 'older ones are not listed', fits: () => true }),
    );
  const description =
    'Finds items that hold every word, newest first. Case and accents do not matter; secrets are not searched. The search ' +
    'happens on this machine.';
  listing(program, 'search <text...>', description)
    .summary('find items by their content')
    .examples('search cafe milano', 'search --bin work --type code invoice')
    .does(search);
}

async function search(context: Context, words: readonly string[], options: Options): Promise<void> {
  const wanted = folding(words.join(' ')).split(' ').filter(Boolean);
  if (wanted.length === 0) throw new CommandError(EXIT.usage, 'what is looked for?');
  const fits = (item: ItemView): boolean => holds(item, wanted);
  await listItems(context, options, { empty: 'Nothing found.', left: 'more are not listed', fits });
}

/**
 * Lists the items of a bin and a type that fit. `empty`: the message where there is none; `left`: about those beyond the
 * limit. Throws `CommandError` for an unknown bin or type.
 */
async function listItems(
  context: Context,
  options: Options,
  { empty, left, fits }: Readonly<Record<'empty' | 'left', string>> & { readonly fits: (item: ItemView) => boolean },
): Promise<void> {
  const type = options.type === undefined ? undefined : contentType(options.type);
  const { terminal } = context;
  await context.withDevice(
    async (open) => {
      const around = await surroundings(context, open);
      const all = await open.device.list();
      const binId = options.bin === undefined ? undefined : findBin(around.bins, options.bin).id;
      const found = all.filter(
        (item) => (binId ?? item.binId) === item.binId && (type ?? item.type) === item.type && fits(item),
      );
      showItems(context, found.slice(0, options.limit), { ...around, all, empty });
      if (found.length > options.limit) terminal.note(`${found.length - options.limit} ${left} (--limit).`);
      await noteHidden(terminal, open);
    },
    { sync: options.local === true ? 'local' : 'catch up' },
  );
}

function holds({ type, payload }: ItemView, wanted: readonly string[]): boolean {
  const texts = Object.values(withoutSecrets(type, payload) ?? {}).filter((value) => typeof value === 'string');
  const text = folding(texts.join(' '));
  return wanted.every((word) => text.includes(word));
}

/** `move <id> <bin>` and `rm <id...>`. */
export function registerChanges(program: DeviceCommand): void {
  program
    .command('move <id> <bin>')
    .alias('mv')
    .summary('move an item to another bin')
    .description('Moves an item to another bin, named by slug, id or name.')
    .examples('move 01J9ZC4 shopping')
    .does(move);
  program
    .command('rm <id...>')
    .summary('delete items, on all devices')
    .description('Deletes items on all devices. There is no way back.')
    .option('-y, --yes', 'do not ask')
    .examples('rm 01J9ZC4', 'rm --yes 01J9ZC4 01J9ZD0')
    .does(rm);
}

async function move(context: Context, typed: string, bin: string): Promise<void> {
  const { terminal } = context;
  await context.withDevice(async (open) => {
    const item = findItem(await open.device.list(), typed);
    const bins = await binsOf(context, open);
    const { id: binId } = findBin(bins, bin);
    const outcome =
      item.binId === binId
        ? { id: item.id, version: item.version, queued: item.pending }
        : await written(open.device.move(item.id, binId));
    show(terminal, { ...outcome, binId }, () => [`Moved: ${item.id} to ${sanitizeText(binName(bins, binId))}`]);
    noteQueued(terminal, [outcome]);
  });
}

async function rm(context: Context, typed: readonly string[], options: { readonly yes?: boolean }): Promise<void> {
  const { terminal } = context;
  await context.withDevice(async (open) => {
    const items = await open.device.list();
    const ids = new Set<string>();
    for (const text of typed) ids.add(await findAnyId(open, items, text));
    if (terminal.interactive && options.yes !== true) {
      for (const id of ids) {
        const item = items.find((one) => one.id === id);
        terminal.note(
          `  ${id}  ${item === undefined ? '(not shown)' : sanitizeText(titleOf(item.type, item.payload))}`,
        );
      }
    }
    await confirmed(terminal, `Delete ${counted(ids.size, 'item')} on all devices?`, options.yes);
    const deleted = await allWritten([...ids].map((id) => written(open.device.delete(id))));
    show(terminal, { deleted }, () => deleted.map(({ id }) => `Deleted: ${id}`));
    noteQueued(terminal, deleted);
  });
}
