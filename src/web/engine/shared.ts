/**
 * Content that other apps shared into this one, until it is put: stored by the service worker, even while the device is
 * locked or there is none, and read by the engine.
 */
import { SERVICE_NAME } from '../../protocol/limits.js';
import { newItemId } from '../random.js';
import { KeyValue } from './key-value.js';

/** Name of the database, and of the channel that announces changes. */
const NAME = `${SERVICE_NAME}-web-shared`;
/** Bounds: waiting shares, files of one, characters of its texts, bytes of all. More is refused. */
const SHARES_MAX = 50;
const FILES_MAX = 100;
const TEXT_MAX = 1_000_000;
const BYTES_MAX = 2 ** 30;

/** A share as received. */
export interface NewShare {
  readonly title: string;
  readonly text: string;
  readonly url: string;
  readonly files: readonly File[];
}

/** A waiting share. The ids are the ULIDs of the items it becomes, so that putting it twice makes no duplicates. */
export interface Share extends Omit<NewShare, 'files'> {
  readonly id: string;
  readonly files: readonly { readonly id: string; readonly file: File }[];
}

/** Why a share was not stored: nothing in it, too much in it, no room, an unreadable form, sent by another site. */
export type ShareRefusal = 'empty' | 'too_large' | 'full' | 'unreadable' | 'foreign';

const bytesOf = ({ text, title, url, files }: Share): number =>
  files.reduce((sum, { file }) => sum + file.size, 2 * (text.length + title.length + url.length));

/** The waiting shares of this browser. */
export class Shared {
  private readonly channel = new BroadcastChannel(NAME);
  /** Called after each change, also after one that another worker made. */
  onChange: () => void = () => undefined;

  private constructor(private readonly records: KeyValue) {
    this.channel.onmessage = () => this.onChange();
  }

  /** Rejects with the `DOMException` of IndexedDB. */
  static async open(): Promise<Shared> {
    return new Shared(await KeyValue.open(NAME));
  }

  /** Stores a share; resolves with the reason if it is refused. Rejects if the browser's storage fails otherwise. */
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

  /** The waiting shares, oldest first. */
  async list(): Promise<readonly Share[]> {
    return (await this.records.all('')).map(([, share]) => share as Share);
  }

  /** Removes a share that was put or discarded. */
  async remove(id: string): Promise<void> {
    await this.records.remove(id);
    this.changed();
  }

  async clear(): Promise<void> {
    await this.records.clear();
    this.changed();
  }

  close(): void {
    this.channel.close();
    this.records.close();
  }

  private changed(): void {
    this.channel.postMessage(null);
    this.onChange();
  }
}
