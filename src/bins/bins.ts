/** Bins (contract 6). */
import type { Clock } from '../protocol/clock.js';
import { ServiceError } from '../protocol/errors.js';
import { bytesWithin } from '../protocol/item-codec.js';
import { BIN_META_MAX, BINS_MAX, DEFAULT_BIN } from '../protocol/limits.js';
import type { BinCreateBody, BinDeleteBody, BinPatchBody } from '../protocol/requests.js';
import type { BinRecord, BinStore } from './ports.js';

export interface BinsOptions {
  readonly store: BinStore;
  readonly clock: Clock;
  /** Tells everybody that the tenant changed. */
  readonly changed: (tenantId: string) => Promise<void>;
}

/** Items deleted under one hold of the tenant's lock: about 20 ms, in which others wait. */
const DELETE_BATCH = 500;
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

export class Bins {
  constructor(private readonly options: BinsOptions) {}

  /** Oldest first. A bin that is being deleted is listed until it is gone. */
  async list(tenantId: string): Promise<{ bins: BinRecord[] }> {
    return { bins: await this.options.store.bins(tenantId) };
  }

  /** Throws `conflict` for an id in use or a bin too many, `slug_taken`, `validation`. A deleted bin's id is free again. */
  async create(tenantId: string, body: BinCreateBody): Promise<{ bin: BinRecord }> {
    const { store, clock } = this.options;
    const verdict = await store.create({
      tenantId,
      id: body.id,
      slug: body.slug ?? defaultSlug(body.id),
      meta: metaField(body.meta),
      maxBins: BINS_MAX,
      now: clock.now(),
    });
    if (verdict === 'bin_limit') throw new ServiceError('conflict', `A tenant has at most ${BINS_MAX} bins.`);
    if (verdict === 'conflict') throw new ServiceError('conflict', 'A bin with this id exists.');
    if (verdict !== 'ok') throw new ServiceError(verdict);
    return this.changed(tenantId, body.id);
  }

  /** Changes slug or meta; what is absent stays. Throws `bin_not_found`, `slug_taken`, `validation`. */
  async patch(tenantId: string, id: string, body: BinPatchBody): Promise<{ bin: BinRecord }> {
    const verdict = await this.options.store.patch({
      tenantId,
      id,
      ...(body.slug === undefined ? {} : { slug: body.slug }),
      ...(body.meta === undefined ? {} : { meta: metaField(body.meta) }),
      now: this.options.clock.now(),
    });
    if (verdict !== 'ok') throw new ServiceError(verdict);
    return this.changed(tenantId, id);
  }

  /**
   * Deletes a bin; with live items only by `force`. It closes first, so that nothing is written to it any more, then
   * its items go in batches, then the bin. What a crash left half done, the same call again finishes, with or without
   * `force`: that was decided when it closed. The items' deletes are nobody's in particular, so all sockets get them.
   * Throws `bin_not_found`, `conflict` for `inbox` and for a bin with items.
   */
  async remove(tenantId: string, id: string, body: BinDeleteBody): Promise<{ ok: true }> {
    const { store, clock, changed } = this.options;
    if (id === DEFAULT_BIN) throw new ServiceError('conflict', `The bin ${DEFAULT_BIN} cannot be deleted.`);
    const verdict = await store.close({ tenantId, id, force: body.force === true, now: clock.now() });
    if (verdict === 'conflict')
      throw new ServiceError('conflict', 'The bin holds items: delete them first, or use force.');
    if (verdict === 'bin_not_found') throw new ServiceError('bin_not_found', undefined, { binId: id });
    await changed(tenantId);
    let after = 0;
    for (let done = verdict === 'deleted'; !done;) {
      const batch = { tenantId, id, after, limit: DELETE_BATCH, now: clock.now() };
      ({ last: after, done } = await store.deleteItems(batch));
      await changed(tenantId);
    }
    return { ok: true };
  }

  private async changed(tenantId: string, id: string): Promise<{ bin: BinRecord }> {
    await this.options.changed(tenantId);
    const bin = await this.options.store.bin(tenantId, id);
    if (bin === undefined) throw new ServiceError('bin_not_found', undefined, { binId: id });
    return { bin };
  }
}
