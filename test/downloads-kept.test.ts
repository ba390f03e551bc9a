/** Downloads to a file that go on, and what may lie in their place on the disk. */
import { randomBytes } from 'node:crypto';
import { chmod, link, mkdir, readdir, readFile, rm, stat, symlink, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import { AEAD_TAG_BYTES } from '../src/protocol/limits.js';
import { BLOB_CHUNK_BYTES, SEALED_CHUNK_BYTES } from '../src/crypto/blob-stream.js';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { saveBlob } from '../src/sdk/node-download.js';
import { world, type Client } from './support/client-world.js';
import { temporaryFolder } from './support/postgres.js';

const CONTENT = randomBytes(9 * 1024 * 1024 + 3);
const KEPT = 110;

interface Scene {
  readonly client: Client;
  readonly id: string;
  readonly folder: string;
  readonly path: string;
  readonly part: string;
  readonly tags: string;
  /** `Range` of each request to the store. */
  readonly ranges: (string | null)[];
  /** Downloads so far and is cancelled. */
  interrupt(): Promise<void>;
  save(): Promise<void>;
}

async function scene(t: Test): Promise<Scene> {
  const { first: client } = await world(t);
  const payload = { name: 'a.bin', size: CONTENT.length, mime: 'application/octet-stream' };
  const { id } = await client.device.put({ binId: 'inbox', type: 'file', payload, content: bytesSource(CONTENT) });
  const ranges: (string | null)[] = [];
  const truth = client.tap.blobs;
  client.tap.blobs = (url, init) => {
    ranges.push(new Headers(init.headers).get('range'));
    return truth(url, init);
  };
  const folder = await temporaryFolder(t);
  const path = join(folder, 'copy.bin');
  const beside = join(folder, `.copy.bin.${id}`);
  return {
    ...{ client, id, folder, path, ranges, part: `${beside}.part`, tags: `${beside}.tags` },
    interrupt: async () => {
      const stop = new AbortController();
      const onProgress = ({ done }: { readonly done: number }): void => {
        if (done >= KEPT * BLOB_CHUNK_BYTES) stop.abort();
      };
      const saving = saveBlob(client.device, { id, path }, { signal: stop.signal, onProgress, replace: true });
      await t.rejects(saving, { code: 'cancelled' });
      // A chunk more may have come.
      await truncate(`${beside}.part`, KEPT * BLOB_CHUNK_BYTES);
      await truncate(`${beside}.tags`, KEPT * AEAD_TAG_BYTES);
      ranges.length = 0;
    },
    save: async () => {
      t.equal(await saveBlob(client.device, { id, path }, { replace: true }), CONTENT.length);
      t.ok((await readFile(path)).equals(CONTENT));
      t.equal((await stat(path)).mode & 0o777, 0o600);
    },
  };
}

const rangeFrom = (chunk: number): string => `bytes=${chunk * SEALED_CHUNK_BYTES}-`;

t.test('CBLOB-47 CBLOB-48: a download goes on in another run, with what proves to be the blob', async (t) => {
  const { interrupt, save, ranges, part, tags, folder } = await scene(t);
  const flip = async (file: string, at: number): Promise<void> => {
    const bytes = await readFile(file);
    bytes[at] = (bytes[at] ?? 0) ^ 1;
    await writeFile(file, bytes);
  };
  const exchange = async (): Promise<void> => {
    const bytes = await readFile(part);
    const second = bytes.subarray(BLOB_CHUNK_BYTES, 2 * BLOB_CHUNK_BYTES);
    await writeFile(part, Buffer.concat([second, bytes.subarray(BLOB_CHUNK_BYTES)]));
  };
  const harms: readonly (readonly [what: string, harm: () => Promise<void>, kept: number])[] = [
    ['nothing', () => Promise.resolve(), KEPT],
    ['a bit of the part', () => flip(part, 7 * BLOB_CHUNK_BYTES + 9), 7],
    ['a bit of a tag', () => flip(tags, 5 * AEAD_TAG_BYTES + 15), 5],
    ['exchanged chunks', exchange, 0],
    ['a part that is cut', () => truncate(part, 3 * BLOB_CHUNK_BYTES + 1), 3],
    ['tags that are cut', () => truncate(tags, 4 * AEAD_TAG_BYTES + 1), 4],
    ['no tags', () => truncate(tags, 0), 0],
    ['a part of zeros, as after a loss of power', () => writeFile(part, Buffer.alloc(9e6)), 0],
    ['tags of zeros', () => writeFile(tags, Buffer.alloc(1e4)), 0],
  ];
  for (const [what, harm, kept] of harms) {
    await interrupt();
    t.equal((await stat(part)).mode & 0o777, 0o600);
    await harm();
    await save();
    t.strictSame(ranges, [kept === 0 ? null : rangeFrom(kept)], what);
    t.strictSame(await readdir(folder), ['copy.bin'], 'nothing beside it');
    await truncate(join(folder, 'copy.bin'), 0);
  }
});

t.test('CBLOB-48: what is not surely its own is neither read nor written', async (t) => {
  const { save, part, tags, folder, ranges } = await scene(t);
  const victim = join(folder, 'victim');
  await writeFile(victim, 'mine', { mode: 0o600 });
  const plants: Readonly<Record<string, (path: string) => Promise<void>>> = {
    'a symbolic link': (path) => symlink(victim, path),
    'a hard link': (path) => link(victim, path),
    'a file that is open to others': async (path) => {
      await writeFile(path, CONTENT.subarray(0, 6e6));
      await chmod(path, 0o666);
    },
    'a folder': async (path) => {
      await mkdir(path);
    },
  };
  for (const [what, plant] of Object.entries(plants)) {
    for (const place of [part, tags]) {
      await plant(place);
      ranges.length = 0;
      await save();
      t.strictSame(ranges, [null], what);
      t.equal(await readFile(victim, 'utf8'), 'mine');
      for (const path of [part, tags]) await rm(path, { recursive: true, force: true });
    }
  }
  t.strictSame((await readdir(folder)).sort(), ['copy.bin', 'victim']);
});

t.test('CBLOB-48: two downloads at once do not mix, and a name that is taken stays', async (t) => {
  const { client, id, path, folder, interrupt, save } = await scene(t);
  await interrupt();
  await Promise.all([save(), save(), save()]);
  t.strictSame(await readdir(folder), ['copy.bin']);
  await t.rejects(saveBlob(client.device, { id, path }), { code: 'EEXIST' });
  await writeFile(path, 'mine');
  await t.rejects(saveBlob(client.device, { id, path }), { code: 'EEXIST' });
  t.equal(await readFile(path, 'utf8'), 'mine');
});
