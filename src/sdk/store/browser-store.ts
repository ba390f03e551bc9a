/** Durable stores of browsers: IndexedDB. */
import { storeError, storeErrorOf } from './error.js';
import { IndexedLevel, removeIndexed } from './indexed-level.js';
import type { Level } from './level.js';
import { openStore, type OpenedStore, type StorePlace } from './open.js';
import type { StoreOwner } from './records.js';

const PREFIX = 'service-device-';
/** Of the damaged databases that were set aside; older ones are removed. */
const SET_ASIDE_MAX = 3;

/** A browser's store. */
export interface OpenedBrowserStore extends OpenedStore {
  /** False: the browser may remove it when it needs room, changes that were not sent yet included. */
  readonly persistent: boolean;
}

/**
 * The store of a device in this origin's IndexedDB, under `name` (one for each device), which is made where it is not
 * there. Everything in it is read and checked first. Throws `StoreError`; `locked` where another page has it open,
 * `unsupported` where the page is not a secure context (https, or localhost), in which browsers cannot lock anything.
 *
 * A small database `<name>` says which of `<name>.<number>` is in use, so that a damaged one is replaced in one step.
 */
export async function openBrowserStore(name: string, owner: StoreOwner): Promise<OpenedBrowserStore> {
  try {
    const persistent = (await navigator.storage?.persist?.()) ?? false;
    const release = await locked(`${PREFIX}${name}`);
    try {
      const index = await opened(`${PREFIX}${name}`);
      return { ...(await openStore(new Origin(`${PREFIX}${name}`, index, release), owner)), persistent };
    } catch (error) {
      release();
      throw error;
    }
  } catch (error) {
    throw storeErrorOf(error);
  }
}

/** Two pages with one store would each write what the other does not know. The lock ends with the page. */
function locked(name: string): Promise<() => void> {
  const locks = typeof navigator === 'undefined' ? undefined : (navigator as Partial<Navigator>).locks;
  if (locks === undefined) throw storeError('unsupported', 'the page is not a secure context');
  return new Promise((resolve, reject) => {
    const held = locks.request(name, { ifAvailable: true }, (lock) => {
      if (lock === null) throw storeError('locked');
      return new Promise<void>((release) => resolve(release));
    });
    held.catch(reject);
  });
}

async function opened(name: string): Promise<Level> {
  const level = new IndexedLevel(name);
  await level.open();
  return level;
}

const IN_USE = 'in use';

/** See `openBrowserStore`. The lock is held: nothing else changes these databases. */
class Origin implements StorePlace {
  constructor(
    private readonly name: string,
    private readonly index: Level,
    private readonly unlock: () => void,
  ) {}

  async current(): Promise<Level> {
    return opened(this.at(await this.inUse()));
  }

  async next(): Promise<Level> {
    const name = this.at((await this.inUse()) + 1);
    // What a page that ended in the middle left behind.
    await removeIndexed(name);
    return opened(name);
  }

  async promote(): Promise<string> {
    const old = await this.inUse();
    await this.index.put(IN_USE, new TextEncoder().encode(String(old + 1)));
    const gone = old - SET_ASIDE_MAX;
    if (gone > 0) await removeIndexed(this.at(gone));
    return this.at(old);
  }

  /** IndexedDB is not cut off by accident as a file is: what it has is the last state. */
  expected(): Promise<number> {
    return Promise.resolve(0);
  }

  expect(): Promise<void> {
    return Promise.resolve();
  }

  async release(): Promise<void> {
    await this.index.close();
    this.unlock();
  }

  private async inUse(): Promise<number> {
    const kept = await this.index.get(IN_USE);
    const number = kept === undefined ? 1 : Number(new TextDecoder().decode(kept));
    return Number.isSafeInteger(number) && number > 0 ? number : 1;
  }

  private at(number: number): string {
    return `${this.name}.${number}`;
  }
}
