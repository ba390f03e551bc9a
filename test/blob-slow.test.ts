/** Slow transfers, and callers that wait for their places (the local store). */
import { randomBytes } from 'node:crypto';
import type { Socket } from 'node:net';
import type { HttpResponse } from 'uWebSockets.js';
import t, { type Test } from 'tap';
import type { ServiceError } from '../src/protocol/errors.js';
import type { BlobName } from '../src/protocol/ids.js';
import type { App } from '../src/server/app/route-table.js';
import type { BlobStore } from '../src/server/blobs/store.js';
import { DownloadStream, UploadStream } from '../src/server/http/streams.js';
import { Transfers, type BlobFiles, type UploadBody } from '../src/server/blobs/transfers.js';
import { signedPath } from '../src/server/blobs/signed-url.js';
import { openRequest, send } from './support/blobs.js';
import { TestClock } from './support/clock.js';
import { newId } from './support/devices.js';
import { Events, until } from './support/events.js';
import { frontOf, StubActor, TENANT } from './support/front.js';

const SECRET = 'a-secret-of-the-tests';
const WINDOW_MS = 30_000;
const MIB = 1024 * 1024;
const FILE_BYTES = 64 * 1024 * 1024;
const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

interface Places {
  readonly clock: TestClock;
  readonly transfers: Transfers;
  readonly port: number;
  /** Bytes that uploads have brought so far. */
  readonly written: () => number;
  /** Reads of files so far. */
  readonly reads: Events<number>;
  url(method: 'GET' | 'PUT'): string;
  upload(): ReturnType<typeof openRequest>;
}

const UPLOAD_BYTES = 10_000_000;

/** A front over files without content, with so many places. */
async function placesOf(
  t: Test,
  bounds: { readonly all: number; readonly perTenant: number },
  tenants?: App['tenants'],
): Promise<Places> {
  const clock = new TestClock();
  const reads = new Events<number>();
  let written = 0;
  const files: BlobFiles = {
    create: () =>
      Promise.resolve({
        write: (bytes: Uint8Array) => {
          written += bytes.length;
          return Promise.resolve();
        },
        commit: () => Promise.resolve(true),
        discard: () => Promise.resolve(),
      }),
    open: () =>
      Promise.resolve({
        size: FILE_BYTES,
        read: (into: Uint8Array, position: number) => {
          reads.add(position);
          return Promise.resolve(into.length);
        },
        close: () => Promise.resolve(),
      }),
    remove: () => Promise.resolve(),
    openPart: () => Promise.reject(new Error('nobody sends parts')),
    abort: () => Promise.resolve(),
    finish: () => Promise.reject(new Error('nobody sends parts')),
  };
  const rows: Partial<BlobStore> = {
    uploading: () => Promise.resolve(UPLOAD_BYTES),
    markReady: () => Promise.resolve(true),
  };
  const transfers = new Transfers({
    files,
    rows: rows as BlobStore,
    clock,
    secret: SECRET,
    onFault: (error) => t.fail(String(error)),
    bounds,
  });
  const { port } = await frontOf(t, { clock, services: { transfers, ...(tenants && { tenants }) } });
  const url: Places['url'] = (method) => {
    const size = method === 'PUT' ? { size: UPLOAD_BYTES, contentType: 'a/b' } : {};
    const signed = { tenantId: TENANT, ref: `${newId()}.bin`, method, expiresAt: clock.now() + 900_000, ...size };
    return `http://127.0.0.1:${port}${signedPath(SECRET, signed)}`;
  };
  const headers = { 'content-type': 'a/b', 'content-length': String(UPLOAD_BYTES) };
  return {
    clock,
    transfers,
    port,
    written: () => written,
    reads,
    url,
    upload: () => openRequest('PUT', url('PUT'), headers),
  };
}

