/**
 * The messages between pages, the service worker and the engine. The engine holds the device: one worker in one tab,
 * for all tabs of this origin (see `engine/main.ts`). Everything else is its client over a `BroadcastChannel`.
 *
 * A client calls functions (`Calls`), watches values (`Topics`) and reads bytes (`Streams`). Everything crosses as a
 * structured clone: plain objects, bytes, `File`. Times are ms, sizes are bytes.
 */
import type { Account } from '../../import/account.js';
import type { ForeignProgram } from '../../import/entries.js';
import type { ContentType } from '../../protocol/item.js';
import type { JsonObject } from '../../crypto/payload.js';
import type { ImportCounts } from '../../sdk/archive/importer.js';
import type { Uncertified } from '../../sdk/errors.js';
import type { ConnectionState, ItemView } from '../../sdk/events.js';
import type { HiddenItem } from '../../sdk/item-reader.js';
import type { DeviceEntry, Me } from '../../sdk/replies.js';
import type { ReaderRequest } from '../reader/messages.js';

/** Channel on which the leading engine and the clients announce themselves. */
export const ANNOUNCEMENTS = 'service-web';
/** Channel between the engine and one client; also the name of the lock that the client holds while it lives. */
export const channelOf = (client: string): string => `${ANNOUNCEMENTS}:${client}`;

/** How the identity in this browser is protected. */
export type LockKind = 'none' | 'passphrase' | 'passkey';

/** A passkey that opens this browser's identity (WebAuthn, extension `prf`). */
export interface PasskeyRef {
  readonly credentialId: Uint8Array;
  readonly salt: Uint8Array;
}

/** A lock to be set. */
export type NewLock =
  | { readonly kind: 'none' }
  | { readonly kind: 'passphrase'; readonly passphrase: string }
  | { readonly kind: 'passkey'; readonly passkey: PasskeyRef; readonly secret: Uint8Array };

/** What opens a lock. */
export type Opener = { readonly passphrase: string } | { readonly secret: Uint8Array };

/** The state of this browser. */
export type Phase =
  | { readonly phase: 'starting' }
  /** No device in this browser yet. `claimed` null: not known yet, or the server does not answer. */
  | { readonly phase: 'empty'; readonly claimed: boolean | null; readonly problem: Failure | null }
  | { readonly phase: 'locked'; readonly kind: Exclude<LockKind, 'none'>; readonly passkey: PasskeyRef | null }
  | { readonly phase: 'open' }
  /** Another device has revoked this one. Its data can be read until `forget`. */
  | { readonly phase: 'revoked' }
  /** The local store cannot be used (`StoreError`, or no libsodium). `retry` tries again. */
  | { readonly phase: 'failed'; readonly problem: Failure };

/** An error as data. `code`: see the reference (Errors, The client library), or the `reason` of a `CryptoRefusal`. */
export interface Failure {
  readonly name: string;
  readonly code: string;
  readonly message: string;
}

/** An error as data; its message holds no secret (the reference, The client library, Errors). */
export function failureOf(error: unknown): Failure {
  if (typeof error !== 'object' || error === null) return { name: 'Error', code: 'internal', message: String(error) };
  const { name, message, code, reason } = error as Record<string, unknown>;
  const known = typeof code === 'string' ? code : typeof reason === 'string' ? reason : 'internal';
  return {
    name: typeof name === 'string' ? name : 'Error',
    code: known,
    message: typeof message === 'string' ? message : '',
  };
}

/** The open device, as its status line and settings show it. */
export interface DeviceInfo {
  readonly deviceId: string;
  readonly name: string;
  readonly serverUrl: string;
  readonly fingerprint: string;
  readonly masterFingerprint: string;
  readonly connection: Pick<ConnectionState, 'state'>;
  /** Changes that the server does not have yet. `since`: when the oldest was made; null: none waits. */
  readonly waiting: { readonly count: number; readonly since: number | null };
  /** True: this device has everything that the server has; null: not known in this run. */
  readonly complete: boolean | null;
  readonly hidden: number;
  /** Uncertified devices: nothing is written before they are certified or revoked. */
  readonly uncertified: readonly Uncertified[];
  /** Items that the server lost when it was restored to an older state. */
  readonly orphaned: number;
  readonly halted: Failure | null;
  readonly lock: { readonly kind: LockKind; readonly afterMinutes: number | null };
}

/** A bin in the side bar. `count`: items on this device. */
export interface BinRow {
  readonly id: string;
  /** Empty: it has no readable name. */
  readonly name: string;
  readonly emoji: string;
  readonly count: number;
}

