/** What one case works with: the world's two devices, and sockets, devices and bins of its own, removed after it. */
import {
  edited,
  mustWrite,
  newId,
  newItem,
  write,
  type JoinOptions,
  type TestDevice,
  type TestItem,
} from '../support/devices.js';
import { changesOf, untilVersion } from '../support/stream.js';
import {
  camel,
  UpgradeRefused,
  type Ask,
  type ConnectOptions,
  type Json,
  type Reply,
  type Shape,
  type Socket,
} from '../support/wire.js';
import type { Check } from './check.js';
import type { PacedWire } from './wire.js';
import type { World } from './world.js';

/** The option of the kit that a case needs. */
type Need = 'slow' | 'admin' | 'cors';

/** Rules that are checked together. */
export interface Case {
  readonly ids: readonly string[];
  readonly needs?: Need;
  /** True: run once, in the first shape, instead of once per shape. */
  readonly once?: boolean;
  readonly run: (stage: Stage, check: Check) => Promise<void>;
}

type Stored = TestItem & { readonly version: number };

/** The codes that are different in A and B. */
export const CODES = {
  validation: { a: '400 validation', b: '400 invalid_payload' },
  conflict: { a: '409 conflict', b: '409 version_conflict' },
  slugTaken: { a: '409 conflict', b: '409 slug_taken' },
  noToken: { a: '401 unauthorized', b: '401 missing_token' },
  badToken: { a: '401 unauthorized', b: '401 invalid_token' },
  claimed: { a: '410 bootstrap_already_done', b: '409 bootstrap_already_done' },
} as const;

/** The fields of an object of a reply or frame, in camelCase; none where it is no object. */
export const fields = (value: unknown): Json =>
  value !== null && typeof value === 'object' && !Array.isArray(value) ? camel(value) : {};

export const otherShape = (shape: Shape): Shape => (shape === 'a' ? 'b' : 'a');

const UNTIL_MAX_MS = 20_000;
const LOOK_MS = 40;

export class Stage {
  private readonly sockets: Socket[] = [];
  private readonly joined: TestDevice[] = [];
  private readonly bins: string[] = [];
  /** The head when the case began: its own rows have higher versions. */
  base = 0;

  constructor(
    readonly world: World,
    readonly shape: Shape,
  ) {}

  async begin(): Promise<void> {
    this.base = await this.head();
  }

  get wire(): PacedWire {
    return this.world.wire;
  }

  get first(): TestDevice {
    return this.world.first;
  }

  get second(): TestDevice {
    return this.world.second;
  }

  /** Token and shape for the calls of a device (the first by default). */
  as(shape: Shape = this.shape, device: TestDevice = this.first): Ask {
    return { token: device.token, shape };
  }

  /** A valid item for all devices. */
  item(more: Partial<TestItem> = {}): TestItem {
    return newItem(this.world.ids, { binId: this.world.bin, ...more });
  }

  async write(item: TestItem, device: TestDevice = this.first, shape: Shape = this.shape): Promise<Reply> {
    return write(this.wire, device, item, shape);
  }

  /** An item that was written by the first device, and its version. */
  async written(more: Partial<TestItem> = {}, device: TestDevice = this.first): Promise<Stored> {
    const item = this.item(more);
    return { ...item, version: await mustWrite(this.wire, device, item) };
  }

  /** The same item with other content and a later time. */
  edit(item: TestItem, more: Partial<TestItem> = {}): TestItem {
    const { id, binId, type, ts, ct, nonce, keys, master, sig } = item;
    return edited({ id, binId, type, ts, ct, nonce, keys, master, sig }, more);
  }

  async remove(id: string, body?: Json, device: TestDevice = this.first): Promise<Reply> {
    return this.wire.delete(`/items/${id}`, { ...this.as(this.shape, device), body });
  }

  /** A socket, closed after the case. */
  async connect(options: ConnectOptions): Promise<Socket> {
    const socket = await this.wire.connect(options);
    this.sockets.push(socket);
    return socket;
  }

