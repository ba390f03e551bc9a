/**
 * Request bodies as clients send them, keys in camelCase (a shape B body is renamed first, contract 2).
 * The validators are generated from these types, and so is the reference. Binary fields are text here;
 * the codecs decode them and check their length.
 */
import type { tags } from 'typia';

export type Ulid = string & tags.Pattern<'^[0-7][0-9A-HJKMNP-TV-Z]{25}$'>;
export type BinId = string & tags.Pattern<'^[A-Za-z0-9_-]{1,64}$'>;
export type BinSlug = string & tags.Pattern<'^[a-z0-9][a-z0-9-]{0,62}$'>;
/** Milliseconds since 1970: seconds fall below the minimum. */
export type Millis = number & tags.Type<'int64'> & tags.Minimum<1000000000000> & tags.Maximum<9007199254740991>;
/** A version or a count: an integer from 0 to 2^53 - 1. */
export type Count = number & tags.Type<'int64'> & tags.Minimum<0> & tags.Maximum<9007199254740991>;
/** Base64 or base64url, padded or not. */
export type Base64 = string;
export type BlobRef = string & tags.MaxLength<64>;
export type Words = string & tags.MinLength<1> & tags.MaxLength<200>;
export type Host = string & tags.MinLength<1> & tags.MaxLength<255>;
export type DeviceName = string & tags.MinLength<1> & tags.MaxLength<256>;
export type Glyph = 'laptop' | 'phone' | 'tablet' | 'globe';

/** Signup of a hosted tenant (contract 12). What fits a name and an address is judged where they are used. */
export interface SignupBody {
  email: string & tags.MinLength<3> & tags.MaxLength<254>;
  subdomain: string & tags.MinLength<1> & tags.MaxLength<63>;
}

export interface MasterBody {
  nonce: Base64;
  ct: Base64;
}

export interface EnvelopeBody {
  ct: Base64;
  nonce: Base64;
  keys: Record<string, string>;
  master?: MasterBody | null;
  sig?: Base64 | null;
}

/** Shape A item write (specification, POST /items; contract 5). */
export interface ItemBodyA {
  id: Ulid;
  binId: BinId;
  type: string;
  ts: Millis;
  payloadEnc?: EnvelopeBody | null;
  blobRef?: BlobRef | null;
  blobNonce?: Base64 | null;
  blobKeys?: Record<string, string> | null;
  master?: MasterBody | null;
  sig?: Base64 | null;
  ifVersion?: Count | null;
}

export interface WrappedKeyBody {
  deviceId: string;
  key: Base64;
}

/** Shape B item write, keys in camelCase (specification, Item (Shape B); contract 2). */
export interface ItemBodyB {
  id: Ulid;
  binId: BinId;
  type: string;
  ts: Millis;
  nonce: Base64;
  ct: Base64;
  wrapped: WrappedKeyBody[] & tags.MaxItems<1000>;
  blobRef?: BlobRef | null;
  blobNonce?: Base64 | null;
  blobKeys?: (WrappedKeyBody[] & tags.MaxItems<1000>) | null;
  master?: MasterBody | null;
  sig?: Base64 | null;
  ifVersion?: Count | null;
}

export interface BatchBody {
  items: unknown[] & tags.MinItems<1> & tags.MaxItems<100>;
}

export interface DeleteBody {
  sig?: Base64 | null;
}

export interface ReconcileBody {
  binId: BinId;
  version: Count;
  sig: Base64;
}

export interface BinCreateBody {
  id: BinId;
  slug?: BinSlug | null;
  meta?: Base64 | null;
}

export interface BinPatchBody {
  slug?: BinSlug;
  meta?: Base64 | null;
}

export interface BinDeleteBody {
  force?: boolean;
}

export interface BootstrapBody {
  name: DeviceName;
  glyph: Glyph;
  pubkey: Base64;
  deviceId?: Ulid | null;
  deviceCert?: Base64 | null;
  recoveryPubkey?: Base64 | null;
  wrappedMasterKey?: Base64 | null;
  claimToken?: (string & tags.MaxLength<256>) | null;
}

export interface DevicePatchBody {
  name?: DeviceName;
  glyph?: Glyph;
  cert?: Base64 | null;
}

export interface PairInitBody {
  code: Words;
  epk: Base64;
}

export interface PairFetchEpkBody {
  code: Words;
}

export interface PairFetchNpkBody {
  code: Words;
  deviceId?: Ulid | null;
  host?: Host | null;
  pubkey: Base64;
  name: DeviceName;
  glyph: Glyph;
  attestation: Base64;
  passwordTicket?: (string & tags.MaxLength<256>) | null;
}

/** Either the wrap or a rejection. */
export interface PairWrapBody {
  code: Words;
  wrappedMasterKey?: Base64 | null;
  deviceCert?: Base64 | null;
  confirmation?: Base64 | null;
  reject?: boolean;
}

export interface ReauthChallengeBody {
  deviceId: Ulid;
}

export interface ReauthBody {
  deviceId: Ulid;
  challengeId: Ulid;
  answer: Base64;
}

export interface PasswordSetBody {
  password: string & tags.MinLength<1> & tags.MaxLength<1024>;
  currentPassword?: (string & tags.MaxLength<1024>) | null;
}

export interface PasswordVerifyBody {
  password: string & tags.MinLength<1> & tags.MaxLength<1024>;
  pubkey?: Base64 | null;
}

export interface RecoverBody {
  challengeId: Ulid;
  signature: Base64;
  deviceId: Ulid;
  host: Host;
  pubkey: Base64;
  deviceCert: Base64;
  name: DeviceName;
  glyph: Glyph;
  passwordTicket?: (string & tags.MaxLength<256>) | null;
}

/** Client frames (specification, Events; contract 11). */
export interface HelloFrame {
  type: 'hello';
  since: Count;
  epoch?: string | null;
  acks?: boolean;
}
