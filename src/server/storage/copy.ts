/**
 * Reads rows in binary. The driver returns every value as text, where `bytea` is hex: twice as long, and copied three
 * times. Data sent by COPY it passes on unchanged (PostgreSQL manual, COPY, binary format).
 */
import pg from 'pg';
import { asError } from '../../protocol/error-code.js';
import { int8At } from '../tenant/codec.js';
import { withPooled } from './database.js';
import { orUnavailable } from './query.js';

const SIGNATURE = Buffer.from('PGCOPY\n\u00ff\r\n\0', 'latin1');
const NO_MORE_ROWS = -1;
const NO_BYTES = Buffer.alloc(0);

/** A row whose columns are read one after the other, in the format of their types' `send` functions. */
export class CopiedRow {
  bytes: Buffer = NO_BYTES;
  /** Offset of the next column; after `value`, of its bytes. */
  at = 0;

  /** Advances to the bytes of the next column; returns its length, -1 for NULL. The caller advances past the bytes. */
  value(): number {
    const length = this.bytes.readInt32BE(this.at);
    this.at += 4;
    return length;
  }

  int8(): number | null {
    const length = this.value();
    if (length < 0) return null;
    if (length !== 8) throw new Error(`an int8 of ${length} bytes`);
    this.at += 8;
    return int8At(this.bytes, this.at - 8);
  }

  /** Skips the remaining columns. */
  skip(): void {
    this.at = this.bytes.length;
  }

  /** An ASCII text. */
  text(): string | null {
    const length = this.value();
    if (length < 0) return null;
    this.at += length;
    return this.bytes.toString('latin1', this.at - length, this.at);
  }
}

/** Takes each row synchronously: the driver reuses its memory afterwards. */
interface RowTaker {
  take(row: CopiedRow): void;
}

/**
 * The driver's own query, except that it handles the CopyData messages, which the driver drops. Each contains one row
 * (manual, COPY Operations).
 */
class CopyQuery extends pg.Query {
  private readonly row = new CopiedRow();
  private begun = false;
  /** An error of the taker or of the format; thrown into the driver it would end the process. */
  fault: unknown;

  constructor(
    sql: string,
    private readonly taker: RowTaker,
    done: (error: Error | null) => void,
  ) {
    super(`COPY (${sql}) TO STDOUT (FORMAT binary)`, done as never);
  }

  handleCopyData({ chunk }: { readonly chunk: Buffer }): void {
    if (this.fault !== undefined) return;
    try {
      this.read(chunk);
    } catch (error) {
      this.fault = error;
    }
  }

  /** Throws for anything but COPY's binary format: the sender is our own database. */
  private read(chunk: Buffer): void {
    const { row } = this;
    row.bytes = chunk;
    row.at = this.begun ? 0 : afterHeader(chunk);
    this.begun = true;
    if (row.at === chunk.length) return;
    const columns = chunk.readInt16BE(row.at);
    row.at += 2;
    if (columns === NO_MORE_ROWS) return;
    this.taker.take(row);
    if (row.at !== chunk.length) throw new Error('a row of other columns than were asked for');
  }
}

function afterHeader(bytes: Buffer): number {
  if (!bytes.subarray(0, SIGNATURE.length).equals(SIGNATURE)) throw new Error('not the binary format of COPY');
  const flags = SIGNATURE.length;
  return flags + 8 + bytes.readInt32BE(flags + 4);
}

/**
 * Passes the rows of a read-only query to a taker; each attempt begins with a new taker. Fails as `orUnavailable` does.
 * COPY takes no parameters: every value in `sql` comes from `pg.escapeLiteral` or is a number.
 */
export async function copyRows<T extends RowTaker>(pool: pg.Pool, sql: string, begin: () => T): Promise<T> {
  const copy = (client: pg.PoolClient): Promise<T> =>
    new Promise((resolve, reject) => {
      const taker = begin();
      const query: CopyQuery = new CopyQuery(sql, taker, (error) => {
        // The driver gives null where the types say undefined.
        if (error instanceof Error) reject(error);
        else if (query.fault !== undefined) reject(asError(query.fault));
        else resolve(taker);
      });
      client.query(query);
    });
  return orUnavailable(() => withPooled(pool, copy), true);
}
