/** The nightly jobs. */
import type pg from 'pg';
import t, { type Test } from 'tap';
import { nextAt, Nightly, runJobs, type JobReport, type JobTurn } from '../src/server/ops/nightly.js';
import { nightlyJobs, PostgresJobTurn, type Job } from '../src/server/ops/store.js';
import { createPool } from '../src/server/storage/database.js';
import { TestClock } from './support/clock.js';
import { edited, join, mustWrite, newItem, write } from './support/devices.js';
import { Events, until } from './support/events.js';
import { poolOf, testDatabase, type WithTeardown } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { runServer } from './support/server.js';

const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const AT = 3 * 60 + 30;

t.test('JOB-01: the next run is at 03:30 local time, also across days of 23 and 25 hours', (t) => {
  const zone = process.env['TZ'];
  t.teardown(() => {
    if (zone === undefined) delete process.env['TZ'];
    else process.env['TZ'] = zone;
  });
  for (const place of ['UTC', 'Europe/Berlin', 'America/New_York', 'Asia/Kolkata', 'Pacific/Auckland']) {
    process.env['TZ'] = place;
    // A year of nights, with both changes of the clock.
    let at = nextAt(new Date(2026, 0, 1).getTime(), AT);
    const wrong: string[] = [];
    for (let night = 0; night < 365; night++) {
      const shown = new Date(at);
      const next = nextAt(at, AT);
      const hours = (next - at) / HOUR_MS;
      const right = shown.getHours() === 3 && shown.getMinutes() === 30 && hours >= 23 && hours <= 25;
      if (!right || nextAt(next - 1, AT) !== next) wrong.push(shown.toISOString());
      at = next;
    }
    t.same(wrong, [], place);
  }
  t.end();
});

/** A fault handler where no fault may occur. */
const failing =
  (t: Test) =>
  (error: unknown): void =>
    void t.fail(String(error));

/** A turn that is always available and notes when the jobs ran, and a job. */
function stage(clock: TestClock): { turn: JobTurn & { last: number | null }; ran: Events<number>; job: Job } {
  const ran = new Events<number>();
  const turn = {
    last: null as number | null,
    take: async (work: (lost: AbortSignal) => Promise<void>) => {
      await work(new AbortController().signal);
      return true;
    },
    lastRun: async () => Promise.resolve(turn.last),
    ran: async (at: number) => {
      turn.last = at;
      ran.add(at);
      return Promise.resolve();
    },
  };
  return { turn, ran, job: { name: 'noted', full: 1, batch: async () => Promise.resolve(clock.now() < 0 ? 1 : 0) } };
}

t.test('JOB-01 JOB-09: the jobs run once a night, and soon after a start that follows a missed night', async (t) => {
  const clock = new TestClock(new Date(2026, 4, 1, 12).getTime());
  const { turn, ran, job } = stage(clock);
  const options = { jobs: [job], turn, clock, at: AT, onReport: () => undefined, onFault: failing(t) };
  const nightly = new Nightly(options);
  await nightly.start();
  for (let night = 1; night <= 3; night++) {
    t.ok(clock.hasTimer(15.5 * HOUR_MS), 'at noon the next run is 15 and a half hours away');
    clock.advance(DAY_MS);
    await ran.until(night);
    // The event comes from inside the run, which ends with the promises of this turn.
    await new Promise(setImmediate);
  }
  await nightly.close();
  clock.advance(3 * DAY_MS);
  t.equal(ran.all.length, 3, 'nothing runs once it is closed');
  const again = new Nightly(options);
  await again.start();
  clock.advance(10 * 60_000);
  await ran.until(4);
  t.equal(new Date(ran.all[3] ?? 0).getHours(), 12, 'the missed run is made up for after the start');
  await again.close();
});

