/** Waiting for what must happen, with a bound: a test whose subject is broken fails and says what did not come. */

/** How long a test waits for what comes at once where all is well, ms. It decides nothing but how soon a failure shows. */
export const SOON_MS = 60_000;

// A test may put the global timers on a clock of its own; the bound stays on the real one.
const { setTimeout, clearTimeout } = globalThis;

const late = (what: string | (() => string), maxMs: number): Error =>
  new Error(`did not come within ${maxMs / 1_000} s: ${typeof what === 'string' ? what : what()}`);

/** What the promise gives, or an error with `what` where it does not come soon. */
export async function soon<T>(promise: Promise<T>, what: string | (() => string), maxMs = SOON_MS): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const over = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(late(what, maxMs));
    }, maxMs);
  });
  try {
    return await Promise.race([promise, over]);
  } finally {
    clearTimeout(timer);
  }
}

/** Looks at every turn of the loop; from then on whoever is waited for is left the processor in between. */
const LOOKS_AT_ONCE = 50;
const LOOK_EVERY_MS = 5;
/** A look that asks somebody (a connection, a statement, a page) is paid for by him: it takes a fifth of the time at most. */
const REST = 4;
const REST_MAX_MS = 200;

/** Looks again and again, letting everything else run in between, until it is so. Throws as `soon` does. */
export async function until(
  what: string | (() => string),
  is: () => boolean | Promise<boolean>,
  maxMs = SOON_MS,
): Promise<void> {
  const end = Date.now() + maxMs;
  for (let looks = 0; ; looks++) {
    const begun = performance.now();
    if (await is()) return;
    const rest = Math.min(REST_MAX_MS, REST * (performance.now() - begun));
    if (Date.now() > end) throw late(what, maxMs);
    await new Promise((resolve) => {
      if (looks < LOOKS_AT_ONCE && rest < REST) setImmediate(resolve);
      else setTimeout(resolve, Math.max(LOOK_EVERY_MS, rest));
    });
  }
}

/** Asks until the answer is the wanted one: instances hear of each other's changes within seconds. */
export const untilIs = (ask: () => Promise<unknown>, wanted: unknown): Promise<void> =>
  until(String(wanted), async () => (await ask()) === wanted);

/** Wakes whoever waits for a change. */
export class Notifier {
  private waiting: (() => void)[] = [];

  /** Something has changed. */
  readonly notify = (): void => {
    const waiting = this.waiting;
    this.waiting = [];
    for (const resolve of waiting) resolve();
  };

  /** Resolves at the next change. */
  next(): Promise<undefined> {
    return new Promise((resolve) => this.waiting.push(() => resolve(undefined)));
  }

  /** Resolves when it is so; looks at once, and after each change. */
  async until(is: () => boolean): Promise<void> {
    while (!is()) await this.next();
  }
}

/** Things that happened, in order, and a wait for more of them. */
export class Events<T> {
  readonly all: T[] = [];
  private waiting: { readonly enough: (all: readonly T[]) => boolean; readonly resolve: () => void }[] = [];

  readonly add = (value: T): void => {
    this.all.push(value);
    const ready = this.waiting.filter(({ enough }) => enough(this.all));
    this.waiting = this.waiting.filter((waiter) => !ready.includes(waiter));
    for (const { resolve } of ready) resolve();
  };

  /** Waits for so many, or for a list that passes. Throws as `soon` does. */
  until(enough: number | ((all: readonly T[]) => boolean)): Promise<void> {
    const test = typeof enough === 'number' ? (all: readonly T[]): boolean => all.length >= enough : enough;
    if (test(this.all)) return Promise.resolve();
    const come = new Promise<void>((resolve) => this.waiting.push({ enough: test, resolve }));
    const wanted = typeof enough === 'number' ? `${enough} events` : 'the right events';
    return soon(come, () => `${wanted}; there are ${this.all.length}`);
  }
}
