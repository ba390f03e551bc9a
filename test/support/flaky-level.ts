/** A database in memory whose writes fail as LevelDB's do on a full disk: at times half done, or done and not known. */
import type { Level, Operation } from '../../src/sdk/store/level-store.js';
import { memoryLevel } from './stores.js';

/** What becomes of writes. `lost`: not done. `unknown`: they fail, and are found done after the database is opened again. */
export type Weather = 'fine' | 'lost' | 'unknown';

export class FlakyLevel implements Level {
  weather: Weather = 'fine';
  /** What LevelDB says. */
  message = 'IO error: /store/000005.log: No space left on device';
  opened = 0;
  private readonly inner = memoryLevel();
  private late: Operation[] = [];
  private broken = false;

  /** As for LevelDB: after a write that failed nothing is written until the database is opened anew. */
  readonly reopen = async (): Promise<void> => {
    if (this.weather !== 'fine') throw this.error();
    // Which ends its iterators.
    await this.inner.close();
    await this.inner.open();
    await this.inner.batch(this.late, { keyEncoding: 'utf8', valueEncoding: 'view', sync: true });
    this.late = [];
    this.broken = false;
    this.opened++;
  };

  open = () => this.inner.open();
  close = () => this.inner.close();
  get = (key: string) => this.inner.get(key);
  getMany = (keys: string[]) => this.inner.getMany(keys);
  iterator = (options: Parameters<Level['iterator']>[0]) => this.inner.iterator(options);

  async batch(operations: Operation[], options: Parameters<Level['batch']>[1]): Promise<void> {
    if (this.broken) throw new Error('written to a log whose end is broken');
    if (this.weather === 'fine') {
      await this.inner.batch(operations, options);
      return;
    }
    this.broken = true;
    if (this.weather === 'unknown') this.late = operations;
    throw this.error();
  }

  private error(): Error {
    return Object.assign(new Error(this.message), { code: 'LEVEL_IO_ERROR' });
  }
}
