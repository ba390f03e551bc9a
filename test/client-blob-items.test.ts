/** Items with blobs, between real clients on a real server with its local store. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import t from 'tap';
import { bytesSource, type BlobSource } from '../src/sdk/blobs/source.js';
import type { Device } from '../src/sdk/device.js';
import { wholePayload } from '../src/sdk/payloads/shapes.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { BLOB_CHUNK_BYTES } from '../src/crypto/blob-stream.js';
import { settle } from './support/client.js';
import { next, note, refusal, shows, wiretap, world, writes, type World } from './support/client-world.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';

const CONTENT = Uint8Array.from({ length: 2.5 * BLOB_CHUNK_BYTES }, (_, at) => (at * 7) % 251);
const file = (
  content: BlobSource = bytesSource(CONTENT),
  more: { readonly id?: string; readonly ts?: number } = {},
) => ({
  ...{ binId: 'inbox', type: 'file' as const, content, ...more },
  payload: { name: 'a.bin', size: content.size, mime: 'application/octet-stream' },
});

const bytesOf = (device: Device, id: string): Promise<Buffer> => buffer(device.blob(id));

const isContent = (bytes: Buffer): boolean => bytes.equals(CONTENT);

/** Two devices that see each other's writes. */
async function two(
  t: WithTeardown,
  options: Parameters<typeof world>[1] = {},
): Promise<World & { readonly second: World['first'] }> {
  const all = await world(t, options);
  await all.first.device.connect();
  const second = await all.pair();
  await second.device.connect();
  return { ...all, second };
}

t.test('CBLOB-15: the other device reads, moves and replaces a file, and its store sees ciphertext', async (t) => {
  const dataDir = await temporaryFolder(t);
  const { first, second } = await two(t, { env: { DATA_DIR: dataDir } });
  const { id } = await first.device.put(file());
  const seen = await shows(second, id);
  t.match(seen, { type: 'file', payload: { name: 'a.bin', size: CONTENT.length }, blob: { holds: 'file' } });
  t.ok(isContent(await bytesOf(second.device, id)));
  const { url, size, expiresAt } = await second.device.blobUrl(id);
  t.equal(await second.device.blobSize(id), CONTENT.length);
  const object = await fetch(url).then((response) => response.arrayBuffer());
  t.equal(object.byteLength, size);
  t.ok(expiresAt > Date.now());
  t.notOk(Buffer.from(object).includes(Buffer.from(CONTENT.subarray(0, 64))));
  const names = (await readdir(dataDir, { recursive: true })).filter((name) => name.endsWith('.bin'));
  t.equal(names.length, 1);
  t.ok((await readFile(join(dataDir, names[0] ?? ''))).equals(Buffer.from(object)));

  await second.device.bins.create('other', { name: 'Other' });
  await second.device.move(id, 'other');
  await shows(first, id, ({ binId }) => binId === 'other');
  t.ok(isContent(await bytesOf(first.device, id)), 'a move leaves the content as it is');
  await first.device.put(file(bytesSource(new Uint8Array(3)), { id }));
  await shows(second, id, ({ payload }) => payload?.['size'] === 3);
  t.strictSame([...(await bytesOf(second.device, id))], [0, 0, 0], 'another file replaces the content');
  const gone = next(second, 'delete', (event) => event.id === id);
  await first.device.delete(id);
  await gone;
  t.match(await refusal(bytesOf(second.device, id)), { code: 'unknown_item' });
  const { id: plain } = await first.device.put(note('no file'));
  t.match(await refusal(bytesOf(first.device, plain)), { code: 'no_blob' });
  t.match(await refusal(first.device.blobUrl(plain)), { code: 'no_blob' });
  t.same([first.problems, second.problems], [[], []]);
});

