/** Lies about devices and bins. */
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { newId } from '../../support/client.js';
import { next, note } from '../../support/client-world.js';
import type { Lie } from '../lie.js';
import { base64url, type Json } from '../proxy.js';
import type { Stage } from '../stage.js';
import { SLIPS, spy, type Slip } from './slips.js';

const STOPS = 'Writing stops until the device is certified or revoked';
const EVERY = 'Every device, before it seals a key';

/** Bends the device list, has the victim write, and reads the true list again. */
async function listed(stage: Stage, change: (devices: readonly Json[]) => readonly Json[]): Promise<void> {
  stage.liar.answer = ({ path }, truth) =>
    path === '/devices' ? { ...truth, devices: change(truth['devices'] as Json[]) } : undefined;
  // A refresh in progress is shared, and may have begun with the true list.
  await stage.victim.devices.refresh();
  await stage.victim.devices.refresh();
  await stage.fails(stage.victim.put(note('not for spies')));
}

function slipped({ id, does, change }: Slip): Lie {
  return {
    id,
    family: 'devices',
    does,
    notices: EVERY,
    named: ['uncertified', 'throws UncertifiedDeviceError uncertified_device'],
    costs: STOPS,
    play: (stage) => listed(stage, change(stage.identity.deviceId)),
  };
}

export const DEVICE_LIES: readonly Lie[] = [
  ...SLIPS.map(slipped),
  {
    id: 'LIAR-61',
    family: 'devices',
    does: 'gives a device another key under its own id',
    notices: 'The device itself, which trusts only its own key; for the others it is LIAR-60',
    named: [],
    costs: 'Nothing',
    play: async (stage) => {
      const { deviceId, keys } = stage.identity;
      stage.liar.answer = ({ path }, truth) =>
        path === '/devices'
          ? {
              ...truth,
              devices: (truth['devices'] as Json[]).map((device) =>
                device['id'] === deviceId ? { ...device, pubkey: base64url(spy.publicKey) } : device,
              ),
            }
          : undefined;
      await stage.victim.devices.refresh();
      const id = newId();
      stage.note(id, 'mine');
      await stage.victim.put({ ...note('mine'), id });
      const body: Json = stage.liar.calls.findLast(({ path }) => path === '/items')?.body ?? {};
      const sealed = ((body['payloadEnc'] as Json)['keys'] as Json)[deviceId];
      if (nodeSodium.sealOpen(Buffer.from(String(sealed), 'base64url'), keys) === undefined)
        throw new Error('the device sealed its key for another');
    },
  },
  {
    id: 'LIAR-62',
    family: 'devices',
    does: 'un-revokes a device whose revocation this device has seen',
    notices: 'Every device that saw the revocation, in later runs too where it stores the list',
    named: ['uncertified', 'throws UncertifiedDeviceError uncertified_device'],
    costs: 'Writing stops until the device is revoked again: it cannot be certified',
    play: async (stage) => {
      const third = await stage.world.pair('Third');
      stage.others.add(third.device.id);
      const seen = next({ device: stage.victim }, 'devices', ({ devices }) =>
        devices.some(({ id, revokedAt }) => id === third.device.id && revokedAt !== null),
      );
      await stage.owner.revoke(third.device.id);
      await seen;
      await listed(stage, (devices) =>
        devices.map((device) => (device['id'] === third.device.id ? { ...device, revokedAt: null } : device)),
      );
    },
  },
];

/** Bends the list of bins and has the victim read it. */
async function bins(stage: Stage, change: (bins: readonly Json[]) => readonly Json[]): Promise<void> {
  stage.liar.answer = ({ path }, truth) =>
    path === '/bins' ? { ...truth, bins: change(truth['bins'] as Json[]) } : undefined;
  await stage.victim.bins.refresh('changed');
}

/** Two bins with labels, as their user named them. */
async function labelled(stage: Stage): Promise<readonly [string, string]> {
  const ids = [newId(), newId()] as const;
  for (const id of ids) await stage.owner.bins.create(id, { name: `bin ${id}` });
  return ids;
}

export const BIN_LIES: readonly Lie[] = [
  {
    id: 'LIAR-63',
    family: 'bins',
    does: 'forges the label of a bin',
    notices: 'Every device that reads it',
    named: ['bins unreadable'],
    costs: 'The bin is shown without its name',
    play: async (stage) => {
      const [one] = await labelled(stage);
      const meta = base64url(nodeSodium.random(64));
      await bins(stage, (all) => all.map((bin) => (bin['id'] === one ? { ...bin, meta } : bin)));
    },
  },
  {
    id: 'LIAR-64',
    family: 'bins',
    does: 'swaps the labels of two bins',
    notices: 'Every device that reads them',
    named: ['bins unreadable'],
    costs: 'The bins are shown without their names',
    play: async (stage) => {
      const [one, other] = await labelled(stage);
      await bins(stage, (all) => {
        const of = (id: string): unknown => all.find((bin) => bin['id'] === id)?.['meta'];
        return all.map((bin) =>
          bin['id'] === one ? { ...bin, meta: of(other) } : bin['id'] === other ? { ...bin, meta: of(one) } : bin,
        );
      });
    },
  },
  {
    id: 'LIAR-65',
    family: 'bins',
    does: 'hides a bin that has items',
    notices: 'Every device that holds one of the items; nobody if the bin is empty',
    named: ['bins unlisted'],
    costs: 'Nothing: the items stay readable',
    play: (stage) => bins(stage, (all) => all.filter((bin) => bin['id'] !== 'inbox')),
  },
];

export const MISPLACED: Lie = {
  id: 'LIAR-129',
  family: 'bins',
  does: 'puts an item into a bin that the user removes',
  notices: 'Every device that gets the item',
  named: ['quarantined bad_sig'],
  costs: 'The item is hidden until it is read again, and not deleted: no tag puts it into that bin',
  play: async (stage) => {
    const [target] = await stage.victim.list();
    const bin = newId();
    await stage.victim.bins.create(bin, { name: 'to be removed' });
    stage.liar.frame = (frame) => [frame['id'] === target?.id ? { ...frame, binId: bin } : frame];
    await stage.put('in its own bin', target?.id);
    await stage.hears(['quarantined bad_sig']);
    await stage.victim.bins.remove(bin);
  },
};
