/** Links between instances of one machine, which bypass the database (src/server/storage/links.ts), on real sockets. */
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import { Links } from '../src/server/storage/links.js';
import { readChanges } from '../src/server/storage/notification.js';
import type { ItemRow } from '../src/server/tenant/codec.js';
import { until } from './support/events.js';
import {
  changeBytes,
  changesHead,
  COALESCE_MS,
  framesOf,
  pair,
  rowsOf,
  subscribes,
  tell,
  type Instance,
} from './support/feeds.js';
import { temporaryFolder } from './support/postgres.js';

const BLOCK_BYTES = 64 * 1024;

interface Received {
  readonly from: string;
  readonly tenantId: string;
  readonly head: number;
  readonly versions: readonly number[];
  readonly frames: readonly string[];
}

/** Links of an instance, what arrived over them, and in which blocks. */
function linksOf(t: Test, folder: string, instanceId: string) {
  const received: Received[] = [];
  const faults: unknown[] = [];
  const blocks: number[] = [];
  const unread: string[] = [];
  let lost = 0;
  const links = new Links({
    ...{ folder, instanceId, epoch: () => 'epoch' },
    onBlock: (bytes) => {
      blocks.push(bytes.length);
      const { from = '', changes = [] } = readChanges(bytes) ?? {};
      for (const { tenantId, head, carried } of changes) {
        const rows = carried?.rows ?? [];
        received.push({ from, tenantId, head, versions: rows.map(({ version }) => version), frames: framesOf(rows) });
      }
    },
    onLost: () => {
      lost++;
    },
    onUnread: (id) => void unread.push(id),
    onFault: (error) => void faults.push(error),
  });
  links.start();
  t.teardown(async () => links.close());
  return { links, received, faults, blocks, unread, lost: () => lost };
}

const carry = (links: Links, to: string, head: number, rows: readonly ItemRow[]): boolean =>
  links.carry(to, 'tenant', rows, { summary: { version: head, itemCount: 3, versionSum: 9 }, generation: 1 });

/** Connects to an instance as another one would, but reads nothing until it is resumed. */
async function slowReader(t: Test, folder: string, from: string, line: string): Promise<Socket> {
  const socket = connect(join(folder, from));
  t.teardown(() => socket.destroy());
  await once(socket, 'connect');
  socket.pause();
  socket.write(line);
  return socket;
}

t.test(
  'INST-58: changes of one turn are sent over a link together, whole and in order, in as many blocks as needed',
  async (t) => {
    const folder = await temporaryFolder(t);
    const [a, b] = [linksOf(t, folder, 'a'), linksOf(t, folder, 'b')];
    t.notOk(carry(a.links, 'b', 1, rowsOf(1, 40)), 'no instance reads yet');
    b.links.keep(['a', 'elsewhere']);
    let head = 1;
    await until('linked', () => carry(a.links, 'b', ++head, rowsOf(head, 40)));
    await until('received', () => b.received.length === 1);
    t.equal(b.blocks.length, 1);
    const first = head;
    const expected: string[] = [];
    for (const sizes of [[40], [700, 40], [50_000], [30_000, 30_000, 300], Array.from({ length: 300 }, () => 900)]) {
      head += sizes.length;
      const rows = rowsOf(head, ...sizes);
      expected.push(...framesOf(rows));
      t.ok(carry(a.links, 'b', head, rows));
    }
    await until('received', () => b.received.at(-1)?.head === head);
    const later = b.received.slice(1);
    t.strictSame(
      later.flatMap(({ versions }) => versions),
      Array.from({ length: head - first }, (_, n) => first + 1 + n),
    );
    t.strictSame(
      later.flatMap(({ frames }) => frames),
      expected,
      'the frames arrive as they were made',
    );
    t.ok(later.every(({ from, tenantId }) => from === 'a' && tenantId === 'tenant'));
    t.ok(b.blocks.length > 5 && b.blocks.length < 15, `few blocks: ${b.blocks.length}`);
    t.notOk(carry(a.links, 'b', ++head, rowsOf(head, BLOCK_BYTES)), 'a row too large for a block is not carried');
    b.links.keep([]);
    await until('the link is gone', () => !carry(a.links, 'b', ++head, rowsOf(head, 40)));
    b.links.keep(['a']);
    await until('linked again', () => carry(a.links, 'b', ++head, rowsOf(head, 40)));
    await until('received', () => b.received.at(-1)?.head === head);
    t.strictSame([...a.faults, ...b.faults], []);
  },
);

