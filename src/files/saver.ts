/**
 * Saves the newest of a value, again and again until it is saved: for what a program holds in memory anyway and can go on
 * with, such as a renewed token. A place that is away for a while (a locked keychain, a full disk) costs nothing then.
 */
import type { Clock, Timer } from '../protocol/clock.js';

/** How a value is saved. */
export interface SaverOptions<T> {
  readonly save: (value: T) => Promise<unknown>;
  readonly clock: Clock;
  /** Told of each attempt that failed. */
  readonly onFailure: (error: unknown) => void;
  /** Told when a value is saved after attempts that failed. */
  readonly onRecovery: () => void;
}

const FIRST_WAIT_MS = 5_000;
const LONGEST_WAIT_MS = 5 * 60_000;

/** One attempt runs at a time, and one value waits: the newest. */
export class Saver<T> {
  /** What is not saved yet; in an object, since any value may be offered twice. */
  private newest: { readonly value: T } | undefined;
  private busy: Promise<void> | undefined;
  private timer: Timer | undefined;
  private failures = 0;
  private ended = false;

  constructor(private readonly options: SaverOptions<T>) {}

  /** Takes the place of a value before that was not saved yet. Returns at once. */
  offer(value: T): void {
    this.newest = { value };
    this.go();
  }

  /** No further attempts. Resolves when the one under way is over; one that repeats a failure is not waited for. */
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
    // Begun a turn later: an attempt that fails at once must not end before `busy` has it.
    this.busy = Promise.resolve()
      .then(() => this.attempt(newest))
      .finally(() => {
        this.busy = undefined;
        // A newer value came meanwhile: it need not wait for the timer of the one before.
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
