/** Uploads that resume: after an interruption, in another run, and where server, source or store have changed. */
import { randomBytes } from 'node:crypto';
import { buffer } from 'node:stream/consumers';
import t, { type Test } from 'tap';
import { sealedBlobSize } from '../src/crypto/blob-stream.js';
import { draftBlob } from '../src/crypto/item.js';
import { BegunUploads } from '../src/sdk/blobs/begun.js';
import { Blobs, downloadBlob } from '../src/sdk/blobs/download.js';
import type { BlobSource } from '../src/sdk/blobs/source.js';
import { uploadBlob, type UploadedBlob } from '../src/sdk/blobs/upload.js';
import { ApiError, ClientError, NetworkError } from '../src/sdk/errors.js';
import type { UploadState } from '../src/sdk/replies.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import {
  decryptorOf,
  PART_BYTES,
  standInStore,
  transfers,
  type StandInStore,
  type StoreCall,
  type Transfers,
  type Trick,
} from './support/blob-store.js';
import { newId } from './support/client.js';

const HEAD = { type: 'file', ts: () => 1_760_000_000_123 } as const;
const CONTENT = randomBytes(18 * 1024 * 1024 + 5);

const sourceOf = (bytes: Uint8Array, state = '1', opened: () => void = () => undefined): BlobSource => ({
  size: bytes.length,
  identity: { name: 'film.mp4', state },
  async *open() {
    opened();
    for (let at = 0; at < bytes.length; at += 1_000_000) {
      await Promise.resolve();
      yield bytes.subarray(at, at + 1_000_000);
    }
  },
});

const put = (all: Transfers, id: string, source = sourceOf(CONTENT)): Promise<UploadedBlob> =>
  uploadBlob(all.ports, { ...HEAD, id, source, fits: () => true });

async function arrived(all: Transfers, { ref, draft }: UploadedBlob, wanted: Uint8Array = CONTENT): Promise<boolean> {
  return (await buffer(downloadBlob(all.ports, { ref, decryptor: decryptorOf(draft, ref) }))).equals(wanted);
}

const drop: Trick = (_, response) => {
  response.destroy();
  return true;
};

/** Keeps the first `bytes` bytes of a part, as a store that writes while it receives; then cuts the connection. */
const half =
  (store: StandInStore, bytes: number): Trick =>
  ({ path, body }, response) => {
    const { pathname, searchParams } = new URL(path, store.origin);
    const from = Number(searchParams.get('from') ?? 0);
    const before = (store.objects.get(pathname) ?? Buffer.alloc(0)).subarray(0, from);
    store.objects.set(pathname, Buffer.concat([before, body.subarray(0, bytes)]));
    response.destroy();
    return true;
  };

const plain: Trick = () => false;
const sentBytes = (store: StandInStore): number =>
  store.calls.filter(({ method }) => method === 'PUT').reduce((sum, { body }) => sum + body.length, 0);

/** An upload that ends with its program: every further request fails. */
async function interrupted(t: Test, store: StandInStore, all: Transfers, id: string): Promise<void> {
  store.tricks.push(plain, plain, (call, response) => {
    all.lifetime.abort(new ClientError('closed', 'the device was closed'));
    return drop(call, response);
  });
  await t.rejects(put(all, id), { code: 'closed' });
}

void t.test('CBLOB-40: an interrupted upload resumes where the store has it, and sends little twice', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  store.tricks.push(plain, half(store, 3_000_001), drop, half(store, 17), plain);
  const done = await put(all, newId());
  t.ok(await arrived(all, done));
  t.ok(store.objects.get(`/${done.ref}`)?.length === sealedBlobSize(CONTENT.length));
  t.ok(sentBytes(store) <= sealedBlobSize(CONTENT.length) + 3 * PART_BYTES, 'at most a part per interruption');
});

