/** `devices`, `certify`, `revoke` and `rename`: the devices of the account. */
import type { Identity } from '../../sdk/identity.js';
import type { Platform } from '../../sdk/platform.js';
import type { DeviceEntry } from '../../sdk/replies.js';
import { fingerprintOfDevice } from '../../sdk/device-list.js';
import { isCertified } from '../../crypto/device.js';
import { confirmed } from '../../terminal/ask.js';
import type { Context, DeviceCommand } from '../context.js';
import { findDevice } from '../find.js';
import { readAccountCache } from '../account-cache.js';
import { withLock } from '../profile.js';
import { paletteOf, relative, sanitizeText, show } from '../../terminal/output.js';
import { checkedName } from '../newcomer.js';

/** A device as JSON, with what this device has verified itself. Times are ms. */
const deviceFacts = ({ sodium }: Platform, identity: Identity, device: DeviceEntry) => {
  const { id, name, glyph, online, pairedAt, lastSeenAt, revokedAt, wasRevokedAt, pubkey, cert } = device;
  return {
    ...{ id, name, glyph, thisDevice: id === identity.deviceId, online, pairedAt, lastSeenAt, revokedAt },
    /** Its certificate is valid under the master key, and it was never revoked. */
    certified:
      (wasRevokedAt ?? null) === null && isCertified(sodium, identity.masterKey, { id, publicKey: pubkey, cert }),
    fingerprint: fingerprintOfDevice(sodium, { id, pubkey }),
  };
};

export function registerDevices(program: DeviceCommand): void {
  program
    .command('devices')
    .summary('list the devices of the account')
    .description(
      'Lists the devices. "not certified": no device of yours vouches for it, so nothing is written until you compare its ' +
        'fingerprint with the one it shows itself (`status`) and certify it, or revoke it. One that was revoked before can only ' +
        'be revoked again.',
    )
    .option('--all', 'revoked ones too')
    .examples('devices', 'devices --all --json')
    .does(devices);
  program
    .command('certify <device> <fingerprint...>')
    .summary('vouch for a device after comparing its fingerprint')
    .description(
      'Vouches for a device that the server lists without a certificate. Read the fingerprint on that device itself ' +
        '(`status`), never from this list: the point is that the server could have put another key there.',
    )
    .examples('certify 01J9ZC4 "1f3a 90bc 77d1 02ee 5b6c 8a10 4410 c3d9"')
    .changes(certify);
  program
    .command('revoke <device>')
    .summary("end a device's access; for this one: sign out")
    .description(
      'Ends the access of a device, named by id or name, on every server instance at once. Items written from then on are ' +
        'not sealed for it. It keeps what it has already read. With the id of this device: signs out and forgets.',
    )
    .option('-y, --yes', 'do not ask')
    .examples('revoke Phone', 'revoke 01J9ZC4 --yes')
    .changes(revoke);
  program
    .command('rename <device> <name>')
    .summary('rename a device')
    .description('Renames a device, given by id or name. The server can read it.')
    .examples('rename Phone "Old phone"')
    .changes(rename);
}

async function devices(context: Context, options: { readonly all?: boolean }): Promise<void> {
  const { terminal, platform, profile } = context;
  await context.withDevice(async ({ device, identity, current }) => {
    const entries = current ? await device.devices.refresh() : ((await readAccountCache(profile.folder)).devices ?? []);
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
    sanitizeText(device.glyph),
    ...(thisDevice ? [good('this device')] : [online ? good('online') : seen]),
    ...(revokedAt === null ? [] : [bad(`revoked ${relative(revokedAt, now)}`)]),
    ...(certified ? [] : [bad('not certified')]),
  ];
  return [
    `${bold(sanitizeText(device.name))}  ${marks.join(', ')}`,
    `  ${dim('id')}           ${device.id}`,
    `  ${dim('fingerprint')}  ${device.fingerprint}`,
  ];
}

async function certify({ terminal, withDevice }: Context, typed: string, fingerprint: readonly string[]) {
  await withDevice(async ({ device }) => {
    const { id, name } = findDevice(await device.devices.refresh(), typed);
    await device.devices.certify(id, fingerprint.join(''));
    show(terminal, { id, certified: true }, () => [`Certified: "${sanitizeText(name)}" (${id})`]);
  });
}

async function revoke(context: Context, typed: string, { yes }: { readonly yes?: boolean }): Promise<void> {
  const { terminal, profile } = context;
  const { id, name, own } = await context.withDevice(async ({ device }) => {
    const active = (await device.devices.refresh()).filter(({ revokedAt }) => revokedAt === null);
    const found = findDevice(active, typed);
    const self = found.id === device.id;
    const question = self
      ? `Sign out this device, "${sanitizeText(found.name)}", and forget what is here?`
      : `Revoke "${sanitizeText(found.name)}" (${found.id})? It loses access at once.`;
    await confirmed(terminal, question, yes);
    await device.revoke(found.id);
    return { id: found.id, name: found.name, own: self };
  });
  if (own) await withLock(context, () => profile.forget());
  show(terminal, { id, revoked: true, thisDevice: own }, () => [
    own ? 'Signed out; nothing is left here.' : `Revoked: "${sanitizeText(name)}" (${id})`,
  ]);
}

async function rename({ terminal, profile, withDevice }: Context, typed: string, wanted: string): Promise<void> {
  const name = checkedName('device', wanted);
  await withDevice(async ({ device, identity }) => {
    const { id, name: before } = findDevice(await device.devices.refresh(), typed);
    await device.devices.rename(id, name);
    if (id === device.id) await profile.keep({ ...((await profile.identity()) ?? identity), name });
    show(terminal, { id, name }, () => [`Renamed: "${sanitizeText(before)}" is "${sanitizeText(name)}" now`]);
  });
}
