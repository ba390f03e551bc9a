/** The database, population, server and sockets of the Fastify reference, which gets the same load. */
import { join } from 'node:path';
import { Audit } from './audit.js';
import { Child, nodeScript, numberIn } from './child.js';
import type { Context } from './context.js';
import { Receivers } from './drivers.js';
import { imagine, writePlan, writeSockets, type PopulationSize } from './population.js';
import { REFERENCE_SCHEMA, referenceToken } from './reference/schema.js';
import type { Listening, Target } from './world.js';

const DATABASE = 'fastify';
const SECRET = 'the reference signs with this';

/** Starts it; its sockets are open. */
export async function openFastify(context: Context, size: PopulationSize): Promise<Listening<Target>> {
  const { folder, drivers } = context;
  const cluster = await context.fast();
  await cluster.create(DATABASE);
  const population = imagine(size, (tenant, device) => referenceToken(SECRET, tenant, device));
  await cluster.with(DATABASE, async (client) => {
    await client.query(REFERENCE_SCHEMA);
    await client.query('INSERT INTO tenants (id) SELECT unnest($1::text[])', [population.tenants]);
    await client.query('ANALYZE');
  });
  const [plan, sockets] = [join(folder, 'fastify.plan'), join(folder, 'fastify.sockets')];
  writePlan(plan, population);
  writeSockets(sockets, population.devices);
  const server = new Child(
    'fastify',
    nodeScript('reference/fastify-server', { url: cluster.url(DATABASE), secret: SECRET }),
  );
  const port = numberIn(await server.next('listening'), 'port');
  const path = '/socket.io/?EIO=4&transport=websocket';
  const receivers = await Receivers.ready(drivers, { port, sockets, kind: 'socketio', path });
  const audit = new Audit();
  return {
    receivers,
    target: { port, plan, folder, cluster, population, audit, database: DATABASE, servers: [server] },
  };
}
