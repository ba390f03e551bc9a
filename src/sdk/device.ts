/**
 * A device: the entry point of an application. It synchronizes with the other devices of its user through a server
 * that it trusts with delivery only (the reference, What is promised).
 */
import { asError } from '../protocol/error-code.js';
import { stretchPassword } from '../crypto/password.js';
import type { JsonObject } from '../crypto/payload.js';
import type { LiveItem } from '../protocol/item.js';
import { Bins } from './bins.js';
import { BegunUploads, type BegunUpload } from './blobs/begun.js';
import type { BlobReadOptions, TransferOptions } from './blobs/source.js';
import { ClientError, isRevoked, REVOKED, type ProtocolError } from './errors.js';
import { Emitter, type EventName, type Listener } from './events.js';
import { SavableIdentity, type Identity } from './identity.js';
import { ItemReader } from './item-reader.js';
import { Outbox } from './outbox.js';
import { offerPairing, type JoinApproval, type PairingOffer } from './pairing.js';
import { holdsFile } from './payloads/shapes.js';
import type { Platform } from './platform.js';
import { readPairRequest } from './replies.js';
import type { DeviceEntry, DownloadUrl, Me, PairRequest, Stored } from './replies.js';
import { fingerprintOfDevice, DeviceList } from './device-list.js';
import { LiveQueryIndex } from './live-query-index.js';
import { DeviceStatusReader, type DeviceStatus } from './device-status.js';
import { MemoryStore, type Store } from './store/store.js';
import type { Frame } from './wire.js';
import { Writer } from './writer.js';
import { DeviceApi } from './api.js';
import { Blobs } from './blobs/download.js';
import type { ChunkPlace } from './blobs/chunk-place.js';
import type { Core } from './core.js';
import { Http } from './http.js';
import { Replica } from './replica.js';
import { RewrapQueue } from './rewrap-queue.js';
import { Sender } from './sender.js';
import { Session } from './session.js';
import { ReconnectingSocket } from './reconnecting-socket.js';
import { Sync } from './sync.js';

/** The parameters of `Device.open`. */
export interface DeviceOptions {
  readonly platform: Platform;
  readonly identity: Identity;
  /** Default: memory. */
  readonly store?: Store;
  /** The device list of an earlier run, from event `devices`: allows writes before the server answers. */
  readonly devices?: readonly DeviceEntry[];
  /**
   * True: changes are stored and not sent before `release`, for a program that first checks whether the server is
   * reachable.
   */
  readonly held?: boolean;
  /** Called with every new identity (a renewed token), which must be stored as a secret. */
  readonly onIdentity?: (identity: SavableIdentity) => void;
  /** Receives background errors, and those of listeners that throw. Required, so that no error is lost. */
  readonly onProblem: (error: Error) => void;
}

/** One device in one program. Created by `Device.open` from the identity of a claim, a pairing or a recovery. */
export class Device {
  /** Bins: list, create, rename, remove. */
  readonly bins: Bins;
  /** The tenant's devices: list, certify. */
  readonly devices: DeviceList;
  private identity: SavableIdentity;
  private readonly emitter: Emitter;
  private readonly parts: Parts;
  private readonly pairListeners = new Set<(request: PairRequest) => void>();
  private readonly lifetime = new AbortController();
  private readonly statusReader: DeviceStatusReader;
  private state: 'open' | 'closed' | 'revoked' = 'open';
  private ended: (error: Error) => void = () => undefined;
  /** From `connect` to the end of the connection; shared by all callers of `connect`. */
  private connecting: Promise<void> | undefined;
  private connected = false;
  /** Reading was stopped, until the program asks for it. */
  private halted = false;