t.test('JOB-01: a run goes on in every night after the clock was set back by years', async (t) => {
  const clock = new TestClock(new Date(2026, 4, 1, 12).getTime());
  const { turn, ran, job } = stage(clock);
  turn.last = clock.now() + 1_000 * DAY_MS;
  const nightly = new Nightly({ jobs: [job], turn, clock, at: AT, onReport: () => undefined, onFault: failing(t) });
  await nightly.start();
  clock.advance(DAY_MS);
  await new Promise(setImmediate);
  await nightly.close();
  t.equal(ran.all.length, 1);
});

t.test('JOB-01: a run for which the database was out of reach is made up for in the same night', async (t) => {
  const clock = new TestClock(new Date(2026, 4, 1, 12).getTime());
  const { turn, ran, job } = stage(clock);
  const faults = new Events<unknown>();
  const { take } = turn;
  turn.take = async () => Promise.reject(new Error('away'));
  const onFault = (error: unknown): void => faults.add(error);
  const nightly = new Nightly({ jobs: [job], turn, clock, at: AT, onReport: () => undefined, onFault });
  await nightly.start();
  clock.advance(15.5 * HOUR_MS);
  await faults.until(1);
  await new Promise(setImmediate);
  clock.advance(5 * MINUTE_MS);
  await faults.until(2);
  await new Promise(setImmediate);
  turn.take = take;
  clock.advance(5 * MINUTE_MS);
  await new Promise(setImmediate);
  t.equal(ran.all.length, 1);
  t.ok(clock.hasTimer(DAY_MS - 10 * MINUTE_MS), 'the next run is at the usual time');
  turn.take = async () => Promise.reject(new Error('away'));
  clock.advance(DAY_MS - 10 * MINUTE_MS);
  const closed = nightly.close();
  await faults.until(3);
  await closed;
  t.notOk(clock.hasTimer(5 * MINUTE_MS), 'a failure during the stop is not made up for');
});

t.test('JOB-07 JOB-08: a failed job stops no other, and a stop acts between two batches', async (t) => {
  const clock = new TestClock();
  const reports: JobReport[] = [];
  const faults: unknown[] = [];
  const onReport = (report: JobReport): void => void reports.push(report);
  const onFault = (error: unknown): void => void faults.push(error);
  let left = 25;
  const stop = new AbortController();
  const jobs: Job[] = [
    { name: 'broken', full: 10, batch: async () => Promise.reject(new Error('broken')) },
    {
      name: 'long',
      full: 10,
      batch: async () => {
        const done = Math.min(10, left);
        left -= done;
        if (left === 5 && faults.length > 1) stop.abort();
        return Promise.resolve(done);
      },
    },
  ];
  t.equal(await runJobs({ jobs, clock, onReport, onFault }, stop.signal), false);
  t.same(
    reports.map(({ name, rows }) => [name, rows]),
    [
      ['broken', 0],
      ['long', 25],
    ],
  );
  t.equal(faults.length, 1);
  left = 25;
  t.equal(await runJobs({ jobs, clock, onReport, onFault }, stop.signal), false);
  t.equal(left, 5, 'the batch under way was finished, the next did not begin');
  let batches = 0;
  const large: Job = { name: 'large', full: 1, batch: async () => Promise.resolve(++batches < 11_000 ? 1 : 0) };
  await runJobs({ jobs: [large], clock, onReport, onFault }, new AbortController().signal);
  t.equal(batches, 10_000, 'what is left waits for the next run');
});

t.test('JOB-08: a stop acts between two statements of a purge of keys, and the next run ends it', async (t) => {
  const stop = new AbortController();
  let statements = 0;
  const query = (text: string): Promise<{ rows: object[] }> => {
    if (text.includes('devices_to_purge'))
      return Promise.resolve({ rows: statements < 10 ? [{ tenant: 'tenant', device: 'device' }] : [] });
    if (++statements === 3) stop.abort();
    return Promise.resolve({ rows: [{ last: statements < 10 ? String(statements) : null }] });
  };
  const all = nightlyJobs({ pool: { query } as unknown as pg.Pool, now: Date.now, softDeleteMs: DAY_MS });
  const jobs = all.filter(({ name }) => name === 'purge keys of revoked devices');
  const options = { jobs, clock: new TestClock(), onReport: () => undefined, onFault: failing(t) };
  t.equal(await runJobs(options, stop.signal), false);
  t.equal(statements, 3);
  t.equal(await runJobs(options, new AbortController().signal), true);
  t.equal(statements, 10);
});

