/** Devices, challenges, passwords and tickets in PostgreSQL (sql/0003_accounts.sql). */
import { ulid } from 'ulid';
import { Batcher } from '../../protocol/batcher.js';
import type { NewDevice } from '../../protocol/request-fields.js';
import type { ErrorName } from '../../protocol/errors.js';
import { REVOKED_LISTED_MAX } from '../../protocol/limits.js';
import type { KnownDevice, Me } from '../../protocol/replies.js';
import {
  arrayOf,
  byColumn,
  type DeviceCall,
  deviceOf,
  type Joined,
  type Outcome,
  type PasswordProof,
  proofOf,
  Store,
} from '../storage/query.js';

/** A device as it is stored. Times are milliseconds since 1970. */
export interface DeviceRecord extends KnownDevice<Uint8Array> {
  readonly tokenEpoch: number;
}

interface Join {
  readonly tenantId: string;
  readonly device: NewDevice;
  /** MAX_DEVICES. */
  readonly maxDevices: number;
  readonly now: number;
}

/** A device was seen, at a time in milliseconds since 1970. */
export interface Sighting {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly at: number;
}

/** What a client has to answer or sign, once, within two minutes. */
interface Challenge {
  readonly id: string;
  readonly tenantId: string;
  readonly kind: 'reauth' | 'recovery';
  readonly deviceId: string | null;
  readonly secret: Uint8Array;
  readonly expiresAt: number;
}

export interface StoredPassword {
  /** Argon2id string. */
  readonly hash: string;
  /** When it was set, milliseconds since 1970; rises with every change. */
  readonly setAt: number;
}

/** The caller and its tenant's figures, for `/me`. */
export type Identity = Me['device'] &
  Pick<Me['server'], 'headVersion' | 'versionSum' | 'itemCount' | 'storageUsedBytes' | 'deviceCount'>;

interface Spending {
  readonly id: string;
  readonly expiresAt: number;
  readonly now: number;
}

/** Ticket redemptions of one statement. */
const SPENT_PER_STATEMENT = 500;

/** Columns of a device out of `from`: an alias, or a value of the row's type in parentheses. */
const columns = (from: string): string => `${from}.id, ${from}.name, ${from}.glyph, ${from}.pubkey, ${from}.cert,
  ${from}.token_epoch AS "tokenEpoch", ${from}.paired_at AS "pairedAt", ${from}.revoked_at AS "revokedAt",
  ${from}.last_seen_at AS "lastSeenAt"`;

/** The devices and credentials of all tenants. Each call is one statement, and throws `unavailable` during an outage. */
export class AccountStore extends Store {
  private readonly spending = new Batcher<Spending, boolean>(SPENT_PER_STATEMENT, (batch) => this.spendAll(batch));

  /**
   * The tenant of single mode; made with its `inbox` on the first call. Instances that start together get the same one.
   */
  singleTenant(now: number): Promise<string> {
    return this.value('single_tenant', ulid(now), now);
  }

  /**
   * Claims the tenant unless it is claimed: of concurrent calls exactly one gets `ok`. `admitted`: the caller showed
   * BOOTSTRAP_TOKEN, or none is required. `claimHash`: SHA-256 of the claim token that was sent.
   */
  claim(
    claim: Join & { admitted: boolean; claimHash: Uint8Array | null; recoveryPubkey: Uint8Array | null },
  ): Promise<Joined> {
    const { tenantId, admitted, claimHash, device, recoveryPubkey, maxDevices, now } = claim;
    const newDevice = deviceOf(device);
    return this.call('claim_tenant', tenantId, admitted, claimHash, ...newDevice, recoveryPubkey, maxDevices, now);
  }

  /** Removes devices, pairings, challenges, password and recovery key; keeps items and bins. False: no such tenant. */
  async restart(tenantId: string): Promise<boolean> {
    return (await this.value('restart_tenant', tenantId)) === 'ok';
  }

  /** Whether a device has claimed the tenant; false also for an unknown tenant. */
  async claimed(tenantId: string): Promise<boolean> {
    const rows = await this.rows('SELECT 1 FROM tenants WHERE id = $1 AND claimed_at IS NOT NULL', [tenantId]);
    return rows.length > 0;
  }

  /**
   * All devices, oldest first; of the revoked ones the latest `REVOKED_LISTED_MAX`. A device could otherwise, by pairing
   * and revoking others day after day, make the list longer than any client reads (DEV-23).
   */
  devices(tenantId: string): Promise<DeviceRecord[]> {
    const text = `SELECT ${columns('d')} FROM (
        SELECT * FROM devices WHERE tenant_id = $1 AND revoked_at IS NULL
        UNION ALL (SELECT * FROM devices WHERE tenant_id = $1 AND revoked_at IS NOT NULL
          ORDER BY revoked_at DESC, id LIMIT ${REVOKED_LISTED_MAX})) d ORDER BY d.paired_at, d.id`;
    return this.rows<DeviceRecord>(text, [tenantId]);
  }

  device(tenantId: string, id: string): Promise<DeviceRecord | undefined> {
    const text = `SELECT ${columns('d')} FROM devices d WHERE d.tenant_id = $1 AND d.id = $2`;
    return this.first<DeviceRecord>(text, [tenantId, id]);
  }

  /** A null name or glyph and an undefined certificate stay as they are; a null certificate is removed. */
  patchDevice(
    patch: DeviceCall & { name: string | null; glyph: string | null; cert: Uint8Array | null | undefined },
  ): Promise<Outcome<DeviceRecord>> {
    const { tenantId, id, by, name, glyph, cert } = patch;
    return this.one<Outcome<DeviceRecord>>(
      `SELECT f.verdict, ${columns('(f.device)')} FROM patch_device($1, $2, $3, $4, $5, $6, $7) f`,
      [tenantId, id, by, name, glyph, cert !== undefined, cert ?? null],
    );
  }

