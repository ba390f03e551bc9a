/** Reads a tenant's items in version order: replay, gaps, `GET /items`. */
import pg from 'pg';
import { Batcher } from '../../protocol/batcher.js';
import { ServiceError } from '../../protocol/errors.js';
import type { Summary } from '../../protocol/item.js';
import type { Meter } from '../../protocol/meter.js';
import { PAGE_BYTES } from '../../protocol/limits.js';
import type { ItemRow } from '../tenant/codec.js';
import type { ItemLog, LogPage, PageRequest } from '../tenant/ports.js';
import { byColumn, inTurn, Store } from './query.js';
import { copyRows, type CopiedRow } from './copy.js';
import { ITEM_COLUMNS, readRows, RowReader } from './packing.js';

/** The parameters of `packed_item`, in order. */
const PACKED_COLUMNS =
  'version, ts, deleted_at, id, bin_id, type, sender_device, changed_by, ' +
  'blob_ref, nonce, sig, master, blob_nonce, blob_keys, keys, ct';

/**
 * The rows of tenant `t`. The running sum of sizes ends the page at about `maxBytes` before any large value is fetched;
 * the first row is always included. ROWS, not the default RANGE, which would process each row twice. `version > 0`
 * makes the partial index usable.
 */
const rowsSql = (page: { since: string; limit: string; maxBytes: number; filter?: string }): string => `
  SELECT * FROM (
    SELECT *, sum(bytes) OVER (ORDER BY version ROWS UNBOUNDED PRECEDING) AS total
    FROM (
      SELECT ${ITEM_COLUMNS}, bytes FROM items
      WHERE tenant_id = t.id AND version > 0 AND version > ${page.since} ${page.filter ?? ''}
      ORDER BY version LIMIT ${page.limit}
    ) found
  ) weighed WHERE total - bytes < ${page.maxBytes}`;

/**
 * Items of the tenant, of any bin, that a bin's page looks at in the index: without a bound a bin with few of many items
 * would keep a connection busy for seconds, and there are few (query.ts).
 */
const BIN_ROWS = 50_000;

/**
 * Of a page of a bin: its versions among the next BIN_ROWS items (one more than the page holds, at most), and the last of
 * these items, NULL if there are no others or the page needs none. The index alone answers both: a condition on `bin_id`
 * beside the columns of a page would fetch every item to look at it. OFFSET 0 makes the array once for both uses, and the
 * tenant as a literal the end once for all rows.
 */
function partSql({ tenantId, since, limit, binId }: PageRequest): string {
  if (binId === undefined) return 'SELECT NULL::bigint AS part_end';
  const next = `SELECT version, bin_id FROM items
    WHERE tenant_id = ${pg.escapeLiteral(tenantId)} AND version > 0 AND version > ${since} ORDER BY version`;
  return `
    SELECT found, CASE WHEN cardinality(found) <= ${limit} THEN (
      SELECT version FROM (${next} OFFSET ${BIN_ROWS - 1} LIMIT 1) last) END AS part_end
    FROM (SELECT ARRAY(
      SELECT version FROM (${next} LIMIT ${BIN_ROWS}) next
      WHERE bin_id = ${pg.escapeLiteral(binId)} ORDER BY version LIMIT ${limit + 1}) AS found OFFSET 0) f`;
}

/** The item's columns, of the subquery `p`. */
const PAGE_COLUMNS = ITEM_COLUMNS.replace(/\w+/g, 'p.$&');

/**
 * One statement, so that rows and sums come from one snapshot (HTTP, reading items). Each row is returned separately,
 * with the sums: aggregating them into one value would cost the database more than all the rest. A tenant without items
 * has one row of NULLs.
 */
function pageSql(request: PageRequest): string {
  const { tenantId, since, limit, maxBytes = PAGE_BYTES, binId } = request;
  const filter = binId === undefined ? '' : 'AND version = ANY (b.found)';
  const rows = rowsSql({ since: String(since), limit: String(limit + 1), maxBytes, filter });
  return `
    SELECT t.head, t.item_count, t.version_sum, b.part_end, p.total, ${PAGE_COLUMNS}
    FROM tenants t CROSS JOIN LATERAL (${partSql(request)}) b LEFT JOIN LATERAL (${rows}) p ON true
    WHERE t.id = ${pg.escapeLiteral(tenantId)}`;
}

/** Collects the rows of `pageSql`. */
class Page {
  private readonly reader = new RowReader();
  private readonly rows: ItemRow[] = [];
  private summary: Summary | undefined;
  private total = 0;
  /** The version up to which a bin was looked for; null: to the end. */
  private partEnd: number | null = null;

