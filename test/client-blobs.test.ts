/** Uploads and downloads of blobs: what a device sends to a store and accepts from it. */
import { buffer } from 'node:stream/consumers';
import t from 'tap';
import { downloadBlob } from '../src/sdk/blobs/download.js';
import { bytesSource, fileSource, type BlobProgress } from '../src/sdk/blobs/source.js';
import { uploadBlob, type UploadedBlob } from '../src/sdk/blobs/upload.js';
import { BLOB_CHUNK_BYTES, SEALED_CHUNK_BYTES, sealedBlobSize } from '../src/crypto/blob-stream.js';
import { concat } from '../src/protocol/bytes.js';
import {
  decryptorOf,
  PART_BYTES,
  standInStore,
  transfers,
  type StandInStore,
  type Transfers,
  type Trick,
} from './support/blob-store.js';
import { newId } from './support/client.js';
import { until } from './support/events.js';

const HEAD = { id: newId(), type: 'file', ts: () => 1_760_000_000_123 } as const;
const counted = (length: number): Uint8Array => Uint8Array.from({ length }, (_, at) => at % 251);
const THREE = counted(2.5 * BLOB_CHUNK_BYTES);

const status =
  (code: number, headers: Record<string, string> = {}): Trick =>
  (_, response) => {
    response.writeHead(code, headers).end('<Error/>');
    return true;
  };

/** Sends the first `bytes` bytes of the object, then cuts the connection. */
const cutAfter =
  (store: StandInStore, bytes: number): Trick =>
  ({ path }, response) => {
    const object = store.objects.get(path) ?? Buffer.alloc(0);
    response.writeHead(200, { 'content-length': object.length });
    response.write(object.subarray(0, bytes), () => response.destroy());
    return true;
  };

const upload = (all: Transfers): Promise<UploadedBlob> =>
  uploadBlob(all.ports, { ...HEAD, source: bytesSource(THREE) });

const download = (all: Transfers, { ref, draft }: UploadedBlob): Promise<Buffer> =>
  buffer(downloadBlob(all.ports, { ref, decryptor: decryptorOf(draft, ref) }));

const same = (one: Uint8Array, other: Uint8Array): boolean => Buffer.from(one).equals(other);

void t.test(
  'CBLOB-01 CBLOB-14: a file of any size arrives unchanged, in parts of 5 MiB at most, each with its length',
  async (t) => {
    const store = await standInStore(t);
    const all = transfers(store);
    for (const size of [0, 1, BLOB_CHUNK_BYTES - 1, BLOB_CHUNK_BYTES, BLOB_CHUNK_BYTES + 1, 9 * 1024 * 1024]) {
      const bytes = counted(size);
      const seen: BlobProgress[] = [];
      const source = fileSource(new Blob([Buffer.from(bytes)]));
      const done = await uploadBlob(all.ports, { ...HEAD, source }, { onProgress: (one) => seen.push(one) });
      const lengths = store.calls.splice(0).map(({ headers }) => Number(headers['content-length']));
      t.equal(
        lengths.reduce((sum, length) => sum + length),
        sealedBlobSize(size),
        `${size} bytes`,
      );
      t.ok(lengths.every((length) => length <= PART_BYTES));
      t.match([seen[0], seen.at(-1)], [{ done: 0 }, { done: size, total: size }]);
      t.ok(same(await download(all, done), bytes));
      store.objects.clear();
      store.calls.length = 0;
    }
  },
);

void t.test('CBLOB-02: an upload sends the specified headers, and no token, cookie or referrer', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const plain = all.alterGrant;
  const size = sealedBlobSize(THREE.length);
  const told = { 'Content-Type': 'application/octet-stream', 'x-amz-meta-a': 'b', 'content-length': String(size) };
  all.alterGrant = (grant) => ({ ...plain(grant), headers: told });
  const asked: RequestInit[] = [];
  const { fetch } = all.ports;
  const watching = {
    ...all.ports,
    fetch: (url: string, init: RequestInit) => {
      asked.push(init);
      return fetch(url, init);
    },
  };
  await download({ ...all, ports: watching }, await upload({ ...all, ports: watching }));
  t.match(store.calls[0]?.headers, {
    ...{ 'content-type': 'application/octet-stream', 'x-amz-meta-a': 'b', 'content-length': String(size) },
  });
  t.same(
    store.calls.map(({ method, headers }) => [method, headers.authorization, headers.cookie, headers.referer]),
    ['PUT', 'GET'].map((method) => [method, undefined, undefined, undefined]),
  );
  // What keeps a browser, which unlike Node has cookies and an address to refer from, from sending them.
  for (const init of asked) t.match(init, { credentials: 'omit', referrerPolicy: 'no-referrer' });
});

