/** The operations of a mix, each timed from its scheduled time to its last answer and recorded in the ledger. */
import { hash } from 'node:crypto';
import { blobDecryptor, draftBlob, sealBlobItem, sealDraft } from '../crypto/item.js';
import { makeDeleteTag } from '../crypto/item-tag.js';
import { sealedBlobSize } from '../crypto/blob-stream.js';
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import { delay, systemClock } from '../protocol/clock.js';
import { WaitGroup } from '../protocol/wait-group.js';
import { blobAddress, uploadHeaders } from '../sdk/blobs/exchange.js';
import { count, nonEmpty, object, record, string } from '../sdk/reader.js';
import { ulid } from '../sdk/ulid.js';
import { readItem, writeBody } from '../sdk/wire.js';
import { cappedBody } from '../terminal/read-capped.js';
import { asDevice, type FleetTenant } from './fleet.js';
import { nowUs, type Entry, type Ledger } from './ledger.js';
import type { Meter } from './meter.js';
import { KINDS, type Kind, type Plan } from './plan.js';
import type { SealedPool } from './pool.js';
import { REPLY_MAX, Refused, TIMEOUT_MS, withRetries } from './target.js';
import type { Target, TargetReply, TargetRequest } from './target.js';

/** What the writer works with. */
interface WriterOptions {
  readonly plan: Plan;
  readonly sodium: Sodium;
  readonly target: Target;
  readonly meter: Meter;
  readonly places: readonly { readonly tenant: FleetTenant; readonly ledger: Ledger }[];
  readonly pool: SealedPool;
  readonly measured: (at: number) => boolean;
  /** Ends waits before another attempt. */
  readonly stopped: AbortSignal;
}

/** Attempts of one request; each is the same request. */
const ATTEMPTS = 6;
/** How many versions back a list begins, and the size of its page. */
const LIST_BACK = 60;
const LIST_PAGE = 20;

const changed = object({ version: count });
const upload = object({ blobRef: nonEmpty, url: string, headers: record });
const download = object({ url: string });

/** Performs the operations that are due, concurrently. */
export class Writer {
  /** Operations under way. */
  private readonly running = new WaitGroup();
  private readonly kinds: readonly (readonly [kind: Kind, upTo: number])[];
  private readonly total: number;

  constructor(private readonly options: WriterOptions) {
    let sum = 0;
    this.kinds = KINDS.map((kind) => [kind, (sum += options.plan.mix[kind] ?? 0)] as const);
    this.total = sum;
  }

  /** Begins the operation that was due at `at`. */
  begin(at: number): void {
    const { meter, measured } = this.options;
    meter.time('lag', nowUs() - at, measured(at));
    const dice = Math.random() * this.total;
    const kind = this.kinds.find(([, upTo]) => dice < upTo)?.[0] ?? 'insert';
    const counted = (error: unknown): void => meter.error(error instanceof Refused ? error.code : 'client_fault');
    void this.running.add(this.run(kind, at).catch(counted));
  }

  /** Resolves when nothing is under way any more. */
  done(): Promise<void> {
    return this.running.idle();
  }

  private async run(kind: Kind, at: number): Promise<void> {
    const { places, meter, measured, plan, pool } = this.options;
    const place = Math.floor(Math.random() * places.length);
    const found = places[place];
    if (found === undefined) return;
    const { tenant, ledger } = found;
    const device = Math.floor(Math.random() * tenant.devices.length);
    const done = await this.perform(kind, { place, tenant, ledger, device, at });
    meter.answered(done, nowUs() - at, measured(at));
    if ((plan.mix.replace ?? 0) > 0) pool.prepareReplace(place, ledger);
  }

