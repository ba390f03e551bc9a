/**
 * Schedules the re-wrapping of items for devices that joined, and reports its progress. The work is done by
 * `Writer.rewrapMissing`. Each run searches for missing keys again, so the next run resumes an interrupted one.
 */
import { asError } from '../protocol/error-code.js';
import { delay, type Timer } from '../protocol/clock.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { ClientError, isTransient, QueuedError } from './errors.js';
import { abortOnAny } from './platform.js';
import type { DeviceList } from './device-list.js';
import type { Writer } from './writer.js';
import type { Core } from './core.js';

/** Devices other than the one that paired wait this long before they add keys that are still missing. */
const REWRAP_AFTER_MS = 10 * 60_000;
/** Random addition to `REWRAP_AFTER_MS`, so that the devices do not start at the same time. */
const REWRAP_SPREAD_MS = 60_000;
/** Pause between two batches: leaves the user most of the device's ten writes a second. */
const PAUSE_MS = 500;

/** Runs re-wrapping, one run at a time, now or later. */
export class RewrapQueue {
  private readonly running = new SingleFlight(() => this.all(this.stopping.signal));
  private stopping = new AbortController();
  private timer: Timer | undefined;
  /** The last run was interrupted by a lost connection: it resumes without a wait. */
  private owed = false;
  private ended = false;

  constructor(
    private readonly options: Pick<Core, 'clock' | 'random' | 'emit'> & {
      readonly writer: Pick<Writer, 'rewrapMissing'>;
      readonly deviceList: Pick<DeviceList, 'refresh'>;
    },
  ) {}

  /**
   * Adds missing keys now; a call during a run that was not stopped shares it. Resolves with the number of items that got
   * keys; rejects with `ClientError` `cancelled` where a caller's signal ended it. Finished batches stay done.
   */
  async run(signal?: AbortSignal): Promise<number> {
    // One that was stopped ends after its batch.
    if (this.stopping.signal.aborted) await this.running.idle();
    if (!this.running.busy) this.stopping = new AbortController();
    const release = abortOnAny(this.stopping, [signal], cancelled);
    try {
      return await this.running.join();
    } finally {
      release();
    }
  }

  /** Starts a run in the background. */
  now(): void {
    this.cancelTimer();
    this.run().catch((error: unknown) => {
      if (!this.ended && !(error instanceof ClientError && error.code === 'cancelled'))
        this.options.emit('problem', { error: asError(error) });
    });
  }

  /** Schedules a run in ten minutes, so that the device that paired can finish first; an earlier schedule stays. */
  later(): void {
    if (this.ended) return;
    const { clock, random } = this.options;
    this.timer ??= clock.setTimer(REWRAP_AFTER_MS + Math.floor(random() * REWRAP_SPREAD_MS), () => this.now());
  }

  /** Called after each `caught_up`: resumes an interrupted run immediately, else schedules one as `later`. */
  resume(): void {
    if (this.owed && !this.ended) this.now();
    else this.later();
  }

  /** Starts no run until `later` or `resume`. The current run ends after its batch. */
  pause(): void {
    this.cancelTimer();
    this.stopping.abort(cancelled());
  }

  /** Ends the queue for good. */
  close(): void {
    this.ended = true;
    this.pause();
  }

  private async all(signal: AbortSignal): Promise<number> {
    const { writer, deviceList, clock, emit } = this.options;
    try {
      await deviceList.refresh();
      const items = await writer.rewrapMissing({
        signal,
        pause: () => delay(clock, PAUSE_MS, signal),
        onProgress: (progress) => emit('rewrap_progress', progress),
      });
      this.owed = false;
      emit('rewrapped', { items });
      return items;
    } catch (error) {
      this.owed = isTransient(error) || error instanceof QueuedError || signal.aborted;
      throw error;
    }
  }

  private cancelTimer(): void {
    this.timer?.cancel();
    this.timer = undefined;
  }
}

const cancelled = (): ClientError =>
  new ClientError('cancelled', 're-wrapping was stopped; the next run goes on where this one ended');
