/**
 * Runs the service's own embedded PostgreSQL in a separate process: a preloaded library can simulate a slow disk, and
 * killing the server under test does not affect it. Prints {"event":"up","url":...}; answers "pid". On SIGTERM or
 * SIGINT, and when its parent is gone, it stops the database and removes the folder.
 *
 *   cluster folder=PATH connections=N
 */
import { randomBytes } from 'node:crypto';
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { EmbeddedPostgres } from '../src/server/storage/embedded/embedded.js';
import { option, say } from './reference/say.js';

const folder = option('folder');
const dataDir = join(folder, 'data');
mkdirSync(dataDir);
const postgres = await EmbeddedPostgres.start({
  dataDir,
  password: randomBytes(16).toString('hex'),
  onLog: () => undefined,
  settings: { max_connections: option('connections') },
});
let stopping = false;
const stop = (): void => {
  if (stopping) return;
  stopping = true;
  void postgres.stop().then(() => {
    rmSync(folder, { recursive: true, force: true });
    process.exit(0);
  });
};
// Ctrl-C reaches every process of a terminal's group.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, stop);
createInterface({ input: process.stdin })
  .on('line', (line) => {
    if (line === 'pid') say({ event: 'pid', pid: postgres.pid });
  })
  .on('close', stop);
say({ event: 'up', url: postgres.url, pid: postgres.pid });
