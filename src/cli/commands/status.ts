/** `status`: this device and its account. `sync`: send, read, compare, and add the keys of new devices. */
import type { Device } from '../../sdk/device.js';
import type { DeviceEvents } from '../../sdk/events.js';
import type { Me } from '../../sdk/replies.js';
import { type Context, type DeviceCommand, PROGRAM_NAME } from '../context.js';
import { counted, facts, sanitizeText, paletteOf, show } from '../../terminal/output.js';
import { CommandError, EXIT } from '../../terminal/terminal.js';
import { within } from '../../protocol/clock.js';
import { sizeText } from '../transfer.js';
import { noteHidden } from '../views.js';

export function registerStatus(program: DeviceCommand): void {
  program
    .command('status')
    .summary('show this device and its state')
    .description('Shows this device, its server, its fingerprint, what is here and what waits to be sent.')
    .examples('status', 'status --json')
    .does(status);
  program
    .command('sync')
    .summary('send, read and compare with the server')
    .description(
      'Sends what waits, reads what is new, and compares with what the server counts. Gives devices that joined the keys they ' +
        'still lack. Exits with code 6 if items are missing.',
    )
    .option('--full', 'read everything again, not only what is new')
    .examples('sync', 'sync --full')
    .changes(sync);
}

async function status({ terminal, profile, withDevice }: Context): Promise<void> {
  await withDevice(async (open) => {
    const { device, identity, current } = open;
    const { deviceId, serverUrl, glyph, tenantId } = identity;
    const me = current ? await device.me() : undefined;
    const pending = device.waiting().waiting;
    const items = (await device.list()).length;
    const hidden = (await device.hidden()).length;
    const { fingerprint } = device;
    const name = me?.device.name ?? identity.name;
    const known = { server: serverUrl, tenantId, deviceId, name, glyph, fingerprint, profile: profile.name };
    const server = me?.server ?? null;
    show(terminal, { ...known, reachable: current, items, hidden, pending, account: server }, () => {
      const { good, bad } = paletteOf(terminal);
      return facts(terminal, [
        ['device', `${sanitizeText(name)} (${glyph})`],
        ['id', deviceId],
        ['fingerprint', fingerprint],
        ['server', `${serverUrl}  ${current ? good('reachable') : bad('out of reach')}`],
        ...(server === null ? [] : [['account', accountLine(server)] as const, ['storage', STORAGE] as const]),
        ['items here', `${items}${pending === 0 ? '' : `, ${counted(pending, 'change')} waiting to be sent`}`],
        ['profile', `${profile.name}  ${profile.folder}`],
      ]);
    });
    await noteHidden(terminal, open);
  });
}

function accountLine(server: Me['server']): string {
  const { itemCount, deviceCount, devicesOnline, storageUsedBytes: used, storageCapBytes: cap } = server;
  const devices = `${counted(deviceCount, 'device')} (${devicesOnline} connected)`;
  return `${counted(itemCount, 'item')}, ${devices}, ${sizeText(used)}${cap === 0 ? '' : ` of ${sizeText(cap)}`}`;
}

/** The server's figure is temporarily larger than the sum of what is listed, which would look like a fault. */
const STORAGE = 'deleted files and interrupted uploads count until a nightly clean-up of the server';

/** Time-out for connecting and receiving what was missed. */
const CONNECT_MS = 60_000;

async function sync(context: Context, { full }: { readonly full?: boolean }): Promise<void> {
  const { terminal } = context;
  await context.withDevice(async (open) => {
    const { device, current } = open;
    if (!current) {
      const { waiting } = device.waiting();
      const kept = waiting === 0 ? '' : ` ${counted(waiting, 'change')} stay here until it is back.`;
      throw new CommandError(EXIT.unavailable, `the server cannot be reached.${kept}`, undefined, { code: 'network' });
    }
    let missing: DeviceEvents['missing'] | undefined;
    device.on('missing', (event) => (missing = event));
    if (full === true) await device.resync();
    terminal.progress('Comparing with the server ...');
    await connect(context, device);
    terminal.progress('Adding keys of new devices ...');
    const rewrapped = await device.rewrap();
    terminal.progress('');
    if (missing !== undefined) throw incompleteError(missing);
    const items = (await device.list()).length;
    const pending = device.waiting().waiting;
    show(terminal, { items, pending, rewrapped, complete: true }, () => [
      `${paletteOf(terminal).good('Up to date.')} ${counted(items, 'item')}, nothing missing.` +
        (rewrapped === 0 ? '' : ` Keys added to ${counted(rewrapped, 'item')}.`) +
        (pending === 0 ? '' : ` ${counted(pending, 'change')} still waiting to be sent.`),
    ]);
    await noteHidden(terminal, open);
  });
}

/** Connects, with a time-out: a proxy may pass requests and block WebSockets. */
async function connect({ terminal, platform }: Context, device: Device): Promise<void> {
  const connecting = device.connect().then(() => true);
  const isConnected = await within(platform.clock, CONNECT_MS, connecting, false).finally(() => terminal.progress(''));
  if (isConnected) return;
  const message = 'the server answers, but no live connection to it can be made, so nothing can be compared';
  const hint = `\`${PROGRAM_NAME} doctor\` finds out why.`;
  throw new CommandError(EXIT.unavailable, message, hint, { code: 'no_stream' });
}

function incompleteError({ expected, held, unlisted }: DeviceEvents['missing']): CommandError {
  const message =
    `the server counts ${counted(expected.itemCount, 'item')} and ${held.itemCount} can be read from it` +
    (unlisted.length === 0 ? '' : `; it no longer lists ${unlisted.length} that were here`);
  return new CommandError(EXIT.untrusted, message, `\`${PROGRAM_NAME} doctor\` says more.`, { code: 'incomplete' });
}