t.test('JOB-07: the purge of one device’s keys that does not advance fails, and does not go on for ever', async (t) => {
  let statements = 0;
  const query = (text: string): Promise<{ rows: object[] }> => {
    if (text.includes('devices_to_purge')) return Promise.resolve({ rows: [{ tenant: 'tenant', device: 'device' }] });
    // The bound is the test's own, for a purge without one.
    return Promise.resolve({ rows: [{ last: ++statements < 100 ? 'item' : null }] });
  };
  const all = nightlyJobs({ pool: { query } as unknown as pg.Pool, now: Date.now, softDeleteMs: DAY_MS });
  const jobs = all.filter(({ name }) => name === 'purge keys of revoked devices');
  const faults: unknown[] = [];
  const options = {
    jobs,
    clock: new TestClock(),
    onReport: () => undefined,
    onFault: (error: unknown) => faults.push(error),
  };
  t.equal(await runJobs(options, new AbortController().signal), false);
  t.match(faults, [/does not advance/]);
  t.equal(statements, 2);
});

async function pools(t: WithTeardown): Promise<{ url: string; turn: () => PostgresJobTurn }> {
  const { url } = await testDatabase(t);
  const pool = poolOf(t, url);
  return { url, turn: () => new PostgresJobTurn(pool, url) };
}

t.test('JOB-02: one instance at a time has the turn, and a lost connection releases it', async (t) => {
  const { turn, url } = await pools(t);
  const [one, two] = [turn(), turn()];
  let inside = 0;
  const taken = await one.take(async (lost) => {
    inside++;
    t.equal(await two.take(async () => Promise.reject(new Error('both'))), false);
    const killer = createPool({ url, name: 'killer', onIdleError: () => undefined });
    const gone = new Promise((resolve) => lost.addEventListener('abort', resolve, { once: true }));
    await killer.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'service jobs' AND datname = current_database()",
    );
    await killer.end();
    await gone;
    // The dying connection reports its end before it releases its lock.
    const second = async (): Promise<void> => {
      inside++;
      return Promise.resolve();
    };
    await until('the turn of a connection that died', async () => two.take(second));
  });
  t.equal(taken, true);
  t.equal(inside, 2);
  t.equal(await one.lastRun(), null);
  await one.ran(7);
  await two.ran(5);
  t.equal(await two.lastRun(), 7);
  await one.ran(9 * HOUR_MS);
  await two.ran(8.5 * HOUR_MS);
  t.equal(await two.lastRun(), 9 * HOUR_MS, 'the clocks of two instances differ a little');
  await two.ran(7 * HOUR_MS);
  t.equal(await two.lastRun(), 7 * HOUR_MS, 'the clock was set back');
});

t.test('JOB-02: of two servers one runs the jobs of a night', async (t) => {
  const clock = new TestClock(new Date(2026, 4, 1, 3).getTime());
  const env = { PURGE_AT: '03:30' };
  const one = await runServer(t, { clock, env });
  const two = await runServer(t, { clock, env, database: { url: one.databaseUrl } });
  const reports = (): number => [...one.logs, ...two.logs].filter((line) => line['msg'] === 'nightly job').length;
  clock.advance(HOUR_MS);
  const runs = async (): Promise<number> => Number((await one.sql('SELECT count(*) AS n FROM job_runs'))[0]?.['n']);
  await until('the end of the night', async () => (await runs()) > 0);
  await one.stop();
  await two.stop();
  t.equal(reports(), 8, 'each job runs once');
});

