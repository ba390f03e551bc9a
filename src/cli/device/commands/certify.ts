/** `certify`: vouches for a device after its fingerprint was compared. */
import type { Context } from '../context.js';
import { findDevice } from '../find.js';
import { PROGRAM_NAME } from '../names.js';
import { harmless, show } from '../output.js';
import { examples, type Register } from '../run.js';

/** `certify <id> <fingerprint...>`. */
export const registerCertify: Register = (program, run) => {
  program
    .command('certify <id> <fingerprint...>')
    .summary('vouch for a device after comparing its fingerprint')
    .description(
      'Vouches for a device that the server lists without a certificate. Read the fingerprint on that device itself ' +
        '(`status`), never from this list: the point is that the server could have put another key there.',
    )
    .addHelpText('after', examples(`${PROGRAM_NAME} certify 01J9ZC4 "1f3a 90bc 77d1 02ee 5b6c 8a10 4410 c3d9"`))
    .action(run(certify));
};

async function certify(context: Context, typed: string, fingerprint: readonly string[]): Promise<void> {
  await context.withDevice(async ({ device }) => {
    const { id, name } = findDevice(await device.roster.refresh(), typed);
    await device.roster.certify(id, fingerprint.join(''));
    show(context.terminal, { id, certified: true }, () => [`Certified: "${harmless(name)}" (${id})`]);
  });
}
