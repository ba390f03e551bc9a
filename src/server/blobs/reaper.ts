/**
 * What happens to blobs that nobody needs, and the comparison of store and rows both ways. Every part may be
 * cut off and run again, on any instance: a row is marked before its object goes, and freed after.
 */
import type { Clock } from '../../protocol/clock.js';
import type { ServiceError } from '../../protocol/errors.js';
import { releaseExpired } from './blobs.js';
import type { ObjectName, ObjectStore } from './ports.js';
import type { BlobAudit, BlobRows, Missing, Stray, Turn, Unremoved } from './rows.js';
import { mapLimit } from './map-limit.js';

/** What the reaper is made of. */
export interface ReaperOptions {
  readonly store: ObjectStore;
  readonly rows: BlobRows;
  readonly openAudit: () => Promise<BlobAudit>;
  readonly clock: Clock;
}

/** What a run of the reaper came to. */
export interface Reaped {
  /** Those that were settled, or removed. */
  readonly done: number;
  /** Those that the store would not tell of, or not remove: they stay as they are, and come last the next time. */
  readonly refused: number;
  /** Why it was the first of those. */
  readonly fault: ServiceError | undefined;
}

/** What a comparison found. */
export interface Comparison {
  /** Objects in the store. */
  readonly objects: number;
  readonly strays: number;
  readonly strayBytes: number;
  /** Of the strays, those of tenants that this database has never had. */
  readonly strangers: number;
  /** How many blobs are missing or have another size, and the first of them. */
  readonly missing: number;
  readonly examples: readonly Missing[];
  /** Blobs of no item whose object the store did not remove so far; they count in their tenants' storage. */
  readonly unremoved: Unremoved;
  /** Strays that the store did not remove now. */
  readonly refused: number;
  /** Why it was the first of those. */
  readonly fault?: ServiceError;
  /** False: it was stopped on the way. */
  readonly whole: boolean;
}

/** What a comparison has found so far. */
type Found = { -readonly [K in keyof Omit<Comparison, 'whole' | 'examples'>]: Comparison[K] } & {
  readonly examples: Missing[];
};

/** Rows of a batch. */
const BATCH = 100;
/** Batches of a run; what is left then waits for the next one. */
const BATCHES_MAX = 10_000;
/** A run that was refused so many gives the store a rest: each may have taken it ten seconds. */
const REFUSED_MAX = 1_000;
/** Uploaded and not taken by an item for so long: nobody will; and what no row names is nobody's after so long. */
const UNATTACHED_MS = 24 * 3_600_000;
const PAGE = 500;
const EXAMPLES = 20;

/**
 * See above. What the store refuses of one blob (rights, a lock on the object) keeps nothing else from its turn, in a
 * run and from one run to the next. Every part throws `storage_unavailable` where the store is away altogether, and
 * `unavailable`.
 */
export class Reaper {
  constructor(private readonly options: ReaperOptions) {}

  /** Gives back the room of uploads that never came. */
  releaseExpired(stopped: AbortSignal): Promise<Reaped> {
    const { store, rows } = this.options;
    return this.inBatches(stopped, (turn) => releaseExpired({ store, rows }, { tenantId: null, turn }));
  }

  /**
   * Removes blobs whose item was deleted or replaced, and those that no item took within 24 hours. An object that cannot
   * be removed leaves its row for the next time.
   */
  removeUnused(stopped: AbortSignal): Promise<Reaped> {
    const { rows } = this.options;
    return this.inBatches(stopped, async (turn) => {
      const names = await rows.takeUnused(turn.now - UNATTACHED_MS, turn);
      const { done, faults } = await this.removed(names);
      await rows.free(done);
      return { seen: names.length, done: done.length, refused: faults.length, fault: faults[0] };
    });
  }

  /** Batch after batch, each of what this run has not tried yet, until nothing is left of that. */
  private async inBatches(
    stopped: AbortSignal,
    batch: (turn: Turn) => Promise<Reaped & { readonly seen: number }>,
  ): Promise<Reaped> {
    const since = this.options.clock.now();
    let [done, refused] = [0, 0];
    let fault: ServiceError | undefined;
    for (let batches = 0; batches < BATCHES_MAX && refused < REFUSED_MAX && !stopped.aborted; batches++) {
      const now = Math.max(since, this.options.clock.now());
      const part = await batch({ since, now, limit: BATCH });
      done += part.done;
      refused += part.refused;
      fault ??= part.fault;
      if (part.seen === 0) break;
    }
    return { done, refused, fault };
  }

  private removed<N extends ObjectName>(names: readonly N[]): ReturnType<typeof mapLimit<N>> {
    const { store } = this.options;
    return mapLimit(store, names, ({ tenantId, ref }) => store.remove({ tenantId, ref }));
  }

  /**
   * Compares the store's listing with the rows. `remove`: strays that are older than 24 hours and this database's own are
   * removed, until too many were refused; else only told of. Missing blobs are asked for once more by name before they are told of.
   */
  async compare(remove: boolean, stopped: AbortSignal): Promise<Comparison> {
    const { store, rows, openAudit, clock } = this.options;
    const before = clock.now();
    const found: Found = {
      ...{ objects: 0, strays: 0, strayBytes: 0, strangers: 0, refused: 0, missing: 0, examples: [] },
      unremoved: await rows.unremoved(),
    };
    const audit = await openAudit();
    try {
      for await (const page of store.list()) {
        if (stopped.aborted) return { ...found, whole: false };
        await audit.add(page);
        found.objects += page.length;
      }
      const old = remove ? before - UNATTACHED_MS : before;
      for (let strays = await audit.takeStrays(old, PAGE); strays.length > 0;) {
        if (stopped.aborted) return { ...found, whole: false };
        await this.seeTo(strays, remove, found);
        strays = await audit.takeStrays(old, PAGE);
      }
      const whole = await this.seek(audit, before, found, stopped);
      return { ...found, whole };
    } finally {
      await audit.close();
    }
  }

  private async seeTo(strays: readonly Stray[], remove: boolean, found: Found): Promise<void> {
    found.strays += strays.length;
    found.strayBytes += strays.reduce((sum, { size }) => sum + size, 0);
    found.strangers += strays.filter(({ ours }) => !ours).length;
    if (!remove || found.refused >= REFUSED_MAX) return;
    const { faults } = await this.removed(strays.filter(({ ours }) => ours));
    found.refused += faults.length;
    if (faults[0] !== undefined) found.fault ??= faults[0];
  }

  /** Blobs that are not there. False: stopped on the way. */
  private async seek(audit: BlobAudit, before: number, found: Found, stopped: AbortSignal): Promise<boolean> {
    const { store, rows } = this.options;
    let after: ObjectName = { tenantId: '', ref: '' };
    for (;;) {
      const page = await audit.missing(before, after, PAGE);
      for (const blob of page) {
        if (stopped.aborted) return false;
        const { tenantId, ref, size } = blob;
        // The listing is a while old by now: what came and went meanwhile is not missing.
        const object = await store.head({ tenantId, ref });
        if (object?.size === size || (await rows.find({ tenantId, ref }))?.state !== 'ready') continue;
        found.missing++;
        if (found.examples.length < EXAMPLES) found.examples.push(blob);
      }
      const last = page.at(-1);
      if (page.length < PAGE || last === undefined) return true;
      after = last;
    }
  }
}
