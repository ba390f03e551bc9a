/**
 * The exports of the client library on every platform; `node.ts` and `browser.ts` add their own. What is not exported
 * here may change at any time.
 */
export { Device, type DeviceOptions } from './device.js';
export { prepareClaim, prepareRecovery, recover } from './enrol.js';
export type { AskPassword, Claim, NewDevice, RecoverRequest, Recovery } from './enrol.js';
export { join, type JoinApproval, type JoinRequest, type PairingOffer } from './pairing.js';
export {
  ApiError,
  ClientError,
  isTransient,
  isRevoked,
  isUndecided,
  NetworkError,
  PairingError,
  ProtocolError,
  QueuedError,
  UncertifiedDeviceError,
  type ClientFailure,
  type PairingFailure,
  type ProtocolFault,
  type Uncertified,
} from './errors.js';
export { StoreError, type StoreFault } from './store/error.js';
export { CryptoRefusal, type RefusalReason } from '../crypto/refusal.js';
export { reasonOf, REASONS, type HiddenReason, type Reason } from './reasons.js';
export type {
  BinLabel,
  BinView,
  DeviceEvents,
  EventName,
  ItemView,
  ConnectionState,
  Listener,
  Named,
  RewrapProgress,
} from './events.js';
export type { DeviceStatus } from './device-status.js';
export { QUERY_LIMIT_MAX, SEARCHED } from './query.js';
export type { QueryChange, QueryFilter, QueryUpdate, QueryWindow } from './query.js';
export type { QuerySubscription } from './live-query-index.js';
export type { Subscription } from './list-subscriptions.js';
export { SavableIdentity as Identity } from './identity.js';
export type { Identity as IdentityFields, IdentityJson, Token } from './identity.js';
export type { HiddenItem } from './item-reader.js';
export type { PutRequest } from './writer.js';
export type { DeviceEntry, DownloadUrl, Me, Stored } from './replies.js';
export { bytesSource, fileSource } from './blobs/source.js';
export type { BlobProgress, BlobReadOptions, BlobSource, SourceIdentity, TransferOptions } from './blobs/source.js';
export type { BegunUpload } from './blobs/begun.js';
export type { ChunkPlace, KeptChunk } from './blobs/chunk-place.js';
export { holdsFile, PAYLOAD_INLINE_MAX, PayloadError } from './payloads/shapes.js';
export type { Fetch, OpenSocket, Platform, SocketEvents, SocketPort } from './platform.js';
export { MemoryStore } from './store/store.js';
export type { Batch, Cursor, Entry, Held, KeptUpload, Pending, QuarantineReason, Store } from './store/store.js';
export { ArchiveWriter, isArchive, readArchive, type ByteSink, type ByteSource } from './archive/archive.js';
export { ArchiveError, type ArchiveFault, type ArchivedBin, type ArchivedItem } from './archive/records.js';
export type { ArchiveManifest, ArchiveRecord } from './archive/records.js';
export type { LevelStore } from './store/level-store.js';
export type { OpenedStore, StoreRepair } from './store/open.js';
export type { StoreOwner } from './store/records.js';
export { fingerprintOfMaster } from '../crypto/fingerprint.js';
export { phraseSeed } from '../crypto/master-key.js';
export { PAYLOAD_DEPTH_MAX, type JsonObject } from '../crypto/payload.js';
export type { KeyPair, Sodium } from '../crypto/sodium.js';
export type { Clock, Timer } from '../protocol/clock.js';
export type { ContentType, LiveItem } from '../protocol/item.js';
export type { Glyph } from '../protocol/requests.js';
