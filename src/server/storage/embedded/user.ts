/**
 * Which system user the embedded PostgreSQL runs as. PostgreSQL refuses to run as root, so a server started by root
 * runs it as the user `postgres`; a server started by another user runs it as that user.
 */
import { execFile } from 'node:child_process';
import { realpath, stat } from 'node:fs/promises';
import { sep } from 'node:path';
import { promisify } from 'node:util';
import { ifThere } from '../../../files/there.js';
import { SERVICE_NAME } from '../../../protocol/limits.js';

/** Runs a program. Rejects, with its error output, if its exit code is not 0. */
export const run = promisify(execFile);

/** Numeric ids for child processes. */
export interface SystemUser {
  readonly uid: number;
  readonly gid: number;
}

const USER_NAME = 'postgres';

async function lookUp(): Promise<SystemUser | undefined> {
  try {
    const [uid, gid] = await Promise.all([run('id', ['-u', USER_NAME]), run('id', ['-g', USER_NAME])]);
    return { uid: Number(uid.stdout.trim()), gid: Number(gid.stdout.trim()) };
  } catch {
    // `id` fails for a user that does not exist; the caller creates it.
    return undefined;
  }
}

async function createUser(): Promise<SystemUser> {
  let cause: unknown;
  try {
    await run('groupadd', ['--system', '--force', USER_NAME]);
    const shell = ['--no-create-home', '--home-dir', '/nonexistent', '--shell', '/usr/sbin/nologin'];
    await run('useradd', ['--system', '--gid', USER_NAME, ...shell, USER_NAME]);
  } catch (error) {
    // Another server that is starting may have created the user meanwhile.
    cause = error;
  }
  const made = await lookUp();
  if (made !== undefined) return made;
  throw new Error(
    `PostgreSQL does not run as root, and the user "${USER_NAME}" could not be created or looked up. ` +
      'Create it (useradd --system postgres), start the server as another user, or set DATABASE_URL.',
    { cause },
  );
}

/**
 * The user to run PostgreSQL as; null: the server's own.
 * Under root an existing cluster keeps its owner (it may have been created by a server that did not run as root).
 */
export async function databaseUser(clusterFolder: string): Promise<SystemUser | null> {
  const owner = await ifThere(() => stat(clusterFolder));
  const own = process.getuid?.();
  if (own !== 0) {
    if (owner !== undefined && owner.uid !== own) {
      throw new Error(
        `${clusterFolder} belongs to the user with id ${owner.uid}: start the server as that user or as root.`,
      );
    }
    return null;
  }
  if (owner !== undefined && owner.uid !== 0) return { uid: owner.uid, gid: owner.gid };
  const user = (await lookUp()) ?? (await createUser());
  if (owner !== undefined) await run('chown', ['-Rh', `${user.uid}:${user.gid}`, clusterFolder]);
  return user;
}

/** Whether `user` can access this path (`-x`: enter a folder, run a program). The system decides, so ACLs count too. */
export async function canReach(path: string, user: SystemUser | null): Promise<boolean> {
  if (user === null) return true;
  try {
    await run('/bin/sh', ['-c', 'test -x "$1"', 'sh', path], { ...user, cwd: '/' });
    return true;
  } catch {
    // `test` answers by its exit status.
    return false;
  }
}

/** The outermost folder above `path` that `user` may not enter, by its mode. */
async function closedFolder(path: string, user: SystemUser): Promise<string> {
  let folder = '';
  for (const part of (await realpath(path)).split(sep).slice(1)) {
    folder += `${sep}${part}`;
    const { uid, gid, mode } = await stat(folder);
    const bit = uid === user.uid ? 0o100 : gid === user.gid ? 0o010 : 0o001;
    if ((mode & bit) === 0) return folder;
  }
  return path;
}

/** @throws Error that names the closed folder and a solution, if the database's user cannot enter DATA_DIR. */
export async function requireReachable(dataDir: string, user: SystemUser | null): Promise<void> {
  if (user === null || (await canReach(dataDir, user))) return;
  throw new Error(
    `The embedded PostgreSQL runs as the user "${USER_NAME}" because the server was started by root, and that user ` +
      `may not enter ${await closedFolder(dataDir, user)}, so it cannot keep its data in ${dataDir}. ` +
      `Choose a folder that is open to it, for example: DATA_DIR=/var/lib/${SERVICE_NAME}`,
  );
}
