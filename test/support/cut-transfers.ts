/** A file through the built program, up and down, while its connections are cut and its processes killed. */
import { createHash, randomBytes } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Test } from 'tap';
import { spawnCli, type Ended, type Process } from './cli.js';
import { CuttingProxy } from './cutting-proxy.js';
import { peakOf } from './memory.js';
import { temporaryFolder } from './postgres.js';
import { spawnServer } from './server.js';

const MIB = 1024 * 1024;
/** What crosses twice, with the requests: a share of the file, and of a small one what lies in the buffers at a cut. */
const most = (size: number): number => size + Math.max(0.05 * size, 10 * 2 * MIB);

async function hashOf(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const bytes of createReadStream(path)) hash.update(bytes as Buffer);
  return hash.digest('hex');
}

async function randomFile(path: string, size: number): Promise<void> {
  const file = await open(path, 'wx');
  for (let left = size; left > 0; left -= MIB) await file.write(randomBytes(Math.min(MIB, left)));
  await file.close();
}

interface Scene {
  readonly t: Test;
  readonly home: string;
  readonly proxy: CuttingProxy;
  readonly size: number;
  /** Highest resident set that any of the programs had. */
  peak: number;
}

/** Runs a command again and again until it succeeds: a cut ends it for good now and then, and every third one kills it. */
async function persistent(scene: Scene, argv: readonly string[]): Promise<Ended & { readonly runs: number }> {
  const { t, home, proxy, size } = scene;
  let current: Process | undefined;
  const marks = Array.from({ length: 10 }, (_, at) => Math.floor(((at + 0.7) * size) / 10));
  proxy.count(marks, (cut) => {
    if (cut % 3 === 0) current?.kill('SIGKILL');
  });
  for (let runs = 1; runs < 20; runs++) {
    const running = (current = spawnCli(t, argv, { home }));
    let over = false;
    const ended = running.ended.finally(() => (over = true));
    while (!over) {
      scene.peak = Math.max(scene.peak, await peakOf(running.pid).catch(() => 0));
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    const { code, ...rest } = await ended;
    if (code === 0) return { ...rest, code, runs };
    t.ok(rest.signal === 'SIGKILL' || code === 5, `${code} ${rest.signal} ${rest.stderr}`);
  }
  throw new Error('it never ended');
}

/** See above. The programs' peak stays under `mostMib`. */
export async function cutTransfers(t: Test, size: number, mostMib: number): Promise<void> {
  const server = await spawnServer(t, { env: { MAX_BLOB_SIZE_MB: '2048', LOG_LEVEL: 'info' } });
  const proxy = await CuttingProxy.before(t, server.port);
  const home = await temporaryFolder(t);
  const run = async (...argv: string[]): Promise<Record<string, unknown>> => {
    const { code, stdout, stderr } = await spawnCli(t, [...argv, '--json'], { home }).ended;
    t.equal(code, 0, stderr);
    return JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as Record<string, unknown>;
  };
  await run('claim', proxy.url, '--show-phrase');
  const path = join(home, 'large.bin');
  await randomFile(path, size);
  const scene: Scene = { t, home, proxy, size, peak: 0 };

  const put = await persistent(scene, ['put', '--json', '--file', path]);
  const { id } = JSON.parse(put.stdout) as { readonly id: string };
  t.ok(proxy.cuts.length === 10 && put.runs > 3, `${proxy.cuts.length} cuts, ${put.runs} programs`);
  t.ok(proxy.up < most(size), `up: ${(proxy.up / size).toFixed(4)} of its bytes`);
  proxy.count([]);
  t.match(await run('list'), { items: { length: 1 } }, 'it is there once');
  t.match(await run('uploads'), { uploads: { length: 0 } });

  const copy = join(home, 'copy.bin');
  const got = await persistent(scene, ['get', id, '--json', '-o', copy]);
  t.ok(proxy.cuts.length === 10 && got.runs > 3, `${proxy.cuts.length} cuts, ${got.runs} programs`);
  t.ok(proxy.down < most(size), `down: ${(proxy.down / size).toFixed(4)} of its bytes`);
  t.equal((await stat(copy)).mode & 0o777, 0o600);
  t.equal(await hashOf(copy), await hashOf(path));
  t.same(
    (await readdir(home)).filter((name) => name.startsWith('.copy')),
    [],
    'and nothing beside it',
  );
  t.ok(scene.peak < mostMib * MIB, `${Math.round(scene.peak / MIB)} MiB at most`);
}
