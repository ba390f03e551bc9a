/**
 * The commit and the item log in memory, decided one change after the other (RETRY-01 and the rules after it) and
 * written independently of the SQL. `commit.test.ts` runs both on the same cases; the property tests use this one as oracle.
 */
import { ServiceError } from '../../src/protocol/errors.js';
import type { Item, ItemWrite, LiveItem, SealedKeys, Summary } from '../../src/protocol/item.js';
import { type Change, type CommitSink, type Verdict } from '../../src/server/tenant/change.js';
import { HASH_BYTES, type ItemRow } from '../../src/server/tenant/codec.js';
import type { CommitLanes, ItemLog, LogPage, PageRequest } from '../../src/server/tenant/ports.js';
import { arena } from './changes.js';
import { itemOf, packedKeys, rowOf, sigOf } from './rows.js';

/** An item and the device whose change its version is. */
interface LogRow {
  readonly item: Item;
  readonly changedBy: string | null;
}

/** The write that a change requests. */
export function askedFor(change: Change): ItemWrite {
  const { id, binId, type, ts, inline, blob, master, sig } = itemOf(change) as LiveItem;
  return { id, binId, type, ts, inline, blob, master, sig, ifVersion: change.ifVersion };
}

const writeOf = (change: Change): ItemWrite | null => (change.kind === 'write' ? askedFor(change) : null);

const hashOf = ({ bytes, at }: Change): Uint8Array => Uint8Array.from(bytes.subarray(at, at + HASH_BYTES));

/** One version as it was when it was made. `summary` is the tenant's at exactly this version. */
export interface HistoryEntry {
  readonly version: number;
  readonly row: LogRow;
  readonly summary: Summary;
}

interface Stored {
  row: LogRow;
  /** Hashes of the write that made the content and of the last re-wrap of it. */
  hashes: readonly Uint8Array[];
  bytes: number;
}

interface BlobRow {
  state: string;
  itemId: string | null;
}

export interface MemoryTenant {
  generation: number;
  head: number;
  itemCount: number;
  versionSum: number;
  storageBytes: number;
  readonly items: Map<string, Stored>;
  readonly blobs: Map<string, BlobRow>;
  /** Entry n is version n+1. */
  readonly history: HistoryEntry[];
}

type Bytes = Uint8Array | null | undefined;

const same = (a: Bytes, b: Bytes): boolean =>
  a === null || a === undefined || b === null || b === undefined
    ? (a ?? null) === (b ?? null)
    : Buffer.compare(a, b) === 0;

const bytesOf = ({ inline, blob }: Pick<ItemWrite, 'inline' | 'blob'>): number =>
  (inline === null ? 0 : inline.ct.length + packedKeys(inline.keys).length) +
  (blob === null ? 0 : packedKeys(blob.keys).length);

const addsTo = (keys: SealedKeys | undefined, stored: SealedKeys | undefined): boolean =>
  [...(keys?.keys() ?? [])].some((device) => stored?.has(device) !== true);

const sameContent = (write: ItemWrite, item: LiveItem): boolean =>
  write.type === item.type &&
  write.ts === item.ts &&
  write.blob?.ref === item.blob?.ref &&
  same(write.inline?.ct, item.inline?.ct) &&
  same(write.inline?.nonce, item.inline?.nonce) &&
  same(write.blob?.nonce, item.blob?.nonce);

function addsWrap(write: ItemWrite, item: LiveItem): boolean {
  if (write.master !== null && item.master === null) return true;
  if (addsTo(write.inline?.keys, item.inline?.keys)) return true;
  return write.binId === item.binId && addsTo(write.blob?.keys, item.blob?.keys);
}

/** The order of decisions for a write: RETRY-01 and the rules after it. */
function decideWrite(change: Change, write: ItemWrite, stored: Stored | undefined): Verdict {
  const applied = (verdict: Verdict): Verdict => (change.refusal === null ? verdict : 'refused');
  if (stored === undefined) return (change.ifVersion ?? 0) === 0 ? applied('insert') : 'conflict';
  if (stored.hashes.some((hash) => same(hash, hashOf(change)))) return 'same';
  const { item } = stored.row;
  if (item.deletedAt !== null) return 'conflict';
  if (change.ifVersion !== null && change.ifVersion !== item.version) return 'conflict';
  if (sameContent(write, item)) {
    if (!addsWrap(write, item)) return 'same';
    const isExempt = { all: false, bin: write.binId !== item.binId, content: true }[change.refusedFor];
    return isExempt ? 'rewrap' : applied('rewrap');
  }
  return write.ts > item.ts ? applied('replace') : 'conflict';
}

