/**
 * An honest server in this process: two instances of the tenant ring (registry, actor, `step`) over one log in memory.
 * Only the thin rest around them, routes and tokens, is written here. Nothing in it takes time but turns of the event
 * loop, so a test that moves every request and frame itself decides the order of all events.
 */
import { makeReauthChallenge } from '../../src/crypto/reauth.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { toBase64Url } from '../../src/protocol/base64.js';
import type { Clock } from '../../src/protocol/clock.js';
import { asError } from '../../src/protocol/error-code.js';
import { ServiceError, statusOf } from '../../src/protocol/errors.js';
import { DEFAULT_BIN } from '../../src/protocol/limits.js';
import type { ItemBodyA } from '../../src/protocol/requests.js';
import { asRefusal, errorFields, secondsToWait } from '../../src/server/http/fail.js';
import type { Actor } from '../../src/server/tenant/actor.js';
import type { Change } from '../../src/server/tenant/change.js';
import { rowText } from '../../src/server/tenant/codec.js';
import { decodeWriteA, tagged } from '../../src/server/tenant/decode.js';
import type { BinChange, SocketPort, TenantUpdate } from '../../src/server/tenant/ports.js';
import { TenantRegistry } from '../../src/server/tenant/registry.js';
import { NOTHING_HEARD } from './instances.js';
import { MemoryLog, type HistoryEntry, type MemoryTenant } from './memory-log.js';
import { openBin, TENANT } from './world.js';

type Json = Record<string, unknown>;

/** The bins that a tenant begins with. */
const FIRST_BINS = ['inbox', 'other'];
/** Rows of a page of `GET /items`: few, so that a listing has several pages. */
const PAGE_ROWS = 3;
const blobId = (n: number): string => `B${n}`.padStart(26, '0');
/** How long an address of the blob store is valid, ms. Nobody checks: it is not what these tests are about. */
const URL_MS = 15 * 60_000;
/** Parts of uploads: small, so that there are several. */
const PART_BYTES = 64;
/** How long a token is valid, ms: for some of the longer waits of a script. */
const TOKEN_MS = 20 * 60_000;

/** A device as the server has it. */
interface Registered {
  readonly id: string;
  readonly pubkey: Uint8Array;
  readonly cert: Uint8Array;
  revokedAt: number | null;
}

export interface Request {
  readonly token: string;
  readonly method: string;
  /** Below `/api`, with the query. */
  readonly path: string;
  readonly body: Json;
  /** Of a blob. */
  readonly bytes?: Uint8Array | undefined;
}

export interface Reply {
  readonly status: number;
  readonly body: Json | Uint8Array;
  readonly retryAfter?: number | undefined;
}

/** The tenant as it was. */
const copyOf = (tenant: MemoryTenant): MemoryTenant => ({
  ...tenant,
  // Items and entries of the history are never changed.
  items: new Map(tenant.items),
  blobs: new Map([...tenant.blobs].map(([ref, blob]) => [ref, { ...blob }])),
  history: [...tenant.history],
});

export class HonestServer {
  readonly faults: unknown[] = [];
  readonly devices: Registered[] = [];
  epoch = 'epoch 1';
  /** The histories before each restore, and their epochs. */
  readonly former: { readonly epoch: string; readonly history: readonly HistoryEntry[] }[] = [];
  private readonly log: MemoryLog;
  private readonly instances: readonly TenantRegistry[];
  private readonly tickets = new Map<string, string>();
  private readonly tokens = new Map<string, { readonly deviceId: string; readonly expiresAt: number }>();
  /** Answers of challenges that wait for them. */
  private readonly challenges = new Map<string, { readonly deviceId: string; readonly answer: Uint8Array }>();
  /** With those that were deleted. */
  private bins: ReadonlyMap<string, BinChange> = new Map(FIRST_BINS.map((id) => [id, openBin(id)]));
  /** The labels as the devices sent them, by bin. */
  private readonly metas = new Map<string, unknown>();
  /** The blobs, as far as they have arrived, and their sizes. */
  private readonly objects = new Map<string, { bytes: Buffer; readonly size: number }>();
  private backup: { readonly tenant: MemoryTenant; readonly bins: ReadonlyMap<string, BinChange> };
  private turn = 0;
  private uploads = 0;

