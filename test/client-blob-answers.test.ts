/** Answers of stores to URLs that are late or used up, answers that are not HTTP, and what a transfer makes of them. */
import { createServer, type Socket } from 'node:net';
import t from 'tap';
import { downloadBlob } from '../src/sdk/blobs/download.js';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { uploadBlob } from '../src/sdk/blobs/upload.js';
import { isTransient } from '../src/sdk/errors.js';
import { decryptorOf, standInStore, transfers, type Trick } from './support/blob-store.js';
import { newId } from './support/client.js';
import { refusal } from './support/client-world.js';
import { openFor } from './support/loopback-server.js';

const HEAD = { id: newId(), type: 'file', ts: () => 1_760_000_000_123 } as const;
const CONTENT = Uint8Array.from({ length: 1_000 }, (_, at) => at % 251);

const refusing =
  (status: number, code: string): Trick =>
  (_, response) => {
    response.writeHead(status).end(`<?xml version='1.0'?><Error><Code>${code}</Code></Error>`);
    return true;
  };
/** The answers to a late URL at Google and at S3, and to a second PUT at either. */
const ANSWERS = [
  [400, 'ExpiredToken'],
  [403, 'AccessDenied'],
  [409, 'ConditionalRequestConflict'],
  [412, 'PreconditionFailed'],
] as const;

void t.test(
  'CBLOB-24: a URL that a store calls late or used up is replaced by a fresh one; a third refusal is reported',
  async (t) => {
    for (const [status, code] of ANSWERS) {
      const store = await standInStore(t);
      const all = transfers(store);
      const trick = refusing(status, code);
      store.tricks.push(trick);
      const done = await uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) });
      t.equal(all.granted.length, 2, `${status}: an upload requests a second URL`);
      const read = async (): Promise<number> => {
        let size = 0;
        const decryptor = decryptorOf(done.draft, done.ref);
        for await (const part of downloadBlob(all.ports, { ref: done.ref, decryptor })) size += part.length;
        return size;
      };
      all.granted.length = 0;
      store.tricks.push(trick);
      t.equal(await read(), CONTENT.length);
      t.equal(all.granted.length, 2, `${status}: a download requests a second URL`);
      store.tricks.push(...Array.from({ length: 9 }, () => trick));
      await t.rejects(read(), { name: 'ApiError', status });
      await t.rejects(uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) }), {
        name: 'ApiError',
        status,
      });
      t.equal(store.tricks.length, 3, `${status}: three attempts each`);
    }
  },
);

void t.test(
  'CBLOB-25: an answer that is not HTTP, or switches protocols, ends an upload and nothing else',
  async (t) => {
    const store = await standInStore(t);
    for (const head of [
      '999 X\r\nConnection: close\r\nContent-Length: 0',
      '099 X\r\nConnection: close\r\nContent-Length: 0',
      '101 X\r\nConnection: upgrade\r\nUpgrade: x',
    ]) {
      const sockets = new Set<Socket>();
      const server = createServer((socket) => {
        sockets.add(socket.on('error', () => undefined));
        socket.once('data', () => socket.write(`HTTP/1.1 ${head}\r\n\r\n`));
      });
      const url = `http://127.0.0.1:${await openFor(t, server)}/x`;
      const all = transfers(store);
      all.alterGrant = (grant) => ({ ...grant, url });
      const error = await refusal(uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) }));
      t.ok(isTransient(error), `${head}: ${error.name}`);
      t.equal(all.granted.length, 5, 'five attempts are made');
      for (const socket of sockets) socket.destroy();
    }
  },
);

void t.test('CBLOB-26: the connection to a store that refuses and holds it open is dropped', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const closed: Promise<void>[] = [];
  const holding: Trick = (_, response) => {
    closed.push(new Promise((resolve) => response.on('close', resolve)));
    response.writeHead(302, { location: 'http://169.254.169.254/' }).write('and on');
    return true;
  };
  const done = await uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) });
  store.tricks.push(holding, holding);
  const badUrl = { name: 'ProtocolError', code: 'bad_url' };
  await t.rejects(uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) }), badUrl);
  await t.rejects(
    downloadBlob(all.ports, { ref: done.ref, decryptor: decryptorOf(done.draft, done.ref) }).next(),
    badUrl,
  );
  await Promise.all(closed);
  t.equal(closed.length, 2);
});
