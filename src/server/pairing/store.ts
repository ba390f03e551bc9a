/** Pairing sessions in PostgreSQL (sql/0004_pairing.sql). */
import type { DeviceReply } from '../../protocol/request-fields.js';
import type { ErrorName } from '../../protocol/errors.js';
import type { Paired, PairRequestFields, PairStarted } from '../../protocol/replies.js';
import { proofOf, Store, type Outcome, type PasswordProof } from '../storage/query.js';

/** From `open` to `requested`, bound to one new device, to `wrapped` or `rejected`. */
type PairState = 'open' | 'requested' | 'wrapped' | 'rejected';

/** A session as the existing device E, `deviceId`, opens it (Pairing, step 1). Times are milliseconds since 1970. */
interface PairOpening extends PairStarted, Pick<OpenPair, 'epk'> {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly now: number;
}

export interface OpenPair {
  readonly epk: Uint8Array;
  readonly state: PairState;
  readonly expiresAt: number;
}

/** The new device N as it describes itself (Pairing, step 3). */
interface JoinRequest extends Omit<PairRequestFields<Uint8Array>, 'lookupId' | 'expiresAt'> {
  readonly tenantId: string;
  /** Spent when it proves the password for this session, where one is set. */
  readonly proof: PasswordProof | undefined;
  readonly maxDevices: number;
  readonly now: number;
}

/** The outcome of a request to join. `fresh`: the request is new, so E must be notified. */
type JoinOutcome = Outcome<{ readonly lookup_id: string; readonly fresh: boolean }>;

/** What the existing device hands over. */
export type PairWrap = Pick<Paired<Uint8Array>, 'wrappedMasterKey' | 'deviceCert' | 'confirmation'>;

/** The device that E has approved, with its token epoch now, and what E handed over. */
export type PairRelease = DeviceReply & PairWrap & { readonly epoch: number };

/** The state of a session now; `id` is null unless the session is wrapped and its device is not revoked. */
export type PairStatus = Pick<OpenPair, 'state' | 'expiresAt'> & (PairRelease | { readonly id: null });

/**
 * The pairing sessions of all tenants. Every call is one statement; those that change something decide under the
 * tenant's lock. All throw `unavailable` when the database is out of reach.
 */
export class PairingStore extends Store {
  /** `conflict`: the code is in use. */
  open(opening: PairOpening): Promise<'ok' | ErrorName> {
    const { tenantId, deviceId, lookupId, code, epk, expiresAt, now } = opening;
    return this.value('pair_init', tenantId, deviceId, lookupId, code, epk, expiresAt, now);
  }

  /** The session of a code, also one that has ended; undefined: none. */
  find(tenantId: string, code: string, now: number): Promise<OpenPair | undefined> {
    const text = 'SELECT epk, state, expires_at AS "expiresAt" FROM find_pair_session($1, $2, $3)';
    return this.first<OpenPair>(text, [tenantId, code, now]);
  }

  /** Binds the session to N's key on the first successful request; the same key may repeat it. */
  join(join: JoinRequest): Promise<JoinOutcome> {
    const { tenantId, code, deviceId, host, pubkey, name, glyph, attestation, maxDevices, now } = join;
    const newDevice = [deviceId, host, pubkey, name, glyph, attestation];
    return this.call('pair_join', tenantId, code, ...newDevice, ...proofOf(join.proof), maxDevices, now);
  }

  /** Ends the session that this key has requested to join, unless it is decided; true: it has. */
  withdraw(tenantId: string, code: string, pubkey: Uint8Array, now: number): Promise<boolean> {
    return this.value('pair_withdraw', tenantId, code, pubkey, now);
  }

  /** Undefined once the session was ended or cleared away. */
  status(tenantId: string, lookupId: string): Promise<PairStatus | undefined> {
    return this.first<PairStatus>(
      `SELECT s.state, s.expires_at AS "expiresAt", s.wrapped_master_key AS "wrappedMasterKey",
          s.device_cert AS "deviceCert", s.confirmation,
          d.id, d.name, d.glyph, d.pubkey, d.paired_at AS "pairedAt", d.token_epoch AS epoch
        FROM pair_sessions s
        LEFT JOIN devices d ON s.state = 'wrapped' AND d.tenant_id = s.tenant_id AND d.id = s.new_device
          AND d.revoked_at IS NULL
        WHERE s.tenant_id = $1 AND s.lookup_id = $2`,
      [tenantId, lookupId],
    );
  }

  /** E's answer: the wrap, or null to reject. */
  answer(answer: {
    readonly tenantId: string;
    readonly deviceId: string;
    readonly code: string;
    readonly wrap: PairWrap | null;
    readonly maxDevices: number;
    readonly now: number;
  }): Promise<'ok' | ErrorName> {
    const { tenantId, deviceId, code, wrap, maxDevices, now } = answer;
    const { wrappedMasterKey = null, deviceCert = null, confirmation = null } = wrap ?? {};
    const given = [wrap === null, wrappedMasterKey, deviceCert, confirmation];
    return this.value('pair_wrap', tenantId, deviceId, code, ...given, maxDevices, now);
  }

  requests(tenantId: string, deviceId: string, now: number): Promise<PairRequestFields<Uint8Array>[]> {
    return this.rows(
      `SELECT lookup_id AS "lookupId", code, new_device AS "deviceId", host, npk AS pubkey, name, glyph, attestation,
          expires_at AS "expiresAt"
        FROM pair_sessions
        WHERE tenant_id = $1 AND existing_device = $2 AND state = 'requested' AND expires_at > $3
        ORDER BY lookup_id`,
      [tenantId, deviceId, now],
    );
  }
}
