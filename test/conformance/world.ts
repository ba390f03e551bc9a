/**
 * The tenant that the cases run in: claimed by the kit, with two permanent devices, a bin for the cases' items, and the
 * replies to the claim. Devices are paired by plain calls, with keys that the kit holds.
 */
import { randomBytes } from 'node:crypto';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { newId, npkBody, join, type JoinOptions, type TestDevice } from '../support/devices.js';
import { camel, type Json, type Place, type Reply, type Shape } from '../support/wire.js';
import { PacedWire } from './wire.js';

export interface WorldOptions {
  /** 'http://host:port', or https. No path: the contract's paths begin at the root. */
  readonly url: string;
  readonly shapes: readonly Shape[];
  /** For a server that requires a claim token. */
  readonly claimToken?: string;
  /** Restarts the bootstrap of a claimed server: its devices are wiped. */
  readonly adminToken?: string;
  /** An origin of the server's CORS_ORIGINS. */
  readonly corsOrigin?: string;
  /** How a case waits; default: for real time. */
  readonly pause?: (ms: number) => Promise<void>;
}

/** The replies to the claim: of several concurrent calls exactly one must succeed. */
interface Claim {
  readonly before: Reply;
  readonly after: Reply;
  /** Replies to calls without the claim token, or with a wrong one, where one is required. */
  readonly strangers: readonly Reply[];
  readonly replies: readonly Reply[];
  readonly wrappedMasterKey: Buffer;
}

/** The replies when the first password was set. */
interface FirstPassword {
  readonly before: Reply;
  readonly verified: Reply;
  readonly set: Reply;
  readonly after: Reply;
}

/** A reason why no case can run. */
export class NoStart extends Error {}

const AT_ONCE = 4;

function placeOf(url: string): { readonly place: Place; readonly port: number } {
  const { protocol, hostname, port, pathname } = new URL(url);
  if (protocol !== 'http:' && protocol !== 'https:') throw new NoStart(`not an address of HTTP: ${url}`);
  if (pathname !== '/') throw new NoStart(`a path in the address: ${url}`);
  const secure = protocol === 'https:';
  return { place: { host: hostname, secure }, port: port === '' ? (secure ? 443 : 80) : Number(port) };
}

export class World {
  readonly wire: PacedWire;
  readonly pause: (ms: number) => Promise<void>;
  tenantId = '';
  /** Devices that are not revoked, by id. */
  readonly devices = new Map<string, TestDevice>();
  password: string | undefined;
  firstPassword: FirstPassword | undefined;
  /** Signs recoveries of this tenant. */
  recoveryKey: Uint8Array = new Uint8Array();
  /** The bin of the cases' items. */
  bin = 'inbox';
  private mine: readonly [TestDevice, TestDevice] | undefined;
  private claimed: Claim | undefined;

  private constructor(readonly options: WorldOptions) {
    this.pause = options.pause ?? (async (ms) => new Promise((resolve) => setTimeout(resolve, ms)));
    const { place, port } = placeOf(options.url);
    this.wire = new PacedWire(port, place, this.pause);
  }

  /** Claims the server and pairs a second device. Rejects with `NoStart` where that fails. */
  static async start(options: WorldOptions): Promise<World> {
    const world = new World(options);
    try {
      const status = await world.wire.get('/service/status').catch((error: unknown) => {
        throw new NoStart(`${options.url} does not answer: ${String(error)}`);
      });
      if (status.status !== 200) throw new NoStart(`/api/service/status answers ${status.status} ${status.raw}`);
      if (status.at('claimed') === true) await world.wipe();
      await world.claim();
      return world;
    } catch (error) {
      world.wire.close();
      throw error;
    }
  }

  get shape(): Shape {
    return this.options.shapes[0] ?? 'a';
  }

  get first(): TestDevice {
    return this.pair[0];
  }

  get second(): TestDevice {
    return this.pair[1];
  }

  /** The replies to the last claim. */
  get lastClaim(): Claim {
    if (this.claimed === undefined) throw new Error('not claimed yet');
    return this.claimed;
  }

  get ids(): string[] {
    return [...this.devices.keys()];
  }

  /** Restarts the bootstrap by the admin endpoint, which wipes all devices. */
  async wipe(): Promise<Reply> {
    const { adminToken } = this.options;
    if (adminToken === undefined) {
      throw new NoStart('the server is claimed: give an empty one, or --admin-token, which WIPES its devices');
    }
    const reply = await this.wire.post('/devices/bootstrap/restart', {}, { token: adminToken, shape: this.shape });
    if (reply.status !== 200) throw new NoStart(`bootstrap/restart answers ${reply.status} ${reply.raw}`);
    return reply;
  }

