/** Servers and stores that want more of a device than a transfer, and transfers that end early. */
import t from 'tap';
import { downloadBlob } from '../src/sdk/blobs/download.js';
import { blobAddress, uploadHeaders } from '../src/sdk/blobs/exchange.js';
import { bytesSource, type BlobSource } from '../src/sdk/blobs/source.js';
import { uploadBlob } from '../src/sdk/blobs/upload.js';
import { ClientError } from '../src/sdk/errors.js';
import { BLOB_CHUNK_BYTES, SEALED_CHUNK_BYTES } from '../src/crypto/blob-stream.js';
import { until } from './support/events.js';
import { decryptorOf, standInStore, transfers, type Trick } from './support/blob-store.js';
import { newId } from './support/client.js';

const HEAD = { id: newId(), type: 'file', ts: () => 1_760_000_000_123 } as const;
const CONTENT = new Uint8Array(2 * BLOB_CHUNK_BYTES).fill(7);

void t.test('CBLOB-08: a URL that no client may use is refused before anything is sent', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const { ref, draft } = await uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) });
  store.calls.length = 0;
  const named = ['user:word', 'user', ':word'].map((who) => store.origin.replace('//', `//${who}@`));
  for (const url of ['file:///etc/passwd', 'ftp://127.0.0.1/x', 'data:,x', 'javascript:1', '/relative', '', ...named]) {
    all.alterGrant = (grant) => ({ ...grant, url });
    const bad = { name: 'ProtocolError', code: 'bad_url' };
    await t.rejects(uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) }), bad, url);
    await t.rejects(downloadBlob(all.ports, { ref, decryptor: decryptorOf(draft, ref) }).next(), bad, url);
  }
  t.strictSame(store.calls, []);
  t.throws(
    () => blobAddress('http://store.example/x', 'https://sync.example'),
    { code: 'bad_url' },
    'https is not replaced by http',
  );
  t.equal(blobAddress('https://store.example/x?a=b#c', 'https://sync.example').href, 'https://store.example/x?a=b');
  const target = { url: new URL('https://store.example/x'), part: { from: 5, size: 5 }, total: 12 };
  for (const headers of [
    { authorization: 'Bearer x' },
    { cookie: 'a=b' },
    { host: 'inner.example' },
    { 'content-length': '6' },
    { 'content-range': 'bytes 0-4/12' },
    { 'transfer-encoding': 'chunked' },
    { 'x-a': 'b\r\nhost: inner' },
    { 'x-a': 7 },
    Object.fromEntries(Array.from({ length: 33 }, (_, at) => [`x-${at}`, 'a'])),
  ]) {
    t.throws(() => uploadHeaders(headers, target), { code: 'bad_url' }, JSON.stringify(headers).slice(0, 40));
  }
  t.strictSame(uploadHeaders({ Host: 'store.example', 'Content-Length': 5, 'If-None-Match': '*' }, target), {
    'if-none-match': '*',
  });
});

void t.test("CBLOB-08: a store's redirect is not followed", async (t) => {
  const store = await standInStore(t);
  const elsewhere = await standInStore(t);
  const all = transfers(store);
  const away =
    (code: number): Trick =>
    ({ path }, response) => {
      response.writeHead(code, { location: `${elsewhere.origin}${path}` }).end();
      return true;
    };
  const done = await uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) });
  for (const code of [301, 302, 303, 307, 308]) {
    store.tricks.push(away(code));
    await t.rejects(uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) }), { code: 'bad_url' }, `${code}`);
    store.tricks.push(away(code));
    const decryptor = decryptorOf(done.draft, done.ref);
    await t.rejects(downloadBlob(all.ports, { ref: done.ref, decryptor }).next(), { code: 'bad_url' }, `${code}`);
  }
  t.strictSame(elsewhere.calls, []);
});