void t.test('CBLOB-03: a refused or interrupted part is sent again to a fresh URL, with the same bytes', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const drop: Trick = (_, response) => {
    response.destroy();
    return true;
  };
  store.tricks.push(status(403), drop, status(404));
  const done = await upload(all);
  t.strictSame(all.granted, [done.ref, done.ref, done.ref, done.ref], 'four URLs for one reference');
  t.equal(new Set(store.calls.map(({ body }) => body.toString('hex'))).size, 1, 'one key for one plaintext');
  t.ok(same(await download(all, done), THREE));
  store.tricks.push(status(403), status(403), status(403));
  await t.rejects(upload(all), { name: 'ApiError', status: 403 }, 'the number of attempts is limited');
});

void t.test(
  'CBLOB-04: an interrupted download resumes at its chunk, even if the store does not support ranges',
  async (t) => {
    const store = await standInStore(t);
    const all = transfers(store);
    const done = await upload(all);
    store.calls.length = 0;
    store.tricks.push(cutAfter(store, SEALED_CHUNK_BYTES + 1_000));
    t.ok(same(await download(all, done), THREE));
    t.strictSame(
      store.calls.map(({ headers }) => headers.range),
      [undefined, `bytes=${SEALED_CHUNK_BYTES}-`],
    );
    const whole: Trick = ({ path }, response) => {
      response.writeHead(200).end(store.objects.get(path));
      return true;
    };
    store.tricks.push(cutAfter(store, 2 * SEALED_CHUNK_BYTES + 5), whole);
    t.ok(same(await download(all, done), THREE), 'the beginning is sent again and skipped');
    const other: Trick = (_, response) => {
      response.writeHead(206, { 'content-range': 'bytes 7-9/10' }).end('xyz');
      return true;
    };
    store.tricks.push(cutAfter(store, SEALED_CHUNK_BYTES + 1), other);
    await t.rejects(download(all, done), { name: 'ProtocolError', code: 'malformed' });
  },
);

void t.test('CBLOB-33: a blob is read from any byte on by fetching only the chunks from there', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const done = await upload(all);
  const read = async (from: number, seen: BlobProgress[] = []): Promise<Uint8Array> => {
    const decryptor = decryptorOf(done.draft, done.ref);
    const parts: Uint8Array[] = [];
    const options = { from, onProgress: (one: BlobProgress) => seen.push(one) };
    for await (const part of downloadBlob(all.ports, { ref: done.ref, decryptor }, options)) parts.push(part);
    t.ok(parts.every(({ length }) => length > 0));
    return concat(parts);
  };
  const chunk = BLOB_CHUNK_BYTES;
  const starts = [
    0,
    1,
    chunk - 1,
    chunk,
    chunk + 1,
    2 * chunk,
    THREE.length - 1,
    THREE.length,
    THREE.length + 1,
    2 ** 40,
  ];
  for (const from of starts) {
    store.calls.length = 0;
    const seen: BlobProgress[] = [];
    t.ok(same(await read(from, seen), THREE.subarray(from)), `from ${from}`);
    const first = Math.min(2, Math.floor(from / chunk));
    const range = first === 0 ? undefined : `bytes=${first * SEALED_CHUNK_BYTES}-`;
    t.strictSame(
      store.calls.map(({ headers }) => headers.range),
      [range],
    );
    t.match(seen.at(-1), { done: THREE.length, total: THREE.length });
    t.ok((seen[0]?.done ?? 0) > first * chunk, 'the chunks that are not fetched count as done');
  }
  store.tricks.push(cutAfter(store, 100));
  t.ok(same(await read(chunk + 5), THREE.subarray(chunk + 5)), 'an interrupted read resumes at its chunk');
  all.size = () => null;
  t.ok(same(await read(chunk + 5), THREE.subarray(chunk + 5)), 'a blob of unknown size is read from the beginning');
  t.equal((await read(THREE.length)).length, 0);
  // Truncated at the end of a chunk, and the reported size matches the rest.
  const path = `/${done.ref}`;
  store.objects.set(path, (store.objects.get(path) ?? Buffer.alloc(0)).subarray(0, 2 * SEALED_CHUNK_BYTES));
  all.size = () => 2 * SEALED_CHUNK_BYTES;
  for (const from of [chunk + 5, 2 * chunk, THREE.length]) {
    await t.rejects(read(from), { name: 'CryptoRefusal', reason: 'bad_ct' }, `a truncated blob, from ${from}`);
  }
  for (const from of [-1, 0.5, NaN]) await t.rejects(read(from), RangeError);
});

void t.test('CBLOB-05: a URL that is refused or has less than 60 s left is replaced by a fresh one', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const done = await upload(all);
  all.granted.length = 0;
  store.tricks.push(cutAfter(store, SEALED_CHUNK_BYTES + 1), status(403));
  t.ok(same(await download(all, done), THREE));
  t.equal(all.granted.length, 2, 'one URL for the first two attempts, a fresh one after the refusal');
  const plain = all.alterGrant;
  all.alterGrant = (grant) => ({ ...plain(grant), expiresAt: all.clock.now() + 59_999 });
  all.granted.length = 0;
  store.tricks.push(cutAfter(store, SEALED_CHUNK_BYTES + 1));
  t.ok(same(await download(all, done), THREE));
  t.equal(all.granted.length, 2);
  store.tricks.push(...Array.from({ length: 9 }, () => status(403)));
  await t.rejects(download(all, done), { name: 'ApiError', status: 403 }, 'the number of fresh URLs is limited');
  t.ok(store.tricks.length > 4, `${store.tricks.length} of the refusals were not used`);
});

