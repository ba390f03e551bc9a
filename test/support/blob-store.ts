/** A small store of blobs over HTTP that a test can make stumble and lie, and what a transfer asks of its device. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { nodePlatform } from '../../src/sdk/node-platform.js';
import type { DownloadPorts } from '../../src/sdk/blobs/download.js';
import { BegunUploads } from '../../src/sdk/blobs/begun.js';
import type { UploadPorts } from '../../src/sdk/blobs/upload.js';
import { ApiError } from '../../src/sdk/errors.js';
import type { UploadState } from '../../src/sdk/replies.js';
import { MemoryStore, type Store } from '../../src/sdk/store/store.js';
import { blobDecryptor, sealBlobItem, type BlobDraft } from '../../src/crypto/item.js';
import type { SealedItem } from '../../src/crypto/item-tag.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import type { Clock, Timer } from '../../src/protocol/clock.js';
import { newId } from './client.js';
import { openFor } from './loopback-server.js';
import type { WithTeardown } from './postgres.js';

/** A request as the store got it. */
export interface StoreCall {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
  readonly body: Buffer;
}

/** Answers in the store's place; false: it shall answer by itself. */
export type Trick = (call: StoreCall, response: ServerResponse) => boolean;

/** The store, and what a test sees and changes of it. */
export interface StandInStore {
  readonly origin: string;
  readonly objects: Map<string, Buffer>;
  /** Bytes of the uploads that the server knows, by reference. */
  readonly uploads: Map<string, number>;
  readonly calls: StoreCall[];
  /** Tried in the order of calls: the first call meets the first trick. */
  readonly tricks: Trick[];
}

const UNREAD_MAX = 64 * 1024 * 1024;

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of request) {
    length += (part as Buffer).length;
    if (length <= UNREAD_MAX) parts.push(part as Buffer);
  }
  return Buffer.concat(parts);
}

function answer(store: StandInStore, call: StoreCall, response: ServerResponse): void {
  if (call.method === 'PUT') {
    const { pathname, searchParams } = new URL(call.path, store.origin);
    const before = (store.objects.get(pathname) ?? Buffer.alloc(0)).subarray(0, Number(searchParams.get('from') ?? 0));
    store.objects.set(pathname, Buffer.concat([before, call.body]));
    response.writeHead(200).end();
    return;
  }
  const object = store.objects.get(call.path);
  if (object === undefined) {
    response.writeHead(404).end();
    return;
  }
  const from = Number(/^bytes=(\d+)-$/.exec(call.headers.range ?? '')?.[1] ?? 0);
  if (from >= object.length && from > 0) {
    response.writeHead(416).end();
    return;
  }
  const headers: Record<string, string | number> = { 'content-length': object.length - from };
  if (from > 0) headers['content-range'] = `bytes ${from}-${object.length - 1}/${object.length}`;
  response.writeHead(from > 0 ? 206 : 200, headers).end(object.subarray(from));
}

/** Starts one on a free port. */
export async function standInStore(t: WithTeardown): Promise<StandInStore> {
  const server = createServer((request, response) => {
    void (async () => {
      const call: StoreCall = {
        method: request.method ?? '',
        path: request.url ?? '',
        headers: request.headers,
        body: request.method === 'PUT' ? await bodyOf(request) : Buffer.alloc(0),
      };
      store.calls.push(call);
      const trick = store.tricks.shift();
      if (trick === undefined || !trick(call, response)) answer(store, call, response);
    })().catch(() => response.destroy());
  });
  const origin = `http://127.0.0.1:${await openFor(t, server)}`;
  const store: StandInStore = { origin, objects: new Map(), uploads: new Map(), calls: [], tricks: [] };
  return store;
}

/** Waits of up to 10 s are over at once and noted; longer ones come when the test says so. */
class HastyClock implements Clock {
  readonly waits: number[] = [];
  time = Date.now();
  private readonly long = new Map<() => void, number>();

  now(): number {
    return this.time;
  }

  setTimer(ms: number, fn: () => void): Timer {
    if (ms > 10_000) {
      this.long.set(fn, ms);
      return { cancel: () => void this.long.delete(fn) };
    }
    this.waits.push(ms);
    const timer = setImmediate(fn);
    return { cancel: () => clearImmediate(timer) };
  }

