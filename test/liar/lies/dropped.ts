/** Lies about acknowledged changes that the server dropped, and about other states in their place. */
import { newId } from '../../support/client.js';
import { next, note, shows } from '../../support/client-world.js';
import type { Lie } from '../lie.js';
import type { RawReply } from '../proxy.js';
import type { Stage } from '../stage.js';
import { frameOf, retold, versionOf } from './history.js';
import { isItem } from './items.js';

const lie = (number: number, told: Omit<Lie, 'id' | 'family' | 'notices'>): Lie => ({
  id: `LIAR-${number}`,
  family: 'writes',
  notices: 'The device that wrote',
  ...told,
});

/** An item that the victim shows, written by the owner while the liar watched. */
async function target(stage: Stage): Promise<{ readonly id: string; readonly version: number }> {
  const item = await stage.put('before the change');
  await shows({ device: stage.victim }, item.id);
  return item;
}

/** Answers the next change of the victim's items itself. */
function answers(stage: Stage, reply: RawReply, method = 'POST'): void {
  let left = 1;
  stage.liar.raw = (call) =>
    call.method === method && call.path.startsWith('/items') && left-- > 0 ? reply : undefined;
}

const stored = (id: string, version: number): RawReply => ({ body: JSON.stringify({ id, version }) });

/** The victim edits an item, and the server acknowledges and drops the edit. */
async function dropped(stage: Stage, item: { readonly id: string; readonly version: number }): Promise<void> {
  const text = 'acknowledged and dropped';
  stage.note(item.id, text);
  answers(stage, stored(item.id, item.version + 1));
  await stage.victim.put({ ...note(text), id: item.id });
}

/** Throws where the victim does not have the edit, shown or kept. */
async function expectEdit({ victim }: Stage, id: string): Promise<void> {
  const item = (await victim.get(id)) ?? (await victim.kept(id));
  if (item?.payload?.['text'] !== 'acknowledged and dropped') throw new Error('the edit is gone');
}

/** A change of the victim that waits, while another device changes the item. `again` ends the wait. */
async function overtaken(stage: Stage, id: string, change: () => Promise<unknown>): Promise<number> {
  stage.liar.raw = ({ path, method }) =>
    method !== 'GET' && path.startsWith('/items')
      ? { status: 503, body: '{"error":{"code":"unavailable","message":"no"}}' }
      : undefined;
  await stage.fails(change());
  const { version } = await stage.put('of another device', id);
  await shows({ device: stage.victim }, id, () => stage.liar.frames.some((frame) => frame['version'] === version));
  return version;
}

