/** Bins with their decrypted names, which the server cannot read. */
import { toBase64Url } from '../protocol/base64.js';
import { asError } from '../protocol/error-code.js';
import { isDisplayName } from '../protocol/ids.js';
import { DEFAULT_BIN, NAME_MAX } from '../protocol/limits.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { openLabel, sealLabel } from './bin-label.js';
import { ClientError, isConflict } from './errors.js';
import { type BinLabel, type BinView, type DeviceEvents } from './events.js';
import { ListSubscriptions, type Subscription } from './list-subscriptions.js';
import type { ItemReader } from './item-reader.js';
import type { BinRow } from './replies.js';
import type { Sync } from './sync.js';
import type { Writer } from './writer.js';
import type { Core } from './core.js';

/** Items may arrive in a bin while it is being emptied. After this many rounds the conflict goes to the caller. */
const ROUNDS_MAX = 3;

/** Throws `ClientError` `default_bin` for the bin that every tenant has. */
export function expectRemovable(id: string): void {
  if (id === DEFAULT_BIN) throw new ClientError('default_bin', `the bin ${DEFAULT_BIN} cannot be removed`);
}

/** The bins of a tenant, read from the server at each call. */
export class Bins {
  private readonly reading = new SingleFlight((reason: DeviceEvents['bins']['reason']) => this.read(reason));

  private readonly subscriptions: ListSubscriptions<BinView>;

  constructor(
    private readonly options: Pick<Core, 'api' | 'sodium' | 'reader' | 'emit' | 'onProblem'> & {
      readonly items: ItemReader;
      readonly writer: Writer;
      readonly sync: Sync;
    },
  ) {
    this.subscriptions = new ListSubscriptions(JSON.stringify, options.onProblem);
  }

  async list(): Promise<readonly BinView[]> {
    return (await this.options.api.bins()).map((row) => this.view(row));
  }

  /**
   * Subscribes to the list: the current one first, then each one that differs. It is read again after each `caught_up`
   * and when a bin changes; `itemCount` is as of that reading (a live query's `total` is always current). Rejects as
   * `list`.
   */
  subscribe(listener: (bins: readonly BinView[]) => void): Promise<Subscription<BinView>> {
    return this.subscriptions.subscribe(listener, () => this.list());
  }

  /**
   * Reads the list and emits event `bins`. Calls during a reading share the next one, because the current reading may
   * be older than the change that caused the call. Rejects as `list`.
   */
  refresh(reason: DeviceEvents['bins']['reason']): Promise<void> {
    return this.reading.fresh(reason);
  }

  /**
   * Creates a bin. Throws `ApiError` `conflict` where id or slug are taken, `RangeError` for a name that is not
   * displayable.
   */
  async create(id: string, label: BinLabel, slug?: string): Promise<BinView> {
    const { api } = this.options;
    const meta = this.sealed(id, label);
    let repeated = false;
    const made = await api
      .createBin({ id, slug, meta }, () => (repeated = true))
      .catch(async (error: unknown) => {
        // If an attempt arrived and its reply was lost, the next one is refused for the id that it took.
        const found = repeated && isConflict(error) ? await this.row(id) : undefined;
        if (found?.meta == null || toBase64Url(found.meta) !== meta) throw error;
        return found;
      });
    return this.changed(this.view(made));
  }

  /** Replaces name and emoji of a bin; other fields of its `meta` stay. Throws `RangeError` as `create`. */
  async rename(id: string, label: BinLabel): Promise<BinView> {
    const before = (await this.row(id))?.meta;
    return this.changed(this.view(await this.options.api.patchBin(id, { meta: this.sealed(id, label, before) })));
  }

  private async row(id: string): Promise<BinRow | undefined> {
    return (await this.options.api.bins()).find((bin) => bin.id === id);
  }

  /**
   * Deletes a bin and its items. The items are deleted first, one by one, so that each delete carries a tag: without
   * one the other devices would have to trust the server. Throws `ClientError` `default_bin` for the bin that every
   * tenant has, before anything is deleted.
   */
  async remove(id: string): Promise<void> {
    expectRemovable(id);
    const { api, items, writer, sync } = this.options;
    for (let round = 1; ; round++) {
      const deletions = (await items.idsIn(id)).map((item) => writer.delete(item));
      // Not before all are answered: the caller gets the first failure for all of them.
      await Promise.allSettled(deletions);
      await Promise.all(deletions);
      try {
        return this.changed(await api.removeBin(id));
      } catch (error) {
        if (!isConflict(error) || round >= ROUNDS_MAX) throw error;
        await sync.pull();
      }
    }
  }

  private async read(reason: DeviceEvents['bins']['reason']): Promise<void> {
    const used = new Set(await this.options.items.binIds());
    const bins = await this.list();
    for (const { id } of bins) used.delete(id);
    this.options.emit('bins', { reason, bins, unlisted: [...used] });
    this.subscriptions.deliver(bins);
  }

  /** After a change of this device: subscribers are updated even when no socket is connected to report the change. */
  private changed<T>(result: T): T {
    if (this.subscriptions.any)
      this.refresh('changed').catch((error: unknown) => this.options.onProblem(asError(error)));
    return result;
  }

  private sealed(binId: string, label: BinLabel, before?: Uint8Array | null): string {
    const { sodium, reader } = this.options;
    if (!isDisplayName(label.name))
      throw new RangeError(`a bin name is 1 to ${NAME_MAX} characters, something to see among them, without controls`);
    return sealLabel({ sodium, masterKey: reader.masterKey }, binId, label, before);
  }

  private view(row: BinRow): BinView {
    const { id, slug, createdAt, updatedAt, itemCount, meta } = row;
    const { sodium, reader } = this.options;
    const label = meta === null ? null : openLabel({ sodium, masterKey: reader.masterKey }, id, meta);
    // A slug is what people type and what is kept for use without the server: one that a server leaves empty is the id.
    const named = slug === '' ? id.toLowerCase() : slug;
    return { id, slug: named, createdAt, updatedAt, itemCount, label, readable: meta === null || label !== null };
  }
}
