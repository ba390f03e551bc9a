/** A profile's folder: where it is, and the identity in it. */
import { readdir, rm } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { isGlyph } from '../../client/api.js';
import type { Identity } from '../../client/identity.js';
import { bytes, count, nonEmpty, nullable, object, string, ulidText } from '../../client/reader.js';
import { toBase64Url } from '../../protocol/base64.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { Profile } from './context.js';
import { isSystemError, privateFolder, readWhole, writeDurably } from './files.js';
import { LOCK_FILE } from './lock.js';
import { CommandError, EXIT, type Terminal } from './terminal.js';

const IDENTITY_FILE = 'identity.json';
const IDENTITY_MAX_BYTES = 64 * 1024;
const PROFILE_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
/** The profile where none is named. */
export const DEFAULT_PROFILE = 'default';

/** The folder of all profiles: `XDG_CONFIG_HOME`, `%APPDATA%`, else `~/.config`. */
export function profilesFolder(env: Terminal['env']): string {
  const set = process.platform === 'win32' ? env['APPDATA'] : env['XDG_CONFIG_HOME'];
  const base = set !== undefined && set !== '' ? set : join(env['HOME'] ?? homedir(), '.config');
  return join(base, SERVICE_NAME, 'device');
}

/** The profile of a name. Throws `CommandError` `usage` for a name that is no folder's. */
export function profileOf(name: string, env: Terminal['env']): Profile {
  if (!PROFILE_NAME.test(name)) {
    throw new CommandError(EXIT.usage, 'a profile name is 1 to 64 letters, digits, dots, hyphens and underscores');
  }
  const folder = join(profilesFolder(env), name);
  const path = join(folder, IDENTITY_FILE);
  return {
    name,
    folder,
    identity: async () => {
      const stored = await readWhole(path, IDENTITY_MAX_BYTES);
      return stored === undefined ? undefined : openIdentity(folder, stored);
    },
    keep: async (identity) => {
      await privateFolder(folder);
      await writeDurably(path, await sealIdentity(folder, identity));
    },
    forget: () => emptied(folder),
  };
}

/** Everything but the lock, which may be held for just this. */
async function emptied(folder: string): Promise<void> {
  const names = await readdir(folder).catch((error: unknown) => {
    if (isSystemError(error, 'ENOENT')) return [];
    throw error;
  });
  // The identity first: what is cut off in the middle must not leave a device that can still write.
  for (const name of names.sort((one, other) => Number(other === IDENTITY_FILE) - Number(one === IDENTITY_FILE))) {
    if (name !== LOCK_FILE) await rm(join(folder, name), { recursive: true, force: true });
  }
}

/** As stored. Times are ms. */
const readIdentity = object({
  serverUrl: nonEmpty,
  tenantId: nonEmpty,
  deviceId: ulidText,
  name: nonEmpty,
  glyph: string,
  publicKey: bytes(32),
  secretKey: bytes(32),
  masterKey: bytes(32),
  token: object({ text: nonEmpty, expiresAt: nullable(count), issuedAt: nullable(count) }),
});

/** The bytes that are stored of an identity. `secrets.ts` plugs in here: until it does, only the file's mode protects them. */
function sealIdentity(_folder: string, identity: Identity): Promise<Uint8Array> {
  const { serverUrl, tenantId, deviceId, name, glyph, keys, masterKey, token } = identity;
  const stored = {
    ...{ serverUrl, tenantId, deviceId, name, glyph },
    publicKey: toBase64Url(keys.publicKey),
    secretKey: toBase64Url(keys.secretKey),
    masterKey: toBase64Url(masterKey),
    token: { text: token.text, expiresAt: token.expiresAt, issuedAt: token.issuedAt ?? null },
  };
  return Promise.resolve(Buffer.from(JSON.stringify(stored)));
}

/** The reverse. `secrets.ts` plugs in here. Throws `CommandError` where the bytes are not an identity. */
function openIdentity(folder: string, stored: Uint8Array): Promise<Identity> {
  try {
    const read = readIdentity(JSON.parse(Buffer.from(stored).toString('utf8')), IDENTITY_FILE);
    const { publicKey, secretKey, token, glyph, ...rest } = read;
    if (!isGlyph(glyph)) throw new TypeError('an unknown glyph');
    const { issuedAt, ...kept } = token;
    return Promise.resolve({
      ...rest,
      glyph,
      keys: { publicKey, secretKey },
      token: issuedAt === null ? kept : { ...kept, issuedAt },
    });
  } catch (cause) {
    throw new CommandError(
      EXIT.failure,
      `the identity in ${folder} is damaged: this profile cannot be opened`,
      'Forget it (`service-device forget`) and pair this device again, or recover with the twelve words.',
      { cause, code: 'damaged' },
    );
  }
}
