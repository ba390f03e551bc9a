/**
 * A device: what an application holds in its hand. It keeps itself in step with the other devices of its user over a
 * server that it does not trust with anything but delivery (specification, What the service does; contract 5, 9 to 11).
 */
import type { Reader } from '../crypto/item.js';
import { stretchPassword } from '../crypto/password.js';
import type { Timer } from '../protocol/clock.js';
import { DeviceApi } from './api.js';
import { Bins } from './bins.js';
import { ClientError, isRevoked } from './errors.js';
import { asError, Emitter, type EventName, type Listener } from './events.js';
import { Http } from './http.js';
import type { Identity } from './identity.js';
import { Library } from './library.js';
import { Outbox } from './outbox.js';
import { offerPairing, type JoinApproval, type PairingOffer } from './pairing.js';
import type { Platform } from './platform.js';
import { Replica } from './replica.js';
import { readPairRequest, type Me, type PairRequest } from './replies.js';
import { fingerprintOf, Roster } from './roster.js';
import { Sender } from './sender.js';
import { Session } from './session.js';
import { Line } from './socket.js';
import { MemoryStore, type Store } from './store.js';
import { Sync } from './sync.js';
import type { Frame } from './wire.js';
import { Writer } from './writer.js';

export interface DeviceOptions {
  readonly platform: Platform;
  readonly identity: Identity;
  /** Default: memory. */
  readonly store?: Store;
  /** Told of every change of the identity (a new token), to be kept where secrets are kept. */
  readonly onIdentity?: (identity: Identity) => void;
  /** Told of what fails in the background, and of listeners that throw. Required: nothing here fails in silence. */
  readonly onProblem: (error: Error) => void;
}

/** Devices other than the one that paired re-wrap after so long what is still missing (contract 9). */
const REWRAP_AFTER_MS = 10 * 60_000;
/** So that they do not all begin at once. */
const REWRAP_SPREAD_MS = 60_000;

export class Device {
  readonly bins: Bins;
  readonly roster: Roster;
  private identity: Identity;
  private readonly emitter: Emitter;
  private readonly api: DeviceApi;
  private readonly session: Session;
  private readonly library: Library;
  private readonly writer: Writer;
  private readonly sender: Sender;
  private readonly sync: Sync;
  private readonly line: Line;
  private readonly pairListeners = new Set<(request: PairRequest) => void>();
  private rewrapTimer: Timer | undefined;
  private state: 'open' | 'closed' | 'revoked' = 'open';
  private readonly lifetime = new AbortController();
  private ended: (error: Error) => void = () => undefined;

  private constructor(
    private readonly options: DeviceOptions,
    store: Store,
    outbox: Outbox,
  ) {
    const { platform, identity } = options;
    const { sodium, clock, random, sockets } = platform;
    this.identity = identity;
    this.emitter = new Emitter(options.onProblem);
    const { emit } = this.emitter;
    this.emitter.on('problem', ({ error }) => options.onProblem(error));
    const http = new Http({ ...platform, baseUrl: identity.serverUrl, lifetime: this.lifetime.signal });
    this.session = new Session({
      http,
      sodium,
      clock,
      identity,
      onToken: (token) => {
        this.identity = { ...this.identity, token };
        options.onIdentity?.(this.identity);
      },
      onRevoked: () => this.endRevoked(),
    });
    const api = new DeviceApi(this.session.call);
    const reader: Reader = {
      masterKey: identity.masterKey,
      device: { id: identity.deviceId, keys: identity.keys },
    };
    const roster = new Roster({ api, sodium, identity, emit });
    const sender = new Sender({ api, outbox, roster, sodium, reader, clock, random, emit });
    const fetchNext = async (since: number) => (await api.page({ since, epoch: null, limit: 1 })).items[0];
    const replica = new Replica({ store, outbox, sodium, reader, emit, fetchNext });
    this.library = new Library({ store, outbox, sodium, reader });
    this.writer = new Writer({ store, outbox, sender, roster, sodium, reader, deviceId: identity.deviceId, clock });
    this.line = new Line({
      baseUrl: http.baseUrl,
      sockets,
      clock,
      random,
      ticket: () => api.ticket(),
      renew: () => this.session.renew(),
      cursor: () => this.sync.begin(),
      onFrame: (frame) => this.receive(frame),
      onState: (state) => emit('line', state),
      onRevoked: () => this.session.endRevoked(),
      onProblem: (error) => emit('problem', { error }),
    });
    this.sync = new Sync({
      api,
      replica,
      outbox,
      sender,
      emit,
      helloAgain: () => this.line.helloAgain(),
      reconnect: (reason) => this.line.restart(reason),
      flow: (reading) => this.line.flow(reading),
      refresh: () => this.refresh(),
    });
    this.api = api;
    this.roster = roster;
    this.sender = sender;
    const pull = (): Promise<void> => this.pull();
    this.bins = new Bins({
      api,
      sodium,
      masterKey: identity.masterKey,
      library: this.library,
      writer: this.writer,
      pull,
    });
    this.emitter.on('caught_up', () => this.line.settled());
  }

