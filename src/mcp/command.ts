/** The commands of `service-mcp`: parsing, dispatch and exit codes. */
import { existsSync } from 'node:fs';
import { parseArgs, type ParseArgsConfig } from 'node:util';
import { withBriefDevice } from '../device/brief-device.js';
import type { Identity } from '../sdk/identity.js';
import { counted, releaseText } from '../terminal/output.js';
import { EXIT, type ExitCode } from '../terminal/terminal.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { errorCode } from '../protocol/error-code.js';
import { auditPath } from './audit.js';
import { forgetIdentity, loadIdentity, loadPairing, readConfig, renewIdentity, savePasswords } from './config-file.js';
import type { CommandContext } from './context.js';
import { failureOf, McpError, type McpCode } from './errors.js';
import { runningInstance } from './lock.js';
import { pair, passwordsNotice, revokeDevice } from './pair.js';
import type { ServeOptions } from './serve.js';
import { isoOf } from './shown.js';

type ProcessContext = CommandContext & ServeOptions;

const HELP = `service-mcp: your bins for AI agents, over the Model Context Protocol

  service-mcp pair      pair this machine with six words that another device shows
      --host URL          address of the server (else SERVICE_HOST, else it is asked for)
      --code "WORDS"      the six words (else they are asked for)
      --name NAME         this device's name, as the others see it
      --password-file F   the account password, where one is set ("-": standard input)
      --passwords CHOICE  allow: agents may read the secrets of passwords; withhold: they may not
                          (else you are asked; without a terminal they may not)
      --force             replace the existing pairing
  service-mcp passwords [allow|withhold]  whether agents may read the secrets of passwords
  service-mcp serve     speak MCP on standard input and output (started by MCP clients)
  service-mcp status    show the status of this machine (--json for scripts)
  service-mcp unpair    revoke this machine's access and forget it
      --force             forget it even if it cannot be revoked
  service-mcp --version, --help

Environment: SERVICE_HOST; SERVICE_BINS (only these bins, by name, slug or id, with commas between);
SERVICE_READ_ONLY=1; SERVICE_REDACT_SECRETS=1 (secrets are withheld even if the pairing allows them).`;

/** Runs one command and resolves with its exit code. An error is printed on standard error first. */
export async function runCommand(argv: readonly string[], context: ProcessContext): Promise<ExitCode> {
  try {
    return await dispatched(argv, context);
  } catch (error) {
    const { code, message, hint, exitCode } = failureOf(error);
    context.note(`Error (${code}): ${message.replace(/\.$/, '')}. ${hint}`);
    return exitCode;
  }
}

async function dispatched(argv: readonly string[], context: ProcessContext): Promise<ExitCode> {
  const [command = '', ...rest] = argv;
  if (['help', '--help', '-h'].includes(command) || rest.includes('--help') || rest.includes('-h')) {
    context.terminal.print(HELP);
    return EXIT.ok;
  }
  switch (command) {
    case '--version':
    case '-V':
      context.terminal.print(releaseText(context));
      return EXIT.ok;
    case 'pair':
      return paired(rest, context);
    case 'unpair':
      await unpair(context, read(rest, { force: { type: 'boolean' } }).force ?? false);
      return EXIT.ok;
    case 'status':
      return status(context, read(rest, { json: { type: 'boolean' } }).json ?? false);
    case 'passwords':
      await passwords(context, choiceOf(rest));
      return EXIT.ok;
    case 'serve': {
      read(rest, {});
      // Loaded on demand: no other command needs the MCP library.
      const { serve } = await import('./serve.js');
      return serve(context);
    }
    default:
      if (command === '') throw new McpError('usage', 'a command is missing');
      throw new McpError('usage', `there is no command ${sanitizeText(command)}`);
  }
}

async function paired(rest: readonly string[], context: ProcessContext): Promise<ExitCode> {
  const text = { type: 'string' } as const;
  const texts = { host: text, code: text, name: text, 'password-file': text, passwords: text };
  const options = read(rest, { ...texts, force: { type: 'boolean' } });
  const { 'password-file': passwordFile, passwords: choice, force = false, ...given } = options;
  const passwords = choice === undefined ? undefined : choiceOf([choice]);
  await pair(context, { ...given, passwordFile, passwords, force });
  return EXIT.ok;
}

/** The argument of `passwords`; undefined if absent. Throws `McpError` `usage` for anything else. */
function choiceOf([choice, ...more]: readonly string[]): boolean | undefined {
  if (choice === undefined) return undefined;
  if (more.length === 0 && choice === 'allow') return true;
  if (more.length === 0 && choice === 'withhold') return false;
  throw new McpError('usage', 'passwords takes allow or withhold');
}

/** The options of a command. Throws `McpError` `usage` for unknown ones and for positional arguments. */
function read<const T extends NonNullable<ParseArgsConfig['options']>>(rest: readonly string[], options: T) {
  try {
    return parseArgs({ args: [...rest], options, strict: true, allowPositionals: false }).values;
  } catch (cause) {
    if (!errorCode(cause).startsWith('ERR_PARSE_ARGS')) throw cause;
    // Not the parser's message: it quotes arguments, which may contain the six words.
    const odd = rest.find((each) => each.startsWith('-') && !Object.hasOwn(options, each.replace(/^-+|=.*$/g, '')));
    const what = odd === undefined ? 'an argument is missing or unexpected' : `there is no option ${sanitizeText(odd)}`;
    throw new McpError('usage', what, { cause });
  }
}

