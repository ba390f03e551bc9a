/** A tenant's services on real databases, without a server: two instances share one database, as in production. */
import { createHash, randomBytes } from 'node:crypto';
import type pg from 'pg';
import { ulid } from 'ulid';
import { Reauthentication, Tickets } from '../../src/server/devices/credentials.js';
import type { ForeignHost } from '../../src/server/devices/enrolment.js';
import { tokenIssuer, verifyToken } from '../../src/server/http/tokens.js';
import type { PasswordHasher } from '../../src/crypto/sodium.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { Pairing } from '../../src/server/pairing/pairing.js';
import { AccountStore } from '../../src/server/devices/store.js';
import { BinStore } from '../../src/server/bins/store.js';
import { createPool } from '../../src/server/storage/database.js';
import { PostgresTenantLoader } from '../../src/server/storage/tenant-loader.js';
import { PairingStore } from '../../src/server/pairing/store.js';
import { toBase64Url } from '../../src/protocol/base64.js';
import type { Clock } from '../../src/protocol/clock.js';
import { ServiceError, type ErrorName } from '../../src/protocol/errors.js';
import type { BootstrapBody, PairFetchNpkBody, PairWrapBody } from '../../src/protocol/requests.js';
import { CalledBins, CalledBootstrap, CalledDevices, CalledPasswords, CalledRecovery, type Caller } from './callers.js';
import { TestClock } from './clock.js';
import { until } from './events.js';
import { testDatabase, type WithTeardown } from './postgres.js';

export const SECRET = createHash('sha256').update('accounts').digest();
export const DAY_MS = 86_400_000;

/** Stands in for Argon2id, which costs a tenth of a second; src/crypto proves the real one. */
export const quickHasher: PasswordHasher = {
  hash: (password) => Promise.resolve(`quick ${randomBytes(8).toString('hex')} ${password}`),
  verify: (stored, password) => Promise.resolve(stored.split(' ').slice(2).join(' ') === password),
};

export const base64 = (bytes: Uint8Array): string => toBase64Url(bytes);
export const random = (length: number): string => base64(randomBytes(length));

export interface InstanceOptions {
  readonly url: string;
  readonly clock: Clock;
  readonly bootstrapToken?: string | null;
  readonly maxDevices?: number;
  readonly hasher?: PasswordHasher;
  readonly caller?: Caller;
  readonly publicHosts?: readonly string[];
}

/** One server process's worth of services. */
export class Instance {
  readonly pool: pg.Pool;
  readonly accounts: AccountStore;
  readonly loader: PostgresTenantLoader;
  readonly bootstrap: CalledBootstrap;
  readonly devices: CalledDevices;
  readonly tickets: Tickets;
  readonly passwords: CalledPasswords;
  readonly reauth: Reauthentication;
  readonly recovery: CalledRecovery;
  readonly pairing: Pairing;
  readonly bins: CalledBins;
  readonly online = new Set<string>();
  readonly faults: unknown[] = [];
  /** Recoveries that were signed for another host. */
  readonly foreignHosts: ForeignHost[] = [];
  /** Tenants whose changes were announced, in order. */
  readonly announced: string[] = [];
  readonly resets: string[] = [];
  /** If set, announcing a change fails with it, as when the tenant cannot be reloaded. */
  unreadable: Error | undefined;
  /** Called when something changed, before the caller goes on. */
  onChanged: (tenantId: string) => void = () => undefined;

