/**
 * Two PostgreSQLs with the files of deploy/failover, on loopback ports: Debian's 15, or the 18 that the server brings,
 * with Debian's psql; and Debian's HAProxy before them.
 */
import { execFile, spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chmod, chown, cp, mkdir, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { findBinaries } from '../../src/server/storage/embedded/binaries.js';
import { databaseUser, type SystemUser } from '../../src/server/storage/embedded/user.js';
import { newItem, write, type TestDevice, type TestItem } from './devices.js';
import { until } from './events.js';
import { answers, crashAll, family, freezeAll, thawAll } from './own-postgres.js';
import { serverParent, temporaryFolder, type WithTeardown } from './postgres.js';
import { freePort } from './free-port.js';
import { endProcess, isRunning } from './processes.js';
import { DEPLOY, missing, replaced } from './proxies.js';
import { runSql } from './server.js';
import { listAll, range } from './stream.js';
import type { Wire } from './wire.js';

const run = promisify(execFile);

/** Debian's programs. */
const DEBIAN_BIN = '/usr/lib/postgresql/15/bin';
const PASSWORD = 'password-of-the-tests';
const START_MAX_MS = 60_000;
const COMMAND_MAX_MS = 90_000;

/** Why a test with two PostgreSQLs is skipped; false where all is there. */
export const withoutFailover = (): string | false =>
  missing(`${DEBIAN_BIN}/pg_rewind`, 'postgresql-15') || missing('haproxy');

/** Which PostgreSQL. */
export type Major = 15 | 18;
export type Mode = 'synchronous' | 'asynchronous';

/**
 * What the embedded PostgreSQL has no program for, by its own low-level calls (PostgreSQL manual, 26.3.4): a copy of the
 * data folder of the other one, which lies on this machine.
 */
const COPY_BY_HAND = `#!/bin/sh
set -eu
psql -XAtq -v ON_ERROR_STOP=1 -h SOURCE/s -p PORT -U postgres -d postgres <<SQL
SELECT pg_backup_start('clone', true) \\g /dev/null
\\! cp -a SOURCE/data "$4"; rm -rf "$4"/postmaster.* "$4"/pg_wal/0* "$4"/pg_replslot/*
\\o $4/backup_label
SELECT labelfile FROM pg_backup_stop(false);
SQL
`;

/** Settings of one of the two. */
interface Place {
  readonly name: 'a' | 'b';
  readonly folder: string;
  readonly port: number;
  readonly user: SystemUser | null;
  readonly major: Major;
}

/** One of the two. */
export class FailoverNode {
  private child: ChildProcess | undefined;
  private frozen: readonly number[] = [];
  /** What it and its commands wrote. */
  readonly said: string[] = [];

  constructor(private readonly place: Place) {}

  get name(): string {
    return this.place.name;
  }

  get port(): number {
    return this.place.port;
  }

  /** This one alone. */
  get url(): string {
    return `postgres://service:${PASSWORD}@127.0.0.1:${this.port}/service`;
  }

  private get identity(): { uid?: number; gid?: number } {
    const { user } = this.place;
    return user === null ? {} : { uid: user.uid, gid: user.gid };
  }

  private get environment(): NodeJS.ProcessEnv {
    return { PATH: process.env['PATH'], FAILOVER_ENV: join(this.place.folder, 'node.env') };
  }

  private get script(): string {
    return join(this.place.folder, 'deploy', 'failover');
  }

  /** A command of `failover`. Resolves with its output. */
  async command(...args: readonly string[]): Promise<string> {
    const options = { ...this.identity, cwd: '/', env: this.environment, timeout: COMMAND_MAX_MS };
    const { stdout, stderr } = await run(this.script, [...args], options);
    this.said.push(`${this.name} ${args.join(' ')}: ${stdout}${stderr}`);
    return stdout + stderr;
  }

  /** A statement of the superuser, on its local socket. Resolves with psql's output. */
  async asSuperuser(statement: string): Promise<string> {
    const { folder } = this.place;
    const args = ['-XAtq', '-h', join(folder, 's'), '-p', String(this.port), '-U', 'postgres', '-d', 'service'];
    const options = { ...this.identity, cwd: '/', env: { PATH: process.env['PATH'] }, timeout: COMMAND_MAX_MS };
    const { stdout } = await run(join(DEBIAN_BIN, 'psql'), [...args, '-c', statement], options);
    return stdout.trim();
  }

  /** Starts it as the unit does: `failover run`. Resolves when it takes readers. */
  async start(): Promise<void> {
    await this.launch(this.script, ['run']);
  }

  /** Starts it past the unit, as it was: a former primary comes back as one. */
  async startByHand(): Promise<void> {
    const { folder } = this.place;
    await this.launch(join(folder, 'bin', 'postgres'), ['-D', join(folder, 'data')]);
  }

  private async launch(command: string, args: readonly string[]): Promise<void> {
    const child = spawn(command, args, {
      ...this.identity,
      cwd: '/',
      env: this.environment,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.child = child;
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text: string) => this.said.push(text));
    await until(
      `a PostgreSQL ${this.name} that answers`,
      async () => {
        if (child.exitCode !== null) throw new Error(`${this.name} ended: ${this.said.slice(-20).join('')}`);
        return answers(this.url);
      },
      START_MAX_MS,
    );
  }

  /** True while it takes writes. */
  async takesWrites(): Promise<boolean> {
    return (await this.asSuperuser('SELECT pg_is_in_recovery()')) === 'f';
  }

  get running(): boolean {
    return this.child !== undefined && isRunning(this.child);
  }

  /** kill -9 of all its processes. */
  async crash(): Promise<void> {
    const { child } = this;
    if (child?.pid === undefined || !this.running) return;
    const ended = once(child, 'exit');
    this.thaw();
    await crashAll(await family(child.pid));
    await ended;
  }

  /** See `freezeAll`. */
  async freeze(): Promise<void> {
    if (this.child?.pid !== undefined) this.frozen = await freezeAll(this.child.pid);
  }

  /** See `thawAll`. */
  thaw(): void {
    thawAll(this.frozen);
    this.frozen = [];
  }

  /** Calls `failover attach` until it has stopped this one, as the timer does. */
  async stepsDown(): Promise<void> {
    const stopped = async (): Promise<boolean> => {
      if (this.running) await this.command('attach');
      return !this.running;
    };
    await until(`the end of ${this.name}, a former primary`, stopped, START_MAX_MS);
  }

  /** `failover clone`, without what it keeps of the data before. */
  async cloneAgain(): Promise<void> {
    await this.command('clone');
    const { folder } = this.place;
    for (const name of await readdir(folder))
      if (name.startsWith('data.before-')) await rm(join(folder, name), { recursive: true });
  }

  /** Stops it as the unit does. */
  async stop(): Promise<void> {
    await endProcess(this.child, 'SIGINT');
  }
}

/** Lines of node.env with other values. */
const withValues = (text: string, values: Readonly<Record<string, string>>): string =>
  Object.entries(values).reduce((changed, [name, value]) => {
    const line = new RegExp(`^${name}=.*$`, 'm');
    if (!line.test(changed)) throw new Error(`not in node.env any more: ${name}`);
    return changed.replace(line, `${name}=${value}`);
  }, text);

/** The programs of PostgreSQL 18 beside Debian's psql, as one folder. */
async function programs18({ folder, user }: Place, peer: string, peerPort: number): Promise<void> {
  const dataDir = join(folder, 'programs');
  await mkdir(dataDir);
  if (user !== null) await chown(dataDir, user.uid, user.gid);
  const { postgres, initdb } = await findBinaries(dataDir, user);
  const bin = join(folder, 'bin');
  await mkdir(bin);
  await symlink(postgres, join(bin, 'postgres'));
  await symlink(initdb, join(bin, 'initdb'));
  await symlink(join(postgres, '..', 'pg_ctl'), join(bin, 'pg_ctl'));
  await symlink(join(DEBIAN_BIN, 'psql'), join(bin, 'psql'));
  const copy = COPY_BY_HAND.replaceAll('SOURCE', peer).replace('PORT', String(peerPort));
  await writeFile(join(bin, 'pg_basebackup'), copy, { mode: 0o755 });
}

interface PairOptions {
  readonly mode: Mode;
  readonly major?: Major;
}

/** The two, and HAProxy before them. */
export class FailoverPair {
  private constructor(
    readonly a: FailoverNode,
    readonly b: FailoverNode,
    private readonly t: WithTeardown,
  ) {}

  /** Makes both: `a` takes the writes, `b` follows, and is waited for where that is the mode. They end with the test. */
  static async start(t: WithTeardown, { mode, major = 15 }: PairOptions): Promise<FailoverPair> {
    const folder = await temporaryFolder(t, await serverParent());
    const user = await databaseUser(join(folder, 'a'));
    const ports = { a: await freePort(), b: await freePort() };
    const node = async (name: 'a' | 'b', peer: 'a' | 'b'): Promise<FailoverNode> => {
      const place = { name, folder: join(folder, name), port: ports[name], user, major };
      await furnish(place, { mode, peer: join(folder, peer), peerName: peer, peerPort: ports[peer] });
      return new FailoverNode(place);
    };
    const pair = new FailoverPair(await node('a', 'b'), await node('b', 'a'), t);
    t.teardown(async () => {
      await pair.a.crash();
      await pair.b.crash();
    });
    const { a, b } = pair;
    await a.command('create');
    await a.start();
    await a.command('promote');
    await b.command('clone');
    await b.start();
    await pair.attach(a);
    return pair;
  }

  /** Calls `failover attach` until the other one follows, as the timer does. */
  async attach(primary: FailoverNode): Promise<void> {
    const standby = primary === this.a ? this.b : this.a;
    await until(
      `${standby.name} follows ${primary.name}`,
      async () => {
        const said = await primary.command('attach');
        const streams = await primary.asSuperuser(
          `SELECT count(*) FROM pg_stat_replication WHERE application_name = '${standby.name}' AND state = 'streaming'`,
        );
        return said === '' && streams === '1';
      },
      START_MAX_MS,
    );
  }

  /** Both, as a list of hosts. */
  get url(): string {
    return `postgres://service:${PASSWORD}@127.0.0.1:${this.a.port},127.0.0.1:${this.b.port}/service?target_session_attrs=read-write`;
  }

  /** Starts HAProxy. Resolves with the URL through it. */
  async behindProxy(): Promise<string> {
    const folder = await temporaryFolder(this.t);
    const port = await freePort();
    const file = join(folder, 'haproxy.cfg');
    const text = await readFile(join(DEPLOY, 'failover', 'haproxy.cfg'), 'utf8');
    await writeFile(
      file,
      replaced(text, [
        ['bind 127.0.0.1:5000', `bind 127.0.0.1:${port}`],
        ['server a 10.0.0.1:5432', `server a 127.0.0.1:${this.a.port}`],
        ['server b 10.0.0.2:5432', `server b 127.0.0.1:${this.b.port}`],
      ]),
    );
    const checked = spawnSync('haproxy', ['-c', '-f', file], { encoding: 'utf8' });
    if (checked.status !== 0) throw new Error(`haproxy: ${checked.stderr}`);
    const child = spawn('haproxy', ['-f', file, '-db'], { stdio: 'ignore' });
    this.t.teardown(() => endProcess(child, 'SIGKILL'));
    const url = `postgres://service:${PASSWORD}@127.0.0.1:${port}/service`;
    await until('a proxy that leads to the primary', () =>
      runSql(url, 'SELECT pg_is_in_recovery() AS standby').then(
        ([row]) => row?.['standby'] === false,
        () => false,
      ),
    );
    return url;
  }
}

/** Writers that go on through every outage. */
export class Load {
  /** Version of each acknowledged item, by id. */
  readonly acked = new Map<string, number>();
  /** Items that were sent and not acknowledged; each is sent again until it is. */
  refused = 0;
  /** What the last one of them heard. */
  private refusal = '';
  private ending = false;
  private readonly writers: readonly Promise<void>[];

  constructor(wires: readonly Wire[], device: TestDevice, count: number) {
    this.writers = range(1, count).map((n) => this.write(wires[n % wires.length] as Wire, device));
    // `stop` tells; where a test fails before it, its servers still have to be ended.
    for (const writer of this.writers) writer.catch(() => undefined);
  }

  private async write(wire: Wire, device: TestDevice): Promise<void> {
    let item: TestItem | undefined;
    while (!this.ending) {
      item ??= newItem([device.id]);
      const reply = await write(wire, device, item);
      if (reply.status === 200) {
        this.acked.set(item.id, reply.number('version'));
        item = undefined;
      } else {
        this.refused++;
        this.refusal = `${reply.status} ${reply.raw}`;
        await sleep(PAUSE_MS);
      }
    }
  }

  /** Resolves when `count` more were acknowledged. */
  async more(count: number): Promise<void> {
    const from = this.acked.size;
    const what = (): string => `${count} more writes, last refused: ${this.refusal}`;
    await until(what, () => this.acked.size >= from + count, START_MAX_MS);
  }

  /** Ends after the requests under way. */
  async stop(): Promise<void> {
    this.ending = true;
    await Promise.all(this.writers);
  }

  /** Acknowledged items that the server does not have under their version. */
  async lost(wire: Wire, device: TestDevice): Promise<string[]> {
    const { changes } = await listAll(wire, device.token);
    const stored = new Map(changes.map(({ id, version }) => [id, version]));
    return [...this.acked]
      .filter(([id, version]) => stored.get(id) !== version)
      .map(([id, version]) => `${id}: acknowledged ${version}, stored ${stored.get(id) ?? 'nowhere'}`);
  }
}

/** Before a writer asks again that was refused, ms. */
const PAUSE_MS = 30;

/** What one node needs on its machine: the files of deploy/failover, settings, passwords, programs. */
async function furnish(
  place: Place,
  { mode, peer, peerName, peerPort }: { mode: Mode; peer: string; peerName: string; peerPort: number },
): Promise<void> {
  const { folder, name, port, user, major } = place;
  await mkdir(join(folder, 's'), { recursive: true });
  await cp(join(DEPLOY, 'failover'), join(folder, 'deploy'), { recursive: true });
  await chmod(join(folder, 'deploy', 'failover'), 0o755);
  if (major === 18) await programs18(place, peer, peerPort);
  else await symlink(DEBIAN_BIN, join(folder, 'bin'));
  const passwords = join(folder, 'passwords');
  await writeFile(passwords, `*:*:*:replicator:${PASSWORD}\n*:*:*:service:${PASSWORD}\n`, { mode: 0o600 });
  const text = await readFile(join(DEPLOY, 'failover', 'node.env'), 'utf8');
  await writeFile(
    join(folder, 'node.env'),
    withValues(text, {
      NAME: name,
      PEER: peerName,
      MODE: mode,
      ADDRESS: '127.0.0.1',
      PORT: String(port),
      PEER_ADDRESS: '127.0.0.1',
      PEER_PORT: String(peerPort),
      CLIENTS: '127.0.0.0/8',
      PGBIN: join(folder, 'bin'),
      PGDATA: join(folder, 'data'),
      SOCKETS: join(folder, 's'),
      PGPASSFILE: passwords,
    }),
  );
  if (user !== null)
    for (const path of [folder, join(folder, 's'), passwords, join(folder, 'node.env')])
      await chown(path, user.uid, user.gid);
}