  /** Performs an operation, or an insert if there is nothing to change or read yet. Resolves with the kind done. */
  private async perform(kind: Kind, call: Call): Promise<Kind> {
    const { ledger, place } = call;
    switch (kind) {
      case 'replace': {
        const sealed = this.options.pool.replace(place);
        const entry = sealed === undefined ? undefined : ledger.byId.get(sealed.id);
        if (sealed === undefined || entry === undefined) break;
        entry.ts = sealed.ts;
        await this.change(call, entry, { method: 'POST', path: '/api/items', body: sealed.body });
        return kind;
      }
      case 'delete': {
        const entry = ledger.take();
        if (entry === undefined) break;
        const tag = makeDeleteTag(this.options.sodium, call.tenant.masterKey, entry.id);
        const body = JSON.stringify({ sig: toBase64Url(tag) });
        await this.change(call, entry, { method: 'DELETE', path: `/api/items/${entry.id}`, body });
        return kind;
      }
      case 'list':
        await this.list(call);
        return kind;
      case 'blob-put':
        await this.putBlob(call);
        return kind;
      case 'blob-get': {
        const entry = ledger.take(({ blob }) => blob !== undefined);
        if (entry === undefined) break;
        await this.getBlob(call, entry)
          .catch((error: unknown) => {
            if (error instanceof Refused && error.status === 404) ledger.faults.add(`the blob of ${entry.id} is gone`);
            throw error;
          })
          .finally(() => ledger.giveBack(entry));
        return kind;
      }
      case 'insert':
    }
    await this.insert(call);
    return 'insert';
  }

  private async insert(call: Call): Promise<void> {
    let sealed = this.options.pool.insert(call.place);
    // The sealing thread is behind: the delay is due to this machine.
    if (sealed === undefined) this.options.pool.starved++;
    while (sealed === undefined) {
      await delay(systemClock, 5, this.options.stopped);
      sealed = this.options.pool.insert(call.place);
    }
    const entry = call.ledger.begin(sealed.id, sealed.ts, call.at);
    await this.change(call, entry, { method: 'POST', path: '/api/items', body: sealed.body });
  }

  /** Sends a change of an item that is `busy` for it, and records the outcome in the ledger. Throws `Refused`. */
  private async change(call: Call, entry: Entry, request: TargetRequest): Promise<void> {
    const { ledger, device, at } = call;
    entry.sentAt = at;
    let doubtful = false;
    try {
      const { body } = await this.send(call, request, () => (doubtful = true));
      const { version } = changed(body, '');
      ledger.acknowledge(entry, version, { device, deletes: request.method === 'DELETE' });
    } catch (error) {
      ledger.fail(entry, doubtful || !(error instanceof Refused) ? 'unknown' : 'no');
      throw error;
    }
  }

  private async list(call: Call): Promise<void> {
    const { ledger } = call;
    const since = Math.max(0, ledger.base + ledger.changes.size - LIST_BACK);
    await this.send(call, { method: 'GET', path: `/api/items?since=${since}&limit=${LIST_PAGE}` });
  }

  private async putBlob(call: Call): Promise<void> {
    const { sodium, plan } = this.options;
    const { tenant, at } = call;
    const ts = systemClock.now();
    const draft = draftBlob(sodium, { type: 'file', ts });
    const plain = sodium.random(plan.blobSize);
    const out = new Uint8Array(sealedBlobSize(plain.length));
    const sealed = Buffer.from(sealDraft(sodium, draft, { first: 0, plain, end: true, out }));
    const contentType = 'application/octet-stream';
    const wish = JSON.stringify({ contentLength: sealedBlobSize(plain.length), contentType });
    const room = upload(
      (await this.send(call, { method: 'POST', path: '/api/blobs/upload-url', body: wish })).body,
      '',
    );
    const address = this.addressOf(room.url);
    const whole = { part: { from: 0, size: sealed.length }, total: sealed.length };
    const headers = uploadHeaders(room.headers, { url: address, ...whole });
    await this.transfer(address, { method: 'PUT', body: sealed, headers });
    const id = ulid(ts, (length) => sodium.random(length));
    const entry = call.ledger.begin(id, ts, at);
    // Set before the item is acknowledged, since another operation may take it from then on.
    entry.blob = { ref: room.blobRef, hash: hashOf(plain) };
    const metadata = { name: 'load', size: plain.length, mime: contentType };
    const item = { id, binId: tenant.binId, draft, ref: room.blobRef, metadata };
    const write = { id, binId: tenant.binId, type: 'file', ts, ifVersion: 0 } as const;
    const body = JSON.stringify(writeBody({ ...write, ...sealBlobItem(sodium, item, tenant) }));
    await this.change(call, entry, { method: 'POST', path: '/api/items', body });
  }

