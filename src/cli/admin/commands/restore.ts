/** `service-admin restore`: a database out of a backup (contract 11). */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Command } from 'commander';
import { readArchive, restoreBlobs, verifyArchive } from '../../../backup/archive.js';
import type { Manifest } from '../../../backup/ports.js';
import type { Config } from '../../../config/config.js';
import { localStore } from '../../../objects/open.js';
import { requireFitting, RestoreError, restoreDatabase } from '../../../postgres/dump.js';
import { migrate } from '../../../postgres/migrate.js';
import { SQL_FOLDER } from '../../../root.js';
import { confirmed } from '../../device/confirm.js';
import { counted, show } from '../../device/output.js';
import { examples } from '../../device/run.js';
import { CommandError, EXIT, type ExitCode } from '../../../device/terminal.js';
import { compareWithStore, comparedLines, exitOf } from '../bucket-list.js';
import { ADMIN_NAME, goOn, type AdminContext, type AdminRun } from '../context.js';
import { withDatabase, type OperatorDatabase } from '../database.js';
import { aboutBackup, countsLine, countsOf } from '../figures.js';
import { progressOf } from '../progress.js';
import { newestSchema, requireEmpty, requireNoServer, schemaOf } from '../standing.js';

interface RestoreOptions {
  readonly force?: boolean;
  readonly yes?: boolean;
}

/** Adds the command. */
export function registerRestore(program: Command, run: AdminRun): void {
  program
    .command('restore')
    .summary('put a backup into the database')
    .description(
      'Put a backup into the database, with all servers stopped. The file is verified first; it is all there ' +
        'afterwards, or the database is as it was. Every device replays from the start then. A list of the objects of a ' +
        'bucket is compared with the blob store afterwards',
    )
    .argument('<file>', 'a backup')
    .option('--force', 'replace what is in the database; asks')
    .option('-y, --yes', 'with --force: do not ask')
    .addHelpText(
      'after',
      examples(`${ADMIN_NAME} restore service.tar.gz`, `${ADMIN_NAME} restore service.tar.gz --force`),
    )
    .action(run(restore));
}

async function restore(context: AdminContext, file: string, options: RestoreOptions): Promise<ExitCode> {
  const { terminal, config } = context;
  const read = config();
  const manifest = await verifyArchive(file, progressOf(terminal, 'Verifying'));
  terminal.progress('');
  goOn(terminal);
  const newest = await newestSchema();
  if (manifest.schema > newest) throw tooNew(manifest, newest);
  let blobs = 0;
  const { counts, objects } = await withDatabase(read, async (database) => {
    await requireNoServer(database, read);
    await prepare(context, database, { manifest, options });
    // First: then no row ever names a blob that is not there.
    blobs = await putBlobs(context, { file, manifest, settings: read });
    terminal.progress('');
    const progress = progressOf(terminal, 'Restoring');
    await restoreDatabase(
      database.url,
      readArchive(file, manifest, (done, total) => {
        goOn(terminal);
        progress(done, total);
      }),
    );
    terminal.progress('Checking the schema and the figures');
    await migrate({ url: database.url, folder: SQL_FOLDER });
    // The backup's own schema may have been too old to be asked.
    if (manifest.schema < newest) await requireWhole(database);
    const { pool } = database;
    const compared = await compareWithStore(terminal, { file, manifest, settings: read, pool });
    return { counts: await countsOf(pool), objects: compared };
  });
  show(terminal, { file, ...counts, blobs, ...aboutBackup(manifest), newEpoch: true, objects }, () => [
    `Restored: ${countsLine(counts)}${blobs === 0 ? '' : `, ${counted(blobs, 'blob')}`}.`,
    'The history has a new name (epoch) when the server starts: every device replays from the start.',
    ...comparedLines(terminal, manifest, objects),
  ]);
  const warning = secretWarning(read);
  if (warning !== undefined) terminal.note(warning);
  return exitOf(objects);
}

interface Putting {
  readonly file: string;
  readonly manifest: Manifest;
  readonly settings: Config;
}

/** The backup's blobs go into the local store; one that is there already is the same, since blobs never change. */
async function putBlobs({ terminal }: AdminContext, { file, manifest, settings }: Putting): Promise<number> {
  const { blobs = [] } = manifest;
  if (blobs.length === 0) return 0;
  if (settings.storageKind !== 'local') {
    throw new CommandError(
      EXIT.refused,
      `the backup holds ${counted(blobs.length, 'blob')}, and STORAGE_KIND is ${settings.storageKind}`,
      'Restore with STORAGE_KIND=local and copy the folder DATA_DIR/blobs into the bucket, or begin with its blobs there.',
      { code: 'storage' },
    );
  }
  const store = localStore(settings, '');
  const progress = progressOf(terminal, 'Restoring blobs');
  const onProgress = (done: number, total: number): void => {
    goOn(terminal);
    progress(done, total);
  };
  return restoreBlobs({ path: file, manifest, onProgress }, (name) => {
    const [tenantId = '', ref = ''] = name.split('/');
    return store.create({ tenantId, ref });
  });
}

/** What the backup's own schema could not tell is found after it was migrated, and so after it was written. */
async function requireWhole({ pool }: OperatorDatabase): Promise<void> {
  try {
    await requireFitting(pool);
  } catch (error) {
    if (!(error instanceof RestoreError)) throw error;
    throw new CommandError(
      EXIT.untrusted,
      `the backup is in the database, and ${error.message}`,
      'Start no server on it. Restore another backup, with --force.',
      { code: 'damaged', cause: error },
    );
  }
}

interface Preparing {
  readonly manifest: Manifest;
  readonly options: RestoreOptions;
}

/** Makes sure that nothing is lost unasked, and brings the schema to the backup's. */
async function prepare({ terminal }: AdminContext, database: OperatorDatabase, about: Preparing): Promise<void> {
  const { manifest, options } = about;
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
      const question = `The database has ${countsLine(counts)}. Replace all of it by the backup?`;
      await confirmed(terminal, question, options.yes);
    }
  }
  await migrate({ url: database.url, folder: SQL_FOLDER, upTo: manifest.schema });
}

const tooNew = ({ schema, version }: Manifest, newest: number): CommandError =>
  new CommandError(
    EXIT.refused,
    `the backup has schema ${schema}, this version (schema ${newest}) cannot read it`,
    `Update the server to version ${JSON.stringify(version)} or newer, which wrote it, and restore with that.`,
    { code: 'schema' },
  );

/** A backup holds no secrets: where none is here either, a new one would be drawn. */
function secretWarning({ tokenSecret, dataDir }: Config): string | undefined {
  if (tokenSecret !== null || existsSync(join(dataDir, 'secrets', 'token-secret'))) return undefined;
  return (
    `Warning: there is no TOKEN_SECRET here, and none in ${dataDir}/secrets. Put back the one that belongs to the ` +
    'backup before the server starts; with another one every token is void.'
  );
}
