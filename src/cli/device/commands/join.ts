/** `join`: this machine becomes a device, by the six words that another one shows. */
import { readOfferText } from '../../../client/address.js';
import { join as joinBy } from '../../../client/pairing.js';
import { normalizeWords } from '../../../crypto/words.js';
import { askedWords, forgiving } from '../../../device/newcomer.js';
import type { Context } from '../context.js';
import { PROGRAM_NAME } from '../names.js';
import {
  expectNobody,
  newcomer,
  newcomerOptions,
  passwordFrom,
  passwordOption,
  type NewcomerOptions,
} from '../newcomer.js';
import { alone } from '../open-device.js';
import { paletteOf } from '../output.js';
import { examples, type Register } from '../run.js';
import type { Terminal } from '../../../device/terminal.js';

const WORDS = 6;
const WORDS_INPUT_MAX = 1_024;

/** `join [url] [words...]`. */
export const registerJoin: Register = (program, run) => {
  passwordOption(newcomerOptions(program.command('join [url] [words...]')))
    .summary('join from another device: enter the six words that it shows')
    .description(
      'Makes this machine a device of an account that has one already. On the other device run `pair`; it shows six ' +
        'words and a text that holds address and words in one. Then compare the digits on both screens. ' +
        'Words that are not given are asked for, or read from standard input.',
    )
    .addHelpText(
      'after',
      examples(
        `${PROGRAM_NAME} join https://sync.example.org`,
        `${PROGRAM_NAME} join 'https://sync.example.org/#pair=one-two-three-four-five-six' --name Desk`,
      ),
    )
    .action(run(joinCommand));
};

/** Also `pair --join`. */
export async function joinCommand(
  context: Context,
  given: string | undefined,
  words: readonly string[],
  options: NewcomerOptions,
): Promise<void> {
  const { terminal, profile } = context;
  const offer = given === undefined ? undefined : readOfferText(given);
  const device = await newcomer(context, offer?.url ?? given, options);
  await alone(context, async () => {
    await expectNobody(context);
    const typed = offer?.words ?? (words.length > 0 ? words.join(' ') : await wordsOf(context));
    const password = passwordFrom(context, options.passwordFile);
    const request = {
      ...device,
      words: typed,
      password,
      signal: terminal.interrupted,
      onDigits: (digits: string) => showDigits(terminal, digits),
    };
    try {
      const identity = await forgiving(context, () => joinBy(request));
      await profile.keep(identity);
      terminal.progress('');
      const { serverUrl, deviceId, name } = identity;
      if (terminal.json) terminal.data({ event: 'joined', server: serverUrl, deviceId, name, profile: profile.name });
      else {
        terminal.print(`${paletteOf(terminal).good('Done.')} This is "${name}", a device of ${serverUrl}.`);
        terminal.note(`See what is there: ${PROGRAM_NAME} list`);
      }
    } finally {
      terminal.progress('');
    }
  });
}

async function wordsOf(context: Context): Promise<string> {
  const { terminal } = context;
  if (terminal.interactive) {
    return askedWords(context, { count: WORDS, question: 'The six words: ', hidden: false });
  }
  return normalizeWords((await terminal.readInput(WORDS_INPUT_MAX)).toString('utf8'));
}

function showDigits(terminal: Terminal, digits: string): void {
  if (terminal.json) {
    terminal.data({ event: 'digits', digits });
    return;
  }
  const { bold } = paletteOf(terminal);
  terminal.print(`Digits: ${bold(`${digits.slice(0, 3)} ${digits.slice(3)}`)}`);
  terminal.note('The other device must show the same ones. Say yes there; if they differ, say no.');
  terminal.progress('Waiting for the other device ...');
}
