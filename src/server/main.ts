/** `service-server`: reads the configuration, starts the server, prints a greeting, and handles signals. */
import { rmdir } from 'node:fs/promises';
import { isIPv6 } from 'node:net';
import { fileURLToPath } from 'node:url';
import { pino, type Logger } from 'pino';
import { DRAIN_MESSAGE, INSTANCE_FLAG, KILL_AFTER_MS, startInstances, type Listening } from './app/instances.js';
import { preflight, StartError } from './app/preflight.js';
import { startServer, type Server } from './app/server.js';
import { apexOf, type Config, ConfigError, readConfig } from './config/config.js';
import { describe } from './http/fail.js';
import { DataDirInUseError } from './storage/embedded/embedded.js';
import type { DrainOrder } from './storage/registration.js';
import { ClusterVersionError } from './storage/embedded/binaries.js';
import { MigrationError } from './storage/migrate.js';
import { MINUTE_MS } from '../protocol/clock.js';
import { isObject } from '../protocol/bytes.js';
import { asError } from '../protocol/error-code.js';
import { IN_CHECKOUT, RELEASE } from '../root.js';

/** Sockets are closed over this time, so that their devices do not reconnect all at once, ms. */
const GRACE_MS = 3_000;
/** A stop that takes longer is aborted, ms: what was acknowledged is durable already. */
const STOP_MAX_MS = 20_000;
/** The same for the parent of several instances, which kills them before, and then stops the embedded database. */
const STOP_ALL_MAX_MS = KILL_AFTER_MS + 10_000;

const USAGE = `service-server: serves an encrypted sync service, and keeps its data under ./data

  PORT=8080 DATA_DIR=./data service-server
  service-server --version, --help

Everything is set by environment variables; a running server explains them under /docs/configuration.
`;
/** How the person at this terminal calls a device's program. */
const DEVICE = IN_CHECKOUT ? 'npm run --silent device --' : 'service-device';
/** The exit code of programs at a terminal for wrong arguments. */
const EXIT_USAGE = 2;

const say = (...lines: readonly string[]): void => void process.stdout.write(`${lines.join('\n')}\n`);

/** Answers arguments, which only people give: a server that ignored them would start. Ends the process. */
function answerArguments([argument = '']: readonly string[]): never {
  const isHelp = ['--help', '-h'].includes(argument);
  const isVersion = ['--version', '-V'].includes(argument);
  if (isVersion) say(`${RELEASE.version} (${RELEASE.commit})`);
  else (isHelp ? process.stdout : process.stderr).write(USAGE);
  return process.exit(isHelp || isVersion ? 0 : EXIT_USAGE);
}

async function main(): Promise<void> {
  const [flag, folder] = process.argv.slice(2);
  const instance = flag === INSTANCE_FLAG;
  if (flag !== undefined && !instance) answerArguments(process.argv.slice(2));
  const config = readConfig(process.env);
  const log = pino({ level: config.logLevel }, pino.destination({ dest: 2, sync: false }));
  // Before anything is created; for an instance its parent has done it.
  const warnings = instance ? [] : await preflight(config);
  const several = config.instances > 1 && !instance;
  const starting = several
    ? startInstances({ config, log }, fileURLToPath(import.meta.url))
    : startServer({ config, log, siblings: instance ? folder : undefined });
  const maxMs = several ? STOP_ALL_MAX_MS : STOP_MAX_MS;
  const stopping = stopOnSignals(starting, config.databaseUrl === null, folder, maxMs);
  drainOnSignal(starting, { ms: config.drainMinutes * MINUTE_MS, alone: instance });
  const server = await starting;
  if (instance) {
    const { port, tenantId } = server;
    // Only for the greeting: a database that does not answer at this moment must not end the start.
    const claimed = await server.claimed().catch(() => null);
    process.send?.({ port, tenantId, claimed } satisfies Listening);
    return;
  }
  for (const warning of [...warnings, ...server.warnings]) log.warn(warning);
  if (!stopping.aborted) await greet(server, config, log, stopping);
}

/** A name under which this machine reaches the server. */
function shownHost({ host }: Pick<Config, 'host'>): string {
  if (['0.0.0.0', '127.0.0.1', '::', '::1'].includes(host)) return 'localhost';
  return isIPv6(host) ? `[${host}]` : host;
}

