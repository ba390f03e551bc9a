/** What can be taken away from two instances under load, and what must hold meanwhile. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Test } from 'tap';
import type { Cluster, Node, Tenant } from './cluster.js';
import { until } from './events.js';
import type { Ending } from './load.js';
import type { OwnPostgres } from './own-postgres.js';
import { Recorder } from './recorder.js';

/** Writes after which a fault, or its end, counts as having been under load. */
const MORE = 60;
const MORE_MAX_MS = 60_000;
/** And for each of them, on a busy machine. */
const EACH_MAX_MS = 200;
/** Every answer comes within this, ms; an outage is found out in 5 s. The driver's own limit would be 20 s and more. */
const ANSWER_MAX_MS = 14_000;

/** Waits for more acknowledged writes. */
export async function more(cluster: Cluster, count = MORE): Promise<void> {
  const [before, begun] = [cluster.acked, Date.now()];
  const got = (): number => cluster.acked - before;
  const what = (): string => `${count} more writes; ${got()} came in ${Date.now() - begun} ms`;
  await until(what, () => got() >= count, MORE_MAX_MS + count * EACH_MAX_MS);
}

/** kill -9 of an instance; its clients go to the other, until it is there again. */
export async function instanceKilled(cluster: Cluster, node: Node): Promise<void> {
  await node.kill();
  await more(cluster);
  await node.start();
  await more(cluster);
}

/** Every instance's LISTEN connection is ended by PostgreSQL, once it is back from what was done to it before. */
export async function listenEnded(t: Test, cluster: Cluster): Promise<void> {
  const listening = "FROM pg_stat_activity WHERE application_name = 'service-listen'";
  const count = async (): Promise<number> => (await cluster.postgres.sql(`SELECT pid ${listening}`)).length;
  await until('both listen', async () => (await count()) === 2);
  t.equal((await cluster.postgres.sql(`SELECT pg_terminate_backend(pid) ${listening}`)).length, 2);
  await more(cluster);
  await catchesUp(cluster);
}

/** An instance's LISTEN connection stays open and carries nothing. */
export async function listenSwallowed(cluster: Cluster, node: Node): Promise<void> {
  await until('it listens', () => node.proxy.swallow('service-listen') >= 1);
  await more(cluster);
  await catchesUp(cluster);
}

/** Nobody asks for anything, and all come to the head by themselves. */
async function catchesUp(cluster: Cluster): Promise<void> {
  await cluster.pause();
  await cluster.caughtUp();
  cluster.resume();
}

/** Takes PostgreSQL away by `take`, for `holdMs` beyond what the events need. */
const away =
  (take: (postgres: OwnPostgres) => Promise<void>, giveBack: (postgres: OwnPostgres) => Promise<void>) =>
  (t: Test, cluster: Cluster, holdMs = 0): Promise<void> =>
    databaseAway(t, cluster, {
      take: () => take(cluster.postgres),
      giveBack: () => giveBack(cluster.postgres),
      holdMs,
    });

const start = (postgres: OwnPostgres): Promise<void> => postgres.start();

/** kill -9 of PostgreSQL. */
export const databaseCrashed = away((postgres) => postgres.crash(), start);

/** PostgreSQL stands still: connections stay, new ones are taken by the system, and nothing answers. */
export const databaseStill = away(
  (postgres) => postgres.freeze(),
  async (postgres) => postgres.thaw(),
);

/** PostgreSQL is stopped by its operator. */
export const databaseStopped = away((postgres) => postgres.stop(), start);

/** An instance and PostgreSQL are killed in the same moment. */
export async function bothKilled(cluster: Cluster, node: Node): Promise<void> {
  await Promise.all([node.kill(), cluster.postgres.crash()]);
  await cluster.postgres.start();
  await more(cluster);
  await node.start();
  await more(cluster);
}

interface Outage {
  readonly take: () => Promise<void>;
  readonly giveBack: () => Promise<void>;
  /** How long it stays away beyond what the events need, ms. */
  readonly holdMs: number;
}

/**
 * Takes the database away under load. Meanwhile every writer and reader gets 503 soon, no socket closes, heartbeats
 * go on, and a socket can be opened; after it all catch up while nobody asks for anything.
 */
async function databaseAway(t: Test, cluster: Cluster, { take, giveBack, holdMs }: Outage): Promise<void> {
  const closes = (): number => cluster.recorders.filter(({ live }) => !live).length;
  await until('all sockets live', () => closes() === 0);
  const connections = cluster.recorders.map((recorder) => recorder.connections.length);
  const pings = cluster.recorders.map((recorder) => recorder.pings);
  const from = Date.now();
  await take();
  for (const { slug, load } of cluster.tenants) {
    for (const kind of ['write', 'read'] as const) {
      const refused = (ending: Ending): boolean =>
        ending.kind === kind && ending.begun + ending.ms >= from && ending.outcome === '503 unavailable';
      await until(`${slug}: a ${kind} refused`, () => load.endings.some(refused), ANSWER_MAX_MS);
    }
  }
  const [tenant] = cluster.tenants;
  if (tenant === undefined) throw new Error('no tenant');
  const late = new Recorder(cluster.placesOf(tenant), tenant.devices[0]?.token ?? '');
  await until('two heartbeats', () =>
    cluster.recorders.every((recorder, at) => recorder.pings >= (pings[at] ?? 0) + 2),
  );
  await sleep(holdMs);
  await cluster.pause();
  t.equal(late.live, false, 'nobody can say where the head is');
  await giveBack();
  await cluster.caughtUp();
  t.same(
    cluster.recorders.map((recorder) => recorder.connections.length),
    connections,
    'no socket was closed',
  );
  await lateIsServed(t, cluster, tenant, late);
  const slow = cluster.tenants
    .flatMap(({ load }) => load.endings)
    .filter(({ begun, ms }) => begun + ms >= from && ms > ANSWER_MAX_MS);
  t.same(slow, [], 'nobody was left waiting');
  cluster.resume();
  await more(cluster);
}

/** The socket that was opened meanwhile is still the same one, and has everything. */
async function lateIsServed(t: Test, cluster: Cluster, tenant: Tenant, late: Recorder): Promise<void> {
  await late.reach((await cluster.heads()).get(tenant.id) ?? 0, MORE_MAX_MS);
  await until('its caught_up', () => late.live);
  t.equal(late.connections.length, 1, 'a socket opened meanwhile stayed');
  await late.end();
}

/** An instance is killed while PostgreSQL stands still. */
export async function killedWhileStill(cluster: Cluster, node: Node): Promise<void> {
  await cluster.postgres.freeze();
  await node.kill();
  const from = Date.now();
  const refused = ({ begun, outcome }: Ending): boolean => begun >= from && outcome === '503 unavailable';
  await until('a refusal', () => cluster.tenants.some(({ load }) => load.endings.some(refused)), ANSWER_MAX_MS);
  cluster.postgres.thaw();
  await more(cluster);
  await node.start();
  await more(cluster);
}
