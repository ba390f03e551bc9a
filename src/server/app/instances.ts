/**
 * INSTANCES=n: several instances on one machine, usually one for each core. Each is a process that shares the port with
 * the others (SO_REUSEPORT), or with INSTANCE_PORTS=own has the next port, so that a proxy can send all devices of a tenant
 * to one of them. They communicate through the database, like instances on different machines, and also send each other
 * their changes over links (storage/links.ts) in a folder of this process.
 * This process owns the embedded database, if there is one, starts the instances, and restarts those that die.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { MINUTE_MS } from '../../protocol/clock.js';
import { isObject } from '../../protocol/bytes.js';
import { asError } from '../../protocol/error-code.js';
import { portOf } from '../config/config.js';
import { serverSecrets } from '../config/secrets.js';
import { startEmbedded } from './database.js';
import { orStop, runStops, type Stop } from './lifecycle.js';
import { probePort } from '../storage/embedded/process.js';
import type { DrainOrder } from '../storage/registration.js';
import type { Server, ServerOptions } from './server.js';

/** Argument of an instance, followed by its link folder: it may share its port, and notifies its parent once it listens. */
export const INSTANCE_FLAG = '--instance';
/** Delays before the restarts of an instance that keeps ending, ms; the last one for all further restarts. */
const RESTART_DELAYS_MS = [100, 1_000, 5_000, 30_000];
/** After a run of this length, ms, the delays begin anew. */
const STABLE_MS = MINUTE_MS;
/** An instance that has not ended this long after SIGTERM is killed, ms; longer than it allows itself. */
export const KILL_AFTER_MS = 22_000;
/** Database connections of one instance (pool, lanes, listener, jobs), and spare ones for the operator. */
const CONNECTIONS_EACH = 20;
const CONNECTIONS_SPARE = 20;
/** A socket's path has at most 103 bytes, 27 of them an instance's id and a slash. Longer ones would be truncated. */
const FOLDER_MAX = 76;

/** The message of an instance when it listens. */
export interface Listening {
  readonly port: number;
  readonly tenantId: string | null;
  /** Null: the database did not answer at that moment. */
  readonly claimed: boolean | null;
}

/** Key of the message by which the parent drains all its instances. */
export const DRAIN_MESSAGE = 'drain';

const isListening = (message: unknown): message is Listening =>
  isObject(message) && typeof message['port'] === 'number';

/** One instance and its restarts. `start` starts its process. */
export class Instance {
  private child: ChildProcess | undefined;
  private failures = 0;
  private timer: NodeJS.Timeout | undefined;
  private started = false;
  private closing = false;

  constructor(
    private readonly start: () => ChildProcess,
    private readonly log: Logger,
  ) {}

  /** Starts it. Resolves when it listens; rejects when it ends before. */
  begin(): Promise<Listening> {
    const begun = Date.now();
    return new Promise((resolve, reject) => {
      let child: ChildProcess;
      try {
        child = this.start();
      } catch (error) {
        reject(asError(error));
        this.onEnd({ begun, cause: String(error) });
        return;
      }
      this.child = child;
      child.once('message', (message: unknown) => {
        if (!isListening(message)) return;
        this.started = true;
        resolve(message);
      });
      child.on('error', (error) => {
        reject(error);
        // No process was started, so no exit event follows: it is restarted, since the machine may be short of processes.
        if (child.pid === undefined) this.onEnd({ begun, cause: String(error) });
      });
      child.once('exit', (code, signal) => {
        const ended = `an instance ended with ${code ?? signal ?? 'nothing'}`;
        reject(new Error(ended));
        this.onEnd({ begun, pid: child.pid, code, signal });
      });
    });
  }

  /** Schedules the restart, except of an instance that has never listened: its failure fails the start. */
  private onEnd({ begun, ...how }: { readonly begun: number; readonly [how: string]: unknown }): void {
    if (this.closing || !this.started) return;
    this.log.error(how, 'an instance ended; it is started again');
    this.failures = Date.now() - begun > STABLE_MS ? 0 : this.failures + 1;
    const delay = RESTART_DELAYS_MS[Math.min(Math.max(0, this.failures - 1), RESTART_DELAYS_MS.length - 1)];
    this.timer = setTimeout(() => {
      // A failure leads to `onEnd` again.
      this.begin().catch(() => undefined);
    }, delay);
  }

