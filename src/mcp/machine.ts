/**
 * A stable identifier of this machine, to which the pairing is bound (MCP-08). It is only used as the key of a hash and
 * never leaves the machine, as machine-id(5) requires.
 */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { hostname, userInfo } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { lengthPrefixed, text } from '../protocol/bytes.js';

/** Sources of an identifier, best first. `host-name` is the fallback: host and user names, which are not secret. */
const MACHINE_SOURCES = ['machine-id', 'platform-uuid', 'machine-guid', 'host-name'] as const;

export type MachineSource = (typeof MACHINE_SOURCES)[number];

export const isMachineSource = (value: unknown): value is MachineSource =>
  (MACHINE_SOURCES as readonly unknown[]).includes(value);

export interface MachineId {
  readonly source: MachineSource;
  /** Of any length. The key of keyed hashes. */
  readonly bytes: Uint8Array;
}

export type Machine = ReturnType<typeof machineOf>;

/** The system calls; tests replace them. */
export interface SystemCalls {
  readonly platform: NodeJS.Platform;
  readonly read: (path: string) => Promise<string>;
  /** Standard output of a program. */
  readonly run: (file: string, args: readonly string[]) => Promise<string>;
  readonly hostName: () => string;
  readonly userName: () => string;
  readonly systemRoot: string;
}

/** systemd and D-Bus, then FreeBSD. */
const FILES = ['/etc/machine-id', '/var/lib/dbus/machine-id', '/etc/hostid'];
const UUID = /[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}/i;
/** 32 hex digits, or a UUID. */
const FILE_ID = /^(?:[0-9a-f]{32}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})$/i;
/** Placeholders that many machines share: one digit repeated. */
const PLACEHOLDER = /^([0-9a-f])\1*$/i;
const RUN_MS = 5_000;
const OUTPUT_MAX = 64 * 1024;

const GUID_KEY = 'HKLM\\SOFTWARE\\Microsoft\\Cryptography';

/** The machine that this process runs on. */
export const systemMachine = (): Machine =>
  machineOf({
    platform: process.platform,
    read: (path) => readFile(path, 'utf8'),
    run,
    hostName: hostname,
    userName: accountName,
    systemRoot: process.env['SystemRoot'] ?? 'C:\\Windows',
  });

/** In a container the user may have no name, only a number. */
function accountName(): string {
  try {
    return userInfo().username;
  } catch {
    return String(process.getuid?.() ?? '');
  }
}

export function machineOf(system: SystemCalls) {
  const of = async (source: MachineSource): Promise<MachineId | undefined> => {
    const found = await READ[source](system);
    return found === undefined ? undefined : { source, bytes: found };
  };
  return {
    /** The identifier of one source; undefined if this machine has none. */
    of,
    /** The best identifier available; the fallback always exists. */
    best: async (): Promise<MachineId> => {
      for (const source of MACHINE_SOURCES) {
        const found = await of(source);
        if (found !== undefined) return found;
      }
      throw new Error('the fallback is always there');
    },
  };
}

const READ: Readonly<Record<MachineSource, (system: SystemCalls) => Promise<Uint8Array | undefined>>> = {
  'machine-id': async ({ platform, read }) => {
    if (platform === 'win32' || platform === 'darwin') return undefined;
    for (const path of FILES) {
      // Absent, unreadable or not set yet (`uninitialized` in an image): try the next one.
      const content = (await read(path).catch(() => '')).trim();
      if (FILE_ID.test(content) && !isPlaceholder(content)) return plain(content);
    }
    return undefined;
  },
  'platform-uuid': (system) =>
    uuidOf(system, 'darwin', ['IOPlatformUUID', '/usr/sbin/ioreg', '-rd1', '-c', 'IOPlatformExpertDevice']),
  'machine-guid': (system) => {
    const reg = join(system.systemRoot, 'System32', 'reg.exe');
    return uuidOf(system, 'win32', ['MachineGuid', reg, 'query', GUID_KEY, '/v', 'MachineGuid', '/reg:64']);
  },
  'host-name': ({ hostName, userName }) => Promise.resolve(lengthPrefixed(hostName().toLowerCase(), userName())),
};

const isPlaceholder = (id: string): boolean => PLACEHOLDER.test(id.replaceAll('-', ''));
const plain = (id: string): Uint8Array => text(id.replaceAll('-', '').toLowerCase());

/** On the platform `only`: the UUID on the line of the program's output that contains `name`. */
async function uuidOf(
  { platform, run }: SystemCalls,
  only: NodeJS.Platform,
  [name, program, ...args]: readonly [string, string, ...string[]],
): Promise<Uint8Array | undefined> {
  if (platform !== only) return undefined;
  const output = await run(program, args).catch(() => '');
  const line = output.split(/\r?\n/).find((each) => each.includes(name));
  const [found] = UUID.exec(line ?? '') ?? [];
  return found === undefined || isPlaceholder(found) ? undefined : plain(found);
}

const execute = promisify(execFile);

const run: SystemCalls['run'] = async (file, args) =>
  (await execute(file, args, { timeout: RUN_MS, maxBuffer: OUTPUT_MAX, windowsHide: true })).stdout;
