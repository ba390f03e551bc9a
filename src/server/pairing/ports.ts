/** What pairing needs from outside: PostgreSQL and the account's tickets and tokens in the server. */
import type { DeviceReply } from '../../protocol/device-fields.js';
import type { PasswordProof } from '../../protocol/password-proof.js';
import type { Glyph } from '../../protocol/requests.js';

/** Reads the tickets that `POST /password/verify` gives. */
export interface PasswordTickets {
  /** What a ticket proves to this tenant for this key; undefined: nothing. */
  passwordProof(ticket: string, scope: { tenantId: string; pubkey: Uint8Array }): PasswordProof | undefined;
}

/** A session as the existing device opens it (Pairing, step 1). Times are milliseconds since 1970. */
export interface PairOpening {
  readonly tenantId: string;
  /** The existing device E. */
  readonly deviceId: string;
  readonly lookupId: string;
  readonly code: string;
  readonly epk: Uint8Array;
  readonly expiresAt: number;
  readonly now: number;
}

/** A session as the code finds it. */
export interface OpenPair {
  readonly epk: Uint8Array;
  readonly state: PairState;
  readonly expiresAt: number;
}

/** From `open` to `requested`, bound to one new device, to `wrapped` or `rejected`. */
export type PairState = 'open' | 'requested' | 'wrapped' | 'rejected';

/** What the new device N says of itself (Pairing, step 3). */
export interface JoinAsk {
  readonly tenantId: string;
  readonly code: string;
  readonly deviceId: string;
  readonly host: string | null;
  readonly npk: Uint8Array;
  readonly name: string;
  readonly glyph: Glyph;
  readonly attestation: Uint8Array;
  /** Spent when it proves the password for this session, where one is set. */
  readonly proof: PasswordProof | undefined;
  readonly maxDevices: number;
  readonly now: number;
}

/** What came of a request to join; a refusal by the error catalogue's name. */
export type JoinVerdict =
  | { readonly verdict: 'ok'; readonly lookupId: string; /** E must be told. */ readonly fresh: boolean }
  | { readonly verdict: 'pair_invalid' | 'pair_expired' | 'password_required' | 'device_exists' | 'device_limit' };

/** How a session stands now. */
export interface PairStanding {
  readonly state: PairState;
  readonly expiresAt: number;
  /** Set once the session is wrapped and while its device is not revoked. */
  readonly release: PairRelease | null;
}

/** What the new device gets once the existing one has approved it. */
export interface PairRelease {
  readonly device: DeviceReply;
  /** The new device's token epoch now. */
  readonly epoch: number;
  readonly wrappedMasterKey: Uint8Array;
  readonly deviceCert: Uint8Array | null;
  readonly confirmation: Uint8Array | null;
}

/** E's answer: the wrap, or null to reject. */
export interface PairAnswer {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly code: string;
  readonly wrap: Pick<PairRelease, 'wrappedMasterKey' | 'deviceCert' | 'confirmation'> | null;
  readonly maxDevices: number;
  readonly now: number;
}

/** What came of the existing device's answer; a refusal by the error catalogue's name. */
export type AnswerVerdict =
  | 'ok'
  | 'device_revoked'
  | 'pair_invalid'
  | 'pair_expired'
  | 'conflict'
  | 'password_required'
  | 'device_exists'
  | 'device_limit';

/** A pairing that waits for E: the fields of the frame `pair_request` (Pairing, waiting requests). */
export interface WaitingRequest {
  readonly lookupId: string;
  readonly code: string;
  readonly deviceId: string;
  readonly host: string | null;
  readonly pubkey: Uint8Array;
  readonly name: string;
  readonly glyph: Glyph;
  readonly attestation: Uint8Array;
  readonly expiresAt: number;
}

/**
 * Pairing sessions, seen by every instance. Every call is one statement; those that change anything decide under the
 * tenant's lock. All throw `unavailable` when the database is out of reach.
 */
export interface PairStore {
  open(opening: PairOpening): Promise<'ok' | 'bad_token' | 'device_revoked' | 'conflict'>;
  /** The session that a code means, living or over; undefined: none. */
  find(tenantId: string, code: string, now: number): Promise<OpenPair | undefined>;
  join(ask: JoinAsk): Promise<JoinVerdict>;
  /** Undefined once the session was ended or cleared away. */
  standing(tenantId: string, lookupId: string): Promise<PairStanding | undefined>;
  answer(answer: PairAnswer): Promise<AnswerVerdict>;
  /** What waits for this device's approval. */
  requests(tenantId: string, deviceId: string, now: number): Promise<WaitingRequest[]>;
}