  private readonly clock: Clock;

  constructor(clock: Clock) {
    // A test's timers may leave it at a part of a millisecond, which no server knows.
    this.clock = { now: () => Math.floor(clock.now()), setTimer: (ms, fn) => clock.setTimer(ms, fn) };
    this.log = new MemoryLog({ now: () => this.clock.now() });
    this.backup = { tenant: copyOf(this.log.addTenant(TENANT)), bins: this.bins };
    this.instances = this.begin();
  }

  /** The tenant in the database. */
  get database(): MemoryTenant {
    return this.log.tenant(TENANT);
  }

  /** The ids of the bins that are open. */
  get openBins(): readonly string[] {
    return [...this.bins.values()].filter(({ open }) => open).map(({ id }) => id);
  }

  private begin(): readonly TenantRegistry[] {
    const all: TenantRegistry[] = [];
    const { log } = this;
    for (let n = 0; n < 2; n++) {
      const registry: TenantRegistry = new TenantRegistry({
        lanes: log,
        log,
        loader: {
          load: () => Promise.resolve(this.snapshot()),
          hurry: () => undefined,
          reload: () => Promise.resolve(this.snapshot()),
          head: () => Promise.resolve(log.summary(TENANT)),
          positions: (known) => {
            const { head, generation } = log.tenant(TENANT);
            return Promise.resolve(known.map(({ tenantId }) => ({ tenantId, head, generation })));
          },
        },
        announcer: {
          heard: NOTHING_HEARD,
          announce: (...hint) => others().forEach((other) => other.headHint(...hint)),
          publish: (id, rows, { summary, generation }) => {
            const copies = rows.map((row) => row.copy());
            for (const other of others()) other.published(id, generation, { rows: copies, summary });
          },
          subscribe: () => undefined,
        },
        purger: { purge: () => true },
        onFault: (error) => this.faults.push(error),
        clock: this.clock,
        history: this,
      });
      const others = (): readonly TenantRegistry[] => all.filter((other) => other !== registry);
      all.push(registry);
    }
    return all;
  }

  private snapshot(): TenantUpdate {
    return {
      tenantId: TENANT,
      state: 'active',
      generation: this.database.generation,
      summary: this.log.summary(TENANT),
      devices: this.devices.map(({ id, pubkey, cert, revokedAt }) => ({
        id,
        tokenEpoch: 1,
        revoked: revokedAt !== null,
        keysPurged: true,
        view: { id, name: id, glyph: 'phone', pubkey, pairedAt: 1, cert },
      })),
      bins: [...this.bins.values()],
      pairRequests: [],
    };
  }

  /** Requests and sockets go to one instance and the other in turn. */
  private async actor(): Promise<Actor> {
    const actor = await this.instances[this.turn++ % this.instances.length]?.get(TENANT);
    if (actor === undefined) throw new ServiceError('tenant_not_found');
    return actor;
  }

  /** Devices or bins change: every instance hears of it. */
  private async changed(change: (generation: number) => void): Promise<void> {
    change(++this.database.generation);
    for (const instance of this.instances) await (await instance.get(TENANT))?.reload();
  }

  issueToken(deviceId: string): { readonly token: string; readonly expiresAt: number } {
    const [token, expiresAt] = [`token-${this.turn++}`, this.clock.now() + TOKEN_MS];
    this.tokens.set(token, { deviceId, expiresAt });
    return { token, expiresAt };
  }

  /** No token is valid any more, as with another `TOKEN_SECRET`. */
  voidTokens(): void {
    this.tokens.clear();
    this.restart();
  }

  join(device: Pick<Registered, 'id' | 'pubkey' | 'cert'>): Promise<void> {
    return this.changed(() => this.devices.push({ ...device, revokedAt: null }));
  }

