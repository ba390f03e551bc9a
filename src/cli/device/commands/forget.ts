/** `forget`: removes what this machine keeps of a device, without asking the server. */
import { existsSync } from 'node:fs';
import { confirmed } from '../confirm.js';
import type { Context } from '../context.js';
import { PROGRAM_NAME } from '../names.js';
import { alone, noDevice } from '../open-device.js';
import { show } from '../output.js';
import { examples, type Register } from '../run.js';

/** `forget`. */
export const registerForget: Register = (program, run) => {
  program
    .command('forget')
    .summary('remove this profile from this machine')
    .description(
      'Removes identity, keys and local copy from this machine. The server is not told: the device stays in the list of the ' +
        'others. To sign out, use `revoke` with the id of this device. Changes that were not sent are lost.',
    )
    .option('-y, --yes', 'do not ask')
    .addHelpText('after', examples(`${PROGRAM_NAME} forget --profile old`))
    .action(run(forget));
};

async function forget(context: Context, { yes }: { readonly yes?: boolean }): Promise<void> {
  const { terminal, profile } = context;
  if (!existsSync(profile.folder)) throw noDevice(profile);
  await confirmed(terminal, `Forget profile ${profile.name}? Without another device only the twelve words help.`, yes);
  await alone(context, () => profile.forget());
  show(terminal, { profile: profile.name, forgotten: true }, () => [`Forgotten: profile ${profile.name}`]);
}
