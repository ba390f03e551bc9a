/** `service-admin epoch`: the name of the history that versions belong to (contract 11). */
import type { Command } from 'commander';
import { examples } from '../../device/run.js';
import { show } from '../../device/output.js';
import { ADMIN_NAME, type AdminContext, type AdminRun } from '../context.js';

/** Adds the commands. */
export function registerEpoch(program: Command, run: AdminRun): void {
  const epoch = program
    .command('epoch')
    .summary('begin a new history')
    .description('The history that the database tells')
    .addHelpText('after', examples(`${ADMIN_NAME} epoch new`));
  epoch
    .command('new')
    .summary('begin a new history: every device replays from the start')
    .description(
      'Begin a new history. For a database that was copied or put back by other means than `restore`: every device ' +
        'reads everything again. Servers that run hear of it at once',
    )
    .addHelpText('after', examples(`${ADMIN_NAME} epoch new`))
    .action(run(newEpoch));
}

async function newEpoch({ terminal, withReady }: AdminContext): Promise<void> {
  const epoch = await withReady(({ store }) => store.newEpoch());
  show(terminal, { epoch }, () => [`The epoch is ${epoch} now. Every device replays from the start when it connects.`]);
}