function decideOther(change: Change, stored: Stored | undefined): Verdict {
  const item = stored?.row.item;
  if (item === undefined || item.type === null) return 'missing';
  const gone = item.deletedAt !== null;
  if (change.kind === 'delete') return gone ? 'same' : change.refusal === null ? 'delete' : 'refused';
  if (gone) return 'conflict';
  if (item.binId === change.binId && same(item.sig, sigOf(change))) return 'same';
  if (item.version !== change.ifVersion) return 'conflict';
  return change.refusal === null ? 'move' : 'refused';
}

function rewrapped(item: LiveItem, write: ItemWrite, version: number): LiveItem {
  const here = item.binId === write.binId;
  return {
    ...item,
    version,
    inline: write.inline,
    master: write.master ?? item.master,
    sig: here ? (write.sig ?? item.sig) : item.sig,
    blob: here ? write.blob : item.blob,
  };
}

export class MemoryLog implements CommitLanes, ItemLog {
  readonly arena = arena;
  private readonly tenants = new Map<string, MemoryTenant>();
  private waiting: { readonly change: Change; readonly sink: CommitSink }[] = [];

  constructor(private readonly options: { readonly cap?: number; readonly now?: () => number } = {}) {}

  addTenant(tenantId: string): MemoryTenant {
    const sums = { generation: 1, head: 0, itemCount: 0, versionSum: 0, storageBytes: 0 };
    const tenant: MemoryTenant = { ...sums, items: new Map(), blobs: new Map(), history: [] };
    this.tenants.set(tenantId, tenant);
    return tenant;
  }

  tenant(tenantId: string): MemoryTenant {
    const tenant = this.tenants.get(tenantId);
    if (tenant === undefined) throw new ServiceError('tenant_not_found');
    return tenant;
  }

  summary(tenantId: string): Summary {
    const { head, itemCount, versionSum } = this.tenant(tenantId);
    return { version: head, itemCount, versionSum };
  }

  submit(change: Change, sink: CommitSink): void {
    this.waiting.push({ change, sink });
    if (this.waiting.length === 1) setImmediate(() => this.flush());
  }

  private flush(): void {
    const waiting = this.waiting;
    this.waiting = [];
    for (const { change, sink } of waiting) {
      const { changes, ...position } = this.apply([change]);
      sink.committed(changes, position);
      sink.settled();
    }
  }

  /** Decides and applies changes of one tenant, one after the other, as one transaction. */
  apply(changes: readonly Change[]) {
    const tenantId = changes[0]?.tenantId ?? '';
    const tenant = this.tenant(tenantId);
    const at = this.options.now?.() ?? Date.now();
    for (const change of changes) {
      const before = tenant.items.get(change.id)?.row.item;
      const verdict = this.decide(tenant, change);
      if (['insert', 'replace', 'rewrap', 'delete', 'move'].includes(verdict))
        this.store(tenant, { change, verdict, at });
      const after = tenant.items.get(change.id)?.row;
      Object.assign(change, {
        verdict,
        version: after?.item.version ?? 0,
        storedTs: before?.ts ?? null,
        decidedAt: at,
      });
      if (after !== undefined && (verdict === 'rewrap' || verdict === 'move'))
        change.stored = rowOf(after.item, after.changedBy);
    }
    return { changes, summary: this.summary(tenantId), generation: tenant.generation };
  }

  private decide(tenant: MemoryTenant, change: Change): Verdict {
    if (change.generation !== tenant.generation) return 'stale';
    const stored = tenant.items.get(change.id);
    const write = writeOf(change);
    if (write === null) return decideOther(change, stored);
    const verdict = decideWrite(change, write, stored);
    if ((verdict === 'insert' || verdict === 'replace') && write.blob !== null) {
      const blob = tenant.blobs.get(write.blob.ref);
      if (blob?.state !== 'ready' || (blob.itemId !== null && blob.itemId !== change.id)) return 'no_blob';
    }
    if (verdict !== 'insert' && verdict !== 'replace' && verdict !== 'rewrap') return verdict;
    const grows = bytesOf(write) - (stored?.bytes ?? 0);
    const cap = this.options.cap ?? 0;
    return cap > 0 && grows > 0 && tenant.storageBytes + grows > cap ? 'cap' : verdict;
  }

