/**
 * Uploads of files, one after the other. Each file is stored in this browser until its item is written, so that neither
 * a closed tab nor an unreachable server loses it; until then it is unencrypted, like the original on the machine.
 */
import type { Clock, Timer } from '../../protocol/clock.js';
import type { ContentType } from '../../protocol/item.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import type { JsonObject } from '../../crypto/payload.js';
import { fileSource, type TransferOptions } from '../../sdk/blobs/source.js';
import type { Device } from '../../sdk/device.js';
import { ClientError, isTransient, QueuedError } from '../../sdk/errors.js';
import { filePayload } from '../../sdk/payloads/shapes.js';
import { failureOf, type Failure, type Upload } from '../link/messages.js';
import { Cell } from './cell.js';
import type { KeyValue } from './key-value.js';

const PREFIX = 'upload:';
const UPLOADS_MAX = 1_000;
/** Pictures up to this size are decoded for their width and height. */
const PICTURE_MAX = 40 * 1024 * 1024;
/** Window over which the speed is measured, and least time between progress reports, ms. */
const SPEED_OVER_MS = 3_000;
const PUBLISH_EVERY_MS = 100;
/** Wait before a retry after a transient failure, unless the connection is back earlier, ms. */
const RETRY_MS = 20_000;

/** A waiting file as stored. `id`: of the item that will be written. */
interface Waiting {
  readonly id: string;
  readonly binId: string;
  readonly file: File;
}

interface Transfer extends Waiting {
  done: number;
  speed: number;
  /** `queued`: sent, and its item waits in the outbox. */
  state: Upload['state'] | 'queued';
  /** The item is in the outbox. */
  kept: boolean;
  problem: Failure | null;
  /** The failure is transient: the file is retried automatically. */
  transient: boolean;
  readonly stop: AbortController;
}

const INITIAL = { done: 0, speed: 0, state: 'waiting', kept: false, problem: null, transient: false } as const;

/** The content type of a file, by its media type. */
export function typeOfFile(mime: string): ContentType {
  const [kind = ''] = mime.split('/');
  // An SVG may contain scripts, so its type is `file`.
  if (mime === 'image/svg+xml') return 'file';
  return kind === 'image' || kind === 'audio' || kind === 'video' ? kind : 'file';
}

async function payloadOf(type: ContentType, file: File): Promise<JsonObject> {
  const { name, size, type: mime } = file;
  const payload = filePayload(type, { name: name === '' ? 'File' : name, size, mime });
  return type === 'image' ? { ...payload, ...(await dimensionsOf(file)) } : payload;
}

async function dimensionsOf(file: File): Promise<JsonObject> {
  if (file.size > PICTURE_MAX) return {};
  try {
    const picture = await createImageBitmap(file);
    const { width: w, height: h } = picture;
    picture.close();
    return { w, h };
  } catch {
    // This browser cannot decode the picture: it is stored without dimensions.
    return {};
  }
}

/** The uploads of an open device. */
export class Uploads {
  readonly list = new Cell<readonly Upload[]>([]);
  private readonly all = new Map<string, Transfer>();
  private readonly sending = new SingleFlight(() => this.sendAll());
  private closed = false;
  private publishedAt = 0;
  private retryTimer: Timer | undefined;
  /** Begun uploads without a file, e.g. cancelled while the server was unreachable: it still reserves their storage. */
  private readonly unwanted = new Set<string>();

  constructor(
    private readonly records: Pick<KeyValue, 'all' | 'putAll' | 'remove'>,
    private readonly ports: {
      readonly device: Pick<Device, 'get' | 'put' | 'uploads' | 'giveUpUpload'>;
      /** Deletes an item; resolves when the deletion is stored on this device. */
      readonly remove: (id: string) => Promise<void>;
      readonly clock: Clock;
      readonly onProblem: (error: unknown) => void;
    },
  ) {}

  /** Resumes the uploads that an earlier run left. */
  async load(): Promise<void> {
    for (const [, value] of await this.records.all(PREFIX)) {
      const waiting = value as Waiting;
      // An item that does not open must not keep the device from opening; a store that cannot be read must.
      const view = await this.ports.device.get(waiting.id).catch((error: unknown) => {
        if (!(error instanceof ClientError)) throw error;
        return undefined;
      });
      // An earlier run has sent it, and ended before it could forget it: sent again, it would replace what came after it.
      if (view?.pending === false) this.drop(waiting.id).catch(this.ports.onProblem);
      else this.take(waiting, view === undefined ? 'waiting' : 'queued');
    }
    // From the local store: the server may be unreachable.
    for (const { id, sent } of await this.ports.device.uploads()) {
      const transfer = this.all.get(id);
      if (transfer === undefined) this.unwanted.add(id);
      else transfer.done = sent;
    }
    this.giveUpUnwanted();
    this.run();
  }

  /**
   * Stores the files, then sends them; those that wait already are not added again. Rejects if there is no room, or the
   * device is closed meanwhile: none is stored.
   */
  async add(chosen: readonly Waiting[]): Promise<void> {
    const files = chosen.filter(({ id }) => !this.all.has(id));
    if (this.all.size + files.length > UPLOADS_MAX) throw new RangeError(`more than ${UPLOADS_MAX} files at once`);
    if (files.length === 0) return;
    this.expectOpen();
    // In one step: what is left of an attempt that failed half-way would be sent by the next start.
    await this.records.putAll(files.map((waiting) => [PREFIX + waiting.id, waiting]));
    if (this.closed) await this.records.remove(...files.map(({ id }) => PREFIX + id));
    this.expectOpen();
    for (const waiting of files) this.take(waiting);
    this.run();
  }

