/** Accounts in PostgreSQL (sql/0003_accounts.sql). Whatever changes a tenant is one call of one function. */
import type pg from 'pg';
import { ulid } from 'ulid';
import type {
  BootstrapStore,
  Challenge,
  ChallengeStore,
  Claim,
  DeviceChanged,
  DeviceRecord,
  DeviceStore,
  Joined,
  PasswordStore,
  RecoveryJoin,
  RecoveryStanding,
  RecoveryStore,
  Seen,
  StoredPassword,
} from './ports.js';
import type { PasswordProof } from '../../protocol/password-proof.js';
import type { NewDevice } from '../../protocol/device-fields.js';
import { arrayOf, askOne, proofOf, Store } from '../storage/ask.js';

/** Columns of a device out of `from`: an alias, or a value of the row's type in parentheses. */
const columns = (from: string): string => `${from}.id, ${from}.name, ${from}.glyph, ${from}.pubkey, ${from}.cert,
  ${from}.token_epoch AS "tokenEpoch", ${from}.paired_at AS "pairedAt", ${from}.revoked_at AS "revokedAt",
  ${from}.last_seen_at AS "lastSeenAt"`;

/** The tenant of single mode; made with its `inbox` on the first call. Instances that start at once agree on one. */
export async function ensureSingleTenant(pool: pg.Pool, now: number): Promise<string> {
  const statement = { text: 'SELECT single_tenant($1, $2) AS id', values: [ulid(now), now] };
  return (await askOne<{ id: string }>(pool, statement)).id;
}

/** The refusals of one of the ports' calls. */
type Refusal<Call extends 'claim' | 'recover' | 'patchDevice' | 'revokeDevice'> = Exclude<
  Awaited<ReturnType<AccountStore[Call]>>['verdict'],
  'ok'
>;

/** What the functions that add a device take of it. */
const columnsOf = ({ id, name, glyph, pubkey, cert }: NewDevice): unknown[] => [id, name, glyph, pubkey, cert];

/** A row of the functions that add a device: `epoch` is set with `ok`. */
type JoinRow<Refusal extends string> = { readonly verdict: 'ok' | Refusal; readonly epoch: number | null };

function joined<Refusal extends string>(row: JoinRow<Refusal>): Joined<Refusal> {
  return row.verdict === 'ok' ? { verdict: 'ok', epoch: row.epoch ?? 0 } : { verdict: row.verdict };
}

/** A row of the functions that change a device: the device's columns are set with `ok`. */
type ChangeRow<Refusal extends string> = DeviceRecord & { readonly verdict: 'ok' | Refusal };

function changed<Refusal extends string>(row: ChangeRow<Refusal>): DeviceChanged<Refusal> {
  if (row.verdict !== 'ok') return { verdict: row.verdict };
  const { id, name, glyph, pubkey, cert, tokenEpoch, pairedAt, revokedAt, lastSeenAt } = row;
  return { verdict: 'ok', device: { id, name, glyph, pubkey, cert, tokenEpoch, pairedAt, revokedAt, lastSeenAt } };
}

