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
} from '../../account/ports.js';
import type { PasswordProof } from '../../protocol/password-proof.js';
import { arrayOf, ask, askOne } from '../ask.js';

/** Columns of a device out of `from`: an alias, or a value of the row's type in parentheses. */
const columns = (from: string): string => `${from}.id, ${from}.name, ${from}.glyph, ${from}.pubkey, ${from}.cert,
  ${from}.token_epoch AS "tokenEpoch", ${from}.paired_at AS "pairedAt", ${from}.revoked_at AS "revokedAt",
  ${from}.last_seen_at AS "lastSeenAt"`;

/** The tenant of single mode; made with its `inbox` on the first call. Instances that start at once agree on one. */
export async function ensureSingleTenant(pool: pg.Pool, now: number): Promise<string> {
  const row = await askOne<{ id: string }>(pool, {
    text: 'SELECT single_tenant($1, $2) AS id',
    values: [ulid(now), now],
  });
  return row.id;
}

interface Verdict<V extends string> {
  readonly verdict: V;
}

/** A row of the functions that add a device: `epoch` is set with `ok`. */
type JoinRow<Refusal extends string> = Verdict<'ok' | Refusal> & { readonly epoch: number | null };

function joined<Refusal extends string>(row: JoinRow<Refusal>): Joined<Refusal> {
  return row.verdict === 'ok' ? { verdict: 'ok', epoch: row.epoch ?? 0 } : { verdict: row.verdict };
}

/** A row of the functions that change a device: the device's columns are set with `ok`. */
type ChangeRow<Refusal extends string> = Verdict<'ok' | Refusal> & DeviceRecord;

function changed<Refusal extends string>(row: ChangeRow<Refusal>): DeviceChanged<Refusal> {
  if (row.verdict !== 'ok') return { verdict: row.verdict };
  const { id, name, glyph, pubkey, cert, tokenEpoch, pairedAt, revokedAt, lastSeenAt } = row;
  return { verdict: 'ok', device: { id, name, glyph, pubkey, cert, tokenEpoch, pairedAt, revokedAt, lastSeenAt } };
}

/** Devices, bootstrap, challenges, recovery and passwords of all tenants. */
export class AccountStore implements BootstrapStore, DeviceStore, ChallengeStore, RecoveryStore, PasswordStore {
  constructor(private readonly pool: pg.Pool) {}

  async claim(claim: Claim): ReturnType<BootstrapStore['claim']> {
    const { device } = claim;
    const row = await askOne<
      JoinRow<'tenant_not_found' | 'bootstrap_already_done' | 'forbidden' | 'device_exists' | 'device_limit'>
    >(this.pool, {
      text: 'SELECT * FROM claim_tenant($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)',
      values: [
        claim.tenantId,
        claim.admitted,
        claim.claimHash,
        device.id,
        device.name,
        device.glyph,
        device.pubkey,
        device.cert,
        claim.recoveryPubkey,
        claim.maxDevices,
        claim.now,
      ],
    });
    return joined(row);
  }

  async restart(tenantId: string): Promise<boolean> {
    const row = await askOne<Verdict<'ok' | 'tenant_not_found'>>(this.pool, {
      text: 'SELECT restart_tenant($1) AS verdict',
      values: [tenantId],
    });
    return row.verdict === 'ok';
  }

  async claimed(tenantId: string): Promise<boolean> {
    const rows = await ask(this.pool, {
      text: 'SELECT 1 FROM tenants WHERE id = $1 AND claimed_at IS NOT NULL',
      values: [tenantId],
    });
    return rows.length > 0;
  }

  devices(tenantId: string): Promise<DeviceRecord[]> {
    return ask<DeviceRecord>(this.pool, {
      text: `SELECT ${columns('d')} FROM devices d WHERE d.tenant_id = $1 ORDER BY d.paired_at, d.id`,
      values: [tenantId],
    });
  }

  async device(tenantId: string, id: string): Promise<DeviceRecord | undefined> {
    const [row] = await ask<DeviceRecord>(this.pool, {
      text: `SELECT ${columns('d')} FROM devices d WHERE d.tenant_id = $1 AND d.id = $2`,
      values: [tenantId, id],
    });
    return row;
  }