t.test('FAIR-11 BLOB-18: an upload that waits for its admission holds the place of a transfer', async (t) => {
  const actor = new StubActor();
  let load = (): void => undefined;
  const loaded = new Promise<StubActor>((resolve) => (load = () => resolve(actor)));
  const nothing = (): Promise<void> => Promise.resolve();
  const tenants = { actors: new Map<string, StubActor>(), get: () => loaded, hurry: () => undefined, changed: nothing };
  const places = await placesOf(t, { all: 10, perTenant: 2 }, tenants);
  const waiting = [places.upload(), places.upload()];
  for (const { sent } of waiting) sent.write(randomBytes(1_000));
  await until('they wait', () => places.transfers['all'].taken === 2);
  const third = places.upload();
  third.sent.write(randomBytes(1_000));
  t.equal((await third.reply).status, 429);
  load();
  for (const { sent } of waiting) sent.end(randomBytes(UPLOAD_BYTES - 1_000));
  for (const { reply } of waiting) t.equal((await reply).status, 200);
  t.equal(places.transfers['all'].taken, 0);
});

t.test('BLOB-48: where slow uploads hold all places, one is cut for a transfer that was refused', async (t) => {
  const places = await placesOf(t, { all: 10, perTenant: 2 });
  const open = [places.upload(), places.upload()];
  const pace = async (bytes: number): Promise<void> => {
    const before = places.written();
    for (const { sent } of open) if (!sent.destroyed) sent.write(randomBytes(bytes));
    const alive = open.filter(({ sent }) => !sent.destroyed).length;
    await until('the bytes are there', () => places.written() === before + alive * bytes);
    await nextTurn();
  };
  await pace(1);
  t.equal(places.transfers['all'].taken, 2);
  // 8 KiB a second: enough while no transfer is refused.
  for (let round = 0; round < 3; round++) {
    await pace(240 * 1024);
    places.clock.advance(WINDOW_MS);
  }
  t.equal(places.transfers['all'].taken, 2);
  const refused = await send('GET', places.url('GET'));
  t.equal(refused.outcome, '429 rate_limited');
  t.match(refused.headers, { 'retry-after': /^[1-9]/ });
  await pace(240 * 1024);
  places.clock.advance(WINDOW_MS);
  await until('one is cut', () => places.transfers['all'].taken === 1);
  const download = openRequest('GET', places.url('GET'));
  download.sent.on('response', (answer) => answer.destroy());
  download.sent.end();
  await places.reads.until(1);
  await until('the place is free again', () => places.transfers['all'].taken === 1);
  const ended = await Promise.race(open.map(({ reply }, at) => reply.then(String, () => at)));
  open.splice(Number(ended), 1);
  for (let round = 0; round < 2; round++) {
    await pace(240 * 1024);
    places.clock.advance(WINDOW_MS);
  }
  t.equal(places.transfers['all'].taken, 1, 'the other upload continues: no other transfer was refused');
  for (const { sent } of open) sent.destroy();
  await Promise.allSettled(open.map(({ reply }) => reply));
});

t.test('BLOB-48: a transfer that is quick enough keeps its place, even where others are refused', async (t) => {
  const places = await placesOf(t, { all: 10, perTenant: 1 });
  const { sent, reply } = places.upload();
  sent.write(randomBytes(1000));
  await until('it is under way', () => places.written() === 1000);
  await nextTurn();
  t.equal((await send('GET', places.url('GET'))).outcome, '429 rate_limited');
  sent.write(randomBytes(480 * 1024));
  await until('the bytes are there', () => places.written() === 1000 + 480 * 1024);
  await nextTurn();
  places.clock.advance(WINDOW_MS);
  t.equal(places.transfers['all'].taken, 1, '16 KiB a second are quick enough');
  sent.destroy();
  await t.rejects(reply);
});

t.test(
  'BLOB-48: where the instance has no place left, a transfer is 503 with Retry-After, and a slow one is cut',
  async (t) => {
    const places = await placesOf(t, { all: 1, perTenant: 5 });
    const download = openRequest('GET', places.url('GET'));
    // The client reads nothing.
    download.sent.on('socket', (socket: Socket) => socket.pause());
    download.sent.on('error', () => undefined);
    download.sent.end();
    await places.reads.until(1);
    const refused = await send('GET', places.url('GET'));
    t.equal(refused.outcome, '503 unavailable');
    t.match(refused.headers, { 'retry-after': /^[1-9]/ });
    places.clock.advance(WINDOW_MS);
    places.clock.advance(WINDOW_MS);
    await until('it is cut', () => places.transfers['all'].taken === 0);
    download.sent.destroy();
  },
);

