/** Which command was meant, with which options, and how it ends. */
import type { Readable, Writable } from 'node:stream';
import { parseArgs, type ParseArgsConfig } from 'node:util';
import { EXIT, type ExitCode } from '../terminal/terminal.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { errorCode } from '../protocol/error-code.js';
import type { CommandContext } from './context.js';
import { McpError } from './errors.js';
import { failureOf } from './failure.js';
import { pair } from './pair.js';
import { passwords } from './passwords.js';
import { status } from './status.js';
import { unpair } from './unpair.js';

/** Everything of a process: a command takes what it needs. */
export interface ProcessContext extends CommandContext {
  readonly input: Readable;
  readonly output: Writable;
}

const HELP = `service-mcp: your bins for AI agents, over the Model Context Protocol

  service-mcp pair      pair this machine with six words that another device shows
      --host URL          address of the server (else SERVICE_HOST, else it is asked for)
      --code "WORDS"      the six words (else they are asked for)
      --name NAME         this device's name, as the others see it
      --password-file F   the account password, where one is set ("-": standard input)
      --passwords CHOICE  allow: agents may read the secrets of passwords; withhold: they may not
                          (else it is asked; where nobody can be asked they may not)
      --force             replace the pairing that is there
  service-mcp passwords [allow|withhold]  whether agents may read the secrets of passwords
  service-mcp serve     speak MCP on standard input and output: what an MCP client starts
  service-mcp status    how this machine stands (--json for scripts)
  service-mcp unpair    revoke this machine's access and forget it
      --force             forget it also where the server cannot be told
  service-mcp --version, --help

Environment: SERVICE_HOST; SERVICE_BINS (only these bins, by name, slug or id, with commas between);
SERVICE_READ_ONLY=1; SERVICE_REDACT_SECRETS=1 (secrets are withheld even if the pairing allows them).`;

/** Runs one command. Resolves with its exit code; what went wrong is on standard error by then. */
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
      context.terminal.print(context.version);
      return EXIT.ok;
    case 'pair':
      return paired(rest, context);
    case 'unpair':
      await unpair(context, { force: read(rest, { force: { type: 'boolean' } }).force ?? false });
      return EXIT.ok;
    case 'status':
      return status(context, { json: read(rest, { json: { type: 'boolean' } }).json ?? false });
    case 'passwords':
      await passwords(context, choiceOf(rest));
      return EXIT.ok;
    case 'serve': {
      read(rest, {});
      // Loaded for this command alone: the others need nothing of the protocol's library.
      const { serve } = await import('./serve.js');
      return serve(context);
    }
    default:
      throw new McpError(
        'usage',
        command === '' ? 'a command is missing' : `there is no command ${sanitizeText(command)}`,
      );
  }
}

async function paired(rest: readonly string[], context: ProcessContext): Promise<ExitCode> {
  const text = { type: 'string' } as const;
  const texts = { host: text, code: text, name: text, 'password-file': text, passwords: text };
  const options = read(rest, { ...texts, force: { type: 'boolean' } });
  const { 'password-file': passwordFile, passwords: choice, force = false, ...given } = options;
  await pair(context, {
    ...given,
    passwordFile,
    passwords: choice === undefined ? undefined : choiceOf([choice]),
    force,
  });
  return EXIT.ok;
}

/** The choice of `passwords`; undefined where none is made. Throws `McpError` `usage` for anything else. */
function choiceOf([choice, ...more]: readonly string[]): boolean | undefined {
  if (choice === undefined) return undefined;
  if (more.length === 0 && choice === 'allow') return true;
  if (more.length === 0 && choice === 'withhold') return false;
  throw new McpError('usage', 'passwords takes allow or withhold');
}

/** The options of a command. Throws `McpError` `usage` for others, and for arguments: no command takes any. */
function read<const T extends NonNullable<ParseArgsConfig['options']>>(rest: readonly string[], options: T) {
  try {
    return parseArgs({ args: [...rest], options, strict: true, allowPositionals: false }).values;
  } catch (cause) {
    if (!errorCode(cause).startsWith('ERR_PARSE_ARGS')) throw cause;
    // Not its message: that quotes arguments, and the six words may be among them.
    const odd = rest.find((each) => each.startsWith('-') && !Object.hasOwn(options, each.replace(/^-+|=.*$/g, '')));
    const what =
      odd === undefined ? 'an argument is missing, or one is too many' : `there is no option ${sanitizeText(odd)}`;
    throw new McpError('usage', what, { cause });
  }
}
