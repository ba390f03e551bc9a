/** A Google bucket without a key file: the machine's token authorizes calls, IAM signs URLs. */
import { randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import type { BlobName } from '../src/protocol/ids.js';
import { checkBucket } from '../src/server/admin/storage/bucket-check.js';
import type { Verdict } from '../src/server/admin/storage/verdict.js';
import { faultOf, StoreFault } from '../src/server/blobs/objects/fault.js';
import { GcsStore } from '../src/server/blobs/objects/gcs.js';
import { Signing } from '../src/server/blobs/objects/google-signing.js';
import { exchange } from './support/exchange.js';
import { GcsStandIn, newServiceAccount } from './support/gcs-server.js';
import { GoogleMachine } from './support/google-machine.js';
import { capturedLog, fiveMinutes, grantFor, newName } from './support/object-stores.js';
import { temporaryFolder } from './support/postgres.js';

const MIB = 1024 * 1024;
const account = await newServiceAccount(t);

interface Machine {
  readonly machine: GoogleMachine;
  readonly server: GcsStandIn;
  readonly store: GcsStore;
  readonly logs: readonly string[];
}

/** A store on a machine whose metadata server gives the tokens; `credentials` makes a file to use instead. */
async function onMachine(t: Test, credentials?: (machine: GoogleMachine) => Promise<string>): Promise<Machine> {
  const machine = await GoogleMachine.start(t, account);
  const server = await GcsStandIn.start(t, account);
  server.issued = (authorization) => machine.holds(authorization);
  const before = { ...process.env };
  t.teardown(() => {
    process.env = before;
  });
  delete process.env['GOOGLE_APPLICATION_CREDENTIALS'];
  process.env['HOME'] = await temporaryFolder(t);
  process.env['GCE_METADATA_HOST'] = new URL(machine.url).host;
  process.env['METADATA_SERVER_DETECTION'] = 'assume-present';
  if (credentials !== undefined) process.env['GOOGLE_APPLICATION_CREDENTIALS'] = await credentials(machine);
  const { log, lines } = capturedLog();
  const { signingEndpoint } = machine;
  const bounds = { callMs: 5_000, retries: 0 };
  const store = new GcsStore({ bucket: server.bucket, endpoint: server.url, log, bounds, signingEndpoint });
  return { machine, server, store, logs: lines };
}

async function upload(store: GcsStore, name: BlobName, body: Buffer): Promise<void> {
  const start = { size: body.length, contentType: 'application/octet-stream' };
  const session = (await store.begin(name, start)) ?? null;
  const open = { ...name, ...start, session, kept: 0 };
  const part = { from: 0, size: body.length, now: Date.now(), expiresAt: Date.now() + 900_000 };
  const { url, headers } = await store.signPart(open, part);
  const { status } = await exchange(url, { method: 'PUT', headers, body });
  if (status !== 200) throw new Error(`part: ${status}`);
}

t.test("OBJ-27: the machine's token authorizes calls, and an upload needs no signature", async (t) => {
  const { machine, server, store, logs } = await onMachine(t);
  for (const size of [10, 6 * MIB]) {
    const name = newName();
    const body = randomBytes(size);
    await upload(store, name, body);
    t.equal(machine.signed, 0, 'no signature was requested');
    t.match(await store.head(name), { size });
  }
  t.ok(
    server.calls
      .filter(({ api }) => api === 'json')
      .every(({ headers }) => machine.holds(headers['authorization'] ?? '')),
  );
  t.strictSame(logs, []);
});

t.test('OBJ-27: a session at another origin is refused, since requests would send the token there', async (t) => {
  const { server, store } = await onMachine(t);
  const begin = server.sessions.begin.bind(server.sessions);
  server.sessions.begin = (call) => begin(call, 'http://127.0.0.1:9/upload');
  const start = { size: 6 * MIB, contentType: 'application/octet-stream' };
  const refusal: unknown = await store.begin(newName(), start).catch((error: unknown) => error);
  t.match(refusal, { error: 'storage_unavailable' });
});

t.test('OBJ-27: IAM signs URLs that the store accepts', async (t) => {
  const { machine, store } = await onMachine(t);
  const name = newName();
  const body = randomBytes(1_000);
  const { url, headers } = await store.signUpload(name, grantFor(body));
  t.equal((await exchange(url, { method: 'PUT', headers, body })).status, 200);
  const signed = await store.signDownload(name, fiveMinutes());
  t.equal((await exchange(signed.url, { method: 'GET' })).status, 200);
  t.equal(machine.signed, 2);
});

t.test('OBJ-28: a download URL is reused for its blob while at least three and a half minutes are left', async (t) => {
  const { machine, store } = await onMachine(t);
  const name = newName();
  const now = Date.now();
  const first = await store.signDownload(name, fiveMinutes(now));
  const later = await store.signDownload(name, fiveMinutes(now + 60_000));
  t.strictSame(later, first, 'the same URL with the same expiry');
  t.equal(machine.signed, 1);
  await store.signDownload(newName(), fiveMinutes(now));
  t.equal(machine.signed, 2, 'another blob gets a URL of its own');
  const last = await store.signDownload(name, fiveMinutes(now + 120_000));
  t.equal(last.expiresAt, now + 420_000, 'with less than three and a half minutes left a new URL is signed');
  t.equal(machine.signed, 3);
  await Promise.all(Array.from({ length: 20 }, () => store.signDownload(name, fiveMinutes(now + 300_000))));
  t.equal(machine.signed, 4, 'concurrent requests share one signature');
});

t.test('OBJ-28: at most sixteen signatures are requested at once', async (t) => {
  const { machine, store } = await onMachine(t);
  let go: () => void = () => undefined;
  machine.hold = new Promise((resolve) => (go = resolve));
  const urls = Array.from({ length: 40 }, () => store.signDownload(newName(), fiveMinutes()));
  while (machine.signing < 16) await new Promise((resolve) => setImmediate(resolve));
  go();
  await Promise.all(urls);
  t.equal(machine.signingMost, 16);
  t.equal(machine.signed, 40);
});

t.test('OBJ-28: after five failures no signature is requested for a while', async (t) => {
  let now = 0;
  const fault = new StoreFault('broken', 'told to fail');
  const signing = new Signing(
    1_000,
    () => fault,
    () => now,
  );
  let asked = 0;
  const fail = (): Promise<string> => {
    asked++;
    return Promise.reject(new Error('no'));
  };
  for (let at = 0; at < 20; at++) await t.rejects(signing.run(fail), fault);
  t.equal(asked, 5);
  now += 5_000;
  t.equal(await signing.run(() => Promise.resolve('signature')), 'signature');
  await t.rejects(signing.run(fail));
  t.equal(asked, 6, 'signatures are requested again');
});

t.test('OBJ-29: a missing right to sign is named, and no text of IAM reaches the log', async (t) => {
  const { machine, store, logs } = await onMachine(t);
  machine.trouble = 403;
  const error: unknown = await store.signDownload(newName(), fiveMinutes()).catch((error: unknown) => error);
  t.match(faultOf(error), { reason: 'denied', code: 'iam.serviceAccounts.signBlob' });
  t.match(logs.join(), /iam\.serviceAccounts\.signBlob is missing/);
  t.notMatch(logs.join(), /denied on resource|ya29/);
  const body = randomBytes(10);
  await upload(store, newName(), body);
  t.ok(true, 'uploads work all the same');
});

t.test('OBJ-29: check-storage passes without a key, and names a missing right to sign', async (t) => {
  const { machine, store } = await onMachine(t);
  const check = async (): Promise<Verdict[]> => [
    ...(await checkBucket({ store, origins: [], onVerdict: () => undefined })),
  ];
  t.strictSame(
    (await check()).filter(({ outcome }) => outcome !== 'ok').map(({ check, outcome }) => [check, outcome]),
    [['CORS', 'skipped']],
  );
  machine.trouble = 403;
  const [first] = await check();
  t.match(first, { check: 'credentials', outcome: 'failed', reason: 'denied' });
  t.match(first?.seen, /iam\.serviceAccounts\.signBlob/);
  t.match(first?.advice, /roles\/iam\.serviceAccountTokenCreator/);
});

t.test('OBJ-27: workload identity federation exchanges the token of another provider', async (t) => {
  const { store } = await onMachine(t, async (machine) => {
    const folder = await temporaryFolder(t);
    await writeFile(join(folder, 'token'), 'a-token-of-the-cluster');
    const file = join(folder, 'external.json');
    const config = {
      type: 'external_account',
      audience: '//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q',
      subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
      token_url: `${machine.url}/v1/token`,
      credential_source: { file: join(folder, 'token') },
      service_account_impersonation_url: `${machine.url}/v1/projects/-/serviceAccounts/${account.email}:generateAccessToken`,
    };
    await writeFile(file, JSON.stringify(config));
    return file;
  });
  const name = newName();
  await upload(store, name, randomBytes(10));
  t.match(await store.head(name), { size: 10 });
  const { url } = await store.signDownload(name, fiveMinutes());
  t.equal((await exchange(url, { method: 'GET' })).status, 200);
});
