/** Lists that are followed: who subscribes gets the list as it is, then each one that differs. */
import { asError } from '../protocol/error-code.js';
import { ClientError } from './errors.js';

/** Something that is followed until it is closed. */
export interface Subscription<T> {
  /** The last result. */
  readonly current: readonly T[];
  /** Nothing is told after this. */
  close(): void;
}

/** Subscriptions of one list at a time. */
export const FOLLOWERS_MAX = 64;

interface Follower<T> {
  readonly listener: (list: readonly T[]) => void;
  current: readonly T[] | undefined;
  text: string;
}

/** The followers of one list. */
export class ListSubscriptions<T> {
  private readonly all = new Set<Follower<T>>();

  /** `textOf`: two lists with the same text are the same to their followers. */
  constructor(
    private readonly textOf: (list: readonly T[]) => string,
    private readonly onProblem: (error: Error) => void,
  ) {}

  /** True while somebody follows. */
  get any(): boolean {
    return this.all.size > 0;
  }

  /**
   * Tells `listener` the list that `read` gives before it resolves, then each that differs. Rejects as `read` does;
   * throws `ClientError` `too_many` above `FOLLOWERS_MAX`.
   */
  async follow(listener: (list: readonly T[]) => void, read: () => Promise<readonly T[]>): Promise<Subscription<T>> {
    if (this.all.size >= FOLLOWERS_MAX)
      throw new ClientError('too_many', `more than ${FOLLOWERS_MAX} subscriptions: close those that nobody needs`);
    const follower: Follower<T> = { listener, current: undefined, text: '' };
    this.all.add(follower);
    try {
      const list = await read();
      // A newer list may have been told while this one was read.
      if (follower.current === undefined) this.tellOne(follower, list);
    } catch (error) {
      this.all.delete(follower);
      throw error;
    }
    return {
      get current() {
        return follower.current ?? [];
      },
      close: () => void this.all.delete(follower),
    };
  }

  /** The list as it is now. */
  tell(list: readonly T[]): void {
    for (const follower of [...this.all]) this.tellOne(follower, list);
  }

  private tellOne(follower: Follower<T>, list: readonly T[]): void {
    const text = this.textOf(list);
    if (follower.current !== undefined && text === follower.text) return;
    follower.current = list;
    follower.text = text;
    try {
      follower.listener(list);
    } catch (error) {
      this.onProblem(asError(error));
    }
  }
}
