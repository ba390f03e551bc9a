/** `status`: who am I, and how things stand. */
import type { Me } from '../../../client/replies.js';
import { fingerprintOfDevice } from '../../../client/roster.js';
import type { Context } from '../context.js';
import { PROGRAM_NAME } from '../names.js';
import { counted, facts, harmless, paletteOf, show } from '../output.js';
import { examples, type Register } from '../run.js';
import { sizeText } from '../transfer.js';
import { noteHidden } from '../views.js';

/** `status`. */
export const registerStatus: Register = (program, run) => {
  program
    .command('status')
    .summary('who this device is, and how things stand')
    .description('Shows this device, its server, its fingerprint, what is here and what waits to be sent.')
    .addHelpText('after', examples(`${PROGRAM_NAME} status`, `${PROGRAM_NAME} status --json`))
    .action(run(status));
};

async function status(context: Context): Promise<void> {
  const { terminal, platform, profile } = context;
  await context.withDevice(async (open) => {
    const { device, identity, store, current } = open;
    const { deviceId, serverUrl, glyph, tenantId, keys } = identity;
    const me = current ? await device.me() : undefined;
    const pending = (await store.pending()).filter(({ version }) => version === null).length;
    const items = (await device.list()).length;
    const hidden = (await device.hidden()).length;
    const fingerprint = fingerprintOfDevice(platform.sodium, { id: deviceId, pubkey: keys.publicKey });
    const name = me?.device.name ?? identity.name;
    const told = { server: serverUrl, tenantId, deviceId, name, glyph, fingerprint, profile: profile.name };
    const server = me?.server ?? null;
    show(terminal, { ...told, reachable: current, items, hidden, pending, account: server }, () => {
      const { good, bad } = paletteOf(terminal);
      return facts(terminal, [
        ['device', `${harmless(name)} (${glyph})`],
        ['id', deviceId],
        ['fingerprint', fingerprint],
        ['server', `${serverUrl}  ${current ? good('reachable') : bad('out of reach')}`],
        ...(server === null
          ? []
          : ([
              ['account', accountLine(server)],
              ['storage', STORAGE],
            ] as const)),
        ['items here', `${items}${pending === 0 ? '' : `, ${counted(pending, 'change')} waiting to be sent`}`],
        ['profile', `${profile.name}  ${profile.folder}`],
      ]);
    });
    await noteHidden(terminal, open);
  });
}

function accountLine({
  itemCount,
  deviceCount,
  devicesOnline,
  storageUsedBytes,
  storageCapBytes,
}: Me['server']): string {
  const cap = storageCapBytes === 0 ? '' : ` of ${sizeText(storageCapBytes)}`;
  const used = `${sizeText(storageUsedBytes)}${cap}`;
  return `${counted(itemCount, 'item')}, ${counted(deviceCount, 'device')} (${devicesOnline} connected), ${used}`;
}

/** The server's figure is for a while more than what is listed: that is said, or it would look like a fault. */
const STORAGE = 'deleted files, and uploads that were broken off count until the night';
