/** The lies that can be told to any client over the network: those of the catalogue, told without knowing the client. */
import { randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { SEALED_CHUNK_BYTES } from '../../../src/crypto/blob-stream.js';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { newId } from '../../support/client.js';
import { CATALOGUE } from '../catalogue.js';
import { CHALLENGE_LIES, type ChallengeLie } from '../lies/challenge.js';
import { ITEM_LIES, type ItemLie } from '../lies/items.js';
import { LOW_ORDER, OTHER_CLAIM, OTHER_TENANT, PAIR_LIES, type PairLie } from '../lies/pairing.js';
import { hide } from '../lies/history.js';
import { SLIPS, spy } from '../lies/slips.js';
import type { Json } from '../proxy.js';
import { frameOf, type Desk } from './desk.js';

/** A lie as it is told over the network. */
export interface NetworkLie {
  /** Of the catalogue; `HONEST-NN`: no lie, and nothing may be said. */
  readonly id: string;
  /** What the server does. */
  readonly does: string;
  /** Where the reference says what a client does about it. */
  readonly page: string;
  /**
   * What it means if the client says nothing: `right` where there is nothing to say, `silent` where nothing wrong came of
   * it and yet its user must be told, `believed` where saying it is all that can be done.
   */
  readonly silence: 'right' | 'silent' | 'believed';
  /** False: the client is given no device before it. */
  readonly joined: boolean;
  readonly play: (desk: Desk) => Promise<void>;
}

type Script = Pick<NetworkLie, 'play'> & Partial<Omit<NetworkLie, 'id' | 'does'>>;

const PAGES = {
  items: 'cryptography.md#items',
  stream: 'sockets.md#what-a-client-makes-of-an-item',
  cursor: 'sockets.md#the-cursor',
  reset: 'sockets.md#reset',
  devices: 'pairing.md#after-a-device-has-joined',
  pairing: 'pairing.md#pairing-a-new-device',
  claim: 'pairing.md#claiming-a-tenant',
  renewal: 'pairing.md#re-authentication',
  blobs: 'blobs.md#what-neither-side-assumes',
  replies: 'http.md#what-a-client-must-not-believe',
} as const;

function told(number: number, page: keyof typeof PAGES, script: Script): NetworkLie {
  const id = `LIAR-${String(number).padStart(2, '0')}`;
  const does = CATALOGUE.find((lie) => lie.id === id)?.does ?? '';
  return { id, does, page: PAGES[page], silence: 'believed', joined: true, ...script };
}

const honest = (number: number, does: string, play: NetworkLie['play'], joined = true): NetworkLie => ({
  id: `HONEST-${String(number).padStart(2, '0')}`,
  does,
  page: 'conformance.md#prove-a-client',
  silence: 'right',
  joined,
  play,
});

/** A lie that is told when the client next comes up to date. */
async function synced(desk: Desk): Promise<void> {
  await desk.sync();
}

const numberOf = (id: string): number => Number(id.slice('LIAR-'.length));

// Items.

const ofItem = (lie: ItemLie): NetworkLie =>
  told(numberOf(lie.id), 'items', {
    silence: 'silent',
    play: async (desk) => {
      const other = await desk.put('an honest item');
      const { id } = await desk.put(lie.blob ? randomBytes(40_000).toString('hex') : 'something secret');
      const otherRow = await desk.row(other.id);
      desk.bend((row) => [row['id'] === id ? lie.bend(row, otherRow) : row]);
      await synced(desk);
      if (desk.shows(id)) desk.believed.push(`it shows ${id} as if nothing were wrong with it`);
    },
  });

// The stream.

/** A delete of the server's own in the place of an edit, counted as one. */
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
    await synced(desk);
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

/** An end of a replay with one item fewer. */
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

/** Everything the server has as the replay of another history, when the client next connects or lists. */
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

const STREAM: readonly NetworkLie[] = [
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
      await synced(desk);
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
      await synced(desk);
    },
  }),
  told(25, 'stream', {
    silence: 'silent',
    play: async (desk) => {
      const old = await deletedOne(desk);
      const hiding = await desk.put('what the liar hides behind');
      desk.bend((row) => [row['id'] === hiding.id ? { ...old, version: row['version'] } : row]);
      await synced(desk);
    },
  }),
  told(119, 'stream', {
    silence: 'silent',
    play: async (desk) => {
      const old = await deletedOne(desk);
      for (const text of ['behind this', 'behind that']) {
        const hiding = await desk.put(text);
        desk.bend((row) => [row['version'] === hiding.version ? { ...old, version: row['version'] } : row]);
        await synced(desk);
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
        await synced(desk);
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
      await synced(desk);
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
      await synced(desk);
    },
  }),
  told(29, 'reset', {
    play: async (desk) => {
      const end = { type: 'caught_up', version: 0, epoch: 'empty', itemCount: 0, versionSum: 0 };
      desk.liar.frame = (frame) => (frame['type'] === 'caught_up' ? [{ type: 'reset', epoch: 'empty' }, end] : []);
      desk.liar.answer = ({ path }, truth) =>
        path.startsWith('/items?') ? { ...truth, items: [], nextSince: 0, epoch: 'empty', reset: true } : undefined;
      await synced(desk);
    },
  }),
  told(32, 'cursor', {
    silence: 'right',
    play: async (desk) => {
      const { id } = await desk.put('thrice');
      desk.liar.frame = (frame) => (frame['type'] === 'item' ? [frame, frame, frame] : [frame]);
      await synced(desk);
      if (!desk.shows(id)) desk.believed.push('it does not show an item that came three times');
    },
  }),
  told(34, 'cursor', {
    play: async (desk) => {
      const edited = await desk.put('before the edit');
      await desk.sync();
      const { version } = await desk.put('the edit', edited.id);
      desk.bend((row) => (row['version'] === version ? [] : [row]));
      await synced(desk);
      if (desk.client.problems.length === 0) desk.believed.push('it does not miss an edit that is counted');
      const id = newId();
      hide(desk, [id]);
      await desk.put('hidden', id);
      await desk.put('what comes after it');
      await synced(desk);
    },
  }),
  told(35, 'cursor', {
    play: async (desk) => {
      const { id, version } = await desk.put('seen, then hidden');
      await desk.sync();
      await desk.arm();
      desk.bend((row) => (row['id'] === id ? [] : [row]));
      desk.recount((end) => less(end, version));
      await synced(desk);
    },
  }),
  told(36, 'cursor', {
    silence: 'silent',
    play: async (desk) => {
      desk.recount((end) => ({ ...end, version: Number(end['version']) + 1_000 }));
      await synced(desk);
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
      await synced(desk);
    },
  }),
  told(38, 'reset', {
    play: async (desk) => {
      desk.liar.frame = (frame) => [frame['type'] === 'caught_up' ? { ...frame, epoch: 'another' } : frame];
      desk.liar.answer = ({ path }, truth) =>
        path.startsWith('/items?') || path === '/me' ? { ...truth, epoch: 'another' } : undefined;
      await synced(desk);
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
      await synced(desk);
    },
  }),
];

