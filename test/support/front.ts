/** The front alone, on a real port, with stand-ins for everything behind it. */
import { once } from 'node:events';
import { request, type IncomingMessage } from 'node:http';
import { text as textOf } from 'node:stream/consumers';
import type { TokenClaims } from '../../src/server/http/tokens.js';
import type { Identity } from '../../src/server/devices/store.js';
import type { Clock } from '../../src/protocol/clock.js';
import { ServiceError, type ErrorName } from '../../src/protocol/errors.js';
import type { LiveItem } from '../../src/protocol/item.js';
import type { Change } from '../../src/server/tenant/change.js';
import type { ItemRow } from '../../src/server/tenant/codec.js';
import { arena } from './changes.js';
import { itemOf, rowOf } from './rows.js';
import { rowsOf, type App } from '../../src/server/app/route-table.js';
import type { HttpConfig, TenantActor } from '../../src/server/http/ports.js';
import type { DescriptorRoom } from '../../src/server/realtime/descriptors.js';
import { startListening, type Listener } from '../../src/server/realtime/server.js';
import type { DeviceState, LogPage, PageRequest, SocketPort } from '../../src/server/tenant/ports.js';
import { Session } from '../../src/server/tenant/session.js';
import { TestClock } from './clock.js';
import { soon } from './events.js';
import type { WithTeardown } from './postgres.js';

export const TENANT = '01JTENANT00000000000000000';
export const DEVICE = '01ARZ3NDEKTSV4RRFFQ69G5FA1';
export const OTHER_DEVICE = '01ARZ3NDEKTSV4RRFFQ69G5FA2';
export const ITEM = '01ARZ3NDEKTSV4RRFFQ69G5FAV';

/** A stand-in for the tenant's actor: it notes what it is asked and answers what the test tells it. */
export class StubActor implements TenantActor {
  constructor(readonly tenantId = TENANT) {}

  state = 'active';
  readonly devices = new Map<string, DeviceState>();
  readonly arena = arena;
  readonly writes: { readonly write: LiveItem; readonly deviceId: string }[] = [];
  readonly sessions: Session[] = [];
  readonly hellos: { since: number; epoch: string | null; acks: boolean }[] = [];
  drains = 0;
  ended = 0;
  version = 0;
  /** What the next changes do instead of being stored. */
  refuse: (() => Promise<never>) | undefined;
  /** The same, in the very turn in which they come. */
  refuseAtOnce: Error | undefined;

  admit(id: string, tokenEpoch = 1, revoked = false): void {
    this.devices.set(id, { id, tokenEpoch, revoked, keysPurged: true });
  }

  /** It was compared with the database a moment ago. */
  current = true;

  isCurrent(): boolean {
    return this.current;
  }

  device(id: string): DeviceState | undefined {
    return this.devices.get(id);
  }

  get sessionCount(): number {
    return this.sessions.length;
  }

  socketsOf(deviceId: string): number {
    return this.sessions.filter((session) => session.deviceId === deviceId).length;
  }

  submit(change: Change, deviceId: string): void {
    if (change.kind === 'write')
      this.writes.push({ write: itemOf(Object.assign(change, { senderDevice: deviceId })) as LiveItem, deviceId });
    this.arena.unpin(change.segment);
    if (this.refuseAtOnce !== undefined) change.reply.refused(this.refuseAtOnce);
    else if (this.refuse === undefined) {
      change.reply.stored(Object.assign(change, { version: ++this.version, decidedAt: 1_700_000_000_000 }));
    } else this.refuse().catch((error: unknown) => change.reply.refused(error as Error));
  }

  open(port: SocketPort): Session | ErrorName {
    const device = this.devices.get(port.deviceId);
    if (device === undefined || device.revoked || device.tokenEpoch !== port.tokenEpoch) return 'device_revoked';
    const session = new Session(port);
    this.sessions.push(session);
    return session;
  }

  hello(_session: Session, frame: { since: number; epoch: string | null; acks: boolean }): void {
    this.hellos.push(frame);
  }

  drained(): void {
    this.drains++;
  }

  closed(session: Session): void {
    this.ended++;
    this.sessions.splice(this.sessions.indexOf(session), 1);
  }
}

/** A token of the stand-in: its claims in plain text. */
export const tokenOf = (claims: Partial<TokenClaims> & { forged?: true } = {}): string =>
  Buffer.from(JSON.stringify({ tenantId: TENANT, deviceId: DEVICE, epoch: 1, expiresAt: 4e12, ...claims })).toString(
    'base64url',
  );