export const DROPPED_LIES: readonly Lie[] = [
  lie(122, {
    does: 'acknowledges a change and drops it, and later serves the state before it under a later version',
    named: ['quarantined rolled_back'],
    costs: 'The item is hidden; its newest content, the change, is kept',
    play: async (stage) => {
      const item = await target(stage);
      const old = frameOf(stage, item.id);
      await dropped(stage, item);
      await stage.put('what comes under the version of the reply');
      stage.liar.frame = (frame) => (isItem(frame) ? [{ ...old, version: frame['version'] }] : [frame]);
      await stage.put('what brings a later version');
      await stage.hears(['quarantined rolled_back']);
      await expectEdit(stage, item.id);
      stage.liar.honest();
      const text = 'saved again';
      stage.note(item.id, text);
      await stage.victim.put({ ...note(text), id: item.id, onConflict: 'overwrite' });
    },
  }),
  lie(123, {
    does: 'acknowledges a change and drops it, with a history that counts without it',
    named: ['problem ProtocolError wrong_reply'],
    costs: 'Nothing: the change is sent again',
    play: async (stage) => {
      const item = await target(stage);
      await dropped(stage, item);
      const sent = next({ device: stage.victim }, 'sent', ({ id }) => id === item.id);
      stage.liar.cut();
      await sent;
      await expectEdit(stage, item.id);
    },
  }),
  lie(124, {
    does: "answers a write with the version of another device's change",
    named: ['problem ProtocolError wrong_reply', 'rejected'],
    costs: 'The change is sent again; an honest server refuses it, and event `rejected` has its content',
    play: async (stage) => {
      const { id } = await target(stage);
      const version = await overtaken(stage, id, () => stage.victim.put({ ...note('overtaken'), id }));
      answers(stage, stored(id, version));
      await stage.hears(['problem ProtocolError wrong_reply', 'rejected']);
    },
  }),
  lie(125, {
    does: 'answers a delete with the version of a state that is not deleted',
    named: ['problem ProtocolError wrong_reply'],
    costs: 'The delete waits in the outbox and is sent again',
    play: async (stage) => {
      const { id } = await target(stage);
      const version = await overtaken(stage, id, () => stage.victim.delete(id));
      answers(stage, stored(id, version), 'DELETE');
      const sent = next({ device: stage.victim }, 'sent', (one) => one.id === id);
      await sent;
      stage.deleted.add(id);
    },
  }),
  lie(126, {
    does: 'acknowledges a change and drops it, and passes its version in the replay after a reset',
    named: ['reset'],
    costs: 'Nothing: the change is sent again',
    play: async (stage) => {
      const item = await target(stage);
      const old = frameOf(stage, item.id);
      await dropped(stage, item);
      const others = retold(stage, newId(), old).map((frame) =>
        frame['id'] === item.id ? { ...frame, version: item.version + 5 } : frame,
      );
      const end = { ...others.at(-1), version: item.version + 5 };
      const replay = others.slice(1, -1).filter((frame) => versionOf(frame) > 0);
      const versionSum = replay.filter(isItem).reduce((sum, frame) => sum + versionOf(frame), 0);
      const over = next({ device: stage.victim }, 'caught_up');
      stage.liar.say(others[0] ?? {}, ...replay, { ...end, itemCount: replay.filter(isItem).length, versionSum });
      await over;
      await expectEdit(stage, item.id);
    },
  }),
  lie(127, {
    does: 'acknowledges a change and drops it, for a device that reads without a socket',
    named: ['problem ProtocolError wrong_reply'],
    costs: 'Nothing: the change is sent again',
    play: async (stage) => {
      const item = await target(stage);
      await dropped(stage, item);
      stage.victim.disconnect();
      const sent = next({ device: stage.victim }, 'sent', ({ id }) => id === item.id);
      await stage.victim.pull();
      await sent;
      await expectEdit(stage, item.id);
    },
  }),
  lie(128, {
    does: 'deletes an item without a tag before it acknowledges a change of it',
    named: ['untagged_delete no_sig'],
    costs: 'The item leaves the list; its last content, the change, is kept',
    play: async (stage) => {
      const item = await target(stage);
      const text = 'acknowledged and dropped';
      stage.note(item.id, text);
      stage.liar.raw = ({ path, method }) => {
        if (method === 'GET' || !path.startsWith('/items')) return undefined;
        return stage.told.includes('untagged_delete no_sig')
          ? stored(item.id, item.version + 1)
          : { status: 503, body: '{"error":{"code":"unavailable","message":"no"}}' };
      };
      await stage.fails(stage.victim.put({ ...note(text), id: item.id }));
      const sent = next({ device: stage.victim }, 'sent', ({ id }) => id === item.id);
      stage.liar.frame = (frame) =>
        isItem(frame) ? [{ type: 'delete', id: item.id, version: frame['version'] }] : [frame];
      await stage.put('what comes under the version of the delete');
      await sent;
      await expectEdit(stage, item.id);
      const settled = next({ device: stage.victim }, 'caught_up');
      stage.liar.honest();
      stage.liar.cut();
      await settled;
      await expectEdit(stage, item.id);
      await stage.remove(item.id);
    },
  }),
];
