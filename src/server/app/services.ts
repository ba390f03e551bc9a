/** Puts together everything of a tenant that is not items: its devices, bins, password, pairing and recovery. */
import { Passwords, Reauthentication, Tickets } from '../devices/credentials.js';
import { Devices } from '../devices/devices.js';
import { Bootstrap, Recovery, type ForeignHost } from '../devices/enrolment.js';
import { AddressLimits } from '../http/address-limits.js';
import { tokenIssuer, TokenVerifier } from '../http/tokens.js';
import { Bins } from '../bins/bins.js';
import { publicHosts } from '../config/config.js';
import { nodePasswordHasher, nodeSodium } from '../../crypto/sodium-node.js';
import { Pairing } from '../pairing/pairing.js';
import { AccountStore } from '../devices/store.js';
import { BinStore } from '../bins/store.js';
import { PairingStore } from '../pairing/store.js';
import { RateStore } from '../storage/rate-store.js';
import type { Parts } from './parts.js';
import type { TenantParts } from './tenants.js';

/** What answers for everything of a tenant that is not items. */
export type Services = ReturnType<typeof composeServices>;

/** Makes them. What changes a device, a bin or a pairing tells the tenant's actor, and `tenants.onChange`. */
export function composeServices({ log, config, clock, database, secret, stops, onFault }: Parts, tenants: TenantParts) {
  const { pool } = database;
  const { maxDevices } = config;
  const store = new AccountStore(pool);
  const changed = async (tenant: string): Promise<void> => {
    await tenants.registry.changed(tenant);
    tenants.onChange(tenant);
  };
  const reset = async (tenant: string): Promise<void> => {
    await tenants.registry.reset(tenant);
    tenants.onChange(tenant);
  };
  const issueToken = tokenIssuer({ secret, ttlMs: config.tokenTtlMs, clock });
  const tickets = new Tickets({ secret, clock, store });
  const online = (tenant: string): Promise<ReadonlySet<string>> => tenants.presence.online(tenant);
  const devices = new Devices({ store, clock, changed, online, onFault });
  stops.push(() => devices.close());
  const bins = new Bins({ store: new BinStore(pool), clock, changed, onFault });
  stops.push(() => bins.close());
  const { bootstrapToken } = config;
  const joins = { store, clock, issueToken, tickets, maxDevices, changed, onFault };
  const onForeignHost = (mismatch: ForeignHost): void =>
    log.warn(mismatch, 'recovery refused: it was signed for another host than the one the request came to');
  const recovery = { ...joins, sodium: nodeSodium, publicHosts: publicHosts(config), onForeignHost };
  return {
    tokens: new TokenVerifier(secret),
    tickets,
    devices,
    bootstrap: new Bootstrap({ ...joins, bootstrapToken, claimTokens: config.tenantMode === 'multi', reset }),
    reauth: new Reauthentication({ store, clock, sodium: nodeSodium, issueToken }),
    recovery: new Recovery(recovery),
    passwords: new Passwords({ store, clock, hasher: nodePasswordHasher, tickets }),
    pairing: new Pairing({ ...joins, store: new PairingStore(pool) }),
    bins,
    addressLimits: new AddressLimits({ store: new RateStore(pool), clock, perMinute: config.ratePairPerMin }),
    identities: store,
  };
}