  private store(tenant: MemoryTenant, made: { change: Change; verdict: Verdict; at: number }): void {
    const { change } = made;
    const stored = tenant.items.get(change.id);
    const old = stored?.row.item;
    const version = ++tenant.head;
    const item = this.itemAfter(old, made, version);
    const row: LogRow = { item, changedBy: change.deviceId };
    const bytes = item.deletedAt === null ? bytesOf(item) : 0;
    this.takeBlobs(tenant, old, item);
    tenant.items.set(change.id, { row, bytes, hashes: hashesAfter(made.verdict, change, stored) });
    tenant.storageBytes += bytes - (stored?.bytes ?? 0);
    const lived = old?.deletedAt === null;
    const lives = item.deletedAt === null;
    tenant.itemCount += Number(lives) - Number(lived);
    tenant.versionSum += (lives ? version : 0) - (lived ? old.version : 0);
    const { head, itemCount, versionSum } = tenant;
    tenant.history.push({ version, row, summary: { version: head, itemCount, versionSum } });
  }

  private itemAfter(
    old: Item | undefined,
    { change, verdict, at }: { change: Change; verdict: Verdict; at: number },
    version: number,
  ): Item {
    const write = writeOf(change);
    if (write !== null && verdict !== 'rewrap') {
      const { ifVersion: _, ...content } = write;
      return { ...content, version, senderDevice: change.deviceId, deletedAt: null };
    }
    if (old === undefined || old.deletedAt !== null) throw new Error(`${verdict} of an item that is not there`);
    if (write !== null) return rewrapped(old, write, version);
    if (verdict === 'move') return { ...old, version, binId: change.binId ?? '', sig: sigOf(change) };
    const { id, binId, type, ts, senderDevice } = old;
    return { id, binId, type, ts, senderDevice, version, deletedAt: at, sig: sigOf(change) };
  }

  private takeBlobs(tenant: MemoryTenant, old: Item | undefined, now: Item): void {
    const before = old?.deletedAt === null ? old.blob?.ref : undefined;
    const after = now.deletedAt === null ? now.blob?.ref : undefined;
    const left = before === undefined || before === after ? undefined : tenant.blobs.get(before);
    if (left !== undefined) left.state = 'orphan';
    const taken = after === undefined ? undefined : tenant.blobs.get(after);
    if (taken !== undefined) taken.itemId = now.id;
  }

  /** Empties a deleted item to its tombstone, as the nightly job does. */
  purge(tenantId: string, id: string): void {
    const stored = this.tenant(tenantId).items.get(id);
    if (stored === undefined || stored.row.item.deletedAt === null) throw new Error(`${id} is not deleted`);
    stored.row = { ...stored.row, item: { ...stored.row.item, type: null, ts: null, senderDevice: null } };
    stored.hashes = [];
  }

  page(request: PageRequest): Promise<LogPage> {
    return Promise.resolve().then(() => this.read(request));
  }

  /** The page as of now. */
  read({ tenantId, since, limit, binId }: PageRequest): LogPage {
    const rows = [...this.tenant(tenantId).items.values()]
      .map(({ row }) => row)
      .filter(({ item }) => item.version > since && (binId === undefined || item.binId === binId))
      .sort((a, b) => a.item.version - b.item.version);
    return {
      rows: rows.slice(0, limit).map(({ item, changedBy }): ItemRow => rowOf(item, changedBy)),
      more: rows.length > limit,
      summary: this.summary(tenantId),
    };
  }
}

function hashesAfter(verdict: Verdict, change: Change, stored: Stored | undefined): readonly Uint8Array[] {
  if (change.kind !== 'write') return stored?.hashes ?? [];
  if (verdict !== 'rewrap' || stored === undefined) return [hashOf(change)];
  const [content, ...rewraps] = stored.hashes;
  return [...(content === undefined ? [] : [content]), ...rewraps.slice(-30), hashOf(change)];
}
