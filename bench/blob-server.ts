/**
 * The server under test for blobs: the unchanged service, in single mode with its local store. Prints
 * {"event":"listening"}; answers "collect" after a garbage collection.
 */
import { pino } from 'pino';
import { startServer } from '../src/server/app/server.js';
import { readConfig } from '../src/server/config/config.js';
import { collect, obey, say } from './reference/say.js';

const config = readConfig(process.env);
const log = pino({ level: config.logLevel }, pino.destination({ dest: 2, sync: false }));
const server = await startServer({ config, log });

process.once('SIGTERM', () => {
  void server.close(0).then(() => process.exit(0));
});
obey({ collect });
say({ event: 'listening', port: server.port });
