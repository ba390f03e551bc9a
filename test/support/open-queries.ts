/** Live queries that a program keeps open, and whether each shows in the end what a new one of the same filter does. */
import type { Device } from '../../src/sdk/device.js';
import type { BinCounts, QuerySubscription } from '../../src/sdk/live-query-index.js';
import type { QueryFilter, QueryUpdate, QueryWindow } from '../../src/sdk/query.js';
import { replayed } from './queries.js';

const FILTERS: readonly QueryFilter[] = [
  { binId: 'other' },
  { binId: 'inbox', order: 'oldest' },
  { types: ['file'] },
  { text: '2' },
  { text: 'TEXT', types: ['text'], limit: 2, offset: 1 },
];

const WINDOW = { offset: 0, limit: 500 };

interface Open {
  readonly filter: QueryFilter;
  readonly updates: QueryUpdate[];
  readonly query: QuerySubscription;
  window: QueryWindow;
}

const plain = ({ items, total, offset }: QueryUpdate): string =>
  JSON.stringify([
    items.map(({ id, version, binId, payload, pending }) => [id, version, binId, payload, pending]),
    total,
    offset,
  ]);

export class OpenQueries {
  private readonly open: Open[] = [];
  private counts: BinCounts = new Map();

  private constructor(private readonly device: Device) {}

  static async of(device: Device): Promise<OpenQueries> {
    const made = new OpenQueries(device);
    for (const filter of FILTERS) {
      const updates: QueryUpdate[] = [];
      const query = await device.query(filter, (update) => updates.push(update));
      made.open.push({ filter, updates, query, window: { ...WINDOW, ...filter } });
    }
    await device.counts((counts) => (made.counts = counts));
    return made;
  }

  /** One of them shows another part. */
  async move(which: number, window: QueryWindow): Promise<void> {
    const one = this.open[which % this.open.length];
    if (one === undefined) return;
    one.window = window;
    await one.query.move(window);
  }

  /** What is wrong. */
  async faults(): Promise<readonly string[]> {
    const faults: string[] = [];
    for (const { filter, updates, window } of this.open) {
      const fresh: QueryUpdate[] = [];
      const { close } = await this.device.query({ ...filter, ...window }, (update) => fresh.push(update));
      close();
      const [last, wanted] = [updates.at(-1), fresh.at(-1)];
      if (last === undefined || wanted === undefined || plain(last) !== plain(wanted))
        faults.push(
          `a query for ${JSON.stringify(filter)} shows ${last && plain(last)}, a new one ${wanted && plain(wanted)}`,
        );
      const carried = replayed(updates).map((view) => view?.id);
      if (carried.join() !== last?.items.map(({ id }) => id).join())
        faults.push(`the changes of ${JSON.stringify(filter)} give ${carried.join()}`);
    }
    const bins = new Map<string, number>();
    for (const { binId } of await this.device.list()) bins.set(binId, (bins.get(binId) ?? 0) + 1);
    const text = (counts: BinCounts): string =>
      [...counts]
        .map(([id, count]) => `${id} ${count}`)
        .sort()
        .join();
    if (text(bins) !== text(this.counts)) faults.push(`counts ${text(this.counts)} where there are ${text(bins)}`);
    return faults;
  }
}
