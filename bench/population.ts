/** Tenants and devices that are inserted directly into a database, and the drivers' files about them. */
import { writeFileSync } from 'node:fs';
import type pg from 'pg';
import { ulid } from 'ulid';

interface BenchDevice {
  readonly id: string;
  readonly tenant: string;
  readonly token: string;
}

/**
 * Devices of all tenants: the first of every tenant, then the second of every tenant, and so on, so that writers which
 * take them in turn spread over the tenants. A device's index in `devices` is its number in every driver's log.
 */
export interface Population {
  readonly tenants: readonly string[];
  readonly perTenant: number;
  readonly devices: readonly BenchDevice[];
}

export interface PopulationSize {
  readonly tenants: number;
  readonly perTenant: number;
}

/** Ids and tokens; nothing is stored yet. */
export function imagine(size: PopulationSize, tokenOf: (tenant: string, device: string) => string): Population {
  const tenants = Array.from({ length: size.tenants }, () => ulid());
  const devices = Array.from({ length: size.perTenant }, () =>
    tenants.map((tenant) => {
      const id = ulid();
      return { id, tenant, token: tokenOf(tenant, id) };
    }),
  ).flat();
  return { tenants, perTenant: size.perTenant, devices };
}

/** Stores a population in the service's tables, as signup and pairing would have left it. */
export async function settle(client: pg.Client, { tenants, devices }: Population): Promise<void> {
  const now = Date.now();
  await client.query('BEGIN');
  await client.query(
    // Without a slug: the server under test is in single mode, which refuses a database of named tenants.
    `INSERT INTO tenants (id, claimed_at, created_at) SELECT t, $2, $2 FROM unnest($1::text[]) t`,
    [tenants, now],
  );
  await client.query(
    `INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
     SELECT t, 'inbox', 'inbox', $2, $2, 1 FROM unnest($1::text[]) t`,
    [tenants, now],
  );
  await client.query(
    `INSERT INTO devices (tenant_id, id, name, glyph, pubkey, paired_at)
     SELECT d.tenant, d.id, 'bench', 'laptop', sha256(d.id::bytea), $3 FROM unnest($1::text[], $2::text[]) AS d(tenant, id)`,
    [devices.map((device) => device.tenant), devices.map((device) => device.id), now],
  );
  await client.query('COMMIT');
  // Not items: the planner would assume an empty table, unlike on any server in use.
  await client.query('ANALYZE tenants, devices, bins');
}

/** The host of a tenant: the server under test has one host per tenant, as in hosted use (see server.ts). */
const hostOf = (tenant: string): string => `${tenant.toLowerCase()}.bench.test`;

/** The tenant of a host. */
export const tenantOf = (host: string): string => host.slice(0, host.indexOf('.')).toUpperCase();

/** Writes the writers' plan: a line for each of the first `count` devices, with the devices to seal its items for. */
export function writePlan(file: string, { tenants, perTenant, devices }: Population, count = devices.length): void {
  const keys = tenants.map((_, tenant) =>
    Array.from({ length: perTenant }, (_unused, nth) => devices[nth * tenants.length + tenant]?.id).join(','),
  );
  const lines = devices
    .slice(0, count)
    .map((device, i) => `${device.token} ${hostOf(device.tenant)} ${device.id} ${keys[i % tenants.length]}\n`);
  writeFileSync(file, lines.join(''));
}

/** Writes the receivers' file: a line for each device. `since`: the version that a tenant's devices have applied. */
export function writeSockets(
  file: string,
  devices: readonly BenchDevice[],
  since: (tenant: string) => number = () => 0,
): void {
  writeFileSync(
    file,
    devices.map((device) => `${device.token} ${since(device.tenant)} ${hostOf(device.tenant)}\n`).join(''),
  );
}
