/** What differs between the kinds of store: addresses, credentials, clocks, pages. */
import { randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import t from 'tap';
import { faultOf } from '../src/server/blobs/objects/fault.js';
import { GcsStore } from '../src/server/blobs/objects/gcs.js';
import { S3Store } from '../src/server/blobs/objects/s3.js';
import { Ceph, cephMissing } from './support/ceph.js';
import { exchange } from './support/exchange.js';
import { FaultyHttp } from './support/faulty-http.js';
import { newServiceAccount } from './support/gcs-server.js';
import {
  capturedLog,
  fiveMinutes,
  gcsBucket,
  grantFor,
  listed,
  newName,
  s3Bucket,
  upload,
} from './support/object-stores.js';

async function reasonOf(call: Promise<unknown>): Promise<string> {
  try {
    await call;
  } catch (error) {
    return faultOf(error)?.reason ?? String(error);
  }
  return 'no fault';
}

t.test('Google', async (t) => {
  const account = await newServiceAccount(t);
  const useKey = (file: string): void => {
    process.env['GOOGLE_APPLICATION_CREDENTIALS'] = file;
  };
  useKey(account.keyFile);

  t.test('OBJ-12: calls carry a token that the key signed; none is requested from another server', async (t) => {
    const { store, server } = await gcsBucket(t, account);
    const name = newName();
    await upload(store, name, randomBytes(10));
    await store.head(name);
    const calls = server.calls.filter(({ api }) => api === 'json');
    t.ok(calls.length > 0);
    t.ok(calls.every(({ headers }) => (headers['authorization'] ?? '').startsWith('Bearer ey')));
  });

  t.test('OBJ-10: another key, no key and a wrong clock are faults, and not an absent object', async (t) => {
    const { store, server, open } = await gcsBucket(t, account);
    t.teardown(() => useKey(account.keyFile));
    useKey((await newServiceAccount(t)).keyFile);
    const stranger = open({});
    t.equal(await reasonOf(stranger.head(newName())), 'credentials', 'a key that the store does not know');
    const { url } = await stranger.signDownload(newName(), fiveMinutes(), '');
    t.match(await exchange(url, { method: 'GET' }), { status: 403, code: 'SignatureDoesNotMatch' });
    useKey('/nonexistent/key.json');
    t.equal(await reasonOf(open({}).head(newName())), 'credentials', 'a missing key file');
    t.equal(
      await reasonOf(open({}).signDownload(newName(), fiveMinutes(), '')),
      'credentials',
      'a URL cannot be signed either',
    );
    const { keyFile } = await newServiceAccount(t);
    await writeFile(keyFile, 'do-not-show-this');
    useKey(keyFile);
    const { log, lines } = capturedLog();
    const broken = new GcsStore({ bucket: server.bucket, endpoint: server.url, log });
    t.equal(await reasonOf(broken.head(newName())), 'credentials', 'a file that is not a key');
    t.notMatch(lines.join(''), /do-not-show/);
    server.clockAheadMs = 2 * 3_600_000;
    t.equal(
      await reasonOf(store.head(newName())),
      'credentials',
      'a token is already expired by the clock of the store',
    );
  });

  t.test('OBJ-07: all pages of a listing are read; a listing that loops is a fault', async (t) => {
    const { store, server } = await gcsBucket(t, account);
    server.pageMax = 2;
    for (let count = 0; count < 7; count++) await upload(store, newName(), randomBytes(5));
    t.equal((await listed(store)).length, 7);
    server.fault = ({ path, method }) => (method === 'GET' && path.endsWith('/o') ? 'same_page' : undefined);
    t.equal(await reasonOf(listed(store)), 'broken');
  });

  t.test('OBJ-04: a URL is refused after its expiry, by the clock of the store', async (t) => {
    const { store, server } = await gcsBucket(t, account);
    const name = newName();
    const body = randomBytes(10);
    await upload(store, name, body);
    const download = await store.signDownload(name, fiveMinutes(), '');
    const { url, headers } = await store.signUpload(newName(), grantFor(body), '');
    server.clockAheadMs = 301_000;
    t.match(await exchange(download.url, { method: 'GET' }), { status: 400, code: 'ExpiredToken' });
    server.clockAheadMs = 901_000;
    t.match(await exchange(url, { method: 'PUT', headers, body }), { status: 400, code: 'ExpiredToken' });
  });
});

/** A page of a listing with one object, as S3 answers; `more`: it is not the last. */
const pageOf = (more: boolean, next = ''): string => {
  const { tenantId, ref } = newName();
  return `<?xml version="1.0"?><ListBucketResult><Name>b</Name><IsTruncated>${more}</IsTruncated>${next}
<Contents><Key>${tenantId}/${ref}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>`;
};
const NEXT = '<NextContinuationToken>next</NextContinuationToken>';

t.test('OBJ-07: a listing of S3 continues by its token; one that is cut off or loops is a fault', async (t) => {
  Object.assign(process.env, { AWS_ACCESS_KEY_ID: 'any', AWS_SECRET_ACCESS_KEY: 'any' });
  // No request is passed on.
  const proxy = await FaultyHttp.before(t, 'http://127.0.0.1:1');
  const { log } = capturedLog();
  const store = new S3Store({ bucket: 'bucket', endpoint: proxy.url, log });
  t.teardown(() => store.close());
  proxy.fault = ({ target }) => ({
    body: target.includes('continuation-token=next') ? pageOf(false) : pageOf(true, NEXT),
  });
  t.equal((await listed(store)).length, 2);
  proxy.fault = () => ({ body: pageOf(true, NEXT) });
  t.equal(await reasonOf(listed(store)), 'broken', 'the same page again');
  proxy.fault = () => ({ body: pageOf(true) });
  t.equal(await reasonOf(listed(store)), 'broken', 'no token');
  proxy.fault = () => ({ body: 'no list' });
  t.equal(await reasonOf(listed(store)), 'broken', 'an answer that is not a listing');
});

t.test('S3', { skip: cephMissing }, async (t) => {
  const ceph = await Ceph.start(t);
  const user = await ceph.newUser();
  const useKey = (accessKeyId: string, secretAccessKey: string): void => {
    process.env['AWS_ACCESS_KEY_ID'] = accessKeyId;
    process.env['AWS_SECRET_ACCESS_KEY'] = secretAccessKey;
  };
  const ours = (): void => useKey(user.accessKeyId, user.secretAccessKey);
  ours();

  t.test('OBJ-13: clients get URLs signed for S3_PUBLIC_ENDPOINT; the server calls S3_ENDPOINT', async (t) => {
    const { bucket } = await s3Bucket(t, ceph, user);
    const [inside, outside] = [await FaultyHttp.before(t, ceph.endpoint), await FaultyHttp.before(t, ceph.endpoint)];
    const { log } = capturedLog();
    const store = new S3Store({ bucket, endpoint: inside.url, publicEndpoint: outside.url, log });
    t.teardown(() => store.close());
    const name = newName();
    const body = randomBytes(100);
    const upload = await store.signUpload(name, grantFor(body));
    t.ok(upload.url.startsWith(`${outside.url}/${bucket}/${name.tenantId}/${name.ref}?`), 'the bucket is in the path');
    t.equal((await exchange(upload.url, { method: 'PUT', headers: upload.headers, body })).status, 200);
    t.match(await store.head(name), { size: 100 });
    t.same(
      outside.calls.map(({ method }) => method),
      ['PUT'],
    );
    t.same(
      inside.calls.map(({ method }) => method),
      ['HEAD'],
    );
    const hosted = new S3Store({ bucket, endpoint: 'https://s3.test', forcePathStyle: false, log });
    t.match(await hosted.signDownload(name, fiveMinutes()), { url: new RegExp(`^https://${bucket}\\.s3\\.test/`) });
    // A host name: an IP address has no subdomains, so that there the bucket is in the path in any case.
    const unsaid = new S3Store({ bucket, endpoint: 'https://s3.test', log });
    t.match(await unsaid.signDownload(name, fiveMinutes()), { url: new RegExp(`^https://s3\\.test/${bucket}/`) });
    const aws = new S3Store({ bucket, region: 'eu-central-1', log });
    const { url: awsUrl } = await aws.signDownload(name, fiveMinutes());
    t.ok(awsUrl.startsWith(`https://${bucket}.s3.eu-central-1.amazonaws.com/`), 'at AWS the bucket is in the name');
    for (const one of [hosted, unsaid, aws]) one.close();
  });

  t.test("OBJ-14: requests to other stores contain no checksum, algorithm or trailer of AWS's own", async (t) => {
    const { bucket } = await s3Bucket(t, ceph, user);
    const proxy = await FaultyHttp.before(t, ceph.endpoint);
    const { log } = capturedLog();
    const store = new S3Store({ bucket, endpoint: proxy.url, log });
    t.teardown(() => store.close());
    const name = newName();
    const { url, headers } = await store.signUpload(name, grantFor(randomBytes(10)));
    t.same(Object.keys(headers).sort(), ['content-length', 'content-type', 'if-none-match']);
    t.notMatch(url, /checksum|crc32|sdk/i);
    const start = { size: 6 * 1024 ** 2, contentType: 'image/png' };
    const parts = { ...name, ...start, session: (await store.begin(name, start)) ?? null, kept: 0 };
    const part = await store.signPart(parts, { from: 0, size: 5 * 1024 ** 2, ...fiveMinutes() });
    const download = await store.signDownload(name, fiveMinutes());
    for (const signed of [part, download]) t.notMatch(signed.url, /checksum|crc32|sdk/i);
    await store.abort(parts);
    await store.head(name);
    await store.remove(name);
    await listed(store);
    t.same(new Set(proxy.calls.map(({ method }) => method)), new Set(['POST', 'DELETE', 'HEAD', 'GET']));
    for (const { headers } of proxy.calls) t.notMatch(Object.keys(headers).join(), /checksum|trailer/);
  });

  t.test('OBJ-15: a blob that one PUT cannot carry is refused before a URL is given', async (t) => {
    const { store } = await s3Bucket(t, ceph, user);
    const grant = { ...grantFor(Buffer.alloc(0)), size: 5 * 1024 ** 3 + 1 };
    const details = { maxBytes: 5 * 1024 ** 3 };
    const refusal = await store.signUpload(newName(), grant, '').catch((error: unknown) => error);
    t.match(refusal, { error: 'blob_too_large', details });
    t.match(await store.signUpload(newName(), { ...grant, size: 5 * 1024 ** 3 }, ''), { url: /^http/ });
  });

  t.test(
    'OBJ-10: wrong credentials, none, and the bucket of another account are faults, and not an absent object',
    async (t) => {
      const { open, bucket } = await s3Bucket(t, ceph, user);
      t.teardown(ours);
      useKey(user.accessKeyId, 'wrong');
      t.equal(await reasonOf(listed(open({}))), 'credentials', 'a wrong secret');
      t.equal(await reasonOf(open({}).head(newName())), 'denied', 'a HEAD has no body with a more precise reason');
      useKey('NOBODY', 'wrong');
      t.equal(await reasonOf(listed(open({}))), 'credentials', 'an unknown key');
      const other = await ceph.newUser();
      useKey(other.accessKeyId, other.secretAccessKey);
      t.equal(await reasonOf(listed(open({ bucket }))), 'denied', 'the bucket of another account');
      Object.assign(process.env, { AWS_EC2_METADATA_DISABLED: 'true', AWS_SHARED_CREDENTIALS_FILE: '/nonexistent' });
      delete process.env['AWS_ACCESS_KEY_ID'];
      t.equal(await reasonOf(open({}).head(newName())), 'credentials', 'no credentials');
      t.equal(
        await reasonOf(open({}).signDownload(newName(), fiveMinutes(), '')),
        'credentials',
        'a URL cannot be signed either',
      );
    },
  );

  t.test('OBJ-04: a URL is refused after its expiry', async (t) => {
    const { store } = await s3Bucket(t, ceph, user);
    const name = newName();
    await upload(store, name, randomBytes(10));
    const late = await store.signDownload(name, fiveMinutes(Date.now() - 301_000), '');
    t.match(await exchange(late.url, { method: 'GET' }), { status: 403, code: 'AccessDenied' });
    const body = randomBytes(10);
    const { url, headers } = await store.signUpload(newName(), grantFor(body, Date.now() - 901_000), '');
    t.match(await exchange(url, { method: 'PUT', headers, body }), { status: 403 });
    const whole = { size: 6 * 1024 * 1024, contentType: 'a/b' };
    const at = newName();
    const open = { ...at, ...whole, session: (await store.begin(at, whole)) ?? null, kept: 0 };
    const part = await store.signPart(open, { from: 0, size: 10, ...fiveMinutes(Date.now() - 301_000) }, '');
    t.match(await exchange(part.url, { method: 'PUT', headers: part.headers, body }), { status: 403 }, 'of a part too');
  });
});
