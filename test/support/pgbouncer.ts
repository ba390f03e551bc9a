/** Debian's PgBouncer with the example of deploy/ between a server and its database, on a loopback port. */
import { spawn, type ChildProcess } from 'node:child_process';
import { chown, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { openClient, unfitSettings } from '../../src/server/storage/database.js';
import { databaseUser } from '../../src/server/storage/embedded/user.js';
import { until } from './events.js';
import { PATIENT, temporaryFolder, type WithTeardown } from './postgres.js';
import { freePort } from './free-port.js';
import { endProcess } from './processes.js';
import { DEPLOY, replaced } from './proxies.js';

const SESSIONS = 4;

/** Gives the role of a database what the server's sessions need, as its operator does. */
export async function fitForPooler(url: string): Promise<void> {
  const client = await openClient({ ...PATIENT, url, pooled: true, name: 'tests', onLost: () => undefined });
  try {
    // Servers of one test start together, and PostgreSQL refuses two that set the same role's settings at once.
    await client.query('SELECT pg_advisory_lock(1)');
    for (const statement of await unfitSettings(client)) await client.query(statement);
  } finally {
    await client.end();
  }
}

/** The example with other addresses, and so few sessions that no connection keeps one. */
async function configured(t: WithTeardown, url: string, port: number): Promise<{ file: string; uid: number }> {
  const { hostname, port: databasePort, pathname, username, password } = new URL(url);
  const [database, user] = [pathname.slice(1), decodeURIComponent(username)];
  const folder = await temporaryFolder(t);
  const [file, users] = [join(folder, 'pgbouncer.ini'), join(folder, 'userlist.txt')];
  const { uid, gid } = (await databaseUser(folder)) ?? { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 };
  const text = replaced(await readFile(join(DEPLOY, 'pgbouncer', 'pgbouncer.ini'), 'utf8'), [
    ['service = host=10.0.0.1 port=5432 dbname=service', `${database} = host=${hostname} port=${databasePort}`],
    ['listen_port = 6432', `listen_port = ${port}\nunix_socket_dir =`],
    ['/etc/pgbouncer/userlist.txt', users],
    ['admin_users = service', `admin_users = ${user}`],
    ['default_pool_size = 40', `default_pool_size = ${SESSIONS}`],
  ]);
  await writeFile(file, text);
  await writeFile(users, `"${user}" "${decodeURIComponent(password)}"\n`);
  for (const path of [folder, file, users]) await chown(path, uid, gid);
  return { file, uid };
}

/** A pooler in transaction mode. */
export class PgBouncer {
  private child: ChildProcess | undefined;

  private constructor(
    private readonly direct: string,
    private readonly port: number,
    private readonly program: { readonly file: string; readonly uid: number },
  ) {}

  /** Starts one; it ends with the test. */
  static async before(t: WithTeardown, url: string): Promise<PgBouncer> {
    const port = await freePort();
    const pooler = new PgBouncer(url, port, await configured(t, url, port));
    t.teardown(() => pooler.kill());
    await pooler.start();
    return pooler;
  }

  /** Variables of a server behind it. */
  get env(): Readonly<Record<'DATABASE_URL' | 'LISTEN_DATABASE_URL', string>> {
    return { DATABASE_URL: this.urlOf(new URL(this.direct).pathname), LISTEN_DATABASE_URL: this.direct };
  }

  private urlOf(pathname: string): string {
    const url = new URL(this.direct);
    url.hostname = '127.0.0.1';
    url.port = String(this.port);
    url.pathname = pathname;
    return url.href;
  }

  async start(): Promise<void> {
    const { file, uid } = this.program;
    const child = spawn('pgbouncer', ['-q', file], { uid, stdio: ['ignore', 'ignore', 'pipe'] });
    this.child = child;
    let said = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => (said += text));
    await until('a pooler that answers', async () => {
      if (child.exitCode !== null) throw new Error(`pgbouncer ended: ${said}`);
      return this.say('SHOW VERSION').then(
        () => true,
        () => false,
      );
    });
  }

  /** A command in its console. */
  async say(command: string): Promise<void> {
    const client = new pg.Client(this.urlOf('/pgbouncer'));
    client.on('error', () => undefined);
    try {
      await client.connect();
      // The console knows simple statements only.
      await client.query(command);
    } finally {
      await client.end().catch(() => undefined);
    }
  }

  /** Ends it at once; its connections break. */
  async kill(): Promise<void> {
    await endProcess(this.child, 'SIGKILL');
  }
}
