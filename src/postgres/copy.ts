/**
 * Rows whose bytes come as they are. The driver hands out every value as text, where `bytea` is hex: twice as long, and
 * copied three times on its way. What COPY sends it hands out untouched (PostgreSQL manual, COPY, binary format).
 */
import pg from 'pg';
import { askAgain } from './ask.js';

/** The columns of one row, as their types' `send` functions write them; null is NULL. */
export type BinaryRow = readonly (Buffer | null)[];

const SIGNATURE = Buffer.from('PGCOPY\n\u00ff\r\n\0', 'latin1');
const NO_MORE_ROWS = -1;

/** The driver's own query, but for the messages of COPY, which that one drops. */
class CopyQuery extends pg.Query {
  private readonly parts: Buffer[] = [];

  /** Called by the driver for each message. */
  handleCopyData({ chunk }: { readonly chunk: Buffer }): void {
    // A copy: the driver takes its memory back.
    this.parts.push(Buffer.from(chunk));
  }

  get bytes(): Buffer {
    return this.parts.length === 1 && this.parts[0] !== undefined ? this.parts[0] : Buffer.concat(this.parts);
  }
}

/** An int8 that fits a safe integer. */
export const int8Of = (value: Buffer): number => value.readInt32BE(0) * 4_294_967_296 + value.readUInt32BE(4);

/**
 * The rows of a query that only reads, all of them in memory. Fails as `ask` does. COPY takes no parameters: whatever stands
 * in `sql` is `pg.escapeLiteral`'s or a number.
 */
export async function copyRows(pool: pg.Pool, sql: string): Promise<BinaryRow[]> {
  return askAgain(
    async () => {
      const client = await pool.connect();
      let failed = true;
      try {
        const bytes = await new Promise<Buffer>((resolve, reject) => {
          const query: CopyQuery = new CopyQuery(`COPY (${sql}) TO STDOUT (FORMAT binary)`, (error) => {
            // The driver gives null where the types say undefined.
            if (error instanceof Error) reject(error);
            else resolve(query.bytes);
          });
          client.query(query);
        });
        failed = false;
        return readCopy(bytes);
      } finally {
        // As `pool.query` does it: a connection on which anything failed is not handed on.
        client.release(failed);
      }
    },
    { readOnly: true },
  );
}

/** Reads what COPY wrote. Throws for anything else: it is our own database that sent it. */
function readCopy(bytes: Buffer): BinaryRow[] {
  if (!bytes.subarray(0, SIGNATURE.length).equals(SIGNATURE)) throw new Error('not the binary format of COPY');
  const flags = SIGNATURE.length;
  let at = flags + 8 + bytes.readInt32BE(flags + 4);
  const rows: BinaryRow[] = [];
  for (;;) {
    const columns = bytes.readInt16BE(at);
    at += 2;
    if (columns === NO_MORE_ROWS) return rows;
    const row: (Buffer | null)[] = [];
    while (row.length < columns) {
      const length = bytes.readInt32BE(at);
      at += 4;
      row.push(length < 0 ? null : bytes.subarray(at, at + length));
      at += Math.max(0, length);
    }
    rows.push(row);
  }
}