t.test('JOB-03 JOB-04 JOB-05 JOB-06: the jobs empty deleted items, purge keys, clear what expired', async (t) => {
  // A clock of the jobs' own: on the server's clock the server would run its jobs too.
  const clock = new TestClock();
  const scene = await Scene.start(t);
  const { wire, server, first } = scene;
  const pool = poolOf(t, server.databaseUrl);
  const run = async (): Promise<Map<string, number>> => {
    const done = new Map<string, number>();
    const jobs = nightlyJobs({ pool, now: () => clock.now(), softDeleteMs: 30 * DAY_MS });
    const onReport = ({ name, rows }: JobReport): void => void done.set(name, rows);
    await runJobs({ jobs, clock, onReport, onFault: failing(t) }, new AbortController().signal);
    return done;
  };
  const kept = await scene.written();
  const items = [];
  for (let n = 0; n < 3; n++) items.push(await scene.written());
  const sig = Buffer.alloc(32, 7);
  const deletes = [];
  for (const { id } of items)
    deletes.push(await wire.ask('DELETE', `/items/${id}`, { ...scene.as('a'), body: { sig } }));
  const third = await join(wire, first);
  const wide = newItem([...scene.ids, third.id]);
  const version = await mustWrite(wire, first, wide);
  await wire.post(
    '/devices/pair-init',
    { code: 'abandon '.repeat(5) + 'about', epk: Buffer.alloc(32, 9) },
    scene.as('a'),
  );
  await wire.post('/devices/reauth/challenge', { deviceId: first.id });
  const rows = async (text: string): Promise<number> =>
    Number((await server.sql(`SELECT count(*) AS n FROM ${text}`))[0]?.['n']);
  await server.sql(`UPDATE devices SET revoked_at = 1, keys_purged = false WHERE id = $1`, [third.id]);
  await server.sql('UPDATE items SET deleted_at = $1 WHERE deleted_at IS NOT NULL', [clock.now()]);
  t.equal((await run()).get('clear what has expired'), 0, 'what has not expired stays');
  t.equal(await rows('challenges'), 1);
  await server.sql(`UPDATE devices SET keys_purged = false WHERE id = $1`, [third.id]);
  clock.advance(30 * DAY_MS);
  const early = await run();
  t.equal(early.get('empty deleted items'), 0, 'no item is emptied before its time');
  t.equal(early.get('purge keys of revoked devices'), 1);
  t.equal(await rows(`items WHERE ${third.id.length} = 26 AND position('${third.id}'::bytea IN keys) > 0`), 0);
  t.equal((await scene.row(wide.id))?.['version'], version, 'no new version');
  t.equal(await rows('pair_sessions'), 0);
  t.equal(await rows('challenges'), 0);
  const before = await scene.me();
  clock.advance(1);
  t.equal((await run()).get('empty deleted items'), 3);
  t.equal((await run()).get('empty deleted items'), 0, 'an item is emptied once');
  t.same((await scene.me()).at('server.versionSum'), before.at('server.versionSum'));
  const [gone] = items;
  if (gone === undefined) throw new Error('no item');
  const row = await scene.row(gone.id);
  const { id, binId, deletedAt } = row ?? {};
  const lastVersion = deletes[0]?.number('version');
  const none = { type: null, senderDevice: null, ts: null, payloadEnc: null };
  const noBlob = { blobRef: null, blobNonce: null, blobKeys: null };
  t.equal(id, gone.id);
  t.ok([binId, deletedAt].every((value) => value !== null && value !== undefined));
  t.strictSame(
    row,
    { ...none, ...noBlob, id, binId, version: lastVersion, deletedAt, sig: sig.toString('base64url') },
    'the tombstone and its tag are left, and nothing else',
  );
  t.equal((await write(wire, first, edited(gone))).outcome, '409 conflict');
  t.equal((await write(wire, first, gone)).outcome, '409 conflict');
  t.equal((await wire.ask('DELETE', `/items/${gone.id}`, scene.as('a'))).outcome, '404 item_not_found');
  t.type((await scene.row(kept.id))?.['payloadEnc'], 'object', 'a live item is unchanged');
});
