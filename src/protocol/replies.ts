/**
 * Replies as the wire has them, keys in camelCase (shape B spells them in snake_case: reference, HTTP, The two shapes).
 * The reference's schemas are generated from these types, and the front's ports promise them. `B` is how bytes stand:
 * text on the wire, raw in the server until a reply is encoded (src/protocol/shape.ts).
 */
import type { tags } from 'typia';
import type { BinId, BinSlug, Count, Glyph, Millis, Ulid } from './requests.js';

/** Bytes as text: base64url without padding in shape A, standard base64 with padding in shape B. */
export type Bytes = string & tags.JsonSchemaPlugin<{ 'x-bytes': true }>;

/** Done. */
export interface Ok {
  readonly ok: true;
}

/** What the new owner of a tenant is told, once: the server keeps the hash of the claim token only. */
export interface SignedUp {
  readonly slug: string;
  /** Where the tenant is reached. */
  readonly url: string;
  /** Claims the tenant, once. 43 characters of base64url. */
  readonly claimToken: string;
  /** Where it is paid for; until then the tenant is `pending`. Left out where it costs nothing. */
  readonly checkoutUrl?: string;
}

/** A test tenant that was just made (reference, Load tests). */
export interface TestTenant {
  readonly slug: string;
  /** Where the tenant is reached. */
  readonly url: string;
  readonly tenantId: string;
  /** A token for each device, in the order of the request. */
  readonly tokens: readonly string[];
}

/** The test tenants that there are, oldest first. */
export interface TestTenantList {
  readonly tenants: readonly {
    readonly slug: string;
    /** Milliseconds since 1970. */
    readonly createdAt: number;
  }[];
}

/** A part of a test tenant is removed, or all of it. */
export interface TestTenantRemoval {
  /** False: there is more, and the same call goes on. */
  readonly removed: boolean;
}

/** The payment provider's event is durable, or is none of ours. */
export interface Received {
  readonly received: true;
}

/** Where a tenant's bills and means of payment are. */
export interface Portal {
  /** At the payment provider; short-lived. */
  readonly url: string;
}

/** What a refusal says. */
export interface ErrorFields {
  /** Stable; programs match on it. */
  readonly code: string;
  /** For people; it may change. */
  readonly message: string;
  /** Shape B only: where the reference describes the code. */
  readonly hint?: string;
  /** What helps a program; which fields there are depends on the code, see the page on errors. */
  readonly details?: ErrorDetailsReply;
}

/** All fields that `details` of any code may have. */
export interface ErrorDetailsReply {
  /** Schema errors and others: the field that is wrong, as the shape spells it. */
  readonly path?: string;
  /** Schema errors: what the field must be. */
  readonly rule?: string;
  /** Ids of devices that the item's keys lack. */
  readonly missingDevices?: readonly Ulid[];
  /** The item's stored version; 0 where there is none. */
  readonly version?: Count;
  /** The stored `ts`; null where it is not known any more. */
  readonly ts?: Count | null;
  /** The bin that does not exist. */
  readonly binId?: string;
  /** The largest body that the endpoint takes, bytes. */
  readonly maxBytes?: Count;
}

/** Every answer from 400 upwards. */
export interface ErrorReply {
  readonly error: ErrorFields;
}

// Bins (reference, HTTP, Bins).

/** A bin. Times are milliseconds since 1970. */
export interface Bin<B = Bytes> {
  readonly id: BinId;
  readonly slug: BinSlug;
  /** Opaque to the server, at most 4 KiB; our clients keep name and emoji in it. */
  readonly meta: B | null;
  readonly createdAt: Millis;
  readonly updatedAt: Millis;
  /** Live items. */
  readonly itemCount: Count;
}

/** The bin as it is now. */
export interface BinReply<B = Bytes> {
  readonly bin: Bin<B>;
}

/** All bins of the tenant. */
export interface BinList<B = Bytes> {
  /** Oldest first; one that is being deleted is listed until it is gone. */
  readonly bins: readonly Bin<B>[];
}

