/** The few calls of an `abstract-level` database that a store makes, and reading a part of one with bounded memory. */
import { storeErrorOf } from './error.js';

/** The part of an `abstract-level` database that a store uses; keys are texts, values bytes. */
export interface Level {
  open(): Promise<void>;
  close(): Promise<void>;
  get(key: string): Promise<Uint8Array | undefined>;
  getMany(keys: string[]): Promise<(Uint8Array | undefined)[]>;
  put(key: string, value: Uint8Array): Promise<void>;
  batch(operations: Operation[], options: typeof DURABLE): Promise<void>;
  iterator(options: LevelRange & typeof SCAN): {
    nextv(size: number): Promise<[string, Uint8Array][]>;
    close(): Promise<void>;
  };
}

/** Keys from `gte` on, and before `lt`; absent: all. */
export interface LevelRange {
  readonly gte?: string;
  readonly lt?: string;
}

/** LevelDB flushes to the disk before it answers; others do not know the option. */
export const DURABLE = { keyEncoding: 'utf8', valueEncoding: 'view', sync: true } as const;
/** Records read at once, and bytes of them where the database counts those: what a scan holds in memory. */
const SCAN_RECORDS = 256;
const SCAN = { highWaterMarkBytes: 1024 * 1024 } as const;

/** One change of a batch. */
export type Operation =
  | { readonly type: 'put'; readonly key: string; readonly value: Uint8Array }
  | { readonly type: 'del'; readonly key: string };

/** Records of a range, with bounded memory. Throws `StoreError`. */
export async function* scanned(level: Level, range: LevelRange): AsyncGenerator<[string, Uint8Array]> {
  const iterator = level.iterator({ ...range, ...SCAN });
  try {
    for (;;) {
      const records = await iterator.nextv(SCAN_RECORDS);
      if (records.length === 0) return;
      yield* records;
    }
  } catch (error) {
    throw storeErrorOf(error);
  } finally {
    await iterator.close();
  }
}
