/** Lies about the order, the number and the age of changes. */
import { newId } from '../../support/client.js';
import { next, shows } from '../../support/client-world.js';
import type { Lie } from '../lie.js';
import { base64url, rows, type Json } from '../proxy.js';
import type { Stage } from '../stage.js';
import { counts, frameOf, hide, isCaughtUp, isDelete, retold, versionOf } from './history.js';
import { isItem } from './items.js';

/** An item that the victim shows. */
async function target({ victim }: Stage): Promise<string> {
  const [item] = await victim.list();
  if (item === undefined) throw new Error('the victim shows nothing');
  return item.id;
}

/** Writes an item again and waits for the victim to show it; returns its earlier state as a frame. */
async function outdated(stage: Stage, id: string): Promise<Json> {
  const old = frameOf(stage, id);
  const { version } = await stage.put('the newer content', id);
  await shows({ device: stage.victim }, id, (item) => item.version === version);
  return old;
}

/** Cuts the line: the next `caught_up` comes over a new connection. */
const again = ({ liar }: Stage): void => liar.cut();

/** A delete made by the server in place of an edit. */
async function deletes(stage: Stage, sig: unknown): Promise<void> {
  const id = await target(stage);
  stage.liar.frame = (frame) =>
    isItem(frame) && frame['id'] === id ? [{ type: 'delete', id, version: frame['version'], sig }] : [frame];
  await stage.put('the server says this was deleted', id);
}

/** An item that the user deleted, whose delete the victim has seen: its id, its last frame, and that of the delete. */
export async function deletedOne(
  stage: Stage,
): Promise<{ readonly id: string; readonly old: Json; readonly gone: Json }> {
  const { id } = await stage.put('to be deleted');
  await shows({ device: stage.victim }, id);
  const old = frameOf(stage, id);
  const deleted = next({ device: stage.victim }, 'delete', (event) => event.id === id);
  await stage.remove(id);
  await deleted;
  const gone = stage.liar.frames.findLast((one) => isDelete(one) && one['id'] === id);
  if (gone === undefined) throw new Error('no frame of its delete came');
  return { id, old, gone };
}

const lie = (number: number, told: Omit<Lie, 'id' | 'family'>): Lie => ({
  id: `LIAR-${number}`,
  family: 'stream',
  ...told,
});

const HOLDERS = 'Every device that held the item';
const AFTER = 'Every device, at the next `caught_up`';
const LISTING = 'Every device that reads the listing';
const DELETED = 'The item leaves the list; its last content is kept';
const NOTHING = 'Nothing';
const DELAY = 'Delay: the device reconnects';

const DELETES: readonly Lie[] = [
  lie(20, {
    does: 'drops the key of one device and leaves the master wrap',
    notices: 'Nobody needs to',
    named: [],
    costs: 'Nothing: the item opens through its master wrap',
    play: async (stage) => {
      const { deviceId } = stage.identity;
      stage.liar.frame = (frame) => {
        if (!isItem(frame)) return [frame];
        const seal = frame['payloadEnc'] as Json;
        const keys = Object.fromEntries(Object.entries(seal['keys'] as Json).filter(([id]) => id !== deviceId));
        return [{ ...frame, payloadEnc: { ...seal, keys } }];
      };
      await shows({ device: stage.victim }, (await stage.put('without a key of its own')).id);
    },
  }),
  lie(21, {
    does: 'deletes an item without a tag',
    notices: HOLDERS,
    named: ['untagged_delete no_sig'],
    costs: DELETED,
    play: (stage) => deletes(stage, undefined),
  }),
  lie(22, {
    does: 'deletes an item with an invented tag',
    notices: HOLDERS,
    named: ['untagged_delete bad_sig'],
    costs: DELETED,
    play: (stage) => deletes(stage, base64url(Buffer.alloc(32))),
  }),
  lie(23, {
    does: 'deletes an item with the tag of another delete',
    notices: HOLDERS,
    named: ['untagged_delete bad_sig'],
    costs: DELETED,
    play: async (stage) => deletes(stage, (await deletedOne(stage)).gone['sig']),
  }),
];

