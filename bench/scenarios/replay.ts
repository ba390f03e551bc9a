/** S7: replay, cold from PostgreSQL relative to a bare read of the same rows, and warm from memory. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { AuditError } from '../audit.js';
import { Child, nodeScript, numberIn } from '../child.js';
import type { Context } from '../context.js';
import { startWriters, writerResult } from '../drivers.js';
import { writeSockets } from '../population.js';
import { atLeast, Book, type Outcome } from '../stats.js';
import { World, audit, cpuFrom } from '../world.js';

const PER_TENANT = 5;
const COLD_TENANTS = 100;
const COLD_ROWS = 60_000;
const WARM_TENANTS = 200;
/** Rows behind the head that each warm socket requests; the actor keeps about 50 of this size. */
const WARM_ROWS = 40;
/** Sockets of each warm device; a device may have 16. */
const WARM_SOCKETS = 5;
const READERS = [1, 2, 4];

/** Writes until the world's tenants have about `rows` more rows, and audits them. */
async function fill(context: Context, world: World, rows: number): Promise<void> {
  const { port, plan } = world;
  const out = join(context.folder, `${world.database}.fill`);
  for (let written = 0; written < rows;) {
    const writers = startWriters(context.drivers, { port, plan, out, connections: 64, seconds: 1, warmup: 0 });
    written += (await writerResult(writers)).acked;
    await audit(world, { acked: [out] });
  }
}

/** The sockets of one replay, and the rows that it must deliver. */
interface Replay {
  readonly name: string;
  readonly world: World;
  readonly sockets: string;
  readonly rows: number;
}

/**
 * All sockets of a file send hello at once. Adds rows per second until the last has caught up, and the cost of a row
 * for each party. No row may be missing or duplicated.
 */
async function replay(book: Book, { name, world, sockets, rows: expected }: Replay): Promise<void> {
  const receivers = await world.receivers({ sockets, hello: 'later' });
  const used = cpuFrom(world, [receivers.child.pid]);
  const { seconds, rows } = await receivers.replay();
  const cpu = used();
  const { disorder, unstamped } = await receivers.report();
  await receivers.stop();
  if (rows !== expected || disorder + unstamped > 0) {
    throw new AuditError(`replay of ${expected} rows gave ${rows}, ${disorder} out of order, ${unstamped} damaged`);
  }
  book.add(name, 'rows/s', rows / seconds);
  for (const party of ['server', 'database', 'client'] as const) {
    book.add(`${name}: ${party}`, 'us/row', (cpu[party] / rows) * 1_000_000);
  }
}

async function bareRead(world: World, tenants: string, connections: number): Promise<number> {
  const given = { url: world.cluster.url(world.database), tenants, connections };
  return numberIn(await new Child('raw read', nodeScript('reference/raw-read', given)).result(), 'perSecond');
}

/** An actor keeps only rows that were written while its tenant was loaded, so they are written to the same process. */
async function warm(context: Context, world: World, book: Book): Promise<void> {
  await world.stop();
  await world.start();
  await fill(context, world, world.population.tenants.length * WARM_ROWS * 3);
  const head = await world.heads();
  const since = (tenant: string): number => Math.max(0, (head.get(tenant) ?? 0) - WARM_ROWS);
  const devices = Array.from({ length: WARM_SOCKETS }, () => world.population.devices).flat();
  const expected = devices.reduce((sum, { tenant }) => sum + (head.get(tenant) ?? 0) - since(tenant), 0);
  const sockets = join(context.folder, 'warm.sockets');
  writeSockets(sockets, devices, since);
  await replay(book, { name: 'warm replay', world, sockets, rows: expected });
}

export async function replays(context: Context): Promise<Outcome> {
  const { options, folder } = context;
  context.tell('replay: setting up');
  const open = async (name: string, tenants: number): Promise<World> =>
    World.open(context, { name, size: { tenants, perTenant: PER_TENANT } });
  const cold = await open('cold', COLD_TENANTS);
  const memory = await open('warm', options.quick ? WARM_TENANTS / 4 : WARM_TENANTS);
  await fill(context, cold, options.quick ? COLD_ROWS / 4 : COLD_ROWS);
  await cold.cluster.with(cold.database, async (client) => client.query('VACUUM ANALYZE items'));
  const total = [...(await cold.heads()).values()].reduce((sum, head) => sum + head, 0);
  const sockets = join(folder, 'cold.sockets');
  writeSockets(sockets, cold.population.devices.slice(0, COLD_TENANTS));
  const tenants = join(folder, 'cold.tenants');
  writeFileSync(tenants, `${cold.population.tenants.join('\n')}\n`);
  const book = new Book();
  for (let round = 1; round <= options.rounds; round++) {
    context.tell(`replay: round ${round} of ${options.rounds}`);
    const reads: number[] = [];
    for (const connections of READERS) {
      const rate = await bareRead(cold, tenants, connections);
      book.add(`bare read, ${connections} at once`, 'rows/s', rate);
      reads.push(rate);
    }
    book.add('bare read, the best', 'rows/s', Math.max(...reads));
    await cold.stop();
    await cold.start();
    await replay(book, { name: 'cold replay', world: cold, sockets, rows: total });
    await warm(context, memory, book);
  }
  await cold.stop();
  await memory.stop();
  const targets = [
    atLeast(book.ratio('cold replay', 'bare read, the best', 'cold replay / bare PostgreSQL read'), 0.7, 0.9),
    atLeast(book.one('warm replay'), 200_000, 300_000),
  ];
  return {
    id: 'S7',
    title: `replay of ${total} rows to ${COLD_TENANTS} sockets by a server just started, and of rows in memory`,
    targets,
    figures: book.without(targets),
    audits: ['every replay gave every row above its cursor once, in version order, and then caught_up'],
  };
}
