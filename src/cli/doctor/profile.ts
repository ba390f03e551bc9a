/** Checks of the profile: permissions of its folder, free space, where the key of the secrets is, and the identity. */
import { access, constants, readdir, readFile, stat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { isOpenToOthers } from '../../files/durable.js';
import { modeText } from '../../files/private.js';
import { errorCode } from '../../protocol/error-code.js';
import { type Context, PROGRAM_NAME } from '../context.js';
import { IDENTITY_FILE, KEY_FILE } from '../secrets.js';
import { CommandError } from '../../terminal/terminal.js';
import { about, type Finding } from './finding.js';

/** Free space below which a warning is given, and below which the disk counts as full. */
const LOW_BYTES = 100 * 1024 * 1024;
const OUT_BYTES = 10 * 1024 * 1024;
const HEADER_PLACE = /"place":"(keychain|file)"/;

/** Where the key of the secrets is. Reads the file directly: `Secrets` would correct its permissions. */
export async function checkSecrets({ profile }: Context): Promise<Finding[]> {
  const text = await readFile(join(profile.folder, IDENTITY_FILE), 'utf8').catch(() => '');
  const place = HEADER_PLACE.exec(text)?.[1];
  if (place === undefined) return [];
  const where =
    place === 'keychain'
      ? "The secrets are encrypted; their key is in the system's keychain."
      : `The secrets are encrypted; their key is in a file beside them (${profile.folder}), since no keychain was used. ` +
        'Anyone who can read your files can read the vault.';
  return [about('secrets').ok(where)];
}

/** Can others read the files, can this user write them? Runs before anything corrects their permissions. */
export async function checkPermissions({ profile: { folder } }: Context): Promise<Finding[]> {
  const { ok, problem } = about('permissions');
  const findings: Finding[] = [];
  const names = await readdir(folder).catch(() => []);
  const secrets = names.filter((name) => name === IDENTITY_FILE || KEY_FILE.test(name));
  for (const path of [folder, ...secrets.map((name) => join(folder, name))]) {
    const found = await stat(path).catch(() => undefined);
    if (found === undefined || !isOpenToOthers(found.mode)) continue;
    const what = `${path} is open to other users of this machine (mode ${modeText(found.mode)}).`;
    const advice =
      `It is closed when it is next read; to be sure: chmod ${found.isDirectory() ? '700' : '600'} ${path}. ` +
      'If others use this machine, revoke this device from another one and pair it again.';
    findings.push(problem(what, advice));
  }
  const denied = await access(folder, constants.R_OK | constants.W_OK | constants.X_OK).then(
    () => undefined,
    errorCode,
  );
  // Without a folder there is no device yet, which `checkIdentity` reports.
  if (denied !== undefined && denied !== 'ENOENT')
    findings.push(problem(`${folder} cannot be written (${denied}).`, 'Give it to your user: chown, then chmod 700.'));
  return findings.length > 0 ? findings : [ok('Only your user can read the files of this device.')];
}

async function freeIn(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder);
  return bavail * bsize;
}

/** Free space for the local copy. `free`: bytes that are left in a folder. */
export async function checkDisk({ profile }: Context, free = freeIn): Promise<Finding[]> {
  const { ok, warning, problem } = about('disk');
  const left = await free(profile.folder).catch(() => undefined);
  if (left === undefined) return [];
  const mib = Math.floor(left / 1024 / 1024);
  const advice = 'Free some space: without it nothing new can be saved, and changes are refused.';
  if (left < OUT_BYTES) return [problem(`The disk is full: ${mib} MiB are left.`, advice)];
  if (left < LOW_BYTES) return [warning(`The disk is nearly full: ${mib} MiB are left.`, advice)];
  return [ok(`${mib} MiB are free.`)];
}

/** The identity, or why there is none. `here`: the profile has an identity, even if it cannot be opened. */
export async function checkIdentity({ profile }: Context) {
  const { ok, problem } = about('identity');
  try {
    const identity = await profile.identity();
    if (identity !== undefined) {
      const { name, deviceId, serverUrl } = identity;
      return { identity, here: true, finding: ok(`This is ${name} (${deviceId}), a device of ${serverUrl}.`) };
    }
    const advice = `\`${PROGRAM_NAME} claim URL\` on a new server, \`join URL\` with the words that \`pair\` shows on another device, or \`recover URL\` with the twelve words.`;
    return { here: false, finding: problem(`There is no device in ${profile.folder} yet.`, advice) };
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    return { here: true, finding: problem(error.message, error.hint ?? 'See the reference, Doctor.') };
  }
}