t.test('INST-59: a reader that reads nothing is sent at most 64 blocks, and delays no other reader', async (t) => {
  const folder = await temporaryFolder(t);
  const [a, b] = [linksOf(t, folder, 'a'), linksOf(t, folder, 'b')];
  b.links.keep(['a']);
  const slow = await slowReader(t, folder, 'a', 'slow\n');
  let head = 0;
  await until('linked', () => carry(a.links, 'slow', ++head, rowsOf(head, 40)));
  const rows = rowsOf(head, 60_000);
  let blocks = 0;
  while (blocks < 1_000 && carry(a.links, 'slow', head, rows)) {
    blocks++;
    await Promise.resolve(); // the turn ends, and the block leaves
  }
  t.ok(blocks > 50 && blocks <= 64, `${blocks} blocks were accepted`);
  await until('linked', () => carry(a.links, 'b', ++head, rowsOf(head, 40)));
  await until('the other one reads', () => b.received.at(-1)?.head === head);
  slow.resume();
  await until('it takes what waits, and is sent more', () => carry(a.links, 'slow', ++head, rowsOf(head, 40)));
  const again = await slowReader(t, folder, 'a', 'slow\n');
  await once(slow, 'close');
  await until('who comes again is read to', () => carry(a.links, 'slow', ++head, rowsOf(head, 40)));
  again.resume();
  await once(again, 'data');
  t.strictSame(a.unread, ['slow'], 'it has to compare heads, because the first connection may have held more for it');
  t.strictSame(a.faults, []);
});

t.test('INST-59: a connection that does not follow the protocol of links is closed', async (t) => {
  const folder = await temporaryFolder(t);
  const a = linksOf(t, folder, 'a');
  const talker = await slowReader(t, folder, 'a', 'x'.repeat(65));
  talker.resume();
  await once(talker, 'close');
  const sockets: Socket[] = [];
  const server = createServer((socket) => sockets.push(socket)).listen(join(folder, 'x'));
  t.teardown(() => server.close());
  await once(server, 'listening');
  a.links.keep(['x']);
  await until('it reads', () => sockets.length === 1);
  const [socket] = sockets;
  if (socket === undefined) throw new Error('no socket');
  const length = Buffer.alloc(4);
  length.writeUInt32BE(BLOCK_BYTES - 3);
  socket.resume().write(length);
  await once(socket, 'close');
  t.equal(a.faults.length, 1);
});

/** Publishes until a link carries it: while the clock stands still nothing is notified. */
async function linked(from: Instance, to: Instance): Promise<number> {
  let head = 0;
  await until('linked', () => {
    publish(from, ++head);
    return to.changes.all.length > 0;
  });
  await until('all is there', () => to.changes.all.at(-1)?.[2].summary?.version === head);
  return head;
}

function publish(from: Instance, head: number): readonly ItemRow[] {
  const rows = rowsOf(head, 40);
  from.feed.publish('tenant', rows, { summary: { version: head, itemCount: 3, versionSum: 9 }, generation: 1 });
  return rows;
}

t.test('INST-58: a link that breaks counts as a loss, one that ends in order does not', async (t) => {
  const folder = await temporaryFolder(t);
  const [a, b] = [linksOf(t, folder, 'a'), linksOf(t, folder, 'b')];
  await writeFile(join(folder, 'elsewhere'), ''); // as a killed instance leaves it
  b.links.keep(['a', 'elsewhere']);
  let head = 0;
  await until('linked', () => carry(a.links, 'b', ++head, rowsOf(head, 40)));
  t.ok(carry(a.links, 'b', ++head, rowsOf(head, 40)));
  await a.links.close();
  t.strictSame(a.unread, []);
  await until('the last change is there', () => b.received.at(-1)?.head === head);
  const sockets: Socket[] = [];
  const server = createServer((socket) => sockets.push(socket)).listen(join(folder, 'a'));
  t.teardown(() => server.close());
  await once(server, 'listening');
  await until('it reads, so the link before is closed', () => {
    b.links.keep(['a']);
    return sockets.length === 1;
  });
  t.equal(b.lost(), 0, 'neither an orderly end nor a failed connection counts as a loss');
  sockets[0]?.destroy();
  await until('it is lost', () => b.lost() === 1);
  t.strictSame([...a.faults, ...b.faults], []);
});