export interface DeviceRow extends Pick<DeviceEntry, 'id' | 'name' | 'glyph' | 'online' | 'pairedAt' | 'lastSeenAt'> {
  readonly own: boolean;
  readonly state: 'active' | 'revoked';
  /** False: none of the user's devices has certified it. */
  readonly certified: boolean;
  /** True for an active device that was revoked before: it can only be revoked again. */
  readonly wasRevoked: boolean;
  /** Null for a device without a readable key. */
  readonly fingerprint: string | null;
}

/** An item as shown in a list. Never holds a secret. */
export interface ItemRow extends Pick<ItemView, 'id' | 'binId' | 'type' | 'ts' | 'pending'> {
  /** One line. Empty: it has none. */
  readonly title: string;
  /** A second line: site, user, size and so on. */
  readonly detail: string;
  /** The sending device's id, as reported by the server. */
  readonly sender: string;
  /** The file that is the item's content; null: no file. */
  readonly file: { readonly mime: string; readonly size: number | null; readonly name: string } | null;
  /** The text that copying gives; null: `copyText` reads it (secrets, long texts), or there is none. */
  readonly copy: string | null;
  /** Address of a link, checked to be http or https. */
  readonly href: string | null;
  /** Time at which the item is deleted, unless undone; null: no deletion is pending. */
  readonly removeAt: number | null;
}

/** A whole item for its own view. `payload` holds secrets. */
export interface ItemDetail extends ItemRow {
  readonly payload: JsonObject;
  /** The payload's long texts are cut: `wholePayload` reads them. */
  readonly cut: boolean;
  readonly version: number;
}

export interface ListParams {
  readonly binId?: string;
  readonly types?: readonly ContentType[];
  readonly text?: string;
  readonly offset: number;
  /** At most 200. */
  readonly limit: number;
}

export interface ListPage {
  readonly items: readonly ItemRow[];
  readonly offset: number;
  readonly total: number;
}

/** An upload. Those of one batch are sent one after the other. */
export interface Upload {
  readonly id: string;
  readonly name: string;
  readonly size: number;
  readonly done: number;
  /** Bytes a second over the last seconds. */
  readonly speed: number;
  readonly state: 'waiting' | 'sending' | 'failed';
  /** The file was sent, and its item is one of the changes in the outbox (`DeviceInfo.waiting`). */
  readonly queued: boolean;
  /** Why it failed; null: nothing that lasts, and it is tried again by itself. */
  readonly problem: Failure | null;
}

/** A notice for the user, shown until it is dismissed. */
export interface Notice {
  readonly id: string;
  readonly kind: 'rejected' | 'untagged_delete' | 'repaired_store' | 'missing' | 'reset' | 'same_name' | 'problem';
  /** The item's title, where there is one. */
  readonly title: string;
  readonly problem: Failure | null;
  readonly at: number;
  /** A refused change that can be written again: `resend`. */
  readonly canResend: boolean;
  /** The refused change makes an item: there is nothing that it would overwrite. */
  readonly isNew: boolean;
}

/** How a refused change is written again: over the other device's version of the item, or as a new item. */
export type ResendHow = 'overwrite' | 'copy';

/** Becoming a device. */
export type Enrolment =
  | { readonly step: 'idle' }
  | { readonly step: 'working' }
  /** Claim: the twelve words are shown; nothing is registered yet. */
  | { readonly step: 'phrase'; readonly words: readonly string[] }
  /** Join: the digits and picture to be compared, while the other device decides. */
  | { readonly step: 'compare'; readonly digits: string }
  /** The account password is required: `enrolPassword`. `wrong`: the one given before was wrong. */
  | { readonly step: 'password'; readonly wrong: boolean }
  /** `undecided`: `enrolRetry` continues the same attempt. */
  | { readonly step: 'failed'; readonly problem: Failure; readonly undecided: boolean };

/** Pairing another device, on this one. */
export type Offer =
  | { readonly step: 'idle' }
  | { readonly step: 'working' }
  | { readonly step: 'words'; readonly words: string; readonly link: string; readonly expiresAt: number }
  | { readonly step: 'compare'; readonly name: string; readonly digits: string }
  | { readonly step: 'joined'; readonly id: string; readonly name: string }
  | { readonly step: 'failed'; readonly problem: Failure };

/**
 * Shares that wait until the user confirms having made them, because any page can send such a form. `next`: the oldest
 * ones, while a device is open. Titles are one line; `files` are names.
 */
