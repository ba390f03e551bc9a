/** The way to the server during one command: where the server turned out to be away, nothing else waits for it. */
import type { NetworkError } from '../../client/errors.js';
import type { Fetch } from '../../client/platform.js';

/** See above. Open at first. */
export class Way {
  private readonly shutting = new AbortController();

  constructor(private readonly beyond: Fetch) {}

  /** As the platform's, until the way is shut; rejects with why then, also what is under way. */
  readonly fetch: Fetch = async (url, init) => {
    const { signal } = this.shutting;
    signal.throwIfAborted();
    const ends = init.signal === undefined || init.signal === null ? signal : AbortSignal.any([init.signal, signal]);
    return this.beyond(url, { ...init, signal: ends });
  };

  /** Ends every request, those to come too. `why` is what each of them rejects with. */
  shut(why: NetworkError): void {
    this.shutting.abort(why);
  }
}