export const verify: App['verifyToken'] = (token, now) => {
  if (!token.startsWith('eyJ')) return 'bad_token';
  const claims = JSON.parse(Buffer.from(token, 'base64url').toString()) as TokenClaims & { forged?: true };
  if (claims.forged) return 'bad_token';
  return claims.expiresAt > now ? claims : 'expired_token';
};

const CONFIG: HttpConfig = {
  host: '127.0.0.1',
  port: 0,
  tenantMode: 'single',
  publicUrl: null,
  domain: null,
  region: 'test',
  wireShape: 'a',
  requireSig: 'a',
  adminToken: 'admin-token',
  corsOrigins: [],
  trustedProxies: ['127.0.0.0/8', '10.0.0.0/8'],
  storageCapBytes: 0,
  rateReadPerS: 0,
  rateWritePerS: 0,
  wsPingIntervalMs: 30_000,
  wsPongGraceMs: 90_000,
};

interface Line extends Record<string, unknown> {
  readonly level: string;
  readonly message: string;
}

export interface FrontSetup {
  readonly config?: Partial<HttpConfig>;
  readonly clock?: Clock;
  /** Replaces stand-ins. */
  readonly services?: Partial<App>;
  /** False: the actor has to be loaded first. */
  readonly loaded?: boolean;
  readonly room?: Partial<DescriptorRoom>;
}

export interface TestFront {
  readonly front: Listener;
  readonly port: number;
  readonly actor: StubActor;
  readonly clock: TestClock;
  readonly lines: Line[];
  readonly pages: PageRequest[];
  /** What the next pages hold. */
  page: LogPage;
}

/** Fits every port: what it answers is nobody's type. */
const silent = (): Promise<never> => Promise.resolve({ ok: true } as never);
const nothing = (): Promise<undefined> => Promise.resolve(undefined);

/** Services that answer `ok`, for tests that replace one of their calls. */
export const STUBS: Pick<App, 'blobs' | 'bootstrap' | 'pairing'> = {
  blobs: {
    ...{ uploadUrl: silent, downloadUrl: silent, begin: silent, continue: silent, giveUp: silent },
    settle: () => Promise.resolve(false),
  },
  bootstrap: { claim: silent, isRight: () => undefined, restart: silent, claimed: () => Promise.resolve(true) },
  pairing: { init: silent, fetchEpk: silent, fetchNpk: silent, requests: silent, wrap: silent },
};

function stubs(test: TestFront, loaded: boolean): Omit<App, 'config' | 'clock'> {
  const note =
    (level: string) =>
    (fields: object, message: string): void =>
      void test.lines.push({ ...fields, level, message });
  const identity: Identity = {
    ...{ id: DEVICE, name: 'Laptop', glyph: 'laptop', pairedAt: 1_700_000_000_000 },
    ...{ headVersion: 7, itemCount: 2, versionSum: 12, storageUsedBytes: 99, deviceCount: 3 },
  };
  return {
    log: { isLevelEnabled: () => true, debug: note('debug'), warn: note('warn'), error: note('error') },
    version: '9.9.9',
    ready: () => true,
    commit: 'unknown',
    resolveTenant: () => TENANT,
    epoch: () => 'epoch-1',
    tenants: {
      actors: new Map(loaded ? [[TENANT, test.actor]] : []),
      get: () => Promise.resolve(test.actor),
      hurry: () => undefined,
      changed: nothing,
    },
    items: {
      page: (request) => {
        test.pages.push(request);
        return Promise.resolve(test.page);
      },
    },
    verifyToken: verify,
    tickets: { issueSocket: () => ({ ticket: 'a-ticket', expiresAt: 1 }), readSocket: () => undefined },
    ...STUBS,
    devices: { list: silent, patch: silent, revoke: silent, touch: () => undefined },
    reauth: { challenge: silent, answer: silent },
    recovery: { challenge: silent, recover: silent },
    passwords: { exists: silent, remove: silent, set: silent, verify: silent },
    bins: { list: silent, create: silent, patch: silent, remove: silent },
    addressLimits: { guess: nothing, take: nothing },
    deviceLimits: { take: nothing },
    presence: { touched: () => undefined, online: () => Promise.resolve(new Set([DEVICE])) },
    identities: { identity: () => Promise.resolve(identity) },
  };
}