// What the client writes.

async function writes(desk: Desk): Promise<string | undefined> {
  const text = 'not for spies';
  const lines = await desk.client.do({ do: 'put', text });
  const stored = lines.find((line) => 'stored' in line)?.['stored'] as Json | undefined;
  if (stored !== undefined) desk.note(String(stored['id']), text);
  return stored === undefined ? undefined : String(stored['id']);
}

const WRITES: readonly NetworkLie[] = [
  told(55, 'devices', {
    play: async (desk) => {
      const error = { code: 'validation', message: 'keys', details: { path: 'keys', missingDevices: [newId()] } };
      desk.liar.raw = ({ method, path }) =>
        method === 'POST' && path.startsWith('/items') ? { status: 400, body: JSON.stringify({ error }) } : undefined;
      await writes(desk);
    },
  }),
  ...SLIPS.map(({ id, change }) =>
    told(numberOf(id), 'devices', {
      play: async (desk) => {
        desk.liar.answer = ({ path }, truth) =>
          path === '/devices' ? { ...truth, devices: change(desk.clientId)(truth['devices'] as Json[]) } : undefined;
        await writes(desk);
        if (sealedForSpy(desk)) desk.believed.push('it sealed a key for another key than that of the device');
      },
    }),
  ),
  told(62, 'devices', {
    play: async (desk) => {
      const { offer, joined } = await desk.letIn();
      await desk.third(offer.words);
      const third = await joined;
      await writes(desk);
      await desk.owner.revoke(third);
      await writes(desk);
      await desk.arm();
      desk.liar.answer = ({ path }, truth) =>
        path === '/devices'
          ? {
              ...truth,
              devices: (truth['devices'] as Json[]).map((one) =>
                one['id'] === third ? { ...one, revokedAt: null } : one,
              ),
            }
          : undefined;
      await writes(desk);
    },
  }),
  told(61, 'devices', {
    silence: 'right',
    play: async (desk) => {
      const pubkey = Buffer.from(spy.publicKey).toString('base64url');
      desk.liar.answer = ({ path }, truth) =>
        path === '/devices'
          ? {
              ...truth,
              devices: (truth['devices'] as Json[]).map((one) =>
                one['id'] === desk.clientId ? { ...one, pubkey } : one,
              ),
            }
          : undefined;
      await writes(desk);
      if (sealedForSpy(desk)) desk.believed.push('it took its own key from the list');
    },
  }),
];

