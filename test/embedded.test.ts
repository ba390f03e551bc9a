/** The embedded PostgreSQL, killed and restarted: each test has a data folder and a cluster of its own. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { watch } from 'node:fs';
import { chmod, mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import root, { type Test } from 'tap';
import { keptSecret } from '../src/server/config/secrets.js';
import { createPool, withRetry } from '../src/server/storage/database.js';
import { DataDirInUseError, EmbeddedPostgres } from '../src/server/storage/embedded/embedded.js';
import { until } from './support/events.js';
import { poolOf, preparedFolder, temporaryFolder, type WithTeardown } from './support/postgres.js';

const run = promisify(execFile);
const CHILD = join(dirname(fileURLToPath(import.meta.url)), 'fixtures', 'embedded-child.js');

// Each test starts databases of its own: tap's 30 s for a whole file are too few on a busy machine.
root.setTimeout(600_000);

/** Collects the supervisor's log lines and lets a test wait for one. */
class Log {
  readonly lines: string[] = [];
  readonly #waiting: { text: RegExp; resolve: () => void }[] = [];

  readonly add = (_level: string, message: string): void => {
    this.lines.push(message);
    for (const { text, resolve } of this.#waiting) if (text.test(message)) resolve();
  };

  /** Resolves at the next line that matches. */
  async next(text: RegExp): Promise<void> {
    return new Promise((resolve) => this.#waiting.push({ text, resolve }));
  }
}

async function startLoose(dataDir: string, log = new Log()): Promise<EmbeddedPostgres> {
  const password = await keptSecret(dataDir, 'database-password');
  return EmbeddedPostgres.start({ dataDir, password, onLog: log.add });
}

/** Starts a database that is stopped after the test. */
async function start(t: WithTeardown, dataDir: string, log = new Log()): Promise<EmbeddedPostgres> {
  const embedded = await startLoose(dataDir, log);
  t.teardown(async () => embedded.stop());
  return embedded;
}

async function query<T = Record<string, unknown>>(url: string, sql: string): Promise<T[]> {
  const pool = createPool({ url, name: 'embedded test', size: 1, onIdleError: () => undefined });
  try {
    return (await pool.query(sql)).rows as T[];
  } finally {
    await pool.end();
  }
}

interface Told {
  readonly url: string;
  readonly pid: number;
  readonly name?: string;
  readonly error?: string;
}

/** A server in its own process; `told` is the line it prints. After the test it is killed, and its database stopped. */
function startChild(t: WithTeardown, dataDir: string): { child: ChildProcess; told: Promise<Told> } {
  const child = spawn(process.execPath, [CHILD, dataDir], { stdio: ['ignore', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  const told = once(createInterface(child.stdout), 'line').then(([line]) => JSON.parse(String(line)) as Told);
  t.teardown(async () => {
    child.kill('SIGKILL');
    await exited;
    const left = await Promise.race([told, exited]);
    if (!('error' in left) && (await processesOf(dataDir)).length > 0) await (await startLoose(dataDir)).stop();
  });
  return { child, told };
}

async function kill(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  const exited = once(child, 'exit');
  child.kill(signal);
  await exited;
}

/** The lines of `ps` for the processes of this cluster. */
async function processesOf(dataDir: string): Promise<string[]> {
  const { stdout } = await run('ps', ['-A', '-o', 'pid=,command=']);
  return stdout.split('\n').filter((line) => line.includes(join(dataDir, 'postgres')));
}

const isAlive = async (pid: number): Promise<boolean> =>
  run('ps', ['-o', 'stat=', '-p', String(pid)]).then(
    ({ stdout }) => !stdout.startsWith('Z'),
    () => false,
  );

root.test(
  'DUR-01 CFG-03: a start that is killed leaves no incomplete cluster; the next creates it, another finds its data',
  async (t) => {
    const dataDir = await temporaryFolder(t);
    // Watched from before the start, so that the event cannot be missed.
    const watcher = watch(dataDir);
    t.teardown(() => watcher.close());
    const making = new Promise<void>((resolve) => {
      watcher.on('change', (_, name) => {
        if (String(name).startsWith('postgres.init-')) resolve();
      });
    });
    const { child } = startChild(t, dataDir);
    await making;
    await kill(child, 'SIGKILL');
    t.notOk((await readdir(dataDir)).includes('postgres'));
    const first = await start(t, dataDir);
    t.match(first.url, /^postgres:\/\/service:[0-9a-f]{64}@127\.0\.0\.1:\d+\/service$/);
    t.strictSame(
      (await readdir(dataDir)).sort(),
      ['postgres', 'postgres.log', 'secrets'],
      'no file of the set-up is left',
    );
    t.equal((await stat(join(dataDir, 'postgres'))).mode & 0o777, 0o700);
    await query(first.url, "CREATE TABLE kept AS SELECT 'here' AS word");
    const settings = await query(
      first.url,
      `SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes',
     'data_checksums', 'server_encoding', 'listen_addresses', 'unix_socket_directories', 'max_connections', 'notify_buffers') ORDER BY name`,
    );
    t.strictSame(Object.fromEntries(settings.map(({ name, setting }) => [name, setting])), {
      data_checksums: 'on',
      fsync: 'on',
      full_page_writes: 'on',
      listen_addresses: '127.0.0.1',
      max_connections: '60',
      notify_buffers: '1024',
      server_encoding: 'UTF8',
      synchronous_commit: 'on',
      unix_socket_directories: '',
    });
    const wrong = new URL(first.url);
    wrong.password = 'guess';
    await t.rejects(query(wrong.href, 'SELECT 1'), { code: '28P01' }, 'a wrong password is refused');

    const { stdout } = await run('ps', ['-o', 'pgid=', '-p', String(first.pid)]);
    t.equal(Number(stdout), first.pid, 'it has a process group of its own, so that Ctrl-C does not reach it');

    await Promise.all([first.stop(), first.stop()]);
    t.strictSame(await processesOf(dataDir), [], 'stop leaves no process');
    const second = await start(t, dataDir);
    t.strictSame(await query(second.url, 'SELECT word FROM kept'), [{ word: 'here' }]);
  },
);

root.test(
  'DUR-01: a killed server leaves its database running; the next start takes it over, nothing is lost',
  async (t) => {
    const dataDir = await preparedFolder(t);
    const { child, told } = startChild(t, dataDir);
    const { url, pid } = await told;
    await query(url, "CREATE TABLE kept AS SELECT 'acknowledged' AS word");
    await kill(child, 'SIGKILL');
    t.ok(await isAlive(pid), 'the database outlives the server');

    const log = new Log();
    const next = await start(t, dataDir, log);
    t.equal(next.pid, pid, 'the same postmaster');
    t.match(log.lines[0], /found the database running/);
    t.match(log.lines[1], /taken over/);
    t.strictSame(await query(next.url, 'SELECT word FROM kept'), [{ word: 'acknowledged' }]);
    await next.stop();
    t.notOk(await isAlive(pid), 'a database that was taken over is stopped too');
    t.strictSame(await processesOf(dataDir), []);
  },
);

root.test('CFG-03: a second server on the same DATA_DIR is refused, and the first continues', async (t) => {
  const dataDir = await preparedFolder(t);
  const first = await start(t, dataDir);
  const second = startChild(t, dataDir);
  const told = await second.told;
  t.equal(told.name, 'DataDirInUseError');
  t.equal(
    told.error,
    `Another server is already running with DATA_DIR=${dataDir}. Give this one its own DATA_DIR and PORT.`,
  );
  t.strictSame(await query(first.url, 'SELECT 1 AS alive'), [{ alive: 1 }]);
});

root.test('CFG-03: of servers that start at once on a new DATA_DIR exactly one gets it', async (t) => {
  const dataDir = await temporaryFolder(t);
  const all = await Promise.all([1, 2, 3].map(async () => startChild(t, dataDir).told));
  const winners = all.filter(({ error }) => error === undefined);
  t.equal(winners.length, 1, JSON.stringify(all));
  for (const { error, name } of all) if (error !== undefined) t.equal(name, 'DataDirInUseError', error);
  t.strictSame(await query(winners[0]?.url ?? '', 'SELECT 1 AS alive'), [{ alive: 1 }]);
  t.strictSame((await readdir(dataDir)).sort(), ['postgres', 'postgres.log', 'secrets']);
});

root.test('DUR-02 DUR-05: a database that is killed comes back on the same port with its data', async (t) => {
  const dataDir = await preparedFolder(t);
  const log = new Log();
  const embedded = await start(t, dataDir, log);
  const { url, pid } = embedded;
  const pool = poolOf(t, url, { size: 3 });
  await pool.query('CREATE TABLE kept (n int)');
  for (let round = 1; round <= 3; round++) {
    await pool.query('INSERT INTO kept VALUES ($1)', [round]);
    const back = log.next(/is back/);
    process.kill(embedded.pid, 'SIGKILL');
    await back;
    t.equal(embedded.url, url);
    const { rows } = await withRetry(
      async () => pool.query('SELECT n FROM kept ORDER BY n'),
      () => true,
    );
    t.equal(rows.length, round, 'the pool recovers by itself');
  }
  t.not(embedded.pid, pid);
  await embedded.stop();
  t.strictSame(await processesOf(dataDir), []);
});

root.test('DUR-05: the owner takes its lock again when only its connection dies', async (t) => {
  const dataDir = await preparedFolder(t);
  const log = new Log();
  const embedded = await start(t, dataDir, log);
  const { pid } = embedded;
  const back = log.next(/is back/);
  await query(
    embedded.url,
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'service owner'",
  );
  await back;
  t.equal(embedded.pid, pid, 'the database itself was not touched');
  const rival = EmbeddedPostgres.start({ dataDir, password: new URL(embedded.url).password, onLog: () => undefined });
  await t.rejects(rival, DataDirInUseError);
});

root.test('stop while the database is down leaves nothing running', async (t) => {
  const dataDir = await preparedFolder(t);
  const log = new Log();
  const embedded = await start(t, dataDir, log);
  const lost = log.next(/lost the database/);
  process.kill(embedded.pid, 'SIGKILL');
  await lost;
  await embedded.stop();
  // Children of a killed postmaster end by themselves.
  await until('the end of all its processes', async () => (await processesOf(dataDir)).length === 0);
  t.strictSame(await processesOf(dataDir), []);
});

/**
 * A zombie of the database's user: `sleep`, which replaced the shell by `exec`, never waits for its child.
 */
async function zombie(t: Test, { uid, gid }: { uid: number; gid: number }): Promise<number> {
  const script = 'exec 3<&0; cat <&3 >/dev/null & echo $!; exec sleep 600';
  const parent = spawn('sh', ['-c', script], { stdio: ['pipe', 'pipe', 'inherit'], uid, gid, cwd: '/' });
  t.teardown(() => parent.kill('SIGKILL'));
  const [line] = (await once(parent.stdout, 'data')) as [Buffer];
  const pid = Number(String(line));
  const stateOf = async (one: number | undefined): Promise<string> => readFile(`/proc/${one}/stat`, 'utf8');
  await until('the shell to be gone', async () => (await stateOf(parent.pid)).includes('(sleep)'));
  parent.stdin.end();
  await until('the zombie', async () => (await stateOf(pid)).includes(') Z '));
  return pid;
}

const IS_LINUX = process.platform === 'linux';

root.test('a postmaster.pid that names an unrelated process or a zombie does not prevent the start', async (t) => {
  const dataDir = await preparedFolder(t);
  const first = await start(t, dataDir);
  const pidFile = join(dataDir, 'postgres', 'postmaster.pid');
  const lines = (await readFile(pidFile, 'utf8')).split('\n');
  const strangers = [process.pid, ...(IS_LINUX ? [await zombie(t, await stat(pidFile))] : [])];
  await first.stop();
  for (const pid of strangers) {
    await writeFile(pidFile, [String(pid), ...lines.slice(1)].join('\n'));
    const next = await start(t, dataDir);
    t.strictSame(await query(next.url, 'SELECT 1 AS alive'), [{ alive: 1 }]);
    await next.stop();
  }
});

root.test('a password that is not the one of the cluster is reported as such', async (t) => {
  const dataDir = await preparedFolder(t);
  await (await start(t, dataDir)).stop();
  const wrong = EmbeddedPostgres.start({ dataDir, password: 'not the one', onLog: () => undefined });
  await t.rejects(wrong, { message: /has another password than the one in .*secrets/ });
  t.strictSame(await processesOf(dataDir), [], 'no process of the database is left');
});

root.test('a start that fails shows the end of the PostgreSQL log', async (t) => {
  const dataDir = await preparedFolder(t);
  const password = await keptSecret(dataDir, 'database-password');
  const bad = EmbeddedPostgres.start({
    dataDir,
    password,
    onLog: () => undefined,
    settings: { wal_level: 'nonsense' },
  });
  await t.rejects(bad, { message: /did not start\. Its log .* ends:[^]*wal_level/ });
});

root.test(
  'a start by root names the folder that the database may not enter',
  { skip: process.getuid?.() !== 0 },
  async (t) => {
    const closed = join(await temporaryFolder(t), 'closed');
    await mkdir(closed);
    await chmod(closed, 0o700);
    const dataDir = join(closed, 'data');
    const password = await keptSecret(dataDir, 'database-password');
    await t.rejects(EmbeddedPostgres.start({ dataDir, password, onLog: () => undefined }), {
      message: new RegExp(
        `may not enter ${closed}, so it cannot keep its data in ${dataDir}.*DATA_DIR=/var/lib/service`,
      ),
    });
  },
);
