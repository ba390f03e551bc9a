/** Many callers, one call for all of them: those who come while a batch is under way gather for the next. */
import { unavailable } from './errors.js';
import { SingleFlight } from './single-flight.js';

/** Callers that may wait: a crowd that comes back after an outage fits, a database that stands still fills no memory. */
const WAITING_MAX = 50_000;

interface Waiting<K, R> {
  readonly key: K;
  resolve(result: R): void;
  reject(error: unknown): void;
}

/** How a batcher goes about it. */
export interface BatcherOptions {
  /** Callers beyond these are refused. */
  readonly maxWaiting?: number;
  /** What lies between a batch of so many and the next; undefined: nothing does. `waiting`: how many wait for that. */
  readonly pause?: (answered: number, waiting: () => number) => Promise<void> | undefined;
}

/** After the current turn of the event loop: what comes in with it goes into one batch. */
export const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/**
 * Batches calls without a timer: the first goes at once, after the current turn of the event loop; the rest while it
 * is under way. A call never joins a batch that has started, so its answer is from after the call. Whatever `run` does,
 * every call is answered when it ends. On servers only: browsers have no `setImmediate`.
 */
export class Batcher<K, R> {
  private waiting: Waiting<K, R>[] = [];
  private readonly working = new SingleFlight(() => this.work());

  /** @param run answers each key of a batch (at most `max`), in order; a rejection is every caller's. */
  constructor(
    private readonly max: number,
    private readonly run: (keys: readonly K[]) => Promise<readonly R[]>,
    private readonly options: BatcherOptions = {},
  ) {}

  /** The answer to `key`. Rejects with what the batch fails with, and with `unavailable` when too many wait already. */
  ask(key: K): Promise<R> {
    if (this.waiting.length >= (this.options.maxWaiting ?? WAITING_MAX))
      return Promise.reject(unavailable('too many reads wait for the database'));
    return new Promise<R>((resolve, reject) => {
      this.waiting.push({ key, resolve, reject });
      void this.working.fresh();
    });
  }

  private async work(): Promise<void> {
    if (this.waiting.length > 0) await nextTurn();
    while (this.waiting.length > 0) {
      const batch = this.waiting.splice(0, this.max);
      await this.answer(batch);
      try {
        await this.options.pause?.(batch.length, () => this.waiting.length);
      } catch (error) {
        for (const caller of this.waiting.splice(0)) caller.reject(error);
      }
    }
  }

  private async answer(batch: readonly Waiting<K, R>[]): Promise<void> {
    try {
      const results = await this.run(batch.map(({ key }) => key));
      if (results.length !== batch.length) throw new Error(`${results.length} answers to ${batch.length} questions`);
      for (const [at, result] of results.entries()) batch[at]?.resolve(result);
    } catch (error) {
      for (const caller of batch) caller.reject(error);
    }
  }
}
