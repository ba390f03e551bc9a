/**
 * The calls of the commit functions (sql/0002_commit.sql): parameters, sending, results.
 *
 * Parameters are sent in PostgreSQL's own binary formats (PostgreSQL manual, Frontend/Backend Protocol, Bind;
 * array_send and similar functions in the source), written into a reused buffer. Arrays as text would be joined,
 * escaped, copied and parsed for every batch, which was most of a write's cost on its way into the database (bench S2).
 *
 * Results are checked before use: a change acknowledged by another change's row would be lost, and one without a row
 * would never be answered.
 */
import pg from 'pg';
import type { Summary } from '../../../protocol/item.js';
import { NOT_STORED, STORED, type Change, type CommitSink, type Verdict } from '../../tenant/change.js';
import { HAS, putInt8, type ItemRow } from '../../tenant/codec.js';
import { readRows } from '../packing.js';
import { placeholders } from '../query.js';

const INT4 = 23;
const INT8 = 20;
const TEXT = 25;
const INT8_ARRAY = 1016;
const BYTEA = 17;
const ARRAY_HEAD = 20;
const FIRST_BYTES = 64 * 1024;

const NO_TAIL = Buffer.alloc(0);

/** The parameters of one call, in order. */
export class Parameters {
  private bytes = Buffer.allocUnsafeSlow(FIRST_BYTES);
  private used = 0;
  private count = 0;
  /** The last parameter if it is a `bytea`, sent without a copy. */
  private tail: Buffer = NO_TAIL;
  /** Name of the prepared statement to call; empty: it is parsed with the call. */
  name = '';

  /** `prepares`: statements stay prepared on their connection. */
  constructor(private readonly prepares: boolean) {}

  /** Starts the parameters of a call of this statement. */
  begin(statement: string): this {
    this.name = this.prepares ? statement : '';
    this.used = 5;
    this.count = 0;
    this.tail = NO_TAIL;
    this.room(this.name.length + 16);
    // The unnamed portal; the statement; one format for all parameters, binary; how many there are, written at the end.
    this.bytes[this.used++] = 0;
    this.used += this.bytes.write(this.name, this.used, 'latin1');
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
    this.used = putInt8(this.bytes, this.bytes.writeInt32BE(8, this.used), value);
    return this;
  }

