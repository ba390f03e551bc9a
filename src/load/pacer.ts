/**
 * The thread that posts the scheduled time of each due operation, in microseconds. It waits on a lock, which blocks it: a
 * timer of an event loop is up to a millisecond late, which is half of what is measured.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { nowUs } from './ledger.js';

/** What the thread is started with. */
export interface Pace {
  /** Operations a second. */
  readonly rate: number;
  readonly arrivals: 'poisson' | 'fixed';
  /** When to begin and to end, microseconds. */
  readonly from: number;
  readonly to: number;
  /** An Int32 that becomes 1 when the thread is to end. */
  readonly stop: SharedArrayBuffer;
}

const { rate, arrivals, from, to, stop } = workerData as Pace;
const flag = new Int32Array(stop);
const gap = (): number => (arrivals === 'fixed' ? 1 : -Math.log(1 - Math.random())) * (1e6 / rate);
let next = from + gap();
while (next < to && Atomics.load(flag, 0) === 0) {
  const now = nowUs();
  const due: number[] = [];
  for (; next <= now && next < to; next += gap()) due.push(next);
  if (due.length > 0) parentPort?.postMessage(due);
  Atomics.wait(flag, 0, 0, Math.max(0, (next - nowUs()) / 1_000));
}
parentPort?.postMessage('done');
