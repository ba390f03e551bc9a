/** Progress of long commands (src/terminal/output.ts, src/server/admin/progress.ts). */
import { randomBytes } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { createGunzip, gunzipSync } from 'node:zlib';
import t from 'tap';
import { writeArchive, verifyArchive } from '../src/server/admin/backup/archive.js';
import type { BlobContent } from '../src/server/blobs/objects/local.js';
import { gzipBlocks } from '../src/server/admin/backup/blocks.js';
import { progressOf } from '../src/server/admin/progress.js';
import { nodeTerminal, progressLines } from '../src/terminal/process.js';
import { paletteOf, throttledProgress } from '../src/terminal/output.js';
import { temporaryFolder } from './support/postgres.js';

t.test('OPER-26: on a terminal the line is overwritten at most ten times a second', (t) => {
  let now = 0;
  const shown: string[] = [];
  const tell = throttledProgress({ progress: (text) => void shown.push(text) }, { now: () => now });
  for (; now < 1_000; now += 10) tell(() => `at ${now}`);
  t.same(
    shown,
    Array.from({ length: 10 }, (_, n) => `at ${n * 100}`),
  );
  t.end();
});

t.test('OPER-26: in a log a line is written every ten seconds, and none for short work', (t) => {
  let now = 0;
  const lines: string[] = [];
  const tell = progressLines(
    (line) => void lines.push(line),
    () => now,
  );
  for (; now < 9_900; now += 100) tell('short');
  tell('');
  const begun = now;
  for (; now <= begun + 30_000; now += 100) tell(`after ${now - begun}`);
  t.same(lines, ['after 10000', 'after 20000', 'after 30000']);
  t.end();
});

t.test('OPER-26: progress goes to standard error alone, and nothing is printed with --json', (t) => {
  for (const { json, isTTY, expected } of [
    { json: false, isTTY: true, expected: /Backing up \[#{15}\.{15}\] 50 % 1\.0 KiB/ },
    { json: false, isTTY: false, expected: /^$/ },
    { json: true, isTTY: true, expected: /^$/ },
  ]) {
    const [out, errors] = [[] as string[], [] as string[]];
    const stream = (into: string[]): NodeJS.WriteStream =>
      ({ isTTY, columns: 100, write: (text: string) => into.push(text) > 0 }) as unknown as NodeJS.WriteStream;
    const terminal = nodeTerminal({
      json,
      env: {},
      ...{ input: { isTTY } as unknown as NodeJS.ReadStream, output: stream(out), errors: stream(errors) },
      interrupted: new AbortController().signal,
      interrupt: () => undefined,
    });
    progressOf(terminal, 'Backing up')(1024, 2048);
    t.match(errors.join(''), expected);
    t.same(out, []);
  }
  t.end();
});

t.test('CLI-16: colours of notes are not written to a file', (t) => {
  for (const [isTTY, expected] of [
    [true, '\u001b[31mError:\u001b[39m x\n'],
    [false, 'Error: x\n'],
  ] as const) {
    const errors: string[] = [];
    const stream = (tty: boolean): NodeJS.WriteStream =>
      ({ isTTY: tty, columns: 100, write: (text: string) => errors.push(text) > 0 }) as unknown as NodeJS.WriteStream;
    const terminal = nodeTerminal({
      ...{ json: false, env: {}, interrupt: () => undefined, interrupted: new AbortController().signal },
      ...{ input: { isTTY: true } as unknown as NodeJS.ReadStream, output: stream(true), errors: stream(isTTY) },
    });
    terminal.note(`${paletteOf(terminal).bad('Error:')} x`);
    t.same(errors, [expected]);
  }
  t.end();
});

async function* pieces(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield await Promise.resolve(bytes.subarray(at, at + size));
}

t.test('BACKUP-15: each block is compressed as far as that helps, and the whole is one gzip file', async (t) => {
  const noise = randomBytes(3_000_000);
  const digits = Buffer.from(randomBytes(1_500_000).toString('hex'));
  const words = Buffer.from('{"tenant":"01ARZ3NDEKTSV4RRFFQ69G5FAV","ref":"a"}\n'.repeat(60_000));
  for (const [bytes, least, most] of [
    [noise, 1, 1.01],
    [digits, 0.49, 0.53],
    [words, 0, 0.02],
    [Buffer.concat([noise, digits, words]), 0.4, 0.6],
    [Buffer.alloc(0), 0, 1],
    [Buffer.from('x'), 0, 100],
  ] as const) {
    const packed = await buffer(gzipBlocks(pieces(bytes, 70_001)));
    if (bytes.length > 0) {
      t.ok(gunzipSync(packed).equals(bytes), `${bytes.length} bytes are unpacked unchanged`);
      const share = packed.length / bytes.length;
      t.ok(share >= least && share <= most, `${share.toFixed(3)} of their size`);
    }
  }
});

t.test('BACKUP-15 OPER-26: blobs are stored uncompressed, and their progress is counted', async (t) => {
  const file = join(await temporaryFolder(t), 'backup.tar.gz');
  const blob = randomBytes(5_000_000);
  const name = '01ARZ3NDEKTSV4RRFFQ69G5FAV/01ARZ3NDEKTSV4RRFFQ69G5FAW.bin';
  const blobs = async function* (): AsyncGenerator<BlobContent> {
    yield await Promise.resolve({ name, size: blob.length, bytes: pieces(blob, 64 * 1024) });
  };
  const told: number[] = [];
  await writeArchive(
    file,
    {
      ...{ tables: [], read: () => Promise.reject(new Error('no tables')), createdAt: 1, version: 'test' },
      ...{ schema: 1, postgres: '18', bytes: blob.length, blobs: blobs() },
    },
    (done, total) => {
      told.push(done);
      t.equal(total, blob.length);
    },
  );
  t.ok((await stat(file)).size < blob.length * 1.01, 'the archive is at most 1 % larger than its blobs');
  t.ok(told.length > 50 && told.at(-1) === blob.length, `reported ${told.length} times, up to the end`);
  let read = 0;
  const manifest = await verifyArchive(file, (done) => void (read = done));
  t.equal(read, (await stat(file)).size);
  t.equal(manifest.blobs?.[0]?.bytes, blob.length);
  const streamed = await buffer(createReadStream(file).pipe(createGunzip()));
  t.ok(streamed.includes(blob.subarray(0, 1_000)) && streamed.equals(gunzipSync(await readFile(file))));
});
