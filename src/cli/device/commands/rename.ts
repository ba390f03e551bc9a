/** `rename`: another name for a device. */
import { isDisplayName } from '../../../protocol/ids.js';
import type { Context } from '../context.js';
import { findDevice } from '../find.js';
import { PROGRAM_NAME } from '../names.js';
import { harmless, show } from '../output.js';
import { examples, type Register } from '../run.js';
import { CommandError, EXIT } from '../../../device/terminal.js';

/** `rename <id> <name>`. */
export const registerRename: Register = (program, run) => {
  program
    .command('rename <id> <name>')
    .summary('give a device another name')
    .description('Gives a device, named by id or name, another name. The server can read it.')
    .addHelpText('after', examples(`${PROGRAM_NAME} rename Phone "Old phone"`))
    .action(run(rename));
};

async function rename(context: Context, typed: string, wanted: string): Promise<void> {
  const { terminal, profile } = context;
  const name = wanted.trim();
  if (!isDisplayName(name)) {
    throw new CommandError(
      EXIT.usage,
      'a device name is 1 to 64 characters, something to see among them, and no control characters',
    );
  }
  await context.withDevice(async ({ device, identity }) => {
    const { id, name: before } = findDevice(await device.roster.refresh(), typed);
    await device.roster.rename(id, name);
    if (id === device.id) await profile.keep({ ...((await profile.identity()) ?? identity), name });
    show(terminal, { id, name }, () => [`Renamed: "${harmless(before)}" is "${harmless(name)}" now`]);
  });
}
