/** Subscriptions of a list: the current list first, then each one that differs. */
import { ClientError } from './errors.js';
import { notify } from './events.js';

/** A subscription, until it is closed. */
export interface Subscription<T> {
  /** The last result. */
  readonly current: readonly T[];
  /** Nothing is delivered after this. */
  close(): void;
}

/** Maximum of subscriptions of one list. */
const SUBSCRIPTIONS_MAX = 64;

interface Subscriber<T> {
  readonly listener: (list: readonly T[]) => void;
  current: readonly T[] | undefined;
  text: string;
}

/** The subscriptions of one list. */
export class ListSubscriptions<T> {
  private readonly all = new Set<Subscriber<T>>();

  /** `textOf`: lists with the same text are considered equal. */
  constructor(
    private readonly textOf: (list: readonly T[]) => string,
    private readonly onProblem: (error: Error) => void,
  ) {}

  /** True while there is a subscription. */
  get any(): boolean {
    return this.all.size > 0;
  }

  /**
   * Delivers the list of `read` to `listener` before it resolves, then each one that differs. Rejects as `read` does;
   * throws `ClientError` `too_many` above `SUBSCRIPTIONS_MAX`.
   */
  async subscribe(listener: (list: readonly T[]) => void, read: () => Promise<readonly T[]>): Promise<Subscription<T>> {
    if (this.all.size >= SUBSCRIPTIONS_MAX)
      throw new ClientError('too_many', `more than ${SUBSCRIPTIONS_MAX} subscriptions: close those that nobody needs`);
    const subscriber: Subscriber<T> = { listener, current: undefined, text: '' };
    this.all.add(subscriber);
    try {
      const list = await read();
      // A newer list may have been delivered during `read`.
      if (subscriber.current === undefined) this.deliverOne(subscriber, list);
    } catch (error) {
      this.all.delete(subscriber);
      throw error;
    }
    return {
      get current() {
        return subscriber.current ?? [];
      },
      close: () => void this.all.delete(subscriber),
    };
  }

  /** Delivers the current list to the subscribers whose last one differs. */
  deliver(list: readonly T[]): void {
    for (const subscriber of [...this.all]) this.deliverOne(subscriber, list);
  }

  private deliverOne(subscriber: Subscriber<T>, list: readonly T[]): void {
    const text = this.textOf(list);
    if (subscriber.current !== undefined && text === subscriber.text) return;
    subscriber.current = list;
    subscriber.text = text;
    notify(this.onProblem, () => subscriber.listener(list));
  }
}
