/** `rm`: deletes items, everywhere and for good. */
import type { Context } from '../context.js';
import { confirmed } from '../confirm.js';
import { findAnyId } from '../find.js';
import { PROGRAM_NAME } from '../names.js';
import { counted, harmless, show } from '../output.js';
import { titleOf } from '../../../client/payloads/shapes.js';
import { examples, type Register } from '../run.js';
import { allWritten, noteQueued, written } from '../writes.js';

/** `rm <id...>`. */
export const registerRm: Register = (program, run) => {
  program
    .command('rm <id...>')
    .summary('delete items, on all devices')
    .description('Deletes items on all devices. There is no way back.')
    .option('-y, --yes', 'do not ask')
    .addHelpText('after', examples(`${PROGRAM_NAME} rm 01J9ZC4`, `${PROGRAM_NAME} rm --yes 01J9ZC4 01J9ZD0`))
    .action(run(rm));
};

async function rm(context: Context, typed: readonly string[], options: { readonly yes?: boolean }): Promise<void> {
  const { terminal } = context;
  await context.withDevice(async (open) => {
    const items = await open.device.list();
    const ids = new Set<string>();
    for (const text of typed) ids.add(await findAnyId(open, items, text));
    if (terminal.interactive && options.yes !== true) {
      for (const id of ids) {
        const item = items.find((one) => one.id === id);
        terminal.note(`  ${id}  ${item === undefined ? '(not shown)' : harmless(titleOf(item.type, item.payload))}`);
      }
    }
    await confirmed(terminal, `Delete ${counted(ids.size, 'item')} on all devices?`, options.yes);
    const deleted = await allWritten([...ids].map((id) => written(open.device.delete(id))));
    show(terminal, { deleted }, () => deleted.map(({ id }) => `Deleted: ${id}`));
    noteQueued(terminal, deleted);
  });
}