  private constructor(
    private readonly options: DeviceOptions,
    store: Store,
    outbox: Outbox,
  ) {
    const identity = SavableIdentity.of(options.identity);
    this.identity = identity;
    this.emitter = new Emitter(options.onProblem);
    const { emit } = this.emitter;
    this.parts = assemble(
      options,
      { identity, store, outbox, emit, lifetime: this.lifetime.signal },
      {
        onToken: (token) => {
          this.identity = this.identity.withToken(token);
          options.onIdentity?.(this.identity);
        },
        onRevoked: () => this.endRevoked(),
        onFrame: (frame, size) => this.receive(frame, size),
        halt: (error) => this.halt(error),
        refresh: () => this.refresh(),
        epoch: (api) => this.open.sync.epoch(api),
        catchUp: () => this.catchUp(),
      },
    );
    this.bins = this.parts.bins;
    this.devices = this.parts.deviceList;
    this.statusReader = new DeviceStatusReader({
      ...{ ...this.parts.core, items: this.parts.items, deviceList: this.devices, emitter: this.emitter },
      identity: () => this.identity,
      state: () => this.state,
    });
    this.emitter.on('connection', ({ state }) => (this.connected = state === 'connected'));
    if (options.held === true) this.parts.sender.hold('owner');
    this.emitter.on('problem', ({ error }) => options.onProblem(error));
  }

  /**
   * Opens a device from its identity and store. Nothing is sent before the first call. Throws `ClientError`
   * `bad_identity`.
   */
  static async open(options: DeviceOptions): Promise<Device> {
    const store = options.store ?? new MemoryStore();
    const device = new Device(options, store, await Outbox.load(store, options.platform.clock));
    // An earlier run ended within the replay of a reset: no base is known before it has ended.
    if ((await store.cursor()).reset === true) device.parts.sender.hold('reset');
    return device;
  }

  /** This device's ULID. */
  get id(): string {
    return this.identity.deviceId;
  }

  /** The fingerprint that other devices show for this one, to be compared before certifying it. */
  get fingerprint(): string {
    const { deviceId, keys } = this.identity;
    return fingerprintOfDevice(this.options.platform.sodium, { id: deviceId, pubkey: keys.publicKey });
  }

  /** Adds a listener; the result removes it. */
  on<N extends EventName>(name: N, listener: Listener<N>): () => void {
    return this.emitter.on(name, listener);
  }

  /**
   * Connects and stays connected until `disconnect`; no-op while connecting or connected. Resolves when everything
   * missed has been applied. Rejects when disconnected, closed or revoked first, and with `ProtocolError`
   * `quarantine_full`, `endless_replay` or `bad_sum` where reading from the server was stopped.
   */
  async connect(): Promise<void> {
    const { sync, socket } = this.open;
    if (this.connecting !== undefined) return this.connecting;
    this.halted = false;
    const ended = new Promise<never>((_, reject) => (this.ended = reject));
    const connected = Promise.race([sync.caughtUp(), ended]);
    // Set first: a listener of the state may disconnect at once.
    this.connecting = connected;
    socket.start();
    await connected;
  }

  /**
   * Retries now instead of after the backoff, for a system event (network restored, page visible again) or on request
   * of the user. Probes an open connection and replaces it if there is no answer within 5 s. At most one attempt in
   * 2 s; a wait that the server requested is kept. No-op while disconnected, and once revoked.
   */
  reconnect(): void {
    if (this.connecting !== undefined) this.readable.socket.hurry();
  }

  /** Closes the connection, not the device: `connect` resumes from the cursor, and `pull` still works. */
  readonly disconnect = (): void => this.endConnection(new ClientError('closed', 'the connection was closed'));

  private endConnection(error: Error): void {
    this.parts.rewraps.pause();
    this.parts.socket.stop();
    this.connecting = undefined;
    this.ended(error);
  }

  /** For the sender: reads another history, without which no change is sent. A connection does so by itself. */
  private async catchUp(): Promise<void> {
    if (!this.connected && !this.halted) await this.open.sync.pull();
  }

  private halt(error: ProtocolError): void {
    if (this.state !== 'open') return;
    this.halted = true;
    this.endConnection(error);
    this.emitter.emit('halted', { error });
  }

  /** Ends the device in this program. Changes that were not sent stay in the store. */
  close(): void {
    if (this.state === 'open') this.end('closed', new ClientError('closed', 'the device was closed'));
    this.parts.queries.close();
  }

  /** Catches up once over HTTP, without a socket. */
  readonly pull = (): Promise<void> => {
    this.halted = false;
    return this.open.sync.pull();
  };

  /** Ends `DeviceOptions.held`: sends the changes that wait, and all later ones. */
  readonly release = (): void => this.parts.sender.release('owner');

