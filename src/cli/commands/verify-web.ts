/** `verify-web`: does a server serve browsers the web app of this release? */
import type { Context, DeviceCommand } from '../context.js';
import { compareWebApp, readRelease, type Compared } from '../web-check.js';
import { addressOf } from '../../device/newcomer.js';
import { noDevice } from '../open-device.js';
import { counted, paletteOf, sanitizeText, show, table } from '../../terminal/output.js';
import { CommandError, EXIT, type ExitCode } from '../../terminal/terminal.js';

export function registerVerifyWeb(program: DeviceCommand): void {
  program
    .command('verify-web')
    .argument('[url]', 'a server; default: the one of this device')
    .summary('check that the web app of a server is that of this release')
    .description(
      'Compares every file that a server serves to browsers, and what it lets them do, with the release that this program ' +
        'belongs to. Needs no device. Exits with code 6 if something differs.',
    )
    .examples('verify-web', 'verify-web https://sync.example.org --json')
    .does(verifyWeb);
}

const LABELS: Readonly<Record<Compared['found'], string>> = {
  same: 'same',
  differs: 'DIFFERS',
  policy: 'OTHER POLICY',
  missing: 'MISSING',
  extra: 'EXTRA',
};

async function verifyWeb(context: Context, url: string | undefined): Promise<ExitCode> {
  const { terminal, platform } = context;
  const serverUrl = await serverUrlOf(context, url);
  const release = await readRelease();
  if (release === undefined) {
    const hint = 'In a checkout `npm run build` makes them; or install the package @service/cli, which has them.';
    const message = 'this program was installed without the files of the web app: there is nothing to compare with';
    throw new CommandError(EXIT.failure, message, hint, { code: 'no_release' });
  }
  const { version } = release;
  terminal.progress(`Reading ${serverUrl} ...`);
  const app = await compareWebApp(platform, serverUrl, release).finally(() => terminal.progress(''));
  if (app.kind === 'none') {
    const code = 'no_web_app';
    throw new CommandError(EXIT.notFound, 'this server serves no web app', 'WEB_APP is off there.', { code });
  }
  if (app.kind === 'other') {
    const message = `the server runs version ${sanitizeText(app.version)}, and this program belongs to ${version}`;
    const hint = "Run the program of the server's version: only that has its files.";
    throw new CommandError(EXIT.failure, message, hint, { code: 'other_version' });
  }
  const { files, reached } = app;
  const wrong = files.filter(({ found }) => found !== 'same').length;
  show(terminal, { server: serverUrl, version, same: wrong === 0, files, reached }, () => {
    const { good, bad } = paletteOf(terminal);
    const verdict =
      wrong === 0
        ? `${good('The same.')} What ${serverUrl} serves to browsers is version ${version}, ${counted(files.length, 'file')}.`
        : `${bad('Not the same.')} ${counted(wrong, 'file')} of ${files.length} are not those of version ${version}: do not open it in a browser.`;
    const columns = [
      { title: 'FOUND', paint: (word: string) => (word === 'same' ? word : bad(word)) },
      { title: 'FILE' },
    ];
    const rows = files.map(({ path, found }) => [LABELS[found], path]);
    return [
      ...table(terminal, columns, rows),
      reached.length > 0 &&
        `The page may also send to ${sanitizeText(reached.join(', '))}: is that where the server keeps its blobs?`,
      verdict,
    ];
  });
  return wrong === 0 ? EXIT.ok : EXIT.untrusted;
}

/** The server that was named, else that of this profile's device. */
async function serverUrlOf({ profile }: Context, url: string | undefined): Promise<string> {
  if (url !== undefined) return addressOf(url);
  const identity = await profile.identity();
  if (identity === undefined) throw noDevice(profile);
  return identity.serverUrl;
}