/** Prints the greeting. A failure is logged only. `stopping`: a signal has ended the server. */
async function greet(server: Server, config: Config, log: Logger, stopping: AbortSignal): Promise<void> {
  const base = `http://${shownHost(config)}:${server.port}`;
  say('', `  service is listening on ${base}`);
  if (server.tenantId === null) {
    say(`  It hosts tenants under ${apexOf(config)}; they sign up there.`, '');
    return;
  }
  let claimed: boolean;
  try {
    claimed = await server.claimed();
  } catch (error) {
    // During a stop the database may be closed already.
    if (!stopping.aborted) log.warn({ cause: describe(error) }, 'could not find out whether the server is claimed');
    return;
  }
  if (claimed) {
    say('  It is claimed: your devices can connect.', '');
    if (config.webApp === 'on') say(`  In a browser:   ${base}`);
    say(`  Status:         curl ${base}/api/service/status`, '');
    return;
  }
  say(
    '  It is unclaimed: the first device that claims it owns it.',
    '',
    ...(config.webApp === 'on' ? [`  Claim it in a browser on this machine:             ${base}`] : []),
    `  Claim it from this machine (in another terminal):  ${DEVICE} claim ${base}`,
    ...(IN_CHECKOUT ? ['  See a demonstration, on a separate server:         npm run demo'] : []),
    `  Status:                                            curl ${base}/api/service/status`,
    `  Documentation:                                     ${base}/docs`,
    '',
  );
}

/**
 * Handles signals from the beginning of the start: a server that dies while it starts would leave its PostgreSQL running,
 * which is in a process group of its own. `folder`: of an instance's links; after `maxMs` what is left is cut off. Returns
 * a signal that is aborted when the stop begins.
 */
function stopOnSignals(
  starting: Promise<Server>,
  ownDatabase: boolean,
  folder: string | undefined,
  maxMs: number,
): AbortSignal {
  const stopping = new AbortController();
  const stop = async (signal: NodeJS.Signals): Promise<void> => {
    if (stopping.signal.aborted) return;
    stopping.abort();
    say(`  ${signal}: finishing what was taken, closing sockets ...`);
    // For the same reason the start of an embedded PostgreSQL is awaited; it has its own time limits.
    if (ownDatabase) await Promise.allSettled([starting]);
    setTimeout(() => {
      say(`  the stop took longer than ${maxMs / 1_000} s: what is left is cut off`);
      process.exit(1);
    }, maxMs).unref();
    // A start that fails ends the process in `end`.
    const server = await starting;
    try {
      await server.close(GRACE_MS);
      // Its parent would remove the folder, and has died: the last instance does. Before, it is not empty.
      if (folder !== undefined && !process.connected) await rmdir(folder).catch(() => undefined);
      process.exit(0);
    } catch (error) {
      say(`  stopped with an error: ${asError(error).message}`);
      process.exit(1);
    }
  };
  const onSignal = (signal: NodeJS.Signals): void => void stop(signal).catch(end);
  process.on('SIGTERM', onSignal);
  process.on('SIGINT', onSignal);
  // An instance stops when its parent has died.
  process.on('disconnect', () => onSignal('SIGTERM'));
  return stopping.signal;
}

/**
 * SIGUSR2 sends the sockets away, as `service-admin drain` does: of the parent of several instances to all of them, of one
 * of these to that one alone.
 */
function drainOnSignal(starting: Promise<Server>, order: DrainOrder): void {
  const drain = (by: DrainOrder): void => void starting.then((server) => server.drain(by)).catch(() => undefined);
  process.on('SIGUSR2', () => {
    say(`  SIGUSR2: sending the sockets away over ${order.ms / MINUTE_MS} minutes ...`);
    drain(order);
  });
  process.on('message', (message: unknown) => {
    if (!isObject(message) || !(DRAIN_MESSAGE in message)) return;
    drain({ ms: Number(message[DRAIN_MESSAGE]), alone: false });
  });
}

const EXPECTED = [ConfigError, StartError, ClusterVersionError, DataDirInUseError, MigrationError];

/**
 * Errors whose message is enough: those above, and plain `Error`, which we and the system throw on purpose. Others, such
 * as a TypeError, are bugs, and are printed with their stack.
 */
const isExpected = (error: Error): boolean =>
  EXPECTED.some((kind) => error instanceof kind) || error.constructor === Error;

/** Prints why the server cannot run, and ends the process. */
function end(error: unknown): void {
  const { message, stack = message } = asError(error);
  process.stderr.write(`${error instanceof Error && !isExpected(error) ? stack : message}\n`);
  process.exit(1);
}

main().catch(end);
