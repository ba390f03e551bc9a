/** What the parts of a server are made of; src/server.ts puts them together. */
import type { Logger } from 'pino';
import type { Config } from './config.js';
import type { Database, Stop } from './database.js';
import type { Metrics } from './metrics/metrics.js';
import type { ChangeFeed } from './postgres/change-feed.js';
import type { PostgresCommitLanes } from './postgres/commit-lanes.js';
import type { PostgresItemLog } from './postgres/item-log.js';
import type { Presence } from './postgres/presence.js';
import type { Clock } from './protocol/clock.js';
import type { TenantRegistry } from './tenant/registry.js';

/** What every part is made of. */
export interface Parts {
  readonly log: Logger;
  readonly config: Config;
  readonly clock: Clock;
  readonly database: Database;
  readonly instanceId: string;
  readonly secret: Uint8Array;
  /** Signs the URLs of the local blob store. */
  readonly blobUrlSecret: string;
  /** Run in reverse when the server stops. */
  readonly stops: Stop[];
  readonly onFault: (error: unknown, tenantId?: string) => void;
  /** The one tenant of single mode; null in multi mode. */
  readonly tenantId: string | null;
  /** Undefined: METRICS_PORT is unset. */
  readonly meter: Metrics | undefined;
}

/** The actors of an instance, and what they stand on. */
export interface TenantParts {
  readonly registry: TenantRegistry;
  readonly items: PostgresItemLog;
  readonly lanes: PostgresCommitLanes;
  readonly feed: ChangeFeed;
  readonly presence: Presence;
  /** Told of every tenant whose devices, bins or pairings changed, here or elsewhere. */
  onChange: (tenantId: string) => void;
  /** Another instance speaks of a tenant, which may be one that this instance has never heard of. */
  onHint: (tenantId: string) => void;
}
