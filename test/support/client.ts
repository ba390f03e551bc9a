/** Stand-ins for what a client runs on, and sealed items to feed it. */
import { certifyDevice } from '../../src/crypto/device.js';
import { makeDeleteTag } from '../../src/crypto/item-tag.js';
import { sealItem } from '../../src/crypto/item.js';
import type { JsonObject } from '../../src/crypto/payload.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import type { ContentType, LiveItem } from '../../src/protocol/item.js';
import type { Identity } from '../../src/sdk/identity.js';
import type { Fetch, OpenSocket, SocketEvents, SocketPort } from '../../src/sdk/platform.js';
import { MemoryStore } from '../../src/sdk/store/store.js';
import { ulid } from '../../src/sdk/ulid.js';

/** Lets everything that is ready run: promises first, then what they made ready. */
export const settle = async (): Promise<void> => {
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
};

export const newId = (): string => ulid(Date.now(), (length) => nodeSodium.random(length));

/** A device with keys and a master key, of no server. */
export function newIdentity(overrides: Partial<Identity> = {}): Identity {
  return {
    serverUrl: 'http://server.test',
    tenantId: 'tenant',
    deviceId: newId(),
    name: 'Test',
    glyph: 'laptop',
    keys: nodeSodium.boxKeyPair(),
    masterKey: nodeSodium.random(32),
    token: { text: 'token', expiresAt: null },
    ...overrides,
  };
}

/** The store of a device that has read before: a new one asks for the epoch first. */
export async function usedStore(): Promise<MemoryStore> {
  const store = new MemoryStore();
  await store.apply({ cursor: { since: 0, epoch: 'e' } });
  return store;
}

/** A device as others must know it to seal for it. */
export const listed = ({ deviceId, keys, masterKey }: Identity) => ({
  id: deviceId,
  publicKey: keys.publicKey,
  cert: certifyDevice(nodeSodium, masterKey, { id: deviceId, publicKey: keys.publicKey }),
});

interface RowFields {
  readonly version: number;
  readonly id?: string;
  readonly binId?: string;
  readonly type?: ContentType;
  readonly ts?: number;
  readonly payload?: JsonObject;
}

/** A row as an honest device made it, sealed for `to`. */
export function sealedRow(to: Identity, fields: RowFields): LiveItem {
  const { version, id = newId(), binId = 'inbox', type = 'text', ts = 1_700_000_000_000 + version } = fields;
  const payload = fields.payload ?? { text: `text ${version}` };
  const recipients = { masterKey: to.masterKey, devices: [listed(to)] };
  const sealed = sealItem(nodeSodium, { id, binId, type, ts, payload }, recipients);
  return { id, binId, type, ts, ...sealed, senderDevice: to.deviceId, version, deletedAt: null };
}

export const deleteTag = (of: Identity, id: string): Uint8Array => makeDeleteTag(nodeSodium, of.masterKey, id);

/** A connection that a client opened, in the test's hand. */
interface FakeConnection {
  readonly url: string;
  /** Frames the client sent, parsed. */
  readonly sent: Record<string, unknown>[];
  readonly events: SocketEvents;
  closed: { code: number; reason: string } | null;
  /** Sends the client a frame. */
  frame(value: unknown): void;
}

/** A socket port that connects to nobody. */
export function fakeSockets(): { readonly port: SocketPort; readonly connections: FakeConnection[] } {
  const connections: FakeConnection[] = [];
  const port: SocketPort = {
    open(url, events): OpenSocket {
      const connection: FakeConnection = {
        url,
        events,
        sent: [],
        closed: null,
        frame: (value) => events.message(typeof value === 'string' ? value : JSON.stringify(value)),
      };
      connections.push(connection);
      return {
        send: (text) => void connection.sent.push(JSON.parse(text) as Record<string, unknown>),
        close: (code, reason) => {
          connection.closed = { code, reason };
        },
      };
    },
  };
  return { port, connections };
}

/** What a fake server answers: status, body, headers; or an error that `fetch` throws. */
export type FakeAnswer = { status?: number; body?: unknown; headers?: Record<string, string> } | Error;

interface FakeRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Record<string, string>;
  readonly body: unknown;
}

/** A `fetch` that asks `answer`, and what it was asked. */
export function fakeFetch(answer: (request: FakeRequest, nth: number) => FakeAnswer | Promise<FakeAnswer>): {
  readonly fetch: Fetch;
  readonly requests: FakeRequest[];
} {
  const requests: FakeRequest[] = [];
  const fetch: Fetch = async (url, init) => {
    const { pathname, search } = new URL(url);
    const request = {
      method: init.method ?? 'GET',
      path: `${pathname.replace(/^\/api/, '')}${search}`,
      headers: init.headers as Record<string, string>,
      body: typeof init.body === 'string' ? (JSON.parse(init.body) as unknown) : null,
    };
    requests.push(request);
    const aborted = new Promise<never>((_, reject) => {
      init.signal?.addEventListener('abort', () => reject(new Error('aborted')), { once: true });
    });
    const found = await Promise.race([Promise.resolve(answer(request, requests.length - 1)), aborted]);
    if (found instanceof Error) throw found;
    return new Response(JSON.stringify(found.body ?? {}), { status: found.status ?? 200, headers: found.headers });
  };
  return { fetch, requests };
}
