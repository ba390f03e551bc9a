/** Secrets that are not configured: generated once and stored in DATA_DIR/secrets (0700), one file each (0600). */
import { createHmac, randomBytes } from 'node:crypto';
import { chmod, mkdir, readFile, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Config } from './config.js';
import { FILE_MODE, isOpenToOthers, syncFolder, writeWhole } from '../../files/durable.js';
import { privateFolder } from '../../files/private.js';
import { errorCode } from '../../protocol/error-code.js';

/** Others may traverse DATA_DIR but not list it: when root starts the server, the database runs as another user below it. */
const DATA_DIR_MODE = 0o711;
/** A shorter file is damaged. */
const LENGTH_MIN = 16;

async function readSecret(path: string): Promise<string | undefined> {
  let text: string;
  try {
    text = (await readFile(path, 'utf8')).trim();
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw new Error(
      `The secret ${path} cannot be read (${errorCode(error) || String(error)}): start as the user who owns it.`,
      { cause: error },
    );
  }
  if (text.length < LENGTH_MIN) {
    throw new Error(
      `The secret ${path} is damaged: restore it from a backup, or remove it, and a new one is generated.`,
    );
  }
  // A copy or an unpacked backup may have added permissions of others.
  if (isOpenToOthers((await stat(path)).mode)) await chmod(path, FILE_MODE);
  return text;
}

/** Generates the secret, unless another process was first: the caller then reads that one's. */
async function createSecret(path: string): Promise<void> {
  try {
    await writeWhole(path, Buffer.from(`${randomBytes(32).toString('hex')}\n`), 'keep');
  } catch (error) {
    if (errorCode(error) !== 'EEXIST') throw error;
    // The other process may not have synced the folder yet: the secret must survive a power failure from here on.
    await syncFolder(dirname(path));
  }
}

/** Creates DATA_DIR and missing parents with DATA_DIR_MODE, whatever the umask is. */
async function makeDataDir(dataDir: string): Promise<void> {
  const first = await mkdir(dataDir, { recursive: true });
  if (first === undefined) return;
  for (let folder = dataDir; folder.length >= first.length; folder = dirname(folder))
    await chmod(folder, DATA_DIR_MODE);
}

/**
 * The secret `name` of this data folder, generated on first use: 64 hex characters (32 random bytes). Concurrent
 * processes get the same secret.
 * @param name lower-case letters and hyphens; the file's name.
 */
export async function keptSecret(dataDir: string, name: string): Promise<string> {
  if (!/^[a-z][a-z-]*$/.test(name)) throw new Error(`not a secret's name: ${name}`);
  const folder = join(dataDir, 'secrets');
  await makeDataDir(dataDir);
  await privateFolder(folder, () => undefined);
  const path = join(folder, name);
  const kept = await readSecret(path);
  if (kept !== undefined) return kept;
  await createSecret(path);
  const made = await readSecret(path);
  if (made === undefined) throw new Error(`The secret ${path} vanished while it was read.`);
  return made;
}

/**
 * The server's signing keys: those configured, or those in DATA_DIR where none is; `blobUrlSecret`, for the URLs of the
 * local blob store, is empty with another store, even if it is set: instances would compare what nothing uses. Warns the
 * operator with an external database: instances on other machines may share it, and cannot read this folder.
 */
export async function serverSecrets(
  config: Pick<Config, 'dataDir' | 'databaseUrl' | 'tokenSecret' | 'blobUrlSecret' | 'storageKind'>,
) {
  const { dataDir, databaseUrl, storageKind } = config;
  const warnings: string[] = [];
  const keptOr = async (configured: string | null, name: string, signs: string): Promise<string> => {
    if (configured !== null) return configured;
    const variable = name.toUpperCase().replaceAll('-', '_');
    if (databaseUrl !== null) {
      warnings.push(
        `${variable} is not set: this instance signs ${signs} with the one kept in ${join(dataDir, 'secrets')}. ` +
          `Set the same ${variable} on every instance that shares this database; otherwise each refuses the ${signs} of the others.`,
      );
    }
    return keptSecret(dataDir, name);
  };
  const tokenSecret = await keptOr(config.tokenSecret, 'token-secret', 'tokens');
  const blobUrlSecret =
    storageKind === 'local' ? await keptOr(config.blobUrlSecret, 'blob-url-secret', 'blob URLs') : '';
  return { tokenSecret, blobUrlSecret, warnings };
}

/**
 * 8 hex characters, different where one of the two keys is: instances compare theirs. Who reads the table of the instances
 * can rule out guesses with it, as with any token.
 */
export const fingerprintOf = ({
  tokenSecret,
  blobUrlSecret,
}: Record<'tokenSecret' | 'blobUrlSecret', string>): string =>
  createHmac('sha256', tokenSecret).update(`instances\0${blobUrlSecret}`).digest('hex').slice(0, 8);
