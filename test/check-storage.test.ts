/** `service-admin check-storage` on real stores, and each of its verdicts from its real cause. */
import { PutBucketCorsCommand } from '@aws-sdk/client-s3';
import { once } from 'node:events';
import { readdir } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import type { Verdict } from '../src/server/admin/storage/verdict.js';
import { EXIT } from '../src/terminal/terminal.js';
import { admin, builtAdmin, type AdminEnded } from './support/admin.js';
import { Ceph, cephMissing } from './support/ceph.js';
import { FaultyHttp } from './support/faulty-http.js';
import { type GcsStandIn, newServiceAccount } from './support/gcs-server.js';
import { gcsBucket, s3Bucket } from './support/object-stores.js';
import { temporaryFolder } from './support/postgres.js';
import { runServer } from './support/server.js';

const ORIGIN = 'https://app.example.com';

const linesOf = ({ data }: AdminEnded): readonly Verdict[] => data['checks'] as readonly Verdict[];
const outcomes = (ended: AdminEnded): Record<string, string> =>
  Object.fromEntries(linesOf(ended).map(({ check, outcome }) => [check, outcome]));
const failure = (ended: AdminEnded): Verdict | undefined => linesOf(ended).find(({ outcome }) => outcome === 'failed');

const SOUND = {
  credentials: 'ok',
  endpoint: 'ok',
  clock: 'ok',
  list: 'ok',
  'signed PUT': 'ok',
  parts: 'ok',
  'once only': 'ok',
  'exact size': 'ok',
  HEAD: 'ok',
  'signed GET': 'ok',
  range: 'ok',
  'altered URL': 'ok',
  'no signature': 'ok',
  'late URL': 'ok',
  DELETE: 'ok',
};

t.test('Google', async (t) => {
  const account = await newServiceAccount(t);
  const variables = (server: GcsStandIn, keyFile = account.keyFile): Record<string, string> => ({
    STORAGE_KIND: 'gcs',
    GCS_BUCKET: server.bucket,
    GCS_ENDPOINT: server.url,
    GOOGLE_APPLICATION_CREDENTIALS: keyFile,
    METADATA_SERVER_DETECTION: 'none',
  });
  const check = async (t: Test, env: Record<string, string>): Promise<AdminEnded> =>
    (await admin(t, env)).json('check-storage');

  t.test('OBJ-16: a sound store passes each check, and nothing is left in it', async (t) => {
    const { server } = await gcsBucket(t, account);
    const ended = await check(t, variables(server));
    t.match(ended, { code: EXIT.ok, data: { kind: 'gcs', sound: true } }, ended.stdout + ended.stderr);
    t.same(outcomes(ended), { ...SOUND, CORS: 'skipped' });
    t.equal(server.objects.size, 0);
    t.notMatch(ended.stdout + ended.stderr, /Signature=|PRIVATE/);
  });

  t.test('OBJ-17: CORS rules are tried for each origin of CORS_ORIGINS', async (t) => {
    const { server } = await gcsBucket(t, account);
    server.origins = [ORIGIN];
    const env = { ...variables(server), CORS_ORIGINS: `${ORIGIN},https://other.example` };
    const ended = await check(t, env);
    t.equal(ended.code, EXIT.refused);
    t.match(outcomes(ended), { [`CORS ${ORIGIN}`]: 'ok', 'CORS https://other.example': 'failed' });
    t.match(failure(ended), { reason: 'cors', advice: /origin https:\/\/other.example, methods GET, HEAD and PUT/ });
  });

  t.test('OBJ-18: credentials, bucket, clock, failing store and endpoint are distinguished, with advice', async (t) => {
    const { server } = await gcsBucket(t, account);
    const stranger = await check(t, variables(server, (await newServiceAccount(t)).keyFile));
    t.match(stranger, { code: EXIT.refused });
    t.match(failure(stranger), { check: 'list', reason: 'credentials', advice: /GOOGLE_APPLICATION_CREDENTIALS/ });
    t.match(outcomes(stranger), { 'signed PUT': 'skipped', DELETE: 'skipped' });
    const keyless = await check(t, variables(server, '/nonexistent.json'));
    t.match(failure(keyless), { check: 'credentials', reason: 'credentials' });
    const elsewhere = await check(t, { ...variables(server), GCS_BUCKET: 'no-such-bucket' });
    t.match(failure(elsewhere), { check: 'list', reason: 'bucket', advice: /GCS_BUCKET/ });
    t.equal(elsewhere.code, EXIT.refused);
    server.clockAheadMs = 2 * 3_600_000;
    const slow = await check(t, variables(server));
    t.match(failure(slow), { check: 'clock', reason: 'clock', seen: /2 h 0 min behind/, advice: /NTP/ });
    server.clockAheadMs = 0;
    server.fault = ({ method, api }) => (api === 'xml' && method === 'PUT' ? { status: 503 } : undefined);
    const broken = await check(t, variables(server));
    t.match(failure(broken), { check: 'signed PUT', reason: 'broken' });
    t.equal(broken.code, EXIT.unavailable);
    await server.stop();
    const away = await check(t, variables(server));
    t.match(failure(away), { check: 'endpoint', reason: 'unreachable', advice: /GCS_ENDPOINT/ });
    t.equal(away.code, EXIT.unavailable);
  });

  t.test('OBJ-16: the output for a person has a line for each check', async (t) => {
    const { server } = await gcsBucket(t, account);
    const { stdout, stderr, code } = await (await builtAdmin(t, variables(server))).plain('check-storage');
    t.equal(code, EXIT.ok);
    t.match(stderr, /the bucket blobs-of-the-tests at http:/);
    t.match(stdout, /^credentials +ok +they are available/m);
    t.match(stdout, /Blobs can be kept there\.\n$/);
  });
});

