/** How slow a body may be: whoever moves too little of one would hold a place of others for ever. */
import type { Clock, Timer } from '../../protocol/clock.js';

/** A body is judged so often, by what moved since, ms. */
export const PACE_WINDOW_MS = 30_000;

/** Bytes a second, measured over a while: too few to go on? */
export type TooSlow = (bytesPerS: number) => boolean;

/** What is watched. */
export interface PaceOptions {
  readonly clock: Clock;
  /** Bytes that moved so far. */
  readonly moved: () => number;
  /** False: not the other side is waited for just now, so it is not judged. */
  readonly waiting: () => boolean;
  readonly tooSlow: TooSlow;
  /** Called once, when it was too slow. */
  readonly cut: () => void;
}

/** Watches one body from now on, until `end`. */
export class Pace {
  private timer: Timer | undefined;

  constructor(private readonly options: PaceOptions) {
    this.watch(options.moved());
  }

  /** It is over, well or not. */
  end(): void {
    this.timer?.cancel();
  }

  private watch(before: number): void {
    const { clock, moved, waiting, tooSlow, cut } = this.options;
    this.timer = clock.setTimer(PACE_WINDOW_MS, () => {
      const now = moved();
      if (waiting() && tooSlow(((now - before) * 1_000) / PACE_WINDOW_MS)) cut();
      else this.watch(now);
    });
  }
}