  /** Revoking a revoked device is `ok` and changes nothing. */
  revokeDevice({ tenantId, id, by, now }: DeviceCall & { now: number }): Promise<Outcome<DeviceRecord>> {
    const text = `SELECT f.verdict, ${columns('(f.device)')} FROM revoke_device($1, $2, $3, $4) f`;
    return this.one<Outcome<DeviceRecord>>(text, [tenantId, id, by, now]);
  }

  /** Notes when devices were last seen; skips devices whose row is locked. */
  async touch(seen: readonly Sighting[]): Promise<void> {
    await this.call('touch_devices', ...byColumn(seen, 'tenantId', 'deviceId', 'at').map(arrayOf));
  }

  /** The device and its tenant's figures in one snapshot; undefined when the device is gone. */
  identity(tenantId: string, deviceId: string): Promise<Identity | undefined> {
    const text = `SELECT d.id, d.name, d.glyph, d.paired_at AS "pairedAt", t.head AS "headVersion",
        t.version_sum AS "versionSum", t.item_count AS "itemCount", t.storage_bytes AS "storageUsedBytes",
        (SELECT count(*) FROM devices o WHERE o.tenant_id = t.id AND o.revoked_at IS NULL) AS "deviceCount"
      FROM tenants t JOIN devices d ON d.tenant_id = t.id AND d.id = $2 WHERE t.id = $1`;
    return this.first<Identity>(text, [tenantId, deviceId], { name: 'identity' });
  }

  /** Stores a challenge where every instance finds it. */
  async putChallenge(challenge: Challenge, now: number): Promise<void> {
    const { id, tenantId, kind, deviceId, secret, expiresAt } = challenge;
    const text = `SELECT put_challenge(p_tenant => $1, p_id => $2, p_kind => $3, p_device => $4, p_secret => $5,
      p_expires => $6, p_now => $7)`;
    await this.rows(text, [tenantId, id, kind, deviceId, secret, expiresAt, now]);
  }

  /** Removes and returns the challenge, expired or not: of concurrent calls one gets it. */
  takeChallenge({ id, tenantId, kind }: Pick<Challenge, 'id' | 'tenantId' | 'kind'>): Promise<Challenge | undefined> {
    return this.first<Challenge>(
      `DELETE FROM challenges WHERE tenant_id = $1 AND id = $2 AND kind = $3
        RETURNING id, tenant_id AS "tenantId", kind, device_id AS "deviceId", secret, expires_at AS "expiresAt"`,
      [tenantId, id, kind],
    );
  }

  /**
   * The requirements of a recovery of the tenant; undefined: no such tenant. `passwordShown`: no password is set, or
   * the proof is for this very password and its ticket is unspent.
   */
  recoveryState(
    tenantId: string,
    proof: PasswordProof | undefined,
  ): Promise<{ readonly recoveryPubkey: Uint8Array | null; readonly passwordShown: boolean } | undefined> {
    return this.first(
      `SELECT recovery_pubkey AS "recoveryPubkey", password_shown(id, $2, $3) AS "passwordShown"
        FROM tenants WHERE id = $1`,
      [tenantId, proof?.ticketId ?? null, proof?.setAt ?? null],
    );
  }

  /**
   * Adds a device whose recovery was signed by `recoveryPubkey`, which must still be the tenant's. Spends the proof
   * where a password is set.
   */
  recover(join: Join & { recoveryPubkey: Uint8Array; proof: PasswordProof | undefined }): Promise<Joined> {
    const { tenantId, recoveryPubkey, device, maxDevices, now } = join;
    const given = [...proofOf(join.proof), ...deviceOf(device)];
    return this.call('recover_device', tenantId, recoveryPubkey, ...given, maxDevices, now);
  }

  /** The tenant's password; undefined: none is set. */
  password(tenantId: string): Promise<StoredPassword | undefined> {
    return this.first<StoredPassword>(
      `SELECT password_hash AS hash, password_set_at AS "setAt" FROM tenants
        WHERE id = $1 AND password_hash IS NOT NULL`,
      [tenantId],
    );
  }

  /**
   * Sets the password, or removes it (`hash` null), if the one in force is still the one set at `knownSetAt` (null:
   * none). `by`, the calling device, must not have been revoked in the meantime.
   */
  setPassword(change: {
    readonly tenantId: string;
    readonly hash: string | null;
    readonly knownSetAt: number | null;
    readonly by: string;
    readonly now: number;
  }): Promise<'ok' | ErrorName> {
    const { tenantId, hash, knownSetAt, by, now } = change;
    return this.value('set_password', tenantId, hash, knownSetAt, by, now);
  }

  /** Spends a ticket: true for the first caller on any instance, false for every later one. */
  spendTicket(id: string, expiresAt: number, now: number): Promise<boolean> {
    return this.spending.ask({ id, expiresAt, now });
  }

  private async spendAll(batch: readonly Spending[]): Promise<boolean[]> {
    const values = [...byColumn(batch, 'id', 'expiresAt'), batch[0]?.now];
    const rows = await this.rows<{ id: string }>('SELECT id FROM spend_tickets($1, $2, $3) AS id', values);
    const spent = new Set(rows.map(({ id }) => id));
    // Of two callers with one ticket in the same batch only the first gets it.
    return batch.map(({ id }) => spent.delete(id));
  }
}
