/**
 * Saves values such as a renewed token, with retries: the value in memory stays in use meanwhile. A store that is
 * unavailable for a while (a locked keychain, a full disk) does not stop the program.
 */
import type { Clock, Timer } from '../protocol/clock.js';
import { SingleFlight } from '../protocol/single-flight.js';

interface SaverOptions<T> {
  readonly save: (value: T) => Promise<unknown>;
  readonly clock: Clock;
  /** The note on a failed attempt. */
  readonly failed: (error: unknown) => string;
  /** The note on a success after that. */
  readonly saved: string;
  /** A failure with the text of the last one is not reported again. */
  readonly note: (text: string) => void;
}

const FIRST_WAIT_MS = 5_000;
const LONGEST_WAIT_MS = 5 * 60_000;

/** At most one attempt runs, and at most one value waits: the newest. */
export class Saver<T> {
  /** The value not saved yet. In an object, to distinguish two offers of the same one. */
  private newest: { readonly value: T } | undefined;
  private readonly saving = new SingleFlight(() => this.attempt());
  private timer: Timer | undefined;
  private failures = 0;
  private reported = '';
  private ended = false;

  constructor(private readonly options: SaverOptions<T>) {}

  /** Replaces an earlier value that is not saved yet, without waiting for its retry. Returns at once. */
  offer(value: T): void {
    this.newest = { value };
    void this.saving.fresh();
  }

  /** Stops. Resolves after one attempt to save the newest value; after a failure, at once and without an attempt. */
  async end(): Promise<void> {
    this.ended = true;
    this.timer?.cancel();
    if (this.failures === 0) await this.saving.idle();
  }

  private async attempt(): Promise<void> {
    this.timer?.cancel();
    const { newest } = this;
    if (newest === undefined || (this.ended && this.failures > 0)) return;
    const { save, clock, failed, note } = this.options;
    try {
      await save(newest.value);
    } catch (error) {
      const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(this.failures, 10));
      this.failures++;
      const text = failed(error);
      if (text !== this.reported) note(text);
      this.reported = text;
      if (!this.ended) this.timer = clock.setTimer(wait, () => void this.saving.fresh());
      return;
    }
    if (this.newest === newest) this.newest = undefined;
    if (this.failures > 0) note(this.options.saved);
    this.failures = 0;
    this.reported = '';
  }
}