  /** A device with what its store kept. Nothing is sent before the first call. */
  static async open(options: DeviceOptions): Promise<Device> {
    const store = options.store ?? new MemoryStore();
    return new Device(options, store, await Outbox.load(store, options.platform.clock));
  }

  get id(): string {
    return this.identity.deviceId;
  }

  /** What another device shows for this one, to be compared before certifying it. */
  get fingerprint(): string {
    const { deviceId, keys } = this.identity;
    return fingerprintOf(this.options.platform.sodium, { id: deviceId, pubkey: keys.publicKey });
  }

  /** Listens; the result ends that. */
  on<N extends EventName>(name: N, listener: Listener<N>): () => void {
    return this.emitter.on(name, listener);
  }

  /** Connects and stays connected; once, and again after `disconnect`. Resolves when everything that was missed is here; rejects when closed or revoked first. */
  async connect(): Promise<void> {
    this.expectOpen();
    const caughtUp = this.sync.caughtUp();
    const ended = new Promise<never>((_, reject) => {
      this.ended = reject;
    });
    this.line.start();
    await Promise.race([caughtUp, ended]);
  }

  /** Ends the connection but not the device: `connect` resumes where it stood, and `pull` works meanwhile. */
  disconnect(): void {
    this.rewrapTimer?.cancel();
    this.rewrapTimer = undefined;
    this.line.stop();
    this.ended(new ClientError('closed', 'the connection was closed'));
  }

  /** Ends the device in this program. What was not sent stays in its store. */
  close(): void {
    if (this.state === 'open') this.end('closed', new ClientError('closed', 'the device was closed'));
  }

  /** Catches up once over HTTP, without a socket. */
  pull(): Promise<void> {
    this.expectOpen();
    return this.sync.pull();
  }

  /** Reads the whole history again and compares. */
  resync(): Promise<void> {
    this.expectOpen();
    return this.sync.resync();
  }

  /** See `Writer.put`. */
  readonly put: Writer['put'] = (request) => this.writing((writer) => writer.put(request));
  /** See `Writer.delete`. */
  readonly delete: Writer['delete'] = (id) => this.writing((writer) => writer.delete(id));
  /** See `Writer.move`. */
  readonly move: Writer['move'] = (id, binId) => this.writing((writer) => writer.move(id, binId));
  /** See `Writer.republish`. */
  readonly republish: Writer['republish'] = (id) => this.writing((writer) => writer.republish(id));

  readonly get: Library['get'] = (id) => this.library.get(id);
  readonly list: Library['list'] = (filter) => this.library.list(filter);
  readonly hidden: Library['hidden'] = () => this.library.hidden();
  readonly kept: Library['kept'] = (id) => this.library.kept(id);

  /** This device and the server's figures, as the server tells them. */
  me(): Promise<Me> {
    return this.api.me();
  }

  /** Ends another device's access, or, with its own id, signs out. Throws `ApiError` `last_device`. */
  async revoke(id: string): Promise<void> {
    try {
      await this.api.revoke(id);
    } catch (error) {
      // The reply was lost and the second attempt met the fact: signed out all the same.
      if (!(id === this.id && isRevoked(error))) throw error;
    }
    if (id === this.id) this.session.endRevoked();
    else await this.roster.refresh();
  }

