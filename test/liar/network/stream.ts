/** Lies over the network about the order, the age and the number of changes. */
import { newId } from '../../support/client.js';
import { hide } from '../lies/history.js';
import type { Json } from '../proxy.js';
import { frameOf, type Desk } from './desk.js';
import { told, type NetworkLie } from './script.js';

/** A delete that the server makes in place of an edit, and counts as a delete. */
const deletes =
  (sigOf: (desk: Desk) => Promise<string | undefined>): NetworkLie['play'] =>
  async (desk) => {
    const { id } = await desk.put('to be kept');
    await desk.sync();
    const sig = await sigOf(desk);
    await desk.arm();
    const { version } = await desk.put('what the server says was deleted', id);
    desk.bend((row) =>
      row['id'] === id ? [{ ...row, deletedAt: row['ts'], payloadEnc: null, sig: sig ?? null }] : [row],
    );
    desk.recount((end) => less(end, version));
    await desk.sync();
  };

/** The row of an item that the user deleted, as it was before; the client has seen the delete. */
async function deletedOne(desk: Desk): Promise<Json> {
  const { id } = await desk.put('to be deleted');
  await desk.sync();
  const old = await desk.row(id);
  await desk.remove(id);
  await desk.sync();
  await desk.arm();
  return old;
}

/** The end of a replay, counting one item fewer. */
const less = (end: Json, version: number): Json => ({
  ...end,
  itemCount: Number(end['itemCount']) - 1,
  versionSum: Number(end['versionSum']) - version,
});

/** The tag under which the user deleted another item. */
async function anotherTag(desk: Desk): Promise<string> {
  const { id } = await desk.put('deleted by its owner');
  await desk.sync();
  await desk.remove(id);
  await desk.sync();
  return String((await desk.row(id))['sig']);
}

/** Presents all rows as the replay of another history when the client next connects or lists. */
async function retell(desk: Desk, instead: (row: Json) => Json): Promise<void> {
  const all = (await desk.rows()).map(instead);
  const live = all.filter((row) => row['deletedAt'] === null);
  const version = Math.max(0, ...all.map((row) => Number(row['version'])));
  const versionSum = live.reduce((sum, row) => sum + Number(row['version']), 0);
  const end = { type: 'caught_up', version, epoch: 'retold', itemCount: live.length, versionSum };
  desk.liar.frame = (frame) =>
    frame['type'] === 'caught_up' ? [{ type: 'reset', epoch: 'retold' }, ...all.map(frameOf), end] : [];
  desk.liar.answer = ({ path }, truth) =>
    path.startsWith('/items?')
      ? { ...truth, items: all, nextSince: version, hasMore: false, epoch: 'retold', reset: true }
      : undefined;
}

