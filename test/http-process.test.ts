/** The server as a process: its own PostgreSQL, its secrets, its configuration, its shutdown. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join as joinPath } from 'node:path';
import { fileURLToPath } from 'node:url';
import { pino } from 'pino';
import t from 'tap';
import { readConfig } from '../src/server/config/config.js';
import type { Timer } from '../src/protocol/clock.js';
import { startServer } from '../src/server/app/server.js';
import { TestClock } from './support/clock.js';
import { claim, mustWrite, newItem } from './support/devices.js';
import { soon, until } from './support/events.js';
import { runServer, runSql, spawnServer, TOKEN_SECRET } from './support/server.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { exists } from './support/processes.js';

const MAIN = fileURLToPath(new URL('../src/server/main.js', import.meta.url));
/** Includes the time to create a cluster. */
const DATABASE_MAX_MS = 60_000;

t.test(
  'CFG-03 CFG-05 CFG-06 EPOCH-06 DUR-01: without DATABASE_URL the server starts its own database and keeps its secrets',
  async (t) => {
    const dataDir = joinPath(await temporaryFolder(t), 'data');
    const env = { TOKEN_SECRET: '', ADMIN_TOKEN: '' };
    const one = await spawnServer(t, { embedded: true, dataDir, env });
    const device = await claim(one.wire);
    t.equal(await mustWrite(one.wire, device, newItem([device.id])), 1);
    const epoch = (await one.wire.get('/service/status')).text('epoch');
    one.wire.close();
    t.equal(await one.end('SIGTERM'), 0, 'SIGTERM ends it');
    t.match(one.output.join('\n'), /unclaimed/, 'it reports that it is unclaimed');
    const folder = joinPath(dataDir, 'secrets');
    t.equal((await stat(folder)).mode & 0o777, 0o700);
    const names = await readdir(folder);
    t.ok(names.includes('token-secret'));
    for (const name of names) t.equal((await stat(joinPath(folder, name))).mode & 0o777, 0o600, name);

    const two = await spawnServer(t, { embedded: true, dataDir, env });
    t.match((await two.wire.get('/service/status')).body, { claimed: true, epoch });
    t.equal((await two.wire.get('/me', { token: device.token })).at('server.headVersion'), 1, 'the token stays valid');
    t.equal(
      (await two.wire.post('/devices/bootstrap/restart', {}, { token: 'null' })).outcome,
      '403 forbidden',
      'no admin token is generated',
    );
    two.wire.close();
    t.equal(await two.end('SIGTERM'), 0);
  },
);

t.test('CFG-04 CFG-07 WS-20: with DATABASE_URL the server uses that database, and says what must be set', async (t) => {
  const server = await spawnServer(t, { env: { TOKEN_SECRET: '' } });
  const device = await claim(server.wire);
  await mustWrite(server.wire, device, newItem([device.id]));
  t.match(await runSql(server.databaseUrl, 'SELECT head FROM tenants'), [{ head: 1 }]);
  t.notOk(
    (await readdir(server.dataDir)).some((name) => /^(postgres|pg|database)/.test(name)),
    'it creates no database of its own',
  );
  t.match(server.output.join('\n'), /TOKEN_SECRET/);
  t.notMatch(server.output.join('\n'), /Warning:/, 'no warning of a deprecation is printed');
  const socket = await server.wire.connect({ token: device.token });
  await socket.hello();
  const ended = server.end('SIGTERM');
  t.equal((await soon(socket.closed, 'the close of the socket')).code, 1012, 'its sockets close for a restart');
  t.equal(await ended, 0);
});

