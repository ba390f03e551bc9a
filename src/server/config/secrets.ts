/**
 * Secrets that nobody set: generated once and kept under DATA_DIR/secrets, one file each.
 * The folder is 0700 and the files 0600.
 */
import { randomBytes } from 'node:crypto';
import { chmod, mkdir, readFile, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Config } from './config.js';
import { FILE_MODE, FOLDER_MODE, isOpenToOthers, syncFolder, writeWhole } from '../../files/durable.js';
import { errorCode } from '../../protocol/error-code.js';

/** Others may pass through DATA_DIR but not list it: started by root, the database runs as another user below it. */
const DATA_DIR_MODE = 0o711;
/** Anything shorter cannot be what was written: the file is damaged. */
const LENGTH_MIN = 16;

/** Closes a file or folder to others. An operator's copy or an unpacked backup may have opened it. */
async function closeToOthers(path: string, mode: number): Promise<void> {
  const { mode: now } = await stat(path);
  if (isOpenToOthers(now)) await chmod(path, mode);
}

async function readSecret(path: string): Promise<string | undefined> {
  let text: string;
  try {
    text = (await readFile(path, 'utf8')).trim();
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw new Error(
      `The secret ${path} cannot be read (${errorCode(error) || String(error)}): start as the user who owns it.`,
      {
        cause: error,
      },
    );
  }
  if (text.length < LENGTH_MIN) {
    throw new Error(`The secret ${path} is damaged: restore it from a backup, or remove it and a new one is drawn.`);
  }
  await closeToOthers(path, FILE_MODE);
  return text;
}

/** Draws it, unless another starter was first: of two one wins, and both read the winner's. */
async function createSecret(path: string): Promise<void> {
  try {
    await writeWhole(path, Buffer.from(`${randomBytes(32).toString('hex')}\n`), 'keep');
  } catch (error) {
    if (errorCode(error) !== 'EEXIST') throw error;
    // The winner may not be so far yet: what is used from here on must not be gone after a power cut.
    await syncFolder(dirname(path));
  }
}

/** Makes DATA_DIR and what is missing above it, with the same mode whatever the umask is. */
async function makeDataDir(dataDir: string): Promise<void> {
  const first = await mkdir(dataDir, { recursive: true });
  if (first === undefined) return;
  for (let folder = dataDir; folder.length >= first.length; folder = dirname(folder))
    await chmod(folder, DATA_DIR_MODE);
}

/**
 * The secret `name` of this data folder, drawn on first use: 64 hex characters (32 random bytes).
 * Every process that asks gets the same text, also when several ask at once.
 * @param name lower-case letters and hyphens; the file's name.
 */
export async function keptSecret(dataDir: string, name: string): Promise<string> {
  if (!/^[a-z][a-z-]*$/.test(name)) throw new Error(`not a secret's name: ${name}`);
  const folder = join(dataDir, 'secrets');
  await makeDataDir(dataDir);
  await mkdir(folder, { recursive: true, mode: FOLDER_MODE });
  await closeToOthers(folder, FOLDER_MODE);
  const path = join(folder, name);
  const kept = await readSecret(path);
  if (kept !== undefined) return kept;
  await createSecret(path);
  const made = await readSecret(path);
  if (made === undefined) throw new Error(`The secret ${path} vanished while it was read.`);
  return made;
}

/** What the server signs with, and what its operator should be told. */
export interface ServerSecrets {
  readonly tokenSecret: string;
  /** Signs the URLs of the local blob store; empty where blobs are elsewhere. */
  readonly blobUrlSecret: string;
  /** For the log; empty when all is well. */
  readonly warnings: readonly string[];
}

interface Secret {
  readonly variable: string;
  /** Of its file. */
  readonly name: string;
  readonly configured: string | null;
  /** What it signs, and what another instance with another one refuses. */
  readonly signs: string;
  /** Whether it is in use at all. */
  readonly used: boolean;
}

/**
 * The configured secrets, or the kept ones where none is configured.
 * With an external database other instances may share it, and they cannot read this folder: hence the warnings.
 */
export async function serverSecrets(
  config: Pick<Config, 'dataDir' | 'databaseUrl' | 'tokenSecret' | 'blobUrlSecret' | 'storageKind'>,
): Promise<ServerSecrets> {
  const warnings: string[] = [];
  const secretOf = async ({ variable, name, configured, signs, used }: Secret): Promise<string> => {
    if (configured !== null) return configured;
    if (!used) return '';
    if (config.databaseUrl !== null) {
      warnings.push(
        `${variable} is not set: this instance signs ${signs} with the one kept in ${join(config.dataDir, 'secrets')}. ` +
          `Set the same ${variable} on every instance that shares this database; else each refuses the ${signs} of the others.`,
      );
    }
    return keptSecret(config.dataDir, name);
  };
  const tokenSecret = await secretOf({
    variable: 'TOKEN_SECRET',
    name: 'token-secret',
    configured: config.tokenSecret,
    signs: 'tokens',
    used: true,
  });
  const blobUrlSecret = await secretOf({
    variable: 'BLOB_URL_SECRET',
    name: 'blob-url-secret',
    configured: config.blobUrlSecret,
    signs: 'blob URLs',
    used: config.storageKind === 'local',
  });
  return { tokenSecret, blobUrlSecret, warnings };
}