  /**
   * The completeness check over HTTP: true where count and version sum of the server equal those of the store, after a
   * repair if one was needed. Null where the history changes too fast to compare. Emits `repaired`, `missing` and
   * `caught_up`.
   */
  readonly check = (): Promise<boolean | null> => this.open.sync.check();

  /** Reads the whole history again, re-verifies the items that did not verify or decrypt, and compares. */
  readonly resync = (): Promise<void> => {
    this.halted = false;
    return this.open.sync.resync();
  };

  /** See `Writer`. */
  readonly put: Writer['put'] = async (request) => this.open.writer.put(request);
  readonly delete: Writer['delete'] = async (...of) => this.open.writer.delete(...of);
  readonly withdraw: Writer['withdraw'] = async (id) => this.open.writer.withdraw(id);
  readonly move: Writer['move'] = async (...of) => this.open.writer.move(...of);
  readonly republish: Writer['republish'] = async (...of) => this.open.writer.republish(...of);
  readonly discard: Writer['discard'] = async (id) => this.open.writer.discard(id);

  /**
   * Writes the `row` of a `rejected` event again. `overwrite` (default): replaces the newer state that another device
   * wrote; `copy`: creates a new item, where the original was deleted. Throws as `put`.
   */
  async resend(row: LiveItem, how: 'overwrite' | 'copy' = 'overwrite'): Promise<Stored> {
    const { binId, type, payload } = this.parts.items.opened(row);
    if (payload === null || row.blob !== null)
      throw new ClientError('unknown_item', `${row.id} is a blob: its content must be uploaded again`);
    const request = { binId, type, payload, asIs: true };
    return this.put(how === 'copy' ? request : { ...request, id: row.id, onConflict: 'overwrite' });
  }

  /** See `ItemReader`. */
  readonly get: ItemReader['get'] = (id) => this.parts.items.get(id);
  readonly list: ItemReader['list'] = (filter) => this.parts.items.list(filter);
  readonly deleted: ItemReader['deleted'] = () => this.parts.items.deleted();
  readonly hidden: ItemReader['hidden'] = () => this.parts.items.hidden();
  readonly orphaned: ItemReader['orphaned'] = () => this.parts.items.orphaned();
  readonly opened: ItemReader['opened'] = (row) => this.parts.items.opened(row);
  readonly kept: ItemReader['kept'] = (id) => this.parts.items.kept(id);

  /**
   * The decrypted bytes of an item's blob, from `from` on, chunk by chunk. Each chunk is authenticated; the
   * requested range is complete when the generator ends without an error. Throws as `Blobs.read`, and `ClientError`
   * `unknown_item`.
   */
  async *blob(id: string, options?: BlobReadOptions): AsyncGenerator<Uint8Array, void, undefined> {
    yield* this.open.blobs.read(await this.parts.items.row(id), options);
  }

  /** Writes the bytes of an item's blob into a place that may already hold the first chunks. See `Blobs.into`. */
  async blobInto(id: string, place: ChunkPlace, options?: TransferOptions): Promise<void> {
    await this.open.blobs.into(await this.parts.items.row(id), place, options);
  }

  /** An item's whole payload, read from its blob if `ItemView.payload` has truncated texts (see `ItemView.blob`). */
  async payload(id: string, options?: TransferOptions): Promise<JsonObject | null> {
    const row = await this.open.items.row(id);
    const cut = row.blob !== null && !holdsFile(row.type);
    return cut ? this.parts.blobs.payload(row, options) : this.parts.items.opened(row).payload;
  }

  /** Plaintext size of an item's blob in bytes, as reported by the server; null: not reported. See `Blobs.size`. */
  readonly blobSize = async (id: string): Promise<number | null> =>
    this.open.blobs.size(await this.parts.items.row(id));

  /**
   * The unfinished uploads, oldest first; with a durable store, those of earlier runs too. `put` with the same id, type
   * and source continues one.
   */
  readonly uploads = async (): Promise<readonly BegunUpload[]> => this.open.begun.list();

  /**
   * The item that an earlier run wrote from a source, where it ended before `put` had resolved or rejected: another `put`
   * of the source would write it a second time. It is told once; undefined: there is none.
   */
  readonly writtenUpload: BegunUploads['written'] = async (type, source) => this.open.begun.written(type, source);