// Blobs (reference, Blobs).

/** Names of headers, lower case, and their values. */
export interface SentHeaders {
  readonly [name: string]: string;
}

/** Room for a blob is reserved. */
export interface BlobUpload {
  /** What the item names it by. */
  readonly blobRef: string;
  /** Takes one PUT of exactly the declared size and type. */
  readonly url: string;
  readonly expiresAt: Millis;
  /** What the client must send with the PUT. */
  readonly headers: SentHeaders;
}

/** One PUT of an upload. */
export interface UploadPart {
  /** Position of its first byte in the upload. */
  readonly from: Count;
  /** Bytes. */
  readonly size: Count;
  readonly url: string;
  /** What the client must send with the PUT. */
  readonly headers: SentHeaders;
}

/** Where an upload stands. */
export interface OpenUploadReply {
  /** What the item names it by. */
  readonly blobRef: string;
  /** Bytes, as declared. */
  readonly size: Count;
  /** So many bytes are kept and need not be sent again; `size`: the upload is whole. */
  readonly offset: Count;
  /** When the URLs of the parts expire. */
  readonly expiresAt: Millis;
  /** What to send next, in order; empty where the upload is whole. */
  readonly parts: readonly UploadPart[];
}

/** Where a blob can be fetched from. */
export interface BlobDownload {
  /** Takes GET and HEAD, with `Range`, until it expires. */
  readonly url: string;
  readonly expiresAt: Millis;
  /** Bytes. */
  readonly size: Count;
}

// Devices (reference, Pairing).

/** A device. `pairedAt` is milliseconds since 1970. */
export interface Device<B = Bytes> {
  readonly id: Ulid;
  readonly name: string;
  readonly glyph: Glyph;
  /** X25519 public key, 32 bytes. */
  readonly pubkey: B;
  readonly pairedAt: Millis;
}

/** A device with what only the tenant's own devices are told. Times are milliseconds since 1970. */
export interface KnownDevice<B = Bytes> extends Device<B> {
  /** 32 bytes, made with the master key; null for a device of a client that makes none. */
  readonly cert: B | null;
  readonly revokedAt: Millis | null;
  /** Noted once a minute at most. */
  readonly lastSeenAt: Millis | null;
}

/** A device in the list. */
export interface ListedDevice<B = Bytes> extends KnownDevice<B> {
  /** It holds a socket, on any instance. */
  readonly online: boolean;
  /** It is the device that asks. */
  readonly current: boolean;
}

/** All devices of the tenant. */
export interface DeviceList<B = Bytes> {
  /** Oldest first, revoked ones too. */
  readonly devices: readonly ListedDevice<B>[];
}

/** The device as it is now. */
export interface KnownDeviceReply<B = Bytes> {
  readonly device: KnownDevice<B>;
}

/** The first device has claimed the tenant. */
export interface Claimed<B = Bytes> {
  readonly device: Device<B>;
  readonly token: string;
  /** The very bytes that were sent, or null: the server keeps none. */
  readonly wrappedMasterKey: B | null;
}

/** A device was recovered by the phrase. */
export interface Recovered<B = Bytes> {
  readonly device: Device<B>;
  readonly token: string;
}

/** A pairing session is open. */
export interface PairStarted {
  /** Names the session in frames and lists. */
  readonly lookupId: Ulid;
  /** The code as it is compared. */
  readonly code: string;
  readonly expiresAt: Millis;
}

/** What the new device needs to derive the session key. */
export interface PairEpk<B = Bytes> {
  /** The existing device's X25519 public key of this session, 32 bytes. */
  readonly epk: B;
  readonly expiresAt: Millis;
  readonly tenantId: Ulid;
}

/** The existing device has approved. */
export interface Paired<B = Bytes> {
  readonly device: Device<B>;
  readonly token: string;
  /** The master key sealed to the new device: 80 bytes from our clients. */
  readonly wrappedMasterKey: B;
  /** 32 bytes; null where the existing device gave none. */
  readonly deviceCert: B | null;
  /** 32 bytes; null where the existing device gave none. */
  readonly confirmation: B | null;
}