  constructor(options: InstanceOptions) {
    const { clock, maxDevices = 100, bootstrapToken = null, caller = { id: '' }, publicHosts = [] } = options;
    const pool = createPool({
      url: options.url,
      name: 'accounts',
      size: 8,
      onIdleError: (error) => this.faults.push(error),
    });
    const changed = (tenantId: string): Promise<void> => {
      this.announced.push(tenantId);
      this.onChanged(tenantId);
      return this.unreadable === undefined ? Promise.resolve() : Promise.reject(this.unreadable);
    };
    const store = new AccountStore(pool);
    const issueToken = tokenIssuer({ secret: SECRET, ttlMs: 30 * DAY_MS, clock });
    const tickets = new Tickets({ secret: SECRET, clock, store });
    const onFault = (error: unknown): void => void this.faults.push(error);
    const shared = { store, clock, issueToken, maxDevices, changed, onFault, sodium: nodeSodium, tickets, caller };
    const reset = (tenantId: string): Promise<void> => {
      this.resets.push(tenantId);
      return this.unreadable === undefined ? Promise.resolve() : Promise.reject(this.unreadable);
    };
    this.pool = pool;
    this.accounts = store;
    this.tickets = tickets;
    this.loader = new PostgresTenantLoader(pool, clock, onFault);
    this.bootstrap = new CalledBootstrap({ ...shared, bootstrapToken, claimTokens: false, reset });
    this.devices = new CalledDevices({ ...shared, online: () => Promise.resolve(this.online) });
    this.reauth = new Reauthentication(shared);
    const onForeignHost = (mismatch: ForeignHost): void => void this.foreignHosts.push(mismatch);
    this.recovery = new CalledRecovery({ ...shared, publicHosts, onForeignHost });
    const hasher = options.hasher ?? quickHasher;
    this.passwords = new CalledPasswords({ ...shared, unauthenticatedStore: store, hasher });
    const pairings = new PairingStore(pool);
    this.pairing = new Pairing({ ...shared, store: pairings, unauthenticatedStore: pairings });
    this.bins = new CalledBins({ ...shared, store: new BinStore(pool) });
  }

  /** The epoch in a token, where it is good by its signature. */
  epochOf(token: string, now: number): number | undefined {
    const claims = verifyToken(SECRET, token, now);
    return typeof claims === 'string' ? undefined : claims.epoch;
  }

  /** Would the server let this token in: signature, expiry, device, epoch? */
  async admits(tenantId: string, token: string, now: number): Promise<boolean> {
    const claims = verifyToken(SECRET, token, now);
    if (typeof claims === 'string' || claims.tenantId !== tenantId) return false;
    const snapshot = await this.loader.load(tenantId);
    const device = snapshot?.devices.find(({ id }) => id === claims.deviceId);
    return device !== undefined && !device.revoked && device.tokenEpoch === claims.epoch;
  }

  async close(): Promise<void> {
    await this.devices.close();
    await this.bins.close();
    await this.pool.end();
  }
}

/** Two instances on one fresh database with its single tenant. */
export interface World {
  readonly url: string;
  readonly clock: TestClock;
  readonly tenantId: string;
  readonly a: Instance;
  readonly b: Instance;
}

export async function newWorld(t: WithTeardown, options: Partial<InstanceOptions> = {}): Promise<World> {
  const { url } = await testDatabase(t);
  const clock = new TestClock();
  const caller = { id: '' };
  const a = new Instance({ url, clock, caller, ...options });
  const b = new Instance({ url, clock, caller, ...options });
  t.teardown(async () => {
    await Promise.all([a.close(), b.close()]);
  });
  return { url, clock, a, b, tenantId: await new AccountStore(a.pool).singleTenant(clock.now()) };
}

/** A device of a test with its X25519 pair. */
export function newDevice(): { id: string; publicKey: Uint8Array; secretKey: Uint8Array } {
  return { id: ulid(), ...nodeSodium.boxKeyPair() };
}

export type TestDevice = ReturnType<typeof newDevice>;

export const bootstrapBody = (device: TestDevice, more: Partial<BootstrapBody> = {}): BootstrapBody => ({
  name: 'First',
  glyph: 'laptop',
  pubkey: base64(device.publicKey),
  deviceId: device.id,
  ...more,
});

export const joinBody = (code: string, device: TestDevice, more: Partial<PairFetchNpkBody> = {}): PairFetchNpkBody => ({
  code,
  deviceId: device.id,
  host: 'sync.example',
  pubkey: base64(device.publicKey),
  name: 'Phone',
  glyph: 'phone',
  attestation: random(32),
  ...more,
});

/** What the existing device hands over, of the right sizes. */
export const wrapBody = (code: string): PairWrapBody => ({
  code,
  wrappedMasterKey: random(80),
  deviceCert: random(32),
  confirmation: random(32),
});

