/** `service-mcp pair`: this machine becomes a device by the six words that another one shows (contract 9). */
import { createReadStream } from 'node:fs';
import { hostname } from 'node:os';
import { isLocalHost, readOfferText, serverAddress } from '../client/address.js';
import { Device } from '../client/device.js';
import type { AskPassword } from '../client/enrol.js';
import { ApiError } from '../client/errors.js';
import type { Identity } from '../client/identity.js';
import { join, type JoinRequest } from '../client/pairing.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { decodeWords, normalizeWords } from '../crypto/words.js';
import type { Timer } from '../protocol/clock.js';
import { errorCode } from '../protocol/error-code.js';
import { harmless } from '../protocol/harmless.js';
import { isDisplayName } from '../protocol/ids.js';
import { NAME_MAX, PAIR_SESSION_MS } from '../protocol/limits.js';
import { createPairing, loadIdentity, readConfig, savePairing, type Pairing } from './config-file.js';
import type { CommandContext } from './context.js';
import { McpError } from './errors.js';
import { failureOf } from './failure.js';
import { alone } from './lock.js';
import { passwordsSaid } from './passwords.js';
import { firstLineOf } from './terminal.js';

/** What `pair` takes. */
export interface PairOptions {
  readonly host?: string;
  readonly code?: string;
  readonly name?: string;
  readonly force: boolean;
  readonly passwordFile?: string;
  /** Whether agents may read the secrets of passwords; absent: a person is asked, and without one they may not. */
  readonly passwords?: boolean;
}

const WORDS = 6;
const TRIES = 3;
const LINE_MAX = 4_096;
const TICK_MS = 1_000;

/**
 * Pairs and keeps the pairing. Asks for what was not given, where a person can be asked. With `force` a pairing that is
 * there is replaced once the new one is kept, and the old device is revoked. Throws `McpError`.
 */
export async function pair(context: CommandContext, options: PairOptions): Promise<void> {
  const { terminal, place, platform } = context;
  if (!options.force) await expectUnpaired(context);
  const before = options.force ? await previous(context) : undefined;
  const offer = options.host === undefined ? undefined : readOfferText(options.host);
  const serverUrl = await addressFrom(context, offer?.url ?? options.host);
  const name = nameFrom(options.name);
  // Before the words: they are good for five minutes, and nothing of the choice may depend on who is in a hurry.
  const passwords = options.passwords ?? (await passwordsAllowed(context));
  const words = await wordsFrom(context, options.code ?? offer?.words);
  // The words are good for one pairing: a folder that cannot be written must show before they are spent.
  await alone(place, () => Promise.resolve());
  const request: Omit<JoinRequest, 'onDigits'> = {
    ...{ platform, serverUrl, name, glyph: 'laptop', words, signal: context.interrupted },
    password: passwordFrom(context, options.passwordFile),
  };
  const identity = await joined(context, request);
  await kept(context, { identity, passwords }, options.force ? savePairing : createPairing);
  if (before !== undefined) await replaced(context, before);
  terminal.print(`Paired. This machine is ${JSON.stringify(name)}, a device of ${serverUrl}.`);
  terminal.print(passwordsSaid(passwords));
  terminal.print(
    'Let your MCP client start `service-mcp serve`; the README has snippets. A running one must be restarted.',
  );
}

async function expectUnpaired(context: CommandContext): Promise<void> {
  if ((await readConfig(context.place, context.note)) === undefined) return;
  // A file that does not open here says so, and that `--force` replaces it.
  const { serverUrl, name } = await loadIdentity(context);
  throw new McpError(
    'already_paired',
    `this machine is ${JSON.stringify(harmless(name))}, a device of ${serverUrl}, already`,
  );
}

/** The pairing that is about to be replaced; undefined where there is none that opens. */
async function previous(context: CommandContext): Promise<Identity | undefined> {
  return loadIdentity(context).catch((error: unknown) => {
    const { code } = failureOf(error);
    if (code === 'config_unsafe' || code === 'config_newer') throw error;
    return undefined;
  });
}

async function addressFrom({ terminal, env, note }: CommandContext, given: string | undefined): Promise<string> {
  let typed = (given ?? env['SERVICE_HOST'] ?? '').trim();
  if (typed === '' && terminal.interactive) typed = (await terminal.ask('Address of the server: ')).trim();
  if (typed === '') {
    throw new McpError('usage', 'the address of the server is missing', {
      hint: 'Give its address by --host, or set SERVICE_HOST.',
    });
  }
  let url: string;
  try {
    url = serverAddress(typed);
  } catch (cause) {
    const hint = 'It looks like https://sync.example.org';
    throw new McpError('usage', 'that is not the address of a server', { cause, hint });
  }
  if (url.startsWith('http://') && !isLocalHost(new URL(url).hostname)) {
    note(
      'Warning: this address is not https. Your items are encrypted all the same, but others can see when you write.',
    );
  }
  return url;
}

function nameFrom(given: string | undefined): string {
  const name = (given ?? defaultName()).trim();
  if (isDisplayName(name)) return name;
  throw new McpError('usage', `a device name is 1 to ${NAME_MAX} characters, without control characters`);
}

function defaultName(): string {
  const host = harmless(hostname().split('.')[0] ?? '').slice(0, NAME_MAX - ' (agent)'.length);
  return isDisplayName(host) ? `${host} (agent)` : 'agent';
}

/** What a person says to it. Anything but a yes, and nobody to ask, is a no. */
async function passwordsAllowed({ terminal }: CommandContext): Promise<boolean> {
  if (!terminal.interactive) return false;
  terminal.note('What agents read goes to the model that your MCP client uses.');
  const typed = await terminal.ask('May agents read the secrets of your passwords? [y/N] ');
  return ['y', 'yes'].includes(typed.trim().toLowerCase());
}

