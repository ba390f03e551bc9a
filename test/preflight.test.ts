/**
 * Errors before the start: one sentence, exit code 1, and nothing is made. One of each kind is tested with the program
 * as a process, the others in this process.
 */
import { execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdir, readdir, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import t, { type Test } from 'tap';
import { preflight, StartError } from '../src/server/app/preflight.js';
import { readConfig } from '../src/server/config/config.js';
import { MigrationError } from '../src/server/storage/migrate.js';
import { claim, mustWrite, newItem } from './support/devices.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { freePort } from './support/free-port.js';
import { runSql, spawnServer } from './support/server.js';

t.setTimeout(600_000);

const MAIN = fileURLToPath(new URL('../src/server/main.js', import.meta.url));
const AS_ROOT = process.getuid?.() === 0;
const NOBODY = 65_534;
const DOCUMENTED = 1;

interface Start {
  readonly env?: Readonly<Record<string, string>>;
  /** Default: this user. */
  readonly uid?: number;
  /** Starts a process of its own; a start as another user always does. */
  readonly spawned?: boolean;
}

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** A start that has to fail: its output and its exit code. */
async function start({ env = {}, uid }: Start): Promise<Ended> {
  const child = spawn(process.execPath, [MAIN], {
    env: { PATH: process.env['PATH'], HOST: '127.0.0.1', PORT: '0', ...env },
    ...(uid === undefined ? {} : { uid, gid: uid }),
  });
  const said = { stdout: '', stderr: '' };
  child.stdout.on('data', (chunk: Buffer) => (said.stdout += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (said.stderr += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, ...said };
}

/** What such a start would print, found in this process: the program prints these errors' message and no more. */
async function said({ env }: Start): Promise<string> {
  const config = readConfig({ HOST: '127.0.0.1', PORT: '0', ...env });
  const error = await preflight(config).catch((thrown: unknown) => thrown);
  return error instanceof StartError || error instanceof MigrationError ? `${error.message}\n` : String(error);
}

/** Asserts one line that is a sentence, the exit code of the reference, and an unchanged folder. */
async function refused(t: Test, how: Start & { readonly folder: string }, expected: RegExp): Promise<void> {
  const before = await readdir(how.folder);
  let text: string;
  if (how.spawned === true || how.uid !== undefined) {
    const { code, stdout, stderr } = await start(how);
    t.equal(stdout, '');
    t.equal(code, DOCUMENTED, 'the exit code is that of the reference');
    text = stderr;
  } else text = await said(how);
  t.match(text, expected);
  t.match(text, /^[A-Z][^\n]*\.\n$/, 'the message is one line without a stack');
  t.same(await readdir(how.folder), before, 'nothing is made');
}

async function taken(t: Test): Promise<string> {
  // Not a port that the system assigns: a test uses the next lower one, which another program might get.
  const stranger = createServer().listen(await freePort(), '127.0.0.1');
  await once(stranger, 'listening');
  t.teardown(() => stranger.close());
  return String((stranger.address() as { port: number }).port);
}

t.test('CFG-20 CFG-23 INST-22: a port in use and an address that is not this machine’s are refused', async (t) => {
  const folder = await temporaryFolder(t);
  const DATA_DIR = join(folder, 'data');
  const port = await taken(t);
  const of = (env: Readonly<Record<string, string>>): Start & { folder: string } => ({
    folder,
    env: { DATA_DIR, ...env },
  });
  const inUse = new RegExp(
    `^PORT: port ${port} of 127.0.0.1 is in use by another program\\. Stop that one, or set PORT`,
  );
  await refused(t, { ...of({ PORT: port }), spawned: true }, inUse);
  await refused(t, of({ PORT: port, INSTANCES: '2' }), inUse);
  const before = String(Number(port) - 1);
  await refused(t, of({ PORT: before, INSTANCES: '2', INSTANCE_PORTS: 'own' }), inUse);
  await refused(t, of({ PORT: port, HOST: '0.0.0.0' }), /^PORT: port \d+ of 0\.0\.0\.0 is in use/);
  await refused(t, of({ METRICS_PORT: port }), /^METRICS_PORT: port \d+ of 127\.0\.0\.1 is in use.*set METRICS_PORT/);
  const second = String(Number(port) - 1);
  await refused(t, of({ METRICS_PORT: second, INSTANCES: '2' }), new RegExp(`^METRICS_PORT: port ${port} of`));
  await refused(
    t,
    of({ HOST: '192.0.2.1', PORT: '1' }),
    /^HOST: 192\.0\.2\.1 is not an address of this machine\. Set HOST/,
  );
  await refused(t, of({ METRICS_HOST: '192.0.2.1', METRICS_PORT: '9100' }), /^METRICS_HOST: 192\.0\.2\.1 is not/);
  await refused(t, of({ HOST: 'nowhere.invalid' }), /^HOST: the name nowhere\.invalid is not known on this machine/);
});

t.test('CFG-20: a port that only root may open is refused', { skip: AS_ROOT ? false : 'needs root' }, async (t) => {
  const floor = execFileSync('cat', ['/proc/sys/net/ipv4/ip_unprivileged_port_start'], { encoding: 'utf8' });
  if (Number(floor) <= 1) return void t.pass('every user may open every port here', { skip: true });
  const folder = await temporaryFolder(t);
  await chmod(folder, 0o777);
  const env = { DATA_DIR: join(folder, 'data'), PORT: '1' };
  return refused(
    t,
    { folder, env, uid: NOBODY },
    /^PORT: port 1 may not be opened by this user\. Set PORT to 1024 or more/,
  );
});

t.test('CFG-20: a DATA_DIR that is a file or inaccessible is refused', async (t) => {
  const folder = await temporaryFolder(t);
  await writeFile(join(folder, 'file'), '');
  const isFile = /^DATA_DIR: .*\/file is a file, and the data need a folder\. Move it away, or set DATA_DIR/;
  await refused(t, { folder, env: { DATA_DIR: join(folder, 'file') }, spawned: true }, isFile);
  await refused(t, { folder, env: { DATA_DIR: join(folder, 'file', 'below') } }, isFile);
  const closed = join(folder, 'closed');
  await mkdir(closed, { mode: 0o555 });
  await chmod(folder, 0o755);
  const shut = /^DATA_DIR: the user of this process may not write to .*\/closed \(EACCES\)\. Give it to that user/;
  for (const DATA_DIR of [closed, join(closed, 'data')])
    await refused(t, { folder: closed, env: { DATA_DIR }, ...(AS_ROOT ? { uid: NOBODY } : {}) }, shut);
});

t.test('CFG-20: a full disk is refused', { skip: AS_ROOT ? false : 'needs root, to mount one' }, async (t) => {
  const folder = await temporaryFolder(t);
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', folder], { stdio: 'pipe' });
  } catch {
    return void t.pass('nothing can be mounted here', { skip: true });
  }
  t.teardown(() => void execFileSync('umount', [folder]));
  const DATA_DIR = join(folder, 'data');
  await refused(
    t,
    { folder, env: { DATA_DIR } },
    /^DATA_DIR: the disk of .* has \d+ MiB free, and the server needs 200\./,
  );
  const { url } = await testDatabase(t);
  return refused(t, { folder, env: { DATA_DIR, DATABASE_URL: url } }, /has \d+ MiB free, and the server needs 16\./);
});

t.test('FAIL-06: a list of hosts without a primary, or with two, is refused', async (t) => {
  const folder = await temporaryFolder(t);
  const { url } = await testDatabase(t);
  const { host } = new URL(url);
  const listed = (...hosts: readonly string[]): Start & { folder: string } => {
    const DATABASE_URL = url.replace(host, hosts.join(','));
    return { folder, env: { DATA_DIR: join(folder, 'data'), DATABASE_URL } };
  };
  const away = `127.0.0.1:${await freePort()}`;
  await refused(
    t,
    listed(away, away),
    new RegExp(`^DATABASE_URL: ${away} does not answer \\(ECONNREFUSED\\), ${away} .*Start the primary, or promote`),
  );
  // The same host twice, which looks like two of one timeline.
  await refused(t, listed(host, host), /^DATABASE_URL: \S+ takes writes, \S+ takes writes, and nothing shows/);
});

/** The URL of a user that may connect to this database, and do nothing in it, as `GRANT ... ON DATABASE` leaves it. */
async function asUserWithoutRights(t: Test, url: string): Promise<string> {
  const weak = new URL(url);
  weak.username = `weak_${randomBytes(8).toString('hex')}`;
  weak.password = randomBytes(8).toString('hex');
  await runSql(url, `CREATE ROLE ${weak.username} LOGIN PASSWORD '${weak.password}'`);
  t.teardown(() => runSql(url, `DROP OWNED BY ${weak.username}; DROP ROLE ${weak.username}`));
  await runSql(url, `GRANT ALL ON DATABASE ${weak.pathname.slice(1)} TO ${weak.username}`);
  return weak.href;
}

t.test('CFG-20: a DATABASE_URL that leads nowhere, admits nobody or has a newer schema is refused', async (t) => {
  const folder = await temporaryFolder(t);
  const { url } = await testDatabase(t);
  const of = (change: (url: URL) => void): Start & { folder: string } => {
    const changed = new URL(url);
    changed.password = 'not-the-password-of-it';
    change(changed);
    return { folder, env: { DATA_DIR: join(folder, 'data'), DATABASE_URL: changed.href } };
  };
  const { password, username, host } = new URL(url);
  const right = (u: URL): void => void (u.password = password);
  await refused(
    t,
    of(() => undefined),
    new RegExp(`^DATABASE_URL: .* refuses the password of the user "${username}"`),
  );
  const free = String(await freePort());
  await refused(
    t,
    of((u) => void (u.port = free)),
    /^DATABASE_URL: no database listens at .* \(ECONNREFUSED\)\. Start it/,
  );
  await refused(
    t,
    of((u) => void (u.hostname = 'nowhere.invalid')),
    /^DATABASE_URL: the host of nowhere\.invalid:\d+ is not known/,
  );
  const absent = of((u) => (right(u), void (u.pathname = '/absent')));
  await refused(t, absent, new RegExp(`^DATABASE_URL: there is no database "absent" at ${host}\\. Create it`));
  await refused(
    t,
    of((u) => (right(u), void (u.username = 'absent'))),
    /^DATABASE_URL: .*"absent"/,
  );
  await refused(
    t,
    of((u) => void (u.username = '100%')),
    /^DATABASE_URL: .*"100%"/,
  );
  const weak = await asUserWithoutRights(t, (await testDatabase(t, 'empty')).url);
  await refused(
    t,
    { folder, spawned: true, env: { DATA_DIR: join(folder, 'data'), DATABASE_URL: weak } },
    /^The user "\w+" may not create tables in the database "\w+"\. Make that user its owner: ALTER DATABASE/,
  );
  const restored = await asUserWithoutRights(t, (await testDatabase(t)).url);
  await refused(
    t,
    { folder, spawned: true, env: { DATA_DIR: join(folder, 'data'), DATABASE_URL: restored } },
    /^DATABASE_URL: the user "\w+" lacks a right in the database .* the owner of it and of its tables\.\n$/,
  );
  await runSql(url, "INSERT INTO migrations (number, name, sha256) VALUES (9999, 'later', 'x')");
  await refused(
    t,
    { ...of(right), spawned: true },
    /^This database was written by a newer version of the server .*Update the server/,
  );
});

t.test('CFG-21 CFG-03: a second server on one DATA_DIR reports that another one runs, and no takeover', async (t) => {
  const first = await spawnServer(t, { embedded: true });
  const env = { DATA_DIR: first.dataDir, LOG_LEVEL: 'debug' };
  const { code, stderr } = await start({ env });
  t.equal(code, DOCUMENTED);
  t.notMatch(stderr, /tak(en|ing) (it )?over|\n\s+at /);
  t.match(stderr, /Another server is already running with DATA_DIR=.*\. Give this one its own DATA_DIR and PORT\.\n$/);
  t.equal((await first.wire.get('/health')).status, 200, 'the first server keeps running');
  const same = await start({ env: { ...env, PORT: String(first.port) } });
  t.match(
    same.stderr,
    /^PORT: port \d+ of 127\.0\.0\.1 is in use[^\n]*\n$/,
    'with the same port the error is about the port alone',
  );
  const device = await claim(first.wire);
  t.equal(await mustWrite(first.wire, device, newItem([device.id])), 1, 'the first server writes');
});
