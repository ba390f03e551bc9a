/** `service-admin bootstrap-restart`: the way back to an unclaimed server (contract 9). */
import type { Command } from 'commander';
import { AccountStore } from '../../../postgres/stores/account-store.js';
import { confirmed } from '../../device/confirm.js';
import { show } from '../../device/output.js';
import { examples } from '../../device/run.js';
import { CommandError, EXIT } from '../../../device/terminal.js';
import { ADMIN_NAME, tenantNamed, type AdminContext, type AdminRun } from '../context.js';

/** Adds the command. */
export function registerBootstrapRestart(program: Command, run: AdminRun): void {
  program
    .command('bootstrap-restart')
    .summary('make the server of single mode unclaimed again')
    .description(
      'Make the server of single mode unclaimed again: its devices, pairings, account password and recovery key go, ' +
        'its items stay. Only the twelve words decrypt those, so whoever claims it next needs them',
    )
    .option('-y, --yes', 'do not ask')
    .addHelpText('after', examples(`${ADMIN_NAME} bootstrap-restart`))
    .action(run(bootstrapRestart));
}

async function bootstrapRestart(
  { terminal, withReady, config }: AdminContext,
  { yes }: { readonly yes?: boolean },
): Promise<void> {
  if (config().tenantMode === 'multi') {
    throw new CommandError(
      EXIT.refused,
      'a server with several tenants has no bootstrap restart',
      `A claim link that was lost: \`${ADMIN_NAME} claim-token SLUG\`.`,
      { code: 'multi_mode' },
    );
  }
  await withReady(async ({ store, pool }) => {
    const tenant = await tenantNamed(store, undefined);
    await confirmed(terminal, 'Every device loses its access for good. Make the server unclaimed?', yes);
    if (!(await new AccountStore(pool).restart(tenant))) throw new CommandError(EXIT.notFound, 'there is no tenant');
  });
  show(terminal, { claimed: false }, () => ['The server is unclaimed: the first device that claims it owns it.']);
}