void t.test('CBLOB-41: another run resumes with the same bytes, and reads the source once', async (t) => {
  const store = await standInStore(t);
  const kept = new MemoryStore();
  const id = newId();
  const first = transfers(store, kept);
  await interrupted(t, store, first, id);
  const [upload] = await first.ports.begun.list();
  t.match(upload, { id, type: 'file', size: CONTENT.length, source: { name: 'film.mp4', state: '1' } });
  t.ok((upload?.sent ?? 0) > 0 && (upload?.sent ?? 0) <= 2 * PART_BYTES, `${upload?.sent} bytes were stored`);
  const shown = Buffer.concat((await kept.uploads()).map(({ sealed }) => sealed));
  t.notOk(shown.includes('film.mp4'), 'the saved state is encrypted');
  store.calls.length = 0;
  let opened = 0;
  const again = transfers(store, kept);
  const done = await put(
    again,
    id,
    sourceOf(CONTENT, '1', () => opened++),
  );
  t.equal(done.ref, first.granted[0], 'the same upload');
  t.equal(opened, 1);
  t.ok(await arrived(again, done));
  t.ok(sentBytes(store) <= sealedBlobSize(CONTENT.length) - 2 * PART_BYTES, 'the stored parts are not sent again');
});

void t.test('CBLOB-42: two plaintexts never share one key and nonce', async (t) => {
  const store = await standInStore(t);
  const changed = Buffer.from(CONTENT);
  for (const [what, at] of [
    ['what was sent', 6 * 1024 * 1024],
    ['what lies before it', 5],
  ] as const) {
    const kept = new MemoryStore();
    const id = newId();
    const first = transfers(store, kept);
    await interrupted(t, store, first, id);
    changed.set(CONTENT);
    changed[at] = (changed[at] ?? 0) ^ 1;
    const again = transfers(store, kept);
    store.calls.length = 0;
    await t.rejects(put(again, id, sourceOf(changed)), { code: 'source_changed' }, what);
    t.equal(sentBytes(store), 0, `${what}: nothing of the changed source was sent`);
    t.strictSame(again.ended, [first.granted[0]], 'the upload is ended on the server, which frees its room');
    t.strictSame(await kept.uploads(), []);
    const done = await put(again, id, sourceOf(changed));
    t.not(done.ref, first.granted[0]);
    t.ok(await arrived(again, done, changed), 'the next one is a new upload');
  }
});

void t.test('CBLOB-42: a source that changes between two parts is detected, and so is another state', async (t) => {
  const store = await standInStore(t);
  const bytes = Buffer.from(CONTENT);
  const all = transfers(store);
  store.tricks.push(plain, plain, (call, response) => {
    bytes[1] = (bytes[1] ?? 0) ^ 1;
    // The store loses everything, so that the beginning has to be sent again.
    store.objects.clear();
    return drop(call, response);
  });
  await t.rejects(put(all, newId(), sourceOf(bytes)), { code: 'source_changed' });
  const kept = new MemoryStore();
  const id = newId();
  const first = transfers(store, kept);
  await interrupted(t, store, first, id);
  const again = transfers(store, kept);
  const done = await put(again, id, sourceOf(CONTENT, '2'));
  t.not(done.ref, first.granted[0], 'with another state the upload starts over');
  t.strictSame(again.ended, [first.granted[0]]);
  t.ok(await arrived(again, done));
});

void t.test('CBLOB-43: an upload that the server has forgotten starts over under a fresh key', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  store.tricks.push(plain, (call, response) => {
    void all.ports.api.endUpload(all.granted[0] ?? '');
    return drop(call, response);
  });
  const done = await put(all, newId());
  t.ok(await arrived(all, done));
  const [one, other] = [all.granted[0], done.ref];
  t.not(one, other);
  const heads = store.calls.filter(({ path }) => !path.includes('?')).map(({ body }) => body.toString('hex', 0, 64));
  t.equal(new Set(heads.filter((head) => head !== '')).size, 2);
});