const AGES: readonly Lie[] = [
  lie(24, {
    does: 'sends an old state of an item under a new version',
    notices: HOLDERS,
    named: ['quarantined rolled_back'],
    costs: 'The item is hidden; its newest content is kept',
    play: async (stage) => {
      const old = await outdated(stage, await target(stage));
      stage.liar.frame = (frame) => [isItem(frame) ? { ...old, version: frame['version'] } : frame];
      await stage.put('what the liar hides behind');
    },
  }),
  lie(25, {
    does: 'restores a deleted item',
    notices: 'Every device that saw the delete',
    named: ['quarantined resurrected'],
    costs: NOTHING,
    play: async (stage) => {
      const { old } = await deletedOne(stage);
      stage.liar.frame = (frame) => [isItem(frame) ? { ...old, version: frame['version'] } : frame];
      await stage.put('what the liar hides behind');
    },
  }),
  lie(26, {
    does: 'sends two states of an item under one version',
    notices: 'Every device that gets both',
    named: ['problem ProtocolError version_reused'],
    costs: 'Nothing: the first state stays',
    play: async (stage) => {
      const id = await target(stage);
      const { payloadEnc, ts } = await outdated(stage, id);
      stage.liar.answer = ({ path }, truth) =>
        path.startsWith('/items?')
          ? rows(truth, (all) => all.map((row) => (row['id'] === id ? { ...row, payloadEnc, ts } : row)))
          : undefined;
      await stage.victim.resync();
    },
  }),
  lie(27, {
    does: 'rolls the history back under the same epoch',
    notices: 'Every device that was ahead of it, at the next `caught_up`',
    named: ['missing'],
    costs: 'Nothing: data on the device stays',
    play: async (stage) => {
      const before = stage.liar.frames.findLast(isCaughtUp) ?? {};
      const head = versionOf(before);
      await shows({ device: stage.victim }, (await stage.put('forgotten by the server')).id);
      counts(stage, () => before);
      stage.liar.answer = ({ path }, truth) => {
        if (!path.startsWith('/items?')) return undefined;
        return { ...rows(truth, (all) => all.filter((row) => versionOf(row) <= head)), nextSince: head };
      };
      again(stage);
    },
  }),
  lie(28, {
    does: 'presents an older state as a restored one: a reset, then old content',
    notices: 'Every device, by the reset; the old content, every device that held newer content',
    named: ['reset', 'quarantined rolled_back'],
    costs: 'The item is hidden; its newest content is kept',
    play: async (stage) => {
      const id = await target(stage);
      const old = await outdated(stage, id);
      stage.liar.say(...retold(stage, id, old));
    },
  }),
  lie(29, {
    does: 'presents an empty history as a restored one',
    notices: 'Every device that held something',
    named: ['reset', 'orphaned'],
    costs: 'Nothing: data on the device stays readable and can be written again',
    play: (stage) => {
      const end = { type: 'caught_up', version: 0, epoch: 'empty', itemCount: 0, versionSum: 0 };
      stage.liar.say({ type: 'reset', epoch: 'empty' }, end);
      return Promise.resolve();
    },
  }),
  lie(30, {
    does: 'sends reset after reset',
    notices: 'Every device, at the second reset',
    named: ['problem ProtocolError epoch_changed'],
    costs: DELAY,
    play: (stage) => {
      stage.liar.say(...Array.from({ length: 50 }, (_, at) => ({ type: 'reset', epoch: `storm ${at}` })));
      return Promise.resolve();
    },
  }),
];

const ORDER: readonly Lie[] = [
  lie(31, {
    does: 'sends changes out of order',
    notices: 'Every device, at the change that arrives late',
    named: ['problem ProtocolError bad_order'],
    costs: 'Nothing: the late change counts',
    play: async (stage) => {
      let held: Json | undefined;
      stage.liar.frame = (frame) => {
        if (!isItem(frame)) return [frame];
        if (held !== undefined) return [frame, held];
        held = frame;
        return [];
      };
      const { id } = await stage.put('comes late');
      await stage.put('comes first');
      await shows({ device: stage.victim }, id);
    },
  }),
  lie(32, {
    does: 'sends every change three times',
    notices: 'Nobody needs to',
    named: [],
    costs: NOTHING,
    play: async (stage) => {
      stage.liar.frame = (frame) => (isItem(frame) ? [frame, frame, frame] : [frame]);
      await shows({ device: stage.victim }, (await stage.put('thrice')).id);
      await shows({ device: stage.victim }, (await stage.put('thrice again')).id);
    },
  }),
  lie(33, {
    does: 'gives a change a version far above the head',
    notices: AFTER,
    named: ['reset'],
    costs: 'Delay: everything is read again',
    play: async (stage) => {
      stage.liar.frame = (frame) => [isItem(frame) ? { ...frame, version: 2 ** 40 } : frame];
      const { id } = await stage.put('from the far future');
      await shows({ device: stage.victim }, id);
      stage.liar.honest();
      again(stage);
    },
  }),
];

