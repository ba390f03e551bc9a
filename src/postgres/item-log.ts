/** Reads a tenant's items in version order: replay, gaps, `GET /items`. */
import type pg from 'pg';
import { ServiceError } from '../protocol/errors.js';
import { PAGE_BYTES } from '../protocol/limits.js';
import type { ItemLog, LogPage, PageRequest } from '../tenant/ports.js';
import { asUnavailable } from './database.js';
import { ITEM_COLUMNS, rowOf, type ItemColumns } from './packing.js';

/**
 * One statement, so rows and sums are of one snapshot (contract 5, GET /items). The running sum of sizes ends the page
 * at about 4 MiB before any large value is fetched; the first row always comes. ROWS, not the default RANGE, which would
 * look at each row twice.
 */
const pageSql = (binFilter: string): string => `
  SELECT t.head, t.item_count, t.version_sum, i.*
  FROM tenants t
  LEFT JOIN LATERAL (
    SELECT ${ITEM_COLUMNS}, bytes, sum(bytes) OVER (ORDER BY version ROWS UNBOUNDED PRECEDING) AS total
    FROM (
      SELECT ${ITEM_COLUMNS}, bytes FROM items
      WHERE tenant_id = t.id AND version > $2 ${binFilter} ORDER BY version LIMIT $3
    ) page
  ) i ON i.total - i.bytes < ${PAGE_BYTES}
  WHERE t.id = $1 ORDER BY i.version`;

const PAGE = pageSql('');
const BIN_PAGE = pageSql('AND bin_id = $4');
const BIN_KNOWN = 'SELECT 1 FROM bins WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL AND closed_at IS NULL';

type PageRow = [head: number, itemCount: number, versionSum: number, ...item: ItemColumns, bytes: number, total: number];

export class PostgresItemLog implements ItemLog {
  constructor(private readonly pool: pg.Pool) {}

  async page(request: PageRequest): Promise<LogPage> {
    const { tenantId, since, limit, binId } = request;
    try {
      if (binId !== undefined) await this.requireBin(tenantId, binId);
      // One row more than asked for tells whether there is more.
      const values = [tenantId, since, limit + 1, ...(binId === undefined ? [] : [binId])];
      const { rows } = await this.pool.query<PageRow>({
        name: binId === undefined ? 'page' : 'bin-page',
        text: binId === undefined ? PAGE : BIN_PAGE,
        values,
        rowMode: 'array',
      });
      return pageOf(rows, limit);
    } catch (error) {
      throw asUnavailable(error);
    }
  }

  private async requireBin(tenantId: string, binId: string): Promise<void> {
    const { rowCount } = await this.pool.query({ name: 'bin-known', text: BIN_KNOWN, values: [tenantId, binId] });
    if (rowCount === 0) throw new ServiceError('bin_not_found', undefined, { binId });
  }
}

function pageOf(found: readonly PageRow[], limit: number): LogPage {
  const first = found[0];
  if (first === undefined) throw new ServiceError('tenant_not_found');
  const summary = { version: first[0], itemCount: first[1], versionSum: first[2] };
  const kept = found.filter((row) => row[3] !== null).slice(0, limit);
  const rows = kept.map((row) => rowOf(row.slice(3, 19) as unknown as ItemColumns));
  // A page that reached its size may have been the last one: then the next one is empty.
  const full = (kept.at(-1)?.[20] ?? 0) >= PAGE_BYTES;
  return { rows, more: found.length > limit || full, summary };
}
