/** Feeds of instances on one database, each with a clock of its own, and what they told and heard. */
import type pg from 'pg';
import { ChangeFeed, type ChangeFeedOptions } from '../../src/server/storage/change-feed.js';
import type { DrainOrder } from '../../src/server/storage/registration.js';
import { clientConfig } from '../../src/server/storage/database.js';
import type { Parameters as CallParameters } from '../../src/server/storage/commit/batch.js';
import { MAC_BYTES, NoticeMac, type Notice } from '../../src/server/storage/notice.js';
import { frameBytes, JsonWriter, type ItemRow } from '../../src/server/tenant/codec.js';
import { deviceId, inline, writeChange, writeOf } from './changes.js';
import { TestClock } from './clock.js';
import { Events, until } from './events.js';
import { poolOf, testDatabase, type WithTeardown } from './postgres.js';

const BEAT_MS = 4_000;
/** The longest time between two NOTIFY statements of an instance. */
export const COALESCE_MS = 12;
type Change = Parameters<ChangeFeedOptions['onChange']>;
export type Hint = readonly [tenantId: string, head: number, generation: number];

export const NOTICE_KEY = Buffer.alloc(32, 7);

/** Sends a notification as an instance does. */
export async function notifySigned(pool: pg.Pool, channel: string, notice: Notice, key = NOTICE_KEY): Promise<void> {
  const payload = new NoticeMac(key).sign(channel, JSON.stringify(notice));
  await pool.query('SELECT pg_notify($1, $2)', [channel, payload]);
}

/** A number of 8 bytes. */
function int8(value: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE(BigInt(value));
  return bytes;
}

const idBytes = (id: string): Buffer => Buffer.concat([Buffer.from([id.length]), Buffer.from(id)]);

/** What a notification of changes begins with. */
export const changesHead = (from: string, format = 2): Buffer =>
  Buffer.concat([Buffer.from([format]), idBytes(from), idBytes('epoch')]);

/** A tenant's rows in a notification, without sums. */
export function changeBytes([tenantId, head, generation]: Hint, rows: Uint8Array): Buffer {
  const length = Buffer.alloc(2);
  length.writeUInt16BE(rows.length);
  const numbers = [generation, head, -1, -1].map(int8);
  return Buffer.concat([idBytes(tenantId), ...numbers, length, rows]);
}

/** Sends changes as an instance does. */
export async function notifyChanges(
  pool: pg.Pool,
  channel: string,
  pieces: readonly Buffer[],
  { key = NOTICE_KEY, signedFor = channel } = {},
): Promise<void> {
  const bytes = Buffer.concat([Buffer.alloc(MAC_BYTES), ...pieces]);
  new NoticeMac(key).signBytes(signedFor, bytes, bytes.length);
  await pool.query('SELECT pg_notify($1, $2)', [channel, bytes.toString('base64')]);
}

/** The frames of rows. */
export const framesOf = (rows: readonly ItemRow[]): string[] =>
  rows.map((row) => frameBytes(new JsonWriter(), 'a', row).toString());

/** Rows of one transaction that ends at `head`, with ciphertexts of these lengths. */
export const rowsOf = (head: number, ...sizes: readonly number[]): ItemRow[] =>
  sizes.map((size, n) => {
    const change = writeChange(writeOf({ inline: inline(`text ${n}`, [deviceId(1)], size) }), { tenantId: 'tenant' });
    return Object.assign(change, { version: head - sizes.length + 1 + n });
  });

const STATUS = { host: 'machine', pid: 7, port: 8080, version: '1.2.3', sockets: 0, draining: false, secrets: '' };

export interface Instance {
  readonly id: string;
  readonly feed: ChangeFeed;
  readonly clock: TestClock;
  readonly epoch: { now: string };
  readonly hints: Events<Hint>;
  readonly changes: Events<Change>;
  /** With sockets there. */
  readonly tenants: string[];
  /** Where heads have to be compared. */
  readonly gaps: Events<null>;
  readonly others: Events<null>;
  readonly faults: Events<unknown>;
  /** Statements that came back, with their values. */
  readonly statements: Events<string>;
  readonly orders: Events<DrainOrder>;
  /** Its statements, or the next so many of them, fail with this error, each after so many milliseconds of its clock. */
  readonly refuse: (error: Error | undefined, times?: number, ms?: number) => void;
  /** Waits until none of its statements is under way. */
  readonly answered: () => Promise<void>;
  /** Turns the clock to the next heartbeat and waits until it is sent. */
  readonly beat: () => Promise<void>;
}

/** What `callBinary` gives to the driver. */
interface Call extends pg.Query {
  readonly text: string;
  readonly parameters: CallParameters;
  callback: (...answer: unknown[]) => void;
}

/** A pool whose statements can be waited for. */
export function watched(
  pool: pg.Pool,
  statements: Events<string>,
  refusal: () => Error | undefined = () => undefined,
  underWay = { count: 0 },
): pg.Pool {
  const query = async (statement: string | pg.QueryConfig, values?: unknown[]): Promise<unknown> => {
    const error = refusal();
    if (error !== undefined) throw error;
    underWay.count++;
    const answer = await pool.query(statement as string, values).finally(() => underWay.count--);
    statements.add(typeof statement === 'string' ? statement : `${statement.text} ${String(statement.values)}`);
    return answer;
  };
  const connect = async (): Promise<unknown> => {
    const error = refusal();
    if (error !== undefined) throw error;
    const client = await pool.connect();
    const call = (statement: Call): void => {
      const { text, parameters, callback } = statement;
      underWay.count++;
      statement.callback = (...answer) => {
        underWay.count--;
        callback(...answer);
        if (answer[0] === null) statements.add(`${text} ${Buffer.concat(parameters.message()).toString('latin1')}`);
      };
      client.query(statement);
    };
    return { query: call, release: (failed: boolean) => client.release(failed) };
  };
  return { query, connect } as unknown as pg.Pool;
}

