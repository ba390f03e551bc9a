/**
 * One statement on a pool, as all stores use it: tenants take turns, deadlocks are retried, connection losses become
 * `unavailable`.
 */
import type pg from 'pg';
import { MINUTE_MS } from '../../protocol/clock.js';
import type { NewDevice } from '../../protocol/request-fields.js';
import { unavailable, type ErrorName } from '../../protocol/errors.js';
import { isUlid } from '../../protocol/ids.js';
import { TurnQueue } from '../tenant/turn-queue.js';
import { asUnavailable, isConnectionLoss, isRetryable, openClient, withRetry, type Client } from './database.js';

interface QueryOptions {
  /** Prepares the text once on each connection under this name, which always stands for the same text. */
  readonly name?: string;
  /** A read: repeated if its connection was lost, as happens to every idle connection when the database restarts. */
  readonly readOnly?: boolean;
}

type Statement = [text: string, values?: readonly unknown[], options?: QueryOptions];

/**
 * Numbers, ULIDs or booleans as the text of an array, which the driver passes through. It would quote each element of a
 * list, which takes five times as long; these need no quotes. Must not be used for other texts.
 */
export const arrayOf = (elements: readonly (string | number)[]): string => `{${elements.join()}}`;

/** The values of these fields, a list for each field, as parameters for `unnest`. */
export const byColumn = <Row, K extends keyof Row>(rows: readonly Row[], ...fields: readonly K[]): Row[K][][] =>
  fields.map((field) => rows.map((row) => row[field]));

/** `$1,$2,...` */
export const placeholders = (count: number): string => Array.from({ length: count }, (_, n) => `$${n + 1}`).join();

/**
 * Statements under way of all tenants and of one, on one pool, which has a few connections more. Those that change a
 * tenant wait for its row's lock: without turns the calls of one tenant would hold every connection, each waiting for
 * the one before, and every other tenant would wait behind them. The turns beyond those that one tenant may have are for
 * tenants without any.
 */
const STATEMENTS_MAX = 8;
export const STATEMENTS_OF_TENANT_MAX = 4;
/** A statement whose turn comes later, ms, is refused; as long as the pool itself makes a caller wait. */
const TURN_WITHIN_MS = 5_000;

/** The line of statements for clients without a token, which may be any number, at any number of addresses. */
export const UNAUTHENTICATED = 'unauthenticated';

interface Turns {
  readonly queue: TurnQueue;
  /** False: only statements in a line of their own wait for a turn, as one tenant alone needs no others. */
  readonly all: boolean;
}

const turns = new WeakMap<Client, Turns>();

/**
 * From now on statements on this pool take turns: those of its tenants if there are several (`all`), and in any case
 * those for clients without a token, which else would wait in the pool before those of devices.
 */
export function takeTurns(pool: pg.Pool, all = true): void {
  turns.set(pool, { queue: new TurnQueue(STATEMENTS_MAX, STATEMENTS_OF_TENANT_MAX), all });
}

/**
 * Runs a statement in its tenant's turn, where `takeTurns` was called. The first parameter of every statement about one
 * tenant is the tenant's id; statements about none or many run at once, but those in a line take turns as those of one
 * tenant. Those of one tenant in different lines take turns too. Throws `unavailable` if the turn came too late.
 */
export function inTurn<T>(pool: Client, first: unknown, statement: () => Promise<T>, line = ''): Promise<T> {
  const found = turns.get(pool);
  const tenantId = isUlid(first) ? first : '';
  if (found === undefined || (line === '' && !(found.all && tenantId !== ''))) return statement();
  // Machine time, as for the pool's own limit.
  const queuedAt = performance.now();
  return found.queue.take({ tenantId: tenantId || line, deviceId: line }, () => {
    if (performance.now() - queuedAt > TURN_WITHIN_MS) throw unavailable('too many calls wait for the database');
    return statement();
  });
}

/** A read may be repeated whether or not it was executed. */
export const isRetryableRead = (error: unknown): boolean => isRetryable(error) || isConnectionLoss(error);

/**
 * Repeats a statement after deadlocks and serialization failures. After the last attempt, and if the database cannot be
 * reached, it rejects with `unavailable` and the cause for the log. After a lost connection it is unknown whether the statement was
 * executed: the client may send the request again.
 */
export async function orUnavailable<T>(query: () => Promise<T>, readOnly: boolean): Promise<T> {
  try {
    return await withRetry(query, readOnly ? isRetryableRead : isRetryable);
  } catch (error) {
    throw asUnavailable(error);
  }
}