  /** An array of `of(entry)` for each entry; null is NULL. */
  int8s<T>(entries: readonly T[], of: (entry: T, n: number) => number | null): this {
    const from = this.beginArray(INT8, entries.length, 12);
    for (let n = 0; n < entries.length; n++) {
      const value = of(entries[n] as T, n);
      if (value === null) this.used = this.bytes.writeInt32BE(-1, this.used);
      else this.used = putInt8(this.bytes, this.bytes.writeInt32BE(8, this.used), value);
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

  /** ASCII texts of at most `most` characters; by default ids and known keywords. */
  texts<T>(entries: readonly T[], of: (entry: T) => string | null, most = 255): this {
    const from = this.beginArray(TEXT, entries.length, 4 + most);
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

  /** The Bind message in parts, valid until the next `begin`. */
  message(): readonly Buffer[] {
    this.bytes[0] = 0x42;
    // The length includes itself but not the type byte; the parameters are followed by the request for text results.
    this.bytes.writeInt32BE(this.used - 1 + this.tail.length + 2, 1);
    this.bytes.writeInt16BE(this.count, this.countAt);
    return [this.bytes.subarray(0, this.used), this.tail, TEXT_RESULTS];
  }

  private beginArray(type: number, entries: number, entryBytes: number): number {
    this.room(4 + ARRAY_HEAD + entries * entryBytes);
    this.count++;
    const from = this.used;
    this.used += 4;
    // One dimension (none if empty), with the flag for possible NULLs, lower bound 1.
    for (const value of entries === 0 ? [0, 0, type] : [1, 1, type, entries, 1])
      this.used = this.bytes.writeInt32BE(value, this.used);
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

/** The methods of the driver's connection that are used here; its types omit them. */
interface DriverConnection {
  readonly stream: { cork(): void; uncork(): void; write(bytes: Buffer): void; destroy(): void };
  readonly parsedStatements: Readonly<Record<string, string | undefined>>;
  parse(statement: { readonly name: string; readonly text: string; readonly types: readonly number[] }): void;
  describe(what: { readonly type: 'P'; readonly name: string }): void;
  execute(what: { readonly portal: string }): void;
  sync(): void;
}

/** Parsers of the functions' results. `readInserted` and `readDecided` check the values. */
function parserOf(type: number): (text: string) => unknown {
  if (type === INT4 || type === INT8) return Number;
  if (type === BYTEA) return (text) => Buffer.from(text.slice(2), 'hex');
  if (type === INT8_ARRAY) return (text) => (text === '{}' ? [] : text.slice(1, -1).split(',').map(numberOrNull));
  return String;
}

const numberOrNull = (text: string): number | null => (text === 'NULL' ? null : Number(text));

/** The driver's own query, except for how parameters are sent. */
class BinaryQuery extends pg.Query {
  constructor(
    private readonly text: string,
    private readonly parameters: Parameters,
    done: (error: Error | null, result: pg.QueryArrayResult) => void,
  ) {
    super(
      { name: parameters.name, text, rowMode: 'array', types: { getTypeParser: parserOf } } as pg.QueryConfig,
      undefined,
      done as never,
    );
    // Called by the driver when it is this query's turn.
    this.submit = (connection) => this.send(connection as unknown as DriverConnection);
  }

  private send(connection: DriverConnection): void {
    const { text } = this;
    const { name } = this.parameters;
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

/** Calls the statement whose parameters were begun, and resolves with its rows, unchecked. */
export function callBinary(client: pg.ClientBase, text: string, parameters: Parameters): Promise<unknown> {
  return new Promise((resolve, reject) => {
    client.query(
      new BinaryQuery(text, parameters, (error, result) => {
        if (error) reject(error);
        else resolve(result.rows);
      }),
    );
  });
}

/** Ends a connection at once: unsent data is never sent, whether or not the other side reads. */
export function cutOff(client: pg.ClientBase): Promise<void> {
  // `end` first: the driver reports a connection that breaks without it as an error.
  const ended = (client as pg.Client).end();
  (client as unknown as { readonly connection: DriverConnection }).connection.stream.destroy();
  return ended;
}

export const INSERT = { name: 'insert', text: `SELECT * FROM insert_changes(${placeholders(17)})` } as const;
export const COMMIT = { name: 'commit', text: `SELECT * FROM commit_changes(${placeholders(20)})` } as const;

/** Changes of one tenant and one sink in one batch, all checked against the same generation. */
export interface TenantChanges {
  readonly tenantId: string;
  readonly generation: number;
  readonly sink: CommitSink | null;
  readonly changes: Change[];
}

/** Whether a change can be a plain insert, judged without the stored row. */
const mayInsert = ({ kind, refusal, ifVersion, blobRef, has }: Change): boolean =>
  kind === 'write' && refusal === null && (ifVersion ?? 0) === 0 && blobRef === null && (has & HAS.inline) !== 0;

/** Separates the tenants whose every change may be a plain insert, by id, from the changes of all others. */
export function byTenant(batch: readonly Change[]) {
  const found = new Map<string, TenantChanges>();
  const mixed = new Set<string>();
  for (const change of batch) {
    const { tenantId, generation, sink } = change;
    const tenant = found.get(tenantId);
    if (tenant === undefined) found.set(tenantId, { tenantId, generation, sink, changes: [change] });
    else tenant.changes.push(change);
    // Two sinks: an actor was dropped and reloaded with changes under way. Each gets its own outcomes.
    const other = tenant !== undefined && (generation !== tenant.generation || sink !== tenant.sink);
    if (other || !mayInsert(change)) mixed.add(tenantId);
  }
  const all = [...found.values()];
  // In the order of ids, in which every transaction locks tenants.
  const sorted = (one: TenantChanges, other: TenantChanges): number => (one.tenantId < other.tenantId ? -1 : 1);
  if (mixed.size === 0) return { tenants: all.sort(sorted), others: [] };
  return {
    tenants: all.filter(({ tenantId }) => !mixed.has(tenantId)).sort(sorted),
    others: batch.filter(({ tenantId }) => mixed.has(tenantId)),
  };
}

/** Unused bytes between the changes of a batch are sent too, up to this share, rather than copying the changes. */
const GAPS_MAX = 0.5;

/**
 * All changes' bytes in one buffer, and the offset of each in it: the part of the arena that contains the changes, mostly
 * contiguous; a copy if they are scattered.
 */
function gather(changes: readonly Change[]): { readonly bytes: Buffer; readonly offsets: readonly number[] } {
  let [from, to, total] = [Infinity, 0, 0];
  const segment = changes[0]?.segment;
  let together = segment !== undefined;
  for (const change of changes) {
    if (change.segment !== segment) together = false;
    from = Math.min(from, change.at);
    to = Math.max(to, change.end);
    total += change.end - change.at;
  }
  if (together && segment !== undefined && to - from - total <= GAPS_MAX * (to - from))
    return { bytes: segment.bytes.subarray(from, to), offsets: changes.map(({ at }) => at - from) };
  const bytes = Buffer.allocUnsafeSlow(total);
  let at = 0;
  const offsets = changes.map((change) => {
    const offset = at;
    at += change.bytes.copy(bytes, at, change.at, change.end);
    return offset;
  });
  return { bytes, offsets };
}

/** Parameters of `insert_changes`; tenants in the order of their ids. */
export function putInsert(into: Parameters, tenants: readonly TenantChanges[], cap: number): void {
  const changes = tenants.flatMap((tenant) => tenant.changes);
  const places = tenants.flatMap((tenant, n) => tenant.changes.map(() => n + 1));
  const ranks = tenants.flatMap((tenant) => tenant.changes.map((_, rank) => rank + 1));
  const { bytes, offsets } = gather(changes);
  into
    .begin(INSERT.name)
    .int8(cap)
    .texts(tenants, ({ tenantId }) => tenantId)
    .int8s(tenants, ({ generation }) => generation)
    .int4s(tenants, (tenant) => tenant.changes.length)
    .int8s(tenants, (tenant) => tenant.changes.reduce((sum, { counted }) => sum + counted, 0))
    .int4s(places, (place) => place)
    .int4s(ranks, (rank) => rank)
    .texts(changes, ({ id }) => id)
    .texts(changes, ({ deviceId }) => deviceId)
    .texts(changes, ({ binId }) => binId)
    .texts(changes, ({ type }) => type)
    .int8s(changes, ({ ts }) => ts)
    .int4s(changes, ({ has }) => has)
    .int4s(offsets, (offset) => offset)
    .int4s(changes, ({ ctBytes }) => ctBytes)
    .int4s(changes, ({ keysBytes }) => keysBytes)
    .bytea(bytes);
}

const KINDS = { write: 'w', delete: 'd', move: 'm' } as const;
/** `p_refused`. The function refuses re-wraps for 1 and 2 only, and everything else that would change something for 3 too. */
const REFUSED = { bin: 1, all: 2, content: 3 } as const;

/** Parameters of `commit_changes`. Every text in a change was already checked to be an id or a known keyword. */
export function putCommit(
  into: Parameters,
  changes: readonly Change[],
  { now, cap }: { readonly now: number; readonly cap: number },
): void {
  const tenants = new Map<string, number>();
  for (const { tenantId } of changes) if (!tenants.has(tenantId)) tenants.set(tenantId, tenants.size + 1);
  const { bytes, offsets } = gather(changes);
  into
    .begin(COMMIT.name)
    .texts([...tenants.keys()], (tenantId) => tenantId)
    .int8(now)
    .int8(cap)
    .int4s(changes, ({ tenantId }) => tenants.get(tenantId) ?? 0)
    .int8s(changes, ({ generation }) => generation)
    .texts(changes, ({ kind }) => KINDS[kind])
    .texts(changes, ({ id }) => id)
    .texts(changes, ({ deviceId }) => deviceId)
    .texts(changes, ({ kind, binId }) => (kind === 'delete' ? null : binId))
    .texts(changes, ({ type }) => type)
    .int8s(changes, ({ ts }) => ts)
    .int8s(changes, ({ ifVersion }) => ifVersion)
    .int4s(changes, ({ refusal, refusedFor }) => (refusal === null ? 0 : REFUSED[refusedFor]))
    .texts(changes, ({ blobRef }) => blobRef)
    .int4s(changes, ({ has }) => has)
    .int4s(offsets, (offset) => offset)
    .int4s(changes, ({ ctBytes }) => ctBytes)
    .int4s(changes, ({ keysBytes }) => keysBytes)
    .int4s(changes, ({ blobKeysBytes }) => blobKeysBytes)
    .bytea(bytes);
}

/** What `commit_changes` decided of one change. `alone`: to be repeated without other changes of its tenant. */
export interface Decided {
  readonly verdict: Verdict | 'alone';
  readonly version: number | null;
  readonly ts: number | null;
  readonly stored: ItemRow | null;
  /** The tenant's summary after the change. */
  readonly summary: Summary;
  readonly generation: number;
}

const VERSIONED: ReadonlySet<unknown> = new Set(STORED);
const VERDICTS: ReadonlySet<unknown> = new Set([...STORED, ...NOT_STORED, 'alone']);

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
const isCountOrNull = (value: unknown): value is number | null => value === null || isCount(value);

/** One for each change, in order. Throws if the rows are anything else. */
export function readDecided(rows: unknown, changes: number): Decided[] {
  return rowsOf(rows, changes).map((row, at) => {
    if (row[0] !== at + 1) throw new Error(`row ${at + 1} is about change ${String(row[0])}`);
    return decidedOf(row);
  });
}

function decidedOf(row: readonly unknown[]): Decided {
  const [, verdict, version, ts, head, itemCount, versionSum, generation, stored] = row;
  if (!isVerdict(verdict)) throw new Error('a verdict that there is not');
  if (!isCountOrNull(version) || !isCountOrNull(ts)) throw new Error('a version or time that is none');
  if (VERSIONED.has(verdict) && (version === null || version === 0)) throw new Error(`${verdict} without a version`);
  // A deleted tenant has the verdict `stale` and nothing else.
  const position = verdict === 'stale' && head === null ? [0, 0, 0, 0] : [head, itemCount, versionSum, generation];
  if (!areCounts(position)) throw new Error('a position that is none');
  if (stored !== null && !Buffer.isBuffer(stored)) throw new Error('a stored row that is none');
  if (stored === null && (verdict === 'rewrap' || verdict === 'move')) throw new Error(`${verdict} without its row`);
  const [at, items, sum, current] = position;
  return {
    ...{ verdict, version, ts, stored: stored === null ? null : (readRows(stored)[0] ?? null) },
    ...{ summary: { version: at, itemCount: items, versionSum: sum }, generation: current },
  };
}

/** The summary of each tenant after `insert_changes`, in order; null if nothing was done. Throws like `readDecided`. */
export function readInserted(rows: unknown, tenants: number): (Summary | null)[] {
  const [columns] = rowsOf(rows, 1);
  const [heads, itemCounts, versionSums] = (columns ?? []).map((column) => rowsOf(column, tenants, isCountOrNull));
  if (heads === undefined || itemCounts === undefined || versionSums === undefined)
    throw new Error('a column is missing');
  return heads.map((version, at) => {
    if (version === null) return null;
    const [itemCount, versionSum] = [itemCounts[at], versionSums[at]];
    if (!isCount(itemCount) || !isCount(versionSum)) throw new Error('a sum is missing');
    return { version, itemCount, versionSum };
  });
}

/** Checks that this is a list of `count` valid elements, by default rows. */
function rowsOf<T = readonly unknown[]>(
  given: unknown,
  count: number,
  fits: (value: unknown) => value is T = Array.isArray as unknown as (value: unknown) => value is T,
): T[] {
  if (!Array.isArray(given) || given.length !== count) throw new Error(`not a list of ${count}`);
  const list: unknown[] = given;
  if (!list.every(fits)) throw new Error('a list with something else in it');
  return list;
}

const isVerdict = (value: unknown): value is Decided['verdict'] => VERDICTS.has(value);
const areCounts = (values: readonly unknown[]): values is [number, number, number, number] => values.every(isCount);
