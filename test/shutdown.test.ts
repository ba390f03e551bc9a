/** SIGTERM under load. */
import { setTimeout as sleep } from 'node:timers/promises';
import t from 'tap';
import { claim, join, newItem, writeBody } from './support/devices.js';
import { soon, until } from './support/events.js';
import { KeepAlive } from './support/keep-alive.js';
import { testDatabase } from './support/postgres.js';
import { spawnServer } from './support/server.js';
import { difference, listAll, range, startWriters, untilVersion, versionsOf } from './support/stream.js';
import { spelled } from './support/wire.js';

t.setTimeout(300_000);

const CLIENTS = 40;
const SOCKETS = 14;
/** Sockets are closed over 1.5 s: in at least this many tenths of a second. A slow machine only spreads them more. */
const TENTHS_MIN = 5;
const THINK_MS = 5;

t.test('INST-25 WS-20: one of two instances that gets SIGTERM answers every request and loses no write', async (t) => {
  const database = await testDatabase(t);
  const [one, two] = await Promise.all([spawnServer(t, { database }), spawnServer(t, { database })]);
  const first = await claim(one.wire);
  const second = await join(one.wire, first, { existingWire: two.wire });
  const all = [first.id, second.id];
  const witness = await two.wire.connect({ token: second.token });
  await witness.hello();
  const sockets = await Promise.all(range(1, SOCKETS).map(async () => one.wire.connect({ token: second.token })));
  await Promise.all(sockets.map(async (socket) => socket.hello()));
  const elsewhere = startWriters({ wires: [two.wire], devices: [first], writers: 4, sealFor: all, insertsOnly: true });

  const acked = new Map<number, string>();
  const begun = new Set<number>();
  const wrong: string[] = [];
  /** Every other client pauses between two requests, as a user does. */
  const client = async (number: number): Promise<void> => {
    const connection = await KeepAlive.open(one.port);
    for (;;) {
      const item = newItem(all);
      const body = spelled('a', writeBody('a', item));
      const answer = await connection.ask({ token: first.token, path: '/items', body });
      begun.add(number);
      if (answer === undefined) wrong.push('not answered');
      else if (answer.status === 200) acked.set((JSON.parse(answer.body) as { version: number }).version, item.id);
      else if (answer.status !== 503) wrong.push(`${answer.status} ${answer.body}`);
      if (answer === undefined || answer.last) return connection.end();
      if (number % 2 === 0) await sleep(number * THINK_MS);
    }
  };
  const clients = range(1, CLIENTS).map(client);
  await elsewhere.until(100);
  // The kernel takes connections before the server does: one that was never accepted ends without an answer.
  await until('an answer to every client', () => begun.size === CLIENTS);
  const ended = one.end('SIGTERM');
  await soon(Promise.all(clients), 'every connection closed by an answer');
  t.same(wrong, [], 'every request was answered');
  t.equal(await ended, 0, 'the exit code is 0');
  t.same(
    (await Promise.all(sockets.map(async (socket) => socket.closed))).map(({ code }) => code),
    sockets.map(() => 1012),
  );
  // Timed by the server's own log, because frames may arrive here late.
  const closedAt = (): number[] =>
    one.output.flatMap((line) =>
      line.includes('"socket closed"') ? [(JSON.parse(line) as { time: number }).time] : [],
    );
  await until('the end of the log', () => closedAt().length >= SOCKETS);
  const tenths = new Set(closedAt().map((at) => Math.floor(at / 100)));
  t.ok(tenths.size >= TENTHS_MIN, `the sockets were closed in ${tenths.size} different tenths of a second`);
  await t.rejects(KeepAlive.open(one.port), 'nobody listens there any more');

  await elsewhere.stop();
  t.same([elsewhere.refusals, elsewhere.errors], [[], []], 'the other instance continues meanwhile');
  for (const { version, id } of elsewhere.acked) acked.set(version, id);
  const listing = await listAll(two.wire, first.token);
  const stored = new Map(listing.changes.map(({ version, id }) => [version, id]));
  t.same(
    [...acked].filter(([version, id]) => stored.get(version) !== id),
    [],
    `all of ${acked.size} acknowledged writes are stored`,
  );
  t.equal(stored.size, listing.head, 'the versions have no gap');
  await untilVersion(witness, listing.head);
  t.equal(
    difference(versionsOf(witness.frames), range(1, listing.head)),
    '',
    'the other instance pushed every version, in order',
  );
});