  /** Sets or changes the account password. Only what is stretched from it leaves this device (contract 9). */
  async setPassword(password: string, current: string | null = null): Promise<void> {
    const { sodium } = this.options.platform;
    const { tenantId } = this.identity;
    const stretched = (text: string): Promise<string> => stretchPassword(sodium, { password: text, tenantId });
    await this.api.setPassword(await stretched(password), current === null ? null : await stretched(current));
  }

  /**
   * Starts a pairing: show `words` on this device. `approve` is asked for name and digits. When the device has joined,
   * it gets its keys of all items at once.
   */
  async offerPairing(approve: (request: JoinApproval) => boolean | Promise<boolean>): Promise<PairingOffer> {
    this.expectOpen();
    const { sodium, clock } = this.options.platform;
    const offer = await offerPairing(
      {
        api: this.api,
        sodium,
        clock,
        identity: this.identity,
        roster: this.roster,
        onRequest: (listener) => {
          this.pairListeners.add(listener);
          return () => this.pairListeners.delete(listener);
        },
        onProblem: this.options.onProblem,
      },
      approve,
    );
    offer.joined.then(
      () => this.inBackground(() => this.rewrap()),
      () => undefined,
    );
    return offer;
  }

  /** Adds missing keys to all items now; resolves with their number. */
  async rewrap(): Promise<number> {
    await this.roster.refresh();
    const items = await this.writer.rewrapMissing();
    this.emitter.emit('rewrapped', { items });
    return items;
  }

  private async writing<T>(work: (writer: Writer) => Promise<T>): Promise<T> {
    this.expectOpen();
    return work(this.writer);
  }

  private receive(frame: Frame): void {
    switch (frame.kind) {
      case 'change':
      case 'caught_up':
      case 'reset':
        this.sync.receive(frame);
        return;
      case 'pair_request':
        this.pairRequested(frame.body);
        return;
      case 'device_joined':
        this.inBackground(() => this.roster.refresh());
        this.rewrapLater();
        return;
      case 'device_revoked':
        if (frame.id === this.id) this.session.endRevoked();
        else this.inBackground(() => this.roster.refresh());
        return;
      case 'bin':
        this.emitter.emit('bins', { reason: 'changed' });
        return;
      default:
        return;
    }
  }

  private pairRequested(body: unknown): void {
    const request = readPairRequest(body, '');
    for (const listener of [...this.pairListeners]) listener(request);
  }

  /** After each `caught_up`: what may have changed while this device was away and is no item (contract 6). */
  private async refresh(): Promise<void> {
    this.emitter.emit('bins', { reason: 'caught_up' });
    await this.roster.refresh();
    this.rewrapLater();
  }

  private rewrapLater(): void {
    if (this.rewrapTimer !== undefined || this.state !== 'open') return;
    const { clock, random } = this.options.platform;
    const wait = REWRAP_AFTER_MS + Math.floor(random() * REWRAP_SPREAD_MS);
    this.rewrapTimer = clock.setTimer(wait, () => {
      this.rewrapTimer = undefined;
      this.inBackground(() => this.rewrap());
    });
  }

  private inBackground(work: () => Promise<unknown>): void {
    work().catch((error: unknown) => {
      if (this.state === 'open') this.emitter.emit('problem', { error: asError(error) });
    });
  }

  private endRevoked(): void {
    if (this.state === 'revoked') return;
    this.end('revoked', new ClientError('revoked', 'this device was revoked'));
    this.emitter.emit('revoked', { deviceId: this.id });
  }

  private end(state: 'closed' | 'revoked', error: ClientError): void {
    this.state = state;
    this.rewrapTimer?.cancel();
    this.line.stop();
    this.sender.close(error);
    this.lifetime.abort();
    this.ended(error);
  }

  private expectOpen(): void {
    if (this.state === 'revoked') throw new ClientError('revoked', 'this device was revoked');
    if (this.state === 'closed') throw new ClientError('closed', 'the device was closed');
  }
}
