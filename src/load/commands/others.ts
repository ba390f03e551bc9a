/** `service-load agent`, `devices` and `clean`. */
import { availableParallelism } from 'node:os';
import { toBase64Url } from '../../protocol/base64.js';
import { prepareClaim, recover } from '../../sdk/enrol.js';
import { PublicApi } from '../../sdk/api.js';
import { Http } from '../../sdk/http.js';
import type { SavableIdentity } from '../../sdk/identity.js';
import { nodePlatform } from '../../sdk/node-platform.js';
import type { Platform } from '../../sdk/platform.js';
import { NewFile } from '../../terminal/new-file.js';
import { counted } from '../../terminal/output.js';
import { type Terminal, usageError } from '../../terminal/terminal.js';
import { Cleaner } from '../cleaning.js';
import { PREFIX, readDeviceList, removeTenant, testTenants } from '../fleet.js';
import { accessOf, confirmedUrl, endOf, nameOf, numberOf, secretOf, sharedSecret } from '../options.js';
import type { LoadCommand, LoadContext, Texts } from '../context.js';
import { serveAsAgent } from '../remote-crew.js';
import { withTarget, type Target } from '../target.js';

type AgentOptions = Texts<'join' | 'url', 'confirm' | 'secretFile' | 'deviceList' | 'adminTokenFile' | 'processes'>;

export function registerAgent(program: LoadCommand): void {
  program
    .command('agent')
    .summary('load from this machine, on orders of a coordinator')
    .description('Join a run of several machines; exits when it ends')
    .requiredOption('--join <host:port>', 'the coordinator: service-load run --agents')
    .requiredOption('--url <url>', 'the same server as the coordinator: no other is loaded')
    .option('--confirm <host>', 'its host name again, if it is not this machine')
    .option('--secret-file <file>', 'instead of LOAD_SECRET in the environment')
    .option('--device-list <file>', 'the same file on every machine')
    .option('--admin-token-file <file>', 'instead of ADMIN_TOKEN in the environment')
    .option('--processes <count>', 'default: one for each core')
    .examples('agent --join 10.0.0.5:7070 --url https://sync.example.org --confirm sync.example.org')
    .does(agent);
}

async function agent({ terminal }: LoadContext, options: AgentOptions): Promise<void> {
  const url = await confirmedUrl(terminal, options.url, options.confirm);
  const secret = await sharedSecret(terminal, options.secretFile);
  const access = await accessOf(terminal, options);
  const processes = numberOf('processes', options.processes ?? String(availableParallelism()));
  const onNote = (text: string): void => terminal.note(text);
  const signal = terminal.interrupted;
  await serveAsAgent({ ...endOf('join', options.join), url, secret, access, processes, signal, onNote });
  terminal.note('The run is over.');
}

type DevicesOptions = Texts<'url' | 'count' | 'out', 'confirm'> & { readonly force?: true };

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
    .does(devices);
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
      const claim = await prepareClaim({ ...newcomer(platform, serverUrl, 1), claimToken });
      phrase = claim.phrase;
      // Before the claim: after a crash in between, nobody would have the words that own the server.
      terminal.print(phrase);
      terminal.note('These twelve words own the server from now on. Write them down.');
      made.push(await claim.register());
    }
    while (made.length < wanted && !terminal.interrupted.aborted) {
      terminal.progress(
        `${made.length} of ${wanted}; a server admits five per minute, unless RATE_PAIR_PER_MIN allows more`,
      );
      made.push(await recover({ ...newcomer(platform, serverUrl, made.length + 1), phrase }));
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

const newcomer = (platform: Platform, serverUrl: string, number: number) =>
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

type CleanOptions = Texts<'url', 'confirm' | 'name' | 'deviceList' | 'adminTokenFile'>;

export function registerClean(program: LoadCommand): void {
  program
    .command('clean')
    .summary('remove what a killed run has left')
    .description('Remove test tenants (with ADMIN_TOKEN), or the bin of a run and its items (with --device-list)')
    .requiredOption('--url <url>', 'the server')
    .option('--confirm <host>', 'its host name again, if it is not this machine')
    .option('--name <name>', 'of this run only; required with --device-list, else default: all runs')
    .option('--device-list <file>', 'the devices of the run')
    .option('--admin-token-file <file>', 'instead of ADMIN_TOKEN in the environment')
    .examples('clean --url http://localhost:8080')
    .does(clean);
}

async function clean({ terminal }: LoadContext, options: CleanOptions): Promise<void> {
  const url = await confirmedUrl(terminal, options.url, options.confirm);
  const ofTenants = options.deviceList === undefined;
  const cleanAll = ofTenants ? cleanTenants : cleanBins;
  const removed = await withTarget(url, (target) => cleanAll(terminal, options, target)).finally(() =>
    terminal.progress(''),
  );
  if (terminal.json) terminal.data({ removed });
  else terminal.print(`Removed ${counted(removed, ofTenants ? 'tenant' : 'bin')}.`);
}

async function cleanTenants(terminal: Terminal, options: CleanOptions, target: Target): Promise<number> {
  const adminToken = (await secretOf(terminal, options.adminTokenFile, 'ADMIN_TOKEN')) ?? '';
  const slugs = await testTenants(target, adminToken, options.name === undefined ? PREFIX : `${nameOf(options.name)}-`);
  for (const slug of slugs) {
    terminal.progress(`Removing ${slug}`);
    await removeTenant(target, slug, adminToken);
  }
  return slugs.length;
}

/** The tenants belong to their users: another bin whose name begins like that of a run may be theirs. */
async function cleanBins(terminal: Terminal, options: CleanOptions, target: Target): Promise<number> {
  if (options.name === undefined)
    throw usageError('--device-list requires --name: only the bin of that run is removed.');
  const name = nameOf(options.name);
  const { deviceList = '' } = await accessOf(terminal, options);
  const { sodium } = await nodePlatform();
  let removed = 0;
  for (const tenant of readDeviceList(sodium, deviceList, { plan: { name }, share: { part: 0, parts: 1 } }).own) {
    const cleaner = new Cleaner({ sodium, target, tenant });
    if (!(await cleaner.has(name))) continue;
    await cleaner.removeBin(name);
    removed++;
  }
  return removed;
}
