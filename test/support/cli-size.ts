/** A large file through the built program, while the program's memory is measured. Linux only. */
import { truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Test } from 'tap';
import { spawnCli } from './cli.js';
import { peakUntil } from './memory.js';
import { temporaryFolder } from './postgres.js';
import { spawnServer } from './server.js';

const MIB = 1024 * 1024;

/** What the program may use more for a large file than for a small one, bytes: the bound of CBLOB-32. */
const MORE_MAX = 48 * MIB;

/** Puts a small file and a sparse one of `size` bytes, and compares the program's peak memory. */
export async function largePut(t: Test, size: number): Promise<void> {
  const server = await spawnServer(t, { env: { MAX_BLOB_SIZE_MB: '2048', LOG_LEVEL: 'info' } });
  const home = await temporaryFolder(t);
  const claim = ['claim', `http://127.0.0.1:${server.port}`, '--json', '--show-phrase'];
  t.equal((await spawnCli(t, claim, { home }).ended).code, 0);
  const path = join(home, 'large.bin');
  await writeFile(path, '');
  const peakFor = async (bytes: number): Promise<number> => {
    await truncate(path, bytes);
    const put = spawnCli(t, ['put', '--json', '--file', path], { home });
    const peak = await peakUntil(put.pid, put.ended);
    const { code, stdout, stderr } = await put.ended;
    t.equal(code, 0, stderr);
    t.match(JSON.parse(stdout), { queued: false, size: bytes });
    return peak;
  };
  const small = await peakFor(MIB);
  const more = (await peakFor(size)) - small;
  t.ok(small > 20 * MIB, 'the memory is measured');
  t.ok(more < MORE_MAX, `${Math.round(more / MIB)} MiB more for ${Math.round(size / MIB)} MiB`);
}
