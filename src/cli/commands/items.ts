/** `list`, `search`, `move`, `rm` and `restore`. */
import { InvalidArgumentError } from 'commander';
import type { Device } from '../../sdk/device.js';
import type { ItemView } from '../../sdk/events.js';
import { found, searchedText, wordsOf } from '../../sdk/query.js';
import { confirmed } from '../../terminal/ask.js';
import { type Context, type DeviceCommand, PROGRAM_NAME } from '../context.js';
import { findAnyId, findBin, findItem, type Listed, numbered, quoted, shortIds } from '../find.js';
import { binsOf } from '../account-cache.js';
import { itemsAndList, rememberListed } from '../listed.js';
import { counted, sanitizeText, show } from '../../terminal/output.js';
import { contentType } from '../put-content.js';
import { CommandError, EXIT, usageError } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';
import { binName, noteHidden, showItems, surroundings } from '../views.js';
import { allWritten, noteQueued, written, type Written } from '../writes.js';

type Options = CommandOptions<'bin' | 'type', 'local'> & { readonly limit: number };

const LIMIT_DEFAULT = 50;

/** Parses an option's value: a positive integer. Throws `InvalidArgumentError`. */
export function positive(value: string): number {
  const number = Number(value);
  if (!Number.isSafeInteger(number) || number < 1) throw new InvalidArgumentError('It must be a number from 1 up.');
  return number;
}

/** The options that `list` and `search` share. */
const listing = (program: DeviceCommand, name: string, description: string): DeviceCommand =>
  program
    .command(name)
    .description(description)
    .option('-b, --bin <bin>', 'those of a bin: name, slug or id')
    .option('--type <type>', 'those of a type')
    .option('--limit <count>', 'at most this many', positive, LIMIT_DEFAULT)
    .option('--local', 'do not contact the server');

export function registerLists(program: DeviceCommand): void {
  const numbers = 'Other commands take the number in front of an item as its id, until the next list is shown.';
  listing(program, 'list', `Lists items, newest first. ${numbers}`)
    .alias('ls')
    .summary('list items, newest first')
    .examples('list', 'list -b shopping --type text --limit 5')
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
  const wanted = wordsOf(words.join(' '));
  if (wanted.length === 0) throw usageError('what should be searched for?');
  const fits = ({ type, payload }: ItemView): boolean => found(wanted, searchedText(type, payload));
  await listItems(context, options, { empty: 'Nothing found.', left: 'more are not listed', fits });
}

/**
 * Lists the items of a bin and a type that fit. `empty`: the message where there is none; `left`: the note on those
 * beyond the limit. Throws `CommandError` for an unknown bin or type.
 */
async function listItems(
  context: Context,
  options: Options,
  { empty, left, fits }: Readonly<Record<'empty' | 'left', string>> & { readonly fits: (item: ItemView) => boolean },
): Promise<void> {
  const type = options.type === undefined ? undefined : contentType(options.type);
  const sync = options.local === true ? 'local' : 'catch up';
  const { terminal } = context;
  await context.withDevice(async (open) => {
    const around = await surroundings(context, open);
    const all = await open.device.list();
    const binId = options.bin === undefined ? undefined : findBin(around.bins, options.bin).id;
    const fitting = all.filter(
      (item) => (binId ?? item.binId) === item.binId && (type ?? item.type) === item.type && fits(item),
    );
    const shown = fitting.slice(0, options.limit);
    const ids = shown.map(({ id }) => id);
    // A script's list must not change what the numbers on a person's screen mean.
    if (!terminal.json) await rememberListed(context, ids);
    showItems(context, shown, { ...around, all, empty, oneBin: binId !== undefined });
    if (fitting.length > options.limit) terminal.note(`${fitting.length - options.limit} ${left} (--limit).`);
    await noteHidden(terminal, open);
  }, sync);
}

export function registerChanges(program: DeviceCommand): void {
  program
    .command('move <id> <bin>')
    .alias('mv')
    .summary('move an item to another bin')
    .description('Moves an item to another bin, named by name, slug or id.')
    .examples('move 3 shopping')
    .changes(move);
  program
    .command('rm <id...>')
    .summary('delete items, on all devices')
    .description(
      'Deletes items on all devices. It cannot be undone once sent: without a server, or with --later, ' +
        '`restore` takes it back.',
    )
    .option('-y, --yes', 'do not ask')
    .option('--later', 'send it with the next command that reaches the server, not now')
    .examples('rm 3', 'rm --yes 8F3KQ 2M0VT', 'rm 3 --later')
    .changes(rm);
  program
    .command('restore [id...]')
    .summary('take back deletions that were not sent yet')
    .description('Takes back deletions that wait to be sent: of these items, or the last one.')
    .option('--last', 'the last deletion')
    .examples('restore', 'restore 8F3KQ')
    .changes(restore);
}

