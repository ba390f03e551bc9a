/** Many callers, one statement: calls that come while a batch is under way gather for the next. */
import { unavailable } from '../protocol/errors.js';

/** Callers that may wait: a crowd that comes back after an outage fits, a database that stands still fills no memory. */
const WAITING_MAX = 50_000;

interface Waiting<K, R> {
  readonly key: K;
  resolve(result: R): void;
  reject(error: unknown): void;
}

export interface GatherOptions {
  /** Callers beyond these are refused. */
  readonly maxWaiting?: number;
  /** What lies between a batch of so many and the next; undefined: nothing does. */
  readonly pause?: (answered: number) => Promise<void> | undefined;
}

/**
 * Batches calls without a timer: the first goes at once, after the current turn of the event loop; the rest while it
 * is under way. A call never joins a batch that has started, so its answer is from after the call.
 */
export class Gather<K, R> {
  private waiting: Waiting<K, R>[] = [];
  private busy = false;

  /** @param run answers each key of a batch (at most `max`), in order; a rejection is every caller's. */
  constructor(
    private readonly max: number,
    private readonly run: (keys: readonly K[]) => Promise<readonly R[]>,
    private readonly options: GatherOptions = {},
  ) {}

  /** The answer to `key`. Rejects with what the batch fails with, and with `unavailable` when too many wait already. */
  ask(key: K): Promise<R> {
    if (this.waiting.length >= (this.options.maxWaiting ?? WAITING_MAX))
      return Promise.reject(unavailable('too many reads wait for the database'));
    return new Promise<R>((resolve, reject) => {
      this.waiting.push({ key, resolve, reject });
      if (this.busy) return;
      this.busy = true;
      setImmediate(() => void this.work());
    });
  }

  private async work(): Promise<void> {
    while (this.waiting.length > 0) {
      const batch = this.waiting.splice(0, this.max);
      try {
        const results = await this.run(batch.map(({ key }) => key));
        if (results.length !== batch.length) throw new Error(`${results.length} answers to ${batch.length} questions`);
        for (const [at, result] of results.entries()) batch[at]?.resolve(result);
      } catch (error) {
        for (const caller of batch) caller.reject(error);
      }
      await this.options.pause?.(batch.length);
    }
    this.busy = false;
  }
}
