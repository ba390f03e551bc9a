/** Pairing sessions in PostgreSQL (sql/0004_pairing.sql). */
import type {
  AnswerVerdict,
  JoinAsk,
  JoinVerdict,
  OpenPair,
  PairAnswer,
  PairOpening,
  PairStanding,
  PairState,
  PairStore,
  WaitingRequest,
} from './ports.js';
import type { Glyph } from '../../protocol/requests.js';
import { proofOf, Store } from '../storage/ask.js';

type OpeningVerdict = Awaited<ReturnType<PairStore['open']>>;

interface JoinRow {
  readonly verdict: JoinVerdict['verdict'];
  readonly lookup_id: string | null;
  readonly fresh: boolean;
}

interface StandingRow {
  readonly state: PairState;
  readonly expiresAt: number;
  readonly wrappedMasterKey: Uint8Array | null;
  readonly deviceCert: Uint8Array | null;
  readonly confirmation: Uint8Array | null;
  /** Null unless the session is wrapped and its device stands. */
  readonly id: string | null;
  readonly name: string;
  readonly glyph: Glyph;
  readonly pubkey: Uint8Array;
  readonly pairedAt: number;
  readonly epoch: number;
}

/** The pairing sessions of all tenants. */
export class PairingStore extends Store implements PairStore {
  async open(opening: PairOpening): Promise<OpeningVerdict> {
    const { tenantId, deviceId, lookupId, code, epk, expiresAt, now } = opening;
    const values = [tenantId, deviceId, lookupId, code, epk, expiresAt, now];
    return this.value<OpeningVerdict>('SELECT * FROM pair_init($1, $2, $3, $4, $5, $6, $7)', values);
  }

  async find(tenantId: string, code: string, now: number): Promise<OpenPair | undefined> {
    const text = 'SELECT epk, state, expires_at AS "expiresAt" FROM find_pair_session($1, $2, $3)';
    return this.first<OpenPair>(text, [tenantId, code, now]);
  }

  async join(join: JoinAsk): Promise<JoinVerdict> {
    const { tenantId, code, deviceId, host, npk, name, glyph, attestation, maxDevices, now } = join;
    const newDevice = [deviceId, host, npk, name, glyph, attestation];
    const text = 'SELECT * FROM pair_join($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)';
    const row = await this.one<JoinRow>(text, [tenantId, code, ...newDevice, ...proofOf(join.proof), maxDevices, now]);
    return row.verdict === 'ok'
      ? { verdict: 'ok', lookupId: row.lookup_id ?? '', fresh: row.fresh }
      : { verdict: row.verdict };
  }

  async standing(tenantId: string, lookupId: string): Promise<PairStanding | undefined> {
    const row = await this.first<StandingRow>(
      `SELECT s.state, s.expires_at AS "expiresAt", s.wrapped_master_key AS "wrappedMasterKey",
          s.device_cert AS "deviceCert", s.confirmation,
          d.id, d.name, d.glyph, d.pubkey, d.paired_at AS "pairedAt", d.token_epoch AS epoch
        FROM pair_sessions s
        LEFT JOIN devices d ON s.state = 'wrapped' AND d.tenant_id = s.tenant_id AND d.id = s.new_device
          AND d.revoked_at IS NULL
        WHERE s.tenant_id = $1 AND s.lookup_id = $2`,
      [tenantId, lookupId],
    );
    return row === undefined ? undefined : standingOf(row);
  }

  async answer(answer: PairAnswer): Promise<AnswerVerdict> {
    const { tenantId, deviceId, code, wrap, maxDevices, now } = answer;
    const { wrappedMasterKey = null, deviceCert = null, confirmation = null } = wrap ?? {};
    const given = [wrap === null, wrappedMasterKey, deviceCert, confirmation];
    const text = 'SELECT * FROM pair_wrap($1, $2, $3, $4, $5, $6, $7, $8, $9)';
    return this.value<AnswerVerdict>(text, [tenantId, deviceId, code, ...given, maxDevices, now]);
  }

  requests(tenantId: string, deviceId: string, now: number): Promise<WaitingRequest[]> {
    return this.rows<WaitingRequest>(
      `SELECT lookup_id AS "lookupId", code, new_device AS "deviceId", host, npk AS pubkey, name, glyph, attestation,
          expires_at AS "expiresAt"
        FROM pair_sessions
        WHERE tenant_id = $1 AND existing_device = $2 AND state = 'requested' AND expires_at > $3
        ORDER BY lookup_id`,
      [tenantId, deviceId, now],
    );
  }
}

function standingOf(row: StandingRow): PairStanding {
  const { state, expiresAt, id, wrappedMasterKey } = row;
  if (id === null || wrappedMasterKey === null) return { state, expiresAt, release: null };
  const device = { id, name: row.name, glyph: row.glyph, pubkey: row.pubkey, pairedAt: row.pairedAt };
  const { epoch, deviceCert, confirmation } = row;
  return { state, expiresAt, release: { device, epoch, wrappedMasterKey, deviceCert, confirmation } };
}