  /** Both instances end and begin again: every socket is closed, and everything is durable. */
  restart(): void {
    for (const instance of this.instances) instance.restart();
  }

  takeBackup(): void {
    this.backup = { tenant: copyOf(this.database), bins: this.bins };
  }

  /** Items and bins are again as in the last backup, in another epoch; the devices are the current ones. */
  restore(): void {
    const { generation, history } = this.database;
    this.former.push({ epoch: this.epoch, history });
    // What instances from before have checked is stale.
    Object.assign(this.database, { ...copyOf(this.backup.tenant), generation: generation + 1 });
    this.bins = this.backup.bins;
    this.epoch = `epoch ${this.former.length + 1}`;
    this.restart();
  }

  /** The actor that takes a socket with this ticket; undefined: the upgrade is refused. */
  async upgrade(ticket: string, port: Pick<SocketPort, 'send' | 'close'>) {
    const deviceId = this.tickets.get(ticket);
    this.tickets.delete(ticket);
    if (deviceId === undefined) return undefined;
    const actor = await this.actor();
    const session = actor.open({ ...port, deviceId, tokenEpoch: 1, shape: 'a', closing: false });
    return typeof session === 'string' ? undefined : { actor, session };
  }

  /** Carries out a request. */
  async answer(request: Request): Promise<Reply> {
    try {
      const body = this.store(request) ?? this.reauth(request) ?? (await this.route(this.callerOf(request), request));
      return { status: 200, body };
    } catch (error) {
      if (!(error instanceof ServiceError)) this.faults.push(error);
      return refusalOf(error);
    }
  }

  /** The reply of the blob store, to who has the address; undefined for other requests. */
  private store({ method, path, bytes = new Uint8Array() }: Request): Json | Uint8Array | undefined {
    const [, subject, ref = '', from] = path.split('/');
    if (subject !== 'objects') return undefined;
    const object = this.objects.get(ref);
    const state = this.database.blobs.get(ref);
    if (object === undefined || state === undefined) throw new ServiceError('blob_not_found');
    if (method === 'GET') return object.bytes;
    if (state.state !== 'pending' || Number(from) !== object.bytes.length) throw new ServiceError('upload_offset');
    object.bytes = Buffer.concat([object.bytes, bytes]);
    if (object.bytes.length === object.size) state.state = 'ready';
    return {};
  }

  private beginUpload(size: number): Json {
    const ref = `${blobId(++this.uploads)}.bin`;
    this.database.blobs.set(ref, { state: 'pending', itemId: null });
    this.objects.set(ref, { bytes: Buffer.alloc(0), size });
    return this.upload(ref);
  }

  private upload(ref: string): Json {
    const object = this.objects.get(ref);
    const state = this.database.blobs.get(ref);
    if (object === undefined || state === undefined || state.itemId !== null) throw new ServiceError('blob_not_found');
    const parts: Json[] = [];
    for (let from = object.bytes.length; from < object.size; from += PART_BYTES) {
      const size = Math.min(PART_BYTES, object.size - from);
      parts.push({ from, size, url: `http://server/objects/${ref}/${from}`, headers: null });
    }
    const { size, bytes } = object;
    return { blobRef: ref, size, offset: bytes.length, expiresAt: this.clock.now() + URL_MS, parts };
  }

  /** Blobs that no item names are removed, as they are after some days. */
  reap(): void {
    const { blobs } = this.database;
    for (const [ref, { itemId, state }] of blobs) if (itemId === null || state === 'orphan') blobs.delete(ref);
  }

  private active(deviceId: unknown): Registered {
    const device = this.devices.find(({ id }) => id === deviceId);
    if (device === undefined) throw new ServiceError('device_not_found');
    if (device.revokedAt !== null) throw new ServiceError('device_revoked');
    return device;
  }

  private callerOf({ token }: Request): string {
    const known = this.tokens.get(token);
    if (known === undefined) throw new ServiceError('bad_token');
    if (known.expiresAt <= this.clock.now()) throw new ServiceError('expired_token');
    return this.active(known.deviceId).id;
  }