t.test('CLIENT-43: a file is stored where a device that has a key of it is revoked meanwhile', async (t) => {
  const { first, second, open } = await two(t);
  const tap = wiretap();
  let revoked = (): void => undefined;
  const over = new Promise<void>((resolve) => (revoked = resolve));
  let wait = (): void => undefined;
  const waits = new Promise<void>((resolve) => (wait = resolve));
  const fetch: typeof tap.platform.fetch = async (url, init) => {
    if (init.method === 'POST' && /\/api\/items(\?|$)/.test(url)) {
      wait();
      await over;
    }
    return tap.platform.fetch(url, init);
  };
  const program = await open(first.identity(), { tap: { ...tap, platform: { ...tap.platform, fetch } } });
  const stored = program.device.put(file());
  await waits;
  await first.device.revoke(second.device.id);
  revoked();
  const { id } = await stored;
  await shows(first, id);
  t.ok(isContent(await bytesOf(first.device, id)));
  const written = writes(program).map(({ blobKeys }) => Object.keys(blobKeys as object).includes(second.device.id));
  t.same(written, [true, false], 'the second time without its key');
});

t.test('CBLOB-16: a device that joins later reads the existing files', async (t) => {
  const all = await world(t);
  const { id } = await all.first.device.put(file());
  const { id: text } = await all.first.device.put(note('x'.repeat(100_000)));
  await all.first.device.connect();
  const second = await all.pair();
  await second.device.pull();
  t.ok(isContent(await bytesOf(second.device, id)));
  t.equal((await second.device.payload(text))?.['text'], 'x'.repeat(100_000));
  // With its own key alone, as where a server removed the master wrap, which no tag covers.
  const [row] = writes(all.first)
    .filter((body) => body['id'] === id)
    .slice(-1);
  t.ok(Object.keys(row?.['blobKeys'] as object).includes(second.device.id), 'the blob has a key for the new device');
});

t.test(
  'CBLOB-12: a payload that is too large for an item goes into a blob, and lists show its beginning',
  async (t) => {
    const { first, second } = await two(t);
    const text = `Grüße ${'🔑'.repeat(40_000)}`;
    const { id } = await first.device.put({ ...note(text), type: 'code', payload: { lang: 'x', label: 'y', text } });
    const seen = await shows(second, id);
    t.match(seen, { payload: { lang: 'x', label: 'y' }, blob: { holds: 'payload' } });
    const shown = String(seen.payload?.['text']);
    t.ok(text.startsWith(shown) && shown.length > 900 && !/[\ud800-\udbff]$/.test(shown), `${shown.length} characters`);
    t.same(await second.device.payload(id), { lang: 'x', label: 'y', text });
    t.same((await first.device.list()).length, 1);
    await first.device.put({ ...note('short'), id });
    await shows(second, id, ({ blob }) => blob === null);
    t.same(await second.device.payload(id), { text: 'short' }, 'an inline payload is complete');
    const most = 16 * 1024 * 1024;
    t.equal(wholePayload({ text: 'x'.repeat(most - '{"text":""}'.length) }).length, most, 'up to 16 MiB');
    const large = { ...note('x'.repeat(most - '{"text":""}'.length + 1)) };
    t.match(await refusal(first.device.put(large)), { name: 'CryptoRefusal', reason: 'too_large' });
    t.match(await refusal(first.device.put({ ...note('x'), content: bytesSource(CONTENT) })), { name: 'RangeError' });
  },
);

