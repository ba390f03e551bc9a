/** Bounds how many HEAD requests each tenant has under way at the object store. */
import type { Clock } from '../../protocol/clock.js';
import { ServiceError, unavailable } from '../../protocol/errors.js';
import { type BlobName, blobPath } from '../../protocol/ids.js';

/** Requests of one tenant that are under way. */
const UNDER_WAY_MAX = 4;
/** Those that wait: a batch of 100 items, each with a blob of its own, fits into the queue, and so does a second one. */
const WAITING_MAX = 200;
const WAIT_MAX_MS = 10_000;

/** The requests of one tenant. `waiting` is in order of arrival: each begins when it is called, or fails with the error. */
interface Queue {
  underWay: number;
  readonly waiting: Set<(error?: ServiceError) => void>;
}

/**
 * Only the bucket knows whether an upload arrived, and each HEAD costs money and time. So a tenant has a few under way at
 * a time on this instance, one per blob; further ones wait in a bounded queue for a bounded time.
 */
export class HeadLimiter {
  private readonly queues = new Map<string, Queue>();
  /** The latest lookup of each blob, by tenant and ref, until it settles. */
  private readonly latest = new Map<string, { begun: boolean; readonly result: Promise<boolean> }>();

  constructor(private readonly clock: Clock) {}

  /**
   * Runs `look` when the tenant has a free slot. A call made while a lookup of the same blob is queued shares its
   * result. Of a lookup that has begun only a positive result is shared, since it may have run before the upload ended.
   * Throws what `look` throws, and `unavailable` if the queue is full or the wait was too long.
   */
  run(name: BlobName, look: () => Promise<boolean>): Promise<boolean> {
    const key = blobPath(name);
    const before = this.latest.get(key);
    if (before !== undefined && !before.begun) return before.result;
    const inTurn = (): Promise<boolean> =>
      this.turn(name.tenantId, () => {
        lookup.begun = true;
        return look();
      });
    const looked = async (): Promise<boolean> => {
      try {
        return (await before?.result) === true || (await inTurn());
      } finally {
        if (this.latest.get(key) === lookup) this.latest.delete(key);
      }
    };
    // Deferred by a microtask: `looked` reads `lookup`, which must be initialized and in the map by then.
    const lookup = { begun: false, result: Promise.resolve().then(looked) };
    this.latest.set(key, lookup);
    return lookup.result;
  }

  /** Runs a call about one blob when the tenant has a free slot. Throws like `run`. */
  async turn<T>(tenantId: string, look: () => Promise<T>): Promise<T> {
    const queue = this.queues.get(tenantId) ?? { underWay: 0, waiting: new Set() };
    this.queues.set(tenantId, queue);
    if (queue.underWay >= UNDER_WAY_MAX) await this.wait(queue);
    else queue.underWay++;
    try {
      return await look();
    } catch (error) {
      // The store is down for the queued requests too: they fail now instead of each waiting for its own failure.
      if (error instanceof ServiceError && error.error === 'storage_unavailable') {
        for (const leave of queue.waiting) leave(error);
      }
      throw error;
    } finally {
      // The slot goes to the first in the queue, or becomes free.
      const [first] = queue.waiting;
      if (first !== undefined) first();
      else if (--queue.underWay === 0) this.queues.delete(tenantId);
    }
  }

  private wait({ waiting }: Queue): Promise<void> {
    if (waiting.size >= WAITING_MAX) throw unavailable('too many blobs are being looked for in the store');
    return new Promise((resolve, reject) => {
      /** Leaves the queue: to begin, or with an error. */
      const leave = (error?: ServiceError): void => {
        waiting.delete(leave);
        timer.cancel();
        if (error === undefined) resolve();
        else reject(error);
      };
      waiting.add(leave);
      const timer = this.clock.setTimer(WAIT_MAX_MS, () =>
        leave(unavailable('the store is slow, and others were before')),
      );
    });
  }
}
