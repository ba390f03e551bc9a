/** How slow a transfer may be: a store that gives a byte now and then must not hold a device for ever. */
import type { Clock, Timer } from '../../protocol/clock.js';
import { NetworkError } from '../errors.js';

/** In so long a time of waiting, ms, so many bytes must pass. */
const WINDOW_MS = 60_000;
const WINDOW_BYTES = 16 * 1024;

/** Counts the time that is spent waiting for the other side; that of one's own work does not count. */
export class Pace {
  private timer: Timer | undefined;
  private begun = 0;
  private waited = 0;
  private bytes = 0;

  /** `stop` is called where the other side is too slow. */
  constructor(
    private readonly clock: Clock,
    private readonly stop: (error: NetworkError) => void,
  ) {}

  /** From now on the other side is waited for. `extraMs`: longer than usual, once. */
  wait(extraMs = 0): void {
    this.timer?.cancel();
    this.begun = this.clock.now();
    this.timer = this.clock.setTimer(Math.max(0, WINDOW_MS - this.waited) + extraMs, () =>
      this.stop(new NetworkError('timeout', `fewer than ${WINDOW_BYTES} bytes in ${WINDOW_MS} ms`)),
    );
  }

  /** The other side has done its part: so many bytes. */
  got(bytes: number): void {
    this.end();
    this.waited += Math.max(0, this.clock.now() - this.begun);
    this.bytes += bytes;
    if (this.bytes < WINDOW_BYTES) return;
    this.bytes = 0;
    this.waited = 0;
  }

  /** Nothing is waited for any more. */
  end(): void {
    this.timer?.cancel();
    this.timer = undefined;
  }
}
