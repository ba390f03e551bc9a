/** Takes a revoked device's entries out of stored keys, a batch at a time, in the background (contract 5). */
import type pg from 'pg';
import type { KeyPurger } from '../tenant/ports.js';
import { withRetry } from './database.js';

const BATCH = 500;
/** Revocations waiting for their purge; more are left to the nightly job. */
const WAITING_MAX = 1_000;

export class PostgresKeyPurger implements KeyPurger {
  private readonly waiting: (readonly [tenantId: string, deviceId: string])[] = [];
  private working: Promise<void> | undefined;
  private closing = false;

  constructor(
    private readonly pool: pg.Pool,
    private readonly onFault: (error: unknown, tenantId: string) => void,
  ) {}

  purge(tenantId: string, deviceId: string): void {
    if (this.closing || this.waiting.length >= WAITING_MAX) return;
    this.waiting.push([tenantId, deviceId]);
    this.working ??= this.work();
  }

  /** Resolves when the batch under way has ended; what is left is found again by its device's mark. */
  async close(): Promise<void> {
    this.closing = true;
    await this.working;
  }

  /** One after the other: this must never compete with writes. */
  private async work(): Promise<void> {
    for (let next = this.waiting.shift(); next !== undefined && !this.closing; next = this.waiting.shift()) {
      const [tenantId, deviceId] = next;
      try {
        await this.purgeDevice(tenantId, deviceId);
      } catch (error) {
        this.onFault(error, tenantId);
      }
    }
    this.working = undefined;
  }

  private async purgeDevice(tenantId: string, deviceId: string): Promise<void> {
    let after: string | null = '';
    while (after !== null && !this.closing) {
      const values: unknown[] = [tenantId, deviceId, after, BATCH];
      const found: pg.QueryResult<{ last: string | null }> = await withRetry(() =>
        this.pool.query<{ last: string | null }>('SELECT purge_device_keys($1, $2, $3, $4) AS last', values),
      );
      after = found.rows[0]?.last ?? null;
    }
  }
}
