/**
 * An honest server in this process: two instances of the tenant ring (registry, actor, `step`) over one log in memory.
 * Only the thin rest around them, routes and tokens, is written here. Nothing in it takes time but turns of the event
 * loop, so a test that moves every request and frame itself decides the order of all events.
 */
import { toBase64Url } from '../../src/protocol/base64.js';
import type { Clock } from '../../src/protocol/clock.js';
import { asError } from '../../src/protocol/error-code.js';
import { ServiceError, statusOf } from '../../src/protocol/errors.js';
import type { ItemBodyA } from '../../src/protocol/requests.js';
import { asRefusal, errorFields, secondsToWait } from '../../src/server/http/fail.js';
import type { Actor } from '../../src/server/tenant/actor.js';
import type { Change } from '../../src/server/tenant/change.js';
import { rowText } from '../../src/server/tenant/codec.js';
import { decodeWriteA, tagged } from '../../src/server/tenant/decode.js';
import type { SocketPort, TenantUpdate } from '../../src/server/tenant/ports.js';
import { TenantRegistry } from '../../src/server/tenant/registry.js';
import { NOTHING_HEARD } from './instances.js';
import { MemoryLog, type HistoryEntry, type MemoryTenant } from './memory-log.js';
import { openBin, TENANT } from './world.js';

type Json = Record<string, unknown>;

export const BINS = ['inbox', 'other'];
/** Rows of a page of `GET /items`: few, so that a listing has several pages. */
const PAGE_ROWS = 3;

/** A device as the server has it. */
interface Registered {
  readonly id: string;
  readonly pubkey: Uint8Array;
  readonly cert: Uint8Array;
  revokedAt: number | null;
}

export interface Request {
  readonly deviceId: string;
  readonly method: string;
  /** Below `/api`, with the query. */
  readonly path: string;
  readonly body: Json;
}

export interface Reply {
  readonly status: number;
  readonly body: Json;
  readonly retryAfter?: number | undefined;
}

/** The tenant as it was: maps and lists are copied, what is in them is never changed. */
const copyOf = (tenant: MemoryTenant): MemoryTenant => ({
  ...tenant,
  items: new Map(tenant.items),
  blobs: new Map(tenant.blobs),
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
  private backup: MemoryTenant;
  private turn = 0;

  constructor(private readonly clock: Clock) {
    this.log = new MemoryLog({ now: () => clock.now() });
    this.backup = copyOf(this.log.addTenant(TENANT));
    this.instances = this.begin();
  }

  /** The tenant in the database. */
  get database(): MemoryTenant {
    return this.log.tenant(TENANT);
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
        epoch: () => this.epoch,
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
      bins: BINS.map((id) => openBin(id)),
      pairRequests: [],
    };
  }

  /** Requests and sockets go to one instance and the other in turn. */
  private async actor(): Promise<Actor> {
    const actor = await this.instances[this.turn++ % this.instances.length]?.get(TENANT);
    if (actor === undefined) throw new ServiceError('tenant_not_found');
    return actor;
  }

  /** Devices have changed: every instance hears of it. */
  private async changed(change: () => void): Promise<void> {
    change();
    this.database.generation++;
    for (const instance of this.instances) await (await instance.get(TENANT))?.reload();
  }

  join(device: Pick<Registered, 'id' | 'pubkey' | 'cert'>): Promise<void> {
    return this.changed(() => this.devices.push({ ...device, revokedAt: null }));
  }

  /** Both instances end and begin again: every socket is closed, and everything is durable. */
  restart(): void {
    for (const instance of this.instances) instance.restart();
  }

  takeBackup(): void {
    this.backup = copyOf(this.database);
  }

  /** The items are again as in the last backup, in another epoch; the devices are the current ones. */
  restore(): void {
    const { generation, history } = this.database;
    this.former.push({ epoch: this.epoch, history });
    Object.assign(this.database, { ...copyOf(this.backup), generation });
    this.epoch = `epoch ${this.former.length + 1}`;
    this.restart();
  }

  /** The actor that takes a socket with this ticket; undefined: the upgrade is refused. */
  async upgrade(ticket: string, port: Omit<SocketPort, 'deviceId' | 'tokenEpoch' | 'shape'>) {
    const deviceId = this.tickets.get(ticket);
    this.tickets.delete(ticket);
    if (deviceId === undefined) return undefined;
    const actor = await this.actor();
    const session = actor.open({ ...port, deviceId, tokenEpoch: 1, shape: 'a' });
    return typeof session === 'string' ? undefined : { actor, session };
  }

  /** Carries out a request. */
  async answer(request: Request): Promise<Reply> {
    try {
      const device = this.devices.find(({ id }) => id === request.deviceId);
      if (device === undefined) throw new ServiceError('bad_token');
      if (device.revokedAt !== null) throw new ServiceError('device_revoked');
      return { status: 200, body: await this.route(request) };
    } catch (error) {
      if (!(error instanceof ServiceError)) this.faults.push(error);
      return refusalOf(error);
    }
  }

  private async route(request: Request): Promise<Json> {
    const { deviceId, method, body } = request;
    const url = new URL(request.path, 'http://server');
    const [, subject = '', id = '', action = ''] = url.pathname.split('/');
    const named = url.searchParams.get('epoch');
    if (subject === 'items' && method !== 'GET' && named !== null && named !== this.epoch)
      throw new ServiceError('epoch_mismatch');
    const names = [method, subject, id.length === 26 ? ':id' : id, action];
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
        return { bins: BINS.map((bin) => ({ ...openBin(bin).view, itemCount: 0 })) };
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
