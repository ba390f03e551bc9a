/** The items of a client, and how it applies changes, by the reference's page on Sockets. Uses nothing of `src/`. */
import { bytes, readItem, type Device, type Json } from './client.js';
import * as crypto from './cryptography.js';
import type { Sealed } from './cryptography.js';

type State = 'live' | 'hidden' | 'deleted';

/** An item. `version` is 0 where the current history does not contain it, as far as it was read. */
interface Entry {
  readonly version: number;
  readonly state: State;
  /** The last state that verified, and its payload's text. */
  readonly good: { readonly item: Sealed; readonly json: string } | null;
}

/** An item as it is shown: `hidden` where only its last good state is left. */
interface Shown {
  readonly id: string;
  readonly json: string;
  readonly hidden: boolean;
}

interface End {
  readonly version: number;
  readonly epoch: string;
  readonly itemCount: number;
  readonly versionSum: number;
}

const EPOCH_MAX = 256;
const reasonOf = (error: unknown): string => (error instanceof Error ? error.message : 'bad_row');
const sameBytes = (one?: Buffer, other?: Buffer): boolean => (one ?? Buffer.alloc(0)).equals(other ?? Buffer.alloc(0));
const sameContent = (one: Sealed, other: Sealed): boolean =>
  sameBytes(one.ct, other.ct) &&
  sameBytes(one.nonce, other.nonce) &&
  one.blob?.ref === other.blob?.ref &&
  sameBytes(one.blob?.nonce, other.blob?.nonce);

/** What a device holds. Problems go to `report`: nothing is repaired silently. */
export class Replica {
  private readonly entries = new Map<string, Entry>();
  /** Items whose delete verified in this history: they stay deleted, whatever the server sends. */
  private readonly gone = new Set<string>();
  private since = 0;
  private epoch: string | undefined;

  constructor(
    private readonly device: Device,
    private readonly report: (problem: string) => void,
  ) {}

  shown(): Shown[] {
    return [...this.entries].flatMap(([id, { state, good }]) =>
      good === null ? [] : [{ id, json: good.json, hidden: state !== 'live' }],
    );
  }

  item(id: string): Sealed {
    const good = this.entries.get(id)?.good;
    if (!good) throw new Error('no such item');
    return good.item;
  }

  /** Catches up over a socket; where head, count or sum do not match, reads all pages again and replays once more. */
  async sync(): Promise<void> {
    if (await this.replay()) return;
    await this.readAgain();
    if (!(await this.replay())) this.report('missing');
  }

  /** One replay. False where what is held does not match the head, count and sum of `caught_up`. */
  private async replay(): Promise<boolean> {
    const line = await this.device.connect(this.since, this.epoch);
    try {
      for (let resets = 0; ;) {
        const frame = await line.next();
        if (frame['type'] === 'reset') {
          if (++resets > 1) throw new Error('epoch_changed');
          this.reset(frame['epoch']);
        } else if (frame['type'] === 'caught_up') return this.settle(frame as unknown as End);
        else if (frame['type'] === 'item' || frame['type'] === 'delete') this.apply(frame, frame['type'] === 'item');
      }
    } finally {
      line.close();
    }
  }

  private reset(epoch: unknown): void {
    if (typeof epoch !== 'string' || epoch.length > EPOCH_MAX) throw new Error('malformed');
    this.report('reset');
    this.gone.clear();
    [this.epoch, this.since] = [epoch, 0];
    for (const [id, entry] of this.entries) this.entries.set(id, { ...entry, version: 0 });
  }

  private settle({ version, epoch, itemCount, versionSum }: End): boolean {
    if (typeof epoch !== 'string' || epoch.length > EPOCH_MAX) throw new Error('malformed');
    if (this.epoch !== undefined && epoch !== this.epoch) throw new Error('epoch_changed');
    this.epoch = epoch;
    const counted = [...this.entries.values()].filter((entry) => entry.state !== 'deleted' && entry.version > 0);
    const sum = counted.reduce((all, entry) => all + entry.version, 0);
    return counted.length === itemCount && sum === versionSum && this.since === version;
  }

  /** Reads all pages from 0. Items that are held and not listed are reported, stay readable, and no longer count. */
  private async readAgain(): Promise<void> {
    const listed = new Set<string>();
    for (let since = 0, more = true; more;) {
      const epoch = this.epoch === undefined ? '' : `&epoch=${encodeURIComponent(this.epoch)}`;
      const page = await this.device.call<{ items: Json[]; nextSince: number; hasMore: boolean; reset?: boolean }>(
        'GET',
        `/items?since=${since}${epoch}`,
      );
      if (page.reset === true) throw new Error('epoch_changed');
      for (const row of page.items) {
        if (row['deletedAt'] === null) listed.add(String(row['id']));
        this.apply(row, row['deletedAt'] === null);
      }
      if (page.hasMore && (page.items.length === 0 || !(page.nextSince > since))) throw new Error('bad_listing');
      [since, more] = [page.nextSince, page.hasMore];
    }
    for (const [id, entry] of this.entries) {
      if (listed.has(id) || entry.state === 'deleted') continue;
      this.report('missing');
      this.entries.set(id, { ...entry, version: 0 });
    }
  }

  /** Applies a frame or a row; one that is not newer than what is held changes no item. */
  private apply(row: Json, live: boolean): void {
    const { id, version } = row as { id: unknown; version: unknown };
    if (typeof id !== 'string' || !Number.isSafeInteger(version) || Number(version) < 1) {
      this.report('bad_row');
      return;
    }
    const before = this.entries.get(id);
    this.since = Math.max(this.since, Number(version));
    if (before !== undefined && before.version >= Number(version)) return;
    const next = live ? this.arrived(row, before) : this.deleted(row, before);
    if (next !== undefined) this.entries.set(id, { ...next, version: Number(version) });
  }

  private arrived(row: Json, before: Entry | undefined): Omit<Entry, 'version'> {
    try {
      const item = readItem(row);
      this.compare(item, before);
      const { json } = crypto.openItem(item, this.device.reader);
      return { state: 'live', good: { item, json: json ?? '{}' } };
    } catch (error) {
      this.report(reasonOf(error));
      return { state: 'hidden', good: before?.good ?? null };
    }
  }

  /** Throws where the server brings back a deleted item or an older state. */
  private compare(item: Sealed, before: Entry | undefined): void {
    if (this.gone.has(item.id)) throw new Error('resurrected');
    if (before === undefined) return;
    const { state, good, version } = before;
    const forgotten = version === 0;
    if (state === 'deleted' && !forgotten && good !== null && item.ts <= good.item.ts) throw new Error('resurrected');
    if (state === 'deleted' || good === null) return;
    if (item.ts < good.item.ts) throw new Error('rolled_back');
    if (item.ts === good.item.ts && !forgotten && !sameContent(item, good.item)) throw new Error('rolled_back');
  }

  private deleted(row: Json, before: Entry | undefined): Omit<Entry, 'version'> | undefined {
    const holds = crypto.equal(bytes(row['sig'] ?? ''), crypto.deleteTag(String(row['id']), this.device.master));
    if (holds) this.gone.add(String(row['id']));
    if (holds) return { state: 'deleted', good: null };
    if (before === undefined) return undefined;
    if (before.state !== 'deleted') this.report('untagged_delete');
    return { state: 'deleted', good: before.good };
  }
}
