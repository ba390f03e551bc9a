/**
 * Removal of blobs that nothing refers to, and the comparison of store and rows in both directions. Every part may be
 * interrupted and repeated, on any instance: a row is marked before its object is removed, and deleted after.
 */
import type pg from 'pg';
import { type Clock, DAY_MS } from '../../protocol/clock.js';
import type { ServiceError } from '../../protocol/errors.js';
import type { BlobName } from '../../protocol/ids.js';
import { discard, mapLimit, releaseExpired } from './blobs.js';
import type { ObjectStore } from './ports.js';
import { BlobAudit, BlobStore, type Missing, type Stray, type Turn, type Unremoved } from './store.js';

/** Result of a run of the reaper. What was refused is unchanged, and tried last in the next run. */
export type Reaped = Readonly<Omit<Awaited<ReturnType<typeof releaseExpired>>, 'seen'>>;

/** Result of a comparison. Inherited fields: the strays that it removed, and those that the store refused to remove. */
export interface Comparison extends Reaped {
  readonly objects: number;
  /** Objects that no row names. */
  readonly strays: number;
  readonly strayBytes: number;
  /** Strays of tenants that this database has never had. */
  readonly foreign: number;
  /** How many blobs are missing or have another size, and the first of them. */
  readonly missing: number;
  readonly examples: readonly Missing[];
  /** Blobs of no item whose object the store has not removed so far; they count in their tenants' storage. */
  readonly unremoved: Unremoved;
  /** False: it was stopped before its end. */
  readonly whole: boolean;
}

type Found = { -readonly [K in keyof Omit<Comparison, 'whole' | 'examples'>]: Comparison[K] } & {
  readonly examples: Missing[];
};

/** Rows per batch. */
const BATCH = 100;
/** Batches per run; the rest waits for the next run. */
const BATCHES_MAX = 10_000;
/** Refusals that end a run: each may have taken the store ten seconds. */
const REFUSED_MAX = 1_000;
/** A ready blob that no item took, or an object that no row names, is removed at this age. */
const UNATTACHED_MS = DAY_MS;
/** Rows per query of a comparison. */
const PAGE = 500;
/** Missing blobs that a comparison lists. */
const EXAMPLES_MAX = 20;

/**
 * A refusal of the store for one blob (permissions, a lock on the object) delays no other, within a run or from one to
 * the next. Every method throws `storage_unavailable` if the store does not answer at all, and `unavailable`.
 */
export class Reaper {
  private readonly rows: BlobStore;

  /** `url`: of the same database as `pool`, past a pooler. */
  constructor(
    private readonly store: ObjectStore,
    pool: pg.Pool,
    private readonly url: string,
    private readonly clock: Clock,
  ) {
    this.rows = new BlobStore(pool);
  }

  /** Releases the storage reserved for uploads that never arrived. */
  releaseExpired(stopped: AbortSignal): Promise<Reaped> {
    return this.inBatches(stopped, (turn) => releaseExpired({ store: this.store, rows: this.rows }, null, turn));
  }

  /**
   * Removes blobs whose item was deleted or replaced, and those that no item took within 24 hours. An object that cannot
   * be removed keeps its row until the next run.
   */
  removeUnused(stopped: AbortSignal): Promise<Reaped> {
    return this.inBatches(stopped, async (turn) => {
      const names = await this.rows.takeUnused(turn.now - UNATTACHED_MS, turn);
      const { done, faults } = await mapLimit(this.store, names, (upload) => discard(this.store, upload));
      await this.rows.free(null, done);
      return { seen: names.length, done: done.length, refused: faults.length, fault: faults[0] };
    });
  }

  /** Runs batches, each of rows that this run has not tried yet, until there are none left. */
  private async inBatches(
    stopped: AbortSignal,
    batch: (turn: Turn) => Promise<Reaped & { readonly seen: number }>,
  ): Promise<Reaped> {
    const begun = this.clock.now();
    let [done, refused] = [0, 0];
    let fault: ServiceError | undefined;
    for (let batches = 0; batches < BATCHES_MAX && refused < REFUSED_MAX && !stopped.aborted; batches++) {
      const now = Math.max(begun, this.clock.now());
      const part = await batch({ since: begun, now, limit: BATCH });
      done += part.done;
      refused += part.refused;
      fault ??= part.fault;
      if (part.seen === 0) break;
    }
    return { done, refused, fault };
  }

  /**
   * Compares the store's listing with the rows. `remove`: strays older than 24 hours and not foreign are removed until
   * too many are refused; else strays are only reported. A missing blob is looked up by name before it is reported.
   */
  async compare(remove: boolean, stopped: AbortSignal): Promise<Comparison> {
    const begun = this.clock.now();
    const found: Found = {
      ...{ objects: 0, strays: 0, strayBytes: 0, foreign: 0, missing: 0, examples: [] },
      ...{ done: 0, refused: 0, fault: undefined },
      unremoved: await this.rows.unremoved(),
    };
    const audit = await BlobAudit.open(this.url);
    // A statement of it may take minutes.
    const cut = (): void => void audit.close();
    stopped.addEventListener('abort', cut);
    try {
      for await (const page of this.store.list()) {
        if (stopped.aborted) return { ...found, whole: false };
        await audit.add(page);
        found.objects += page.length;
      }
      const modifiedBefore = remove ? begun - UNATTACHED_MS : begun;
      for await (const strays of pagesOf((after) => audit.strays(modifiedBefore, after, PAGE))) {
        if (stopped.aborted) return { ...found, whole: false };
        await this.handleStrays(strays, remove, found);
      }
      const whole = await this.findMissing(audit, begun, found, stopped);
      return { ...found, whole };
    } catch (error) {
      if (stopped.aborted) return { ...found, whole: false };
      throw error;
    } finally {
      stopped.removeEventListener('abort', cut);
      await audit.close();
    }
  }

  /** Counts a page of strays, and removes those that are not foreign if `remove` is set. */
  private async handleStrays(strays: readonly Stray[], remove: boolean, found: Found): Promise<void> {
    const ours = strays.filter((stray) => stray.ours);
    found.strays += strays.length;
    found.strayBytes += strays.reduce((sum, { size }) => sum + size, 0);
    found.foreign += strays.length - ours.length;
    if (!remove || found.refused >= REFUSED_MAX) return;
    const { done, faults } = await mapLimit(this.store, ours, (stray) => this.store.remove(stray));
    found.done += done.length;
    found.refused += faults.length;
    found.fault ??= faults[0];
  }

  /** Counts blobs created before `begun` whose object is missing. False: stopped before the end. */
  private async findMissing(audit: BlobAudit, begun: number, found: Found, stopped: AbortSignal): Promise<boolean> {
    for await (const page of pagesOf((after) => audit.missing(begun, after, PAGE))) {
      for (const blob of page) {
        if (stopped.aborted) return false;
        // The listing may be outdated: a blob that was uploaded or removed since is not missing.
        const object = await this.store.head(blob);
        if (object?.size === blob.size || (await this.rows.find(blob))?.state !== 'ready') continue;
        found.missing++;
        if (found.examples.length < EXAMPLES_MAX) found.examples.push(blob);
      }
    }
    return true;
  }
}

/** The pages of what `read` returns by name, at most `PAGE` of it, beginning after the name that it is given. */
async function* pagesOf<N extends BlobName>(read: (after: BlobName) => Promise<N[]>): AsyncGenerator<readonly N[]> {
  let after: BlobName | undefined = { tenantId: '', ref: '' };
  while (after !== undefined) {
    const page: readonly N[] = await read(after);
    yield page;
    after = page.length < PAGE ? undefined : page.at(-1);
  }
}
