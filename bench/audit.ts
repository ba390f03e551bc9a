/**
 * Audits of correctness, without which figures do not count. Every acknowledged (id, version) is stored; versions go
 * from 1 to the head without a gap; nothing is stored twice; each receiver saw exactly the other devices' versions, in
 * order.
 */
import { readFileSync } from 'node:fs';
import type pg from 'pg';
import type { Population } from './population.js';

/** A failed audit, which invalidates the figures of its run. */
export class AuditError extends Error {
  override readonly name = 'AuditError';
}

/** Bytes of one record. */
const RECORD = 56;

/** One record of a driver's log: see `struct record` in native/bench.h. */
interface LogRecord {
  /** Number of the device that wrote, or whose socket received. */
  readonly who: number;
  readonly version: number;
  /** Receivers, as bits: 1 replayed (before `caught_up`), 2 after a reconnect. Writers: 0. */
  readonly flags: number;
  readonly id: string;
}

function* records(file: string): Generator<LogRecord> {
  const all = readFileSync(file);
  if (all.length % RECORD !== 0) throw new AuditError(`${file} is cut off`);
  for (let at = 0; at < all.length; at += RECORD) {
    yield {
      who: all.readUInt32LE(at + 12),
      version: all.readUInt32LE(at + 16),
      flags: all.readUInt32LE(at + 20),
      id: all.toString('latin1', at + 24, at + 50),
    };
  }
}

function* recordsOf(files: readonly string[]): Generator<LogRecord> {
  for (const file of files) yield* records(file);
}

/** Latencies in us, ascending, of the pushed (not replayed) frames whose writes were stamped in [from, to) ns. */
export function latencies(files: readonly string[], from: bigint, to: bigint): number[] {
  const found: number[] = [];
  for (const file of files) {
    const all = readFileSync(file);
    for (let at = 0; at < all.length; at += RECORD) {
      const stamp = all.readBigUInt64LE(at);
      if (stamp >= from && stamp < to && (all.readUInt32LE(at + 20) & 1) === 0)
        found.push(all.readUInt32LE(at + 8) / 1_000);
    }
  }
  return found.sort((one, other) => one - other);
}

/** The item of a version, and the device that made it. */
export interface Stored {
  readonly id: string;
  readonly device: string;
}

/** The input of an audit. */
interface AuditInput {
  readonly client: pg.Client;
  readonly population: Population;
  /** The writers' logs since the last audit. */
  readonly acked: readonly string[];
  /** The receivers' logs since the last audit; together they cover every socket. */
  readonly received?: readonly string[];
  /** Server or database were killed: there may be stored writes without an answer, and replays to sockets. */
  readonly crashed?: boolean;
}

/** Numbers of verified writes, rows and frames. */
export interface Audited {
  readonly acked: number;
  readonly stored: number;
  readonly received: number;
}

/** The properties that an audit has verified, as a sentence. */
export const auditText = ({ acked, received }: Pick<Audited, 'acked' | 'received'>): string =>
  `${acked} acknowledged writes all stored, versions 1 to head without a gap, ${received} frames received: none lost, repeated or out of order`;

/** Checks that every tenant's head is the version that `last` names. */
export async function checkHeads(client: pg.Client, tenants: readonly string[], last: (tenant: string) => number) {
  const { rows } = await client.query<{ id: string; head: number }>(
    'SELECT id, head::int FROM tenants WHERE id = ANY ($1)',
    [tenants],
  );
  for (const { id, head } of rows) {
    if (head !== last(id)) throw new AuditError(`tenant ${id}: head ${head}, but the last change is ${last(id)}`);
  }
}

/** Audits what was written since the last call with this object. */
export class Audit {
  /** Head of each tenant at the last audit. */
  private readonly heads = new Map<string, number>();

  async run(input: AuditInput): Promise<Audited> {
    const stored = await this.stored(input);
    const acked = this.checkAcked(input, stored);
    const rows = [...stored.values()].reduce((sum, tenant) => sum + tenant.length, 0);
    if (input.crashed !== true && acked !== rows) throw new AuditError(`${acked} writes acknowledged, ${rows} stored`);
    const { population, received: logs } = input;
    const head = (tenant: string): number => this.head(tenant);
    const received = logs === undefined ? 0 : checkReceived({ population, received: logs, stored, head });
    for (const [tenant, items] of stored) this.heads.set(tenant, this.head(tenant) + items.length);
    return { acked, stored: rows, received };
  }