  /** The long waits that are under way are over. */
  ring(): void {
    for (const fn of [...this.long.keys()]) fn();
  }

  /** A long wait of this time is under way. */
  waitsFor(ms: number): boolean {
    return [...this.long.values()].includes(ms);
  }
}

/** A grant as the server gives it; a test may bend it. */
interface Granted {
  readonly blobRef: string;
  url: string;
  expiresAt: number;
  headers: Record<string, unknown> | null;
}

/** What transfers stand on, with a server that hands out addresses of the store. */
export interface Transfers {
  readonly ports: UploadPorts & DownloadPorts;
  readonly clock: HastyClock;
  readonly lifetime: AbortController;
  /** What its jitter draws. */
  random: number;
  /** References for which an address was handed out, in order. */
  readonly granted: string[];
  alterGrant: (grant: Granted) => Granted;
  /** What the server says of an upload instead of the truth. */
  alterState: (truth: UploadState) => UploadState;
  /** References that were given up. */
  readonly ended: string[];
  /** Bytes that the server says a blob has; null: nothing said. */
  size: (ref: string) => number | null;
}

const platform = await nodePlatform();
const MASTER = nodeSodium.random(32);

/** Bytes of a part. */
export const PART_BYTES = 5 * 1024 * 1024;

/** What an upload and a download of this store stand on. `kept`: where begun uploads are kept. */
export function transfers(store: StandInStore, kept: Store = new MemoryStore()): Transfers {
  const clock = new HastyClock();
  const { uploads: sizes } = store;
  const lifetime = new AbortController();
  const grant = (ref: string): Granted => {
    all.granted.push(ref);
    const url = `${store.origin}/${ref}?n=${all.granted.length}`;
    return all.alterGrant({ blobRef: ref, url, expiresAt: clock.now() + 900_000, headers: null });
  };
  const standing = (ref: string): Promise<UploadState> => {
    const size = sizes.get(ref);
    if (size === undefined) return Promise.reject(new ApiError({ code: 'no_blob', status: 404, message: 'gone' }));
    const offset = store.objects.get(`/${ref}`)?.length ?? 0;
    const { url, expiresAt, headers } = grant(ref);
    const parts: UploadState['parts'] = [];
    for (let from = offset; from < size && parts.length < 16;) {
      const part = { from, size: Math.min(size, (Math.floor(from / PART_BYTES) + 1) * PART_BYTES) - from };
      parts.push({ ...part, url: from === 0 ? url : `${url}?from=${from}`, headers });
      from += part.size;
    }
    return Promise.resolve(all.alterState({ blobRef: ref, size, offset, expiresAt, parts }));
  };
  const all: Transfers = {
    clock,
    lifetime,
    random: 0,
    granted: [],
    alterGrant: (one) => ({ ...one, url: one.url.replace(/\?.*/, '') }),
    alterState: (truth) => truth,
    ended: [],
    size: (ref) => store.objects.get(`/${ref}`)?.length ?? null,
    ports: {
      ...platform,
      clock,
      random: () => all.random,
      lifetime: lifetime.signal,
      baseUrl: store.origin,
      clockOffset: () => null,
      begun: new BegunUploads({
        sodium: platform.sodium,
        store: kept,
        reader: { masterKey: MASTER, device: null },
        clock,
      }),
      api: {
        beginUpload: ({ contentLength }) => {
          const ref = `${newId()}.bin`;
          sizes.set(ref, contentLength);
          return standing(ref);
        },
        continueUpload: standing,
        endUpload: (ref) => {
          all.ended.push(ref);
          sizes.delete(ref);
          return Promise.resolve();
        },
        downloadUrl: (ref) => Promise.resolve({ ...grant(ref), size: all.size(ref) }),
      },
    },
  };
  return all;
}

/** What opens the blob of a draft, as its item would. */
export function decryptorOf(draft: BlobDraft, ref: string) {
  const head = { id: newId(), binId: 'inbox', type: draft.type, ts: draft.ts };
  const to = { masterKey: MASTER, devices: [] };
  const item: SealedItem = { ...head, ...sealBlobItem(nodeSodium, { ...head, draft, ref, metadata: null }, to) };
  return blobDecryptor(nodeSodium, item, { masterKey: MASTER, device: null });
}
