/** Puts together the actors of the tenants, what they write to and read from, and what tells them of other instances. */
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { ChangeFeed } from '../storage/change-feed.js';
import { PostgresCommitLanes } from '../storage/commit/lanes.js';
import { clientConfig } from '../storage/database.js';
import { PostgresTenantLoader } from '../storage/tenant-loader.js';
import { PostgresItemLog } from '../storage/item-log.js';
import { PostgresKeyPurger } from '../storage/key-purger.js';
import { Presence } from '../storage/presence.js';
import { TenantRegistry } from '../tenant/registry.js';
import type { Parts } from './parts.js';

/**
 * Larger batches beat parallel ones where server and database share two cores; with four, two lanes commit 1.6 times what one
 * does, and a third adds nothing (bench S1).
 */
const LANES = availableParallelism() < 4 ? 1 : 2;

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

function composeLanes({ config, clock, database, onFault, meter }: Parts): PostgresCommitLanes {
  return new PostgresCommitLanes({
    connect: (onLost) => database.openLane(onLost),
    lanes: LANES,
    storageCap: config.storageCapBytes,
    clock,
    wait: (ms) => sleep(ms),
    onFault,
    meter,
  });
}

function composePresence(
  { clock, database, instanceId, onFault }: Parts,
  registry: TenantRegistry,
  feed: ChangeFeed,
): Presence {
  return new Presence({
    ...{ instanceId, pool: database.pool, clock, onFault },
    local: (tenant) => registry.loaded(tenant)?.onlineDevices() ?? new Set(),
    tenants: () => registry.tenantsWithSockets(),
    othersUp: () => feed.othersUp,
  });
}

/** Makes them. Nothing is started yet: `registry` and `feed` are, once those that they tell are there. */
export function composeTenants(all: Parts): TenantParts {
  const { clock, database, instanceId, stops, onFault, meter } = all;
  const { pool, history } = database;
  const items = new PostgresItemLog(pool, meter);
  const lanes = composeLanes(all);
  stops.push(() => lanes.close());
  const purger = new PostgresKeyPurger(pool, onFault, clock);
  stops.push(() => purger.close());
  const feed: ChangeFeed = new ChangeFeed({
    instanceId,
    pool,
    connection: clientConfig({ url: database.url, name: 'service-listen' }),
    clock,
    onHint: (tenant, head, generation) => {
      registry.headHint(tenant, head, generation);
      parts.onChange(tenant);
      parts.onHint(tenant);
    },
    onChange: (tenant, generation, carried) => {
      registry.published(tenant, generation, carried);
      parts.onChange(tenant);
      parts.onHint(tenant);
    },
    tenants: () => registry.tenantsWithSockets(),
    onConnected: () => void registry.compareHeads(),
    onOthers: () => presence.announceAll(),
    onFault,
    meter,
  });
  const registry: TenantRegistry = new TenantRegistry({
    lanes,
    log: items,
    loader: new PostgresTenantLoader(pool, clock),
    announcer: feed,
    purger,
    onFault,
    clock,
    meter,
    epoch: () => history.epoch,
  });
  const presence = composePresence(all, registry, feed);
  stops.push(() => presence.close());
  const parts: TenantParts = {
    registry,
    items,
    lanes,
    feed,
    presence,
    onChange: () => undefined,
    onHint: () => undefined,
  };
  return parts;
}