/** The existing device has not answered yet: the same call again goes on waiting. */
export interface PairPending {
  readonly status: 'pending';
}

/** A new device that waits for approval. */
export interface PairRequestFields<B = Bytes> {
  readonly lookupId: Ulid;
  readonly code: string;
  readonly deviceId: Ulid;
  /** The host that the new device dialled, as it says; null where it gave none. */
  readonly host: string | null;
  readonly pubkey: B;
  readonly name: string;
  readonly glyph: Glyph;
  /** 32 bytes. */
  readonly attestation: B;
  readonly expiresAt: Millis;
}

/** New devices that wait for approval. */
export interface PairRequestList<B = Bytes> {
  readonly requests: readonly PairRequestFields<B>[];
}

/** What only the holder of the device key can answer; it counts once. */
export interface ReauthChallengeReply<B = Bytes> {
  readonly challengeId: Ulid;
  /** A sealed box to the device's key; see the page on cryptography. */
  readonly challenge: B;
  readonly expiresAt: Millis;
}

/** A token of the device. */
export interface TokenReply {
  readonly token: string;
  readonly expiresAt: Millis;
}

/** What the recovery key signs; it counts once. */
export interface RecoveryChallengeReply<B = Bytes> {
  readonly challengeId: Ulid;
  /** 32 random bytes. */
  readonly challenge: B;
  readonly tenantId: Ulid;
}

/** A right of one use. */
export interface TicketReply {
  readonly ticket: string;
  readonly expiresAt: Millis;
}

// Password (reference, Pairing).

/** Whether an account password is set. */
export interface PasswordExists {
  readonly exists: boolean;
}

/** The password was right: a ticket that the next call shows. */
export interface PasswordTicketReply extends TicketReply {
  readonly ok: true;
}

// Status and identity (reference, HTTP, Status and identity).

/** The process lives. */
export interface Health {
  readonly ok: true;
  /** The server's version. */
  readonly version: string;
  /** The commit that it was built from: 12 hex digits, with `-dirty` where sources were changed; or `unknown`. */
  readonly commit: string;
}

/** Whether new sockets may come to this instance. False, with 503, while it is being drained. */
export interface Ready {
  readonly ready: boolean;
}

interface StatusFields {
  /** The server's version. */
  readonly version: string;
  readonly mode: 'single' | 'multi';
  readonly tenantId: Ulid;
  /** Names the history that versions belong to. */
  readonly epoch: string;
}

/** The server and its database are up. */
export interface StatusUp extends StatusFields {
  readonly ok: true;
  readonly database: 'up';
  /** A device has claimed the tenant. */
  readonly claimed: boolean;
}

/** A refusal that still says what is known. */
export interface StatusDown extends StatusFields {
  readonly ok: false;
  readonly database: 'down';
  readonly claimed: null;
  readonly error: ErrorFields;
}

/** Where the tenant's history stands. */
export interface HistoryFields {
  readonly headVersion: Count;
  /** The sum of the versions of all live items at the head. */
  readonly versionSum: Count;
  readonly epoch: string;
  readonly tenantId: Ulid;
}

/** The server and the figures of the tenant. */
export interface ServerInfo extends HistoryFields {
  readonly version: string;
  readonly region: string;
  /** Bytes of ciphertext, keys and blobs. */
  readonly storageUsedBytes: Count;
  /** 0: unlimited. */
  readonly storageCapBytes: Count;
  /** Live items. */
  readonly itemCount: Count;
  /** Devices that are not revoked. */
  readonly deviceCount: Count;
  /** Devices with a socket, on any instance. */
  readonly devicesOnline: Count;
}

/** The caller and its tenant. The history is given at both levels. */
export interface Me extends HistoryFields {
  readonly device: { readonly id: Ulid; readonly name: string; readonly glyph: Glyph; readonly pairedAt: Millis };
  readonly server: ServerInfo;
}
