/** `service-admin tenants`: who is hosted here, and their state (contract 12). */
import type { Command } from 'commander';
import { InvalidArgumentError } from 'commander';
import type { OperatorStore, TenantRow } from '../../../postgres/stores/operator-store.js';
import { systemClock } from '../../../protocol/clock.js';
import { relative, show, table } from '../../device/output.js';
import { examples } from '../../device/run.js';
import { CommandError, EXIT } from '../../../device/terminal.js';
import { ADMIN_NAME, goOn, tenantNamed, type AdminContext, type AdminRun } from '../context.js';
import { sized } from '../progress.js';

const LIMIT = 1_000;
const LIMIT_MAX = 100_000;

function limitOf(text: string): number {
  const limit = /^\d{1,6}$/.test(text) ? Number(text) : 0;
  if (limit < 1 || limit > LIMIT_MAX) throw new InvalidArgumentError(`takes a number from 1 to ${LIMIT_MAX}.`);
  return limit;
}

const SLUG = "the tenant's name; left out: the tenant of single mode";

/** Adds the commands. */
export function registerTenants(program: Command, run: AdminRun): void {
  const tenants = program
    .command('tenants')
    .summary('list, suspend, activate and delete tenants')
    .description('The tenants of this service')
    .addHelpText('after', examples(`${ADMIN_NAME} tenants list`, `${ADMIN_NAME} tenants suspend anna`));
  tenants
    .command('list')
    .summary('every tenant with its state, devices, items and storage')
    .description('List tenants in the order of their names')
    .option('--after <slug>', 'only those after this name')
    .option('--limit <count>', 'so many at most', limitOf, LIMIT)
    .addHelpText('after', examples(`${ADMIN_NAME} tenants list`, `${ADMIN_NAME} tenants list --after anna --limit 50`))
    .action(run(list));
  tenants
    .command('suspend')
    .summary('a tenant reads and deletes nothing, writes nothing, until it is active again')
    .description('Suspend a tenant: its devices read, but write nothing. Servers that run hear of it within seconds')
    .argument('[slug]', SLUG)
    .addHelpText('after', examples(`${ADMIN_NAME} tenants suspend anna`))
    .action(run((context, slug?: string) => setState(context, slug, 'suspended')));
  tenants
    .command('activate')
    .summary('make a tenant active again')
    .description('Make a suspended or inactive tenant active again')
    .argument('[slug]', SLUG)
    .addHelpText('after', examples(`${ADMIN_NAME} tenants activate anna`))
    .action(run((context, slug?: string) => setState(context, slug, 'active')));
  tenants
    .command('delete')
    .summary('delete a tenant with all it has, for good')
    .description(
      'Delete a tenant with its devices, bins and items, for good; its name is free then. Asks for the name. What was ' +
        'interrupted is gone on with by the same command',
    )
    .argument('<slug>', "the tenant's name")
    .option('--confirm <slug>', 'the name once more, where nobody can be asked')
    .addHelpText('after', examples(`${ADMIN_NAME} tenants delete anna`))
    .action(run(remove));
}

interface ListOptions {
  readonly after?: string;
  readonly limit: number;
}

async function list({ terminal, withReady }: AdminContext, { after = '', limit }: ListOptions): Promise<void> {
  const found = await withReady(({ store }) => store.tenants(after, limit + 1));
  const rows = found.slice(0, limit);
  const more = found.length > limit;
  show(terminal, { tenants: rows, more }, () => (rows.length === 0 ? ['No tenants.'] : lines(terminal, rows)));
  if (more) terminal.note(`There are more: --after ${rows.at(-1)?.slug ?? ''}`);
}

function lines(terminal: AdminContext['terminal'], rows: readonly TenantRow[]): string[] {
  const now = systemClock.now();
  const titles = ['Name', 'State', 'Claimed', 'Devices', 'Items', 'Storage', 'Made', 'Address'];
  return table(
    terminal,
    titles.map((title) => ({ title })),
    rows.map((row) => [
      ...[row.slug ?? '(single)', row.state, row.claimedAt === null ? 'no' : relative(row.claimedAt, now)],
      ...[String(row.devices), String(row.items), sized(row.storageBytes)],
      ...[relative(row.createdAt, now), row.email ?? ''],
    ]),
  );
}

async function setState(
  { terminal, withReady }: AdminContext,
  slug: string | undefined,
  state: 'active' | 'suspended',
): Promise<void> {
  await withReady(async ({ store }) => {
    if ((await store.setState(await tenantNamed(store, slug), state)) !== 'ok') throw gone();
  });
  show(terminal, { tenant: slug ?? null, state }, () => [
    `${slug ?? 'The tenant'} is ${state}. Servers that run hear of it within seconds.`,
  ]);
}

const gone = (): CommandError =>
  new CommandError(EXIT.notFound, 'the tenant has just been deleted', undefined, { code: 'tenant_not_found' });

async function remove(context: AdminContext, slug: string, { confirm }: { readonly confirm?: string }): Promise<void> {
  const { terminal, withReady } = context;
  await withReady(async ({ store }) => {
    const tenant = await tenantNamed(store, slug);
    await confirmName(context, slug, confirm);
    await removeAll(context, store, tenant);
  });
  show(terminal, { tenant: slug, deleted: true }, () => [`${slug} is deleted with all it had. The name is free.`]);
}

async function confirmName({ terminal }: AdminContext, slug: string, given: string | undefined): Promise<void> {
  if (given === undefined && !terminal.interactive) {
    throw new CommandError(EXIT.usage, 'nobody can be asked here', `Add --confirm ${slug} if you are sure.`);
  }
  const name =
    given ?? (await terminal.ask(`This deletes ${slug} with all its items, for good. Type its name to go on: `));
  if (name.trim() === slug) return;
  throw new CommandError(EXIT.failure, 'that is not its name: nothing was done', undefined, { code: 'declined' });
}

async function removeAll({ terminal }: AdminContext, store: OperatorStore, tenant: string): Promise<void> {
  const verdict = await store.remove(tenant, systemClock.now(), (items) => {
    goOn(terminal);
    terminal.progress(`Deleted ${items} items`);
  });
  terminal.progress('');
  if (verdict !== 'ok') throw gone();
}