  /** Drains it. The parent drains all instances, so the port stays open. Does nothing while it does not run. */
  drain({ ms }: Pick<DrainOrder, 'ms'>): void {
    if (this.child?.connected === true) this.child.send({ [DRAIN_MESSAGE]: ms });
  }

  /** Stops it without a restart; kills it after `KILL_AFTER_MS`. Rejects when its exit code is not 0. */
  async stop(): Promise<void> {
    this.closing = true;
    clearTimeout(this.timer);
    const { child } = this;
    if (child === undefined || child.pid === undefined) return;
    if (child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    child.kill('SIGTERM');
    const killTimer = setTimeout(() => child.kill('SIGKILL'), KILL_AFTER_MS);
    const [code, signal] = (await ended) as [number | null, NodeJS.Signals | null];
    clearTimeout(killTimer);
    // A process that was just started does not handle the signal yet and is killed by it: it has no work to finish.
    if (code !== 0 && signal !== 'SIGTERM') throw new Error(`an instance ended with ${code ?? signal ?? 'nothing'}`);
  }
}

/** Makes the folder of the links, and adds its removal to `stops`. Resolves with '' where it cannot be made. */
async function makeLinkFolder(log: Logger, stops: Stop[]): Promise<string> {
  const folder = join(tmpdir(), `service-${randomBytes(6).toString('hex')}`);
  try {
    if (Buffer.byteLength(folder) > FOLDER_MAX) throw new Error(`${folder} is too long for the path of a socket`);
    // Only its user may enter it: nothing else protects what the instances send each other.
    await mkdir(folder, { mode: 0o700 });
  } catch (error) {
    log.warn({ cause: String(error) }, 'there is no folder for links: all changes go through the database');
    return '';
  }
  const onFault = (error: unknown): void =>
    log.warn({ cause: String(error) }, 'the folder of the links could not be removed');
  stops.push(() => rm(folder, { recursive: true, force: true }).catch(onFault));
  return folder;
}

/** Starts the instances with the program `main`. Rejects, with nothing left running, when one of them cannot start. */
export async function startInstances(
  { config, log }: Pick<ServerOptions, 'config' | 'log'>,
  main: string,
): Promise<Server> {
  const stops: Stop[] = [];
  const { tokenSecret, warnings } = await serverSecrets(config);
  const max = String(CONNECTIONS_EACH * config.instances + CONNECTIONS_SPARE);
  const url = config.databaseUrl ?? (await startEmbedded(config, log, stops, { max_connections: max }));
  let folder = '';
  const instances: Instance[] = [];
  const stopInstances = async (): Promise<void> => {
    const ended = await Promise.allSettled(instances.map((instance) => instance.stop()));
    const failed = ended.find((one) => one.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  };
  const ports = { port: config.port, instancePorts: config.instancePorts };
  const start = (n: number): ChildProcess =>
    fork(main, [INSTANCE_FLAG, folder], {
      env: {
        ...process.env,
        DATABASE_URL: url,
        TOKEN_SECRET: tokenSecret,
        INSTANCES: '1',
        PORT: String(portOf(ports, n)),
        // The metrics of the instances are on METRICS_PORT and the ports after it.
        ...(config.metricsPort > 0 ? { METRICS_PORT: String(config.metricsPort + n) } : {}),
      },
    });
  let listening: Listening | undefined;
  const startAll = async (): Promise<void> => {
    // For port 0 a free one is chosen here: the instances have to share one port.
    if (ports.port === 0) ports.port = await probePort(config.host, 0);
    folder = await makeLinkFolder(log, stops);
    stops.push(stopInstances);
    // Sequentially: the first one migrates the database.
    for (let n = 0; n < config.instances; n++) {
      const instance = new Instance(() => start(n), log);
      instances.push(instance);
      listening = await instance.begin();
    }
  };
  await orStop(stops, startAll, (fault) => log.error({ cause: String(fault) }, 'a part did not stop'));
  let closing: Promise<void> | undefined;
  return {
    port: ports.port,
    tenantId: listening?.tenantId ?? null,
    claimed: () =>
      typeof listening?.claimed === 'boolean'
        ? Promise.resolve(listening.claimed)
        : Promise.reject(new Error('the database did not answer an instance')),
    warnings,
    drain: (order) => instances.forEach((instance) => instance.drain(order)),
    close: () => (closing ??= runStops(stops)),
  };
}
