/** `claim`, `join`, `recover` and `forget`: how a profile becomes a device, and how it is removed. */
import { existsSync } from 'node:fs';
import { readOfferText } from '../../sdk/address.js';
import { type NewDevice, prepareClaim, prepareRecovery } from '../../sdk/enrol.js';
import { isUndecided } from '../../sdk/errors.js';
import type { Identity } from '../../sdk/identity.js';
import { join as joinBy } from '../../sdk/pairing.js';
import { decodeWords, normalizeWords } from '../../crypto/words.js';
import { confirmed } from '../../terminal/ask.js';
import { type Context, type DeviceCommand, PROGRAM_NAME } from '../context.js';
import { withBriefDevice } from '../../device/brief-device.js';
import { promptWords, COMPARE_DIGITS, digitsText, retryPassword } from '../../device/newcomer.js';
import { ownName, passwordFrom, retryMistyped, secretFrom, serverFrom } from '../../device/newcomer.js';
import { delay } from '../../protocol/clock.js';
import { PAIR_WORDS, PHRASE_WORDS } from '../../protocol/limits.js';
import { backoffMs, RECONNECT } from '../../sdk/platform.js';
import { failureOf } from '../failure.js';
import { checkedName, newcomerOptions, type NewcomerOptions, passwordOption, proposeName } from '../newcomer.js';
import { noDevice } from '../open-device.js';
import { withLock } from '../profile.js';
import { paletteOf, show } from '../../terminal/output.js';
import { CommandError, EXIT, type Terminal, usageError } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';

type ClaimOptions = NewcomerOptions & CommandOptions<'claimToken', 'showPhrase'>;

const WORDS_A_ROW = 4;

/** Retries of a registration with an unknown outcome: about ten minutes. */
const REGISTER_TRIES = 14;

/**
 * Runs `work` with the SDK's options for a new device, under the profile's lock. Throws `CommandError` for an invalid
 * address or name, and where the profile is a device already, whose identity would be lost.
 */
async function withNewDevice(
  context: Context,
  url: string | undefined,
  options: NewcomerOptions,
  work: (device: NewDevice) => Promise<void>,
): Promise<void> {
  const { terminal, platform, profile } = context;
  const missing = () => usageError('which server?', 'Give its address, or set SERVICE_HOST.');
  const serverUrl = await serverFrom(terminal, url ?? terminal.env['SERVICE_HOST'], missing);
  const name = checkedName('device', options.name ?? ownName('', 'terminal'));
  await withLock(context, async () => {
    const there = await profile.identity();
    if (there === undefined) return work({ platform, serverUrl, name, glyph: options.glyph });
    const message = `profile ${profile.name} is already a device of ${there.serverUrl}`;
    const hint = 'Use another profile (--profile NAME), or forget this one first (`service-device forget`).';
    throw new CommandError(EXIT.refused, message, hint, { code: 'device_here' });
  });
}

/**
 * Registers the device. While it is unknown whether the server has registered it, this retries with the same keys.
 * `hint`: the hint after the last retry, since the registration may have succeeded.
 */
async function registerWithRetries({ terminal, platform }: Context, register: () => Promise<Identity>, hint: string) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await register();
    } catch (error) {
      if (!isUndecided(error) || terminal.interrupted.aborted) throw error;
      const { code, message } = failureOf(error);
      if (attempt >= REGISTER_TRIES) throw new CommandError(EXIT.unavailable, message, hint, { cause: error, code });
      const wait = backoffMs(attempt, RECONNECT, platform.random);
      terminal.note(`No clear answer: ${message}. Trying again in ${Math.ceil(wait / 1000)} s ...`);
      await delay(platform.clock, wait, terminal.interrupted).catch((cause: unknown) => {
        throw new CommandError(EXIT.interrupted, 'interrupted', hint, { cause });
      });
    }
  }
}

async function saveIdentity(
  { terminal, profile }: Context,
  identity: Identity,
  { event, as = 'a device', next }: { readonly event: string; readonly as?: string; readonly next: string },
): Promise<void> {
  await profile.keep(identity);
  terminal.progress('');
  const { serverUrl, deviceId, name } = identity;
  show(terminal, { event, server: serverUrl, deviceId, name, profile: profile.name }, () => [
    `${paletteOf(terminal).good('Done.')} This is "${name}", ${as} of ${serverUrl}.`,
  ]);
  if (!terminal.json) terminal.note(next);
}

