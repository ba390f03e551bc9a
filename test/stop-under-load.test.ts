/**
 * SIGTERM at any moment, while everybody reads, writes and comes back. A clean stop is no news: nobody asks the database
 * after it is gone, so nothing is logged at warn or above, and what was acknowledged is stored.
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

t.setTimeout(300_000);

/** Secrets that a server would warn of, were they not set. */
const QUIET = { BLOB_URL_SECRET: 'blob-url-secret-of-the-tests-0123456789' };
const WARN = 40;
const WRITERS = 6;
const READERS = 4;
const RECONNECTING = 6;
/** The moment of the signal is drawn from so long after the load is there. */
const MOMENT_MS = 400;

interface LogLine {
  readonly level: number;
  readonly msg?: string;
  readonly cause?: { readonly message?: string; readonly cause?: { readonly message?: string } };
}

/** What a server logged at warn or above, and what is no line of a log at all and speaks of an error; each once. */
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
  /** Resolves when so much was written, read and opened that all kinds of work are under way. */
  busy(): Promise<void>;
  /** Resolves when nobody asks any more; the server is gone by then. */
  ended(): Promise<void>;
}

/** Everything that asks the database: writes, pages, lists, changes of devices and bins, sockets from 0 and held calls. */
function load(port: number, devices: readonly TestDevice[]): Load {
  const wires = Array.from({ length: WRITERS }, () => new Wire(port));
  const writing = startWriters({ wires, devices, writers: WRITERS });
  let gone = false;
  const done = { reads: 0, sockets: 0 };
  const loops: Promise<void>[] = [];
  /** Over and over until the server is gone, which is all that a failure can mean here. */
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
      // Writes are checked anew after each change of devices or bins, and refused after the sixth: so one makes them, seldom.
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

/** One server's life: started, loaded, told to end at a drawn moment. Answers what was acknowledged. */
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
  t.equal(await child.end('SIGTERM'), 0, `${name}: the exit code`);
  await work.ended();
  t.same(
    trouble(child.output),
    [],
    `${name}: nothing at warn or above, ${moment.toFixed(0)} ms after the load was there`,
  );
  return { child, acked: [...work.acked], devices };
}

/** Every acknowledged change is stored, unless a later one of the same item took its place. */
async function kept(
  t: Test,
  server: { readonly wire: Wire },
  { acked, devices }: { acked: Acked[]; devices: TestDevice[] },
): Promise<void> {
  const { changes } = await listAll(server.wire, devices[0]?.token ?? '');
  const stored = new Map(changes.map(({ id, version }) => [id, version]));
  const lost = acked.filter(({ id, version }) => (stored.get(id) ?? 0) < version);
  t.same(lost, [], `all of ${acked.length} acknowledged changes are there`);
}

/** SIGTERM at so many drawn moments. */
const ROUNDS = inLongRun(1, 5);

t.test('LOG-05 INST-25: SIGTERM under load, one process', async (t) => {
  for (let round = 1; round <= ROUNDS; round++) {
    const database = await testDatabase(t);
    const lived = await live(t, `round ${round}`, { database });
    await kept(t, await runServer(t, { database }), lived);
  }
});

t.test('LOG-05 INST-21: the same with two instances on one port', async (t) => {
  const database = await testDatabase(t);
  const lived = await live(t, 'two instances', { database, env: { INSTANCES: '2' } });
  await kept(t, await runServer(t, { database }), lived);
});

for (const instances of inLongRun(['2'], ['1', '2'])) {
  t.test(`LOG-05 INST-21: the same with the embedded database, instances: ${instances}`, async (t) => {
    const env = { INSTANCES: instances };
    const lived = await live(t, 'embedded', { embedded: true, env });
    await kept(t, await spawnServer(t, { embedded: true, dataDir: lived.child.dataDir, env }), lived);
  });
}

/** A table that nobody reads or writes for a while: whoever asks for it waits. */
class Jam {
  private constructor(private readonly client: pg.Client) {}

  static async of(t: Test, { url }: { readonly url: string }, table: string): Promise<Jam> {
    const client = await openClient({ ...PATIENT, url, name: 'jam', onLost: () => undefined });
    t.teardown(async () => client.end());
    await client.query(`BEGIN; LOCK TABLE ${table} IN ACCESS EXCLUSIVE MODE`);
    return new Jam(client);
  }

  /** Resolves when so many statements wait for it. */
  async holds(count: number): Promise<void> {
    const text = 'SELECT count(*)::integer AS n FROM pg_locks WHERE NOT granted';
    const waiting = async (): Promise<number> => Number((await this.client.query<{ n: number }>(text)).rows[0]?.n);
    await until('statements to wait', async () => (await waiting()) >= count);
  }

  /** Stops the server without any grace, and goes on until long after its connections were cut. */
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

/** A stop that waits for nobody has ended the pool after so long, ms; one that waits is the same however long this is. */
const HEADLONG_MS = 300;

t.test('LOG-05: calls that are cut off when the grace is over have their database until they are done', async (t) => {
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
  // A deletion is a row of statements, and so is what a socket is told of it.
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
  t.equal(left?.['n'], 1, 'what they had begun is done: only the inbox is left');
});