  /** A socket of a device (the second by default) after `hello` at the head. */
  async watch(device: TestDevice = this.second, shape: Shape = this.shape, more: Json = {}): Promise<Socket> {
    const socket = await this.connect({ token: device.token, shape });
    await socket.hello(await this.head(), more);
    return socket;
  }

  /** How an upgrade was refused, or 'open'. */
  async upgrade(options: ConnectOptions): Promise<string> {
    try {
      const socket = await this.wire.connect(options);
      await socket.close();
      return 'open';
    } catch (error) {
      if (error instanceof UpgradeRefused) return error.reply.outcome;
      throw error;
    }
  }

  async me(shape: Shape = 'a'): Promise<Reply> {
    return this.wire.get('/me', this.as(shape));
  }

  async head(): Promise<number> {
    return (await this.me()).number('server.headVersion');
  }

  /** All rows above `since`, by default those of this case. */
  async rows(shape: Shape = this.shape, since = this.base): Promise<Json[]> {
    const out: Json[] = [];
    for (let from = since; ;) {
      const reply = await this.wire.get(`/items?since=${from}&limit=1000`, this.as(shape));
      out.push(...reply.list('items'));
      if (reply.at(shape === 'a' ? 'hasMore' : 'has_more') !== true) return out;
      const last = Number(out.at(-1)?.['version']);
      if (!(last > from)) throw new Error(`paging from ${from} does not get on: ${reply.raw.slice(0, 200)}`);
      from = last;
    }
  }

  /** The row of an item of this case in a shape; empty where there is none. */
  async row(id: string, shape: Shape = this.shape): Promise<Json> {
    return (await this.rows(shape)).find((row) => row['id'] === id) ?? {};
  }

  /** A device of this case, revoked after it. */
  async join(more: JoinOptions = {}): Promise<TestDevice> {
    const device = await this.world.join(more);
    this.joined.push(device);
    return device;
  }

  /** Registers a device that the case itself paired, to be revoked after the case. */
  adopt(device: TestDevice): TestDevice {
    this.world.devices.set(device.id, device);
    this.joined.push(device);
    return device;
  }

  /** A bin of this case, deleted with its items after it. */
  async bin(): Promise<string> {
    const id = `c-${newId().toLowerCase()}`;
    const reply = await this.wire.post('/bins', { id }, { token: this.first.token, shape: 'a' });
    if (reply.status !== 200) throw new Error(`POST /api/bins answers ${reply.status} ${reply.raw}`);
    this.bins.push(id);
    return id;
  }

  /** Registers a bin that the case itself made, to be deleted after the case. */
  ownBin(id: string): string {
    this.bins.push(id);
    return id;
  }

  /** Checks for a rule that `work` takes no version and pushes nothing to `socket`, a socket of the second device. */
  async quietly<T>(check: Check, id: string, socket: Socket, work: () => Promise<T>): Promise<T> {
    const head = await this.head();
    const from = socket.frames.length;
    const result = await work();
    const marker = await this.written();
    await untilVersion(socket, marker.version);
    const pushed = changesOf(socket.frames.slice(from)).filter((change) => change.id !== marker.id);
    check.same(id, marker.version, head + 1, 'version of the next write: no version was taken before it');
    check.same(
      id,
      pushed.map(({ kind, version }) => `${kind} ${version}`),
      [],
      'frames of changes pushed',
    );
    return result;
  }

  /** Polls until a condition holds; false where it does not within `UNTIL_MAX_MS`. */
  async until(holds: () => Promise<boolean>): Promise<boolean> {
    for (const until = Date.now() + UNTIL_MAX_MS; Date.now() < until;) {
      if (await holds()) return true;
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    return false;
  }

  /** Closes, revokes and deletes what belongs to the case. */
  async end(): Promise<void> {
    for (const socket of this.sockets) socket.terminate();
    for (const device of this.joined) {
      if (this.world.devices.has(device.id)) await this.world.revoke(device);
    }
    for (const bin of this.bins) {
      await this.wire.delete(`/bins/${bin}`, { token: this.first.token, shape: 'a', body: { force: true } });
    }
  }
}