  take(row: CopiedRow): void {
    const version = row.int8() ?? 0;
    const itemCount = row.int8() ?? 0;
    const versionSum = row.int8() ?? 0;
    this.summary ??= { version, itemCount, versionSum };
    this.partEnd = row.int8();
    const total = row.int8();
    if (total === null) return row.skip();
    this.total = total;
    const item = this.reader.read(row);
    // Ordered by the inner query; the join with a single tenant has no reason to change that.
    if (item.version <= (this.rows.at(-1)?.version ?? 0)) throw new Error('the rows of a page are out of order');
    this.rows.push(item);
  }

  /** Throws `tenant_not_found`. */
  finish({ limit, maxBytes = PAGE_BYTES }: PageRequest): LogPage {
    const { rows, summary, total, partEnd } = this;
    if (summary === undefined) throw new ServiceError('tenant_not_found');
    const full = isMore({ count: rows.length, total }, limit, maxBytes);
    const page = { rows: rows.slice(0, limit), more: full, summary };
    return full || partEnd === null ? page : { ...page, more: true, upTo: partEnd };
  }
}

/** The maximum of small pages in one statement, and the bytes at which each page ends. */
const SMALL_PAGES_MAX = 64;
const SMALL_PAGE_BYTES = 64 * 1024;
/** In the order of the requests; one row for each, with nulls if there is no such tenant. */
const SMALL_PAGES = `
  SELECT t.head AS version, t.item_count AS "itemCount", t.version_sum AS "versionSum", p.packed, p.count, p.total
  FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS k (id, since, n) LEFT JOIN tenants t ON t.id = k.id
  CROSS JOIN LATERAL (
    SELECT string_agg(packed_item(${PACKED_COLUMNS}), NULL ORDER BY version) AS packed, count(*) AS count, max(total)::bigint AS total
    FROM (${rowsSql({ since: 'k.since', limit: '$3', maxBytes: SMALL_PAGE_BYTES })}) page
  ) p ORDER BY k.n`;
const BIN_KNOWN = 'SELECT 1 FROM bins WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL AND closed_at IS NULL';

interface PageRow extends Omit<Summary, 'version'> {
  /** Null: no such tenant. */
  version: number | null;
  packed: Buffer | null;
  count: number;
  total: number | null;
}

export class PostgresItemLog extends Store implements ItemLog {
  /**
   * With several instances each write by another one may need a small page: separate statements would cost several
   * times what their rows do (bench S8).
   */
  private readonly small: Batcher<PageRequest, LogPage | undefined>;

  constructor(
    pool: pg.Pool,
    private readonly meter?: Meter,
  ) {
    super(pool);
    this.small = new Batcher(SMALL_PAGES_MAX, (requests) => this.smallPages(requests));
  }

  async page(request: PageRequest): Promise<LogPage> {
    const { tenantId, binId } = request;
    if (request.small === true && binId === undefined) {
      const page = await this.small.ask(request);
      if (page === undefined) throw new ServiceError('tenant_not_found');
      return page;
    }
    if (binId !== undefined) await this.requireBin(tenantId, binId);
    const page = await this.read(request);
    this.meter?.read(page.rows.length);
    return page;
  }

  private async read(request: PageRequest): Promise<LogPage> {
    const read = (): Promise<Page> => copyRows(this.pool, pageSql(request), () => new Page());
    return (await inTurn(this.pool, request.tenantId, read)).finish(request);
  }

  private async smallPages(requests: readonly PageRequest[]): Promise<(LogPage | undefined)[]> {
    const limitMax = Math.max(...requests.map(({ limit }) => limit));
    const values = [...byColumn(requests, 'tenantId', 'since'), limitMax + 1];
    const rows = await this.rows<PageRow>(SMALL_PAGES, values, { name: 'small-pages', readOnly: true });
    const pages = rows.map((row, n) => pageOf(row, requests[n]?.limit ?? 0));
    this.meter?.read(pages.reduce((sum, page) => sum + (page?.rows.length ?? 0), 0));
    return pages;
  }

  private async requireBin(tenantId: string, binId: string): Promise<void> {
    const found = await this.rows(BIN_KNOWN, [tenantId, binId], { name: 'bin-known', readOnly: true });
    if (found.length === 0) throw new ServiceError('bin_not_found', undefined, { binId });
  }
}

/** Undefined if there is no such tenant. */
function pageOf(found: PageRow, limit: number): LogPage | undefined {
  if (found.version === null) return undefined;
  const { version, itemCount, versionSum, packed, count, total } = found;
  const rows = packed === null ? [] : readRows(packed).slice(0, limit);
  const more = isMore({ count, total: total ?? 0 }, limit, SMALL_PAGE_BYTES);
  return { rows, more, summary: { version, itemCount, versionSum } };
}

/**
 * Each statement fetches one row more than the page holds, to detect whether there is a next page. A page that ended by
 * size may be the last: then the next one is empty.
 */
const isMore = (found: { count: number; total: number }, limit: number, maxBytes: number): boolean =>
  found.count > limit || found.total >= maxBytes;
