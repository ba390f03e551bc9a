/** `service-mcp passwords`: whether agents may read the secrets of passwords, as it is or from now on. */
import { loadPairing, savePasswords } from './config-file.js';
import type { CommandContext } from './context.js';

/** The choice as a sentence. */
export const passwordsSaid = (allowed: boolean): string =>
  allowed
    ? 'Agents may read the secrets of your passwords; `service-mcp passwords withhold` ends that.'
    : 'Secrets of passwords are withheld from agents; `service-mcp passwords allow` lets them read them.';

/** Keeps a choice, for a server that runs as well; undefined: says how it is. Throws `McpError`. */
export async function passwords(context: CommandContext, allowed: boolean | undefined): Promise<void> {
  if (allowed !== undefined) await savePasswords(context, allowed);
  context.terminal.print(passwordsSaid(allowed ?? (await loadPairing(context)).passwords));
}
