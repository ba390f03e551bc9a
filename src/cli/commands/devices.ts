/** The devices of the account: who has keys to everything. */
import type { Identity } from '../../sdk/identity.js';
import type { Platform } from '../../sdk/platform.js';
import type { DeviceEntry } from '../../sdk/replies.js';
import { fingerprintOfDevice } from '../../sdk/device-list.js';
import { isCertified } from '../../crypto/device.js';
import { isDisplayName } from '../../protocol/ids.js';
import { confirmed } from '../../terminal/confirm.js';
import type { DeviceCommand } from '../command.js';
import type { Context } from '../context.js';
import { findDevice } from '../find.js';
import { readKnown } from '../known.js';
import { alone } from '../open-device.js';
import { harmless, paletteOf, relative, show } from '../../terminal/output.js';
import { CommandError, EXIT } from '../../terminal/terminal.js';

/** A device as its user should see it, with what this device itself finds out about it. Times are ms. */
const deviceFacts = ({ sodium }: Platform, identity: Identity, device: DeviceEntry) => {
  const { id, name, glyph, online, pairedAt, lastSeenAt, revokedAt, pubkey, cert } = device;
  return {
    ...{ id, name, glyph, thisDevice: id === identity.deviceId, online, pairedAt, lastSeenAt, revokedAt },
    /** A device with the master key vouches for it. */
    certified: isCertified(sodium, identity.masterKey, { id, publicKey: pubkey, cert }),
    fingerprint: fingerprintOfDevice(sodium, { id, pubkey }),
  };
};

/** `devices`. */
export function registerDevices(program: DeviceCommand): void {
  program
    .command('devices')
    .summary('list the devices of the account')
    .description(
      'Lists the devices. "not certified": no device of yours vouches for it, so nothing is written until you compare its ' +
        'fingerprint with the one it shows itself (`status`) and certify it, or revoke it.',
    )
    .option('--all', 'revoked ones too')
    .examples('devices', 'devices --all --json')
    .does(devices);
}

async function devices(context: Context, options: { readonly all?: boolean }): Promise<void> {
  const { terminal, platform, profile } = context;
  await context.withDevice(async ({ device, identity, current }) => {
    const entries = current ? await device.roster.refresh() : ((await readKnown(profile.folder)).devices ?? []);
    const listed = entries
      .filter(({ revokedAt }) => options.all === true || revokedAt === null)
      .map((entry) => deviceFacts(platform, identity, entry));
    show(terminal, { devices: listed }, () => listed.flatMap((one) => linesOf(context, one)));
  });
}

function linesOf({ terminal, platform }: Context, device: ReturnType<typeof deviceFacts>): string[] {
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

/** `certify <id> <fingerprint...>`. */
export function registerCertify(program: DeviceCommand): void {
  program
    .command('certify <id> <fingerprint...>')
    .summary('vouch for a device after comparing its fingerprint')
    .description(
      'Vouches for a device that the server lists without a certificate. Read the fingerprint on that device itself ' +
        '(`status`), never from this list: the point is that the server could have put another key there.',
    )
    .examples('certify 01J9ZC4 "1f3a 90bc 77d1 02ee 5b6c 8a10 4410 c3d9"')
    .does(certify);
}

async function certify(context: Context, typed: string, fingerprint: readonly string[]): Promise<void> {
  await context.withDevice(async ({ device }) => {
    const { id, name } = findDevice(await device.roster.refresh(), typed);
    await device.roster.certify(id, fingerprint.join(''));
    show(context.terminal, { id, certified: true }, () => [`Certified: "${harmless(name)}" (${id})`]);
  });
}

/** `revoke <id>`. */
export function registerRevoke(program: DeviceCommand): void {
  program
    .command('revoke <id>')
    .summary("end a device's access; of this one: sign out")
    .description(
      'Ends the access of a device, named by id or name, on every server instance at once. Items written from then on are ' +
        'not sealed for it. What it has read already it has read. With the id of this device: signs out and forgets.',
    )
    .option('-y, --yes', 'do not ask')
    .examples('revoke Phone', 'revoke 01J9ZC4 --yes')
    .does(revoke);
}

async function revoke(context: Context, typed: string, { yes }: { readonly yes?: boolean }): Promise<void> {
  const { terminal, profile } = context;
  const { id, name, own } = await context.withDevice(async ({ device }) => {
    const active = (await device.roster.refresh()).filter(({ revokedAt }) => revokedAt === null);
    const found = findDevice(active, typed);
    const self = found.id === device.id;
    const question = self
      ? `Sign out this device, "${harmless(found.name)}", and forget what is here?`
      : `Revoke "${harmless(found.name)}" (${found.id})? It loses access at once.`;
    await confirmed(terminal, question, yes);
    await device.revoke(found.id);
    return { id: found.id, name: found.name, own: self };
  });
  if (own) await alone(context, () => profile.forget());
  show(terminal, { id, revoked: true, thisDevice: own }, () => [
    own ? 'Signed out; nothing is left here.' : `Revoked: "${harmless(name)}" (${id})`,
  ]);
}

/** `rename <id> <name>`. */
export function registerRename(program: DeviceCommand): void {
  program
    .command('rename <id> <name>')
    .summary('give a device another name')
    .description('Gives a device, named by id or name, another name. The server can read it.')
    .examples('rename Phone "Old phone"')
    .does(rename);
}

async function rename(context: Context, typed: string, wanted: string): Promise<void> {
  const { terminal, profile } = context;
  const name = wanted.trim();
  if (!isDisplayName(name)) {
    throw new CommandError(
      EXIT.usage,
      'a device name is 1 to 64 characters, something to see among them, and no control characters',
    );
  }
  await context.withDevice(async ({ device, identity }) => {
    const { id, name: before } = findDevice(await device.roster.refresh(), typed);
    await device.roster.rename(id, name);
    if (id === device.id) await profile.keep({ ...((await profile.identity()) ?? identity), name });
    show(terminal, { id, name }, () => [`Renamed: "${harmless(before)}" is "${harmless(name)}" now`]);
  });
}