  async patchDevice(patch: Parameters<DeviceStore['patchDevice']>[0]): ReturnType<DeviceStore['patchDevice']> {
    const { tenantId, id, by, fields } = patch;
    const { name = null, glyph = null, cert } = fields;
    const row = await askOne<ChangeRow<'device_not_found' | 'device_revoked'>>(this.pool, {
      text: `SELECT f.verdict, ${columns('(f.device)')} FROM patch_device($1, $2, $3, $4, $5, $6, $7) f`,
      values: [tenantId, id, by, name, glyph, cert !== undefined, cert ?? null],
    });
    return changed(row);
  }

  async revokeDevice(revocation: Parameters<DeviceStore['revokeDevice']>[0]): ReturnType<DeviceStore['revokeDevice']> {
    const { tenantId, id, by, now } = revocation;
    const row = await askOne<ChangeRow<'device_not_found' | 'last_device' | 'device_revoked'>>(this.pool, {
      text: `SELECT f.verdict, ${columns('(f.device)')} FROM revoke_device($1, $2, $3, $4) f`,
      values: [tenantId, id, by, now],
    });
    return changed(row);
  }

  async touch(seen: readonly Seen[]): Promise<void> {
    await ask(this.pool, {
      text: 'SELECT touch_devices($1, $2, $3)',
      values: [
        arrayOf(seen.map(({ tenantId }) => tenantId)),
        arrayOf(seen.map(({ deviceId }) => deviceId)),
        arrayOf(seen.map(({ at }) => at)),
      ],
    });
  }

  async putChallenge(challenge: Challenge, now: number): Promise<void> {
    const { id, tenantId, kind, deviceId, secret, expiresAt } = challenge;
    await ask(this.pool, {
      text: 'SELECT put_challenge($1, $2, $3, $4, $5, $6, $7)',
      values: [id, tenantId, kind, deviceId, secret, expiresAt, now],
    });
  }

  async takeChallenge(challenge: Pick<Challenge, 'id' | 'tenantId' | 'kind'>): Promise<Challenge | undefined> {
    const [row] = await ask<Challenge>(this.pool, {
      text: `DELETE FROM challenges WHERE id = $1 AND tenant_id = $2 AND kind = $3
        RETURNING id, tenant_id AS "tenantId", kind, device_id AS "deviceId", secret, expires_at AS "expiresAt"`,
      values: [challenge.id, challenge.tenantId, challenge.kind],
    });
    return row;
  }

  async recoveryStanding(tenantId: string, proof: PasswordProof | undefined): Promise<RecoveryStanding | undefined> {
    const [row] = await ask<RecoveryStanding>(this.pool, {
      text: `SELECT recovery_pubkey AS "recoveryPubkey", password_shown(id, $2, $3) AS "passwordShown"
        FROM tenants WHERE id = $1`,
      values: [tenantId, proof?.ticketId ?? null, proof?.setAt ?? null],
    });
    return row;
  }

  async recover(join: RecoveryJoin): ReturnType<RecoveryStore['recover']> {
    const { device, proof } = join;
    const row = await askOne<
      JoinRow<'tenant_not_found' | 'forbidden' | 'password_required' | 'device_exists' | 'device_limit'>
    >(this.pool, {
      text: 'SELECT * FROM recover_device($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)',
      values: [
        join.tenantId,
        join.recoveryPubkey,
        proof?.ticketId ?? null,
        proof?.setAt ?? null,
        proof?.expiresAt ?? null,
        device.id,
        device.name,
        device.glyph,
        device.pubkey,
        device.cert,
        join.maxDevices,
        join.now,
      ],
    });
    return joined(row);
  }

  async password(tenantId: string): Promise<StoredPassword | undefined> {
    const [row] = await ask<StoredPassword>(this.pool, {
      text: `SELECT password_hash AS hash, password_set_at AS "setAt" FROM tenants
        WHERE id = $1 AND password_hash IS NOT NULL`,
      values: [tenantId],
    });
    return row;
  }

  async setPassword(change: Parameters<PasswordStore['setPassword']>[0]): ReturnType<PasswordStore['setPassword']> {
    const row = await askOne<Verdict<'ok' | 'tenant_not_found' | 'password_invalid' | 'device_revoked'>>(this.pool, {
      text: 'SELECT set_password($1, $2, $3, $4, $5) AS verdict',
      values: [change.tenantId, change.hash, change.knownSetAt, change.by, change.now],
    });
    return row.verdict;
  }
}
