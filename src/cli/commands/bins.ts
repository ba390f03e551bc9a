/** `bins`: list, add, rename and remove them. */
import type { BinLabel, BinView } from '../../sdk/events.js';
import { BIN_SLUG, isEmoji } from '../../protocol/ids.js';
import { EMOJI_MAX } from '../../protocol/limits.js';
import { expectRemovable } from '../../sdk/bins.js';
import { ulid } from '../../sdk/ulid.js';
import { confirmed } from '../../terminal/ask.js';
import type { CommandOptions } from '../../terminal/program.js';
import type { Context, DeviceCommand } from '../context.js';
import { findBin } from '../find.js';
import { binsOf } from '../account-cache.js';
import { counted, sanitizeText, show, table } from '../../terminal/output.js';
import { type Terminal, usageError } from '../../terminal/terminal.js';
import { checkedName } from '../newcomer.js';
import { binName } from '../views.js';

type Options = CommandOptions<'emoji' | 'slug', 'yes'>;

export function registerBins(program: DeviceCommand): void {
  const bins = program
    .command('bins')
    .summary('list, add, rename and remove bins')
    .description('Lists the bins, or changes them. Their names are encrypted; their slugs are not.')
    .examples('bins', 'bins add Shopping --emoji 🛒');
  bins.command('list', { isDefault: true }).alias('ls').summary('list the bins').does(list);
  bins
    .command('add <name>')
    .summary('a new bin')
    .description(
      'Makes a bin. Its name is encrypted. A slug is not, so none is made from the name: if you give none, it is the id.',
    )
    .option('--emoji <emoji>', 'shown before the name')
    .option('--slug <slug>', 'what to type for it; the server can read it')
    .examples('bins add "To read" --emoji 📚 --slug reading')
    .changes(add);
  bins
    .command('rename <bin> <name>')
    .summary('rename a bin')
    .description('Renames a bin. Its slug stays.')
    .option('--emoji <emoji>', 'another emoji ("": none)')
    .examples('bins rename reading "Read later"')
    .changes(rename);
  bins
    .command('rm <bin>')
    .summary('remove a bin and what is in it')
    .description('Removes a bin and every item in it, on all devices. This cannot be undone.')
    .option('-y, --yes', 'do not ask')
    .examples('bins rm reading')
    .changes(remove);
}

const binFacts = ({ id, slug, label, itemCount, readable }: BinView) => ({
  ...{ id, slug, name: label?.name ?? null, emoji: label?.emoji ?? null, itemCount, readable },
});

async function list(context: Context): Promise<void> {
  const { terminal, withDevice } = context;
  await withDevice(async (open) => {
    const bins = await binsOf(context, open);
    const nameOf = ({ id, readable }: BinView): string => (readable ? binName(bins, id) : '(its name does not verify)');
    show(terminal, { bins: bins.map(binFacts) }, () => {
      const rows = bins.map((bin) => [nameOf(bin), String(bin.itemCount ?? '?'), bin.slug]);
      return table(terminal, [{ title: 'NAME' }, { title: 'ITEMS' }, { title: 'SLUG' }], rows);
    });
  });
}

function labelOf(name: string, emoji: string | undefined): BinLabel {
  const checked = checkedName('bin', name);
  if (emoji === undefined || emoji === '') return { name: checked };
  if (!isEmoji(emoji) || emoji.length > EMOJI_MAX) throw usageError('that is not an emoji');
  return { name: checked, emoji };
}

async function add({ terminal, platform, withDevice }: Context, name: string, { emoji, slug }: Options): Promise<void> {
  const label = labelOf(name, emoji);
  if (slug !== undefined && !BIN_SLUG.test(slug))
    throw usageError('a slug is small letters, digits and hyphens, 63 at most');
  await withDevice(async ({ device }) => {
    const id = ulid(platform.clock.now(), (length) => platform.sodium.random(length));
    showChanged(terminal, 'Added', await device.bins.create(id, label, slug));
  });
}

const showChanged = (terminal: Terminal, what: string, bin: BinView): void =>
  show(terminal, { bin: binFacts(bin) }, () => [
    `${what}: ${sanitizeText(bin.slug)}  ${sanitizeText(binName([bin], bin.id))}`,
  ]);

async function rename({ terminal, withDevice }: Context, typed: string, name: string, { emoji }: Options) {
  await withDevice(async ({ device }) => {
    const before = findBin(await device.bins.list(), typed);
    showChanged(terminal, 'Renamed', await device.bins.rename(before.id, labelOf(name, emoji ?? before.label?.emoji)));
  });
}

async function remove({ terminal, withDevice }: Context, typed: string, { yes }: Options) {
  await withDevice(async ({ device }) => {
    const bins = await device.bins.list();
    const { id } = findBin(bins, typed);
    expectRemovable(id);
    const items = (await device.list({ binId: id })).length;
    const name = sanitizeText(binName(bins, id));
    await confirmed(terminal, `Remove ${name} and ${counted(items, 'item')} in it, on all devices?`, yes);
    await device.bins.remove(id);
    show(terminal, { id, removed: true, items }, () => [`Removed: ${name} and ${counted(items, 'item')}`]);
  });
}
