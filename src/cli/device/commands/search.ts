/** `search`: on this machine, since the server cannot read what it keeps. */
import type { ItemView } from '../../../client/events.js';
import type { Context } from '../context.js';
import { folding } from '../find.js';
import { PROGRAM_NAME } from '../names.js';
import { withoutSecrets } from '../../../client/payloads/shapes.js';
import { examples, type Register } from '../run.js';
import { CommandError, EXIT } from '../../../device/terminal.js';
import { noteHidden, showItems, surroundings } from '../views.js';
import { narrowed, positive } from './list.js';

interface Options {
  readonly bin?: string;
  readonly type?: string;
  readonly limit: number;
  readonly local?: boolean;
}

const LIMIT_DEFAULT = 50;

/** `search <text...>`. */
export const registerSearch: Register = (program, run) => {
  program
    .command('search <text...>')
    .summary('find items by their content')
    .description(
      'Finds items that hold every word, newest first. Case and accents do not matter; secrets are not searched. The search ' +
        'happens on this machine.',
    )
    .option('--bin <bin>', 'those of a bin: slug, id or name')
    .option('--type <type>', 'those of a type')
    .option('--limit <count>', 'at most so many', positive, LIMIT_DEFAULT)
    .option('--local', 'ask the server nothing')
    .addHelpText(
      'after',
      examples(`${PROGRAM_NAME} search cafe milano`, `${PROGRAM_NAME} search --bin work --type code invoice`),
    )
    .action(run(search));
};

async function search(context: Context, words: readonly string[], options: Options): Promise<void> {
  const wanted = folding(words.join(' ')).split(' ').filter(Boolean);
  if (wanted.length === 0) throw new CommandError(EXIT.usage, 'what is looked for?');
  const narrow = narrowed(options);
  const sync = options.local === true ? 'local' : 'catch up';
  await context.withDevice(
    async (open) => {
      const around = await surroundings(context, open);
      const all = await open.device.list();
      const found = narrow(all, around.bins).filter((item) => holds(item, wanted));
      showItems(context, found.slice(0, options.limit), { ...around, all, empty: 'Nothing found.' });
      if (found.length > options.limit)
        context.terminal.note(`${found.length - options.limit} more are not listed (--limit).`);
      await noteHidden(context.terminal, open);
    },
    { sync },
  );
}

function holds({ type, payload }: ItemView, wanted: readonly string[]): boolean {
  const texts = Object.values(withoutSecrets(type, payload) ?? {}).filter((value) => typeof value === 'string');
  const text = folding(texts.join(' '));
  return wanted.every((word) => text.includes(word));
}
