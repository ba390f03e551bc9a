/**
 * Keys for devices that joined: when they are added, and what is told of it. The work itself is
 * `Writer.rewrapMissing`. What is missing is found anew each time, so a run that was cut off is resumed by another one.
 */
import { asError } from '../protocol/error-code.js';
import { delay, type Timer } from '../protocol/clock.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { ClientError, isPassing, QueuedError } from './errors.js';
import type { DeviceList } from './device-list.js';
import type { Writer } from './writer.js';
import type { Core } from './core.js';

/** Devices other than the one that paired re-wrap after so long what is still missing. */
const REWRAP_AFTER_MS = 10 * 60_000;
/** So that they do not all begin at once. */
const REWRAP_SPREAD_MS = 60_000;
/** Between two batches: most of the device's ten writes a second stay free for its user. */
const PAUSE_MS = 500;

/** One run at a time, at once or later. */
export class RewrapQueue {
  private readonly running = new SingleFlight(() => this.all(this.stopping.signal));
  private stopping = new AbortController();
  private timer: Timer | undefined;
  /** A run ended for want of a connection: the next one does not wait. */
  private owed = false;
  private ended = false;

  constructor(
    private readonly options: Pick<Core, 'clock' | 'random' | 'emit'> & {
      readonly writer: Pick<Writer, 'rewrapMissing'>;
      readonly roster: Pick<DeviceList, 'refresh'>;
    },
  ) {}

  /**
   * Adds what is missing now; a call during a run shares it. Resolves with the number of items that got keys; rejects
   * with `ClientError` `cancelled` where a caller's signal ended it. What was done until then stays done.
   */
  async run(signal?: AbortSignal): Promise<number> {
    if (!this.running.busy) this.stopping = new AbortController();
    const { stopping } = this;
    const stop = (): void => stopping.abort(cancelled());
    const running = this.running.join();
    if (signal?.aborted === true) stop();
    signal?.addEventListener('abort', stop, { once: true });
    try {
      return await running;
    } finally {
      signal?.removeEventListener('abort', stop);
    }
  }

  /** Begins at once, in the background. */
  now(): void {
    this.cancelTimer();
    this.run().catch((error: unknown) => this.failed(error));
  }

  /** Begins in ten minutes, so that the device that paired is done before; an earlier date stands. */
  later(): void {
    if (this.ended) return;
    const { clock, random } = this.options;
    this.timer ??= clock.setTimer(REWRAP_AFTER_MS + Math.floor(random() * REWRAP_SPREAD_MS), () => this.now());
  }

  /** The connection is back: a run that it cut off goes on at once. */
  resume(): void {
    if (this.owed && !this.ended) this.now();
    else this.later();
  }

  /** Begins nothing more of itself until `later` or `resume`. What is under way ends after its batch. */
  pause(): void {
    this.cancelTimer();
    this.stopping.abort(cancelled());
  }

  /** Ends for good. */
  close(): void {
    this.ended = true;
    this.pause();
  }

  private async all(signal: AbortSignal): Promise<number> {
    const { writer, roster, clock, emit } = this.options;
    try {
      await roster.refresh();
      const items = await writer.rewrapMissing({
        signal,
        pause: () => delay(clock, PAUSE_MS, signal),
        onProgress: (progress) => emit('rewrap_progress', progress),
      });
      this.owed = false;
      emit('rewrapped', { items });
      return items;
    } catch (error) {
      this.owed = isPassing(error) || error instanceof QueuedError || signal.aborted;
      throw error;
    }
  }

  private failed(error: unknown): void {
    if (!this.ended && !(error instanceof ClientError && error.code === 'cancelled'))
      this.options.emit('problem', { error: asError(error) });
  }

  private cancelTimer(): void {
    this.timer?.cancel();
    this.timer = undefined;
  }
}

const cancelled = (): ClientError =>
  new ClientError('cancelled', 're-wrapping was stopped; the next run goes on where this one ended');
