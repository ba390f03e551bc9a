/** The hosted tenants and their state, and how owners who lost their access get it back. */
import { tenantUrl } from '../../config/config.js';
import { claimLinkOf, newClaim } from '../../hosting/signup.js';
import { HostingStore } from '../../hosting/store.js';
import { AccountStore } from '../../devices/store.js';
import type { TenantRow } from '../store.js';
import { systemClock } from '../../../protocol/clock.js';
import { confirmed } from '../../../terminal/ask.js';
import { relative, show, table } from '../../../terminal/output.js';
import { CommandError, EXIT, usageError } from '../../../terminal/terminal.js';
import { ADMIN_NAME, throwIfInterrupted, tenantNamed, type AdminContext, type AdminCommand } from '../context.js';
import { sized, titled, wholeNumber } from '../progress.js';

const LIMIT = 1_000;
const LIMIT_MAX = 100_000;
/** Items deleted per statement. */
const DELETE_BATCH = 2_000;

const SLUG = "the tenant's name (default: the tenant of single mode)";

const deleted = (code?: string): CommandError =>
  new CommandError(EXIT.notFound, 'the tenant has just been deleted', undefined, { code });

export function registerTenants(program: AdminCommand): void {
  const tenants = program
    .command('tenants')
    .summary('list, suspend, activate and delete tenants')
    .description('The tenants of this service')
    .examples('tenants list', 'tenants suspend anna');
  tenants
    .command('list')
    .summary('every tenant with its state, devices, items and storage')
    .description('List tenants in order of their names')
    .option('--after <slug>', 'only those after this name')
    .option('--limit <count>', 'at most this many', wholeNumber(1, LIMIT_MAX), LIMIT)
    .examples('tenants list', 'tenants list --after anna --limit 50')
    .does(list);
  stateCommand(tenants, 'suspend', 'suspended')
    .summary('let a tenant only read until it is active again')
    .description('Suspend a tenant: its devices can read, but not write. Running servers learn of it within seconds');
  stateCommand(tenants, 'activate', 'active')
    .summary('make a tenant active again')
    .description('Make a suspended or inactive tenant active again');
  tenants
    .command('delete')
    .summary('delete a tenant with all its data, for good')
    .description(
      'Delete a tenant with its devices, bins and items, for good; its name is then free. Asks for the name. If it is ' +
        'interrupted, the same command continues it',
    )
    .argument('<slug>', "the tenant's name")
    .option('--confirm <slug>', 'the name again, to confirm without a question')
    .examples('tenants delete anna')
    .changes(remove);
}

const stateCommand = (parent: AdminCommand, name: string, state: 'active' | 'suspended'): AdminCommand =>
  parent
    .command(name)
    .argument('[slug]', SLUG)
    .examples(`tenants ${name} anna`)
    .changes(async ({ terminal, withReady }, slug?: string) => {
      await withReady(async ({ store }) => {
        const verdict = await store.setState(await tenantNamed(store, slug), state);
        if (verdict !== 'ok') throw deleted('tenant_not_found');
      });
      show(terminal, { tenant: slug ?? null, state }, () => [
        `${slug ?? 'The tenant'} is ${state}. Running servers learn of it within seconds.`,
      ]);
    });

async function list(
  { terminal, withReady }: AdminContext,
  { after = '', limit }: { readonly after?: string; readonly limit: number },
): Promise<void> {
  const found = await withReady(({ store }) => store.tenants(after, limit + 1));
  const rows = found.slice(0, limit);
  const more = found.length > limit;
  show(terminal, { tenants: rows, more }, () => (rows.length === 0 ? ['No tenants.'] : lines(terminal, rows)));
  if (more) terminal.note(`There are more: --after ${rows.at(-1)?.slug ?? ''}`);
}

function lines(terminal: AdminContext['terminal'], rows: readonly TenantRow[]): string[] {
  const now = systemClock.now();
  return table(
    terminal,
    titled('Name', 'State', 'Claimed', 'Devices', 'Items', 'Storage', 'Created', 'E-mail'),
    rows.map((row) => [
      ...[row.slug ?? '(single)', row.state, row.claimedAt === null ? 'no' : relative(row.claimedAt, now)],
      ...[String(row.devices), String(row.items), sized(row.storageBytes)],
      ...[relative(row.createdAt, now), row.email ?? ''],
    ]),
  );
}

