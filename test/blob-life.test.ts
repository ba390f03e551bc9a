/** How long a bucket's upload keeps its room: nobody tells the server that one is under way. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { unseenMs } from '../src/server/blobs/blobs.js';
import { Reaper } from '../src/server/blobs/reaper.js';
import { createPool } from '../src/server/storage/database.js';
import { never } from './support/blob-stage.js';
import { askUpload, blobItem, uploadOf } from './support/blobs.js';
import { ShiftedClock } from './support/clock.js';
import { newServiceAccount } from './support/gcs-server.js';
import { gcsBucket } from './support/object-stores.js';
import { Scene } from './support/scene.js';

const MINUTE_MS = 60_000;
const MIB = 1024 * 1024;

t.test('BLOB-50: as long as so many bytes take at 128 KiB a second, and a quarter of an hour, a day at most', (t) => {
  t.equal(unseenMs(1), 15 * MINUTE_MS + 1);
  t.equal(unseenMs(600 * MIB), (15 + 80) * MINUTE_MS);
  t.equal(unseenMs(2 ** 40), 24 * 60 * MINUTE_MS);
  t.end();
});

t.test(
  'BLOB-50 BLOB-23: an upload that is long under way keeps its room, and one that never came gives it back',
  async (t) => {
    const account = await newServiceAccount(t);
    process.env['GOOGLE_APPLICATION_CREDENTIALS'] = account.keyFile;
    const bucket = await gcsBucket(t, account);
    const clock = new ShiftedClock();
    const env = { ...bucket.env, STORAGE_CAP_BYTES: String(40 * MIB) };
    const scene = await Scene.start(t, { clock, env });
    const { wire, first, server } = scene;
    const pool = createPool({ url: server.databaseUrl, name: 'reaper test', onIdleError: () => undefined });
    t.teardown(() => pool.end());
    const reaper = new Reaper(bucket.store, pool, clock);
    const ask = async (): Promise<string> => (await askUpload(wire, first, { size: 20 * MIB })).outcome;
    const write = async (ref: string): Promise<string> =>
      (await wire.post('/items', blobItem('a', scene.ids, ref), scene.as('a'))).outcome;

    // 30 MiB take four minutes at that pace.
    const slow = await uploadOf(wire, first, { size: 30 * MIB });
    clock.advance(33 * MINUTE_MS);
    t.equal(await ask(), '413 storage_cap_exceeded', 'also where the room is needed');
    t.match(await reaper.releaseExpired(never), { done: 0 });
    await bucket.place(`${server.tenantId}/${slow.blobRef}`, randomBytes(30 * MIB));
    t.equal(await write(slow.blobRef), '200', 'it came to its end in time');
    t.strictSame(await server.sql('SELECT * FROM discrepancies()'), []);

    const lost = await uploadOf(wire, first, { size: 8 * MIB });
    clock.advance(30 * MINUTE_MS);
    t.equal(await ask(), '413 storage_cap_exceeded');
    clock.advance(2 * MINUTE_MS);
    t.equal((await askUpload(wire, first, { size: 9 * MIB })).outcome, '200', 'room is there again');
    await bucket.place(`${server.tenantId}/${lost.blobRef}`, randomBytes(8 * MIB));
    t.equal(await write(lost.blobRef), '400 blob_not_found', 'who comes later is told so, and begins anew');
    t.strictSame(await server.sql('SELECT * FROM discrepancies()'), []);
  },
);