/** True where the spy can open a key of an item that the client wrote. */
const sealedForSpy = (desk: Desk): boolean =>
  desk.liar.calls
    .flatMap(({ body }) => Object.values(((body['payloadEnc'] ?? {}) as Json)['keys'] ?? {}) as string[])
    .some((key) => nodeSodium.sealOpen(Buffer.from(key, 'base64url'), spy) !== undefined);

// Pairing.

/** The client shows words, and another device joins with them. Answers whether it was let in. */
async function offers(desk: Desk, host?: string): Promise<boolean> {
  let joining: Promise<unknown> = Promise.resolve(undefined);
  await desk.client.do({ do: 'offer' }, ({ words }) => {
    if (words !== undefined) joining = desk.third(String(words), host);
  });
  // A join that nobody answered ends with its session; what counts is whether the key was released.
  void joining;
  return desk.liar.calls.some(({ path, body }) => path === '/devices/pair-wrap' && 'wrappedMasterKey' in body);
}

const ofExisting = ({ id, hooks }: PairLie): NetworkLie =>
  told(numberOf(id), 'pairing', {
    play: async (desk) => {
      const old = await desk.oldPairing();
      Object.assign(desk.liar, hooks(old));
      if (await offers(desk)) desk.believed.push('it released the master key');
    },
  });

/** The client joins by the owner's words. */
async function joins(desk: Desk): Promise<void> {
  const { offer } = await desk.letIn();
  await desk.client.do({ do: 'join', url: desk.liar.url, words: offer.words });
  offer.cancel();
}

const ofNew = ({ id, hooks }: Pick<PairLie, 'id' | 'hooks'>): NetworkLie =>
  told(numberOf(id), 'pairing', {
    joined: false,
    play: async (desk) => {
      const old = await desk.oldPairing();
      Object.assign(desk.liar, hooks(old));
      await joins(desk);
    },
  });

