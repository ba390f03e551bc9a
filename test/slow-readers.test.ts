/** Readers that stop reading: the server's memory stays bounded, and nothing is lost. */
import t from 'tap';
import { claim, join, type TestDevice } from './support/devices.js';
import { inLongRun } from './support/long.js';
import { spawnServer, type Child } from './support/server.js';
import { residentBytes } from './support/memory.js';
import { SlowSocket, type Summary } from './support/slow.js';
import { difference, range, startWriters } from './support/stream.js';

t.setTimeout(600_000);

const MIB = 1024 * 1024;
const ITEM_BYTES = 60_000;
const ITEMS = inLongRun(400, 700);
const READERS = 8;
/** Bytes due to each reader; base64 makes 4 bytes of 3. */
const OWED = (ITEMS * ITEM_BYTES * 4) / 3;
/** Well below what a server that buffers for its readers would hold, and several times what this one may hold. */
const GROWTH_MAX = (READERS * OWED) / 4;

const isChange = ({ type }: Summary): boolean => type === 'item' || type === 'delete' || type === 'ack';
/** A heartbeat may come anywhere: how long the test takes depends on the machine. */
const isNoPing = ({ type }: Summary): boolean => type !== 'ping';
const lastVersion = ({ summaries }: SlowSocket): number => summaries.findLast(isChange)?.version ?? 0;

t.test('slow readers', async (t) => {
  const server = await spawnServer(t);
  const first = await claim(server.wire);
  const second = await join(server.wire, first, { name: 'second' });
  const memory = async (): Promise<number> => residentBytes(server.process.pid ?? 0);

  t.test('WS-24 WS-25 WS-26: live sockets that do not read take bounded memory and get all later', async (t) => {
    const sockets = await openAll(server, [first, second]);
    for (const socket of sockets) socket.send({ type: 'hello', since: 0, acks: true });
    for (const socket of sockets) await socket.until(({ caughtUp }) => caughtUp !== undefined);
    const fast = await SlowSocket.open({ port: server.port, token: first.token });
    t.teardown(() => fast.close());
    fast.send({ type: 'hello', since: 0, acks: true });
    await fast.until(({ caughtUp }) => caughtUp !== undefined);

    const work = { wires: [server.wire], devices: [first, second], bytes: ITEM_BYTES, insertsOnly: true };
    // Warmed up first: the memory that the writes themselves need is not the readers'.
    const warm = startWriters({ ...work, writers: 4, limit: 200 });
    await warm.until(200);
    await warm.stop();
    const before = await memory();
    for (const socket of sockets) socket.stopReading();
    const writing = startWriters({ ...work, writers: 4, limit: ITEMS });
    let most = 0;
    for (const part of range(1, 10)) {
      await writing.until((part * ITEMS) / 10);
      most = Math.max(most, await memory());
    }
    await writing.stop();
    t.same([writing.refusals, writing.errors], [[], []]);
    const head = Math.max(...writing.acked.map(({ version }) => version));
    await fast.until((socket) => lastVersion(socket) >= head);
    most = Math.max(most, await memory());
    t.ok(most - before < GROWTH_MAX, `${mib(most - before)} MiB more, ${mib(READERS * OWED)} MiB were due`);

    for (const socket of sockets) socket.readAgain();
    for (const socket of [fast, ...sockets]) {
      await socket.until((socket) => lastVersion(socket) >= head);
      const versions = socket.summaries.filter(isChange).map(({ version }) => version);
      t.equal(difference(versions, range(1, head)), '', 'every version once, in order, own changes as acks');
      t.equal(socket.summaries.filter(({ type }) => type === 'caught_up').length, 1, 'caught_up came once');
      t.equal(socket.closedWith, undefined);
      socket.close();
    }
  });

  t.test('REPLAY-07: a long history for readers that do not read is not held in memory', async (t) => {
    const measure = await SlowSocket.open({ port: server.port, token: first.token });
    measure.send({ type: 'hello', since: 0 });
    await measure.until(({ caughtUp }) => caughtUp !== undefined);
    measure.close();
    const before = await memory();
    const sockets = await openAll(server, [first, second]);
    for (const socket of sockets) socket.stopReading();
    for (const socket of sockets) socket.send({ type: 'hello', since: 0 });
    // When a reader that sent hello after them has everything, a server that buffers would hold it for them too.
    const last = await SlowSocket.open({ port: server.port, token: second.token });
    t.teardown(() => last.close());
    last.send({ type: 'hello', since: 0 });
    await last.until(({ caughtUp }) => caughtUp !== undefined);
    const grown = (await memory()) - before;
    t.ok(grown < GROWTH_MAX, `${mib(grown)} MiB more, ${mib(READERS * OWED)} MiB were due`);
    for (const socket of sockets) {
      socket.readAgain();
      await socket.until(({ caughtUp }) => caughtUp !== undefined);
      const [found, wanted] = [socket, last].map(({ summaries }) => summaries.filter(isNoPing));
      t.equal(difference(found ?? [], wanted ?? []), '', 'the same frames as the reader that did not stop');
      socket.close();
    }
  });
});

const mib = (bytes: number): number => Math.round(bytes / MIB);

async function openAll(server: Child, devices: readonly TestDevice[]): Promise<SlowSocket[]> {
  return Promise.all(
    range(1, READERS).map(async (number) => {
      const device = devices[number % devices.length];
      return SlowSocket.open({ port: server.port, token: device?.token ?? '' });
    }),
  );
}