export function registerClaim(program: DeviceCommand): void {
  newcomerOptions(program.command('claim [url]'))
    .summary('claim a new server: this becomes its first device')
    .description(
      'Claims a new, empty server (default: SERVICE_HOST). Shows twelve words once: they are the only way back when ' +
        'all your devices are lost. They are stored nowhere, so write them down; you are asked for two of them.',
    )
    .option('--claim-token <token>', 'the token that signup or the operator gave you (or SERVICE_CLAIM_TOKEN)')
    .option('--show-phrase', 'print the words without asking for any; needed where there is no terminal')
    .examples('claim https://sync.example.org --name Laptop', 'claim --json --show-phrase')
    .changes(claim);
}

async function claim(context: Context, url: string | undefined, options: ClaimOptions): Promise<void> {
  const { terminal } = context;
  const unseen = 'the twelve words would be shown where perhaps nobody sees them';
  const instead = 'Claim at a terminal, or add --show-phrase and keep what is printed.';
  if (options.showPhrase !== true && (terminal.json || !terminal.interactive)) throw usageError(unseen, instead);
  await withNewDevice(context, url, options, async (device) => {
    const claimToken = options.claimToken ?? terminal.env['SERVICE_CLAIM_TOKEN'];
    const prepared = await prepareClaim({ ...device, claimToken });
    showPhrase(terminal, prepared.phrase);
    if (options.showPhrase !== true) await askBack(context, prepared.phrase.split(' '));
    const hint = 'It may have gone through: if a new claim is refused, come back with the words (`recover`).';
    const next = `Write something: ${PROGRAM_NAME} put "hello"   Another device: ${PROGRAM_NAME} pair`;
    const said = { event: 'claimed', as: 'the first device', next };
    const register = (): Promise<Identity> => prepared.register().catch(notAdmitted(claimToken));
    await saveIdentity(context, await registerWithRetries(context, register, hint), said);
  });
}

/** For the refusal of a claim token; the words were shown before the server could judge it. */
const notAdmitted =
  (token: string | undefined) =>
  (error: unknown): never => {
    const { code, exitCode } = failureOf(error);
    if (code !== 'forbidden') throw error;
    const why = token === undefined ? 'the server requires a claim token' : 'the claim token is not the right one';
    const hint =
      'Nothing was claimed: throw these words away, the next claim shows others. The token is part of the claim link from ' +
      'signing up (--claim-token), or what the operator set as BOOTSTRAP_TOKEN.';
    throw new CommandError(exitCode, why, hint, { cause: error, code });
  };

/** Called before the registration: an account whose words were never shown could not be recovered. */
function showPhrase(terminal: Terminal, phrase: string): void {
  if (terminal.json) return terminal.data({ event: 'phrase', phrase });
  const { bold, dim } = paletteOf(terminal);
  const words = phrase.split(' ');
  const width = Math.max(...words.map((word) => word.length));
  terminal.print('Your twelve words. Write them down, on paper, and keep them safe. They are shown this once.\n');
  for (let at = 0; at < words.length; at += WORDS_A_ROW) {
    const row = words.slice(at, at + WORDS_A_ROW);
    const cells = row.map((word, step) => `${dim(String(at + step + 1).padStart(2))} ${bold(word.padEnd(width))}`);
    terminal.print(`  ${cells.join('   ').trimEnd()}`);
  }
  terminal.print('');
}

async function askBack({ terminal, platform }: Context, words: readonly string[]): Promise<void> {
  terminal.print('You are asked for two of them now, to check that they are on your paper.');
  const first = Math.floor(platform.random() * words.length);
  const second = (first + 1 + Math.floor(platform.random() * (words.length - 1))) % words.length;
  const other = 'Start again: you will be shown other words.';
  const missing = usageError('the words are not on your paper; nothing was claimed', other);
  for (const number of [first + 1, second + 1]) {
    const attempt = async (): Promise<void> => {
      const typed = await terminal.ask(`Word number ${number}: `);
      if (typed.trim().toLowerCase() !== words[number - 1]) throw missing;
    };
    const wrong = `That is not word number ${number}. Look at your paper.`;
    await retryMistyped(terminal, attempt, (error) => (error === missing ? wrong : undefined));
  }
}

const WORDS_INPUT_MAX = 1_024;

export function registerJoin(program: DeviceCommand): void {
  const command = program
    .command('join [url] [words...]')
    .summary('join from another device: enter the six words that it shows')
    .description(
      'Makes this machine a device of an account that has one already. On the other device run `pair`; it shows six ' +
        'words and a text that holds both the address and the words. Then compare the digits on both screens. ' +
        'Words that are not given are asked for, or read from standard input.',
    )
    .examples(
      'join https://sync.example.org',
      "join 'https://sync.example.org/#pair=one-two-three-four-five-six' --name Desk",
    )
    .changes(joinCommand);
  passwordOption(newcomerOptions(command));
}

