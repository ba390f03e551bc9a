/**
 * Request bodies as clients send them, keys in camelCase (a shape B body is renamed first: reference, HTTP, The two
 * shapes). The validators and the reference are generated from these types. Binary fields are text here; the codecs
 * decode them and check their length.
 */
import type { tags } from 'typia';

/** 26 characters of upper-case Crockford base32, the first at most 7. */
export type Ulid = string & tags.Pattern<'^[0-7][0-9A-HJKMNP-TV-Z]{25}$'>;
/** 1 to 64 of A-Z a-z 0-9 _ - */
export type BinId = string & tags.Pattern<'^[A-Za-z0-9_-]{1,64}$'>;
/** 1 to 63 of a-z 0-9 -, the first not -. */
export type BinSlug = string & tags.Pattern<'^[a-z0-9][a-z0-9-]{0,62}$'>;
/** Milliseconds since 1970; a value in seconds is below the minimum. */
export type Millis = number & tags.Type<'int64'> & tags.Minimum<1000000000000> & tags.Maximum<9007199254740991>;
/** A version or a count: an integer from 0 to 2^53 - 1. */
export type Count = number & tags.Type<'int64'> & tags.Minimum<0> & tags.Maximum<9007199254740991>;
/** Base64 or base64url, padded or not. */
export type Base64 = string;
/** The name of an uploaded blob, opaque to clients. */
export type BlobRef = string & tags.MaxLength<64>;
/** Six words; hyphens and runs of white space count as one space, case does not count. */
export type Words = string & tags.MinLength<1> & tags.MaxLength<200>;
/** The host name that was dialled, lower case, without port. */
export type Host = string & tags.MinLength<1> & tags.MaxLength<255>;
/** 1 to 64 characters, at least one visible; no control, text-direction, tag or line separator characters. */
export type DeviceName = string & tags.MinLength<1> & tags.MaxLength<256>;
/** The icon of a device. */
export type Glyph = 'laptop' | 'phone' | 'tablet' | 'globe';

/**
 * Signup of a hosted tenant (reference, Billing, Signing up). Name and address are checked further by the code
 * that uses them.
 */
export interface SignupBody {
  /** The address for bills and notices. */
  email: string & tags.MinLength<3> & tags.MaxLength<254>;
  /** The tenant's name: its host is `<subdomain>.<base domain>`. */
  subdomain: string & tags.MinLength<1> & tags.MaxLength<63>;
}

/** A device of a test tenant; it has no name of its own. */
export interface TestDeviceBody {
  id: Ulid;
  /** X25519 public key, 32 bytes. */
  pubkey: Base64;
  /** Device certificate, 32 bytes. */
  cert: Base64;
}

/** A tenant for load tests, with all its devices (reference, Load tests). */
export interface TestTenantBody {
  /** The tenant's name, as at signup. */
  subdomain: string & tags.MinLength<1> & tags.MaxLength<63>;
  devices: TestDeviceBody[] & tags.MinItems<1> & tags.MaxItems<100>;
}

/** The item key under the master key: a secret box. */
export interface MasterBody {
  /** 24 bytes. */
  nonce: Base64;
  /** 48 bytes. */
  ct: Base64;
}

/** The encrypted payload of an item in shape A. */
export interface EnvelopeBody {
  /** Ciphertext with its tag, 16 to 65,536 bytes; empty only beside a blob, for no metadata. */
  ct: Base64;
  /** 24 bytes. */
  nonce: Base64;
  /** A key for every device that is not revoked, 32 to 256 bytes each, 1,000 at most. */
  keys: Record<string, string>;
  master?: MasterBody | null;
  /** Item tag, 32 bytes. Required unless REQUIRE_SIG is `never`. */
  sig?: Base64 | null;
}

/** An item write in shape A. `payloadEnc`, `blobRef` or both are set. */
export interface ItemBodyA {
  id: Ulid;
  binId: BinId;
  type: string;
  ts: Millis;
  payloadEnc?: EnvelopeBody | null;
  blobRef?: BlobRef | null;
  /** 24 bytes; required beside `blobRef`. */
  blobNonce?: Base64 | null;
  /** Required beside `blobRef`. */
  blobKeys?: Record<string, string> | null;
  /** Only of a blob without `payloadEnc`; else it is in there. */
  master?: MasterBody | null;
  /** Item tag of a blob without `payloadEnc`, 32 bytes; else it is in there. */
  sig?: Base64 | null;
  /** The version that this write is based on; 0: the item must not exist. Left out: not checked. */
  ifVersion?: Count | null;
}