  private head(tenant: string): number {
    return this.heads.get(tenant) ?? 0;
  }

  /** New rows of each tenant; a row's index is its version - old head - 1. */
  private async stored({ client, population }: AuditInput): Promise<Map<string, Stored[]>> {
    const { tenants } = population;
    const since = tenants.map((tenant) => this.head(tenant));
    const found = await client.query<[string, string, number, string]>({
      text: `SELECT i.tenant_id, i.id, i.version::int, i.sender_device
        FROM unnest($1::text[], $2::bigint[]) AS t(id, since) JOIN items i ON i.tenant_id = t.id AND i.version > t.since
        ORDER BY i.tenant_id, i.version`,
      values: [tenants, since],
      rowMode: 'array',
    });
    const all = new Map<string, Stored[]>();
    for (const [tenant, id, version, device] of found.rows) {
      const items = all.get(tenant) ?? [];
      all.set(tenant, items);
      items.push({ id, device });
      const expected = this.head(tenant) + items.length;
      if (version !== expected)
        throw new AuditError(`tenant ${tenant}: version ${expected} is missing, ${version} is there`);
    }
    await checkHeads(client, tenants, (tenant) => this.head(tenant) + (all.get(tenant)?.length ?? 0));
    return all;
  }

  private checkAcked({ acked, population }: AuditInput, stored: Map<string, Stored[]>): number {
    const seen = new Set<string>();
    for (const { who, version, id } of recordsOf(acked)) {
      const tenant = population.devices[who]?.tenant ?? '';
      const item = stored.get(tenant)?.[version - this.head(tenant) - 1];
      if (item?.id !== id)
        throw new AuditError(`acknowledged ${id} as version ${version} of ${tenant}; stored: ${item?.id}`);
      if (seen.has(id)) throw new AuditError(`${id} was acknowledged twice`);
      seen.add(id);
    }
    return seen.size;
  }
}

/** The receivers' records, and the versions that they should have received. */
interface Deliveries {
  readonly population: Population;
  /** The receivers' logs; all records of a socket are in the same one. */
  readonly received: readonly string[];
  /** Versions of each tenant above its old head, in order. */
  readonly stored: ReadonlyMap<string, readonly Stored[]>;
  /** A tenant's old head. */
  readonly head: (tenant: string) => number;
}

/** Checks that every socket got exactly the versions of its tenant's other devices, in order. Returns their number. */
export function checkReceived({ population, received, stored, head }: Deliveries): number {
  // For each socket, the index in its tenant's list up to which it has everything.
  const reached = new Uint32Array(population.devices.length);
  let count = 0;
  for (const { who, version, flags, id } of recordsOf(received)) {
    const device = population.devices[who];
    if (device === undefined) throw new AuditError(`socket ${who} is unknown`);
    const items = stored.get(device.tenant) ?? [];
    const place = version - head(device.tenant) - 1;
    const item = items[place];
    const socket = `socket of ${device.id}, tenant ${device.tenant}`;
    if (item?.id !== id) throw new AuditError(`${socket}: got ${id} as version ${version}; stored: ${item?.id}`);
    if (item.device === device.id && flags === 0) throw new AuditError(`${socket}: got its own version ${version}`);
    checkSkipped({ socket, device: device.id, items, from: reached[who] ?? 0, to: place });
    reached[who] = place + 1;
    count++;
  }
  population.devices.forEach((device, who) => {
    const items = stored.get(device.tenant) ?? [];
    const socket = `socket of ${device.id}, tenant ${device.tenant}`;
    checkSkipped({ socket, device: device.id, items, from: reached[who] ?? 0, to: items.length });
  });
  return count;
}

/** Throws unless all versions between two frames of a socket are of its own device, and the frames are in order. */
function checkSkipped(gap: {
  socket: string;
  device: string;
  items: readonly Stored[];
  from: number;
  to: number;
}): void {
  if (gap.to < gap.from) throw new AuditError(`${gap.socket}: versions out of order or repeated`);
  for (let place = gap.from; place < gap.to; place++) {
    if (gap.items[place]?.device !== gap.device) throw new AuditError(`${gap.socket}: missed ${gap.items[place]?.id}`);
  }
}
