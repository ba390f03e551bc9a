/** `list`: the items, newest first. */
import { InvalidArgumentError } from 'commander';
import type { BinView, ItemView } from '../../../client/events.js';
import type { Context } from '../context.js';
import { findBin } from '../find.js';
import { PROGRAM_NAME } from '../names.js';
import { contentType } from '../payloads.js';
import { examples, type Register } from '../run.js';
import { noteHidden, showItems, surroundings } from '../views.js';

interface Options {
  readonly bin?: string;
  readonly type?: string;
  readonly limit: number;
  readonly local?: boolean;
}

const LIMIT_DEFAULT = 50;

/** A number from 1 on, as an option's value. */
export function positive(value: string): number {
  const number = Number(value);
  if (!Number.isSafeInteger(number) || number < 1) throw new InvalidArgumentError('A number from 1 on is needed.');
  return number;
}

/** `list`. */
export const registerList: Register = (program, run) => {
  program
    .command('list')
    .alias('ls')
    .summary('list items, newest first')
    .description('Lists items, newest first.')
    .option('--bin <bin>', 'those of a bin: slug, id or name')
    .option('--type <type>', 'those of a type')
    .option('--limit <count>', 'at most so many', positive, LIMIT_DEFAULT)
    .option('--local', 'ask the server nothing')
    .addHelpText('after', examples(`${PROGRAM_NAME} list`, `${PROGRAM_NAME} list --bin shopping --type text --limit 5`))
    .action(run(list));
};

/**
 * Keeps the items of a bin and of a type, where one is given. Throws `CommandError` for a type that there is not; what
 * it gives throws for a bin that there is not.
 */
export function narrowed(
  options: Pick<Options, 'bin' | 'type'>,
): (items: readonly ItemView[], bins: readonly BinView[]) => readonly ItemView[] {
  const type = options.type === undefined ? undefined : contentType(options.type);
  return (items, bins) => {
    const binId = options.bin === undefined ? undefined : findBin(bins, options.bin).id;
    return items.filter(
      (item) => (binId === undefined || item.binId === binId) && (type === undefined || item.type === type),
    );
  };
}

async function list(context: Context, options: Options): Promise<void> {
  const narrow = narrowed(options);
  const sync = options.local === true ? 'local' : 'catch up';
  await context.withDevice(
    async (open) => {
      const around = await surroundings(context, open);
      const all = await open.device.list();
      const fitting = narrow(all, around.bins);
      const items = fitting.slice(0, options.limit);
      showItems(context, items, { ...around, all, empty: 'Nothing there.' });
      if (fitting.length > items.length) {
        context.terminal.note(`${fitting.length - items.length} older ones are not listed (--limit).`);
      }
      await noteHidden(context.terminal, open);
    },
    { sync },
  );
}
