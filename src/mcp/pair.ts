/** `service-mcp pair`: makes this machine a device by the six words that another one shows (reference, Pairing). */
import { readOfferText } from '../sdk/address.js';
import type { AskPassword } from '../sdk/enrol.js';
import type { Identity } from '../sdk/identity.js';
import { join, type JoinRequest } from '../sdk/pairing.js';
import { decodeWords } from '../crypto/words.js';
import { withBriefDevice } from '../device/brief-device.js';
import { isYes } from '../terminal/ask.js';
import type { CommandOptions } from '../terminal/program.js';
import { promptWords, COMPARE_DIGITS, digitsText, retryPassword } from '../device/newcomer.js';
import { ownName, passwordFrom, serverFrom } from '../device/newcomer.js';
import type { Timer } from '../protocol/clock.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { isDisplayName } from '../protocol/ids.js';
import { NAME_MAX, PAIR_SESSION_MS, PAIR_WORDS } from '../protocol/limits.js';
import { loadIdentity, readConfig, savePairing, type Pairing } from './config-file.js';
import type { CommandContext } from './context.js';
import { failureOf, McpError } from './errors.js';
import { withLock } from './lock.js';

/** `passwords`: whether agents may read the secrets of passwords; absent: prompts, or false if not interactive. */
interface PairOptions extends CommandOptions<'host' | 'code' | 'name' | 'passwordFile', 'passwords'> {
  readonly force: boolean;
}

const QUESTION = 'The six words that the other device shows: ';
const NO_SERVER = 'the address of the server is missing';
const GIVE_SERVER = 'Give its address with --host, or set SERVICE_HOST.';
const TICK_MS = 1_000;

/** Whether agents may read the secrets of passwords, as a sentence. */
export const passwordsNotice = (allowed: boolean): string =>
  allowed
    ? 'Agents may read the secrets of your passwords; `service-mcp passwords withhold` ends that.'
    : 'Secrets of passwords are withheld from agents; `service-mcp passwords allow` lets agents read them.';

/**
 * Pairs and saves the pairing. Prompts for missing options if interactive. With `force` an existing pairing is replaced
 * once the new one is saved, and its device is revoked. Throws `McpError`.
 */
export async function pair(context: CommandContext, options: PairOptions): Promise<void> {
  const { terminal, platform } = context;
  if (!options.force) await expectUnpaired(context);
  const before = options.force ? await deviceToReplace(context) : undefined;
  const offer = options.host === undefined ? undefined : readOfferText(options.host);
  const address = (offer?.url ?? options.host ?? context.env['SERVICE_HOST'] ?? '').trim();
  const serverUrl = await serverFrom(terminal, address, () => new McpError('usage', NO_SERVER, { hint: GIVE_SERVER }));
  const name = nameFrom(options.name);
  // Before the words, which expire after five minutes: this choice should not be made under time pressure.
  const passwords = options.passwords ?? (await passwordsAllowed(context));
  const words = await wordsFrom(context, options.code ?? offer?.words);
  // The words work once: an unwritable folder must be detected before they are used.
  await withLock(context, () => Promise.resolve());
  const request = { platform, serverUrl, name, glyph: 'laptop', words, signal: context.interrupted } as const;
  const identity = await joined(context, request, options);
  await savePaired(context, { identity, passwords }, options.force);
  if (before !== undefined) await revokePrevious(context, before);
  terminal.print(`Paired. This machine is ${JSON.stringify(name)}, a device of ${serverUrl}.`);
  terminal.print(passwordsNotice(passwords));
  terminal.print(
    'Configure your MCP client to start `service-mcp serve`; the README has snippets. If it is running, restart it.',
  );
}

async function expectUnpaired(context: CommandContext): Promise<void> {
  if ((await readConfig(context.paths, context.note)) === undefined) return;
  // Throws for a file that does not open here, with the hint that `--force` replaces it.
  const { serverUrl, name } = await loadIdentity(context);
  const who = `${JSON.stringify(sanitizeText(name))}, a device of ${serverUrl}`;
  throw new McpError('already_paired', `this machine is already ${who}`);
}

/** The device of the pairing to be replaced; undefined if there is none, or it does not open. */
async function deviceToReplace(context: CommandContext): Promise<Identity | undefined> {
  return loadIdentity(context).catch((error: unknown) => {
    const { code } = failureOf(error);
    if (code === 'config_unsafe' || code === 'config_newer') throw error;
    return undefined;
  });
}

function nameFrom(given: string | undefined): string {
  const name = (given ?? ownName(' (agent)', 'agent')).trim();
  if (isDisplayName(name)) return name;
  throw new McpError('usage', `a device name is 1 to ${NAME_MAX} characters, without control characters`);
}

/** Prompts for the choice; anything but yes means no, as does a terminal that is not interactive. */
async function passwordsAllowed({ terminal }: CommandContext): Promise<boolean> {
  if (!terminal.interactive) return false;
  terminal.note('Anything agents read is sent to the model that your MCP client uses.');
  return isYes(await terminal.ask('May agents read the secrets of your passwords? [y/N] '));
}