void t.test('CBLOB-06: a busy store is waited for as Retry-After says, up to a minute; five attempts', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  store.tricks.push(status(503, { 'retry-after': '7' }), status(429, { 'retry-after': '3' }));
  const done = await upload(all);
  t.strictSame(all.clock.waits, [7_000, 3_000]);
  all.clock.waits.length = 0;
  store.tricks.push(status(503, { 'retry-after': '2' }));
  t.ok(same(await download(all, done), THREE));
  t.strictSame(all.clock.waits, [2_000]);
  store.tricks.push(status(503, { 'retry-after': '59' }));
  const patient = download(all, done);
  await until('the wait', () => all.clock.waitsFor(59_000));
  all.clock.ring();
  t.ok(same(await patient, THREE));
  store.tricks.push(status(503, { 'retry-after': '66' }));
  await t.rejects(download(all, done), { name: 'ApiError', status: 503, retryAfter: 66 }, 'above a minute it gives up');
  store.tricks.push(...Array.from({ length: 20 }, () => status(500)));
  await t.rejects(upload(all), { name: 'ApiError', status: 500 });
  t.equal(store.tricks.length, 15, 'five attempts');
});

void t.test('CLIENT-48 CBLOB-06: devices that a busy store sends away do not come back in step', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  all.random = 0.5;
  store.tricks.push(status(503, { 'retry-after': '8' }), status(429, { 'retry-after': '2' }));
  const done = await upload(all);
  t.strictSame(all.clock.waits, [9_000, 2_500]);
  all.clock.waits.length = 0;
  store.tricks.push(status(503, { 'retry-after': '2' }));
  t.ok(same(await download(all, done), THREE));
  t.strictSame(all.clock.waits, [2_500]);
});

void t.test(
  'CBLOB-07: changed, truncated, extended or exchanged bytes are refused before they are handed on',
  async (t) => {
    const store = await standInStore(t);
    const all = transfers(store);
    const done = await upload(all);
    const path = `/${done.ref}`;
    const good = store.objects.get(path) ?? Buffer.alloc(0);
    const another = await upload(all);
    const chunk = (at: number): Buffer => good.subarray(at * SEALED_CHUNK_BYTES, (at + 1) * SEALED_CHUNK_BYTES);
    const flipped = Buffer.from(good);
    flipped[SEALED_CHUNK_BYTES + 9] = (flipped[SEALED_CHUNK_BYTES + 9] ?? 0) ^ 1;
    const lies: readonly (readonly [what: string, bytes: Buffer, handedOn: number])[] = [
      ['flipped', flipped, BLOB_CHUNK_BYTES],
      ['cut at a chunk', good.subarray(0, 2 * SEALED_CHUNK_BYTES), BLOB_CHUNK_BYTES],
      ['cut in a chunk', good.subarray(0, -1), 2 * BLOB_CHUNK_BYTES],
      ['extended', Buffer.concat([good, Buffer.from('x')]), 2 * BLOB_CHUNK_BYTES],
      ['exchanged chunks', Buffer.concat([chunk(1), chunk(0), chunk(2)]), 0],
      ['a chunk left out', Buffer.concat([chunk(0), chunk(2)]), BLOB_CHUNK_BYTES],
      ["another blob's", store.objects.get(`/${another.ref}`) ?? Buffer.alloc(0), 0],
      ['nothing', Buffer.alloc(0), 0],
    ];
    for (const [what, bytes, handedOn] of lies) {
      for (const said of [bytes.length, good.length, null, Number.MAX_SAFE_INTEGER]) {
        store.objects.set(path, bytes);
        all.size = () => said;
        let got = 0;
        const decryptor = decryptorOf(done.draft, done.ref);
        const reading = (async () => {
          for await (const part of downloadBlob(all.ports, { ref: done.ref, decryptor })) {
            t.ok(same(part, THREE.subarray(got, got + part.length)), 'only the original bytes are handed on');
            got += part.length;
          }
        })();
        await t.rejects(reading, { name: 'CryptoRefusal', reason: 'bad_ct' }, `${what}, reported size ${said}`);
        t.ok(got <= handedOn, `${what}: ${got} bytes were handed on`);
      }
    }
    store.objects.set(path, good);
    all.size = () => Number.MAX_SAFE_INTEGER;
    t.ok(same(await download(all, done), THREE), 'a wrong size alone costs attempts, not content');
    store.objects.delete(path);
    await t.rejects(download(all, done), { name: 'ApiError', code: 'blob_not_found' });
  },
);
