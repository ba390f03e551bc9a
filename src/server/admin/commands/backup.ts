/** `service-admin backup` and `restore`: the database in one file. */
import { existsSync } from 'node:fs';
import { access, constants, stat } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { Readable } from 'node:stream';
import { readArchive, restoreBlobs, verifyArchive, writeArchive, type BackupSource } from '../backup/archive.js';
import type { Manifest } from '../backup/manifest.js';
import type { Config } from '../../config/config.js';
import type { LocalStore } from '../../blobs/objects/local.js';
import { localStore } from '../../blobs/objects/open.js';
import { dumpDatabase, requireFitting, restoreDatabase, RestoreError } from '../../storage/dump.js';
import { migrate } from '../../storage/migrate.js';
import { systemClock } from '../../../protocol/clock.js';
import { SQL_FOLDER } from '../../../root.js';
import { confirmed } from '../../../terminal/ask.js';
import { NewFile } from '../../../terminal/new-file.js';
import { counted, show } from '../../../terminal/output.js';
import { CommandError, EXIT, type ExitCode } from '../../../terminal/terminal.js';
import {
  aboutList,
  comparedLines,
  compareWithStore,
  exitOf,
  listData,
  withBucketList,
  type Comparing,
} from '../bucket-list.js';
import {
  throwIfInterrupted,
  withDatabase,
  type AdminContext,
  type AdminCommand,
  type OperatorDatabase,
} from '../context.js';
import { aboutBackup, countsLine, countsOf, newestSchema, requireEmpty, requireNoServer, schemaOf } from '../counts.js';
import { progressOf, sized, stoppable } from '../progress.js';

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
    .does(backup);
}