/** Base class of a subject's statements, on a pool or one connection: each waits for its turn and is run by `orUnavailable`. */
export abstract class Store<Pool extends Client = pg.Pool> {
  /** @param line its statements' line (`inTurn`). */
  constructor(
    protected readonly pool: Pool,
    private readonly line = '',
  ) {}

  protected rows<Row extends pg.QueryResultRow>(
    text: string,
    given: readonly unknown[] = [],
    { name, readOnly = false }: QueryOptions = {},
  ): Promise<Row[]> {
    const { pool } = this;
    const values = [...given];
    const query = async (): Promise<Row[]> =>
      (await (name === undefined ? pool.query<Row>(text, values) : pool.query<Row>({ name, text, values }))).rows;
    return orUnavailable(() => inTurn(pool, values[0], query, this.line), readOnly);
  }

  /** The first row; undefined if there is none. */
  protected async first<Row extends pg.QueryResultRow>(...statement: Statement): Promise<Row | undefined> {
    return (await this.rows<Row>(...statement))[0];
  }

  /** The row of a statement that always returns exactly one. */
  protected async one<Row extends pg.QueryResultRow>(...statement: Statement): Promise<Row> {
    const row = await this.first<Row>(...statement);
    if (row === undefined) throw new Error(`no row from: ${statement[0].slice(0, 60)}`);
    return row;
  }

  /** The row that a function of the database returns (sql/). */
  protected call<Row extends pg.QueryResultRow>(name: string, ...values: readonly unknown[]): Promise<Row> {
    return this.one<Row>(`SELECT * FROM ${name}(${placeholders(values.length)})`, values);
  }

  /** The value that such a function returns. */
  protected async value<T>(name: string, ...values: readonly unknown[]): Promise<T> {
    return Object.values(await this.call<Record<string, T>>(name, ...values))[0] as T;
  }
}

/** Statements on these tables go through all rows, as those of other stores must not: for a million of them seconds, ms. */
const WHOLE_TABLE_MS = 10 * MINUTE_MS;

/** Rows kept in a temporary table, since they may exceed the memory. Holds a connection of its own until it is closed. */
export abstract class TemporaryTable extends Store<pg.Client> {
  /**
   * A connection with a new table of these columns, keyed by tenant and ref. `url` leads past a pooler, which would give
   * each statement another session, and keep the table. Throws `unavailable`.
   */
  protected static async create(url: string, name: string, columns: string): Promise<pg.Client> {
    let client: pg.Client | undefined;
    try {
      const limits = { statementTimeoutMs: WHOLE_TABLE_MS };
      // A lost connection rejects the statements.
      client = await openClient({ url, name: 'service comparison', ...limits, onLost: () => undefined });
      await client.query(`CREATE TEMPORARY TABLE ${name} (
        tenant_id text COLLATE "C", ref text COLLATE "C", ${columns}, PRIMARY KEY (tenant_id, ref))`);
      return client;
    } catch (error) {
      await client?.end();
      throw asUnavailable(error);
    }
  }

  /** Closes the connection, which drops the table; a statement under way is rejected. */
  close(): Promise<void> {
    return this.pool.end();
  }
}

/** Row of a function that changes something: its columns are set with `ok`, else the verdict is the reason. */
export type Outcome<Columns> = (Columns & { readonly verdict: 'ok' }) | { readonly verdict: ErrorName };

/** The outcome of adding a device: with `ok` the epoch of its tokens. */
export type Joined = Outcome<{ readonly epoch: number }>;

/** What a device changes, by its id. `by` is the calling device, which is refused if it was revoked in the meantime. */
export interface DeviceCall {
  readonly tenantId: string;
  readonly id: string;
  readonly by: string;
}

/** Parameters of a device, for the functions that add one. */
export const deviceOf = ({ id, name, glyph, pubkey, cert }: NewDevice): unknown[] => [id, name, glyph, pubkey, cert];

/** A password ticket whose signature is valid for the tenant and the key that it was presented with. */
export interface PasswordProof {
  /** Hexadecimal; the ticket's key in the list of used tickets. */
  readonly ticketId: string;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
  /** `password_set_at` of its password: a new password invalidates the ticket. */
  readonly setAt: number;
}

/** Parameters of a password ticket; NULLs if none was given. */
export const proofOf = (proof: PasswordProof | undefined): unknown[] => [
  proof?.ticketId ?? null,
  proof?.setAt ?? null,
  proof?.expiresAt ?? null,
];
