/** The parts of a device that write, over an API that the test controls. */
import { DeviceApi } from '../../src/sdk/api.js';
import { Emitter, type DeviceEvents } from '../../src/sdk/events.js';
import type { Call, HttpReply, HttpRequest } from '../../src/sdk/http.js';
import type { Identity } from '../../src/sdk/identity.js';
import { Outbox } from '../../src/sdk/outbox.js';
import { DeviceList } from '../../src/sdk/device-list.js';
import { Sender } from '../../src/sdk/sender.js';
import { MemoryStore, type Batch, type Entry } from '../../src/sdk/store/store.js';
import { Writer } from '../../src/sdk/writer.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { toBase64Url } from '../../src/protocol/base64.js';
import { listed, newIdentity } from './client.js';
import { noBlobs } from './sealed-blobs.js';
import { TestClock } from './clock.js';

type Json = Record<string, unknown>;

/** Callers of `pass` wait until the test opens the gate. */
export class Gate {
  private closed: Promise<void> | undefined;
  private opened: () => void = () => undefined;

  close(): void {
    this.closed = new Promise((resolve) => {
      this.opened = resolve;
    });
  }

  open(): void {
    this.closed = undefined;
    this.opened();
  }

  async pass(): Promise<void> {
    await this.closed;
  }
}

/** Calls take effect in their order, as the port demands; only their answers are late. */
export class SlowStore extends MemoryStore {
  readonly applying = new Gate();
  getting = new Gate();

  override async apply(batch: Batch): Promise<void> {
    const applied = super.apply(batch);
    await this.applying.pass();
    await applied;
  }

  override async get(id: string): Promise<Entry | undefined> {
    const found = await super.get(id);
    await this.getting.pass();
    return found;
  }
}

interface Sent {
  readonly path: string;
  readonly writes: readonly Json[];
  answer(body: unknown): void;
  refuse(error: Error): void;
}

const bodyOf = (request: HttpRequest): Json => (request.json === undefined ? {} : (JSON.parse(request.json) as Json));

export async function parts(store: MemoryStore, me: Identity = newIdentity()) {
  const clock = new TestClock();
  const sent: Sent[] = [];
  const own = listed(me);
  const device = {
    id: me.deviceId,
    name: 'Test',
    glyph: 'laptop',
    pubkey: toBase64Url(own.publicKey),
    pairedAt: 1,
    cert: toBase64Url(own.cert),
    online: true,
    current: true,
  };
  const call: Call = (request) => {
    if (request.path === '/devices') return Promise.resolve({ status: 200, body: { devices: [device] } });
    const body = bodyOf(request);
    const writes = request.path === '/items/batch' ? (body['items'] as Json[]) : [body];
    return new Promise<HttpReply>((resolve, reject) => {
      sent.push({
        path: request.path,
        writes,
        answer: (reply) => resolve({ status: 200, body: reply }),
        refuse: reject,
      });
    });
  };
  const api = new DeviceApi(call);
  const problems: Error[] = [];
  const rejected: DeviceEvents['rejected'][] = [];
  const emitter = new Emitter((error) => problems.push(error));
  emitter.on('problem', ({ error }) => problems.push(error));
  emitter.on('rejected', (event) => rejected.push(event));
  const { emit } = emitter;
  const sodium = nodeSodium;
  const reader = { masterKey: me.masterKey, device: { id: me.deviceId, keys: me.keys } };
  const outbox = await Outbox.load(store, clock);
  const deviceList = new DeviceList({ api, sodium, identity: me, emit, clock });
  const base = { api, store, outbox, deviceList, sodium, reader, clock, random: () => 0, emit };
  const sender = new Sender({ ...base, epoch: () => Promise.resolve(null), catchUp: () => Promise.resolve() });
  const writer = new Writer({
    identity: me,
    store,
    outbox,
    sender,
    deviceList,
    sodium,
    reader,
    clock,
    admissible: (ts) => ts,
    begun: { learned: () => Promise.resolve() },
    blobs: noBlobs,
  });
  await deviceList.list();
  return { me, clock, sent, problems, rejected, store, outbox, sender, writer };
}
