/** Reads a tenant's items in version order: replay, gaps, `GET /items`. */
import pg from 'pg';
import { Batcher } from '../protocol/batcher.js';
import { ServiceError } from '../protocol/errors.js';
import type { Meter } from '../protocol/meter.js';
import { PAGE_BYTES } from '../protocol/limits.js';
import type { ItemLog, LogPage, PageRequest } from '../tenant/ports.js';
import { ask } from './ask.js';
import { copyRows, int8Of, type BinaryRow } from './copy.js';
import { readRows } from './packing.js';

/** What `packed_item` takes, in its order. */
const COLUMNS =
  'version, ts, deleted_at, id, bin_id, type, sender_device, changed_by, ' +
  'blob_ref, nonce, sig, master, blob_nonce, blob_keys, keys, ct';

/**
 * One statement, so rows and sums are of one snapshot (contract 5, GET /items). The running sum of sizes ends the page
 * at about so many bytes before any large value is fetched; the first row always comes. ROWS, not the default RANGE, which
 * would look at each row twice. The page comes packed into one value (see `packed_item`). `version > 0` names the index.
 */
const pageSql = (page: {
  from: string;
  since: string;
  limit: string;
  maxBytes: number;
  binFilter?: string;
}): string => `
  SELECT t.head, t.item_count, t.version_sum, p.packed, p.count, p.total
  FROM ${page.from}
  CROSS JOIN LATERAL (
    SELECT string_agg(packed_item(${COLUMNS}), NULL ORDER BY version) AS packed, count(*) AS count, max(total)::bigint AS total
    FROM (
      SELECT *, sum(bytes) OVER (ORDER BY version ROWS UNBOUNDED PRECEDING) AS total
      FROM (
        SELECT ${COLUMNS}, bytes FROM items
        WHERE tenant_id = t.id AND version > 0 AND version > ${page.since} ${page.binFilter ?? ''}
        ORDER BY version LIMIT ${page.limit}
      ) found
    ) weighed WHERE total - bytes < ${page.maxBytes}
  ) p`;

const BIN_PAGE = `${pageSql({
  from: 'tenants t',
  since: '$2',
  limit: '$3',
  maxBytes: PAGE_BYTES,
  binFilter: 'AND bin_id = $4',
})} WHERE t.id = $1`;

/** Most pages are long: their bytes are worth a statement that cannot be prepared (see `copyRows`). */
function pageOfTenant({ tenantId, since, limit, maxBytes = PAGE_BYTES }: PageRequest): string {
  const numbers = { since: String(since), limit: String(limit + 1) };
  return `${pageSql({ from: 'tenants t', maxBytes, ...numbers })} WHERE t.id = ${pg.escapeLiteral(tenantId)}`;
}

/** Small pages in one statement, and the bytes at which each of them ends. */
const SMALL_PAGES_MAX = 64;
const SMALL_PAGE_BYTES = 64 * 1024;
/** In the order of the questions; a row for each, with nulls where there is no such tenant. */
const SMALL_PAGES = `${pageSql({
  from: 'unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS k (id, since, n) LEFT JOIN tenants t ON t.id = k.id',
  since: 'k.since',
  limit: '$3',
  maxBytes: SMALL_PAGE_BYTES,
})} ORDER BY k.n`;
const BIN_KNOWN = 'SELECT 1 FROM bins WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL AND closed_at IS NULL';

interface PageRow {
  /** Null: no such tenant. */
  head: number | null;
  item_count: number;
  version_sum: number;
  packed: Buffer | null;
  count: number;
  total: number | null;
}

/** Of the columns as COPY sends them. */
function pageRow([head, itemCount, versionSum, packed, count, total]: BinaryRow): PageRow {
  return {
    head: numberOf(head),
    item_count: numberOf(itemCount) ?? 0,
    version_sum: numberOf(versionSum) ?? 0,
    packed: packed ?? null,
    count: numberOf(count) ?? 0,
    total: numberOf(total),
  };
}

const numberOf = (column: Buffer | null | undefined): number | null =>
  column === null || column === undefined ? null : int8Of(column);

export class PostgresItemLog implements ItemLog {
  /**
   * What one of several instances reads for every write of the others: one by one, each costs a call of driver and
   * database, several times what its rows do (bench S8).
   */
  private readonly small: Batcher<PageRequest, LogPage | undefined>;

  constructor(
    private readonly pool: pg.Pool,
    private readonly meter?: Meter,
  ) {
    this.small = new Batcher(SMALL_PAGES_MAX, (requests) => this.smallPages(requests));
  }

  async page(request: PageRequest): Promise<LogPage> {
    const { limit, binId } = request;
    if (request.small === true && binId === undefined) return existing(await this.small.ask(request));
    const found = binId === undefined ? await this.tenantPage(request) : await this.binPage(request, binId);
    const page = existing(pageOf(found, limit, request.maxBytes ?? PAGE_BYTES));
    this.meter?.read(page.rows.length);
    return page;
  }

  private async tenantPage(request: PageRequest): Promise<PageRow | undefined> {
    const [row] = await copyRows(this.pool, pageOfTenant(request));
    return row && pageRow(row);
  }

  private async binPage({ tenantId, since, limit }: PageRequest, binId: string): Promise<PageRow | undefined> {
    await this.requireBin(tenantId, binId);
    const values = [tenantId, since, limit + 1, binId];
    const [row] = await ask<PageRow>(this.pool, { name: 'bin-page', text: BIN_PAGE, values, readOnly: true });
    return row;
  }

  private async smallPages(requests: readonly PageRequest[]): Promise<(LogPage | undefined)[]> {
    const most = requests.reduce((limit, request) => Math.max(limit, request.limit), 0);
    const rows = await ask<PageRow>(this.pool, {
      name: 'small-pages',
      text: SMALL_PAGES,
      values: [requests.map(({ tenantId }) => tenantId), requests.map(({ since }) => since), most + 1],
      readOnly: true,
    });
    const pages = rows.map((row, n) => pageOf(row, requests[n]?.limit ?? 0, SMALL_PAGE_BYTES));
    this.meter?.read(pages.reduce((sum, page) => sum + (page?.rows.length ?? 0), 0));
    return pages;
  }

  private async requireBin(tenantId: string, binId: string): Promise<void> {
    const found = await ask(this.pool, {
      name: 'bin-known',
      text: BIN_KNOWN,
      values: [tenantId, binId],
      readOnly: true,
    });
    if (found.length === 0) throw new ServiceError('bin_not_found', undefined, { binId });
  }
}

/** Undefined where there is no such tenant. */
function pageOf(found: PageRow | undefined, limit: number, maxBytes: number): LogPage | undefined {
  if (found === undefined || found.head === null) return undefined;
  const summary = { version: found.head, itemCount: found.item_count, versionSum: found.version_sum };
  const rows = found.packed === null ? [] : readRows(found.packed).slice(0, limit);
  // Every statement asks for one row more than its page takes: that one tells of the next. A page that reached its size may
  // have been the last one: then the next one is empty.
  const more = found.count > limit || (found.total ?? 0) >= maxBytes;
  return { rows, more, summary };
}

function existing(page: LogPage | undefined): LogPage {
  if (page === undefined) throw new ServiceError('tenant_not_found');
  return page;
}
