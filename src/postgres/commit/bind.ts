/**
 * The parameters of a call in PostgreSQL's own binary formats (PostgreSQL manual, Frontend/Backend Protocol, Bind; array_send
 * and its like in the source), put together in memory that is used again. Arrays as text are joined, escaped, copied and
 * parsed for every batch, which is most of what a write costs on its way into the database (bench S2).
 */
import pg from 'pg';

const INT4 = 23;
const INT8 = 20;
const TEXT = 25;
const ARRAY_HEAD = 20;
const FIRST_BYTES = 64 * 1024;

/** The parameters of one call, in their order. */
export class Parameters {
  private bytes = Buffer.allocUnsafeSlow(FIRST_BYTES);
  private used = 0;
  private count = 0;
  /** The last parameter, which is sent as it lies. */
  private tail: Buffer = Buffer.alloc(0);

  /** Begins the parameters of a call of the statement that was prepared under this name. */
  begin(statement: string): this {
    this.used = 5;
    this.count = 0;
    this.room(statement.length + 16);
    // The unnamed portal; the statement; one format for all parameters, binary; how many there are, written at the end.
    this.bytes[this.used++] = 0;
    this.used += this.bytes.write(statement, this.used, 'latin1');
    this.bytes[this.used++] = 0;
    this.used = this.bytes.writeInt16BE(1, this.used);
    this.used = this.bytes.writeInt16BE(1, this.used);
    this.countAt = this.used;
    this.used += 2;
    return this;
  }

  private countAt = 0;

  int8(value: number): this {
    this.room(12);
    this.count++;
    this.used = this.bytes.writeInt32BE(8, this.used);
    this.putInt8(value);
    return this;
  }

  /** An array with `of(entry)` for each of the entries; null is NULL. */
  int8s<T>(entries: readonly T[], of: (entry: T, n: number) => number | null): this {
    const from = this.beginArray(INT8, entries.length, 12);
    for (let n = 0; n < entries.length; n++) {
      const value = of(entries[n] as T, n);
      if (value === null) this.used = this.bytes.writeInt32BE(-1, this.used);
      else {
        this.used = this.bytes.writeInt32BE(8, this.used);
        this.putInt8(value);
      }
    }
    return this.endArray(from);
  }

  int4s<T>(entries: readonly T[], of: (entry: T, n: number) => number): this {
    const from = this.beginArray(INT4, entries.length, 8);
    for (let n = 0; n < entries.length; n++) {
      this.used = this.bytes.writeInt32BE(4, this.used);
      this.used = this.bytes.writeInt32BE(of(entries[n] as T, n), this.used);
    }
    return this.endArray(from);
  }

  /** Texts of ASCII, 255 characters at most: ids and known words. */
  texts<T>(entries: readonly T[], of: (entry: T) => string | null): this {
    const from = this.beginArray(TEXT, entries.length, 4 + 255);
    for (const entry of entries) {
      const text = of(entry);
      if (text === null) this.used = this.bytes.writeInt32BE(-1, this.used);
      else {
        this.used = this.bytes.writeInt32BE(text.length, this.used);
        this.used += this.bytes.write(text, this.used, 'latin1');
      }
    }
    return this.endArray(from);
  }

  /** The last parameter. Its memory must not change until the call is answered or its connection destroyed. */
  bytea(value: Buffer): this {
    this.room(4);
    this.count++;
    this.used = this.bytes.writeInt32BE(value.length, this.used);
    this.tail = value;
    return this;
  }

  /** The Bind message in its pieces. They hold until the next `begin`. */
  message(): readonly Buffer[] {
    this.bytes[0] = 0x42;
    // Its own length counts, its type does not; behind the parameters stands that all results come as text.
    this.bytes.writeInt32BE(this.used - 1 + this.tail.length + 2, 1);
    this.bytes.writeInt16BE(this.count, this.countAt);
    return [this.bytes.subarray(0, this.used), this.tail, TEXT_RESULTS];
  }

  private putInt8(value: number): void {
    const high = Math.floor(value / 4_294_967_296);
    this.used = this.bytes.writeInt32BE(high, this.used);
    this.used = this.bytes.writeUInt32BE(value - high * 4_294_967_296, this.used);
  }

  private beginArray(type: number, entries: number, entryBytes: number): number {
    this.room(4 + ARRAY_HEAD + entries * entryBytes);
    this.count++;
    const from = this.used;
    this.used += 4;
    // One dimension (none where it is empty), maybe with NULLs, counted from 1.
    for (const value of entries === 0 ? [0, 0, type] : [1, 1, type, entries, 1]) {
      this.used = this.bytes.writeInt32BE(value, this.used);
    }
    return from;
  }

  private endArray(from: number): this {
    this.bytes.writeInt32BE(this.used - from - 4, from);
    return this;
  }

  private room(bytes: number): void {
    if (this.used + bytes <= this.bytes.length) return;
    const larger = Buffer.allocUnsafeSlow(Math.max(this.bytes.length * 2, this.used + bytes));
    this.bytes.copy(larger, 0, 0, this.used);
    this.bytes = larger;
  }
}

const TEXT_RESULTS = Buffer.from([0, 0]);

/** What the driver's connection is used for here; its types leave it out. */
interface DriverConnection {
  readonly stream: { cork(): void; uncork(): void; write(bytes: Buffer): void; destroy(): void };
  readonly parsedStatements: Readonly<Record<string, string | undefined>>;
  parse(statement: { readonly name: string; readonly text: string; readonly types: readonly number[] }): void;
  describe(what: { readonly type: 'P'; readonly name: string }): void;
  execute(what: { readonly portal: string; readonly rows?: number }): void;
  sync(): void;
}

/** The driver's own query, but for how its parameters are sent. */
class BinaryQuery extends pg.Query {
  constructor(
    private readonly statement: { readonly name: string; readonly text: string },
    private readonly parameters: Parameters,
    done: (error: Error | null, result: pg.QueryArrayResult) => void,
  ) {
    super({ ...statement, rowMode: 'array' } as pg.QueryConfig, undefined, done as never);
    // Called by the driver when it is this query's turn.
    this.submit = (connection) => this.send(connection as unknown as DriverConnection);
  }

  private send(connection: DriverConnection): void {
    const { name, text } = this.statement;
    const { stream } = connection;
    stream.cork();
    try {
      if (connection.parsedStatements[name] === undefined) connection.parse({ name, text, types: [] });
      for (const piece of this.parameters.message()) stream.write(piece);
      connection.describe({ type: 'P', name: '' });
      connection.execute({ portal: '' });
      connection.sync();
    } finally {
      stream.uncork();
    }
  }
}

/** Calls a statement, prepared once on each connection under its name, and resolves with its rows, unchecked. */
export function callBinary(
  client: pg.Client,
  statement: { readonly name: string; readonly text: string },
  parameters: Parameters,
): Promise<unknown> {
  return new Promise((resolve, reject) => {
    client.query(
      new BinaryQuery(statement, parameters, (error, result) => {
        if (error) reject(error);
        else resolve(result.rows);
      }),
    );
  });
}

/** Ends a connection at once: what was not sent on it yet never is, whether the other side reads or not. */
export function cutOff(client: pg.Client): Promise<void> {
  // Asked for first: the driver takes a connection that breaks unasked for a fault.
  const ended = client.end();
  (client as unknown as { readonly connection: DriverConnection }).connection.stream.destroy();
  return ended;
}
