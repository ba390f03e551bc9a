/** Major versions of PostgreSQL: a folder can only be read by the major version that made it. */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { SERVICE_NAME } from '../../../protocol/limits.js';
import type { Binaries } from './binaries.js';

const run = promisify(execFile);

/** Folder and programs differ in their major version. Nothing was changed; the message says what to do. */
export class ClusterVersionError extends Error {
  override readonly name = 'ClusterVersionError';

  constructor(
    folder: string,
    /** Major version that made the folder. */
    readonly made: number,
    /** Major version of the programs. */
    readonly programs: number,
  ) {
    super(
      made < programs
        ? `The database in ${folder} was made by PostgreSQL ${made}; this version of the server brings PostgreSQL ` +
            `${programs}, which cannot read it. Nothing was changed. Run \`${SERVICE_NAME}-admin upgrade-postgres\` ` +
            '(`npm run admin -- upgrade-postgres`): it moves the data over and keeps the old folder. Or start the ' +
            'version of the server that ran before.'
        : `The database in ${folder} was made by PostgreSQL ${made}; this version of the server brings PostgreSQL ` +
            `${programs}, which is older. Nothing was changed. Start the version of the server that ran before, or a newer one.`,
    );
  }
}

/** Major version that made the cluster in `folder`, from its PG_VERSION. Rejects if there is no cluster. */
export async function majorOfFolder(folder: string): Promise<number> {
  const text = (await readFile(join(folder, 'PG_VERSION'), 'utf8')).trim();
  const major = Number(text);
  if (!Number.isSafeInteger(major) || major < 10) {
    throw new Error(`${join(folder, 'PG_VERSION')} is damaged: restore the folder from a backup.`);
  }
  return major;
}

/** Major version of the programs. Rejects if they do not run. */
export async function majorOfBinaries({ postgres }: Binaries): Promise<number> {
  const { stdout } = await run(postgres, ['--version'], { cwd: '/' });
  const major = /\(PostgreSQL\) (\d+)/.exec(stdout)?.[1];
  if (major === undefined) throw new Error(`${postgres} does not say which PostgreSQL it is.`);
  return Number(major);
}

/** Throws `ClusterVersionError` if these programs cannot work on this folder. */
export async function requireSameMajor(folder: string, binaries: Binaries): Promise<void> {
  const [made, programs] = await Promise.all([majorOfFolder(folder), majorOfBinaries(binaries)]);
  if (made !== programs) throw new ClusterVersionError(folder, made, programs);
}