/** Words with their checksum, checked before anything is sent: a mistyped one must not spend the pairing. */
async function wordsFrom({ terminal, platform }: CommandContext, given: string | undefined): Promise<string> {
  if (given === undefined && !terminal.interactive) {
    const hint = 'Give them by --code "one two three four five six"; at a terminal they are asked for.';
    throw new McpError('usage', 'the six words are missing', { hint });
  }
  for (let tries = 1; ; tries++) {
    const typed = normalizeWords(given ?? (await terminal.ask('The six words that the other device shows: ')));
    try {
      decodeWords(platform.sodium, typed, WORDS);
      return typed;
    } catch (error) {
      if (!(error instanceof CryptoRefusal) || given !== undefined || tries >= TRIES) throw error;
      terminal.note(`${error.message}. Once more.`);
    }
  }
}

/** How the account password is got, where one is set: the file's first line, else the person's, unseen. */
const passwordFrom =
  ({ terminal }: CommandContext, file: string | undefined): AskPassword =>
  async () => {
    if (file === '-') return terminal.readLine(LINE_MAX);
    if (file !== undefined) return passwordIn(file);
    return terminal.interactive ? terminal.ask('Account password: ', true) : null;
  };

/** The first line. A pipe (`<(pass show account)`) is as good as a file; more than a password is not read. */
async function passwordIn(file: string): Promise<string> {
  const chunks: Buffer[] = [];
  try {
    for await (const chunk of createReadStream(file, { end: LINE_MAX - 1 })) chunks.push(chunk as Buffer);
  } catch (cause) {
    throw new McpError('usage', `${file} cannot be read (${errorCode(cause)})`, { cause });
  }
  return firstLineOf(Buffer.concat(chunks).toString('utf8'));
}

/** Joins; a password that was mistyped is asked for again, which spends neither words nor code. */
async function joined(context: CommandContext, request: Omit<JoinRequest, 'onDigits'>): Promise<Identity> {
  const { terminal } = context;
  const waiting = new Waiting(context);
  const onDigits = (digits: string): void => waiting.shown(digits);
  try {
    for (let tries = 1; ; tries++) {
      try {
        return await join({ ...request, onDigits, password: waiting.around(request.password) });
      } catch (error) {
        const mistyped = error instanceof ApiError && error.code === 'password_invalid' && terminal.interactive;
        if (!mistyped || tries >= TRIES) throw error;
        terminal.note('That is not the account password. Once more; the digits will be others.');
      }
    }
  } catch (error) {
    const failure = failureOf(error);
    if (failure.code !== 'interrupted') throw error;
    const hint = `Nothing was kept. If the other device has said yes already, revoke ${JSON.stringify(request.name)} there.`;
    throw new McpError('interrupted', failure.message, { cause: error, hint });
  } finally {
    waiting.end();
  }
}

/** Tells the person what to compare, and how long the other device has left to decide. */
class Waiting {
  private timer: Timer | undefined;
  private readonly until: number;

  constructor(private readonly context: CommandContext) {
    this.until = context.platform.clock.now() + PAIR_SESSION_MS;
  }

  /** The digits of one attempt: another password is another attempt, with other keys and so with other digits. */
  shown(digits: string): void {
    const { terminal } = this.context;
    terminal.note(`Digits: ${digits.slice(0, 3)} ${digits.slice(3)}`);
    terminal.note('The other device must show the same ones. Say yes there; if they differ, say no.');
    if (!terminal.interactive) terminal.note('Waiting for the other device, five minutes at most ...');
    this.tick();
  }

  /** While the password is asked for, nothing else is written. */
  around(ask: AskPassword | undefined): AskPassword {
    return async () => {
      this.end();
      const typed = (await ask?.()) ?? null;
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

/** Keeps the pairing. Where that fails the device that nobody holds is taken out of the list again. */
async function kept(context: CommandContext, pairing: Pairing, keep: typeof savePairing): Promise<void> {
  const { identity } = pairing;
  try {
    const source = await keep(context, pairing);
    if (source !== 'host-name') return;
    context.note(
      'Warning: this machine has no identifier of its own, so the pairing is bound to the names of host and user. ' +
        'In a container, mount /etc/machine-id from the host.',
    );
  } catch (error) {
    const gone = await revokeDevice(context, identity).then(
      () => 'The device that was just made is revoked again.',
      () => `Revoke the device ${JSON.stringify(identity.name)} on another device: nobody holds it.`,
    );
    const { code, message } = failureOf(error);
    throw new McpError(code, `the pairing could not be kept: ${message}`, { cause: error, hint: gone });
  }
}

async function replaced(context: CommandContext, before: Identity): Promise<void> {
  const old = JSON.stringify(harmless(before.name));
  await revokeDevice(context, before).then(
    () => context.note(`The pairing before, ${old}, is revoked.`),
    (error: unknown) =>
      context.note(
        `Warning: the pairing before, ${old} at ${before.serverUrl}, could not be revoked (${failureOf(error).message}). ` +
          'Revoke it on another device.',
      ),
  );
}

/** Revokes a device in its own name. One that is revoked or unknown already is no error. */
export async function revokeDevice({ platform }: Pick<CommandContext, 'platform'>, identity: Identity): Promise<void> {
  const device = await Device.open({ platform, identity, onProblem: () => undefined });
  try {
    await device.revoke(identity.deviceId);
  } catch (error) {
    if (!['revoked', 'unknown_device'].includes(failureOf(error).code)) throw error;
  } finally {
    device.close();
  }
}
