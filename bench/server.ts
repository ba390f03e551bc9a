/**
 * The server under test: the service's own composition root with its configuration from the environment. One thing
 * differs from `npm run serve`: many tenants, each under a host of its own, where single mode has one for every host.
 * BENCH_SIBLINGS=FOLDER: one of several instances on a port, linked in that folder, as INSTANCES=n starts them.
 * Says {"event":"listening"}; answers "collect" after a garbage collection, "statements" with how many statements of
 * SQL it has sent so far, by kind; "drain MS" sends its sockets away over so many ms; "begin WHAT" begins to measure something inside it, "end WHAT" ends that and is
 * answered with what was found (see measure.ts).
 */
import { createInterface } from 'node:readline';
import pg from 'pg';
import { pino } from 'pino';
import { startServer } from '../src/server/app/server.js';
import { readConfig } from '../src/server/config/config.js';
import { Measure } from './measure.js';
import { tenantOf } from './population.js';
import { say } from './reference/say.js';

const measure = new Measure();
const kinds: Record<string, number> = {};
/** A statement's name or its first words: enough to tell which it is. */
function kindOf(statement: unknown): string {
  if (typeof statement === 'string') return statement.trim().replace(/\s+/g, ' ').slice(0, 40);
  const { name, text } = statement as { readonly name?: string; readonly text?: string };
  return name ?? kindOf(text ?? '');
}
// Every way to send one leads through here: the pool's, the lanes' and the listener's. Types cannot follow its overloads.
const original = pg.Client.prototype.query as (...args: unknown[]) => unknown;
pg.Client.prototype.query = function counted(this: pg.Client, ...args: unknown[]): unknown {
  const kind = kindOf(args[0]);
  kinds[kind] = (kinds[kind] ?? 0) + 1;
  measure.sent(kind, args[0]);
  return original.apply(this, args);
} as typeof pg.Client.prototype.query;

const config = readConfig(process.env);
const log = pino({ level: config.logLevel }, pino.destination({ dest: 2, sync: false }));
const siblings = process.env['BENCH_SIBLINGS'] || undefined;
const server = await startServer({ config, log, siblings, resolveTenant: tenantOf });

process.once('SIGTERM', () => {
  void server.close(0).then(() => process.exit(0));
});
createInterface({ input: process.stdin }).on('line', (line) => {
  const [word, what = ''] = line.split(' ');
  if (word === 'statements') {
    say({ event: 'statements', kinds });
  } else if (word === 'drain') {
    server.drain({ ms: Number(what), alone: true });
    say({ event: 'draining' });
  } else if (word === 'collect') {
    global.gc?.();
    say({ event: 'collected' });
  } else if (word === 'begin') {
    measure.begin(what);
    say({ event: 'begun' });
  } else if (word === 'end') {
    say({ ...measure.end(what), event: 'measured' });
  }
});
say({ event: 'listening', port: server.port });
