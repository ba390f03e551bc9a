/**
 * Correctness of MIX: the acknowledged versions of a tenant go from 1 to its head without a gap; each item is stored as
 * its last change left it; each receiver saw exactly the other devices' versions, in order.
 */
import { readFileSync } from 'node:fs';
import type pg from 'pg';
import { AuditError, checkHeads, checkReceived, type Audited, type Stored } from '../audit.js';
import type { Population } from '../population.js';
import { KINDS, type Acked } from './kinds.js';

interface Row {
  readonly tenant: string;
  readonly id: string;
  readonly version: number;
  readonly bin: string;
  readonly deleted: boolean;
  readonly device: string;
}

export class MixAudit {
  /** Head of each tenant at the last audit. */
  private readonly heads = new Map<string, number>();

  constructor(private readonly population: Population) {}

  /** Audits all changes since the last call. */
  async run(
    client: pg.Client,
    { acked, received }: { readonly acked: string; readonly received: string },
  ): Promise<Audited> {
    const changes = this.changes(acked);
    const head = (tenant: string): number => this.heads.get(tenant) ?? 0;
    const { tenants } = this.population;
    await checkHeads(client, tenants, (tenant) => head(tenant) + (changes.get(tenant)?.length ?? 0));
    const stored = await this.checkRows(client, changes);
    const versions = new Map<string, Stored[]>();
    for (const [tenant, all] of changes) {
      versions.set(
        tenant,
        all.map(({ id, who }) => ({ id, device: this.device(who) })),
      );
    }
    const frames = checkReceived({ population: this.population, received: [received], stored: versions, head });
    let count = 0;
    for (const [tenant, all] of changes) {
      this.heads.set(tenant, head(tenant) + all.length);
      count += all.length;
    }
    return { acked: count, stored, received: frames };
  }

  private device(who: number): string {
    return this.population.devices[who]?.id ?? '';
  }

  /** Changes of each tenant by version. Throws if there is a gap. */
  private changes(file: string): Map<string, Acked[]> {
    const all = new Map<string, Acked[]>();
    for (const line of readFileSync(file, 'utf8').split('\n').filter(Boolean)) {
      const change = JSON.parse(line) as Acked;
      if (!KINDS.includes(change.kind)) throw new AuditError(`no change: ${line}`);
      const tenant = this.population.devices[change.who]?.tenant ?? '';
      const theirs = all.get(tenant) ?? [];
      all.set(tenant, theirs);
      theirs.push(change);
    }
    for (const [tenant, theirs] of all) {
      theirs.sort((one, other) => one.version - other.version);
      for (const [n, { version }] of theirs.entries()) {
        const expected = (this.heads.get(tenant) ?? 0) + n + 1;
        if (version !== expected)
          throw new AuditError(`tenant ${tenant}: version ${expected} was not acknowledged, ${version} was`);
      }
    }
    return all;
  }

  /** Each changed item must be stored as its last change left it, and no other above the old heads. Counts them. */
  private async checkRows(client: pg.Client, changes: ReadonlyMap<string, readonly Acked[]>): Promise<number> {
    const { tenants } = this.population;
    const { rows } = await client.query<Row>(
      `SELECT i.tenant_id AS tenant, i.id, i.version::int AS version, i.bin_id AS bin, i.deleted_at IS NOT NULL AS deleted,
         i.changed_by AS device
       FROM unnest($1::text[], $2::bigint[]) AS t(id, since) JOIN items i ON i.tenant_id = t.id AND i.version > t.since`,
      [tenants, tenants.map((tenant) => this.heads.get(tenant) ?? 0)],
    );
    const last = new Map<string, Acked>();
    for (const [tenant, all] of changes) for (const change of all) last.set(`${tenant} ${change.id}`, change);
    if (rows.length !== last.size)
      throw new AuditError(`${last.size} items were changed, ${rows.length} are stored so`);
    for (const { tenant, id, version, bin, deleted, device } of rows) {
      const change = last.get(`${tenant} ${id}`);
      const right =
        change?.version === version &&
        change.bin === bin &&
        (change.kind === 'delete') === deleted &&
        this.device(change.who) === device;
      if (!right) {
        const found = JSON.stringify({ version, bin, deleted, device });
        throw new AuditError(`${id} of tenant ${tenant}: acknowledged ${JSON.stringify(change)}, stored ${found}`);
      }
    }
    return rows.length;
  }
}