t.test('INST-58: a change goes over the link, unnotified; where a link breaks, heads are compared', async (t) => {
  const folder = await temporaryFolder(t);
  const { a, b, pool } = await pair(t, folder);
  await subscribes(b);
  const head = (await linked(a, b)) + 1;
  a.clock.advance(COALESCE_MS);
  tell(a, ['before', 1, 1]);
  await b.hints.until((all) => all.some(([tenant]) => tenant === 'before'));
  const before = b.hints.all.length;
  const rows = publish(a, head);
  await b.changes.until((all) => all.at(-1)?.[2].summary?.version === head);
  t.strictSame(framesOf(b.changes.all.at(-1)?.[2].rows ?? []), framesOf(rows));
  const changes = b.changes.all.length;
  a.clock.advance(1_000);
  tell(a, ['after', 1, 1]);
  await b.hints.until((all) => all.some(([tenant]) => tenant === 'after'));
  t.strictSame(b.hints.all.slice(before), [['after', 1, 1]]);
  t.equal(b.changes.all.length, changes, 'the change arrives once');
  const gaps = b.gaps.all.length;
  await a.feed.close();
  await b.beat();
  t.equal(b.gaps.all.length, gaps, 'heads are not compared where the link ends in order');
  const readers: Socket[] = [];
  const dying = createServer((socket) => readers.push(socket)).listen(join(folder, 'c'));
  t.teardown(() => dying.close());
  await once(dying, 'listening');
  await pool.query(
    "INSERT INTO instances (id, seen_at) VALUES ('c', (extract(epoch FROM clock_timestamp()) * 1000)::bigint)",
  );
  await b.beat();
  await until('b reads', () => readers.length === 1);
  const known = b.gaps.all.length;
  readers[0]?.destroy();
  await b.gaps.until(known + 1);
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('INST-58: changes from an instance with another history are ignored, and heads are compared', async (t) => {
  const { a, b } = await pair(t, await temporaryFolder(t));
  await subscribes(b);
  const head = await linked(a, b);
  const [changes, gaps] = [b.changes.all.length, b.gaps.all.length];
  b.epoch.now = 'after a fail-over';
  publish(a, head + 1);
  await b.gaps.until(gaps + 1);
  t.equal(b.changes.all.length, changes);
  a.epoch.now = b.epoch.now;
  publish(a, head + 1);
  await b.changes.until(changes + 1);
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('INST-58: a change written to a former primary and notified at the new one is ignored', async (t) => {
  const { a, b } = await pair(t);
  await subscribes(b);
  const last = (): number | undefined => b.changes.all.at(-1)?.[2].summary?.version;
  let head = 0;
  await until('b is known to subscribe', () => {
    publish(a, ++head);
    a.clock.advance(COALESCE_MS);
    return last() !== undefined;
  });
  await until('all is there', () => last() === head);
  const [changes, gaps] = [b.changes.all.length, b.gaps.all.length];
  publish(a, head + 1);
  a.epoch.now = b.epoch.now = 'after a fail-over';
  a.clock.advance(COALESCE_MS);
  await b.gaps.until(gaps + 1);
  t.equal(b.changes.all.length, changes);
  publish(a, head + 7);
  a.clock.advance(COALESCE_MS);
  await until('what follows is there', () => last() === head + 7);
  t.equal(b.changes.all.length, changes + 1);
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('INST-58: an instance that stopped reading is notified to compare heads once more', async (t) => {
  const folder = await temporaryFolder(t);
  const { a, b } = await pair(t, folder);
  await subscribes(b);
  let head = await linked(a, b);
  // Takes the place of b; a does not know of its end yet when it writes.
  const reader = (await slowReader(t, folder, 'a', 'b\n')).resume();
  await until('it reads', () => {
    publish(a, ++head);
    return reader.bytesRead > 0;
  });
  const gaps = b.gaps.all.length;
  reader.destroy();
  await until('b is told', () => {
    a.clock.advance(COALESCE_MS);
    return b.gaps.all.length > gaps;
  });
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('INST-59: an instance whose name leads out of the folder is not read', async (t) => {
  const folder = await temporaryFolder(t);
  const sockets: Socket[] = [];
  const server = createServer((socket) => sockets.push(socket.resume()));
  t.teardown(() => server.close());
  const inside = join(folder, 'links');
  await mkdir(inside);
  server.listen(join(folder, 'elsewhere'));
  await once(server, 'listening');
  const { b, pool } = await pair(t, inside);
  const come = createServer().listen(join(inside, 'x'));
  t.teardown(() => come.close());
  const read = once(come, 'connection');
  await pool.query(
    `INSERT INTO instances (id, seen_at) SELECT id, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
     FROM unnest(ARRAY['../elsewhere', 'x']) AS ids (id)`,
  );
  await b.beat();
  const [socket] = (await read) as [Socket];
  t.strictSame(sockets, [], 'only the socket in the folder is read');
  socket.destroy();
});

t.test('INST-42 INST-59: rows from a link that cannot be read are treated as a hint', async (t) => {
  const folder = await temporaryFolder(t);
  const { b, pool } = await pair(t, folder);
  const sockets: Socket[] = [];
  const server = createServer((socket) => sockets.push(socket.resume())).listen(join(folder, 'x'));
  t.teardown(() => server.close());
  await once(server, 'listening');
  await pool.query(
    "INSERT INTO instances (id, seen_at) VALUES ('x', (extract(epoch FROM clock_timestamp()) * 1000)::bigint)",
  );
  await b.beat();
  await until('it reads', () => sockets.length === 1);
  b.faults.all.length = 0;
  b.hints.all.length = 0;
  const block = Buffer.concat([changesHead('x'), changeBytes(['tenant', 3, 1], Buffer.alloc(7))]);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(block.length);
  sockets[0]?.write(Buffer.concat([length, block]));
  await b.hints.until(1);
  t.strictSame(b.hints.all, [['tenant', 3, 1]]);
  t.equal(b.faults.all.length, 1);
  for (const socket of sockets) socket.destroy();
});
