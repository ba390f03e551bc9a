/** Acknowledged changes survive kill -9 of the server, of the database, and of both. */
import { readFile } from 'node:fs/promises';
import { join as joinPath } from 'node:path';
import t, { type Test } from 'tap';
import { claim, edited, join, mustWrite, newItem, write, type TestDevice, type TestItem } from './support/devices.js';
import { until } from './support/events.js';
import { inLongRun } from './support/long.js';
import { preparedFolder, testDatabase } from './support/postgres.js';
import { runServer, spawnServer, type Child } from './support/server.js';
import { difference, listAll, range, startWriters, versionsOf, type Acked, type Listing } from './support/stream.js';
import type { Json, Wire } from './support/wire.js';

t.setTimeout(600_000);

/** The postmaster of a data folder. */
const postmasterOf = async (dataDir: string): Promise<number> =>
  Number((await readFile(joinPath(dataDir, 'postgres', 'postmaster.pid'), 'utf8')).split('\n')[0]);

/** The acknowledged changes that are missing: their row is absent, or has neither their version nor a later one. */
function lost(acked: readonly Acked[], stored: Listing): string[] {
  const latest = new Map<string, Acked>();
  for (const change of acked) if (change.version > (latest.get(change.id)?.version ?? 0)) latest.set(change.id, change);
  const rows = new Map(stored.changes.map((change) => [change.id, change]));
  return [...latest.values()].flatMap(({ id, version, kind }) => {
    const row = rows.get(id);
    if (row?.version === version && row.kind === kind) return [];
    // A later change whose reply was lost may have been stored.
    if (row !== undefined && row.version > version) return [];
    return [`${kind} ${id} at ${version}: ${JSON.stringify(row)}`];
  });
}

/** The versions that belong to two items, among the acknowledged changes and the stored rows: there must be none. */
function doubles(acked: readonly Acked[], stored: Listing): number[] {
  const owner = new Map<number, string>();
  return [...acked, ...stored.changes].flatMap(({ id, version }) => {
    const known = owner.get(version) ?? id;
    owner.set(version, known);
    return known === id ? [] : [version];
  });
}

const RESTART_MAX_MS = 60_000;
const KILLS_MORE = 10;

/** Waits for a database process other than `killed` and a service that answers from it. */
const untilUp = async (wire: Wire, dataDir: string, killed: number): Promise<void> => {
  // Children of the killed process may answer a moment longer: a 200 alone does not prove that it is gone.
  const another = async (): Promise<boolean> => {
    const pid = await postmasterOf(dataDir).catch(() => 0);
    return pid > 0 && pid !== killed;
  };
  await until('another database process', another, RESTART_MAX_MS);
  await until('the service', async () => (await wire.get('/service/status')).status === 200, RESTART_MAX_MS);
};

