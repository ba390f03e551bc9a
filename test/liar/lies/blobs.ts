/** Lies about blobs: their addresses, and the bytes behind them. */
import { randomBytes } from 'node:crypto';
import { SEALED_CHUNK_BYTES } from '../../../src/crypto/blob-stream.js';
import { shows } from '../../support/client-world.js';
import type { Lie } from '../lie.js';
import type { Json, LiedCall, RawReply } from '../proxy.js';
import type { Stage } from '../stage.js';

const FAILS = 'The content is unavailable; the item is unchanged';
const UNSENT = 'Nothing is written';
const READER = 'The call that reads it';
const WRITER = 'The call that writes it';

const isGrant = ({ method, path }: LiedCall): boolean => method === 'GET' && path.endsWith('/url');
const isBytes = ({ path }: LiedCall): boolean => path.includes('sig=');

/** A text stored in a blob; the preview that a list shows is the user's as well. */
async function large(stage: Stage, id?: string): Promise<{ readonly id: string; readonly text: string }> {
  const text = `${randomBytes(8).toString('hex')} `.repeat(8_000);
  const stored = await stage.put(text, id);
  stage.note(stored.id, text.slice(0, 1_000));
  const device = stage.victim;
  await shows({ device }, stored.id, ({ payload }) => payload?.['text'] === text.slice(0, 1_000));
  return { id: stored.id, text };
}

/** The ciphertext of an item's blob. */
async function bytesOf(stage: Stage, id: string): Promise<Buffer> {
  const { url } = await stage.owner.blobUrl(id);
  return Buffer.from(await (await fetch(url)).arrayBuffer());
}

/** The victim reads a large text while the liar answers for the store. */
const bytesAre =
  (bend: (truth: Buffer, stage: Stage, id: string) => RawReply | Promise<RawReply>) =>
  async (stage: Stage): Promise<void> => {
    const { id } = await large(stage);
    const reply = await bend(await bytesOf(stage, id), stage, id);
    stage.liar.raw = (call) => (isBytes(call) ? reply : undefined);
    await stage.fails(stage.victim.payload(id));
  };

/** The victim reads a large text, and gets the bent grant for its address. */
const grantIs =
  (bend: (truth: Json) => Json) =>
  async (stage: Stage): Promise<void> => {
    const { id } = await large(stage);
    stage.liar.answer = (call, truth) => (isGrant(call) ? bend(truth) : undefined);
    await stage.fails(stage.victim.payload(id));
  };

/** The victim writes a large text. */
async function writesLarge(stage: Stage): Promise<void> {
  const text = randomBytes(50_000).toString('hex');
  await stage.fails(stage.victim.put({ binId: 'inbox', type: 'text', payload: { text } }));
}

/** Bends the description of a PUT: the one of `upload-url`, or each part of an upload. */
const uploadIs =
  (bend: (put: Json) => Json) =>
  async (stage: Stage): Promise<void> => {
    stage.liar.answer = ({ path }, truth) => {
      if (path === '/blobs/upload-url') return bend(truth);
      if (path !== '/uploads') return undefined;
      return { ...truth, parts: (truth['parts'] as Json[]).map((part) => bend(part)) };
    };
    await writesLarge(stage);
  };

const refusal = (status: number, code: string): RawReply => ({
  status,
  body: JSON.stringify({ error: { code, message: 'no' } }),
});

type Told = Pick<Lie, 'does' | 'named' | 'play'> & Partial<Lie>;
const lie = (number: number, told: Told): Lie => ({
  ...{ id: `LIAR-${number}`, family: 'blobs' as const, notices: READER, costs: FAILS },
  ...told,
});
const BAD = ['throws CryptoRefusal bad_ct'];
const BAD_URL = ['throws ProtocolError bad_url'];

