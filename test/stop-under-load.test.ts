/**
 * SIGTERM at any moment, while clients read, write and reconnect. Nothing queries the database after it is gone, so
 * a clean stop logs nothing at warn or above; what was acknowledged is stored.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import t, { type Test } from 'tap';
import { openClient } from '../src/server/storage/database.js';
import { claim, join, mustWrite, newId, newItem, type TestDevice } from './support/devices.js';
import { until } from './support/events.js';
import { KeepAlive } from './support/keep-alive.js';
import { inLongRun } from './support/long.js';
import { PATIENT, testDatabase } from './support/postgres.js';
import { runServer, spawnServer, type Child, type Running, type SpawnOptions } from './support/server.js';
import { listAll, range, startWriters, type Acked } from './support/stream.js';
import { Wire } from './support/wire.js';

t.setTimeout(600_000);

/** Secrets that a server warns of where they are not set. */
const QUIET = { BLOB_URL_SECRET: 'blob-url-secret-of-the-tests-0123456789' };
const WARN = 40;
const WRITERS = 6;
const READERS = 4;
const RECONNECTING = 6;
/** The signal is sent at a random moment within this time after the load has begun. */
const MOMENT_MS = 400;

interface LogLine {
  readonly level: number;
  readonly msg?: string;
  readonly cause?: { readonly message?: string; readonly cause?: { readonly message?: string } };
}

/** What a server logged at warn or above, and other lines of output that mention an error; each once. */
function trouble(output: readonly string[]): string[] {
  const found = output.flatMap((line) => {
    if (!line.startsWith('{')) return /error|exception|\bat .*:\d+:\d+/i.test(line) ? [line] : [];
    const { level, msg, cause } = JSON.parse(line) as LogLine;
    return level < WARN ? [] : [[level, msg, cause?.message, cause?.cause?.message].filter(Boolean).join(' | ')];
  });
  return [...new Set(found)];
}

interface Load {
  readonly acked: readonly Acked[];
  /** Resolves when all kinds of work are under way: writes, reads and sockets. */
  busy(): Promise<void>;
  /** Ends the load, once the server is gone; resolves when no request is under way. */
  ended(): Promise<void>;
}

/** Everything that queries the database: writes, pages, lists, changes of devices and bins, sockets from 0. */
function load(port: number, devices: readonly TestDevice[]): Load {
  const wires = Array.from({ length: WRITERS }, () => new Wire(port));
  const writing = startWriters({ wires, devices, writers: WRITERS });
  let gone = false;
  const done = { reads: 0, sockets: 0 };
  const loops: Promise<void>[] = [];
  /** Repeats the work until the server is gone, the only thing that a failure can mean here. */
  const loop = (work: (wire: Wire, device: TestDevice, turn: number) => Promise<void>, number: number): void => {
    const device = devices[number % devices.length];
    if (device === undefined) throw new Error('no device');
    const wire = new Wire(port);
    wires.push(wire);
    const run = async (): Promise<void> => {
      for (let turn = 0; !gone; turn++) await work(wire, device, turn).catch(() => sleep(5));
    };
    loops.push(run());
  };
  let bin = '';
  for (let n = 0; n < READERS; n++) {
    loop(async (wire, { token, id }, turn) => {
      done.reads++;
      await wire.get('/items?since=0&limit=200', { token, shape: 'a' });
      await wire.get('/devices', { token });
      // Writes are checked anew after each change of devices or bins, and refused after the sixth: so one loop makes
      // such changes, seldom.
      if (n > 0) return;
      if (turn % 9 === 0) await wire.patch(`/devices/${id}`, { name: `name ${turn}` }, { token, shape: 'a' });
      if (turn % 9 === 3) await wire.post('/bins', { id: (bin = newId()) }, { token, shape: 'a' });
      if (turn % 9 === 6) await wire.ask('DELETE', `/bins/${bin}`, { token, shape: 'a', body: { force: true } });
    }, n);
  }
  for (let n = 0; n < RECONNECTING; n++) {
    loop(async (wire, { token }, turn) => {
      const socket = await wire.connect({ token });
      if (turn % 3 === 0) socket.send({ type: 'hello', since: 0 });
      else await socket.hello();
      socket.terminate();
      done.sockets++;
    }, n);
  }
  return {
    acked: writing.acked,
    async busy() {
      await writing.until(60);
      await until('reads and sockets', () => done.reads > 4 && done.sockets > 8);
    },
    async ended() {
      gone = true;
      wires.forEach((wire) => wire.close());
      await Promise.all([...loops, writing.stop()]);
    },
  };
}

const faultsOf = ({ logs }: Running): string[] => trouble(logs.map((line) => JSON.stringify(line)));

