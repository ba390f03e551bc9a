/**
 * Saves the newest value, with retries: for what a program also holds in memory, such as a renewed token. A store that
 * is unavailable for a while (a locked keychain, a full disk) does not stop the program.
 */
import type { Clock, Timer } from '../protocol/clock.js';

export interface SaverOptions<T> {
  readonly save: (value: T) => Promise<unknown>;
  readonly clock: Clock;
  /** Called for each failed attempt. */
  readonly onFailure: (error: unknown) => void;
  /** Called when a value is saved after failed attempts. */
  readonly onRecovery: () => void;
}

const FIRST_WAIT_MS = 5_000;
const LONGEST_WAIT_MS = 5 * 60_000;

/** At most one attempt runs, and at most one value waits: the newest. */
export class Saver<T> {
  /** The value not saved yet. In an object, to tell two offers of the same value apart. */
  private newest: { readonly value: T } | undefined;
  private busy: Promise<void> | undefined;
  private timer: Timer | undefined;
  private failures = 0;
  private ended = false;

  constructor(private readonly options: SaverOptions<T>) {}

  /** Replaces an earlier value that is not saved yet. Returns at once. */
  offer(value: T): void {
    this.newest = { value };
    this.go();
  }

  /** Stops. Resolves when the running attempt ends; after a failure it is not awaited. */
  async end(): Promise<void> {
    this.ended = true;
    this.timer?.cancel();
    if (this.failures === 0) await this.busy;
  }

  private go(): void {
    this.timer?.cancel();
    this.timer = undefined;
    const { newest } = this;
    if (newest === undefined || this.busy !== undefined) return;
    // Begins one turn later: an attempt that fails at once must not end before `busy` is set.
    this.busy = Promise.resolve()
      .then(() => this.attempt(newest))
      .finally(() => {
        this.busy = undefined;
        // A newer value does not wait for the retry timer of the last one.
        if (this.newest !== undefined && this.newest !== newest && !this.ended) this.go();
      });
  }

  private async attempt(newest: { readonly value: T }): Promise<void> {
    const { save, clock, onFailure, onRecovery } = this.options;
    try {
      await save(newest.value);
    } catch (error) {
      const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(this.failures, 10));
      this.failures++;
      onFailure(error);
      if (!this.ended) this.timer = clock.setTimer(wait, () => this.go());
      return;
    }
    if (this.newest === newest) this.newest = undefined;
    if (this.failures > 0) onRecovery();
    this.failures = 0;
  }
}
