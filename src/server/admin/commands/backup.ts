/** `service-admin backup` and `restore`: the database in one file. */
import { existsSync } from 'node:fs';
import { access, constants, readdir, stat } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { systemClock } from '../../../protocol/clock.js';
import { type BlobName, blobPath } from '../../../protocol/ids.js';
import { SQL_FOLDER } from '../../../root.js';
import { confirmed } from '../../../terminal/ask.js';
import { NewFile } from '../../../terminal/new-file.js';
import { counted, sanitizeText, show } from '../../../terminal/output.js';
import { CommandError, EXIT, type ExitCode, type Terminal } from '../../../terminal/terminal.js';
import { localStore } from '../../app/object-store.js';
import type { LocalStore } from '../../blobs/objects/local.js';
import type { Config } from '../../config/config.js';
import { CONNECTION_NAMES, hasTable, valueOf } from '../../storage/database.js';
import { dumpDatabase, requireFitting, restoreDatabase, RestoreError } from '../../storage/dump.js';
import { migrate } from '../../storage/migrate.js';
import { readArchive, restoreBlobs, verifyArchive, writeArchive } from '../backup/archive.js';
import { aboutBackup, type Manifest } from '../backup/manifest.js';
import { aboutList, comparedLines, compareWithStore, exitOf, listData, withBucketList } from '../bucket-list.js';
import {
  throwIfInterrupted,
  withDatabase,
  type AdminContext,
  type AdminCommand,
  type OperatorDatabase,
} from '../context.js';
import { countsLine, progressOf, sized, stoppable } from '../progress.js';

export function registerBackup(program: AdminCommand): void {
  program
    .command('backup')
    .summary('the whole database in one file, while servers run')
    .description(
      'Write the whole database and the blobs of the local store into one file, with all rows as of one moment; ' +
        'servers keep running. The secrets are not in it: keep TOKEN_SECRET, or DATA_DIR/secrets, with it. For a ' +
        'bucket, it has the list of the objects with their checksums, but not the objects',
    )
    .argument('<file>', 'the file to write, a gzipped tar')
    .option('--force', 'replace a file of that name')
    .option('--no-objects', 'leave out the list of the objects of a bucket; the bucket need not be reachable then')
    .examples('backup service.tar.gz')
    .changes(backup);
  program
    .command('restore')
    .summary('restore a backup into the database')
    .description(
      'Restore a backup into the database, with all servers stopped. The file is verified first; either all of it ' +
        'is restored, or the database stays as it was. Then every device replays from the start. A list of the objects of a ' +
        'bucket is compared with the blob store afterwards',
    )
    .argument('<file>', 'a backup')
    .option('--force', 'replace what is in the database; asks first')
    .option('-y, --yes', 'with --force: do not ask')
    .examples('restore service.tar.gz', 'restore service.tar.gz --force')
    .changes(restore);
}

/** How many of the blobs that items need are not in the backup: `restore` would bring the items back without them. */
function missingIn({ blobs = [] }: Manifest, needed: readonly BlobName[]): number {
  const kept = new Set(blobs.map(({ name }) => name));
  return needed.filter((blob) => !kept.has(blobPath(blob))).length;
}

async function backup(
  context: AdminContext,
  file: string,
  options: { readonly force?: boolean; readonly objects: boolean },
): Promise<void> {
  const { terminal, version, withReady, config } = context;
  const path = resolve(file);
  await requirePlace(path, options.force === true);
  const progress = stoppable(terminal, 'Backing up');
  const settings = config();
  const { storageKind, dataDir } = settings;
  const local = storageKind === 'local' ? localStore(settings, '') : undefined;
  const { manifest, rows, needed } = await withReady(({ url }) =>
    withBucketList(settings, options.objects, (objects) =>
      dumpDatabase(url, async ({ about, tables, bytes: rowBytes, read, blobsOfItems }) => {
        const needed = local === undefined ? [] : await blobsOfItems();
        const bytes = rowBytes + (local === undefined ? 0 : await sizeOf(local));
        const blobs = local?.contents();
        const source = { tables, read, bytes, version, ...about, blobs, objects };
        const made = await writeArchive(path, { ...source, createdAt: systemClock.now() }, progress, options.force);
        return { ...made, needed };
      }),
    ),
  );
  const { size } = await stat(path);
  const { objects } = manifest;
  const missingBlobs = missingIn(manifest, needed);
  const data = { file: path, size, rows, ...aboutBackup(manifest), objects: listData(objects) };
  show(terminal, local === undefined ? data : { ...data, missingBlobs }, () => [
    `${file}: ${countsLine(rows)} (deleted ones too)${blobsText(manifest.blobs?.length)}; ${sized(size)}.`,
    objects !== undefined && `With the ${aboutList(objects)}.`,
  ]);
  if (missingBlobs > 0) {
    const lost = `${counted(missingBlobs, 'blob')} that items need`;
    terminal.note(
      `Warning: not in ${dataDir}/blobs, and so not in the backup: ${lost}. \`service-admin verify\` names them. Servers ` +
        'that share a database have to share that folder too.',
    );
  }
  const { tokenSecret } = settings;
  if (storageKind !== 'local') {
    const list = objects === undefined ? ', and the list of them' : '';
    terminal.note(`Not in it: the blobs in the bucket${list}. Copy the bucket after the backup, never before.`);
  }
  const secret = tokenSecret === null ? `the folder ${dataDir}/secrets` : 'TOKEN_SECRET';
  terminal.note(`Not in it: ${secret}. Keep it too: without it every token is void after a restore.`);
}

