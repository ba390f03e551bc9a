/**
 * What a server can make a device take that nothing of its user vouches for: rows without a tag that holds, the same
 * items again and again. A lying server makes any amount of it, so it is bounded, and at the bound reading stops.
 *
 * What bears the user's tag needs no bound: a server cannot make it, and there is as much of it as the user made.
 */
import { ProtocolError } from './errors.js';
import type { Entry } from './store/store.js';

/** Items in quarantine of which no state was ever good. Each takes some hundred bytes (`headOnly`). */
export const QUARANTINED_MAX = 20_000;
/** Changes of one catching-up that bring nothing: not verified, or of an item that came already. */
export const IDLE_MAX = 100_000;

/** True for an entry that only the server's word stands for. */
export const isBurden = (entry: Entry | undefined): boolean => entry?.state === 'quarantined' && entry.kept === null;

/** The counts of one device, in one program. */
export class Burden {
  /** Undefined: nothing was quarantined yet, so nobody has counted. */
  private quarantined: number | undefined;
  private idle = 0;
  /** The cursor when catching up began; undefined: what comes now is live, and as much as there is. */
  private begunAt: number | undefined;

  /** Catching up begins, at this cursor. */
  begin(since: number): void {
    this.begunAt = since;
    this.idle = 0;
  }

  /** Everything is here. */
  end(): void {
    this.begunAt = undefined;
  }

  /** True where an item has come in this catching-up already: an honest replay brings each once. */
  cameAlready(before: Entry | undefined): boolean {
    return this.begunAt !== undefined && before !== undefined && before.version > this.begunAt;
  }

  /** A change brought nothing. Throws `ProtocolError` `endless_replay`. */
  idled(): void {
    if (this.begunAt === undefined || ++this.idle <= IDLE_MAX) return;
    throw new ProtocolError(
      `the server sent more than ${IDLE_MAX} changes that bring nothing: reading was stopped, what is here stays`,
      { code: 'endless_replay' },
    );
  }

  /** Before `more` items go into quarantine. `count`: how many are in it. Throws `ProtocolError` `quarantine_full`. */
  async expectRoom(more: number, count: () => Promise<number>): Promise<void> {
    if (more <= 0) return;
    this.quarantined ??= await count();
    if (this.quarantined + more <= QUARANTINED_MAX) return;
    throw new ProtocolError(
      `more than ${QUARANTINED_MAX} items of the server do not verify: reading was stopped, what is here stays`,
      { code: 'quarantine_full' },
    );
  }

  /** So many more are in quarantine now; fewer where it is negative. */
  changed(by: number): void {
    if (this.quarantined !== undefined) this.quarantined += by;
  }
}

/** True for what ends reading: to go on would be to be filled up. */
export const stopsReading = (error: unknown): error is ProtocolError =>
  error instanceof ProtocolError && (error.code === 'quarantine_full' || error.code === 'endless_replay');