  /** The reply to a request without a token; undefined for others. */
  private reauth({ method, path, body }: Request): Json | undefined {
    if (method !== 'POST' || !path.startsWith('/devices/reauth')) return undefined;
    const { id: deviceId, pubkey } = this.active(body['deviceId']);
    if (path.endsWith('/challenge')) {
      const challengeId = `challenge-${this.turn++}`;
      const { challenge, answer } = makeReauthChallenge(
        nodeSodium,
        { tenantId: TENANT, deviceId, challengeId },
        pubkey,
      );
      this.challenges.set(challengeId, { deviceId, answer });
      return { challengeId, challenge: toBase64Url(challenge) };
    }
    const challengeId = String(body['challengeId']);
    const asked = this.challenges.get(challengeId);
    this.challenges.delete(challengeId);
    if (asked?.deviceId !== deviceId || toBase64Url(asked.answer) !== body['answer'])
      throw new ServiceError('forbidden');
    return { ...this.issueToken(deviceId) };
  }

  private async route(deviceId: string, request: Request): Promise<Json> {
    const { method, body } = request;
    const url = new URL(request.path, 'http://server');
    const [, subject = '', id = '', action = ''] = url.pathname.split('/');
    const named = url.searchParams.get('epoch');
    if (subject === 'items' && method !== 'GET' && named !== null && named !== this.epoch)
      throw new ServiceError('epoch_mismatch');
    const isId = id !== '' && (id.length >= 26 || subject === 'bins');
    const names = [method, subject, isId ? ':id' : id, action];
    switch (names.filter((name) => name !== '').join(' ')) {
      case 'POST ws-ticket': {
        const ticket = `ticket-${this.turn++}`;
        this.tickets.set(ticket, deviceId);
        return { ticket, expiresAt: this.clock.now() + 60_000 };
      }
      case 'GET items':
        return this.page(url.searchParams);
      case 'POST items':
        return this.write(deviceId, body);
      case 'POST items batch':
        return { results: await this.batch(deviceId, body['items'] as Json[]) };
      case 'DELETE items :id':
        return this.submit(deviceId, ({ arena }) =>
          Object.assign(tagged(arena, 'delete', body['sig'] as string), { id }),
        );
      case 'POST items :id reconcile': {
        const { binId, version: ifVersion, sig } = body as { binId: string; version: number; sig: string };
        return this.submit(deviceId, ({ arena }) =>
          Object.assign(tagged(arena, 'move', sig), { id, binId, ifVersion }),
        );
      }
      case 'GET devices':
        return { devices: this.devices.map((device) => entryOf(device, deviceId)) };
      case 'POST devices :id revoke':
        await this.revoke(id);
        return {};
      case 'GET bins':
        return { bins: this.openBins.map((bin) => this.binOf(bin)) };
      case 'POST bins':
        return { bin: await this.createBin(body as { id: string; meta: string }) };
      case 'DELETE bins :id':
        await this.removeBin(id);
        return {};
      case 'POST uploads':
        return this.beginUpload(Number(body['contentLength']));
      case 'POST uploads :id':
        return this.upload(id);
      case 'DELETE uploads :id':
        if (this.database.blobs.get(id)?.itemId === null) this.database.blobs.delete(id);
        return {};
      case 'GET blobs :id url': {
        const size = this.objects.get(id)?.size;
        if (size === undefined || !this.database.blobs.has(id)) throw new ServiceError('blob_not_found');
        return { url: `http://server/objects/${id}`, expiresAt: this.clock.now() + URL_MS, size };
      }
      case 'GET me':
        return this.me(deviceId);
      default:
        throw new Error(`no route ${request.method} ${request.path}`);
    }
  }

  async revoke(id: string): Promise<void> {
    const device = this.devices.find((known) => known.id === id);
    if (device === undefined) throw new ServiceError('device_not_found');
    if (this.devices.filter(({ revokedAt }) => revokedAt === null).length === 1) throw new ServiceError('last_device');
    await this.changed(() => (device.revokedAt ??= this.clock.now()));
  }