/** Also the action of `pair --join`. */
export async function joinCommand(
  context: Context,
  given: string | undefined,
  words: readonly string[],
  options: NewcomerOptions,
): Promise<void> {
  const { terminal } = context;
  const offer = given === undefined ? undefined : readOfferText(given);
  await withNewDevice(context, offer?.url ?? given, options, async (device) => {
    const request = {
      ...device,
      words: offer?.words ?? (words.length > 0 ? words.join(' ') : await wordsOf(context)),
      password: passwordFrom(terminal, options.passwordFile),
      signal: terminal.interrupted,
      onDigits: (digits: string) => showDigits(terminal, digits),
    };
    const identity = await retryPassword(terminal, options.passwordFile, () => joinBy(request));
    await saveIdentity(context, identity, { event: 'joined', next: `See what is there: ${PROGRAM_NAME} list` });
  });
}

const wordsOf = async (context: Context): Promise<string> =>
  context.terminal.interactive
    ? promptWords(context, { count: PAIR_WORDS, question: 'The six words: ', hidden: false })
    : normalizeWords((await context.terminal.readInput(WORDS_INPUT_MAX)).toString('utf8'));

function showDigits(terminal: Terminal, digits: string): void {
  if (terminal.json) return terminal.data({ event: 'digits', digits });
  const { bold } = paletteOf(terminal);
  terminal.print(`Digits: ${bold(digitsText(digits))}`);
  terminal.note(COMPARE_DIGITS);
  terminal.progress('Waiting for the other device ...');
}

type RecoverOptions = NewcomerOptions & CommandOptions<'phraseFile'>;

export function registerRecover(program: DeviceCommand): void {
  passwordOption(newcomerOptions(program.command('recover [url]')))
    .summary('come back with the twelve words, when no device is left')
    .description(
      'Makes this machine a device again with the twelve words shown at `claim`. They are asked for without being shown, ' +
        'checked before anything is sent, and kept nowhere. Devices that are lost stay in the list: revoke them.',
    )
    .option('--phrase-file <path>', 'the twelve words, for scripts ("-": standard input)')
    .examples('recover https://sync.example.org --name "New laptop"')
    .changes(recover);
}

async function recover(context: Context, url: string | undefined, options: RecoverOptions): Promise<void> {
  const { terminal, platform } = context;
  await withNewDevice(context, url, options, async (device) => {
    const phrase = await phraseOf(context, options.phraseFile);
    decodeWords(platform.sodium, phrase, PHRASE_WORDS);
    terminal.progress('Making the keys of your words ...');
    const password = passwordFrom(terminal, options.passwordFile);
    const recovery = await prepareRecovery({ ...device, phrase, password });
    try {
      const hint = 'It may have gone through: look at the device list later, and revoke devices that nobody holds.';
      const register = () => retryPassword(terminal, options.passwordFile, () => recovery.register());
      const identity = await registerWithRetries(context, register, hint);
      const next = `Check the other devices, and revoke lost ones: ${PROGRAM_NAME} devices`;
      await saveIdentity(context, identity, { event: 'recovered', next });
      await proposeOwnName(context, identity);
    } finally {
      recovery.forget();
    }
  });
}

/** As `proposeName`, for this device. It has recovered, whether or not the list can be read. */
async function proposeOwnName(context: Context, identity: Identity): Promise<void> {
  const { deviceId: id, name } = identity;
  const all = await withBriefDevice({ platform: context.platform, identity }, ({ devices }) => devices.list()).catch(
    () => [],
  );
  proposeName(context, { id, name }, all);
}

const phraseOf = (context: Context, file: string | undefined): Promise<string> =>
  file === undefined
    ? promptWords(context, { count: PHRASE_WORDS, question: 'The twelve words: ', hidden: true })
    : secretFrom(context.terminal, file);

export function registerForget(program: DeviceCommand): void {
  program
    .command('forget')
    .summary('remove this profile from this machine')
    .description(
      'Removes identity, keys and local copy from this machine. The server is not notified: the device stays in the list of the ' +
        'others. To sign out, use `revoke` with the id of this device. Changes that were not sent are lost.',
    )
    .option('-y, --yes', 'do not ask')
    .examples('forget --profile old')
    .changes(forget);
}

async function forget(context: Context, { yes }: { readonly yes?: boolean }): Promise<void> {
  const { terminal, profile } = context;
  if (!existsSync(profile.folder)) throw noDevice(profile);
  await confirmed(terminal, `Forget profile ${profile.name}? Without another device only the twelve words help.`, yes);
  await withLock(context, () => profile.forget());
  show(terminal, { profile: profile.name, forgotten: true }, () => [`Forgotten: profile ${profile.name}`]);
}
