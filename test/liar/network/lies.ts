/** The lies of the catalogue that can be played over the network to any client. */
import { randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import { SEALED_CHUNK_BYTES } from '../../../src/crypto/blob-stream.js';
import { listenOnLoopback } from '../../support/loopback-server.js';
import { CHALLENGE_LIES } from '../lies/challenge.js';
import { ITEM_LIES, type ItemLie } from '../lies/items.js';
import type { Desk } from './desk.js';
import { ofChallenge, offers, PAIRING, WRITES, writes } from './devices.js';
import { honest, numberOf, told, type NetworkLie } from './script.js';
import { STREAM } from './stream.js';

// Items.

const ofItem = (lie: ItemLie): NetworkLie =>
  told(numberOf(lie.id), 'items', {
    silence: 'silent',
    play: async (desk) => {
      const other = await desk.put('an honest item');
      const { id } = await desk.put(lie.blob ? randomBytes(40_000).toString('hex') : 'something secret');
      const otherRow = await desk.row(other.id);
      desk.bend((row) => [row['id'] === id ? lie.bend(row, otherRow) : row]);
      await desk.sync();
      if (desk.shows(id)) desk.believed.push(`it shows ${id} as if nothing were wrong with it`);
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
      const location = `http://127.0.0.1:${await listenOnLoopback(other)}/`;
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

// The truth, which a client must not report.

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
    await desk.welcome();
    if (!in_ && !desk.client.cannot.includes('offer')) desk.believed.push('it did not let the device in');
  }),
];

/** All of them: the truth first, then the lies by subject. */
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