/** Devices, bootstrap, challenges, recovery and passwords of all tenants. */
export class AccountStore
  extends Store
  implements BootstrapStore, DeviceStore, ChallengeStore, RecoveryStore, PasswordStore
{
  async claim(claim: Claim): ReturnType<BootstrapStore['claim']> {
    const { tenantId, admitted, claimHash, device, recoveryPubkey, maxDevices, now } = claim;
    const text = 'SELECT * FROM claim_tenant($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)';
    const values = [tenantId, admitted, claimHash, ...columnsOf(device), recoveryPubkey, maxDevices, now];
    return joined(await this.one<JoinRow<Refusal<'claim'>>>(text, values));
  }

  async restart(tenantId: string): Promise<boolean> {
    return (await this.value('SELECT restart_tenant($1) AS verdict', [tenantId])) === 'ok';
  }

  async claimed(tenantId: string): Promise<boolean> {
    const rows = await this.rows('SELECT 1 FROM tenants WHERE id = $1 AND claimed_at IS NOT NULL', [tenantId]);
    return rows.length > 0;
  }

  devices(tenantId: string): Promise<DeviceRecord[]> {
    const text = `SELECT ${columns('d')} FROM devices d WHERE d.tenant_id = $1 ORDER BY d.paired_at, d.id`;
    return this.rows<DeviceRecord>(text, [tenantId]);
  }

  async device(tenantId: string, id: string): Promise<DeviceRecord | undefined> {
    const values = [tenantId, id];
    return this.first<DeviceRecord>(
      `SELECT ${columns('d')} FROM devices d WHERE d.tenant_id = $1 AND d.id = $2`,
      values,
    );
  }

  async patchDevice(patch: Parameters<DeviceStore['patchDevice']>[0]): ReturnType<DeviceStore['patchDevice']> {
    const { tenantId, id, by, fields } = patch;
    const { name = null, glyph = null, cert } = fields;
    const row = await this.one<ChangeRow<Refusal<'patchDevice'>>>(
      `SELECT f.verdict, ${columns('(f.device)')} FROM patch_device($1, $2, $3, $4, $5, $6, $7) f`,
      [tenantId, id, by, name, glyph, cert !== undefined, cert ?? null],
    );
    return changed(row);
  }

  async revokeDevice(revocation: Parameters<DeviceStore['revokeDevice']>[0]): ReturnType<DeviceStore['revokeDevice']> {
    const { tenantId, id, by, now } = revocation;
    const row = await this.one<ChangeRow<Refusal<'revokeDevice'>>>(
      `SELECT f.verdict, ${columns('(f.device)')} FROM revoke_device($1, $2, $3, $4) f`,
      [tenantId, id, by, now],
    );
    return changed(row);
  }

  async touch(seen: readonly Seen[]): Promise<void> {
    await this.rows('SELECT touch_devices($1, $2, $3)', [
      arrayOf(seen.map(({ tenantId }) => tenantId)),
      arrayOf(seen.map(({ deviceId }) => deviceId)),
      arrayOf(seen.map(({ at }) => at)),
    ]);
  }

  async putChallenge(challenge: Challenge, now: number): Promise<void> {
    const { id, tenantId, kind, deviceId, secret, expiresAt } = challenge;
    const values = [id, tenantId, kind, deviceId, secret, expiresAt, now];
    await this.rows('SELECT put_challenge($1, $2, $3, $4, $5, $6, $7)', values);
  }

  async takeChallenge(challenge: Pick<Challenge, 'id' | 'tenantId' | 'kind'>): Promise<Challenge | undefined> {
    return this.first<Challenge>(
      `DELETE FROM challenges WHERE id = $1 AND tenant_id = $2 AND kind = $3
        RETURNING id, tenant_id AS "tenantId", kind, device_id AS "deviceId", secret, expires_at AS "expiresAt"`,
      [challenge.id, challenge.tenantId, challenge.kind],
    );
  }

  async recoveryStanding(tenantId: string, proof: PasswordProof | undefined): Promise<RecoveryStanding | undefined> {
    return this.first<RecoveryStanding>(
      `SELECT recovery_pubkey AS "recoveryPubkey", password_shown(id, $2, $3) AS "passwordShown"
        FROM tenants WHERE id = $1`,
      [tenantId, proof?.ticketId ?? null, proof?.setAt ?? null],
    );
  }

  async recover(join: RecoveryJoin): ReturnType<RecoveryStore['recover']> {
    const { tenantId, recoveryPubkey, device, maxDevices, now } = join;
    const text = 'SELECT * FROM recover_device($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)';
    const values = [tenantId, recoveryPubkey, ...proofOf(join.proof), ...columnsOf(device), maxDevices, now];
    return joined(await this.one<JoinRow<Refusal<'recover'>>>(text, values));
  }

  async password(tenantId: string): Promise<StoredPassword | undefined> {
    return this.first<StoredPassword>(
      `SELECT password_hash AS hash, password_set_at AS "setAt" FROM tenants
        WHERE id = $1 AND password_hash IS NOT NULL`,
      [tenantId],
    );
  }

  async setPassword(change: Parameters<PasswordStore['setPassword']>[0]): ReturnType<PasswordStore['setPassword']> {
    return this.value<'ok' | 'tenant_not_found' | 'password_invalid' | 'device_revoked'>(
      'SELECT set_password($1, $2, $3, $4, $5) AS verdict',
      [change.tenantId, change.hash, change.knownSetAt, change.by, change.now],
    );
  }
}
