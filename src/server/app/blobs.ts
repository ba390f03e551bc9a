/** The maintenance of blobs: for the nightly jobs, and for the operator's program. */
import type { Comparison, Reaped, Reaper } from '../blobs/reaper.js';
import type { Job } from '../ops/store.js';

/** Removals that the blob store refused in one run of a job. */
export interface Refused extends Pick<Reaped, 'refused' | 'fault'> {
  readonly job: string;
}

/** The nightly jobs for blobs. A `Job` reports only a number of rows; other findings go to the callbacks. */
export function blobJobs(
  reaper: Reaper,
  callbacks: { onRefused: (refused: Refused) => void; onCompared: (found: Comparison) => void },
): readonly Job[] {
  const job = (name: string, work: (stopped: AbortSignal) => Promise<Reaped>): Job => ({
    name,
    // One batch a run: the reaper runs its own batches, and skips what it has tried.
    full: Infinity,
    batch: async (stopped) => {
      const { done, refused, fault } = await work(stopped);
      if (refused > 0) callbacks.onRefused({ job: name, refused, fault });
      return done;
    },
  });
  return [
    job('release uploads that never came', (stopped) => reaper.releaseExpired(stopped)),
    job('remove blobs without use', (stopped) => reaper.removeUnused(stopped)),
    job('compare blobs with their store', async (stopped) => {
      const found = await reaper.compare(true, stopped);
      callbacks.onCompared(found);
      return found;
    }),
  ];
}
