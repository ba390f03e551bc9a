/** An instance of an older release after a newer one has migrated the schema. */
import { copyFile, readdir, writeFile } from 'node:fs/promises';
import { join as joinPath } from 'node:path';
import t from 'tap';
import { migrate } from '../src/server/storage/migrate.js';
import { SQL_FOLDER } from '../src/root.js';
import { claim, join, mustWrite, newItem } from './support/devices.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { spawnServer } from './support/server.js';
import { difference, listAll, range, startWriters, untilVersion, versionsOf } from './support/stream.js';

t.setTimeout(600_000);

/** What a later release may do: add a table, and columns and an index to the tables of the busiest statements. */
const NEXT = `
  ALTER TABLE items ADD COLUMN later text;
  ALTER TABLE tenants ADD COLUMN later bigint NOT NULL DEFAULT 0;
  ALTER TABLE devices ADD COLUMN later text;
  CREATE TABLE later (id text PRIMARY KEY);
  CREATE INDEX items_later ON items (later) WHERE later IS NOT NULL;
`;

t.test('INST-28: an older instance keeps running on the migrated schema, and refuses to start on it', async (t) => {
  const database = await testDatabase(t);
  const older = await spawnServer(t, { database });
  const first = await claim(older.wire);
  const second = await join(older.wire, first);
  const all = [first.id, second.id];
  const socket = await older.wire.connect({ token: second.token });
  await socket.hello();
  const writing = startWriters({ wires: [older.wire], devices: [first], writers: 6, sealFor: all, insertsOnly: true });
  await writing.until(100);

  const folder = await temporaryFolder(t);
  const known = (await readdir(SQL_FOLDER)).sort();
  for (const name of known) await copyFile(joinPath(SQL_FOLDER, name), joinPath(folder, name));
  const next = `${String(known.length + 1).padStart(4, '0')}_next.sql`;
  await writeFile(joinPath(folder, next), NEXT);
  t.equal((await migrate({ url: database.url, folder })).applied.length, 1);

  await writing.until(writing.acked.length + 200);
  await writing.stop();
  t.same([writing.refusals, writing.errors], [[], []], 'its clients get no refusal and no error');
  const third = await join(older.wire, first, { name: 'third' });
  const head = await mustWrite(older.wire, third, newItem([...all, third.id]));
  const listing = await listAll(older.wire, first.token);
  t.equal(
    difference(
      listing.changes.map(({ version }) => version),
      range(1, head),
    ),
    '',
    'every version is stored',
  );
  await untilVersion(socket, head);
  t.equal(difference(versionsOf(socket.frames), range(1, head)), '', 'the socket received every version');

  const again = await spawnServer(t, { database }).catch((error: unknown) => String(error));
  t.match(again, /ended with 1 before it listened/);
  t.match(again, /written by a newer version.*Update the server/s, 'the refusal says why, and what to do');
  t.equal(await older.end('SIGTERM'), 0);
});
