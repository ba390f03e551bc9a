/**
 * A client's waits, passed at once. Its time is turned only while no request of it is under way: one that the server
 * answers in its time must not meet its time-out, however slow the machine is.
 */
import type { Platform } from '../../src/sdk/platform.js';
import { settle } from './client.js';
import type { TestClock } from './clock.js';

/** What a client asks of its server at the moment. */
export interface Traffic {
  /** Requests under way. */
  readonly busy: number;
}

/** Nothing ever goes over the network. */
export const NO_TRAFFIC: Traffic = { busy: 0 };

/** A platform whose requests are counted. */
export function counted(platform: Platform): { readonly platform: Platform; readonly traffic: Traffic } {
  const traffic = { busy: 0 };
  const fetch: Platform['fetch'] = async (url, init) => {
    traffic.busy++;
    try {
      return await platform.fetch(url, init);
    } finally {
      traffic.busy--;
    }
  };
  return { platform: { ...platform, fetch }, traffic };
}

/** Turns a clock, by `stepMs` at a time, until work is done. */
export async function hurried<T>(clock: TestClock, traffic: Traffic, work: Promise<T>, stepMs = 1_000): Promise<T> {
  let over = false;
  const done = (): void => {
    over = true;
  };
  work.then(done, done);
  while (!over) {
    await settle();
    if (traffic.busy === 0) clock.advance(stepMs);
  }
  return work;
}