async function remove(context: AdminContext, slug: string, { confirm }: { readonly confirm?: string }): Promise<void> {
  const { terminal, withReady } = context;
  await withReady(async ({ store, pool }) => {
    const tenant = await tenantNamed(store, slug);
    await confirmName(context, slug, confirm);
    // Closed by hand: else a payment would open what is left of it, where this is interrupted.
    await store.setState(tenant, 'inactive');
    const hosting = new HostingStore(pool);
    const now = systemClock.now();
    for (let items = DELETE_BATCH; ; items += DELETE_BATCH) {
      const verdict = await hosting.removeSome(tenant, DELETE_BATCH, now);
      if (verdict === 'gone') break;
      if (verdict !== 'more') throw deleted('tenant_not_found');
      throwIfInterrupted(terminal);
      terminal.progress(`Deleted ${items} items`);
    }
    terminal.progress('');
  });
  show(terminal, { tenant: slug, deleted: true }, () => [`${slug} is deleted with all its data. The name is free.`]);
}

async function confirmName({ terminal }: AdminContext, slug: string, given: string | undefined): Promise<void> {
  if (given === undefined && !terminal.interactive)
    throw usageError('cannot ask for confirmation here', `Add --confirm ${slug} if you are sure.`);
  const name =
    given ?? (await terminal.ask(`This deletes ${slug} with all its items, for good. Type its name to continue: `));
  if (name.trim() === slug) return;
  throw new CommandError(EXIT.failure, 'that is not its name: nothing was done', undefined, { code: 'declined' });
}

/** The commands for owners who lost their access. */
export function registerAccess(program: AdminCommand): void {
  program
    .command('claim-token')
    .summary('another claim link for a tenant that nobody has claimed')
    .description(
      'Print another claim link for a tenant that nobody has claimed; the previous one is then no longer valid. ' +
        'Anyone with the link owns the tenant: send it to its owner only',
    )
    .argument('<slug>', "the tenant's name")
    .examples('claim-token anna')
    .changes(claimToken);
  program
    .command('password-reset')
    .summary('remove the account password of a tenant')
    .description(
      'Remove the account password of a tenant whose owner has forgotten it. Devices and items stay as they are; ' +
        'until a device sets another one, pairing and recovery do not ask for one',
    )
    .argument('[slug]', SLUG)
    .examples('password-reset', 'password-reset anna')
    .changes(async ({ terminal, withReady }, slug?: string) => {
      await withReady(async ({ store }) => {
        if ((await store.removePassword(await tenantNamed(store, slug))) !== 'ok') throw deleted();
      });
      show(terminal, { tenant: slug ?? null, password: false }, () => [
        'The account password is removed. To set another one on a device: service-device password set',
      ]);
    });
  program
    .command('bootstrap-restart')
    .summary('make the server of single mode unclaimed again')
    .description(
      'Make the server of single mode unclaimed again: its devices, pairings, account password and recovery key are removed, ' +
        'its items stay. Only the twelve words decrypt them, so its next owner needs them',
    )
    .option('-y, --yes', 'do not ask')
    .examples('bootstrap-restart')
    .changes(bootstrapRestart);
}

async function claimToken({ terminal, withReady, config }: AdminContext, slug: string): Promise<void> {
  const settings = config();
  if (settings.tenantMode !== 'multi') {
    throw usageError(
      'claim links are for servers with several tenants',
      'Set TENANT_MODE=multi and BASE_DOMAIN, as the server has them.',
    );
  }
  const { claimToken: token, claimHash } = newClaim();
  await withReady(async ({ store }) => {
    const verdict = await store.renewClaimToken(await tenantNamed(store, slug), claimHash);
    if (verdict === 'ok') return;
    throw new CommandError(
      EXIT.refused,
      `${slug} is already claimed: a link would open nothing`,
      'Its owner can regain access with another device or with the twelve words.',
      { code: verdict },
    );
  });
  const url = tenantUrl(settings, slug);
  const link = claimLinkOf({ url, claimToken: token });
  show(terminal, { slug, url, claimToken: token, link }, () => [link]);
  terminal.note('The first to open this link owns the tenant. The previous link is no longer valid.');
}

async function bootstrapRestart(
  { terminal, withReady, config }: AdminContext,
  { yes }: { readonly yes?: boolean },
): Promise<void> {
  if (config().tenantMode === 'multi') {
    throw new CommandError(
      EXIT.refused,
      'a server with several tenants has no bootstrap restart',
      `To replace a lost claim link: \`${ADMIN_NAME} claim-token SLUG\`.`,
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
