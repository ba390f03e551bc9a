/** The running import: its progress, and how the page stops it. */
import { ClientError } from '../../sdk/errors.js';
import type { Importing } from '../link/messages.js';
import { Cell } from './cell.js';

/** Items between two progress reports. */
const REPORT_EVERY = 10;

/** The imports of a session: one at a time. */
export class Imports {
  readonly progress = new Cell<Importing | null>(null);
  private running: AbortController | undefined;
  private done = 0;

  /** Throws `ClientError` `too_many` while one runs. */
  begin(): AbortSignal {
    if (this.running !== undefined) throw new ClientError('too_many', 'an import runs already');
    this.running = new AbortController();
    this.done = 0;
    return this.running.signal;
  }

  /** Counts one more item of `total`. Throws if the import was stopped. */
  taken(total: number): void {
    this.running?.signal.throwIfAborted();
    if (this.done++ % REPORT_EVERY === 0) this.progress.set({ done: this.done, total });
  }

  stop(): void {
    this.running?.abort();
  }

  end(): void {
    this.running = undefined;
    this.progress.set(null);
  }
}
