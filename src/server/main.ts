/** `npm run serve`: configuration from the environment, a server, a few lines for its operator, signals. */
import { fileURLToPath } from 'node:url';
import { pino, type Logger } from 'pino';
import { INSTANCE_FLAG, startInstances, type Listening } from './app/instances.js';
import { preflight, StartError } from './app/preflight.js';
import { startServer, type Server } from './app/server.js';
import { apexOf, ConfigError, readConfig } from './config/config.js';
import { describe } from './http/fail.js';
import { DataDirInUseError } from './storage/embedded/embedded.js';
import { ClusterVersionError } from './storage/embedded/version.js';
import { MigrationError } from './storage/migrate.js';

/** Sockets are closed over this time, so that a fleet does not come back all at once, ms. */
const GRACE_MS = 3_000;
/** A stop that takes longer is cut off: what was acknowledged is durable anyway, ms. */
const STOP_MAX_MS = 20_000;

const say = (...lines: readonly string[]): void => void process.stdout.write(`${lines.join('\n')}\n`);

async function main(): Promise<void> {
  const config = readConfig(process.env);
  const log = pino({ level: config.logLevel }, pino.destination({ dest: 2, sync: false }));
  const instance = process.argv.includes(INSTANCE_FLAG);
  // Before anything is created. The parent of an instance has looked already.
  const warnings = instance ? [] : await preflight(config);
  const starting =
    config.instances > 1 && !instance
      ? startInstances({ config, log, main: fileURLToPath(import.meta.url), env: process.env })
      : startServer({ config, log, sharePort: instance });
  const stop = stopOnSignals(starting, config.databaseUrl === null);
  const server = await starting;
  if (instance) {
    process.send?.({ port: server.port, tenantId: server.tenantId } satisfies Listening);
    return;
  }
  for (const warning of [...warnings, ...server.warnings]) log.warn(warning);
  if (!stop.asked) await greet({ server, log, stop }, apexOf(config));
}

interface Greeting {
  readonly server: Server;
  readonly log: Logger;
  readonly stop: { readonly asked: boolean };
}

/** For the operator only: whatever fails here, the server runs. */
async function greet({ server, log, stop }: Greeting, apex: string): Promise<void> {
  const base = `http://localhost:${server.port}`;
  say('', `  service is listening on ${base}`);
  if (server.tenantId === null) {
    say(`  It hosts tenants under ${apex}; they sign up there.`, '');
    return;
  }
  let claimed: boolean;
  try {
    claimed = await server.claimed();
  } catch (error) {
    // Asked to stop meanwhile it has nobody to ask any more, and nobody wants to know.
    if (!stop.asked) log.warn({ cause: describe(error) }, 'could not find out whether the server is claimed');
    return;
  }
  if (claimed) {
    say('  It is claimed: your devices can connect.', '', `  How it stands:  curl ${base}/api/service/status`, '');
    return;
  }
  say(
    '  It is unclaimed: the first device that claims it owns it.',
    '',
    `  Claim it from this machine (in another terminal):  npm run --silent device -- claim ${base}`,
    '  See the whole story, on a server of its own:       npm run demo',
    `  How this one stands:                               curl ${base}/api/service/status`,
    `  Everything else:                                   ${base}/docs`,
    '',
  );
}

/**
 * Listens from the first moment: a server that is killed while it starts would leave its PostgreSQL running, which is
 * in a process group of its own.
 */
function stopOnSignals(starting: Promise<Server>, ownDatabase: boolean): { readonly asked: boolean } {
  const state = { asked: false };
  const stop = async (signal: NodeJS.Signals): Promise<void> => {
    if (state.asked) return;
    state.asked = true;
    say(`  ${signal}: finishing what was taken, closing sockets ...`);
    // For the same reason a start with its own PostgreSQL is waited for; it has time limits of its own.
    if (ownDatabase) await Promise.allSettled([starting]);
    setTimeout(() => {
      say(`  the stop took longer than ${STOP_MAX_MS / 1_000} s: what is left is cut off`);
      process.exit(1);
    }, STOP_MAX_MS).unref();
    // A start that fails ends the process by itself, below.
    const server = await starting;
    try {
      await server.close(GRACE_MS);
      process.exit(0);
    } catch (error) {
      say(`  stopped with an error: ${messageOf(error)}`);
      process.exit(1);
    }
  };
  const heard = (signal: NodeJS.Signals): void => void stop(signal).catch(end);
  process.on('SIGTERM', heard);
  process.on('SIGINT', heard);
  // An instance whose parent has died would live on without anybody who could end it.
  process.on('disconnect', () => heard('SIGTERM'));
  return state;
}

const MEANT = [ConfigError, StartError, ClusterVersionError, DataDirInUseError, MigrationError];

/**
 * Whose message says all there is to say: those above, and a plain error, which is what we throw on purpose and the
 * system's own. A fault of ours is a TypeError or the like: of that one wants to know where it came from.
 */
const isMeant = (error: Error): boolean => MEANT.some((kind) => error instanceof kind) || error.constructor === Error;

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** Says why the server cannot run, and ends. */
function end(error: unknown): void {
  const text = error instanceof Error && !isMeant(error) ? (error.stack ?? error.message) : messageOf(error);
  process.stderr.write(`${text}\n`);
  process.exit(1);
}

main().catch(end);
