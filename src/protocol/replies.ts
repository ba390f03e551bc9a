/**
 * Replies as on the wire, keys in camelCase (shape B spells them in snake_case: reference, HTTP, The two shapes). The
 * reference's schemas are generated from these types, and the front's ports return them. `B` is the type of bytes: text
 * on the wire, raw in the server until a reply is encoded (src/protocol/shape.ts).
 */
import type { tags } from 'typia';
import type { BinId, BinSlug, Count, Glyph, Millis, Ulid } from './requests.js';

/** Bytes as text: base64url without padding in shape A, standard base64 with padding in shape B. */
export type Bytes = string & tags.JsonSchemaPlugin<{ 'x-bytes': true }>;

/** Done. */
export interface Ok {
  readonly ok: true;
}

/** The reply to the new owner of a tenant. It cannot be repeated: the server keeps only the hash of the claim token. */
export interface SignedUp {
  readonly slug: string;
  /** The tenant's URL. */
  readonly url: string;
  /** Claims the tenant, once. 43 characters of base64url. */
  readonly claimToken: string;
  /** The page of payment; until it is paid the tenant is `pending`. Absent if the tenant is free of charge. */
  readonly checkoutUrl?: string;
}

/** A new test tenant (reference, Load tests). */
export interface TestTenant {
  readonly slug: string;
  /** The tenant's URL. */
  readonly url: string;
  readonly tenantId: string;
  /** A token for each device, in the order of the request. */
  readonly tokens: readonly string[];
}

/** All test tenants, oldest first. */
export interface TestTenantList {
  readonly tenants: readonly {
    readonly slug: string;
    /** Milliseconds since 1970. */
    readonly createdAt: number;
  }[];
}

/** A test tenant was removed, in part or completely. */
export interface TestTenantRemoval {
  /** False: more is left; repeat the call to continue. */
  readonly removed: boolean;
}

/** The payment provider's event is stored, or does not concern this service. */
export interface Received {
  readonly received: true;
}

/** The page of a tenant's bills and means of payment. */
export interface Portal {
  /** At the payment provider; short-lived. */
  readonly url: string;
}

/** The content of a refusal. */
export interface ErrorFields {
  /** Stable; programs match on it. */
  readonly code: string;
  /** For people; it may change. */
  readonly message: string;
  /** Shape B only: the place in the reference that describes the code. */
  readonly hint?: string;
  /** For programs; the fields depend on the code, see the page on errors. */
  readonly details?: ErrorDetailsReply;
}

/** All fields that `details` of any code may have. */
export interface ErrorDetailsReply {
  /** Schema errors and others: the invalid field, as the shape spells it. */
  readonly path?: string;
  /** Schema errors: what the field must be. */
  readonly rule?: string;
  /** Ids of devices for which the item has no key. */
  readonly missingDevices?: readonly Ulid[];
  /** The item's stored version; 0 if there is none. */
  readonly version?: Count;
  /** The stored `ts`; null if it is no longer known. */
  readonly ts?: Count | null;
  /** The bin that does not exist. */
  readonly binId?: string;
  /** The server's clock, if the `ts` of an item is too far ahead of it. */
  readonly serverTime?: Millis;
  /** The largest body or blob that the endpoint accepts, bytes. */
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
  /** Oldest first; a bin that is being deleted is listed until it is gone. */
  readonly bins: readonly Bin<B>[];
}

// Blobs (reference, Blobs).

/** Names of headers, lower case, and their values. */
interface SentHeaders {
  readonly [name: string]: string;
}

/** Room for a blob is reserved. */
export interface BlobUpload {
  /** The blob's name, to which the item refers. */
  readonly blobRef: string;
  /** Accepts one PUT of exactly the declared size and type. */
  readonly url: string;
  readonly expiresAt: Millis;
  /** Headers that the client must send with the PUT. */
  readonly headers: SentHeaders;
}

/** One PUT of an upload. */
export interface UploadPart {
  /** Position of its first byte in the upload. */
  readonly from: Count;
  /** Bytes. */
  readonly size: Count;
  readonly url: string;
  /** Headers that the client must send with the PUT. */
  readonly headers: SentHeaders;
}

