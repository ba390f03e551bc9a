/** `service-admin password-reset`: for an owner who has forgotten the account password. */
import type { Command } from 'commander';
import { show } from '../../device/output.js';
import { examples } from '../../device/run.js';
import { CommandError, EXIT } from '../../../device/terminal.js';
import { ADMIN_NAME, tenantNamed, type AdminContext, type AdminRun } from '../context.js';

/** Adds the command. */
export function registerPasswordReset(program: Command, run: AdminRun): void {
  program
    .command('password-reset')
    .summary('remove the account password of a tenant')
    .description(
      'Remove the account password of a tenant whose owner has forgotten it. Devices and items stay as they are; ' +
        'until a device sets another one, pairing and recovery ask for none',
    )
    .argument('[slug]', "the tenant's name; left out: the tenant of single mode")
    .addHelpText('after', examples(`${ADMIN_NAME} password-reset`, `${ADMIN_NAME} password-reset anna`))
    .action(run(passwordReset));
}

async function passwordReset({ terminal, withReady }: AdminContext, slug: string | undefined): Promise<void> {
  await withReady(async ({ store }) => {
    const verdict = await store.removePassword(await tenantNamed(store, slug));
    if (verdict !== 'ok') throw new CommandError(EXIT.notFound, 'the tenant has just been deleted');
  });
  show(terminal, { tenant: slug ?? null, password: false }, () => [
    'The account password is removed. A device sets another one: service-device password set',
  ]);
}
