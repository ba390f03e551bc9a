/** Puts together what blobs are made of: the store, its rows, and the transfers through this server. */
import type { Logger } from 'pino';
import { Blobs } from '../blobs/blobs.js';
import { Reaper, type Comparison, type Reaped } from '../blobs/reaper.js';
import { Transfers } from '../blobs/transfers.js';
import type { Job } from '../ops/store.js';
import type { LocalStore } from '../blobs/objects/local.js';
import { localStore, openBucket } from '../blobs/objects/open.js';
import { BlobStore } from '../blobs/store.js';
import type { Timer } from '../../protocol/clock.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import type { Parts } from './parts.js';

/** Blobs of a running server. */
export interface BlobParts {
  readonly blobs: Blobs;
  /** Undefined: clients reach the store by themselves. */
  readonly transfers: Transfers | undefined;
  /** For the night. */
  readonly jobs: readonly Job[];
}

/** An upload says something more often than this, or is cut: what is older was left behind, ms. */
const QUIET_MS = 2 * 60_000;

/** Opens the store of the configuration. Nothing is asked of it yet: a store that is down is no reason not to start. */
export async function composeBlobs(parts: Parts): Promise<BlobParts> {
  const { config, log, clock, database, blobUrlSecret: secret } = parts;
  const { storageKind, maxBlobBytes: maxBytes, storageCapBytes: capBytes } = config;
  const rows = new BlobStore(database.pool);
  const local = storageKind === 'local' ? localStore(config, secret) : undefined;
  const store = local ?? (await openBucket(config, log));
  parts.stops.push(() => store.close());
  const blobs = new Blobs({ store, rows, clock, maxBytes, capBytes });
  const jobs = blobJobs(new Reaper(store, database.pool, clock), {
    onRefused: (refused) => logRefused(log, refused),
    onCompared: (found) => logComparison(log, found),
  });
  if (local === undefined) return { blobs, transfers: undefined, jobs };
  const transfers = new Transfers({ files: local, rows, clock, secret });
  keepSwept(parts, local);
  parts.stops.push(() => transfers.close());
  return { blobs, transfers, jobs };
}

/** What the store would not do for a job, once a run. */
export interface Refused extends Pick<Reaped, 'refused' | 'fault'> {
  readonly job: string;
}

/** Who is told what a night came to beside what it did. */
export interface NightWatch {
  readonly onRefused: (refused: Refused) => void;
  readonly onCompared: (found: Comparison) => void;
}

/** What the nightly jobs do about blobs. */
export function blobJobs(reaper: Reaper, watch: NightWatch): readonly Job[] {
  const job = (name: string, work: (stopped: AbortSignal) => Promise<Reaped>): Job => ({
    name,
    // Once a night: it goes from batch to batch by itself, and knows what it has tried.
    full: Infinity,
    batch: async (stopped) => {
      const { done, refused, fault } = await work(stopped);
      if (refused > 0) watch.onRefused({ job: name, refused, fault });
      return done;
    },
  });
  return [
    job('release uploads that never came', (stopped) => reaper.releaseExpired(stopped)),
    job('remove blobs without use', (stopped) => reaper.removeUnused(stopped)),
    job('compare blobs with their store', async (stopped) => {
      const found = await reaper.compare(true, stopped);
      watch.onCompared(found);
      const { strays, foreign, refused, fault } = found;
      return { done: strays - foreign - refused, refused, fault };
    }),
  ];
}

function logRefused(log: Logger, { job, refused, fault }: Refused): void {
  const cause: unknown = fault?.cause;
  const why = cause instanceof Error ? cause.message : undefined;
  log.warn({ job, objects: refused, why }, 'the store refuses blobs that are to be removed');
}

function logComparison(log: Logger, { missing, examples, foreign }: Comparison): void {
  if (missing > 0) log.error({ missing, examples }, 'blobs are missing in the store');
  if (foreign > 0) log.warn({ objects: foreign }, 'the store holds objects of tenants that this database never had');
}

/** Removes what killed processes left of their uploads: at the start, and again and again. */
function keepSwept({ clock, stops, onFault }: Parts, local: LocalStore): void {
  let timer: Timer | undefined;
  // Files carry the machine's time, whatever a test's clock says.
  const sweeping = new SingleFlight(() => local.sweep(Date.now(), QUIET_MS).then(() => undefined, onFault));
  const sweep = (): void => {
    timer = clock.setTimer(QUIET_MS, sweep);
    void sweeping.join();
  };
  sweep();
  stops.push(async () => {
    timer?.cancel();
    await sweeping.idle();
  });
}