const COUNTS: readonly Lie[] = [
  lie(34, {
    does: 'hides an item and counts it',
    notices: AFTER,
    named: ['missing'],
    costs: 'The item is missing, and the user is notified',
    play: async (stage) => {
      const id = newId();
      hide(stage, [id]);
      await stage.put('hidden', id);
      await stage.put('what comes after it');
      again(stage);
    },
  }),
  lie(35, {
    does: 'hides an item that this device has seen, and leaves it out of the count',
    notices: 'Every device that held it, at the next `caught_up`',
    named: ['missing unlisted'],
    costs: 'Nothing: it stays readable here',
    play: async (stage) => {
      const { id, version } = await stage.put('seen, then hidden');
      await shows({ device: stage.victim }, id);
      await stage.put('what comes after it');
      hide(stage, [id], (end) => ({
        ...end,
        itemCount: Number(end['itemCount']) - 1,
        versionSum: Number(end['versionSum']) - version,
      }));
      again(stage);
    },
  }),
  lie(36, {
    does: 'claims that it sent more than it did: `caught_up` with a version above the last change',
    notices: AFTER,
    named: ['missing'],
    costs: 'Delay; no cursor moves, so nothing is skipped',
    play: (stage) => {
      counts(stage, (end) => ({ ...end, version: versionOf(end) + 1_000 }));
      again(stage);
      return Promise.resolve();
    },
  }),
  lie(37, {
    does: 'counts items that do not exist',
    notices: AFTER,
    named: ['missing'],
    costs: 'Delay: everything is read again',
    play: (stage) => {
      counts(stage, (end) => ({ ...end, itemCount: Number(end['itemCount']) + 1 }));
      again(stage);
      return Promise.resolve();
    },
  }),
  lie(38, {
    does: 'ends a replay in a different epoch from the one in which it began',
    notices: AFTER,
    named: ['problem ProtocolError epoch_changed'],
    costs: DELAY,
    play: (stage) => {
      counts(stage, (end) => ({ ...end, epoch: 'another' }));
      again(stage);
      return Promise.resolve();
    },
  }),
  lie(39, {
    does: 'sends an epoch that is too long to be sent back',
    notices: 'Every device, on arrival',
    named: ['problem ProtocolError malformed'],
    costs: DELAY,
    play: (stage) => {
      stage.liar.say({ type: 'reset', epoch: 'e'.repeat(20_000) });
      return Promise.resolve();
    },
  }),
];

/** A listing that is read on demand, bent on every page. */
const pulls =
  (change: (truth: Json) => Json): Lie['play'] =>
  async (stage) => {
    stage.liar.answer = ({ path }, truth) => (path.startsWith('/items?') ? change(truth) : undefined);
    await stage.fails(stage.victim.resync());
  };

const LISTINGS: readonly Lie[] = [
  lie(40, {
    does: 'lists changes out of order',
    notices: LISTING,
    named: ['throws ProtocolError bad_listing'],
    costs: DELAY,
    play: pulls((truth) => rows(truth, (all) => [...all].reverse())),
  }),
  lie(41, {
    does: 'moves the cursor of a listing past what it listed',
    notices: LISTING,
    named: ['throws ProtocolError bad_listing'],
    costs: DELAY,
    play: pulls((truth) => ({ ...truth, nextSince: Number(truth['nextSince']) + 1 })),
  }),
  lie(42, {
    does: 'sends an endless listing',
    notices: LISTING,
    named: ['throws ProtocolError bad_listing'],
    costs: DELAY,
    play: pulls((truth) => ({ ...truth, items: [], hasMore: true, nextSince: Number(truth['nextSince']) + 1 })),
  }),
  lie(43, {
    does: 'restarts a listing on every page',
    notices: LISTING,
    named: ['throws ProtocolError epoch_changed'],
    costs: DELAY,
    play: async (stage) => {
      let first: Json | undefined;
      stage.liar.answer = ({ path }, truth) => {
        if (!path.startsWith('/items?')) return undefined;
        first ??= truth;
        return { ...first, reset: true, hasMore: true };
      };
      await stage.fails(stage.victim.resync());
    },
  }),
];

