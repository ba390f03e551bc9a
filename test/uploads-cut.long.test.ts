/** The same as `uploads-cut`, with a file of 1 GiB, and with a smaller one to each of the buckets. */
import t from 'tap';
import { Ceph, cephMissing } from './support/ceph.js';
import { cutTransfers } from './support/cut-transfers.js';
import { newServiceAccount } from './support/gcs-server.js';
import { gcsBucket, s3Bucket } from './support/object-stores.js';

const MIB = 1024 * 1024;
const LINUX = { skip: process.platform !== 'linux', timeout: 900_000 };

// The file's own limit would be less than that of one test.
t.setTimeout(3 * LINUX.timeout);

t.test(
  'CBLOB-46 CBLOB-47: a file of 1 GiB that is cut off ten times in each direction, its program killed, arrives once',
  LINUX,
  (t) => cutTransfers(t, { size: 1024 * MIB, cuts: 10, mostMib: 160 }),
);

t.test('CBLOB-46 CBLOB-47 OBJ-24: a cut transfer of 512 MiB arrives once in a bucket of Google', LINUX, async (t) => {
  const account = await newServiceAccount(t);
  const credentials = { GOOGLE_APPLICATION_CREDENTIALS: account.keyFile };
  Object.assign(process.env, credentials);
  const bucket = await gcsBucket(t, account);
  const remote = { bucket, url: bucket.server.url, endpoint: 'GCS_ENDPOINT', credentials } as const;
  await cutTransfers(t, { size: 512 * MIB, cuts: 10, mostMib: 160, remote });
});

t.test(
  "CBLOB-46 CBLOB-47 OBJ-24: a cut transfer of 512 MiB arrives once in a bucket of Ceph's gateway",
  { ...LINUX, skip: cephMissing },
  async (t) => {
    const ceph = await Ceph.start(t);
    const user = await ceph.newUser();
    const credentials = { AWS_ACCESS_KEY_ID: user.accessKeyId, AWS_SECRET_ACCESS_KEY: user.secretAccessKey };
    Object.assign(process.env, credentials);
    const bucket = await s3Bucket(t, ceph, user);
    const remote = { bucket, url: ceph.endpoint, endpoint: 'S3_ENDPOINT', credentials } as const;
    await cutTransfers(t, { size: 512 * MIB, cuts: 10, mostMib: 160, remote });
  },
);
