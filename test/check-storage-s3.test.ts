/** `service-admin check-storage` on a real S3 gateway that misbehaves, and on folders of other users. */
import { PutBucketPolicyCommand } from '@aws-sdk/client-s3';
import { chown, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import type { Verdict } from '../src/server/admin/storage/verdict.js';
import { EXIT } from '../src/terminal/terminal.js';
import { admin, builtAdmin, type AdminEnded } from './support/admin.js';
import { Ceph, cephMissing } from './support/ceph.js';
import { FaultyHttp, type HttpFault, type ProxiedCall } from './support/faulty-http.js';
import { s3Bucket } from './support/object-stores.js';
import { temporaryFolder } from './support/postgres.js';
import { runServer } from './support/server.js';

const linesOf = ({ data }: AdminEnded): readonly Verdict[] => data['checks'] as readonly Verdict[];
const line = (ended: AdminEnded, check: string): Verdict | undefined =>
  linesOf(ended).find((one) => one.check === check);
const notOk = (ended: AdminEnded): Record<string, string> =>
  Object.fromEntries(
    linesOf(ended)
      .filter(({ outcome, check }) => outcome !== 'ok' && check !== 'CORS')
      .map(({ check, outcome }) => [check, outcome]),
  );

/** Sets the clock of a program so many milliseconds ahead. */
const aheadBy = (ms: number): string => {
  const script = `
    const Real = Date;
    globalThis.Date = class extends Real {
      constructor(...given) { given.length === 0 ? super(Real.now() + ${ms}) : super(...given); }
      static now() { return Real.now() + ${ms}; }
    };`;
  return `--import=data:text/javascript,${encodeURIComponent(script)}`;
};

/** A call on an object, as clients make it: by a signed URL, or by one without a signature. */
const isClients = ({ target, headers }: ProxiedCall): boolean =>
  headers.authorization === undefined && target.includes('.bin');
const refusal = (status: number, code: string): HttpFault => ({
  status,
  body: `<?xml version="1.0" encoding="UTF-8"?><Error><Code>${code}</Code><Message>no</Message></Error>`,
});

t.test('S3', { skip: cephMissing }, async (t) => {
  const ceph = await Ceph.start(t);
  const user = await ceph.newUser();
  /** A bucket behind a proxy, and the program's verdicts on it. */
  const setUp = async (t: Test) => {
    const { bucket, direct } = await s3Bucket(t, ceph, user);
    const proxy = await FaultyHttp.before(t, ceph.endpoint);
    const base = {
      STORAGE_KIND: 's3',
      S3_BUCKET: bucket,
      S3_ENDPOINT: proxy.url,
      AWS_ACCESS_KEY_ID: user.accessKeyId,
      AWS_SECRET_ACCESS_KEY: user.secretAccessKey,
      AWS_EC2_METADATA_DISABLED: 'true',
      NODE_NO_WARNINGS: '1',
    };
    const check = async (env: Record<string, string> = {}): Promise<AdminEnded> =>
      (await admin(t, { ...base, ...env })).json('check-storage');
    /** The same in a process with another clock. */
    const checkAhead = async (ms: number): Promise<AdminEnded> =>
      (await builtAdmin(t, { ...base, NODE_OPTIONS: aheadBy(ms) })).json('check-storage');
    return { bucket, direct, proxy, check, checkAhead };
  };

  t.test(
    'BLOB-51 OBJ-18: a wrong clock is reported with its distance, and also where only a refusal shows it',
    async (t) => {
      const { proxy, checkAhead } = await setUp(t);
      for (const [ms, seen] of [
        [2 * 3_600_000, /2 h 0 min ahead of/],
        [-5 * 60_000, /5 min behind/],
      ] as const) {
        const ended = await checkAhead(ms);
        t.match(line(ended, 'clock'), { outcome: 'failed', reason: 'clock', seen, advice: /NTP/ }, ended.stderr);
        t.equal(ended.code, EXIT.refused);
        t.match(line(ended, 'signed PUT'), { outcome: 'skipped' });
      }
      proxy.hidden.add('date');
      const silent = await checkAhead(2 * 3_600_000);
      t.match(line(silent, 'clock'), { outcome: 'skipped', seen: /does not report its time/ });
      t.match(line(silent, 'list'), {
        outcome: 'failed',
        reason: 'clock',
        seen: /RequestTimeTooSkewed/,
        advice: /NTP/,
      });
      t.equal(silent.code, EXIT.refused);
    },
  );

  t.test('BLOB-51 OBJ-18: a bucket that everybody may read is detected', async (t) => {
    const { bucket, direct, check } = await setUp(t);
    t.same(notOk(await check()), {}, 'the bucket is sound at first');
    const everybody = { Effect: 'Allow', Principal: '*', Action: 's3:GetObject', Resource: `arn:aws:s3:::${bucket}/*` };
    const Policy = JSON.stringify({ Version: '2012-10-17', Statement: [everybody] });
    await direct.send(new PutBucketPolicyCommand({ Bucket: bucket, Policy }));
    const ended = await check();
    t.same(notOk(ended), { 'no signature': 'failed' }, 'signatures that are sent are checked all the same');
    t.match(line(ended, 'no signature'), { reason: 'public', seen: /200/, advice: /must not be public/ });
    t.match(line(ended, 'DELETE'), { outcome: 'ok' }, 'the object is removed');
    t.equal(ended.code, EXIT.refused);
  });

  t.test('BLOB-51 OBJ-18: a store that checks no signature is distinguished from a public bucket', async (t) => {
    const { proxy, check } = await setUp(t);
    const known = new Set<string>();
    proxy.fault = (call) => {
      if (call.method !== 'GET' || !isClients(call)) return undefined;
      if (call.headers.range === undefined && known.size === 0) known.add(call.target);
      return known.has(call.target) ? undefined : { status: 200 };
    };
    const ended = await check();
    t.same(notOk(ended), { 'altered URL': 'failed', 'no signature': 'failed', 'late URL': 'failed' });
    for (const name of ['altered URL', 'no signature', 'late URL']) {
      t.match(line(ended, name), { reason: 'public', advice: /does not check signatures/ }, name);
    }
    t.equal(ended.code, EXIT.refused);
  });

  t.test(
    'BLOB-51 OBJ-16: what the store permits and the server enforces by itself is weak, and no failure',
    async (t) => {
      const { proxy, check } = await setUp(t);
      let puts = 0;
      proxy.fault = (call) => {
        if (!isClients(call)) return undefined;
        // The first upload is valid; the second repeats it, the third is too long.
        if (call.method === 'PUT') return puts++ === 0 ? undefined : { status: 200 };
        return call.headers.range === undefined ? undefined : { status: 200 };
      };
      const ended = await check();
      t.same(notOk(ended), { 'once only': 'weak', 'exact size': 'weak', range: 'weak' });
      t.match(line(ended, 'once only')?.seen, /if-none-match/);
      t.match(line(ended, 'exact size')?.seen, /the server detects it/);
      t.match(line(ended, 'range')?.seen, /starts again/);
      t.match(ended, { code: EXIT.ok, data: { sound: true } });
    },
  );

  t.test('BLOB-51 OBJ-18: a region other than the bucket’s is reported, as AWS answers it', async (t) => {
    const { proxy, check } = await setUp(t);
    for (const [status, code] of [
      [301, 'PermanentRedirect'],
      [400, 'AuthorizationHeaderMalformed'],
      [400, 'IllegalLocationConstraintException'],
    ] as const) {
      proxy.fault = ({ target }) => (target === '/' ? undefined : refusal(status, code));
      const ended = await check({ S3_REGION: 'eu-central-1' });
      t.match(line(ended, 'list'), {
        outcome: 'failed',
        reason: 'region',
        seen: new RegExp(code),
        advice: /S3_REGION/,
      });
      t.equal(ended.code, EXIT.refused);
    }
  });

  t.test('BLOB-51 OBJ-18: a wrong key id, a wrong bucket and a key that may not write are distinguished', async (t) => {
    const { bucket, direct, check } = await setUp(t);
    const stranger = await check({ AWS_ACCESS_KEY_ID: 'NOBODYKNOWSTHISKEY' });
    t.match(line(stranger, 'list'), { reason: 'credentials', seen: /InvalidAccessKeyId/, advice: /AWS_ACCESS_KEY_ID/ });
    t.match(line(await check({ S3_BUCKET: 'no-such-bucket' }), 'list'), { reason: 'bucket', advice: /S3_BUCKET/ });
    const reader = await ceph.newUser();
    const Statement = [
      {
        ...{ Effect: 'Allow', Principal: '*', Action: ['s3:ListBucket', 's3:DeleteObject'] },
        Resource: [`arn:aws:s3:::${bucket}`, `arn:aws:s3:::${bucket}/*`],
      },
    ];
    const Policy = JSON.stringify({ Version: '2012-10-17', Statement });
    await direct.send(new PutBucketPolicyCommand({ Bucket: bucket, Policy }));
    const keys = { AWS_ACCESS_KEY_ID: reader.accessKeyId, AWS_SECRET_ACCESS_KEY: reader.secretAccessKey };
    const denied = await check(keys);
    t.match(line(denied, 'signed PUT'), { outcome: 'failed', reason: 'denied', advice: /s3:PutObject/ });
    t.match(line(denied, 'list'), { outcome: 'ok' });
    t.equal(denied.code, EXIT.refused);
  });
});

t.test(
  'BLOB-52: the owners of the folders that are written to are judged, not that of the data folder above',
  async (t) => {
    if (process.getuid?.() !== 0) return t.comment('skipped: only root can give a folder to another user');
    const dataDir = await temporaryFolder(t);
    const secret = 'a-secret-of-the-tests';
    const { port, tenantId } = await runServer(t, { env: { DATA_DIR: dataDir, BLOB_URL_SECRET: secret } });
    const check = async (): Promise<AdminEnded> =>
      (await admin(t, { DATA_DIR: dataDir, BLOB_URL_SECRET: secret, PORT: String(port) })).json('check-storage');
    const blobs = join(dataDir, 'blobs');
    const someone = 12_345;
    await chown(dataDir, someone, someone);
    const fresh = await check();
    t.match(line(fresh, 'folder'), { outcome: 'failed', reason: 'denied', seen: `${dataDir} belongs to another user` });
    await mkdir(join(blobs, 'uploads'), { recursive: true, mode: 0o700 });
    const ended = await check();
    t.equal(ended.code, EXIT.ok, ended.stdout + ended.stderr);
    t.match(line(ended, 'folder'), { outcome: 'ok', seen: new RegExp(blobs) });
    for (const folder of [blobs, join(blobs, 'uploads'), join(blobs, tenantId)]) {
      await chown(folder, someone, someone);
      const found = await check();
      t.match(line(found, 'folder'), {
        outcome: 'failed',
        reason: 'denied',
        seen: `${folder} belongs to another user`,
      });
      t.equal(found.code, EXIT.refused);
      await chown(folder, 0, 0);
    }
    t.equal((await check()).code, EXIT.ok);
  },
);