/** `service-mcp passwords`: saves the choice, which also applies to a running server, or prints the current one. */
async function passwords(context: CommandContext, allowed: boolean | undefined): Promise<void> {
  if (allowed !== undefined) await savePasswords(context, allowed);
  context.terminal.print(passwordsNotice(allowed ?? (await loadPairing(context)).passwords));
}

/** With a pairing that cannot be decrypted the device cannot be revoked, only forgotten. */
const UNREADABLE: ReadonlySet<McpCode> = new Set(['config_damaged', 'other_machine']);

/**
 * `service-mcp unpair`: revokes this device at the server, then removes the pairing. With `force` it is
 * removed even if the server cannot be reached or refuses. If it throws (`McpError`), the pairing is kept.
 */
async function unpair(context: CommandContext, force: boolean): Promise<void> {
  const { terminal, paths } = context;
  const identity = await loadIdentity(context).catch((error: unknown) => {
    if (!UNREADABLE.has(failureOf(error).code)) throw error;
    context.note(`Warning: ${failureOf(error).message}. The device could not be revoked. Revoke it on another device.`);
    return undefined;
  });
  if (identity !== undefined) {
    await revokeDevice(context, identity).catch((error: unknown) => {
      const { code, message, hint } = failureOf(error);
      if (!force) {
        const instead = code === 'last_device' ? hint : `${hint} To forget the pairing anyway add --force.`;
        throw new McpError(code, `nothing was removed: ${message}`, { cause: error, hint: instead });
      }
      const name = JSON.stringify(sanitizeText(identity.name));
      context.note(`Warning: ${name} could not be revoked (${message}). Revoke it on another device.`);
    });
  }
  await forgetIdentity(paths);
  terminal.print('Unpaired. The pairing was removed from this machine.');
  if (existsSync(auditPath(context))) terminal.print(`The record of tool calls is still there: ${auditPath(context)}`);
}

/** The document of `status --json`. Times are ISO. */
interface Status {
  readonly version: string;
  readonly file: string;
  /** The pairing opens on this machine. */
  readonly paired: boolean;
  readonly server: string | null;
  readonly device: { readonly id: string; readonly name: string } | null;
  /** The `MachineSource` that the pairing is bound to. */
  readonly boundTo: string | null;
  readonly tokenExpiresAt: string | null;
  /** As in `Pairing`. Null: not paired. */
  readonly passwords: boolean | null;
  /** Process id of `service-mcp serve`; null if it does not run. */
  readonly running: number | null;
  /** What the server reports; null if it could not be reached. */
  readonly account: { readonly serverVersion: string; readonly items: number; readonly devices: number } | null;
  /** Why `paired` is false or `account` is null. */
  readonly error: { readonly code: string; readonly message: string; readonly hint: string } | null;
}

/** `service-mcp status`. Resolves with 0 if the pairing opens and the server answers, else the error's exit code. */
async function status(context: CommandContext, json: boolean): Promise<ExitCode> {
  const { terminal, platform, paths, version, note } = context;
  let found: Status = {
    ...{ version, file: paths.configPath, paired: false, server: null, device: null, boundTo: null },
    ...{ tokenExpiresAt: null, passwords: null, running: runningInstance(paths) ?? null, account: null, error: null },
  };
  let exitCode: ExitCode = EXIT.ok;
  try {
    const file = await readConfig(paths, note);
    if (file !== undefined) {
      const device = { id: sanitizeText(file.deviceId), name: sanitizeText(file.name) };
      found = { ...found, server: sanitizeText(file.server), device, boundTo: file.machine };
    }
    const { identity, passwords } = await loadPairing(context);
    const { expiresAt } = identity.token;
    const tokenExpiresAt = expiresAt === null ? null : isoOf(expiresAt);
    found = { ...found, paired: true, tokenExpiresAt, passwords };
    // Querying the server renews an expiring token; the renewed one must be saved before the command ends.
    const saving: Promise<unknown>[] = [];
    const onIdentity = (renewed: Identity): unknown => saving.push(renewIdentity(context, renewed));
    const me = withBriefDevice({ platform, identity, onIdentity }, (device) => device.me());
    const { version, itemCount: items, deviceCount: devices } = (await me.finally(() => Promise.all(saving))).server;
    found = { ...found, account: { serverVersion: sanitizeText(version), items, devices } };
  } catch (error) {
    const { code, message, hint, exitCode: failed } = failureOf(error);
    exitCode = failed;
    found = { ...found, error: { code, message, hint } };
  }
  if (json) terminal.print(JSON.stringify(found));
  else for (const line of lines(found)) terminal.print(line);
  return exitCode;
}

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
    ['Account', account === null ? null : `${counted(account.items, 'item')}, ${counted(account.devices, 'device')}`],
    ['Server version', account?.serverVersion ?? null],
    ['File', found.file],
    ['Version', found.version],
    ['Problem', error === null ? null : `${error.message} (${error.code}). ${error.hint}`],
  ];
  return facts.flatMap(([name, value]) => (value === null ? [] : [`${`${name}:`.padEnd(16)}${value}`]));
}
