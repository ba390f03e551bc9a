/**
 * The pairing at rest: `mcp.json`, mode 0600, written atomically. Its secrets are encrypted under an HMAC of this
 * machine's identifier, so that a copy of the file (a backup, a synchronised home) opens nowhere else. Any program of
 * this user on this machine can open it: the companion starts unattended, so no passphrase can protect it.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { identityOf, secretsOf, SECRETS, type Identity } from '../sdk/identity.js';
import { boolean, bytes, count, matching, nonEmpty, nullable, object, string, type Read } from '../sdk/reader.js';
import { erasing, type Sodium } from '../crypto/sodium.js';
import { sealed, unsealed } from '../device/sealed.js';
import { PrivateFileError, readPrivate, removePrivate, writePrivate, type Warn } from '../files/private.js';
import { toBase64Url } from '../protocol/base64.js';
import { lengthPrefixed, text } from '../protocol/bytes.js';
import { NONCE_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import type { Context, Paths } from './context.js';
import { McpError } from './errors.js';
import { forgetKnownDevices } from './known-devices.js';
import { withLock } from './lock.js';
import { isMachineSource, type MachineId, type MachineSource } from './machine.js';

const FORMAT = `${SERVICE_NAME}-mcp`;
const VERSION = 1;
const FILE_MAX = 64 * 1024;
const SALT_BYTES = 32;
const MAC_BYTES = 32;

const readFormat = object({ format: string, version: count });
const readFile = object({
  server: nonEmpty,
  deviceId: nonEmpty,
  name: string,
  machine: matching('must be a source of an identifier', isMachineSource),
  salt: bytes(SALT_BYTES),
  binding: bytes(MAC_BYTES),
  nonce: bytes(NONCE_BYTES),
  ct: bytes(),
});
/** The parsed file. Its cleartext fields are for the user to read; all of them are authenticated. */
type ConfigFile = Read<typeof readFile>;

// `passwords` is absent in files of older versions, which means not allowed.
const readSecrets = object({ ...SECRETS, passwords: nullable(boolean) });

/** The file's content: this machine's device identity, and what the user allows agents. */
export interface Pairing {
  readonly identity: Identity;
  /** True: agents may read the secrets of passwords. */
  readonly passwords: boolean;
}

/** The part of `Context` that reading and writing the pairing takes. */
export type Keeper = Pick<Context, 'paths' | 'note'> & { readonly platform: { readonly sodium: Sodium } };

/**
 * The pairing of this machine. Throws `McpError` `not_paired`, `other_machine`, `config_damaged`, `config_newer` or
 * `config_unsafe`. If other users could read the file, their access is removed, with a warning by `note`.
 */
export async function loadPairing(keeper: Keeper): Promise<Pairing> {
  const file = await readConfig(keeper.paths, keeper.note);
  if (file === undefined) throw new McpError('not_paired', 'this machine is not paired yet');
  return opened(keeper, file, await boundMachine(keeper.paths, file));
}

/** The device of the pairing. Throws as `loadPairing`. */
export const loadIdentity = async (keeper: Keeper): Promise<Identity> => (await loadPairing(keeper)).identity;

/**
 * Saves the pairing, bound to the best identifier available; durable when it resolves. Resolves with the source of its
 * binding. `keep`: fails with `already_paired` where there is one, so that of two concurrent `pair` commands one fails.
 */
export const savePairing = (
  keeper: Keeper,
  pairing: Pairing,
  existing: 'replace' | 'keep' = 'replace',
): Promise<MachineSource> =>
  withLock(keeper, async () => {
    if (existing === 'keep' && (await readConfig(keeper.paths, keeper.note)) !== undefined)
      throw new McpError('already_paired', 'this machine was paired meanwhile');
    const machine = await keeper.paths.machine.best();
    await write(keeper, pairing, machine);
    return machine.source;
  });

/**
 * Saves the token of this identity and keeps the rest of the pairing. Returns false and writes nothing if the pairing
 * was removed or belongs to another device: a concurrent `unpair` or `pair` must not be undone. Throws as
 * `loadPairing`, and leaves a file that does not open unchanged.
 */
export const renewIdentity = (keeper: Keeper, { deviceId, token }: Identity): Promise<boolean> =>
  changed(keeper, (kept) => {
    return kept.identity.deviceId === deviceId ? { ...kept, identity: { ...kept.identity, token } } : undefined;
  });

/** Saves whether agents may read the secrets of passwords. Throws as `loadPairing`. */
export async function savePasswords(keeper: Keeper, passwords: boolean): Promise<void> {
  if (!(await changed(keeper, (kept) => ({ ...kept, passwords }))))
    throw new McpError('not_paired', 'this machine is not paired yet');
}

