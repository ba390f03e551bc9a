/** `service-mcp status`: how this machine stands, for a person or a script. */
import type { Identity } from '../sdk/identity.js';
import type { Me } from '../sdk/replies.js';
import { EXIT, type ExitCode } from '../terminal/terminal.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { loadPairing, readConfig, renewIdentity } from './config-file.js';
import type { CommandContext } from './context.js';
import type { McpError } from './errors.js';
import { failureOf } from './failure.js';
import { runningInstance } from './lock.js';
import { withDevice } from './pair.js';

/** The document of `status --json`. Times are ISO. */
export interface Status {
  readonly version: string;
  readonly file: string;
  /** The pairing opens on this machine. */
  readonly paired: boolean;
  readonly server: string | null;
  readonly device: { readonly id: string; readonly name: string } | null;
  /** What the pairing is bound to: see `MachineSource`. */
  readonly boundTo: string | null;
  readonly tokenExpiresAt: string | null;
  /** True: agents may read the secrets of passwords. Null: not paired. */
  readonly passwords: boolean | null;
  /** Process id of `service-mcp serve`, where it runs. */
  readonly running: number | null;
  /** What the server says of this device; null where it could not be asked. */
  readonly account: { readonly serverVersion: string; readonly items: number; readonly devices: number } | null;
  /** Why `paired` is false or `account` is null. */
  readonly error: { readonly code: string; readonly message: string; readonly hint: string } | null;
}

/** Prints how things stand. Resolves with 0 where all is well, else with the exit code of what is not. */
export async function status(context: CommandContext, { json }: { readonly json: boolean }): Promise<ExitCode> {
  const { found, failure } = await looked(context);
  const { terminal } = context;
  if (json) terminal.print(JSON.stringify(found));
  else for (const line of lines(found)) terminal.print(line);
  return failure?.exitCode ?? EXIT.ok;
}

async function looked(context: CommandContext): Promise<{ readonly found: Status; readonly failure?: McpError }> {
  const { place, version, note } = context;
  let found: Status = {
    ...{ version, file: place.configPath, paired: false, server: null, device: null, boundTo: null },
    ...{ tokenExpiresAt: null, passwords: null, running: runningInstance(place) ?? null, account: null, error: null },
  };
  try {
    const file = await readConfig(place, note);
    if (file !== undefined) {
      const device = { id: sanitizeText(file.deviceId), name: sanitizeText(file.name) };
      found = { ...found, server: sanitizeText(file.server), device, boundTo: file.machine };
    }
    const { identity, passwords } = await loadPairing(context);
    found = { ...found, paired: true, tokenExpiresAt: iso(identity), passwords };
    const { server } = await asked(context, identity);
    const account = {
      serverVersion: sanitizeText(server.version),
      items: server.itemCount,
      devices: server.deviceCount,
    };
    return { found: { ...found, account } };
  } catch (error) {
    const failure = failureOf(error);
    const { code, message, hint } = failure;
    return { found: { ...found, error: { code, message, hint } }, failure };
  }
}

/** Asks the server, which renews a token that runs out. */
async function asked(context: CommandContext, identity: Identity): Promise<Me> {
  const keeping: Promise<unknown>[] = [];
  const onIdentity = (renewed: Identity): unknown => keeping.push(renewIdentity(context, renewed));
  return withDevice(context, { identity, onIdentity }, (device) => device.me()).finally(() => Promise.all(keeping));
}

const iso = ({ token }: Identity): string | null =>
  token.expiresAt === null ? null : new Date(token.expiresAt).toISOString();

function lines(found: Status): string[] {
  const { device, account, error } = found;
  const facts: readonly (readonly [string, string | null])[] = [
    ['Paired', found.paired ? 'yes' : 'no'],
    ['Server', found.server],
    ['Device', device === null ? null : `${device.name} (${device.id})`],
    ['Bound to', found.boundTo],
    ['Token until', found.tokenExpiresAt],
    ['Passwords', found.passwords === null ? null : found.passwords ? 'agents may read them' : 'withheld from agents'],
    ['Running', found.running === null ? 'no' : `process ${found.running}`],
    ['Account', account === null ? null : `${account.items} items, ${account.devices} devices`],
    ['Server version', account?.serverVersion ?? null],
    ['File', found.file],
    ['Version', found.version],
    ['Problem', error === null ? null : `${error.message} (${error.code}). ${error.hint}`],
  ];
  return facts.flatMap(([name, value]) => (value === null ? [] : [`${`${name}:`.padEnd(16)}${value}`]));
}