/** A device and the item key sealed to it. */
export interface WrappedKeyBody {
  deviceId: string;
  /** 32 to 256 bytes. */
  key: Base64;
}

/** An item write in shape B. */
export interface ItemBodyB {
  id: Ulid;
  binId: BinId;
  type: string;
  ts: Millis;
  /** 24 bytes. Of a blob without metadata: the blob's own. */
  nonce: Base64;
  /** Ciphertext with its tag, 16 to 65,536 bytes; empty for a blob without metadata. */
  ct: Base64;
  /** A key for every device that is not revoked. Of a blob without metadata: the blob's own keys. */
  wrapped: WrappedKeyBody[] & tags.MaxItems<1000>;
  blobRef?: BlobRef | null;
  /** 24 bytes; required beside a blob that has metadata in `ct`. */
  blobNonce?: Base64 | null;
  /** Required beside `blobNonce`. */
  blobKeys?: (WrappedKeyBody[] & tags.MaxItems<1000>) | null;
  master?: MasterBody | null;
  /** Item tag, 32 bytes. Required only where REQUIRE_SIG is `always`. */
  sig?: Base64 | null;
  /** The version that this write is based on; 0: the item must not exist. Left out: not checked. */
  ifVersion?: Count | null;
}

/** Writes that are accepted or refused independently. */
export interface BatchBody {
  items: unknown[] & tags.MinItems<1> & tags.MaxItems<100>;
}

/** 1 to 127 visible characters of ASCII and spaces between them, such as image/jpeg. */
export type MediaType = string & tags.MaxLength<127> & tags.Pattern<'^[!-~]+( [!-~]+)*$'>;
/** Bytes of a blob, at least 1. */
export type BlobSize = number & tags.Type<'int64'> & tags.Minimum<1> & tags.Maximum<9007199254740991>;

/** Room for a blob, in shape A. */
export interface UploadBodyA {
  /** Bytes of ciphertext; the upload must have exactly this size. */
  contentLength: BlobSize;
  /** Left out: application/octet-stream. */
  contentType?: MediaType | null;
}

/** Room for a blob, in shape B. */
export interface UploadBodyB {
  /** Bytes of ciphertext; the upload must have exactly this size. */
  size: BlobSize;
  /** Left out: application/octet-stream. */
  contentType?: MediaType | null;
}

/** A delete, with the proof that a device of the tenant made it. */
export interface DeleteBody {
  /** Delete tag, 32 bytes. */
  sig?: Base64 | null;
}

/** A move: the target bin, and the item's tag there. */
export interface ReconcileBody {
  binId: BinId;
  /** The version that `sig` was made over. */
  version: Count;
  /** Item tag with the new bin, 32 bytes. */
  sig: Base64;
}

/** A new bin. */
export interface BinCreateBody {
  id: BinId;
  /** Left out: the id in lower case, `_` as `-`. */
  slug?: BinSlug | null;
  /** Opaque to the server, at most 4 KiB. */
  meta?: Base64 | null;
}

/** Changes of a bin; omitted fields stay as they are. */
export interface BinPatchBody {
  slug?: BinSlug;
  /** At most 4 KiB; null removes it. */
  meta?: Base64 | null;
}

/** Options of deleting a bin. */
export interface BinDeleteBody {
  /** True: also deletes the items in it. */
  force?: boolean;
}

/** The first device, which claims the tenant. */
export interface BootstrapBody {
  name: DeviceName;
  glyph: Glyph;
  /** X25519 public key, 32 bytes. */
  pubkey: Base64;
  /** Left out: the server generates one. */
  deviceId?: Ulid | null;
  /** 32 bytes. */
  deviceCert?: Base64 | null;
  /** Ed25519 public key, 32 bytes; without it there is no recovery by phrase. */
  recoveryPubkey?: Base64 | null;
  /** 32 to 1,024 bytes; returned in the reply and not stored. */
  wrappedMasterKey?: Base64 | null;
  /** If the server requires one: BOOTSTRAP_TOKEN, or the token from signup. */
  claimToken?: (string & tags.MaxLength<256>) | null;
}

