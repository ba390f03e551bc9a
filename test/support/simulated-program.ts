/** A run of a simulated device's program, and the disk that it sees. */
import type { Timer } from '../../src/protocol/clock.js';
import type { Device } from '../../src/sdk/device.js';
import type { ItemView } from '../../src/sdk/events.js';
import { storeError } from '../../src/sdk/store/error.js';
import { MemoryStore, type Batch, type Entry } from '../../src/sdk/store/store.js';
import type { OpenQueries } from './open-queries.js';

/** A run of a device's program. Killed, it does nothing more: no timer, no request, no batch of its store. */
export class Program {
  readonly timers = new Set<Timer>();
  alive = true;
  /** Batches that are still stored before it is killed. */
  batches = Infinity;
  /** Calls that its store refuses next. */
  refusals = 0;
  /** Reads of items that still succeed, and how many fail after them. */
  reads = { left: 0, failing: 0 };
  device: Device | undefined;
  shown: readonly ItemView[] = [];
  queries: OpenQueries | undefined;
  /** What it was last told of the bins, and those of its items that are not among them. */
  bins: readonly string[] = [];
  unlisted: readonly string[] = [];
  /** How many bins it is deleting: what that fails with is the answer to the deletes of their items. */
  emptying = 0;

  kill(): void {
    this.alive = false;
    for (const timer of this.timers) timer.cancel();
    this.timers.clear();
  }
}

/** What a program that was killed waits for. */
export const never = <T>(): Promise<T> => new Promise<T>(() => undefined);

/** A call of a program to its disk takes effect at once, and takes some time. */
export async function slowly<T>(program: Program, draw: (below: number) => number, call: () => Promise<T>): Promise<T> {
  if (!program.alive) return never();
  if (program.refusals > 0) {
    program.refusals--;
    throw storeError('io');
  }
  const result = call();
  for (let ticks = draw(6); ticks > 0; ticks--) await Promise.resolve();
  return program.alive ? result : never();
}

/**
 * What a program sees of the device's store: calls take effect in their order, and take some time. `Program.batches`
 * ends the program between two of them.
 */
export class SlowStore extends MemoryStore {
  constructor(
    private readonly kept: MemoryStore,
    private readonly program: Program,
    private readonly world: { readonly draw: (below: number) => number; stored(batch: Batch): void; killed(): void },
  ) {
    super();
  }

  private slowly<T>(call: () => Promise<T>): Promise<T> {
    return slowly(this.program, this.world.draw, call);
  }

  private expectReadable(): void {
    const { reads } = this.program;
    if (reads.left-- > 0 || reads.failing === 0) return;
    reads.failing--;
    throw storeError('io');
  }

  override cursor = () => this.slowly(() => this.kept.cursor());
  override get = (id: string): Promise<Entry | undefined> =>
    this.slowly(async () => {
      this.expectReadable();
      return this.kept.get(id);
    });
  override pending = () => this.slowly(() => this.kept.pending());
  override held = () => this.slowly(() => this.kept.held());
  override entries = async function* (this: SlowStore): AsyncGenerator<Entry, void, undefined> {
    this.expectReadable();
    yield* this.kept.entries();
  };
  override uploads = () => this.kept.uploads();
  override apply = (batch: Batch): Promise<void> => {
    if (this.program.alive && this.program.batches-- <= 0) this.world.killed();
    return this.slowly(() => {
      this.world.stored(batch);
      return this.kept.apply(batch);
    });
  };
}
