/** How many requests to the bucket a tenant may have at a time. */
import t from 'tap';
import { ulid } from 'ulid';
import { HeadLimiter } from '../src/server/blobs/head-limiter.js';
import { Blobs } from '../src/server/blobs/blobs.js';
import type { ObjectStore, StoredObject } from '../src/server/blobs/ports.js';
import type { BlobRow, BlobStore } from '../src/server/blobs/store.js';
import { ServiceError, storageUnavailable } from '../src/protocol/errors.js';
import type { BlobName } from '../src/protocol/ids.js';
import { TestClock } from './support/clock.js';
import { TENANT } from './support/front.js';

const OTHER = '01JOTHER00000000000000000A';
const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** A request to the store that the test answers. */
interface Asked {
  readonly name: BlobName;
  readonly answer: (size: number | undefined) => void;
  readonly fail: (error: Error) => void;
}

/** Blobs over a bucket whose answers the test gives; for each name a row of 10 bytes is reserved. */
function setUp() {
  const clock = new TestClock();
  const asked: Asked[] = [];
  const ready = new Set<string>();
  const store: Partial<ObjectStore> = {
    kind: 's3',
    head: (name) =>
      new Promise<StoredObject | undefined>((resolve, fail) => {
        const answer: Asked['answer'] = (size) =>
          resolve(size === undefined ? undefined : { ...name, size, modifiedAt: 0 });
        asked.push({ name, answer, fail });
      }),
  };
  const rows: Partial<BlobStore> = {
    find: (name) =>
      Promise.resolve<BlobRow>({
        ...{ ...name, size: 10, contentType: 'a/b', session: null, kept: 0, expiresAt: 0 },
        state: ready.has(name.ref) ? 'ready' : 'reserved',
      }),
    markReady: ({ ref }) => Promise.resolve(ready.add(ref).has(ref)),
  };
  const blobs = new Blobs({ store: store as ObjectStore, rows: rows as BlobStore, clock, maxBytes: 10, capBytes: 0 });
  return { clock, asked, blobs };
}

const refOf = (): string => `${ulid()}.bin`;
const codeOf = (error: unknown): string => (error instanceof ServiceError ? error.error : String(error));

t.test('BLOB-47: a tenant has four requests under way; the others wait for their turn, in order', async (t) => {
  const { asked, blobs } = setUp();
  const refs = Array.from({ length: 100 }, refOf);
  const settled = refs.map((ref) => blobs.settle(TENANT, ref));
  const other = blobs.settle(OTHER, refOf());
  await nextTurn();
  t.equal(asked.length, 5, 'four of the one tenant, and another tenant waits for none of them');
  asked.find(({ name }) => name.tenantId === OTHER)?.answer(10);
  t.equal(await other, true);
  const mine = (): Asked[] => asked.filter(({ name }) => name.tenantId === TENANT);
  for (let answered = 0; answered < 100; answered++) {
    t.ok(mine().length - answered <= 4);
    mine()[answered]?.answer(answered % 2 === 0 ? 10 : undefined);
    await nextTurn();
  }
  t.same(
    mine().map(({ name }) => name.ref),
    refs,
  );
  t.same(
    await Promise.all(settled),
    refs.map((_, at) => at % 2 === 0),
  );
});

t.test('BLOB-47: a blob has one request under way; a negative answer from before is requested again', async (t) => {
  const { asked, blobs } = setUp();
  const ref = refOf();
  const first = blobs.settle(TENANT, ref);
  await nextTurn();
  // The upload ends here: callers from now on must see it.
  const later = Array.from({ length: 50 }, () => blobs.settle(TENANT, ref));
  await nextTurn();
  t.equal(asked.length, 1);
  asked[0]?.answer(undefined);
  t.equal(await first, false);
  await nextTurn();
  t.equal(asked.length, 2, 'one request for all of them');
  asked[1]?.answer(10);
  t.same(new Set(await Promise.all(later)), new Set([true]));
  t.equal(await blobs.settle(TENANT, ref), true);
  t.equal(asked.length, 2, 'no request is sent for a blob that is known to be there');
  const again = refOf();
  const both = [blobs.settle(TENANT, again), blobs.settle(TENANT, again)];
  await nextTurn();
  asked[2]?.answer(10);
  t.same(await Promise.all(both), [true, true], 'a positive answer serves both callers');
  t.equal(asked.length, 3);
});

t.test('BLOB-47: 200 requests are queued for at most ten seconds; others are 503 with Retry-After', async (t) => {
  const { clock, asked, blobs } = setUp();
  const settled = Array.from({ length: 205 }, () =>
    blobs.settle(TENANT, refOf()).then(String, (error: unknown) => (error as ServiceError).error),
  );
  await nextTurn();
  t.equal(await settled[204], 'unavailable', 'the queue is full');
  await t.rejects(blobs.settle(TENANT, refOf()), { name: 'ServiceError', error: 'unavailable', retryAfter: 2 });
  clock.advance(9_999);
  asked[0]?.answer(10);
  await nextTurn();
  clock.advance(1);
  t.equal(await settled[203], 'unavailable', 'the request waited for too long');
  for (const { answer } of asked) answer(10);
  const all = await Promise.all(settled);
  t.same([...new Set(all.slice(0, 5))], ['true'], 'those whose turn came are answered');
  t.equal(all.filter((one) => one === 'unavailable').length, 200);
  t.equal(clock.waiting, 0);
  const more = blobs.settle(TENANT, refOf());
  await nextTurn();
  asked.at(-1)?.answer(10);
  t.equal(await more, true, 'the queue is empty again');
});

t.test('BLOB-47: where the store fails one request, those queued behind it fail, of that tenant only', async (t) => {
  const { asked, blobs } = setUp();
  const settled = Array.from({ length: 50 }, () => blobs.settle(TENANT, refOf()).then(String, codeOf));
  const other = Array.from({ length: 5 }, () => blobs.settle(OTHER, refOf()).then(String, codeOf));
  await nextTurn();
  asked[0]?.fail(storageUnavailable(new Error('told to fail')));
  await nextTurn();
  t.equal(asked.length, 8, 'no queued request is sent');
  for (const { answer } of asked) answer(10);
  const all = await Promise.all(settled);
  t.equal(all.filter((one) => one === 'storage_unavailable').length, 47);
  t.equal(all.filter((one) => one === 'true').length, 3);
  await nextTurn();
  asked[8]?.answer(10);
  t.same(new Set(await Promise.all(other)), new Set(['true']));
});

t.test('BLOB-47: an error of another kind fails its own request only', async (t) => {
  const heads = new HeadLimiter(new TestClock());
  const name = (): BlobName => ({ tenantId: TENANT, ref: refOf() });
  const first = heads.run(name(), () => Promise.reject(new Error('a bug')));
  // More than may be under way.
  const others = Array.from({ length: 9 }, async () => heads.run(name(), () => Promise.resolve(true)));
  await t.rejects(first, /a bug/);
  t.same(await Promise.all(others), Array<boolean>(9).fill(true));
});