/** Starts the front and stops it after the test. Its clock stands still until it is advanced. */
export async function frontOf(t: WithTeardown, setup: FrontSetup = {}): Promise<TestFront> {
  const clock = setup.clock instanceof TestClock ? setup.clock : new TestClock();
  const actor = new StubActor();
  actor.admit(DEVICE);
  const summary = { version: 0, itemCount: 0, versionSum: 0 };
  const test = { actor, clock, lines: [], pages: [], page: { rows: [], more: false, summary } };
  const known = test as unknown as TestFront;
  const app: App = {
    ...stubs(known, setup.loaded ?? true),
    ...setup.services,
    clock,
    config: { ...CONFIG, ...setup.config },
  };
  const front = await startListening(rowsOf(app), app, {
    sharePort: false,
    room: { sockets: Infinity, connections: Infinity, isExhausted: () => false, ...setup.room },
  });
  t.teardown(async () => {
    const closed = front.close(0);
    clock.advance(0);
    await closed;
  });
  return Object.assign(known, { front, port: front.port });
}

/** A live item in one bin, as a page holds it. */
export const liveItem = (version: number, ct: Uint8Array = Buffer.alloc(20, 1)): ItemRow =>
  rowOf(
    {
      id: ITEM,
      binId: 'inbox',
      type: 'text',
      senderDevice: DEVICE,
      ts: 1_700_000_000_000,
      version,
      deletedAt: null,
      inline: { ct, nonce: Buffer.alloc(24, 2), keys: new Map([[DEVICE, Buffer.alloc(80, 3)]]) },
      blob: null,
      master: null,
      sig: Buffer.alloc(32, 4),
    },
    null,
  );

/** A valid item write of shape A. */
export const writeA = (over: Record<string, unknown> = {}): Record<string, unknown> => ({
  id: ITEM,
  binId: 'inbox',
  type: 'text',
  ts: 1_700_000_000_000,
  payloadEnc: {
    ct: Buffer.alloc(20, 1).toString('base64url'),
    nonce: Buffer.alloc(24, 2).toString('base64url'),
    keys: { [DEVICE]: Buffer.alloc(80, 3).toString('base64url') },
    sig: Buffer.alloc(32, 4).toString('base64url'),
  },
  ...over,
});

/** The same write in shape B. */
export const writeB = (): Record<string, unknown> => ({
  id: ITEM,
  bin_id: 'inbox',
  type: 'text',
  ts: 1_700_000_000_000,
  ct: Buffer.alloc(20, 1).toString('base64'),
  nonce: Buffer.alloc(24, 2).toString('base64'),
  wrapped: [{ device_id: DEVICE, key: Buffer.alloc(80, 3).toString('base64') }],
  sig: Buffer.alloc(32, 4).toString('base64'),
});

export interface HttpAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly text: string;
  readonly json: Record<string, unknown>;
  /** `error` of a refusal. */
  readonly error: Readonly<Record<string, unknown>>;
}

export interface HttpAsk {
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** An object goes as JSON, text as it is. */
  readonly body?: unknown;
  /** Null: none. */
  readonly token?: string | null;
}

/** One request on a connection of its own. */
export async function ask(port: number, path: string, options: HttpAsk = {}): Promise<HttpAnswer> {
  const { body, token = tokenOf() } = options;
  const text = body === undefined ? '' : typeof body === 'string' ? body : JSON.stringify(body);
  const headers = {
    ...(text === '' ? {} : { 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(text)) }),
    ...(token === null ? {} : { authorization: `Bearer ${token}` }),
    ...options.headers,
  };
  const method = options.method ?? (body === undefined ? 'GET' : 'POST');
  const sent = request({ host: '127.0.0.1', port, path, method, headers, agent: false });
  sent.end(text);
  const [reply] = (await soon(once(sent, 'response'), `the answer to ${method} ${path}`)) as [IncomingMessage];
  return answerOf(reply);
}

/** The whole of an answer. */
export async function answerOf(reply: IncomingMessage): Promise<HttpAnswer> {
  const text = await textOf(reply);
  const type = reply.headers['content-type'] ?? '';
  const json = (type.startsWith('application/json') && text !== '' ? JSON.parse(text) : {}) as Record<string, unknown>;
  const error = (json['error'] ?? {}) as Record<string, unknown>;
  return { status: reply.statusCode ?? 0, headers: reply.headers, text, json, error };
}

/** A refusal of the catalogue as a rejected promise. */
export const refusing = (error: ConstructorParameters<typeof ServiceError>[0]) => () =>
  Promise.reject(new ServiceError(error));