t.test('CBLOB-13: an item that is refused after its upload is reported as refused', async (t) => {
  const { first, second } = await two(t);
  const nowhere = { ...file(), binId: 'nowhere' };
  t.match(await refusal(first.device.put(nowhere)), { name: 'ApiError', code: 'bin_not_found' });
  const { id } = await first.device.put(file());
  await shows(second, id);
  let reads = 0;
  /** While this source is read, the other device writes the item. */
  const raced: BlobSource = {
    size: CONTENT.length,
    async *open() {
      if (reads++ === 0) {
        const nine = file(bytesSource(new Uint8Array(9)), { id, ts: Date.now() + 60_000 });
        const { version } = await second.device.put(nine);
        await shows(first, id, (item) => item.version === version);
      }
      yield CONTENT;
    },
  };
  t.match(await refusal(first.device.put(file(raced, { id }))), { name: 'ApiError', code: 'conflict' });
  t.equal((await first.device.get(id))?.payload?.['size'], 9, 'the item of the other device stays');
  reads = 0;
  await first.device.put({ ...file(raced, { id }), onConflict: 'overwrite' });
  t.equal(reads, 2, 'the blob is bound to a later time, hence uploaded again');
  await shows(second, id, ({ payload }) => payload?.['size'] === CONTENT.length);
  t.ok(isContent(await bytesOf(second.device, id)));
});

t.test('CBLOB-17: without a server nothing is uploaded or queued; an item with an uploaded blob waits', async (t) => {
  const tap = wiretap();
  const all = await world(t, { tap });
  const { first } = all;
  const { fetch: truth, clock } = tap.platform;
  let down: (url: string) => boolean = () => true;
  const hasty = { ...clock, setTimer: (ms: number, fn: () => void) => clock.setTimer(ms > 10_000 ? ms : 1, fn) };
  Object.assign(tap.platform, {
    clock: hasty,
    fetch: (url: string, init: RequestInit) =>
      down(url) ? Promise.reject(new TypeError('unreachable')) : truth(url, init),
  });
  const client = await all.open(first.identity(), { tap });
  down = () => false;
  await client.device.devices.list();
  down = (url) => url.includes('/blobs/');
  t.match(await refusal(client.device.put(file())), { name: 'NetworkError' });
  t.same(await client.device.list(), [], 'nothing is queued');
  down = (url) => /\/api\/items(\?|$)/.test(url);
  const error = await refusal(client.device.put(file()));
  t.equal(error.code, 'queued');
  t.match(await client.device.list(), [{ pending: true, blob: { holds: 'file' } }]);
  const sent = next(client, 'sent');
  down = () => false;
  const { id } = await sent;
  t.ok(isContent(await bytesOf(client.device, id)));
});

t.test('CBLOB-18: limits are reported before anything is read or sent, and count what is stored', async (t) => {
  const { first, second } = await two(t, { env: { MAX_BLOB_SIZE_MB: '1', STORAGE_CAP_BYTES: '600000' } });
  const sized = (size: number): BlobSource => ({
    size,
    open: () => {
      throw new Error('it was read');
    },
  });
  t.match(await refusal(first.device.put(file(sized(2_000_000)))), { name: 'ApiError', code: 'blob_too_large' });
  t.match(await refusal(first.device.put(file(sized(700_000)))), { name: 'ApiError', code: 'storage_cap_exceeded' });
  const { id } = await first.device.put(file());
  await shows(second, id);
  const { storageUsedBytes } = (await first.device.me()).server;
  t.ok(storageUsedBytes > CONTENT.length && storageUsedBytes < CONTENT.length + 20_000, `${storageUsedBytes} bytes`);
});

t.test('CLIENT-65: a file that overwrites is kept after a refusal until the caller has kept it', async (t) => {
  const all = await world(t);
  const store = new MemoryStore();
  const { device } = await all.open((await all.pair()).identity(), { store });
  const told: Error[] = [];
  let keep = (): void => undefined;
  const onRefused = (error: Error): Promise<void> => {
    told.push(error);
    return new Promise((resolve) => (keep = resolve));
  };
  const putting = device.put({ ...file(), binId: 'missing', onConflict: 'overwrite', onRefused });
  t.match(await refusal(putting), { code: 'bin_not_found' });
  await settle();
  t.match(told, [{ code: 'bin_not_found' }]);
  t.equal((await store.pending()).length, 1, 'a program that ends now is told again');
  keep();
  await settle();
  t.same(await store.pending(), []);
});
