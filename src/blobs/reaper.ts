/**
 * What happens to blobs that nobody needs, and the comparison of store and rows both ways (contract 8). Every part may be
 * cut off and run again, on any instance: a row is marked before its object goes, and freed after.
 */
import type { Clock } from '../protocol/clock.js';
import { releaseExpired } from './blobs.js';
import type { ObjectName, ObjectStore } from './ports.js';
import type { BlobAudit, BlobRows, Missing, Stray } from './rows.js';

/** What the reaper is made of. */
export interface ReaperOptions {
  readonly store: ObjectStore;
  readonly rows: BlobRows;
  readonly openAudit: () => Promise<BlobAudit>;
  readonly clock: Clock;
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
  /** False: it was stopped on the way. */
  readonly whole: boolean;
}

/** Rows of a batch. */
export const REAP_BATCH = 100;
/** Uploaded and not taken by an item for so long: nobody will; and what no row names is nobody's after so long. */
const UNATTACHED_MS = 24 * 3_600_000;
/** Calls to the store at once. */
const AT_ONCE = 8;
const PAGE = 500;
const EXAMPLES = 20;

/** See above. Every part throws `storage_unavailable` and `unavailable`. */
export class Reaper {
  constructor(private readonly options: ReaperOptions) {}

  /** Gives back the room of uploads that never came, up to a batch of them. Gives the number of those looked at. */
  async releaseExpired(): Promise<number> {
    const { store, rows, clock } = this.options;
    const { seen } = await releaseExpired({ store, rows }, { tenantId: null, now: clock.now(), limit: REAP_BATCH });
    return seen;
  }

  /**
   * Removes blobs whose item was deleted or replaced, and those that no item took within 24 hours, up to a batch of
   * them. Gives the number of those that are gone. An object that cannot be removed leaves its row for the next time.
   */
  async removeUnused(): Promise<number> {
    const { store, rows, clock } = this.options;
    const names = await rows.takeUnused(clock.now() - UNATTACHED_MS, REAP_BATCH);
    const { done, faults } = await eachOf(names, (name) => store.remove(name));
    await rows.free(done);
    if (faults.length > 0) throw faults[0];
    return done.length;
  }

  /**
   * Compares the store's listing with the rows. `remove`: strays that are older than 24 hours and this database's own are
   * removed; else only told of. Missing blobs are asked for once more by name before they are told of.
   */
  async compare(remove: boolean, stopped: AbortSignal): Promise<Comparison> {
    const { store, openAudit, clock } = this.options;
    const before = clock.now();
    const found = { objects: 0, strays: 0, strayBytes: 0, strangers: 0, missing: 0, examples: [] as Missing[] };
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

  private async seeTo(
    strays: readonly Stray[],
    remove: boolean,
    found: { strays: number; strayBytes: number; strangers: number },
  ): Promise<void> {
    found.strays += strays.length;
    found.strayBytes += strays.reduce((sum, { size }) => sum + size, 0);
    found.strangers += strays.filter(({ ours }) => !ours).length;
    if (!remove) return;
    const own = strays.filter(({ ours }) => ours);
    const { faults } = await eachOf(own, ({ tenantId, ref }) => this.options.store.remove({ tenantId, ref }));
    if (faults.length > 0) throw faults[0];
  }

  /** Blobs that are not there. False: stopped on the way. */
  private async seek(
    audit: BlobAudit,
    before: number,
    found: { missing: number; examples: Missing[] },
    stopped: AbortSignal,
  ): Promise<boolean> {
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

/** Does `work` for all of them, a few at once: those for which it was done, and what kept it from the others. */
async function eachOf<N extends ObjectName>(
  names: readonly N[],
  work: (name: N) => Promise<void>,
): Promise<{ readonly done: N[]; readonly faults: unknown[] }> {
  const done: N[] = [];
  const faults: unknown[] = [];
  for (let at = 0; at < names.length; at += AT_ONCE) {
    const part = names.slice(at, at + AT_ONCE);
    const results = await Promise.allSettled(part.map(work));
    results.forEach((result, index) => {
      const name = part[index];
      if (result.status === 'rejected') faults.push(result.reason);
      else if (name !== undefined) done.push(name);
    });
  }
  return { done, faults };
}