const PAIRING: readonly NetworkLie[] = [
  ...PAIR_LIES.map((lie) => (lie.side === 'existing' ? ofExisting(lie) : ofNew(lie))),
  ofNew(LOW_ORDER),
  told(83, 'renewal', {
    joined: false,
    play: async (desk) => {
      Object.assign(desk.liar, OTHER_TENANT.hooks());
      await desk.joinClient();
      desk.liar.honest();
      await desk.client.do({ do: 'renew' });
    },
  }),
  told(84, 'claim', {
    joined: false,
    play: async (desk) => {
      desk.liar.raw = ({ path, body }) => {
        if (path === '/me') return { body: JSON.stringify({ device: {}, tenantId: newId(), server: {} }) };
        if (path === '/service/status') return { body: JSON.stringify({ mode: 'single', claimed: false }) };
        if (path !== '/devices/bootstrap') return undefined;
        const { deviceId, name, glyph, pubkey } = body;
        return { body: JSON.stringify({ device: { id: deviceId, name, glyph, pubkey, pairedAt: 1 }, token: 'x' }) };
      };
      const { raw } = desk.liar;
      desk.liar.raw = (call) => {
        const reply = raw(call);
        if (reply?.body === undefined || call.path !== '/devices/bootstrap') return reply;
        const lie = OTHER_CLAIM.hooks().answer?.(call, JSON.parse(String(reply.body)) as Json);
        return { body: JSON.stringify(lie) };
      };
      await desk.client.do({ do: 'claim', url: desk.liar.url });
    },
  }),
  told(118, 'pairing', {
    play: async (desk) => {
      if (await offers(desk, 'localhost')) desk.believed.push('it released the master key');
    },
  }),
];

const ofChallenge = ({ id, forms }: ChallengeLie): NetworkLie =>
  told(numberOf(id), 'renewal', {
    play: async (desk) => {
      for (const form of forms) {
        const asked = { ...desk.tenant, deviceId: desk.clientId };
        const key = await desk.clientKey();
        desk.liar.answer = ({ path }, truth) =>
          path === '/devices/reauth/challenge'
            ? {
                ...truth,
                challenge: Buffer.from(nodeSodium.seal(form(asked, String(truth['challengeId'])), key)).toString(
                  'base64url',
                ),
              }
            : undefined;
        await desk.client.do({ do: 'renew' });
      }
      if (desk.liar.calls.some(({ path }) => path === '/devices/reauth'))
        desk.believed.push('it answered what is no challenge');
    },
  });

// Blobs and replies.

const isBytes = ({ method, path }: { readonly method: string; readonly path: string }): boolean =>
  method === 'GET' && path.startsWith('/blobs/') && path.includes('sig=');

/** The client reads a large text while the liar answers for the store. */
const blobIs =
  (bend: (truth: Buffer, desk: Desk) => Buffer | Promise<Buffer>): NetworkLie['play'] =>
  async (desk) => {
    const { id } = await desk.put(randomBytes(70_000).toString('hex'));
    await desk.sync();
    await desk.arm();
    const body = await bend(await bytesOf(desk, id), desk);
    desk.liar.raw = (call) =>
      isBytes(call) ? { body, headers: { 'content-type': 'application/octet-stream' } } : undefined;
    const lines = await desk.client.do({ do: 'file', id });
    if (lines.some((line) => 'content' in line)) desk.believed.push('it handed on content that was not whole');
  };

async function bytesOf(desk: Desk, id: string): Promise<Buffer> {
  const { url } = await desk.owner.blobUrl(id);
  return Buffer.from(await (await fetch(url)).arrayBuffer());
}

const BLOBS: readonly NetworkLie[] = [
  told(101, 'blobs', {
    play: blobIs(async (_, desk) => bytesOf(desk, (await desk.put(randomBytes(70_000).toString('hex'))).id)),
  }),
  told(103, 'blobs', { play: blobIs((truth) => truth.subarray(0, SEALED_CHUNK_BYTES)) }),
  told(104, 'blobs', { play: blobIs((truth) => Buffer.concat([truth, Buffer.alloc(1)])) }),
  told(105, 'blobs', {
    play: blobIs((truth) =>
      Buffer.concat([
        truth.subarray(SEALED_CHUNK_BYTES, 2 * SEALED_CHUNK_BYTES),
        truth.subarray(0, SEALED_CHUNK_BYTES),
        truth.subarray(2 * SEALED_CHUNK_BYTES),
      ]),
    ),
  }),
];