  /**
   * Abandons an unfinished upload: the server frees its storage, and it cannot be continued. No-op where there is none;
   * waits for a running one. Throws `ApiError`, `NetworkError`; the upload then remains.
   */
  readonly giveUpUpload = async (id: string): Promise<void> => this.open.blobs.giveUp(id);

  /** A URL of the ciphertext of an item's blob, valid for some minutes, without a token. See `Blobs.url`. */
  readonly blobUrl = async (id: string): Promise<DownloadUrl> => this.open.blobs.url(await this.parts.items.row(id));

  /** A live query. See `LiveQueryIndex.query`. */
  readonly query: LiveQueryIndex['query'] = async (filter, listener) => this.readable.queries.query(filter, listener);
  /** Items of each bin, live. See `LiveQueryIndex.counts`. */
  readonly counts: LiveQueryIndex['counts'] = async (listener) => this.readable.queries.counts(listener);

  /** This device and the server's figures. */
  readonly me = (): Promise<Me> => this.parts.core.api.me();

  /** Revokes a device; with this device's own id, signs out. Throws `ApiError` `last_device`. */
  async revoke(id: string): Promise<void> {
    try {
      await this.parts.core.api.revoke(id);
    } catch (error) {
      // This device is revoked nevertheless: a repeat after a lost reply was refused as revoked, or the socket reported
      // the revocation before the reply arrived, which aborted the request.
      if (!(id === this.id && (isRevoked(error) || this.state === 'revoked'))) throw error;
    }
    if (id === this.id) this.parts.session.endRevoked();
    else await this.devices.refresh();
  }

  /** Sets or changes the account password. Only the stretched password leaves this device. */
  async setPassword(password: string, current: string | null = null): Promise<void> {
    const { api } = this.parts.core;
    await api.setPassword(await this.stretched(password), current === null ? null : await this.stretched(current));
  }

  /** Removes the account password; the current one is needed. Throws `ApiError` `password_invalid`. */
  async removePassword(current: string): Promise<void> {
    await this.parts.core.api.removePassword(await this.stretched(current));
  }

  /** True where an account password is set. */
  readonly passwordExists = (): Promise<boolean> => this.parts.core.api.passwordExists();

  /**
   * Starts a pairing: show `words` on this device. `approve` gets the new device's name and the digits. Re-wrapping all
   * items for the new device starts as soon as it has joined.
   */
  async offerPairing(approve: (request: JoinApproval) => boolean | Promise<boolean>): Promise<PairingOffer> {
    const { core, deviceList } = this.open;
    const onRequest = (listener: (request: PairRequest) => void): (() => void) => {
      this.pairListeners.add(listener);
      return () => this.pairListeners.delete(listener);
    };
    const { onProblem } = this.options;
    const offer = await offerPairing({ ...core, identity: this.identity, deviceList, onRequest, onProblem }, approve);
    offer.joined.then(() => this.parts.rewraps.now()).catch(() => undefined);
    return offer;
  }

  /**
   * Adds missing keys to all items now; resolves with the number of items that got some. Emits `rewrap_progress`.
   * `signal` ends it between two batches (`ClientError` `cancelled`); the next call continues.
   */
  readonly rewrap = (signal?: AbortSignal): Promise<number> => this.open.rewraps.run(signal);

  /** The status of this device: connection, cursor, waiting changes, hidden items. Sends nothing, does not throw. */
  readonly status = (): Promise<DeviceStatus> => this.statusReader.read();

  /** The changes that the server has not acknowledged: part of `status`, without reading the store. */
  readonly waiting = (): DeviceStatus['pending'] => this.statusReader.pending();

  private stretched(password: string): Promise<string> {
    return stretchPassword(this.options.platform.sodium, { password, tenantId: this.identity.tenantId });
  }

  private receive(frame: Frame, size: number): void {
    switch (frame.kind) {
      case 'change':
      case 'caught_up':
      case 'reset':
        return this.parts.sync.receive(frame, size);
      case 'pair_request':
        return this.pairRequested(frame.body);
      case 'device_joined':
        this.parts.rewraps.later();
        return this.inBackground(() => this.devices.refresh());
      case 'device_revoked':
        if (frame.id === this.id) return this.parts.session.endRevoked();
        return this.inBackground(() => this.devices.refresh());
      case 'bin':
        return this.inBackground(() => this.bins.refresh('changed'));
      default:
        return;
    }
  }