export const STREAM_LIES: readonly Lie[] = [...DELETES, ...AGES, ...ORDER, ...COUNTS, ...LISTINGS];

export const LOST_LIE = lie(130, {
  does: 'serves an older state of an item, then presents an empty history as a restored one, for the user to write it again',
  notices: HOLDERS,
  named: ['quarantined rolled_back', 'reset', 'orphaned'],
  costs: 'Nothing: the newest content is written again',
  play: async (stage) => {
    const id = await target(stage);
    const old = await outdated(stage, id);
    stage.liar.frame = (frame) => [isItem(frame) ? { ...old, version: frame['version'] } : frame];
    await stage.put('what the liar hides behind');
    await stage.hears(['quarantined rolled_back']);
    // A move would make the older state one of the user's.
    await stage.fails(stage.victim.move(id, 'elsewhere'));
    await stage.hears(['throws ClientError unknown_item']);
    const end = { type: 'caught_up', version: 0, epoch: 'empty', itemCount: 0, versionSum: 0 };
    stage.liar.raw = ({ path, method }) =>
      method === 'POST' && path === '/items' ? { body: JSON.stringify({ id, version: 1 }) } : undefined;
    stage.liar.say({ type: 'reset', epoch: 'empty' }, end);
    await stage.hears(['orphaned']);
    await stage.victim.republish(id);
    if ((await stage.victim.get(id))?.payload?.['text'] !== 'the newer content')
      throw new Error('it wrote the older one');
  },
});

export const GONE_LIES: readonly Lie[] = [
  lie(119, {
    does: 'restores a deleted item repeatedly, in the stream and in listings',
    notices: 'Every device that saw the delete',
    named: ['quarantined resurrected'],
    costs: NOTHING,
    play: async (stage) => {
      const { old } = await deletedOne(stage);
      let version = 0;
      stage.liar.frame = (frame) => {
        if (!isItem(frame)) return [frame];
        version = versionOf(frame);
        return [{ ...old, version }];
      };
      // Each time it must be reported anew: an earlier report is none of a later row, or of the listing.
      for (const text of ['behind this', 'behind that']) {
        stage.told.length = 0;
        await stage.put(text);
        await stage.hears(['quarantined resurrected']);
      }
      const { itemType: type, ...row } = old;
      stage.liar.answer = ({ path }, truth) =>
        path.startsWith('/items?')
          ? rows(truth, (all) => all.map((one) => (versionOf(one) === version ? { ...row, type, version } : one)))
          : undefined;
      stage.liar.frame = (frame) => [frame];
      stage.told.length = 0;
      await stage.victim.resync();
    },
  }),
  lie(120, {
    does: 'restores a deleted item after a delete of its own, or after an unreadable row',
    notices: 'Every device that saw the delete',
    named: ['quarantined resurrected'],
    costs: NOTHING,
    play: async (stage) => {
      const { id, old } = await deletedOne(stage);
      const turns: readonly ((version: unknown) => Json)[] = [
        (version) => ({ type: 'delete', id, version }),
        (version) => ({ ...old, version }),
        (version) => ({ ...old, version, binId: 7 }),
        (version) => ({ ...old, version }),
      ];
      const left = [...turns];
      stage.liar.frame = (frame) => [isItem(frame) ? (left.shift()?.(frame['version']) ?? frame) : frame];
      for (const turn of turns.keys()) await stage.put(`what hides turn ${turn}`);
      const { id: last } = await stage.put('the last');
      await shows({ device: stage.victim }, last);
    },
  }),
];