export interface SharedWaiting {
  readonly count: number;
  readonly next: readonly { readonly id: string; readonly title: string; readonly files: readonly string[] }[];
}

/** Watched values: parameters and value of each. */
export interface Topics {
  phase: { params: null; value: Phase };
  /** Null while no device is open. */
  info: { params: null; value: DeviceInfo | null };
  bins: { params: null; value: readonly BinRow[] };
  devices: { params: null; value: readonly DeviceRow[] };
  list: { params: ListParams; value: ListPage };
  /** Null: there is no such item, or no device is open. */
  item: { params: { readonly id: string }; value: ItemDetail | null };
  uploads: { params: null; value: readonly Upload[] };
  /** Null while nothing is written; the file is read and verified first. */
  importing: { params: null; value: Importing | null };
  notices: { params: null; value: readonly Notice[] };
  enrolment: { params: null; value: Enrolment };
  offer: { params: null; value: Offer };
  shared: { params: null; value: SharedWaiting };
}

/** A new item, or new content of one. */
export interface PutParams {
  /** Of a new item: `newItemId` (`random.ts`). The client chooses it, so that the call can be repeated. */
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType;
  readonly payload: JsonObject;
  /** Of an item that there is: its `ts` as the person saw it. What another device has written since is not overwritten. */
  readonly seen?: number;
}

/** Result of an import: numbers of items by outcome, and of bins created. See `ImportCounts` of the SDK. */
export interface Imported extends Omit<ImportCounts, 'refused'> {
  readonly refused: number;
  /** Ended by `importStop`: importing the same file again continues there. */
  readonly stopped: boolean;
}

/** What the export of another program would become. */
export interface ForeignPreview extends Account {
  readonly step: 'read';
  readonly types: readonly { readonly type: ContentType; readonly items: number }[];
  /** By the bin's name; empty: the default bin. */
  readonly into: readonly { readonly name: string; readonly items: number }[];
  /** Items that are in this vault already. */
  readonly here: number;
}

/** `locked`: it needs a password, or a KeePass database its key file; `wrong`: those given do not open it. */
export type ForeignRead =
  | ForeignPreview
  | { readonly step: 'locked'; readonly program: ForeignProgram; readonly wrong: boolean };

/** Progress of an import, items. */
export interface Importing {
  readonly done: number;
  readonly total: number;
}

/** Functions. Each rejects with a `Failure`. */
export interface Calls {
  // Becoming a device. The topic `enrolment` reports progress; on success the phase becomes `open`.
  claim(params: { readonly name: string; readonly claimToken: string | null }): void;
  join(params: { readonly name: string; readonly words: string }): void;
  recover(params: { readonly name: string; readonly phrase: string }): void;
  /** Those of the words that no list of words has: they are misspelt. */
  misspelt(words: readonly string[]): readonly string[];
  enrolPassword(password: string | null): void;
  /** Registers the keys: after the words of a claim were shown and the user has repeated some, or after a failure. */
  enrolRetry(): void;
  enrolCancel(): void;
  /** Asks the server whether it is claimed; the phase `empty` has the answer. */
  askClaimed(): void;

  // Items.
  /** Resolves when the change is stored on this device; a refusal by the server becomes a notice. */
  put(params: PutParams): { readonly id: string };
  move(params: { readonly id: string; readonly binId: string }): void;
  /** Deletes in 8 s unless `undoRemove` is called before; at the next start if the tab is closed meanwhile. */
  remove(id: string): void;
  undoRemove(id: string): void;
  /** The text that copying an item gives: a password's secret, a whole text. */
  copyText(id: string): string;
  wholePayload(id: string): JsonObject;
  /** Bytes of a file's content, as the store has it; null: the server does not report it. */
  contentSize(id: string): number | null;
  /** Makes an item of each file; `uploads` has the progress. */
  upload(params: { readonly binId: string; readonly files: readonly File[] }): void;
  uploadCancel(id: string): void;
  uploadRetry(id: string): void;
  /** The items that are not shown. */
  hidden(): readonly HiddenItem[];
  /** Puts the shares with these ids into the inbox, or drops them. */
  sharedTake(params: { readonly ids: readonly string[]; readonly how: 'put' | 'drop' }): void;

  // Bins.
  binCreate(params: { readonly name: string; readonly emoji: string }): { readonly id: string };
  binRename(params: { readonly id: string; readonly name: string; readonly emoji: string }): void;
  binRemove(id: string): void;

