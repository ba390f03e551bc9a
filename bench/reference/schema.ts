/** Tables and tokens of the Fastify reference. */
import { createHmac } from 'node:crypto';

/** The columns of our own items table and equivalents of its two indexes; no third index. */
export const REFERENCE_SCHEMA = `
  CREATE TABLE tenants (id text COLLATE "C" PRIMARY KEY, head bigint NOT NULL DEFAULT 0) WITH (fillfactor = 40);
  CREATE TABLE items (
    tenant_id text COLLATE "C" NOT NULL REFERENCES tenants,
    id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    bin_id text NOT NULL,
    type text NOT NULL,
    ts bigint NOT NULL,
    sender_device text NOT NULL,
    ct bytea NOT NULL,
    nonce bytea NOT NULL,
    sig bytea NOT NULL,
    keys json NOT NULL,
    master json,
    PRIMARY KEY (tenant_id, id)
  );
  CREATE UNIQUE INDEX items_version ON items (tenant_id, version);
  ALTER TABLE items ALTER COLUMN ct SET STORAGE EXTERNAL;`;

/** A token that the reference accepts for a day. */
export function referenceToken(secret: string, tenant: string, device: string): string {
  const text = `${tenant}.${device}.${Date.now() + 86_400_000}`;
  return `${text}.${createHmac('sha256', secret).update(text).digest('base64url')}`;
}
