/** `recover`: back in with the twelve words, when no device is left. */
import { prepareRecovery } from '../../../client/enrol.js';
import { decodeWords } from '../../../crypto/words.js';
import { askedWords, forgiving } from '../../../device/newcomer.js';
import type { Context } from '../context.js';
import { PROGRAM_NAME } from '../names.js';
import {
  expectNobody,
  newcomer,
  newcomerOptions,
  passwordFrom,
  passwordOption,
  registered,
  secretFrom,
  type NewcomerOptions,
} from '../newcomer.js';
import { alone } from '../open-device.js';
import { paletteOf } from '../output.js';
import { examples, type Register } from '../run.js';

interface Options extends NewcomerOptions {
  readonly phraseFile?: string;
}

const WORDS = 12;

/** `recover [url]`. */
export const registerRecover: Register = (program, run) => {
  passwordOption(newcomerOptions(program.command('recover [url]')))
    .summary('come back with the twelve words, when no device is left')
    .description(
      'Makes this machine a device again with the twelve words shown at `claim`. They are asked for without being shown, ' +
        'checked before anything is sent, and kept nowhere. Devices that are lost stay in the list: revoke them.',
    )
    .option('--phrase-file <path>', 'the twelve words, for scripts ("-": standard input)')
    .addHelpText('after', examples(`${PROGRAM_NAME} recover https://sync.example.org --name "New laptop"`))
    .action(run(recover));
};

async function recover(context: Context, url: string | undefined, options: Options): Promise<void> {
  const { terminal, profile, platform } = context;
  const device = await newcomer(context, url, options);
  await alone(context, async () => {
    await expectNobody(context);
    const phrase = await phraseOf(context, options.phraseFile);
    decodeWords(platform.sodium, phrase, WORDS);
    terminal.progress('Making the keys of your words ...');
    const password = passwordFrom(context, options.passwordFile);
    const recovery = await prepareRecovery({ ...device, phrase, password });
    try {
      const stands = 'It may have gone through: look at the device list later, and revoke what nobody holds.';
      const identity = await registered(context, () => forgiving(context, () => recovery.register()), stands);
      await profile.keep(identity);
      const { serverUrl, deviceId, name } = identity;
      if (terminal.json)
        terminal.data({ event: 'recovered', server: serverUrl, deviceId, name, profile: profile.name });
      else {
        terminal.print(`${paletteOf(terminal).good('Done.')} This is "${name}", a device of ${serverUrl}.`);
        terminal.note(`Look who else is a device, and revoke what is lost: ${PROGRAM_NAME} devices`);
      }
    } finally {
      recovery.forget();
      terminal.progress('');
    }
  });
}

const phraseOf = (context: Context, file: string | undefined): Promise<string> =>
  file === undefined
    ? askedWords(context, { count: WORDS, question: 'The twelve words: ', hidden: true })
    : secretFrom(context.terminal, file);