/** Transfers of an instance with 8 places, 6 of them for all, and 4 for one tenant; uploads stay under way. */
function crowded() {
  const body: UploadBody = { next: () => new Promise(() => undefined), cut: () => undefined };
  const rows = { uploading: () => new Promise(() => undefined) } as unknown as BlobStore;
  const clock = new TestClock();
  const parts = {
    files: {} as unknown as BlobFiles,
    rows,
    clock,
    secret: SECRET,
    onFault: (error: unknown) => t.fail(String(error)),
  };
  const transfers = new Transfers({ ...parts, bounds: { all: 8, perTenant: 4 } });
  const upload = (tenantId: string): Promise<string> =>
    Promise.race([
      transfers.upload({ tenantId, ref: `${newId()}.bin`, size: 1 }, body).then(
        () => 'done',
        (error: unknown) => (error as ServiceError).error,
      ),
      nextTurn().then(() => 'under way'),
    ]);
  /** The outcomes of uploads of these tenants, one after the other. */
  const uploads = async (tenants: string): Promise<string[]> => {
    const outcomes: string[] = [];
    for (const tenantId of tenants.split(' ')) outcomes.push(await upload(tenantId));
    return outcomes;
  };
  return { transfers, uploads, clock };
}

t.test('FAIR-49: the last quarter of the transfers is for tenants that have none', async (t) => {
  const { transfers, uploads } = crowded();
  const [places, full] = ['under way', 'unavailable'];
  t.same(
    await uploads('a a a a b b'),
    Array.from({ length: 6 }, () => places),
    'four of one tenant and two of another',
  );
  t.same(
    await uploads('b c d d a e'),
    [full, places, places, full, 'rate_limited', full],
    'then one each of others, as many as fit',
  );
  t.equal(transfers.tooSlow('b', 1024), true, 'a slow transfer gives way to those that were refused');
});

t.test('FAIR-49: slow transfers do not give way to a tenant that has more of them', async (t) => {
  const { transfers, uploads, clock } = crowded();
  t.same((await uploads('a a a b b c a')).at(-1), 'unavailable');
  t.equal(transfers.tooSlow('b', 1024), false);
  t.equal(transfers.tooSlow('a', 1024), true);
  await uploads('b a');
  t.equal(transfers.tooSlow('b', 1024), true, 'but to one with as many, whoever was refused after it');
  await uploads('b');
  clock.advance(40_000);
  await uploads('a');
  clock.advance(40_000);
  await uploads('a');
  t.equal(transfers.tooSlow('b', 1024), false, 'and no longer than a minute after it was refused');
});

t.test('BLOB-18 BLOB-48: each refusal lets one slow transfer be cut, and an old refusal counts no more', async (t) => {
  const clock = new TestClock();
  const names: BlobName[] = [TENANT, TENANT].map((tenantId) => ({ tenantId, ref: `${newId()}.bin` }));
  const body: UploadBody = { next: () => new Promise(() => undefined), cut: () => undefined };
  const files = { open: () => Promise.resolve(undefined) } as unknown as BlobFiles;
  const rows = { uploading: () => new Promise(() => undefined) } as unknown as BlobStore;
  const onFault = (): void => undefined;
  const transfers = new Transfers({ files, rows, clock, secret: SECRET, onFault, bounds: { all: 9, perTenant: 2 } });
  for (const name of names) void transfers.upload({ ...name, size: 1 }, body);
  t.equal(transfers.tooSlow(TENANT, 1023), true, 'less than 1 KiB a second is always too slow');
  t.equal(transfers.tooSlow(TENANT, 1024), false);
  const turnAway = (): Promise<unknown> =>
    t.rejects(transfers.download({ tenantId: TENANT, ref: 'x' }), { name: 'ServiceError', error: 'rate_limited' });
  await turnAway();
  const absent = transfers.download({ tenantId: newId(), ref: 'x' });
  await t.rejects(absent, { name: 'ServiceError', error: 'no_blob' }, 'another tenant has places of its own');
  t.equal(transfers.tooSlow(newId(), 1024), false, 'a refusal does not affect another tenant');
  t.equal(transfers.tooSlow(TENANT, 16 * 1024), false);
  t.equal(transfers.tooSlow(TENANT, 16 * 1024 - 1), true);
  t.equal(transfers.tooSlow(TENANT, 1024), false, 'one transfer is cut for one refusal');
  await turnAway();
  clock.advance(60_001);
  t.equal(transfers.tooSlow(TENANT, 1024), false, 'after a minute a refusal counts no more');
});