export const isBeat = (text: string): boolean => text.includes('INSERT INTO instances');

interface World {
  readonly url: string;
  readonly pool: pg.Pool;
  readonly instance: (id: string, listenUrl?: string) => Instance;
}

export async function world(t: WithTeardown, linkFolder?: string): Promise<World> {
  const { url } = await testDatabase(t);
  const pool = poolOf(t, url);
  const instance = (id: string, listenUrl = url): Instance => {
    const clock = new TestClock();
    let refusals: { readonly error: Error | undefined; left: number; readonly ms: number };
    const refuse = (error: Error | undefined, left = Infinity, ms = 0): void => void (refusals = { error, left, ms });
    refuse(undefined);
    const refusal = (): Error | undefined => {
      if (refusals.error === undefined || refusals.left-- <= 0) return undefined;
      clock.advance(refusals.ms);
      return refusals.error;
    };
    const made = {
      hints: new Events<Hint>(),
      gaps: new Events<null>(),
      others: new Events<null>(),
      faults: new Events<unknown>(),
      changes: new Events<Change>(),
      statements: new Events<string>(),
      orders: new Events<DrainOrder>(),
      tenants: [] as string[],
      epoch: { now: 'epoch' },
    };
    const underWay = { count: 0 };
    const feed = new ChangeFeed({
      ...{ instanceId: id, noticeKey: NOTICE_KEY, linkFolder },
      pool: watched(pool, made.statements, refusal, underWay),
      prepares: true,
      connection: () => Promise.resolve(clientConfig({ url: listenUrl, name: `listener ${id}` })),
      clock,
      epoch: () => made.epoch.now,
      onHint: (...hint) => made.hints.add(hint),
      // Copies: the rows lie in memory that the next notification is read into.
      onChange: (tenantId, generation, { rows, summary }) =>
        made.changes.add([tenantId, generation, { rows: rows.map((row) => row.copy()), summary }]),
      tenants: () => made.tenants,
      onGap: () => made.gaps.add(null),
      onOthers: () => made.others.add(null),
      status: () => ({ ...STATUS, sockets: made.tenants.length }),
      onDrain: (order) => made.orders.add(order),
      onFault: made.faults.add,
    });
    t.teardown(async () => feed.close());
    const beat = async (): Promise<void> => {
      const before = made.statements.all.filter(isBeat).length;
      clock.advance(BEAT_MS);
      await made.statements.until((all) => all.filter(isBeat).length > before);
    };
    const answered = (): Promise<void> =>
      until('every answer', async () => {
        await new Promise((resolve) => setImmediate(resolve));
        return underWay.count === 0;
      });
    return { id, feed, clock, beat, answered, refuse, ...made };
  };
  return { url, pool, instance };
}

/** Two instances that know of each other. */
export async function pair(t: WithTeardown, linkFolder?: string): Promise<World & { a: Instance; b: Instance }> {
  const made = await world(t, linkFolder);
  const a = made.instance('a');
  const b = made.instance('b');
  await a.feed.start();
  await b.feed.start();
  await a.others.until(1);
  await b.others.until(1);
  // Each has told the other that it may have missed something before it was known.
  for (const [from, to] of [
    [a, b],
    [b, a],
  ] as const) {
    from.clock.advance(COALESCE_MS);
    await to.gaps.until(2);
  }
  return { ...made, a, b };
}

/** Beats, and waits until the instance has heard that. What is being sent is sent first: over that, a heartbeat is slow. */
export async function beatBack(of: Instance): Promise<void> {
  await of.answered();
  await of.beat();
  await until('the heartbeat is back', () => of.feed.heard.until === of.clock.now());
}

/** Waits until it listens to all channels on another connection than that of `since`. */
export const listensAnew = ({ feed }: Instance, since: number): Promise<void> =>
  until('another connection', () => feed.heard.since > since && feed.heard.since < Infinity);

/** Beats, and waits until the beat was heard: the listening connection may be slower than the statement's answer. */
export async function beatHeard(of: Instance, from: Instance, sync: number): Promise<void> {
  await of.beat();
  const before = of.hints.all.length;
  tell(from, ['sync', sync, 1]);
  await of.hints.until(before + 1);
}

export function tell(from: Instance, ...hints: readonly Hint[]): void {
  for (const hint of hints) from.feed.announce(...hint);
  from.clock.advance(COALESCE_MS);
}

export const listeners = async (pool: pg.Pool): Promise<number[]> =>
  (
    await pool.query<{ pid: number }>(
      "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'listener%' AND datname = current_database() ORDER BY backend_start",
    )
  ).rows.map(({ pid }) => pid);

/** Statements that told the others something. */
const notified = (of: Instance): number =>
  of.statements.all.filter((text) => text.includes('pg_notify') && !isBeat(text)).length;

/** An instance with a socket of the tenant, which the others know of. */
export async function subscribes(of: Instance, tenant = 'tenant'): Promise<void> {
  of.tenants.push(tenant);
  of.feed.subscribe(tenant, of.clock.now());
  const before = notified(of);
  of.clock.advance(2_000);
  of.clock.advance(COALESCE_MS);
  await of.statements.until(() => notified(of) > before);
}
