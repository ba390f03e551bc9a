/** The client library for browsers, as the package gives it: `@service/server/client`. What is not named here may change at any time. */
export { Device, type DeviceOptions } from './device.js';
export {
  prepareClaim,
  prepareRecovery,
  recover,
  type AskPassword,
  type Claim,
  type NewDevice,
  type RecoverRequest,
  type Recovery,
} from './enrol.js';
export { join, type JoinApproval, type JoinRequest, type PairingOffer } from './pairing.js';
export {
  ApiError,
  ClientError,
  isPassing,
  isRevoked,
  isUndecided,
  NetworkError,
  PairingError,
  ProtocolError,
  QueuedError,
  UncertifiedDeviceError,
  type PairingFailure,
  type Uncertified,
} from './errors.js';
export { StoreError, type StoreFault } from './store-error.js';
export { CryptoRefusal, type RefusalReason } from '../crypto/refusal.js';
export type { DeviceEvents, EventName, ItemView, Listener } from './events.js';
export type { Identity, Token } from './identity.js';
export type { BinView } from './bins.js';
export type { HiddenItem } from './library.js';
export type { PutRequest } from './writer.js';
export type { DeviceEntry, Me, Stored } from './replies.js';
export type { Fetch, OpenSocket, Platform, SocketEvents, SocketPort } from './platform.js';
export type { Cursor } from './cursor.js';
export {
  MemoryStore,
  type Batch,
  type Entry,
  type Held,
  type Pending,
  type QuarantineReason,
  type Store,
} from './store.js';
export type { LevelStore } from './level-store.js';
export type { OpenedStore, StoreRepair } from './store-open.js';
export type { StoreOwner } from './store-records.js';
export type { JsonObject } from '../crypto/payload.js';
export type { KeyPair, Sodium } from '../crypto/sodium.js';
export type { Clock, Timer } from '../protocol/clock.js';
export type { ContentType, LiveItem } from '../protocol/item.js';
export type { Glyph } from '../protocol/requests.js';
export { browserPlatform } from './browser-platform.js';
export { openBrowserStore, type OpenedBrowserStore } from './browser-store.js';