/** Starts a server, puts load on it and ends it by SIGTERM at a random moment. Returns what was acknowledged. */
async function live(
  t: Test,
  name: string,
  options: SpawnOptions,
): Promise<{ child: Child; acked: Acked[]; devices: TestDevice[] }> {
  const child = await spawnServer(t, { ...options, env: { ...QUIET, ...options.env } });
  const first = await claim(child.wire);
  const devices = [first, await join(child.wire, first)];
  const work = load(child.port, devices);
  await work.busy();
  const moment = Math.random() * MOMENT_MS;
  await sleep(moment);
  t.equal(await child.end('SIGTERM'), 0, `${name}: the exit code is 0`);
  await work.ended();
  t.same(
    trouble(child.output),
    [],
    `${name}: nothing at warn or above, ${moment.toFixed(0)} ms after the load was there`,
  );
  return { child, acked: [...work.acked], devices };
}

/** Checks that every acknowledged change is stored, unless a later one of the same item replaced it. */
async function kept(
  t: Test,
  server: { readonly wire: Wire },
  { acked, devices }: { acked: Acked[]; devices: TestDevice[] },
): Promise<void> {
  const { changes } = await listAll(server.wire, devices[0]?.token ?? '');
  const stored = new Map(changes.map(({ id, version }) => [id, version]));
  const lost = acked.filter(({ id, version }) => (stored.get(id) ?? 0) < version);
  t.same(lost, [], `all of ${acked.length} acknowledged changes are stored`);
}

/** The number of random moments at which SIGTERM is sent. */
const ROUNDS = inLongRun(1, 5);

t.test('LOG-05 INST-25: SIGTERM under load ends one process without a warning and without a lost write', async (t) => {
  for (let round = 1; round <= ROUNDS; round++) {
    const database = await testDatabase(t);
    const lived = await live(t, `round ${round}`, { database });
    await kept(t, await runServer(t, { database }), lived);
  }
});

t.test('LOG-05 INST-21: SIGTERM under load ends two instances on one port in the same way', async (t) => {
  const database = await testDatabase(t);
  const lived = await live(t, 'two instances', { database, env: { INSTANCES: '2' } });
  await kept(t, await runServer(t, { database }), lived);
});

for (const instances of inLongRun(['2'], ['1', '2'])) {
  t.test(`LOG-05 INST-21: SIGTERM under load with the embedded database, instances: ${instances}`, async (t) => {
    const env = { INSTANCES: instances };
    const lived = await live(t, 'embedded', { embedded: true, env });
    await kept(t, await spawnServer(t, { embedded: true, dataDir: lived.child.dataDir, env }), lived);
  });
}

/** A lock on a table: statements that use the table wait for a while. */
class Jam {
  private constructor(private readonly client: pg.Client) {}

  static async of(t: Test, { url }: { readonly url: string }, table: string): Promise<Jam> {
    const client = await openClient({ ...PATIENT, url, name: 'jam', onLost: () => undefined });
    t.teardown(async () => client.end());
    await client.query(`BEGIN; LOCK TABLE ${table} IN ACCESS EXCLUSIVE MODE`);
    return new Jam(client);
  }

  /** Resolves when this many statements wait for a lock. */
  async holds(count: number): Promise<void> {
    const text = 'SELECT count(*)::integer AS n FROM pg_locks WHERE NOT granted';
    const waiting = async (): Promise<number> => Number((await this.client.query<{ n: number }>(text)).rows[0]?.n);
    await until('statements to wait', async () => (await waiting()) >= count);
  }

  /** Stops the server without any grace, and holds the lock until long after its connections were cut. */
  async outlast(server: Running): Promise<void> {
    const stopped = server.stop(0);
    const refused = async (): Promise<boolean> =>
      KeepAlive.open(server.port).then(
        (open) => (open.end(), false),
        () => true,
      );
    await until('nobody to listen', refused);
    await sleep(HEADLONG_MS);
    await this.client.query('ROLLBACK');
    await stopped;
  }
}

/** ms after which a stop that does not wait for calls has ended the pool; for one that waits any time will do. */
const HEADLONG_MS = 300;

t.test('LOG-05: calls that are cut off at the end of the grace keep the database until they are done', async (t) => {
  const database = await testDatabase(t);
  const server = await runServer(t, { database, env: QUIET });
  const device = await claim(server.wire);
  const other = await join(server.wire, device);
  const socket = await server.wire.connect({ token: other.token });
  await socket.hello();
  const { token } = device;
  const bins = range(1, 8).map(() => newId());
  for (const id of bins) await server.wire.post('/bins', { id }, { token, shape: 'a' });
  for (const binId of bins) await mustWrite(server.wire, device, newItem([device.id, other.id], { binId }));
  // A deletion takes several statements, and so does its announcement to a socket.
  const jam = await Jam.of(t, database, 'bins');
  const deleting = bins.map((id) =>
    server.wire.ask('DELETE', `/bins/${id}`, { token, shape: 'a', body: { force: true } }),
  );
  const answers = Promise.allSettled(deleting);
  await jam.holds(bins.length);
  await jam.outlast(server);
  await answers;
  t.same(faultsOf(server), []);
  const [left] = await server.sql('SELECT count(*)::integer AS n FROM bins WHERE deleted_at IS NULL');
  t.equal(left?.['n'], 1, 'the deletions that had begun are done: only the inbox is left');
});
