/** Bins. */
import type { Clock } from '../../protocol/clock.js';
import { ServiceError } from '../../protocol/errors.js';
import { bytesWithin } from '../../protocol/request-fields.js';
import { Counts } from '../../protocol/counts.js';
import { BIN_META_MAX, BINS_MAX, DEFAULT_BIN } from '../../protocol/limits.js';
import type { BinList, BinReply, Ok } from '../../protocol/replies.js';
import type { BinCreateBody, BinDeleteBody, BinPatchBody } from '../../protocol/requests.js';
import { WaitGroup } from '../../protocol/wait-group.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import { binOf, type BinOutcome, type BinStore, type EmptiedBin } from './store.js';

export interface BinsOptions extends ChangeNotifier {
  readonly store: BinStore;
  readonly clock: Clock;
}

/** Items deleted under one hold of the tenant's lock: about 20 ms, in which other changes of the tenant wait. */
const DELETE_BATCH = 500;
/** Most tenants whose interrupted deletions are resumed at the same time; a later list resumes those of others. */
const RESUMED_MAX = 16;
const SLUG_MAX = 63;

/**
 * The slug of a bin made without one: its id in lower case, with `_` replaced by `-`, leading `-` removed and the 64th
 * character cut off, since a slug may have none of these; `bin` if nothing is left.
 */
export function defaultSlug(id: string): string {
  const slug = id.toLowerCase().replaceAll('_', '-').replace(/^-+/, '').slice(0, SLUG_MAX);
  return slug === '' ? 'bin' : slug;
}

const metaField = (value: string | null): Uint8Array | null =>
  value === null ? null : bytesWithin('meta', value, 0, BIN_META_MAX);

/**
 * The bins of all tenants. A deletion takes more than one transaction. One that a crash or an outage has interrupted is
 * resumed when the tenant's bins are listed next, which clients do whenever they have caught up.
 */
export class Bins {
  /** Number of deletions under way on this instance, by tenant. */
  private readonly deleting = new Counts();
  private readonly resumed = new WaitGroup();
  private closing = false;

  constructor(private readonly options: BinsOptions) {}

  /** Oldest first. A bin that is being deleted is listed until it is gone. */
  async list(tenantId: string): Promise<BinList<Uint8Array>> {
    // Read before the statement: a deletion that ends while it runs would otherwise look interrupted in its result.
    const deleting = this.deleting.of(tenantId) > 0;
    const { bins, closed } = await this.options.store.bins(tenantId);
    if (!deleting) this.resume(tenantId, closed);
    return { bins };
  }

  /**
   * Makes a bin; `by` is the calling device. A deleted bin's id is free again.
   * Throws `conflict` for an id in use or for too many bins, `slug_taken`, `validation`, `device_revoked`.
   */
  async create(tenantId: string, body: BinCreateBody, by: string): Promise<BinReply<Uint8Array>> {
    const { id } = body;
    const made = await this.options.store.create({
      ...{ tenantId, id, by, slug: body.slug ?? defaultSlug(id), meta: metaField(body.meta ?? null) },
      ...{ maxBins: BINS_MAX, now: this.options.clock.now() },
    });
    if (made.verdict === 'bin_limit') throw new ServiceError('conflict', `A tenant has at most ${BINS_MAX} bins.`);
    if (made.verdict === 'conflict') throw new ServiceError('conflict', 'A bin with this id exists.');
    return this.changed(tenantId, made);
  }

  /**
   * Changes slug or meta; absent fields stay unchanged. `by` is the calling device.
   * Throws `bin_not_found`, `slug_taken`, `validation`, `device_revoked`.
   */
  async patch(tenantId: string, id: string, body: BinPatchBody, by: string): Promise<BinReply<Uint8Array>> {
    const meta = body.meta === undefined ? undefined : metaField(body.meta);
    const patch = { tenantId, id, by, slug: body.slug, meta, now: this.options.clock.now() };
    return this.changed(tenantId, await this.options.store.patch(patch));
  }

  /**
   * Deletes a bin; one with live items only with `force`. It is closed first, so that nothing more is written to it,
   * then its items are deleted in batches, then the bin. For a bin that is closed already, the same call finishes the
   * deletion, with or without `force`, which was decided when it was closed. `by` is the calling device: the deletions
   * of the items are its changes, so its own sockets get no push of them.
   * Throws `bin_not_found`, `device_revoked`, `conflict` for `inbox` and for a bin with items.
   */
  async remove(tenantId: string, id: string, body: BinDeleteBody, by: string): Promise<Ok> {
    if (id === DEFAULT_BIN) throw new ServiceError('conflict', `The bin ${DEFAULT_BIN} cannot be deleted.`);
    const force = body.force === true;
    await this.whileDeleting(tenantId, async () => {
      const verdict = await this.options.store.close({ tenantId, id, by, force, now: this.options.clock.now() });
      if (verdict === 'conflict')
        throw new ServiceError('conflict', 'The bin holds items: delete them first, or use force.');
      if (verdict === 'bin_not_found') throw new ServiceError('bin_not_found', undefined, { binId: id });
      if (verdict !== 'closed' && verdict !== 'deleted') throw new ServiceError(verdict);
      await notifyChange(this.options, tenantId);
      if (verdict === 'closed') await this.empty({ tenantId, id, by });
    });
    return { ok: true };
  }

  /** Resolves when no deletion runs in the background; the rest of an interrupted one waits for the next list. */
  async close(): Promise<void> {
    this.closing = true;
    await this.resumed.idle();
  }

  private async changed(tenantId: string, outcome: BinOutcome): Promise<BinReply<Uint8Array>> {
    if (outcome.verdict !== 'ok') throw new ServiceError(outcome.verdict);
    await notifyChange(this.options, tenantId);
    return { bin: binOf(outcome) };
  }

  /** Finishes interrupted deletions. They are then no device's changes, so every socket gets the push. */
  private resume(tenantId: string, closed: readonly string[]): void {
    if (closed.length === 0 || this.closing || this.deleting.of(tenantId) > 0 || this.resumed.size >= RESUMED_MAX)
      return;
    const emptyAll = async (): Promise<void> => {
      for (const id of closed) await this.empty({ tenantId, id, by: null }, () => !this.closing);
    };
    const work = this.whileDeleting(tenantId, emptyAll);
    void this.resumed.add(work.catch((error: unknown) => this.options.onFault(error, tenantId)));
  }

  /** Deletes a closed bin. `goesOn`: whether to go on with the next batch. */
  private async empty(bin: EmptiedBin, goesOn = (): boolean => true): Promise<void> {
    const { store, clock } = this.options;
    let after = 0;
    for (let done = false; !done && goesOn();) {
      ({ last: after, done } = await store.deleteItems({ ...bin, after, limit: DELETE_BATCH, now: clock.now() }));
      await notifyChange(this.options, bin.tenantId);
    }
  }

  private async whileDeleting(tenantId: string, work: () => Promise<void>): Promise<void> {
    this.deleting.add(tenantId, 1);
    try {
      await work();
    } finally {
      this.deleting.add(tenantId, -1);
    }
  }
}
