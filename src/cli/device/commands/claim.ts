/** `claim`: the first device of a new server, and the twelve words. */
import { prepareClaim } from '../../../client/enrol.js';
import { PROGRAM_NAME } from '../names.js';
import type { Context } from '../context.js';
import { expectNobody, newcomer, newcomerOptions, registered, type NewcomerOptions } from '../newcomer.js';
import { alone } from '../open-device.js';
import { paletteOf } from '../output.js';
import { examples, type Register } from '../run.js';
import { CommandError, EXIT, type Terminal } from '../../../device/terminal.js';

interface Options extends NewcomerOptions {
  readonly claimToken?: string;
  readonly showPhrase?: boolean;
}

/** How often a word is asked back. */
const TRIES = 3;
const WORDS_A_ROW = 4;

/** `claim [url]`. */
export const registerClaim: Register = (program, run) => {
  newcomerOptions(program.command('claim [url]'))
    .summary('claim a new server: this becomes its first device')
    .description(
      'Claims a new, empty server (default: SERVICE_HOST). Shows twelve words once: they are the only way back when ' +
        'all your devices are lost. They are stored nowhere, so write them down; two of them are asked back.',
    )
    .option('--claim-token <token>', 'what signup or the operator gave you (or SERVICE_CLAIM_TOKEN)')
    .option('--show-phrase', 'print the words without asking any back; needed where nobody can be asked')
    .addHelpText(
      'after',
      examples(
        `${PROGRAM_NAME} claim https://sync.example.org --name Laptop`,
        `${PROGRAM_NAME} claim --json --show-phrase`,
      ),
    )
    .action(run(claim));
};

async function claim(context: Context, url: string | undefined, options: Options): Promise<void> {
  const { terminal, profile } = context;
  if (options.showPhrase !== true && (terminal.json || !terminal.interactive)) {
    throw new CommandError(
      EXIT.usage,
      'the twelve words would be shown where nobody may be looking',
      'Claim at a terminal; or say --show-phrase, and keep what is printed.',
    );
  }
  const device = await newcomer(context, url, options);
  await alone(context, async () => {
    await expectNobody(context);
    const claimToken = options.claimToken ?? terminal.env['SERVICE_CLAIM_TOKEN'];
    const prepared = await prepareClaim({ ...device, ...(claimToken === undefined ? {} : { claimToken }) });
    showPhrase(terminal, prepared.phrase);
    if (options.showPhrase !== true) await askBack(context, prepared.phrase.split(' '));
    const stands = 'It may have gone through: if a new claim is refused, come back with the words (`recover`).';
    const identity = await registered(context, () => prepared.register(), stands);
    await profile.keep(identity);
    const { serverUrl, deviceId, name } = identity;
    if (terminal.json) terminal.data({ event: 'claimed', server: serverUrl, deviceId, name, profile: profile.name });
    else {
      terminal.print(`${paletteOf(terminal).good('Done.')} This is "${name}", the first device of ${serverUrl}.`);
      terminal.note(`Write something: ${PROGRAM_NAME} put "hello"   Another device: ${PROGRAM_NAME} pair`);
    }
  });
}

/** Before anything is registered: a claim whose words nobody has seen could never be come back to. */
function showPhrase(terminal: Terminal, phrase: string): void {
  if (terminal.json) {
    terminal.data({ event: 'phrase', phrase });
    return;
  }
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
  terminal.print('Two of them are asked back now, so that you know they are on your paper.');
  const first = Math.floor(platform.random() * words.length);
  const second = (first + 1 + Math.floor(platform.random() * (words.length - 1))) % words.length;
  for (const number of [first + 1, second + 1]) {
    for (let tries = 1; ; tries++) {
      const typed = await terminal.ask(`Word number ${number}: `);
      if (typed.trim().toLowerCase() === words[number - 1]) break;
      if (tries >= TRIES) {
        throw new CommandError(
          EXIT.usage,
          'the words are not on your paper; nothing was claimed',
          'Begin again: you will be shown other words.',
        );
      }
      terminal.note(`That is not word number ${number}. Look at your paper.`);
    }
  }
}