async function backup(
  context: AdminContext,
  file: string,
  options: { readonly force?: boolean; readonly objects: boolean },
): Promise<void> {
  const { terminal, version, withReady, config } = context;
  const path = resolve(file);
  await requirePlace(path, options.force === true);
  const rows = new Map<string, number>();
  const progress = stoppable(terminal, 'Backing up');
  const settings = config();
  const { storageKind, dataDir } = settings;
  const local = storageKind === 'local' ? localStore(settings, '') : undefined;
  const manifest = await withReady(({ url }) =>
    withBucketList(settings, options.objects, (objects) =>
      dumpDatabase(url, async ({ about, tables, bytes: rowBytes, read }) => {
        const bytes = rowBytes + (local === undefined ? 0 : await sizeOf(local));
        const blobs = local?.contents();
        const source = { tables, read: countingRead(read, rows), bytes, version, ...about, blobs, objects };
        const existing = options.force === true ? 'replace' : 'keep';
        return writeArchive(path, { ...source, createdAt: systemClock.now() }, progress, existing);
      }),
    ),
  );
  terminal.progress('');
  const { size } = await stat(path);
  const counts = Object.fromEntries(rows);
  const { objects } = manifest;
  show(terminal, { file: path, size, rows: counts, ...aboutBackup(manifest), objects: listData(objects) }, () => [
    `${file}: ${countsLine(counts)} (deleted ones too)${blobsText(manifest.blobs?.length)}; ${sized(size)}.`,
    objects !== undefined && `With the ${aboutList(objects)}.`,
  ]);
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

const NEWLINE = 10;

/** Counts the rows that are read: in COPY's text format each is a line, and line breaks inside it are escaped. */
const countingRead =
  (read: BackupSource['read'], rows: Map<string, number>): BackupSource['read'] =>
  async (table) => {
    const found = await read(table);
    async function* counting(): AsyncGenerator<Buffer> {
      let count = 0;
      for await (const chunk of found.rows) {
        const bytes = chunk as Buffer;
        for (let at = bytes.indexOf(NEWLINE); at !== -1; at = bytes.indexOf(NEWLINE, at + 1)) count++;
        yield bytes;
      }
      rows.set(table, count);
    }
    return { columns: found.columns, rows: Readable.from(counting(), { objectMode: false }) };
  };

interface RestoreOptions {
  readonly force?: boolean;
  readonly yes?: boolean;
}

export function registerRestore(program: AdminCommand): void {
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
    .does(restore);
}

async function restore(context: AdminContext, file: string, options: RestoreOptions): Promise<ExitCode> {
  const { terminal, config } = context;
  const read = config();
  const manifest = await verifyArchive(file, progressOf(terminal, 'Verifying'));
  terminal.progress('');
  throwIfInterrupted(terminal);
  const newest = await newestSchema();
  if (manifest.schema > newest) throw tooNew(manifest, newest);
  requirePlaceForBlobs(manifest, read);
  const { counts, objects, blobs } = await withDatabase(read, async (database) => {
    await requireNoServer(database, read);
    await prepare(context, database, { manifest, options });
    // Before the rows, so that no row names a blob that is not there.
    const blobs = await putBlobs(context, { file, manifest, settings: read });
    terminal.progress('');
    // Again: the confirmation and copying the blobs may have taken long.
    await requireNoServer(database, read);
    const progress = stoppable(terminal, 'Restoring');
    await restoreDatabase(database.url, readArchive(file, manifest, progress));
    terminal.progress('Checking the schema and the figures');
    await migrate({ url: database.url, folder: SQL_FOLDER });
    // A backup with an older schema could not be checked before.
    if (manifest.schema < newest) await requireWhole(database);
    const { pool } = database;
    const compared = await compareWithStore(terminal, { file, manifest, settings: read, pool });
    return { counts: await countsOf(pool), objects: compared, blobs };
  });
  show(terminal, { file, ...counts, blobs, ...aboutBackup(manifest), newEpoch: true, objects }, () => [
    `Restored: ${countsLine(counts)}${blobsText(blobs)}.`,
    'The history has a new name (epoch) when the server starts: every device replays from the start.',
    ...comparedLines(terminal, manifest, objects),
  ]);
  const warning = secretWarning(read);
  if (warning !== undefined) terminal.note(warning);
  return exitOf(objects);
}

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

/** Writes the backup's blobs into the local store. */
async function putBlobs(
  { terminal }: AdminContext,
  { file, manifest, settings }: Omit<Comparing, 'pool'>,
): Promise<number> {
  const { blobs = [] } = manifest;
  if (blobs.length === 0) return 0;
  const onProgress = stoppable(terminal, 'Restoring blobs');
  return restoreBlobs({ path: file, manifest, onProgress }, localStore(settings, ''));
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
  { terminal }: AdminContext,
  database: OperatorDatabase,
  { manifest, options }: { readonly manifest: Manifest; readonly options: RestoreOptions },
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
  if (found > 0) {
    const counts = await requireEmpty(database, options.force === true);
    if (counts !== undefined) {
      const question = `The database has ${countsLine(counts)}. Replace all of it with the backup?`;
      await confirmed(terminal, question, options.yes);
    }
  }
  await migrate({ url: database.url, folder: SQL_FOLDER, upTo: manifest.schema });
}

const tooNew = ({ schema, version }: Manifest, newest: number): CommandError =>
  new CommandError(
    EXIT.refused,
    `the backup has schema ${schema}, which this version (schema ${newest}) cannot read`,
    `Update the server to version ${JSON.stringify(version)} or newer, which wrote it, and restore with that.`,
    { code: 'schema' },
  );

/** A backup contains no secrets: if there is none here either, the server would generate a new one. */
function secretWarning({ tokenSecret, dataDir }: Config): string | undefined {
  if (tokenSecret !== null || existsSync(join(dataDir, 'secrets', 'token-secret'))) return undefined;
  return (
    `Warning: there is no TOKEN_SECRET here, and none in ${dataDir}/secrets. Put back the one that belongs to the ` +
    'backup before the server starts; with another one every token is void.'
  );
}
