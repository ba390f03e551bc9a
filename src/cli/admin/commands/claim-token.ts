/** `service-admin claim-token`: another claim link for a tenant whose first one was lost. */
import { createHash, randomBytes } from 'node:crypto';
import type { Command } from 'commander';
import { apexOf, type Config } from '../../../config/config.js';
import { claimLinkOf } from '../../../hosting/signup.js';
import { show } from '../../device/output.js';
import { examples } from '../../device/run.js';
import { CommandError, EXIT } from '../../../device/terminal.js';
import { ADMIN_NAME, tenantNamed, type AdminContext, type AdminRun } from '../context.js';

/** As signup draws it. */
const CLAIM_TOKEN_BYTES = 32;

/** Adds the command. */
export function registerClaimToken(program: Command, run: AdminRun): void {
  program
    .command('claim-token')
    .summary('another claim link for a tenant that nobody has claimed')
    .description(
      'Print another claim link for a tenant that nobody has claimed; the one before is of no use then. ' +
        'Whoever has the link owns the tenant: send it to its owner only',
    )
    .argument('<slug>', "the tenant's name")
    .addHelpText('after', examples(`${ADMIN_NAME} claim-token anna`))
    .action(run(claimToken));
}

async function claimToken({ terminal, withReady, config }: AdminContext, slug: string): Promise<void> {
  const url = tenantUrl(config(), slug);
  const token = randomBytes(CLAIM_TOKEN_BYTES).toString('base64url');
  await withReady(async ({ store }) => {
    const hash = createHash('sha256').update(token, 'utf8').digest();
    const verdict = await store.renewClaimToken(await tenantNamed(store, slug), hash);
    if (verdict === 'ok') return;
    throw new CommandError(
      EXIT.refused,
      `${slug} is claimed already: a link would open nothing`,
      'Its owner comes back with another device or with the twelve words.',
      { code: verdict },
    );
  });
  const link = claimLinkOf({ url, claimToken: token });
  show(terminal, { slug, url, claimToken: token, link }, () => [link]);
  terminal.note('Whoever opens this link first owns the tenant. The link before it is of no use any more.');
}

/** Where the tenant is reached, made as signup makes it. */
function tenantUrl(config: Config, slug: string): string {
  const apex = apexOf(config);
  if (apex === '') {
    throw new CommandError(
      EXIT.usage,
      'claim links are for servers with several tenants',
      'Set TENANT_MODE=multi and BASE_DOMAIN, as the server has them.',
    );
  }
  const { protocol, port } = new URL(config.publicUrl ?? `https://${apex}`);
  return `${protocol}//${slug}.${apex}${port === '' ? '' : `:${port}`}`;
}
