/** Downloads to a file that resume, and foreign files that may lie in the place of their partial data. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { statSync } from 'node:fs';
import {
  chmod,
  chown,
  copyFile,
  link,
  mkdir,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  symlink,
  truncate,
  writeFile,
} from 'node:fs/promises';
import { basename, join } from 'node:path';
import t, { type Test } from 'tap';
import { AEAD_TAG_BYTES } from '../src/protocol/limits.js';
import { BLOB_CHUNK_BYTES, SEALED_CHUNK_BYTES } from '../src/crypto/blob-stream.js';
import type { ChunkPlace, KeptChunk } from '../src/sdk/blobs/chunk-place.js';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { saveBlob } from '../src/sdk/node-download.js';
import { world, type Client } from './support/client-world.js';
import { until } from './support/events.js';
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
  /** Downloads `KEPT` chunks and is cancelled. */
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
      // One more chunk may have arrived.
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

t.test('CBLOB-47 CBLOB-48: another run resumes a download after the chunks on disk that authenticate', async (t) => {
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
    t.strictSame(await readdir(folder), ['copy.bin'], 'nothing is left beside the file');
    await truncate(join(folder, 'copy.bin'), 0);
  }
});

t.test('CBLOB-48: a link, a folder or a file open to others in the place of partial data is not used', async (t) => {
  const { save, part, tags, folder, path: target, ranges } = await scene(t);
  const victim = join(folder, 'victim');
  await writeFile(victim, 'mine', { mode: 0o600 });
  const plants: Record<string, (path: string) => Promise<void>> = {
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
  // Only root can plant a file of another user.
  if (process.getuid?.() === 0)
    plants['a file of another user'] = async (path) => {
      await writeFile(path, CONTENT.subarray(0, 6e6), { mode: 0o600 });
      await chown(path, 12_345, 12_345);
    };
  for (const [what, plant] of Object.entries(plants)) {
    for (const place of [part, tags]) {
      await plant(place);
      ranges.length = 0;
      await save();
      t.strictSame(ranges, [null], what);
      t.equal(await readFile(victim, 'utf8'), 'mine');
      t.equal((await stat(target)).uid, process.getuid?.(), what);
      for (const path of [part, tags]) await rm(path, { recursive: true, force: true });
    }
  }
  t.strictSame((await readdir(folder)).sort(), ['copy.bin', 'victim']);
});

t.test(
  'CBLOB-48: concurrent downloads do not mix, and an existing file is not replaced unless requested',
  async (t) => {
    const { client, id, path, folder, interrupt, save } = await scene(t);
    await interrupt();
    await Promise.all([save(), save(), save()]);
    t.strictSame(await readdir(folder), ['copy.bin']);
    await t.rejects(saveBlob(client.device, { id, path }), { code: 'EEXIST' });
    await writeFile(path, 'mine');
    await t.rejects(saveBlob(client.device, { id, path }), { code: 'EEXIST' });
    t.equal(await readFile(path, 'utf8'), 'mine');
  },
);

t.test('CBLOB-55: a download makes no folder, and follows no link in the place of its lock', async (t) => {
  const { client, id, folder, save } = await scene(t);
  await t.rejects(saveBlob(client.device, { id, path: join(folder, 'typo', 'copy.bin') }), { code: 'ENOENT' });
  t.strictSame(await readdir(folder), []);
  await mkdir(join(folder, 'mail'));
  await writeFile(join(folder, 'mail', '7'), 'a letter');
  await symlink(join(folder, 'mail'), join(folder, `.copy.bin.${id}.lock`));
  await save();
  t.strictSame(await readdir(join(folder, 'mail')), ['7']);
});

t.test('CBLOB-55: a failure leaves no lock', async (t) => {
  const { client, id, path, interrupt, save, part, tags, folder, ranges } = await scene(t);
  await interrupt();
  const aside = `${tags}.aside`;
  await rename(tags, aside);
  // The system refuses to open a running program for writing.
  await copyFile('/bin/sleep', tags);
  await chmod(tags, 0o700);
  const running = spawn(tags, ['600']);
  await once(running, 'spawn');
  await t.rejects(saveBlob(client.device, { id, path }), { code: 'ETXTBSY' });
  running.kill('SIGKILL');
  await once(running, 'exit');
  t.strictSame((await readdir(folder)).sort(), [part, tags, aside].map((name) => basename(name)).sort());
  await rename(aside, tags);
  await save();
  t.strictSame(ranges, [rangeFrom(KEPT)]);
});

t.test('CBLOB-56: partial data stays where the same call may succeed later, and is removed otherwise', async (t) => {
  const { client, id, path, interrupt, save, folder, ranges } = await scene(t);
  const truth = client.tap.blobs;
  const answer = (status: number) => () =>
    Promise.resolve(new Response(null, { status, headers: { location: '/other', 'retry-after': '900' } }));
  const stopped = { signal: AbortSignal.abort() };
  const harms: readonly (readonly [what: string, code: string, stays: boolean, blobs?: typeof truth])[] = [
    ['cancelled before it began', 'cancelled', true],
    ['an answer that is none', 'malformed', true],
    ['a redirect', 'bad_url', true, answer(302)],
    ['a busy store', 'http_503', true, answer(503)],
    ['a blob that is gone', 'blob_not_found', false, answer(404)],
    ['another blob', 'bad_ct', false, () => Promise.resolve(new Response(Buffer.alloc(70_000)))],
  ];
  for (const [what, code, stays, blobs] of harms) {
    await interrupt();
    if (blobs !== undefined) client.tap.blobs = blobs;
    if (code === 'malformed')
      client.tap.alterReply = ({ path: asked }) => (asked.endsWith('/url') ? { url: 5 } : undefined);
    const saving = saveBlob(client.device, { id, path }, code === 'cancelled' ? stopped : {});
    const told: unknown = await saving.catch((error: unknown) => error);
    t.match(told, { [code === 'bad_ct' ? 'reason' : 'code']: code }, what);
    client.tap.blobs = truth;
    client.tap.alterReply = () => undefined;
    if (!stays) t.strictSame(await readdir(folder), [], what);
    ranges.length = 0;
    await save();
    t.strictSame(ranges, [stays ? rangeFrom(KEPT) : null], what);
    await rm(path);
  }
});

t.test('CBLOB-57: a cancel also ends the check of the partial data on disk', async (t) => {
  const { client, id } = await scene(t);
  const chunks: KeptChunk[] = [];
  const place: ChunkPlace = {
    kept: (at) => Promise.resolve(chunks[at]),
    begin: () => Promise.resolve(),
    add: (plain, tag) => {
      chunks.push({ plain: new Uint8Array(plain), tag: new Uint8Array(tag) });
      return Promise.resolve();
    },
  };
  await client.device.blobInto(id, place);
  const stop = new AbortController();
  let asked = 0;
  const kept: ChunkPlace['kept'] = (at) => {
    asked++;
    if (at === 3) stop.abort();
    return place.kept(at);
  };
  await t.rejects(client.device.blobInto(id, { ...place, kept }, { signal: stop.signal }), { code: 'cancelled' });
  t.equal(asked, 4);
});

t.test('CBLOB-58: a download whose lock another program took over does not touch its files any more', async (t) => {
  const { client, id, path, folder, interrupt, save, part, tags } = await scene(t);
  await interrupt();
  // Less than 5 MiB, which a download that ends removes where the files are its own.
  const [partBytes, tagBytes] = [3 * BLOB_CHUNK_BYTES, 3 * AEAD_TAG_BYTES];
  await truncate(part, partBytes);
  await truncate(tags, tagBytes);
  const lock = join(folder, `.copy.bin.${id}.lock`);
  const truth = client.tap.blobs;
  client.tap.blobs = async (url, init) => {
    const [own = ''] = await readdir(lock);
    const touched = (): number => statSync(join(lock, own)).mtimeMs;
    const before = touched();
    await writeFile(join(lock, String(Number(own) + 1)), `${process.ppid} 0123456789abcdef`);
    // The next touch notices that the lock is lost.
    await until('it is touched', () => touched() > before);
    return truth(url, init);
  };
  await t.rejects(saveBlob(client.device, { id, path }), { message: /taken over/ });
  t.equal((await stat(part)).size, partBytes);
  t.equal((await stat(tags)).size, tagBytes);
  t.strictSame((await readdir(folder)).sort(), [lock, part, tags].map((name) => basename(name)).sort());
  client.tap.blobs = truth;
  await rm(lock, { recursive: true });
  await save();
});

t.test('CBLOB-63: partial data of content that has since been replaced is not used for the new content', async (t) => {
  const { client, id, path, interrupt, ranges, folder } = await scene(t);
  await interrupt();
  const other = Buffer.from(CONTENT);
  other[8 * 1024 * 1024] = (other[8 * 1024 * 1024] ?? 0) ^ 1;
  const payload = { name: 'a.bin', size: other.length, mime: 'application/octet-stream' };
  await client.device.put({ id, binId: 'inbox', type: 'file', payload, content: bytesSource(other) });
  ranges.length = 0;
  await saveBlob(client.device, { id, path });
  t.ok((await readFile(path)).equals(other));
  t.strictSame(ranges, [null]);
  t.strictSame(await readdir(folder), ['copy.bin']);
});

t.test('CBLOB-55: a value that is not an item id is refused and creates no file', async (t) => {
  const { client, path, folder } = await scene(t);
  for (const id of ['../x', '', 'a/b', '..', '01ARZ3NDEKTSV4RRFFQ69G5FAV/../x'])
    await t.rejects(saveBlob(client.device, { id, path }), { code: 'unknown_item' });
  t.strictSame(await readdir(folder), []);
});
