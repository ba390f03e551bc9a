/** `service-admin backup`: the database in one file, while servers run (contract 11). */
import { access, constants, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { Readable } from 'node:stream';
import type { Command } from 'commander';
import { writeArchive } from '../../../backup/archive.js';
import type { BackupSource, Manifest } from '../../../backup/ports.js';
import type { LocalStore } from '../../../objects/local.js';
import { localStore } from '../../../objects/open.js';
import { dumpDatabase } from '../../../postgres/dump.js';
import { systemClock } from '../../../protocol/clock.js';
import { NewFile } from '../../device/new-file.js';
import { counted, show } from '../../device/output.js';
import { examples } from '../../device/run.js';
import { CommandError, EXIT } from '../../../device/terminal.js';
import { ADMIN_NAME, goOn, type AdminContext, type AdminRun } from '../context.js';
import { aboutList, listData, withBucketList } from '../bucket-list.js';
import { aboutBackup } from '../figures.js';
import { progressOf, sized } from '../progress.js';

/** Adds the command. */
export function registerBackup(program: Command, run: AdminRun): void {
  program
    .command('backup')
    .summary('the whole database in one file, while servers run')
    .description(
      'Write the whole database and the blobs of the local store into one file, the rows as they are at one moment; ' +
        'servers go on meanwhile. The secrets are not in it: keep TOKEN_SECRET, or DATA_DIR/secrets, with it. Of a ' +
        'bucket the list of its objects with their checksums is in it, the objects are not',
    )
    .argument('<file>', 'the file to write, a gzipped tar')
    .option('--force', 'replace a file of that name')
    .option('--no-objects', 'leave out the list of the objects of a bucket, which need not be reached then')
    .addHelpText('after', examples(`${ADMIN_NAME} backup service.tar.gz`))
    .action(run(backup));
}

interface BackupOptions {
  readonly force?: boolean;
  /** False with `--no-objects`. */
  readonly objects: boolean;
}

async function backup(context: AdminContext, file: string, options: BackupOptions): Promise<void> {
  const { terminal, version, withReady, config } = context;
  const path = resolve(file);
  await requirePlace(path, options.force === true);
  const rows = new Map<string, number>();
  const progress = progressOf(terminal, 'Backing up');
  const settings = config();
  const { storageKind, dataDir } = settings;
  const local = storageKind === 'local' ? localStore(settings, '') : undefined;
  const kept = local === undefined ? {} : { blobs: local.contents() };
  const manifest = await withReady(({ url }) =>
    withBucketList(settings, options.objects, (objects) =>
      dumpDatabase(url, async ({ about, tables, bytes: rowBytes, read }) => {
        const bytes = rowBytes + (local === undefined ? 0 : await sizeOf(local));
        const listed = objects === undefined ? {} : { objects };
        const source = { tables, read: countingRead(read, rows), bytes, version, ...about, ...kept, ...listed };
        return writeArchive(path, { ...source, createdAt: systemClock.now() }, (done, total) => {
          goOn(terminal);
          progress(done, total);
        });
      }),
    ),
  );
  terminal.progress('');
  const { size } = await stat(path);
  const counts = Object.fromEntries(rows);
  const { objects } = manifest;
  const listed = objects === undefined ? {} : { objects: listData(objects) };
  show(terminal, { file: path, size, rows: counts, ...aboutBackup(manifest), ...listed }, () => [
    `${file}: ${['tenant', 'device', 'item'].map((noun) => counted(rows.get(`${noun}s`) ?? 0, noun)).join(', ')} ` +
      `(deleted ones too)${blobsLine(manifest)}; ${sized(size)}.`,
    ...(objects === undefined ? [] : [`With the ${aboutList(objects)}.`]),
  ]);
  const { tokenSecret } = settings;
  if (storageKind !== 'local') {
    const list = objects === undefined ? ', and the list of them' : '';
    terminal.note(`Not in it: the blobs in the bucket${list}. Copy the bucket after the backup, never before.`);
  }
  const secret = tokenSecret === null ? `the folder ${dataDir}/secrets` : 'TOKEN_SECRET';
  terminal.note(`Not in it: ${secret}. Keep it too: without it every token is void after a restore.`);
}

/** Of all blobs, for the progress. */
async function sizeOf(store: Pick<LocalStore, 'list'>): Promise<number> {
  let size = 0;
  for await (const page of store.list()) for (const object of page) size += object.size;
  return size;
}

const blobsLine = ({ blobs = [] }: Manifest): string =>
  blobs.length === 0 ? '' : `, ${counted(blobs.length, 'blob')}`;

/** All that can be known before the work begins is said before. */
async function requirePlace(path: string, force: boolean): Promise<void> {
  await NewFile.expectFree(path, force);
  try {
    await access(dirname(path), constants.W_OK);
  } catch (error) {
    throw new CommandError(EXIT.usage, `${dirname(path)} is no folder that may be written to.`, undefined, {
      cause: error,
    });
  }
}

const NEWLINE = 10;

/** Counts the rows on their way: in COPY's text format each is a line, and line breaks inside it are escaped. */
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