/** Uploads whose system hands over all of a body, paused or not, as the library's build for Node 24 does. */
class UnpausedBody {
  closed = false;
  private take: (chunk: ArrayBuffer, isLast: boolean) => void = () => undefined;
  private end = (): void => undefined;
  readonly stream: UploadStream;

  constructor(contentLength: number) {
    const res = {
      onData: (take: UnpausedBody['take']) => (this.take = take),
      pause: () => undefined,
      resume: () => undefined,
      close: () => {
        this.closed = true;
        this.end();
      },
    } as unknown as HttpResponse;
    const onEnd = (end: () => void): void => void (this.end = end);
    const request = { res, contentLength, over: false, aborted: true, onEnd };
    this.stream = new UploadStream(request, new TestClock(), () => false);
  }

  arrive(mebibytes: number, isLast: boolean): void {
    for (let n = 1; n <= mebibytes && !this.closed; n++)
      this.take(new Uint8Array(MIB).fill(n).buffer, isLast && n === mebibytes);
  }
}

t.test(
  'BLOB-14: what arrives of an upload although it is paused is kept, up to a bound for it and for all',
  async (t) => {
    const whole = new UnpausedBody(8 * MIB);
    whole.arrive(8, true);
    const bytes: number[] = [];
    for (let piece = await whole.stream.next(); piece !== undefined; piece = await whole.stream.next())
      bytes.push(piece.length, piece[0] ?? 0);
    t.same(bytes, Array.from({ length: 8 }, (_, n) => [MIB, n + 1]).flat(), 'all of it, in order');
    const large = new UnpausedBody(64 * MIB);
    large.arrive(64, true);
    t.ok(large.closed, 'one that brings more than 32 MiB is cut');
    await t.rejects(large.stream.next());
    const many = Array.from({ length: 5 }, () => new UnpausedBody(64 * MIB));
    for (const body of many) body.arrive(31, false);
    t.same(
      many.map(({ closed }) => closed),
      [false, false, false, false, true],
      'as is the one that exceeds 128 MiB with the others',
    );
    many[0]?.stream.cut();
    const another = new UnpausedBody(64 * MIB);
    another.arrive(31, false);
    t.notOk(another.closed, 'what was cut takes no room');
    for (const body of [...many, another]) body.stream.cut();
  },
);

/** A reply whose system takes so many bytes, and never reports that it takes more. */
class SilentReply {
  room = 0;
  closed = false;
  readonly taken: Buffer[] = [];
  private offset = 0;

  tryEnd(bytes: Uint8Array, total: number): [boolean, boolean] {
    const now = Buffer.from(bytes.subarray(0, this.room));
    this.room -= now.length;
    this.offset += now.length;
    this.taken.push(now);
    return [now.length === bytes.length, this.offset === total];
  }

  getWriteOffset(): number {
    return this.offset;
  }

  onWritable(): void {
    // The callback is never called.
  }

  cork(work: () => void): void {
    work();
  }

  close(): void {
    this.closed = true;
  }
}

t.test('BLOB-49: a slow, steady reader is sent more though the system reports nothing writable', async (t) => {
  const clock = new TestClock();
  const content = randomBytes(700_000);
  const res = new SilentReply();
  let ended = 0;
  const outflow = new DownloadStream({
    res: res as unknown as HttpResponse,
    file: {
      size: content.length,
      read: (into, position) => Promise.resolve(content.copy(into, 0, position)),
      close: () => Promise.resolve(),
    },
    part: { start: 0, end: content.length },
    clock,
    tooSlow: (bytesPerS) => bytesPerS < 1024,
    done: () => {
      ended++;
    },
  });
  res.room = 50_000;
  outflow.begin(await outflow.fill());
  // The library gives up ten seconds after the last try.
  for (let seconds = 0; ended === 0 && seconds < 200; seconds += 8) {
    const tries = res.taken.length;
    res.room = 40_000;
    clock.advance(8_000);
    await nextTurn();
    t.ok(res.taken.length > tries || ended > 0);
  }
  t.equal(ended, 1);
  t.ok(Buffer.concat(res.taken).equals(content), 'every byte is sent, once and in order');
  t.equal(res.closed, false);
  t.equal(clock.waiting, 0);
});
