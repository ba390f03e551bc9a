/** `revoke`: ends a device's access; of this one, signs out. */
import { confirmed } from '../confirm.js';
import type { Context } from '../context.js';
import { findDevice } from '../find.js';
import { PROGRAM_NAME } from '../names.js';
import { alone } from '../open-device.js';
import { harmless, show } from '../output.js';
import { examples, type Register } from '../run.js';

/** `revoke <id>`. */
export const registerRevoke: Register = (program, run) => {
  program
    .command('revoke <id>')
    .summary("end a device's access; of this one: sign out")
    .description(
      'Ends the access of a device, named by id or name, on every server instance at once. Items written from then on are ' +
        'not sealed for it. What it has read already it has read. With the id of this device: signs out and forgets.',
    )
    .option('-y, --yes', 'do not ask')
    .addHelpText('after', examples(`${PROGRAM_NAME} revoke Phone`, `${PROGRAM_NAME} revoke 01J9ZC4 --yes`))
    .action(run(revoke));
};

async function revoke(context: Context, typed: string, { yes }: { readonly yes?: boolean }): Promise<void> {
  const { terminal, profile } = context;
  const { id, name, own } = await context.withDevice(async ({ device }) => {
    const active = (await device.roster.refresh()).filter(({ revokedAt }) => revokedAt === null);
    const found = findDevice(active, typed);
    const self = found.id === device.id;
    const question = self
      ? `Sign out this device, "${harmless(found.name)}", and forget what is here?`
      : `Revoke "${harmless(found.name)}" (${found.id})? It loses access at once.`;
    await confirmed(terminal, question, yes);
    await device.revoke(found.id);
    return { id: found.id, name: found.name, own: self };
  });
  if (own) await alone(context, () => profile.forget());
  show(terminal, { id, revoked: true, thisDevice: own }, () => [
    own ? 'Signed out; nothing is left here.' : `Revoked: "${harmless(name)}" (${id})`,
  ]);
}