/** The size of all blobs, for the progress. */
async function sizeOf(store: Pick<LocalStore, 'list'>): Promise<number> {
  let size = 0;
  for await (const page of store.list()) for (const object of page) size += object.size;
  return size;
}

const blobsText = (blobs = 0): string => (blobs === 0 ? '' : `, ${counted(blobs, 'blob')}`);

/** Throws before the work begins if the file cannot be written. */
async function requirePlace(path: string, force: boolean): Promise<void> {
  await NewFile.expectFree(path, force);
  try {
    await access(dirname(path), constants.W_OK);
  } catch (error) {
    throw new CommandError(EXIT.usage, `${dirname(path)} is not a writable folder.`, undefined, {
      cause: error,
    });
  }
}

interface RestoreOptions {
  readonly force?: boolean;
  readonly yes?: boolean;
}

async function restore(context: AdminContext, file: string, options: RestoreOptions): Promise<ExitCode> {
  const { terminal, config } = context;
  const read = config();
  const manifest = await verifyArchive(file, progressOf(terminal, 'Verifying'));
  terminal.progress('');
  throwIfInterrupted(terminal);
  // Number of the last migration that this version knows.
  const newest = (await readdir(SQL_FOLDER)).filter((name) => name.endsWith('.sql')).length;
  if (manifest.schema > newest) throw tooNew(manifest, newest);
  requirePlaceForBlobs(manifest, read);
  const { counts, objects, blobs } = await withDatabase(read, async (database) => {
    await requireNoServer(database, read);
    await prepare(terminal, database, manifest, options);
    // Before the rows, so that no row names a blob that is not there.
    const blobs = await restoreBlobs(file, manifest, localStore(read, ''), stoppable(terminal, 'Restoring blobs'));
    terminal.progress('');
    // Again: the confirmation and copying the blobs may have taken long.
    await requireNoServer(database, read);
    const progress = stoppable(terminal, 'Restoring');
    await restoreDatabase(database.url, readArchive(file, manifest, progress));
    terminal.progress('Checking the schema and the figures');
    await migrate({ url: database.url, folder: SQL_FOLDER });
    // A backup with an older schema could not be checked before.
    if (manifest.schema < newest) await requireWhole(database);
    const compared = await compareWithStore(context, file, manifest, database.url);
    return { counts: await database.store.counts(), objects: compared, blobs };
  });
  show(terminal, { file, ...counts, blobs, ...aboutBackup(manifest), newEpoch: true, objects }, () => [
    `Restored: ${countsLine(counts)}${blobsText(blobs)}.`,
    'The history has a new name (epoch) when the server starts: every device replays from the start.',
    ...comparedLines(terminal, manifest, objects),
  ]);
  noteSecret(context);
  return exitOf(objects);
}

/** Number of the last migration that the database has; 0: it has no tables of this service. */
async function schemaOf({ pool }: OperatorDatabase): Promise<number> {
  if (!(await hasTable(pool, 'migrations'))) return 0;
  return valueOf<number>(pool, 'SELECT coalesce(max(number), 0) FROM migrations');
}

/** Names of a server's connections; and of those that never go through a pooler, which keeps its own open afterwards. */
const SERVER_CONNECTIONS: readonly string[] = Object.values(CONNECTION_NAMES);
const DIRECT_CONNECTIONS: readonly string[] = [CONNECTION_NAMES.listen];

/** Wait for backends, ms: each ends shortly after its client, so a restore right after a stop is not refused. */
const ENDING_MS = 2_000;
const LOOK_EVERY_MS = 100;

