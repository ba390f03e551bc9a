/** S5: memory per idle device socket relative to bare uWS, in one process each. */
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Child } from '../child.js';
import { startBare, type Context } from '../context.js';
import { Receivers, type ReceiverOptions } from '../drivers.js';
import { ownBytes } from '../machine.js';
import { writeSockets } from '../population.js';
import { atMost, Book, type Outcome } from '../stats.js';
import { World } from '../world.js';

/** A process may hold 20,000 descriptors here, some of which the server itself needs. */
const SOCKETS = 19_000;
const PER_TENANT = 5;
/**
 * Opened and closed repeatedly beforehand, so that one-time memory is not attributed to sockets: code, buffers, and the
 * young generation of the heap, which permanently grows by 20 MB during the first thousands of upgrades.
 */
const FIRST = 500;
const FIRST_TIMES = 12;
const REST_MS = 1_000;

/** Memory of a process after a garbage collection. */
async function restingBytes(server: Child): Promise<number> {
  await sleep(REST_MS);
  for (let i = 0; i < 2; i++) await server.ask('collect', 'collected');
  return ownBytes(server.pid);
}

interface Held {
  readonly context: Context;
  readonly server: Child;
  /** All options except the file with the sockets. */
  readonly options: Omit<ReceiverOptions, 'sockets'>;
  readonly first: string;
  readonly all: string;
  readonly count: number;
}

/** The server's own memory per idle socket, bytes. */
async function bytesPerSocket({ context, server, options, first, all, count }: Held): Promise<number> {
  for (let time = 0; time < FIRST_TIMES; time++) {
    const warming = await Receivers.ready(context.drivers, { ...options, sockets: first });
    await warming.stop();
  }
  const before = await restingBytes(server);
  const receivers = await Receivers.ready(context.drivers, { ...options, sockets: all });
  const after = await restingBytes(server);
  const { live } = await receivers.report();
  if (live !== count) throw new Error(`${live} of ${count} sockets were still open`);
  await receivers.stop();
  return (after - before) / count;
}

export async function idleSockets(context: Context): Promise<Outcome> {
  const { options, folder } = context;
  const count = context.scaled(SOCKETS);
  context.tell(`idle sockets: setting up ${count} devices`);
  const size = { tenants: (count + FIRST) / PER_TENANT, perTenant: PER_TENANT };
  const world = await World.open(context, { name: 'idle', size });
  const [first, all] = [join(folder, 'idle.first'), join(folder, 'idle.all')];
  const { tenants, devices } = world.population;
  // Each part has whole tenants, so that the first part does not load tenants of the second into memory.
  const early = new Set(tenants.slice(0, FIRST / PER_TENANT));
  for (const [file, isEarly] of [[first, true] as const, [all, false] as const]) {
    const part = devices.filter(({ tenant }) => early.has(tenant) === isEarly);
    writeSockets(file, part);
  }
  const book = new Book();
  for (let round = 1; round <= options.rounds; round++) {
    context.tell(`idle sockets: round ${round} of ${options.rounds}`);
    const own = { context, first, all, count };
    const bare = await startBare();
    const bareOptions = { port: bare.port, kind: 'bare', path: '/idle' } as const;
    book.add('bare uWS', 'bytes', await bytesPerSocket({ ...own, server: bare.child, options: bareOptions }));
    await bare.child.stop();
    // A new process each round: one that has held sockets before can reuse their memory.
    await world.stop();
    await world.start();
    const ours = { server: world.server, options: { port: world.port } };
    book.add('a device socket', 'bytes', await bytesPerSocket({ ...own, ...ours }));
  }
  await world.stop();
  return {
    id: 'S5',
    title: `memory of an idle socket, ${count} in one process, ${PER_TENANT} devices a tenant, hello sent and caught up`,
    targets: [
      atMost(book.ratio('a device socket', 'bare uWS'), 3, 2),
      atMost(book.one('a device socket'), 1_400, 1_000),
    ],
    figures: [book.one('bare uWS')],
    audits: ['every socket was open at the end of each measurement'],
  };
}
