/** `service-load clean`: removes what a killed run has left. */
import { nodePlatform } from '../../sdk/node-platform.js';
import { counted } from '../../terminal/output.js';
import { type Terminal, usageError } from '../../terminal/terminal.js';
import { Cleaner } from '../cleaning.js';
import type { CommandOptions } from '../../terminal/program.js';
import type { LoadCommand, LoadContext } from '../context.js';
import { PREFIX, readDeviceList, removeTenant, testTenants } from '../fleet.js';
import { accessOf, confirmedUrl, nameOf, secretOf } from '../options.js';
import { withTarget, type Target } from '../target.js';

type CleanOptions = { readonly url: string } & CommandOptions<'confirm' | 'name' | 'deviceList' | 'adminTokenFile'>;

export function registerClean(program: LoadCommand): void {
  program
    .command('clean')
    .summary('remove what a killed run has left')
    .description('Remove test tenants (with ADMIN_TOKEN), or the bin of a run and its items (with --device-list)')
    .requiredOption('--url <url>', 'the server')
    .option('--confirm <host>', 'its host name again, if it is not this machine')
    .option('--name <name>', 'of this run only; required with --device-list, else default: all runs')
    .option('--device-list <file>', 'the devices of the run')
    .option('--admin-token-file <file>', 'instead of ADMIN_TOKEN in the environment')
    .examples('clean --url http://localhost:8080')
    .changes(clean);
}

async function clean({ terminal }: LoadContext, options: CleanOptions): Promise<void> {
  const url = await confirmedUrl(terminal, options.url, options.confirm);
  const ofTenants = options.deviceList === undefined;
  const cleanAll = ofTenants ? cleanTenants : cleanBins;
  const removed = await withTarget(url, (target) => cleanAll(terminal, options, target)).finally(() =>
    terminal.progress(''),
  );
  if (terminal.json) terminal.data({ removed });
  else terminal.print(`Removed ${counted(removed, ofTenants ? 'tenant' : 'bin')}.`);
}

async function cleanTenants(terminal: Terminal, options: CleanOptions, target: Target): Promise<number> {
  const adminToken = (await secretOf(terminal, options.adminTokenFile, 'ADMIN_TOKEN')) ?? '';
  const slugs = await testTenants(target, adminToken, options.name === undefined ? PREFIX : `${nameOf(options.name)}-`);
  for (const slug of slugs) {
    terminal.progress(`Removing ${slug}`);
    await removeTenant(target, slug, adminToken);
  }
  return slugs.length;
}

/** The tenants belong to their users: another bin whose name begins like that of a run may be theirs. */
async function cleanBins(terminal: Terminal, options: CleanOptions, target: Target): Promise<number> {
  if (options.name === undefined)
    throw usageError('--device-list requires --name: only the bin of that run is removed.');
  const name = nameOf(options.name);
  const { deviceList = '' } = await accessOf(terminal, options);
  const { sodium } = await nodePlatform();
  let removed = 0;
  for (const tenant of readDeviceList(sodium, deviceList, { plan: { name }, share: { part: 0, parts: 1 } }).own) {
    const cleaner = new Cleaner({ sodium, target, tenant });
    if (await cleaner.removeBin(name)) removed++;
  }
  return removed;
}
