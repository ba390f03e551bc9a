/** `service-mcp unpair`: this machine gives up its access, then forgets it. */
import { existsSync } from 'node:fs';
import { sanitizeText } from '../protocol/sanitize.js';
import { auditPath } from './audit.js';
import { forgetIdentity, loadIdentity } from './config-file.js';
import type { CommandContext } from './context.js';
import { McpError, type McpCode } from './errors.js';
import { failureOf } from './failure.js';
import { revokeDevice } from './pair.js';

/** Files that do not open here: nobody can revoke with them, so forgetting is all that is left. */
const UNREADABLE: ReadonlySet<McpCode> = new Set(['config_damaged', 'other_machine']);

/**
 * Revokes this device at the server, then removes the pairing. With `force` it is removed also where the server cannot be
 * reached or refuses. Throws `McpError`; the pairing is still there then.
 */
export async function unpair(context: CommandContext, { force }: { readonly force: boolean }): Promise<void> {
  const { terminal, place } = context;
  const identity = await loadIdentity(context).catch((error: unknown) => {
    if (!UNREADABLE.has(failureOf(error).code)) throw error;
    context.note(`Warning: ${failureOf(error).message}. The device could not be revoked: do that on another device.`);
    return undefined;
  });
  if (identity !== undefined) {
    await revokeDevice(context, identity).catch((error: unknown) => {
      const { code, message, hint } = failureOf(error);
      if (!force) {
        const instead = code === 'last_device' ? hint : `${hint} To forget the pairing all the same add --force.`;
        throw new McpError(code, `nothing was removed: ${message}`, { cause: error, hint: instead });
      }
      const name = JSON.stringify(sanitizeText(identity.name));
      context.note(`Warning: ${name} could not be revoked (${message}). Revoke it on another device.`);
    });
  }
  await forgetIdentity(place);
  terminal.print('Unpaired. Nothing of the pairing is left on this machine.');
  if (existsSync(auditPath(context))) terminal.print(`The record of tool calls is still there: ${auditPath(context)}`);
}
