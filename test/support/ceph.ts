/**
 * A real S3 store for tests: Ceph's gateway on loopback over one monitor and one OSD in memory. It verifies signatures as
 * AWS does, which no light stand-in does. It is up in about three seconds; everything that it writes lies in a temporary folder.
 */
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { accessSync, constants } from 'node:fs';
import { copyFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { until } from './events.js';
import { freePort } from './free-port.js';
import { newFolder, type WithTeardown } from './postgres.js';
import { endProcess } from './processes.js';

const run = promisify(execFile);

const PROGRAMS = ['ceph', 'ceph-authtool', 'ceph-mon', 'ceph-osd', 'monmaptool', 'radosgw', 'radosgw-admin'] as const;
const START_MAX_MS = 120_000;
const COMMAND_MAX_MS = 60_000;
const ENDING_MAX_MS = 10_000;

const installed = (program: string): boolean =>
  (process.env['PATH'] ?? '').split(':').some((folder) => {
    try {
      accessSync(join(folder, program), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });

/** False, or why tests with the gateway are skipped: what tap takes as `skip`. */
export const cephMissing: string | false = PROGRAMS.every(installed)
  ? false
  : "Ceph's gateway is not installed (ceph-mon ceph-osd radosgw ceph-common)";

/** A user of the gateway. */
export interface CephUser {
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
}

/** Sizes and times are for one small machine and one test; nothing is written to a disk but logs. */
const configuration = (folder: string, monitor: number, gateway: number): string => `
[global]
fsid = ${randomUUID()}
mon initial members = a
mon host = [v2:127.0.0.1:${monitor}/0]
ms bind msgr1 = false
public network = 127.0.0.0/8
keyring = ${folder}/keyring
run dir = ${folder}
log file = ${folder}/$name.log
admin socket = ${folder}/$name.$pid.asok
pid file = ${folder}/$name.$pid.pid
mon data = ${folder}/mon
mon data avail crit = 1
mon data avail warn = 1
mon allow pool size one = true
mon max pg per osd = 1000
paxos propose interval = 0.02
paxos min wait = 0.01
osd data = ${folder}/osd
osd objectstore = memstore
memstore device bytes = 1073741824
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
rgw data = ${folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:${gateway}
rgw enable apis = s3
rgw thread pool size = 16
rgw enable gc threads = false
rgw enable lc threads = false
rgw enable quota threads = false
rgw run sync thread = false
`;

/** The gateway with its monitor and its OSD. */
export class Ceph {
  /** Where the gateway listens. */
  readonly endpoint: string;
  private readonly children: ChildProcess[] = [];
  private users = 0;

  private constructor(
    private readonly folder: string,
    private readonly monitor: number,
    gateway: number,
  ) {
    this.endpoint = `http://127.0.0.1:${gateway}`;
  }

  /** Runs until the test is over. Call it once a file: a test that needs a bucket of its own makes one. */
  static async start(t: WithTeardown): Promise<Ceph> {
    const gateway = await freePort();
    const ceph = new Ceph(await newFolder(), await freePort(), gateway);
    t.teardown(() => ceph.stop());
    await writeFile(join(ceph.folder, 'ceph.conf'), configuration(ceph.folder, ceph.monitor, gateway));
    for (const name of ['mon', 'osd', 'rgw']) await mkdir(join(ceph.folder, name));
    await ceph.startMonitor();
    await ceph.startOsd();
    await ceph.startGateway();
    return ceph;
  }

  /** Another user of the gateway. */
  async newUser(): Promise<CephUser> {
    const user = { accessKeyId: `TEST${++this.users}`, secretAccessKey: randomBytes(20).toString('hex') };
    await this.command('radosgw-admin', [
      ...['-n', 'client.rgw', 'user', 'create', '--uid', `test${this.users}`, '--display-name', 'test'],
      ...['--access-key', user.accessKeyId, '--secret-key', user.secretAccessKey],
    ]);
    return user;
  }

  private async command(program: string, args: readonly string[], ...more: readonly string[]): Promise<void> {
    const all = [
      ...(program === 'ceph-authtool' || program === 'monmaptool' ? [] : ['-c', this.at('ceph.conf')]),
      ...args,
    ];
    await run(program, [...all, ...more], { timeout: COMMAND_MAX_MS, cwd: this.folder });
  }

  private at(name: string): string {
    return join(this.folder, name);
  }

  private daemon(program: string, args: readonly string[]): void {
    const child = spawn(program, ['-c', this.at('ceph.conf'), '-f', ...args], { cwd: this.folder, stdio: 'ignore' });
    child.on('error', () => undefined); // the wait for the gateway tells of it, with the logs
    this.children.push(child);
  }

  private async startMonitor(): Promise<void> {
    const keyring = this.at('keyring');
    await this.command('ceph-authtool', [
      '--create-keyring',
      keyring,
      '--gen-key',
      '-n',
      'mon.',
      '--cap',
      'mon',
      'allow *',
    ]);
    // With keys: without any the gateway waits 30 seconds for a manager that is not there.
    const caps = ['--cap', 'mon', 'allow *', '--cap', 'osd', 'allow *', '--cap', 'mgr', 'allow *'];
    for (const name of ['client.admin', 'client.rgw', 'osd.0']) {
      await this.command('ceph-authtool', [keyring, '--gen-key', '-n', name, ...caps]);
    }
    await copyFile(keyring, this.at('first-keyring'));
    const fsid = /fsid = (\S+)/.exec(await readFile(this.at('ceph.conf'), 'utf8'))?.[1] ?? '';
    const map = this.at('monmap');
    const address = `127.0.0.1:${this.monitor}`;
    await this.command('monmaptool', ['--create', '--fsid', fsid, '--addv', 'a', `[v2:${address}/0]`, map]);
    await this.command('ceph-mon', ['--mkfs', '-i', 'a', '--monmap', map, '--keyring', this.at('first-keyring')]);
    this.daemon('ceph-mon', ['-i', 'a', '--public-addr', address]);
  }

  private async startOsd(): Promise<void> {
    const id = randomUUID();
    await this.command('ceph', ['osd', 'new', id, '0']);
    await this.command('ceph-osd', ['-i', '0', '--mkfs', '--osd-uuid', id]);
    this.daemon('ceph-osd', ['-i', '0']);
  }

  private async startGateway(): Promise<void> {
    this.daemon('radosgw', ['-n', 'client.rgw']);
    const answers = async (): Promise<boolean> => {
      const dead = this.children.find(({ exitCode }) => exitCode !== null);
      if (dead !== undefined) throw new Error(`Ceph did not start: ${dead.spawnfile}; see ${this.folder}`);
      const answer = await fetch(this.endpoint).catch(() => undefined);
      await answer?.arrayBuffer();
      return answer?.ok === true;
    };
    await until(`an answer of Ceph's gateway; see ${this.folder}`, answers, START_MAX_MS);
  }

  /** Ends what was started, by its id, and removes its files. */
  async stop(): Promise<void> {
    for (const child of this.children.splice(0).reverse()) await endProcess(child, 'SIGTERM', ENDING_MAX_MS);
    await rm(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}