async function move(context: Context, typed: string, bin: string): Promise<void> {
  const { terminal } = context;
  await context.withDevice(async (open) => {
    const { items, listed } = await itemsAndList(context, open);
    const item = findItem(items, typed, listed);
    const bins = await binsOf(context, open);
    const { id: binId } = findBin(bins, bin);
    const outcome =
      item.binId === binId
        ? { id: item.id, version: item.version, queued: item.pending }
        : await written(open.device.move(item.id, binId));
    show(terminal, { ...outcome, binId }, () => [
      `Moved to ${sanitizeText(binName(bins, binId))}: ${shortIds(items).named(item)}`,
    ]);
    noteQueued(terminal, [outcome]);
  });
}

/** Numbers of a list older than this need a confirmation, even with `--yes`: the user may mean another list. */
const LIST_OLD_MS = 10 * 60_000;

type RmOptions = CommandOptions<never, 'yes' | 'later'>;

async function rm(context: Context, typed: readonly string[], { yes, later = false }: RmOptions): Promise<void> {
  const { terminal, platform } = context;
  const sync = later ? 'later' : 'catch up';
  await context.withDevice(async (open) => {
    const { items, listed } = await itemsAndList(context, open);
    const ids = new Set<string>();
    for (const text of typed) ids.add(await findAnyId(open.device, { items, listed }, text));
    const short = shortIds(items);
    const said = (id: string): string => {
      const item = items.find((one) => one.id === id);
      return item === undefined ? `${id}  (not shown)` : short.named(item);
    };
    const byNumber = typed.some((text) => numbered(listed, text) !== undefined);
    const age = platform.clock.now() - (listed?.at ?? 0);
    const old = byNumber && (age < 0 || age > LIST_OLD_MS);
    if (old && !terminal.interactive) throw usageError('the list of these numbers is old', 'Give ids, or list again.');
    const ask = yes !== true || old;
    if (terminal.interactive && ask) for (const id of ids) terminal.note(`  ${said(id)}`);
    await confirmed(terminal, `Delete ${counted(ids.size, 'item')} on all devices?`, !ask);
    const deleted = await allWritten(
      [...ids].map((id) => (later ? keptDeletion(open.device, id) : written(open.device.delete(id)))),
    );
    show(terminal, { deleted }, () => deleted.map(({ id }) => `Deleted: ${said(id)}`));
    noteQueued(terminal, deleted, later ? 'as asked' : undefined);
    if (deleted.some(({ queued }) => queued)) terminal.note(`\`${PROGRAM_NAME} restore\` takes it back until then.`);
  }, sync);
}

/** Queues a deletion on a device that sends nothing yet, so no change resolves. Rejects where it cannot be stored. */
async function keptDeletion(device: Device, id: string): Promise<Written> {
  const change = device.delete(id);
  const kept = new Promise<void>((resolve) => {
    device.on('kept', (event) => event.id === id && resolve());
  });
  await Promise.race([kept, change]);
  // The change rejects when the device is closed.
  change.catch(() => undefined);
  return { id, version: null, queued: true };
}

const FINAL = 'What was sent is deleted on all devices, for good.';

async function restore(context: Context, typed: readonly string[], { last }: { readonly last?: boolean }) {
  const { terminal } = context;
  if (typed.length > 0 && last === true) throw usageError('give items, or --last, not both');
  await context.withDevice(async (open) => {
    const { items, listed } = await itemsAndList(context, open);
    const waiting = await open.device.deleted();
    const chosen = typed.length === 0 ? waiting.slice(0, 1) : typed.map((text) => waitingOf(waiting, text, listed));
    if (chosen.length === 0) throw new CommandError(EXIT.notFound, 'no deletion waits to be sent', FINAL);
    for (const { id } of chosen) await open.device.withdraw(id);
    // A deletion whose response was lost is still queued, but may have been applied: only the server knows.
    const current = await open.catchUp();
    const here = new Set((await open.device.list()).map(({ id }) => id));
    const restored = chosen.filter(({ id }) => here.has(id));
    const short = shortIds([...items, ...chosen]);
    show(terminal, { restored: restored.map(({ id }) => id) }, () =>
      restored.map((item) => `Restored: ${short.named(item)}`),
    );
    if (!current) terminal.note('If the deletion did reach the server, the next command that gets through says so.');
    const [gone] = chosen.filter(({ id }) => !here.has(id));
    if (gone === undefined) return;
    const late = `too late: the server has deleted ${short.named(gone)}`;
    throw new CommandError(EXIT.refused, late, undefined, { code: 'sent' });
  }, 'later');
}

/** `findItem` among the items whose deletion is queued. */
function waitingOf(waiting: readonly ItemView[], typed: string, listed: Listed | undefined): ItemView {
  try {
    return findItem(waiting, typed, listed);
  } catch (error) {
    if (!(error instanceof CommandError) || error.exitCode !== EXIT.notFound) throw error;
    const message = `no deletion of ${quoted(typed)} waits to be sent`;
    throw new CommandError(EXIT.notFound, message, FINAL, { cause: error });
  }
}
