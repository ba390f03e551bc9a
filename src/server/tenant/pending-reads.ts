/** Reads of the database that are under way, so that a stop can wait for the last of them. */
import type { ItemLog, TenantLoader } from './ports.js';

/** Counts the promises that it is given until they settle. */
export class PendingReads {
  private underWay = 0;
  private whenNone: (() => void)[] = [];

  /** The same promise. Its reader may begin another read in the step in which it settles. */
  counted<T>(read: Promise<T>): Promise<T> {
    this.underWay++;
    const over = (): void => {
      this.underWay--;
      if (this.underWay === 0) for (const wake of this.whenNone.splice(0)) wake();
    };
    read.then(over, over);
    return read;
  }

  /** Resolves when there is none, nor one that followed from the last. */
  async done(): Promise<void> {
    while (this.underWay > 0) await new Promise<void>((resolve) => void this.whenNone.push(resolve));
  }

  /** The log, its pages counted. */
  ofLog(log: ItemLog): ItemLog {
    return { page: (request) => this.counted(log.page(request)) };
  }

  /** The loader, its reads counted. */
  ofLoader(loader: TenantLoader): TenantLoader {
    return {
      load: (tenantId) => this.counted(loader.load(tenantId)),
      hurry: () => loader.hurry(),
      reload: (tenantId, known) => this.counted(loader.reload(tenantId, known)),
      head: (tenantId) => this.counted(loader.head(tenantId)),
      positions: (known) => this.counted(loader.positions(known)),
    };
  }
}
