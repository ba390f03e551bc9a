/** Bins. */
import type { Clock } from '../../protocol/clock.js';
import { ServiceError } from '../../protocol/errors.js';
import { bytesWithin } from '../../protocol/item-codec.js';
import { BIN_META_MAX, BINS_MAX, DEFAULT_BIN } from '../../protocol/limits.js';
import type { BinCreateBody, BinDeleteBody, BinPatchBody } from '../../protocol/requests.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import type { BinRecord, BinStore } from './ports.js';

/** What the service is made of. */
export interface BinsOptions extends ChangeNotifier {
  readonly store: BinStore;
  readonly clock: Clock;
}

/** Items deleted under one hold of the tenant's lock: about 20 ms, in which others wait. */
const DELETE_BATCH = 500;
/** Tenants whose cut-off deletions go on at once; those of others begin with a later list. */
const RESUMED_MAX = 16;
const SLUG_MAX = 63;

/**
 * The slug of a bin that was given none: its id in lower case. An id may hold `_`, which a slug may not, and begin
 * with `-`: `_` becomes `-`, leading ones go, the 64th character is cut off, and an id of nothing else is `bin`.
 */
export function defaultSlug(id: string): string {
  const slug = id.toLowerCase().replaceAll('_', '-').replace(/^-+/, '').slice(0, SLUG_MAX);
  return slug === '' ? 'bin' : slug;
}

function metaField(value: string | null | undefined): Uint8Array | null {
  return value === null || value === undefined ? null : bytesWithin('meta', value, 0, BIN_META_MAX);
}

/**
 * The bins of all tenants. A deletion is more than one transaction; one that a crash or an outage cut off
 * goes on when the tenant's bins are listed next, which clients do whenever they have caught up.
 */
export class Bins {
  /** Deletions under way here, by tenant. */
  private readonly deleting = new Map<string, number>();
  private readonly resumed = new Set<Promise<void>>();
  private closing = false;

  constructor(private readonly options: BinsOptions) {}

  /** Oldest first. A bin that is being deleted is listed until it is gone. */
  async list(tenantId: string): Promise<{ bins: BinRecord[] }> {
    // What is read during a deletion may be told after it: then it looks as if nobody went on with it.
    const deleting = this.deleting.has(tenantId);
    const { bins, closed } = await this.options.store.bins(tenantId);
    if (!deleting) this.resume(tenantId, closed);
    return { bins };
  }

  /**
   * Makes a bin; `by` is the device that asks. A deleted bin's id is free again.
   * Throws `conflict` for an id in use or a bin too many, `slug_taken`, `validation`, `device_revoked`.
   */
  async create(tenantId: string, body: BinCreateBody, by: string): Promise<{ bin: BinRecord }> {
    const { store, clock } = this.options;
    const made = await store.create({
      tenantId,
      id: body.id,
      by,
      slug: body.slug ?? defaultSlug(body.id),
      meta: metaField(body.meta),
      maxBins: BINS_MAX,
      now: clock.now(),
    });
    if (made.verdict === 'bin_limit') throw new ServiceError('conflict', `A tenant has at most ${BINS_MAX} bins.`);
    if (made.verdict === 'conflict') throw new ServiceError('conflict', 'A bin with this id exists.');
    if (made.verdict !== 'ok') throw new ServiceError(made.verdict);
    await notifyChange(this.options, tenantId);
    return { bin: made.bin };
  }

  /**
   * Changes slug or meta; what is absent stays. `by` is the device that asks.
   * Throws `bin_not_found`, `slug_taken`, `validation`, `device_revoked`.
   */
  async patch(tenantId: string, id: string, body: BinPatchBody, by: string): Promise<{ bin: BinRecord }> {
    const patched = await this.options.store.patch({
      tenantId,
      id,
      by,
      ...(body.slug === undefined ? {} : { slug: body.slug }),
      ...(body.meta === undefined ? {} : { meta: metaField(body.meta) }),
      now: this.options.clock.now(),
    });
    if (patched.verdict !== 'ok') throw new ServiceError(patched.verdict);
    await notifyChange(this.options, tenantId);
    return { bin: patched.bin };
  }

  /**
   * Deletes a bin; with live items only by `force`. It closes first, so that nothing is written to it any more, then
   * its items go in batches, then the bin. Of one that is closed already the same call finishes the deletion, with or
   * without `force`: that was decided when it closed. `by` is the device that asks: the items' deletes are its changes,
   * so its own sockets get no push of them.
   * Throws `bin_not_found`, `device_revoked`, `conflict` for `inbox` and for a bin with items.
   */
  async remove(tenantId: string, id: string, body: BinDeleteBody, by: string): Promise<{ ok: true }> {
    if (id === DEFAULT_BIN) throw new ServiceError('conflict', `The bin ${DEFAULT_BIN} cannot be deleted.`);
    await this.whileDeleting(tenantId, () => this.closeAndEmpty(tenantId, id, { by, force: body.force === true }));
    return { ok: true };
  }

  /** Resolves when no deletion goes on in the background any more; what is left of one waits for the next list. */
  async close(): Promise<void> {
    this.closing = true;
    await Promise.all(this.resumed);
  }

  private async closeAndEmpty(
    tenantId: string,
    id: string,
    { by, force }: { readonly by: string; readonly force: boolean },
  ): Promise<void> {
    const { store, clock } = this.options;
    const verdict = await store.close({ tenantId, id, by, force, now: clock.now() });
    if (verdict === 'conflict')
      throw new ServiceError('conflict', 'The bin holds items: delete them first, or use force.');
    if (verdict === 'bin_not_found') throw new ServiceError('bin_not_found', undefined, { binId: id });
    if (verdict === 'device_revoked') throw new ServiceError(verdict);
    await notifyChange(this.options, tenantId);
    if (verdict === 'closed') await this.empty(tenantId, id, { by, goesOn: () => true });
  }

  /** Goes on with deletions that nobody here goes on with. They are nobody's change then: every socket hears of it. */
  private resume(tenantId: string, closed: readonly string[]): void {
    if (closed.length === 0 || this.closing || this.deleting.has(tenantId) || this.resumed.size >= RESUMED_MAX) return;
    const work = this.whileDeleting(tenantId, () => this.emptyAll(tenantId, closed))
      .catch((error: unknown) => this.options.onFault(error, tenantId))
      .finally(() => this.resumed.delete(work));
    this.resumed.add(work);
  }

  private async emptyAll(tenantId: string, closed: readonly string[]): Promise<void> {
    for (const id of closed) await this.empty(tenantId, id, { by: null, goesOn: () => !this.closing });
  }

  private async empty(
    tenantId: string,
    id: string,
    { by, goesOn }: { readonly by: string | null; readonly goesOn: () => boolean },
  ): Promise<void> {
    const { store, clock } = this.options;
    let after = 0;
    for (let done = false; !done && goesOn();) {
      const batch = { tenantId, id, by, after, limit: DELETE_BATCH, now: clock.now() };
      ({ last: after, done } = await store.deleteItems(batch));
      await notifyChange(this.options, tenantId);
    }
  }

  private async whileDeleting(tenantId: string, work: () => Promise<void>): Promise<void> {
    this.deleting.set(tenantId, (this.deleting.get(tenantId) ?? 0) + 1);
    try {
      await work();
    } finally {
      const others = (this.deleting.get(tenantId) ?? 1) - 1;
      if (others === 0) this.deleting.delete(tenantId);
      else this.deleting.set(tenantId, others);
    }
  }
}
