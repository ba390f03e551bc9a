/** Debian's PgBouncer in transaction mode between the servers and PostgreSQL. */
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { admin } from './support/admin.js';
import { TestClock } from './support/clock.js';
import { claim, join, mustWrite, newItem, write } from './support/devices.js';
import { until } from './support/events.js';
import { OwnPostgres } from './support/own-postgres.js';
import { fitForPooler, PgBouncer } from './support/pgbouncer.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { missing } from './support/proxies.js';
import { runServer, runSql, spawnServer } from './support/server.js';
import { listAll, range, startWriters, untilVersion } from './support/stream.js';

t.setTimeout(600_000);

const skip = missing('pgbouncer');

t.test('DEPLOY-14: no server starts behind a pooler without settings or to another database', { skip }, async (t) => {
  const { url } = await testDatabase(t);
  await runSql(
    url,
    `ALTER ROLE CURRENT_USER IN DATABASE ${new URL(url).pathname.slice(1)} SET synchronous_commit = off`,
  );
  const pooler = await PgBouncer.before(t, url);
  const refusal = (env: Readonly<Record<string, string>>): Promise<string> =>
    spawnServer(t, { database: { url }, env }).then(
      () => 'it started',
      (error: unknown) => String(error),
    );
  // Without the address past the pooler, and with the pooler's in its place.
  const advice = /a pooler answers at \S+, .* LISTEN_DATABASE_URL to the database itself/;
  const { DATABASE_URL } = pooler.env;
  t.match(await refusal({ DATABASE_URL }), advice);
  t.match(await refusal({ DATABASE_URL, LISTEN_DATABASE_URL: DATABASE_URL }), advice);
  const said = await refusal(pooler.env);
  for (const setting of ['synchronous_commit', 'statement_timeout', 'idle_in_transaction_session_timeout', 'jit'])
    t.match(said, new RegExp(`ALTER ROLE \\S+ IN DATABASE \\S+ SET ${setting} = '`));
  await fitForPooler(url);
  await pooler.say('RECONNECT');
  const { wire } = await spawnServer(t, { database: { url }, env: pooler.env });
  t.equal((await wire.get('/service/status')).status, 200, 'with the settings that it names, the server starts');
  const other = await testDatabase(t);
  t.match(await refusal({ ...pooler.env, LISTEN_DATABASE_URL: other.url }), /lead to different databases/);
  t.match(await refusal({ DATABASE_URL: '', LISTEN_DATABASE_URL: url }), /DATABASE_URL: got nothing; takes the pooler/);
});

t.test('DEPLOY-13: no write is lost when the pooler and then the database is killed', { skip }, async (t) => {
  const postgres = await OwnPostgres.start(t);
  await fitForPooler(postgres.url);
  const pooler = await PgBouncer.before(t, postgres.url);
  const env = { ...pooler.env, LOG_LEVEL: 'fatal' };
  const instances = [await runServer(t, { database: postgres, env }), await runServer(t, { database: postgres, env })];
  const wires = instances.map(({ wire }) => wire);
  const [here, there] = wires;
  if (here === undefined || there === undefined) throw new Error('no instance');
  const device = await claim(here);
  const other = await join(here, device);
  const socket = await there.connect({ shape: 'a', token: other.token });
  await socket.hello(0);
  const version = await mustWrite(here, device, newItem([device.id, other.id]));
  await untilVersion(socket, version);
  const writers = startWriters({ devices: [device, other], wires, writers: 8 });
  await until('writes', () => writers.acked.length > 100);
  const faults: readonly (() => Promise<void>)[] = [
    async () => {
      await pooler.kill();
      await pooler.start();
    },
    async () => {
      await postgres.crash();
      await postgres.start();
    },
  ];
  for (const fault of faults) {
    const before = writers.acked.length;
    await fault();
    await until('writes after the fault', () => writers.acked.length > before + 100, 60_000);
  }
  await writers.stop();
  const stored = new Map((await listAll(here, device.token)).changes.map((change) => [change.id, change]));
  const lost = writers.acked.filter(({ id, version }) => (stored.get(id)?.version ?? 0) < version);
  t.same(lost, [], `none of ${writers.acked.length} acknowledged writes is lost`);
});

t.test('DEPLOY-15: a new history is noticed, and operators’ commands bypass the pooler', { skip }, async (t) => {
  const { url } = await testDatabase(t);
  await fitForPooler(url);
  const pooler = await PgBouncer.before(t, url);
  const clock = new TestClock();
  const server = await runServer(t, { database: { url }, env: { ...pooler.env, LOG_LEVEL: 'fatal' }, clock });
  const device = await claim(server.wire);
  for (const _ of range(1, 3)) await mustWrite(server.wire, device, newItem([device.id]));
  const operator = await admin(t, pooler.env);
  const file = `${await temporaryFolder(t)}/backup`;
  t.match(await operator.json('backup', file), { code: EXIT.ok });
  t.match(await operator.json('restore', file, '--force', '--yes'), { error: { code: 'server_running' } });
  const epoch = async (): Promise<string> => (await server.wire.get('/service/status')).text('epoch');
  const before = await epoch();
  t.match(await operator.json('epoch', 'new'), { code: EXIT.ok });
  clock.advance(5_000);
  await until('another epoch', async () => (await epoch()) !== before);
  t.equal((await write(server.wire, device, newItem([device.id]))).outcome, '200');
  await server.stop();
  t.match(
    await operator.json('restore', file, '--force', '--yes'),
    { code: EXIT.ok },
    'sessions that the pooler keeps do not count as a running server',
  );
});

t.test('DEPLOY-13: the nightly jobs run night after night behind a pooler', { skip }, async (t) => {
  const { url } = await testDatabase(t);
  await fitForPooler(url);
  const pooler = await PgBouncer.before(t, url);
  const clock = new TestClock();
  const env = { ...pooler.env, LOG_LEVEL: 'info' };
  const { logs, sql } = await runServer(t, { database: { url }, env, clock });
  const compared = (): number => logs.filter(({ name }) => name === 'compare blobs with their store').length;
  for (const night of range(1, 3)) {
    clock.advance(86_400_000);
    await until(`night ${night}`, () => compared() === night);
    // The turn is over once its connection is.
    await until('the end of the turn', async () => {
      return (await sql(`SELECT FROM pg_stat_activity WHERE application_name = 'service jobs'`)).length === 0;
    });
  }
  t.same(
    logs.filter(({ msg }) => msg === 'background fault').map(({ cause }) => cause),
    [],
  );
});
