/** The database, population, server and sockets of the Fastify reference, which gets the same load. */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Audit } from './audit.js';
import { Child, numberIn } from './child.js';
import type { Context } from './context.js';
import type { Cluster } from './database.js';
import { Receivers, type Drivers } from './drivers.js';
import { imagine, writePlan, writeSockets, type Population, type PopulationSize } from './population.js';
import { REFERENCE_SCHEMA, referenceToken } from './reference/schema.js';
import type { Target } from './world.js';

const DATABASE = 'fastify';
const SECRET = 'the reference signs with this';

export class FastifyWorld implements Target {
  readonly audit = new Audit();
  readonly database = DATABASE;
  readonly folder: string;
  readonly plan: string;
  readonly cluster: Cluster;
  readonly population: Population;
  readonly servers: readonly [Child];
  readonly port: number;
  private readonly sockets: string;
  private readonly drivers: Drivers;

  private constructor(context: Context, own: Pick<FastifyWorld, 'cluster' | 'population' | 'servers' | 'port'>) {
    this.folder = context.folder;
    this.drivers = context.drivers;
    this.cluster = own.cluster;
    this.population = own.population;
    this.servers = own.servers;
    this.port = own.port;
    this.plan = join(this.folder, 'fastify.plan');
    this.sockets = join(this.folder, 'fastify.sockets');
    writePlan(this.plan, this.population);
    writeSockets(this.sockets, this.population.devices);
  }

  static async open(context: Context, size: PopulationSize): Promise<FastifyWorld> {
    const cluster = await context.fast();
    await cluster.create(DATABASE);
    const population = imagine(size, (tenant, device) => referenceToken(SECRET, tenant, device));
    await cluster.with(DATABASE, async (client) => {
      await client.query(REFERENCE_SCHEMA);
      await client.query('INSERT INTO tenants (id) SELECT unnest($1::text[])', [population.tenants]);
      await client.query('ANALYZE');
    });
    const script = fileURLToPath(new URL('./reference/fastify-server.js', import.meta.url));
    const server = new Child('fastify', [process.execPath, script, `url=${cluster.url(DATABASE)}`, `secret=${SECRET}`]);
    const port = numberIn(await server.next('listening'), 'port');
    return new FastifyWorld(context, { cluster, population, servers: [server], port });
  }

  receivers(): Receivers {
    const path = '/socket.io/?EIO=4&transport=websocket';
    return new Receivers(this.drivers, { port: this.port, sockets: this.sockets, kind: 'socketio', path });
  }
}
