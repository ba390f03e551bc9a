/** What is in a database or a backup, in figures. */
import type pg from 'pg';
import type { Manifest } from '../../backup/ports.js';
import { counted } from '../device/output.js';

/** Rows of what an operator asks for. Items: those that are not deleted. */
export interface Counts {
  readonly tenants: number;
  readonly devices: number;
  readonly items: number;
}

/** Counts what is in the database. */
export async function countsOf(pool: pg.Pool): Promise<Counts> {
  const { rows } = await pool.query<Counts>(
    `SELECT (SELECT count(*) FROM tenants) AS tenants, (SELECT count(*) FROM devices WHERE revoked_at IS NULL) AS devices,
      (SELECT coalesce(sum(item_count), 0)::bigint FROM tenants) AS items`,
  );
  const [counts] = rows;
  if (counts === undefined) throw new Error('the database counted nothing');
  return counts;
}

/** `2 tenants, 3 devices, 40 items`. */
export const countsLine = ({ tenants, devices, items }: Counts): string =>
  [counted(tenants, 'tenant'), counted(devices, 'device'), counted(items, 'item')].join(', ');

/** What a backup says of itself. `createdAt`: ISO 8601; `bytes`: of all rows, unpacked. */
export interface AboutBackup {
  readonly createdAt: string;
  readonly version: string;
  readonly schema: number;
  readonly postgres: string;
  readonly bytes: number;
}

/** See above. The manifest is verified; its texts are for a person. */
export function aboutBackup({ createdAt, version, schema, postgres, parts }: Manifest): AboutBackup {
  const bytes = parts.reduce((sum, part) => sum + part.bytes, 0);
  return { createdAt: new Date(createdAt).toISOString(), version, schema, postgres, bytes };
}
