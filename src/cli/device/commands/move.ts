/** `move`: an item to another bin. */
import type { Context } from '../context.js';
import { findBin, findItem } from '../find.js';
import { binsOf } from '../known.js';
import { PROGRAM_NAME } from '../names.js';
import { harmless, show } from '../output.js';
import { examples, type Register } from '../run.js';
import { binName } from '../views.js';
import { noteQueued, written } from '../writes.js';

/** `move <id> <bin>`. */
export const registerMove: Register = (program, run) => {
  program
    .command('move <id> <bin>')
    .alias('mv')
    .summary('move an item to another bin')
    .description('Moves an item to another bin, named by slug, id or name.')
    .addHelpText('after', examples(`${PROGRAM_NAME} move 01J9ZC4 shopping`))
    .action(run(move));
};

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
    show(terminal, { ...outcome, binId }, () => [`Moved: ${item.id} to ${harmless(binName(bins, binId))}`]);
    noteQueued(terminal, [outcome]);
  });
}
