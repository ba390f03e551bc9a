/** What a browser keeps for a page, in memory: as much of IndexedDB and of the Web Locks as the web app uses. */
import { setImmediate } from 'node:timers/promises';

/** A page: what it asked for does not happen any more once it has ended. */
export interface TestPage {
  alive: boolean;
}

type Span = (key: string) => boolean;
type Records = Map<string, unknown>;

/** A request that is answered a turn later; `done` and `failed` are called by then. */
class Request {
  result: unknown;
  error: unknown = null;
  onsuccess: () => void = () => undefined;
  onerror: () => void = () => undefined;
  onupgradeneeded: () => void = () => undefined;
}

const failure = (): DOMException => new DOMException('there is no room', 'QuotaExceededError');

export class BrowserDatabases {
  readonly kept = new Map<string, Records>();
  /** Operations that still succeed before one fails, and before the page ends. */
  failsIn = Infinity;
  endsIn = Infinity;
  /** Called where the page ends by `endsIn`. */
  onEnd: () => void = () => undefined;
  /** Operations under way. */
  running = 0;
  private page: TestPage = { alive: true };
  private readonly held = new Map<string, TestPage>();

  /** What is asked for from now on is of this page. The locks of ended ones are free. */
  turnTo(page: TestPage): void {
    this.page = page;
    this.running = 0;
  }

  /** Carries out an operation of the page a turn later. */
  private later(page: TestPage, work: () => void, failed: (error: DOMException) => void): void {
    const step = async (): Promise<void> => {
      if (!page.alive) return;
      this.running++;
      await setImmediate();
      if (!page.alive) return;
      this.running--;
      if (this.endsIn-- <= 0) {
        this.endsIn = Infinity;
        page.alive = false;
        this.onEnd();
      } else if (this.failsIn-- <= 0) {
        this.failsIn = Infinity;
        failed(failure());
      } else work();
    };
    void step();
  }

  private request(page: TestPage, answer: () => unknown): Request {
    const request = new Request();
    this.later(
      page,
      () => {
        request.result = answer();
        request.onsuccess();
      },
      (error) => {
        request.error = error;
        request.onerror();
      },
    );
    return request;
  }

  /** The global objects that a page finds. */
  get globals() {
    return {
      indexedDB: {
        open: (name: string) => this.open(name),
        deleteDatabase: (name: string) => this.request(this.page, () => void this.kept.delete(name)),
        databases: () =>
          new Promise((resolve, reject) => {
            this.later(this.page, () => resolve([...this.kept.keys()].map((name) => ({ name }))), reject);
          }),
      },
      IDBKeyRange: {
        bound: (from: string, to: string, lowOpen = false, highOpen = false): Span => {
          return (key) => (lowOpen ? key > from : key >= from) && (highOpen ? key < to : key <= to);
        },
        lowerBound: (from: string, open = false): Span => {
          return (key) => (open ? key > from : key >= from);
        },
        upperBound: (to: string, open = false): Span => {
          return (key) => (open ? key < to : key <= to);
        },
      },
      navigator: { locks: { request: this.lock } },
    };
  }

  private open(name: string): Request {
    const { page } = this;
    const request = this.request(page, () => {
      const records: Records = this.kept.get(name) ?? new Map<string, unknown>();
      this.kept.set(name, records);
      let closed = false;
      return {
        close: () => void (closed = true),
        transaction: () => {
          if (closed) throw new DOMException('the connection is closed', 'InvalidStateError');
          return this.transaction(page, records);
        },
      };
    });
    return request;
  }

  private transaction(page: TestPage, records: Records) {
    const writes: (() => void)[] = [];
    const transaction = { error: null as unknown, oncomplete: () => {}, onabort: () => {}, objectStore: () => store };
    const write = (change: () => void): void => {
      writes.push(change);
      if (writes.length > 1) return;
      this.later(
        page,
        () => {
          for (const each of writes) each();
          transaction.oncomplete();
        },
        (error) => {
          transaction.error = error;
          transaction.onabort();
        },
      );
    };
    const found = (span: Span = () => true, size = Infinity) =>
      [...records]
        .filter(([key]) => span(key))
        .sort(([one], [other]) => (one < other ? -1 : 1))
        .slice(0, size);
    const store = {
      transaction,
      get: (key: string) => this.request(page, () => structuredClone(records.get(key))),
      getAllKeys: (span?: Span, size?: number) => this.request(page, () => found(span, size).map(([key]) => key)),
      getAll: (span?: Span, size?: number) =>
        this.request(page, () => found(span, size).map(([, value]) => structuredClone(value))),
      put: (value: unknown, key: string) => {
        const copy: unknown = structuredClone(value);
        write(() => records.set(key, copy));
      },
      delete: (key: string) => write(() => records.delete(key)),
      clear: () => write(() => records.clear()),
    };
    return transaction;
  }

  /** Of ended pages and without waiting: who comes too early is refused. */
  private readonly lock = async (
    name: string,
    _: unknown,
    work: (lock: object | null) => Promise<unknown>,
  ): Promise<unknown> => {
    const { page } = this;
    await setImmediate();
    if (this.held.get(name)?.alive === true) return work(null);
    this.held.set(name, page);
    try {
      return await work({});
    } finally {
      if (this.held.get(name) === page) this.held.delete(name);
    }
  };
}
