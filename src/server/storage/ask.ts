/** One statement on a pool, with what every store wants of it: deadlocks tried again, losses as `unavailable`. */
import type pg from 'pg';
import type { PasswordProof } from '../../protocol/password-proof.js';
import { asUnavailable, isConnectionLoss, isRetryable, withRetry } from './database.js';

/** A statement with its parameters. */
export interface Statement {
  readonly text: string;
  readonly values: readonly unknown[];
  /** Prepares the text once on each connection, under this name; always the same text for a name. */
  readonly name?: string;
  /** It only reads: where its connection was lost, as every idle one is when the database restarts, it is asked again. */
  readonly readOnly?: boolean;
}

/**
 * Many numbers or ids as the text of an array, which the driver passes on as it is: of a list it quotes each element, and
 * that takes five times as long. Ids are ULIDs: there is nothing in them to be quoted.
 */
export const arrayOf = (elements: readonly (string | number)[]): string => `{${elements.join()}}`;

const losesNothing = (error: unknown): boolean => isRetryable(error) || isConnectionLoss(error);

/**
 * Rows of one statement. Deadlocks and serialization failures are tried again; what is left of them, and
 * a database out of reach, is `unavailable` with the cause for the log. A lost connection leaves open whether the
 * statement was done: the caller's client asks again.
 */
export function ask<Row extends pg.QueryResultRow>(pool: pg.Pool, statement: Statement): Promise<Row[]> {
  const { text, name, readOnly = false } = statement;
  const values = [...statement.values];
  return askAgain(
    async () => {
      const query = name === undefined ? pool.query<Row>(text, values) : pool.query<Row>({ name, text, values });
      return (await query).rows;
    },
    { readOnly },
  );
}

/** Asks until there is an answer, or no use in asking; see `ask`. */
export async function askAgain<T>(
  question: () => Promise<T>,
  { readOnly }: { readonly readOnly: boolean },
): Promise<T> {
  try {
    return await withRetry(question, readOnly ? { worthwhile: losesNothing } : {});
  } catch (error) {
    throw asUnavailable(error);
  }
}

/** The single row of a statement that always gives one. */
export async function askOne<Row extends pg.QueryResultRow>(pool: pg.Pool, statement: Statement): Promise<Row> {
  const [row] = await ask<Row>(pool, statement);
  if (row === undefined) throw new Error(`no row from: ${statement.text.slice(0, 60)}`);
  return row;
}

/** What a statement is besides its text and values. */
type How = Pick<Statement, 'name' | 'readOnly'>;

/** Statements of one subject, each asked as `ask` does. */
export abstract class Store {
  constructor(protected readonly pool: pg.Pool) {}

  protected rows<Row extends pg.QueryResultRow>(
    text: string,
    values: readonly unknown[] = [],
    how?: How,
  ): Promise<Row[]> {
    return ask<Row>(this.pool, { text, values, ...how });
  }

  /** Undefined where there is none. */
  protected async first<Row extends pg.QueryResultRow>(
    text: string,
    values: readonly unknown[],
    how?: How,
  ): Promise<Row | undefined> {
    return (await this.rows<Row>(text, values, how))[0];
  }

  /** The single row of a statement that always gives one. */
  protected one<Row extends pg.QueryResultRow>(text: string, values: readonly unknown[] = [], how?: How): Promise<Row> {
    return askOne<Row>(this.pool, { text, values, ...how });
  }

  /** The one value of the single row of a function. */
  protected async value<T>(text: string, values: readonly unknown[]): Promise<T> {
    return Object.values(await this.one<Record<string, T>>(text, values))[0] as T;
  }
}

/** What functions take of a password ticket; NULLs where none was shown. */
export const proofOf = (proof: PasswordProof | undefined): unknown[] => [
  proof?.ticketId ?? null,
  proof?.setAt ?? null,
  proof?.expiresAt ?? null,
];
