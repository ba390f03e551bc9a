/** The bench runs: short legs that measure nothing worth quoting, with their audits. */
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import t from 'tap';
import { Context, type Options } from '../bench/context.js';
import { buildDrivers, Receivers } from '../bench/drivers.js';
import { openFastify } from '../bench/fastify-world.js';
import { leg } from '../bench/leg.js';
import { World } from '../bench/world.js';
import { temporaryFolder } from './support/postgres.js';

const OPTIONS: Options = {
  ...{ scenarios: new Set<never>(), rounds: 1, seconds: 1, markdown: false, node: false, instances: 2 },
  ...{ placed: undefined, sockets: undefined, hold: 1, minutes: 2, quick: true },
};

t.test('LOAD-24: the bench loads two instances with writes and sockets, and its audit holds', async (t) => {
  const drivers = buildDrivers();
  const context = new Context(OPTIONS, drivers);
  t.teardown(async () => context.close());
  const size = { tenants: 4, perTenant: 3 };
  // The Node drivers know one port.
  for (const placed of drivers.kind === 'C' ? ([undefined, 'together'] as const) : [undefined]) {
    const name = placed ?? 'spread';
    const { target, receivers } = await World.listening(context, { name, size, instances: 2, placed });
    const load = { drivers, target, receivers, connections: 4, seconds: OPTIONS.seconds };
    const { audited, push, writes } = await leg(load);
    await receivers.stop();
    await target.stop();
    t.ok(writes > 0, `${name}: writes were acknowledged`);
    t.ok(audited.received >= writes * 2, `${name}: each was pushed to the two other devices of its tenant`);
    t.ok((push?.p50 ?? 0) > 0);
  }
});

t.test('LOAD-24: the reference pushes in order where two writers of a tenant commit one after the other', async (t) => {
  const drivers = buildDrivers();
  const context = new Context({ ...OPTIONS, instances: 1 }, drivers);
  t.teardown(async () => context.close());
  // Few tenants and a connection for each device: reports of commits overtake each other within a second.
  const reference = await openFastify(context, { tenants: 2, perTenant: 8 });
  const { audited } = await leg({ drivers, ...reference, connections: 16, seconds: 2 });
  await reference.receivers.stop();
  for (const server of reference.target.servers) await server.stop();
  t.equal(audited.received, audited.acked * 7);
});

const lost = 'LOAD-24: a socket that is lost as it is opened is opened again, once; a second one is a fault';
t.test(lost, { skip: buildDrivers().kind === 'C' ? false : 'there is no C compiler' }, async (t) => {
  const drivers = buildDrivers();
  const sockets = join(await temporaryFolder(t), 'sockets');
  writeFileSync(sockets, '- 0 localhost\n'.repeat(3));
  let losing = 0;
  const server = createServer((socket) => {
    socket.once('data', () => {
      if (losing-- > 0) socket.destroy();
      else socket.write('HTTP/1.1 101 Switching Protocols\r\n\r\n');
    });
    socket.on('error', () => undefined);
  }).listen(0, '127.0.0.1');
  t.teardown(() => server.close());
  await once(server, 'listening');
  const options = { port: (server.address() as AddressInfo).port, sockets, kind: 'bare' } as const;

  losing = 1;
  const receivers = await Receivers.ready(drivers, options);
  t.match(await receivers.report(), { live: 3, codes: { 1006: 1 } });
  await receivers.stop();

  losing = 2;
  await t.rejects(Receivers.ready(drivers, options), /exit 2/);
});