void t.test('CBLOB-09: an endless body is read no further than the blob', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const { ref, draft } = await uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) });
  let sent = 0;
  store.tricks.push((_, response) => {
    response.writeHead(200);
    response.write(store.objects.get(`/${ref}`));
    const more = (): void => {
      while (!response.destroyed && sent < 2 ** 30) {
        sent += SEALED_CHUNK_BYTES;
        if (!response.write(Buffer.alloc(SEALED_CHUNK_BYTES))) break;
      }
    };
    response.on('drain', more);
    more();
    return true;
  });
  const reading = (async () => {
    for await (const part of downloadBlob(all.ports, { ref, decryptor: decryptorOf(draft, ref) }))
      t.ok(part.length > 0);
  })();
  await t.rejects(reading, { name: 'CryptoRefusal', reason: 'bad_ct' });
  t.ok(sent < 2 ** 25, `${sent} bytes were sent`);
});

void t.test('CBLOB-09: a store that sends a byte now and then is given up', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const { ref, draft } = await uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) });
  // One byte, and then nothing until the window is over.
  const drip: Trick = ({ path }, response) => {
    response.writeHead(200).write((store.objects.get(path) ?? Buffer.alloc(1)).subarray(0, 1));
    setImmediate(() => setImmediate(() => all.clock.ring()));
    return true;
  };
  const silent: Trick = () => {
    setImmediate(() => all.clock.ring());
    return true;
  };
  store.tricks.push(drip, silent, drip, silent, drip);
  const timeout = { name: 'NetworkError', code: 'timeout' };
  await t.rejects(downloadBlob(all.ports, { ref, decryptor: decryptorOf(draft, ref) }).next(), timeout);
  store.tricks.push(silent, silent, silent, silent, silent);
  await t.rejects(uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) }), timeout);
  t.equal(store.tricks.length, 0);
});

void t.test('CBLOB-10: a source whose length differs from the stated one is not sent as a blob', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  for (const size of [CONTENT.length - 1, CONTENT.length + 1]) {
    const source: BlobSource = { ...bytesSource(CONTENT), size };
    await t.rejects(uploadBlob(all.ports, { ...HEAD, source }), { code: 'source_changed' }, `${size}`);
  }
  const broken: BlobSource = {
    size: 5,
    open: () =>
      new ReadableStream<Uint8Array>({
        pull: (controller) => controller.error(new Error('the disk is gone')),
      }),
  };
  await t.rejects(uploadBlob(all.ports, { ...HEAD, source: broken }), { message: 'the disk is gone' });
  t.equal(all.granted.length, 3, 'no upload is tried again');
  t.equal(store.objects.size, 0);
});

void t.test('CBLOB-11: a transfer ends when its caller or its device ends it, and closes the source', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const done = await uploadBlob(all.ports, { ...HEAD, source: bytesSource(CONTENT) });
  let closed = 0;
  const endless: BlobSource = {
    size: 2 ** 34,
    async *open() {
      try {
        for (;;) {
          await new Promise((resolve) => setImmediate(resolve));
          yield CONTENT;
        }
      } finally {
        closed++;
      }
    },
  };
  const cancel = new AbortController();
  const onProgress = ({ done: sent }: { readonly done: number }): void => {
    if (sent > 10 * CONTENT.length) cancel.abort();
  };
  const cancelled = { name: 'ClientError', code: 'cancelled' };
  await t.rejects(
    uploadBlob(all.ports, { ...HEAD, source: endless }, { signal: cancel.signal, onProgress }),
    cancelled,
  );
  await until('the end of the source', () => closed === 1);
  const { ref, draft } = done;
  const reading = downloadBlob(all.ports, { ref, decryptor: decryptorOf(draft, ref) }, { signal: cancel.signal });
  await t.rejects(reading.next(), cancelled);
  const other = downloadBlob(all.ports, { ref, decryptor: decryptorOf(draft, ref) });
  await other.next();
  await other.return();
  all.lifetime.abort(new ClientError('closed', 'the device was closed'));
  await t.rejects(uploadBlob(all.ports, { ...HEAD, source: endless }), { code: 'closed' });
});