t.test('CFG-02: a bad value stops the start', async (t) => {
  const bad = {
    PORT: '70000',
    WIRE_SHAPE: 'c',
    RATE_READ_PER_S: '-1',
    TOKEN_SECRET: 'short',
    DATABASE_URL: 'mysql://x',
    PUBLIC_URL: 'ftp://x',
  };
  const child = spawn(process.execPath, [MAIN], {
    env: { PATH: process.env['PATH'], ...bad },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (output += chunk.toString()));
  const [code] = (await soon(once(child, 'close'), () => `the end of the start: ${output}`)) as [number];
  t.not(code, 0);
  for (const name of Object.keys(bad)) t.match(output, new RegExp(`${name}.*got.*takes`), name);
  t.notMatch(output, /short|    at /, 'no secret, no stack');
});

/** Attempts to stop a server during its start: it may be up first where this process had to wait. */
const STOP_TRIES = 5;

t.test('CFG-03: a server that is stopped during its start leaves no database behind', async (t) => {
  for (let tries = 1; ; tries++) {
    const { code, output, left, stopped } = await stoppedStart(t);
    t.notOk(left, 'its database has ended');
    t.equal(code, 0, output);
    t.match(output, /SIGINT/);
    const [told, listens] = [output.indexOf('SIGINT'), output.indexOf('listening')];
    if (listens >= 0 && listens < told && tries < STOP_TRIES) continue;
    t.ok(stopped, 'a database that kept running would hold the output open');
    t.equal(listens, -1, 'a server that stops does not report that it listens');
    return;
  }
});

interface Stopped {
  readonly code: number | null;
  readonly output: string;
  /** Whether its database was still running when the server had ended. */
  readonly left: boolean;
  /** Whether every process has closed its output. */
  readonly stopped: boolean;
}

/** Starts a server with its own database, and stops it as soon as the database has a process. */
async function stoppedStart(t: Parameters<typeof temporaryFolder>[0]): Promise<Stopped> {
  const dataDir = joinPath(await temporaryFolder(t), 'data');
  const env = { PATH: process.env['PATH'], PORT: '0', HOST: '127.0.0.1', DATA_DIR: dataDir };
  const child = spawn(process.execPath, [MAIN], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (output += chunk.toString()));
  const exited = once(child, 'exit') as Promise<[number | null]>;
  const closed = once(child, 'close');
  const pidFile = joinPath(dataDir, 'postgres', 'postmaster.pid');
  const postmaster = async (): Promise<number> => Number((await readFile(pidFile, 'utf8')).split('\n')[0]);
  let pid = 0;
  t.teardown(() => {
    child.kill('SIGKILL');
    if (pid > 0 && exists(pid)) process.kill(pid, 'SIGQUIT');
  });
  const begun = async (): Promise<boolean> => {
    if (child.exitCode !== null) throw new Error(output);
    pid = await postmaster().catch(() => 0);
    return pid > 0;
  };
  await until('the database process', begun, DATABASE_MAX_MS);
  child.kill('SIGINT');
  const [code] = await soon(exited, () => `the end of the server: ${output}`);
  const left = exists(pid);
  const stopped = soon(closed, 'the end of the output').then(
    () => true,
    () => false,
  );
  return { code, left, stopped: await stopped, output };
}

/** A clock that fails once: when a timer is cancelled for the `nth` time. */
class FaultyClock extends TestClock {
  cancelled = 0;

  constructor(private readonly nth: number) {
    super();
  }

  override setTimer(ms: number, fn: () => void): Timer {
    const timer = super.setTimer(ms, fn);
    return {
      cancel: () => {
        timer.cancel();
        if (++this.cancelled === this.nth) throw new Error('a part that does not stop');
      },
    };
  }
}

const CONNECTIONS = `SELECT application_name FROM pg_stat_activity
  WHERE datname = current_database() AND application_name LIKE 'service%'`;

/** Resolves once no server holds a connection to the database any more. */
async function released(url: string): Promise<boolean> {
  for (const until = Date.now() + 20_000; Date.now() < until;)
    if ((await runSql(url, CONNECTIONS)).length === 0) return true;
  return false;
}

const serverOn = async (t: Parameters<typeof testDatabase>[0], url: string, clock: FaultyClock, port = '0') =>
  startServer({
    clock,
    config: readConfig({
      HOST: '127.0.0.1',
      PORT: port,
      TOKEN_SECRET,
      DATABASE_URL: url,
      DATA_DIR: await temporaryFolder(t),
    }),
    log: pino({ level: 'silent' }),
  });

t.test('WS-20 CFG-04: a part that fails to stop does not prevent the others from stopping', async (t) => {
  const { url } = await testDatabase(t);
  // The first timer that is cancelled is the front's grace timer; the second is that of a part that stops after it.
  const server = await serverOn(t, url, new FaultyClock(2));
  t.ok((await runSql(url, CONNECTIONS)).length > 0);
  const stopped = server.close(0);
  t.equal(server.close(0), stopped, 'a second call waits for the first');
  await t.rejects(soon(stopped, 'the end of the server'), { message: 'a part that does not stop' });
  t.ok(await released(url), 'every connection has ended');
});

t.test('CFG-02: a start that fails reports why, also where a part fails to stop', async (t) => {
  const first = await runServer(t);
  const { url } = await testDatabase(t);
  const clock = new FaultyClock(1);
  await t.rejects(soon(serverOn(t, url, clock, String(first.port)), 'the end of the start'), {
    message: /cannot listen/,
  });
  t.ok(clock.cancelled > 0, 'a stop has failed');
  t.ok(await released(url), 'every connection has ended');
});
