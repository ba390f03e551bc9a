/** `devices`: who has keys to everything. */
import { isCertified } from '../../../crypto/device.js';
import type { Identity } from '../../../client/identity.js';
import type { DeviceEntry } from '../../../client/replies.js';
import { fingerprintOfDevice } from '../../../client/roster.js';
import type { Platform } from '../../../client/platform.js';
import type { Context } from '../context.js';
import { readKnown } from '../known.js';
import { PROGRAM_NAME } from '../names.js';
import { harmless, paletteOf, relative, show } from '../output.js';
import { examples, type Register } from '../run.js';

/** A device as its user should see it. Times are ms. */
export interface DeviceFacts {
  readonly id: string;
  readonly name: string;
  readonly glyph: string;
  readonly thisDevice: boolean;
  readonly online: boolean;
  readonly pairedAt: number;
  readonly lastSeenAt: number | null;
  readonly revokedAt: number | null;
  /** A device with the master key vouches for it. */
  readonly certified: boolean;
  readonly fingerprint: string;
}

/** The device list with what this device itself finds out about each. */
export const deviceFacts = (
  { sodium }: Pick<Platform, 'sodium'>,
  identity: Identity,
  devices: readonly DeviceEntry[],
): readonly DeviceFacts[] =>
  devices.map(({ id, name, glyph, online, pairedAt, lastSeenAt, revokedAt, pubkey, cert }) => ({
    ...{ id, name, glyph, thisDevice: id === identity.deviceId, online, pairedAt, lastSeenAt, revokedAt },
    certified: isCertified(sodium, identity.masterKey, { id, publicKey: pubkey, cert }),
    fingerprint: fingerprintOfDevice(sodium, { id, pubkey }),
  }));

/** `devices`. */
export const registerDevices: Register = (program, run) => {
  program
    .command('devices')
    .summary('list the devices of the account')
    .description(
      'Lists the devices. "not certified": no device of yours vouches for it, so nothing is written until you compare its ' +
        'fingerprint with the one it shows itself (`status`) and certify it, or revoke it.',
    )
    .option('--all', 'revoked ones too')
    .addHelpText('after', examples(`${PROGRAM_NAME} devices`, `${PROGRAM_NAME} devices --all --json`))
    .action(run(devices));
};

async function devices(context: Context, options: { readonly all?: boolean }): Promise<void> {
  const { terminal, platform, profile } = context;
  await context.withDevice(async ({ device, identity, current }) => {
    const entries = current ? await device.roster.refresh() : ((await readKnown(profile.folder)).devices ?? []);
    const listed = deviceFacts(platform, identity, entries).filter(
      ({ revokedAt }) => options.all === true || revokedAt === null,
    );
    show(terminal, { devices: listed }, () => listed.flatMap((one) => linesOf(context, one)));
  });
}

function linesOf({ terminal, platform }: Context, device: DeviceFacts): string[] {
  const { bold, dim, good, bad } = paletteOf(terminal);
  const now = platform.clock.now();
  const { online, lastSeenAt, revokedAt, thisDevice, certified } = device;
  const seen = lastSeenAt === null ? 'never seen' : `seen ${relative(lastSeenAt, now)}`;
  const marks = [
    harmless(device.glyph),
    ...(thisDevice ? [good('this device')] : [online ? good('online') : seen]),
    ...(revokedAt === null ? [] : [bad(`revoked ${relative(revokedAt, now)}`)]),
    ...(certified ? [] : [bad('not certified')]),
  ];
  return [
    `${bold(harmless(device.name))}  ${marks.join(', ')}`,
    `  ${dim('id')}           ${device.id}`,
    `  ${dim('fingerprint')}  ${device.fingerprint}`,
  ];
}
