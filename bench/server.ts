/**
 * The server under test: the service's own composition root with its configuration from the environment. One thing
 * differs from `npm run serve`: many tenants, each under a host of its own, where single mode has one for every host.
 * Says {"event":"listening"}; answers "collect" after a garbage collection.
 */
import { createInterface } from 'node:readline';
import { pino } from 'pino';
import { readConfig } from '../src/config.js';
import { startServer } from '../src/server.js';
import { tenantOf } from './population.js';
import { say } from './reference/say.js';

const config = readConfig(process.env);
const log = pino({ level: config.logLevel }, pino.destination({ dest: 2, sync: false }));
const server = await startServer({ config, log, resolveTenant: tenantOf });

process.once('SIGTERM', () => {
  void server.close(0).then(() => process.exit(0));
});
createInterface({ input: process.stdin }).on('line', (line) => {
  if (line !== 'collect') return;
  global.gc?.();
  say({ event: 'collected' });
});
say({ event: 'listening', port: server.port });