/** The state of an upload. */
export interface OpenUploadReply {
  /** The blob's name, to which the item refers. */
  readonly blobRef: string;
  /** Declared size, bytes. */
  readonly size: Count;
  /** Bytes that are stored and need not be sent again; equal to `size` if the upload is complete. */
  readonly offset: Count;
  /** When the URLs of the parts expire. */
  readonly expiresAt: Millis;
  /** What to send next, in order; empty if the upload is complete. */
  readonly parts: readonly UploadPart[];
}

/** The download URL of a blob. */
export interface BlobDownload {
  /** Accepts GET and HEAD, with `Range`, until it expires. */
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

/** A device with the fields that only devices of its tenant see. Times are milliseconds since 1970. */
export interface KnownDevice<B = Bytes> extends Device<B> {
  /** 32 bytes, made with the master key; null if the device has no certificate. */
  readonly cert: B | null;
  readonly revokedAt: Millis | null;
  /** Updated at most once a minute. */
  readonly lastSeenAt: Millis | null;
}

/** A device in the list. */
interface ListedDevice<B = Bytes> extends KnownDevice<B> {
  /** Whether it has a socket, on any instance. */
  readonly online: boolean;
  /** Whether it is the caller. */
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
  /** The bytes of the request, or null; the server does not store them. */
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
  /** The code in canonical form. */
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
  /** 32 bytes; null if the existing device gave none. */
  readonly deviceCert: B | null;
  /** 32 bytes; null if the existing device gave none. */
  readonly confirmation: B | null;
}

/** The existing device has not answered yet; repeat the call to continue waiting. */
export interface PairPending {
  readonly status: 'pending';
}

/** A new device that waits for approval. */
export interface PairRequestFields<B = Bytes> {
  readonly lookupId: Ulid;
  /** The wire code, six words. */
  readonly code: string;
  readonly deviceId: Ulid;
  /** The host that the new device claims to have dialled; null if it gave none. */
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

/** A challenge that only the holder of the device key can answer, once. */
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

/** A challenge for the recovery key to sign, valid once. */
export interface RecoveryChallengeReply<B = Bytes> {
  readonly challengeId: Ulid;
  /** 32 random bytes. */
  readonly challenge: B;
  readonly tenantId: Ulid;
}

/** A ticket that is valid once. */
export interface TicketReply {
  readonly ticket: string;
  readonly expiresAt: Millis;
}

// Password (reference, Pairing).

/** Whether an account password is set. */
export interface PasswordExists {
  readonly exists: boolean;
}

/** The password was right; the next call presents the ticket. */
export interface PasswordTicketReply extends TicketReply {
  readonly ok: true;
}

// Status and identity (reference, HTTP, Status and identity).

/** The process is alive. */
export interface Health {
  readonly ok: true;
  /** The server's version. */
  readonly version: string;
  /** The commit that it was built from: 12 hex digits, with `-dirty` if sources were changed; or `unknown`. */
  readonly commit: string;
}

/** Whether this instance accepts new sockets. False, with 503, while it is being drained. */
export interface Ready {
  readonly ready: boolean;
}

interface StatusFields {
  /** The server's version. */
  readonly version: string;
  readonly mode: 'single' | 'multi';
  readonly tenantId: Ulid;
  /** Identifies the history that versions belong to. */
  readonly epoch: string;
}

/** The server and its database are up. */
export interface StatusUp extends StatusFields {
  readonly ok: true;
  readonly database: 'up';
  /** A device has claimed the tenant. */
  readonly claimed: boolean;
}

/** A refusal with the fields that are still known. */
export interface StatusDown extends StatusFields {
  readonly ok: false;
  readonly database: 'down';
  readonly claimed: null;
  readonly error: ErrorFields;
}

/** The state of the tenant's history. */
interface HistoryFields {
  readonly headVersion: Count;
  /** The sum of the versions of all live items at the head. */
  readonly versionSum: Count;
  readonly epoch: string;
  readonly tenantId: Ulid;
}

/** The server and the figures of the tenant. */
interface ServerInfo extends HistoryFields {
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

/** The caller and its tenant. The history is at both levels. */
export interface Me extends HistoryFields {
  readonly device: { readonly id: Ulid; readonly name: string; readonly glyph: Glyph; readonly pairedAt: Millis };
  readonly server: ServerInfo;
}
