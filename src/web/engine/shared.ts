/**
 * What other apps shared into this one, until it is put: kept by the service worker, also while the device is locked or
 * there is none, and read by the engine.
 */
import { SERVICE_NAME } from '../../protocol/limits.js';
import { newItemId } from '../random.js';
import { KeyValue } from './key-value.js';

/** Database, and channel on which changes are told. */
const NAME = `${SERVICE_NAME}-web-shared`;
/** Shares that wait, files of one, characters of its texts, and bytes of all: more is refused. */
const SHARES_MAX = 50;
const FILES_MAX = 100;
const TEXT_MAX = 1_000_000;
const BYTES_MAX = 2 ** 30;

/** A share as it comes. */
export interface NewShare {
  readonly title: string;
  readonly text: string;
  readonly url: string;
  readonly files: readonly File[];
}

/** A share that waits. Ids are ULIDs, for the items that it becomes: putting it twice gives them once. */
export interface Share extends Omit<NewShare, 'files'> {
  readonly id: string;
  readonly files: readonly { readonly id: string; readonly file: File }[];
}

/** Why a share was not kept: nothing in it, too much of it, no room left, the form could not be read, a site sent it. */
export type ShareRefusal = 'empty' | 'too_large' | 'full' | 'unreadable' | 'foreign';

const bytesOf = ({ text, title, url, files }: Share): number =>
  files.reduce((sum, { file }) => sum + file.size, 2 * (text.length + title.length + url.length));

/** The shares that wait. */
export class Shared {
  private readonly channel = new BroadcastChannel(NAME);
  private readonly listeners = new Set<() => void>();

  private constructor(private readonly records: KeyValue) {
    this.channel.onmessage = () => this.tell();
  }

  /** Rejects with the `DOMException` of IndexedDB. */
  static async open(): Promise<Shared> {
    return new Shared(await KeyValue.open(NAME));
  }

  /** Keeps a share; resolves with the reason where it does not. Rejects where the browser's storage fails otherwise. */
  async add({ files, ...texts }: NewShare): Promise<ShareRefusal | null> {
    const share: Share = { ...texts, id: newItemId(), files: files.map((file) => ({ id: newItemId(), file })) };
    if (files.length === 0 && Object.values(texts).every((text) => text === '')) return 'empty';
    const characters = Object.values(texts).reduce((sum, text) => sum + text.length, 0);
    if (files.length > FILES_MAX || characters > TEXT_MAX || bytesOf(share) > BYTES_MAX) return 'too_large';
    const waiting = await this.list();
    const bytes = waiting.reduce((sum, one) => sum + bytesOf(one), bytesOf(share));
    if (waiting.length >= SHARES_MAX || bytes > BYTES_MAX) return 'full';
    try {
      await this.records.put(share.id, share);
    } catch (error) {
      if (error instanceof DOMException && error.name === 'QuotaExceededError') return 'full';
      throw error;
    }
    this.changed();
    return null;
  }

  /** The shares that wait, oldest first. */
  async list(): Promise<readonly Share[]> {
    return (await this.records.all('')).map(([, share]) => share as Share);
  }

  /** Removes a share: it was put, or a person does not want it. */
  async take(id: string): Promise<void> {
    await this.records.remove(id);
    this.changed();
  }

  /** Removes all. */
  async clear(): Promise<void> {
    await this.records.clear();
    this.changed();
  }

  /** `listener` is called after each change, by the service worker too; the result ends that. */
  watch(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  close(): void {
    this.channel.close();
    this.records.close();
  }

  private changed(): void {
    this.channel.postMessage(null);
    this.tell();
  }

  private tell(): void {
    for (const listener of this.listeners) listener();
  }
}
