/** `npm run serve`: configuration from the environment, a server, a few lines for its operator, signals. */
import { pino } from 'pino';
import { ConfigError, readConfig } from './config.js';
import { startServer, type Server } from './server.js';

/** Sockets are closed over this time, so that a fleet does not come back all at once, ms. */
const GRACE_MS = 3_000;
/** A stop that takes longer is cut off: what was acknowledged is durable anyway, ms. */
const STOP_MAX_MS = 20_000;

const say = (...lines: readonly string[]): void => void process.stdout.write(`${lines.join('\n')}\n`);

async function main(): Promise<void> {
  const config = readConfig(process.env);
  const log = pino({ level: config.logLevel }, pino.destination({ dest: 2, sync: false }));
  const server = await startServer({ config, log });
  for (const warning of server.warnings) log.warn(warning);
  await greet(server);
  stopOnSignals(server);
}

async function greet(server: Server): Promise<void> {
  const base = `http://localhost:${server.port}`;
  say('', `  service is listening on ${base}`);
  if (await server.claimed()) {
    say('  It is claimed: your devices can connect.', '', `  How it stands:  curl ${base}/api/service/status`, '');
    return;
  }
  say(
    '  It is unclaimed: the first device that claims it owns it.',
    '',
    '  See the whole story in twenty seconds, on a server of its own:  npm run demo',
    `  How this one stands:                                            curl ${base}/api/service/status`,
    '',
  );
}

function stopOnSignals(server: Server): void {
  let stopping = false;
  const stop = (signal: NodeJS.Signals): void => {
    if (stopping) return;
    stopping = true;
    say(`  ${signal}: finishing what was taken, closing sockets ...`);
    const cutOff = setTimeout(() => process.exit(1), STOP_MAX_MS);
    cutOff.unref();
    server.close(GRACE_MS).then(
      () => process.exit(0),
      (error: unknown) => {
        say(`  stopped with an error: ${error instanceof Error ? error.message : String(error)}`);
        process.exit(1);
      },
    );
  };
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
}

main().catch((error: unknown) => {
  const text =
    error instanceof ConfigError || !(error instanceof Error) ? String(error) : (error.stack ?? error.message);
  process.stderr.write(`${error instanceof ConfigError ? error.message : text}\n`);
  process.exit(1);
});
