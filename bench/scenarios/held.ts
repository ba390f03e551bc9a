/** S9, only when it is asked for: a quarter of a million sockets and more, held with heartbeats. */
import { freemem } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { AuditError } from '../audit.js';
import type { Context } from '../context.js';
import { Crowd, processesFor } from '../crowd.js';
import { Cluster } from '../database.js';
import { cpuOf, ownBytes } from '../machine.js';
import { Book, type Outcome } from '../stats.js';
import { World } from '../world.js';
import { CONNECTIONS_EACH } from './reconnect.js';

const PER_TENANT = 5;
/** WS_PING_INTERVAL_MS as it is by default, s. */
const PING_S = 30;
const FLOOR = 250_000;
const GOAL = 1_000_000;
const GIB = 2 ** 30;

const cpuOfAll = (pids: readonly number[]): number => pids.reduce((sum, pid) => sum + cpuOf(pid), 0);

export async function heldSockets(context: Context): Promise<Outcome> {
  const { options, drivers, folder } = context;
  const count = Math.ceil(options.sockets / PER_TENANT) * PER_TENANT;
  const processes = processesFor(count);
  context.tell(`held sockets: setting up ${count} devices, ${processes} instances`);
  const cluster = await Cluster.start('held', { connections: CONNECTIONS_EACH * (processes + 1) });
  const size = { tenants: count / PER_TENANT, perTenant: PER_TENANT };
  const world = await World.open({ name: 'held', folder, cluster, drivers, size, instances: processes });
  const servers = world.servers.map(({ pid }) => pid);
  const own = (): number => servers.reduce((sum, pid) => sum + ownBytes(pid), 0);
  const crowd = new Crowd({ drivers, folder, devices: world.population.devices });
  const book = new Book();
  const [free, before] = [freemem(), own()];
  context.tell('held sockets: opening');
  book.add('until all had caught up', 's', await crowd.come({ port: world.port }));
  context.tell(`held sockets: holding for ${options.hold} s`);
  const [begun, cpu, clients, atFirst] = [
    performance.now(),
    cpuOfAll(servers),
    cpuOfAll(crowd.pids),
    await crowd.count(),
  ];
  await sleep(options.hold * 1_000);
  const atLast = await crowd.count();
  const seconds = (performance.now() - begun) / 1_000;
  const pings = atLast.pings - atFirst.pings;
  // One round of heartbeats may be cut off at either end.
  const expected = count * Math.max(0, Math.floor(seconds / PING_S) - 1);
  if (atLast.live !== count || pings < expected) {
    throw new AuditError(`${atLast.live} of ${count} sockets held, ${pings} of at least ${expected} heartbeats`);
  }
  const used = cpuOfAll(servers) - cpu;
  book.add('servers for a heartbeat', 'us', (used / pings) * 1e6);
  book.add('servers', 'cores', used / seconds);
  book.add('clients', 'cores', (cpuOfAll(crowd.pids) - clients) / seconds);
  book.add('heartbeats', 'count/s', pings / seconds);
  book.add('memory of the servers, a socket', 'bytes', (own() - before) / count);
  book.add('memory of the machine, both ends and the kernel', 'GiB', (free - freemem()) / GIB);
  await crowd.leave([]);
  await world.stop();
  await cluster.remove();
  return {
    id: 'S9',
    title: `sockets held for ${options.hold} s with a heartbeat every ${PING_S} s by ${processes} instances on one port`,
    targets: [
      { name: 'sockets, none dropped', unit: 'count', values: [count], atLeast: true, floor: FLOOR, goal: GOAL },
      {
        name: 'servers for a heartbeat',
        unit: 'us',
        values: book.values('servers for a heartbeat'),
        atLeast: false,
        floor: 20,
        goal: 12,
      },
    ],
    figures: book.series().filter(({ name }) => name !== 'servers for a heartbeat'),
    audits: [`every socket was open at the end and had answered its heartbeats: ${pings} in all`],
  };
}
