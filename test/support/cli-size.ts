/** A large file through the built program, while the program's memory is measured. Linux only. */
import { truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Test } from 'tap';
import { spawnCli } from './cli.js';
import { peakUntil } from './memory.js';
import { temporaryFolder } from './postgres.js';
import { spawnServer } from './server.js';

const MIB = 1024 * 1024;

/** Puts a sparse file of `size` bytes; checks that the program's peak memory is below `mostMib`. */
export async function largePut(t: Test, size: number, mostMib: number): Promise<void> {
  const server = await spawnServer(t, { env: { MAX_BLOB_SIZE_MB: '2048', LOG_LEVEL: 'info' } });
  const home = await temporaryFolder(t);
  const path = join(home, 'large.bin');
  await writeFile(path, '');
  await truncate(path, size);
  const claim = ['claim', `http://127.0.0.1:${server.port}`, '--json', '--show-phrase'];
  t.equal((await spawnCli(t, claim, { home }).ended).code, 0);
  const put = spawnCli(t, ['put', '--json', '--file', path], { home });
  const peak = await peakUntil(put.pid, put.ended);
  const { code, stdout, stderr } = await put.ended;
  t.equal(code, 0, stderr);
  t.match(JSON.parse(stdout), { queued: false, size });
  t.ok(peak > 20 * MIB && peak < mostMib * MIB, `${Math.round(peak / MIB)} MiB for ${Math.round(size / MIB)} MiB`);
}
