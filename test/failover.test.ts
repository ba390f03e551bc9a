/** A pair of PostgreSQL servers of deploy/failover, reached by a list of hosts; the standby is promoted under load. */
import t, { type Test } from 'tap';
import { claim, newItem, write, type TestDevice } from './support/devices.js';
import { until } from './support/events.js';
import { FailoverPair, Load, withoutFailover, type FailoverNode } from './support/failover.js';
import { runServer, type Running } from './support/server.js';
import { listAll } from './support/stream.js';
import type { Wire } from './support/wire.js';

t.setTimeout(600_000);

const skip = withoutFailover();
interface Cancelled {
  readonly primary: FailoverNode;
  readonly standby: FailoverNode;
  readonly wire: Wire;
  readonly device: TestDevice;
}

const epochOf = async ({ wire }: Pick<Running, 'wire'>): Promise<string> =>
  (await wire.get('/service/status')).text('epoch');

/** A write whose commit PostgreSQL is made to report as done without its standby. */
async function cancelledCommit(t: Test, { primary, standby, wire, device }: Cancelled): Promise<void> {
  await standby.freeze();
  const item = newItem([device.id]);
  let answered = false;
  const writing = write(wire, device, item).finally(() => (answered = true));
  // Each attempt of the server waits for the standby and is cancelled: PostgreSQL reports success with a warning.
  let cancelled = 0;
  await until('an answer', async () => {
    const count = await primary.asSuperuser(`SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
      WHERE wait_event = 'SyncRep' AND application_name = 'service-commit'`);
    cancelled += Number(count);
    return answered;
  });
  t.ok(cancelled > 0, 'a wait was cancelled');
  t.equal((await writing).status, 503, 'the write is not acknowledged');
  const stored = (): Promise<string> => primary.asSuperuser(`SELECT count(*) FROM items WHERE id = '${item.id}'`);
  t.equal(await stored(), '1', 'the write is committed on the primary all the same');
  standby.thaw();
  await until('the same write', async () => (await write(wire, device, item)).status === 200);
  t.equal(await stored(), '1', 'the item is stored once');
}

t.test(
  'FAIL-01 FAIL-02 FAIL-03: acknowledged writes survive a promotion, after which the epoch is new',
  { skip },
  async (t) => {
    const pair = await FailoverPair.start(t, { mode: 'synchronous' });
    const server = await runServer(t, { database: { url: pair.url } });
    const { wire } = server;
    const device = await claim(wire);
    await cancelledCommit(t, { primary: pair.a, standby: pair.b, wire, device });
    const before = await epochOf(server);
    const socket = await wire.connect({ token: device.token });
    await socket.hello();
    const load = new Load([wire], device, 4);
    await load.more(50);
    await pair.a.crash();
    await pair.b.command('promote');
    t.equal((await socket.closed).code, 1012, 'the promotion closes the socket');
    await load.more(50);
    t.not(await epochOf(server), before, 'the epoch is new');
    await pair.a.start();
    t.notOk(await pair.a.takesWrites(), 'the former primary returns as a standby');
    await pair.attach(pair.b);
    await load.more(50);
    await load.stop();
    t.strictSame(await load.lost(wire, device), []);
  },
);

t.test(
  'FAIL-04 FAIL-08: a former primary that returns alongside its successor acknowledges nothing',
  { skip },
  async (t) => {
    const pair = await FailoverPair.start(t, { mode: 'asynchronous' });
    const { a, b } = pair;
    const server = await runServer(t, { database: { url: pair.url } });
    const { wire } = server;
    const device = await claim(wire);
    const load = new Load([wire], device, 2);
    await load.more(20);
    await a.crash();
    await b.command('promote');
    await load.more(20);
    await load.stop();
    const epoch = await epochOf(server);
    const head = (await listAll(wire, device.token)).head;
    await a.startByHand();
    t.ok(await a.takesWrites(), 'the former primary accepts writes');
    t.ok(await b.takesWrites());
    await b.freeze();
    await a.command('attach');
    t.ok(a.running && (await a.takesWrites()), 'FAIL-08: a primary whose peer does not answer continues');
    // The primary is frozen: every connection is opened anew, and only the former primary answers.
    await until('an outage', async () => (await write(wire, device, newItem([device.id]))).status === 503);
    for (const _ of [1, 2, 3, 4]) t.equal((await write(wire, device, newItem([device.id]))).status, 503);
    b.thaw();
    await until('a write', async () => (await write(wire, device, newItem([device.id]))).status === 200);
    t.equal(await epochOf(server), epoch, 'the epoch is unchanged');
    t.ok((await listAll(wire, device.token)).head > head);
    t.equal(await a.asSuperuser('SELECT count(*) FROM items WHERE version > 1000000'), '0');
    const refused = (env: Readonly<Record<string, string>>): Promise<string> =>
      runServer(t, { database: { url: pair.url }, env }).then(
        async (other) => {
          const found = await epochOf(other);
          await other.stop();
          return found;
        },
        (error: unknown) => String(error),
      );
    t.equal(await refused({}), epoch, 'an instance that starts uses the newer of the two');
    await b.command('attach');
    t.ok(await b.takesWrites(), 'FAIL-08: the newer primary continues');
    await a.stepsDown();
    await a.start();
    t.notOk(await a.takesWrites(), 'FAIL-08: the former primary returns as a standby');
  },
);