  /** Gives up an upload. Where the file cannot be removed from this browser, this rejects, and the upload goes on. */
  async cancel(id: string): Promise<void> {
    const transfer = this.all.get(id);
    if (transfer === undefined) return;
    transfer.stop.abort();
    try {
      await this.drop(id);
    } catch (error) {
      if (!this.closed) this.take(transfer);
      this.run();
      throw error;
    }
    // Its item is in the outbox, or on the server already: what is kept is deleted, not forgotten.
    await (transfer.kept ? this.ports.remove(id) : this.giveUp(id));
  }

  /** True: the file was in the state `from`, and is sent again. */
  retry(id: string, from: Transfer['state'] = 'failed'): boolean {
    const transfer = this.all.get(id);
    if (transfer?.state !== from) return false;
    transfer.state = 'waiting';
    this.run();
    return true;
  }

  /** The item of a file is in the outbox: from now on it counts as a change. */
  kept(id: string): void {
    const transfer = this.all.get(id);
    if (transfer?.state !== 'sending') return;
    transfer.kept = true;
    this.publish();
  }

  /** The item of a file is on the server. A record that cannot be removed is removed at the next start. */
  written(id: string): void {
    if (!this.all.has(id)) return;
    this.drop(id).catch(this.ports.onProblem);
  }

  /** The connection is back. */
  resume(): void {
    this.giveUpUnwanted();
    for (const { id, transient } of this.all.values()) if (transient) this.retry(id);
  }

  close(): void {
    this.closed = true;
    this.retryTimer?.cancel();
    for (const { stop } of this.all.values()) stop.abort();
    this.all.clear();
    this.list.set([]);
  }

  /** Once closed, perhaps to be forgotten, what is stored would stay, and be sent from the next vault. */
  private expectOpen(): void {
    if (this.closed) throw new ClientError('closed', 'the device was closed');
  }

  private take(waiting: Waiting, state: 'waiting' | 'queued' = 'waiting'): void {
    const kept = state === 'queued';
    this.all.set(waiting.id, { ...waiting, ...INITIAL, state, kept, stop: new AbortController() });
  }

  /** Abandons the upload on the server; repeated when the server is reachable again. */
  private async giveUp(id: string): Promise<void> {
    this.unwanted.delete(id);
    try {
      await this.ports.device.giveUpUpload(id);
    } catch (error) {
      if (this.closed) return;
      if (!isTransient(error)) throw error;
      this.unwanted.add(id);
      this.retryLater();
    }
  }

  private giveUpUnwanted(): void {
    for (const id of [...this.unwanted]) this.giveUp(id).catch(this.ports.onProblem);
  }

  private async drop(id: string): Promise<void> {
    this.all.delete(id);
    this.publish();
    await this.records.remove(PREFIX + id);
  }

  private run(): void {
    this.publish();
    if (!this.closed) this.sending.fresh().catch(this.ports.onProblem);
  }

  private async sendAll(): Promise<void> {
    for (;;) {
      const next = [...this.all.values()].find(({ state }) => state === 'waiting');
      if (next === undefined || this.closed) return;
      await this.send(next);
    }
  }

  private async send(transfer: Transfer): Promise<void> {
    transfer.state = 'sending';
    transfer.kept = false;
    transfer.problem = null;
    this.publish();
    const { id, binId, file, stop } = transfer;
    try {
      const type = typeOfFile(file.type);
      const what = { type, payload: await payloadOf(type, file), content: fileSource(file) };
      await this.ports.device.put({ id, binId, ...what, signal: stop.signal, onProgress: this.progress(transfer) });
      this.written(id);
    } catch (error) {
      if (stop.signal.aborted) return;
      // The server keeps the file for a day; the item waits in the outbox, and may still be refused.
      transfer.kept = error instanceof QueuedError;
      if (transfer.kept) {
        transfer.state = 'queued';
        return this.publish();
      }
      transfer.state = 'failed';
      transfer.problem = failureOf(error);
      transfer.transient = isTransient(error);
      if (transfer.transient) this.retryLater();
      this.publish();
    }
  }

  private retryLater(): void {
    this.retryTimer?.cancel();
    this.retryTimer = this.ports.clock.setTimer(RETRY_MS, () => this.resume());
  }

  private progress(transfer: Transfer): NonNullable<TransferOptions['onProgress']> {
    let from = { at: this.ports.clock.now(), done: 0 };
    return ({ done }) => {
      const now = this.ports.clock.now();
      const passed = now - from.at;
      // The transfer fell back to what the server has, or to the start.
      if (done < from.done) from = { at: now, done };
      else if (passed > 200) transfer.speed = ((done - from.done) / passed) * 1_000;
      if (passed > SPEED_OVER_MS) from = { at: now, done };
      transfer.done = done;
      if (now - this.publishedAt > PUBLISH_EVERY_MS) this.publish();
    };
  }

  private publish(): void {
    this.publishedAt = this.ports.clock.now();
    const shown = [...this.all.values()].map(({ id, file, done, speed, state, kept, problem, transient }) => ({
      ...{ id, name: file.name, size: file.size, done, speed, problem: transient ? null : problem },
      state: state === 'queued' ? ('waiting' as const) : state,
      queued: kept,
    }));
    this.list.set(shown);
  }
}
