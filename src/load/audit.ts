/**
 * Compares what was acknowledged with what is stored and with what each socket received. A socket that reconnected or
 * read slowly may lack a version that a later change of the same item replaced, since the server sends latest states.
 * Everything else has to arrive, once and in order.
 */
import { openItem } from '../crypto/item.js';
import type { Sodium } from '../crypto/sodium.js';
import { asError } from '../protocol/error-code.js';
import { ProtocolError } from '../sdk/errors.js';
import { array, boolean, count, nullable, object, string, type Read } from '../sdk/reader.js';
import { readItem } from '../sdk/wire.js';
import { asDevice, type FleetTenant } from './fleet.js';
import type { Entry, Ledger } from './ledger.js';
import { byName, sum } from './plan.js';
import type { Receiver } from './receiver.js';
import { withRetries, type Target } from './target.js';

/** What a socket received. */
export type Received = Pick<Receiver, 'versions' | 'entries' | 'unexpected' | 'live'>;

/** What an audit found. */
export interface Audited {
  /** Changes that were answered with a version. */
  readonly acknowledged: number;
  /** Items of the run that were read back: each opened, unless it was deleted. */
  readonly stored: number;
  /** Frames of changes on all sockets. */
  readonly received: number;
  /** Changes that were sent and never answered: they may be stored or not. */
  readonly unanswered: number;
  /** Versions of items that others wrote. */
  readonly foreign: number;
  /** Number of differences, and the first of them. */
  readonly faults: number;
  readonly examples: readonly string[];
}

/** Examples, and their length: agents send them. */
const EXAMPLES_MAX = 20;
const EXAMPLE_CHARS = 500;
const PAGE = 1_000;

const page = object({ items: array((value) => value), nextSince: count, hasMore: boolean });
const me = object({ headVersion: count });
/** The fields of a stored item that are read without its keys. */
const rowHead = object({
  id: string,
  version: count,
  deletedAt: nullable(count),
  senderDevice: nullable(string),
});

/** More pages than any run fills: a server could go on for ever. */
const PAGES_MAX = 20_000;

/**
 * Every stored item above a version. `read` requests a path, which names one page of them. Throws `ProtocolError`
 * `bad_listing` for a listing without an end.
 */
export async function* itemsAbove(base: number, read: (path: string) => Promise<unknown>): AsyncGenerator {
  for (let since = base, pages = 1; ; pages++) {
    const { items, nextSince, hasMore } = page(await read(`/api/items?since=${since}&limit=${PAGE}`), '');
    yield* items;
    if (!hasMore) return;
    if (items.length === 0 || nextSince <= since || pages >= PAGES_MAX)
      throw new ProtocolError('the listing does not end', { code: 'bad_listing' });
    since = nextSince;
  }
}

/** The tenant's head, as reported to its first device. Throws `Refused`. */
export async function headOf(target: Target, tenant: FleetTenant): Promise<number> {
  const { body } = await withRetries(() => target.send(asDevice(tenant, { method: 'GET', path: '/api/me' })));
  return me(body, '').headVersion;
}

const SUMMED = ['acknowledged', 'stored', 'received', 'unanswered', 'foreign', 'faults'] as const;

/** The sum of the audits of several tenants or processes. */
export const sumOf = (parts: readonly Audited[]): Audited => ({
  ...byName(SUMMED, (name) => sum(parts, (part) => part[name])),
  examples: parts
    .flatMap((part) => part.examples)
    .slice(0, EXAMPLES_MAX)
    .map((text) => text.slice(0, EXAMPLE_CHARS)),
});

/** The audit of one tenant, after everything has arrived. Throws `Refused` if the tenant cannot be read. */
export class TenantAudit {
  private readonly examples: string[] = [];
  private faults = 0;
  private readonly rows = new Map<number, Read<typeof rowHead>>();
  /** Version of an item as it is stored, by its place in the ledger. */
  private readonly final = new Map<number, number>();
  private stored = 0;

  constructor(
    private readonly parts: {
      readonly sodium: Sodium;
      readonly target: Target;
      readonly tenant: FleetTenant;
      readonly ledger: Ledger;
      readonly receivers: readonly Received[];
    },
  ) {}

  async run(): Promise<Audited> {
    const { target, tenant, ledger, receivers } = this.parts;
    const head = await headOf(target, tenant);
    await this.readBack();
    this.checkStored();
    this.checkVersions(head);
    receivers.forEach((receiver, device) => this.checkReceived(receiver, device));
    return {
      acknowledged: ledger.changes.size,
      stored: this.stored,
      received: sum(receivers, ({ versions }) => versions.length),
      unanswered: ledger.unanswered,
      foreign: ledger.foreign.size,
      faults: this.faults,
      examples: this.examples,
    };
  }

  private fault(text: string): void {
    this.faults++;
    const { slug, host } = this.parts.tenant;
    if (this.examples.length < EXAMPLES_MAX) this.examples.push(`${slug ?? host ?? 'tenant'}: ${text}`);
  }

