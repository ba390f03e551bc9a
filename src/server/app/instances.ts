/**
 * INSTANCES=n: several instances on one port of one machine, one a core as a rule. Each is a process of its own that
 * shares the port with the others (SO_REUSEPORT); they know of each other through the database only, like instances on
 * different machines. This process owns the embedded database, if there is one, starts the others, and
 * starts again what dies.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import type { Logger } from 'pino';
import type { Config } from '../config/config.js';
import { serverSecrets } from '../config/secrets.js';
import { startEmbedded, type Stop } from './database.js';
import type { Server } from './server.js';

/** Said on the command line of an instance: it shares its port, and tells its parent when it listens. */
export const INSTANCE_FLAG = '--instance';
/** Waits before an instance that died is started again, ms; the last one for as long as it takes. */
const RESTART_AFTER_MS = [100, 1_000, 5_000, 30_000];
/** An instance that lived this long has started well, ms. */
const WELL_MS = 60_000;
/** Pool, lanes, listener and jobs of one instance, and what an operator may need besides. */
const CONNECTIONS_EACH = 20;
const CONNECTIONS_BESIDES = 20;

/** What the instances are started from. */
export interface InstancesOptions {
  readonly config: Config;
  readonly log: Logger;
  /** The program of an instance. */
  readonly main: string;
  readonly env: NodeJS.ProcessEnv;
}

/** What an instance says when it listens. */
export interface Listening {
  readonly port: number;
  readonly tenantId: string | null;
}

const isListening = (message: unknown): message is Listening =>
  typeof message === 'object' && message !== null && 'port' in message && typeof message.port === 'number';

/** One instance after the other, under one name. `start` makes its process. */
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
  first(): Promise<Listening> {
    return this.begin();
  }

  /** Ends it, and starts it no more. Rejects when it did not end well. */
  async stop(): Promise<void> {
    this.closing = true;
    clearTimeout(this.timer);
    const { child } = this;
    if (child === undefined || child.pid === undefined) return;
    if (child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    child.kill('SIGTERM');
    const [code, signal] = (await ended) as [number | null, NodeJS.Signals | null];
    // One that had only just been started again does not hear the signal yet, and is ended by it: it has nothing to lose.
    if (code !== 0 && signal !== 'SIGTERM') throw new Error(`an instance ended with ${code ?? signal ?? 'nothing'}`);
  }

  private begin(): Promise<Listening> {
    const begun = Date.now();
    return new Promise((resolve, reject) => {
      let child: ChildProcess;
      try {
        child = this.start();
      } catch (error) {
        reject(error instanceof Error ? error : new Error(String(error)));
        this.lost({ begun, cause: String(error) });
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
        // Without a process there is no end to be heard: a machine short of files or processes must not cost it for good.
        if (child.pid === undefined) this.lost({ begun, cause: String(error) });
      });
      child.once('exit', (code, signal) => {
        const ended = `an instance ended with ${code ?? signal ?? 'nothing'}`;
        reject(new Error(ended));
        this.lost({ begun, pid: child.pid, code, signal });
      });
    });
  }

  private lost({ begun, ...how }: { readonly begun: number; readonly [how: string]: unknown }): void {
    // One that has never listened is the start's failure, not an accident.
    if (this.closing || !this.started) return;
    this.log.error(how, 'an instance ended; it is started again');
    this.failures = Date.now() - begun > WELL_MS ? 0 : this.failures + 1;
    this.again();
  }

  private again(): void {
    const wait = RESTART_AFTER_MS[Math.min(Math.max(0, this.failures - 1), RESTART_AFTER_MS.length - 1)];
    this.timer = setTimeout(() => {
      // Its end is heard above, and leads here again.
      this.begin().catch(() => undefined);
    }, wait);
  }
}

/** Starts so many instances. Rejects, with nothing left running, when the first of them cannot start. */
export async function startInstances(options: InstancesOptions): Promise<Server> {
  const { config, log, main, env } = options;
  const stops: Stop[] = [];
  const { tokenSecret, warnings } = await serverSecrets(config);
  const max = String(CONNECTIONS_EACH * config.instances + CONNECTIONS_BESIDES);
  const url = config.databaseUrl ?? (await startEmbedded({ config, log }, stops, { max_connections: max }));
  const instances: Instance[] = [];
  const stopAll = async (): Promise<void> => {
    const ended = await Promise.allSettled(instances.map((instance) => instance.stop()));
    for (const stop of stops.reverse()) await stop();
    const failed = ended.find((one) => one.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  };
  let { port } = config;
  const start = (n: number): ChildProcess =>
    fork(main, [INSTANCE_FLAG], {
      env: {
        ...env,
        DATABASE_URL: url,
        TOKEN_SECRET: tokenSecret,
        INSTANCES: '1',
        PORT: String(port),
        ...metricsOf(config, n),
      },
    });
  let listening: Listening | undefined;
  try {
    // Any free port will do, but it must be named: a port that the system draws is not shared.
    if (port === 0) port = await freePort(config.host);
    // One after the other: the first one migrates.
    for (let n = 0; n < config.instances; n++) {
      const instance = new Instance(() => start(n), log);
      instances.push(instance);
      listening = await instance.first();
    }
  } catch (error) {
    await stopAll().catch((fault: unknown) => log.error({ cause: String(fault) }, 'a part did not stop'));
    throw error;
  }
  let closing: Promise<void> | undefined;
  return {
    port,
    tenantId: listening?.tenantId ?? null,
    claimed: () => claimedAt(port),
    warnings,
    close: () => (closing ??= stopAll()),
  };
}

/** Each instance has metrics of its own: METRICS_PORT, and the ports after it. */
const metricsOf = ({ metricsPort }: Config, n: number): Record<string, string> =>
  metricsPort === 0 ? {} : { METRICS_PORT: String(metricsPort + n) };

async function freePort(host: string): Promise<number> {
  const probe = createServer().listen({ host, port: 0 });
  await once(probe, 'listening');
  const address = probe.address();
  probe.close();
  await once(probe, 'close');
  return address !== null && typeof address === 'object' ? address.port : 0;
}

async function claimedAt(port: number): Promise<boolean> {
  const status: unknown = await (await fetch(`http://127.0.0.1:${port}/api/service/status`)).json();
  return typeof status === 'object' && status !== null && 'claimed' in status && status.claimed === true;
}
