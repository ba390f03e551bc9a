/** `service-load devices`: adds devices to the tenant of a server, for `--device-list`. */
import { toBase64Url } from '../../protocol/base64.js';
import { PublicApi } from '../../sdk/api.js';
import { prepareClaim, recover } from '../../sdk/enrol.js';
import { Http } from '../../sdk/http.js';
import type { SavableIdentity } from '../../sdk/identity.js';
import { nodePlatform } from '../../sdk/node-platform.js';
import type { Platform } from '../../sdk/platform.js';
import { NewFile } from '../../terminal/new-file.js';
import { counted, show } from '../../terminal/output.js';
import { usageError } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';
import type { LoadCommand, LoadContext } from '../context.js';
import { confirmedUrl, numberOf } from '../options.js';

type DevicesOptions = Record<'url' | 'count' | 'out', string> & CommandOptions<'confirm', 'force'>;

export function registerDevices(program: LoadCommand): void {
  program
    .command('devices')
    .summary('add devices to the tenant of a server, for --device-list')
    .description(
      'Add devices to the tenant of a server, with the twelve words in the variable LOAD_PHRASE; an unclaimed server is ' +
        'claimed, and the words are printed. The file holds keys and tokens: anyone who has it can read everything',
    )
    .requiredOption('--url <url>', 'the server')
    .option('--confirm <host>', 'its host name again, if it is not this machine')
    .option('--count <count>', 'devices', '5')
    .option('--out <file>', 'the list', 'devices.json')
    .option('--force', 'replace it')
    .examples('devices --url http://localhost:8080 --count 5')
    .changes(devices);
}

async function devices({ terminal }: LoadContext, options: DevicesOptions): Promise<void> {
  const serverUrl = await confirmedUrl(terminal, options.url, options.confirm);
  const wanted = numberOf('count', options.count);
  const file = await NewFile.create(options.out, options.force === true);
  const platform = await nodePlatform();
  const made: SavableIdentity[] = [];
  try {
    let phrase = terminal.env['LOAD_PHRASE'] ?? '';
    if (phrase === '') {
      await requireUnclaimed(platform, serverUrl);
      const claimToken = terminal.env['BOOTSTRAP_TOKEN'] || undefined;
      const claim = await prepareClaim({ ...newDevice(platform, serverUrl, 1), claimToken });
      phrase = claim.phrase;
      // Before the claim: after a crash in between, nobody would have the words that own the server.
      show(terminal, { phrase }, () => [phrase]);
      terminal.note('These twelve words own the server from now on. Write them down.');
      made.push(await claim.register());
    }
    while (made.length < wanted && !terminal.interrupted.aborted) {
      terminal.progress(
        `${made.length} of ${wanted}; a server admits five per minute, unless RATE_PAIR_PER_MIN allows more`,
      );
      made.push(await recover({ ...newDevice(platform, serverUrl, made.length + 1), phrase }));
    }
  } finally {
    terminal.progress('');
    // Also after an interruption or a failure, since these devices exist on the server.
    if (made.length === 0) await file.abandon();
    else {
      await file.write(Buffer.from(`${JSON.stringify(listOf(made), null, 1)}\n`));
      await file.finish();
    }
  }
  terminal.note(`${options.out} has ${counted(made.length, 'device')}. When done: revoke them, and remove the file.`);
}

const newDevice = (platform: Platform, serverUrl: string, number: number) =>
  ({ platform, serverUrl, name: `Load ${number}`, glyph: 'laptop' }) as const;

async function requireUnclaimed(platform: Platform, baseUrl: string): Promise<void> {
  const http = new Http({ ...platform, baseUrl });
  const { claimed } = await new PublicApi((request) => http.send(request)).status();
  if (!claimed) return;
  throw usageError(
    'this server is claimed: its twelve words are needed',
    'Set LOAD_PHRASE to them. They give access to everything of that tenant: use a test server.',
  );
}

/** The list as JSON, which `readDeviceList` reads. */
const listOf = (identities: readonly SavableIdentity[]) => ({
  format: 'service-load-devices',
  version: 1,
  tenants: [
    {
      host: null,
      masterKey: toBase64Url(identities[0]?.masterKey ?? new Uint8Array()),
      devices: identities.map(({ deviceId: id, token, keys }) => {
        return { id, token: token.text, publicKey: toBase64Url(keys.publicKey) };
      }),
    },
  ],
});
