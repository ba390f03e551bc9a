/** `pair`: shows six words for another device, and asks the user whether the device that knows them may join. */
import { renderUnicodeCompact } from 'uqr';
import { digitsText } from '../../device/newcomer.js';
import { isLocalHost } from '../../protocol/local-host.js';
import { offerText } from '../../sdk/address.js';
import type { JoinApproval, PairingOffer } from '../../sdk/pairing.js';
import { type Context, type DeviceCommand, PROGRAM_NAME } from '../context.js';
import { newcomerOptions, passwordOption, proposeName, type NewcomerOptions } from '../newcomer.js';
import { withCopy } from '../open-device.js';
import { counted, sanitizeText, paletteOf, show } from '../../terminal/output.js';
import { isYes } from '../../terminal/ask.js';
import { CommandError, Declined, EXIT, usageError } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';
import { joinCommand } from './enrol.js';

interface Options extends NewcomerOptions, CommandOptions<'digits', 'yes'> {
  readonly qr: boolean;
  /** True: `--join` without an address. */
  readonly join?: string | true;
}

const DIGITS_INPUT_MAX = 64;

export function registerPair(program: DeviceCommand): void {
  const command = program
    .command('pair')
    .summary('let another device join: shows six words and a QR code')
    .description(
      'Shows six words, good for five minutes and one device. Enter them on the new device (`join`). Then both screens ' +
        'show six digits: say yes only if they are the same and the name is that of your device. ' +
        'Scripts: --yes admits a device only if --digits matches; "--digits -" reads them from standard input.',
    )
    .option('--yes', 'do not ask; only together with --digits')
    .option('--digits <digits>', 'the six digits that the new device shows ("-": read from standard input)')
    .option('--no-qr', 'no QR code')
    .option('--join [url]', 'the other way round: the same as "join"')
    .addHelpText('after', '\n--name, --glyph and --password-file are for --join.')
    .examples('pair', 'pair --join https://sync.example.org')
    .changes(pair);
  passwordOption(newcomerOptions(command));
}

async function pair(context: Context, options: Options): Promise<void> {
  const { terminal } = context;
  if (options.join !== undefined)
    return joinCommand(context, options.join === true ? undefined : options.join, [], options);
  if (options.yes === true && options.digits === undefined) throw usageError('--yes admits no device without --digits');
  if (!terminal.interactive && options.yes !== true)
    throw usageError('there is no terminal to confirm at', 'Pair at a terminal, or give --yes with --digits.');
  await withCopy(context, async ({ device, identity, current }) => {
    if (!current) throw new CommandError(EXIT.unavailable, 'no device can join while the server cannot be reached');
    let name = '';
    let refusal: CommandError | undefined;
    const offer = await device.offerPairing(async (request) => {
      ({ name } = request);
      refusal = await refusalOf(context, options, request);
      return refusal === undefined;
    });
    terminal.interrupted.addEventListener('abort', () => offer.cancel(), { once: true });
    showOffer(context, offer, identity.serverUrl, options.qr);
    // The number of items that are re-wrapped for the new device, or null on a failure, which `sync` repairs.
    const rewrapped = new Promise<number | null>((resolve) => {
      device.on('rewrapped', ({ items }) => resolve(items));
      device.on('problem', () => resolve(null));
      // A device that ends says nothing more.
      device.on('revoked', () => resolve(null));
      terminal.interrupted.addEventListener('abort', () => resolve(null), { once: true });
    });
    const deviceId = await offer.joined.catch((error: unknown) => {
      throw refusal ?? error;
    });
    terminal.progress('Giving it the keys of all items ...');
    const items = await rewrapped;
    terminal.progress('');
    const later = 'Its keys are still being added; `sync` finishes that.';
    const keys = items === null ? later : `${counted(items, 'item')} opened to it.`;
    show(terminal, { event: 'joined', deviceId, name, rewrapped: items }, () => [
      `${paletteOf(terminal).good('Done.')} "${sanitizeText(name)}" is one of your devices. ${keys}`,
    ]);
    proposeName(context, { id: deviceId, name }, await device.devices.list());
  });
}

/** Asks whether the device that knows the words may join. Returns the error of `pair` where it may not. */
async function refusalOf(
  { terminal }: Context,
  { digits: expected, yes }: Options,
  { deviceId, name, glyph, digits }: JoinApproval,
): Promise<CommandError | undefined> {
  terminal.progress('');
  const { bold } = paletteOf(terminal);
  show(terminal, { event: 'request', deviceId, name, glyph, digits }, () => [
    `\nA ${sanitizeText(glyph)} called ${bold(`"${sanitizeText(name)}"`)} knows the words.`,
    `Digits: ${bold(digitsText(digits))}`,
  ]);
  if (expected !== undefined) {
    const given = expected === '-' ? (await terminal.readInput(DIGITS_INPUT_MAX)).toString('utf8') : expected;
    const message = 'the digits are not those of the new device: it was not admitted';
    const hint = 'If you typed them right, somebody may be in between. Start again.';
    if (given.replace(/\s/g, '') !== digits)
      return new CommandError(EXIT.untrusted, message, hint, { code: 'digits_differ' });
    if (yes === true) return undefined;
  }
  if (isYes(await terminal.ask('Is it yours, and does it show the same digits? [y/N] '))) return undefined;
  const said = 'It was not admitted. The six words are used up.';
  return new Declined(said, EXIT.refused, { code: 'pairing_rejected' });
}

function showOffer({ terminal, platform }: Context, offer: PairingOffer, serverUrl: string, qr: boolean): void {
  const text = offerText(serverUrl, offer.words);
  if (terminal.json) return terminal.data({ event: 'offer', words: offer.words, text, expiresAt: offer.expiresAt });
  const { bold, dim } = paletteOf(terminal);
  terminal.print(`On the new device:  ${PROGRAM_NAME} join ${serverUrl}`);
  terminal.print(`Six words:          ${bold(offer.words)}`);
  terminal.print(`Both in one text:   ${dim(text)}`);
  if (qr) for (const line of ['', ...qrLines(text, terminal.colours)]) terminal.print(line);
  const minutes = Math.max(1, Math.round((offer.expiresAt - platform.clock.now()) / 60_000));
  terminal.note(`They are good for one device and ${counted(minutes, 'minute')}. Ctrl-C ends this.`);
  if (isLocalHost(new URL(serverUrl).hostname))
    terminal.note(
      'Only this machine can join at this address. For other machines see "One address for all" in the reference.',
    );
  terminal.progress('Waiting for the new device ...');
}

/**
 * A text as a QR code in half-height blocks. With colours they are dark on light regardless of the terminal's theme;
 * without, they have its foreground, which is assumed to be light.
 */
export const qrLines = (text: string, colours: boolean): string[] =>
  renderUnicodeCompact(text, { border: 2, invert: colours })
    .split('\n')
    .map((line) => (colours ? `\u001b[30;107m${line}\u001b[0m` : line));
