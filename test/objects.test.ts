/** The rules of every store: the local one behind a server, S3 on a real gateway, Google's on a strict stand-in. */
import { createHash, randomBytes } from 'node:crypto';
import t, { type Test } from 'tap';
import { ulid } from 'ulid';
import type { BlobName } from '../src/protocol/ids.js';
import type { ObjectStore, SignedRequest } from '../src/server/blobs/ports.js';
import { Ceph, cephMissing } from './support/ceph.js';
import { exchange, type Answer } from './support/exchange.js';
import { newServiceAccount } from './support/gcs-server.js';
import {
  fiveMinutes,
  gcsBucket,
  grantFor,
  listed,
  newName,
  s3Bucket,
  upload,
  type BucketUnderTest,
  servedLocally,
} from './support/object-stores.js';

const hashOf = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
const MINUTE_MS = 60_000;

type NewBucket = (t: Test) => Promise<BucketUnderTest>;

const bytesOf = async (store: ObjectStore, name: BlobName, origin: string): Promise<Buffer> => {
  const { url, headers } = await store.signDownload(name, fiveMinutes(), origin);
  return (await exchange(url, { method: 'GET', headers })).body;
};

/** The error that a call rejects with. Throws where it does not reject. */
async function refusalOf(call: Promise<unknown>): Promise<unknown> {
  try {
    await call;
  } catch (error) {
    return error;
  }
  throw new Error('it was not refused');
}

/** The errors that several concurrent calls reject with. */
const refusalsOf = (calls: readonly Promise<unknown>[]): Promise<unknown[]> => Promise.all(calls.map(refusalOf));

/** A store, and a tenant whose blobs it accepts. */
interface AnyStore {
  readonly store: ObjectStore;
  readonly origin: string;
  readonly tenantId: string;
}

/** The rules of every store. */
function everyStore(t: Test, newStore: (t: Test) => Promise<AnyStore>): void {
  t.test('OBJ-01: a blob uploaded by a signed URL reads back byte for byte, whole and by range', async (t) => {
    const { store, origin, tenantId } = await newStore(t);
    for (const size of [1, 65_552, 3_000_001]) {
      const body = randomBytes(size);
      const name = newName(tenantId);
      await upload(store, name, body, origin);
      const { url, headers } = await store.signDownload(name, fiveMinutes(), origin);
      const whole = await exchange(url, { method: 'GET', headers });
      t.equal(whole.status, 200);
      t.equal(hashOf(whole.body), hashOf(body), `${size} bytes`);
      t.match(whole.headers, { 'content-length': String(size), 'content-disposition': 'attachment' });
      const range = `bytes=${size >> 1}-`;
      const part = await exchange(url, { method: 'GET', headers: { ...headers, range } });
      t.equal(part.status, 206);
      t.equal(hashOf(part.body), hashOf(body.subarray(size >> 1)), range);
    }
  });

  t.test('OBJ-02: an upload URL admits nothing but its own bytes, type, object and method', async (t) => {
    const { store, origin, tenantId } = await newStore(t);
    const body = randomBytes(1000);
    const name = newName(tenantId);
    const { url, headers } = await store.signUpload(name, grantFor(body), origin);
    const put = (more: Record<string, string>, sent = body, to = url): Promise<Answer> =>
      exchange(to, { method: 'PUT', headers: { ...headers, ...more }, body: sent });
    const refusals: [string, Promise<Answer>][] = [
      ['a longer body', put({ 'content-length': '1001' }, randomBytes(1001))],
      ['a shorter body', put({ 'content-length': '999' }, randomBytes(999))],
      ['another type', put({ 'content-type': 'text/html' })],
      ['another object', put({}, body, url.replace(name.ref, `${ulid()}.bin`))],
      ["another tenant's", put({}, body, url.replace(tenantId, ulid()))],
      ['another method', exchange(url, { method: 'GET' })],
      ['a delete', exchange(url, { method: 'DELETE' })],
      ['a longer life', put({}, body, url.replace(/(Expires|exp)=\d+/i, '$1=86400'))],
      ['a cut signature', put({}, body, url.replace(/((?:Signature|sig)=[\w-]+)[\w-]{2}/, '$1'))],
      ['no signature', put({}, body, url.replace(/\?.*/, origin))],
    ];
    for (const header of Object.keys(headers).filter((header) => header !== 'content-length')) {
      const { [header]: _, ...rest } = headers;
      refusals.push([`no ${header}`, exchange(url, { method: 'PUT', headers: rest, body })]);
    }
    for (const [what, answer] of refusals) {
      const { status } = await answer;
      t.ok(status >= 400 && status < 500, `${what}: ${status}`);
    }
    t.equal(await store.head(name), undefined, 'nothing is stored');
    t.equal((await put({})).status, 200, 'the URL is still valid');
  });

  t.test('OBJ-03: an upload URL is valid for one upload: the existing object stays', async (t) => {
    const { store, origin, tenantId } = await newStore(t);
    const [first, second] = [randomBytes(500), randomBytes(500)];
    const name = newName(tenantId);
    const { url, headers } = await store.signUpload(name, grantFor(first), origin);
    t.equal((await exchange(url, { method: 'PUT', headers, body: first })).status, 200);
    t.equal((await exchange(url, { method: 'PUT', headers, body: second })).status, store.kind === 'local' ? 403 : 412);
    t.equal(hashOf(await bytesOf(store, name, origin)), hashOf(first));
  });

  t.test('OBJ-06: the server sees size and time of a complete object, and nothing of an absent one', async (t) => {
    const { store, origin, tenantId } = await newStore(t);
    const name = newName(tenantId);
    t.equal(await store.head(name), undefined);
    await store.remove(name);
    await upload(store, name, randomBytes(1234), origin);
    const found = await store.head(name);
    t.match(found, { ...name, size: 1234 });
    t.ok(Math.abs((found?.modifiedAt ?? 0) - Date.now()) < MINUTE_MS, 'the time is that of the upload, to a minute');
    await store.remove(name);
    t.equal(await store.head(name), undefined, 'the object is removed');
    await store.remove(name);
    t.match(await refusalOf(store.head({ ...name, tenantId: '..' })), { message: /./ });
  });
}

