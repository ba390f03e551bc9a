/** How long an upload to a bucket keeps its room: the server does not see that it is under way. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { unseenMs } from '../src/server/blobs/blobs.js';
import { Reaper } from '../src/server/blobs/reaper.js';
import { never } from './support/blob-stage.js';
import { askUpload, blobItem, uploadOf } from './support/blobs.js';
import { ShiftedClock } from './support/clock.js';
import { newServiceAccount } from './support/gcs-server.js';
import { gcsBucket } from './support/object-stores.js';
import { poolOf } from './support/postgres.js';
import { Scene } from './support/scene.js';

const MINUTE_MS = 60_000;
const MIB = 1024 * 1024;

t.test('BLOB-50: after its URL expired, room is kept 15 minutes and a second per 128 KiB, a day at most', (t) => {
  t.equal(unseenMs(1), 15 * MINUTE_MS + 1);
  t.equal(unseenMs(600 * MIB), (15 + 80) * MINUTE_MS);
  t.equal(unseenMs(2 ** 40), 24 * 60 * MINUTE_MS);
  t.end();
});

t.test(
  'BLOB-50 BLOB-23: an upload that is long under way keeps its room, and one that never arrives frees it',
  async (t) => {
    const account = await newServiceAccount(t);
    process.env['GOOGLE_APPLICATION_CREDENTIALS'] = account.keyFile;
    const bucket = await gcsBucket(t, account);
    const clock = new ShiftedClock();
    const env = { ...bucket.env, STORAGE_CAP_BYTES: String(40 * MIB) };
    const scene = await Scene.start(t, { clock, env });
    const { wire, first, server } = scene;
    const pool = poolOf(t, server.databaseUrl);
    const reaper = new Reaper(bucket.store, pool, server.databaseUrl, clock);
    const ask = async (): Promise<string> => (await askUpload(wire, first, { size: 20 * MIB })).outcome;
    const write = async (ref: string): Promise<string> =>
      (await wire.post('/items', blobItem('a', scene.ids, ref), scene.as('a'))).outcome;

    // 30 MiB take four minutes at 128 KiB a second.
    const slow = await uploadOf(wire, first, { size: 30 * MIB });
    clock.advance(33 * MINUTE_MS);
    t.equal(await ask(), '413 storage_cap_exceeded', 'the room is kept even where another upload needs it');
    t.match(await reaper.releaseExpired(never), { done: 0 });
    await bucket.place(`${server.tenantId}/${slow.blobRef}`, randomBytes(30 * MIB));
    t.equal(await write(slow.blobRef), '200', 'the upload ended in time');
    t.strictSame(await server.sql('SELECT * FROM discrepancies()'), []);

    const lost = await uploadOf(wire, first, { size: 8 * MIB });
    const { blobRef: ref } = await uploadOf(wire, first, { size: MIB });
    await bucket.place(`${server.tenantId}/${ref}`, randomBytes(MIB + 1));
    clock.advance(30 * MINUTE_MS);
    t.equal(await ask(), '413 storage_cap_exceeded');
    clock.advance(2 * MINUTE_MS);
    t.equal((await askUpload(wire, first, { size: 9 * MIB })).outcome, '200', 'the room of both is free again');
    t.equal(await bucket.store.head({ tenantId: server.tenantId, ref }), undefined, 'a larger object than declared');
    await bucket.place(`${server.tenantId}/${lost.blobRef}`, randomBytes(8 * MIB));
    t.equal(await write(lost.blobRef), '400 blob_not_found', 'an upload that ends later is refused');
    t.strictSame(await server.sql('SELECT * FROM discrepancies()'), []);
  },
);