/** Throws `CommandError` while a server runs on the database: it would write into the tables that are being replaced. */
async function requireNoServer(
  { pool, alone }: OperatorDatabase,
  { databaseUrl, listenDatabaseUrl }: Config,
): Promise<void> {
  const running = (): CommandError =>
    new CommandError(
      EXIT.refused,
      'a server is running on this database',
      'Stop all servers first (if one was killed, start it again and stop it), then restore.',
      { code: 'server_running' },
    );
  if (databaseUrl === null && !alone) throw running();
  for (let waited = 0; ; waited += LOOK_EVERY_MS) {
    const backends = await valueOf<number>(
      pool,
      'SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = ANY ($1)',
      [listenDatabaseUrl === null ? SERVER_CONNECTIONS : DIRECT_CONNECTIONS],
    );
    if (backends === 0) return;
    if (waited >= ENDING_MS) throw running();
    await sleep(LOOK_EVERY_MS);
  }
}

/** Whether the database has user data; the unclaimed tenant that a server's first start creates does not count. */
const isUsed = ({ pool }: OperatorDatabase): Promise<boolean> =>
  valueOf(
    pool,
    `SELECT EXISTS (SELECT 1 FROM items) OR EXISTS (SELECT 1 FROM devices)
       OR EXISTS (SELECT 1 FROM tenants WHERE slug IS NOT NULL OR claimed_at IS NOT NULL OR head > 0)`,
  );

/** Throws `CommandError` if the backup has blobs and blobs are kept in a bucket here. */
function requirePlaceForBlobs({ blobs = [] }: Manifest, { storageKind }: Config): void {
  if (blobs.length === 0 || storageKind === 'local') return;
  throw new CommandError(
    EXIT.refused,
    `the backup holds ${counted(blobs.length, 'blob')}, and STORAGE_KIND is ${storageKind}`,
    'Restore with STORAGE_KIND=local and copy the folder DATA_DIR/blobs into the bucket, or begin with its blobs there.',
    { code: 'storage' },
  );
}

/** Checks rows that could not be checked in the backup's own schema: after the migration, and so after the restore. */
async function requireWhole({ pool }: OperatorDatabase): Promise<void> {
  try {
    await requireFitting(pool);
  } catch (error) {
    if (!(error instanceof RestoreError)) throw error;
    throw new CommandError(
      EXIT.untrusted,
      `the backup is in the database, and ${error.message}`,
      'Do not start a server on it. Restore another backup, with --force.',
      { code: 'damaged', cause: error },
    );
  }
}

/** Ensures that no data is replaced without consent, and migrates the schema to the backup's. */
async function prepare(
  terminal: Terminal,
  database: OperatorDatabase,
  manifest: Manifest,
  options: RestoreOptions,
): Promise<void> {
  const found = await schemaOf(database);
  if (found > manifest.schema) {
    throw new CommandError(
      EXIT.refused,
      `the backup has an older schema (${manifest.schema}) than the database (${found})`,
      'Restore it into a database without tables: another one in DATABASE_URL, or with the folder DATA_DIR/postgres ' +
        'moved away. It is migrated to this version afterwards.',
      { code: 'schema' },
    );
  }
  if (found > 0 && (await isUsed(database))) {
    const counts = countsLine(await database.store.counts());
    if (options.force !== true) {
      throw new CommandError(
        EXIT.refused,
        `the database is not empty: ${counts}`,
        'Restore into an empty database, or with --force, which replaces all of this.',
        { code: 'not_empty' },
      );
    }
    await confirmed(terminal, `The database has ${counts}. Replace all of it with the backup?`, options.yes);
  }
  await migrate({ url: database.url, folder: SQL_FOLDER, upTo: manifest.schema });
}

const tooNew = ({ schema, version }: Manifest, newest: number): CommandError =>
  new CommandError(
    EXIT.refused,
    `the backup has schema ${schema}, which this version (schema ${newest}) cannot read`,
    `Update the server to version ${JSON.stringify(sanitizeText(version))} or newer, which wrote it, and restore with that.`,
    { code: 'schema' },
  );

/** A backup contains no secrets: if there is none here either, the server would generate a new one. */
function noteSecret({ terminal, config }: AdminContext): void {
  const { tokenSecret, dataDir } = config();
  if (tokenSecret !== null || existsSync(join(dataDir, 'secrets', 'token-secret'))) return;
  terminal.note(
    `Warning: there is no TOKEN_SECRET here, and none in ${dataDir}/secrets. Put back the one that belongs to the ` +
      'backup before the server starts; with another one every token is void.',
  );
}
