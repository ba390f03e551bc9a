/** Batches calls: those made while a batch runs form the next one. */
import { unavailable } from './errors.js';
import { SingleFlight } from './single-flight.js';

/** Most queued calls: enough for a reconnect storm after an outage, bounded if the database hangs. */
const WAITING_MAX = 50_000;

interface Waiting<K, R> {
  readonly key: K;
  resolve(result: R | Promise<R>): void;
  reject(error: unknown): void;
}

/** Resolves after the current turn of the event loop, whose calls form one batch. */
export const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/**
 * Batches calls without a timer: the first batch starts after the current turn of the event loop, the next when it
 * ends. A call never joins a batch that has started, so that its answer is not older than the call. Every call is
 * settled when the `run` of its batch ends, whatever its outcome; where its answer is a promise, like that, and no other
 * call waits for it. Servers only: browsers have no `setImmediate`.
 */
export class Batcher<K, R> {
  private waiting: Waiting<K, R>[] = [];
  private readonly working = new SingleFlight(() => this.work());
  /** The next batch does not wait for the pause. */
  private hurried = false;
  private endPause: (() => void) | undefined;

  /**
   * @param run answers each key of a batch (at most `max`), in order; a rejection rejects every call of the batch.
   * @param pauseAfter the pause after a batch of `answered` calls, which `hurry` cuts short; undefined: none.
   */
  constructor(
    private readonly max: number,
    private readonly run: (keys: readonly K[]) => Promise<readonly (R | Promise<R>)[]>,
    private readonly pauseAfter?: (answered: number) => Promise<void> | undefined,
  ) {}

  /** The answer to `key`. Rejects with the error of its batch, and with `unavailable` if the queue is full. */
  ask(key: K): Promise<R> {
    if (this.waiting.length >= WAITING_MAX) return Promise.reject(unavailable('too many reads wait for the database'));
    return new Promise<R>((resolve, reject) => {
      this.waiting.push({ key, resolve, reject });
      void this.working.fresh();
    });
  }

  /** Makes the next batch, with the queued calls and those about to be made, begin without a pause. */
  hurry(): void {
    this.hurried = true;
    this.endPause?.();
  }

  private async work(): Promise<void> {
    if (this.waiting.length > 0) await nextTurn();
    while (this.waiting.length > 0) {
      const batch = this.waiting.splice(0, this.max);
      this.hurried = false;
      await this.answer(batch);
      try {
        await this.pause(batch.length);
      } catch (error) {
        for (const caller of this.waiting.splice(0)) caller.reject(error);
      }
    }
  }

  private async pause(answered: number): Promise<void> {
    const pause = this.hurried ? undefined : this.pauseAfter?.(answered);
    if (pause === undefined) return;
    await Promise.race([pause, new Promise<void>((resolve) => (this.endPause = resolve))]);
    this.endPause = undefined;
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
