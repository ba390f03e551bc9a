/**
 * The server under test: the service's own composition root with its configuration from the environment. It differs
 * from `npm run serve` in one point: many tenants, each with its own host, where single mode has one for all hosts.
 * BENCH_SIBLINGS=FOLDER: one of several instances on a port, linked in that folder, as started by INSTANCES=n.
 * Prints {"event":"listening"}. Answers "collect" after a garbage collection, and "statements" with the number of SQL
 * statements sent so far, by kind; "drain MS" closes its sockets over that many ms; "begin WHAT" begins a measurement
 * inside it, "end WHAT" ends it and is answered with the report (see measure.ts).
 */
import pg from 'pg';
import { pino } from 'pino';
import { startServer } from '../src/server/app/server.js';
import { readConfig } from '../src/server/config/config.js';
import { Measure } from './measure.js';
import { tenantOf } from './population.js';
import { collect, obey, say } from './reference/say.js';

const measure = new Measure();
const kinds: Record<string, number> = {};
/** A statement's name, or the beginning of its text, to identify it. */
function kindOf(statement: unknown): string {
  if (typeof statement === 'string') return statement.trim().replace(/\s+/g, ' ').slice(0, 40);
  const { name, text } = statement as { readonly name?: string; readonly text?: string };
  return name ?? kindOf(text ?? '');
}
// All statements pass through here: those of the pool, the lanes and the listener. Cast because of its overloads.
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
obey({
  collect,
  statements: () => ({ event: 'statements', kinds }),
  drain: (ms) => {
    server.drain({ ms: Number(ms), alone: true });
    return { event: 'draining' };
  },
  begin: (what) => {
    measure.begin(what);
    return { event: 'begun' };
  },
  end: (what) => ({ ...measure.end(what), event: 'measured' }),
});
say({ event: 'listening', port: server.port });
