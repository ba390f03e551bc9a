/** What an attacker tries with blobs, at the front and at the reservations, with stand-ins behind them. */
import { once } from 'node:events';
import { Agent, request, type IncomingMessage } from 'node:http';
import t from 'tap';
import { Blobs } from '../src/server/blobs/blobs.js';
import type { ObjectStore, StoredObject } from '../src/server/blobs/ports.js';
import type { BlobStore } from '../src/server/blobs/store.js';
import { ServiceError, storageUnavailable } from '../src/protocol/errors.js';
import { TestClock } from './support/clock.js';
import { newId } from './support/devices.js';
import { ask, frontOf, TENANT, writeA } from './support/front.js';
import { raw } from './support/front-sockets.js';

const REF = '01ARZ3NDEKTSV4RRFFQ69G5FB1.bin';

const blobsOver = (store: Partial<ObjectStore>, rows: Partial<BlobStore>): Blobs =>
  new Blobs({
    ...{ store: store as ObjectStore, rows: rows as BlobStore },
    ...{ clock: new TestClock(), maxBytes: 10, capBytes: 0 },
  });

t.test('BLOB-31: with too many uploads open, those whose URL has expired are released', async (t) => {
  let open = 1_000;
  const arrived: StoredObject[] = [];
  const one = { tenantId: TENANT, ref: REF, size: 5, contentType: 'a/b', session: null, kept: 0 };
  const expired = Array.from({ length: 3 }, () => one);
  const rows: Partial<BlobStore> = {
    reserve: () => Promise.resolve(open >= 1_000 ? 'too_many' : 'ok'),
    takeExpired: () => Promise.resolve(expired),
    giveUp: () => Promise.resolve(true),
    markReady: () => {
      open--;
      return Promise.resolve(true);
    },
    free: (_, names) => {
      open -= names.length;
      return Promise.resolve();
    },
  };
  const store: Partial<ObjectStore> = {
    kind: 'local',
    signUpload: () => Promise.resolve({ url: 'http://here/blob', headers: {} }),
    head: () => Promise.resolve(arrived[0]),
  };
  const blobs = blobsOver(store, rows);
  const wish = { size: 5, contentType: 'a/b', by: 'device', origin: 'http://here' };
  t.match(await blobs.uploadUrl(TENANT, wish), { url: 'http://here/blob' });
  t.equal(open, 997);
  open = 1_000;
  arrived.push({ tenantId: TENANT, ref: REF, size: 5, modifiedAt: 1 });
  t.match(await blobs.uploadUrl(TENANT, wish), { url: 'http://here/blob' }, 'those that have arrived are open no more');
  t.equal(open, 997);
  open = 1_000;
  expired.length = 0;
  await t.rejects(
    blobs.uploadUrl(TENANT, wish),
    new ServiceError(
      'rate_limited',
      'at most 1000 uploads may be open, and ten times as many without an item',
      undefined,
      60,
    ),
    'uploads whose URL is still valid stay',
  );
});

t.test('BLOB-32: a batch sends an unreachable store no more requests after one that failed', async (t) => {
  let asked = 0;
  const store: Partial<ObjectStore> = {
    head: () =>
      new Promise((_, reject) => {
        asked++;
        setImmediate(reject, storageUnavailable(new Error('told to hang')));
      }),
  };
  const reserved = { size: 5, contentType: 'a/b', session: null, kept: 0, state: 'reserved', expiresAt: 0 } as const;
  const rows: Partial<BlobStore> = { find: (name) => Promise.resolve({ ...name, ...reserved }) };
  const blobs = blobsOver(store, rows);
  const { actor, port } = await frontOf(t, { services: { blobs } });
  actor.refuse = () => Promise.reject(new ServiceError('blob_not_found'));
  const batch = async (idOf: (at: number) => string): Promise<number> => {
    asked = 0;
    const items = Array.from({ length: 20 }, (_, at) =>
      writeA({
        id: idOf(at),
        ts: 1_700_000_000_000 + at,
        blobRef: `${newId()}.bin`,
        blobNonce: Buffer.alloc(24).toString('base64url'),
        blobKeys: (writeA()['payloadEnc'] as { keys: unknown }).keys,
      }),
    );
    const { status, json } = await ask(port, '/api/items/batch', { body: { items } });
    t.equal(status, 200);
    const codes = (json['results'] as { error: { code: string } }[]).map(({ error }) => error.code);
    t.same(codes, Array(20).fill('storage_unavailable'));
    return asked;
  };
  // Writes of one id are judged one after the other, so each would wait for the store's deadline anew.
  const id = newId();
  t.equal(await batch(() => id), 1);
  t.equal(await batch(() => id), 1, 'the next batch sends a request again');
  t.equal(await batch(() => newId()), 4, 'of different items as many as a tenant may have under way, all at once');
});

t.test(
  'BLOB-33: a download with a chunked body is refused and its connection cut, so no request hides behind it',
  async (t) => {
    let opened = 0;
    const { port, lines } = await frontOf(t, {
      services: {
        transfers: {
          check: () => ({ tenantId: TENANT, ref: REF }),
          tooSlow: (_tenant, pace) => pace < 1024,
          enter: () => () => undefined,
          upload: () => Promise.resolve(),
          download: () => {
            opened++;
            const read = (into: Uint8Array): Promise<number> => Promise.resolve(into.fill(65).length);
            return Promise.resolve({ size: 3, read, close: () => Promise.resolve() });
          },
        },
      },
    });
    const plain = await raw(t, port, `GET /blobs/${TENANT}/${REF} HTTP/1.1\r\nHost: x\r\n\r\n`);
    t.equal(await plain.status(), 200);
    t.equal(opened, 1);
    for (const method of ['GET']) {
      const head = `${method} /blobs/${TENANT}/${REF} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n`;
      const alone = await raw(t, port, `${head}0\r\n\r\n`);
      await alone.until(() => alone.closed);
      t.match(alone.got, /^HTTP\/1\.1 400 /, method);
      const hidden = await raw(t, port, `${head}0\r\nGET /api/me HTTP/1.1\r\nHost: x\r\n\r\n\r\n`);
      await hidden.until(() => hidden.closed);
    }
    t.equal(opened, 1, 'no file is opened for a refused download');
    t.equal(lines.filter((line) => line['path'] === '/api/me').length, 0);
  },
);

t.test('BLOB-34: a connection stays usable after a HEAD that is refused', async (t) => {
  const { port } = await frontOf(t);
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  t.teardown(() => agent.destroy());
  for (const method of ['HEAD', 'GET', 'HEAD', 'GET']) {
    const sent = request({ host: '127.0.0.1', port, path: '/api/nowhere', method, agent }).end();
    const [reply] = (await once(sent, 'response')) as [IncomingMessage];
    t.equal(reply.statusCode, 404, method);
    t.ok(Number(reply.headers['content-length']) > 0);
    reply.resume();
    await once(reply, 'end');
  }
});