/** Changes of a device; omitted fields stay as they are. */
export interface DevicePatchBody {
  name?: DeviceName;
  glyph?: Glyph;
  /** Device certificate, 32 bytes; null removes it. */
  cert?: Base64 | null;
}

/** Opens a pairing session; sent by the existing device. */
export interface PairInitBody {
  /** The wire code. */
  code: Words;
  /** X25519 public key of this session, 32 bytes. */
  epk: Base64;
}

/** Requests, with the code, the key of a pairing session. */
export interface PairFetchEpkBody {
  code: Words;
}

/** The new device requests to join; the reply waits for the existing device. */
export interface PairFetchNpkBody {
  code: Words;
  deviceId?: Ulid | null;
  host?: Host | null;
  /** X25519 public key, 32 bytes. */
  pubkey: Base64;
  name: DeviceName;
  glyph: Glyph;
  /** 32 bytes. */
  attestation: Base64;
  /** Required if an account password is set. */
  passwordTicket?: (string & tags.MaxLength<256>) | null;
  /** True ends the session that the same key has requested to join: the user of the new device has stopped. */
  withdraw?: boolean;
}

/** Either the wrapped master key or a rejection. */
export interface PairWrapBody {
  code: Words;
  /** The master key sealed to the new device, 32 to 1,024 bytes. */
  wrappedMasterKey?: Base64 | null;
  /** 32 bytes. */
  deviceCert?: Base64 | null;
  /** 32 bytes. */
  confirmation?: Base64 | null;
  /** True ends the session; then there is no wrap. */
  reject?: boolean;
}

/** A device without a valid token requests a challenge. */
export interface ReauthChallengeBody {
  deviceId: Ulid;
}

/** The answer to that challenge, for a new token. */
export interface ReauthBody {
  deviceId: Ulid;
  challengeId: Ulid;
  /** 32 bytes. */
  answer: Base64;
}

/** Sets the account password, or replaces it. */
export interface PasswordSetBody {
  password: string & tags.MinLength<1> & tags.MaxLength<1024>;
  /** Required once a password is set. */
  currentPassword?: (string & tags.MaxLength<1024>) | null;
}

/** Removes the account password. */
export interface PasswordRemoveBody {
  currentPassword: string & tags.MinLength<1> & tags.MaxLength<1024>;
}

/** Proves the account password, for a ticket. */
export interface PasswordVerifyBody {
  password: string & tags.MinLength<1> & tags.MaxLength<1024>;
  /** Binds the ticket to this device key, 32 bytes. */
  pubkey?: Base64 | null;
}

/** A new device, authorized by the recovery key, which is derived from the phrase. */
export interface RecoverBody {
  challengeId: Ulid;
  /** Ed25519 signature, 64 bytes. */
  signature: Base64;
  deviceId: Ulid;
  host: Host;
  /** X25519 public key, 32 bytes. */
  pubkey: Base64;
  /** 32 bytes. */
  deviceCert: Base64;
  name: DeviceName;
  glyph: Glyph;
  passwordTicket?: (string & tags.MaxLength<256>) | null;
}

/** Client frames (reference, Sockets). */
export interface HelloFrame {
  type: 'hello';
  since: Count;
  epoch?: string | null;
  acks?: boolean;
}

/** Everything whose keys shape B spells in snake_case: bodies, and the lists in them; not maps keyed by device id. */
export type SpelledBody =
  | ItemBodyB
  | WrappedKeyBody
  | BatchBody
  | UploadBodyB
  | DeleteBody
  | ReconcileBody
  | BinCreateBody
  | BinPatchBody
  | BinDeleteBody
  | BootstrapBody
  | DevicePatchBody
  | PairInitBody
  | PairFetchEpkBody
  | PairFetchNpkBody
  | PairWrapBody
  | ReauthChallengeBody
  | ReauthBody
  | PasswordSetBody
  | PasswordRemoveBody
  | PasswordVerifyBody
  | RecoverBody
  | SignupBody
  | TestTenantBody;