  private binOf(id: string): Json {
    return { ...openBin(id).view, meta: this.metas.get(id) ?? null, itemCount: 0 };
  }

  private async createBin({ id, meta }: { readonly id: string; readonly meta: string }): Promise<Json> {
    if (this.openBins.includes(id)) throw new ServiceError('conflict');
    this.metas.set(id, meta);
    await this.changed((generation) => (this.bins = new Map(this.bins).set(id, openBin(id, generation))));
    return this.binOf(id);
  }

  private async removeBin(id: string): Promise<void> {
    if (!this.openBins.includes(id)) throw new ServiceError('bin_not_found');
    const items = [...this.database.items.values()].map(({ row }) => row.item);
    const isEmpty = items.every(({ binId, deletedAt }) => binId !== id || deletedAt !== null);
    if (id === DEFAULT_BIN || !isEmpty) throw new ServiceError('conflict');
    const deletedAt = this.clock.now();
    await this.changed((changedAtGeneration) => {
      this.bins = new Map(this.bins).set(id, { id, changedAtGeneration, open: false, deletedAt, view: null });
    });
  }

  private me(deviceId: string): Json {
    const { head: headVersion, itemCount, versionSum } = this.database;
    const { epoch } = this;
    const figures = { storageUsedBytes: 0, storageCapBytes: 0, deviceCount: 0, devicesOnline: 0 };
    return {
      device: { id: deviceId, name: deviceId, glyph: 'phone', pairedAt: 1 },
      server: { version: '1', region: 'x', ...figures, itemCount, headVersion, versionSum, epoch },
    };
  }

  private page(query: URLSearchParams): Json {
    const { epoch } = this;
    const known = query.get('epoch');
    const asked = Number(query.get('since') ?? 0);
    const reset = (known !== null && known !== epoch) || asked > this.database.head;
    const limit = Math.min(Number(query.get('limit')), PAGE_ROWS);
    const { rows, more, summary } = this.log.read({ tenantId: TENANT, since: reset ? 0 : asked, limit });
    const items = rows.map((row) => JSON.parse(rowText('a', row)) as Json);
    const nextSince = more ? rows.at(-1)?.version : summary.version;
    return { items, nextSince, hasMore: more, epoch, ...(reset ? { reset } : {}) };
  }

  private write = (deviceId: string, body: Json): Promise<Json> =>
    this.submit(deviceId, ({ arena }) => decodeWriteA(arena, body as unknown as ItemBodyA, 'a'));

  /** Writes of one item run one after the other, as on the server. */
  private async batch(deviceId: string, items: readonly Json[]): Promise<readonly Json[]> {
    const results: Json[] = [];
    for (const item of items) {
      const refused = (error: unknown): Json => ({ id: item['id'], error: errorFields(asRefusal(error), 'a') });
      results.push(await this.write(deviceId, item).catch(refused));
    }
    return results;
  }

  private async submit(deviceId: string, make: (actor: Actor) => Change): Promise<Json> {
    const actor = await this.actor();
    const { id, version } = await new Promise<Change>((resolve, reject) => {
      const change = make(actor);
      change.reply = { stored: resolve, refused: reject };
      actor.submit(change, deviceId);
    });
    return { id, version };
  }
}

/** A refusal as the routes answer it. */
export function refusalOf(error: unknown): Reply {
  const refusal = asRefusal(asError(error));
  const status = statusOf(refusal.error, 'a');
  return { status, body: { error: errorFields(refusal, 'a') }, retryAfter: secondsToWait(refusal, status) };
}

const entryOf = ({ id, pubkey, cert, revokedAt }: Registered, asking: string): Json => ({
  ...{ id, name: id, glyph: 'phone', pairedAt: 1, revokedAt, lastSeenAt: null, online: true },
  ...{ pubkey: toBase64Url(pubkey), cert: toBase64Url(cert), current: id === asking },
});
