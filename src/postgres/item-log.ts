/** Reads a tenant's items in version order: replay, gaps, `GET /items`. */
import type pg from 'pg';
import { ServiceError } from '../protocol/errors.js';
import { NO_METER, type Meter } from '../protocol/meter.js';
import { PAGE_BYTES } from '../protocol/limits.js';
import type { ItemLog, LogPage, PageRequest } from '../tenant/ports.js';
import { ask } from './ask.js';
import { readRows } from './packing.js';

/** What `packed_item` takes, in its order. */
const COLUMNS =
  'version, ts, deleted_at, id, bin_id, type, sender_device, changed_by, ' +
  'blob_ref, nonce, sig, master, blob_nonce, blob_keys, keys, ct';

/**
 * One statement, so rows and sums are of one snapshot (contract 5, GET /items). The running sum of sizes ends the page
 * at about 4 MiB before any large value is fetched; the first row always comes. ROWS, not the default RANGE, which would
 * look at each row twice. The page comes packed into one value (see `packed_item`). `version > 0` names the index.
 */
const pageSql = (binFilter: string): string => `
  SELECT t.head, t.item_count, t.version_sum, p.packed, p.count, p.total
  FROM tenants t
  CROSS JOIN LATERAL (
    SELECT string_agg(packed_item(${COLUMNS}), NULL ORDER BY version) AS packed, count(*) AS count, max(total) AS total
    FROM (
      SELECT *, sum(bytes) OVER (ORDER BY version ROWS UNBOUNDED PRECEDING) AS total
      FROM (
        SELECT ${COLUMNS}, bytes FROM items WHERE tenant_id = t.id AND version > 0 AND version > $2 ${binFilter}
        ORDER BY version LIMIT $3
      ) found
    ) weighed WHERE total - bytes < ${PAGE_BYTES}
  ) p
  WHERE t.id = $1`;

const PAGE = pageSql('');
const BIN_PAGE = pageSql('AND bin_id = $4');
const BIN_KNOWN = 'SELECT 1 FROM bins WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL AND closed_at IS NULL';

interface PageRow {
  head: number;
  item_count: number;
  version_sum: number;
  packed: Buffer | null;
  count: number;
  total: number | null;
}

export class PostgresItemLog implements ItemLog {
  constructor(
    private readonly pool: pg.Pool,
    private readonly meter: Meter = NO_METER,
  ) {}

  async page(request: PageRequest): Promise<LogPage> {
    const { tenantId, since, limit, binId } = request;
    if (binId !== undefined) await this.requireBin(tenantId, binId);
    // One row more than asked for tells whether there is more.
    const rows = await ask<PageRow>(this.pool, {
      name: binId === undefined ? 'page' : 'bin-page',
      text: binId === undefined ? PAGE : BIN_PAGE,
      values: [tenantId, since, limit + 1, ...(binId === undefined ? [] : [binId])],
      readOnly: true,
    });
    const page = pageOf(rows[0], limit);
    this.meter.read(page.rows.length);
    return page;
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

function pageOf(found: PageRow | undefined, limit: number): LogPage {
  if (found === undefined) throw new ServiceError('tenant_not_found');
  const summary = { version: found.head, itemCount: found.item_count, versionSum: found.version_sum };
  const rows = found.packed === null ? [] : readRows(found.packed).slice(0, limit);
  // A page that reached its size may have been the last one: then the next one is empty.
  const more = found.count > limit || (found.total ?? 0) >= PAGE_BYTES;
  return { rows, more, summary };
}