const REPLIES: readonly NetworkLie[] = [
  told(89, 'replies', {
    play: async (desk) => {
      const seen: string[] = [];
      const other = createServer((request, response) => {
        seen.push(request.headers.authorization ?? '');
        response.end('{}');
      });
      await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
      const location = `http://127.0.0.1:${(other.address() as AddressInfo).port}/`;
      desk.liar.raw = () => ({ status: 307, headers: { location } });
      await desk.client.do({ do: 'sync' });
      other.closeAllConnections();
      other.close();
      if (seen.some((text) => text !== '')) desk.believed.push('it sent its token to another server');
    },
  }),
  told(92, 'replies', {
    play: async (desk) => {
      for (const body of ['['.repeat(400_000), '{"ticket":', '"text"', '']) {
        desk.liar.raw = ({ path }) => (path.startsWith('/blobs/') ? undefined : { body });
        await desk.client.do({ do: 'sync' });
      }
    },
  }),
];

// The truth, which must be taken for it.

const HONEST: readonly NetworkLie[] = [
  honest(1, "tells the truth about its user's items", async (desk) => {
    const { id } = await desk.put('written, then edited');
    const gone = await desk.put('written, then deleted');
    await desk.sync();
    await desk.put('edited', id);
    await desk.remove(gone.id);
    await desk.sync();
    if (!desk.shows(id)) desk.believed.push('it does not show an item as it was edited');
    const text = randomBytes(70_000).toString('hex');
    const blob = await desk.put(text);
    await desk.sync();
    const lines = await desk.client.do({ do: 'file', id: blob.id });
    const content = String(lines.find((line) => 'content' in line)?.['content']);
    if (
      Buffer.from(content, 'base64').toString('utf8') !== JSON.stringify({ text }) &&
      !desk.client.cannot.includes('file')
    )
      desk.believed.push('it does not hand on the content of a blob');
  }),
  honest(2, 'tells the truth about what the client writes', async (desk) => {
    const told: string[] = [];
    const stop = desk.owner.on('untagged_delete', ({ id }) => void told.push(id));
    const id = await writes(desk);
    await desk.sync();
    if (id !== undefined && !desk.shows(id)) desk.believed.push('it does not show what it wrote');
    await desk.owner.pull();
    if (id !== undefined && (await desk.owner.get(id))?.payload?.['text'] !== 'not for spies')
      desk.believed.push('what it wrote does not open on the device of its user');
    if (id !== undefined) {
      await desk.client.do({ do: 'delete', id });
      await desk.sync();
      await desk.owner.pull();
      if (!desk.client.cannot.includes('delete') && (await desk.owner.get(id)) !== undefined)
        desk.believed.push('what it deleted is still there');
      if (told.includes(id)) desk.believed.push('it deletes without a tag');
      desk.gone(id);
    }
    stop();
    await desk.client.do({ do: 'renew' });
  }),
  honest(3, 'passes on the pairing of a device of its user', async (desk) => {
    const in_ = await offers(desk);
    if (!in_ && !desk.client.cannot.includes('offer')) desk.believed.push('it did not let the device in');
  }),
];

/** All of them, in the order of the catalogue. */
export const NETWORK_LIES: readonly NetworkLie[] = [
  ...HONEST,
  ...ITEM_LIES.map(ofItem),
  ...STREAM,
  ...WRITES,
  ...PAIRING,
  ...CHALLENGE_LIES.map(ofChallenge),
  ...REPLIES,
  ...BLOBS,
];
