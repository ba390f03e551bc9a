/** BLOBS: a file through a device, its server and the local store and back, relative to a bare copy of its bytes. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { BlobSource } from '../../src/sdk/blobs/source.js';
import { Device } from '../../src/sdk/device.js';
import { prepareClaim } from '../../src/sdk/enrol.js';
import { nodePlatform } from '../../src/sdk/node-platform.js';
import { AuditError } from '../audit.js';
import { Child, nodeScript, numberIn } from '../child.js';
import type { Context } from '../context.js';
import { ownBytes } from '../machine.js';
import { atLeast, atMost, Book, type Outcome } from '../stats.js';

const MB = 1_000_000;
const SIZE = 512 * 1024 * 1024;
const SIZE_QUICK = 128 * 1024 * 1024;
const PIECE = 256 * 1024;
const SAMPLE_MS = 25;
/** Sent first, so that one-time memory of the processes is not attributed to the measured file. */
const WARM_UP = 32 * 1024 * 1024;

/** Bytes that cost nothing to generate: the same piece repeatedly, with its offset at the front. */
function source(size: number): BlobSource {
  const piece = Buffer.alloc(PIECE, createHash('sha512').update('a piece').digest());
  return {
    size,
    async *open() {
      for (let at = 0; at < size; at += PIECE) {
        await Promise.resolve();
        piece.writeDoubleBE(at, 0);
        yield new Uint8Array(piece.subarray(0, Math.min(PIECE, size - at)));
      }
    },
  };
}

async function hashOf(bytes: AsyncIterable<Uint8Array>): Promise<string> {
  const hash = createHash('sha256');
  for await (const piece of bytes) hash.update(piece);
  return hash.digest('hex');
}

/** Runs `work`. `server`, `client`: peak memory of either process above its memory at the start, bytes. */
async function measured<T>(pid: number | undefined, work: () => Promise<T>) {
  const own = (): number => ownBytes(process.pid);
  const other = (): number => (pid === undefined ? 0 : ownBytes(pid));
  const before = { own: own(), other: other() };
  let most = before;
  const look = (): void => {
    most = { own: Math.max(most.own, own()), other: Math.max(most.other, other()) };
  };
  const timer = setInterval(look, SAMPLE_MS);
  const begun = performance.now();
  try {
    const value = await work();
    const seconds = (performance.now() - begun) / 1_000;
    look();
    return { value, seconds, server: most.other - before.other, client: most.own - before.own };
  } finally {
    clearInterval(timer);
  }
}

/** Writes the same bytes to a file and syncs it: the minimum for any store. */
async function bareWrite(path: string, content: BlobSource): Promise<void> {
  const file = await open(path, 'w');
  try {
    for await (const piece of content.open() as AsyncIterable<Uint8Array>) await file.appendFile(piece);
    await file.sync();
  } finally {
    await file.close();
  }
}

async function claimed(port: number): Promise<Device> {
  const platform = await nodePlatform();
  const serverUrl = `http://127.0.0.1:${port}`;
  const claim = await prepareClaim({ platform, serverUrl, name: 'Bench', glyph: 'laptop' });
  return Device.open({
    platform,
    identity: await claim.register(),
    onProblem: (error) => process.stderr.write(`${error.message}\n`),
  });
}

const put = async (device: Device, content: BlobSource): Promise<string> => {
  const payload = { name: 'bench.bin', size: content.size, mime: 'application/octet-stream' };
  return (await device.put({ binId: 'inbox', type: 'file', payload, content })).id;
};

interface Round {
  readonly context: Context;
  readonly device: Device;
  readonly server: Child;
  readonly size: number;
  readonly book: Book;
}

async function round({ context, device, server, size, book }: Round): Promise<void> {
  const content = source(size);
  const wanted = await hashOf(content.open() as AsyncIterable<Uint8Array>);
  const path = join(context.folder, 'bare.bin');
  const rate = (seconds: number): number => size / MB / seconds;
  const written = await measured(undefined, () => bareWrite(path, content));
  const read = await measured(undefined, () => hashOf(createReadStream(path, { highWaterMark: PIECE })));
  await rm(path);
  await server.ask('collect', 'collected');
  const up = await measured(server.pid, () => put(device, content));
  await server.ask('collect', 'collected');
  const down = await measured(server.pid, () => hashOf(device.blob(up.value)));
  // Figures count only if the same bytes came back.
  if (down.value !== wanted || read.value !== wanted) throw new AuditError('a blob came back with another hash');
  await device.delete(up.value);
  book.add('bare write', 'MB/s', rate(written.seconds));
  book.add('bare read', 'MB/s', rate(read.seconds));
  book.add('upload', 'MB/s', rate(up.seconds));
  book.add('download', 'MB/s', rate(down.seconds));
  book.add('memory of the server', 'MB', Math.max(up.server, down.server) / MB);
  book.add('memory of the device', 'MB', Math.max(up.client, down.client) / MB);
}

export async function blobs(context: Context): Promise<Outcome> {
  const { options, folder } = context;
  const size = options.quick ? SIZE_QUICK : SIZE;
  const cluster = await context.fast();
  await cluster.create('blobs');
  const dataDir = join(folder, 'blobs');
  await mkdir(dataDir);
  const env = { PATH: process.env['PATH'], HOST: '127.0.0.1', PORT: '0', LOG_LEVEL: 'error', DATA_DIR: dataDir };
  const server = new Child('server', nodeScript('blob-server', {}, ['--expose-gc']), {
    env: { ...env, DATABASE_URL: cluster.url('blobs') },
  });
  const device = await claimed(numberIn(await server.next('listening'), 'port'));
  await device.delete(await put(device, source(WARM_UP)));
  const book = new Book();
  for (let number = 1; number <= options.rounds; number++) {
    context.tell(`blobs: round ${number} of ${options.rounds}`);
    await round({ context, device, server, size, book });
  }
  device.close();
  await server.stop();
  return {
    id: 'BLOBS',
    title: `a file of ${size / 1024 / 1024} MiB up to the local store and down again, encrypted on the way, one connection`,
    targets: [
      atLeast(book.ratio('upload', 'bare write'), 0.02, 0.2),
      atLeast(book.ratio('download', 'bare read'), 0.02, 0.2),
      atMost(book.one('memory of the server'), 64, 32),
      atMost(book.one('memory of the device'), 128, 48),
    ],
    figures: ['upload', 'download', 'bare write', 'bare read'].map((name) => book.one(name)),
    audits: ['the SHA-256 of every download, and of every bare copy, is that of the file'],
  };
}