/** The words, their checksum verified before anything is sent: a typing error must not use up the code. */
async function wordsFrom(context: CommandContext, given: string | undefined): Promise<string> {
  if (given !== undefined) return decodeWords(context.platform.sodium, given, PAIR_WORDS).text;
  if (context.terminal.interactive)
    return promptWords(context, { count: PAIR_WORDS, question: QUESTION, hidden: false });
  const hint = 'Give them with --code "one two three four five six"; at a terminal you are asked for them.';
  throw new McpError('usage', 'the six words are missing', { hint });
}

/** Joins. Prompts again for a mistyped password, which does not use up the code. */
async function joined(
  context: CommandContext,
  request: Omit<JoinRequest, 'onDigits' | 'password'>,
  { passwordFile }: Pick<PairOptions, 'passwordFile'>,
): Promise<Identity> {
  const waiting = new Waiting(context);
  const onDigits = (digits: string): void => waiting.shown(digits);
  const password = waiting.around(passwordFrom(context.terminal, passwordFile));
  const attempt = (): Promise<Identity> => join({ ...request, onDigits, password });
  const mistyped = 'That is not the account password. Try again; the digits will change.';
  try {
    return await retryPassword(context.terminal, passwordFile, attempt, mistyped);
  } catch (error) {
    const failure = failureOf(error);
    if (failure.code !== 'interrupted') throw error;
    const hint = `Nothing was kept. If the other device has already said yes, revoke ${JSON.stringify(request.name)} there.`;
    throw new McpError('interrupted', failure.message, { cause: error, hint });
  } finally {
    waiting.end();
  }
}

/** Shows the digits to compare, and the time left for the decision on the other device. */
class Waiting {
  private timer: Timer | undefined;
  private readonly until: number;

  constructor(private readonly context: CommandContext) {
    this.until = context.platform.clock.now() + PAIR_SESSION_MS;
  }

  /** Called for each attempt: one with another password has other keys, and so other digits. */
  shown(digits: string): void {
    const { terminal } = this.context;
    terminal.note(`Digits: ${digitsText(digits)}`);
    terminal.note(COMPARE_DIGITS);
    if (!terminal.interactive) terminal.note('Waiting for the other device, five minutes at most ...');
    this.tick();
  }

  /** Wraps the password prompt: no progress is written meanwhile. */
  around(ask: AskPassword): AskPassword {
    return async () => {
      this.end();
      const typed = await ask();
      this.tick();
      return typed;
    };
  }

  end(): void {
    this.timer?.cancel();
    this.timer = undefined;
    this.context.terminal.progress('');
  }

  private tick(): void {
    this.timer?.cancel();
    const { terminal, platform } = this.context;
    const left = Math.max(0, Math.ceil((this.until - platform.clock.now()) / TICK_MS));
    const shown = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, '0')}`;
    terminal.progress(`Waiting for the other device, ${shown} left ...`);
    this.timer = platform.clock.setTimer(TICK_MS, () => this.tick());
  }
}

/** Saves the pairing. If that fails, the new device is revoked, since its keys are lost. */
async function savePaired(context: CommandContext, pairing: Pairing, force: boolean): Promise<void> {
  const { identity } = pairing;
  try {
    const source = await savePairing(context, pairing, force ? 'replace' : 'keep');
    if (source !== 'host-name') return;
    context.note(
      'Warning: this machine has no identifier, so the pairing is bound to the host and user names. ' +
        'In a container, mount /etc/machine-id from the host.',
    );
  } catch (error) {
    const gone = await revokeDevice(context, identity).then(
      () => 'The new device was revoked.',
      () => `Revoke the device ${JSON.stringify(identity.name)} on another device: it is not used.`,
    );
    const { code, message } = failureOf(error);
    throw new McpError(code, `the pairing could not be saved: ${message}`, { cause: error, hint: gone });
  }
}

async function revokePrevious(context: CommandContext, before: Identity): Promise<void> {
  const old = JSON.stringify(sanitizeText(before.name));
  await revokeDevice(context, before).then(
    () => context.note(`The previous pairing, ${old}, was revoked.`),
    (error: unknown) =>
      context.note(
        `Warning: the previous pairing, ${old} at ${before.serverUrl}, could not be revoked (${failureOf(error).message}). ` +
          'Revoke it on another device.',
      ),
  );
}

/** Revokes a device with its own token; no error if it is already revoked or unknown. */
export async function revokeDevice({ platform }: Pick<CommandContext, 'platform'>, identity: Identity): Promise<void> {
  try {
    await withBriefDevice({ platform, identity }, (device) => device.revoke(identity.deviceId));
  } catch (error) {
    if (!['revoked', 'unknown_device'].includes(failureOf(error).code)) throw error;
  }
}