void t.test('CBLOB-44: an impossible upload state from the server ends the upload', async (t) => {
  const store = await standInStore(t);
  const part = (from: number, size: number, truth: UploadState) => ({ ...truth.parts[0], from, size }) as never;
  const size = sealedBlobSize(CONTENT.length);
  const lies: Readonly<Record<string, (truth: UploadState) => Partial<UploadState>>> = {
    'an offset beyond the size': () => ({ offset: size + 1, parts: [] }),
    'a part of 2 GiB': (truth) => ({ parts: [part(0, 2 ** 31, truth)] }),
    'a part of nothing': (truth) => ({ parts: [part(0, 0, truth)] }),
    'parts that overlap': (truth) => ({ parts: [part(0, PART_BYTES, truth), part(PART_BYTES - 1, 9, truth)] }),
    'a hole': (truth) => ({ parts: [part(1, PART_BYTES, truth)] }),
    'parts beyond the end': (truth) => ({
      parts: [part(0, 9e6, truth), part(9e6, 9e6, truth), part(18e6, 9e6, truth)],
    }),
    'no next part': () => ({ parts: [] }),
    'another size': () => ({ size: size + 1 }),
    'another upload': () => ({ blobRef: `${newId()}.bin` }),
  };
  for (const [what, lie] of Object.entries(lies)) {
    const all = transfers(store);
    // The second answer lies: the first one names the upload.
    let asked = 0;
    all.alterState = (truth) => (asked++ === 0 ? truth : { ...truth, ...lie(truth) });
    store.tricks.push(drop);
    await t.rejects(put(all, newId()), { name: 'ProtocolError', code: 'bad_upload' }, what);
  }
  // Bytes that this device never sent: a store that was rolled back, or a lie. Nothing more is sent under that key.
  const all = transfers(store);
  all.alterState = (truth) => ({ ...truth, offset: PART_BYTES, parts: truth.parts.slice(1) });
  store.calls.length = 0;
  await t.rejects(put(all, newId()), { code: 'bad_upload' });
  t.equal(sentBytes(store), 0);
});

void t.test('CBLOB-44: an upload that makes no progress, or only a few bytes per part, is given up', async (t) => {
  const store = await standInStore(t);
  const forgets: Trick = (_, response) => {
    response.writeHead(200).end();
    return true;
  };
  let kept = 0;
  const hardlyTakes: Trick = ({ path, body }, response) => {
    store.objects.set(new URL(path, store.origin).pathname, body.subarray(0, ++kept % 50));
    return drop({ path, body } as StoreCall, response);
  };
  for (const trick of [forgets, hardlyTakes]) {
    const all = transfers(store);
    // One part per answer.
    all.alterState = (truth) => ({ ...truth, parts: truth.parts.slice(0, 1) });
    store.tricks.push(...Array.from({ length: 50 }, () => trick));
    await t.rejects(put(all, newId()), { name: 'NetworkError', code: 'network' });
    t.equal(store.tricks.splice(0).length, 45, 'five attempts');
  }
});

void t.test('CBLOB-45: the saved state of an upload is used only whole, for its item, for seven days', async (t) => {
  const store = await standInStore(t);
  const kept = new MemoryStore();
  const id = newId();
  const first = transfers(store, kept);
  await interrupted(t, store, first, id);
  const [record] = await kept.uploads();
  const sealed = record?.sealed ?? new Uint8Array(0);
  for (const bad of [sealed.subarray(1), Buffer.alloc(3), sealed.map((byte, at) => (at === 30 ? byte ^ 1 : byte))]) {
    await kept.apply({ uploads: [{ id, sealed: bad }] });
    t.equal(await first.ports.begun.find(id), undefined);
  }
  const other = newId();
  await kept.apply({ uploads: [{ id: other, sealed }], uploaded: [id] });
  t.equal(await first.ports.begun.find(other), undefined, "another item's");
  await kept.apply({ uploads: [{ id, sealed }] });
  t.ok(await first.ports.begun.find(id));
  first.clock.time += 7 * 86_400_000 + 1;
  t.strictSame(await first.ports.begun.list(), []);
  t.strictSame(await kept.uploads(), [], 'the state is forgotten');
});

void t.test('CBLOB-45: a source of one part or without identity is not saved; two runs share no key', async (t) => {
  const store = await standInStore(t);
  const kept = new MemoryStore();
  const all = transfers(store, kept);
  const small = sourceOf(CONTENT.subarray(0, PART_BYTES - 80 * 16));
  store.tricks.push(drop);
  await put(all, newId(), small);
  const { identity: _, ...nameless } = sourceOf(CONTENT);
  await put(all, newId(), nameless);
  t.strictSame(await kept.uploads(), []);
  const id = newId();
  const [one, other] = await Promise.all([put(all, id), put(all, id)]);
  t.not(one.ref, other.ref);
  t.notSame(one.draft.key, other.draft.key);
  t.ok((await arrived(all, one)) && (await arrived(all, other)));
});