export const BLOB_LIES: readonly Lie[] = [
  lie(100, {
    does: 'withholds a blob',
    named: ['throws ApiError blob_not_found'],
    play: async (stage) => {
      const { id } = await large(stage);
      stage.liar.raw = (call) => (isGrant(call) ? refusal(404, 'blob_not_found') : undefined);
      await stage.fails(stage.victim.payload(id));
    },
  }),
  lie(101, {
    does: "hands out another item's blob",
    named: BAD,
    play: bytesAre(async (_, stage) => {
      const other = await large(stage);
      return { body: await bytesOf(stage, other.id) };
    }),
  }),
  lie(102, {
    does: 'hands out the blob of an older version of the item',
    named: BAD,
    play: bytesAre(async (old, stage, id) => {
      await large(stage, id);
      return { body: old };
    }),
  }),
  lie(103, {
    does: 'cuts a blob off at the end of a chunk',
    named: BAD,
    play: bytesAre((truth) => ({ body: truth.subarray(0, SEALED_CHUNK_BYTES) })),
  }),
  lie(104, {
    does: 'adds bytes to a blob',
    named: BAD,
    play: bytesAre((truth) => ({ body: Buffer.concat([truth, Buffer.alloc(1)]) })),
  }),
  lie(105, {
    does: 'swaps chunks of a blob',
    named: BAD,
    play: bytesAre((truth) => ({
      body: Buffer.concat([truth.subarray(SEALED_CHUNK_BYTES), truth.subarray(0, SEALED_CHUNK_BYTES)]),
    })),
  }),
  lie(106, {
    does: 'sends an endless blob',
    named: BAD,
    play: bytesAre((truth) => ({ body: Buffer.concat([truth, truth, truth]), endless: true })),
  }),
  lie(107, {
    does: 'hands out only expired addresses for a blob',
    notices: 'The call that reads it, after three fresh addresses',
    named: ['throws ApiError url_invalid'],
    play: bytesAre(() => refusal(403, 'url_invalid')),
  }),
  lie(108, {
    does: 'sends a blob address that is not a web address',
    named: BAD_URL,
    play: async (stage) => {
      for (const url of ['file:///etc/passwd', 'ftp://127.0.0.1/x', 'data:text/plain,x', '/blobs/x']) {
        await grantIs((truth) => ({ ...truth, url }))(stage);
      }
    },
  }),
  lie(109, {
    does: 'redirects the download of a blob to another address',
    named: BAD_URL,
    play: bytesAre((_, stage) => ({ status: 302, headers: { location: `${stage.liar.url}/elsewhere` } })),
  }),
  lie(110, {
    does: 'lies about the size of a blob',
    notices: 'Nobody needs to: the chunks mark the end of the blob',
    named: [],
    costs: 'A wrong progress bar and some extra attempts',
    play: async (stage) => {
      const { id, text } = await large(stage);
      for (const size of [0, 1, 10, 2 ** 40, Number.MAX_SAFE_INTEGER]) {
        stage.liar.answer = (call, truth) => (isGrant(call) ? { ...truth, size } : undefined);
        if ((await stage.victim.payload(id))?.['text'] !== text) await stage.fails(Promise.resolve());
      }
    },
  }),
  lie(111, {
    does: 'sends an upload address that is not a web address',
    notices: WRITER,
    named: BAD_URL,
    costs: UNSENT,
    play: uploadIs((truth) => ({ ...truth, url: 'file:///tmp/x' })),
  }),
  lie(112, {
    does: 'demands upload headers that no store uses',
    notices: WRITER,
    named: BAD_URL,
    costs: UNSENT,
    play: uploadIs((truth) => ({ ...truth, headers: { authorization: 'Bearer x', 'transfer-encoding': 'chunked' } })),
  }),
  lie(113, {
    does: 'confirms that a blob is stored, and drops it',
    notices: 'The call that writes it; if the item is accepted all the same, the call that reads it (LIAR-100)',
    named: ['throws ApiError blob_not_found'],
    costs: UNSENT,
    play: async (stage) => {
      stage.liar.raw = (call) => (isBytes(call) ? { body: '' } : undefined);
      await writesLarge(stage);
    },
  }),
];