/** The rules of the stores that clients access directly. */
function buckets(t: Test, newBucket: NewBucket): void {
  everyStore(t, async (t) => ({ ...(await newBucket(t)), origin: '', tenantId: ulid() }));

  t.test('OBJ-04: signing sends no request, and every signed URL has an expiry', async (t) => {
    const { store, calls, down } = await newBucket(t);
    const name = newName();
    const body = randomBytes(10);
    await upload(store, name, body);
    const whole = { size: 6 * 1024 * 1024, contentType: 'a/b' };
    const at = newName();
    const open = { ...at, ...whole, session: (await store.begin(at, whole)) ?? null, kept: 0 };
    const part = { from: 0, size: 5 * 1024 * 1024, ...fiveMinutes() };
    const expires = /[?&]X-(Amz|Goog)-Expires=(900|300)(&|$)/;
    const signed = async (): Promise<void> => {
      const before = calls();
      const urls: SignedRequest[] = [
        await store.signUpload(newName(), grantFor(body), ''),
        await store.signDownload(name, fiveMinutes(), ''),
        // At Google a part has the URL of its upload, which is not signed.
        ...(store.kind === 's3' ? [await store.signPart(open, part, '')] : []),
      ];
      t.equal(calls(), before, 'signing sends no request');
      for (const { url } of urls) t.match(url, expires);
    };
    await signed();
    await down();
    await signed();
  });

  t.test('OBJ-25: an upload that another kind of store began is unknown to this one, and given up', async (t) => {
    const { store } = await newBucket(t);
    // STORAGE_KIND was changed while uploads were open: a folder has no session, S3 an id and Google a URL.
    for (const session of ['', 'VXBsb2FkIElE', 'https://storage.example/upload/storage/v1/b/bucket/o?upload_id=1']) {
      const open = { ...newName(), size: 6 * 1024 * 1024, contentType: 'a/b', session, kept: 0 };
      t.equal(await store.offsetOf(open), undefined, session);
      await store.abort(open);
    }
  });

  t.test(
    'OBJ-07: a listing gives every object under the prefix, by pages, without names that are not ours',
    async (t) => {
      const bucket = await newBucket(t);
      const [one, other] = [bucket.open({ prefix: '/one/' }), bucket.open({ prefix: 'one-more' })];
      const names = Array.from({ length: 5 }, () => newName());
      for (const name of names) await upload(one, name, randomBytes(20));
      await upload(other, newName(), randomBytes(10));
      const somebody = ulid();
      const foreign = [
        'one/notes.txt',
        `one/${somebody}/${ulid()}`,
        `one/${somebody}/x/${ulid()}.bin`,
        `one/x/${ulid()}.bin`,
      ];
      for (const key of [...foreign, `one/${somebody}/`]) await bucket.place(key, Buffer.from('x'));
      const refs = (objects: readonly BlobName[]): string[] =>
        objects.map(({ tenantId, ref }) => tenantId + ref).sort();
      const found = await listed(one);
      t.same(refs(found), refs(names));
      t.ok(found.every(({ size, modifiedAt }) => size === 20 && modifiedAt > 0));
      t.equal((await listed(other)).length, 1);
      t.same(await listed(bucket.store), [], 'without a prefix none of these names is ours');
    },
  );

  t.test('OBJ-08: a store that is down, broken or silent is storage_unavailable, in bounded time', async (t) => {
    const bucket = await newBucket(t);
    const name = newName();
    await upload(bucket.store, name, randomBytes(100));
    const quick = bucket.open({ bounds: { callMs: 1_000 } });
    const all = (): Promise<unknown>[] => [quick.head(name), quick.remove(newName()), listed(quick)];
    for (const trouble of [{ status: 500 }, { status: 503 }, 'hang'] as const) {
      bucket.trouble(() => trouble);
      for (const refusal of await refusalsOf(all())) {
        t.match(refusal, { error: 'storage_unavailable', retryAfter: 2 }, JSON.stringify(trouble));
      }
    }
    bucket.trouble(undefined);
    await bucket.down();
    for (const refusal of await refusalsOf(all())) {
      t.match(refusal, { error: 'storage_unavailable', cause: { reason: 'unreachable' } }, 'down');
    }
    await bucket.up();
    t.match(await bucket.store.head(name), { size: 100 }, 'the store works again');
  });

  t.test('OBJ-08: a transient fault is retried', async (t) => {
    const bucket = await newBucket(t);
    const name = newName();
    await upload(bucket.store, name, randomBytes(100));
    let left = 1;
    bucket.trouble(() => (left-- > 0 ? { status: 503 } : undefined));
    t.match(await bucket.store.head(name), { size: 100 });
  });

  t.test('OBJ-10: an absent bucket is a fault of the store, and not an absent object', async (t) => {
    const bucket = await newBucket(t);
    const elsewhere = bucket.open({ bucket: 'no-such-bucket' });
    const name = newName();
    const calls = [elsewhere.head(name), listed(elsewhere), elsewhere.remove(name)];
    for (const refusal of await refusalsOf(calls)) {
      t.match(refusal, { error: 'storage_unavailable', cause: { reason: 'bucket' } });
    }
  });

  t.test('OBJ-11: a failed call is one line of the log with its reason, without URL, signature and key', async (t) => {
    const bucket = await newBucket(t);
    bucket.trouble(() => ({ status: 403 }));
    t.match(await refusalOf(bucket.store.head(newName())), {
      error: 'storage_unavailable',
      cause: { reason: 'denied' },
    });
    t.equal(bucket.logs.length, 1);
    t.match(JSON.parse(bucket.logs[0] ?? ''), { reason: 'denied', msg: /^(s3|gcs) head: 403/ });
    await bucket.down();
    await refusalOf(bucket.store.head(newName()));
    await bucket.up();
    t.equal(bucket.logs.length, 2);
    t.match(JSON.parse(bucket.logs[1] ?? ''), { reason: 'unreachable', code: 'ECONNREFUSED' });
    t.notMatch(bucket.logs.join(''), /https?:|127\.0\.0\.1|Signature|Bearer|PRIVATE|BEGIN|\.bin/i);
  });
}

t.test('Local', async (t) => {
  const local = await servedLocally(t);
  everyStore(t, () => Promise.resolve(local));
});

t.test('Google', async (t) => {
  const account = await newServiceAccount(t);
  process.env['GOOGLE_APPLICATION_CREDENTIALS'] = account.keyFile;
  buckets(t, (t) => gcsBucket(t, account));
});

t.test('S3', { skip: cephMissing }, async (t) => {
  const ceph = await Ceph.start(t);
  const user = await ceph.newUser();
  process.env['AWS_ACCESS_KEY_ID'] = user.accessKeyId;
  process.env['AWS_SECRET_ACCESS_KEY'] = user.secretAccessKey;
  buckets(t, (t) => s3Bucket(t, ceph, user));
});