/** Resolves when the instance announces the next change of the tenant. */
export const announced = (instance: Instance): Promise<void> =>
  new Promise((resolve) => {
    instance.onChanged = () => resolve();
  });

const LETTERS = 'abcdefghijklmnopqrstuvwxyz';

/** Six words of random letters: the server does not know the list. */
export const newCode = (): string =>
  Array.from({ length: 6 }, () => [...randomBytes(5)].map((byte) => LETTERS[byte % 26]).join('')).join(' ');

/** Inserts devices that have joined just now, and were revoked. */
export async function haveJoined({ a, tenantId, clock }: World, count: number): Promise<void> {
  await a.pool.query(
    `INSERT INTO devices (tenant_id, id, name, glyph, pubkey, paired_at, revoked_at)
     SELECT $1, gen_random_uuid(), 'old', 'phone', '', $2, $2 FROM generate_series(1, $3)`,
    [tenantId, clock.now(), count],
  );
}

/** Bootstraps a world and pairs `count` further devices. All devices, the first one first. */
export async function claimedWorld(world: World, count = 0): Promise<TestDevice[]> {
  const first = newDevice();
  await world.a.bootstrap.claim(world.tenantId, bootstrapBody(first));
  const devices = [first];
  for (let n = 0; n < count; n++) devices.push(await pairOne(world, first));
  return devices;
}

/** Pairs a new device through the first instance. */
export async function pairOne({ a, tenantId }: World, by: TestDevice): Promise<TestDevice> {
  const device = newDevice();
  const code = newCode();
  await a.pairing.init(tenantId, by.id, { code, epk: base64(newDevice().publicKey) });
  const asked = announced(a);
  const joining = a.pairing.fetchNpk(tenantId, joinBody(code, device), new AbortController().signal);
  await Promise.race([asked, joining]);
  await a.pairing.wrap(tenantId, by.id, wrapBody(code));
  await joining;
  a.onChanged = () => undefined;
  return device;
}

/** How calls ended: `ok`, or the error's name. Anything but a refusal of the catalogue is thrown. */
export async function outcomes(calls: readonly Promise<unknown>[]): Promise<string[]> {
  const settled = await Promise.allSettled(calls);
  return settled.map((result) => {
    if (result.status === 'fulfilled') return 'ok';
    if (result.reason instanceof ServiceError) return result.reason.error;
    throw result.reason;
  });
}

/**
 * Makes calls concurrent: all of them wait for the tenant's lock before any continues, which exposes decisions that
 * are made before the lock is held. `first` runs under the lock while they wait.
 */
export async function together(
  { a, tenantId }: World,
  calls: readonly (() => Promise<unknown>)[],
  first?: (holder: pg.ClientBase) => Promise<unknown>,
): Promise<string[]> {
  const holder = await a.pool.connect();
  try {
    await holder.query('BEGIN');
    await holder.query('SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE', [tenantId]);
    let ended = 0;
    const ends = outcomes(calls.map((call) => call().finally(() => ended++)));
    const waiting = `SELECT count(*) AS value FROM pg_stat_activity
      WHERE datname = current_database() AND wait_event_type = 'Lock'`;
    await until('all calls at the lock', async () => (await valueOf<number>(a.pool, waiting)) + ended >= calls.length);
    await first?.(holder);
    await holder.query('COMMIT');
    return await ends;
  } finally {
    holder.release();
  }
}

/** The refusal that a call must end with; undefined when it was let through. */
export async function refusal(call: Promise<unknown>): Promise<ErrorName | undefined> {
  const [outcome] = await outcomes([call]);
  return outcome === 'ok' ? undefined : (outcome as ErrorName);
}

/** The single value of a query's only row. */
export async function valueOf<T>(pool: pg.Pool, text: string, values: unknown[] = []): Promise<T> {
  const { rows } = await pool.query<{ value: T }>(text, values);
  const [row] = rows;
  if (row === undefined) throw new Error(`no row: ${text}`);
  return row.value;
}

/** The tenant's generation: what a write was checked against. */
export const generationOf = (pool: pg.Pool, tenantId: string): Promise<number> =>
  valueOf<number>(pool, 'SELECT generation AS value FROM tenants WHERE id = $1', [tenantId]);