  /** Downloads and decrypts a blob and compares it with the upload; a difference is a fault of the audit. */
  private async getBlob(call: Call, entry: Entry): Promise<void> {
    const { sodium } = this.options;
    const { masterKey } = call.tenant;
    const { blob } = entry;
    if (blob === undefined) return;
    const { url } = download((await this.send(call, { method: 'GET', path: `/api/blobs/${blob.ref}/url` })).body, '');
    const bytes = await this.transfer(this.addressOf(url), { method: 'GET', bytes: true });
    const path = `/api/items?since=${entry.version - 1}&limit=1`;
    const page = record((await this.send(call, { method: 'GET', path })).body, '');
    const row: unknown = Array.isArray(page['items']) ? page['items'][0] : undefined;
    const item = readItem(row, 'type');
    if (item.id !== entry.id || item.deletedAt !== null) {
      // Nothing else changes the entry meanwhile.
      call.ledger.faults.add(`the item of the blob ${entry.id} is not listed under its version`);
      return;
    }
    const opened = (): string => {
      const decryptor = blobDecryptor(sodium, item, { masterKey, device: null });
      const plain = [...decryptor.push(bytes)].map((part) => new Uint8Array(part));
      return hashOf(Buffer.concat([...plain, decryptor.finish()]));
    };
    let same = false;
    try {
      same = opened() === blob.hash;
    } finally {
      if (!same) call.ledger.faults.add(`the blob of ${entry.id} is not what was uploaded`);
    }
  }

  /** A signed URL that clients use too: the server may name any. Throws `ProtocolError`. */
  private addressOf(url: string): URL {
    return blobAddress(url, this.options.target.url.href);
  }

  /** The bytes that a signed URL answers: of this server, whose name may not resolve to it here, or of a bucket elsewhere. */
  private async transfer(url: URL, request: Transfer): Promise<Buffer> {
    const { target } = this.options;
    const { host, pathname, search, searchParams } = url;
    const path = `${pathname}${search}`;
    // A bucket may be named `blobs`, with its name in the path: its signatures have other parameters.
    if (pathname.startsWith('/blobs/') && searchParams.has('sig') && searchParams.has('exp'))
      return (await target.send({ ...request, path, host })).bytes;
    const { method, headers, body } = request;
    try {
      const signal = AbortSignal.timeout(TIMEOUT_MS);
      const reply = await fetch(url, { method, headers, body, redirect: 'error', signal });
      if (!reply.ok) throw new Refused(`store_${reply.status}`, reply.status);
      return await cappedBody(reply, REPLY_MAX);
    } catch (error) {
      throw error instanceof Refused ? error : new Refused('store_0', 0);
    }
  }

  /**
   * Sends a request until its answer is final. Every refusal is counted by its code. `onDoubt` is called if an attempt
   * may have been executed without an answer. Throws the last `Refused`.
   */
  private send(call: Call, request: TargetRequest, onDoubt: () => void = () => undefined): Promise<TargetReply> {
    const { target, meter, stopped } = this.options;
    const { tenant, device } = call;
    const once = (): Promise<TargetReply> => {
      // The tenant, or its bin, is about to be removed: anything written after that would stay.
      if (stopped.aborted) return Promise.reject(new Refused('stopped', 0));
      return target.send(asDevice(tenant, request, device)).catch((error: unknown) => {
        if (error instanceof Refused && error.doubtful) onDoubt();
        throw error;
      });
    };
    return withRetries(once, { attempts: ATTEMPTS, signal: stopped, onRetry: ({ code }) => meter.error(code) });
  }
}

/** A request to a signed URL. */
interface Transfer extends Omit<TargetRequest, 'path' | 'body'> {
  readonly body?: Uint8Array<ArrayBuffer>;
}

interface Call {
  /** Index of the tenant among those of the process. */
  readonly place: number;
  readonly tenant: FleetTenant;
  readonly ledger: Ledger;
  readonly device: number;
  readonly at: number;
}

const hashOf = (bytes: Uint8Array): string => hash('sha256', bytes, 'base64');
