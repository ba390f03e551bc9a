/** The import of an archive that runs, as the page sees it and may stop it. */
import { ClientError } from '../../sdk/errors.js';
import type { Importing } from '../link/messages.js';
import { Cell } from './cell.js';

/** Items from one notice of the progress to the next. */
const TOLD_EVERY = 10;

/** The import of a session: one at a time. */
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

  /** One more item of so many. Throws where the import was stopped. */
  taken(total: number): void {
    this.running?.signal.throwIfAborted();
    if (this.done++ % TOLD_EVERY === 0) this.progress.set({ done: this.done, total });
  }

  stop(): void {
    this.running?.abort();
  }

  end(): void {
    this.running = undefined;
    this.progress.set(null);
  }
}