export const STREAM: readonly NetworkLie[] = [
  told(20, 'items', {
    silence: 'right',
    play: async (desk) => {
      const { id } = await desk.put('without a key of its own');
      desk.bend((row) => {
        const seal = (row['payloadEnc'] ?? {}) as Json;
        const keys = Object.fromEntries(
          Object.entries((seal['keys'] ?? {}) as Json).filter(([key]) => key !== desk.clientId),
        );
        return [row['id'] === id ? { ...row, payloadEnc: { ...seal, keys } } : row];
      });
      await desk.sync();
      if (!desk.shows(id)) desk.believed.push('it does not show an item that opens through its master wrap');
    },
  }),
  told(21, 'stream', { play: deletes(() => Promise.resolve(undefined)) }),
  told(22, 'stream', { play: deletes(() => Promise.resolve(Buffer.alloc(32).toString('base64url'))) }),
  told(23, 'stream', { play: deletes(anotherTag) }),
  told(24, 'stream', {
    silence: 'silent',
    play: async (desk) => {
      const { id } = await desk.put('the first text');
      const old = await desk.row(id);
      await desk.put('the second text', id);
      await desk.sync();
      await desk.arm();
      await desk.put('the third text', id);
      desk.bend((row) => [row['id'] === id ? { ...old, version: row['version'] } : row]);
      await desk.sync();
    },
  }),
  told(25, 'stream', {
    silence: 'silent',
    play: async (desk) => {
      const old = await deletedOne(desk);
      const hiding = await desk.put('what the liar hides behind');
      desk.bend((row) => [row['id'] === hiding.id ? { ...old, version: row['version'] } : row]);
      await desk.sync();
    },
  }),
  told(119, 'stream', {
    silence: 'silent',
    play: async (desk) => {
      const old = await deletedOne(desk);
      for (const text of ['behind this', 'behind that']) {
        const hiding = await desk.put(text);
        desk.bend((row) => [row['version'] === hiding.version ? { ...old, version: row['version'] } : row]);
        await desk.sync();
      }
    },
  }),
  told(120, 'stream', {
    silence: 'silent',
    play: async (desk) => {
      const old = await deletedOne(desk);
      const turns: readonly Json[] = [
        { id: old['id'], deletedAt: old['ts'], payloadEnc: null, sig: null },
        old,
        { ...old, binId: 7 },
        old,
      ];
      for (const turn of turns) {
        const hiding = await desk.put('what the liar hides behind');
        desk.bend((row) => [row['version'] === hiding.version ? { ...turn, version: row['version'] } : row]);
        await desk.sync();
      }
    },
  }),
  told(27, 'cursor', {
    play: async (desk) => {
      const { headVersion, versionSum, server } = await desk.get('/me');
      const { itemCount } = server as Json;
      await desk.put('forgotten by the server');
      await desk.sync();
      await desk.arm();
      desk.bend((row) => (Number(row['version']) > Number(headVersion) ? [] : [row]));
      desk.recount((end) => ({ ...end, version: headVersion, itemCount, versionSum }));
      await desk.sync();
    },
  }),
  told(28, 'reset', {
    play: async (desk) => {
      const { id } = await desk.put('the older content');
      const old = await desk.row(id);
      await desk.put('the newer content', id);
      await desk.sync();
      await desk.arm();
      await retell(desk, (row) => (row['id'] === id ? { ...old, version: row['version'] } : row));
      await desk.sync();
    },
  }),
  told(29, 'reset', {
    play: async (desk) => {
      const end = { type: 'caught_up', version: 0, epoch: 'empty', itemCount: 0, versionSum: 0 };
      desk.liar.frame = (frame) => (frame['type'] === 'caught_up' ? [{ type: 'reset', epoch: 'empty' }, end] : []);
      desk.liar.answer = ({ path }, truth) =>
        path.startsWith('/items?') ? { ...truth, items: [], nextSince: 0, epoch: 'empty', reset: true } : undefined;
      await desk.sync();
    },
  }),
  told(32, 'cursor', {
    silence: 'right',
    play: async (desk) => {
      const { id } = await desk.put('thrice');
      desk.liar.frame = (frame) => (frame['type'] === 'item' ? [frame, frame, frame] : [frame]);
      await desk.sync();
      if (!desk.shows(id)) desk.believed.push('it does not show an item that came three times');
    },
  }),
  told(34, 'cursor', {
    play: async (desk) => {
      const edited = await desk.put('before the edit');
      await desk.sync();
      const { version } = await desk.put('the edit', edited.id);
      desk.bend((row) => (row['version'] === version ? [] : [row]));
      await desk.sync();
      if (desk.client.problems.length === 0) desk.believed.push('it does not miss an edit that is counted');
      const id = newId();
      hide(desk, [id]);
      await desk.put('hidden', id);
      await desk.put('what comes after it');
      await desk.sync();
    },
  }),
  told(35, 'cursor', {
    play: async (desk) => {
      const { id, version } = await desk.put('seen, then hidden');
      await desk.sync();
      await desk.arm();
      desk.bend((row) => (row['id'] === id ? [] : [row]));
      desk.recount((end) => less(end, version));
      await desk.sync();
    },
  }),
  told(36, 'cursor', {
    silence: 'silent',
    play: async (desk) => {
      desk.recount((end) => ({ ...end, version: Number(end['version']) + 1_000 }));
      await desk.sync();
      if (desk.client.problems.length === 0) desk.believed.push('it takes the end of a replay at its word');
      desk.liar.honest();
      const { id } = await desk.put('below what the server named');
      await desk.sync();
      if (!desk.shows(id)) desk.believed.push('its cursor moved past what it never got');
    },
  }),
  told(37, 'cursor', {
    play: async (desk) => {
      desk.recount((end) => ({ ...end, itemCount: Number(end['itemCount']) + 1 }));
      await desk.sync();
    },
  }),
  told(38, 'reset', {
    play: async (desk) => {
      desk.liar.frame = (frame) => [frame['type'] === 'caught_up' ? { ...frame, epoch: 'another' } : frame];
      desk.liar.answer = ({ path }, truth) =>
        path.startsWith('/items?') || path === '/me' ? { ...truth, epoch: 'another' } : undefined;
      await desk.sync();
    },
  }),
  told(42, 'replies', {
    play: async (desk) => {
      desk.liar.answer = ({ path }, truth) => {
        const since = /^\/items\?.*since=(\d+)/.exec(path)?.[1];
        if (since === undefined) return undefined;
        return { ...truth, items: [], hasMore: true, nextSince: Number(since) + 1, reset: false };
      };
      desk.recount((end) => ({ ...end, itemCount: Number(end['itemCount']) + 1 }));
      await desk.sync();
    },
  }),
];