t.test('kill -9', async (t) => {
  const dataDir = await preparedFolder(t);
  const start = async (): Promise<Child> => spawnServer(t, { embedded: true, dataDir });
  let server = await start();
  const first = await claim(server.wire);
  const second = await join(server.wire, first, { name: 'second' });
  const devices: readonly TestDevice[] = [first, second];
  const all = devices.map(({ id }) => id);
  const epoch = (await server.wire.get('/service/status')).text('epoch');
  const acked: Acked[] = [];
  const open: TestItem[] = [];

  /** `part` is the subtest that the assertions belong to. */
  const audit = async (part: Test): Promise<Listing> => {
    const stored = await listAll(server.wire, second.token);
    part.same(lost(acked, stored), [], `all of ${acked.length} acknowledged changes are stored`);
    part.same(doubles(acked, stored), [], 'no version is given twice');
    const me = await server.wire.get('/me', { token: first.token, shape: 'a' });
    part.equal(me.number('server.headVersion'), stored.head);
    const live = stored.changes.filter(({ kind }) => kind === 'item');
    part.equal(me.number('server.itemCount'), live.length, 'the sums agree with the rows');
    part.equal(
      me.number('server.versionSum'),
      live.reduce((sum, { version }) => sum + version, 0),
    );
    part.equal((await server.wire.get('/service/status')).at('epoch'), epoch, 'the epoch is unchanged');
    return stored;
  };
  /** Collects what was acknowledged and what stayed open. `mustFail`: the writers lose their server. */
  const writeAndKill = async (
    part: Test,
    kill: () => Promise<unknown>,
    { mustFail, insertsOnly = true }: { mustFail: boolean; insertsOnly?: boolean },
  ): Promise<void> => {
    const writing = startWriters({ wires: [server.wire], devices, writers: 24, insertsOnly });
    await writing.until(400);
    await kill();
    // With the server gone each writer ends at its first error; otherwise they continue until they are stopped.
    if (!mustFail) await writing.until(writing.acked.length + 100);
    await writing.stop();
    if (mustFail) part.ok(writing.errors.length > 0, 'the kill interrupted the writers');
    acked.push(...writing.acked);
    open.push(...writing.open);
  };

  t.test(
    'DUR-01 DUR-04 EPOCH-06: a killed server loses nothing, and continues with the same versions and epoch',
    async (t) => {
      for (const insertsOnly of inLongRun([true, false], [true, false, true])) {
        await writeAndKill(t, async () => server.end('SIGKILL'), { mustFail: true, insertsOnly });
        server = await start();
        const stored = await audit(t);
        const next = await mustWrite(server.wire, first, newItem(all));
        t.equal(next, stored.head + 1, 'versions continue from the head');
      }
    },
  );

  t.test(
    'DUR-02 DUR-05 EPOCH-06: a killed database loses nothing, and the running server resumes by itself',
    async (t) => {
      for (const _ of range(1, inLongRun(1, 2))) {
        const postmaster = await postmasterOf(dataDir);
        const kill = async (): Promise<void> => {
          process.kill(postmaster, 'SIGKILL');
          await untilUp(server.wire, dataDir, postmaster);
        };
        await writeAndKill(t, kill, { mustFail: false });
        t.not(await postmasterOf(dataDir), postmaster, 'another database process serves now');
        await audit(t);
      }
    },
  );

  t.test('DUR-01 DUR-02 DUR-04 EPOCH-06: killing server and database together loses nothing', async (t) => {
    const postmaster = await postmasterOf(dataDir);
    const kill = async (): Promise<void> => {
      process.kill(postmaster, 'SIGKILL');
      await server.end('SIGKILL');
    };
    await writeAndKill(t, kill, { mustFail: true });
    server = await start();
    const { head } = await audit(t);
    t.equal(await mustWrite(server.wire, first, newItem(all)), head + 1, 'versions continue from the head');
  });

  t.test('DUR-03: a write whose answer was lost is found by its id; sent again it gets one version', async (t) => {
    const nonceOf = (row: Json | undefined): unknown => (row?.['payloadEnc'] as Json | null | undefined)?.['nonce'];
    /** The open items that were stored, and those that were not. */
    const sorted = async () => {
      const rows = new Map((await listAll(server.wire, first.token)).rows.map((row) => [row['id'], row]));
      const gone = open.filter((item) => nonceOf(rows.get(item.id)) === item.nonce.toString('base64url'));
      return { rows, gone, never: open.filter((item) => !rows.has(item.id)) };
    };
    let found = await sorted();
    // Only a kill between a commit and its replies leaves a stored one: kills are repeated until there are both kinds.
    for (let more = 0; more < KILLS_MORE && (found.gone.length === 0 || found.never.length === 0); more++) {
      await writeAndKill(t, async () => server.end('SIGKILL'), { mustFail: true });
      server = await start();
      found = await sorted();
    }
    const { rows, gone, never } = found;
    t.ok(gone.length > 0 && never.length > 0, `${gone.length} were stored, ${never.length} were not`);
    for (const item of [...gone.slice(0, 40), ...never.slice(0, 40)]) {
      const row = rows.get(item.id);
      const again = [await write(server.wire, first, item), await write(server.wire, second, item)];
      t.same(
        again.map(({ status }) => status),
        [200, 200],
      );
      const [version, twice] = again.map((reply) => reply.at('version'));
      t.equal(twice, version, 'sending it again gives the same version');
      if (row !== undefined) t.equal(version, row['version'], 'a stored write keeps its version');
    }
  });

  t.test('DUR-04: a replay from 0 sends exactly the versions of the list, up to the same head', async (t) => {
    const stored = await listAll(server.wire, first.token);
    const socket = await server.wire.connect({ token: second.token });
    const frames = await socket.hello(0);
    t.equal(
      difference(
        versionsOf(frames),
        stored.changes.map(({ version }) => version),
      ),
      '',
    );
    t.equal(frames.at(-1)?.['version'], stored.head);
    t.equal(await server.end('SIGTERM'), 0, 'the server stops cleanly');
  });
});

t.test('DUR-06: two instances that start at once on an empty database leave one sound schema', async (t) => {
  for (const _ of range(1, inLongRun(1, 3))) {
    const database = await testDatabase(t, 'empty');
    const instances = await Promise.all(range(1, 3).map(async () => runServer(t, { database })));
    const [one, two, three] = instances;
    if (one === undefined || two === undefined || three === undefined) throw new Error('no instance');
    t.equal(new Set(instances.map(({ tenantId }) => tenantId)).size, 1, 'they serve one tenant');
    const first = await claim(one.wire);
    const second = await join(two.wire, first, { existingWire: three.wire });
    const item = newItem([first.id, second.id]);
    t.equal(await mustWrite(one.wire, first, item), 1);
    t.equal(await mustWrite(two.wire, second, edited(item)), 2);
    t.same(
      (await listAll(three.wire, first.token)).changes.map(({ version }) => version),
      [2],
    );
    await Promise.all(instances.map(async (instance) => instance.stop()));
  }
});