  // Devices.
  offer(): void;
  offerAnswer(params: { readonly same: boolean; readonly digits: string }): void;
  offerCancel(): void;
  /** Reads the list from the server again; the topic `devices` has it. */
  devicesRefresh(): void;
  deviceRename(params: { readonly id: string; readonly name: string }): void;
  deviceRevoke(id: string): void;
  deviceCertify(params: { readonly id: string; readonly fingerprint: string }): void;

  // Account and storage.
  passwordExists(): boolean;
  passwordSet(params: { readonly password: string; readonly current: string | null }): void;
  passwordRemove(current: string): void;
  storage(): Me['server'];
  /** Imports an archive of this service. `phrase`: the twelve words that it was written with. */
  importArchive(params: { readonly file: File; readonly phrase: string }): Imported;
  /**
   * Reads the export of another program, and keeps it for `foreignImport`. `id`: chosen by the client. `password` null:
   * none was typed yet. A refusal's message is for the user.
   */
  foreignRead(params: ReaderRequest & { readonly id: string }): ForeignRead;
  /** Imports what was read under this id. */
  foreignImport(id: string): Imported;
  /** Forgets what was read under this id, and ends the reading; an import that runs goes on. */
  foreignDrop(id: string): void;
  /** Ends the running import, after the writes under way. */
  importStop(): void;
  /** After the server was restored to an older state: writes the lost items again, or drops them. */
  orphans(how: 'republish' | 'discard'): void;
  resync(): void;
  dismiss(noticeId: string): void;
  /** Writes a refused change again. */
  resend(params: { readonly noticeId: string; readonly how: ResendHow }): void;

  // Lock.
  lockSet(lock: NewLock): void;
  lockAfter(minutes: number | null): void;
  lock(): void;
  unlock(opener: Opener): void;
  /** Records the user's activity: restarts the lock's time limit. */
  touched(): void;

  // The device as a whole.
  /** Connects now instead of after the wait. */
  reconnect(): void;
  retry(): void;
  /** Revokes this device, then removes everything of it from this browser. Nothing is done if revoking fails. */
  signOut(): void;
  /** Removes everything from this browser, without notifying the server. */
  forget(): void;
}

/** Calls that may be repeated: the next engine gets those that the last one did not answer. */
export const REPEATABLE: ReadonlySet<keyof Calls> = new Set([
  'put',
  'move',
  'remove',
  'undoRemove',
  'copyText',
  'wholePayload',
  'hidden',
  'deviceRename',
  'passwordExists',
  'storage',
  'devicesRefresh',
  'dismiss',
  'touched',
  'askClaimed',
  'reconnect',
  'lock',
  'lockAfter',
]);

/** Bytes, pulled by their reader chunk by chunk. */
export interface Streams {
  /** The plaintext of a file from byte `from` on; each chunk is authenticated. */
  content: { readonly id: string; readonly from: number };
  /** The encrypted archive of everything, to be read with `phrase`. */
  archive: { readonly phrase: string };
}

export type CallName = keyof Calls;
export type TopicName = keyof Topics;
export type StreamName = keyof Streams;

/** From a client, on its own channel. `id` is chosen by the client and repeated in the answer. */
export type ToEngine =
  | { readonly kind: 'call'; readonly id: number; readonly name: CallName; readonly params: unknown }
  | { readonly kind: 'watch'; readonly id: number; readonly topic: TopicName; readonly params: unknown }
  | { readonly kind: 'read'; readonly id: number; readonly stream: StreamName; readonly params: unknown }
  /** Requests the next chunk of a stream. */
  | { readonly kind: 'pull'; readonly id: number }
  /** Ends a watch or a stream. */
  | { readonly kind: 'end'; readonly id: number };

/** From the engine, on the client's channel. */
export type ToClient =
  /** The engine listens on this channel from now on. `engine`: random for each engine, so that a change is detected. */
  | { readonly kind: 'welcome'; readonly id: 0; readonly engine: string }
  | { readonly kind: 'result'; readonly id: number; readonly value: unknown }
  | { readonly kind: 'failed'; readonly id: number; readonly problem: Failure }
  | { readonly kind: 'value'; readonly id: number; readonly value: unknown }
  /** `bytes` null: the stream has ended and was complete. */
  | { readonly kind: 'chunk'; readonly id: number; readonly bytes: Uint8Array | null };

/**
 * On `ANNOUNCEMENTS`. `leads`: the sender is the engine from now on, and all clients must announce themselves to it.
 * `here`: a client announces itself.
 */
export type Announcement = { readonly kind: 'leads' } | { readonly kind: 'here'; readonly client: string };