void t.test('CBLOB-50: an upload that the server no longer knows is given up and forgotten all the same', async (t) => {
  const store = await standInStore(t);
  const kept = new MemoryStore();
  const id = newId();
  const { ports, lifetime } = transfers(store, kept);
  await interrupted(t, store, { ...transfers(store, kept), ports, lifetime }, id);
  let answer = new NetworkError('network', 'no server') as Error;
  const api = { ...ports.api, endUpload: () => Promise.reject(answer) };
  const blobs = new Blobs({ ...ports, api, reader: { masterKey: randomBytes(32), device: null } });
  await t.rejects(blobs.giveUp(id), { code: 'network' });
  t.equal((await kept.uploads()).length, 1, 'without an answer it stays');
  answer = new ApiError({ code: 'blob_not_found', status: 404, message: 'gone' });
  await blobs.giveUp(id);
  t.strictSame(await kept.uploads(), []);
});

void t.test('CBLOB-50: giving up an upload does not forget the one that begins meanwhile', async (t) => {
  const store = await standInStore(t);
  const kept = new MemoryStore();
  const id = newId();
  await interrupted(t, store, transfers(store, kept), id);
  const all = transfers(store, kept);
  let goOn = (): void => undefined;
  const isSent = new Promise<void>((resolve) => (goOn = resolve));
  let next: Promise<unknown> | undefined;
  const endUpload = async (ref: string): Promise<void> => {
    await all.ports.api.endUpload(ref);
    next = t.rejects(put(all, id, sourceOf(CONTENT, '2')), { code: 'closed' });
    await isSent;
  };
  const api = { ...all.ports.api, endUpload };
  const blobs = new Blobs({ ...all.ports, api, reader: { masterKey: randomBytes(32), device: null } });
  store.tricks.push(plain, (call, response) => {
    goOn();
    void givenUp.then(() => {
      all.lifetime.abort(new ClientError('closed', 'the device was closed'));
      drop(call, response);
    });
    return true;
  });
  const givenUp = blobs.giveUp(id);
  await givenUp;
  await next;
  t.match(await transfers(store, kept).ports.begun.list(), [{ id, source: { state: '2' } }], 'it can be continued');
});

void t.test('CBLOB-51: a failure after a store accepted bytes counts as a first one', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  store.tricks.push(drop, drop, drop, drop, plain, drop, drop, drop, drop, plain);
  t.ok(await arrived(all, await put(all, newId())));
});

void t.test('CBLOB-52: the size of a source is requested once', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  let size = CONTENT.length;
  const shrinking = {
    ...sourceOf(CONTENT),
    get size() {
      size -= 3_000_000;
      return size + 3_000_000;
    },
  };
  t.ok(await arrived(all, await put(all, newId(), shrinking)));
});

void t.test('CBLOB-53: the key of an upload that cannot resume is erased', async (t) => {
  const store = await standInStore(t);
  const kept = new MemoryStore();
  const id = newId();
  const first = transfers(store, kept);
  const keys: Uint8Array[] = [];
  const masterKey = randomBytes(32);
  const sodium = {
    ...first.ports.sodium,
    memzero: (bytes: Uint8Array) => {
      first.ports.sodium.memzero(bytes);
      keys.push(bytes);
    },
  };
  const begun = new BegunUploads({ sodium, store: kept, reader: { masterKey, device: null }, clock: first.clock });
  const draft = draftBlob(sodium, { ...HEAD, ts: HEAD.ts() });
  const made = { id, ref: `${newId()}.bin`, draft, size: 9e6, source: { name: 'a', state: '1' }, hashes: [], sent: 0 };
  await begun.keep({ ...made, begunAt: first.clock.now() });
  keys.length = 0;
  const found = await begun.find(id);
  t.same(found?.draft.key, draft.key);
  const before = keys.length;
  first.clock.time += 7 * 86_400_000 + 1;
  t.equal(await begun.find(id), undefined);
  t.equal(keys.length, 2 * before + 1, 'what was opened is erased in both cases, and the key in the second');
  t.ok(keys.every((key) => key.every((byte) => byte === 0)));
});

void t.test('CBLOB-54: the upload of a deleted item cannot resume, and is forgotten', async (t) => {
  const store = await standInStore(t);
  const kept = new MemoryStore();
  const id = newId();
  const all = transfers(store, kept);
  await interrupted(t, store, all, id);
  t.equal((await all.ports.begun.list()).length, 1);
  await kept.apply({ entries: [{ id, version: 7, state: 'deleted', tagged: true, kept: null }] });
  t.strictSame(await all.ports.begun.list(), []);
  t.strictSame(await kept.uploads(), []);
});