t.test('S3', { skip: cephMissing }, async (t) => {
  const ceph = await Ceph.start(t);
  const user = await ceph.newUser();
  const base = {
    STORAGE_KIND: 's3',
    AWS_ACCESS_KEY_ID: user.accessKeyId,
    AWS_SECRET_ACCESS_KEY: user.secretAccessKey,
    AWS_EC2_METADATA_DISABLED: 'true',
  };
  const check = async (t: Test, env: Record<string, string>): Promise<AdminEnded> =>
    (await admin(t, { ...base, ...env })).json('check-storage');

  t.test('OBJ-16 OBJ-17: a sound bucket passes each check, and a missing CORS rule is reported', async (t) => {
    const { bucket, direct } = await s3Bucket(t, ceph, user);
    const env = { S3_BUCKET: bucket, S3_ENDPOINT: ceph.endpoint, CORS_ORIGINS: ORIGIN };
    const without = await check(t, env);
    t.match(failure(without), { check: `CORS ${ORIGIN}`, reason: 'cors' }, without.stdout + without.stderr);
    const app = { S3_BUCKET: bucket, S3_ENDPOINT: ceph.endpoint, PUBLIC_URL: `${ORIGIN}/` };
    t.match(failure(await check(t, app)), { check: `CORS ${ORIGIN}`, reason: 'cors' }, "the web app's origin");
    const hosted = { ...app, TENANT_MODE: 'multi', BASE_DOMAIN: 'sync.example' };
    t.match(failure(await check(t, hosted)), { check: 'CORS https://a-tenant.sync.example', reason: 'cors' });
    const onPort = { ...hosted, PUBLIC_URL: 'https://sync.example:8443' };
    t.match(failure(await check(t, onPort)), { check: 'CORS https://a-tenant.sync.example:8443', reason: 'cors' });
    t.equal((await check(t, { ...app, WEB_APP: 'off' })).code, EXIT.ok);
    const rule = {
      AllowedOrigins: [ORIGIN],
      AllowedMethods: ['GET', 'HEAD', 'PUT'],
      AllowedHeaders: ['content-type', 'if-none-match', 'range'],
      ExposeHeaders: ['etag', 'content-length', 'content-range'],
    };
    await direct.send(new PutBucketCorsCommand({ Bucket: bucket, CORSConfiguration: { CORSRules: [rule] } }));
    const ended = await check(t, env);
    t.equal(ended.code, EXIT.ok, ended.stdout + ended.stderr);
    t.same(outcomes(ended), { ...SOUND, [`CORS ${ORIGIN}`]: 'ok' });
  });

  t.test('OBJ-18: wrong keys, a missing bucket, missing rights and an absent store are distinguished', async (t) => {
    const { bucket } = await s3Bucket(t, ceph, user);
    const env = { S3_BUCKET: bucket, S3_ENDPOINT: ceph.endpoint };
    const wrong = await check(t, { ...env, AWS_SECRET_ACCESS_KEY: 'do-not-show-this' });
    t.match(failure(wrong), { check: 'list', reason: 'credentials', advice: /AWS_SECRET_ACCESS_KEY/ });
    t.notMatch(wrong.stdout + wrong.stderr, /do-not-show-this/);
    const none = await check(t, { ...env, AWS_ACCESS_KEY_ID: '', AWS_SECRET_ACCESS_KEY: '' });
    t.match(failure(none), { check: 'credentials', reason: 'credentials' });
    t.match(failure(await check(t, { ...env, S3_BUCKET: 'no-such-bucket' })), { check: 'list', reason: 'bucket' });
    const other = await ceph.newUser();
    const keys = { AWS_ACCESS_KEY_ID: other.accessKeyId, AWS_SECRET_ACCESS_KEY: other.secretAccessKey };
    t.match(failure(await check(t, { ...env, ...keys })), { check: 'list', reason: 'denied', advice: /s3:ListBucket/ });
    const proxy = await FaultyHttp.before(t, ceph.endpoint);
    await proxy.stop();
    const away = await check(t, { ...env, S3_ENDPOINT: proxy.url });
    t.match(failure(away), { reason: 'unreachable', advice: /S3_ENDPOINT/ });
    t.equal(away.code, EXIT.unavailable);
  });
});

