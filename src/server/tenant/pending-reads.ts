/** Tracks database reads under way, so that a stop can wait for the last of them. */
import type { ItemLog, TenantLoader } from './ports.js';

/** Counts promises until they settle. */
export class PendingReads {
  private underWay = 0;
  private whenNone: (() => void)[] = [];

  /** Returns the same promise. Its reader may start another read in the turn in which it settles. */
  counted<T>(read: Promise<T>): Promise<T> {
    this.underWay++;
    const over = (): void => {
      this.underWay--;
      if (this.underWay === 0) for (const wake of this.whenNone.splice(0)) wake();
    };
    read.then(over, over);
    return read;
  }

  /** Resolves when no read is under way, including those started when the last one settled. */
  async done(): Promise<void> {
    while (this.underWay > 0) await new Promise<void>((resolve) => void this.whenNone.push(resolve));
  }

  /** The log with its reads counted. */
  ofLog(log: ItemLog): ItemLog {
    return { page: (request) => this.counted(log.page(request)) };
  }

  /** The loader with its reads counted. */
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