  private pairRequested(body: unknown): void {
    const request = readPairRequest(body, '');
    for (const listener of [...this.pairListeners]) listener(request);
  }

  /** After each `caught_up`: reads bins and devices, which are not part of the item stream. */
  private async refresh(): Promise<void> {
    this.parts.rewraps.resume();
    await Promise.all([this.bins.refresh('caught_up'), this.devices.refresh()]);
  }

  private inBackground(work: () => Promise<unknown>): void {
    work().catch((error: unknown) => {
      if (this.state === 'open') this.emitter.emit('problem', { error: asError(error) });
    });
  }

  private endRevoked(): void {
    if (this.state === 'revoked') return;
    this.end('revoked', new ClientError('revoked', REVOKED));
    this.emitter.emit('revoked', { deviceId: this.id });
  }

  private end(state: 'closed' | 'revoked', error: ClientError): void {
    this.state = state;
    this.parts.rewraps.close();
    this.parts.socket.stop();
    this.parts.sync.close();
    this.parts.sender.close(error);
    this.lifetime.abort(error);
    this.ended(error);
  }

  /** The parts of an open device. Throws `ClientError` `closed` or `revoked`. */
  private get open(): Parts {
    if (this.state === 'revoked') throw new ClientError('revoked', REVOKED);
    return this.readable;
  }

  /** The parts, also of a revoked device, whose stored items stay readable. Throws `ClientError` `closed`. */
  private get readable(): Parts {
    if (this.state === 'closed') throw new ClientError('closed', 'the device was closed');
    return this.parts;
  }
}

type Parts = ReturnType<typeof assemble>;

/** How the parts report back to the device. */
type Hooks = Pick<ConstructorParameters<typeof Session>[0], 'onToken' | 'onRevoked'> &
  Pick<ConstructorParameters<typeof ReconnectingSocket>[0], 'onFrame'> &
  Pick<ConstructorParameters<typeof Sync>[0], 'halt' | 'refresh'> &
  Pick<ConstructorParameters<typeof Sender>[0], 'catchUp' | 'epoch'>;

/** Creates all parts of a device, none of them started. */
function assemble(
  { platform, devices }: DeviceOptions,
  base: Pick<Core, 'identity' | 'store' | 'outbox' | 'emit' | 'lifetime'>,
  hooks: Hooks,
) {
  const { identity, emit, lifetime } = base;
  const http = new Http({ ...platform, baseUrl: identity.serverUrl, lifetime });
  const session = new Session({ ...platform, ...hooks, http, identity });
  const api = new DeviceApi(session.call);
  const core: Core = {
    ...{ ...platform, ...base, api, baseUrl: http.baseUrl },
    reader: { masterKey: identity.masterKey, device: { id: identity.deviceId, keys: identity.keys } },
    onProblem: (error) => emit('problem', { error }),
    clockOffset: () => http.clockOffset,
    admissible: (ts) => http.admissible(ts),
  };
  const deviceList = new DeviceList({ ...core, remembered: devices });
  const sender = new Sender({ ...core, ...hooks, deviceList });
  const items = new ItemReader(core);
  const queries = new LiveQueryIndex(core);
  const begun = new BegunUploads(core);
  const blobs = new Blobs({ ...core, begun });
  const writer = new Writer({ ...core, sender, deviceList, blobs, begun });
  const replica = new Replica({
    ...core,
    fetchNext: async (since) => api.nextChange({ ...(await core.store.cursor()), since }),
  });
  const socket: ReconnectingSocket = new ReconnectingSocket({
    ...{ ...core, onFrame: hooks.onFrame },
    // The socket has its own backoff, so its requests are not retried here.
    prepare: async () => {
      await sync.epoch(api.once);
      return api.once.ticket();
    },
    renew: () => session.renew(true),
    cursor: () => sync.begin(),
    onState: (state) => emit('connection', state),
    onRevoked: () => session.endRevoked(),
  });
  const sync: Sync = new Sync({ ...core, ...hooks, replica, sender, socket });
  const bins = new Bins({ ...core, items, writer, sync });
  const rewraps = new RewrapQueue({ ...core, writer, deviceList });
  return { core, session, deviceList, items, queries, writer, sender, sync, socket, bins, begun, blobs, rewraps };
}
