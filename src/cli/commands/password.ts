/** `password`: the account password, which pairing and recovery require once it is set. */
import { ApiError } from '../../sdk/errors.js';
import { type Context, type DeviceCommand, PROGRAM_NAME } from '../context.js';
import { secretFrom } from '../../device/newcomer.js';
import { show } from '../../terminal/output.js';
import { CommandError, EXIT, type Terminal, usageError } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';

type Options = CommandOptions<'passwordFile' | 'currentFile'>;

export function registerPassword(program: DeviceCommand): void {
  const password = program
    .command('password')
    .summary('set, change or remove the account password')
    .description(
      'The account password is asked for when a device joins or is recovered. It opens no items; only a value derived ' +
        'from it leaves this machine.',
    )
    .examples('password set', 'password change');
  settingCommand(password, 'set');
  settingCommand(password, 'change');
  password
    .command('remove')
    .summary('remove the password; the current one is needed')
    .option('--current-file <path>', 'the current password, for scripts ("-": standard input)')
    .examples('password remove')
    .changes(removePassword);
}

function settingCommand(parent: DeviceCommand, which: 'set' | 'change'): void {
  const command = parent
    .command(which)
    .summary(which === 'set' ? 'set a password where there is none' : 'change the password')
    .option('--password-file <path>', 'the new password, for scripts ("-": standard input)');
  if (which === 'change') command.option('--current-file <path>', 'the current password, for scripts');
  command.examples(`password ${which}`).changes((context, options: Options) => setPassword(context, which, options));
}

async function setPassword({ terminal, withDevice }: Context, which: 'set' | 'change', options: Options) {
  const current = which === 'set' ? null : await currentPassword(terminal, options);
  const password = await newPassword(terminal, options.passwordFile);
  await withDevice(async ({ device }) => {
    await device.setPassword(password, current).catch((error: unknown) => {
      // `set` sends no current password: the server refuses that as a wrong one where a password is set.
      if (which !== 'set' || !(error instanceof ApiError) || error.code !== 'password_invalid') throw error;
      const hint = `To set another one: ${PROGRAM_NAME} password change`;
      throw new CommandError(EXIT.refused, 'an account password is already set', hint, { code: 'password_invalid' });
    });
    show(terminal, { password: which }, () => [`The account password is ${which === 'set' ? 'set' : 'changed'}.`]);
  });
}

async function removePassword({ terminal, withDevice }: Context, options: Options): Promise<void> {
  await withDevice(async ({ device }) => {
    if (!(await device.passwordExists()))
      throw new CommandError(EXIT.notFound, 'no account password is set', undefined, { code: 'no_password' });
    await device.removePassword(await currentPassword(terminal, options));
    show(terminal, { password: 'remove' }, () => [
      'The account password is removed: devices join, and recovery works, without one.',
    ]);
  });
}

const typedOrFile = (terminal: Terminal, question: string, file: string | undefined): Promise<string> =>
  file === undefined ? terminal.ask(question, { hidden: true }) : secretFrom(terminal, file);

const currentPassword = (terminal: Terminal, { currentFile }: Options): Promise<string> =>
  typedOrFile(terminal, 'Current account password: ', currentFile);

async function newPassword(terminal: Terminal, file: string | undefined): Promise<string> {
  const typed = await typedOrFile(terminal, 'New account password: ', file);
  if (typed === '') throw usageError('the password is empty');
  if (file === undefined && (await terminal.ask('Once more: ', { hidden: true })) !== typed)
    throw usageError('they are not the same; nothing was changed');
  return typed;
}
