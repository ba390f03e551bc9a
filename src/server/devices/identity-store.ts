/** A device and its tenant's figures in one snapshot, for `/me`. */
import type { Identity } from './ports.js';
import type { Glyph } from '../../protocol/requests.js';
import { Store } from '../storage/ask.js';

interface Row {
  name: string;
  glyph: Glyph;
  paired_at: number;
  head: number;
  item_count: number;
  version_sum: number;
  storage_bytes: number;
  devices: number;
}

/** Reads what `/me` tells, in one statement and so in one snapshot. */
export class IdentityStore extends Store {
  /** Undefined when the device is gone. Throws `unavailable`. */
  async identity(tenantId: string, deviceId: string): Promise<Identity | undefined> {
    const text = `SELECT d.name, d.glyph, d.paired_at, t.head, t.item_count, t.version_sum, t.storage_bytes,
        (SELECT count(*) FROM devices o WHERE o.tenant_id = t.id AND o.revoked_at IS NULL) AS devices
      FROM tenants t JOIN devices d ON d.tenant_id = t.id AND d.id = $2 WHERE t.id = $1`;
    const row = await this.first<Row>(text, [tenantId, deviceId], { name: 'identity' });
    if (row === undefined) return undefined;
    return {
      device: { id: deviceId, name: row.name, glyph: row.glyph, pairedAt: row.paired_at },
      summary: { version: row.head, itemCount: row.item_count, versionSum: row.version_sum },
      storageUsedBytes: row.storage_bytes,
      deviceCount: row.devices,
    };
  }
}