/** Keeps the pairing bound to one identifier: a weaker one must not replace one that is missing temporarily. */
const changed = (keeper: Keeper, change: (kept: Pairing) => Pairing | undefined): Promise<boolean> =>
  withLock(keeper, async () => {
    const file = await readConfig(keeper.paths, keeper.note);
    if (file === undefined) return false;
    const machine = await boundMachine(keeper.paths, file);
    const next = change(opened(keeper, file, machine));
    if (next === undefined) return false;
    await write(keeper, next, machine);
    return true;
  });

/** Removes the pairing from this machine, and what is stored with it; not an error if there is none. */
export const forgetIdentity = (paths: Paths): Promise<void> =>
  withLock({ paths, note: () => undefined }, async () => {
    await removePrivate(paths.configPath);
    await forgetKnownDevices(paths);
  });

/** The file without its secrets; undefined if there is none. Throws as `loadPairing`. */
export async function readConfig(paths: Paths, warn: Warn): Promise<ConfigFile | undefined> {
  const content = await readPrivate(paths.configPath, FILE_MAX, warn).catch((error: unknown) => {
    if (!(error instanceof PrivateFileError)) throw error;
    throw new McpError('config_unsafe', error.message.replace(/\.$/, ''), { cause: error });
  });
  if (content === undefined) return undefined;
  try {
    const parsed: unknown = JSON.parse(content.toString('utf8'));
    const { format, version } = readFormat(parsed, '');
    if (format === FORMAT && version > VERSION)
      throw new McpError('config_newer', `${paths.configPath} was written by a newer version`);
    if (format === FORMAT && version === VERSION) return readFile(parsed, '');
  } catch (error) {
    if (error instanceof McpError) throw error;
    // No cause: the parser's message quotes the file.
  }
  throw damaged(paths, 'is not a pairing that this program wrote: it is damaged');
}

async function write({ paths, platform: { sodium } }: Keeper, { identity, passwords }: Pairing, machine: MachineId) {
  const salt = sodium.random(SALT_BYTES);
  const { serverUrl: server, deviceId, name } = identity;
  const open = { format: FORMAT, version: VERSION, server, deviceId, name, machine: machine.source };
  const secret = erasing(sodium, derived(machine, 'key', salt), (key) =>
    sealed({ sodium, key, aad: aadOf({ ...open, salt }) }, { ...secretsOf(identity), passwords }),
  );
  const shown = { salt: toBase64Url(salt), binding: toBase64Url(derived(machine, 'binding', salt)), ...secret };
  await writePrivate(paths.configPath, text(`${JSON.stringify({ ...open, ...shown }, undefined, 2)}\n`));
}

/** This machine's identifier of the file's source. Throws `other_machine` if the file is bound to another machine. */
async function boundMachine(paths: Paths, { machine: source, salt, binding }: ConfigFile): Promise<MachineId> {
  const machine = await paths.machine.of(source);
  if (machine !== undefined && timingSafeEqual(derived(machine, 'binding', salt), binding)) return machine;
  const why = "it was copied here, or this machine's identifier has changed";
  throw new McpError('other_machine', `${paths.configPath} belongs to another machine: ${why}`);
}

function opened({ paths, platform: { sodium } }: Keeper, file: ConfigFile, machine: MachineId): Pairing {
  const { server: serverUrl, deviceId, name } = file;
  return erasing(sodium, derived(machine, 'key', file.salt), (key) =>
    unsealed({ sodium, key, aad: aadOf(file) }, file, {
      read: (value) => {
        const read = readSecrets(value, '');
        return { identity: identityOf(read, { serverUrl, deviceId, name }), passwords: read.passwords === true };
      },
      changed: () => damaged(paths, 'was changed after it was written'),
      unreadable: () => damaged(paths, 'has unreadable content'),
    }),
  );
}

const damaged = (paths: Paths, what: string): McpError => new McpError('config_damaged', `${paths.configPath} ${what}`);

/** 32 bytes that only this machine can derive, different for each purpose and salt. */
const derived = ({ bytes: id }: MachineId, purpose: 'key' | 'binding', salt: Uint8Array): Uint8Array =>
  createHmac('sha256', id)
    .update(lengthPrefixed(`${FORMAT}-${purpose}-v${VERSION}`, salt))
    .digest();

const aadOf = (file: Pick<ConfigFile, 'server' | 'deviceId' | 'name' | 'machine' | 'salt'>): Uint8Array =>
  lengthPrefixed(`${FORMAT}-file-v${VERSION}`, file.server, file.deviceId, file.name, file.machine, file.salt);