  private async readBack(): Promise<void> {
    const { target, tenant, ledger } = this.parts;
    const read = async (path: string): Promise<unknown> =>
      (await withRetries(() => target.send(asDevice(tenant, { method: 'GET', path })))).body;
    for await (const row of itemsAbove(ledger.base, read)) this.readRow(row);
  }

  private readRow(value: unknown): void {
    const { ledger, tenant } = this.parts;
    const row = rowHead(value, '');
    const { id, version } = row;
    const entry = ledger.byId.get(id);
    if (entry === undefined) {
      if (tenant.slug !== undefined) this.fault(`version ${version} is stored, and nobody wrote ${id}`);
      ledger.foreign.add(version);
      return;
    }
    this.rows.set(version, row);
    this.final.set(entry.index, version);
    this.stored++;
    if (row.deletedAt === null) this.open(value, entry);
  }

  /** The tag is verified and the content decrypted: what is stored is what was written. */
  private open(value: unknown, { id }: Entry): void {
    const { sodium, tenant } = this.parts;
    try {
      const item = readItem(value, 'type');
      if (item.deletedAt === null) openItem(sodium, item, { masterKey: tenant.masterKey, device: null });
    } catch (error) {
      this.fault(`${id} is stored and does not open: ${asError(error).message.slice(0, 100)}`);
    }
  }

  private checkStored(): void {
    const { ledger, tenant } = this.parts;
    for (const text of ledger.faults) this.fault(text);
    for (const entry of ledger.entries) {
      const version = this.final.get(entry.index);
      if (entry.state === 'unknown') continue;
      if (entry.state === 'refused') {
        if (version !== undefined) this.fault(`${entry.id} was refused, and is stored as version ${version}`);
        continue;
      }
      if (version === undefined)
        this.fault(`${entry.id} was acknowledged as version ${entry.version}, and is not stored`);
      else if (version !== entry.version)
        this.fault(`${entry.id} was acknowledged as version ${entry.version}, and is stored as ${version}`);
      const [row, change] = [this.rows.get(entry.version), ledger.changes.get(entry.version)];
      if (row === undefined || change === undefined) continue;
      const deleted = row.deletedAt !== null;
      if (deleted !== change.deletes) this.fault(`${entry.id} is ${deleted ? '' : 'not '}deleted`);
      else if (!deleted && row.senderDevice !== tenant.devices[change.device]?.id)
        this.fault(`${entry.id} is stored as written by another device`);
    }
  }

  /** Each version above the base up to the head is a change; one that was not answered may have been replaced since. */
  private checkVersions(head: number): void {
    const { ledger, tenant } = this.parts;
    const seen = new Set([...ledger.changes.keys(), ...this.rows.keys(), ...ledger.foreign]);
    const known = [...seen].filter((version) => version > ledger.base && version <= head);
    // Computed, since the head comes from the server: versions up to it may be too many to visit one by one.
    const missing = head - ledger.base - known.length;
    // Others may have changed an item of theirs several times before anyone looked.
    const shared = tenant.slug === undefined && ledger.foreign.size > 0;
    if (missing > ledger.unanswered && !shared) {
      const some: number[] = [];
      for (let version = ledger.base + 1; version <= head && some.length < 5; version++)
        if (!seen.has(version)) some.push(version);
      this.fault(`${missing} versions belong to no change, among them ${some.join(', ')}`);
    }
    for (const version of ledger.changes.keys())
      if (version > head || version <= ledger.base)
        this.fault(`version ${version} was acknowledged, and the head is ${head}`);
  }

  private checkReceived(receiver: Received, device: number): void {
    const { ledger, tenant } = this.parts;
    const name = `socket of device ${device + 1}`;
    for (const text of receiver.unexpected) this.fault(`${name} got ${text}`);
    if (!receiver.live) this.fault(`${name} was not open at the end`);
    const seen = new Set(receiver.versions);
    receiver.versions.forEach((version, at) => {
      const entry = ledger.entries[receiver.entries[at] ?? -1];
      if (entry === undefined) {
        if (tenant.slug !== undefined) this.fault(`${name} got version ${version} of an item that nobody wrote`);
        return;
      }
      if (entry.state === 'unknown') return;
      const of = ledger.changes.get(version)?.entry.id ?? this.rows.get(version)?.id;
      if (of !== entry.id)
        this.fault(`${name} got ${entry.id} as version ${version}, which is ${of ?? 'of no change'}`);
    });
    if (!receiver.live) return;
    for (const version of this.final.values()) {
      const by = ledger.changes.get(version)?.device;
      const row = this.rows.get(version);
      // Of a delete that was not answered nobody knows the device: a tombstone has that of the content.
      const own =
        by === undefined ? row?.deletedAt !== null || row.senderDevice === tenant.devices[device]?.id : by === device;
      if (!own && !seen.has(version)) this.fault(`${name} missed version ${version}`);
    }
  }
}
