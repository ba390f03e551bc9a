/** A file through the built program, up and down, while its connections are cut and its processes killed. */
import { createReadStream } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Test } from 'tap';
import { spawnCli, type Ended, type Process } from './cli.js';
import { CuttingProxy } from './cutting-proxy.js';
import { hashOf, randomFile } from './large-files.js';
import { peakUntil } from './memory.js';
import type { BucketUnderTest } from './object-stores.js';
import { temporaryFolder } from './postgres.js';
import { spawnServer } from './server.js';

const MIB = 1024 * 1024;
/** What crosses twice, with the requests: a share of the file, and of a small one what lies in the buffers at each cut. */
const most = ({ size, cuts }: Pick<Scene, 'size' | 'cuts'>): number => size + Math.max(0.05 * size, cuts * 2 * MIB);

/** A bucket, and where it listens. */
interface RemoteStore {
  readonly bucket: BucketUnderTest;
  readonly url: string;
  /** The variable that tells a server where that is, and those of its credentials. */
  readonly endpoint: 'S3_ENDPOINT' | 'GCS_ENDPOINT';
  readonly credentials: Readonly<Record<string, string>>;
}

interface Scene {
  readonly t: Test;
  readonly home: string;
  /** Before what the bytes of files go to: the bucket, or the server. */
  readonly proxy: CuttingProxy;
  /** Before the server, where that is another one. */
  readonly other: CuttingProxy | undefined;
  readonly size: number;
  /** On either way. */
  readonly cuts: number;
  /** Highest resident set that any of the programs had. */
  peak: number;
}

/** Runs a command again and again until it succeeds: a cut ends it for good now and then, and every third one kills it. */
async function persistent(scene: Scene, argv: readonly string[]): Promise<Ended & { readonly runs: number }> {
  const { t, home, proxy, other, size, cuts } = scene;
  let current: Process | undefined;
  const marks = Array.from({ length: cuts }, (_, at) => Math.floor(((at + 0.7) * size) / cuts));
  other?.count([]);
  proxy.count(marks, (cut) => {
    other?.cut();
    if (cut % 3 === 0) current?.kill('SIGKILL');
  });
  for (let runs = 1; runs < 20; runs++) {
    const running = (current = spawnCli(t, argv, { home }));
    scene.peak = Math.max(scene.peak, await peakUntil(running.pid, running.ended));
    const { code, ...rest } = await running.ended;
    if (code === 0) return { ...rest, code, runs };
    t.ok(rest.signal === 'SIGKILL' || code === 5, `${code} ${rest.signal} ${rest.stderr}`);
  }
  throw new Error('it never ended');
}

/** Where the server is, and the proxies of the scene. */
async function served(t: Test, remote: RemoteStore | undefined): Promise<Pick<Scene, 'proxy' | 'other'>> {
  const before = (url: string): Promise<CuttingProxy> => CuttingProxy.before(t, Number(new URL(url).port));
  const bucket = remote === undefined ? undefined : await before(remote.url);
  const store =
    remote === undefined || bucket === undefined
      ? {}
      : { ...remote.bucket.env, ...remote.credentials, [remote.endpoint]: bucket.url };
  const server = await spawnServer(t, { env: { MAX_BLOB_SIZE_MB: '2048', LOG_LEVEL: 'info', ...store } });
  const api = await before(`http://127.0.0.1:${server.port}`);
  return bucket === undefined ? { proxy: api, other: undefined } : { proxy: bucket, other: api };
}

/** What the bucket has in the end. */
async function expectOne(t: Test, { bucket }: RemoteStore): Promise<void> {
  const found = [];
  for await (const page of bucket.store.list()) found.push(...page);
  t.equal(found.length, 1, 'one object in the bucket');
  t.equal(await bucket.openUploads(), 0, 'no upload that has not ended');
}

interface Transfers extends Pick<Scene, 'size' | 'cuts'> {
  readonly mostMib: number;
  readonly remote?: RemoteStore;
}

/**
 * Sends a file and gets it back, with cuts on either way. The programs' peak stays under `mostMib`. Without `remote` the
 * server keeps the files itself.
 */
export async function cutTransfers(t: Test, { size, cuts, mostMib, remote }: Transfers): Promise<void> {
  const { proxy, other } = await served(t, remote);
  const home = await temporaryFolder(t);
  const run = async (...argv: string[]): Promise<Record<string, unknown>> => {
    const { code, stdout, stderr } = await spawnCli(t, [...argv, '--json'], { home }).ended;
    t.equal(code, 0, stderr);
    return JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as Record<string, unknown>;
  };
  await run('claim', (other ?? proxy).url, '--show-phrase');
  const path = join(home, 'large.bin');
  await randomFile(path, size);
  const scene: Scene = { t, home, proxy, other, size, cuts, peak: 0 };
  const bounded = (way: 'up' | 'down', { runs }: { readonly runs: number }): void => {
    t.ok(proxy.cuts.length === cuts && runs > cuts / 3, `${proxy.cuts.length} cuts, ${runs} programs`);
    const passed = proxy[way] + (other?.[way] ?? 0);
    t.ok(passed < most(scene), `${way}: ${(passed / size).toFixed(4)} of its bytes`);
    proxy.count([]);
  };

  const put = await persistent(scene, ['put', '--json', '--file', path]);
  const { id } = JSON.parse(put.stdout) as { readonly id: string };
  bounded('up', put);
  t.match(await run('list'), { items: { length: 1 } }, 'it is there once');
  t.match(await run('uploads'), { uploads: { length: 0 } });
  if (remote !== undefined) await expectOne(t, remote);

  const copy = join(home, 'copy.bin');
  bounded('down', await persistent(scene, ['get', id, '--json', '-o', copy]));
  t.equal((await stat(copy)).mode & 0o777, 0o600);
  t.equal(await hashOf(createReadStream(copy)), await hashOf(createReadStream(path)));
  t.same(
    (await readdir(home)).filter((name) => name.startsWith('.copy')),
    [],
    'and nothing beside it',
  );
  t.ok(scene.peak < mostMib * MIB, `${Math.round(scene.peak / MIB)} MiB at most`);
}