t.test(
  'OBJ-19: the local store is checked through the running server, and nothing is left in its folder',
  async (t) => {
    const dataDir = await temporaryFolder(t);
    const { port } = await runServer(t, { env: { DATA_DIR: dataDir, BLOB_URL_SECRET: 'a-secret-of-the-tests' } });
    const env = { DATA_DIR: dataDir, BLOB_URL_SECRET: 'a-secret-of-the-tests', PORT: String(port) };
    const ended = await (await admin(t, env)).json('check-storage');
    t.equal(ended.code, EXIT.ok, ended.stdout + ended.stderr);
    t.match(outcomes(ended), {
      folder: 'ok',
      server: 'ok',
      write: 'ok',
      'used URL': 'ok',
      'late URL': 'ok',
      DELETE: 'ok',
    });
    const left = await readdir(join(dataDir, 'blobs'), { recursive: true, withFileTypes: true });
    t.same(
      left.filter((entry) => entry.isFile()).map(({ name }) => name),
      [],
    );
    const other = await (await admin(t, { ...env, BLOB_URL_SECRET: 'another-secret-of-tests' })).json('check-storage');
    t.match(failure(other), { check: 'signed GET', reason: 'credentials', advice: /environment/ });
    t.equal(other.code, EXIT.refused);
    const away = await (await admin(t, { ...env, PORT: '1' })).json('check-storage');
    t.match(failure(away), { check: 'server', reason: 'unreachable', advice: /--url/ });
    t.equal(away.code, EXIT.unavailable);
    t.match(failure(away)?.seen, /^http:\/\/127\.0\.0\.1:1: /);
    const sick = { body: '' };
    const down = createServer((_, reply) => reply.writeHead(503).end(sick.body)).listen(0, '127.0.0.1');
    await once(down, 'listening');
    t.teardown(() => void down.close());
    const { port: downPort } = down.address() as AddressInfo;
    for (const [body, seen, advice] of [
      [JSON.stringify({ ok: false, database: 'down' }), /its database does not/, /^Start the database/],
      ['<h1>Service unavailable</h1>', /the server behind .* is down \(503\)/, /--url/],
    ] as const) {
      sick.body = body;
      const stopped = await (await admin(t, { ...env, PORT: String(downPort) })).json('check-storage');
      t.match(failure(stopped), { check: 'server', reason: 'unreachable', seen, advice });
      t.equal(stopped.code, EXIT.unavailable);
    }
    const empty = await (await admin(t, { PORT: String(port) })).json('check-storage');
    t.match(empty, { code: EXIT.notFound, error: { code: 'no_store' } });
  },
);