  /** Claims an unclaimed server by several concurrent calls, and pairs the second device. */
  async claim(): Promise<Claim> {
    const { claimToken } = this.options;
    const { wire, shape } = this;
    const signing = nodeSodium.signKeyPair(randomBytes(32));
    const keys = Array.from({ length: AT_ONCE }, () => nodeSodium.boxKeyPair());
    const wrappedMasterKey = randomBytes(80);
    const body = (index: number, token: string | undefined): Json => ({
      name: `conformance ${index}`,
      glyph: 'laptop',
      pubkey: Buffer.from(keys[index]?.publicKey ?? []),
      recoveryPubkey: Buffer.from(signing.publicKey),
      wrappedMasterKey,
      claimToken: token,
    });
    const post = async (one: Json): Promise<Reply> => wire.post('/devices/bootstrap', one, { shape });
    const status = async (): Promise<Reply> => wire.get('/service/status', { shape });
    const strangers: Reply[] = [];
    if (claimToken !== undefined) {
      for (const token of [undefined, 'x', claimToken.slice(1)]) strangers.push(await post(body(0, token)));
    }
    const before = await status();
    const replies = await Promise.all(keys.map(async (_, index) => post(body(index, claimToken))));
    const after = await status();
    const won = replies.findIndex((reply) => reply.status === 200);
    const [winner, pair] = [replies[won], keys[won]];
    if (winner === undefined || pair === undefined)
      throw new NoStart(`no claim went through: ${replies[0]?.status} ${replies[0]?.raw}`);
    const first = { id: winner.text('device.id'), token: winner.text('token'), keys: pair, name: 'conformance' };
    this.claimed = { before, after, strangers, replies, wrappedMasterKey };
    this.recoveryKey = signing.secretKey;
    this.password = undefined;
    this.tenantId = String(camel(after.body)['tenantId']);
    this.devices.clear();
    this.devices.set(first.id, first);
    this.mine = [first, first];
    this.mine = [first, await this.join({ name: 'second' })];
    const bin = `conformance-${newId().toLowerCase()}`;
    const made = await wire.post('/bins', { id: bin }, { token: first.token, shape: 'a' });
    if (made.status !== 200) throw new NoStart(`POST /api/bins answers ${made.status} ${made.raw}`);
    this.bin = bin;
    return this.claimed;
  }

  /** Pairs one more device, with a password ticket where the tenant has a password. */
  async join(more: JoinOptions = {}): Promise<TestDevice> {
    const device = await join(this.wire, this.first, { passwordTicket: await this.ticket(), ...more });
    this.devices.set(device.id, device);
    return device;
  }

  async revoke(device: Pick<TestDevice, 'id'>): Promise<Reply> {
    this.devices.delete(device.id);
    return this.wire.post(`/devices/${device.id}/revoke`, {}, { token: this.first.token, shape: this.shape });
  }

  /** A password ticket; undefined where no password is set. */
  async ticket(pubkey?: Buffer): Promise<string | undefined> {
    if (this.password === undefined) return undefined;
    const reply = await this.wire.post('/password/verify', { password: this.password, pubkey }, { shape: 'a' });
    return reply.text('ticket');
  }

  /** The body that a new device sends in step 3, with a password ticket where one is needed. */
  async npkBody(code: string, more: Json = {}): Promise<Record<string, unknown>> {
    const passwordTicket = await this.ticket();
    return npkBody(code, { ...(passwordTicket === undefined ? {} : { passwordTicket }), ...more });
  }

  /** Sets the tenant's password, once: no call removes it. */
  async protect(): Promise<FirstPassword> {
    if (this.firstPassword !== undefined && this.password !== undefined) return this.firstPassword;
    const { wire, shape } = this;
    const exists = async (): Promise<Reply> => wire.get('/password/exists', { shape });
    const before = await exists();
    const verified = await wire.post('/password/verify', { password: 'none' }, { shape });
    const password = `pw ${newId()}`;
    const set = await wire.post('/password/set', { password }, { shape, token: this.first.token });
    if (set.status !== 200) throw new Error(`POST /api/password/set answers ${set.status} ${set.raw}`);
    this.password = password;
    this.firstPassword = { before, verified, set, after: await exists() };
    return this.firstPassword;
  }

  /** Deletes the cases' bin with its items, and closes the connections. */
  async end(): Promise<void> {
    try {
      await this.wire.delete(`/bins/${this.bin}`, { token: this.first.token, shape: 'a', body: { force: true } });
    } finally {
      this.wire.close();
    }
  }

  private get pair(): readonly [TestDevice, TestDevice] {
    if (this.mine === undefined) throw new Error('not claimed yet');
    return this.mine;
  }
}
